"""Options that decide how a program is partitioned, and the plans and builds made with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tvmtarget.cli.options import Log, Near, UsageError, Where, read_where
from tvmtarget.errors import ArtifactError, TextError, TvmTargetError, did_you_mean, raise_all
from tvmtarget.files import has_file
from tvmtarget.target.problems import known_word, shown

if TYPE_CHECKING:
    from tvmtarget.autotune.log.match import Policy
    from tvmtarget.autotune.log.tuning_log import TuningLog
    from tvmtarget.building.executable import Executable
    from tvmtarget.ir.module import IRModule
    from tvmtarget.partition.costs.costs import Costs
    from tvmtarget.partition.plan import Plan
    from tvmtarget.target.constraints.constraint import Constraint
    from tvmtarget.target.tree import Target

__all__ = ["MEASURED", "PartitionArguments", "PlanOptions", "needed_target", "read_plan"]

MEASURED = "measured"

_PANEL = "Partitioning"

_Texts: TypeAlias = list[str] | None


def _option(name: str, help_text: str, metavar: str | None = None) -> Any:  # noqa: ANN401 - typer's own type
    return typer.Option(name, help=help_text, metavar=metavar, show_default=False, rich_help_panel=_PANEL)


@dataclass(frozen=True)
class PartitionArguments:
    """Options of `decompose` as texts of the command line."""

    where: Where = None
    costs: Annotated[
        str | None,
        _option(
            "--costs",
            "Choose sites by cost: a JSON file; 'roofline' to estimate from the target; 'measured' to measure here.",
            "FILE",
        ),
    ] = None
    sizes: Annotated[
        _Texts, _option("--dim", "NAME=N,...: the size of a symbolic dimension of the inputs; may be repeated.")
    ] = None
    buckets: Annotated[
        _Texts,
        _option(
            "--bucket",
            "NAME=N,...: sizes for which the program gets a body of its own; may be repeated. Inputs of other sizes "
            "run the body with symbolic dimensions.",
        ),
    ] = None
    assumed: Annotated[
        _Texts,
        _option(
            "--assume-dim",
            "NAME=N,...: value to assume for a dimension in costs while it stays symbolic; may be repeated.",
        ),
    ] = None
    objective: Annotated[
        str | None,
        _option(
            "--objective",
            "What to minimise by costs: the latency of one input, or the time of the busiest machine (throughput).",
        ),
    ] = None
    max_replicas: Annotated[
        int | None,
        _option(
            "--max-replicas",
            "The most machines that run the same operations, each for some of the inputs, with --objective throughput.",
            "N",
        ),
    ] = None
    same_site: Annotated[
        _Texts, _option("--same-site", "NAME,NAME,...: operations to place on one site; names as in --where.")
    ] = None
    apart: Annotated[_Texts, _option("--apart", "NAME,NAME,...: operations of which no two may be on one site.")] = None
    atomic: Annotated[_Texts, _option("--atomic", "NAME,NAME,...: operations to keep in one function.")] = None
    boundary_before: Annotated[
        _Texts, _option("--boundary-before", "Start a new function at an operation.", "NAME")
    ] = None
    boundary_after: Annotated[_Texts, _option("--boundary-after", "End a function after an operation.", "NAME")] = None
    max_subgraphs: Annotated[
        _Texts,
        _option("--max-subgraphs", "SITE=N: the most calls that a site may get; SITE is a path, a kind or a key."),
    ] = None
    fold_constants: Annotated[
        bool | None,
        _option(
            "--fold-constants/--no-fold-constants",
            "Whether operations whose results are known before the program runs become constants; they do by default.",
        ),
    ] = None
    constants: Annotated[
        str | None,
        _option(
            "--constants",
            "Weights: bind them in functions, lift them to parameters, or share: lift those in which calls differ.",
        ),
    ] = None

    @property
    def rules(self) -> dict[str, Constraint]:
        """The constraints of `--where`."""
        return read_where(self.where)

    def read(self, model: Path) -> IRModule:
        """Read a model, with the sizes of `--dim` and `--bucket`.

        Args:
            model: The ONNX file.

        Returns:
            The program.

        Raises:
            ModelError: The file is no valid model, the model has no such dimension, or a bucket is given twice.
            UsageError: A size is not NAME=N, or the file is none of a model.
        """
        from tvmtarget.artifact import is_artifact
        from tvmtarget.ir.buckets import with_buckets
        from tvmtarget.ir.module import IRModule
        from tvmtarget.ir.specialize import specialize

        if is_artifact(model):
            raise UsageError(
                f"{str(model)!r} is no model but a program, module or plan of this library; tvmtarget explain reports "
                "on a plan, tvmtarget compile compiles it, and tvmtarget run runs a program"
            )
        module = IRModule.from_onnx(model)
        sizes = _numbers("--dim", self.sizes, "batch=1")
        buckets = [_numbers("--bucket", [text], "batch=1") for text in self.buckets or ()]
        return with_buckets(specialize(module, sizes) if sizes else module, buckets)

    def options(self) -> dict[str, Any]:
        """Return the arguments of `decompose` by name, without `costs` and `where`.

        Raises:
            UsageError: A text is malformed, or `--objective throughput` has no costs.
        """
        from tvmtarget.partition.options import CONSTANTS, OBJECTIVES

        if self.objective == "throughput" and self.costs is None:
            raise UsageError("--objective throughput needs --costs, such as --costs roofline")
        objective = "latency" if self.objective is None else self.objective
        constants = self.constants
        if constants is not None:
            constants = known_word("--constants", constants, CONSTANTS, UsageError)
        return {
            "objective": known_word("--objective", objective, OBJECTIVES, UsageError),
            "max_replicas": 1 if self.max_replicas is None else self.max_replicas,
            "same_site": _groups("--same-site", self.same_site),
            "apart": _groups("--apart", self.apart),
            "atomic": _groups("--atomic", self.atomic),
            "boundary_before": self.boundary_before or (),
            "boundary_after": self.boundary_after or (),
            "max_subgraphs": _numbers("--max-subgraphs", self.max_subgraphs, "npu=4"),
            "fold_constants": self.fold_constants is not False,
            "constants": constants,
        }

    def read_costs(
        self, module: IRModule, target: Target, *, allow_interpreter: bool, log: TuningLog | None = None
    ) -> Costs | None:
        """Read or measure the costs that `--costs` names, with the values of `--assume-dim`.

        Args:
            module: The program, whose symbolic dimensions `--assume-dim` may name.
            target: The target to measure for `--costs measured`.
            allow_interpreter: Whether numpy may interpret leaves while they are measured.
            log: A tuning log that keeps measured rates, or None.

        Returns:
            The costs; None without `--costs`.

        Raises:
            TextError: The file of costs cannot be read, or `--assume-dim` names no dimension.
            UsageError: `--assume-dim` is given without costs.
        """
        values = _numbers("--assume-dim", self.assumed, "batch=1")
        # A mistyped name would silently leave the dimension without a size.
        known = _dims(module)
        unknown = [
            f"--assume-dim {name}={value}: the model has no symbolic dimension {name!r}"
            + (did_you_mean(name, known, listing="it has") if known else "; all of its dimensions are numbers")
            for name, value in values.items()
            if name not in known
        ]
        raise_all(TextError, unknown)
        if self.costs is None:
            if values:
                raise UsageError("--assume-dim has no effect without costs; add --costs, or fix the size by --dim")
            return None
        costs = _costs(self.costs, target, log, allow_interpreter=allow_interpreter)
        # Values of --assume-dim take precedence over those in the file of costs.
        return replace(costs, symbolic_hints={**costs.symbolic_hints, **values})


@dataclass(frozen=True)
class PlanOptions(PartitionArguments):
    """The options of a plan: those of `decompose`, and a tuning log with the policy of its lookups."""

    log: Log = None
    near: Near = False
    placement: Annotated[
        str | None,
        _option(
            "--placement",
            "auto: measure the few plans that differ here, and take the fastest; --log keeps what is measured.",
            "auto",
        ),
    ] = None

    @property
    def given(self) -> set[str]:
        """The fields whose options are given; 0 and `--no-fold-constants` are values, too."""
        absent = ("near",) if not self.near else ()
        return {name for name, value in vars(self).items() if value not in (None, []) and name not in absent}

    @property
    def policy(self) -> Policy:
        """Which records of the log may be used."""
        from tvmtarget.autotune.log.match import Policy
        from tvmtarget.building.tuned_schedules import SAME_DEVICE

        return Policy() if self.near else SAME_DEVICE

    @contextmanager
    def opened_log(self) -> Iterator[TuningLog | None]:
        """Open the log of `--log`, which has to exist unless `--placement auto` writes it.

        Yields:
            The log; None without `--log`.

        Raises:
            LogError: The log does not exist or cannot be read.
            UsageError: `--placement` or `--near` is given without `--log`, or `--placement` with `--costs`.
        """
        is_auto = self.placement is not None
        if self.placement is not None:
            known_word("--placement", self.placement, ("auto",), UsageError)
        if is_auto and self.log is None:
            raise UsageError("--placement auto needs --log, such as --log here.db, which keeps what is measured")
        if self.near and self.log is None:
            raise UsageError("--near needs --log, such as --log here.db")
        if is_auto and self.costs is not None:
            raise UsageError("--placement auto measures costs itself; omit --costs, or --placement")
        if self.log is None:
            yield None
            return
        from tvmtarget.cli.log import read_log

        with read_log(self.log, new=is_auto) as log:
            yield log

    def build(
        self,
        module: IRModule | Plan,
        target: Target | None,
        *,
        name: str,
        allow_interpreter: bool,
        cache: bool,
        jobs: int | None,
        quiet: bool,
    ) -> Executable:
        """Compile a program with these options, and show the progress.

        Args:
            module: The program, as `read` returns it, or a saved plan.
            target: The target to compile for; None for a plan, which has its own.
            name: The name of exported symbols.
            allow_interpreter: Whether numpy may interpret leaves without a code generator.
            cache: Whether to use the compile cache.
            jobs: The number of processes that compile functions; None for as many as save time.
            quiet: Whether to show no progress.

        Returns:
            The compiled program.
        """
        from tvmtarget.building.compile_plan import build
        from tvmtarget.cli.progress import compile_progress
        from tvmtarget.ir.module import IRModule

        # Without further options `build` makes the plan, and the executable records which placement of the log it used.
        is_planned_here = bool(self.given - {"where", "log", "near", "sizes"})
        with self.opened_log() as log:
            if is_planned_here and isinstance(module, IRModule) and target is not None:
                module, target = self.plan(module, target, log, allow_interpreter=allow_interpreter), None
            with compile_progress(quiet=quiet) as report:
                return build(
                    module,
                    target,
                    where=None if target is None else self.rules,
                    allow_interpreter=allow_interpreter,
                    progress=report,
                    mod_name=name,
                    log=log,
                    policy=self.policy if self.near else None,
                    cache=cache,
                    jobs=jobs,
                )

    def plan(self, module: IRModule, target: Target, log: TuningLog | None, *, allow_interpreter: bool = False) -> Plan:
        """Partition a program with these options.

        Args:
            module: The program.
            target: The target to partition for.
            log: A tuning log; the best placement that it holds is used unless `--costs` is given.
            allow_interpreter: Whether numpy may interpret leaves while costs are measured.

        Returns:
            The plan.
        """
        from tvmtarget.building.tuned_schedules import TunedChoices
        from tvmtarget.partition.plan import decompose

        options = self.options()
        if self.placement is not None and log is not None:
            return self._placed(module, target, log, options, allow_interpreter=allow_interpreter)
        costs = self.read_costs(module, target, allow_interpreter=allow_interpreter, log=log)
        plan = decompose(module, target, costs, where=self.rules, **options)
        if log is None or self.costs is not None:
            return plan
        advice = TunedChoices(log, self.policy)
        plan = advice.placed(plan)
        for applied in advice.applied:
            typer.echo(f"tuned: {applied}", err=True)
        return plan

    def _placed(
        self, module: IRModule, target: Target, log: TuningLog, options: dict[str, Any], *, allow_interpreter: bool
    ) -> Plan:
        """Measure a few plans, and return the fastest."""
        from collections import Counter

        from tvmtarget.autotune.search.auto_placement import place
        from tvmtarget.building.tuned_schedules import sites_of
        from tvmtarget.human_units import counted

        self.read_costs(module, target, allow_interpreter=allow_interpreter)  # rejects --assume-dim
        plan = place(module, target, log=log, where=self.rules, options=options, allow_interpreter=allow_interpreter)
        sites = Counter(sites_of(plan)).most_common()
        placed = ", ".join(f"{counted(count, 'op')} on @{site or '.'}" for site, count in sites)
        typer.echo(f"placement: {placed}, in {counted(len(plan.subgraphs), 'subgraph')}", err=True)
        return plan


def needed_target(model: Path, target: str | None) -> str:
    """Return the target of a model, which only a saved plan has itself.

    Args:
        model: The file of the model.
        target: The value of `--target`.

    Returns:
        The target.

    Raises:
        ArtifactError: There is no such file.
        UsageError: There is no target.
    """
    if target is None and not has_file(model):
        raise ArtifactError(f"no model or plan {str(model)!r}")
    if target is None:
        raise UsageError(f"{str(model)!r} is not a saved plan, so it needs --target, such as --target llvm")
    return target


def read_plan(path: Path, *, is_changed: bool) -> Plan:
    """Read a saved plan.

    Args:
        path: Its file.
        is_changed: Whether there are options of partitioning.

    Returns:
        The plan.

    Raises:
        ArtifactError: The file is damaged, or no plan.
        UsageError: There are options of partitioning.
    """
    from tvmtarget.partition.plan import Plan

    plan = Plan.load(path)
    if is_changed:
        raise UsageError(
            f"{str(path)!r} is a plan, which has its own target and constraints; omit --target, its edits and the "
            "options of partitioning"
        )
    return plan


def _dims(module: IRModule) -> set[str]:
    """Return the symbolic dimensions of a program."""
    from tvmtarget.ir.types import TensorType

    types = (type_ for function in module.functions for type_ in function.types.values())
    shapes = (type_.shape or () for type_ in types if isinstance(type_, TensorType))
    return {dim for shape in shapes for dim in shape if isinstance(dim, str)}


def _costs(text: str, target: Target, log: TuningLog | None, *, allow_interpreter: bool) -> Costs:
    """Measure costs, or read them from a file."""
    if text == MEASURED:
        from tvmtarget.autotune.search.rates import measure_rates

        rates = measure_rates(target, allow_interpreter=allow_interpreter, log=log)
        for line in rates.lines():
            typer.echo(line, err=True)
        return rates.costs
    from tvmtarget.partition.costs.cost_file import load_costs

    try:
        return load_costs(text)
    except TvmTargetError as error:
        raise TextError(*(f"{problem} (in --costs {text!r})" for problem in error.problems)) from error


def _groups(flag: str, texts: Sequence[str] | None) -> list[list[str]]:
    """Split texts `NAME,NAME,...`."""
    from tvmtarget.partition.options import is_group

    found: list[list[str]] = []
    problems: list[str] = []
    for text in texts or ():
        names = [name.strip() for name in text.split(",")]
        if not all(names) or not is_group(names):
            problems.append(f"{flag} {text!r} is not NAME,NAME,..., such as 'q,k' or 'op:Gemm'")
        found.append(names)
    raise_all(UsageError, problems)
    return found


def _numbers(flag: str, texts: Sequence[str] | None, example: str) -> dict[str, int]:
    """Split texts `NAME=N,NAME=N,...`; one name may not get two numbers."""
    found: dict[str, int] = {}
    problems: list[str] = []
    for text in texts or ():
        for part in text.split(","):
            name, _, number = (word.strip() for word in part.rpartition("="))
            if not name or not re.fullmatch("[0-9]{1,400}", number):
                problems.append(f"{flag} {shown(part)} is not NAME=N, such as {example!r}")
            elif found.setdefault(name, int(number)) != int(number):
                problems.append(f"{flag} {name!r} is both {found[name]} and {int(number)}; give one number")
    raise_all(UsageError, problems)
    return found
