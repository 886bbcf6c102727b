-- Which ranks were off the CPU for a time and more in all?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
-- :least duration = 1s -- so long at least
SELECT node, rank, sum(duration_ns) AS off_ns FROM offcpu WHERE ts_ns >= :since AND ts_ns < :until AND rank IS NOT NULL
GROUP BY node, rank HAVING sum(duration_ns) >= :least ORDER BY node, rank
