-- Which requests to disks ran while a rank was off the CPU?
-- :since time = 1m -- from when on
-- :until time = now -- up to when
SELECT o.node, o.rank, b.device, b.op, count(*) AS requests, sum(b.duration_ns) AS request_ns
FROM offcpu o JOIN block_io b
    ON b.node = o.node AND b.pid = o.pid AND b.ts_ns < o.ts_ns + o.duration_ns AND b.ts_ns + b.duration_ns > o.ts_ns
WHERE o.ts_ns >= :since AND o.ts_ns < :until AND o.rank IS NOT NULL AND b.ts_ns >= :since - 60000000000 AND b.ts_ns < :until
GROUP BY o.node, o.rank, b.device, b.op ORDER BY request_ns DESC, o.node, o.rank
