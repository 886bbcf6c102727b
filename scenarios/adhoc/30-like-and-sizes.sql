-- Calls by the beginning of their name, large and long ones only, by process.
-- ordered: yes
SELECT pid, count(*) AS calls, sum(bytes) AS bytes, max(duration_ns) AS longest_ns FROM collectives
WHERE func LIKE 'all%' AND bytes > 1000000 AND duration_ns > 12000 GROUP BY pid ORDER BY pid
