-- Calls after which the process did not leave its CPU for a millisecond (anti-join).
-- window: 2 s at 0.70
-- ordered: yes
SELECT c.job_id, c.func, count(*) AS calls FROM collectives AS c
WHERE c.ts_ns >= {since} AND c.ts_ns < {until} AND NOT EXISTS (
    SELECT 1 FROM offcpu AS o WHERE o.pid = c.pid AND o.ts_ns >= c.ts_ns AND o.ts_ns < c.ts_ns + 1000000
      AND o.ts_ns >= {since} AND o.ts_ns < {until} + 1000000)
GROUP BY c.job_id, c.func ORDER BY c.job_id, c.func
