-- What does a byte cost? Slope and intercept of time over size, by function.
-- ordered: yes
-- tolerance: 1e-6
SELECT func, slope, (sy - slope * sx) / n AS intercept_ns
FROM (
    SELECT func, n, sx, sy, (n * sxy - sx * sy) / (n * sxx - sx * sx) AS slope
    FROM (
        SELECT func, count(*) AS n, sum(1.0 * bytes) AS sx, sum(1.0 * duration_ns) AS sy, sum(1.0 * bytes * duration_ns) AS sxy, sum(1.0 * bytes * bytes) AS sxx
        FROM collectives WHERE bytes > 0 GROUP BY func
    ) AS sums
) AS fitted
ORDER BY func
