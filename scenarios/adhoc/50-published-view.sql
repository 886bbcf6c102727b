-- A published investigation's own words: slow NCCL operations by op, over the view of that name.
-- ordered: yes
-- tolerance: 1e-9
SELECT op, count(*) AS calls, avg(duration_ns) / 1000 AS mean_us, max(duration_ns) AS longest_ns
FROM nccl_events WHERE duration_ns > 9000 GROUP BY op ORDER BY op
-- duckdb:
SELECT upper(func) AS op, count(*) AS calls, avg(duration_ns) / 1000 AS mean_us, max(duration_ns) AS longest_ns
FROM collectives WHERE library IN ('nccl', 'rccl') AND duration_ns > 9000 GROUP BY 1 ORDER BY 1
