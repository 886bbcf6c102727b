"""Ask a rankmesh mesh from Python: SQL over all hosts, which rank holds a job up, and why.

    import rankmesh
    rm = rankmesh.connect()                     # this host's agent; job="4711", via="host", db=["dir"]
    rm.sql("SELECT node, count(*) AS n FROM collectives GROUP BY node").pandas()
    rm.stragglers(since="10m")
    rm.explain()
    rm.stacks("3,5-7")                          # where ranks are at this moment
    rm.saved("waits-by-rank", {"since": "10m"})

Everything is asked through the program ``rankmesh``, with the rights of whoever runs this. Nothing here writes to a store. An
answer that lacks nodes raises :class:`Partial`, unless ``allow_partial=True`` was said.
"""

from ._answers import Column, Coverage, Explanation, Missing, Result, Stacks, Verdict
from ._mesh import Error, Failed, Mesh, Partial, WrongQuestion, connect

__all__ = [
    "Column",
    "Coverage",
    "Error",
    "Explanation",
    "Failed",
    "Mesh",
    "Missing",
    "Partial",
    "Result",
    "Stacks",
    "Verdict",
    "WrongQuestion",
    "connect",
]
