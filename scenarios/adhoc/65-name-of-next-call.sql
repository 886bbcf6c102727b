-- Which call does a process enter next after a slow request, and how long does that call take?
-- window: 60 s at 0.40
-- ordered: yes
SELECT b.ts_ns, b.pid, b.duration_ns,
    (SELECT c.func FROM collectives AS c WHERE c.pid = b.pid AND c.ts_ns >= b.ts_ns + b.duration_ns ORDER BY c.ts_ns LIMIT 1) AS next_func,
    (SELECT c.duration_ns FROM collectives AS c WHERE c.pid = b.pid AND c.ts_ns >= b.ts_ns + b.duration_ns ORDER BY c.ts_ns LIMIT 1) AS next_ns
FROM block_io AS b
WHERE b.ts_ns >= {since} AND b.ts_ns < {until} AND b.duration_ns > 15000000
ORDER BY b.ts_ns, b.pid, b.duration_ns LIMIT 50
