"""Stage B: which leaf can take which operation, and why not the others."""

from __future__ import annotations

from collections.abc import Iterable

from tvmtarget.errors import InfeasibleError
from tvmtarget.ir.inline import Frame
from tvmtarget.partition.conflict import blame
from tvmtarget.partition.host_device.sides import host_takes
from tvmtarget.partition.program import Asked, Program, open_frame
from tvmtarget.partition.strategies.strategy import Reject, strategy_for
from tvmtarget.target.layout import Site

__all__ = ["Feasibility", "together"]

MAX_SHOWN = 5


class Feasibility:
    """Answers, once per question, whether operations fit a site; `check_all` refuses what fits nowhere.

    `assumed` are pairs of an operation and the path of a leaf that is supposed to take it, whatever its strategy says.
    `splits` has functions of host and device code split where the code generator takes them whole, too.
    """

    def __init__(
        self, program: Program, assumed: frozenset[tuple[int, str]] = frozenset(), *, splits: bool = False
    ) -> None:
        self.program = program
        self.splits = splits
        self.assumed = assumed
        self.leaves = tuple(program.layout.leaves())
        self._verdicts: dict[tuple[int, str], Reject | None] = {}
        self._asked: dict[tuple[tuple[Asked, ...], str], Reject | None] = {}
        self._below: dict[str, tuple[Site, ...]] = {}

    def verdict(self, index: int, leaf: Site) -> Reject | None:
        """Return None if a leaf can take an operation, else the reason why not."""
        key = (index, leaf.path)
        if key not in self._verdicts:
            self._verdicts[key] = self._judge(index, leaf)
        return self._verdicts[key]

    def check_all(self) -> None:
        """Raise `InfeasibleError` for operations that no leaf can take: each with the reasons, five at most."""
        lost = [i for i in range(len(self.program.body)) if all(self.verdict(i, leaf) for leaf in self.leaves)]
        problems = [self._explain_lost(index) for index in lost[:MAX_SHOWN]]
        if len(lost) > MAX_SHOWN:
            problems.append(f"... and {len(lost) - MAX_SHOWN} more ops that fit no site")
        if problems:
            raise InfeasibleError(*problems)

    def fits(self, calls: tuple[int, ...], site: Site) -> bool:
        """Whether a site can take operations that must stay together: a leaf all, a system group by group."""
        if not site.is_system:
            return all(self.verdict(index, site) is None for index in calls)
        if len(calls) == 1:
            return any(self.verdict(calls[0], leaf) is None for leaf in self.below(site))
        options = self.program.layout.options(site.path)
        groups = together(calls, self.program.frames, site.path)
        return all(any(self.fits(members, option) for option in options) for members in groups)

    def rank(self, calls: tuple[int, ...], site: Site) -> int:
        """Add up how much the operations prefer a site, by its best leaf for each."""
        return sum(self._rank(index, site) for index in calls if any(_has_taste(a) for a in self.program.asked[index]))

    def _rank(self, index: int, site: Site) -> int:
        asked = self.program.asked[index]
        feasible = (leaf for leaf in self.below(site) if self.verdict(index, leaf) is None)
        return max((sum(a.constraint.rank(leaf.target, leaf.path) for a in asked) for leaf in feasible), default=0)

    def below(self, site: Site) -> tuple[Site, ...]:
        """List the leaves at and below a site."""
        if site.path not in self._below:
            self._below[site.path] = tuple(self.program.layout.leaves(site.path))
        return self._below[site.path]

    def _judge(self, index: int, leaf: Site) -> Reject | None:
        refusal = self._constraints(self.program.asked[index], leaf)
        if refusal is not None or (index, leaf.path) in self.assumed:
            return refusal
        strategy = strategy_for(leaf.target.kind)
        if strategy is None:
            kind = leaf.target.kind
            return Reject("NO_RULE", f"no installed package says what {kind!r} takes", "install its plugin")
        refusal = strategy.check(self.program.op(index))
        return None if refusal is None or host_takes(self.program, index, leaf) else refusal

    def _constraints(self, asked: tuple[Asked, ...], leaf: Site) -> Reject | None:
        key = (asked, leaf.path)
        if key not in self._asked:
            broken = (
                (item, reason)
                for item in asked
                if item.constraint.is_required
                and not (reason := item.constraint.check(leaf.target, leaf.path, self.program.layout.root))
            )
            first = next(broken, None)
            text = "" if first is None else f"it does not meet {first[0]}: {', '.join(_leaves_of(first[1]))}"
            self._asked[key] = None if first is None else Reject("CONSTRAINT", text)
        return self._asked[key]

    def _explain_lost(self, index: int) -> str:
        call = self.program.body[index]
        reasons = [f"@{leaf.path or '.'}: {self.verdict(index, leaf)}" for leaf in self.leaves]
        listed = "; ".join(reasons) if reasons else "the target has no leaves"
        guilty = blame(self.program, (index,), lambda program: Feasibility(program).fits((index,), program.layout[""]))
        return f"op {call.source!r} ({call.kind}) fits no site of the target: {listed}{guilty}"


def _has_taste(asked: Asked) -> bool:
    return asked.constraint.weight is not None or bool(asked.constraint.any_of)


def _leaves_of(reason: object) -> Iterable[str]:
    lines = str(reason).splitlines()
    return [line.strip().removeprefix("NO ").removeprefix("UNKNOWN ") for line in lines if "YES" not in line][-1:]


def together(calls: Iterable[int], frames: tuple[tuple[Frame, ...], ...], path: str) -> list[tuple[int, ...]]:
    """Group operations that must stay together at a node: those of one call of a constrained function."""
    groups: dict[object, list[int]] = {}
    for index in calls:
        ordinal = open_frame(frames[index], path)
        groups.setdefault(("op", index) if ordinal is None else ("call", ordinal), []).append(index)
    return [tuple(members) for members in groups.values()]
