-- What took the CPU from ranks?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
SELECT node, rank, next_comm, count(*) AS times, sum(duration_ns) AS taken_ns FROM offcpu
WHERE ts_ns >= :since AND ts_ns < :until AND rank IS NOT NULL AND voluntary = 0
GROUP BY node, rank, next_comm ORDER BY taken_ns DESC, node, rank, next_comm
