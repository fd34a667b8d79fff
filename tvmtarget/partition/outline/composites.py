"""Write pattern matches as inner functions, as TVM's `MergeCompositeFunctions` does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tvmtarget.ir.def_use import boundary, readers_of
from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.inline import rename_values
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.names import Names
from tvmtarget.ir.relax.syntax import type_text
from tvmtarget.ir.types import OpaqueType
from tvmtarget.target.topology import Topology

__all__ = ["with_composites"]


def with_composites(module: IRModule, topology: Topology) -> IRModule:
    """Turn the pattern matches of leaf functions into inner functions.

    Args:
        module: partitioned module, whose leaf functions list their matches in the attribute `matches`.
        topology: sites of its target.

    Returns:
        The module with an inner function for each match; its attribute `Composite` is `<kind>.<pattern>`.
    """
    return module.replace(functions=tuple(_fused(function, topology) for function in module.functions))


def _fused(function: Function, topology: Topology) -> Function:
    path = None if function.constraint is None else function.constraint.path
    matches = function.attr("matches")
    if path is None or not matches:
        return function
    kind = topology[path].target.kind
    position = {call.source: index for index, call in enumerate(function.body)}
    names = Names(function.types)
    chosen = {
        position[sources[-1]]: (pattern, [position[source] for source in sources]) for pattern, *sources in matches
    }
    inner = {index for _, calls in chosen.values() for index in calls}
    body: list[Call] = []
    for index, call in enumerate(function.body):
        if index in chosen:
            pattern, calls = chosen[index]
            body += _composite(function, calls, f"{kind}.{pattern}", names)
        elif index not in inner:
            body.append(call)
    return function.replace(body=tuple(body))


def _composite(function: Function, calls: Sequence[int], name: str, names: Names) -> Iterator[Call]:
    """Yield the definition of an inner function and its call, which replace the last operation of the match."""
    root = function.body[calls[-1]]
    inputs, _ = boundary(function, calls, readers_of(function))
    texts = [type_text(function.types[value]) for value in inputs]
    params = "".join(f"{text}, " for text in texts)
    result = root.outputs[0]
    if len(root.outputs) != 1:  # the tuple of all results, as results that are not read have no name
        fields = ", ".join(type_text(output.type) for output in root.outputs)
        result = Value(names.fresh(root.source or "result"), OpaqueType(f"Tuple({fields})"))
    renamed = {value: names.fresh(value) for value in (*inputs, result.name)}
    subgraph = Function(
        "function",
        tuple(Value(value, function.types[value]) for value in inputs),
        (*(function.body[index] for index in calls[:-1]), replace(root, outputs=(result,))),
        (result.name,),
        attrs=(("Composite", name),),
    )
    own = names.fresh(name.rpartition(".")[2])
    callee = Value(own, OpaqueType(f"Func(({params.strip()}), {type_text(result.type)}, True)"))
    yield Call("relax.Function", (), (callee,), regions=(("function", rename_values(subgraph, renamed)),), source=own)
    yield Call("relax.Call", (own, *inputs), root.outputs, source=root.source)
