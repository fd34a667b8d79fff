"""The `where` rules: which operations each of them matches, and how constraints are resolved in the target."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate

from tvmtarget.errors import ModelError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.ir.function import CODE, FUNCTION, Call
from tvmtarget.partition.control.scopes import Scopes
from tvmtarget.partition.placement.constraint_paths import resolve_names, unknown_words
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.topology import Topology

__all__ = ["ConstraintResolver", "NamePatterns", "Requirement", "names_of", "rules_matching"]


class NamePatterns:
    """Names and globs by number. Names are looked up; only globs are matched one by one.

    Args:
        patterns: the names and globs; a glob also matches the name that is equal to it.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.numbers = {pattern: number for number, pattern in enumerate(patterns)}
        globs = (pattern for pattern in self.numbers if set(pattern) & set("*?["))
        self._globs = [(self.numbers[glob], re.compile(translate(glob))) for glob in globs]

    def matching(self, names: Collection[str]) -> set[int]:
        """Return which patterns match one of some names.

        Args:
            names: the names.

        Returns:
            The numbers of the patterns.
        """
        named = {self.numbers[name] for name in names if name in self.numbers}
        return named.union(number for number, glob in self._globs if any(glob.match(name) for name in names))


@dataclass(frozen=True, slots=True)
class Requirement:
    """A constraint with its origin; `text` is how it is printed, if not as it is."""

    constraint: Constraint
    origin: str
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.text or self.constraint} (required by {self.origin})"


class ConstraintResolver:
    """Resolves constraints in the target, each once, and collects names that match nothing.

    Args:
        topology: the sites of the target.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._resolved: dict[tuple[Constraint, str], Requirement] = {}
        self._problems: dict[str, None] = {}

    def __call__(self, constraint: Constraint, origin: str) -> Requirement:
        """Resolve a constraint.

        Args:
            constraint: the constraint as written.
            origin: who wrote it, for messages.

        Returns:
            The constraint with paths of the target, and its origin.
        """
        key = constraint, origin
        if key not in self._resolved:
            try:
                resolved = resolve_names(constraint, self.topology)
            except UnknownNameError as error:
                # Collect, so that one error lists the problems of all rules.
                self._problems |= dict.fromkeys(f"{problem} (required by {origin})" for problem in error.problems)
                resolved = constraint
            problems = unknown_words(resolved, self.topology)
            self._problems |= dict.fromkeys(f"{problem} (required by {origin})" for problem in problems)
            self._resolved[key] = Requirement(
                resolved, origin, str(constraint) if _has_choice_of_nodes(resolved) else ""
            )
        return self._resolved[key]

    def check(self) -> None:
        """Check that all constraints could be resolved.

        Raises:
            UnknownNameError: with all paths that name no node, and all unknown words.
        """
        raise_all(UnknownNameError, list(self._problems))


def _has_choice_of_nodes(constraint: Constraint) -> bool:
    """Check for a choice without order, as `Constraint.at_any` makes; users cannot write that, so it is not printed."""
    is_choice = constraint.is_negated and constraint.all_of and all(one.is_negated for one in constraint.all_of)
    return bool(is_choice) or any(map(_has_choice_of_nodes, constraint.nested()))


def names_of(call: Call) -> tuple[str, ...]:
    """Return the names by which `where` refers to an operation.

    Args:
        call: the operation.

    Returns:
        Its name, and `op:` with each spelling of its operator.
    """
    return (call.source, *(f"op:{name}" for name in call.op_names))


def rules_matching(where: Mapping[str, Constraint], found: Scopes) -> list[tuple[int, ...]]:
    """Return the rules that match each operation.

    A rule is the name of an operation or a glob; `op:Conv`, with or without dialect; `function:NAME`, or NAME alone
    if no operation has that name, for operations inlined from a function or calls of code. An operation in a nested
    body that no rule matches inherits the rules of its owner.

    Args:
        where: constraints by rule.
        found: the operations and the inlined calls around them.

    Returns:
        The numbers of the rules of each operation, ascending; the last one counts.

    Raises:
        ModelError: for a name that both a function and an operation have.
        UnknownNameError: for rules that match nothing.
    """
    if not where:
        return [()] * len(found.body)
    functions = [_functions_of(index, found) for index in range(len(found.body))]
    ambiguous = {name for names in functions for name in names} & {
        call.source for call in found.body if call.op != CODE
    }
    raise_all(
        ModelError,
        [
            f"where {key!r} is a function and an op; write '{FUNCTION}{key}' for the function, or constrain the op in "
            f"the module: constrain({key!r}, ..., function=...)"
            for key in where
            if key in ambiguous
        ],
    )
    patterns = NamePatterns(where)
    exact = patterns.numbers
    # All names but its own an operation shares with others of its operator and functions.
    shared: dict[tuple[str, frozenset[str]], set[int]] = {}

    def numbers(index: int) -> tuple[int, ...]:
        call = found.body[index]
        key = call.op, functions[index]
        if key not in shared:
            names = [*names_of(call)[1:], *(f"{FUNCTION}{name}" for name in functions[index])]
            shared[key] = patterns.matching(names).union(exact[name] for name in functions[index] if name in exact)
        return tuple(sorted(shared[key] | patterns.matching({call.source, found.sources[index]})))

    matches = [numbers(index) for index in range(len(found.body))]
    used = {number for numbers in matches for number in numbers}
    raise_all(UnknownNameError, [_unmatched(key, found) for key, number in exact.items() if number not in used])
    for scope in found.scopes:
        if scope.owner is not None:
            for index in scope.calls:
                matches[index] = matches[index] or matches[scope.owner]
    return matches


def _functions_of(index: int, found: Scopes) -> frozenset[str]:
    """Return the functions that an operation was inlined from, at any depth, and the code that it calls."""
    callee = found.body[index].callee
    return frozenset({"main", *(frame.callee for frame in found.frames[index]), *([callee] if callee else [])})


def _unmatched(key: str, found: Scopes) -> str:
    if key.startswith("op:"):
        return f"where {key!r} matches no op; no {key[3:]!r} in the model" + did_you_mean(
            key[3:], {call.kind for call in found.body}, listing="it has"
        )
    return f"where {key!r} matches no op of the model" + did_you_mean(key, {call.source for call in found.body})
