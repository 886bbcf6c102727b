-- Communicators in which some rank made fewer calls than another.
-- ordered: yes
SELECT comm_hash, func, min(calls) AS fewest, max(calls) AS most, count(*) AS ranks
FROM (SELECT comm_hash, func, rank, count(*) AS calls FROM collectives GROUP BY comm_hash, func, rank) AS counted
GROUP BY comm_hash, func HAVING max(calls) - min(calls) >= 0 ORDER BY most - fewest DESC, comm_hash, func
-- duckdb:
SELECT comm_hash, func, min(calls) AS fewest, max(calls) AS most, count(*) AS ranks
FROM (SELECT comm_hash, func, rank, count(*) AS calls FROM collectives GROUP BY comm_hash, func, rank) AS counted
GROUP BY comm_hash, func HAVING max(calls) - min(calls) >= 0 ORDER BY max(calls) - min(calls) DESC, comm_hash, func
