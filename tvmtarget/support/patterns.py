"""Textual patterns of operations: their grammar, and where they match in a function.

    pattern  = branch , { "|" , branch } ;
    branch   = "_" | variable | op , "(" , [ pattern , { "," , pattern } ] , [ "..." ] , ")" , [ attributes ] ;

`relu(conv(x, w, ...)) | relu(conv(x, w))` reads like the program it matches. An operator is its name with or without
dialect, in any case and with or without underscores; a variable denotes a value, the same one at each occurrence;
`_` denotes any operand, also an absent one; `...` for any more operands. Attributes, written as in the text form of
a module, must be equal. Operands of commutative operators match in both orders; of several branches the first counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from tvmtarget.errors import TextError, UnknownNameError, did_you_mean
from tvmtarget.ir.def_use import producers_of, readers_of
from tvmtarget.ir.function import Call, Function
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.names import Names
from tvmtarget.ir.rewrite import extract, values_of, with_body
from tvmtarget.ir.text.parser import read_attributes
from tvmtarget.ir.text.scanner import Scanner
from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["COMMUTATIVE", "Match", "Matcher", "Pattern", "find_matches", "outline_matches", "spellings"]

# Operators of two operands whose order does not matter, in the spelling that patterns are compared in.
COMMUTATIVE = frozenset(
    {"add", "multiply", "mul", "and", "or", "xor", "equal", "maximum", "minimum", "max", "min", "sum"}
)

# The parser and the matcher recurse per level: the limit turns a runaway text into an error with a column, where Python
# would raise RecursionError.
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class _Any:
    """Matches any operand: `_` if the name is empty, else a variable."""

    name: str


@dataclass(frozen=True, slots=True)
class _Operation:
    op: str
    operands: tuple[_Branches, ...]
    is_open: bool
    attrs: tuple[tuple[str, object], ...]


_Branches = tuple[_Any | _Operation, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """One place where a pattern matches.

    Attributes:
        function: the function.
        calls: positions of the matched operations, in order.
        root: position of the operation whose results leave the match.
        values: names of values by variable of the pattern.
    """

    function: Function
    calls: tuple[int, ...]
    root: int
    values: Mapping[str, str]

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the operations in the model, in order."""
        return tuple(self.function.body[index].source for index in self.calls)

    def is_constant(self, variable: str) -> bool:
        """Return whether a variable denotes a constant.

        Args:
            variable: a variable of the pattern.

        Returns:
            True for a constant of the function.

        Raises:
            UnknownNameError: the pattern has no such variable.
        """
        if variable not in self.values:
            raise UnknownNameError(f"no variable {variable!r} in the pattern{did_you_mean(variable, self.values)}")
        return self.values[variable] in self.function.constant_names


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern, and a condition that its matches must meet.

    >>> pattern = Pattern.parse("relu(conv(x, w, ...))", lambda match: match.is_constant("w"))
    """

    branches: _Branches
    condition: Callable[[Match], bool] | None = None

    def roots(self) -> frozenset[str]:
        """Return the operators that its matches can end in.

        Returns:
            Names in the form that `spellings` returns.
        """
        return frozenset(branch.op for branch in self.branches if isinstance(branch, _Operation))

    @classmethod
    def parse(cls, text: str, condition: Callable[[Match], bool] | None = None) -> Pattern:
        """Parse a pattern.

        Args:
            text: the pattern, in the grammar of this module.
            condition: called with each match; one that returns False is dropped.

        Returns:
            The pattern.

        Raises:
            TextError: the text is no pattern; has the column.
        """
        parser = _PatternParser(text)
        branches = parser.branches(0)
        parser.end()
        if any(isinstance(branch, _Any) for branch in branches):
            raise TextError("a pattern begins with an operation, such as relu(x)", text=text)
        return cls(branches, condition)


class _PatternParser(Scanner):
    def branches(self, depth: int) -> _Branches:
        if depth > MAX_DEPTH:
            raise self.error(f"patterns are nested deeper than {MAX_DEPTH} levels")
        found = [self.branch(depth)]
        while self.accept("|"):
            found.append(self.branch(depth))
        return tuple(found)

    def branch(self, depth: int) -> _Any | _Operation:
        name = self.name("an operator, a variable or '_'")
        if not self.accept("("):
            return _Any("" if name == "_" else name)
        operands: list[_Branches] = []
        is_open = False
        while not self.accept(")"):
            if operands or is_open:
                self.expect(",", "',' or ')' in the list of operands")
            if is_open:
                raise self.error("'...' is the last of the operands")
            if self.accept("..."):
                is_open = True
            else:
                operands.append(self.branches(depth + 1))
        attrs = tuple(read_attributes(self).items()) if self.peek() == "{" else ()
        return _Operation(_plain(name), tuple(operands), is_open, attrs)


def _plain(op: str) -> str:
    """Return the name of an operator in the form that patterns compare: without case and underscores."""
    return op.replace("_", "").lower()


@cache
def spellings(op: str) -> tuple[str, str]:
    """Return the names that a pattern may use for an operator, without case and underscores.

    Args:
        op: name of the operator in a function, such as `onnx.Conv`.

    Returns:
        The name with its dialect, and without.
    """
    return _plain(op), _plain(op.rsplit("::", 1)[-1].rsplit(".", 1)[-1])


def find_matches(function: Function, pattern: Pattern | str) -> tuple[Match, ...]:
    """Find where a pattern matches.

    Operations with a constraint or an effect do not match, nor do nested bodies. A result that is read by others, or
    that the function returns, can only be the root's.

    Args:
        function: the function to search.
        pattern: the pattern, or its text.

    Returns:
        Matches in order, without overlaps; where some would overlap, the one with the later root is taken.
    """
    pattern = Pattern.parse(pattern) if isinstance(pattern, str) else pattern
    body = enumerate(function.body)
    fixed = (index for index, call in body if call.constraint is not None or call.has_effect or call.regions)
    matcher = Matcher(function, fixed)
    found: list[Match] = []
    # Roots are tried from the end, so that a longer chain such as conv-add-relu takes its operations before the shorter
    # chain inside it can.
    for root in reversed(range(len(function.body))):
        match = next(matcher.at(root, pattern), None)
        if match is not None:
            matcher.taken |= set(match.calls)
            found.append(match)
    return tuple(reversed(found))


def outline_matches(
    module: IRModule,
    pattern: Pattern | str,
    name: str,
    constraint: Constraint | str | None = None,
    *,
    function: str = "main",
) -> IRModule:
    """Outline each match of a pattern into a function of its own.

    The call stands at the position of the root of its match, as all that leaves a match comes from there.

    Args:
        module: the module to change.
        pattern: the pattern, or its text.
        name: prefix of the new functions: `name_0`, `name_1`, ... in order.
        constraint: constraint of the calls.
        function: the function to search.

    Returns:
        The changed module.
    """
    old = module[function]
    names = Names(other.name for other in module)
    readers, values = readers_of(old), values_of(old)
    body: list[Call | None] = list(old.body)
    functions: list[Function] = []
    for number, match in enumerate(find_matches(old, pattern)):
        new, call = extract(old, match.calls, names.fresh(f"{name}_{number}"), constraint, readers, values)
        functions.append(new)
        for index in match.calls:
            body[index] = call if index == match.root else None
    caller = with_body(old, tuple(call for call in body if call is not None))
    changed = module.with_function(caller)
    return changed.replace(functions=(*changed.functions, *functions))


class Matcher:
    """Finds matches in one function.

    Args:
        function: the function.
        taken: positions of operations that may not be in a match.
    """

    def __init__(self, function: Function, taken: Iterable[int]) -> None:
        self.function = function
        self.producer = producers_of(function)
        self.readers = readers_of(function)
        self.results = frozenset(function.results)
        self.taken = set(taken)

    def at(self, root: int, pattern: Pattern) -> Iterator[Match]:
        """Find the matches with a given root.

        Args:
            root: position of an operation.
            pattern: the pattern.

        Yields:
            The matches, in the order of the pattern's branches and operand orders.
        """
        for branch in pattern.branches:
            if isinstance(branch, _Operation):
                for calls, values in self._operation(branch, root, (), {}):
                    # Two operands of a pattern may reach the same operation; it is part of the match once.
                    match = Match(self.function, tuple(sorted(set(calls))), root, values)
                    if self.is_closed(match) and (pattern.condition is None or pattern.condition(match)):
                        yield match

    def is_closed(self, match: Match) -> bool:
        """Return whether only results of the root leave a match.

        Args:
            match: a match in this function.

        Returns:
            False if the function returns, or another operation reads, the result of an inner operation.
        """
        # A match becomes one function that returns only the results of its root, so no other reader could get an inner
        # value.
        inside = set(match.calls)
        inner = [out.name for index in inside - {match.root} for out in self.function.body[index].outputs if out.name]
        return all(name not in self.results and inside.issuperset(self.readers.get(name, ())) for name in inner)

    def _operation(
        self, pattern: _Operation, index: int, calls: tuple[int, ...], values: Mapping[str, str]
    ) -> Iterator[tuple[tuple[int, ...], Mapping[str, str]]]:
        call = self.function.body[index]
        if index in self.taken or pattern.op not in spellings(call.op):
            return
        attrs = dict(call.attrs)
        if any(name not in attrs or attrs[name] != value for name, value in pattern.attrs):
            return
        inputs = call.inputs
        if len(inputs) < len(pattern.operands) or (len(inputs) > len(pattern.operands) and not pattern.is_open):
            return
        orders = [inputs]
        # Only for two operands: Max, Min and Sum of ONNX take any number of them, whose orders grow factorially.
        if len(inputs) == 2 and spellings(call.op)[1] in COMMUTATIVE:
            orders.append(inputs[::-1])
        for order in orders:
            yield from self._operands(pattern.operands, order, (*calls, index), values)

    def _operands(
        self,
        patterns: tuple[_Branches, ...],
        inputs: tuple[str, ...],
        calls: tuple[int, ...],
        values: Mapping[str, str],
    ) -> Iterator[tuple[tuple[int, ...], Mapping[str, str]]]:
        if not patterns:
            yield calls, values
            return
        for branch in patterns[0]:
            for more, bound in self._operand(branch, inputs[0], calls, values):
                yield from self._operands(patterns[1:], inputs[1:], more, bound)

    def _operand(
        self, branch: _Any | _Operation, name: str, calls: tuple[int, ...], values: Mapping[str, str]
    ) -> Iterator[tuple[tuple[int, ...], Mapping[str, str]]]:
        if isinstance(branch, _Any):
            # This is a backtracking search: each binding extends a copy, so that a choice that fails leaves no trace in
            # the next. A variable is bound to a value, and therefore matches no absent operand, unlike `_`.
            if not branch.name:
                yield calls, values
            elif name and values.get(branch.name, name) == name:
                yield calls, {**values, branch.name: name}
        elif name in self.producer:
            yield from self._operation(branch, self.producer[name], calls, values)
