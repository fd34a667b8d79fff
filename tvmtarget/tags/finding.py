"""Search for tags that satisfy a constraint, and for those that are most similar to a target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean
from tvmtarget.tags.files import NAME_PATTERN
from tvmtarget.tags.registry import Registry
from tvmtarget.target.constraints.attribute_comparison import doublings
from tvmtarget.target.constraints.constraint import Condition, Constraint, known_words
from tvmtarget.target.constraints.node_context import NodeContext, walk_contexts
from tvmtarget.target.constraints.reasons import Reason, Truth
from tvmtarget.target.constraints.satisfaction import meets
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.tree import Target

__all__ = ["ConstraintCheck", "Matches", "check_target", "find_nearest", "find_satisfying", "read_constraint"]


@dataclass(frozen=True, slots=True)
class Matches:
    """The sorted names of the tags that satisfy a constraint, and of those with unknown answers."""

    satisfied: tuple[str, ...]
    possible: tuple[str, ...]


def read_constraint(registry: Registry, text: str) -> Constraint:
    """Read a constraint, or a tag as the constraint "at least this".

    Args:
        registry: The registry of tags.
        text: A constraint, or a tag with optional part and overrides.

    Returns:
        The constraint.

    Raises:
        UnknownNameError: A word is no registered kind or key, or a tag does not exist; the message has the nearest.
        TargetError: The text is no constraint and no tag.

    >>> from tvmtarget.tags.registry import default_registry
    >>> print(read_constraint(default_registry(), "gpu(arch>=sm_70)"))
    gpu(arch>=sm_70)
    """
    # A tag ends at its part, `:gpu`, or its overrides, `(...)`; no kind or key has the '/' of a tag.
    name = re.split(r"[(:]", text.strip(), maxsplit=1)[0]
    if name in registry or ("/" in name and re.fullmatch(NAME_PATTERN, name)):
        return Constraint.of(Target.parse(text, tags=registry))
    constraint = Constraint.parse(text)
    known = known_words()
    unknown = [word for word in dict.fromkeys(constraint.words()) if word not in known]
    if unknown:
        raise UnknownNameError(*(f"no target kind or key {word!r}{did_you_mean(word, known)}" for word in unknown))
    return constraint


def find_satisfying(registry: Registry, constraint: Constraint) -> Matches:
    """Find the tags that satisfy a constraint.

    Args:
        registry: The registry of tags.
        constraint: The constraint.

    Returns:
        The tags with the answers yes and unknown.
    """
    found: dict[Truth, list[str]] = {truth: [] for truth in Truth}
    index = registry.tree_index()
    indexed = index.names if index is not None else frozenset[str]()
    truth_of_indexed = index.checker(constraint) if index is not None else None
    for name in registry:
        if truth_of_indexed is not None and name in indexed:
            found[truth_of_indexed(name)].append(name)
        # The kinds of a tag are known from its row, so most trees are never built.
        elif _may_meet(constraint, registry.kinds(name)):
            found[_truth(registry, name, constraint)].append(name)
    return Matches(tuple(found[Truth.YES]), tuple(found[Truth.UNKNOWN]))


def find_nearest(registry: Registry, constraint: Constraint, like: Target, *, limit: int = 3) -> tuple[str, ...]:
    """Find the tags that satisfy a constraint and are most similar to a target.

    Tags are ordered by vendor, then by kind, then by the distance of the attributes that the constraint names, then by
    the distance of all attributes that both targets state. A distance is in powers of two for numbers (`doublings`).

    Args:
        registry: The registry of tags.
        constraint: The constraint.
        like: The target to compare with.
        limit: The maximum number of tags.

    Returns:
        The names, most similar first.
    """
    names = find_satisfying(registry, constraint).satisfied
    return tuple(sorted(names, key=lambda name: (*_distance(registry.tree(name), constraint, like), name))[:limit])


@dataclass(frozen=True)
class ConstraintCheck:
    """Result of a check, with the nearest tags that satisfy the constraint if the target does not."""

    reason: Reason
    nearest: tuple[str, ...]

    def __str__(self) -> str:
        tags = f"\nnearest tags that satisfy it: {', '.join(self.nearest)}" if self.nearest else ""
        return f"{self.reason}{tags}"

    def to_json(self) -> dict[str, object]:
        """Convert the result to JSON data.

        Returns:
            `reason` (see `Reason.to_json`) and the names `nearest`.
        """
        return {"reason": self.reason.to_json(), "nearest": list(self.nearest)}


def check_target(
    registry: Registry, target: Target, constraint: Constraint, *, measured: bool = False
) -> ConstraintCheck:
    """Check a target against a constraint.

    Args:
        registry: The registry of tags to suggest.
        target: The target.
        constraint: The constraint.
        measured: Whether the target is a machine as it was measured (`Target.satisfies`).

    Returns:
        The result with its reasons.
    """
    reason = target.satisfies(constraint, measured=measured)
    return ConstraintCheck(reason, () if reason else find_nearest(registry, constraint, target))


def _truth(registry: Registry, name: str, constraint: Constraint) -> Truth:
    try:
        return registry.tree(name).satisfies(constraint).truth
    except TargetError:  # a tag that cannot be built does not hide others; `Registry.problems` reports it
        return Truth.NO


def _may_meet(constraint: Constraint, kinds: frozenset[str] | None) -> bool:
    """Whether a tree with some kinds could satisfy a constraint; the kinds are None if they are unknown."""
    # A necessary condition, so True where the kinds alone do not decide.
    if kinds is None or constraint.is_negated or constraint.path is not None:
        return True
    if constraint.any_of:
        return any(_may_meet(option, kinds) for option in constraint.any_of)
    if constraint.all_of:
        return all(_may_meet(part, kinds) for part in constraint.all_of)
    if not all(_may_meet(child, kinds) for _, child in constraint.children):
        return False
    word = str(constraint.word)
    rows = [row for kind in kinds if (row := find_kind(kind)) is not None]
    is_kind = find_kind(word) is not None
    return not is_kind or any(word in (row.name, *row.keys) for row in rows)


def _distance(tree: Target, constraint: Constraint, like: Target) -> tuple[bool, bool, float, float]:
    found = next((context.node for context in walk_contexts(NodeContext(tree)) if meets(constraint, context)), tree)
    same_kind = [node for _, node in like.walk() if node.kind == found.kind]
    other = same_kind[0] if same_kind else like
    constrained = {condition.name for condition in _conditions(constraint)}
    common = [name for name in found.attrs if name in other.attrs]
    distances = [(name, _value_distance(found.attrs[name], other.attrs[name])) for name in common]
    return (
        _vendor(tree) != _vendor(like),
        tree.kind != like.kind or not same_kind,
        # Rounded, so that the order of summation does not decide between equal distances.
        round(sum(distance for name, distance in distances if name in constrained), 6),
        round(sum(distance for _, distance in distances), 6),
    )


def _conditions(constraint: Constraint) -> Iterator[Condition]:
    yield from constraint.conditions
    for nested in constraint.nested():
        yield from _conditions(nested)


def _vendor(target: Target) -> str:
    return (target.tag or "").partition("/")[0]


def _value_distance(left: object, right: object) -> float:
    """Return the distance of two values: in powers of two for numbers, else 0 or 1."""
    distance = doublings(left, right)
    return float(left != right) if distance is None else distance
