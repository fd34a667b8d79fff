"""Check a node or a tree against a constraint, with reasons.

A constraint with children is met by a system that has a separate child for each of them. A name selects the child (or,
with '/', the node below) of that name; `count=2` or `count>=2` of a child requires two, which may be replicas of one
child or several children. The check uses the assignment of children with the best answer (`matching.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvmtarget.errors import did_you_mean
from tvmtarget.target.constraints.conditions import Condition
from tvmtarget.target.constraints.matching import assign
from tvmtarget.target.constraints.node_context import NodeContext, known_words, matches_word, walk_contexts
from tvmtarget.target.constraints.reasons import Reason, Truth
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.target_node import TargetNode
from tvmtarget.target.tree_paths import covers

if TYPE_CHECKING:
    from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["is_for_leaves", "meets", "satisfies"]

_MAX_SHOWN = 8  # nodes that a report lists


def satisfies(root: TargetNode, constraint: Constraint, *, measured: bool = False) -> Reason:
    """Decide whether some node of a tree meets a constraint.

    Args:
        root: The root of the tree.
        constraint: The constraint; a preference is checked as if it were required.
        measured: Whether the tree describes a machine as it was measured.

    Returns:
        The best answer of all nodes; `parts` hold the nodes that explain it.
    """
    found = list(walk_contexts(NodeContext(root, measured=measured)))
    if is_for_leaves(constraint):
        found = [context for context in found if not context.node.targets]
    reasons = [(context, meets(constraint, context)) for context in found]
    best = max(reason.truth for _, reason in reasons)
    named = [(context, reason) for context, reason in reasons if reason.truth is best]
    if best is Truth.NO:  # a node of the right kind explains more than one of another kind
        near = [(context, reason) for context, reason in named if reason.parts]
        named = near or named
    elif best is Truth.YES:
        named = named[:1]  # one node is enough evidence
    label = root.tag or root.kind
    verb = {Truth.YES: "satisfies", Truth.UNKNOWN: "may satisfy", Truth.NO: "does not satisfy"}[best]
    parts = tuple(
        reason.replace(text=f"@{context.path or '.'}: {reason.text}") for context, reason in named[:_MAX_SHOWN]
    )
    return Reason(truth=best, text=f"{label} {verb} {constraint}", parts=parts)


def is_for_leaves(constraint: Constraint) -> bool:
    """Decide whether only the leaves of a tree can meet a constraint.

    A constraint with a negation is checked on leaves only, as placement assigns work to leaves; otherwise the composite
    around a GPU would satisfy `!gpu`.

    Args:
        constraint: The constraint.

    Returns:
        True for a constraint with a negation that names no system.
    """
    return _has_negation(constraint) and not _means_systems(constraint)


def _has_negation(constraint: Constraint) -> bool:
    return constraint.is_negated or any(map(_has_negation, (*constraint.any_of, *constraint.all_of)))


def _means_systems(constraint: Constraint) -> bool:
    if constraint.is_negated:
        return False
    is_system = constraint.path is not None or bool(constraint.children) or constraint.word == "composite"
    return is_system or any(map(_means_systems, (*constraint.any_of, *constraint.all_of)))


def meets(constraint: Constraint, context: NodeContext) -> Reason:
    """Decide whether one node meets a constraint.

    Args:
        constraint: The constraint; a preference is checked as if it were required.
        context: The node with its ancestors.

    Returns:
        The answer, with one part for each condition, child and part of the constraint.
    """
    if constraint.any_of or constraint.all_of:
        reason = _connected(constraint, [meets(part, context) for part in constraint.any_of or constraint.all_of])
    elif constraint.path is not None:
        truth = Truth.YES if covers(constraint.path, context.path) else Truth.NO
        reason = Reason(truth=truth, text=f"@{constraint.path or '.'}: this is @{context.path or '.'}")
    else:
        reason = _meets_word(constraint, context)
    return _negated(reason) if constraint.is_negated else reason


def _connected(constraint: Constraint, parts: Sequence[Reason]) -> Reason:
    truth = (max if constraint.any_of else min)(part.truth for part in parts)
    return Reason(truth=truth, text=str(constraint.replace(is_negated=False, weight=None)), parts=tuple(parts))


def _negated(reason: Reason) -> Reason:
    return Reason(truth=reason.truth.negated, text=f"not {reason.text}", parts=reason.parts)


def _meets_word(constraint: Constraint, context: NodeContext) -> Reason:
    node, word = context.node, str(constraint.word)
    truth = matches_word(node, word)
    if truth is Truth.UNKNOWN:
        return Reason(truth=truth, text=f"{word}: the keys of {node.kind} are unknown")
    if truth is Truth.NO:
        keys = f" ({','.join(node.keys)})" if node.keys else ""
        near = did_you_mean(word, known_words()) if word not in known_words() else ""
        return Reason(truth=truth, text=f"{word}: this is {node.kind}{keys}{near}")
    parts = [condition.check(context) for condition in constraint.conditions]
    parts += _children_reasons(constraint, context)
    if constraint.host is not None:
        parts.append(_host_reason(constraint.host, context))
    if constraint.executor is not None:
        parts.append(_configured_reason("executor", constraint.executor, context.executor()))
    if constraint.runtime is not None:
        parts.append(_configured_reason("runtime", constraint.runtime, context.runtime()))
    truth = min((part.truth for part in parts), default=Truth.YES)
    return Reason(truth=truth, text=f"{word}: this is {node.kind}", parts=tuple(parts))


def _host_reason(constraint: Constraint, context: NodeContext) -> Reason:
    host = context.host()
    if host is None:
        return Reason(truth=Truth.UNKNOWN, text=f"host={constraint}: the target does not state it")
    reason = meets(constraint, host)
    return reason.replace(text=f"host={constraint}: it is @{host.path or '.'}", parts=(reason,))


def _configured_reason(role: str, constraint: Constraint, actual: Executor | Runtime | None) -> Reason:
    if actual is None:
        return Reason(truth=Truth.UNKNOWN, text=f"{role}={constraint}: the target does not state it")
    reason = _meets_configured(constraint, actual)
    return reason.replace(text=f"{role}={constraint}: it is {actual.kind}")


def _meets_configured(constraint: Constraint, actual: Executor | Runtime) -> Reason:
    if constraint.any_of or constraint.all_of:
        parts = [_meets_configured(part, actual) for part in constraint.any_of or constraint.all_of]
        reason = _connected(constraint, parts)
    else:
        is_kind = constraint.word == actual.kind
        row = find_kind(actual.kind, actual.role)
        checks = [c.check_attributes(actual.kind, row, actual.attrs) for c in constraint.conditions] if is_kind else []
        truth = min((check.truth for check in checks), default=Truth.YES) if is_kind else Truth.NO
        reason = Reason(truth=truth, text=f"{constraint.word}: this is {actual.kind}", parts=tuple(checks))
    return _negated(reason) if constraint.is_negated else reason


@dataclass(frozen=True, slots=True)
class _RequiredChild:
    """A number of children of a system that must meet a constraint; with a name, the child of that name."""

    name: str | None
    constraint: Constraint
    number: int

    def __str__(self) -> str:
        times = "" if self.number == 1 else f"{self.number} times "
        return times + (str(self.constraint) if self.name is None else f"{self.name}={self.constraint}")


def _required_children(constraint: Constraint) -> list[_RequiredChild]:
    """Return the children that a constraint requires; equal ones become one with the sum of their counts."""
    numbers: dict[tuple[str | None, Constraint], int] = {}
    for name, child in constraint.children:
        number = 1
        # `!gpu(count=2)` excludes a child with two replicas; it requires no number of children.
        if not child.is_negated:
            number = max([1, *(_number(condition) for condition in child.conditions)])
            child = child.replace(conditions=tuple(c for c in child.conditions if not _number(c)))
        numbers[name, child] = numbers.get((name, child), 0) + number
    return [_RequiredChild(name, child, number) for (name, child), number in numbers.items()]


def _number(condition: Condition) -> int:
    """Return the number of children that a condition on the count requires, 0 for other conditions."""
    if condition.name != "count" or not isinstance(condition.value, int):
        return 0
    return {"eq": condition.value, "ge": condition.value, "gt": condition.value + 1}.get(condition.operator, 0)


def _children_reasons(constraint: Constraint, context: NodeContext) -> list[Reason]:
    """Assign an available child to every required one, first with certain answers only; one reason for each."""
    required = _required_children(constraint)
    if not required:
        return []
    supplies = _available_children(required, context)
    by_name: dict[str | None, list[int]] = {}
    for at, supply in enumerate(supplies):
        by_name.setdefault(supply.path or supply.context.node.slot, []).append(at)
    answers: list[dict[int, Reason]] = []
    for child in required:
        # A name is that of a child, or of one of its replicas; looking at every child for each name is quadratic.
        name = child.name
        named = [] if name is None else by_name.get(name, []) + by_name.get(name.rpartition(".")[0], [])
        candidates = [at for at in (range(len(supplies)) if name is None else named) if supplies[at].is_for(child)]
        answers.append({at: meets(child.constraint, supplies[at].context) for at in candidates})
    demands, capacities = [child.number for child in required], [supply.number for supply in supplies]
    served: list[dict[int, int]] = []
    # Two passes find the assignment whose worst answer is best: all YES if possible, else YES and UNKNOWN.
    for least in (Truth.YES, Truth.UNKNOWN):
        edges = [sum(1 << at for at, reason in row.items() if reason.truth >= least) for row in answers]
        served = assign(demands, capacities, edges)
        if [sum(taken.values()) for taken in served] == demands:
            break
    return [_child_reason(*row, supplies) for row in zip(required, answers, served, strict=True)]


@dataclass(frozen=True, slots=True)
class _AvailableChild:
    context: NodeContext
    number: int
    path: str | None = None  # from the system, of a node that a constraint names by a path

    def is_for(self, required: _RequiredChild) -> bool:
        """Whether the name of a required child allows this one."""
        if required.name is None or self.path is not None:
            return required.name == self.path
        replica = required.number == 1 and self.context.node.has_replica(required.name)
        return required.name == self.context.node.slot or replica


def _available_children(required: Iterable[_RequiredChild], context: NodeContext) -> list[_AvailableChild]:
    """Return the children with their counts, and the deeper nodes that constraints name by a path."""
    found = [_AvailableChild(child, child.node.count) for child in context.children()]
    for path in dict.fromkeys(child.name for child in required if child.name is not None and "/" in child.name):
        below = context.below(path)
        if below is not None:
            # Each replica of an ancestor has its own copy of the node.
            number, at = 1, below
            while at is not context and at.around is not None:
                number, at = number * at.node.count, at.around
            found.append(_AvailableChild(below, number, path))
    return found


def _child_reason(
    required: _RequiredChild, answers: dict[int, Reason], served: dict[int, int], supplies: Sequence[_AvailableChild]
) -> Reason:
    if sum(served.values()) == required.number:
        truth = min(answers[at].truth for at in served)
        slots = ", ".join(supplies[at].context.node.slot for at in served)
        parts = tuple(answers[at] for at in served if truth is not Truth.YES)
        return Reason(truth=truth, text=f"child {required}: {slots}", parts=parts)
    names = ", ".join(supply.context.node.slot for supply in supplies) or "none"
    if not answers:
        problem = f"no child has that name; there is {names}" if required.name is not None else "there are no children"
        return Reason(truth=Truth.NO, text=f"child {required}: {problem}")
    fit = sum(supplies[at].number for at, reason in answers.items() if reason.is_possible)
    found = sum(served.values())
    problem = f"{found} of {required.number} found" if required.number > 1 else "not found"
    if fit >= required.number:
        problem += f"; the {fit} that fit are assigned to other children"
    parts = tuple(
        reason.replace(text=f"{supplies[at].context.node.slot}: {reason.text}")
        for at, reason in list(answers.items())[:_MAX_SHOWN]
        if not reason.is_possible
    )
    return Reason(truth=Truth.NO, text=f"child {required}: {problem}", parts=parts)
