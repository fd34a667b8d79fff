"""Parse constraints from text, and print them in canonical form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tvmtarget.target.attributes import Word
from tvmtarget.target.constraints.attribute_comparison import Operator
from tvmtarget.target.constraints.conditions import Condition, conditions_from_json, read_conditions
from tvmtarget.target.kinds import Role, kind_of
from tvmtarget.target.problems import Problems, shown, syntax_error
from tvmtarget.target.text.grammar import Choice, Conjunction, Item, Reference, Spec, Term, parse_choice

if TYPE_CHECKING:
    from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["read", "write"]

_SIGNS: dict[str, Operator] = {
    "+": "has",
    "-": "lacks",
    "+=": "has",
    "-=": "lacks",
    "=": "eq",
    "==": "eq",
    "!=": "ne",
    ">=": "ge",
    "<=": "le",
    ">": "gt",
    "<": "lt",
}
_ROLES: dict[str, Role] = {"host": "target", "executor": "executor", "runtime": "runtime"}


def read(make: type[Constraint], text: str, role: Role = "target") -> Constraint:
    """Parse a text as a constraint.

    Args:
        make: The class `Constraint`, whose module imports this one.
        text: The text, such as `llvm(num-cores>=4)|@cpu`.
        role: Whether it constrains a node, an executor or a runtime.

    Returns:
        The constraint.

    Raises:
        TextError: The text does not follow the grammar; the message shows the column.
        TargetError: A condition is invalid (`read_conditions`), or the constraint contradicts itself.
    """
    return _Reader(make, text).choice(parse_choice(text), role)


class _Reader:
    """Converter from the parse tree of one text to constraints."""

    def __init__(self, make: type[Constraint], text: str) -> None:
        self.make = make
        self.text = text

    def choice(self, choice: Choice, role: Role) -> Constraint:
        options = [self.term(term, role) for term in choice]
        if len(options) == 1:
            return options[0]
        for term, option in zip(choice, options, strict=True):
            if option.weight is not None:
                problem = "'?' applies to a whole choice, not to one option of it; write (a|b)?10"
                raise syntax_error(problem, self.text, term.column)
        return self.make(any_of=tuple(options))

    def term(self, term: Term, role: Role) -> Constraint:
        if isinstance(term.body, Reference):
            if role != "target":
                raise syntax_error(f"{role} is a kind with attributes, not a node", self.text, term.column)
            read = self.make(path="" if term.body.path == "." else term.body.path)
        elif isinstance(term.body, Spec):
            read = self.spec(term.body, role)
        elif isinstance(term.body, Conjunction):
            read = self.conjunction(term.body, role)
        else:
            read = self.choice(term.body, role)
        # A group may carry the weight, as in `(!gpu)?10`, but then nothing outside of it may.
        if read.weight is not None and (term.negated or term.weight is not None):
            raise syntax_error("'?' stands at the end, once: (!gpu)?10", self.text, term.column)
        weight = term.weight if read.weight is None else read.weight
        return read.replace(is_negated=read.is_negated != term.negated, weight=weight)

    def conjunction(self, conjunction: Conjunction, role: Role) -> Constraint:
        parts = [self.term(term, role) for term in conjunction.terms]
        for term, part in zip(conjunction.terms, parts, strict=True):
            if part.weight is not None:
                problem = "'?' applies to a whole conjunction, not to one part of it; write (a&b)?10"
                raise syntax_error(problem, self.text, term.column)
        return self.make(all_of=tuple(parts))

    def spec(self, spec: Spec, role: Role) -> Constraint:
        if spec.part is not None or "/" in spec.head:
            name = spec.head if spec.part is None else f"{spec.head}:{spec.part}"
            problem = f"a constraint names a kind, a key or @path, not the tag {shown(name)}"
            raise syntax_error(f"{problem}; Constraint.of(target) makes a constraint of a tag", self.text, spec.column)
        if role != "target":
            kind_of(spec.head, role)
            if spec.children:
                raise syntax_error(f"{role} {shown(spec.head)} has no children", self.text, spec.column)
        # A set, as `+avx2,+avx2` is one condition; canonical order makes the text independent of the spelling.
        conditions, problems = set[Condition](), Problems()
        children: list[tuple[str | None, Constraint]] = []
        parts: dict[str, Constraint] = {}
        for slot, child in spec.children:
            with problems.collect(slot or ""):
                children.append((slot, self.required(self.choice(child, "target"), child[0].column)))
        for item in spec.items:
            with problems.collect():
                if role == "target" and item.path in _ROLES and item.operator not in ("+", "-", "~"):
                    self.part(item, parts)
                else:
                    conditions |= set(self.conditions(spec.head, item, role))
        problems.raise_all()
        ordered = tuple(sorted(conditions, key=lambda condition: condition.order))
        return self.make(
            word=spec.head,
            conditions=ordered,
            children=tuple(children),
            host=parts.get("host"),
            executor=parts.get("executor"),
            runtime=parts.get("runtime"),
        )

    def required(self, read: Constraint, column: int) -> Constraint:
        if read.weight is not None:
            raise syntax_error("'?' applies to a whole system, not to a part of it; write [a,b]?10", self.text, column)
        return read

    def part(self, item: Item, parts: dict[str, Constraint]) -> None:
        role = _ROLES[item.path]
        if item.path in parts:
            raise syntax_error(f"{shown(item.path)} is given twice", self.text, item.column)
        if item.operator not in ("=", "=="):
            problem = (
                f"{shown(item.path)} is met or not, so {item.operator!r} has no meaning; write {item.path}=kind(...)"
            )
            raise syntax_error(problem, self.text, item.column)
        value = item.value
        if isinstance(value, Reference):
            read = self.choice((Term(value, False, None, value.column),), role)
        elif isinstance(value, tuple):
            read = self.choice(value, role)
        elif isinstance(value, Word):
            read = self.spec(Spec(str(value), None, (), (), item.column), role)
        else:
            problem = f"{shown(item.path)} is a kind with attributes, not {shown(value)}; write {item.path}=kind(...)"
            raise syntax_error(problem, self.text, item.column)
        parts[item.path] = self.required(read, item.column)

    def conditions(self, word: str, item: Item, role: Role) -> tuple[Condition, ...]:
        if item.operator in ("+", "-"):
            return read_conditions(word, "+", _SIGNS[item.operator], item.path, role)
        if item.operator == "~" or isinstance(item.value, Reference):
            raise syntax_error(f"{shown(item.path)} is no condition; write attribute>=value", self.text, item.column)
        operator = _SIGNS[item.operator]
        if isinstance(item.value, tuple):
            return self.options(word, item, operator, role)
        if operator == "eq" and isinstance(item.value, Mapping):
            return tuple(conditions_from_json(word, item.path, item.value, role))
        return read_conditions(word, item.path, operator, item.value, role)

    def options(self, word: str, item: Item, operator: Operator, role: Role) -> tuple[Condition, ...]:
        """Read `arch=a|b`, one of several values, or `arch!=a|b`, none of them."""
        values = [_plain(term) for term in item.value] if isinstance(item.value, tuple) else []
        if None in values:
            raise syntax_error(f"{shown(item.path)} is no condition; write attribute>=value", self.text, item.column)
        if operator == "eq":
            return read_conditions(word, item.path, "in", values, role)
        if operator != "ne":
            problem = f"several values may follow = or != only, not {item.operator!r}"
            raise syntax_error(problem, self.text, item.column)
        return tuple(one for value in values for one in read_conditions(word, item.path, "ne", value, role))


def _plain(term: Term) -> Word | None:
    """Return the word of a term that is a bare word, or None for other terms."""
    body = term.body
    is_plain = isinstance(body, Spec) and not (body.part or body.children or body.items)
    return Word(body.head) if is_plain and not term.negated and term.weight is None and isinstance(body, Spec) else None


def write(constraint: Constraint) -> str:
    """Print a constraint in canonical form.

    Args:
        constraint: The constraint.

    Returns:
        A text from which `read` makes an equal constraint.
    """
    if constraint.any_of:
        options = constraint.any_of
        body = "|".join(f"({option})" if option.any_of and _is_bare(option) else str(option) for option in options)
    elif constraint.all_of:
        body = "&".join(f"({part})" if _is_bare(part) else str(part) for part in constraint.all_of)
    elif constraint.path is not None:
        body = f"@{constraint.path or '.'}"
    else:
        body = _write_word(constraint)
    needs_group = not constraint.word and constraint.path is None and not _is_bare(constraint)
    body = f"({body})" if needs_group else body
    return f"{'!' * constraint.is_negated}{body}" + ("" if constraint.weight is None else f"?{constraint.weight}")


def _write_word(constraint: Constraint) -> str:
    children = ",".join(str(child) if name is None else f"{name}={child}" for name, child in constraint.children)
    items = [*map(str, constraint.conditions), *(f"{name}={part}" for name, part in constraint.parts())]
    brackets = f"[{children}]" if children else ""
    return f"{constraint.word}{brackets}" + (f"({','.join(items)})" if items else "")


def _is_bare(constraint: Constraint) -> bool:
    """Whether a constraint prints as parts with '|' or '&' between them, without parentheses."""
    return bool(constraint.any_of or constraint.all_of) and not constraint.is_negated and constraint.weight is None
