"""Values as messages: a head in JSON and the elements of tensors as they lie in memory. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.errors import RunError
from tvmtarget.ir.tensors import array_of_bytes, bytes_of
from tvmtarget.ir.types import TensorType, dtype_of

__all__ = ["Message", "Packed", "receive", "send"]

Message: TypeAlias = "dict[str, Any]"


class Packed:
    """A message, which is JSON data, and values: tensors, None, numbers, texts, lists and maps of these.

    Raises:
        RunError: a value is none of these.
    """

    def __init__(self, message: Message, values: Sequence[Any] = ()) -> None:
        self._buffers: list[memoryview] = []
        head = {"message": message, "values": [_described(value, self._buffers) for value in values]}
        self._head = json.dumps(head).encode()

    def send(self, connection: Connection) -> None:
        """Send everything; `OSError` when the other end is gone."""
        connection.send_bytes(self._head)
        for buffer in self._buffers:
            connection.send_bytes(buffer)


def send(connection: Connection, message: Message, values: Sequence[Any] = ()) -> None:
    """Send a message and values, see `Packed`."""
    Packed(message, values).send(connection)


def receive(connection: Connection) -> tuple[Message, list[Any]]:
    """Wait for a message and its values; `EOFError` or `OSError` when the other end is gone."""
    head = json.loads(connection.recv_bytes())
    return head["message"], [_value(described, connection.recv_bytes) for described in head["values"]]


def _described(value: object, buffers: list[memoryview]) -> object:
    """Return what a head says of a value; the elements of tensors that have any go to the buffers."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        if value.size:
            buffers.append(bytes_of(value))
        return {"dtype": dtype_of(value.dtype), "shape": list(value.shape)}
    if isinstance(value, list | tuple):
        return [_described(item, buffers) for item in value]
    if isinstance(value, dict):
        return {"keys": _described(list(value), buffers), "values": _described(list(value.values()), buffers)}
    if value is None or isinstance(value, bool | int | float | str):
        return {"plain": value}
    raise RunError(f"a {type(value).__name__} cannot be sent to another machine; tensors, lists and maps can")


def _value(described: Any, next_buffer: Callable[[], bytes]) -> Any:  # noqa: ANN401
    if isinstance(described, list):
        return [_value(item, next_buffer) for item in described]
    if "plain" in described:
        return described["plain"]
    if "keys" in described:
        return dict(zip(*(_value(described[part], next_buffer) for part in ("keys", "values")), strict=True))
    type_ = TensorType(described["dtype"], tuple(described["shape"]))
    return array_of_bytes(type_, next_buffer() if 0 not in described["shape"] else b"")
