-- Calls during which some request of the same process was under way (semi-join).
-- window: 20 s at 0.40
-- ordered: yes
SELECT c.func, count(*) AS calls, sum(c.duration_ns) AS in_calls_ns FROM collectives AS c
WHERE c.ts_ns >= {since} AND c.ts_ns < {until} AND EXISTS (
    SELECT 1 FROM block_io AS b
    WHERE b.pid = c.pid AND b.ts_ns < c.ts_ns + c.duration_ns AND b.ts_ns + b.duration_ns > c.ts_ns
      AND b.ts_ns >= {since} - 1000000000 AND b.ts_ns < {until})
GROUP BY c.func ORDER BY c.func
