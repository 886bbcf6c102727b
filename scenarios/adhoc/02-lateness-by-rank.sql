-- How late after the first rank does each one enter, over the last minute (in which a rank is late)?
-- window: 60 s at 1.00
-- ordered: yes
-- tolerance: 1e-9
WITH first AS (
    SELECT comm_hash, func, seq, min(ts_ns) AS first_ns FROM collectives
    WHERE ts_ns >= {since} AND ts_ns < {until} AND job_id = 'train-7' GROUP BY comm_hash, func, seq
)
SELECT c.rank, count(*) AS calls, avg(c.ts_ns - first.first_ns) AS late_ns, max(c.ts_ns - first.first_ns) AS most_ns
FROM collectives AS c JOIN first USING (comm_hash, func, seq)
WHERE c.ts_ns >= {since} AND c.ts_ns < {until}
GROUP BY c.rank ORDER BY c.rank
