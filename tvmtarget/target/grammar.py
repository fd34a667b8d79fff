"""The one-line grammar that targets and constraints share, read into a neutral parse tree.

    choice   = prefer , { "|" , prefer } ;
    prefer   = unary , [ "?" , [ number ] ] ;
    unary    = "!" , unary | "@" , path | spec ;
    spec     = ( word , [ ":" , path ] , [ children ] | children ) , [ "(" , [ item , { "," , item } ] , ")" ] ;
    children = "[" , [ child , { "," , child } ] , "]" ;
    child    = [ word , "=" ] , choice ;
    item     = ( "+" | "-" ) , word | "~" , path | path , operator , value ;
    operator = "=" | "==" | "!=" | ">=" | "<=" | ">" | "<" ;
    value    = JSON string, list or object | choice ;

A target uses the part of it that has no choice, negation, preference or comparison (`text.py` refuses
those with the column); a constraint uses all of it. Reading needs no back-tracking: a child is
named when a word is followed by "=".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TypeAlias

from tvmtarget.errors import TextError

__all__ = ["Choice", "Item", "Reference", "Spec", "Term", "parse_choice"]

MAX_DEPTH = 64

_WORD = re.compile(r"[^\s,()\[\]{}|\"'=<>!?~@:+\-](?:[^\s,()\[\]{}|\"'=<>!?~@:]*[^\s,()\[\]{}|\"'=<>!?~@:+\-])?")
_VALUE_WORD = re.compile(r"[^\s,()\[\]{}|\"=<>!?~@]+")
_OPERATOR = re.compile(r"==|!=|>=|<=|=|>|<")
_NUMBER = re.compile(r"[0-9]+")
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Reference:
    """`@path`: a node of the tree."""

    path: str
    column: int


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of a parenthesis: a feature (`+`, `-`), an unset (`~`), or a path, an operator and a value."""

    path: str
    operator: str
    value: object
    column: int


@dataclass(frozen=True, slots=True)
class Spec:
    """A head (kind, key or tag), a selected part, children and items."""

    head: str
    part: str | None
    children: tuple[tuple[str | None, Choice], ...]
    items: tuple[Item, ...]
    column: int


@dataclass(frozen=True, slots=True)
class Term:
    """One alternative of a choice: negated or not, and preferred (with a weight) or required."""

    body: Reference | Spec
    negated: bool
    weight: int | None
    column: int


Choice: TypeAlias = tuple[Term, ...]


def parse_choice(text: str) -> Choice:
    """Parse a whole text; `TextError` shows the column and what was expected there."""
    scanner = _Scanner(text)
    choice = scanner.choice(0)
    scanner.skip()
    if scanner.at < len(text):
        scanner.fail(f"expected the end of the text before {text[scanner.at]!r}")
    return choice


class _Scanner:
    """A cursor over the text; each method reads one rule of the grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, problem: str) -> None:
        raise TextError(problem, text=self.text, column=self.at)

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None  # the pattern matches the empty string
        self.at = match.end()

    def peek(self) -> str:
        self.skip()
        return self.text[self.at : self.at + 1]

    def accept(self, mark: str) -> bool:
        self.skip()
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def expect(self, mark: str, after: str) -> None:
        if not self.accept(mark):
            found = self.peek()
            self.fail(f"expected {mark!r} {after}" + (f" before {found!r}" if found else " but the text ended"))

    def match(self, pattern: re.Pattern[str]) -> str | None:
        self.skip()
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match.group()

    def word(self, expected: str) -> str:
        word = self.match(_WORD)
        if word is None:
            found = self.peek()
            self.fail(f"expected {expected}" + (f", not {found!r}" if found else " but the text ended"))
            raise AssertionError("unreachable")
        return word

    def choice(self, depth: int) -> Choice:
        if depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels")
        terms = [self.term(depth)]
        while self.accept("|"):
            terms.append(self.term(depth))
        return tuple(terms)

    def term(self, depth: int) -> Term:
        self.skip()
        column = self.at
        negated = False
        while self.peek() == "!" and self.accept("!"):
            negated = not negated
        body = self.reference() if self.peek() == "@" else self.spec(depth)
        weight = None
        if self.accept("?"):
            weight = int(self.match(_NUMBER) or 1)
        return Term(body, negated, weight, column)

    def reference(self) -> Reference:
        column = self.at
        self.accept("@")
        return Reference(self.word("a path after '@'"), column)

    def spec(self, depth: int) -> Spec:
        self.skip()
        column = self.at
        head, part = "composite", None
        if self.peek() != "[":
            head = self.word("a kind or a tag")
            part = self.word("a part after ':'") if self.accept(":") else None
        children = self.children(depth) if self.peek() == "[" else ()
        items = self.items(depth) if self.peek() == "(" else ()
        return Spec(head, part, children, items, column)

    def children(self, depth: int) -> tuple[tuple[str | None, Choice], ...]:
        self.expect("[", "")
        found: list[tuple[str | None, Choice]] = []
        if self.accept("]"):
            return ()
        while True:
            found.append((self.child_name(), self.choice(depth + 1)))
            if self.accept("]"):
                return tuple(found)
            self.expect(",", "or ']' in the list of children")

    def child_name(self) -> str | None:
        start = self.at
        name = self.match(_WORD)
        if name is not None and self.peek() == "=":
            self.accept("=")
            return name
        self.at = start
        return None

    def items(self, depth: int) -> tuple[Item, ...]:
        self.expect("(", "")
        found: list[Item] = []
        if self.accept(")"):
            return ()
        while True:
            found.append(self.item(depth))
            if self.accept(")"):
                return tuple(found)
            self.expect(",", "or ')' in the list of attributes")

    def item(self, depth: int) -> Item:
        self.skip()
        column = self.at
        sign = self.peek()
        if sign in ("+", "-"):
            self.accept(sign)
            return Item(self.word(f"a feature after {sign!r}"), sign, True, column)
        if sign == "~":
            self.accept("~")
            return Item(self.word("a path after '~'"), "~", None, column)
        path = self.word("an attribute, +feature, -feature or ~path")
        operator = self.match(_OPERATOR)
        if operator is None:
            self.fail(f"expected one of = != >= <= > < after {path!r}")
        return Item(path, str(operator), self.value(depth), column)

    def value(self, depth: int) -> object:
        """Read JSON where it begins like JSON; a plain word as text; anything longer as a choice."""
        start = self.peek()
        if start in ('"', "[", "{"):
            return self.json()
        if start == "@":
            return self.reference()
        begin = self.at
        word = self.match(_VALUE_WORD)
        if word is not None and self.peek() in (",", ")", ""):
            return word
        self.at = begin
        return self.choice(depth + 1)

    def json(self) -> object:
        try:
            value, self.at = _DECODER.raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            self.at = min(error.pos, len(self.text))
            self.fail(f"expected JSON: {error.msg.lower()}")
        return value


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise TextError(f"key {twice!r} appears twice in a JSON object")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates)
