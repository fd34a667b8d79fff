"""The runtime protocol: where the machines of a program run, and the engine that runs them.

An executor compiles a system into an artifact (`tvmtarget.executors.protocol`); the runtime of the system calls it. The
runtime states by its `convention` what an executor compiles for: artifacts that are called from Python, the default,
from C++ (`cpp`), or from C (`crt`).

Runtimes are found by the entry-point group `tvmtarget.runtimes`, under the name of the runtime kind.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tvmtarget import plugins
from tvmtarget.errors import BackendError, RunError, did_you_mean
from tvmtarget.executors.driver_program import DriverProgram
from tvmtarget.executors.protocol import Record, RunProgram, RunSystem
from tvmtarget.target.node import Runtime

__all__ = [
    "Cluster",
    "Engine",
    "LocalEngine",
    "OpenMachine",
    "ProgramRuntime",
    "WorkerEngine",
    "WorkerGroup",
    "by_turns",
    "runtime_named",
    "unmatched_transfers",
]

GROUP = "tvmtarget.runtimes"

OpenMachine: TypeAlias = "Callable[[bytes], RunProgram]"


@dataclass(frozen=True)
class Cluster:
    """The programs that a runtime runs, one per machine, by the path of the machine.

    Attributes:
        home: the machine that takes the inputs and returns the results.
        programs: the driver programs; of a program for one machine, that alone.
        run_here: runs the artifact of a program for one machine. Runtimes that are distributed do not use it.
        pack: returns the program of a machine with its code and constants, as bytes.
        open: opens these bytes where the machine is. Other processes import it by its qualified name.
        replicas: the machines that run a program by turns, by the path of the first of them, itself included; a program
            that is not listed has its own machine alone.
        machines: the machines of the target, in its order.
        modules: the modules of this program that registered plugins for the target; other processes import them
            (`plugins.import_registering`).
    """

    home: str
    programs: Mapping[str, DriverProgram]
    run_here: RunSystem
    pack: Callable[[str], bytes]
    open: OpenMachine
    replicas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    machines: tuple[str, ...] = ()
    modules: tuple[Mapping[str, str], ...] = ()

    @property
    def workers(self) -> dict[str, str]:
        """The program of each machine that runs one, by the path of the machine, in the order of the target."""
        found = {worker: machine for machine in self.programs for worker in self.group(machine)}
        return {machine: found[machine] for machine in dict.fromkeys((*self.machines, *found)) if machine in found}

    def group(self, machine: str) -> tuple[str, ...]:
        """Return the machines that run a program by turns.

        Args:
            machine: the machine of the program.

        Returns:
            Paths, that of the machine first.
        """
        return self.replicas.get(machine, (machine,))

    def worker(self, machine: str, run: int) -> str:
        """Return the machine whose turn it is.

        Args:
            machine: the machine of a program.
            run: number of the run.

        Returns:
            Its path, or that of one of its replicas.
        """
        return by_turns(self.group(machine), run)

    def sinks(self, machine: str) -> list[str]:
        """List the machines that a machine sends to.

        Args:
            machine: path of the sending machine.

        Returns:
            Paths of machines, sorted.
        """
        drivers = self.programs[machine].drivers.values()
        return sorted({step.to for driver in drivers for step in driver.steps if step.to})


def by_turns(replicas: Sequence[str], run: int) -> str:
    """Return the replica of a machine that takes part in a run.

    Args:
        replicas: paths of the replicas.
        run: number of the run.

    Returns:
        One of the paths.
    """
    return replicas[run % len(replicas)]


class Engine(ABC):
    """Runs one program, any number of times."""

    @abstractmethod
    def run(self, inputs: Sequence[Any], record: Record | None = None) -> list[Any]:
        """Run once.

        Args:
            inputs: the program's inputs, in order.
            record: called with each leaf call and copy.

        Returns:
            The program's results, in order.

        Raises:
            RunError: a machine failed; the message names it.
        """

    @abstractmethod
    def stream(self, inputs: Iterable[Sequence[Any]], depth: int) -> Iterator[list[Any]]:
        """Run on a sequence of inputs.

        Args:
            inputs: the inputs of each run, in order.
            depth: the largest number of runs that are in progress at once.

        Yields:
            The results of each run, in the order of the inputs.
        """

    def close(self) -> None:  # noqa: B027 - an engine may have nothing to stop
        """Stop all processes and connections of the engine; the next run starts new ones."""


class LocalEngine(Engine):
    """Runs a program in the calling thread; runs in several threads do not wait for each other."""

    def __init__(self, run: RunSystem) -> None:
        self._run = run

    def run(self, inputs: Sequence[Any], record: Record | None = None) -> list[Any]:
        """Run once.

        Args:
            inputs: the program's inputs, in order.
            record: called with each leaf call and copy.

        Returns:
            The program's results, in order.
        """
        return self._run(inputs, record)

    def stream(self, inputs: Iterable[Sequence[Any]], depth: int) -> Iterator[list[Any]]:
        """Run on a sequence of inputs, one at a time.

        Args:
            inputs: the inputs of each run, in order.
            depth: ignored.

        Returns:
            The results of each run, in the order of the inputs.
        """
        return map(self._run, inputs)


class WorkerGroup(Protocol):
    """The started workers of a cluster; after an error of any method it is closed and not used again.

    Several runs may be in progress. They are finished in any order, and some never are.
    """

    def begin(self, inputs: Sequence[Any], *, is_recorded: bool) -> Any:  # noqa: ANN401 - only `finish` reads it
        """Begin a run.

        Args:
            inputs: the program's inputs, in order.
            is_recorded: whether `finish` is called with a `record`.

        Returns:
            A handle of the run, for `finish`.
        """
        ...

    def finish(self, run: Any, record: Record | None = None) -> list[Any]:  # noqa: ANN401
        """Wait for a run.

        Args:
            run: what `begin` returned.
            record: called with each leaf call and copy of the run.

        Returns:
            The program's results, in order.

        Raises:
            RunError: a machine failed or died; the message names it.
        """
        ...

    def close(self) -> None:
        """Stop everything that was started."""
        ...


class WorkerEngine(Engine):
    """Runs a cluster on a group of workers, started at the first run and again after a failure.

    Args:
        start: starts the workers.
    """

    def __init__(self, start: Callable[[], WorkerGroup]) -> None:
        self._start = start
        self._reset()

    def _reset(self) -> None:
        self._workers: WorkerGroup | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._streamed = 0  # runs of streams that are in progress

    def run(self, inputs: Sequence[Any], record: Record | None = None) -> list[Any]:
        """Run once; runs in several threads wait for each other.

        Args:
            inputs: the program's inputs, in order.
            record: called with each leaf call and copy.

        Returns:
            The program's results, in order.
        """
        with self._running_workers() as workers:
            return workers.finish(workers.begin(inputs, is_recorded=record is not None), record)

    def stream(self, inputs: Iterable[Sequence[Any]], depth: int) -> Iterator[list[Any]]:
        """Run on a sequence of inputs; other runs and streams may take place between two results.

        Args:
            inputs: the inputs of each run, in order.
            depth: the largest number of runs that are in progress at once.

        Yields:
            The results of each run, in the order of the inputs.

        Raises:
            RunError: a machine failed, or the workers were stopped between two results.
        """
        workers: WorkerGroup | None = None
        runs: deque[Any] = deque()
        try:
            for values in inputs:
                with self._running_workers(workers) as workers:
                    runs.append(workers.begin(values, is_recorded=False))
                    self._streamed += 1
                if len(runs) == depth:
                    yield self._next_results(workers, runs)
            while workers is not None and runs:
                yield self._next_results(workers, runs)
        finally:
            if runs and self._workers is workers:
                self._leave(len(runs))

    def _next_results(self, workers: WorkerGroup, runs: deque[Any]) -> list[Any]:
        """Wait for the first of the runs of a stream, and remove it."""
        with self._running_workers(workers):
            self._streamed -= 1
            return workers.finish(runs.popleft())

    def _leave(self, runs: int) -> None:
        """Stop the workers, which compute results that nobody reads, unless another run or stream uses them."""
        self._streamed -= runs
        if not self._streamed and self._lock.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Stop the workers."""
        workers, self._workers = self._workers, None
        if workers is not None and self._process == os.getpid():
            workers.close()

    @contextmanager
    def _running_workers(self, started: WorkerGroup | None = None) -> Iterator[WorkerGroup]:
        """Start the workers if there are none, and stop them after any error, a keyboard interrupt included.

        If `started` is given, only these workers will do: runs are in progress on them.
        """
        if self._process != os.getpid():  # in a fork: the threads and processes of the workers are the parent's
            self._reset()
        with self._lock:
            if started is not None and self._workers is not started:
                raise RunError(
                    "the stream cannot go on: since its last result the machines were stopped, by close() or the error "
                    "of another run; begin a new stream"
                )
            if self._workers is None:
                self._workers, self._streamed = self._start(), 0
            try:
                yield self._workers
            except BaseException:
                self.close()
                raise


class ProgramRuntime(ABC):
    """Base class of runtimes.

    Whether a runtime gets one program per machine is a fact of its kind (`Kind.is_distributed`). It then needs an
    executor with ability `transfers`.

    Attributes:
        honours: names of the attributes of the runtime kind that have an effect, on the runtime or on what executors
            compile for it; a build rejects a target that sets another one.
        convention: the runtime kind for which executors compile (`System.convention`, `ProgramExecutor.supports`).
    """

    honours: frozenset[str] = frozenset()
    convention: str = "python"

    @abstractmethod
    def engine(self, settings: Runtime, cluster: Cluster) -> Engine:
        """Return the engine of a program; nothing is started before its first run.

        Args:
            settings: the runtime node of the target, with its attributes.
            cluster: the programs of the machines.

        Returns:
            An engine of its own for each call.
        """


def runtime_named(kind: str) -> ProgramRuntime:
    """Return the runtime of a kind.

    Args:
        kind: a runtime kind, such as `python`.

    Returns:
        The object that is registered for the kind.

    Raises:
        BackendError: no package registers a runtime for the kind, or what it registers is of another class.
    """
    known = plugins.names(GROUP)
    if kind not in known:
        raise BackendError(f"no runtime {kind!r} is installed{did_you_mean(kind, known)}")
    runtime = plugins.load(GROUP, kind)
    if not isinstance(runtime, ProgramRuntime):
        raise BackendError(f"runtime {kind!r} is {runtime!r}, which does not derive from {ProgramRuntime.__name__}")
    return runtime


def unmatched_transfers(programs: Mapping[str, DriverProgram]) -> Iterator[str]:
    """Find transfers for which the programs of several machines could wait forever.

    Args:
        programs: the driver programs by machine, read from a file.

    Yields:
        A sentence for each machine whose transfers are out of order, and each transfer that has one end only.
    """
    sent: set[tuple[int, str, str]] = set()
    received: set[tuple[int, str, str]] = set()
    for machine, program in programs.items():
        last = -1
        for step in (step for driver in program.drivers.values() for step in driver.walk() if step.order is not None):
            order = step.order or 0
            if order <= last:
                yield f"machine {machine!r} makes transfer {order} after {last}"
            last = order
            if step.to is not None:
                sent.add((order, machine, step.to))
            if step.from_ is not None:
                received.add((order, step.from_, machine))
    for order, src, dst in sorted(sent ^ received):
        yield f"transfer {order} from {src!r} to {dst!r} has one end only"
