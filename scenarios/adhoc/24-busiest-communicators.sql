-- Calls of the two communicators that carry the most bytes, by function (IN over an aggregate).
-- ordered: yes
SELECT comm_hash, func, count(*) AS calls, max(bytes) AS largest FROM collectives
WHERE comm_hash IN (SELECT comm_hash FROM collectives GROUP BY comm_hash ORDER BY sum(bytes) DESC, comm_hash LIMIT 2)
GROUP BY comm_hash, func ORDER BY comm_hash, func
