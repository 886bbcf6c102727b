-- How many bytes does each rank hand over, by function?
-- ordered: yes
SELECT rank, func, sum(bytes) AS bytes FROM collectives GROUP BY rank, func ORDER BY rank, func
