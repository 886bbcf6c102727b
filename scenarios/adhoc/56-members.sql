-- Which ranks and processes belong to each communicator?
-- ordered: yes
-- sets: 3 4
SELECT comm_hash, nranks, group_concat(DISTINCT rank) AS ranks, group_concat(DISTINCT pid) AS pids
FROM collectives GROUP BY comm_hash, nranks ORDER BY comm_hash, nranks
