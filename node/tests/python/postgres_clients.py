"""Asks a server by psycopg, asyncpg, pg8000, SQLAlchemy and pandas; says which went well. usage: postgres_clients.py URL"""

import asyncio
import io
import sys
import threading
import urllib.parse
import uuid

import asyncpg
import pandas
import pg8000.native
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
        assert cursor.description[2].name == "avg", cursor.description
        named = conn.execute("SELECT %s, %s::text, max(rank) + %s, count(*) FROM collectives", [1, "x", 2]).description
        assert [c.name for c in named] == ["?column?", "text", "?column?", "count"], named
        rows = cursor.fetchall()
        assert rows[0][:2] == ("n1", 100) and isinstance(rows[0][2], float), rows
        # Values of every kind there and back, as text and in binary form.
        values = (7, -(2**63), 2**63 - 1, 0.1, "it's ; -- $1", b"\x00\xff", None, True, float("-inf"))
        for binary in (False, True):
            with conn.cursor(binary=binary) as cursor:
                marks = "%b" if binary else "%s"
                got = cursor.execute(f"SELECT {', '.join([marks] * len(values))}", values).fetchone()
            assert got == (7, -(2**63), 2**63 - 1, 0.1, "it's ; -- $1", b"\x00\xff", None, 1, float("-inf")), got
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
        fails(lambda: conn.execute("DECLARE c CURSOR FOR SELECT 1"), psycopg.errors.NoActiveSqlTransaction)
        fails(lambda: conn.execute("SELECT 1; SELECT 2", [], prepare=True), psycopg.errors.SyntaxError)
        assert conn.execute("SELECT 3").fetchone() == (3,)
        # A question that takes long ends when it is cancelled, and its deadline holds.
        long = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        threading.Timer(0.5, conn.cancel).start()
        message = fails(lambda: conn.execute(long), psycopg.errors.QueryCanceled)
        assert "timeout" not in message, message
        conn.execute("SET statement_timeout = '300ms'")
        message = fails(lambda: conn.execute(long), psycopg.Error)
        assert "within 300 ms" in message, message
    # In a transaction that failed only its end is listened to.
    with psycopg.connect(url) as conn:
        fails(lambda: conn.execute("SELECT no_such"), psycopg.Error)
        fails(lambda: conn.execute("SELECT 1"), psycopg.errors.InFailedSqlTransaction)
        conn.rollback()
        assert conn.execute("SELECT 1").fetchone() == (1,)
        conn.rollback()
        # A part of a transaction that fails is taken back, and the transaction goes on.
        with conn.transaction():
            conn.execute("SET statement_timeout = '4s'")
            with conn.transaction(force_rollback=True):
                conn.execute("SET statement_timeout = '5s'")
            with conn.transaction() as inner:
                fails(lambda: conn.execute("SELECT no_such"), psycopg.Error)
                raise psycopg.Rollback(inner)
            assert conn.execute("SHOW statement_timeout").fetchone() == ("4000ms",)
            fails(lambda: conn.execute("ROLLBACK TO nowhere"), psycopg.errors.InvalidSavepointSpecification)
            raise psycopg.Rollback()
        assert conn.execute("SHOW statement_timeout").fetchone() == ("10000ms",)
        # Lists are one parameter.
        for binary in (False, True):
            with conn.cursor(binary=binary) as cursor:
                of = lambda where, *values: cursor.execute(f"SELECT count(*) FROM collectives WHERE {where}", values).fetchone()[0]
                assert of("rank = ANY(%s)", [0, 3, 77]) == 200
                assert of("rank <> ALL(%s)", [0, 3]) == 600
                assert of("node = ANY(%s) AND rank = %s", ["n1", "it's, \"x\""], 5) == 100
                assert of("rank = ANY(%s::bigint[])", []) == 0
        # Long ones, also in the text, as psycopg2 writes them, and of a cursor.
        uuids = [uuid.UUID(int=number) for number in range(2_500)]
        written = ", ".join(f"'{one}'::uuid" for one in uuids)
        assert conn.execute(f"SELECT count(*) FROM collectives WHERE node NOT IN ({written})").fetchone() == (800,)
        many = list(range(3, 100_000))
        assert conn.execute("SELECT count(*) FROM collectives WHERE rank = ANY(%s)", [many]).fetchone() == (500,)
        with conn.cursor("long") as cursor:
            cursor.execute("SELECT rank FROM collectives WHERE rank = ANY(%s) AND seq = 0 ORDER BY rank", [many])
            assert cursor.fetchall() == [(3,), (4,), (5,), (6,), (7,)]
        wrong = "SELECT 1 FROM collectives WHERE rank = ANY(%s)"
        assert "at most 1000000 bytes" in fails(lambda: conn.execute(wrong, [list(range(150_000, 300_000))]), psycopg.Error)
        conn.rollback()
        message = fails(lambda: conn.execute("SELECT 1 FROM collectives WHERE rank = ANY(%s)", [["a"]]), psycopg.Error)
        assert "is an array of" in message or "is no integer" in message, message
        conn.rollback()
        # A cursor at the server, and an answer as one stream.
        with conn.cursor("some rows") as cursor:
            cursor.execute("SELECT rank, seq FROM collectives ORDER BY rank, seq")
            assert cursor.fetchmany(3) == [(0, 0), (0, 1), (0, 2)]
            assert len(cursor.fetchall()) == 797
        with conn.cursor().copy("COPY (SELECT rank, count(*) FROM collectives GROUP BY rank ORDER BY rank) TO STDOUT") as copy:
            assert list(copy.rows())[:2] == [("0", "100"), ("1", "100")]
        # As PostgreSQL has it, the binary form's header comes with the first row: ADBC reads it there.
        with conn.cursor().copy("COPY (SELECT 7 AS n) TO STDOUT (FORMAT binary)") as copy:
            first = bytes(copy.read())
            assert first.startswith(b"PGCOPY\n") and len(first) > 19, first
            assert bytes(copy.read()) == b"\xff\xff"
            assert not copy.read()
        conn.execute("SET LOCAL statement_timeout = '3s'")
        conn.commit()
        assert conn.execute("SHOW statement_timeout").fetchone() == ("10000ms",)

    # What a long session deallocates as SQL makes room: it keeps 2,000 statements at a time.
    with psycopg.connect(url, autocommit=True) as conn:
        prepare = lambda name: conn.pgconn.prepare(name, b"SHOW timezone").error_message
        ran = lambda sql: conn.pgconn.exec_(sql).error_message
        for number in range(2_001):
            wrong = prepare(b"s%d" % number) or ran(b"DEALLOCATE s%d" % number)
            assert not wrong, (number, wrong)
        for end in (b"DEALLOCATE ALL", b"DISCARD ALL", b"DEALLOCATE PREPARE \"s 0\""):
            for number in range(1_500):
                wrong = prepare(b"s %d" % number)
                assert not wrong, (end, number, wrong)
            assert not ran(end)
            assert conn.pgconn.exec_prepared(b"s 0", []).error_message, end
        assert conn.pgconn.exec_(b"DEALLOCATE s").error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"26000"
        assert not conn.pgconn.exec_prepared(b"s 1", []).error_message
        # A cursor that outlives transactions is described as the portal of its name.
        with conn.cursor("held", withhold=True) as cursor:
            cursor.execute("SELECT rank FROM collectives ORDER BY rank")
            assert cursor.fetchmany(2) == [(0,), (0,)]


async def of_asyncpg():
    """asyncpg asks for the types of parameters and of columns before it sends values."""
    pool = await asyncpg.create_pool(url, min_size=1, max_size=2)
    for _ in range(3):  # the pool resets a connection whenever it comes back
        async with pool.acquire() as conn:
            ranks = "SELECT rank, count(*) AS n FROM collectives GROUP BY rank HAVING count(*) > $1 ORDER BY rank LIMIT $2"
            assert [tuple(row) for row in await conn.fetch(ranks, 0, 2)] == [(0, 100), (1, 100)]
            assert await conn.fetch(ranks, 100, 2) == []
            some = "SELECT count(*) FROM collectives WHERE rank = ANY($1) AND node = ANY($2::text[])"
            assert await conn.fetchval(some, [0, 5, 77], ["n0", "n1"]) == 200
            assert await conn.fetchval(some, [], ["n0"]) == 0
            # Of the tables that are read: others have columns of that name, without a type.
            assert await conn.fetchval("SELECT count(*) FROM processes p WHERE p.pid > $1 OR pid = $2", 0, -1) > 0
            # What views compute has types, too.
            flat = "SELECT count(*) FROM events WHERE pid > $1 AND op = $2 AND arg0 >= $3 AND id LIKE $4"
            assert await conn.fetchval(flat, 0, 1, 0, "coll%") == 800
            assert await conn.fetchval("SELECT count(*) FROM lateness WHERE lateness_ns >= $1", 0) > 0
            calls = "SELECT count(*) FROM collectives WHERE duration_ns / 1000 > $1"
            assert await conn.fetchval(calls, 0) > 0
            # Integers beside integers: times keep their nanoseconds, and division gives whole numbers.
            last = await conn.fetchval("SELECT max(ts_ns) FROM collectives")
            assert await conn.fetchval("SELECT max(ts_ns) - $1 FROM collectives", 1) == last - 1
            seconds = await conn.fetch("SELECT ts_ns / $1 AS s, count(*) FROM collectives GROUP BY 1", 10**9)
            assert 2 < len(seconds) < 100 and all(isinstance(row["s"], int) for row in seconds), seconds
            types = (await conn.prepare("SELECT sum(seq), avg(seq) FROM collectives WHERE rank = $1")).get_attributes()
            assert [(column.name, column.type.name) for column in types] == [("sum", "int8"), ("avg", "float8")], types
            assert tuple(await conn.fetchrow("SELECT sum(seq), avg(seq) FROM collectives WHERE rank = $1", 77)) == (None, None)
            try:
                await conn.fetch("SELECT 1 FROM collectives WHERE $1 IS NULL", None)
                raise AssertionError("a parameter without a type was accepted")
            except asyncpg.exceptions.IndeterminateDatatypeError as error:
                assert "CAST($1 AS" in str(error), error
            async with conn.transaction():
                rows = [row["seq"] async for row in conn.cursor("SELECT seq FROM collectives WHERE rank = 0 ORDER BY seq", prefetch=7)]
            assert rows == list(range(100)), rows
            copied = io.BytesIO()
            await conn.copy_from_query("SELECT rank, node FROM collectives ORDER BY rank LIMIT 1", output=copied, format="csv")
            assert copied.getvalue() == b"0,n0\n", copied.getvalue()
    await pool.close()
    # More at once than there is room for: each waits for its turn.
    pool = await asyncpg.create_pool(url, min_size=0, max_size=40)
    many = [pool.fetchval("SELECT count(*) FROM collectives WHERE rank = $1", rank % 8) for rank in range(200)]
    assert await asyncio.gather(*many) == [100] * 200
    await pool.close()


def of_pg8000():
    """pg8000 sends parameters without types."""
    to = urllib.parse.urlparse(url)
    conn = pg8000.native.Connection(to.username, password=to.password, host=to.hostname, port=to.port, database="rankmesh")
    assert conn.run("SELECT count(*) FROM (SELECT rank FROM collectives GROUP BY rank HAVING count(*) > :n)", n=0) == [[8]]
    assert conn.run("SELECT count(*) FROM collectives WHERE func = :f AND rank = :r", f="all_reduce", r=3) == [[100]]
    assert conn.run("SELECT count(*) FROM collectives WHERE rank = ANY(:r)", r=[1, 2]) == [[200]]
    conn.close()


def of_sqlalchemy():
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    look = sqlalchemy.inspect(engine)
    assert "collectives" in look.get_table_names(), look.get_table_names()
    assert "nccl_events" in look.get_view_names(), look.get_view_names()
    assert look.get_schema_names() == ["information_schema", "public"], look.get_schema_names()
    types = {column["name"]: str(column["type"]) for column in look.get_columns("events")}
    assert (types["id"], types["pid"], types["source"]) == ("TEXT", "BIGINT", "BIGINT"), types
    assert any(column["name"] == "lateness_ns" for column in look.get_columns("lateness"))
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
    with engine.connect().execution_options(stream_results=True) as conn:
        chunks = [len(chunk) for chunk in pandas.read_sql("SELECT rank FROM collectives", conn, chunksize=300)]
    assert chunks == [300, 300, 200], chunks


of_psycopg()
asyncio.run(of_asyncpg())
of_pg8000()
of_pandas(of_sqlalchemy())
print("psycopg asyncpg pg8000 sqlalchemy pandas")
