"""Whether one constraint implies another, and whether two can be met together.

Both are decided on nodes. "Yes, it implies" and "no, they exclude each other" are proofs, field by field, over
the options of both in disjunctive form; "no, it does not" and "yes, they go together" come with a node that shows
it (`witnesses.py`). Where neither is found the answer is unknown: a proof may need knowledge that is not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from tvmtarget.target.constraints.condition_logic import excludes, follows, refutes
from tvmtarget.target.constraints.conditions import Condition
from tvmtarget.target.constraints.matching import assign
from tvmtarget.target.constraints.reasons import Reason, Truth
from tvmtarget.target.constraints.satisfaction import meets, wanted_children
from tvmtarget.target.constraints.witnesses import Literal, label, witnesses
from tvmtarget.target.kinds import find_kind, kind_names
from tvmtarget.target.tree_paths import covers, unnumbered

if TYPE_CHECKING:
    from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["implies", "intersects"]

_MAX_OPTIONS = 64  # of a constraint in disjunctive form

_Option: TypeAlias = tuple[Literal, ...]


def implies(one: Constraint, other: Constraint) -> Reason:
    """Say whether every node that meets one constraint meets another."""
    if _is_implied(other, one):
        return Reason(truth=Truth.YES, text=f"{one} implies {other}")
    given, wanted = _options(one) or (), _options(other) or ()
    literals = [literal for option in wanted for literal in option]
    for place in (place for option in given for place in witnesses(option, literals)):
        if meets(one, place) and not (reason := meets(other, place)):
            text = f"{one} does not imply {other}: {label(place)} meets the first and not the second"
            return Reason(truth=Truth.NO, text=text, parts=(reason,))
    return Reason(truth=Truth.UNKNOWN, text=f"whether {one} implies {other} is not decided")


def intersects(one: Constraint, other: Constraint) -> Reason:
    """Say whether some node could meet both constraints."""
    if _is_excluded(one, other):
        return Reason(truth=Truth.NO, text=f"{one} and {other} exclude each other")
    pairs = product(_options(one) or (), _options(other) or ())
    for place in (place for option, another in pairs for place in witnesses((*option, *another), ())):
        if meets(one, place) and meets(other, place):
            return Reason(truth=Truth.YES, text=f"{label(place)} meets {one} and {other}")
    return Reason(truth=Truth.UNKNOWN, text=f"whether {one} and {other} can be met together is not decided")


def _is_implied(other: Constraint, one: Constraint) -> bool:
    """Whether there is a proof that one constraint implies another."""
    if one.replace(weight=None) == other.replace(weight=None):
        return True
    given, wanted = _options(one), _options(other)
    if given is None or wanted is None:
        return False
    return all(_clash(option) or any(_implied(another, option) for another in wanted) for option in given)


def _is_excluded(one: Constraint, other: Constraint) -> bool:
    """Whether there is a proof that no node meets both constraints."""
    given, wanted = _options(one), _options(other)
    if given is None or wanted is None:
        return False
    return all(_clash((*option, *another)) for option, another in product(given, wanted))


def _options(constraint: Constraint, *, is_negated: bool = False) -> list[_Option] | None:
    """Return the disjunctive form: of each option, words and paths that are met or not; None if it is too long."""
    is_negated = is_negated != constraint.is_negated
    parts = constraint.any_of or constraint.all_of
    if not parts:
        return [((constraint.replace(is_negated=False, weight=None), not is_negated),)]
    below = [_options(part, is_negated=is_negated) for part in parts]
    found: list[_Option] = [()]
    if bool(constraint.any_of) != is_negated:
        found = [option for options in below if options is not None for option in options]
    for options in below:
        if options is None or len(found) > _MAX_OPTIONS:
            return None
        if bool(constraint.any_of) == is_negated:
            found = [(*option, *more) for option in found for more in options]
    return found


def _positive(option: _Option) -> list[Constraint]:
    return [atom for atom, is_met in option if is_met]


def _implied(wanted: _Option, given: _Option) -> bool:
    """Whether all of an option follow from another."""
    return all(_follows(atom, given) if is_met else _refuted(atom, given) for atom, is_met in wanted)


def _follows(atom: Constraint, given: _Option) -> bool:
    facts = _positive(given)
    if atom.path is not None:
        return any(fact.path is not None and covers(atom.path, fact.path) for fact in facts)
    return (
        any(fact.word is not None and _is_stronger_word(fact.word, str(atom.word)) for fact in facts)
        and all(follows(condition, _conditions(facts)) for condition in atom.conditions)
        and (not atom.children or any(_children_follow(atom, fact) for fact in facts))
        and all(any(_parts_follow(name, part, fact) for fact in facts) for name, part in atom.parts())
    )


def _is_stronger_word(given: str, wanted: str) -> bool:
    kinds = [kind for name in (given, *_others(given)) if (kind := find_kind(name)) is not None]
    is_kind = find_kind(given) is not None
    return given == wanted or (is_kind and all(wanted in (kind.name, *kind.keys) for kind in kinds))


def _others(word: str) -> list[str]:
    """Return the other kinds that answer to a word: `cuda` means nvptx too."""
    return [name for name in kind_names() if name != word and (row := find_kind(name)) and word in row.keys]


def _conditions(facts: Sequence[Constraint]) -> list[Condition]:
    return [condition for fact in facts for condition in fact.conditions]


def _children_follow(atom: Constraint, fact: Constraint) -> bool:
    """Whether children that are asked for give each wanted child one of its own."""
    wanted, given = wanted_children(atom), wanted_children(fact)
    edges = [
        [
            at
            for at, there in enumerate(given)
            if (one.name == there.name or (one.name is None and "/" not in str(there.name)))
            and _is_implied(one.constraint, there.constraint)
        ]
        for one in wanted
    ]
    served = assign([one.number for one in wanted], [there.number for there in given], edges)
    return all(sum(taken.values()) == one.number for taken, one in zip(served, wanted, strict=True))


def _parts_follow(name: str, part: Constraint, fact: Constraint) -> bool:
    return any(_is_implied(part, given) for role, given in fact.parts() if role == name)


def _refuted(atom: Constraint, given: _Option) -> bool:
    """Whether a node that is as given cannot but fail an atom."""
    facts = _positive(given)
    if (atom, False) in given or any(_are_apart(fact, atom) for fact in facts):
        return True
    if any(refutes(_conditions(facts), condition) for condition in atom.conditions):
        return True
    plain = [other for other, is_met in given if not is_met and not other.children and not any(other.parts())]
    return any(_follows(other, ((atom, True),)) for other in plain)


def _clash(option: _Option) -> bool:
    """Whether no node is as an option says."""
    facts = _positive(option)
    return (
        any(_are_apart(one, other) for at, one in enumerate(facts) for other in facts[:at])
        or excludes(_conditions(facts))
        or any(_follows(atom, tuple((fact, True) for fact in facts)) for atom, is_met in option if not is_met)
    )


def _are_apart(one: Constraint, other: Constraint) -> bool:
    """Whether no node meets both of two atoms, whatever their conditions say."""
    if one.path is not None and other.path is not None:
        pairs = zip(one.path.split("/"), other.path.split("/"), strict=False)
        return bool(one.path and other.path) and not all(_may_be_one(a, b) for a, b in pairs)
    if one.path is not None or other.path is not None:
        return False
    return _are_apart_words(str(one.word), str(other.word)) or any(_apart_below(one, other))


def _may_be_one(slot: str, other: str) -> bool:
    return slot == other or slot == unnumbered(other) or unnumbered(slot) == other


def _are_apart_words(one: str, other: str) -> bool:
    """Whether no kind answers to both; a key that names no kind may be on any node."""
    if find_kind(one) is None or find_kind(other) is None:
        return False
    return not {one, *_others(one)} & {other, *_others(other)}


def _apart_below(one: Constraint, other: Constraint) -> Iterator[bool]:
    """Yield, for each child and part that both ask for by name, whether these exclude each other."""
    children = {child.name: child.constraint for child in wanted_children(other) if child.name is not None}
    for child in wanted_children(one):
        if child.name in children:
            yield _is_excluded(child.constraint, children[child.name])
    parts = dict(other.parts())
    for name, part in one.parts():
        if name in parts:
            yield (_is_excluded if name == "host" else _are_apart_configured)(part, parts[name])


def _are_apart_configured(one: Constraint, other: Constraint) -> bool:
    """Whether no executor, or no runtime, meets both: each is of one kind only."""
    pairs = product(_options(one) or [()], _options(other) or [()])
    return all(
        len({atom.word for atom in facts}) > 1 or excludes(_conditions(facts))
        for facts in (_positive((*option, *another)) for option, another in pairs)
    )
