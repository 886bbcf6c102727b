-- Version 8: what people and programs note beside the rows, and which GPUs a host has.

CREATE TABLE annotations (
    ts_ns      INTEGER NOT NULL,
    text       TEXT    NOT NULL,
    attributes TEXT    NOT NULL,
    uid        INTEGER
) STRICT;
CREATE INDEX annotations_ts ON annotations (ts_ns);

ALTER TABLE gpu_samples ADD COLUMN model TEXT;

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
