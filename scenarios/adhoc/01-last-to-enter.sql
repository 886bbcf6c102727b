-- Which rank enters the all-reduces of a minute last, and how often?
-- window: 60 s at 0.40
-- ordered: yes
WITH calls AS (
    SELECT comm_hash, seq, rank, ts_ns FROM collectives
    WHERE ts_ns >= {since} AND ts_ns < {until} AND func = 'all_reduce'
), last AS (SELECT comm_hash, seq, max(ts_ns) AS last_ns FROM calls GROUP BY comm_hash, seq)
SELECT calls.rank, count(*) AS times
FROM calls JOIN last ON last.comm_hash = calls.comm_hash AND last.seq = calls.seq AND last.last_ns = calls.ts_ns
GROUP BY calls.rank ORDER BY times DESC, calls.rank
