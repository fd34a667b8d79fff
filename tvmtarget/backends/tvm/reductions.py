"""Reductions along memory for `cpu_schedule`: partial results in the lanes of a vector, which are combined at the end.

Without this each step of such a sum waits for the one before, and LLVM may not reorder sums of floats. TVM is imported
late and ships no types: its objects are Any, under names that say what they are.
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
    schedule: Schedule, block: Block, nest: Nest, strip: Strip, scope: str, parallel: Callable[[list[Loop]], object]
) -> None:
    """Reduce a block in the lanes of vectors.

    Iterations can be proven parallel only as long as no reduction is decomposed, so `parallel` is called in between.

    Args:
        schedule: TVM's schedule, which is changed.
        block: the block, with one loop for each axis.
        nest: description of the block.
        strip: the reduced axes and lanes.
        scope: the scope of the memory of the lanes.
        parallel: called with the loops over results.
    """
    spatial, loops = len(nest.spatial), schedule.get_loops(block)
    schedule.reorder(*(loops[axis] for axis in (*nest.spatial, *nest.reduced)))
    along = schedule.fuse(*schedule.get_loops(block)[-strip.axes :])
    partial = schedule.rfactor(schedule.split(along, [None, strip.lanes])[1], spatial)
    outer: list[Loop] = schedule.get_loops(block)[:spatial]
    schedule.compute_at(partial, outer[-1], preserve_unit_loops=True)
    schedule.set_scope(partial, 0, scope)
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
