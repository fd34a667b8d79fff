"""The connections between the machines of a cluster, and mailboxes that threads fill."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from tvmtarget.errors import RunError
from tvmtarget.runtimes.messages import receive, send

__all__ = ["LostError", "PeerNetwork"]


class LostError(RunError):
    """A machine that others wait for is gone."""

    def __init__(self, machine: str) -> None:
        super().__init__(f"machine {machine!r} is gone")
        self.machine = machine


class PeerNetwork:
    """The connections of one machine, one in each direction in which its program sends.

    What comes is read at once, by a thread for each sender, so that a sender waits only for the network.
    """

    def __init__(self) -> None:
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
        """Send the values of a transfer."""
        try:
            with self._sending[to]:
                send(self._sinks[to], {"run": run, "order": order}, values)
        except OSError as error:
            raise LostError(to) from error

    def receive(self, from_: str, run: int, order: int) -> list[Any]:
        """Wait for the values of a transfer; `LostError` if the machine is gone."""
        key = (from_, run, order)
        with self._changed:
            self._changed.wait_for(lambda: key in self._arrived or from_ in self._gone)
            if key not in self._arrived:
                raise LostError(from_)
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
