"""`decompose`: an ordinary pass that gives every operation a site and every site its functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtarget.errors import ModelError, TargetError, raise_all
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.costs.cost_file import load_costs
from tvmtarget.partition.costs.costs import Costs
from tvmtarget.partition.outline.constant_binding import CONSTANTS, Constants
from tvmtarget.partition.placement.colocation import OpNames
from tvmtarget.partition.plan import Plan, planned
from tvmtarget.partition.plan_cache import PlanCache
from tvmtarget.partition.request import OBJECTIVES, Objective, Request
from tvmtarget.target.configuration import CompilationConfig
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target

if TYPE_CHECKING:
    import onnx
    import tvm

__all__ = ["decompose"]


def decompose(
    module: IRModule | onnx.ModelProto | tvm.IRModule | str | Path | bytes,
    target: Target | CompilationConfig | Mapping[str, object] | str | None = None,
    costs: Costs | Mapping[str, object] | str | Path | None = None,
    *,
    where: Mapping[str, Constraint | str | Target] | None = None,
    objective: Objective = "latency",
    same_site: Iterable[Iterable[str]] = (),
    apart: Iterable[Iterable[str]] = (),
    atomic: Iterable[Iterable[str]] = (),
    boundary_before: Iterable[str] = (),
    boundary_after: Iterable[str] = (),
    max_subgraphs: Mapping[str, int] | None = None,
    constants: Constants | None = None,
    entry: str | None = None,
    since: Plan | None = None,
) -> Plan:
    """Split the entry of a module over the nodes of a target, down to single leaves.

    Args:
        module: a program, an ONNX file, its bytes or model, or a module of Apache TVM; constraints that its functions
            and calls already bear are kept.
        target: the tree, its text, or a flat configuration; the module's own unless given.
        costs: what operations and copies take (`load_costs`): data, a JSON file, or `roofline`, the target's own facts
            alone. Sites are then chosen by time among those that are allowed and preferred alike; without costs it
            is the first of these.
        where: constraints by name or glob of operations (`decoder.*`), by operator (`op:TopK`), or by function, for
            all operations in it (`features`, or `function:features`); the last rule that matches an operation counts.
        objective: what costs make small: `latency`, the time of one input, or `throughput`, what the busiest machine of
            a cluster has to do for each of many inputs.
        same_site: groups of operations, named as in `where`, that must share a leaf.
        apart: groups of operations of which no two may.
        atomic: groups of operations that must be in one function.
        boundary_before: operations that are in no function with what they read, named as in `where`.
        boundary_after: operations that are in no function with what reads them.
        max_subgraphs: the most calls that a site (a path, kind or key) may get; the smallest ones go elsewhere.
        constants: `bind` makes weights parts of functions, `lift` gives them to functions as parameters, `share` does
            where one function so does for several parts of the program; unless given, as each code generator says.
        entry: the function to divide, which is called `main` then (`IRModule.with_entry`); the others stay as they are.
        since: the plan before an edit, whose results are used where they follow from what is equal. It saves time and
            changes nothing: the plan is the same text without it, and `plan.reused` tells what was used. To keep the
            sites that operations had, see `Plan.replay`.

    Returns the plan: `plan.module` with every decision as a constraint that names one node, and its report.
    Raises `InfeasibleError` with the reasons for operations that fit no site, `UnknownNameError` for names that
    are not in the model or the tree, `ModelError` for an invalid module.
    """
    chosen = _tree(target)
    program = IRModule.of(module, chosen, entry)
    chosen = chosen or program.target
    if chosen is None:
        raise TargetError("no target is given and the module has none; pass one, such as 'llvm'")
    main = program.by_name.get("main")
    if main is not None and main.code is not None:
        raise ModelError(
            "function 'main' is TIR code, which has no operations to place; split_host_device divides it into host and "
            "device code, and build builds it as it is"
        )
    rules = _rules(where)
    if objective not in OBJECTIVES:
        raise TargetError(f"objective is {' or '.join(OBJECTIVES)}, not {objective!r}")
    if objective == "throughput" and costs is None:
        raise TargetError("objective 'throughput' is about time, so it needs costs; pass some, such as 'roofline'")
    if constants is not None and constants not in CONSTANTS:
        raise TargetError(f"constants is {' or '.join(CONSTANTS)}, not {constants!r}")
    request = Request(
        program,
        chosen,
        rules,
        None if costs is None else load_costs(costs),
        objective,
        same_site=_groups("same_site", same_site),
        apart=_groups("apart", apart),
        atomic=_groups("atomic", atomic),
        boundary_before=_names("boundary_before", boundary_before),
        boundary_after=_names("boundary_after", boundary_after),
        max_subgraphs=_numbers(max_subgraphs),
        constants=constants,
    )
    if since is not None and not isinstance(since, Plan):
        raise TargetError(f"since is an earlier plan, not {shown(since)}")
    cache = PlanCache(None if since is None else since.feasibility.cache)
    plan = planned(request, request.feasibility(cache=cache))
    return plan if since is None else replace(plan, reused=cache.reused())


def _rules(where: Mapping[str, Constraint | str | Target] | None) -> dict[str, Constraint]:
    if where is not None and not isinstance(where, Mapping):
        raise TargetError(f"where is constraints by name, such as {{'op:TopK': '@cpu'}}, not {shown(where)}")
    for key in where or {}:
        if not isinstance(key, str):
            raise TargetError(f"where speaks of ops by name, glob or 'op:KIND', not by {shown(key)}")
    return {key: Constraint.parse(value) for key, value in (where or {}).items()}


def _groups(name: str, groups: Iterable[Iterable[str]]) -> OpNames:
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise TargetError(f"{name} is groups of names of ops, such as [['q', 'k']], not {shown(groups)}")
    return tuple(_names(name, group, "groups of names of ops, such as [['q', 'k']]") for group in groups)


def _names(name: str, names: Iterable[str], wanted: str = "names of ops, such as ['q', 'k']") -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TargetError(f"{name} is {wanted}, so that {shown(names)} is none")
    listed = tuple(names)
    odd = [f"{name} is {wanted}, so that {shown(one)} is none" for one in listed if not isinstance(one, str)]
    raise_all(TargetError, odd)
    return listed


def _numbers(numbers: Mapping[str, int] | None) -> dict[str, int]:
    if numbers is not None and not isinstance(numbers, Mapping):
        raise TargetError(f"max_subgraphs is numbers by site, such as {{'npu': 4}}, not {shown(numbers)}")
    for site, number in (numbers or {}).items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise TargetError(f"max_subgraphs of {site!r} is a number, 0 or more, not {shown(number)}")
    return dict(numbers or {})


def _tree(target: Target | CompilationConfig | Mapping[str, object] | str | None) -> Target | None:
    """Return the tree that a target is given by; `TargetError` for what is none."""
    if isinstance(target, str | Mapping):
        return Target.parse(target)
    if isinstance(target, CompilationConfig):
        return target.to_target()
    if target is not None and not isinstance(target, Target):
        raise TargetError(f"a target is a Target, its text or a CompilationConfig, not {shown(target)}")
    return target
