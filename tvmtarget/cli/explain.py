"""`tvmtarget explain`: partition a model without compiling it, and report on the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.artifact import is_artifact
from tvmtarget.cli.option_groups import with_option_groups
from tvmtarget.cli.options import Json, ModelOrPlan, UsageError, check_folders, print_json, split_rules
from tvmtarget.cli.plans import PlanOptions, needed_target, read_plan
from tvmtarget.cli.targets import OptionalTarget, TargetEdits, read_target
from tvmtarget.errors import ArtifactError, BackendError, TvmTargetError
from tvmtarget.files import atomic_write
from tvmtarget.human_units import counted

if TYPE_CHECKING:
    from tvmtarget.autotune.log.match import Match, Policy
    from tvmtarget.autotune.log.tuning_log import TuningLog
    from tvmtarget.partition.plan import Plan
    from tvmtarget.partition.reports.difference import PlanDifference
    from tvmtarget.partition.reports.explain import Explanation
    from tvmtarget.partition.reports.what_if import Sensitivity

__all__ = ["explain"]


@dataclass(frozen=True)
class PlanFiles:
    """Options that name files to write in addition to the printed report."""

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
            help="Write the model with the site of each node in its metadata, for viewers such as Netron.",
            show_default=False,
        ),
    ] = None

    def write(self, plan: Plan) -> None:
        """Write the files that the options name.

        Args:
            plan: The plan to write.

        Raises:
            ArtifactError: A file cannot be written.
            UsageError: `--save-costs` is given for a plan without costs.
        """
        if self.save is not None:
            plan.save(self.save)
        if self.save_costs is not None:
            _write_costs(plan, self.save_costs)
        if self.mark is not None:
            _write_model(plan, self.mark)


class GraphLanguage(StrEnum):
    """Languages of `--draw`."""

    dot = "dot"
    mermaid = "mermaid"


@dataclass(frozen=True)
class Report:
    """A report on a plan as text and as data; `is_difference` if it lists differences from the plan of `--diff`."""

    text: str
    data: object
    is_difference: bool = False


@dataclass(frozen=True)
class ReportOptions:
    """Options that replace the summary of a plan by another report; at most one may be given."""

    op: Annotated[
        str | None, typer.Option("--op", help="Explain the site of one operation.", metavar="OP", show_default=False)
    ] = None
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="OP=SITE",
            help="Report the effect of moving operations to a site, both named as in --where; may be repeated.",
            show_default=False,
        ),
    ] = None
    sensitivity: Annotated[
        str | None,
        typer.Option(
            "--sensitivity",
            metavar="OP",
            help="Report from which time on an operation is better on another site; needs --costs.",
            show_default=False,
        ),
    ] = None
    blockers: Annotated[
        bool,
        typer.Option("--blockers", help="List the unsupported operators whose support would improve the plan most."),
    ] = False
    alternatives: Annotated[
        bool,
        typer.Option("--alternatives", help="Compare with the plan without costs, and with each leaf alone."),
    ] = False
    diff: Annotated[
        Path | None,
        typer.Option(
            "--diff",
            metavar="FILE",
            help="Report the differences from a plan written by --save; exit code 1 if there are any.",
            show_default=False,
        ),
    ] = None
    draw: Annotated[
        GraphLanguage | None, typer.Option("--draw", help="Print the graph of subgraphs.", show_default=False)
    ] = None

    def __post_init__(self) -> None:
        given = self._given
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} are {len(given)} reports; request one at a time")

    @property
    def is_given(self) -> bool:
        """Whether a report other than the summary is requested."""
        return bool(self._given)

    @property
    def _given(self) -> list[str]:
        # An empty text is a name that no operation has, not an absent option.
        values = vars(self).items()
        return [f"--{name.replace('_', '-')}" for name, value in values if value not in (None, False, [])]

    def report(self, plan: Plan) -> Report:
        """Return the report that the options request.

        Args:
            plan: The plan to report on.

        Returns:
            The answer to the one question that an option requests, else the summary.
        """
        if self.draw is not None:
            graph = plan.dot() if self.draw is GraphLanguage.dot else plan.mermaid()
            return Report(graph.rstrip("\n"), {"draw": self.draw.value, "text": graph})
        if self.blockers:
            blockers = plan.blockers()
            text = "\n".join(map(str, blockers)) or "no operator alone would improve the plan"
            return Report(text, [blocker.to_json() for blocker in blockers])
        if self.alternatives:
            alternatives = plan.alternatives()
            return Report("\n".join(map(str, alternatives)), [one.to_json() for one in alternatives])
        found = self._structured_report(plan)
        return Report(str(found), found.to_json(), is_difference=self.diff is not None and bool(found))

    def _structured_report(self, plan: Plan) -> Explanation | PlanDifference | Sensitivity:
        if self.what_if:
            return plan.diff(plan.what_if(split_rules(self.what_if, "--what-if")))
        if self.sensitivity is not None:
            return plan.sensitivity(self.sensitivity)
        if self.diff is not None:
            return type(plan).load(self.diff).diff(plan)
        return plan.explain(str(self.op))


@with_option_groups
def explain(
    context: typer.Context,
    model: ModelOrPlan,
    *,
    target: OptionalTarget = None,
    reports: ReportOptions,
    files: PlanFiles,
    as_json: Json = False,
    options: PlanOptions,
    edits: TargetEdits,
) -> None:
    """Partition a model over a target and report the sites and the reasons, without compiling.

    With --log and without --costs, the placement that was measured fastest is used, as a build uses it, and the
    matching records of the log are listed. A saved plan is reported as it is.
    """
    check_folders(files.save, files.save_costs, files.mark)
    with options.opened_log() as log:
        if is_artifact(model):
            plan = read_plan(model, is_changed=bool(target or edits or context.args or options.given))
        else:
            tree = read_target(needed_target(model, target), edits, context.args)
            plan = options.plan(options.read(model), tree, log)
        # Looked up here, because the log is closed at the end of the block.
        matches = [] if log is None or reports.is_given else list(_matches(plan, log, options.policy))
    # Written before the report, which ends with exit code 1 if `--diff` finds differences.
    files.write(plan)
    if reports.is_given:
        report = reports.report(plan)
    else:
        text = "\n".join([*_summary(plan), *(match.explain() for match in matches)])
        report = Report(text, plan.to_json() | ({} if log is None else {"known": [one.to_json() for one in matches]}))
    if as_json:
        print_json(report.data)
    else:
        typer.echo(report.text)
    if report.is_difference:
        raise typer.Exit(1)


def _matches(plan: Plan, log: TuningLog, policy: Policy) -> Iterator[Match]:
    """Yield the result of every lookup in the log that a build of the plan performs."""
    from tvmtarget.building.backend_choice import choose_backend
    from tvmtarget.building.compile_plan import codegen_target, compile_request
    from tvmtarget.building.tuned_schedules import kernel_target, lookup_kernel, lookup_program

    root = plan.topology.root
    if root.is_composite:
        yield lookup_program(log, plan, "graph", policy, is_default=False)
    yield lookup_program(log, plan, "executor", policy)
    looked_up = set[tuple[str, str]]()
    for subgraph in plan.subgraphs:
        leaf = codegen_target(plan.topology, subgraph.site)
        try:
            backend, _ = choose_backend(plan.topology, subgraph.site, allow_interpreter=False)
            spaces = (
                backend.tuning_context(compile_request(plan, subgraph, leaf)).spaces
                if "tuning" in backend.supports
                else {}
            )
        except BackendError as error:
            typer.echo(f"note: {'; '.join(error.problems)}", err=True)
            continue
        for key, space in spaces.items():
            if (key, subgraph.site) not in looked_up:
                # Subgraphs that share a kernel on a site share its record, which is reported once.
                looked_up.add((key, subgraph.site))
                yield lookup_kernel(log, space.kernel, kernel_target(leaf), policy)


def _write_model(plan: Plan, path: Path) -> None:
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

    if plan.options.costs is None:
        raise UsageError("--save-costs needs --costs, such as --costs measured; there are no costs to write")
    try:
        with atomic_write(path) as file:
            file.write((json.dumps(write_costs(plan.options.costs), indent=2) + "\n").encode())
    except OSError as error:
        raise ArtifactError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error


def _summary(plan: Plan) -> Iterator[str]:
    yield plan.summary()
    for subgraph in plan.subgraphs:
        ops = ", ".join(subgraph.ops[:4])
        if len(subgraph.ops) > 4:
            ops += f", ... ({counted(len(subgraph.ops), 'op')})"
        yield f"{subgraph.function} on @{subgraph.site or '.'}: {ops}"
