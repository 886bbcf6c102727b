-- Version 10: what retention took before it was archived, so that the archive can say so.

CREATE TABLE archive_gaps (
    table_name   TEXT    NOT NULL,
    hour_ns      INTEGER NOT NULL,
    until_ns     INTEGER NOT NULL,
    rows_dropped INTEGER NOT NULL,
    PRIMARY KEY (table_name, hour_ns)
) STRICT;
