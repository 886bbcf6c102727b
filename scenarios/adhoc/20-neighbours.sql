-- Ranks beside each other in the same collective: how far apart do they enter?
-- window: 10 s at 0.40
-- ordered: yes
-- tolerance: 1e-9
SELECT a.rank, b.rank AS neighbour, count(*) AS calls, avg(b.ts_ns - a.ts_ns) AS later_ns
FROM collectives AS a
JOIN collectives AS b ON b.comm_hash = a.comm_hash AND b.seq = a.seq AND b.func = a.func AND b.rank = a.rank + 1
WHERE a.ts_ns >= {since} AND a.ts_ns < {until} AND b.ts_ns >= {since} AND b.ts_ns < {until}
GROUP BY a.rank, b.rank ORDER BY a.rank
