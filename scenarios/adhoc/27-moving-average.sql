-- Calls that take five times the mean of the hundred before them on the same rank.
-- window: 60 s at 0.70
-- ordered: yes
-- tolerance: 1e-9
SELECT pid, ts_ns, func, duration_ns, mean_ns
FROM (
    SELECT pid, ts_ns, func, duration_ns,
        avg(duration_ns) OVER (PARTITION BY pid ORDER BY ts_ns, func, seq ROWS BETWEEN 100 PRECEDING AND 1 PRECEDING) AS mean_ns
    FROM collectives WHERE ts_ns >= {since} AND ts_ns < {until}
) AS averaged
WHERE duration_ns > 5 * mean_ns ORDER BY ts_ns, pid LIMIT 30
