"""Reductions along memory for `tvm_schedule`: partial results in the lanes of a vector, put together at the end.

As code stands, each step of such a sum waits for the one before, and LLVM may not change the order of sums of floats.
TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tvmtarget.backends.tvm.register_tiling import Nest, Strip

__all__ = ["reduce_in_lanes"]

Schedule: TypeAlias = Any
Block: TypeAlias = Any
Loop: TypeAlias = Any


def reduce_in_lanes(
    schedule: Schedule, block: Block, nest: Nest, strip: Strip, parallel: Callable[[list[Loop]], object]
) -> None:
    """Reduce a block, one loop for each axis, in the lanes of a strip; `parallel` is given its loops over results.

    TVM only knows that iterations may be parallel as long as no reduction is decomposed.
    """
    spatial, loops = len(nest.spatial), schedule.get_loops(block)
    schedule.reorder(*(loops[axis] for axis in (*nest.spatial, *nest.reduced)))
    along = schedule.fuse(*schedule.get_loops(block)[-strip.axes :])
    partial = schedule.rfactor(schedule.split(along, [None, strip.lanes])[1], spatial)
    outer: list[Loop] = schedule.get_loops(block)[:spatial]
    schedule.compute_at(partial, outer[-1], preserve_unit_loops=True)
    schedule.set_scope(partial, 0, "local")
    # The loops of the partial results are in the order of the axes of their block: the lane, results, what is reduced.
    lane, *rest = schedule.get_loops(partial)[spatial:]
    steps = rest[spatial:]
    schedule.reorder(*steps, lane)
    last = schedule.get_loops(block)[-1]
    parallel(outer)
    schedule.vectorize(lane)
    schedule.vectorize(schedule.get_loops(schedule.decompose_reduction(partial, steps[0]))[-1])
    schedule.decompose_reduction(block, last)
    schedule.unroll(last)
