-- rankmesh trace store, schema version 1: the first step of the ladder in schema.rs; docs/schema.md describes it (a test
-- holds the two together). Tables that columnar/form.rs names are made columnar as they are here.
-- Times are Unix nanoseconds of this host's clock. 64-bit hashes are stored as their bit pattern in a signed INTEGER.
-- NULL always means "not known", never zero.

CREATE TABLE collectives (
    ts_ns       INTEGER NOT NULL,
    duration_ns INTEGER,
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
    ret         INTEGER,
    cgroup_id   INTEGER NOT NULL,
    job_id      TEXT,
    captured    INTEGER,
    site        TEXT,
    comm_seq    INTEGER
) STRICT;
CREATE INDEX collectives_ts ON collectives (ts_ns);

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
CREATE INDEX offcpu_ts ON offcpu (ts_ns);

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
CREATE INDEX net_events_ts ON net_events (ts_ns);

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

-- One row may stand for several events that came together (count).
CREATE TABLE memory_events (
    ts_ns       INTEGER NOT NULL,
    duration_ns INTEGER,
    event       TEXT    NOT NULL,
    pid         INTEGER NOT NULL,
    tid         INTEGER,
    rank        INTEGER,
    bytes       INTEGER,
    detail      TEXT,
    cgroup_id   INTEGER,
    count       INTEGER NOT NULL DEFAULT 1
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
    pod          TEXT,
    uid          INTEGER,
    cgroup_id    INTEGER,
    tenant       TEXT,
    PRIMARY KEY (pid, start_ns)
) STRICT;
CREATE INDEX processes_seen ON processes (seen_ns);

-- bytes is NULL where the calls of a function do not say.
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
    max_ns    INTEGER NOT NULL,
    cgroup_id INTEGER,
    sketch    BLOB,
    bytes     INTEGER
) STRICT;

CREATE TABLE requests (
    ts_ns         INTEGER NOT NULL,
    duration_ns   INTEGER,
    first_byte_ns INTEGER,
    queued_ns     INTEGER,
    pid           INTEGER NOT NULL,
    tid           INTEGER NOT NULL,
    sent_tid      INTEGER,
    service       TEXT    NOT NULL,
    tenant        TEXT    NOT NULL,
    protocol      TEXT    NOT NULL,
    method        TEXT,
    route         TEXT,
    status        INTEGER,
    grpc_status   INTEGER,
    port          INTEGER,
    peer          TEXT,
    connection    INTEGER NOT NULL,
    number        INTEGER NOT NULL,
    bytes_in      INTEGER NOT NULL,
    bytes_out     INTEGER NOT NULL,
    sends         INTEGER NOT NULL,
    gap_ns        INTEGER,
    cpu_ns        INTEGER,
    run_delay_ns  INTEGER,
    kept          TEXT    NOT NULL,
    stands_for    INTEGER NOT NULL,
    cgroup_id     INTEGER NOT NULL
) STRICT;
CREATE INDEX requests_ts ON requests (ts_ns);

CREATE TABLE request_rollups (
    bucket_ns         INTEGER NOT NULL,
    pid               INTEGER NOT NULL,
    service           TEXT    NOT NULL,
    tenant            TEXT    NOT NULL,
    protocol          TEXT    NOT NULL,
    method            TEXT,
    route             TEXT,
    count             INTEGER NOT NULL,
    errors            INTEGER NOT NULL,
    unanswered        INTEGER NOT NULL,
    sum_ns            INTEGER NOT NULL,
    min_ns            INTEGER,
    max_ns            INTEGER,
    queued_ns         INTEGER NOT NULL,
    bytes_in          INTEGER NOT NULL,
    bytes_out         INTEGER NOT NULL,
    sketch            BLOB,
    first_byte_sketch BLOB,
    cgroup_id         INTEGER NOT NULL
) STRICT;
CREATE INDEX request_rollups_ts ON request_rollups (bucket_ns);

-- Where the time of requests went, across threads and processes.
CREATE TABLE request_stretches (
    ts_ns             INTEGER NOT NULL,
    connection        INTEGER NOT NULL,
    number            INTEGER NOT NULL,
    place             INTEGER NOT NULL,
    after_ns          INTEGER NOT NULL,
    duration_ns       INTEGER NOT NULL,
    parts             INTEGER NOT NULL,
    before_first_byte INTEGER NOT NULL,
    kind              TEXT    NOT NULL,
    reason            TEXT,
    woken_by          TEXT,
    pid               INTEGER NOT NULL,
    of_pid            INTEGER,
    process           TEXT,
    tid               INTEGER,
    thread            TEXT,
    awaited_in        TEXT,
    taken_by_pid      INTEGER,
    taken_by          TEXT,
    taken_by_tenant   TEXT,
    tenant            TEXT    NOT NULL,
    stands_for        INTEGER NOT NULL,
    cgroup_id         INTEGER NOT NULL
) STRICT;
CREATE INDEX request_stretches_ts ON request_stretches (ts_ns);

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
    throttle           TEXT,
    model              TEXT
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

CREATE TABLE self_stats (
    ts_ns INTEGER NOT NULL,
    name  TEXT    NOT NULL,
    value REAL    NOT NULL,
    unit  TEXT    NOT NULL
) STRICT;
CREATE INDEX self_stats_ts ON self_stats (ts_ns);

-- Where ranks were when the standing verdict changed; one row for each different stack of a thread.
CREATE TABLE stacks (
    ts_ns   INTEGER NOT NULL,
    pid     INTEGER NOT NULL,
    tid     INTEGER NOT NULL,
    rank    INTEGER,
    kind    TEXT    NOT NULL,
    samples INTEGER NOT NULL,
    count   INTEGER NOT NULL,
    frames  TEXT    NOT NULL
) STRICT;
CREATE INDEX stacks_ts ON stacks (ts_ns);

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

-- What people and programs note beside the rows.
CREATE TABLE annotations (
    ts_ns      INTEGER NOT NULL,
    text       TEXT    NOT NULL,
    attributes TEXT    NOT NULL,
    uid        INTEGER
) STRICT;
CREATE INDEX annotations_ts ON annotations (ts_ns);

-- Who asked this node what, and what came of it.
CREATE TABLE audit (
    ts_ns       INTEGER NOT NULL,
    via         TEXT    NOT NULL,
    who         TEXT    NOT NULL,
    role        TEXT    NOT NULL,
    pid         INTEGER,
    kind        TEXT    NOT NULL,
    question    TEXT,
    outcome     TEXT    NOT NULL,
    reason      TEXT,
    duration_ns INTEGER NOT NULL,
    rows        INTEGER,
    bytes       INTEGER
) STRICT;
CREATE INDEX audit_ts ON audit (ts_ns);

-- What the agents measured of each other's clocks, so that a verdict from stores knows its bounds.
CREATE TABLE clock_offsets (
    ts_ns           INTEGER NOT NULL,
    measured_by     TEXT    NOT NULL,
    peer            TEXT    NOT NULL,
    offset_ns       INTEGER NOT NULL,
    bound_ns        INTEGER NOT NULL,
    drift_ppb       INTEGER NOT NULL,
    drift_bound_ppb INTEGER NOT NULL
) STRICT;
CREATE INDEX clock_offsets_ts ON clock_offsets (ts_ns);

CREATE TABLE capture_loss (
    since_ns INTEGER NOT NULL,
    ts_ns    INTEGER NOT NULL,
    probe    TEXT    NOT NULL,
    reason   TEXT    NOT NULL,
    lost     INTEGER NOT NULL
) STRICT;
CREATE INDEX capture_loss_ts ON capture_loss (ts_ns);

-- What retention took before it was archived, so that the archive can say so.
CREATE TABLE archive_gaps (
    table_name   TEXT    NOT NULL,
    hour_ns      INTEGER NOT NULL,
    until_ns     INTEGER NOT NULL,
    rows_dropped INTEGER NOT NULL,
    PRIMARY KEY (table_name, hour_ns)
) STRICT;

-- What retention dropped: every row of table_name at or before cutoff_ns that was stored by then is gone.
CREATE TABLE retention (
    table_name   TEXT    PRIMARY KEY,
    cutoff_ns    INTEGER NOT NULL,
    rows_dropped INTEGER NOT NULL
) STRICT;

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

-- Dictionaries of the events view, equal on every node. Ids 1-7 and their operations are those of recorded traces
-- in the wild; ids from 100 on are ours.
CREATE TABLE sources (
    id          INTEGER PRIMARY KEY,
    name        TEXT    NOT NULL,
    description TEXT    NOT NULL
) STRICT;
INSERT INTO sources VALUES
    (1, 'CUDA', 'CUDA runtime calls'),
    (3, 'HOST', 'kernel events of the host: scheduler'),
    (5, 'IO', 'block requests of the kernel'),
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
    (5, 100, 'block_other', 'any other block request; block_io.op names it'),
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

-- The counted CUDA and HIP calls by what they do. Sum up one source at a time: the runtime calls the driver.
CREATE VIEW cuda_time AS
SELECT bucket_ns, source, func,
       CASE WHEN func LIKE '%Synchronize' THEN 'synchronize'
            WHEN func LIKE '%Launch%' THEN 'launch'
            WHEN func LIKE '%Memcpy%' THEN 'copy'
            WHEN func LIKE '%Memset%' THEN 'fill'
            WHEN func LIKE '%WaitEvent' OR func LIKE '%EventRecord%' THEN 'order'
            WHEN func LIKE '%Graph%' OR func LIKE '%Capture' THEN 'graph'
            ELSE 'memory' END AS class,
       pid, rank, cgroup_id, count, sum_ns, min_ns, max_ns, bytes
FROM call_rollups WHERE source IN ('cuda', 'cuda_driver', 'hip');

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
