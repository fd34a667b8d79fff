"""The runtime `dask`: Dask distributed runs each machine's program on a worker of its own, and moves what is sent.

What lies between two transfers of a machine is one task, bound to its worker; a transfer is a value of one task that
another one needs, so that Dask carries it from worker to worker. The machine of a host that gets no work is the caller.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from operator import itemgetter
from typing import Any, NoReturn, TypeVar

from tvmtarget.errors import MissingExtraError, RunError, TvmTargetError, did_you_mean, raise_all
from tvmtarget.executors.driver_program import Driver
from tvmtarget.executors.protocol import Event, Record, RunProgram
from tvmtarget.files import temporary_folder
from tvmtarget.python_process import is_stopped, python_environment
from tvmtarget.runtimes.protocol import Cluster, OpenMachine, ProgramRuntime, WorkerEngine
from tvmtarget.runtimes.segments import Part, parts_of
from tvmtarget.target.node import Runtime
from tvmtarget.untrusted import LIMITS, limit

__all__ = ["RUNTIME", "DaskRuntime", "DaskWorkerGroup", "connected"]

_R = TypeVar("_R")
_VARIABLE = LIMITS["silence-seconds"].variable

LOCALHOST = "127.0.0.1"
LOOK = 0.5  # seconds between looks at whether all workers are there
GRACE = 2.0  # seconds in which a client has said goodbye
CLOSE = 10.0  # seconds in which a cluster of our own has ended by itself; it is killed then


@dataclass
class _Run:
    """The tasks of one run with their machines, the values that come home, and what is written down."""

    tasks: dict[Any, str] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)


class DaskWorkerGroup:
    """A connection to a scheduler, the worker of each machine, and what was sent there to be run."""

    def __init__(self, runtime: Runtime, cluster: Cluster) -> None:
        self.distributed = _distributed()
        self.cluster = cluster
        self.parts = {machine: tuple(parts_of(program)) for machine, program in cluster.programs.items()}
        working = [m for m, parts in self.parts.items() if any(isinstance(part, Driver) for part in parts)]
        address, workers = runtime["address"], runtime["workers"]
        self._silence = limit("silence-seconds")
        self._heard: dict[str, tuple[object, float]] = {}  # the last heartbeat of each worker, and when it was new
        self._scheduler = f"the Dask scheduler at {address!r}" if address else "the Dask scheduler"
        self._files = ExitStack()
        self.folder = self._files.enter_context(temporary_folder())
        self._own: Any = None
        self.client: Any = None
        try:
            if not address:
                self._own = _started(self.distributed, len(working), str(self.folder))
            if address:
                is_insecure = bool(runtime["insecure"])
                self.client = connected(self.distributed, str(address), insecure=is_insecure, seconds=self._silence)
            else:
                self.client = self.distributed.Client(self._own, set_as_default=False, timeout=self._silence)
            self.workers = self._assigned(working, workers if isinstance(workers, tuple) else ())
            self.packs = self._watched(lambda: {machine: self._packed(machine) for machine in self.workers})
        except OSError as error:
            self.close()
            raise RunError(f"no Dask scheduler answers at {address!r}: {error}") from error
        except BaseException:
            self.close()
            raise

    def begin(self, inputs: Sequence[Any], *, is_recorded: bool) -> _Run:
        """Hand all tasks of a run to the scheduler."""
        writer = _Writer(self, is_recorded)
        self._watched(lambda: writer.write(inputs))
        return writer.run

    def finish(self, run: _Run, record: Record | None = None) -> list[Any]:
        """Wait for the tasks of a run; return its results. `RunError` names a machine that failed or is gone."""
        waiting = set(run.tasks)
        while waiting:
            with suppress(self.distributed.TimeoutError, self.distributed.CancelledError), self.client.as_current():
                self.distributed.wait(waiting, timeout=LOOK, return_when="FIRST_COMPLETED")
            for task in [task for task in waiting if task.done()]:
                waiting.discard(task)
                if task.status != "finished":
                    self._failed(run.tasks[task], task)
            if waiting:
                self._look_for_workers()
        if record is not None:
            for event in (
                event for events in self._watched(lambda: self.client.gather(run.events)) for event in events
            ):
                record(event)
        return list(self._watched(lambda: self.client.gather(run.results)))

    def close(self) -> None:
        """Forget all tasks; end workers that were started here."""
        if self.client is not None:
            with suppress(OSError, self.distributed.TimeoutError):
                self.client.close(timeout=GRACE)
        if self._own is not None:
            for pid in filter(is_stopped, self._processes().values()):
                os.kill(pid, signal.SIGKILL)
            with suppress(OSError, self.distributed.TimeoutError):
                self._own.close(timeout=CLOSE)
        self._files.close()

    def _failed(self, machine: str, task: Any) -> NoReturn:  # noqa: ANN401
        self._look_for_workers()
        error = task.exception() if task.status == "error" else None
        problems = error.problems if isinstance(error, TvmTargetError) else (f"{error or 'Dask gave its tasks up'}",)
        raise RunError(*(f"{problem} (on machine {machine!r})" for problem in problems)) from error

    def _look_for_workers(self) -> None:
        there = self._workers_there()
        now = time.monotonic()
        processes = self._processes()
        for machine, worker in self.workers.items():
            if worker not in there:
                raise RunError(f"machine {machine!r} is gone: Dask lost its worker {worker}; the next run begins anew")
            # A worker of our own that holds Python's lock for long sends no heartbeats, but is not stopped.
            beat = there[worker]["last_seen"] if worker not in processes else is_stopped(processes[worker]) or now
            if beat != self._heard.get(worker, (None, now))[0]:
                self._heard[worker] = (beat, now)
            elif now - self._heard[worker][1] >= self._silence:
                raise RunError(
                    f"machine {machine!r} is stopped: its Dask worker {worker} has given no sign of life for "
                    f"{self._silence} s; the next run begins anew; {_VARIABLE} raises the limit"
                )

    def _workers_there(self) -> Mapping[str, Mapping[str, object]]:
        """Ask the scheduler for all workers by address; `RunError` if it is gone or silent."""
        if self.client.status != "running":  # the client connects anew, but its tasks are lost
            raise RunError(f"{self._scheduler} is gone; the next run begins anew")
        try:
            # What the client itself says of its scheduler has at times no workers, see `_named`.
            ask = self.client.scheduler.identity
            facts = self.client.sync(ask, n_workers=-1, callback_timeout=self._silence)
        except (OSError, self.distributed.TimeoutError) as error:
            is_silent = self.client.status == "running"
            why = f"has been silent for {self._silence} s ({_VARIABLE})" if is_silent else "is gone"
            raise RunError(f"{self._scheduler} {why}; the next run begins anew") from error
        workers: Mapping[str, Mapping[str, object]] = facts["workers"]
        return workers

    def _processes(self) -> dict[str, int]:
        """Return the processes of workers that were started here, by address."""
        nannies = self._own.workers.values() if self._own is not None else ()
        return {nanny.worker_address: nanny.pid for nanny in nannies if nanny.pid is not None}

    def _watched(self, call: Callable[[], _R]) -> _R:
        """Return what a call of Dask returns, however long that takes while the scheduler and all workers are there."""
        done = _in_thread(call)
        while not wait([done], LOOK).done:
            self._look_for_workers()
        try:
            return done.result()
        except TvmTargetError:
            raise
        except Exception as error:
            self._look_for_workers()
            raise RunError(f"Dask failed: {type(error).__name__}: {error}") from error

    def _assigned(self, machines: Sequence[str], wanted: Sequence[object]) -> dict[str, str]:
        """Return the address of the worker of each machine: those that are wanted, else by name."""
        with suppress(self.distributed.TimeoutError):
            self.client.wait_for_workers(len(machines), timeout=limit("start-seconds"))
        names = _named(self.client)
        found = {name: address for address, name in names.items()} | {address: address for address in names}
        chosen = [str(name) for name in wanted] or sorted(names.values(), key=lambda name: (len(name), name))
        problems = [f"Dask has no worker {name!r}{did_you_mean(name, found)}" for name in chosen if name not in found]
        if len(chosen) < len(machines):
            problems.append(f"{len(machines)} machines ({', '.join(machines)}) need a worker each, not {len(chosen)}")
        raise_all(RunError, problems)
        return {machine: found[name] for machine, name in zip(machines, chosen, strict=False)}

    def _packed(self, machine: str) -> Any:  # noqa: ANN401
        """Return what a machine runs as a value that its worker holds."""
        pack = self.cluster.pack(machine)
        packed = _Pack(hashlib.sha256(pack).hexdigest(), pack, self.cluster.open)
        return self.client.scatter(packed, workers=[self.workers[machine]], hash=False)


class _Writer:
    """Turns the programs of all machines into the tasks of one run."""

    def __init__(self, crew: DaskWorkerGroup, is_recorded: bool) -> None:
        self.crew = crew
        self.is_recorded = is_recorded
        self.run = _Run()
        self.values: dict[str, dict[str, Any]] = {machine: {} for machine in crew.parts}
        self.before: dict[str, tuple[Any, ...]] = dict.fromkeys(crew.parts, ())
        self.sent: dict[int, Any] = {}

    def write(self, inputs: Sequence[Any]) -> None:
        """Walk all programs together, each as far as what it receives has been sent."""
        home = self.crew.cluster.home
        program = self.crew.cluster.programs[home]
        entry = program.drivers.get(program.entry)
        params = entry.params if entry is not None else tuple(value.name for value in program.inputs)
        self.values[home] = {name: self._at(home, value) for name, value in zip(params, inputs, strict=True)}
        waiting = {machine: deque(parts) for machine, parts in self.crew.parts.items()}
        while any(waiting.values()):
            for machine, parts in waiting.items():
                while parts and self._is_ready(parts[0]):
                    self._add(machine, parts.popleft())
        results = entry.results if entry is not None else tuple(value.name for value in program.outputs)
        self.run.results = [self.values[home][name] for name in results]

    def _is_ready(self, part: Part) -> bool:
        return isinstance(part, Driver) or part.to is not None or part.order in self.sent

    def _add(self, machine: str, part: Part) -> None:
        values = self.values[machine]
        if isinstance(part, Driver):
            self._segment(machine, part)
        elif part.order is not None and part.to is not None:
            self.sent[part.order] = values[part.inputs[0]] if part.inputs else self._token(machine)
        elif part.order is not None and part.outputs:
            values[part.outputs[0]] = self._at(machine, self.sent[part.order])
        elif part.order is not None:
            self.before[machine] = (*self.before[machine], self.sent[part.order])

    def _segment(self, machine: str, driver: Driver) -> None:
        inputs = [self.values[machine][name] for name in driver.params]
        pack = self.crew.packs[machine]
        task = self._submit(machine, _run_segment, pack, driver, self.is_recorded, inputs, self.before[machine])
        self.run.tasks[task] = machine
        self.before[machine] = (self._submit(machine, _nothing, task),)
        for place, name in enumerate(driver.results):
            self.values[machine][name] = self._submit(machine, itemgetter(place), task)
        if self.is_recorded:
            self.run.events.append(self._submit(machine, itemgetter(-1), task))

    def _token(self, machine: str) -> Any:  # noqa: ANN401
        """Return a value that is there once a machine has done everything so far."""
        return self.before[machine][-1] if self.before[machine] else None

    def _at(self, machine: str, value: Any) -> Any:  # noqa: ANN401
        """Bring a value of the caller to the worker of a machine; values of workers are brought by Dask."""
        is_with_caller = machine not in self.crew.workers
        if is_with_caller or isinstance(value, self.crew.distributed.Future):
            return value
        return self.crew.client.scatter(value, workers=[self.crew.workers[machine]], hash=False)

    def _submit(self, machine: str, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        workers = [self.crew.workers[machine]]
        return self.crew.client.submit(function, *arguments, workers=workers, pure=False, retries=0)


@dataclass(frozen=True)
class _Pack:
    """What a machine runs, packed, and how to open it; where it was opened before, it is not opened again."""

    digest: str
    data: bytes
    open: OpenMachine


_OPENED: dict[str, RunProgram] = {}  # in a worker: what was opened there, the last few of them
_KEPT = 4
_BUSY = threading.Lock()  # a machine does one thing at a time


def _run_segment(
    pack: _Pack, driver: Driver, is_recorded: bool, inputs: Sequence[Any], _before: Sequence[Any]
) -> tuple[Any, ...]:
    """Run a part of a machine's program on its worker; the last result is what was written down."""
    events: list[Event] = []
    with _BUSY:
        if pack.digest not in _OPENED:
            for digest in list(_OPENED)[: 1 - _KEPT]:
                del _OPENED[digest]
            _OPENED[pack.digest] = pack.open(pack.data)
        results = _OPENED[pack.digest](inputs, events.append if is_recorded else None, entry=driver)
    return (*results, tuple(events))


def _nothing(_task: object) -> None:
    """Come after a task."""


# No worker is ended for what it holds in memory. Dask runs whatever those who connect send, so that nobody does
# without the key of this cluster, and only from this machine. Without an address of its own the HTTP server of the
# scheduler would take port 8787 of all networks; it cannot be left out, but is given no pages.
_LOCAL = {
    "threads_per_worker": 1,
    "processes": True,
    "memory_limit": 0,
    "host": LOCALHOST,
    "protocol": "tls://",
    "dashboard_address": f"{LOCALHOST}:0",
    "scheduler_kwargs": {"dashboard": False},
}
_CONFIG: dict[str, object] = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.nanny.pre-spawn-environ.PYTHONSAFEPATH": 1,  # of workers that are started again
    "distributed.diagnostics.nvml": False,
}


def connected(distributed: Any, address: str, *, insecure: bool, seconds: float) -> Any:  # noqa: ANN401
    """Return a client of a scheduler that this process did not start.

    Dask unpickles what it receives, on both sides, so that whoever can talk to a cluster can run code on it, and its
    scheduler and workers can run code here. `tls://` lets only those in that have a certificate of the authority in the
    user's configuration of Dask (`distributed.comm.tls`).

    Raises:
        RunError: the address has no TLS, and that is not allowed by `insecure`; or there are no certificates.
        OSError: no scheduler answers.
    """
    protocol = address.partition("://")[0]
    options: dict[str, Any] = {"timeout": seconds, "set_as_default": False}
    if protocol in ("tls", "wss"):
        try:
            options["security"] = distributed.Security(require_encryption=True)
            return _client(distributed, address, options)
        except (TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            where = "set ca-file, client.cert and client.key of distributed.comm.tls in your configuration of Dask"
            raise RunError(f"TLS cannot be used for the Dask scheduler {address!r}: {reason}; {where}") from error
    if not insecure and protocol != "inproc":
        raise RunError(
            f"the Dask scheduler {address!r} is reached without TLS, so that whoever reaches it may run code as you; "
            "use tls://HOST:PORT, or allow it: dask(insecure=true), insecure=True, --insecure"
        )
    return _client(distributed, address, options)


def _client(distributed: Any, address: str, options: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return a client; Dask's own limit does not cover somebody who accepts a connection and then says nothing."""
    client = _in_thread(lambda: distributed.Client(address, **options))
    if not wait([client], options["timeout"] + GRACE).done:
        client.add_done_callback(lambda late: None if late.exception() else late.result().close())
        raise TimeoutError(f"it said nothing for {options['timeout']} s")
    return client.result()


def _in_thread(call: Callable[[], _R]) -> Future[_R]:
    """Call a function in a thread of its own, which does not keep the process from ending."""
    done: Future[_R] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return done


def _started(distributed: Any, workers: int, folder: str) -> Any:  # noqa: ANN401
    """Start a cluster on this machine with a key that only this process and its workers have."""
    dask = import_module("dask")
    try:
        security = distributed.Security.temporary()
    except ImportError:
        raise MissingExtraError("cryptography", "dask") from None
    try:
        with dask.config.set(_CONFIG | {"temporary-directory": folder}), _safe_path():
            return distributed.LocalCluster(n_workers=workers, security=security, local_directory=folder, **_LOCAL)
    except RuntimeError as error:
        raise RunError(
            f"Dask did not start {workers} workers: {error}; a script that starts them does so below "
            "\"if __name__ == '__main__':\""
        ) from error


@contextmanager
def _safe_path() -> Iterator[None]:
    """Have processes that are started meanwhile not import from the current folder, and restore the environment.

    Dask starts Python by `multiprocessing`, with `-c`, before it sets the variables of its own configuration.
    """
    before = dict(os.environ)
    os.environ.update(python_environment())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _named(client: Any) -> dict[str, str]:  # noqa: ANN401
    """Return the names of all workers by address; asked again where Dask answers from what it keeps, without workers.

    A client keeps one answer about its scheduler, and every two seconds replaces it by one without workers.
    """
    while True:
        facts = client.scheduler_info(n_workers=-1)["workers"]
        if facts.keys() >= client.nthreads().keys():
            return {address: str(fact["name"]) for address, fact in facts.items()}


def _distributed() -> Any:  # noqa: ANN401
    try:
        return import_module("distributed")
    except ImportError:
        raise MissingExtraError("distributed", "dask") from None


class DaskRuntime(ProgramRuntime):
    """Runs each machine on a worker of a Dask cluster: that of a scheduler, or one started on this computer."""

    honours = frozenset({"address", "insecure", "workers"})

    def engine(self, settings: Runtime, cluster: Cluster) -> WorkerEngine:
        """Return an engine that connects to the scheduler at its first run."""
        return WorkerEngine(lambda: DaskWorkerGroup(settings, cluster))


RUNTIME = DaskRuntime()
