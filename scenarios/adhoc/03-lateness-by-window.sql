-- The ten collectives of ten seconds with the widest entries, first entry taken by a window.
-- window: 10 s at 0.80
-- ordered: yes
SELECT comm_hash, func, seq, max(late_ns) AS spread_ns
FROM (
    SELECT comm_hash, func, seq, ts_ns - min(ts_ns) OVER (PARTITION BY comm_hash, func, seq) AS late_ns
    FROM collectives WHERE ts_ns >= {since} AND ts_ns < {until} AND seq IS NOT NULL
) AS entries
GROUP BY comm_hash, func, seq ORDER BY spread_ns DESC, comm_hash, func, seq LIMIT 10
