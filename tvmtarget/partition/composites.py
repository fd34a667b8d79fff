"""What external generators take together, as TVM's inner functions with the attribute `Composite`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tvmtarget.ir.flow import boundary, readers_of
from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.inline import rename_values
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.names import Names
from tvmtarget.ir.patterns import Match, Pattern, find_matches
from tvmtarget.ir.relax.spelling import type_text
from tvmtarget.ir.types import OpaqueType
from tvmtarget.partition.strategies.strategy import strategy_for
from tvmtarget.target.layout import Layout

__all__ = ["with_composites"]


def with_composites(module: IRModule, layout: Layout) -> IRModule:
    """Return a divided module in whose leaf functions matches of the strategies' patterns are inner functions."""
    return module.replace(functions=tuple(_fused(function, layout) for function in module.functions))


def _fused(function: Function, layout: Layout) -> Function:
    path = None if function.constraint is None else function.constraint.path
    if function.attr("role") != "leaf" or path is None:
        return function
    kind = layout[path].target.kind
    strategy = strategy_for(kind)
    chosen = {} if strategy is None else _chosen(function, strategy.patterns)
    names = Names(function.types)
    body: list[Call] = []
    inner = {index for match, _ in chosen.values() for index in match.calls}
    for index, call in enumerate(function.body):
        if index in chosen:
            match, name = chosen[index]
            body += _composite(function, match, f"{kind}.{name}", names)
        elif index not in inner:
            body.append(call)
    return function.replace(body=tuple(body))


def _chosen(function: Function, patterns: Mapping[str, str]) -> dict[int, tuple[Match, str]]:
    """Return matches that do not overlap by their roots, with their names; of two that do, the larger one."""
    found = [(match, name) for name, text in patterns.items() for match in find_matches(function, Pattern.parse(text))]
    chosen: dict[int, tuple[Match, str]] = {}
    taken: set[int] = set()
    for match, name in sorted(found, key=lambda one: -len(one[0].calls)):
        if not taken.intersection(match.calls):
            taken.update(match.calls)
            chosen[match.root] = (match, name)
    return chosen


def _composite(function: Function, match: Match, name: str, names: Names) -> Iterator[Call]:
    """Yield the definition of an inner function and its call, where the root of a match stood."""
    root = function.body[match.root]
    inputs, _ = boundary(function, match.calls, readers_of(function))
    types = [function.types[value] for value in (*inputs, *(output.name for output in root.outputs))]
    texts = [type_text(type_) for type_ in types]
    results = texts[len(inputs) :]
    returned = results[0] if len(results) == 1 else f"Tuple({', '.join(results)})"
    params = "".join(f"{text}, " for text in texts[: len(inputs)])
    renamed = {value: names.fresh(value) for value in (*inputs, *(output.name for output in root.outputs))}
    region = Function(
        "function",
        tuple(Value(value, function.types[value]) for value in inputs),
        tuple(function.body[index] for index in match.calls),
        tuple(output.name for output in root.outputs),
        attrs=(("Composite", name),),
    )
    own = names.fresh(name.rpartition(".")[2])
    callee = Value(own, OpaqueType(f"Func(({params.strip()}), {returned}, True)"))
    yield Call("relax.Function", (), (callee,), regions=(("function", rename_values(region, renamed)),), source=own)
    yield Call("relax.Call", (own, *inputs), root.outputs, source=root.source)
