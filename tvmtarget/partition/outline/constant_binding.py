"""Which weights are given to a function, so that it does for several of them, instead of being a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from tvmtarget.ir.function import Constant, Function, Value
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.machines.machine import Machines
from tvmtarget.partition.options import Constants
from tvmtarget.partition.outline.deduplicate import SubgraphStructure, SubgraphStructures, same_data
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.pattern_groups import PatternGroup, groups_of
from tvmtarget.support.registry import strategy_at
from tvmtarget.support.strategy import Strategy
from tvmtarget.target.topology import Site

__all__ = ["bound_weights", "lifted_constants"]


Results: TypeAlias = Callable[[PartitionNode], Sequence[str]]


def lifted_constants(
    program: FlatProgram, shapes: SubgraphStructures, root: PartitionNode, results: Results, wanted: Constants | None
) -> Mapping[int, frozenset[str]]:
    """Return the constants that are parameters of leaf functions, by the first operation of their subgraph.

    `bind` makes constants parts of functions; `lift` makes weights parameters: tensors of floating-point numbers with
    more than one element, as far as the code generator takes the operations that read them without knowing them;
    `share` does so where subgraphs differ in nothing else. What is `wanted` counts, else what the strategy of the site
    says. The weights of a match are given to it if the strategy finds the match without their values, too. A subgraph
    that another machine than its driver runs keeps its weights, so that they are not sent for each
    input; so does what has no driver.
    """
    found: dict[int, frozenset[str]] = {}
    machines = Machines(program.topology)
    shared: dict[object, list[tuple[PartitionNode, SubgraphStructure]]] = {}
    subgraphs = [one for one in root.walk() if one.is_leaf and one is not root and not _is_sent(machines, one)]
    policies = {one.site.path: _policy(one.site, wanted) for one in subgraphs}  # a host may be no leaf of the tree
    subgraphs = [subgraph for subgraph in subgraphs if policies[subgraph.site.path] != "bind"]
    unbound = _matched_without(program, shapes, subgraphs)
    for subgraph in subgraphs:
        if policies[subgraph.site.path] == "lift":
            found[subgraph.calls[0]] = frozenset(_weights(program, shapes, unbound, subgraph))
        else:
            shape = shapes.of(subgraph, results(subgraph), lambda _: program.constants)
            shared.setdefault(shape.key, []).append((subgraph, shape))
    for alike in shared.values():
        found |= _differing(program, shapes, unbound, alike) if len(alike) > 1 else ()
    return found


def bound_weights(function: Function) -> tuple[str, ...]:
    """Return the names of the weights that are parts of a function."""
    return tuple(constant.name for constant in function.constants if _is_weight(constant))


def _matched_without(
    program: FlatProgram, shapes: SubgraphStructures, subgraphs: Sequence[PartitionNode]
) -> frozenset[int]:
    """Return the operations of matches that the strategies find as well where weights are parameters."""
    sites = {index: subgraph.site for subgraph in subgraphs for index in subgraph.calls}
    groups = [group for group in shapes.groups.values() if sites.keys() >= set(group.calls)]
    weights = [constant for constant in program.constants.values() if _is_weight(constant)]
    if not groups or not weights:
        return frozenset()
    names = frozenset(weight.name for weight in weights)
    function = program.function
    given = tuple(Value(one.name, one.type) for one in function.constants if one.name in names)
    without = replace(
        program,
        function=function.replace(
            params=(*function.params, *given),
            constants=tuple(one for one in function.constants if one.name not in names),
        ),
        constants={name: one for name, one in program.constants.items() if name not in names},
    )
    leaves = dict.fromkeys(sites[group.calls[0]] for group in groups)
    again = groups_of(without, leaves, lambda index, site: index in sites and sites[index].path == site.path)
    known = {group.calls: group for group in again.all}
    kept = (group for group in groups if group.calls in known and _is_found(group, known[group.calls], sites))
    return frozenset(index for group in kept for index in group.calls)


def _is_found(group: PatternGroup, again: PatternGroup, sites: Mapping[int, Site]) -> bool:
    """Whether the code generator of its site takes a group by the same pattern both times."""
    kind = sites[group.calls[0]].target.kind
    return group.pattern_of(kind) == again.pattern_of(kind)


def _policy(leaf: Site, wanted: Constants | None) -> Constants:
    strategy = strategy_at(leaf.target)
    return wanted or ("bind" if strategy is None else strategy.constants)


def _is_sent(machines: Machines, subgraph: PartitionNode) -> bool:
    return "/" not in subgraph.site.path and machines.of_site(subgraph.site.path) != machines.home


def _differing(
    program: FlatProgram,
    shapes: SubgraphStructures,
    unbound: frozenset[int],
    alike: Sequence[tuple[PartitionNode, SubgraphStructure]],
) -> Iterator[tuple[int, frozenset[str]]]:
    """Yield the weights in which subgraphs of one structure differ, where the code generator lets them go."""
    first = alike[0][1].constants
    places = [
        place
        for place in range(len(first))
        if any(not _same(program, first[place], shape.constants[place]) for _, shape in alike[1:])
    ]
    for subgraph, shape in alike:
        weights = set(_weights(program, shapes, unbound, subgraph)) if places else set()
        yield subgraph.calls[0], frozenset(shape.constants[place] for place in places) & weights


def _same(program: FlatProgram, one: str, other: str) -> bool:
    return one == other or same_data(program.constants[one], program.constants[other])


def _weights(
    program: FlatProgram, shapes: SubgraphStructures, unbound: frozenset[int], subgraph: PartitionNode
) -> Iterator[str]:
    """Yield the weights of a subgraph that all operations which read them are taken without.

    `unbound` are operations of matches that are taken so.
    """
    bound: set[str] = set()
    read: dict[str, None] = {}
    strategy = strategy_at(subgraph.site.target)
    for index in subgraph.calls:
        op = program.op(index)
        weights = [name for name in op.call.uses() if name in program.constants and _is_weight(program.constants[name])]
        read |= dict.fromkeys(weights)
        if op.call.regions or not _is_taken_without(program, shapes, unbound, index, strategy):
            bound.update(weights)
    yield from (name for name in read if name not in bound)


def _is_taken_without(
    program: FlatProgram, shapes: SubgraphStructures, unbound: frozenset[int], index: int, strategy: Strategy | None
) -> bool:
    """Whether a code generator takes an operation, or the match that it is in, without knowing the weights."""
    if strategy is None or shapes.is_matched(index):
        return index in unbound
    op = program.op(index)
    return strategy.check(replace(op, constants=dict(_known(op.call.inputs, program)))) is None


def _known(names: Sequence[str], program: FlatProgram) -> Iterator[tuple[str, Constant]]:
    """Yield the constants among operands that are no weights."""
    for name in names:
        if name in program.constants and not _is_weight(program.constants[name]):
            yield name, program.constants[name]


def _is_weight(constant: Constant) -> bool:
    return "float" in constant.type.dtype and constant.data.size > 1
