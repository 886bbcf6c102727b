-- rankmesh trace store, schema version 2: from version 1 (schema_v1.sql) to what a host can tell about its ranks.
-- Columns that are added may be NULL: rows of an older file do not know them.

-- Imported traces do not know what version 1 took for granted: who took the CPU, the ends of a connection.
DROP VIEW events;
DROP VIEW tcp_events;
ALTER TABLE offcpu RENAME TO offcpu_v1;
DROP INDEX offcpu_ts;
CREATE TABLE offcpu (
    ts_ns        INTEGER NOT NULL,
    duration_ns  INTEGER NOT NULL,
    pid          INTEGER NOT NULL,
    tid          INTEGER NOT NULL,
    cpu          INTEGER,
    voluntary    INTEGER,
    next_pid     INTEGER,
    next_comm    TEXT,
    rank         INTEGER,
    cgroup_id    INTEGER NOT NULL,
    reason       TEXT,
    run_delay_ns INTEGER,
    wchan        TEXT
) STRICT;
INSERT INTO offcpu SELECT *, NULL, NULL, NULL FROM offcpu_v1;
DROP TABLE offcpu_v1;
CREATE INDEX offcpu_ts ON offcpu (ts_ns);

ALTER TABLE net_events RENAME TO net_events_v1;
DROP INDEX net_events_ts;
CREATE TABLE net_events (
    ts_ns     INTEGER NOT NULL,
    event     TEXT    NOT NULL,
    pid       INTEGER,
    rank      INTEGER,
    saddr     TEXT,
    sport     INTEGER,
    daddr     TEXT,
    dport     INTEGER,
    state     INTEGER,
    segs      INTEGER,
    cgroup_id INTEGER NOT NULL
) STRICT;
INSERT INTO net_events SELECT * FROM net_events_v1;
DROP TABLE net_events_v1;
CREATE INDEX net_events_ts ON net_events (ts_ns);
CREATE VIEW tcp_events AS
SELECT ts_ns AS timestamp_ns, event, pid, rank, saddr, sport, daddr, dport, state, segs, cgroup_id
FROM net_events WHERE event LIKE 'tcp%';

ALTER TABLE processes ADD COLUMN pod TEXT;
ALTER TABLE processes ADD COLUMN uid INTEGER;
ALTER TABLE processes ADD COLUMN cgroup_id INTEGER;

ALTER TABLE collectives ADD COLUMN captured INTEGER;

ALTER TABLE call_rollups ADD COLUMN cgroup_id INTEGER;
ALTER TABLE call_rollups ADD COLUMN sketch BLOB;
DROP INDEX call_rollups_key;
CREATE UNIQUE INDEX call_rollups_key
    ON call_rollups (bucket_ns, source, func, pid, ifnull(rank, ''), ifnull(comm_hash, ''), ifnull(cgroup_id, ''));

CREATE TABLE block_io (
    ts_ns       INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    queue_ns    INTEGER,
    pid         INTEGER NOT NULL,
    tid         INTEGER NOT NULL,
    rank        INTEGER,
    device      TEXT,
    op          TEXT    NOT NULL,
    bytes       INTEGER NOT NULL,
    error       INTEGER NOT NULL,
    cgroup_id   INTEGER NOT NULL
) STRICT;
CREATE INDEX block_io_ts ON block_io (ts_ns);

CREATE TABLE memory_events (
    ts_ns       INTEGER NOT NULL,
    duration_ns INTEGER,
    event       TEXT    NOT NULL,
    pid         INTEGER NOT NULL,
    tid         INTEGER,
    rank        INTEGER,
    bytes       INTEGER,
    detail      TEXT,
    cgroup_id   INTEGER
) STRICT;
CREATE INDEX memory_events_ts ON memory_events (ts_ns);

CREATE TABLE process_events (
    ts_ns      INTEGER NOT NULL,
    event      TEXT    NOT NULL,
    pid        INTEGER NOT NULL,
    parent_pid INTEGER,
    comm       TEXT    NOT NULL,
    exit_code  INTEGER,
    signal     INTEGER,
    rank       INTEGER,
    cgroup_id  INTEGER
) STRICT;
CREATE INDEX process_events_ts ON process_events (ts_ns);

CREATE TABLE fabric_counters (
    ts_ns   INTEGER NOT NULL,
    device  TEXT    NOT NULL,
    port    INTEGER,
    counter TEXT    NOT NULL,
    value   INTEGER NOT NULL,
    delta   INTEGER
) STRICT;
CREATE INDEX fabric_counters_ts ON fabric_counters (ts_ns);

CREATE TABLE gpu_samples (
    ts_ns              INTEGER NOT NULL,
    gpu                INTEGER NOT NULL,
    uuid               TEXT,
    utilisation_pct    INTEGER,
    memory_used_bytes  INTEGER,
    memory_total_bytes INTEGER,
    power_mw           INTEGER,
    temperature_c      INTEGER,
    sm_clock_mhz       INTEGER,
    mem_clock_mhz      INTEGER,
    throttle_reasons   INTEGER,
    throttle           TEXT
) STRICT;
CREATE INDEX gpu_samples_ts ON gpu_samples (ts_ns);

CREATE TABLE host_samples (
    ts_ns                  INTEGER NOT NULL,
    cpu_busy_pct           REAL,
    cpu_iowait_pct         REAL,
    steal_pct              REAL,
    load_1m                REAL,
    memory_available_bytes INTEGER,
    memory_total_bytes     INTEGER,
    swap_used_bytes        INTEGER,
    psi_cpu_some_us        INTEGER,
    psi_io_some_us         INTEGER,
    psi_io_full_us         INTEGER,
    psi_memory_some_us     INTEGER,
    psi_memory_full_us     INTEGER
) STRICT;
CREATE INDEX host_samples_ts ON host_samples (ts_ns);

CREATE TABLE symbol_calls (
    ts_ns       INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    pid         INTEGER NOT NULL,
    tid         INTEGER NOT NULL,
    rank        INTEGER,
    library     TEXT    NOT NULL,
    symbol      TEXT    NOT NULL,
    ret         INTEGER,
    cgroup_id   INTEGER NOT NULL
) STRICT;
CREATE INDEX symbol_calls_ts ON symbol_calls (ts_ns);

CREATE TABLE self_stats (
    ts_ns INTEGER NOT NULL,
    name  TEXT    NOT NULL,
    value REAL    NOT NULL,
    unit  TEXT    NOT NULL
) STRICT;
CREATE INDEX self_stats_ts ON self_stats (ts_ns);

INSERT INTO sources VALUES
    (5, 'IO', 'block requests of the kernel');
INSERT INTO ops VALUES
    (3, 4, 'oom_kill', 'the kernel killed a process for want of memory'),
    (3, 5, 'process_exec', 'a process runs another program'),
    (3, 6, 'process_exit', 'a process ended'),
    (3, 7, 'process_fork', 'a process was made'),
    (3, 100, 'major_fault', 'a page fault that read from a disk'),
    (3, 101, 'direct_reclaim', 'a task had to free memory before it got some'),
    (3, 102, 'memory_other', 'any other memory event; memory_events.event names it'),
    (5, 1, 'block_read', 'a read from a block device'),
    (5, 2, 'block_write', 'a write to a block device'),
    (5, 3, 'block_discard', 'a discard on a block device'),
    (5, 100, 'block_other', 'any other block request; block_io.op names it');

CREATE VIEW events AS
SELECT 'collectives:' || c.rowid AS id, c.ts_ns AS timestamp, c.pid AS pid, c.tid AS tid,
       CASE c.library WHEN 'nccl' THEN 100 WHEN 'rccl' THEN 101 ELSE 102 END AS source,
       CASE c.func WHEN 'all_reduce' THEN 1 WHEN 'broadcast' THEN 2 WHEN 'reduce' THEN 3 WHEN 'all_gather' THEN 4
           WHEN 'reduce_scatter' THEN 5 WHEN 'all_to_all' THEN 6 WHEN 'send' THEN 7 WHEN 'recv' THEN 8
           WHEN 'barrier' THEN 9 WHEN 'gather' THEN 10 WHEN 'scatter' THEN 11 ELSE 0 END AS op,
       c.duration_ns AS duration, NULL AS gpu_id, ifnull(c.bytes, 0) AS arg0, ifnull(c.root, 0) AS arg1,
       c.ret AS ret_code, 0 AS stack_hash, c.rank AS rank, c.local_rank AS local_rank, c.nranks AS world_size,
       c.cgroup_id AS cgroup_id
FROM collectives c
UNION ALL
SELECT 'offcpu:' || o.rowid, o.ts_ns, o.pid, o.tid, 3, 1, o.duration_ns, NULL, ifnull(o.next_pid, 0), o.pid, 0, 0, o.rank, NULL,
       NULL, o.cgroup_id
FROM offcpu o
UNION ALL
SELECT 'net_events:' || n.rowid, n.ts_ns, ifnull(n.pid, 0), 0, 6,
       CASE n.event WHEN 'tcp_retransmit_skb' THEN 1 ELSE 100 END, 0, NULL, ifnull(n.segs, 0), ifnull(n.dport, 0), 0, 0, n.rank,
       NULL, NULL, n.cgroup_id
FROM net_events n WHERE n.event LIKE 'tcp%'
UNION ALL
SELECT 'block_io:' || b.rowid, b.ts_ns, b.pid, b.tid, 5,
       CASE b.op WHEN 'read' THEN 1 WHEN 'write' THEN 2 WHEN 'discard' THEN 3 ELSE 100 END, b.duration_ns, NULL,
       b.bytes, 0, b.error, 0, b.rank, NULL, NULL, b.cgroup_id
FROM block_io b
UNION ALL
SELECT 'memory_events:' || m.rowid, m.ts_ns, m.pid, ifnull(m.tid, 0), 3,
       CASE m.event WHEN 'oom_kill' THEN 4 WHEN 'major_fault' THEN 100 WHEN 'direct_reclaim' THEN 101 ELSE 102 END,
       ifnull(m.duration_ns, 0), NULL, ifnull(m.bytes, 0), 0, 0, 0, m.rank, NULL, NULL, m.cgroup_id
FROM memory_events m
UNION ALL
SELECT 'process_events:' || p.rowid, p.ts_ns, p.pid, p.pid, 3,
       CASE p.event WHEN 'exec' THEN 5 WHEN 'fork' THEN 7 ELSE 6 END, 0, NULL, ifnull(p.parent_pid, 0),
       ifnull(p.signal, 0), ifnull(p.exit_code, 0), 0, p.rank, NULL, NULL, p.cgroup_id
FROM process_events p;
