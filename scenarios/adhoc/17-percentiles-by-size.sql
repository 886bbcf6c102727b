-- Median and 99th percentile of the time of a call, by size in powers of four.
-- ordered: yes
-- tolerance: 1e-9
SELECT CASE WHEN bytes < 4096 THEN 'a: < 4 KiB' WHEN bytes < 65536 THEN 'b: < 64 KiB' WHEN bytes < 1048576 THEN 'c: < 1 MiB'
            WHEN bytes < 16777216 THEN 'd: < 16 MiB' ELSE 'e: larger' END AS size,
    count(*) AS calls, percentile(duration_ns, 50) AS p50, percentile(duration_ns, 99) AS p99
FROM collectives WHERE duration_ns IS NOT NULL GROUP BY 1 ORDER BY 1
-- duckdb:
SELECT CASE WHEN bytes < 4096 THEN 'a: < 4 KiB' WHEN bytes < 65536 THEN 'b: < 64 KiB' WHEN bytes < 1048576 THEN 'c: < 1 MiB'
            WHEN bytes < 16777216 THEN 'd: < 16 MiB' ELSE 'e: larger' END AS size,
    count(*) AS calls, quantile_cont(duration_ns, 0.5) AS p50, quantile_cont(duration_ns, 0.99) AS p99
FROM collectives WHERE duration_ns IS NOT NULL GROUP BY 1 ORDER BY 1
