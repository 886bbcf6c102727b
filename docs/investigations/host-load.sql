-- How busy were hosts?
-- :since time = 1h -- from when on
-- :until time = now -- up to when
SELECT node, count(*) AS samples, avg(cpu_busy_pct) AS busy_pct, max(load_1m) AS load FROM host_samples
WHERE ts_ns >= :since AND ts_ns < :until GROUP BY node ORDER BY node
