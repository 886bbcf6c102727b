-- The first collective of train-7 whose ranks enter more than a millisecond apart, in the last five minutes.
-- window: 300 s at 1.00
-- ordered: yes
SELECT comm_hash, func, seq, min(ts_ns) AS first_ns, max(ts_ns) - min(ts_ns) AS spread_ns
FROM collectives WHERE ts_ns >= {since} AND ts_ns < {until} AND job_id = 'train-7' AND func = 'all_reduce'
GROUP BY comm_hash, func, seq HAVING max(ts_ns) - min(ts_ns) > 1000000
ORDER BY first_ns, comm_hash, seq LIMIT 1
