"""What runs the programs of several machines: the engine, and what a runtime gives it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tvmtarget.executors.driver_program import Driver, DriverProgram
from tvmtarget.executors.graph import Event, Transfers

__all__ = ["Cluster", "Engine", "OpenMachine", "Record", "RunProgram", "WorkerGroup", "unmatched"]

Record: TypeAlias = "Callable[[Event], None]"
OpenMachine: TypeAlias = "Callable[[bytes], RunProgram]"


class RunProgram(Protocol):
    """The program of one machine, ready to run there."""

    def __call__(
        self,
        inputs: Sequence[Any],
        record: Record | None = None,
        transfers: Transfers | None = None,
        *,
        entry: Driver | None = None,
    ) -> list[Any]:
        """Run once on the program's parameters in order, or on those of a part of it; return its results in order."""
        ...


def unmatched(programs: Mapping[str, DriverProgram]) -> Iterator[str]:
    """Yield why programs that were read from a file could hang: ends of transfers without a match, or out of order."""
    sent: set[tuple[int, str, str]] = set()
    received: set[tuple[int, str, str]] = set()
    for machine, program in programs.items():
        last = -1
        for step in (step for driver in program.drivers.values() for step in driver.walk() if step.order is not None):
            order = step.order or 0
            if order <= last:
                yield f"machine {machine!r} makes transfer {order} after {last}"
            last = order
            sent |= {(order, machine, step.to)} if step.to is not None else set()
            received |= {(order, step.from_, machine)} if step.from_ is not None else set()
    for order, src, dst in sorted(sent ^ received):
        yield f"transfer {order} from {src!r} to {dst!r} has one end only"


@dataclass(frozen=True)
class Cluster:
    """The programs of all machines; the one at `home` takes the inputs and returns the results.

    `pack` makes of a machine's program and functions what `open` reads where they run; `open` is a function that other
    processes can import.
    """

    home: str
    programs: Mapping[str, DriverProgram]
    pack: Callable[[str], bytes]
    open: OpenMachine

    def sinks(self, machine: str) -> list[str]:
        """List the machines that one sends to."""
        return sorted(
            {step.to for driver in self.programs[machine].drivers.values() for step in driver.steps if step.to}
        )


class WorkerGroup(Protocol):
    """What runs a cluster once it is started: whatever it raises, it is then closed and never used again."""

    def begin(self, inputs: Sequence[Any], *, is_recorded: bool) -> Any:  # noqa: ANN401 - only `finish` reads it
        """Begin a run; return what `finish` calls it."""
        ...

    def finish(self, run: Any, record: Record | None = None) -> list[Any]:  # noqa: ANN401
        """Wait for a run and return its results; `RunError` names the machine that failed or died."""
        ...

    def close(self) -> None:
        """Stop everything that was started."""
        ...


class Engine:
    """Runs a cluster, by a crew that it hires at the first run, and anew after a failure."""

    def __init__(self, hire: Callable[[], WorkerGroup]) -> None:
        self._hire = hire
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._crew: WorkerGroup | None = None
        self._one_at_a_time = threading.Lock()
        self._process = os.getpid()

    def run(self, inputs: Sequence[Any], record: Record | None = None) -> list[Any]:
        """Run once; `RunError` names the machine that failed or died."""
        with self._crew_at_work() as crew:
            return crew.finish(crew.begin(inputs, is_recorded=record is not None), record)

    def stream(self, inputs: Iterable[Sequence[Any]], depth: int) -> Iterator[list[Any]]:
        """Run on inputs that follow each other, up to `depth` of them at a time; yield results in their order."""
        with self._crew_at_work() as crew:
            begun: deque[Any] = deque()
            for values in inputs:
                begun.append(crew.begin(values, is_recorded=False))
                if len(begun) == depth:
                    yield crew.finish(begun.popleft())
            while begun:
                yield crew.finish(begun.popleft())

    def close(self) -> None:
        """Stop everything that was started."""
        crew, self._crew = self._crew, None
        if crew is not None and self._process == os.getpid():
            crew.close()

    @contextmanager
    def _crew_at_work(self) -> Iterator[WorkerGroup]:
        """Lend the crew; it ends where anything goes wrong, the user's interrupt too."""
        if self._process != os.getpid():  # a fork, in which neither the threads nor the processes of a crew are its own
            self._begin_anew()
        with self._one_at_a_time:
            if self._crew is None:
                self._crew = self._hire()
            try:
                yield self._crew
            except BaseException:
                self.close()
                raise
