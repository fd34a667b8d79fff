"""Constraints: the one thing ever written on a function, a call or a `where` rule.

    cuda                       a kind, then a key                 @rack/node0     a node of the tree, or below it
    llvm(num-cores>=4,+avx2)   attributes with operators          !gpu            anything but
    cuda|llvm                  an ordered choice                  gpu?  gpu?10    preferred, not required

The grammar is that of targets with operators (`grammar.py`). A condition speaks of leaves: a composite can
meet it if one leaf below can. An attribute that a target does not state makes the answer unknown, which
counts as no unless the caller asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Literal, TypeAlias

from tvmtarget.errors import TextError, UnknownNameError, did_you_mean
from tvmtarget.target.attributes import Value
from tvmtarget.target.grammar import Choice, Item, Reference, Spec, Term, parse_choice
from tvmtarget.target.kinds import Kind, find_kind, kind_names
from tvmtarget.target.node import Node
from tvmtarget.target.tree import Target

__all__ = ["Condition", "Constraint", "Reason", "Truth"]

Operator: TypeAlias = Literal["eq", "ne", "ge", "le", "gt", "lt", "has", "lacks"]

_SIGNS: dict[str, Operator] = {"=": "eq", "==": "eq", "!=": "ne", ">=": "ge", "<=": "le", ">": "gt", "<": "lt"}
_PRINTED: dict[Operator, str] = {"eq": "=", "ne": "!=", "ge": ">=", "le": "<=", "gt": ">", "lt": "<"}


class Truth(IntEnum):
    """The three values of an answer, ordered so that `min` is "and" and `max` is "or"."""

    NO = 0
    UNKNOWN = 1
    YES = 2


class Reason(Node):
    """An answer and what it rests on."""

    truth: Truth
    text: str
    parts: tuple[Reason, ...] = ()

    def __bool__(self) -> bool:
        return self.truth is Truth.YES

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Yield the tree of reasons, one line each, indented."""
        yield f"{'  ' * depth}{self.truth.name} {self.text}"
        for part in self.parts:
            yield from part.lines(depth + 1)

    def __str__(self) -> str:
        return "\n".join(self.lines())


class Condition(Node):
    """A comparison with one attribute: `num-cores>=4`, or a feature that is there (`has`) or not (`lacks`)."""

    name: str
    operator: Operator
    value: bool | int | str | tuple[str, ...] | tuple[int, ...]

    def __str__(self) -> str:
        if self.operator in ("has", "lacks"):
            return f"{'+' if self.operator == 'has' else '-'}{self.value}"
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"{self.name}{_PRINTED[self.operator]}{'+'.join(map(str, value)) if isinstance(value, tuple) else value}"

    def check(self, target: Target) -> Reason:
        """Compare with a target's own or default value."""
        kind = find_kind(target.kind)
        row = None if kind is None else (kind.features if self.operator in ("has", "lacks") else kind.attribute(self.name))
        if kind is not None and row is None:
            return Reason(truth=Truth.NO, text=f"{self}: kind {target.kind!r} has no such attribute")
        actual = target[row.name] if row is not None else target.attrs.get(self.name)
        if actual is None:
            return Reason(truth=Truth.UNKNOWN, text=f"{self}: the target does not say")
        truth = _compare(self.operator, actual, self.value)
        return Reason(truth=truth, text=f"{self}: it is {_shown(actual)}")


def _shown(value: Value) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def _compare(operator: Operator, actual: Value, wanted: Value) -> Truth:
    if operator in ("has", "lacks") and isinstance(actual, tuple):
        sign, other = ("+", "-") if operator == "has" else ("-", "+")
        if f"{sign}{wanted}" in actual:
            return Truth.YES
        return Truth.NO if f"{other}{wanted}" in actual else Truth.UNKNOWN
    if operator == "eq":
        return Truth.YES if actual == wanted else Truth.NO
    if operator == "ne":
        return Truth.YES if actual != wanted else Truth.NO
    pair = _ordered(actual, wanted)
    if pair is None:
        return Truth.UNKNOWN
    left, right = pair
    holds = {"ge": left >= right, "le": left <= right, "gt": left > right, "lt": left < right}[operator]
    return Truth.YES if holds else Truth.NO


def _ordered(actual: Value, wanted: Value) -> tuple[int, int] | None:
    """Read both sides as numbers: whole numbers, or the numbers in names of one series such as sm_53 and sm_80."""
    if isinstance(actual, int) and isinstance(wanted, int):
        return actual, wanted
    if isinstance(actual, str) and isinstance(wanted, str):
        stems = [value.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip("0123456789") for value in (actual, wanted)]
        numbers = ["".join(filter(str.isdigit, value)) for value in (actual, wanted)]
        if stems[0] == stems[1] and all(numbers):
            return int(numbers[0]), int(numbers[1])
    return None


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
    weight: int | None = None

    @classmethod
    def parse(cls, text: str | Constraint | Target) -> Constraint:
        """Read a text; `TextError` shows the column, unknown kinds and attributes come with the nearest names."""
        if isinstance(text, Constraint):
            return text
        if isinstance(text, Target):
            text = str(text)
        if not isinstance(text, str):
            raise TextError(f"a constraint is a text such as 'cuda' or '@cpu', not {text!r}")
        if not text.strip():
            raise TextError("expected a constraint, but the text is empty; write a kind, a key or @path")
        return _read_choice(parse_choice(text), text)

    @classmethod
    def at(cls, path: str) -> Constraint:
        """Return the constraint that names one node; the root's path is empty."""
        return cls(path=path)

    def __str__(self) -> str:
        if self.any_of:
            body = "|".join(map(str, self.any_of))
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
        if self.any_of:
            parts = tuple(option.check(target, path) for option in self.any_of)
            return self._turned(Reason(truth=max(part.truth for part in parts), text=str(self), parts=parts))
        if self.path is not None:
            truth = Truth.YES if covers(self.path, path) else Truth.NO
            return self._turned(Reason(truth=truth, text=f"@{self.path or '.'}: this is @{path or '.'}"))
        if self.word != target.kind and self.word not in target.all_keys:
            what = f"{self.word}: this is {target.kind}" + (f" ({','.join(target.all_keys)})" if target.all_keys else "")
            return self._turned(Reason(truth=Truth.NO, text=what))
        parts = tuple(condition.check(target) for condition in self.conditions)
        truth = min((part.truth for part in parts), default=Truth.YES)
        return self._turned(Reason(truth=truth, text=f"{self.word}: this is {target.kind}", parts=parts))

    def _turned(self, reason: Reason) -> Reason:
        if not self.is_negated:
            return reason
        return Reason(truth=Truth(2 - reason.truth), text=f"not {reason.text}", parts=reason.parts)

    def rank(self, target: Target, path: str = "") -> int:
        """Score a leaf: a preference its weight, an ordered choice one less for each option passed over."""
        if self.weight is not None:
            return self.weight if self.replace(weight=None).check(target, path) else 0
        for passed, option in enumerate(self.any_of):
            if option.check(target, path):
                return -passed
        return 0


def covers(path: str, site: str) -> bool:
    """Whether a site is the node at `path` or below it; `gpu` covers its replicas `gpu.0`, `gpu.1`, ..."""
    wanted, actual = path.split("/") if path else [], site.split("/") if site else []
    return len(wanted) <= len(actual) and all(
        have == want or (have.startswith(f"{want}.") and have[len(want) + 1 :].isdigit())
        for want, have in zip(wanted, actual, strict=False)
    )


def _read_choice(choice: Choice, text: str) -> Constraint:
    options = tuple(_read_term(term, text) for term in choice)
    return options[0] if len(options) == 1 else Constraint(any_of=options)


def _read_term(term: Term, text: str) -> Constraint:
    if isinstance(term.body, Reference):
        path = "" if term.body.path == "." else term.body.path
        return Constraint(path=path, is_negated=term.negated, weight=term.weight)
    spec = term.body
    if spec.children or spec.part is not None or "/" in spec.head:
        problem = f"a constraint names a kind, a key or @path, not {spec.head!r} with parts or children"
        raise TextError(problem, text=text, column=spec.column)
    kind = find_kind(spec.head)
    conditions = tuple(_read_condition(item, kind, spec, text) for item in spec.items)
    return Constraint(word=spec.head, conditions=conditions, is_negated=term.negated, weight=term.weight)


def _read_condition(item: Item, kind: Kind | None, spec: Spec, text: str) -> Condition:
    if item.operator == "~" or not isinstance(item.value, str | int | list):
        raise TextError(f"{item.path!r} is no condition; write attribute>=value", text=text, column=item.column)
    if item.operator in ("+", "-"):
        return Condition(name="+", operator="has" if item.operator == "+" else "lacks", value=item.path)
    return Condition(
        name=_row_name(item, kind, text), operator=_SIGNS[item.operator], value=_read_value(item, kind, spec)
    )


def _row_name(item: Item, kind: Kind | None, text: str) -> str:
    if kind is None:
        return item.path
    row = kind.attribute(item.path)
    if row is None:
        near = did_you_mean(item.path, [known.name for known in kind.attributes])
        raise UnknownNameError(f"kind {kind.name!r} has no attribute {item.path!r}{near} (in {text!r})")
    return row.name


def _read_value(item: Item, kind: Kind | None, spec: Spec) -> bool | int | str | tuple[str, ...] | tuple[int, ...]:
    value = item.value
    if kind is not None:
        name = _row_name(item, kind, spec.head)
        if isinstance(value, str) and "+" in value and _is_list(kind, name):
            value = value.split("+")
        return kind.normalise({name: value}, where=f" (in constraint on {spec.head!r})")[name]  # type: ignore[return-value]
    return int(value) if isinstance(value, str) and value.isdigit() else value  # type: ignore[return-value]


def _is_list(kind: Kind, name: str) -> bool:
    row = kind.attribute(name)
    return row is not None and row.type in ("list[str]", "list[int]", "features")


def known_words() -> frozenset[str]:
    """Return every kind and key that some registered kind has, for spelling advice."""
    kinds = [kind for name in kind_names() if (kind := find_kind(name)) is not None]
    return frozenset({kind.name for kind in kinds} | {key for kind in kinds for key in kind.keys})
