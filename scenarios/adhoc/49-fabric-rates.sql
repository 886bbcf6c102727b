-- Bytes a second of each port between two readings: the highest rates.
-- ordered: yes
-- tolerance: 1e-9
SELECT device, counter, max(rate) AS highest, avg(rate) AS mean
FROM (
    SELECT device, counter, delta * 1e9 / (ts_ns - lag(ts_ns) OVER (PARTITION BY device, counter ORDER BY ts_ns, delta)) AS rate
    FROM fabric_counters
) AS rates
WHERE rate > 0 GROUP BY device, counter ORDER BY device, counter
