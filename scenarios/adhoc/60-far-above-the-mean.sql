-- Calls of more than ten times the mean of their function: how many, by function and rank.
-- ordered: yes
SELECT c.func, c.rank, count(*) AS outliers FROM collectives AS c
JOIN (SELECT func, avg(duration_ns) AS mean_ns FROM collectives GROUP BY func) AS m ON m.func = c.func
WHERE c.duration_ns > 10 * m.mean_ns GROUP BY c.func, c.rank ORDER BY c.func, c.rank
