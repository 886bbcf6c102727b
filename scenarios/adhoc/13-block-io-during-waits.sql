-- Requests to disks while their process was in a collective or just before it: by operation.
-- window: 30 s at 0.40
-- ordered: yes
SELECT b.op, c.func, count(*) AS times, sum(b.duration_ns) AS io_ns, max(b.bytes) AS largest
FROM block_io AS b
JOIN collectives AS c ON c.pid = b.pid AND c.ts_ns >= b.ts_ns AND c.ts_ns < b.ts_ns + b.duration_ns
WHERE b.ts_ns >= {since} AND b.ts_ns < {until} AND c.ts_ns >= {since} AND c.ts_ns < {until}
GROUP BY b.op, c.func ORDER BY b.op, c.func
