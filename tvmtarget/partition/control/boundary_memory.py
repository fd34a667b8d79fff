"""Values at the borders of nested bodies that are asked to be in memories: those that cannot be there are refused."""

from __future__ import annotations

from collections.abc import Iterator

from tvmtarget.errors import InfeasibleError, raise_all
from tvmtarget.ir.function import Call, Value
from tvmtarget.partition.control.control_flow_ops import body_arguments
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.partition_node import PartitionNode

__all__ = ["check_boundary_memory"]


def check_boundary_memory(program: FlatProgram, root: PartitionNode) -> None:
    """Raise `InfeasibleError` for values that are asked to be in another memory of the target than they will be.

    What a loop carries is where that is asked, if a driver runs the loop, and in one memory all the way. All else that
    crosses the border of a body is in the memory of the driver, or of the leaf that runs the operation whole.
    """
    if program.bodies:
        domains = program.topology.domains()
        raise_all(InfeasibleError, [told for region in root.walk() for told in _problems(program, region, domains)])


def _problems(program: FlatProgram, region: PartitionNode, domains: frozenset[str]) -> Iterator[str]:
    if not region.is_leaf and not region.bodies:
        return
    path, home = f"@{region.site.path or '.'}", program.topology.home(region.site.path)
    around = region.calls if region.bodies else program.with_nested(region.calls)
    for call in (program.body[index] for index in around if index in program.bodies):
        carried = list(_carried(call))
        plain = [value for value in _crossing(call) if not any(value in ends for ends in carried)]
        for ends in carried:
            asked = dict.fromkeys(value.scope for value in ends if value.scope in domains)
            if region.bodies and len(asked) > 1:
                yield f"op {call.source!r} carries {ends[0].name!r} in one memory, not in {' and '.join(asked)}"
            plain += () if region.bodies else ends
        for value in plain:
            if value.scope in domains and value.scope != home:
                yield (
                    f"value {value.name!r} of op {call.source!r} is asked to be in memory {value.scope!r}, but "
                    f"{'the driver of ' if region.bodies else ''}{path} has it in {home!r}; leave the memory out, or "
                    "place operations of its bodies by 'where'"
                )


def _carried(call: Call) -> Iterator[tuple[Value, ...]]:
    """Yield, for each value that a loop carries, the parameter of its body and the output."""
    for slot in body_arguments(call):
        for _, body in call.regions:
            yield body.params[slot.param], call.outputs[slot.output]


def _crossing(call: Call) -> Iterator[Value]:
    """Yield the parameters of nested bodies, and what the operation returns."""
    for _, body in call.regions:
        yield from body.params
    yield from call.outputs
