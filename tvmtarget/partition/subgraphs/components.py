"""Weakly connected components of a graph that is given as two arrays, vectorised with NumPy."""

from __future__ import annotations

import numpy as np

from tvmtarget.partition.dataflow import Ints

__all__ = ["components_of"]


def components_of(count: int, starts: Ints, ends: Ints) -> Ints:
    """Find the connected component of each vertex.

    Union by minimum with pointer jumping (Shiloach and Vishkin, 1982): a logarithmic number of passes over the arrays.

    Args:
        count: number of vertices.
        starts: one end of each edge; directions do not matter.
        ends: other end of each edge, parallel to `starts`.

    Returns:
        For each vertex the smallest vertex of its component.
    """
    root = np.arange(count, dtype=np.int64)
    while True:
        a, b = root[starts], root[ends]
        differs = a != b
        if not differs.any():
            return root
        starts, ends, a, b = starts[differs], ends[differs], a[differs], b[differs]
        # A plain assignment would keep only one of several writes to the same vertex.
        np.minimum.at(root, np.maximum(a, b), np.minimum(a, b))
        while True:
            # Pointer jumping: each pass halves the depth of the trees.
            above = root[root]
            if np.array_equal(above, root):
                break
            root = above
