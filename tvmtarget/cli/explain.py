"""`tvmtarget explain`: how a model is split over a target, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.cli.options import Json, Model, Where, print_json, read_where
from tvmtarget.cli.targets import Changes, Executor, Runtime, Set, TargetText, Unset, With, read_target

if TYPE_CHECKING:
    from tvmtarget.partition.plan import Plan

__all__ = ["explain"]


def explain(
    context: typer.Context,
    model: Model,
    target: TargetText,
    overlays: With = None,
    values: Set = None,
    unset: Unset = None,
    executor: Executor = None,
    runtime: Runtime = None,
    where: Where = None,
    op: Annotated[str | None, typer.Option("--op", help="Explain one operation, by name.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Split a model over a target and say what went where, without compiling anything."""
    from tvmtarget.ir.module import IRModule
    from tvmtarget.partition.decompose import decompose

    rules = read_where(where)
    tree = read_target(target, Changes(overlays, executor, runtime, context.args, values, unset))
    plan = decompose(IRModule.from_onnx(model), tree, where=rules)
    if op is not None:
        explanation = plan.explain(op)
        if as_json:
            print_json(explanation.to_json())
        else:
            typer.echo(str(explanation))
    elif as_json:
        print_json(plan.to_json())
    else:
        _print(plan)


def _print(plan: Plan) -> None:
    typer.echo(plan.summary())
    for region in plan.regions:
        shown = ", ".join(region.ops[:4]) + (f", ... ({len(region.ops)} ops)" if len(region.ops) > 4 else "")
        typer.echo(f"{region.function} on @{region.site or '.'}: {shown}")
