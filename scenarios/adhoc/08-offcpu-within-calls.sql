-- Off-CPU time that began inside a collective of the same process, by function and reason.
-- window: 2 s at 0.40
-- ordered: yes
SELECT c.func, o.reason, count(*) AS times, sum(o.duration_ns) AS off_ns
FROM collectives AS c
JOIN offcpu AS o ON o.pid = c.pid AND o.ts_ns >= c.ts_ns AND o.ts_ns < c.ts_ns + c.duration_ns + 200000
WHERE c.ts_ns >= {since} AND c.ts_ns < {until} AND o.ts_ns >= {since} AND o.ts_ns < {until}
GROUP BY c.func, o.reason ORDER BY c.func, o.reason
