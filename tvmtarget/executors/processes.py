"""The runtime `processes`: a process of this computer for each machine, with connections between them."""

from __future__ import annotations

import os
import queue
import secrets
import signal
import subprocess
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import numpy as np

from tvmtarget.errors import RunError
from tvmtarget.executors.cluster import Cluster, Record
from tvmtarget.executors.graph import CallEvent, CopyEvent, Event
from tvmtarget.executors.mesh import Door
from tvmtarget.executors.wire import Message, receive, send
from tvmtarget.executors.worker import KEY_BYTES
from tvmtarget.python_process import python_command, python_environment, without_current_folder

__all__ = ["ProcessCrew"]

POLL = 0.1  # seconds between looks at processes that have not called yet
GRACE = 2.0  # seconds in which a process that lost its connections has ended


@dataclass
class _Progress:
    """A run that is not done: which machines have yet to report, what came back so far, and what failed."""

    waiting: set[str]
    results: list[Any] = field(default_factory=list)
    events: dict[str, list[Message]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class ProcessCrew:
    """The processes of one start, and a connection to each of them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._controls: dict[str, Connection] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._runs = 0
        self._open: dict[int, _Progress] = {}
        self.close = weakref.finalize(self, _end, self._processes, self._controls)
        key = secrets.token_bytes(KEY_BYTES)
        calls: queue.Queue[tuple[Message, Connection]] = queue.Queue()
        door = Door(key, lambda hello, connection: calls.put((hello, connection)))
        try:
            for machine in cluster.programs:
                self._processes[machine] = _started(machine, door.address, key)
            addresses = self._gathered(calls)
            self._prepare(addresses)
        except BaseException:
            self.close()
            raise
        finally:
            door.close()

    def begin(self, inputs: Sequence[Any], *, is_recorded: bool) -> int:
        """Begin a run; returns its number."""
        run = self._runs
        self._runs += 1
        self._open[run] = _Progress(set(self._controls))
        for machine in self._controls:
            message = {"run": run, "record": is_recorded}
            self._tell(machine, message, inputs if machine == self._cluster.home else ())
        return run

    def finish(self, run: int, record: Record | None = None) -> list[Any]:
        """Wait until all machines are done with a run; return its results."""
        while self._open[run].waiting and not self._open[run].problems:
            self._hear()
        progress = self._open.pop(run)
        if progress.problems:
            raise RunError(*progress.problems)
        if record is not None:
            for machine in self._controls:
                for event in progress.events[machine]:
                    record(_read_event(event))
        return progress.results

    def _gathered(self, calls: queue.Queue[tuple[Message, Connection]]) -> dict[str, str]:
        """Wait until all processes have called; return where each of them takes calls of the others."""
        addresses: dict[str, str] = {}
        while len(addresses) < len(self._processes):
            try:
                hello, connection = calls.get(timeout=POLL)
            except queue.Empty:
                for machine, process in self._processes.items():
                    if machine not in addresses and process.poll() is not None:
                        self._died(machine)
                continue
            self._controls[hello["machine"]] = connection
            addresses[hello["machine"]] = hello["address"]
        return addresses

    def _prepare(self, addresses: Mapping[str, str]) -> None:
        """Have every machine open its program and call those that it sends to."""
        opener = self._cluster.open
        for machine in self._cluster.programs:
            job = {
                "open": f"{opener.__module__}:{opener.__qualname__}",
                "sinks": {sink: addresses[sink] for sink in self._cluster.sinks(machine)},
            }
            self._tell(machine, job, [np.frombuffer(self._cluster.pack(machine), np.uint8)])
        opened: set[str] = set()
        while len(opened) < len(self._processes):
            opened |= {machine for machine, _, _ in self._messages()}

    def _hear(self) -> None:
        for machine, message, values in self._messages():
            progress = self._open[message["run"]]
            if "failed" in message:
                progress.problems += _placed(machine, message)
                continue
            progress.waiting.discard(machine)
            progress.events[machine] = message["events"]
            if machine == self._cluster.home:
                progress.results = values

    def _messages(self) -> Iterator[tuple[str, Message, list[Any]]]:
        """Wait for messages; `RunError` if one says that a machine has failed, or if one is gone."""
        machines = {id(connection): machine for machine, connection in self._controls.items()}
        for connection in wait(list(self._controls.values())):
            machine = machines[id(connection)]
            try:
                message, values = receive(self._controls[machine])
            except (EOFError, OSError):
                self._died(machine)
            if "failed" in message and message["run"] is None:
                self._failed(machine, message)
            yield machine, message, values

    def _tell(self, machine: str, message: Message, values: Sequence[Any]) -> None:
        try:
            send(self._controls[machine], message, values)
        except OSError:
            self._died(machine)

    def _failed(self, machine: str, message: Message) -> NoReturn:
        if message["lost"] is not None:
            self._died(message["lost"])
        raise RunError(*_placed(machine, message))

    def _died(self, machine: str) -> NoReturn:
        """Say of what a machine died; if it ended because of another one, what became of that."""
        with suppress(EOFError, OSError, KeyError):
            control = self._controls[machine]
            while control.poll():
                message, _ = receive(control)
                if "failed" in message and message["run"] is None:
                    self._failed(machine, message)
        process = self._processes[machine]
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        code = process.returncode
        if code is None:
            how = "closed its connections"
        elif code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"ended with code {code}"
        raise RunError(f"machine {machine!r} {how}; the other machines were stopped, the next run starts anew")


def _placed(machine: str, message: Message) -> list[str]:
    return [f"{problem} (on machine {machine!r})" for problem in message["failed"]]


def _started(machine: str, address: str, key: bytes) -> subprocess.Popen[bytes]:
    """Start a process that finds the modules which this one finds, and that the user's interrupt does not reach."""
    path = os.pathsep.join(os.path.abspath(folder) for folder in without_current_folder())
    process = subprocess.Popen(
        python_command("-m", "tvmtarget.executors.worker", machine, address),
        stdin=subprocess.PIPE,
        env=python_environment(PYTHONPATH=path),
        start_new_session=True,
    )
    with suppress(OSError):  # one that has ended already is found when nobody calls
        assert process.stdin is not None
        process.stdin.write(key)
        process.stdin.close()
    return process


def _end(processes: Mapping[str, subprocess.Popen[bytes]], controls: Mapping[str, Connection]) -> None:
    for process in processes.values():
        process.kill()
    for connection in controls.values():
        connection.close()
    for process in processes.values():
        process.wait()


def _read_event(written: Message) -> Event:
    kinds: dict[str, type[CallEvent] | type[CopyEvent]] = {"CallEvent": CallEvent, "CopyEvent": CopyEvent}
    return kinds[written["kind"]](**{name: value for name, value in written.items() if name != "kind"})
