-- Who waits least? Time in the call above the shortest of the same collective, by rank.
-- window: 30 s at 1.00
-- ordered: yes
WITH shortest AS (
    SELECT comm_hash, func, seq, min(duration_ns) AS least_ns, count(*) AS ranks FROM collectives
    WHERE ts_ns >= {since} AND ts_ns < {until} GROUP BY comm_hash, func, seq
)
SELECT c.job_id, c.rank, sum(c.duration_ns - s.least_ns) AS waited_ns
FROM collectives AS c JOIN shortest AS s ON s.comm_hash = c.comm_hash AND s.func = c.func AND s.seq = c.seq
WHERE c.ts_ns >= {since} AND c.ts_ns < {until} AND s.ranks > 1
GROUP BY c.job_id, c.rank ORDER BY waited_ns, c.job_id, c.rank
