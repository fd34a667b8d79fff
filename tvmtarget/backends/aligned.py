"""Weights that lie in memory as compiled code wants them, so that they need not be copied for every run."""

from __future__ import annotations

import numpy as np

from tvmtarget.backends.protocol import Array

__all__ = ["ALIGNMENT", "aligned", "is_aligned"]

# Bytes at a multiple of which an array begins: what TVM asks of its tensors, and a line of the cache of most CPUs.
ALIGNMENT = 64


def is_aligned(array: Array) -> bool:
    """Whether an array is in order, without gaps, and begins where compiled code wants it."""
    return array.flags.c_contiguous and (not array.size or _address(array) % ALIGNMENT == 0)


def aligned(array: Array) -> Array:
    """Return an array that begins where compiled code wants it and cannot be written to: itself, or a copy."""
    if array.dtype.hasobject or (is_aligned(array) and not array.flags.writeable):
        return array
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    begin = -_address(room) % ALIGNMENT
    copy: Array = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    copy.flags.writeable = False
    return copy


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
