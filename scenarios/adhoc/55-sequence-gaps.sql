-- Numbers missing in a rank's calls: were calls lost, or did the rank not make them?
-- window: 300 s at 0.70
-- ordered: yes
SELECT rank, comm_hash, func, count(*) AS calls, sum(CASE WHEN step > 1 THEN 1 ELSE 0 END) AS gaps, max(step) AS widest
FROM (
    SELECT rank, comm_hash, func, seq - lag(seq) OVER (PARTITION BY rank, comm_hash, func ORDER BY seq) AS step
    FROM collectives WHERE ts_ns >= {since} AND ts_ns < {until} AND seq IS NOT NULL
) AS steps
GROUP BY rank, comm_hash, func ORDER BY rank, comm_hash, func
