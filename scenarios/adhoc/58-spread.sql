-- Mean and standard deviation of a rank's calls, by function, from moments.
-- ordered: yes
-- tolerance: 1e-6
SELECT rank, func, avg(duration_ns) AS mean_ns, sqrt(avg(1.0 * duration_ns * duration_ns) - avg(duration_ns) * avg(duration_ns)) AS deviation_ns
FROM collectives GROUP BY rank, func ORDER BY rank, func
