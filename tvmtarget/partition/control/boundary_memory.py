"""Check the memories that a program requires for values at the boundaries of regions."""

from __future__ import annotations

from collections.abc import Iterator

from tvmtarget.errors import InfeasibleError, raise_all
from tvmtarget.ir.control_flow import body_arguments
from tvmtarget.ir.function import Call, Value
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.partition_node import PartitionNode

__all__ = ["check_boundary_memory"]


def check_boundary_memory(program: FlatProgram, root: PartitionNode) -> None:
    """Check that values at the boundaries of regions can be in their required memories.

    A loop-carried value can be in any memory, but in a single one, if a driver runs the loop. All other values at the
    boundary of a region are in the memory of the driver, or of the leaf that runs the operation whole.

    Args:
        program: the program.
        root: its partition.

    Raises:
        InfeasibleError: with one problem for each value that is required elsewhere.
    """
    if program.bodies:
        domains = program.topology.domains()
        raise_all(InfeasibleError, [problem for node in root.walk() for problem in _problems(program, node, domains)])


def _problems(program: FlatProgram, node: PartitionNode, domains: frozenset[str]) -> Iterator[str]:
    if not node.is_leaf and not node.bodies:
        return
    path, home = f"@{node.site.path or '.'}", program.topology.home(node.site.path)
    # The bodies that a driver runs have nodes of their own; those of a leaf are checked with the leaf.
    calls = node.calls if node.bodies else program.with_nested(node.calls)
    for call in (program.body[index] for index in calls if index in program.bodies):
        carried = list(_carried(call))
        others = [value for value in _boundary_values(call) if not any(value in ends for ends in carried)]
        for ends in carried:
            required = dict.fromkeys(value.scope for value in ends if value.scope in domains)
            if node.bodies and len(required) > 1:
                yield f"op {call.source!r} carries {ends[0].name!r} in one memory, not in {' and '.join(required)}"
            # A leaf that runs the loop whole has one memory, so carried values are like all others.
            others += () if node.bodies else ends
        for value in others:
            if value.scope in domains and value.scope != home:
                yield (
                    f"value {value.name!r} of op {call.source!r} must be in memory {value.scope!r}, but "
                    f"{'the driver of ' if node.bodies else ''}{path} has it in {home!r}; leave the memory out, or "
                    "place operations of its bodies by 'where'"
                )


def _carried(call: Call) -> Iterator[tuple[Value, ...]]:
    """Yield the parameter of the body and the output of each loop-carried value."""
    for slot in body_arguments(call):
        for _, body in call.regions:
            yield body.params[slot.param], call.outputs[slot.output]


def _boundary_values(call: Call) -> Iterator[Value]:
    """Yield the parameters of regions and the results of the operation."""
    for _, body in call.regions:
        yield from body.params
    yield from call.outputs
