"""Asks a server by psycopg and SQLAlchemy; says which went well. usage: postgres_clients.py URL"""

import sys
import threading
import time

import pandas
import psycopg
import sqlalchemy

url = sys.argv[1]


def fails(what, *kinds):
    try:
        what()
    except kinds as error:
        return str(error)
    raise AssertionError("it did not fail")


def of_psycopg():
    with psycopg.connect(url, autocommit=True) as conn:
        cursor = conn.execute("SELECT node, count(*) AS n, avg(duration_ns) FROM collectives WHERE rank = %s GROUP BY node", [5])
        assert [(c.name, c.type_code) for c in cursor.description][:2] == [("node", 25), ("n", 20)], cursor.description
        rows = cursor.fetchall()
        assert rows[0][:2] == ("n1", 100) and isinstance(rows[0][2], float), rows
        # Values of every kind there and back, as text and in binary form.
        values = (7, -(2**63), 2**63 - 1, 0.1, "it's ; -- $1", b"\x00\xff", None, True)
        for binary in (False, True):
            with conn.cursor(binary=binary) as cursor:
                marks = "%b" if binary else "%s"
                got = cursor.execute(f"SELECT {', '.join([marks] * len(values))}", values).fetchone()
            assert got == (7, -(2**63), 2**63 - 1, 0.1, "it's ; -- $1", b"\x00\xff", None, 1), got
        # A prepared statement, several times.
        for rank in range(8):
            row = conn.execute("SELECT count(*) FROM collectives WHERE rank = %s", [rank], prepare=True).fetchone()
            assert row == (100,), row
        # Many rows, read as they come.
        with conn.cursor() as cursor:
            many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) SELECT i, 'row ' || i FROM n"
            assert sum(row[0] for row in cursor.stream(many)) == 200000 * 200001 // 2
        message = fails(lambda: conn.execute("SELECT ts_ns::date FROM collectives"), psycopg.errors.SyntaxError)
        assert "SQLite" in message, message
        fails(lambda: conn.execute("DECLARE c CURSOR FOR SELECT 1"), psycopg.errors.FeatureNotSupported)
        fails(lambda: conn.execute("SELECT 1; SELECT 2", [], prepare=True), psycopg.errors.SyntaxError)
        assert conn.execute("SELECT 3").fetchone() == (3,)
        # A question that takes long ends when it is cancelled, and its deadline holds.
        long = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        threading.Timer(0.5, conn.cancel).start()
        begun = time.monotonic()
        fails(lambda: conn.execute(long), psycopg.errors.QueryCanceled)
        assert time.monotonic() - begun < 8, "the cancel was not heard"
        conn.execute("SET statement_timeout = '300ms'")
        begun = time.monotonic()
        fails(lambda: conn.execute(long), psycopg.Error)
        assert time.monotonic() - begun < 8, "the deadline was not held"
    # In a transaction that failed only its end is listened to.
    with psycopg.connect(url) as conn:
        fails(lambda: conn.execute("SELECT no_such"), psycopg.Error)
        fails(lambda: conn.execute("SELECT 1"), psycopg.errors.InFailedSqlTransaction)
        conn.rollback()
        assert conn.execute("SELECT 1").fetchone() == (1,)


def of_sqlalchemy():
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    look = sqlalchemy.inspect(engine)
    assert "collectives" in look.get_table_names(), look.get_table_names()
    assert "nccl_events" in look.get_view_names(), look.get_view_names()
    assert look.get_schema_names() == ["information_schema", "public"], look.get_schema_names()
    columns = {column["name"]: column for column in look.get_columns("collectives")}
    assert isinstance(columns["ts_ns"]["type"], sqlalchemy.BIGINT) and "node" in columns, columns
    assert look.get_pk_constraint("collectives")["constrained_columns"] == []
    assert look.get_foreign_keys("collectives") == [] and look.get_indexes("collectives") == []
    assert look.get_table_comment("collectives")["text"], "the meaning of a table is told"
    assert columns["ts_ns"]["comment"] and columns["ts_ns"]["nullable"], columns["ts_ns"]
    assert look.has_table("collectives") and not look.has_table("nothing")
    table = sqlalchemy.Table("collectives", sqlalchemy.MetaData(), autoload_with=engine)
    with engine.connect() as conn:
        calls = sqlalchemy.select(table.c.node, sqlalchemy.func.count()).where(table.c.rank.in_([4, 5])).group_by(table.c.node)
        assert conn.execute(calls).all() == [("n1", 200)]
        first = sqlalchemy.select(table.c.seq).where(table.c.rank == 0).order_by(table.c.seq).limit(3)
        assert conn.execute(first).scalars().all() == [0, 1, 2]
    return engine


def of_pandas(engine):
    frame = pandas.read_sql("SELECT node, count(*) AS n FROM collectives GROUP BY node ORDER BY node", engine)
    assert frame.n.tolist() == [400, 400], frame


of_psycopg()
of_pandas(of_sqlalchemy())
print("psycopg sqlalchemy pandas")
