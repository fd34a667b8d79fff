"""`decompose`: an ordinary pass that gives every operation a site and every site its functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtarget.errors import TargetError
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.bonds import Named
from tvmtarget.partition.costs.cost_file import load_costs
from tvmtarget.partition.costs.costs import Costs
from tvmtarget.partition.plan import Plan, planned
from tvmtarget.partition.request import OBJECTIVES, Objective, Request
from tvmtarget.partition.weights import CONSTANTS, Constants
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
    target: Target | CompilationConfig | str | None = None,
    costs: Costs | Mapping[str, object] | str | Path | None = None,
    *,
    where: Mapping[str, Constraint | str | Target] | None = None,
    objective: Objective = "latency",
    same_site: Iterable[Iterable[str]] = (),
    apart: Iterable[Iterable[str]] = (),
    constants: Constants | None = None,
) -> Plan:
    """Split the entry of a module over the nodes of a target, down to single leaves.

    Args:
        module: a program, an ONNX file, its bytes or model, or a module of Apache TVM; constraints that its functions
            and calls already bear are kept.
        target: the tree, its text, or a flat configuration; the module's own unless given.
        costs: what operations and copies take (`load_costs`): data, a JSON file, or `roofline`, the target's own facts
            alone. Sites are then chosen by time among those that are allowed and preferred alike; without costs it
            is the first of these.
        where: constraints by name or glob of operations (`decoder.*`), or by operator (`op:TopK`); the last
            rule that matches an operation counts.
        objective: what costs make small: `latency`, the time of one input, or `throughput`, what the busiest machine of
            a cluster has to do for each of many inputs.
        same_site: groups of operations, named as in `where`, that must share a leaf.
        apart: groups of operations of which no two may.
        constants: `bind` makes weights parts of functions, `lift` gives them to functions as parameters, `share` does
            where one function so does for several parts of the program; unless given, as each code generator says.

    Returns the plan: `plan.module` with every decision as a constraint that names one node, and its report.
    Raises `InfeasibleError` with the reasons for operations that fit no site, `UnknownNameError` for names that
    are not in the model or the tree, `ModelError` for an invalid module.
    """
    chosen = _tree(target)
    program = IRModule.of(module, chosen)
    chosen = chosen or program.target
    if chosen is None:
        raise TargetError("no target is given and the module has none; pass one, such as 'llvm'")
    rules = {key: Constraint.parse(value) for key, value in (where or {}).items()}
    if objective not in OBJECTIVES:
        raise TargetError(f"objective is {' or '.join(OBJECTIVES)}, not {objective!r}")
    if objective == "throughput" and costs is None:
        raise TargetError("objective 'throughput' is about time, so it needs costs; pass some, such as 'roofline'")
    if constants is not None and constants not in CONSTANTS:
        raise TargetError(f"constants is {' or '.join(CONSTANTS)}, not {constants!r}")
    together, parted = _groups("same_site", same_site), _groups("apart", apart)
    loaded = None if costs is None else load_costs(costs)
    request = Request(program, chosen, rules, loaded, objective, together, parted, constants)
    return planned(request, request.feasibility())


def _groups(name: str, groups: Iterable[Iterable[str]]) -> Named:
    listed = [groups] if isinstance(groups, str) else list(groups)
    for group in listed:
        if isinstance(group, str):
            raise TargetError(f"{name} is groups of names of ops, such as [['q', 'k']], so that {group!r} is none")
    return tuple(tuple(names) for names in listed)


def _tree(target: Target | CompilationConfig | str | None) -> Target | None:
    """Return the tree that a target is given by; `TargetError` for what is none."""
    if isinstance(target, str):
        return Target.parse(target)
    if isinstance(target, CompilationConfig):
        return target.to_target()
    if target is not None and not isinstance(target, Target):
        raise TargetError(f"a target is a Target, its text or a CompilationConfig, not {shown(target)}")
    return target
