"""Constant binding: which constants are part of a leaf function, and which become its parameters.

A function whose weights are parameters can be shared by subgraphs that differ only in their weights.
"""

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
from tvmtarget.partition.placement.pattern_groups import PatternGroup, match_patterns
from tvmtarget.support.registry import strategy_at
from tvmtarget.support.strategy import Strategy
from tvmtarget.target.topology import Site

__all__ = ["bound_weights", "lifted_constants"]


Results: TypeAlias = Callable[[PartitionNode], Sequence[str]]


def lifted_constants(
    program: FlatProgram,
    structures: SubgraphStructures,
    root: PartitionNode,
    results: Results,
    requested: Constants | None,
) -> Mapping[int, frozenset[str]]:
    """Choose the constants that become parameters of leaf functions.

    `bind` makes all constants part of the function. `lift` makes weights parameters: floating-point tensors with more
    than one element, if the code generator supports the operations that read them without knowing their data. `share`
    does so only where subgraphs differ in nothing else. The weights of a pattern match are lifted only if the pattern
    also matches without their data. A subgraph without a driver keeps its weights, and so does one on another machine
    than its driver, because they would be sent for each input.

    Args:
        program: the program.
        structures: structures of its subgraphs.
        root: the partition.
        results: returns the values that the function of a subgraph returns.
        requested: policy for all sites; None for that of each site's strategy.

    Returns:
        For each leaf, by the number of its first operation, the names of its constants that become parameters.
    """
    lifted: dict[int, frozenset[str]] = {}
    if not program.constants:
        return lifted
    machines = Machines(program.topology)
    by_key: dict[object, list[tuple[PartitionNode, SubgraphStructure]]] = {}
    subgraphs = [one for one in root.walk() if one.is_leaf and one is not root and not _is_remote(machines, one)]
    # By site of the subgraphs, because the host of a device may be no leaf of the tree.
    policies = {one.site.path: _policy(one.site, requested) for one in subgraphs}
    subgraphs = [subgraph for subgraph in subgraphs if policies[subgraph.site.path] != "bind"]
    unbound = _matched_without(program, structures, subgraphs)
    for subgraph in subgraphs:
        if policies[subgraph.site.path] == "lift":
            lifted[subgraph.calls[0]] = frozenset(_weights(program, structures, unbound, subgraph))
        else:
            structure = structures.of(subgraph, results(subgraph), lambda _: program.constants)
            by_key.setdefault(structure.key, []).append((subgraph, structure))
    for identical in by_key.values():
        lifted |= _differing_weights(program, structures, unbound, identical) if len(identical) > 1 else ()
    return lifted


def bound_weights(function: Function) -> tuple[str, ...]:
    """List the weights that are part of a function.

    Args:
        function: a leaf function.

    Returns:
        Names of its constants that are weights.
    """
    return tuple(constant.name for constant in function.constants if _is_weight(constant))


def _matched_without(
    program: FlatProgram, structures: SubgraphStructures, subgraphs: Sequence[PartitionNode]
) -> frozenset[int]:
    """Return the operations of pattern matches that are also found where all weights are parameters."""
    sites = {index: subgraph.site for subgraph in subgraphs for index in subgraph.calls}
    groups = [group for group in structures.groups.values() if sites.keys() >= set(group.calls)]
    weights = [constant for constant in program.constants.values() if _is_weight(constant)]
    if not groups or not weights:
        return frozenset()
    names = frozenset(weight.name for weight in weights)
    function = program.function
    new_params = tuple(Value(one.name, one.type) for one in function.constants if one.name in names)
    without = replace(
        program,
        function=function.replace(
            params=(*function.params, *new_params),
            constants=tuple(one for one in function.constants if one.name not in names),
        ),
        constants={name: one for name, one in program.constants.items() if name not in names},
        wiring=replace(program.wiring),
    )
    # Match the patterns again in the program without the data of weights, on the sites of the groups only.
    leaves = dict.fromkeys(sites[group.calls[0]] for group in groups)
    again = match_patterns(without, leaves, lambda index, site: index in sites and sites[index].path == site.path)
    known = {group.calls: group for group in again.all}
    kept = (group for group in groups if group.calls in known and _is_found(group, known[group.calls], sites))
    return frozenset(index for group in kept for index in group.calls)


def _is_found(group: PatternGroup, again: PatternGroup, sites: Mapping[int, Site]) -> bool:
    """Whether the code generator of the site matches a group by the same pattern both times."""
    kind = sites[group.calls[0]].target.kind
    return group.pattern_of(kind) == again.pattern_of(kind)


def _policy(leaf: Site, requested: Constants | None) -> Constants:
    strategy = strategy_at(leaf.target)
    return requested or ("bind" if strategy is None else strategy.constants)


def _is_remote(machines: Machines, subgraph: PartitionNode) -> bool:
    """Whether a machine other than that of the driver runs a subgraph of the root, so that operands are sent."""
    return "/" not in subgraph.site.path and machines.of_site(subgraph.site.path) != machines.home


def _differing_weights(
    program: FlatProgram,
    structures: SubgraphStructures,
    unbound: frozenset[int],
    identical: Sequence[tuple[PartitionNode, SubgraphStructure]],
) -> Iterator[tuple[int, frozenset[str]]]:
    """Yield, for subgraphs of one structure, the weights in which they differ and that can be lifted."""
    first = identical[0][1].constants
    positions = [
        position
        for position in range(len(first))
        if any(not _same(program, first[position], structure.constants[position]) for _, structure in identical[1:])
    ]
    for subgraph, structure in identical:
        weights = set(_weights(program, structures, unbound, subgraph)) if positions else set()
        yield subgraph.calls[0], frozenset(structure.constants[position] for position in positions) & weights


def _same(program: FlatProgram, one: str, other: str) -> bool:
    return one == other or same_data(program.constants[one], program.constants[other])


def _weights(
    program: FlatProgram, structures: SubgraphStructures, unbound: frozenset[int], subgraph: PartitionNode
) -> Iterator[str]:
    """Yield the weights of a subgraph whose readers are all supported without the data of weights.

    `unbound` are operations of pattern matches of which this is known.
    """
    bound: set[str] = set()
    read: dict[str, None] = {}
    strategy = strategy_at(subgraph.site.target)
    for index in subgraph.calls:
        op = program.op(index)
        weights = [name for name in op.call.uses() if name in program.constants and _is_weight(program.constants[name])]
        read |= dict.fromkeys(weights)
        if op.call.regions or not _is_supported_unbound(program, structures, unbound, index, strategy):
            bound.update(weights)
    yield from (name for name in read if name not in bound)


def _is_supported_unbound(
    program: FlatProgram, structures: SubgraphStructures, unbound: frozenset[int], index: int, strategy: Strategy | None
) -> bool:
    """Whether a code generator supports an operation, or the match it is in, without the data of weights."""
    if strategy is None or structures.is_matched(index):
        return index in unbound
    op = program.op(index)
    return strategy.check(replace(op, constants=dict(_constants_but_weights(op.call.inputs, program)))) is None


def _constants_but_weights(names: Sequence[str], program: FlatProgram) -> Iterator[tuple[str, Constant]]:
    """Yield the constants among operands that are not weights."""
    for name in names:
        if name in program.constants and not _is_weight(program.constants[name]):
            yield name, program.constants[name]


def _is_weight(constant: Constant) -> bool:
    return "float" in constant.type.dtype and constant.data.size > 1
