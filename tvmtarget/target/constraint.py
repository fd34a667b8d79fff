"""Constraints: the one thing ever written on a function, a call or a `where` rule.

    cuda                       a kind, then a key                 @rack/node0     a node of the tree, or below it
    llvm(num-cores>=4,+avx2)   attributes with operators          !gpu            anything but
    cuda|llvm                  an ordered choice                  gpu?  gpu?10    preferred, not required
    !(cuda|llvm)               a group

The grammar is that of targets with operators (`grammar.py`). A condition speaks of leaves: a composite can
meet it if one leaf below can. An attribute that a target does not state makes the answer unknown, which
counts as no unless the caller asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pydantic import Field

from tvmtarget.errors import TargetError, TextError, raise_all
from tvmtarget.target.conditions import (
    Condition,
    Operator,
    Reason,
    Truth,
    conditions_from_json,
    conditions_to_json,
    read_condition,
)
from tvmtarget.target.grammar import Choice, Reference, Spec, Term, is_word, parse_choice
from tvmtarget.target.kinds import find_kind, kind_names
from tvmtarget.target.nesting import covers
from tvmtarget.target.node import Node
from tvmtarget.target.problems import Problems, shown, syntax_error
from tvmtarget.target.tree import Target

__all__ = ["Condition", "Constraint", "Reason", "Truth", "covers", "known_words"]

_SIGNS: dict[str, Operator] = {
    "+": "has",
    "-": "lacks",
    "=": "eq",
    "==": "eq",
    "!=": "ne",
    ">=": "ge",
    "<=": "le",
    ">": "gt",
    "<": "lt",
}


class Constraint(Node):
    """What a program asks of the target it runs on; read by `Constraint.parse`.

    One of `word` (a kind or key, with conditions), `path` (a node) or `any_of` (an ordered choice) is set;
    `is_negated` turns it round; a `weight` makes it a preference that never excludes anything.
    """

    word: str | None = None
    conditions: tuple[Condition, ...] = ()
    path: str | None = None
    any_of: tuple[Constraint, ...] = ()
    is_negated: bool = False
    weight: int | None = Field(default=None, ge=0)

    def model_post_init(self, _context: object) -> None:
        """Refuse what has no meaning; all problems at once."""
        problems: list[str] = []
        if sum((self.word is not None, self.path is not None, bool(self.any_of))) != 1:
            problems.append("a constraint is one of a word, a path and a choice")
        if self.conditions and self.word is None:
            problems.append("conditions belong to a kind or a key")
        problems += [
            f"{shown(text)} is no {what}; use names, with '/' between them in a path"
            for what, text in (("word", self.word), ("path", self.path or None))
            if text is not None and not is_word(text)
        ]
        if any(option.weight is not None for option in self.any_of):
            problems.append("a preference cannot be one option of a choice; prefer the choice: (a|b)?")
        raise_all(TargetError, problems)

    @classmethod
    def parse(cls, text: str | Constraint | Target) -> Constraint:
        """Read a text; `TextError` shows the column, unknown kinds and attributes come with the nearest names.

        >>> Constraint.parse("llvm(num-cores>=4)").check(Target("llvm", {"num-cores": 8})).truth.name
        'YES'
        """
        if isinstance(text, Constraint):
            return text
        if isinstance(text, Target):
            text = str(text)
        if not isinstance(text, str):
            raise TextError(f"a constraint is a text such as 'cuda' or '@cpu', not {shown(text)}")
        if not text.strip():
            raise TextError("expected a constraint, but the text is empty; write a kind, a key or @path")
        return _read_choice(parse_choice(text), text)

    @classmethod
    def at(cls, path: str) -> Constraint:
        """Return the constraint that names one node; the root's path is empty."""
        return cls(path=path)

    @classmethod
    def from_json(cls, data: object) -> Constraint:
        """Read an object with 'kind', 'path', 'any' or 'not', and 'prefer' for a weight; or a text.

        >>> str(Constraint.from_json({"kind": "llvm", "num-cores": {"ge": 4}, "mattr": {"has": ["avx2"]}}))
        'llvm(+avx2,num-cores>=4)'
        """
        if isinstance(data, str):
            return cls.parse(data)
        return _read_object(data)

    def to_json(self) -> dict[str, object]:
        """Return the object; `Constraint.from_json` reads it back to an equal constraint."""
        flat = {} if self.weight is None else {"prefer": self.weight}
        if self.is_negated:
            return flat | {"not": self.replace(is_negated=False, weight=None).to_json()}
        if self.any_of:
            return flat | {"any": [option.to_json() for option in self.any_of]}
        if self.path is not None:
            return flat | {"path": self.path}
        return flat | {"kind": self.word} | conditions_to_json(str(self.word), self.conditions)

    def __str__(self) -> str:
        if self.any_of:
            body = "|".join(f"({option})" if _is_bare_choice(option) else str(option) for option in self.any_of)
            body = body if _is_bare_choice(self) else f"({body})"
        elif self.path is not None:
            body = f"@{self.path or '.'}"
        else:
            body = f"{self.word}({','.join(map(str, self.conditions))})" if self.conditions else str(self.word)
        return f"{'!' * self.is_negated}{body}" + ("" if self.weight is None else f"?{self.weight}")

    def __repr__(self) -> str:
        return f"Constraint.parse({str(self)!r})"

    @property
    def is_required(self) -> bool:
        """Whether it excludes targets, or only prefers some."""
        return self.weight is None

    def paths(self) -> Iterator[str]:
        """Yield every `@path` in it."""
        if self.path is not None:
            yield self.path
        for option in self.any_of:
            yield from option.paths()

    def check(self, target: Target, path: str = "") -> Reason:
        """Say whether a leaf at a path of its tree meets this, with the reasons; preferences are not left out here."""
        reason = self._check_body(target, path)
        if not self.is_negated:
            return reason
        return Reason(truth=Truth(Truth.YES - reason.truth), text=f"not {reason.text}", parts=reason.parts)

    def _check_body(self, target: Target, path: str) -> Reason:
        if self.any_of:
            parts = tuple(option.check(target, path) for option in self.any_of)
            return Reason(truth=max(part.truth for part in parts), text=str(self), parts=parts)
        if self.path is not None:
            truth = Truth.YES if covers(self.path, path) else Truth.NO
            return Reason(truth=truth, text=f"@{self.path or '.'}: this is @{path or '.'}")
        keys = f" ({','.join(target.all_keys)})" if target.all_keys else ""
        if self.word == target.kind or self.word in target.all_keys:
            parts = tuple(condition.check(target) for condition in self.conditions)
            truth = min((part.truth for part in parts), default=Truth.YES)
            return Reason(truth=truth, text=f"{self.word}: this is {target.kind}", parts=parts)
        if find_kind(target.kind) is None and target.keys is None and find_kind(str(self.word)) is None:
            return Reason(truth=Truth.UNKNOWN, text=f"{self.word}: nobody knows the keys of {target.kind}")
        return Reason(truth=Truth.NO, text=f"{self.word}: this is {target.kind}{keys}")

    def rank(self, target: Target, path: str = "") -> int:
        """Score a leaf: a preference its weight, an ordered choice one less for each option passed over."""
        if self.weight is not None:
            return self.weight if self.check(target, path) else 0
        if self.is_negated:
            return 0
        return next((-passed for passed, option in enumerate(self.any_of) if option.check(target, path)), 0)


def known_words() -> frozenset[str]:
    """Return every kind and key that some registered kind has, for spelling advice."""
    kinds = [kind for name in kind_names() if (kind := find_kind(name)) is not None]
    return frozenset({kind.name for kind in kinds} | {key for kind in kinds for key in kind.keys})


def _is_bare_choice(constraint: Constraint) -> bool:
    return bool(constraint.any_of) and not constraint.is_negated and constraint.weight is None


def _read_choice(choice: Choice, text: str) -> Constraint:
    options = [_read_term(term, text) for term in choice]
    if len(options) == 1:
        return options[0]
    for term, option in zip(choice, options, strict=True):
        if option.weight is not None:
            raise syntax_error("'?' prefers a whole choice, not one option of it; write (a|b)?10", text, term.column)
    return Constraint(any_of=tuple(options))


def _read_term(term: Term, text: str) -> Constraint:
    if isinstance(term.body, Reference):
        read = Constraint(path="" if term.body.path == "." else term.body.path)
    elif isinstance(term.body, Spec):
        read = _read_spec(term.body, text)
    else:
        read = _read_choice(term.body, text)
    if read.weight is not None and (term.negated or term.weight is not None):
        raise syntax_error("'?' stands at the end, once: (!gpu)?10", text, term.column)
    weight = term.weight if read.weight is None else read.weight
    return read.replace(is_negated=read.is_negated != term.negated, weight=weight)


def _read_spec(spec: Spec, text: str) -> Constraint:
    if spec.children or spec.part is not None or "/" in spec.head:
        problem = f"a constraint names a kind, a key or @path, not {shown(spec.head)} with parts or children"
        raise syntax_error(problem, text, spec.column)
    found, problems = set[Condition](), Problems()
    for item in spec.items:
        if item.operator == "~" or isinstance(item.value, Reference | tuple):
            raise syntax_error(f"{item.path!r} is no condition; write attribute>=value", text, item.column)
        operator = _SIGNS[item.operator]
        value = item.path if operator in ("has", "lacks") else item.value
        with problems.collect():
            found.add(read_condition(spec.head, item.path, operator, value))
    problems.raise_all()
    return Constraint(word=spec.head, conditions=tuple(sorted(found, key=lambda condition: condition.order)))


def _read_object(data: object) -> Constraint:
    if not isinstance(data, Mapping):
        raise TargetError(f"a constraint is a text or an object, not {shown(data)}")
    flat = {str(key): value for key, value in data.items()}
    weight = flat.pop("prefer", None)
    heads = [head for head in _HEADS if head in flat]
    if len(heads) != 1:
        raise TargetError(f"a constraint has one of {', '.join(map(repr, _HEADS))}, not {shown(data)}")
    value = flat.pop(heads[0])
    if heads[0] != "kind" and flat:
        raise TargetError(f"{min(flat)!r} says nothing beside {heads[0]!r}; attributes belong to a kind or a key")
    read = _HEADS[heads[0]](value, flat)
    if read.weight is not None and weight is not None:
        raise TargetError(f"'prefer' is given twice in {shown(data)}")
    return read if weight is None else read.replace(weight=weight)


def _word_of(word: object, flat: Mapping[str, object]) -> Constraint:
    if not isinstance(word, str):
        raise TargetError(f"'kind' is a kind or a key, not {shown(word)}")
    found = set(conditions_from_json(word, flat))
    return Constraint(word=word, conditions=tuple(sorted(found, key=lambda condition: condition.order)))


def _path_of(path: object, _: Mapping[str, object]) -> Constraint:
    if not isinstance(path, str):
        raise TargetError(f"'path' is a path of names, not {shown(path)}")
    return Constraint(path=path)


def _choice_of(options: object, _: Mapping[str, object]) -> Constraint:
    if not isinstance(options, list | tuple) or not options:
        raise TargetError(f"'any' is a list of constraints, not {shown(options)}")
    read = tuple(Constraint.from_json(option) for option in options)
    return read[0] if len(read) == 1 else Constraint(any_of=read)


def _negation_of(data: object, _: Mapping[str, object]) -> Constraint:
    read = Constraint.from_json(data)
    if read.weight is not None:
        raise TargetError(f"'prefer' stands outside of 'not', not in {shown(data)}")
    return read.replace(is_negated=not read.is_negated)


_HEADS: dict[str, Callable[[object, Mapping[str, object]], Constraint]] = {
    "kind": _word_of,
    "path": _path_of,
    "any": _choice_of,
    "not": _negation_of,
}
