-- Calls in every second of a minute, also those without any.
-- window: 60 s at 0.52
-- ordered: yes
WITH RECURSIVE seconds(second) AS (
    SELECT {since} / 1000000000 UNION ALL SELECT second + 1 FROM seconds WHERE second + 1 < {until} / 1000000000
)
SELECT seconds.second, count(c.ts_ns) AS calls
FROM seconds LEFT JOIN (SELECT ts_ns, ts_ns / 1000000000 AS second FROM collectives WHERE ts_ns >= {since} AND ts_ns < {until}) AS c
  ON c.second = seconds.second
GROUP BY seconds.second ORDER BY seconds.second
