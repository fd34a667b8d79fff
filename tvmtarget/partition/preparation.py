"""Prepare a request: one flat program, and which leaf can run which operation of it.

Operations that fit no leaf are replaced by those that define them in ONNX. After an edit of single operations only
these are prepared anew (`local_edit.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import cast

from tvmtarget.errors import TargetError, raise_all
from tvmtarget.ir.constant_folding import folded_ops
from tvmtarget.ir.function import DRIVEN_DEVICE
from tvmtarget.ir.onnx.definitions import has_definition
from tvmtarget.ir.verify import verify_functions
from tvmtarget.partition.decomposition import Request, folded_module
from tvmtarget.partition.flat_program import FlatProgram, normalise
from tvmtarget.partition.known_partition import KnownPartition
from tvmtarget.partition.local_edit import changed_ops, program_after, with_known_calls
from tvmtarget.partition.machines.machine import is_distributed
from tvmtarget.partition.placement.colocation import with_atomic_groups
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.hypotheses import assume_support, with_moves
from tvmtarget.partition.plan_cache import PlanCache
from tvmtarget.support.registry import is_generator, strategy_at
from tvmtarget.target.topology import Topology

__all__ = ["judge", "keep_for_edits", "normalised", "prepare"]


def prepare(request: Request, *, splits: bool = False, cache: PlanCache | None = None) -> Feasibility:
    """Normalise the module of a request, and judge what fits where.

    Args:
        request: the module, the target and the options.
        splits: split mixed functions of host and device code even where the code generator accepts them whole; always
            so for a module that was split before.
        cache: results of an earlier decomposition.

    Returns:
        What fits where, with the flat program.

    Raises:
        InfeasibleError: if an operation fits nowhere, with the reason of every leaf.
        TargetError, UnknownNameError, ModelError: where target, names or module are not valid.
    """
    # Decomposing a decomposed module must change nothing, so what was split before is split again.
    splits = splits or any(function.attr(DRIVEN_DEVICE) is not None for function in request.module)
    cache = cache or PlanCache()
    prepared = _after_local_edit(request, cache) if not splits else None
    if prepared is None or not prepared[1].is_complete:
        prepared = request, _with_definitions(request, splits=splits, cache=cache)
    cache.prepared, feasibility = prepared, prepared[1]
    if feasibility.is_complete:
        return feasibility
    # Where patterns overlap, another selection of matches may let every operation fit a site.
    feasibility = next(iter(feasibility.alternatives), feasibility)
    kept = [index for index in _definable(request, feasibility) if request.names_whole(feasibility.program.body[index])]
    hint = (
        "; an option names it, so that it is not replaced by the operations that define it in ONNX: name these, such as"
    )
    feasibility.check_all({index: f"{hint} '{feasibility.program.body[index].source}/*'" for index in kept})
    return feasibility


def _with_definitions(request: Request, *, splits: bool, cache: PlanCache) -> Feasibility:
    """Judge a program in which operations that fit no site are replaced by those of their definitions in ONNX.

    Operations that options name stay, and those whose definitions have operations that fit no site either.
    """
    defined: frozenset[str] = frozenset()
    while True:
        feasibility = judge(request, normalised(request, defined), splits=splits, cache=cache)
        if not request.options.fold_constants or feasibility.is_complete or feasibility.alternatives:
            return feasibility
        body = feasibility.program.body
        found = [
            call for call in map(body.__getitem__, _definable(request, feasibility)) if not request.names_whole(call)
        ]
        more = frozenset(call.source for call in found) - defined
        if not more:
            break
        defined |= more
    unsupported = [f"{body[index].source}/" for index in feasibility.unsupported()]
    helpful = frozenset(name for name in defined if not any(one.startswith(f"{name}/") for one in unsupported))
    if helpful == defined:
        return feasibility
    return judge(request, normalised(request, helpful), splits=splits, cache=cache)


def _definable(request: Request, feasibility: Feasibility) -> Iterator[int]:
    """Yield the operations that fit no site, and that ONNX defines by functions."""
    program = feasibility.program
    opset = dict(program.function.opsets).get("", 0)
    for index in feasibility.unsupported():
        call = program.body[index]
        if call.constraint is None and not call.regions and has_definition(call.op, opset):
            yield index


def keep_for_edits(cache: PlanCache) -> None:
    """Keep in the cache of a plan what plans after edits need, and no older plans.

    Args:
        cache: the cache that the plan was made with.
    """
    # What fits where refers to the cache. Without that reference a plan is freed as soon as nothing needs it.
    request, feasibility = cast("tuple[Request, Feasibility]", cache.prepared)
    alone = feasibility.without_cache()
    cache.prepared, cache.earlier_partitions = (request, alone), {}
    for kind, known in cast("dict[str, KnownPartition]", cache.partitions).items():
        is_same = known.feasibility is feasibility
        cache.partitions[kind] = replace(known, feasibility=alone if is_same else known.feasibility.without_cache())


def _after_local_edit(request: Request, cache: PlanCache) -> tuple[Request, Feasibility] | None:
    """Return the request, and what fits where, after an edit of single operations; None if there is no plan before.

    The module of the request has the operations of the earlier one where they are equal.
    """
    if cache.prepared is None:
        return None
    before, feasibility = cast("tuple[Request, Feasibility]", cache.prepared)
    old, new = before.module, request.module
    if feasibility.splits or request.moves or request.refusals or not before.is_like(request):
        return None
    if [*old.by_name] != [*new.by_name] or dict(old.attrs) != dict(new.attrs) or "main" not in new.by_name:
        return None
    if any(old[name] is not function for name, function in new.by_name.items() if name != "main"):
        return None
    main = with_known_calls(new.main, old.main)
    program = program_after(feasibility.program, old.main, main, request.options)
    if program is None:
        return None
    new = new.replace(functions=tuple(main if function.name == "main" else function for function in new))
    verify_functions(new.by_name, new.target, old.by_name if new.target == old.target else None)
    changed = frozenset(changed_ops(feasibility.program, program))
    return replace(request, module=new), feasibility.after_edit(program, changed, cache)


def normalised(request: Request, defined: Collection[str] = ()) -> FlatProgram:
    """Return the module as one flat program with the requirements on each operation.

    Args:
        request: the module, the target and the options.
        defined: names of operations to replace by the operations that define them in ONNX.

    Returns:
        The flat program.

    Raises:
        TargetError, UnknownNameError, ModelError: where target, names or module are not valid.
    """
    options = request.options
    module = request.module.verify()
    folded, defined = folded_module(module, request, defined) if options.fold_constants else (module, ())
    program = normalise(folded, request.target, options.where, options.named_ops)
    gone = folded_ops(module, folded)
    if gone:
        program = replace(program, folded=gone, defined=tuple(name for name in gone if name in defined))
    raise_all(TargetError, [*_unsupported_systems(program.topology), *_useless_replicas(request)])
    request.check_names(program)
    program = with_atomic_groups(program, options.atomic, options.boundary_before, options.boundary_after)
    return with_moves(program, request.moves) if request.moves else program


def judge(request: Request, program: FlatProgram, *, splits: bool, cache: PlanCache | None) -> Feasibility:
    """Return which leaf can run which operation, with the support that a question assumes.

    Args:
        request: the options and moves.
        program: the flat program.
        splits: as in `prepare`.
        cache: as in `prepare`.

    Returns:
        The answers, computed as they are needed.
    """
    numbers = {call.source: number for number, call in enumerate(program.body)} if request.refusals else {}
    refused = {(numbers[one.op], one.leaf): one.reason for one in request.refusals if one.op in numbers}
    feasibility = Feasibility(program, splits=splits, cache=cache, refused=refused)
    return assume_support(feasibility, request.moves) if request.moves else feasibility


def _unsupported_systems(topology: Topology) -> Iterator[str]:
    """Yield an error for each external generator with children whose strategy is only valid without children."""
    for path, node in topology.root.walk():
        strategy = strategy_at(node) if node.is_composite and is_generator(node) else None
        if strategy is not None:
            kind = f"@{path or '.'} is of kind {node.kind!r}, whose strategy has"
            hint = "which is for generators without children; leave them out, or make it a 'composite'"
            if strategy.subgraphs == "program":
                yield f"{kind} subgraphs='program', {hint}"
            if strategy.accepts == "device":
                yield f"{kind} accepts='device', {hint}"
            if strategy.constants != "bind":
                yield f"{kind} constants={strategy.constants!r}, {hint}"


def _useless_replicas(request: Request) -> Iterator[str]:
    """Yield an error if replicas are allowed, but no two machines would work at the same time."""
    most, root = request.options.max_replicas, request.target
    if most > 1 and not is_distributed(root):
        yield (
            f"max_replicas is {most}, but runtime {root.runtime.kind if root.runtime else 'python'!r} runs one machine "
            "at a time; state a runtime that runs all of them, such as [n=...](runtime=processes)"
        )
