-- Calls above 100 ms as a person reads them: time of day, milliseconds.
-- ordered: yes
-- tolerance: 1e-9
SELECT datetime(ts_ns / 1000000000, 'unixepoch') AS at, ts_ns % 1000000000 / 1000 AS us, rank, upper(func) AS op, duration_ns / 1e6 AS ms
FROM collectives WHERE duration_ns > 100000000 ORDER BY ts_ns, pid LIMIT 40
-- duckdb:
SELECT strftime(make_timestamp(ts_ns // 1000), '%Y-%m-%d %H:%M:%S') AS at, ts_ns % 1000000000 // 1000 AS us, rank, upper(func) AS op, duration_ns / 1e6 AS ms
FROM collectives WHERE duration_ns > 100000000 ORDER BY ts_ns, pid LIMIT 40
