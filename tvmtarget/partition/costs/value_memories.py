"""What memories that values are asked to be in say of the operations that compute them."""

from __future__ import annotations

from collections.abc import Iterator

from tvmtarget.errors import InfeasibleError, raise_all
from tvmtarget.ir.function import Call, Function
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.topology import Topology

__all__ = ["check_input_memories", "memory_requirements"]


def memory_requirements(call: Call, topology: Topology) -> Iterator[tuple[Constraint, str]]:
    """Yield for each result in a memory that an operation runs on a site which has that memory, and who asks.

    Memories below any domain, such as `shared`, are the code generator's own, and drivers put what control flow
    returns into theirs.
    """
    for output in () if call.regions else call.outputs:
        paths = [leaf.path for leaf in topology.leaves() if leaf.domain == output.scope] if output.scope else []
        if paths:
            yield Constraint.at_any(paths), f"value {output.name!r} in memory {output.scope!r}"


def check_input_memories(function: Function, topology: Topology) -> None:
    """Raise `InfeasibleError` for inputs in another memory of the target than that where the driver takes them."""
    home = topology.home("")
    away = [param for param in function.params if param.scope in topology.domains() and param.scope != home]
    if function.attr("role") is None:
        raise_all(
            InfeasibleError,
            [
                f"input {param.name!r} is in memory {param.scope!r}, but the driver takes inputs in {home!r}; leave "
                f"the memory out, or make a site of {param.scope!r} the host of the root"
                for param in away
            ],
        )
