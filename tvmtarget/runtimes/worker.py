"""One machine of a cluster in a process of its own: `python -m tvmtarget.runtimes.worker DESCRIPTOR`.

The descriptor is that of a socket to the supervisor, through which those to other machines come: nothing listens that
anybody else could connect to. The process ends when its supervisor does, and when a machine that it waits for is gone:
those that wait for it then know.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

from tvmtarget.errors import TvmTargetError
from tvmtarget.executors.protocol import Event, RunProgram
from tvmtarget.python_process import end_with_parent
from tvmtarget.runtimes.messages import Message, receive, send
from tvmtarget.runtimes.peer_network import LostError, PeerNetwork

__all__ = ["main"]

AT_A_TIME = 16  # runs that are in this machine at a time, most of them waiting for others


class _Machine:
    """Does what the supervisor asks for, one step of one run at a time."""

    def __init__(self, control: Connection) -> None:
        self.control = control
        self.mesh = PeerNetwork()
        self.busy = threading.Lock()
        self.reporting = threading.Lock()

    def serve(self) -> None:
        """Open the program that comes first, then run it as often as requested; return when the supervisor is gone.

        This thread only reads, so that it sees the end of the supervisor whatever is computed.
        """
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            try:
                self._report({"started": True})
                job, values = receive(self.control)
                for _ in range(job["connections"]):
                    other, _ = receive(self.control)
                    connection = Connection(recv_handle(self.control))
                    if "sink" in other:
                        self.mesh.add_sink(other["sink"], connection)
                    else:
                        self.mesh.add_source(other["source"], connection)
                opening = pool.submit(self._open, job["open"], values[0].tobytes())
                while True:
                    asked, inputs = receive(self.control)
                    pool.submit(self._run, opening.result(), asked, inputs)
            except (EOFError, OSError):
                os._exit(0)

    def _open(self, opener: str, packed: bytes) -> RunProgram:
        try:
            program: RunProgram = pkgutil.resolve_name(opener)(packed)
            self._report({"opened": True})
        except BaseException as error:  # the supervisor waits
            self._fail(error)
            raise
        return program

    def _run(self, program: RunProgram, asked: Message, inputs: Sequence[Any]) -> None:
        events: list[Event] = []
        transfers = _Run(self.mesh, asked["run"], self.busy)
        try:
            with self.busy:
                results = program(inputs, events.append if asked["record"] else None, transfers)
            self._report({"run": asked["run"], "events": [_written(event) for event in events]}, results)
        except LostError as error:
            self._fail(error)
        except BaseException as error:  # whatever it is, others wait for this machine
            self._report({"failed": _problems(error), "lost": None, "run": asked["run"]})

    def _report(self, message: Message, values: Sequence[Any] = ()) -> None:
        with self.reporting:
            send(self.control, message, values)

    def _fail(self, error: BaseException) -> None:
        """Tell why, and end this process, and so its connections."""
        lost = error.machine if isinstance(error, LostError) else None
        try:
            self._report({"failed": _problems(error), "lost": lost, "run": None})
        finally:
            os._exit(1)


class _Run:
    """The transfers of one run; others may go on in this machine while it waits."""

    def __init__(self, mesh: PeerNetwork, run: int, busy: threading.Lock) -> None:
        self.mesh = mesh
        self.run = run
        self.busy = busy

    def send(self, to: str, order: int, values: Sequence[Any]) -> None:
        """Send values to a machine."""
        self.mesh.send(to, self.run, order, values)

    def receive(self, from_: str, order: int) -> Sequence[Any]:
        """Wait for values."""
        self.busy.release()
        try:
            return self.mesh.receive(from_, self.run, order)
        finally:
            self.busy.acquire()


def _problems(error: BaseException) -> list[str]:
    return list(error.problems) if isinstance(error, TvmTargetError) else [f"{type(error).__name__}: {error}"]


def _written(event: Event) -> Message:
    return {"kind": type(event).__name__, **asdict(event)}


def main(descriptor: str) -> None:
    """Serve one machine until the supervisor is gone."""
    end_with_parent()
    _Machine(Connection(int(descriptor))).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
