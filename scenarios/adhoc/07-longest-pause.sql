-- The longest pause of each process between two calls, and what came after it.
-- window: 60 s at 0.40
-- ordered: yes
SELECT pid, pause_ns, ts_ns, func
FROM (
    SELECT pid, ts_ns, func, pause_ns, row_number() OVER (PARTITION BY pid ORDER BY pause_ns DESC, ts_ns) AS place
    FROM (
        SELECT pid, ts_ns, func, ts_ns - lag(ts_ns) OVER (PARTITION BY pid ORDER BY ts_ns, func) AS pause_ns
        FROM collectives WHERE ts_ns >= {since} AND ts_ns < {until}
    ) AS pauses
    WHERE pause_ns IS NOT NULL
) AS ranked
WHERE place = 1 ORDER BY pid, ts_ns
