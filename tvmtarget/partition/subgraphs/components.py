"""Connected components of a graph that is given as two arrays, in logarithmically many steps over them."""

from __future__ import annotations

import numpy as np

from tvmtarget.partition.dataflow import Ints

__all__ = ["components_of"]


def components_of(count: int, starts: Ints, ends: Ints) -> Ints:
    """Return, for every vertex, the smallest vertex that edges connect it to."""
    root = np.arange(count, dtype=np.int64)
    while True:
        a, b = root[starts], root[ends]
        apart = a != b
        if not apart.any():
            return root
        starts, ends, a, b = starts[apart], ends[apart], a[apart], b[apart]
        np.minimum.at(root, np.maximum(a, b), np.minimum(a, b))
        while True:
            above = root[root]
            if np.array_equal(above, root):
                break
            root = above
