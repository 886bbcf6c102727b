-- Does every hundredth call of a communicator differ (a checkpoint, an evaluation)?
-- ordered: yes
-- tolerance: 1e-9
SELECT comm_hash, seq % 100 AS remainder, count(*) AS calls, avg(duration_ns) AS mean_ns
FROM collectives GROUP BY comm_hash, 2 ORDER BY comm_hash, 2
