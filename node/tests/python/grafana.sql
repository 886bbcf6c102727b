-- What Grafana's PostgreSQL source asks, written down from its documentation and sources' behaviour: at "Save & test", in its query
-- builder, and for panels with its macros ($__unixEpochNanoFilter, $__timeFilter with $__timeGroup).
-- name: ping
SELECT 1
-- gives: 1
-- name: version
SELECT current_setting('server_version_num')::int/100 as version
-- gives: 1600
-- name: tables
select quote_ident(table_name) as "table" from information_schema.tables
    where quote_ident(table_schema) not in ('information_schema', 'pg_catalog', '_timescaledb_cache', '_timescaledb_catalog',
      '_timescaledb_internal', '_timescaledb_config', 'timescaledb_information', 'timescaledb_experimental')
      and quote_ident(table_schema) IN (
          SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
          FROM generate_series(
              array_lower(string_to_array(current_setting('search_path'),','),1),
              array_upper(string_to_array(current_setting('search_path'),','),1)) as i,
            string_to_array(current_setting('search_path'),',') s)
-- gives: collectives / offcpu / processes
-- name: columns
select quote_ident(column_name) as "column", data_type as "type" from information_schema.columns
    where CASE WHEN array_length(parse_ident('collectives'),1) = 2
        THEN quote_ident(table_schema) = (parse_ident('collectives'))[1] and quote_ident(table_name) = (parse_ident('collectives'))[2]
        ELSE quote_ident(table_name) = 'collectives'
          and quote_ident(table_schema) IN (
          SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
          FROM generate_series(
              array_lower(string_to_array(current_setting('search_path'),','),1),
              array_upper(string_to_array(current_setting('search_path'),','),1)) as i,
            string_to_array(current_setting('search_path'),',') s)
      END
-- gives: ts_ns|bigint / func|text / node|text
-- name: time column
select quote_ident(column_name) from information_schema.columns where table_name = 'collectives' and data_type in ('bigint') order by 1
-- gives: duration_ns / ts_ns
-- name: timescale
SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'
-- gives: 
-- name: panel
SELECT ts_ns / 1000000000 AS time, node AS metric, count(*) AS calls FROM collectives
  WHERE ts_ns >= 1767225600000000000 AND ts_ns <= 1767225601000000000 GROUP BY 1, 2 ORDER BY 1, 2
-- gives: 1767225600|n0|20 / 1767225600|n1|20
-- name: panel with time groups
SELECT floor(extract(epoch from ts_ns)/60)*60 AS "time", node AS metric, count(*) AS calls FROM collectives
  WHERE ts_ns BETWEEN '2026-01-01T00:00:00Z' AND '2026-01-01T00:00:01Z' GROUP BY 1, 2 ORDER BY 1, 2
-- gives: 1767225600.0|n0|20 / 1767225600.0|n1|20
