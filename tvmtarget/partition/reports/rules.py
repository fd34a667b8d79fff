"""Report what the `where` rules of a plan do: which exclude or prefer sites, and which change nothing.

A rule has no effect on an operation in three cases: a later rule overrides it; it is a preference that the chosen site
does not meet; or it neither excludes nor ranks any possible site. For a requirement, the possible sites are those that
support the operation without any rules; for a preference, those that all rules allow. A rule that excludes a site
counts as effective even if the plan would be the same without it, because no second plan is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tvmtarget.human_units import counted
from tvmtarget.partition.decomposition import Decomposition
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.where_rules import Requirement

__all__ = ["RuleEffects", "RuleReport"]

_Effect: TypeAlias = Literal["effective", "overridden", "met", "released"]


@dataclass(frozen=True, slots=True)
class RuleReport:
    """A rule, and for how many of the operations that it matches it has which effect.

    `effective` counts operations for which it excludes or prefers sites, `overridden` those for which a later rule
    counts, `met` those whose possible sites all meet it, `released` those for which a preference is not kept.
    """

    rule: Requirement
    effective: int = 0
    overridden: int = 0
    met: int = 0
    released: int = 0

    @property
    def ops(self) -> int:
        """How many operations the rule matches, those in nested bodies included."""
        return self.effective + self.overridden + self.met + self.released

    def why(self) -> str:
        """Return why the rule changes nothing; '' if it does something."""
        reasons = {
            "a later rule overrides it": self.overridden,
            "every site that can take the op meets it": self.met,
            "the preference is not kept": self.released,
        }
        found = [f"{reason} ({counted(count, 'op')})" for reason, count in reasons.items() if count]
        return "" if self.effective else ", ".join(found)

    def to_json(self) -> dict[str, object]:
        """Return the report as data."""
        flat: dict[str, object] = {"rule": self.rule.origin, "constraint": self.rule.text or str(self.rule.constraint)}
        flat |= {"ops": self.ops, "effective": self.effective, "overridden": self.overridden}
        return flat | {"met": self.met, "released": self.released}


class RuleEffects:
    """Effects of the rules of a plan.

    Args:
        feasibility: what fits where.
        sites: path of the leaf of every operation, by number.
    """

    def __init__(self, feasibility: Feasibility, sites: Mapping[int, str]) -> None:
        self.feasibility = feasibility
        self.program = feasibility.program
        self.sites = sites

    @classmethod
    def of(cls, plan: Decomposition) -> RuleEffects:
        """Return the effects of the rules of a plan.

        Args:
            plan: a finished decomposition.

        Returns:
            What its rules do, by the sites on which operations run.
        """
        sites = {
            index: subgraph.site for subgraph in plan.subgraphs for index in plan.program.with_nested(subgraph.calls)
        }
        sites |= {one.call: plan.topology[one.system].host for one in plan.outlined.driven}
        return cls(plan.feasibility, sites)

    def reports(self) -> Iterator[RuleReport]:
        """Yield a report on each rule, in order."""
        counts: list[Counter[_Effect]] = [Counter() for _ in self.program.rules]
        for index, matches in enumerate(self.program.matches if self.program.rules else ()):
            for number in matches:
                counts[number][self._effect(index, number)] += 1
        for rule, effects in zip(self.program.rules, counts, strict=True):
            yield RuleReport(rule, effects["effective"], effects["overridden"], effects["met"], effects["released"])

    def lines(self, index: int) -> Iterator[str]:
        """Yield the effect of each rule that matches an operation.

        Args:
            index: the operation, by number.

        Yields:
            A line for each rule, in the order of the rules.
        """
        rules = self.program.rules
        for number in self.program.matches[index] if rules else ():
            rule, effect = rules[number], self._effect(index, number)
            if effect == "overridden":
                done = f"overridden by {rules[self.program.matches[index][-1]].origin}"
            elif effect == "met":
                done = "changes nothing, as every site that can take it meets it"
            elif effect == "released":
                done = f"not kept, {self._why_released(index, number)}"
            else:
                done = self._what(index, number)
            yield f"{rule.origin}, {rule.text or rule.constraint}: {done}"

    def _effect(self, index: int, number: int) -> _Effect:
        if number != self.program.matches[index][-1]:
            return "overridden"
        # The bytes of the rows, because arrays cannot be part of a key.
        able = self.feasibility.supported[index].tobytes(), self._free.supported[index].tobytes()
        key = number, self.sites.get(index), able
        if key not in self._known:
            self._known[key] = self._judge(index, number)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[Hashable, _Effect]:
        """Effects of rules, as they are the same for operations that the same leaves can take."""
        return {}

    def _judge(self, index: int, number: int) -> _Effect:
        constraint = self.program.rules[number].constraint
        if not constraint.is_required and not self._met[number, self._place(index)]:
            return "released"
        could = self._could(index, number)
        if len(could) and (not self._met[number, could].all() or len(set(self._ranks[number][could].tolist())) > 1):
            return "effective"
        return "met"

    def _could(self, index: int, number: int) -> npt.NDArray[np.int64]:
        """Return the leaves, by number, that support an operation; for a requirement, those without any rules."""
        is_required = self.program.rules[number].constraint.is_required
        return np.flatnonzero((self._free if is_required else self._ruled).supported[index])

    def _what(self, index: int, number: int) -> str:
        constraint = self.program.rules[number].constraint
        leaves = self.feasibility.leaves
        out = [f"@{leaves[place].path}" for place in self._could(index, number) if not self._met[number, place]]
        if constraint.is_required and out:
            return f"excludes {', '.join(out)}"
        return "preferred, and kept" if not constraint.is_required else "orders the sites that can take it"

    def _why_released(self, index: int, number: int) -> str:
        able = self.feasibility.supported[index]
        if (able & self._met[number]).any():
            return "though a site that meets it could take it"
        return "as no site that meets it can take it"

    def _place(self, index: int) -> int:
        paths = [leaf.path for leaf in self.feasibility.leaves]
        return paths.index(self.sites[index]) if self.sites.get(index) in paths else 0

    @cached_property
    def _met(self) -> npt.NDArray[np.bool_]:
        """Which rule (row) which leaf (column) meets."""
        root = self.program.topology.root
        rows = [
            [bool(rule.constraint.check(leaf.target, leaf.path, root)) for leaf in self.feasibility.leaves]
            for rule in self.program.rules
        ]
        return np.array(rows, dtype=np.bool_).reshape(len(rows), len(self.feasibility.leaves))

    @cached_property
    def _ranks(self) -> npt.NDArray[np.int64]:
        """How much each rule (row) prefers each leaf (column)."""
        rows = [
            [rule.constraint.rank(leaf.target, leaf.path) for leaf in self.feasibility.leaves]
            for rule in self.program.rules
        ]
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self.feasibility.leaves))

    @cached_property
    def _free(self) -> Feasibility:
        """What fits where if there were no rules."""
        return self._with_requirements_until(0)

    @cached_property
    def _ruled(self) -> Feasibility:
        """What fits where by the rules, wherever other options, such as `apart`, then required operations to be."""
        return self._with_requirements_until(1)

    def _with_requirements_until(self, more: int) -> Feasibility:
        """Leave out what is required after the rule of an operation, and the rule itself unless `more` is 1."""
        program = self.program
        requirements = []
        for items, matches in zip(program.requirements, program.matches, strict=True):
            rule = program.rules[matches[-1]] if matches else None
            requirements.append(items if rule not in items else items[: items.index(rule) + more])
        return self.feasibility.replace(program=replace(program, requirements=tuple(requirements)))
