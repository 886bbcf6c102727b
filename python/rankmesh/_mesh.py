"""Asking: the program ``rankmesh`` is run for each question, and its JSON read."""

import json
import os
import shutil
import subprocess
import sysconfig
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

from ._answers import Column, Coverage, Explanation, Result, Stacks, Value, Verdict, _value

_Answer = TypeVar("_Answer", Result, Verdict, Explanation, Stacks)
PathLike = Union[str, "os.PathLike[str]"]

#: How long the program is waited for beyond a question's own deadline, seconds.
_BEYOND_S = 30.0
#: Exit codes of the program.
_WRONG, _PARTIAL = 2, 3


class Error(Exception):
    """There is no answer."""


class WrongQuestion(Error):
    """The SQL or an argument is wrong."""


class Failed(Error):
    """Nobody answered, or the question failed; the message says why."""


class Partial(Error):
    """Nodes are missing from the answer. ``coverage`` says which and why, ``answer`` holds what there is."""

    def __init__(self, answer: Any, coverage: Coverage) -> None:
        super().__init__(f"{coverage}\n(allow_partial=True takes such answers)")
        self.answer = answer
        self.coverage = coverage


def connect(
    *,
    job: Optional[Union[str, int]] = None,
    socket: Optional[PathLike] = None,
    via: Optional[str] = None,
    identity: Optional[PathLike] = None,
    db: Union[None, PathLike, Iterable[PathLike]] = None,
    timeout: Union[float, timedelta] = 10.0,
    nodes: Sequence[str] = (),
    labels: Optional[Mapping[str, str]] = None,
    allow_partial: bool = False,
    binary: Optional[PathLike] = None,
) -> "Mesh":
    """Says whom to ask; nobody is asked yet.

    :param job: the mesh of this Slurm job, and of a mesh with several jobs this one's verdicts
    :param socket: of this host's agent, where it is not in its usual place
    :param via: another host's agent, over the mesh; needs ``identity``, a directory of ``rankmesh identity issue``
    :param db: no agent, but these trace stores; a directory means all stores in it
    :param timeout: each question's deadline: seconds, or a ``timedelta``
    :param nodes: only these nodes
    :param labels: only nodes with all these labels
    :param allow_partial: take answers that lack nodes, which raise :class:`Partial` otherwise
    :param binary: the program, where it is neither beside this Python nor on ``PATH``
    :raises Error: the program is not found, or arguments exclude each other
    """
    files: List[str] = []
    if db is not None:
        files = [os.fspath(db)] if isinstance(db, (str, os.PathLike)) else [os.fspath(path) for path in db]
        if not files:
            raise WrongQuestion("db: no paths were given")
    if sum((bool(files), socket is not None, via is not None)) > 1:
        raise WrongQuestion("of db, socket and via only one says whom to ask")
    if (via is None) != (identity is None):
        raise WrongQuestion("via and identity belong together")
    flags: List[str] = []
    for flag, value in (("--socket", socket), ("--via", via), ("--identity", identity)):
        if value is not None:
            flags += [flag, os.fspath(value)]
    for file in files:
        flags += ["--db", file]
    return Mesh(_program(binary), flags, None if job is None else str(job), timeout, tuple(nodes), dict(labels or {}), allow_partial)


def _program(binary: Optional[PathLike]) -> str:
    if binary is not None:
        return os.fspath(binary)
    beside = Path(sysconfig.get_path("scripts")) / "rankmesh"
    found = str(beside) if beside.is_file() else shutil.which("rankmesh")
    if found is None:
        raise Failed("the program rankmesh is neither beside this Python nor on PATH: install it, or say binary=PATH")
    return found


def _ns(value: timedelta) -> int:
    return (value.days * 86_400 + value.seconds) * 1_000_000_000 + value.microseconds * 1_000


def _json(value: Any) -> Any:
    """A parameter as JSON has it."""
    if isinstance(value, timedelta):
        return _ns(value)
    if isinstance(value, datetime):
        # without a zone it is of this host's, as everywhere in Python
        return _ns(value.astimezone(timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"blob": bytes(value).hex()}
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"real": "Inf" if value > 0 else "-Inf"}
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:  # wrong bytes of a text that is not UTF-8 are surrogates, as in answers
            try:
                return {"text": value.encode("utf-8", "surrogateescape").hex()}
            except UnicodeEncodeError:
                raise WrongQuestion("a text is UTF-8, with U+DC80 to U+DCFF in place of other bytes") from None
    if value is None or isinstance(value, (bool, int, float, str)):
        if value != value:
            raise WrongQuestion("NaN is no value of SQLite's: None is NULL")
        return value
    if hasattr(value, "item"):  # a number of NumPy's
        return _json(value.item())
    raise WrongQuestion(f"{type(value).__name__} is no value of SQL: a number, str, bytes, None, datetime or timedelta")


def _text(value: Any) -> str:
    """A time or a parameter of a saved investigation, in words."""
    if isinstance(value, timedelta):
        return f"{max(1, -(-_ns(value) // 1_000_000))}ms"  # a millisecond is the shortest that the program takes
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return str(value)


class Mesh:
    """Whom to ask. Made by :func:`connect`."""

    def __init__(
        self,
        program: str,
        flags: List[str],
        job: Optional[str],
        timeout: Union[float, timedelta],
        nodes: Tuple[str, ...],
        labels: Mapping[str, str],
        allow_partial: bool,
    ) -> None:
        self._program = program
        self._flags = flags
        self._job = job
        self._timeout = timeout
        self._nodes = nodes
        self._labels = labels
        self._allow_partial = allow_partial

    def __repr__(self) -> str:
        job = [] if self._job is None else [f"job {self._job}"]
        return f"<rankmesh.Mesh {' '.join(job + self._flags) or 'of this host'}>"

    def sql(
        self,
        sql: str,
        parameters: Optional[Mapping[str, Value]] = None,
        *,
        timeout: Union[None, float, timedelta] = None,
        nodes: Optional[Sequence[str]] = None,
        per_node: bool = False,
        allow_partial: Optional[bool] = None,
    ) -> Result:
        """Asks SQL (SQLite's dialect) over the stores of all nodes, as if they were one database.

        :param parameters: values by name, which ``:name`` in the SQL stands for: ``{"rank": 5}``; also ``datetime``, and
            ``timedelta`` (both as nanoseconds)
        :param per_node: run it on each node as it stands; ``node`` is the first column
        :raises WrongQuestion: the SQL is wrong
        :raises Partial: nodes are missing, and that was not allowed
        :raises Failed: nobody answered
        """
        more = ["--format", "json", "--input", "json"] + (["--per-node"] if per_node else []) + ["--", "-"]
        values = {name: _json(value) for name, value in (parameters or {}).items()}
        text = json.dumps({"sql": sql, "parameters": values})
        # A store of one file has no coverage to tell, and no job.
        job = [] if self._job is None or "--db" in self._flags else ["--job", self._job]
        return self._rows(job + self._whom(timeout, nodes) + more, timeout, text, allow_partial)

    def _rows(
        self, arguments: List[str], timeout: Union[None, float, timedelta], text: Optional[str], allow_partial: Optional[bool]
    ) -> Result:
        found, partial = self._ask("query", arguments, timeout, text)
        columns = tuple(Column(column["name"], column["type"]) for column in found["columns"])
        rows = [tuple(_value(value) for value in row) for row in found["rows"]]
        result = Result(columns, rows, Coverage._of(found.get("coverage")), found["elapsed_ms"])
        return self._checked(result, partial, allow_partial)

    def saved(
        self,
        name: str,
        parameters: Optional[Mapping[str, Union[str, int, float, timedelta, datetime]]] = None,
        *,
        timeout: Union[None, float, timedelta] = None,
        nodes: Optional[Sequence[str]] = None,
        allow_partial: Optional[bool] = None,
    ) -> Result:
        """Asks a saved investigation: ``rankmesh saved`` lists them with their parameters.

        :param parameters: values by name, such as ``{"since": "10m"}``; others have their defaults
        :raises WrongQuestion: there is none of that name, or a value is missing or wrong
        :raises Partial, Failed: as :meth:`sql`
        """
        more = ["--format", "json", f"--saved={name}"]
        for key, value in (parameters or {}).items():
            more.append(f"--param={key}={_text(value)}")
        job = [] if self._job is None or "--db" in self._flags else ["--job", self._job]
        return self._rows(job + self._whom(timeout, nodes) + more, timeout, None, allow_partial)

    def nodes(self) -> List[Dict[str, Any]]:
        """The hosts of the mesh, one dict each: ``name``, ``state``, ``ranks``, ``capture``, ``store_span_ns`` …

        :raises Failed: nobody answered
        """
        if "--db" in self._flags:
            raise WrongQuestion("stores have no mesh: ask an agent, without db")
        found, _ = self._ask("nodes", [*self._flags, "--format", "json"], None)
        return list(found)

    def schema(self) -> List[Dict[str, Any]]:
        """The tables, one dict each: ``name``, ``about``, and ``columns`` with ``name``, ``type`` and ``meaning``."""
        found, _ = self._ask("schema", ["--format", "json"], None)
        return list(found)

    def stacks(
        self,
        ranks: Optional[Union[str, Iterable[int]]] = None,
        *,
        samples: Optional[int] = None,
        children: bool = False,
        all_threads: bool = False,
        job: Optional[Union[str, int]] = None,
        timeout: Union[None, float, timedelta] = None,
        nodes: Optional[Sequence[str]] = None,
        allow_partial: Optional[bool] = None,
    ) -> Stacks:
        """Where ranks are at this moment: their call stacks, in classes. It takes agents: stores have no processes.

        :param ranks: only these, ``"3,5-7"`` or numbers
        :param samples: how often each rank is looked at
        :param children: also the ranks' child processes
        :param all_threads: all threads, not each process's first one only
        :raises Partial, Failed, WrongQuestion: as :meth:`sql`
        """
        if "--db" in self._flags:
            raise WrongQuestion("stacks are read from processes that run: ask an agent, without db")
        wanted = ranks if ranks is None or isinstance(ranks, str) else ",".join(str(rank) for rank in ranks)
        more = [] if wanted is None else [f"--ranks={wanted}"]
        more += [] if samples is None else [f"--samples={samples}"]
        more += ["--children"] * children + ["--all-threads"] * all_threads + ["--format", "json"]
        found, partial = self._ask("stacks", self._whom(timeout, nodes) + self._of_job(job) + more, timeout)
        return self._checked(Stacks(found), partial, allow_partial)

    def stragglers(
        self,
        *,
        since: Union[None, str, timedelta, datetime] = None,
        until: Union[None, str, datetime] = None,
        job: Optional[Union[str, int]] = None,
        timeout: Union[None, float, timedelta] = None,
        allow_partial: Optional[bool] = None,
    ) -> Verdict:
        """Which rank holds the others up.

        :param since: from then on: ``10m``, ``14:05``, ``2026-11-22T03:00``, a ``timedelta`` (ago), a ``datetime``; else what
            stands now
        :raises Partial, Failed, WrongQuestion: as :meth:`sql`
        """
        arguments = self._whom(timeout, None) + self._when(since, until) + self._of_job(job) + ["--format", "json"]
        found, partial = self._ask("stragglers", arguments, timeout)
        return self._checked(Verdict(found), partial, allow_partial)

    def explain(
        self,
        finding: Optional[int] = None,
        *,
        since: Union[None, str, timedelta, datetime] = None,
        until: Union[None, str, datetime] = None,
        job: Optional[Union[str, int]] = None,
        timeout: Union[None, float, timedelta] = None,
        allow_partial: Optional[bool] = None,
    ) -> Explanation:
        """A verdict with the chain behind it: where, how, since when, what was ruled out, its cost.

        :param finding: ``ts_ns`` of a row of the table ``findings``, in place of ``since``
        :raises Partial, Failed, WrongQuestion: as :meth:`sql`
        """
        arguments = self._whom(timeout, None) + self._when(since, until) + self._of_job(job) + ["--format", "json"]
        arguments += [] if finding is None else ["--", str(finding)]
        found, partial = self._ask("explain", arguments, timeout)
        return self._checked(Explanation(found), partial, allow_partial)

    def _of_job(self, job: Optional[Union[str, int]]) -> List[str]:
        wanted = self._job if job is None else str(job)
        return [] if wanted is None else ["--job", wanted]

    @staticmethod
    def _when(since: Union[None, str, timedelta, datetime], until: Union[None, str, datetime]) -> List[str]:
        flags = (("--since", since), ("--until", until))
        return [f"{flag}={_text(when)}" for flag, when in flags if when is not None]

    def _seconds(self, timeout: Union[None, float, timedelta]) -> float:
        wanted = self._timeout if timeout is None else timeout
        return wanted.total_seconds() if isinstance(wanted, timedelta) else float(wanted)

    def _whom(self, timeout: Union[None, float, timedelta], nodes: Optional[Sequence[str]]) -> List[str]:
        seconds = self._seconds(timeout)
        flags = [*self._flags, "--timeout", f"{max(1, round(seconds * 1000))}ms"]
        for node in self._nodes if nodes is None else nodes:
            flags += ["--nodes", node]
        for key, value in self._labels.items():
            flags += ["--label", f"{key}={value}"]
        return flags

    def _ask(
        self, command: str, arguments: List[str], timeout: Union[None, float, timedelta], text: Optional[str] = None
    ) -> Tuple[Any, bool]:
        """The document, and whether it lacks nodes."""
        beyond = self._seconds(timeout) + _BEYOND_S
        try:
            # The question goes by standard input: arguments are seen by every user of the host.
            ran = subprocess.run(
                [self._program, command, *arguments],
                input=(text or "").encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=beyond,
                check=False,
            )
        except OSError as error:
            raise Failed(f"{self._program}: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{self._program} gave no answer within {beyond:.0f} s") from error
        said = ran.stderr.decode(errors="replace").strip()
        if ran.returncode == _WRONG:
            raise WrongQuestion(said)
        if ran.returncode not in (0, _PARTIAL):
            raise Failed(said or f"{self._program} ended with {ran.returncode}")
        try:
            return json.loads(ran.stdout), ran.returncode == _PARTIAL
        except ValueError as error:
            raise Failed(f"{self._program} gave no JSON ({error}): {said}") from error

    def _checked(self, answer: _Answer, partial: bool, allow_partial: Optional[bool]) -> _Answer:
        allowed = self._allow_partial if allow_partial is None else allow_partial
        if partial and not allowed:
            raise Partial(answer, answer.coverage)
        return answer
