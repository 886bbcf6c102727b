-- Version 13: requests that servers answer: rows of some, sums of all.

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
