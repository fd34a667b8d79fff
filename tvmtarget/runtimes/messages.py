"""Messages between processes: a header in JSON, followed by the elements of tensors; nothing is pickled."""

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
    """A message of JSON data, and values: tensors, None, numbers, texts, lists and maps of these.

    Args:
        message: the message.
        values: the values.

    Raises:
        RunError: a value is of another type.
    """

    def __init__(self, message: Message, values: Sequence[Any] = ()) -> None:
        self._buffers: list[memoryview] = []
        head = {"message": message, "values": [_describe(value, self._buffers) for value in values]}
        self._head = json.dumps(head).encode()

    def send(self, connection: Connection) -> None:
        """Send the message and the values.

        Args:
            connection: the connection to the receiver.

        Raises:
            OSError: the other end is gone.
        """
        connection.send_bytes(self._head)
        for buffer in self._buffers:
            connection.send_bytes(buffer)


def send(connection: Connection, message: Message, values: Sequence[Any] = ()) -> None:
    """Send a message and values.

    Args:
        connection: the connection to the receiver.
        message: JSON data.
        values: values as in `Packed`.

    Raises:
        RunError: a value cannot be sent.
        OSError: the other end is gone.
    """
    Packed(message, values).send(connection)


def receive(connection: Connection) -> tuple[Message, list[Any]]:
    """Wait for a message.

    Args:
        connection: the connection to the sender.

    Returns:
        The message and its values.

    Raises:
        EOFError: the other end was closed.
        OSError: the connection failed.
    """
    head = json.loads(connection.recv_bytes())
    return head["message"], [_value(description, connection.recv_bytes) for description in head["values"]]


def _describe(value: object, buffers: list[memoryview]) -> object:
    """Return the header's description of a value; append the elements of its non-empty tensors to `buffers`."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        if value.size:
            buffers.append(bytes_of(value))
        return {"dtype": dtype_of(value.dtype), "shape": list(value.shape)}
    if isinstance(value, list | tuple):
        return [_describe(item, buffers) for item in value]
    if isinstance(value, dict):
        return {"keys": _describe(list(value), buffers), "values": _describe(list(value.values()), buffers)}
    if value is None or isinstance(value, bool | int | float | str):
        return {"plain": value}
    raise RunError(f"a {type(value).__name__} cannot be sent to another machine; tensors, lists and maps can")


def _value(description: Any, next_buffer: Callable[[], bytes]) -> Any:  # noqa: ANN401
    if isinstance(description, list):
        return [_value(item, next_buffer) for item in description]
    if "plain" in description:
        return description["plain"]
    if "keys" in description:
        return dict(zip(*(_value(description[part], next_buffer) for part in ("keys", "values")), strict=True))
    type_ = TensorType(description["dtype"], tuple(description["shape"]))
    # A view of received bytes is read-only, and results belong to the caller.
    return array_of_bytes(type_, next_buffer() if 0 not in description["shape"] else b"").copy()
