-- Gigabytes a second by function and size, calls of a megabyte and more.
-- ordered: yes
-- tolerance: 1e-9
SELECT func, bytes, count(*) AS calls, sum(bytes) * 1.0 / sum(duration_ns) AS gigabytes_per_s
FROM collectives WHERE bytes >= 1000000 AND duration_ns > 0 GROUP BY func, bytes ORDER BY func, bytes
