"""What commands ask of a plan beside `--where`: costs, what they make small, operations that share a site or do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, TypeAlias, get_args

import typer

from tvmtarget.errors import TextError, TvmTargetError, did_you_mean

if TYPE_CHECKING:
    from tvmtarget.ir.module import IRModule
    from tvmtarget.partition.costs.costs import Costs
    from tvmtarget.partition.plan import Plan
    from tvmtarget.target.constraints.constraint import Constraint
    from tvmtarget.target.tree import Target
    from tvmtarget.tuning.match import Policy

__all__ = ["Apart", "Asked", "CostsText", "ObjectiveText", "SameSite", "Sizes"]

MEASURED = "measured"

CostsText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--costs",
        metavar="FILE",
        help="Choose sites by cost: a JSON file, 'roofline' for what the target itself says, or 'measured', here.",
        show_default=False,
    ),
]
ObjectiveText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help="What costs make small: latency of an input, or throughput of many on a cluster.",
        show_default=False,
    ),
]
SameSite: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--same-site", help="NAME,NAME,...: operations that share a site; names as in --where.", show_default=False
    ),
]
Apart: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--apart", help="NAME,NAME,...: operations of which no two share a site.", show_default=False),
]
Sizes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--size", help="NAME=NUMBER: what --costs reckon an open dimension with.", show_default=False),
]


@dataclass(frozen=True)
class Asked:
    """What a command line asks of a plan; false where that is nothing beside `where`."""

    where: Mapping[str, Constraint]
    costs: str | None = None
    objective: str | None = None
    same_site: Sequence[str] | None = None
    apart: Sequence[str] | None = None
    sizes: Sequence[str] | None = None

    def __bool__(self) -> bool:
        return bool(self.costs or self.objective or self.same_site or self.apart or self.sizes)

    def plan(self, module: IRModule, target: Target, log: str | None = None, *, policy: Policy | None = None) -> Plan:
        """Divide a program as it is asked; without costs, by the placement in a log, if that has one."""
        from tvmtarget.advice import SAME_DEVICE, Advice, closing_log
        from tvmtarget.partition.decompose import decompose
        from tvmtarget.partition.request import Objective

        objective = self.objective or "latency"
        known: tuple[Objective, ...] = get_args(Objective)
        chosen = next((each for each in known if each == objective), None)
        if chosen is None:
            raise TextError(f"--objective is {' or '.join(known)}, not {objective!r}{did_you_mean(objective, known)}")
        if chosen == "throughput" and self.costs is None:
            raise TextError("--objective throughput is about time, so it needs --costs, such as --costs roofline")
        together, parted = _groups("--same-site", self.same_site), _groups("--apart", self.apart)
        costs = self._costs(target)
        if together or parted:
            bare = decompose(module, target, where=self.where)
            _check_names(bare, "--same-site", together)
            _check_names(bare, "--apart", parted)
        plan = decompose(module, target, costs, where=self.where, objective=chosen, same_site=together, apart=parted)
        if log is None or costs is not None:
            return plan
        with closing_log(log) as opened:
            advice = Advice(opened, policy or SAME_DEVICE)
            plan = advice.placed(plan)
        for applied in advice.applied:
            typer.echo(f"tuned: {applied}", err=True)
        return plan

    def _costs(self, target: Target) -> Costs | None:
        sizes = _sizes(self.sizes)
        if self.costs is None:
            if sizes:
                raise TextError("--size is for costs; it needs --costs, such as --costs measured")
            return None
        costs = _costs(self.costs, target)
        return replace(costs, symbolic_hints={**costs.symbolic_hints, **sizes})


def _costs(text: str, target: Target) -> Costs:
    """Measure costs, or read them from a file."""
    if text == MEASURED:
        from tvmtarget.tuner.rates import measure_rates

        rates = measure_rates(target)
        for line in rates.lines():
            typer.echo(line, err=True)
        return rates.costs
    from tvmtarget.partition.costs.cost_file import load_costs

    with _named("--costs", text):
        return load_costs(text)


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


def _sizes(texts: Sequence[str] | None) -> dict[str, int]:
    split = [(text, *text.partition("=")) for text in texts or ()]
    problems = [
        f"--size {text!r} is not NAME=NUMBER, such as 'batch=1'"
        for text, name, _, size in split
        if not name.strip() or not size.strip().isdecimal()
    ]
    if problems:
        raise TextError("\n".join(problems))
    return {name.strip(): int(size) for _, name, _, size in split}


def _check_names(plan: Plan, flag: str, groups: Sequence[Sequence[str]]) -> None:
    from tvmtarget.partition.bonds import bonds_of

    for names in groups:
        with _named(flag, ",".join(names)):
            bonds_of(plan.program, (tuple(names),), ())


@contextmanager
def _named(flag: str, text: str) -> Iterator[None]:
    """Say which option an error is about."""
    try:
        yield
    except TvmTargetError as error:
        raise TextError("\n".join(f"{problem} (in {flag} {text!r})" for problem in str(error).splitlines())) from error
