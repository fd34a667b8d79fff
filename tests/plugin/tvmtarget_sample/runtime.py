"""The runtime `counted`: run a program in this process, and print the number of each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmtarget import Runtime
from tvmtarget.executors.protocol import Record, RunSystem
from tvmtarget.runtimes.protocol import Cluster, LocalEngine, ProgramRuntime
from tvmtarget.target.kinds import Attribute, Kind

__all__ = ["KINDS", "RUNTIME"]

# Not among the kinds of the package's entry points, as the library's tests list all runtime kinds.
KINDS = (
    Kind(
        name="counted",
        role="runtime",
        attributes=(
            Attribute(name="first", type="int", class_="none", default=0, doc="number of the first run"),
            Attribute(name="colour", type="str", class_="none", doc="not honoured"),
        ),
        doc="this Python process, with counted runs",
    ),
)


class _CountedEngine(LocalEngine):
    def __init__(self, run: RunSystem, first: int) -> None:
        super().__init__(run)
        self._next = first

    def run(self, inputs: Sequence[Any], record: Record | None = None) -> list[Any]:
        print("run", self._next)
        self._next += 1
        return super().run(inputs, record)


class CountedRuntime(ProgramRuntime):
    """Runs programs of one machine in this process."""

    honours = frozenset({"first"})

    def engine(self, settings: Runtime, cluster: Cluster) -> _CountedEngine:
        return _CountedEngine(cluster.run_here, int(str(settings["first"])))


RUNTIME = CountedRuntime()
