-- Short, usual and long calls in one row a function.
-- ordered: yes
SELECT func, sum(CASE WHEN duration_ns < 20000 THEN 1 ELSE 0 END) AS short, sum(CASE WHEN duration_ns BETWEEN 20000 AND 499999 THEN 1 ELSE 0 END) AS usual,
    sum(CASE WHEN duration_ns >= 500000 THEN 1 ELSE 0 END) AS long, count(*) FILTER (WHERE bytes = 0) AS empty
FROM collectives GROUP BY func ORDER BY func
