"""Tags by what they can do: those that satisfy a constraint, and those of them that are nearest to a target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean
from tvmtarget.tags.registry import Registry
from tvmtarget.target.constraints.attribute_comparison import doublings
from tvmtarget.target.constraints.constraint import Condition, Constraint, known_words
from tvmtarget.target.constraints.node_context import NodeContext, walk_contexts
from tvmtarget.target.constraints.reasons import Reason, Truth
from tvmtarget.target.constraints.satisfaction import meets
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.tree import Target

__all__ = ["Answer", "Matches", "answer", "nearest", "read_constraint", "satisfying"]


@dataclass(frozen=True, slots=True)
class Matches:
    """The names of tags that satisfy a constraint, and of those that state too little to know; both sorted."""

    satisfied: tuple[str, ...]
    possible: tuple[str, ...]


def read_constraint(registry: Registry, text: str) -> Constraint:
    """Read a constraint, or a tag as one: at least that; words that nothing known bears are refused.

    >>> from tvmtarget.tags.registry import default_registry
    >>> print(read_constraint(default_registry(), "gpu(arch>=sm_70)"))
    gpu(arch>=sm_70)
    """
    if re.split(r"[(:]", text.strip(), maxsplit=1)[0] in registry:
        return Constraint.of(Target.parse(text, tags=registry))
    constraint = Constraint.parse(text)
    known = known_words()
    unknown = [word for word in dict.fromkeys(constraint.words()) if word not in known]
    if unknown:
        raise UnknownNameError(*(f"no target kind or key {word!r}{did_you_mean(word, known)}" for word in unknown))
    return constraint


def satisfying(registry: Registry, constraint: Constraint) -> Matches:
    """Return the tags that satisfy a constraint; trees are built of those only whose kinds could."""
    found: dict[Truth, list[str]] = {truth: [] for truth in Truth}
    for name in registry:
        if _may_meet(constraint, registry.kinds(name)):
            found[_truth(registry, name, constraint)].append(name)
    return Matches(tuple(found[Truth.YES]), tuple(found[Truth.UNKNOWN]))


def nearest(registry: Registry, constraint: Constraint, like: Target, *, limit: int = 3) -> tuple[str, ...]:
    """Return tags that satisfy a constraint, those first that are most like a target.

    First come those of its vendor, then of its kind, then those that differ least in what the constraint asks,
    and in everything else that both state.
    """
    names = satisfying(registry, constraint).satisfied
    return tuple(sorted(names, key=lambda name: (*_distance(registry.tree(name), constraint, like), name))[:limit])


@dataclass(frozen=True)
class Answer:
    """Why a target satisfies a constraint or not; if not, with the nearest tags that do."""

    reason: Reason
    nearest: tuple[str, ...]

    def __str__(self) -> str:
        tags = f"\nnearest tags that satisfy it: {', '.join(self.nearest)}" if self.nearest else ""
        return f"{self.reason}{tags}"

    def to_json(self) -> dict[str, object]:
        """Return it as data."""
        return {"reason": self.reason.to_json(), "nearest": list(self.nearest)}


def answer(registry: Registry, target: Target, constraint: Constraint, *, measured: bool = False) -> Answer:
    """Say why a target satisfies a constraint or not, and which tags like it do if not.

    `measured` says that the target is a machine as it was measured (`Target.satisfies`).
    """
    reason = target.satisfies(constraint, measured=measured)
    return Answer(reason, () if reason else nearest(registry, constraint, target))


def _truth(registry: Registry, name: str, constraint: Constraint) -> Truth:
    try:
        return registry.tree(name).satisfies(constraint).truth
    except TargetError:  # a tag that cannot be built hides no other; `Registry.problems` tells of it
        return Truth.NO


def _may_meet(constraint: Constraint, kinds: frozenset[str] | None) -> bool:
    """Whether a tree of some kinds could satisfy a constraint; None stands for kinds that are not known yet."""
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
    alike = [node for _, node in like.walk() if node.kind == found.kind]
    other = alike[0] if alike else like
    asked = {condition.name for condition in _conditions(constraint)}
    names = [name for name in found.attrs if name in other.attrs]
    far = [(name, _apart(found.attrs[name], other.attrs[name])) for name in names]
    return (
        _vendor(tree) != _vendor(like),
        tree.kind != like.kind or not alike,
        round(sum(distance for name, distance in far if name in asked), 6),
        round(sum(distance for _, distance in far), 6),
    )


def _conditions(constraint: Constraint) -> Iterator[Condition]:
    yield from constraint.conditions
    for nested in constraint.nested():
        yield from _conditions(nested)


def _vendor(target: Target) -> str:
    return (target.tag or "").partition("/")[0]


def _apart(one: object, other: object) -> float:
    """Return how far two values are apart: numbers by doublings, all others by being unequal."""
    far = doublings(one, other)
    return float(one != other) if far is None else far
