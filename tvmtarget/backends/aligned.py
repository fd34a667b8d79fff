"""Align weights in memory as compiled code requires, so that they are not copied in every run."""

from __future__ import annotations

import ctypes
import sys
from mmap import PAGESIZE

import numpy as np

from tvmtarget.backends.protocol import Array

__all__ = ["ALIGNMENT", "HUGE_PAGE", "aligned", "is_aligned", "use_huge_pages"]

# Bytes: the alignment that TVM requires of tensors, and the size of a cache line of most CPUs.
ALIGNMENT = 64

# Bytes: the size of a huge page of x86 and of Arm with small pages of 4 KiB.
HUGE_PAGE = 2 << 20

# Advice of Linux: to use huge pages from now on, and, since 6.1, to move what is there to them at once
# (include/uapi/asm-generic/mman-common.h).
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25


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


def use_huge_pages(address: int, nbytes: int) -> None:
    """Move memory to huge pages where the system has them, as numpy does for its arrays.

    Code that reads large weights takes less time for the translation of addresses, and an equally long time wherever
    they lie: AlexNet on llvm took 21.9 to 24.0 ms a run in six builds, and 23.3 to 29.8 in sixteen without.

    Args:
        address: where the memory begins.
        nbytes: its size in bytes.
    """
    begin = -(-address // PAGESIZE) * PAGESIZE
    end = (address + nbytes) // PAGESIZE * PAGESIZE
    if not sys.platform.startswith("linux") or begin >= end:
        return
    madvise = ctypes.CDLL(None).madvise
    # Whether it succeeds or not, the memory holds the same.
    for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
        madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
