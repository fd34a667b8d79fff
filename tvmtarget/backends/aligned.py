"""Align weights in memory as compiled code requires, so that they are not copied in every run."""

from __future__ import annotations

import numpy as np

from tvmtarget.backends.protocol import Array

__all__ = ["ALIGNMENT", "aligned", "is_aligned"]

# Bytes: the alignment that TVM requires of tensors, and the size of a cache line of most CPUs.
ALIGNMENT = 64


def is_aligned(array: Array) -> bool:
    """Return whether compiled code can read an array in place.

    Args:
        array: the array.

    Returns:
        True if it is C-contiguous and starts at a multiple of `ALIGNMENT` bytes, or is empty.
    """
    return array.flags.c_contiguous and (not array.size or _address(array) % ALIGNMENT == 0)


def aligned(array: Array) -> Array:
    """Return a read-only array that compiled code can read in place.

    Args:
        array: the array.

    Returns:
        The array itself if it is aligned and read-only or holds objects, else a copy.
    """
    if array.dtype.hasobject or (is_aligned(array) and not array.flags.writeable):
        return array
    buffer = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    begin = -_address(buffer) % ALIGNMENT
    copy: Array = buffer[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    copy.flags.writeable = False
    return copy


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
