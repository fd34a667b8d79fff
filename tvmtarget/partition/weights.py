"""Which weights are given to a function, so that it does for several of them, instead of being a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from tvmtarget.ir.function import Constant
from tvmtarget.partition.alike import Shape, Shapes, same_data
from tvmtarget.partition.machines.machine import Machines
from tvmtarget.partition.program import Program
from tvmtarget.partition.split import Region
from tvmtarget.partition.strategies.registered import strategy_at
from tvmtarget.target.layout import Site

__all__ = ["CONSTANTS", "Constants", "given_weights"]

Constants: TypeAlias = Literal["bind", "lift", "share"]
CONSTANTS: tuple[Constants, ...] = get_args(Constants)

Results: TypeAlias = Callable[[Region], Sequence[str]]


def given_weights(
    program: Program, shapes: Shapes, root: Region, results: Results, wanted: Constants | None
) -> Mapping[int, frozenset[str]]:
    """Return the constants that are parameters of leaf functions, by the first operation of their region.

    `bind` makes constants parts of functions; `lift` makes weights parameters: tensors of floating-point numbers with
    more than one element, as far as the code generator takes the operations that read them without knowing them;
    `share` does so where regions differ in nothing else. What is `wanted` counts, else what the strategy of the site
    says. A region that another machine than its driver runs keeps its weights, so that they are not sent for each
    input; so does what has no driver.
    """
    found: dict[int, frozenset[str]] = {}
    machines = Machines(program.layout)
    shared: dict[object, list[tuple[Region, Shape]]] = {}
    policies = {leaf.path: _policy(leaf, wanted) for leaf in program.layout.leaves()}
    for region in root.walk():
        policy = policies.get(region.site.path, "bind") if region.is_leaf and region is not root else "bind"
        if policy == "bind" or _is_sent(machines, region):
            continue
        if policy == "lift":
            found[region.calls[0]] = frozenset(_weights(program, shapes, region))
        else:
            shape = shapes.of(region, results(region), lambda _: program.constants)
            shared.setdefault(shape.key, []).append((region, shape))
    for alike in shared.values():
        found |= _differing(program, shapes, alike) if len(alike) > 1 else ()
    return found


def _policy(leaf: Site, wanted: Constants | None) -> Constants:
    strategy = strategy_at(leaf.target)
    return wanted or ("bind" if strategy is None else strategy.constants)


def _is_sent(machines: Machines, region: Region) -> bool:
    return "/" not in region.site.path and machines.of_site(region.site.path) != machines.home


def _differing(
    program: Program, shapes: Shapes, alike: Sequence[tuple[Region, Shape]]
) -> Iterator[tuple[int, frozenset[str]]]:
    """Yield the weights in which regions of one structure differ, where the code generator lets them go."""
    first = alike[0][1].constants
    places = [
        place
        for place in range(len(first))
        if any(not _same(program, first[place], shape.constants[place]) for _, shape in alike[1:])
    ]
    for region, shape in alike:
        weights = set(_weights(program, shapes, region)) if places else set()
        yield region.calls[0], frozenset(shape.constants[place] for place in places) & weights


def _same(program: Program, one: str, other: str) -> bool:
    return one == other or same_data(program.constants[one], program.constants[other])


def _weights(program: Program, shapes: Shapes, region: Region) -> Iterator[str]:
    """Yield the weights of a region that all operations which read them are taken without."""
    bound: set[str] = set()
    read: dict[str, None] = {}
    strategy = strategy_at(region.site.target)
    for index in region.calls:
        op = program.op(index)
        weights = [name for name in op.call.uses() if name in program.constants and _is_weight(program.constants[name])]
        read |= dict.fromkeys(weights)
        known = dict(_known(op.call.inputs, program))
        if (
            strategy is None
            or op.call.regions
            or shapes.is_matched(index)
            or strategy.check(replace(op, constants=known))
        ):
            bound.update(weights)
    yield from (name for name in read if name not in bound)


def _known(names: Sequence[str], program: Program) -> Iterator[tuple[str, Constant]]:
    """Yield the constants among operands that are no weights."""
    for name in names:
        if name in program.constants and not _is_weight(program.constants[name]):
            yield name, program.constants[name]


def _is_weight(constant: Constant) -> bool:
    return "float" in constant.type.dtype and constant.data.size > 1
