-- Page faults and reclaim within a tenth of a second before a call of the same process.
-- window: 300 s at 0.40
-- ordered: yes
SELECT m.event, count(DISTINCT m.ts_ns) AS events, count(*) AS calls_after, max(c.ts_ns - m.ts_ns) AS most_ns
FROM memory_events AS m
JOIN collectives AS c ON c.pid = m.pid AND c.ts_ns > m.ts_ns AND c.ts_ns <= m.ts_ns + 100000000
WHERE m.ts_ns >= {since} AND m.ts_ns < {until} AND c.ts_ns >= {since} AND c.ts_ns < {until}
GROUP BY m.event ORDER BY m.event
