-- How many collectives did each communicator make?
-- ordered: yes
SELECT comm_hash, count(DISTINCT seq) AS collectives, count(*) AS calls FROM collectives GROUP BY comm_hash ORDER BY comm_hash
