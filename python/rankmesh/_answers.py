"""What comes back: rows, verdicts and explanations, each with who answered."""

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

if TYPE_CHECKING:  # none of them is needed to ask
    import pandas
    import polars
    import pyarrow

Value = Union[None, int, float, str, bytes]

#: Rows of a table in a notebook; all of them are in ``rows``.
SHOWN_ROWS = 50


@dataclass(frozen=True)
class Missing:
    """A node that was asked and is not in the answer."""

    node: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """Who was asked, who answered, and what those who answered know to be missing from their data."""

    asked: int
    answered: int
    missing: Tuple[Missing, ...] = ()
    notes: Tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Every node that was asked is in the answer."""
        return not self.missing

    def __str__(self) -> str:
        lines = [f"{'' if self.is_complete else 'PARTIAL: '}{self.answered} of {self.asked} nodes answered"]
        lines += [f"  missing {gone.node}: {gone.reason}" for gone in self.missing]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        colour = "inherit" if self.is_complete else "#b00020"
        return f'<pre style="color:{colour}">{html.escape(str(self))}</pre>'

    @classmethod
    def _of(cls, json: Optional[Mapping[str, Any]]) -> "Coverage":
        if json is None:  # one file, which is all that was asked
            return cls(1, 1)
        missing = []
        for gone in json.get("missing", []):
            node, reason = (gone["node"], gone["reason"]) if isinstance(gone, Mapping) else gone
            missing.append(Missing(node, reason))
        return cls(json["asked"], json["answered"], tuple(missing), tuple(json.get("notes", [])))


@dataclass(frozen=True)
class Column:
    """A column of an answer; ``type`` is as declared, and empty where it is computed."""

    name: str
    type: str


@dataclass(frozen=True)
class Result:
    """Rows with their columns. Integers are exact, of 64 bits; a blob is ``bytes``; in a text that is not UTF-8 each wrong
    byte is a surrogate (``errors="surrogateescape"``)."""

    columns: Tuple[Column, ...]
    rows: List[Tuple[Value, ...]]
    coverage: Coverage
    #: From question to answer, milliseconds.
    elapsed_ms: float

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Tuple[Value, ...]]:
        return iter(self.rows)

    def dicts(self) -> List[Dict[str, Value]]:
        """One dict a row; names that come twice get ``:2``, ``:3``, …"""
        names = self._names()
        return [dict(zip(names, row)) for row in self.rows]

    def arrow(self) -> "pyarrow.Table":
        """As a ``pyarrow.Table``.

        :raises TypeError: a column has values of several types, as SQLite allows; say ``CAST(x AS TEXT)``
        """
        import pyarrow

        kinds = {"int": pyarrow.int64(), "float": pyarrow.float64(), "str": pyarrow.string(), "bytes": pyarrow.binary()}
        arrays = [pyarrow.array(values, kinds[kind]) for kind, values in self._typed()]
        return pyarrow.table(arrays, names=self._names())

    def polars(self) -> "polars.DataFrame":
        """As a ``polars.DataFrame``; raises as :meth:`arrow`."""
        import polars

        kinds = {"int": polars.Int64, "float": polars.Float64, "str": polars.String, "bytes": polars.Binary}
        columns = zip(self._names(), self._typed())
        return polars.DataFrame([polars.Series(name, values, kinds[kind]) for name, (kind, values) in columns])

    def pandas(self) -> "pandas.DataFrame":
        """As a ``pandas.DataFrame``, with types that have missing values and keep integers exact (``Int64``); raises as
        :meth:`arrow`."""
        import pandas

        kinds = {"int": "Int64", "float": "Float64", "str": "string", "bytes": "object"}
        columns = {name: pandas.array(values, dtype=kinds[kind]) for name, (kind, values) in zip(self._names(), self._typed())}
        # A frame without columns keeps its number of rows.
        return pandas.DataFrame(columns, index=range(len(self.rows)))

    def _names(self) -> List[str]:
        names: List[str] = []
        for column in self.columns:
            name, copy = column.name, 2
            while name in names:
                name, copy = f"{column.name}:{copy}", copy + 1
            names.append(name)
        return names

    def _typed(self) -> Iterator[Tuple[str, Sequence[Value]]]:
        for at, column in enumerate(self.columns):
            values = [row[at] for row in self.rows]
            kinds = {type(value).__name__ for value in values if value is not None}
            if kinds == {"int", "float"}:
                if any(isinstance(value, int) and abs(value) > 1 << 53 for value in values):
                    raise TypeError(f"column {column.name}: integers that no float can hold, and floats; say CAST")
                values = [float(value) if isinstance(value, int) else value for value in values]
                kinds = {"float"}
            if len(kinds) > 1:
                raise TypeError(f"column {column.name} has {' and '.join(sorted(kinds))}: say CAST({column.name} AS TEXT)")
            yield (kinds.pop() if kinds else _declared(column.type)), values

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self._names())
        cells = (
            "".join(f"<td>{'' if value is None else html.escape(str(value))}</td>" for value in row)
            for row in self.rows[:SHOWN_ROWS]
        )
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        more = len(self.rows) - SHOWN_ROWS
        rest = f"<p>… and {more} rows more</p>" if more > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}{self.coverage._repr_html_()}"


def _value(json: Any) -> Value:
    """A value of JSON; what JSON has no form for is an object there."""
    if not isinstance(json, dict):
        return json  # type: ignore[no-any-return]
    if "blob" in json:
        return bytes.fromhex(json["blob"])
    if "real" in json:
        return float(json["real"])
    return bytes.fromhex(json["text"]).decode("utf-8", "surrogateescape")


def _declared(decl_type: str) -> str:
    """By SQLite's rules of affinity, for a column without values."""
    upper = decl_type.upper()
    if "INT" in upper:
        return "int"
    return "float" if any(part in upper for part in ("REAL", "FLOA", "DOUB")) else "str"


class _Document(Mapping[str, Any]):
    """A JSON document, read as a mapping; ``str()`` and notebooks show it in words."""

    def __init__(self, json: Dict[str, Any]) -> None:
        self._json = json
        #: Who is in it.
        self.coverage = Coverage._of(json.get("coverage"))

    def __getitem__(self, key: str) -> Any:
        return self._json[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._json)

    def __len__(self) -> int:
        return len(self._json)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>{self.coverage._repr_html_()}"


class Verdict(_Document):
    """Which rank holds the others up: the document of ``rankmesh stragglers --format json``."""

    @property
    def kind(self) -> str:
        """``rank``, ``hang``, ``stage_imbalance``, ``data_imbalance``, ``work_imbalance``, ``network``, ``none`` or
        ``unknown``."""
        return str(self["verdict"]["kind"])

    @property
    def rank(self) -> Optional[int]:
        """The rank that is named; None where none is."""
        rank = self["verdict"].get("rank")
        return rank if self.kind == "rank" and isinstance(rank, int) else None

    def ranks(self) -> Result:
        """Every rank's scores, the latest first; times in nanoseconds."""
        names = ("comm_hash", "rank", "node", "pid", "role", "collectives", "wait_mean_ns", "excess_ns", "share", "z", "flagged")
        rows: List[Tuple[Value, ...]] = [
            (comm["comm_hash"], of["rank"], of["node"], of["pid"], of["role"], of["collectives"], of["wait"]["mean_ns"],
             of["excess_ns"], of["share"], of["z"], of["flagged"])
            for comm in self["per_comm"]
            for of in comm["ranks"]
        ]  # fmt: skip
        rows.sort(key=lambda row: -int(row[7] or 0))
        columns = tuple(Column(name, "") for name in names)
        return Result(columns, rows, self.coverage, float(self.get("elapsed_ms", 0.0)))

    def __str__(self) -> str:
        if self.rank is None:
            why = self["verdict"].get("why")
            return f"verdict: {self.kind}" + (f" ({why})" if why else "")
        verdict, cause = self["verdict"], self.get("cause") or {}
        said = cause.get("text") or cause.get("kind")
        return (
            f"rank {self.rank} on {verdict['node']} holds the others up: {verdict['late_by_ns'] / 1e6:.1f} ms late, last in "
            f"{verdict['last_in']} of {verdict['collectives']} collectives" + (f"; cause: {said}" if said else "")
        )


class Stacks(_Document):
    """Where ranks are: the document of ``rankmesh stacks --format json``."""

    def classes(self) -> List[Tuple[str, str, List[str]]]:
        """Ranks that are in the same place: the ranks (``0-4,6-63``), their hosts, and the functions from the outermost on."""
        return [
            (of["members"]["ranks"] or "; ".join(of["members"]["others"]), of["members"]["nodes"], [_step(step) for step in of["path"]])
            for of in self["merged"]["classes"]
        ]

    @property
    def unread(self) -> Result:
        """Processes without a stack, and why."""
        rows: List[Tuple[Value, ...]] = [(of["node"], of["rank"], of["pid"], of["reason"]) for of in self["unread"]]
        columns = tuple(Column(name, "") for name in ("node", "rank", "pid", "reason"))
        return Result(columns, rows, self.coverage, float(self["elapsed_ms"]))

    def __str__(self) -> str:
        parts = [
            "\n".join([f"ranks {ranks} on {nodes}:", *(f"  {function}" for function in path)])
            for ranks, nodes, path in self.classes()
        ]
        parts += [f"no stack of process {pid} on {node}: {reason}" for node, _, pid, reason in self.unread]
        return "\n\n".join(parts) or "no stacks"


def _step(step: Any) -> str:
    if isinstance(step, str):
        return {
            "OuterMissing": "... (callers are not known)",
            "InnerMissing": "... (it ran while it was read)",
            "NoFunction": "(no function that could be read)",
        }.get(step, step)
    frame = step.get("Function", step)
    if "Python" in frame:
        of = frame["Python"]
        return f"{of['function']}  {of['file']}" + ("" if of["line"] is None else f":{of['line']}")
    if isinstance(frame, Mapping) and "Native" in frame:
        return f"{frame['Native']['function']}  [{frame['Native']['module']}]"
    return "(a return probe hides the callers)"


class Explanation(_Document):
    """A verdict with the chain behind it: the document of ``rankmesh explain --format json``."""

    def __str__(self) -> str:
        parts = [str(self["what"])]
        if self.get("cause"):
            parts.append(f"Why: {self['cause']}")
        for title, key in (("Looked at, and not it", "ruled_out"), ("Not visible", "not_visible")):
            lines = self.get(key) or []
            if lines:
                parts.append("\n".join([f"{title}:", *(f"  - {line}" for line in lines)]))
        return "\n\n".join(parts)
