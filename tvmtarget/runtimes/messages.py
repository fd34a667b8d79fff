"""Messages between processes: a header in JSON, followed by the elements of tensors; nothing is pickled."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.errors import RunError
from tvmtarget.ir.tensors import array_of_bytes, bytes_of
from tvmtarget.ir.types import TensorType, dtype_of, numpy_dtype

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
            done = 0
            while done < buffer.nbytes:
                done += os.write(connection.fileno(), buffer[done:])


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
    return head["message"], [_value(description, connection) for description in head["values"]]


def _describe(value: object, buffers: list[memoryview]) -> object:
    """Return the header's description of a value; append the elements of its tensors to `buffers`."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        buffers.append(bytes_of(value))
        return {"dtype": dtype_of(value.dtype), "shape": list(value.shape), "bytes": buffers[-1].nbytes}
    if isinstance(value, list | tuple):
        return [_describe(item, buffers) for item in value]
    if isinstance(value, dict):
        return {"keys": _describe(list(value), buffers), "values": _describe(list(value.values()), buffers)}
    if value is None or isinstance(value, bool | int | float | str):
        return {"plain": value}
    raise RunError(f"a {type(value).__name__} cannot be sent to another machine; tensors, lists and maps can")


def _value(description: Any, connection: Connection) -> Any:  # noqa: ANN401
    if isinstance(description, list):
        return [_value(item, connection) for item in description]
    if "plain" in description:
        return description["plain"]
    if "keys" in description:
        return dict(zip(*(_value(description[part], connection) for part in ("keys", "values")), strict=True))
    dtype, shape = description["dtype"], tuple(description["shape"])
    if dtype == "string":
        texts = memoryview(bytearray(description["bytes"]))
        _read_into(texts, connection)
        return array_of_bytes(TensorType(dtype, shape), texts)
    # `Connection.recv_bytes` allocates all that is missing for each part that it reads, ten times the work of this.
    array = np.empty(shape, numpy_dtype(dtype).newbyteorder("<"))
    _read_into(array.reshape(-1).view(np.uint8).data, connection)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _read_into(buffer: memoryview, connection: Connection) -> None:
    """Fill a buffer; `EOFError` if the other end is closed before."""
    done = 0
    while done < buffer.nbytes:
        found = os.readv(connection.fileno(), [buffer[done:]])
        if not found:
            raise EOFError
        done += found
