"""`tvmtarget explain`: how a model is split over a target, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tvmtarget.artifact import is_artifact
from tvmtarget.cli.groups import with_groups
from tvmtarget.cli.options import Json, print_json
from tvmtarget.cli.plans import PlanOptions
from tvmtarget.cli.questions import Answer, Question
from tvmtarget.cli.targets import Changes, OwnTarget, read_target
from tvmtarget.errors import ArtifactError, TextError, TvmTargetError
from tvmtarget.files import atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tvmtarget.autotune.log.match import Match, Policy
    from tvmtarget.autotune.log.tuning_log import TuningLog
    from tvmtarget.partition.plan import Plan

__all__ = ["explain"]

ModelOrPlan: TypeAlias = Annotated[
    Path, typer.Argument(help="An ONNX file, or a plan that --save wrote.", show_default=False)
]


@dataclass(frozen=True)
class Files:
    """What is written beside what is printed."""

    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the plan to a file.", show_default=False)
    ] = None
    save_costs: Annotated[
        Path | None,
        typer.Option("--save-costs", metavar="FILE", help="Write the costs to a file for --costs.", show_default=False),
    ] = None
    mark: Annotated[
        Path | None,
        typer.Option(
            "--mark",
            metavar="FILE",
            help="Write the model with the site of every node in its metadata, as Netron shows it.",
            show_default=False,
        ),
    ] = None

    def write(self, plan: Plan) -> None:
        """Write what is asked for."""
        if self.save is not None:
            plan.save(self.save)
        if self.save_costs is not None:
            _write_costs(plan, self.save_costs)
        if self.mark is not None:
            _write(plan, self.mark)


@with_groups
def explain(
    context: typer.Context,
    model: ModelOrPlan,
    changes: Changes,
    asked: PlanOptions,
    question: Question,
    files: Files,
    target: OwnTarget = None,
    as_json: Json = False,
) -> None:
    """Split a model over a target and say what went where, without compiling anything.

    With --log, the placement that was measured best is taken, as a build does, if no --costs choose another, and what
    the log knows is told. A saved plan is read as it is. Exit code 1 if --diff tells a difference.
    """
    with asked.opened_log() as log:
        if is_artifact(model):
            plan = _saved(model, is_changed=bool(target or changes or context.args or asked or asked.where or log))
        else:
            plan = _made(model, target, changes, context.args, asked, log)
        known = [] if log is None or question else list(_known(plan, log, asked.policy))
    files.write(plan)
    if question:
        answer = question.answer(plan)
    else:
        text = "\n".join([*_lines(plan), *(match.explain() for match in known)])
        answer = Answer(text, plan.to_json() | ({} if log is None else {"known": [one.to_json() for one in known]}))
    if as_json:
        print_json(answer.data)
    else:
        typer.echo(answer.text)
    if answer.is_difference:
        raise typer.Exit(1)


def _saved(path: Path, *, is_changed: bool) -> Plan:
    from tvmtarget.partition.plan import Plan

    if is_changed:
        raise TextError(f"{str(path)!r} is a plan, which has its own target and requests; leave out all but questions")
    return Plan.load(path)


def _made(
    model: Path, target: str | None, changes: Changes, extra: list[str], asked: PlanOptions, log: TuningLog | None
) -> Plan:
    from tvmtarget.ir.module import IRModule

    if target is None:
        raise TextError(f"{str(model)!r} is no saved plan, so it needs --target, such as --target llvm")
    tree = read_target(target, changes, extra)
    return asked.plan(IRModule.from_onnx(model), tree, log)


def _known(plan: Plan, log: TuningLog, policy: Policy) -> Iterator[Match]:
    """Yield what a log answers to all that a build of a plan would ask of it."""
    from tvmtarget.backends.protocol import TunableBackend
    from tvmtarget.building.compile_plan import choose_backend, part_of, standing_alone
    from tvmtarget.building.tuned_schedules import alone, kernel_match, whole_match
    from tvmtarget.errors import BackendError

    root = plan.topology.root
    if root.is_composite:
        yield whole_match(log, plan, "graph", policy, is_default=False)
    yield whole_match(log, plan, "executor", policy)
    asked = set[tuple[str, str]]()
    for subgraph in plan.subgraphs:
        leaf = standing_alone(plan.topology, subgraph.site)
        try:
            backend, _ = choose_backend(plan.topology, subgraph.site, allow_interpreter=False)
            spaces = (
                backend.workshop(part_of(plan, subgraph, leaf)).spaces if isinstance(backend, TunableBackend) else {}
            )
        except BackendError as error:
            typer.echo(f"note: {'; '.join(error.problems)}", err=True)
            continue
        for key, space in spaces.items():
            if (key, subgraph.site) not in asked:
                asked.add((key, subgraph.site))
                yield kernel_match(log, space.kernel, alone(leaf), policy)


def _write(plan: Plan, path: Path) -> None:
    import onnx

    try:
        with atomic_write(path) as file:
            onnx.save(plan.marked(), file)
    except TvmTargetError:
        raise
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{str(path)!r} cannot be written: {getattr(error, 'strerror', None) or error}") from error


def _write_costs(plan: Plan, path: Path) -> None:
    import json

    from tvmtarget.partition.costs.cost_file import write_costs

    if plan.request.costs is None:
        raise TextError("--save-costs has nothing to write; it needs --costs, such as --costs measured")
    try:
        with atomic_write(path) as file:
            file.write((json.dumps(write_costs(plan.request.costs), indent=2) + "\n").encode())
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error


def _lines(plan: Plan) -> list[str]:
    lines = [plan.summary()]
    for subgraph in plan.subgraphs:
        shown = ", ".join(subgraph.ops[:4]) + (f", ... ({len(subgraph.ops)} ops)" if len(subgraph.ops) > 4 else "")
        lines.append(f"{subgraph.function} on @{subgraph.site or '.'}: {shown}")
    return lines
