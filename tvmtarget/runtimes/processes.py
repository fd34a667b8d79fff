"""The runtime `processes`: a process of this computer for each machine, with connections between them.

It needs no further package, and a run of two small machines takes 1 ms where tasks of Dask take 35 ms
(`docs/machines.md`); Dask is for machines of several hosts.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any, NoReturn, TypeAlias

import numpy as np

from tvmtarget import plugins
from tvmtarget.errors import RunError
from tvmtarget.executors.protocol import CallEvent, CopyEvent, Event, Record
from tvmtarget.python_process import (
    ending_of,
    is_stopped,
    path_without_current_folder,
    python_command,
    python_environment,
)
from tvmtarget.runtimes.messages import Message, Packed, receive
from tvmtarget.runtimes.protocol import Cluster, ProgramRuntime, WorkerEngine
from tvmtarget.target.node import Runtime
from tvmtarget.untrusted import LIMITS, limit

__all__ = ["RUNTIME", "ProcessWorkerGroup", "ProcessesRuntime"]

POLL = 0.1  # seconds between looks at processes from which nothing comes
GRACE = 2.0  # seconds in which a process that lost its connections, or was killed, has ended


@dataclass(frozen=True)
class _Outgoing:
    """A message for a machine, with a connection to pass on; `is_sent` is set once it is sent or lost."""

    packed: Packed
    connection: Connection | None
    is_sent: threading.Event = field(default_factory=threading.Event)


_Outbox: TypeAlias = "queue.SimpleQueue[_Outgoing | None]"
_Arrived: TypeAlias = "queue.SimpleQueue[tuple[str, Message | None, list[Any]]]"


@dataclass
class _Progress:
    """A run in progress: machines that have not reported, results and events so far, and failures."""

    waiting: set[str]
    results: list[Any] = field(default_factory=list)
    events: dict[str, list[Message]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class ProcessWorkerGroup:
    """The processes of all machines, with a connection to each.

    Each direction of each connection has a thread, so that a process that stops in the middle of a message is noticed.

    Args:
        cluster: the programs of the machines.

    Raises:
        RunError: a process does not start, or a machine cannot open its program.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._outboxes: dict[str, _Outbox] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._arrived: _Arrived = queue.SimpleQueue()
        self._stopped_since: dict[str, float] = {}
        self._runs = 0
        # Results of a run whose handle was dropped, as when a stream was left, are dropped too.
        self._open: weakref.WeakValueDictionary[int, _Progress] = weakref.WeakValueDictionary()
        self._silence = limit("silence-seconds")
        self.close = weakref.finalize(self, _end, os.getpid(), self._processes, self._outboxes)
        try:
            if plugins.is_imported_by_worker():
                raise RunError(
                    "the main module runs processes while one of them imports it, for the plugins that it registers; "
                    "put that under if __name__ == '__main__'"
                )
            for machine in cluster.workers:
                self._start(machine)
            self._await_all("started", time.monotonic() + limit("start-seconds"))
            self._prepare()
            self._await_all("opened", None)
        except OSError as error:
            self.close()
            raise RunError(f"the processes of the machines cannot be started: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    def begin(self, inputs: Sequence[Any], *, is_recorded: bool) -> _Progress:
        """Begin a run.

        Args:
            inputs: the program's inputs, in order.
            is_recorded: whether `finish` is called with a `record`.

        Returns:
            The run.
        """
        run = self._runs
        self._runs += 1
        machines = [self._cluster.worker(machine, run) for machine in self._cluster.programs]
        self._open[run] = progress = _Progress(set(machines))
        for machine in machines:
            message = {"run": run, "record": is_recorded}
            self._send(machine, message, inputs if machine == self._cluster.home else ())
        return progress

    def finish(self, run: _Progress, record: Record | None = None) -> list[Any]:
        """Wait until all machines have finished a run.

        Args:
            run: what `begin` returned.
            record: called with each leaf call and copy, machine by machine.

        Returns:
            The program's results, in order.

        Raises:
            RunError: a machine failed, died or was stopped; the message names it.
        """
        while run.waiting and not run.problems:
            self._receive_report()
        if run.problems:
            raise RunError(*run.problems)
        if record is not None:
            for machine in self._processes:
                for event in run.events.get(machine, ()):
                    record(_read_event(event))
        return run.results

    def _start(self, machine: str) -> None:
        control, theirs = Pipe()
        with theirs:
            self._processes[machine] = process = _start_process(theirs.fileno())
        outbox: _Outbox = queue.SimpleQueue()
        self._outboxes[machine] = outbox
        threading.Thread(target=_read, args=(machine, control, self._arrived), daemon=True).start()
        threading.Thread(target=_write, args=(process.pid, control, outbox), daemon=True).start()

    def _await_all(self, key: str, deadline: float | None) -> None:
        """Wait for a message of each machine that has a key, until a deadline if there is one."""
        waiting = set(self._processes)
        while waiting:
            found = self._receive()
            if found is not None and key in found[1]:
                waiting.discard(found[0])
            if waiting and deadline is not None and time.monotonic() > deadline:
                machines = f"{'machine' if len(waiting) == 1 else 'machines'} {', '.join(map(repr, sorted(waiting)))}"
                raise RunError(
                    f"{machines} did not start within {limit('start-seconds')} s; "
                    f"{LIMITS['start-seconds'].variable} raises the limit"
                )

    def _prepare(self) -> None:
        """Send each machine its program, and a connection for each pair of machines that communicate."""
        cluster = self._cluster
        replicas = {machine: cluster.group(machine) for machine in cluster.programs}
        pairs = [
            pair
            for machine in cluster.programs
            for sink in cluster.sinks(machine)
            for pair in product(replicas[machine], replicas[sink])
        ]
        opener = f"{cluster.open.__module__}:{cluster.open.__qualname__}"
        for machine, group in replicas.items():
            packed = np.frombuffer(cluster.pack(machine), np.uint8)
            for replica in group:
                connections = sum(replica in pair for pair in pairs)
                job = {"open": opener, "connections": connections, "replicas": replicas}
                self._send(replica, job | {"modules": [*cluster.modules], "argv": sys.argv}, [packed])
        for source, sink in pairs:
            incoming, outgoing = Pipe(duplex=False)
            with incoming, outgoing:
                self._send(source, {"sink": sink}, connection=outgoing)
                self._send(sink, {"source": source}, connection=incoming)

    def _receive_report(self) -> None:
        found = self._receive()
        if found is None:
            return
        machine, message, values = found
        progress = self._open.get(message["run"])
        if progress is None:
            return
        if "failed" in message:
            progress.problems += _with_machine(machine, message)
            return
        progress.waiting.discard(machine)
        progress.events[machine] = message["events"]
        if machine == self._cluster.home:
            progress.results = values

    def _receive(self) -> tuple[str, Message, list[Any]] | None:
        """Wait briefly for a message; `RunError` if it reports a failure, or if a process is gone or stopped."""
        try:
            machine, message, values = self._arrived.get(timeout=POLL)
        except queue.Empty:
            self._check()
            return None
        if message is None:
            self._check()
            self._died(machine)
        if "failed" in message and message["run"] is None:
            self._failed(machine, message)
        return machine, message, values

    def _check(self) -> None:
        """Raise `RunError` if all are closed, or one is stopped (SIGSTOP) for too long; computing may take any time."""
        if not self.close.alive:
            raise RunError("the machines were stopped by close() while they ran; the next run starts anew")
        now = time.monotonic()
        for machine, process in self._processes.items():
            if not is_stopped(process.pid):
                self._stopped_since.pop(machine, None)
            elif now - self._stopped_since.setdefault(machine, now) >= self._silence:
                raise RunError(
                    f"machine {machine!r} has been stopped (SIGSTOP) for {self._silence} s; all machines were ended, "
                    f"the next run starts anew; {LIMITS['silence-seconds'].variable} raises the limit"
                )

    def _send(
        self, machine: str, message: Message, values: Sequence[Any] = (), connection: Connection | None = None
    ) -> None:
        """Send a message, and a connection that goes with it; what is sent to a dead process is lost."""
        outgoing = _Outgoing(Packed(message, values), connection)
        self._outboxes[machine].put(outgoing)
        while not outgoing.is_sent.wait(POLL):
            self._check()

    def _failed(self, machine: str, message: Message) -> NoReturn:
        lost = message["lost"]
        if lost is not None:
            # It may have ended by itself, as it lost another one, and the report on that is still to be received.
            if (report := self._last_report(lost)) is not None:
                self._failed(lost, report)
            self._died(lost)
        raise RunError(*_with_machine(machine, message))

    def _died(self, machine: str) -> NoReturn:
        """Raise `RunError` with the way in which a process ended."""
        process = self._processes[machine]
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        code = process.returncode
        how = "closed its connections" if code is None else ending_of(code)
        raise RunError(f"machine {machine!r} {how}; the other machines were stopped, the next run starts anew")

    def _last_report(self, machine: str) -> Message | None:
        """Return the report of a failure that ended a machine, if it waits to be received; drop what waits before."""
        with suppress(queue.Empty):
            while True:
                sender, message, _ = self._arrived.get(timeout=GRACE)
                if sender == machine and (message is None or "failed" in message):
                    return message
        return None


def _with_machine(machine: str, message: Message) -> list[str]:
    return [f"{problem} (on machine {machine!r})" for problem in message["failed"]]


def _start_process(descriptor: int) -> subprocess.Popen[bytes]:
    """Start a worker that imports the modules of this process, in a session of its own, out of reach of Ctrl-C."""
    path = os.pathsep.join(os.path.abspath(folder) for folder in path_without_current_folder())
    return subprocess.Popen(
        python_command("-m", "tvmtarget.runtimes.worker", str(descriptor)),
        stdin=subprocess.DEVNULL,
        env=python_environment(PYTHONPATH=path),
        pass_fds=[descriptor],
        start_new_session=True,
    )


def _read(machine: str, control: Connection, arrived: _Arrived) -> None:
    """Queue the messages of a machine; None marks the end of the connection, also within a message."""
    try:
        while True:
            arrived.put((machine, *receive(control)))
    except (EOFError, OSError):
        arrived.put((machine, None, []))
    except MemoryError:
        problem = "what came back needs more memory than the calling process has"
        arrived.put((machine, {"failed": [problem], "lost": None, "run": None}, []))


def _write(pid: int, control: Connection, outbox: _Outbox) -> None:
    """Send queued messages until None; what is sent to a dead process is lost, which its reader reports."""
    while (outgoing := outbox.get()) is not None:
        try:
            outgoing.packed.send(control)
            if outgoing.connection is not None:
                send_handle(control, outgoing.connection.fileno(), pid)
        except OSError:  # the reader sees it too
            pass
        finally:
            outgoing.is_sent.set()


def _end(owner: int, processes: Mapping[str, subprocess.Popen[bytes]], outboxes: Mapping[str, _Outbox]) -> None:
    """End all processes, unless this is a fork of the process that started them."""
    if os.getpid() != owner:
        return
    for process in processes.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    for outbox in outboxes.values():
        outbox.put(None)
    for process in processes.values():
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)


def _read_event(data: Message) -> Event:
    kinds: dict[str, type[CallEvent] | type[CopyEvent]] = {"CallEvent": CallEvent, "CopyEvent": CopyEvent}
    return kinds[data["kind"]](**{name: value for name, value in data.items() if name != "kind"})


class ProcessesRuntime(ProgramRuntime):
    """Runs each machine in a process of this computer; the kind has no attributes."""

    def engine(self, settings: Runtime, cluster: Cluster) -> WorkerEngine:
        """Return an engine that starts the processes at its first run.

        Args:
            settings: the runtime node; the kind has no attributes.
            cluster: the programs of the machines.

        Returns:
            The engine.
        """
        return WorkerEngine(lambda: ProcessWorkerGroup(cluster))


RUNTIME = ProcessesRuntime()
