"""A plan as JSON data: subgraphs, copies, systems, driven control flow, and predictions."""

from __future__ import annotations

from typing import Any

from tvmtarget.partition.decomposition import Decomposition
from tvmtarget.partition.memory_use import memory_uses
from tvmtarget.partition.outline.outlining import DrivenRecord, SubgraphRecord
from tvmtarget.partition.reports.rules import RuleEffects
from tvmtarget.partition.reports.summary import systems_in
from tvmtarget.partition.reports.unsupported import unsupported_ops

__all__ = ["plan_json"]


def plan_json(plan: Decomposition) -> dict[str, Any]:
    """Return a plan as JSON data.

    Args:
        plan: the plan.

    Returns:
        Lists of `subgraphs`, `copies` (`bytes` are None for a dynamic shape) and `systems` (`least` is a lower bound of
        their subgraphs for these sites). `runs` is the expected number of runs of a subgraph in a nested body, unless
        it is 1. Where there are any: `unsupported` operations, which run elsewhere because a preferred site does not
        support them, with the reason; `rules` with counts by effect, `driven` control flow, `memories` with a
        limit and the bytes of weights and values there, `predicted` times, and `machines` of a cluster.
    """
    listed = {
        "subgraphs": [_subgraph(subgraph) for subgraph in plan.subgraphs],
        "copies": [
            {"value": copy.value, "src": copy.src, "dst": copy.dst, "bytes": copy.nbytes, "driver": copy.driver}
            for copy in plan.copies
        ],
        "systems": [
            {"site": system.site.path, "subgraphs": len(system.parts), "least": system.least_parts}
            for system in systems_in(plan.root)
        ],
    }
    unsupported = [group.to_json() for group in unsupported_ops(plan)]
    rules = [rule.to_json() for rule in RuleEffects.of(plan).reports()]
    driven = [_driven(plan, one) for one in plan.outlined.driven]
    memories = [use.to_json() for use in memory_uses(plan)]
    return (
        listed
        | ({"unsupported": unsupported} if unsupported else {})
        | ({"rules": rules} if rules else {})
        | ({"driven": driven} if driven else {})
        | ({"memories": memories} if memories else {})
        | ({} if plan.prediction is None else {"predicted": plan.prediction.to_json()})
        | ({} if plan.throughput is None else {"machines": plan.throughput.to_json()})
    )


def _subgraph(subgraph: SubgraphRecord) -> dict[str, Any]:
    return (
        {
            "site": subgraph.site,
            "function": subgraph.function,
            "ops": list(subgraph.ops),
            "inputs": list(subgraph.inputs),
            "outputs": list(subgraph.outputs),
        }
        | ({"inner": list(subgraph.inner)} if subgraph.inner else {})
        | ({"runs": float(subgraph.runs)} if subgraph.runs != 1 else {})
    )


def _driven(plan: Decomposition, one: DrivenRecord) -> dict[str, Any]:
    return {
        "op": one.op,
        "kind": plan.program.body[one.call].kind,
        "driver": one.driver,
        "site": plan.topology[one.system].host,
        "bodies": {
            scope.label: [plan.program.body[index].source for index in scope.calls]
            for scope in plan.program.bodies[one.call]
        },
    }
