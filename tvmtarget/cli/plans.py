"""What commands ask of a plan: the options of `decompose`, and a tuning log whose placement is taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from tvmtarget.cli.options import Log, Near, Where, progress, read_policy, read_where
from tvmtarget.errors import TextError, TvmTargetError, did_you_mean

if TYPE_CHECKING:
    from tvmtarget.autotune.log.match import Policy
    from tvmtarget.autotune.log.tuning_log import TuningLog
    from tvmtarget.building.executable import Executable
    from tvmtarget.ir.module import IRModule
    from tvmtarget.partition.costs.costs import Costs
    from tvmtarget.partition.plan import Plan
    from tvmtarget.target.constraints.constraint import Constraint
    from tvmtarget.target.tree import Target

__all__ = ["Division", "PlanOptions"]

MEASURED = "measured"

_PANEL = "How the program is divided"

_Texts: TypeAlias = list[str] | None
_Word = TypeVar("_Word", bound=str)


def _option(name: str, help_text: str, metavar: str | None = None) -> Any:  # noqa: ANN401 - typer's own type
    return typer.Option(name, help=help_text, metavar=metavar, show_default=False, rich_help_panel=_PANEL)


@dataclass(frozen=True)
class Division:
    """The options that say how a program is divided, as they are typed."""

    where: Where = None
    costs: Annotated[
        str | None,
        _option(
            "--costs",
            "Choose sites by cost: a JSON file, 'roofline' for what the target itself says, or 'measured', here.",
            "FILE",
        ),
    ] = None
    sizes: Annotated[_Texts, _option("--size", "NAME=NUMBER: what --costs assume for a symbolic dimension.")] = None
    objective: Annotated[
        str | None,
        _option("--objective", "What costs make small: latency of an input, or throughput of many on a cluster."),
    ] = None
    same_site: Annotated[
        _Texts, _option("--same-site", "NAME,NAME,...: operations that share a site; names as in --where.")
    ] = None
    apart: Annotated[_Texts, _option("--apart", "NAME,NAME,...: operations of which no two share a site.")] = None
    atomic: Annotated[_Texts, _option("--atomic", "NAME,NAME,...: operations that are in one function.")] = None
    boundary_before: Annotated[
        _Texts, _option("--boundary-before", "An operation that is in no function with what it reads.", "NAME")
    ] = None
    boundary_after: Annotated[
        _Texts, _option("--boundary-after", "An operation that is in no function with what reads it.", "NAME")
    ] = None
    max_subgraphs: Annotated[
        _Texts, _option("--max-subgraphs", "SITE=NUMBER: the most calls that a site, by path, kind or key, may get.")
    ] = None
    constants: Annotated[
        str | None, _option("--constants", "Weights: bind them in functions, lift them to parameters, or share those.")
    ] = None

    @property
    def rules(self) -> dict[str, Constraint]:
        """What `--where` says."""
        return read_where(self.where)

    def options(self) -> dict[str, Any]:
        """Return what is typed as arguments of `decompose`, without costs and `where`."""
        from tvmtarget.partition.outline.constant_binding import CONSTANTS
        from tvmtarget.partition.request import OBJECTIVES

        if self.objective == "throughput" and self.costs is None:
            raise TextError("--objective throughput is about time, so it needs --costs, such as --costs roofline")
        return {
            "objective": _one_of("--objective", self.objective, OBJECTIVES) or "latency",
            "same_site": _groups("--same-site", self.same_site),
            "apart": _groups("--apart", self.apart),
            "atomic": _groups("--atomic", self.atomic),
            "boundary_before": self.boundary_before or (),
            "boundary_after": self.boundary_after or (),
            "max_subgraphs": _numbers("--max-subgraphs", self.max_subgraphs, "npu=4"),
            "constants": _one_of("--constants", self.constants, CONSTANTS),
        }

    def read_costs(self, module: IRModule, target: Target, *, allow_interpreter: bool) -> Costs | None:
        """Read or measure the costs that are typed, with the sizes of symbolic dimensions of a model."""
        sizes = _numbers("--size", self.sizes, "batch=1")
        dims = _dims(module)
        strays = [
            f"--size {name}={size}: the model has no symbolic dimension {name!r}"
            + (did_you_mean(name, dims, listing="it has") if dims else "; all of its dimensions are numbers")
            for name, size in sizes.items()
            if name not in dims
        ]
        if strays:
            raise TextError("\n".join(strays))
        if self.costs is None:
            if sizes:
                raise TextError("--size is for costs; it needs --costs, such as --costs measured")
            return None
        costs = _costs(self.costs, target, allow_interpreter=allow_interpreter)
        return replace(costs, symbolic_hints={**costs.symbolic_hints, **sizes})


@dataclass(frozen=True)
class PlanOptions(Division):
    """How a program is divided, and a tuning log; true if an option but `--where`, `--log` and `--near` is typed."""

    log: Log = None
    near: Near = False

    def __bool__(self) -> bool:
        return any(value for name, value in vars(self).items() if name not in ("where", "log", "near"))

    @property
    def policy(self) -> Policy:
        """How far lookups in the log may go."""
        return read_policy(near=self.near)

    @contextmanager
    def opened_log(self) -> Iterator[TuningLog | None]:
        """Open the log of `--log`, which has to be there; None where none is asked for."""
        if self.log is None:
            yield None
            return
        from tvmtarget.cli.log import read_log

        with read_log(self.log) as log:
            yield log

    def build(self, model: Path, target: Target, *, allow_interpreter: bool, quiet: bool) -> Executable:
        """Compile a model as it is asked, with the log, and tell how far that is."""
        from tvmtarget.building.compile_plan import build
        from tvmtarget.ir.module import IRModule

        module = IRModule.from_onnx(model)
        with self.opened_log() as log:
            plan = self.plan(module, target, log, allow_interpreter=allow_interpreter) if self else None
            with progress(quiet=quiet) as tell:
                return build(
                    plan or module,
                    None if plan else target,
                    where=None if plan else self.rules,
                    allow_interpreter=allow_interpreter,
                    progress=tell,
                    mod_name=model.stem,
                    log=log,
                    policy=self.policy,
                )

    def plan(self, module: IRModule, target: Target, log: TuningLog | None, *, allow_interpreter: bool = False) -> Plan:
        """Divide a program as it is asked; without costs, by the placement in a log, if that has one."""
        from tvmtarget.building.tuned_schedules import Advice
        from tvmtarget.partition.decompose import decompose

        options = self.options()
        costs = self.read_costs(module, target, allow_interpreter=allow_interpreter)
        plan = decompose(module, target, costs, where=self.rules, **options)
        if log is None or self.costs is not None:
            return plan
        advice = Advice(log, self.policy)
        plan = advice.placed(plan)
        for applied in advice.applied:
            typer.echo(f"tuned: {applied}", err=True)
        return plan


def _dims(module: IRModule) -> set[str]:
    """Return the symbolic dimensions of a model."""
    from tvmtarget.ir.types import TensorType

    types = (type_ for function in module.functions for type_ in function.types.values())
    shapes = (type_.shape or () for type_ in types if isinstance(type_, TensorType))
    return {dim for shape in shapes for dim in shape if isinstance(dim, str)}


def _costs(text: str, target: Target, *, allow_interpreter: bool) -> Costs:
    """Measure costs, or read them from a file."""
    if text == MEASURED:
        from tvmtarget.autotune.search.rates import measure_rates

        rates = measure_rates(target, allow_interpreter=allow_interpreter)
        for line in rates.lines():
            typer.echo(line, err=True)
        return rates.costs
    from tvmtarget.partition.costs.cost_file import load_costs

    try:
        return load_costs(text)
    except TvmTargetError as error:
        raise TextError("\n".join(f"{problem} (in --costs {text!r})" for problem in error.problems)) from error


def _one_of(flag: str, text: str | None, known: tuple[_Word, ...]) -> _Word | None:
    """Return the word that is typed, one of those known; None if none is."""
    chosen = next((each for each in known if each == text), None)
    if text is not None and chosen is None:
        raise TextError(f"{flag} is {' or '.join(known)}, not {text!r}{did_you_mean(text, known)}")
    return chosen


def _groups(flag: str, texts: Sequence[str] | None) -> list[list[str]]:
    found: list[list[str]] = []
    problems: list[str] = []
    for text in texts or ():
        names = [name.strip() for name in text.split(",")]
        if not all(names) or (len(names) == 1 and not any(letter in text for letter in "*?[:")):
            problems.append(f"{flag} {text!r} is not NAME,NAME,..., such as 'q,k' or 'op:Gemm'")
        found.append(names)
    if problems:
        raise TextError("\n".join(problems))
    return found


def _numbers(flag: str, texts: Sequence[str] | None, example: str) -> dict[str, int]:
    split = [(text, *text.rpartition("=")) for text in texts or ()]
    problems = [
        f"{flag} {text!r} is not NAME=NUMBER, such as {example!r}"
        for text, name, _, number in split
        if not name.strip() or not number.strip().isdecimal()
    ]
    if problems:
        raise TextError("\n".join(problems))
    return {name.strip(): int(number) for _, name, _, number in split}
