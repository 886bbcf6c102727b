"""Asks a server by ADBC, pgcli and DuckDB's ATTACH; says which went well. usage: other_clients.py URL"""

import glob
import os
import subprocess
import sys

import adbc_driver_postgresql.dbapi
import duckdb

url = sys.argv[1]


def of_adbc():
    with adbc_driver_postgresql.dbapi.connect(url) as conn, conn.cursor() as cursor:
        cursor.execute("SELECT node, rank, count(*) AS n, avg(duration_ns) AS mean FROM collectives GROUP BY node, rank ORDER BY rank")
        table = cursor.fetch_arrow_table()
        assert [str(field.type) for field in table.schema] == ["string", "int64", "int64", "double"], table.schema
        assert table.column("n").to_pylist() == [100] * 8, table
        cursor.execute("SELECT count(*) FROM collectives WHERE rank = $1", parameters=(5,))
        assert cursor.fetchall() == [(100,)]
        objects = conn.adbc_get_objects(depth="columns", db_schema_filter="public", table_name_filter="collectives").read_all().to_pylist()
        tables = [table for catalog in objects for schema in catalog["catalog_db_schemas"] for table in schema["db_schema_tables"]]
        columns = [column["column_name"] for table in tables for column in table["table_columns"]]
        assert "duration_ns" in columns and "node" in columns, objects


def of_pgcli():
    # A home of its own: it writes its settings.
    home = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"pgcli-{os.getpid()}")
    os.mkdir(home)
    try:
        pgcli = os.path.join(os.path.dirname(sys.executable), "pgcli")
        environment = {**os.environ, "HOME": home, "XDG_CONFIG_HOME": home, "PAGER": "cat"}
        commands = ["\\dt", "\\d collectives", "SELECT count(*) AS calls FROM collectives"]
        arguments = [part for command in commands for part in ("-c", command)]
        ran = subprocess.run([pgcli, url, *arguments], capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
        for part in ("collectives", "duration_ns", "bigint", "800"):
            assert ran.returncode == 0 and part in ran.stdout, f"no {part}: {ran.stdout}{ran.stderr}"
    finally:
        subprocess.run(["rm", "-rf", home], check=True)


def scanner(conn):
    """Loads DuckDB's extension: its own, or the copy that a package on PyPI has."""
    try:
        conn.execute("INSTALL postgres")
        conn.execute("LOAD postgres")
        return None
    except duckdb.Error as error:
        found = [file for folder in sys.path for file in glob.glob(folder + "/duckdb_ext/extensions/*/*/postgres_scanner.duckdb_extension")]
        try:
            for file in found:
                conn.execute(f"LOAD '{file}'")
                return None
        except duckdb.Error as of_copy:
            error = of_copy
        return str(error).splitlines()[0]


def of_duckdb():
    conn = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    why = scanner(conn)
    if why:
        print(f"skipped: duckdb: its extension postgres cannot be had ({why})", file=sys.stderr)
        return False
    conn.execute(f"ATTACH '{url}' AS r (TYPE postgres, READ_ONLY)")
    listed = [name for (name,) in conn.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'r'").fetchall()]
    assert "collectives" in listed and "processes" in listed, listed
    rows = conn.execute("SELECT node, rank, count(*), sum(duration_ns) FROM r.public.collectives GROUP BY ALL ORDER BY rank").fetchall()
    assert [(row[0], row[1], row[2]) for row in rows] == [(f"n{rank // 4}", rank, 100) for rank in range(8)], rows
    # With a filter and a join that DuckDB does, over all columns.
    same = conn.execute("SELECT count(*) FROM r.collectives a JOIN r.collectives b USING (node, rank, ts_ns) WHERE a.rank = 3").fetchone()
    assert same == (100,), same
    assert len(conn.execute("SELECT * FROM r.collectives").fetchall()) == 800
    asked = conn.execute("SELECT * FROM postgres_query('r', 'SELECT count(*) AS n FROM collectives')").fetchall()
    assert asked == [(800,)], asked
    return True


for name, of in (("adbc", of_adbc), ("pgcli", of_pgcli), ("duckdb", of_duckdb)):
    if of() is not False:
        print(name, end=" ")
print()
