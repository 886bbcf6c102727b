-- The bounds of the quartiles of a minute's durations, by function.
-- window: 60 s at 0.70
-- ordered: yes
SELECT func, quarter, count(*) AS calls, min(duration_ns) AS from_ns, max(duration_ns) AS to_ns
FROM (
    SELECT func, duration_ns, ntile(4) OVER (PARTITION BY func ORDER BY duration_ns) AS quarter
    FROM collectives WHERE ts_ns >= {since} AND ts_ns < {until}
) AS tiles
GROUP BY func, quarter ORDER BY func, quarter
