"""`tvmtarget explain`: how a model is split over a target, and why."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.cli.options import Json, Log, Model, Near, Where, print_json, read_policy, read_where
from tvmtarget.cli.plans import Apart, Asked, CostsText, ObjectiveText, SameSite, Sizes
from tvmtarget.cli.targets import Changes, Executor, Runtime, Set, TargetText, Unset, With, read_target
from tvmtarget.errors import ArtifactError, TextError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tvmtarget.partition.plan import Plan
    from tvmtarget.tuning.log import TuningLog
    from tvmtarget.tuning.match import Match, Policy

__all__ = ["explain"]


class Drawing(StrEnum):
    """Languages of pictures."""

    dot = "dot"
    mermaid = "mermaid"


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
    costs: CostsText = None,
    objective: ObjectiveText = None,
    same_site: SameSite = None,
    apart: Apart = None,
    sizes: Sizes = None,
    op: Annotated[str | None, typer.Option("--op", help="Explain one operation, by name.", show_default=False)] = None,
    what_if: Annotated[
        str | None,
        typer.Option(
            "--what-if",
            metavar="OP=SITE",
            help="Say what would change if a site took an operation, or 'op:KIND', that it refuses.",
            show_default=False,
        ),
    ] = None,
    blockers: Annotated[
        bool, typer.Option("--blockers", help="List the operators whose support would gain most.")
    ] = False,
    draw: Annotated[
        Drawing | None, typer.Option("--draw", help="Print the regions as a picture.", show_default=False)
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the plan to a file.", show_default=False)
    ] = None,
    save_costs: Annotated[
        Path | None,
        typer.Option("--save-costs", metavar="FILE", help="Write the costs to a file for --costs.", show_default=False),
    ] = None,
    mark: Annotated[
        Path | None,
        typer.Option(
            "--mark",
            metavar="FILE",
            help="Write the model with the site of every node in its metadata, as Netron shows it.",
            show_default=False,
        ),
    ] = None,
    log: Log = None,
    near: Near = False,
    as_json: Json = False,
) -> None:
    """Split a model over a target and say what went where, without compiling anything.

    With --log, the placement that was measured best is taken, as a build does, if no --costs choose another, and what
    the log knows is told.
    """
    from tvmtarget.ir.module import IRModule

    asked = Asked(read_where(where), costs, objective, same_site, apart, sizes)
    tree = read_target(target, Changes(overlays, executor, runtime, context.args, values, unset))
    plan = asked.plan(IRModule.from_onnx(model), tree)
    known: list[Match] = []
    if log is not None:
        plan, known = _from_log(plan, log, read_policy(near=near))
    if save is not None:
        plan.save(save)
    if save_costs is not None:
        _write_costs(plan, save_costs)
    if mark is not None:
        _write(plan, mark)
    if draw is not None:
        typer.echo(plan.dot() if draw is Drawing.dot else plan.mermaid(), nl=False)
    elif op is not None:
        explanation = plan.explain(op)
        _show(str(explanation), explanation.to_json(), as_json=as_json)
    elif what_if is not None:
        name, equals, site = what_if.rpartition("=")
        if not equals:
            raise TextError(f"--what-if {what_if!r} is not OP=SITE, such as 'op:Pad=npu'")
        difference = plan.diff(plan.what_if(name, site))
        _show(str(difference), difference.to_json(), as_json=as_json)
    elif blockers:
        found = plan.blockers()
        text = "\n".join(map(str, found)) or "no operator alone would gain anything"
        _show(text, [blocker.to_json() for blocker in found], as_json=as_json)
    else:
        text = "\n".join([*_lines(plan), *(match.explain() for match in known)])
        data = plan.to_json() | ({} if log is None else {"known": [match.to_json() for match in known]})
        _show(text, data, as_json=as_json)


def _from_log(plan: Plan, url: str, policy: Policy) -> tuple[Plan, list[Match]]:
    """Return the plan with the placement of a log, and what else the log knows of its program."""
    from tvmtarget.advice import Advice, closing_log
    from tvmtarget.cli.log import read_log

    with closing_log(read_log(url)) as log, log:
        placed = Advice(log, policy).placed(plan) if plan.request.costs is None else plan
        return placed, list(_matches(plan, placed, log, policy))


def _matches(plan: Plan, placed: Plan, log: TuningLog, policy: Policy) -> Iterator[Match]:
    from tvmtarget.advice import alone, kernel_workload, whole_workload
    from tvmtarget.backends.protocol import TunableBackend
    from tvmtarget.building import choose_backend, part_of, standing_alone
    from tvmtarget.errors import BackendError

    root = plan.layout.root
    if root.is_composite:
        yield log.lookup(whole_workload(plan, "graph"), root, policy=policy)
    yield log.lookup(whole_workload(placed, "executor"), root, policy=policy)
    asked = set[tuple[str, str]]()
    for region in placed.regions:
        leaf = standing_alone(placed.layout, region.site)
        try:
            backend, _ = choose_backend(placed.layout, region.site, strict=False)
            spaces = (
                backend.workshop(part_of(placed, region, leaf)).spaces if isinstance(backend, TunableBackend) else {}
            )
        except BackendError as error:
            typer.echo(f"note: {'; '.join(error.problems)}", err=True)
            continue
        for key, space in spaces.items():
            if (key, region.site) not in asked:
                asked.add((key, region.site))
                yield log.lookup(kernel_workload(space.kernel), alone(leaf), policy=policy)


def _write(plan: Plan, path: Path) -> None:
    import onnx

    try:
        onnx.save(plan.marked(), path)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{str(path)!r} cannot be written: {getattr(error, 'strerror', None) or error}") from error


def _write_costs(plan: Plan, path: Path) -> None:
    import json

    from tvmtarget.partition.costs.cost_file import write_costs

    if plan.request.costs is None:
        raise TextError("--save-costs has nothing to write; it needs --costs, such as --costs measured")
    try:
        path.write_text(json.dumps(write_costs(plan.request.costs), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error


def _show(text: str, data: object, *, as_json: bool) -> None:
    if as_json:
        print_json(data)
    else:
        typer.echo(text)


def _lines(plan: Plan) -> list[str]:
    lines = [plan.summary()]
    for region in plan.regions:
        shown = ", ".join(region.ops[:4]) + (f", ... ({len(region.ops)} ops)" if len(region.ops) > 4 else "")
        lines.append(f"{region.function} on @{region.site or '.'}: {shown}")
    return lines
