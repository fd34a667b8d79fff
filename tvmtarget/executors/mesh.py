"""How machines reach each other: a door that each of them opens, and mailboxes that threads fill."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from tvmtarget.errors import RunError
from tvmtarget.executors.wire import Message, receive, send

__all__ = ["Door", "LostError", "Mesh", "dial"]

LOCALHOST = "127.0.0.1"
BACKLOG = 128


class LostError(RunError):
    """A machine that others wait for is gone."""

    def __init__(self, machine: str) -> None:
        super().__init__(f"machine {machine!r} is gone")
        self.machine = machine


def dial(address: str, key: bytes, hello: Message) -> Connection:
    """Connect to a door at `host:port` and say who calls."""
    host, _, port = address.rpartition(":")
    connection = Client((host, int(port)), authkey=key)
    send(connection, hello)
    return connection


class Door:
    """Takes calls in a thread, from those that know the key only, until it is closed."""

    def __init__(self, key: bytes, welcome: Callable[[Message, Connection], None]) -> None:
        self._listener = Listener((LOCALHOST, 0), backlog=BACKLOG, authkey=key)
        self._welcome = welcome
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where the door is: `host:port`."""
        host, port = self._listener.address
        return f"{host}:{port}"

    def close(self) -> None:
        """Take no more calls."""
        self._is_closed = True
        host, _, port = self.address.rpartition(":")
        socket.create_connection((host, int(port))).close()  # a call wakes the thread, closing the door would not
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection = self._listener.accept()
                hello, _ = receive(connection)
            except (AuthenticationError, EOFError, OSError):
                continue  # a stranger, or the call that wakes this thread
            self._welcome(hello, connection)


class Mesh:
    """The connections of one machine, one in each direction in which its program sends.

    What comes is read at once, by a thread for each sender, so that a sender waits only for the network.
    """

    def __init__(self, machine: str, key: bytes) -> None:
        self._machine = machine
        self._key = key
        self._sinks: dict[str, Connection] = {}
        self._sending: dict[str, threading.Lock] = {}
        self._changed = threading.Condition()
        self._arrived: dict[tuple[str, int, int], list[Any]] = {}
        self._gone: set[str] = set()
        self._door = Door(key, self._welcome)
        self.address = self._door.address

    def connect(self, addresses: Mapping[str, str]) -> None:
        """Call the machines that this one sends to."""
        for machine, address in addresses.items():
            try:
                self._sinks[machine] = dial(address, self._key, {"machine": self._machine})
            except (AuthenticationError, EOFError, OSError) as error:
                raise LostError(machine) from error
            self._sending[machine] = threading.Lock()

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

    def _welcome(self, hello: Message, connection: Connection) -> None:
        threading.Thread(target=self._read, args=(hello["machine"], connection), daemon=True).start()

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
