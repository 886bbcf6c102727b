-- How long after the end of a slow request does its process enter the next call?
-- window: 60 s at 0.40
-- ordered: yes
SELECT b.ts_ns, b.pid, b.duration_ns,
    (SELECT min(c.ts_ns) FROM collectives AS c
     WHERE c.pid = b.pid AND c.ts_ns >= b.ts_ns + b.duration_ns AND c.ts_ns >= {since} AND c.ts_ns < {until})
    - b.ts_ns - b.duration_ns AS after_ns
FROM block_io AS b
WHERE b.ts_ns >= {since} AND b.ts_ns < {until} AND b.duration_ns > 15000000
ORDER BY b.ts_ns, b.pid, b.duration_ns LIMIT 50
