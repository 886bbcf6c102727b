-- Columnar history (docs/decisions/0004-columnar-segments.md). A segment's rows have the ids first_rowid … and times
-- first_ns to last_ns; the header says how its columns are packed.
CREATE TABLE segments (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    table_name  TEXT    NOT NULL,
    first_rowid INTEGER NOT NULL,
    row_count   INTEGER NOT NULL,
    first_ns    INTEGER NOT NULL,
    last_ns     INTEGER NOT NULL,
    header      BLOB    NOT NULL
) STRICT;
CREATE INDEX segments_rowid ON segments (table_name, first_rowid);
CREATE INDEX segments_span ON segments (table_name, last_ns, first_ns, row_count);

CREATE TABLE segment_columns (
    id   INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;
