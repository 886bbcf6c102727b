-- Slow calls of the data loader: how many, and how many were followed by a pause of 5 ms in the next 20 ms.
-- window: 120 s at 0.40
-- ordered: yes
SELECT s.symbol, count(*) AS slow, sum(EXISTS (
    SELECT 1 FROM offcpu AS o WHERE o.pid = s.pid AND o.ts_ns >= s.ts_ns AND o.ts_ns < s.ts_ns + 20000000 AND o.duration_ns > 1000000
      AND o.ts_ns >= {since} AND o.ts_ns < {until})) AS followed
FROM symbol_calls AS s WHERE s.duration_ns > 4000000 AND s.ts_ns >= {since} AND s.ts_ns < {until}
GROUP BY s.symbol ORDER BY s.symbol
-- duckdb:
SELECT s.symbol, count(*) AS slow, sum(CASE WHEN EXISTS (
    SELECT 1 FROM offcpu AS o WHERE o.pid = s.pid AND o.ts_ns >= s.ts_ns AND o.ts_ns < s.ts_ns + 20000000 AND o.duration_ns > 1000000
      AND o.ts_ns >= {since} AND o.ts_ns < {until}) THEN 1 ELSE 0 END) AS followed
FROM symbol_calls AS s WHERE s.duration_ns > 4000000 AND s.ts_ns >= {since} AND s.ts_ns < {until}
GROUP BY s.symbol ORDER BY s.symbol
