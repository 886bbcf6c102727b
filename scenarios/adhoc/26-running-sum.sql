-- When had each rank sent half of the minute's bytes? A running sum over its calls.
-- window: 60 s at 0.70
-- ordered: yes
SELECT pid, min(ts_ns) AS half_ns
FROM (
    SELECT pid, ts_ns,
        sum(bytes) OVER (PARTITION BY pid ORDER BY ts_ns, func, seq ROWS UNBOUNDED PRECEDING) AS so_far,
        sum(bytes) OVER (PARTITION BY pid) AS whole
    FROM collectives WHERE ts_ns >= {since} AND ts_ns < {until}
) AS sums
WHERE 2 * so_far >= whole GROUP BY pid ORDER BY pid
