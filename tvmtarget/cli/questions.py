"""Questions about a plan that `tvmtarget explain` answers, as text or as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.cli.options import split_rules
from tvmtarget.errors import TextError

if TYPE_CHECKING:
    from tvmtarget.partition.plan import Plan
    from tvmtarget.partition.reports.difference import PlanDifference
    from tvmtarget.partition.reports.explain import Explanation
    from tvmtarget.partition.reports.sensitivity import Sensitivity

__all__ = ["Answer", "Question"]


class Drawing(StrEnum):
    """Languages of pictures."""

    dot = "dot"
    mermaid = "mermaid"


@dataclass(frozen=True)
class Answer:
    """What a plan says, as text and as data; `is_difference` if it differs from what `--diff` names."""

    text: str
    data: object
    is_difference: bool = False


@dataclass(frozen=True)
class Question:
    """What is asked about a plan, one thing at a time; false if nothing is."""

    op: Annotated[str | None, typer.Option("--op", help="Explain one operation, by name.", show_default=False)] = None
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="OP=SITE",
            help="Say what changes if operations move to a site, both named as in --where; may be repeated.",
            show_default=False,
        ),
    ] = None
    sensitivity: Annotated[
        str | None,
        typer.Option(
            "--sensitivity",
            metavar="OP",
            help="Say how long an operation may take before it is better elsewhere, by --costs.",
            show_default=False,
        ),
    ] = None
    blockers: Annotated[bool, typer.Option("--blockers", help="List the operators whose support would gain most.")] = (
        False
    )
    alternatives: Annotated[
        bool, typer.Option("--alternatives", help="Set the plan beside those of single leaves, and without --costs.")
    ] = False
    diff: Annotated[
        Path | None,
        typer.Option(
            "--diff", metavar="FILE", help="Say what changed since the plan that --save wrote.", show_default=False
        ),
    ] = None
    draw: Annotated[
        Drawing | None, typer.Option("--draw", help="Print the subgraphs as a picture.", show_default=False)
    ] = None

    def __post_init__(self) -> None:
        asked = [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value]
        if len(asked) > 1:
            raise TextError(f"{' and '.join(asked)} are {len(asked)} questions; ask one at a time")

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def answer(self, plan: Plan) -> Answer:
        """Return what a plan says to what is asked."""
        if self.draw is not None:
            picture = plan.dot() if self.draw is Drawing.dot else plan.mermaid()
            return Answer(picture.rstrip("\n"), {"draw": self.draw.value, "text": picture})
        if self.blockers:
            blockers = plan.blockers()
            told = "\n".join(map(str, blockers)) or "no operator alone would gain anything"
            return Answer(told, [blocker.to_json() for blocker in blockers])
        if self.alternatives:
            alternatives = plan.alternatives()
            return Answer("\n".join(map(str, alternatives)), [one.to_json() for one in alternatives])
        found = self._report(plan)
        return Answer(str(found), found.to_json(), is_difference=self.diff is not None and bool(found))

    def _report(self, plan: Plan) -> Explanation | PlanDifference | Sensitivity:
        if self.what_if:
            return plan.diff(plan.what_if(split_rules(self.what_if, "--what-if")))
        if self.sensitivity is not None:
            return plan.sensitivity(self.sensitivity)
        if self.diff is not None:
            return type(plan).load(self.diff).diff(plan)
        return plan.explain(self.op or "")
