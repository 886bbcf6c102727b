-- Version 6: who asked this node what, and what came of it.

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
