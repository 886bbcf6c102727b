-- How long are the gaps between a rank's calls? A histogram by rank, in steps of ten.
-- window: 60 s at 0.40
-- ordered: yes
WITH gaps AS (
    SELECT pid, ts_ns - lag(ts_ns + duration_ns) OVER (PARTITION BY pid ORDER BY ts_ns) AS gap_ns
    FROM collectives WHERE ts_ns >= {since} AND ts_ns < {until}
)
SELECT pid,
    CASE WHEN gap_ns < 0 THEN 'overlap' WHEN gap_ns < 10000 THEN '1: < 10 us' WHEN gap_ns < 100000 THEN '2: < 100 us'
         WHEN gap_ns < 1000000 THEN '3: < 1 ms' WHEN gap_ns < 10000000 THEN '4: < 10 ms' ELSE '5: longer' END AS gap,
    count(*) AS times
FROM gaps WHERE gap_ns IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
