-- The median time of each function of each rank.
-- ordered: yes
-- tolerance: 1e-9
SELECT rank, func, median(duration_ns) AS median_ns FROM collectives GROUP BY rank, func ORDER BY rank, func
