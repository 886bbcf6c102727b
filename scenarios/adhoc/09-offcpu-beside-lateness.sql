-- Lateness and off-CPU time of each process, second by second, side by side.
-- window: 20 s at 0.70
-- ordered: yes
WITH entered AS (
    SELECT pid, ts_ns / 1000000000 AS second, ts_ns - min(ts_ns) OVER (PARTITION BY comm_hash, func, seq) AS late_ns
    FROM collectives WHERE ts_ns >= {since} AND ts_ns < {until} AND seq IS NOT NULL
), late AS (SELECT pid, second, sum(late_ns) AS late_ns FROM entered GROUP BY pid, second),
off AS (
    SELECT pid, ts_ns / 1000000000 AS second, sum(duration_ns) AS off_ns, sum(run_delay_ns) AS delayed_ns
    FROM offcpu WHERE ts_ns >= {since} AND ts_ns < {until} GROUP BY pid, 2
)
SELECT late.pid, late.second, late.late_ns, coalesce(off.off_ns, 0) AS off_ns, coalesce(off.delayed_ns, 0) AS delayed_ns
FROM late LEFT JOIN off ON off.pid = late.pid AND off.second = late.second
ORDER BY late.pid, late.second
