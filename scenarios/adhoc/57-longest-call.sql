-- The longest call of each function with its time and rank (the row of the maximum).
-- ordered: yes
SELECT func, max(duration_ns * 1000 + rank) / 1000 AS longest_ns, max(duration_ns * 1000 + rank) % 1000 AS of_rank, min(ts_ns) AS first_ns
FROM collectives GROUP BY func ORDER BY func
