"""DuckDB beside the trace store: loads the rows it is given as CSV, then times the statements it is told.

duck.py DATABASE SOURCE: SOURCE is a CSV file of collectives, or a directory of Parquet files that become views. Reads statements from standard input, one a line; answers each with one line of JSON,
{"seconds": F, "rows": [[...]]}. The first line answered says what loading took and how large the file is.
"""

import json
import os
import sys
import time

import duckdb

COLUMNS = {
    "ts_ns": "BIGINT", "duration_ns": "BIGINT", "pid": "BIGINT", "tid": "BIGINT", "rank": "BIGINT",
    "local_rank": "BIGINT", "nranks": "BIGINT", "comm_hash": "BIGINT", "func": "VARCHAR", "seq": "BIGINT",
    "count": "BIGINT", "datatype": "VARCHAR", "bytes": "BIGINT", "reduce_op": "VARCHAR", "root": "BIGINT",
    "stream": "BIGINT", "library": "VARCHAR", "tier": "BIGINT", "ret": "BIGINT", "cgroup_id": "BIGINT",
    "job_id": "VARCHAR",
}


def loaded(database, csv):
    connection = duckdb.connect(database)
    connection.execute("SET enable_progress_bar = false")
    connection.execute(
        "CREATE TABLE collectives AS SELECT * FROM read_csv(?, header = false, auto_detect = false, nullstr = '', "
        "columns = %r)" % COLUMNS,
        [csv],
    )
    connection.execute("CHECKPOINT")
    connection.close()
    connection = duckdb.connect(database, read_only=True)
    connection.execute("SET enable_progress_bar = false")
    return connection


def over_parquet(directory):
    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET threads = 2")
    connection.execute("SET integer_division = true")
    connection.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name).replace("'", "''")
        connection.execute("CREATE VIEW %s AS SELECT * FROM read_parquet('%s')" % (name.removesuffix(".parquet"), path))
    return connection


def main():
    database, source = sys.argv[1], sys.argv[2]
    began = time.perf_counter()
    if os.path.isdir(source):
        connection, size = over_parquet(source), 0
    else:
        connection = loaded(database, source)
        size = os.path.getsize(database)
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "bytes": size, "version": duckdb.__version__}), flush=True)
    for statement in sys.stdin:
        began = time.perf_counter()
        rows = connection.execute(statement).fetchall()
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "rows": rows}, default=str), flush=True)


main()
