"""The process of one machine, for the runtime `processes`: `python -m tvmtarget.runtimes.worker DESCRIPTOR`.

The descriptor is that of a socket to the supervisor, which also passes the connections to other machines, so that no
port is opened. The process ends when its supervisor does, and when a machine that it waits for is gone; machines that
wait for this one then notice.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, NoReturn

from tvmtarget import plugins
from tvmtarget.errors import RunError, TvmTargetError
from tvmtarget.executors.protocol import Event, RunProgram
from tvmtarget.python_process import end_with_parent
from tvmtarget.runtimes.messages import Message, receive, send
from tvmtarget.runtimes.protocol import by_turns

__all__ = ["main"]

MAX_RUNS = 16  # in progress at once in one machine; most of them wait for other machines


class _LostError(RunError):
    """A machine that others wait for is gone."""

    def __init__(self, machine: str) -> None:
        super().__init__(f"machine {machine!r} is gone")
        self.machine = machine


class _PeerNetwork:
    """Connections to other machines, one for each direction in which the program sends.

    A thread for each sender reads all messages at once, so that a sender waits only for the connection.

    Args:
        fail: reports an error, and ends this process.
    """

    def __init__(self, fail: Callable[[BaseException], NoReturn]) -> None:
        self._fail = fail
        self.replicas: dict[str, list[str]] = {}  # the machines that run each program by turns
        self._sinks: dict[str, Connection] = {}
        self._sending: dict[str, threading.Lock] = {}
        self._changed = threading.Condition()
        self._arrived: dict[tuple[str, int, int], list[Any]] = {}
        self._gone: set[str] = set()

    def add_sink(self, machine: str, connection: Connection) -> None:
        """Send to a machine by a connection."""
        self._sinks[machine] = connection
        self._sending[machine] = threading.Lock()

    def add_source(self, machine: str, connection: Connection) -> None:
        """Receive from a machine by a connection."""
        threading.Thread(target=self._read, args=(machine, connection), daemon=True).start()

    def send(self, to: str, run: int, order: int, values: Sequence[Any]) -> None:
        """Send the values of a transfer; `_LostError` if the machine is gone."""
        to = by_turns(self.replicas[to], run)
        try:
            with self._sending[to]:
                send(self._sinks[to], {"run": run, "order": order}, values)
        except OSError as error:
            raise _LostError(to) from error

    def receive(self, from_: str, run: int, order: int) -> list[Any]:
        """Wait for the values of a transfer; `_LostError` if the machine is gone."""
        from_ = by_turns(self.replicas[from_], run)
        key = (from_, run, order)
        with self._changed:
            self._changed.wait_for(lambda: key in self._arrived or from_ in self._gone)
            if key not in self._arrived:
                raise _LostError(from_)
            return self._arrived.pop(key)

    def _read(self, machine: str, connection: Connection) -> None:
        try:
            while True:
                message, values = receive(connection)
                with self._changed:
                    self._arrived[machine, message["run"], message["order"]] = values
                    self._changed.notify_all()
        except (EOFError, OSError):
            with self._changed:
                self._gone.add(machine)
                self._changed.notify_all()
        except BaseException as error:  # as for lack of memory: runs would wait for the message forever
            self._fail(error)


class _Machine:
    """Serves the requests of the supervisor; one step of one run is executed at a time."""

    def __init__(self, control: Connection) -> None:
        self.control = control
        self.network = _PeerNetwork(self._fail)
        self.busy = threading.Lock()
        self.reporting = threading.Lock()

    def serve(self) -> None:
        """Open the program of the first message, then run it for each further one, until the supervisor is gone.

        This thread only reads, so that it notices the end of the supervisor during long computations.
        """
        with ThreadPoolExecutor(MAX_RUNS) as pool:
            try:
                self._report({"started": True})
                job, values = receive(self.control)
                self.network.replicas = job["replicas"]
                for _ in range(job["connections"]):
                    other, _ = receive(self.control)
                    connection = Connection(recv_handle(self.control))
                    if "sink" in other:
                        self.network.add_sink(other["sink"], connection)
                    else:
                        self.network.add_source(other["source"], connection)
                opening = pool.submit(self._open, job, values[0].tobytes())
                while True:
                    request, inputs = receive(self.control)
                    pool.submit(self._run, opening.result(), request, inputs)
            except (EOFError, OSError):
                os._exit(0)
            except BaseException as error:  # as for lack of memory
                self._fail(error)

    def _open(self, job: Message, packed: bytes) -> RunProgram:
        try:
            sys.argv[:] = job["argv"]
            for module in job["modules"]:
                plugins.import_registering(module)
            program: RunProgram = pkgutil.resolve_name(job["open"])(packed)
            self._report({"opened": True})
        except BaseException as error:  # the supervisor waits
            self._fail(error)
            raise
        return program

    def _run(self, program: RunProgram, request: Message, inputs: Sequence[Any]) -> None:
        events: list[Event] = []
        transfers = _Run(self.network, request["run"], self.busy)
        try:
            with self.busy:
                results = program(inputs, events.append if request["record"] else None, transfers)
            self._report({"run": request["run"], "events": [_event_data(event) for event in events]}, results)
        except _LostError as error:
            self._fail(error)
        except BaseException as error:  # of any type, because others wait for this machine
            self._report({"failed": _problems(error), "lost": None, "run": request["run"]})

    def _report(self, message: Message, values: Sequence[Any] = ()) -> None:
        with self.reporting:
            send(self.control, message, values)

    def _fail(self, error: BaseException) -> NoReturn:
        """Report a failure, and end this process and with it its connections."""
        lost = error.machine if isinstance(error, _LostError) else None
        try:
            self._report({"failed": _problems(error), "lost": lost, "run": None})
        finally:
            os._exit(1)


class _Run:
    """The transfers of one run; while it waits for values, another run may compute."""

    def __init__(self, network: _PeerNetwork, run: int, busy: threading.Lock) -> None:
        self.network = network
        self.run = run
        self.busy = busy

    def send(self, to: str, order: int, values: Sequence[Any]) -> None:
        """Send values to a machine."""
        self.network.send(to, self.run, order, values)

    def receive(self, from_: str, order: int) -> Sequence[Any]:
        """Wait for values."""
        self.busy.release()
        try:
            return self.network.receive(from_, self.run, order)
        finally:
            self.busy.acquire()


def _problems(error: BaseException) -> list[str]:
    if isinstance(error, MemoryError):
        return [f"the memory does not suffice: {error}".removesuffix(": ")]
    return list(error.problems) if isinstance(error, TvmTargetError) else [f"{type(error).__name__}: {error}"]


def _event_data(event: Event) -> Message:
    return {"kind": type(event).__name__, **asdict(event)}


def main(descriptor: str) -> None:
    """Serve one machine until the supervisor is gone.

    Args:
        descriptor: number of the inherited socket to the supervisor.
    """
    end_with_parent()
    _Machine(Connection(int(descriptor))).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
