"""Parser of the one-line grammar that targets and constraints share.

    choice   = both , { "|" , both } ;
    both     = prefer , { "&" , prefer } ;
    prefer   = unary , [ "?" , [ number ] ] ;
    unary    = "!" , unary | "(" , choice , ")" | "@" , path | spec ;
    spec     = ( word , [ ":" , path ] , [ children ] | children ) , [ "(" , [ item , { "," , item } ] , ")" ] ;
    children = "[" , [ child , { "," , child } ] , "]" ;
    child    = [ word , "=" ] , choice ;
    item     = ( "+" | "-" ) , word | "~" , path | path , operator , value ;
    operator = "=" | "==" | "!=" | ">=" | "<=" | ">" | "<" | "+=" | "-=" ;
    value    = JSON string, list or object | word | choice ;

A target uses the part of the grammar without choices, conjunctions, groups, negations, preferences and comparisons
(`forms.py` rejects those with the column). A constraint uses all of it except tags and `~`. This is a recursive-descent
parser; it goes back in two places, by one word: before a child without a name, and before a value that is no word.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn, TypeAlias, TypeVar

from tvmtarget.errors import TextError
from tvmtarget.target.attributes import Word
from tvmtarget.target.problems import shown, syntax_error
from tvmtarget.target.text.cursor import Cursor
from tvmtarget.target.text.words import MAX_DEPTH, VALUE_WORD, WORD
from tvmtarget.untrusted import LIMITS, check_limit, limit

__all__ = [
    "Choice",
    "Conjunction",
    "Item",
    "Reference",
    "Spec",
    "Term",
    "parse_choice",
    "read_json",
]

_T = TypeVar("_T")

_OPERATOR = re.compile(r"==|!=|>=|<=|\+=|-=|=|>|<")
_NUMBER = re.compile(r"[0-9]+")
_MAX_DIGITS = 9  # of a weight


@dataclass(frozen=True, slots=True)
class Reference:
    """`@path`: a node of the tree."""

    path: str
    column: int


@dataclass(frozen=True, slots=True)
class Item:
    """One entry in parentheses: a feature (`+`, `-`), an unset (`~`), or a path, an operator and a value.

    A value is a `Word`, a `Reference`, a `Choice`, or a value of JSON.
    """

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
class Conjunction:
    """Terms that must all hold."""

    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """One alternative of a choice: negated or not, and required or preferred with a weight."""

    body: Reference | Spec | Choice | Conjunction
    negated: bool
    weight: int | None
    column: int


Choice: TypeAlias = tuple[Term, ...]


_ATTRIBUTE = re.compile(r"[\w-]+=")


def parse_choice(text: str) -> Choice:
    """Parse a whole text.

    Args:
        text: the text.

    Returns:
        The alternatives; a target has one.

    Raises:
        TextError: the text does not parse; the error has the column.
    """
    check_limit("target-bytes", len(text), "the text", TextError)
    scanner = _Scanner(text)
    choice = scanner.choice(0)
    if scanner.peek():
        kind, rest = text[: scanner.at].strip(), text[scanner.at :].split()
        advice = ""
        if WORD.fullmatch(kind) and all(_ATTRIBUTE.match(word) for word in rest):
            advice = f"; write attributes in parentheses: {shown(kind + '(' + ','.join(rest) + ')')}"
        elif WORD.fullmatch(kind) and rest[0][0] in "<>":
            advice = f"; write the kind or key that has the attribute, as in {shown(f'cpu({text.strip()})')}"
        scanner.fail(f"expected the end of the text before {scanner.peek()!r}{advice}")
    return choice


def read_json(text: str) -> object:
    """Parse a whole text as JSON without duplicate keys.

    Args:
        text: the text.

    Returns:
        The value.

    Raises:
        TextError: it is not such JSON; the error has the column.
    """
    scanner = _Scanner(text)
    scanner.skip()
    value = scanner.json()
    if scanner.peek():
        scanner.fail("expected the end of the text after the JSON value")
    return value


class _Scanner(Cursor):
    """A cursor with a method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.nodes = 0
        try:
            # A lone surrogate would fail only when the target is printed or hashed.
            text.encode()
        except UnicodeEncodeError as error:
            self.at = error.start
            self.fail("expected text, not half of a surrogate pair")

    def fail(self, problem: str) -> NoReturn:
        raise syntax_error(problem, self.text, self.at)

    def word(self, expected: str) -> str:
        word = self.match(WORD)
        if word is None:
            found = self.peek()
            self.fail(f"expected {expected}" + (f", not {found!r}" if found else ", but the text ended"))
        return word

    def sequence(self, read: Callable[[int], _T], depth: int, ends: str, what: str) -> tuple[_T, ...]:
        """Parse items between a pair of brackets, separated by commas."""
        self.accept(ends[0])
        found: list[_T] = []
        if self.accept(ends[1]):
            return ()
        while True:
            found.append(read(depth))
            if self.accept(ends[1]):
                return tuple(found)
            if not self.accept(","):
                self.fail(f"expected ',' or {ends[1]!r} in the list of {what}" + self.found())

    def found(self) -> str:
        found = self.peek()
        return f" before {found!r}" if found else ", but the text ended"

    def choice(self, depth: int) -> Choice:
        if depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels")
        terms = [self.conjunction(depth)]
        while self.accept("|"):
            terms.append(self.conjunction(depth))
        return tuple(terms)

    def conjunction(self, depth: int) -> Term:
        terms = [self.term(depth)]
        while self.accept("&"):
            terms.append(self.term(depth))
        return terms[0] if len(terms) == 1 else Term(Conjunction(tuple(terms)), False, None, terms[0].column)

    def term(self, depth: int) -> Term:
        self.skip()
        column = self.at
        negated = False
        # A loop, because recursion over a long run of '!' would exhaust the stack.
        while self.accept("!"):
            negated = not negated
        body = self.body(depth)
        weight = self.weight() if self.accept("?") else None
        return Term(body, negated, weight, column)

    def body(self, depth: int) -> Reference | Spec | Choice:
        match self.peek():
            case "@":
                return self.reference()
            case "(":
                self.accept("(")
                group = self.choice(depth + 1)
                if not self.accept(")"):
                    self.fail("expected ')' at the end of the group" + self.found())
                return group
            case _:
                return self.spec(depth)

    def weight(self) -> int:
        digits = self.match(_NUMBER) or "1"
        if len(digits) > _MAX_DIGITS:
            self.fail(f"expected a weight of at most {_MAX_DIGITS} digits, not {shown(digits)}")
        return int(digits)

    def reference(self) -> Reference:
        column = self.at
        self.accept("@")
        return Reference(self.word("a path after '@'"), column)

    def count(self) -> None:
        """Count a node; a text may not have more of them than a target."""
        self.nodes += 1
        if self.nodes > self.max_nodes:
            variable = LIMITS["target-nodes"].variable
            raise TextError(f"the text has more than {self.max_nodes:,} nodes; {variable} raises the limit")

    @cached_property
    def max_nodes(self) -> int:
        return limit("target-nodes")

    def spec(self, depth: int) -> Spec:
        self.skip()
        column = self.at
        self.count()
        head, part = "composite", None
        if self.peek() != "[":
            head = self.word("a kind or a tag")
            part = self.word("a part after ':'") if self.accept(":") else None
        children = self.sequence(self.child, depth, "[]", "children") if self.peek() == "[" else ()
        items = self.sequence(self.item, depth, "()", "attributes") if self.peek() == "(" else ()
        return Spec(head, part, children, items, column)

    def child(self, depth: int) -> tuple[str | None, Choice]:
        start = self.at
        name = self.match(WORD)
        if name is None or not self.accept("="):
            name, self.at = None, start  # the word was the kind of the child, which is read below
        return name, self.choice(depth + 1)

    def item(self, depth: int) -> Item:
        sign = self.peek()
        column = self.at
        if sign in ("+", "-"):
            self.accept(sign)
            return Item(self.word(f"a feature after {sign!r}"), sign, True, column)
        if sign == "~":
            self.accept("~")
            return Item(self.word("a path after '~'"), "~", None, column)
        path = self.word("an attribute, +feature, -feature or ~path")
        operator = self.match(_OPERATOR)
        if operator is None:
            self.fail(f"expected one of = != >= <= > < after {shown(path)}")
        return Item(path, operator, self.value(depth), column)

    def value(self, depth: int) -> object:
        """Parse JSON if it begins like JSON, a single word as a word, and anything longer as a choice."""
        start = self.peek()
        if start in ('"', "[", "{"):
            return self.json()
        if start == "@":
            return self.reference()
        begin = self.at
        word = self.match(VALUE_WORD)
        if word is not None and self.peek() in (",", ")", ""):
            return Word(word)
        if start in (",", ")", ""):
            self.fail("expected a value" + self.found())
        # A word before one of these marks begins a nested target or constraint.
        if start == "'" or (word is not None and self.peek() not in ("(", "[", "|", "?")):
            self.fail("expected ',' or ')'" + self.found() + "; a value with spaces or marks needs double quotes")
        self.at = begin
        return self.choice(depth + 1)

    def json(self) -> object:
        try:
            # Each object begins with '{', so that most whole texts have too few of them to count one by one.
            is_small = self.at == 0 and self.text.count("{") <= self.max_nodes
            decoder = _DECODER if is_small else _decoder(self.object)
            # `raw_decode` stops after the value, so that JSON can be part of a text.
            value, self.at = decoder.raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            self.at = min(error.pos, len(self.text))
            self.fail(f"expected JSON: {error.msg.lower()}")
        except TextError as error:
            self.fail(error.problems[0])
        except RecursionError:
            self.fail("JSON is nested too deep")
        except ValueError:
            self.fail("expected JSON with numbers of at most 4300 digits")
        return value

    def object(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        """Make an object of JSON, in which no key repeats."""
        self.count()
        return _without_duplicates(pairs)


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, uses in Counter(key for key, _ in pairs).items() if uses > 1)
        raise TextError(f"key {shown(twice)} appears twice in a JSON object")
    return found


def _reject_constant(constant: str) -> NoReturn:
    raise TextError(f"{constant} is no number of JSON")


def _decoder(make: Callable[[list[tuple[str, object]]], object]) -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=make, parse_constant=_reject_constant)


_DECODER = _decoder(_without_duplicates)
