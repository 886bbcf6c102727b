-- rankmesh trace store, schema version 1: the first step of the ladder in schema.rs, frozen. What came later is in the
-- files after it; docs/schema.md describes the whole as it is now (a test holds the two together).
-- Times are Unix nanoseconds of this host's clock. 64-bit hashes are stored as their bit pattern in a signed INTEGER.
-- NULL always means "not known", never zero.

CREATE TABLE collectives (
    ts_ns       INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    pid         INTEGER NOT NULL,
    tid         INTEGER NOT NULL,
    rank        INTEGER,
    local_rank  INTEGER,
    nranks      INTEGER,
    comm_hash   INTEGER,
    func        TEXT    NOT NULL,
    seq         INTEGER,
    count       INTEGER,
    datatype    TEXT,
    bytes       INTEGER,
    reduce_op   TEXT,
    root        INTEGER,
    stream      INTEGER,
    library     TEXT    NOT NULL,
    tier        INTEGER NOT NULL,
    ret         INTEGER NOT NULL,
    cgroup_id   INTEGER NOT NULL,
    job_id      TEXT
) STRICT;
CREATE INDEX collectives_ts ON collectives (ts_ns);

CREATE TABLE offcpu (
    ts_ns       INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    pid         INTEGER NOT NULL,
    tid         INTEGER NOT NULL,
    cpu         INTEGER NOT NULL,
    voluntary   INTEGER NOT NULL,
    next_pid    INTEGER NOT NULL,
    next_comm   TEXT    NOT NULL,
    rank        INTEGER,
    cgroup_id   INTEGER NOT NULL
) STRICT;
CREATE INDEX offcpu_ts ON offcpu (ts_ns);

CREATE TABLE net_events (
    ts_ns     INTEGER NOT NULL,
    event     TEXT    NOT NULL,
    pid       INTEGER,
    rank      INTEGER,
    saddr     TEXT    NOT NULL,
    sport     INTEGER NOT NULL,
    daddr     TEXT    NOT NULL,
    dport     INTEGER NOT NULL,
    state     INTEGER,
    segs      INTEGER,
    cgroup_id INTEGER NOT NULL
) STRICT;
CREATE INDEX net_events_ts ON net_events (ts_ns);

-- Nothing fills this table yet: the columns are fixed so that queries and views can be written against them.
CREATE TABLE cuda_calls (
    ts_ns       INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    pid         INTEGER NOT NULL,
    tid         INTEGER NOT NULL,
    rank        INTEGER,
    api         TEXT    NOT NULL,
    func        TEXT    NOT NULL,
    bytes       INTEGER,
    kind        TEXT,
    stream      INTEGER,
    ret         INTEGER NOT NULL,
    cgroup_id   INTEGER NOT NULL
) STRICT;
CREATE INDEX cuda_calls_ts ON cuda_calls (ts_ns);

CREATE TABLE processes (
    pid          INTEGER NOT NULL,
    start_ns     INTEGER NOT NULL,
    seen_ns      INTEGER NOT NULL,
    exe          TEXT    NOT NULL,
    comm         TEXT    NOT NULL,
    rank         INTEGER,
    local_rank   INTEGER,
    world_size   INTEGER,
    job_id       TEXT,
    step_id      TEXT,
    container_id TEXT,
    cgroup_path  TEXT    NOT NULL,
    user         TEXT    NOT NULL,
    PRIMARY KEY (pid, start_ns)
) STRICT;
CREATE INDEX processes_seen ON processes (seen_ns);

CREATE TABLE call_rollups (
    bucket_ns INTEGER NOT NULL,
    source    TEXT    NOT NULL,
    func      TEXT    NOT NULL,
    pid       INTEGER NOT NULL,
    rank      INTEGER,
    comm_hash INTEGER,
    count     INTEGER NOT NULL,
    sum_ns    INTEGER NOT NULL,
    min_ns    INTEGER NOT NULL,
    max_ns    INTEGER NOT NULL
) STRICT;
-- NULLs are distinct in a UNIQUE index, hence ifnull; a text stands for NULL because no INTEGER equals it.
CREATE UNIQUE INDEX call_rollups_key
    ON call_rollups (bucket_ns, source, func, pid, ifnull(rank, ''), ifnull(comm_hash, ''));

CREATE TABLE capture_loss (
    since_ns INTEGER NOT NULL,
    ts_ns    INTEGER NOT NULL,
    probe    TEXT    NOT NULL,
    reason   TEXT    NOT NULL,
    lost     INTEGER NOT NULL
) STRICT;
CREATE INDEX capture_loss_ts ON capture_loss (ts_ns);

CREATE TABLE sessions (
    id       INTEGER PRIMARY KEY,
    start_ns INTEGER NOT NULL,
    alive_ns INTEGER NOT NULL,
    stop_ns  INTEGER,
    version  TEXT    NOT NULL,
    boot_id  TEXT    NOT NULL,
    host     TEXT    NOT NULL,
    kernel   TEXT    NOT NULL
) STRICT;

CREATE TABLE findings (
    ts_ns          INTEGER NOT NULL,
    since_ns       INTEGER NOT NULL,
    until_ns       INTEGER NOT NULL,
    verdict        TEXT    NOT NULL,
    rank           INTEGER,
    culprit_node   TEXT,
    job_id         TEXT,
    comm_hash      INTEGER,
    func           TEXT,
    tier           INTEGER,
    lateness_ns    INTEGER,
    clock_bound_ns INTEGER,
    score          REAL,
    cost_gpu_s     REAL,
    cause          TEXT,
    detail         TEXT    NOT NULL
) STRICT;
CREATE INDEX findings_ts ON findings (ts_ns);

-- What retention dropped: every row of table_name at or before cutoff_ns that was stored by then is gone.
CREATE TABLE retention (
    table_name   TEXT    PRIMARY KEY,
    cutoff_ns    INTEGER NOT NULL,
    rows_dropped INTEGER NOT NULL
) STRICT;

-- Dictionaries of the events view, equal on every node. Ids 1-7 and their operations are those of recorded traces
-- in the wild; ids from 100 on are ours.
CREATE TABLE sources (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    description TEXT NOT NULL
) STRICT;
INSERT INTO sources VALUES
    (1, 'CUDA', 'CUDA runtime calls'),
    (3, 'HOST', 'kernel events of the host: scheduler'),
    (6, 'TCP', 'TCP events of the kernel'),
    (100, 'NCCL', 'collectives through libnccl'),
    (101, 'RCCL', 'collectives through librccl'),
    (102, 'MPI', 'collectives through an MPI library');

CREATE TABLE ops (
    source_id   INTEGER NOT NULL,
    op_id       INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    description TEXT    NOT NULL,
    PRIMARY KEY (source_id, op_id)
) STRICT;
INSERT INTO ops VALUES
    (3, 1, 'sched_switch', 'a stretch off the CPU'),
    (6, 1, 'tcp_retransmit', 'a TCP segment was sent again'),
    (6, 100, 'tcp_other', 'any other TCP event; net_events.event names it');
WITH funcs (op_id, func) AS (VALUES
    (0, 'other'), (1, 'all_reduce'), (2, 'broadcast'), (3, 'reduce'), (4, 'all_gather'), (5, 'reduce_scatter'),
    (6, 'all_to_all'), (7, 'send'), (8, 'recv'), (9, 'barrier'), (10, 'gather'), (11, 'scatter'))
INSERT INTO ops SELECT id, op_id, upper(func), 'collective or point-to-point call' FROM sources, funcs WHERE id >= 100;

CREATE VIEW nccl_events AS
SELECT ts_ns AS timestamp_ns, duration_ns, upper(func) AS op, rank, local_rank, nranks,
       CASE WHEN comm_hash IS NOT NULL THEN printf('%016x', comm_hash) END AS comm_id_hash,
       seq, count, datatype, bytes, reduce_op, root, stream, ret, pid, tid, cgroup_id, job_id
FROM collectives WHERE library IN ('nccl', 'rccl');

CREATE VIEW cuda_events AS
SELECT ts_ns AS timestamp_ns, duration_ns, func AS op, api, bytes, kind, stream, ret, rank, pid, tid, cgroup_id
FROM cuda_calls;

CREATE VIEW tcp_events AS
SELECT ts_ns AS timestamp_ns, event, pid, rank, saddr, sport, daddr, dport, state, segs, cgroup_id
FROM net_events WHERE event LIKE 'tcp%';

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
SELECT 'offcpu:' || o.rowid, o.ts_ns, o.pid, o.tid, 3, 1, o.duration_ns, NULL, o.next_pid, o.pid, 0, 0, o.rank, NULL,
       NULL, o.cgroup_id
FROM offcpu o
UNION ALL
SELECT 'net_events:' || n.rowid, n.ts_ns, ifnull(n.pid, 0), 0, 6,
       CASE n.event WHEN 'tcp_retransmit_skb' THEN 1 ELSE 100 END, 0, NULL, ifnull(n.segs, 0), n.dport, 0, 0, n.rank,
       NULL, NULL, n.cgroup_id
FROM net_events n WHERE n.event LIKE 'tcp%';
