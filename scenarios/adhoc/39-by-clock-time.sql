-- Calls and time in them by the minute of the clock.
-- ordered: yes
SELECT strftime('%H:%M', ts_ns / 1000000000, 'unixepoch') AS minute, count(*) AS calls, sum(duration_ns) AS in_calls_ns
FROM collectives GROUP BY 1 ORDER BY 1
-- duckdb:
SELECT strftime(make_timestamp(ts_ns // 1000), '%H:%M') AS minute, count(*) AS calls, sum(duration_ns) AS in_calls_ns
FROM collectives GROUP BY 1 ORDER BY 1
