-- Kernel launches and copies of each rank, by ten minutes, from what was only counted.
-- ordered: yes
SELECT rank, func, bucket_ns / 600000000000 AS part, sum(count) AS calls, sum(sum_ns) AS in_calls_ns, sum(bytes) AS bytes
FROM call_rollups WHERE source = 'cuda' GROUP BY rank, func, 3 ORDER BY rank, func, part
