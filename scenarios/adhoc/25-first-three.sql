-- How often is each rank among the first three to enter?
-- window: 10 s at 0.40
-- ordered: yes
SELECT rank, count(*) AS times
FROM (
    SELECT rank, row_number() OVER (PARTITION BY comm_hash, func, seq ORDER BY ts_ns, rank) AS place
    FROM collectives WHERE ts_ns >= {since} AND ts_ns < {until}
) AS places
WHERE place <= 3 GROUP BY rank ORDER BY rank
