"""Asks DuckDB or ClickHouse's local engine (chDB) the questions on standard input, a JSON list of SQL texts, over an
archive with the views of a file of docs/history/. Prints a JSON list with the rows of each."""
import json
import sys

engine, views, archive = sys.argv[1:]
text = open(views).read().replace("ARCHIVE", archive)
lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
statements = [part.strip() for part in "\n".join(lines).split(";") if part.strip()]
questions = json.load(sys.stdin)

if engine == "duckdb":
    import duckdb

    connection = duckdb.connect()
    for statement in statements:
        connection.execute(statement)
    answers = [[list(row) for row in connection.execute(sql).fetchall()] for sql in questions]
elif engine == "clickhouse":
    from chdb import session

    connection = session.Session()
    connection.query("CREATE DATABASE IF NOT EXISTS archive ENGINE = Atomic")
    connection.query("USE archive")
    for statement in statements:
        connection.query(statement)
    answers = []
    for sql in questions:
        text = str(connection.query(sql + "\nSETTINGS output_format_json_quote_64bit_integers = 0", "JSONCompactEachRow"))
        answers.append([json.loads(line) for line in text.splitlines() if line])
else:
    sys.exit(f"no engine {engine}")
json.dump(answers, sys.stdout, default=float)
