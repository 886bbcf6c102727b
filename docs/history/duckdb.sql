-- The tables and views of an archive in DuckDB. ARCHIVE stands for its directory, or s3://BUCKET/PREFIX (then first
-- INSTALL httpfs; LOAD httpfs; and CREATE SECRET …). Times are Unix nanoseconds, as in a trace store; `date` and `hour`
-- are the folders', and a condition on them reads no other.

CREATE MACRO archived(name) AS TABLE
    SELECT * FROM read_parquet('ARCHIVE/table=' || name || '/*/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE VIEW collectives AS FROM archived('collectives');
CREATE VIEW processes AS FROM archived('processes');
CREATE VIEW call_rollups AS FROM archived('call_rollups');
CREATE VIEW findings AS FROM archived('findings');
CREATE VIEW offcpu AS FROM archived('offcpu');
CREATE VIEW net_events AS FROM archived('net_events');
CREATE VIEW host_samples AS FROM archived('host_samples');
CREATE VIEW manifests AS
    FROM read_json('ARCHIVE/manifest/*/*/*.json', hive_partitioning = true, union_by_name = true);

-- One row for each rank of each matched collective: how long it waited beyond the one that waited least, which came last.
-- (Clock-free: entries of several hosts are not compared.)
CREATE VIEW collective_lateness AS
    SELECT comm_hash, func, seq, rank, node, job_id, ts_ns, duration_ns,
           count(*) OVER met AS ranks,
           duration_ns - min(duration_ns) OVER met AS wait_ns,
           row_number() OVER (PARTITION BY comm_hash, func, seq ORDER BY duration_ns, rank) = 1 AS is_last
    FROM collectives
    WHERE comm_hash IS NOT NULL AND seq IS NOT NULL AND rank IS NOT NULL AND duration_ns IS NOT NULL
    WINDOW met AS (PARTITION BY comm_hash, func, seq);

CREATE VIEW waits_by_rank AS
    SELECT job_id, rank, node, count(*) AS collectives, CAST(sum(wait_ns) AS BIGINT) AS wait_ns,
           CAST(sum(CAST(is_last AS INTEGER)) AS BIGINT) AS times_last
    FROM collective_lateness GROUP BY job_id, rank, node;

CREATE VIEW jobs AS
    SELECT job_id, count(DISTINCT node) AS nodes, count(DISTINCT rank) AS ranks, min(ts_ns) AS first_ns,
           max(ts_ns + duration_ns) AS last_ns, count(*) AS calls
    FROM collectives WHERE job_id IS NOT NULL GROUP BY job_id;
