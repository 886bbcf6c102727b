-- Children of ranks from fork to exit: how many, how long.
-- ordered: yes
-- tolerance: 1e-9
SELECT f.parent_pid, f.comm, count(*) AS children, avg(x.ts_ns - f.ts_ns) AS lived_ns
FROM process_events AS f
JOIN process_events AS x ON x.event = 'exit' AND x.pid = f.pid AND x.ts_ns - f.ts_ns = 9000000
WHERE f.event = 'fork' GROUP BY f.parent_pid, f.comm ORDER BY f.parent_pid, f.comm
