-- The ten slowest seconds of any rank.
-- ordered: yes
-- tolerance: 1e-9
SELECT ts_ns / 1000000000 AS second, rank, avg(duration_ns) AS mean_ns, count(*) AS calls
FROM collectives GROUP BY 1, rank ORDER BY mean_ns DESC, second, rank LIMIT 10
