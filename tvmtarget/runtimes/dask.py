"""The runtime `dask`: run each machine's program on a Dask worker, and transfer values between workers by Dask.

The steps between two transfers of a machine are one task, bound to its worker. A transfer is a value of one task that
another one reads, so that Dask moves it from worker to worker. If the machine of the root's host has no work, the
calling process takes its place.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any, NoReturn, TypeVar

from tvmtarget.errors import (
    BackendError,
    MissingExtraError,
    RunError,
    TvmTargetError,
    did_you_mean,
    first_line,
    raise_all,
)
from tvmtarget.executors.driver_program import Driver
from tvmtarget.executors.protocol import Event, Record, RunProgram
from tvmtarget.files import temporary_folder
from tvmtarget.python_process import fork_problem, is_stopped, never_free_in_forks, python_environment
from tvmtarget.runtimes.protocol import Cluster, OpenMachine, ProgramRuntime, WorkerEngine
from tvmtarget.runtimes.segments import Segment, split_segments
from tvmtarget.target.node import Runtime
from tvmtarget.untrusted import LIMITS, limit
from tvmtarget.version import __version__

__all__ = ["RUNTIME", "DaskRuntime", "DaskWorkerGroup", "connected"]

_R = TypeVar("_R")
_VARIABLE = LIMITS["silence-seconds"].variable

_ADDRESS = re.compile(r"inproc://\S+|[a-z]+://\S+:[0-9]+")

LOCALHOST = "127.0.0.1"
POLL = 0.5  # seconds between looks at whether all workers are there
GRACE = 2.0  # seconds in which a client has disconnected
CLOSE = 10.0  # seconds in which a cluster of our own has ended by itself; it is killed then


@dataclass
class _Run:
    """The tasks of one run by machine, the futures of its results, and those of its events."""

    tasks: dict[Any, str] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)


def _close_at_exit(owner: int, found: weakref.ref[DaskWorkerGroup]) -> None:
    group = found()
    if group is not None and os.getpid() == owner:  # a fork has no part in the cluster
        group.close()


class DaskWorkerGroup:
    """A client of a scheduler, the worker of each machine, and the programs that were sent there.

    Args:
        runtime: the runtime node with its attributes.
        cluster: the programs of the machines.

    Raises:
        RunError: no scheduler answers, or it has too few workers.
    """

    def __init__(self, runtime: Runtime, cluster: Cluster) -> None:
        self.distributed = _distributed()
        _reject_fork()
        never_free_in_forks(self)  # its client waits for its thread then
        self.cluster = cluster
        self.segments = {machine: tuple(split_segments(program)) for machine, program in cluster.programs.items()}
        working = [
            worker
            for worker, machine in cluster.workers.items()
            if any(isinstance(segment, Driver) for segment in self.segments[machine])
        ]
        self._runs = 0
        address, workers = runtime["address"], runtime["workers"]
        self._silence = limit("silence-seconds")
        self._heartbeats: dict[str, tuple[object, float]] = {}  # the last heartbeat of each worker, and when it was new
        self._scheduler = f"the Dask scheduler at {address!r}" if address else "the Dask scheduler"
        self._files = ExitStack()
        self.folder = self._files.enter_context(temporary_folder())
        self._own: Any = None
        self._at_exit: Callable[[], None] | None = None
        self.client: Any = None
        try:
            if not address:
                self._own = _start_cluster(self.distributed, len(working), str(self.folder))
                # Dask ends its cluster when the process exits, and would report each task that is lost by that. Of
                # functions for the exit, the last to be registered runs first.
                self._at_exit = partial(_close_at_exit, os.getpid(), weakref.ref(self))
                atexit.register(self._at_exit)
            if address:
                is_insecure = bool(runtime["insecure"])
                self.client = connected(self.distributed, str(address), insecure=is_insecure, seconds=self._silence)
            else:
                self.client = self.distributed.Client(self._own, set_as_default=False, timeout=self._silence)
            self.workers = self._assigned(working, workers if isinstance(workers, tuple) else ())
            if address:
                self._check_versions()
            self.packs = self._call(lambda: {machine: self._packed(machine) for machine in self.workers})
        except OSError as error:
            self.close()
            problem = f"no Dask scheduler answers at {address!r}" if address else "a cluster of Dask cannot be started"
            raise RunError(f"{problem}: {error}") from error
        except BaseException:
            self.close()
            raise

    def begin(self, inputs: Sequence[Any], *, is_recorded: bool) -> _Run:
        """Submit all tasks of a run.

        Args:
            inputs: the program's inputs, in order.
            is_recorded: whether `finish` is called with a `record`.

        Returns:
            The submitted run.
        """
        writer = _Writer(self, self._runs, is_recorded)
        self._runs += 1
        self._call(lambda: writer.write(inputs))
        return writer.run

    def finish(self, run: _Run, record: Record | None = None) -> list[Any]:
        """Wait for the tasks of a run.

        Args:
            run: what `begin` returned.
            record: called with each leaf call and copy, task by task.

        Returns:
            The program's results, in order.

        Raises:
            RunError: a task failed, or a worker is gone or stopped; the message names the machine.
        """
        waiting = set(run.tasks)
        while waiting:
            with suppress(self.distributed.TimeoutError, self.distributed.CancelledError), self.client.as_current():
                self.distributed.wait(waiting, timeout=POLL, return_when="FIRST_COMPLETED")
            # In the order of the program: what reads the result of a task that failed fails with its error.
            for task in [task for task in run.tasks if task in waiting and task.done()]:
                waiting.discard(task)
                if task.status != "finished":
                    self._failed(run.tasks[task], task)
            if waiting:
                self._check_workers()
        if record is not None:
            for event in (event for events in self._call(lambda: self.client.gather(run.events)) for event in events):
                record(event)
        return list(self._call(lambda: self.client.gather(run.results)))

    def close(self) -> None:
        """Drop all tasks, and end workers that were started here."""
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
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
        self._check_workers()
        error = task.exception() if task.status == "error" else None
        problems = error.problems if isinstance(error, TvmTargetError) else (f"{error or 'Dask gave its tasks up'}",)
        raise RunError(*(f"{problem} (on machine {machine!r})" for problem in problems)) from error

    def _check_workers(self) -> None:
        there = self._workers_by_address()
        now = time.monotonic()
        processes = self._processes()
        for machine, worker in self.workers.items():
            if worker not in there:
                raise RunError(f"machine {machine!r} is gone: Dask lost its worker {worker}; the next run begins anew")
            # A worker of our own that holds Python's lock for long sends no heartbeats, but is not stopped.
            beat = there[worker]["last_seen"] if worker not in processes else is_stopped(processes[worker]) or now
            if beat != self._heartbeats.get(worker, (None, now))[0]:
                self._heartbeats[worker] = (beat, now)
            elif now - self._heartbeats[worker][1] >= self._silence:
                raise RunError(
                    f"machine {machine!r} is stopped: its Dask worker {worker} has given no sign of life for "
                    f"{self._silence} s; the next run begins anew; {_VARIABLE} raises the limit"
                )

    def _workers_by_address(self) -> Mapping[str, Mapping[str, object]]:
        """Return the scheduler's workers; `RunError` if it is gone or silent."""
        # The client's own description of the scheduler sometimes has no workers, see `_named`.
        identity = self.client.scheduler.identity
        began = time.monotonic()
        answer = _in_thread(lambda: self.client.sync(identity, n_workers=-1, callback_timeout=self._silence))
        while not wait([answer], POLL).done and self.client.status == "running":
            pass
        # The client connects anew for as long as Dask's own limit allows, but its tasks are lost at once.
        if self.client.status != "running":
            raise RunError(f"{self._scheduler} is gone; the next run begins anew")
        try:
            facts = answer.result()
        except (OSError, self.distributed.TimeoutError) as error:
            if time.monotonic() - began < self._silence:  # its connection is closed, which the client does not know yet
                raise RunError(f"{self._scheduler} is gone; the next run begins anew") from error
            raise RunError(
                f"{self._scheduler} has been silent for {self._silence} s ({_VARIABLE}); the next run begins anew"
            ) from error
        workers: Mapping[str, Mapping[str, object]] = facts["workers"]
        return workers

    def _processes(self) -> dict[str, int]:
        """Return the process numbers of workers that were started here, by address."""
        nannies = self._own.workers.values() if self._own is not None else ()
        return {nanny.worker_address: nanny.pid for nanny in nannies if nanny.pid is not None}

    def _call(self, call: Callable[[], _R]) -> _R:
        """Return what a call of Dask returns; `RunError` if the scheduler or a worker is lost meanwhile."""
        done = _in_thread(call)
        while not wait([done], POLL).done:
            self._check_workers()
        try:
            return done.result()
        except TvmTargetError:
            raise
        except Exception as error:
            self._check_workers()
            raise RunError(f"Dask failed: {type(error).__name__}: {error}") from error

    def _assigned(self, machines: Sequence[str], requested: Sequence[object]) -> dict[str, str]:
        """Return the address of the worker of each machine: the requested ones, else in the order of their names.

        Requested ones are those of the given machines, or of all machines of the target.
        """
        with suppress(self.distributed.TimeoutError):
            self.client.wait_for_workers(len(machines), timeout=limit("start-seconds"))
        names = _named(self.client)
        found = {name: address for address, name in names.items()} | {address: address for address in names}
        whole = self.cluster.machines
        if len(requested) == len(whole):
            requested = [name for machine, name in zip(whole, requested, strict=True) if machine in machines]
        chosen = [str(name) for name in requested] or sorted(names.values(), key=lambda name: (len(name), name))
        problems = [f"Dask has no worker {name!r}{did_you_mean(name, found)}" for name in chosen if name not in found]
        if len(chosen) < len(machines) or len(requested) > len(machines):
            problems.append(f"{len(machines)} machines ({', '.join(machines)}) need a worker each, not {len(chosen)}")
        raise_all(RunError, problems)
        return {machine: found[name] for machine, name in zip(machines, chosen, strict=False)}

    def _check_versions(self) -> None:
        """Raise `RunError` for workers without this version of the library, which reads programs in its own way."""
        # Dask pickles a lambda by value, so that workers without the library, or an older one, answer as well.
        versions = self._call(
            lambda: self.client.run(
                lambda: import_module("tvmtarget.version").__version__,
                workers=list(self.workers.values()),
                on_error="return",
            )
        )
        problems = []
        for machine, worker in self.workers.items():
            found = versions[worker]
            if isinstance(found, Exception):
                problems.append(f"the worker {worker} of machine {machine!r} has no tvmtarget: {first_line(found)}")
            elif found != __version__:
                problem = f"has tvmtarget {found}, and this process {__version__}; install one version"
                problems.append(f"the worker {worker} of machine {machine!r} {problem}")
        raise_all(RunError, problems)

    def _packed(self, machine: str) -> Any:  # noqa: ANN401
        """Send the program of a machine to its worker; return the future."""
        pack = self.cluster.pack(self.cluster.workers[machine])
        packed = _Pack(hashlib.sha256(pack).hexdigest(), pack, self.cluster.open)
        return self.client.scatter(packed, workers=[self.workers[machine]], hash=False)


class _Writer:
    """Writes the programs of all machines as the tasks of one run."""

    def __init__(self, group: DaskWorkerGroup, number: int, is_recorded: bool) -> None:
        self.group = group
        self.number = number
        self.is_recorded = is_recorded
        self.run = _Run()
        self.values: dict[str, dict[str, Any]] = {machine: {} for machine in group.segments}
        self.before: dict[str, tuple[Any, ...]] = dict.fromkeys(group.segments, ())
        self.sent: dict[int, Any] = {}

    def write(self, inputs: Sequence[Any]) -> None:
        """Walk all programs together, each up to the next value that has not been sent."""
        home = self.group.cluster.home
        program = self.group.cluster.programs[home]
        entry = program.drivers.get(program.entry)
        params = entry.params if entry is not None else tuple(value.name for value in program.inputs)
        self.values[home] = {name: self._at(home, value) for name, value in zip(params, inputs, strict=True)}
        waiting = {machine: deque(segments) for machine, segments in self.group.segments.items()}
        while any(waiting.values()):
            for machine, segments in waiting.items():
                while segments and self._is_ready(segments[0]):
                    self._add(machine, segments.popleft())
        results = entry.results if entry is not None else tuple(value.name for value in program.outputs)
        self.run.results = [self.values[home][name] for name in results]

    def _is_ready(self, segment: Segment) -> bool:
        return isinstance(segment, Driver) or segment.to is not None or segment.order in self.sent

    def _add(self, machine: str, segment: Segment) -> None:
        values = self.values[machine]
        if isinstance(segment, Driver):
            self._add_driver(machine, segment)
        elif segment.order is not None and segment.to is not None:
            self.sent[segment.order] = values[segment.inputs[0]] if segment.inputs else self._token(machine)
        elif segment.order is not None and segment.outputs:
            values[segment.outputs[0]] = self._at(machine, self.sent[segment.order])
        elif segment.order is not None:
            self.before[machine] = (*self.before[machine], self.sent[segment.order])

    def _add_driver(self, machine: str, driver: Driver) -> None:
        inputs = [self.values[machine][name] for name in driver.params]
        replica = self.group.cluster.worker(machine, self.number)
        pack = self.group.packs[replica]
        task = self._submit(machine, _run_segment, pack, driver, self.is_recorded, inputs, self.before[machine])
        self.run.tasks[task] = replica
        self.before[machine] = (self._submit(machine, _after, task),)
        for place, name in enumerate(driver.results):
            self.values[machine][name] = self._submit(machine, itemgetter(place), task)
        if self.is_recorded:
            self.run.events.append(self._submit(machine, itemgetter(-1), task))

    def _token(self, machine: str) -> Any:  # noqa: ANN401
        """Return a future that is ready once a machine has finished all tasks so far."""
        return self.before[machine][-1] if self.before[machine] else None

    def _at(self, machine: str, value: Any) -> Any:  # noqa: ANN401
        """Move a value of the calling process to the worker of a machine; Dask moves values of workers."""
        replica = self.group.cluster.worker(machine, self.number)
        is_with_caller = replica not in self.group.workers
        if is_with_caller or isinstance(value, self.group.distributed.Future):
            return value
        return self.group.client.scatter(value, workers=[self.group.workers[replica]], hash=False)

    def _submit(self, machine: str, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        workers = [self.group.workers[self.group.cluster.worker(machine, self.number)]]
        return self.group.client.submit(function, *arguments, workers=workers, pure=False, retries=0)


@dataclass(frozen=True)
class _Pack:
    """The packed program of a machine, and how to open it; a worker opens each digest once."""

    digest: str
    data: bytes
    open: OpenMachine


_OPENED: dict[str, RunProgram] = {}  # in a worker: what was opened there, the last few of them
MAX_OPENED = 4
_LOCK = threading.Lock()  # a machine does one thing at a time


def _run_segment(
    pack: _Pack, driver: Driver, is_recorded: bool, inputs: Sequence[Any], _before: Sequence[Any]
) -> tuple[Any, ...]:
    """Run a segment of a machine's program on its worker; the last result are the recorded events."""
    events: list[Event] = []
    with _LOCK:
        if pack.digest not in _OPENED:
            for digest in list(_OPENED)[: 1 - MAX_OPENED]:
                del _OPENED[digest]
            _OPENED[pack.digest] = pack.open(pack.data)
        results = _OPENED[pack.digest](inputs, events.append if is_recorded else None, entry=driver)
    return (*results, tuple(events))


def _after(_task: object) -> None:
    """Depend on a task without moving its results."""


# Workers have no memory limit. Dask runs any code that a client sends, so that connections need the key of this cluster
# and come from this machine only. Without an explicit address the HTTP server of the scheduler would listen on port
# 8787 of all interfaces; it cannot be switched off, but serves no pages.
_LOCAL = {
    "threads_per_worker": 1,
    "processes": True,
    "memory_limit": 0,
    "host": LOCALHOST,
    "protocol": "tls://",
    "dashboard_address": f"{LOCALHOST}:0",
    "scheduler_kwargs": {"dashboard": False},
    "preload": [__name__],
}
_CONFIG: dict[str, object] = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.nanny.pre-spawn-environ.PYTHONSAFEPATH": 1,  # of workers that are started again
    "distributed.diagnostics.nvml": False,
}


def dask_setup(worker: object) -> None:
    """Let a worker that is started here log nothing; Dask calls this in modules of `preload`.

    What fails is raised by the run. The worker would log each task that failed, too, and a traceback for a heartbeat
    that has no answer yet when it closes its connections to end.

    Args:
        worker: the worker.
    """
    del worker
    logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)


def connected(distributed: Any, address: str, *, insecure: bool, seconds: float) -> Any:  # noqa: ANN401
    """Return a client of a scheduler that another process started.

    Dask unpickles what it receives, on both sides: any client of a cluster can run code on it, and its
    scheduler and workers can run code here. `tls://` admits only holders of a certificate of the authority in the
    user's configuration of Dask (`distributed.comm.tls`).

    Args:
        distributed: the module `distributed`.
        address: address of the scheduler, such as `tls://host:8786`.
        insecure: whether an address without TLS is allowed.
        seconds: limit for connecting.

    Returns:
        A `distributed.Client`.

    Raises:
        RunError: the address is none, or has no TLS, and `insecure` does not allow that; or there are no certificates.
        OSError: no scheduler answers.
    """
    if not _ADDRESS.fullmatch(address):
        raise RunError(f"{address!r} is no address of a Dask scheduler, such as 'tls://10.0.0.1:8786'")
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
    try:
        return _client(distributed, address, options)
    except (TypeError, ValueError) as error:  # a protocol that is not known, or not installed
        raise RunError(f"the Dask scheduler {address!r} cannot be reached: {first_line(error)}") from error


def _client(distributed: Any, address: str, options: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return a client within a time limit: Dask's own limit does not cover a server that accepts and stays silent."""
    client = _in_thread(lambda: distributed.Client(address, **options))
    if not wait([client], options["timeout"] + GRACE).done:
        client.add_done_callback(lambda late: None if late.exception() else late.result().close())
        raise TimeoutError(f"it sent nothing for {options['timeout']} s")
    return client.result()


_used_by: int | None = None  # the process that first started a client of Dask


def _reject_fork() -> None:
    """Raise `RunError` in a fork of a process that used Dask, where any call of it would wait forever."""
    global _used_by
    if _used_by is not None and _used_by != os.getpid():
        raise RunError(fork_problem("Dask ran", _used_by))
    _used_by = os.getpid()


def _in_thread(call: Callable[[], _R]) -> Future[_R]:
    """Call a function in a daemon thread."""
    done: Future[_R] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return done


def _start_cluster(distributed: Any, workers: int, folder: str) -> Any:  # noqa: ANN401
    """Start a cluster on this machine, with a key that only this process and its workers have."""
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
    """Keep child processes from importing from the current folder; restore the environment afterwards.

    Dask starts Python by `multiprocessing`, with `-c`, before it sets the variables of its own configuration.
    """
    before = dict(os.environ)
    os.environ.update(python_environment())
    try:
        yield
    finally:
        # Dask sets variables too. Other threads may read the environment, so that it is never empty.
        for name in os.environ.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update(before)


def _named(client: Any) -> dict[str, str]:  # noqa: ANN401
    """Return the names of all workers by address.

    A client caches its scheduler's description, and every two seconds replaces it by one without workers; the call is
    repeated then.
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
        """Return an engine that connects to the scheduler at its first run.

        Args:
            settings: the runtime node with its attributes.
            cluster: the programs of the machines.

        Returns:
            The engine.

        Raises:
            BackendError: an attribute would be ignored.
        """
        if settings["insecure"] and not settings["address"]:
            raise BackendError(
                "runtime attribute 'insecure' would be ignored: without an address, workers are started on this "
                "computer; state the address of a scheduler, or remove it (--unset runtime/insecure)"
            )
        return WorkerEngine(lambda: DaskWorkerGroup(settings, cluster))


RUNTIME = DaskRuntime()
