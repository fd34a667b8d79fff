"""Whether a node, or something in a tree, meets a constraint, and why.

A constraint with children is met by a system that has, for each of them, a child of its own that meets it. A
name picks the child (or, with '/', the node below) of that name; `count=2` or `count>=2` of a child asks for two,
replicas of one child or several children. Of all ways to give them out, the truest counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvmtarget.errors import did_you_mean
from tvmtarget.target.constraints.conditions import Condition
from tvmtarget.target.constraints.matching import assign
from tvmtarget.target.constraints.node_context import NodeContext, answers_to, known_words, places
from tvmtarget.target.constraints.reasons import Reason, Truth
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.target_node import TargetNode
from tvmtarget.target.tree_paths import covers

if TYPE_CHECKING:
    from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["Wanted", "meets", "satisfies", "wanted_children"]

_MAX_SHOWN = 8  # nodes of a tree that miss a constraint


def satisfies(root: TargetNode, constraint: Constraint, *, measured: bool = False) -> Reason:
    """Say whether some node of a tree meets a constraint; a negation speaks of leaves, as placement does."""
    found = list(places(NodeContext(root, measured=measured)))
    if _is_about_leaves(constraint):
        found = [place for place in found if not place.node.targets]
    reasons = [(place, meets(constraint, place)) for place in found]
    best = max(reason.truth for _, reason in reasons)
    named = [(place, reason) for place, reason in reasons if reason.truth is best]
    if best is Truth.NO:  # what is of the right kind says more than what is not
        near = [(place, reason) for place, reason in named if reason.parts]
        named = near or named
    elif best is Truth.YES:
        named = named[:1]
    label = root.tag or root.kind
    verb = {Truth.YES: "satisfies", Truth.UNKNOWN: "may satisfy", Truth.NO: "does not satisfy"}[best]
    parts = tuple(reason.replace(text=f"@{place.path or '.'}: {reason.text}") for place, reason in named[:_MAX_SHOWN])
    return Reason(truth=best, text=f"{label} {verb} {constraint}", parts=parts)


def _is_about_leaves(constraint: Constraint) -> bool:
    return _has_negation(constraint) and not _means_systems(constraint)


def _has_negation(constraint: Constraint) -> bool:
    return constraint.is_negated or any(map(_has_negation, (*constraint.any_of, *constraint.all_of)))


def _means_systems(constraint: Constraint) -> bool:
    if constraint.is_negated:
        return False
    is_system = constraint.path is not None or bool(constraint.children) or constraint.word == "composite"
    return is_system or any(map(_means_systems, (*constraint.any_of, *constraint.all_of)))


def meets(constraint: Constraint, place: NodeContext) -> Reason:
    """Say whether one node meets a constraint; a preference is answered as if it were required."""
    if constraint.any_of or constraint.all_of:
        reason = _connected(constraint, [meets(one, place) for one in constraint.any_of or constraint.all_of])
    elif constraint.path is not None:
        truth = Truth.YES if covers(constraint.path, place.path) else Truth.NO
        reason = Reason(truth=truth, text=f"@{constraint.path or '.'}: this is @{place.path or '.'}")
    else:
        reason = _meets_word(constraint, place)
    return _negated(reason) if constraint.is_negated else reason


def _connected(constraint: Constraint, parts: Sequence[Reason]) -> Reason:
    truth = (max if constraint.any_of else min)(part.truth for part in parts)
    return Reason(truth=truth, text=str(constraint.replace(is_negated=False, weight=None)), parts=tuple(parts))


def _negated(reason: Reason) -> Reason:
    return Reason(truth=Truth(Truth.YES - reason.truth), text=f"not {reason.text}", parts=reason.parts)


def _meets_word(constraint: Constraint, place: NodeContext) -> Reason:
    node, word = place.node, str(constraint.word)
    truth = answers_to(node, word)
    if truth is Truth.UNKNOWN:
        return Reason(truth=truth, text=f"{word}: nobody knows the keys of {node.kind}")
    if truth is Truth.NO:
        keys = f" ({','.join(node.all_keys)})" if node.all_keys else ""
        near = did_you_mean(word, known_words()) if word not in known_words() else ""
        return Reason(truth=truth, text=f"{word}: this is {node.kind}{keys}{near}")
    parts = [condition.check(place) for condition in constraint.conditions]
    parts += _children_reasons(constraint, place)
    if constraint.host is not None:
        parts.append(_host_reason(constraint.host, place))
    if constraint.executor is not None:
        parts.append(_configured_reason("executor", constraint.executor, place.executor()))
    if constraint.runtime is not None:
        parts.append(_configured_reason("runtime", constraint.runtime, place.runtime()))
    truth = min((part.truth for part in parts), default=Truth.YES)
    return Reason(truth=truth, text=f"{word}: this is {node.kind}", parts=tuple(parts))


def _host_reason(constraint: Constraint, place: NodeContext) -> Reason:
    host = place.host()
    if host is None:
        return Reason(truth=Truth.UNKNOWN, text=f"host={constraint}: the target does not say")
    reason = meets(constraint, host)
    return reason.replace(text=f"host={constraint}: it is @{host.path or '.'}", parts=(reason,))


def _configured_reason(role: str, constraint: Constraint, actual: Executor | Runtime | None) -> Reason:
    if actual is None:
        return Reason(truth=Truth.UNKNOWN, text=f"{role}={constraint}: the target does not say")
    reason = _meets_configured(constraint, actual)
    return reason.replace(text=f"{role}={constraint}: it is {actual.kind}")


def _meets_configured(constraint: Constraint, actual: Executor | Runtime) -> Reason:
    if constraint.any_of or constraint.all_of:
        parts = [_meets_configured(one, actual) for one in constraint.any_of or constraint.all_of]
        reason = _connected(constraint, parts)
    else:
        is_kind = constraint.word == actual.kind
        row = find_kind(actual.kind, actual.role)
        checks = [c.check_attributes(actual.kind, row, actual.attrs) for c in constraint.conditions] if is_kind else []
        truth = min((check.truth for check in checks), default=Truth.YES) if is_kind else Truth.NO
        reason = Reason(truth=truth, text=f"{constraint.word}: this is {actual.kind}", parts=tuple(checks))
    return _negated(reason) if constraint.is_negated else reason


@dataclass(frozen=True, slots=True)
class Wanted:
    """So many children of a system that each meet a constraint; with a name, the child of that name."""

    name: str | None
    constraint: Constraint
    number: int

    def __str__(self) -> str:
        times = "" if self.number == 1 else f"{self.number} times "
        return times + (str(self.constraint) if self.name is None else f"{self.name}={self.constraint}")


def wanted_children(constraint: Constraint) -> list[Wanted]:
    """Return what a constraint asks of the children, equal ones together; their counts are numbers now."""
    numbers: dict[tuple[str | None, Constraint], int] = {}
    for name, child in constraint.children:
        number = 1
        if not child.is_negated:
            number = max([1, *(_number(condition) for condition in child.conditions)])
            child = child.replace(conditions=tuple(c for c in child.conditions if not _number(c)))
        numbers[name, child] = numbers.get((name, child), 0) + number
    return [Wanted(name, child, number) for (name, child), number in numbers.items()]


def _number(condition: Condition) -> int:
    """Return how many a condition on the count asks for, 0 if it asks for none."""
    if condition.name != "count" or not isinstance(condition.value, int):
        return 0
    return {"eq": condition.value, "ge": condition.value, "gt": condition.value + 1}.get(condition.operator, 0)


def _children_reasons(constraint: Constraint, place: NodeContext) -> list[Reason]:
    """Give every wanted child one that is there, yes before unknown; one reason for each."""
    wanted = wanted_children(constraint)
    if not wanted:
        return []
    supplies = _supplies(wanted, place)
    answers = [
        {at: meets(one.constraint, supply.place) for at, supply in enumerate(supplies) if supply.is_for(one)}
        for one in wanted
    ]
    demands, capacities = [one.number for one in wanted], [supply.number for supply in supplies]
    served: list[dict[int, int]] = []
    for least in (Truth.YES, Truth.UNKNOWN):
        edges = [[at for at, reason in row.items() if reason.truth >= least] for row in answers]
        served = assign(demands, capacities, edges)
        if all(sum(given.values()) == one.number for given, one in zip(served, wanted, strict=True)):
            break
    return [_child_reason(*row, supplies) for row in zip(wanted, answers, served, strict=True)]


@dataclass(frozen=True, slots=True)
class _Supply:
    place: NodeContext
    number: int
    path: str | None = None  # of a node that is named, from the system

    def is_for(self, wanted: Wanted) -> bool:
        """Whether a wanted child may be this one, by its name alone."""
        if wanted.name is None or self.path is not None:
            return wanted.name == self.path
        replica = wanted.number == 1 and self.place.node.has_replica(wanted.name)
        return wanted.name == self.place.node.slot or replica


def _supplies(wanted: Iterable[Wanted], place: NodeContext) -> list[_Supply]:
    """Return the children with their counts, and deeper nodes that are wanted by a path."""
    found = [_Supply(child, child.node.count) for child in place.children()]
    for path in dict.fromkeys(one.name for one in wanted if one.name is not None and "/" in one.name):
        below = place.below(path)
        if below is not None:
            number, at = 1, below
            while at is not place and at.around is not None:
                number, at = number * at.node.count, at.around
            found.append(_Supply(below, number, path))
    return found


def _child_reason(
    wanted: Wanted, answers: dict[int, Reason], served: dict[int, int], supplies: Sequence[_Supply]
) -> Reason:
    if sum(served.values()) == wanted.number:
        truth = min(answers[at].truth for at in served)
        slots = ", ".join(supplies[at].place.node.slot for at in served)
        parts = tuple(answers[at] for at in served if truth is not Truth.YES)
        return Reason(truth=truth, text=f"child {wanted}: {slots}", parts=parts)
    names = ", ".join(supply.place.node.slot for supply in supplies) or "none"
    if not answers:
        said = f"no child has that name; there is {names}" if wanted.name is not None else "there are no children"
        return Reason(truth=Truth.NO, text=f"child {wanted}: {said}")
    fit = sum(supplies[at].number for at, reason in answers.items() if reason.is_possible)
    found = sum(served.values())
    said = f"{found} of {wanted.number} found" if wanted.number > 1 else "not found"
    if fit >= wanted.number:
        said += f"; the {fit} that fit are asked for by others too"
    parts = tuple(
        reason.replace(text=f"{supplies[at].place.node.slot}: {reason.text}")
        for at, reason in list(answers.items())[:_MAX_SHOWN]
        if not reason.is_possible
    )
    return Reason(truth=Truth.NO, text=f"child {wanted}: {said}", parts=parts)
