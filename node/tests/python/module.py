"""Asks by the module `rankmesh`. usage: module.py BINARY DB-DIR SOCKET [frames]

SOCKET is an agent's whose mesh has lost a node."""

import sys
from datetime import datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python"))
import rankmesh

binary, db, socket = sys.argv[1:4]


def fails(what, kind):
    try:
        what()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


rm = rankmesh.connect(db=db, binary=binary, timeout=60)
answer = rm.sql("SELECT node, count(*) AS n, NULL AS empty FROM collectives GROUP BY node ORDER BY node")
assert answer.rows == [("n0", 400, None), ("n1", 400, None)], answer.rows
assert [column.name for column in answer.columns] == ["node", "n", "empty"] and len(answer) == 2
assert answer.coverage.asked == 2 and answer.coverage.is_complete and answer.dicts()[1]["n"] == 400
values = rm.sql("SELECT 9223372036854775807, 0.1, x'00ff', CAST(x'61ff' AS TEXT), 9e999, 'Inf' -- ;").rows
assert values == [(2**63 - 1, 0.1, b"\x00\xff", "a\udcff", float("inf"), "Inf")], values
# What goes in comes out.
given = {"a": 7, "b": 0.5, "c": "it's :a", "d": b"\x00\xff", "e": None, "f": True, "g": float("-inf"), "h": timedelta(minutes=1)}
given.update(i="a\udcff\u00e9", j="a\0b")
asked = rm.sql("SELECT :a, :b, :c, :d, :e, :f, :g, :h, :i, :j", given).rows
assert asked == [(7, 0.5, "it's :a", b"\x00\xff", None, 1, float("-inf"), 60_000_000_000, "a\udcff\u00e9", "a\0b")], asked
assert "UTF-8" in str(fails(lambda: rm.sql("SELECT :x", {"x": "\ud800"}), rankmesh.WrongQuestion))
assert rm.sql("SELECT count(*) FROM collectives WHERE rank = :r AND ts_ns > :t", {"r": 3, "t": datetime(2020, 1, 1)}).rows == [(100,)]
assert "no value" in str(fails(lambda: rm.sql("SELECT :x", {"x": object()}), rankmesh.WrongQuestion))
assert "x" in str(fails(lambda: rm.sql("SELECT :x"), rankmesh.WrongQuestion))
assert any(column["name"] == "ts_ns" for table in rm.schema() if table["name"] == "collectives" for column in table["columns"])
assert rm.sql("SELECT '--help'").rows == [("--help",)]
# What a process called itself is text in a notebook, too.
page = rm.sql("SELECT comm FROM processes WHERE rank = 5")._repr_html_()
assert "&lt;img" in page and "<img" not in page, page

assert rm.stragglers(since=timedelta(seconds=60)).kind == "rank"
verdict = rm.stragglers(since="60s")
assert verdict.kind == "rank" and verdict.rank == 5 and "rank 5 on n1" in str(verdict), verdict
assert verdict.ranks().rows[0][1] == 5 and verdict["verdict"]["node"] == "n1"
story = rm.explain(since="60s")
assert "ank 5" in str(story) and story["place"]["rank"] == 5 and "&lt;img" in story._repr_html_(), story
only = rm.sql("SELECT count(*) FROM collectives", nodes=["n1"])
assert only.rows == [(400,)] and only.coverage.asked == 1

assert "no_such" in str(fails(lambda: rm.sql("SELECT no_such FROM collectives"), rankmesh.WrongQuestion))
fails(lambda: rm.stragglers(since="yesterday-ish"), rankmesh.WrongQuestion)
fails(lambda: rankmesh.connect(db=db, socket=socket, binary=binary), rankmesh.WrongQuestion)
fails(lambda: rankmesh.connect(db="/nowhere", binary=binary).sql("SELECT 1"), rankmesh.Failed)
fails(lambda: rankmesh.connect(db=db, binary="/nowhere").sql("SELECT 1"), rankmesh.Failed)

live = rankmesh.connect(socket=socket, binary=binary, timeout=timedelta(minutes=1))
assert {node["name"]: node["state"] for node in live.nodes()}["a"] == "live", live.nodes()
assert rm.saved("durations-by-rank", {"since": "1h", "job": "4711"}).rows[5][:2] == (5, 100)
assert "no parameter" in str(fails(lambda: rm.saved("jobs", {"nonsense": 1}), rankmesh.WrongQuestion))
assert "agent" in str(fails(rm.stacks, rankmesh.WrongQuestion))
lost = fails(lambda: live.stacks([3, 5], samples=1), rankmesh.Partial)
assert [gone.node for gone in lost.coverage.missing] == ["b"] and lost.answer.classes() == [], lost
stacks = live.stacks(allow_partial=True)
assert str(stacks) == "no stacks" and stacks.unread.rows == [] and "PARTIAL" in stacks._repr_html_()
made = {"merged": {"classes": [{"members": {"ranks": "5", "nodes": "n1", "others": []}, "samples": 2, "of_samples": 2, "path": [
    {"Function": {"Python": {"function": "<b>", "file": "train.py", "line": 7}}},
    {"Function": {"Native": {"function": "read", "module": "libc.so.6"}}}, {"Function": "ReturnProbe"}, "InnerMissing"]}]},
    "unread": [{"node": "n0", "rank": 1, "pid": 9, "reason": "gone"}], "elapsed_ms": 1.5, "coverage": None}  # fmt: skip
shown = rankmesh.Stacks(made)
assert shown.classes()[0][:2] == ("5", "n1") and shown.classes()[0][2][:2] == ["<b>  train.py:7", "read  [libc.so.6]"], shown.classes()
assert "hides the callers" in str(shown) and "process 9 on n0: gone" in str(shown) and "<b>" not in shown._repr_html_(), str(shown)
assert shown.unread.rows == [("n0", 1, 9, "gone")]
partial = fails(lambda: live.sql("SELECT count(*) FROM collectives"), rankmesh.Partial)
assert [gone.node for gone in partial.coverage.missing] == ["b"] and partial.answer.rows == [(0,)], partial
assert "missing b" in str(partial) and "allow_partial" in str(partial)
taken = live.sql("SELECT count(*) FROM collectives", allow_partial=True)
assert taken.rows == [(0,)] and not taken.coverage.is_complete
assert rankmesh.connect(socket=socket, binary=binary, allow_partial=True).sql("SELECT 1 FROM collectives").rows == []

if "frames" in sys.argv:
    sql = "SELECT rank, seq, duration_ns / 2.0 AS half, func, NULL AS empty_ FROM collectives ORDER BY rank, seq LIMIT 10"
    answer = rm.sql(sql)
    assert answer.arrow().column("rank").to_pylist() == [0] * 10 and str(answer.arrow().schema.field("half").type) == "double"
    assert answer.polars()["seq"].to_list() == list(range(10)), answer.polars()
    frame = answer.pandas()
    assert str(frame.seq.dtype) == "Int64" and frame.seq.sum() == 45 and frame.empty_.isna().all(), frame.dtypes
    large = rm.sql("SELECT 9223372036854775807 AS x UNION ALL SELECT NULL")
    assert large.pandas().x.max() == 2**63 - 1 and large.polars()["x"].max() == 2**63 - 1
    blobs = rm.sql("SELECT x'00ff' AS x UNION ALL SELECT NULL")
    assert blobs.arrow().column("x").to_pylist() == [b"\x00\xff", None] == blobs.polars()["x"].to_list()
    assert blobs.pandas().x[0] == b"\x00\xff"
    mixed = rm.sql("SELECT 1 AS x UNION ALL SELECT 'a'")
    assert "CAST" in str(fails(mixed.pandas, TypeError)) and mixed.rows == [(1,), ("a",)]
    twice = rm.sql("SELECT 1 AS x, 2 AS x")
    assert list(twice.pandas().columns) == ["x", "x:2"]
    empty = rm.sql("SELECT ts_ns, func FROM collectives WHERE 0")
    assert str(empty.arrow().schema.field("ts_ns").type) == "int64", empty.arrow().schema
    assert rm.sql("SELECT 0.5 AS x UNION ALL SELECT 9e999").pandas().x.max() == float("inf")
print("ok")
