-- The tables and views of an archive in ClickHouse: a server that sees the directory, clickhouse-local, or chDB. ARCHIVE
-- stands for its directory; for a bucket write s3('https://…/table=collectives/*/*/*.parquet', …) in place of file(…).
-- Times are Unix nanoseconds, as in a trace store.

CREATE VIEW collectives AS SELECT * FROM file('ARCHIVE/table=collectives/*/*/*.parquet', Parquet);
CREATE VIEW processes AS SELECT * FROM file('ARCHIVE/table=processes/*/*/*.parquet', Parquet);
CREATE VIEW call_rollups AS SELECT * FROM file('ARCHIVE/table=call_rollups/*/*/*.parquet', Parquet);
CREATE VIEW findings AS SELECT * FROM file('ARCHIVE/table=findings/*/*/*.parquet', Parquet);
CREATE VIEW offcpu AS SELECT * FROM file('ARCHIVE/table=offcpu/*/*/*.parquet', Parquet);
CREATE VIEW net_events AS SELECT * FROM file('ARCHIVE/table=net_events/*/*/*.parquet', Parquet);
CREATE VIEW host_samples AS SELECT * FROM file('ARCHIVE/table=host_samples/*/*/*.parquet', Parquet);
CREATE VIEW manifests AS SELECT * FROM file('ARCHIVE/manifest/*/*/*.json', JSONEachRow);

-- One row for each rank of each matched collective: how long it waited beyond the one that waited least, which came last.
-- (Clock-free: entries of several hosts are not compared.)
CREATE VIEW collective_lateness AS
    SELECT comm_hash, func, seq, rank, node, job_id, ts_ns, duration_ns,
           count(*) OVER (PARTITION BY comm_hash, func, seq) AS ranks,
           duration_ns - min(duration_ns) OVER (PARTITION BY comm_hash, func, seq) AS wait_ns,
           row_number() OVER (PARTITION BY comm_hash, func, seq ORDER BY duration_ns, rank) = 1 AS is_last
    FROM collectives
    WHERE comm_hash IS NOT NULL AND seq IS NOT NULL AND rank IS NOT NULL AND duration_ns IS NOT NULL;

CREATE VIEW waits_by_rank AS
    SELECT job_id, rank, node, count(*) AS collectives, sum(wait_ns) AS wait_ns, sum(is_last) AS times_last
    FROM collective_lateness GROUP BY job_id, rank, node;

CREATE VIEW jobs AS
    SELECT job_id, count(DISTINCT node) AS nodes, count(DISTINCT rank) AS ranks, min(ts_ns) AS first_ns,
           max(ts_ns + duration_ns) AS last_ns, count(*) AS calls
    FROM collectives WHERE job_id IS NOT NULL GROUP BY job_id;
