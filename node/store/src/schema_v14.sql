-- Version 14: where the time of requests went, across threads and processes.

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
    cgroup_id         INTEGER NOT NULL
) STRICT;
CREATE INDEX request_stretches_ts ON request_stretches (ts_ns);
