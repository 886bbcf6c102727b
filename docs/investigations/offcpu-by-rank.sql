-- How long was each rank off the CPU, of its own will and not?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
SELECT rank, voluntary, count(*) AS times, sum(duration_ns) AS off_ns FROM offcpu
WHERE ts_ns >= :since AND ts_ns < :until AND rank IS NOT NULL GROUP BY rank, voluntary ORDER BY rank, voluntary
