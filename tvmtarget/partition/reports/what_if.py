"""What-if questions about a plan: other sites, other support, the alternatives, and how long a decision stands.

Each question plans again with one thing changed; `Plan.diff` says what the change does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from glob import escape

from tvmtarget.errors import InfeasibleError, TargetError
from tvmtarget.human_units import counted
from tvmtarget.partition.costs.costs import Unit
from tvmtarget.partition.costs.estimate import cost_text
from tvmtarget.partition.decomposition import Decomposition
from tvmtarget.partition.pipeline import plan_request
from tvmtarget.partition.placement.hypotheses import read_moves
from tvmtarget.partition.plan_cache import PlanCache
from tvmtarget.partition.preparation import prepare
from tvmtarget.partition.reports.difference import Totals, totals
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.tree import Target

__all__ = ["Alternative", "Sensitivity", "alternatives", "sensitivity", "with_moves", "with_support"]


def with_moves(plan: Decomposition, moves: Mapping[str, Constraint | Target | str | None]) -> Decomposition:
    """Return the plan there would be if operations were required to be elsewhere.

    Args:
        plan: the plan in question.
        moves: sites or constraints by operation name, glob or `op:KIND`.

    Returns:
        The other plan; it supposes support where no site that meets a move supports the operation.

    Raises:
        InfeasibleError: if other requirements forbid the move.
        UnknownNameError: for names of no operation or site.
        TargetError: for a move without a site.
    """
    request = replace(plan.request, moves=(*plan.request.moves, *read_moves(moves, plan.topology)))
    cache = PlanCache(plan.feasibility.cache)
    return plan_request(request, prepare(request, splits=plan.feasibility.splits, cache=cache))


def with_support(plan: Decomposition, op: str, site: str) -> Decomposition:
    """Return the plan there would be if a site supported operations that it does not.

    Args:
        plan: the plan in question.
        op: operations by name, glob or `op:KIND`.
        site: a path, or a constraint that leaves meet.

    Returns:
        The other plan; operations may go to the site then, and need not.

    Raises:
        UnknownNameError: for names of no operation or site.
    """
    chosen, leaves = plan.program.ops_named(op), plan.leaves_of(site)
    assumed = plan.feasibility.assumed.union((index, leaf) for index in chosen for leaf in leaves)
    return plan_request(plan.request, plan.unpinned.replace(assumed=assumed))


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another placement of a program: its name, the share of operations that follow it, and the plan in numbers.

    Operations that may not follow it go where they are best.
    """

    name: str
    share: float
    totals: Totals

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the alternative as one line of text."""
        time = "" if self.totals.time is None else f", {self.totals.predicted}"
        counts = f"{counted(self.totals.subgraphs, 'subgraph')}, {counted(self.totals.copies, 'copy')}"
        yield f"{self.name} ({100 * self.share:.0f} % of ops there): {counts}{time}"

    def to_json(self) -> Mapping[str, object]:
        """Return the alternative as data: `name`, `share` from 0 to 1, and the numbers of `Totals`."""
        return {"name": self.name, "share": self.share} | self.totals.to_json()


def alternatives(plan: Decomposition) -> tuple[Alternative, ...]:
    """Compare a plan with the one by order of preference, and with all on each leaf.

    Args:
        plan: the plan in question.

    Returns:
        The plan itself first, then the others, with the plan's costs.
    """
    names = [call.source for call in plan.program.body]
    # Planned without costs only to learn the sites; the loop below predicts all placements with the same costs.
    by_preference = plan_request(plan.request.without_costs(), plan.unpinned).sites()
    placements = {"in order of preference": by_preference}
    placements |= {f"all on @{leaf.path or '.'}": dict.fromkeys(names, leaf.path) for leaf in plan.feasibility.leaves}
    found = [Alternative("as planned", 1.0, totals(plan))]
    for name, sites in placements.items():
        other = plan_request(plan.request, plan.unpinned, sites)
        share = 1 - other.moved_from(sites) / max(1, len(sites))
        found.append(Alternative(name, share, totals(other)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The time of an operation on its site, and how much longer the whole takes with it elsewhere, in picoseconds.

    `longer` has every other leaf that may run the operation, with the best placement of the rest.
    """

    op: str
    site: str
    time: int
    longer: Mapping[str, int]
    unit: Unit = "us"

    @property
    def most(self) -> int | None:
        """The time above which the operation is better elsewhere, in picoseconds; None if it can be nowhere else."""
        return self.time + min(self.longer.values()) if self.longer else None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the interval and what it rests on, line by line."""
        here = f"{self.op} takes {cost_text(self.time, self.unit)} on @{self.site or '.'}"
        if self.most is None:
            yield f"{here}, and can run nowhere else"
            return
        limit = f"that is more than {cost_text(self.most, self.unit)}"
        # Errors of times (`Estimates.has_errors`) keep an operation on a site that others are better than without them.
        yield (
            f"{here}, and stays unless {limit}"
            if self.most >= self.time
            else f"{here}, and is better elsewhere, as {limit}"
        )
        for site, longer in self.longer.items():
            difference = f"{cost_text(abs(longer), self.unit)} {'more' if longer >= 0 else 'less'}"
            yield f"  on @{site or '.'} the whole would take {difference}"

    def to_json(self) -> dict[str, object]:
        """Return the numbers as data, in microseconds or microjoules."""
        most = None if self.most is None else self.most / 10**6
        longer = {site: time / 10**6 for site, time in self.longer.items()}
        return {"op": self.op, "site": self.site, self.unit: self.time / 10**6, "most": most, "longer": longer}


def sensitivity(plan: Decomposition, op: str) -> Sensitivity:
    """Say how long an operation may take before it is better elsewhere, by the costs.

    The program is planned again with the operation on each other leaf that may run it.

    Args:
        plan: a plan with costs.
        op: the name of an operation.

    Returns:
        The interval; leaves where something about the operation is unknown are left out, and those where it cannot be.

    Raises:
        TargetError: if sites were not chosen by costs, or the operation's own time is unknown.
        UnknownNameError: if there is no such operation.
    """
    index, here = plan.program.find(op), plan.site_of(op)
    time = None if plan.estimates is None else plan.estimates.time(index, plan.topology[here]).time
    if time is None or plan.prediction is None:
        unknown = f"its cost on @{here or '.'} is unknown"
        why = "sites were not chosen by costs" if plan.estimates is None else unknown
        raise TargetError(f"{op!r} has no sensitivity, as {why}; pass costs (--costs) that cover it")
    longer: dict[str, int] = {}
    for leaf in plan.feasibility.leaves:
        # What had to leave a memory in this plan may stay there in another one.
        reason = plan.unpinned.unsupported_reason(index, leaf)
        # A pattern that overlaps a present match may be chosen in another plan, so OVERLAP excludes no leaf for good.
        if leaf.path == here or (reason is not None and reason.code != "OVERLAP"):
            continue
        try:
            moved = with_moves(plan, {escape(op): Constraint.at(leaf.path)})
        except InfeasibleError:
            continue
        is_known = moved.prediction is not None and moved.prediction.knows_all_of(plan.prediction)
        # A plan that supposes support for the operation proves nothing for this leaf.
        if moved.prediction and is_known and moved.feasibility.assumed == plan.feasibility.assumed:
            longer[leaf.path] = moved.prediction.total - plan.prediction.total
    return Sensitivity(op, here, time, longer, plan.prediction.unit)
