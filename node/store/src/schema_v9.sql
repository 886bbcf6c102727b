-- Version 9: what the agents measured of each other's clocks, so that a verdict from stores knows its bounds.

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
