"""The `where` rules: which operations each of them names, and what is asked of operations on a tree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import translate

from tvmtarget.errors import ModelError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.ir.function import CODE, FUNCTION, Call
from tvmtarget.partition.control.scopes import Scopes
from tvmtarget.partition.placement.constraint_paths import resolve_names, unknown_words
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.topology import Topology

__all__ = ["ConstraintResolver", "Requirement", "names_of", "rules_matching"]


@dataclass(frozen=True, slots=True)
class Requirement:
    """A constraint and who wrote it; `text` is how it is printed, if not as it is."""

    constraint: Constraint
    origin: str
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.text or self.constraint} (required by {self.origin})"


class ConstraintResolver:
    """Reads constraints as a tree does, each once; `check` raises for all that name nothing in it."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._read: dict[tuple[Constraint, str], Requirement] = {}
        self._problems: dict[str, None] = {}

    def __call__(self, constraint: Constraint, origin: str) -> Requirement:
        """Return a constraint with the paths that it means, and who wrote it."""
        key = constraint, origin
        if key not in self._read:
            try:
                read = resolve_names(constraint, self.topology)
            except UnknownNameError as error:
                self._problems |= dict.fromkeys(f"{problem} (required by {origin})" for problem in error.problems)
                read = constraint
            problems = unknown_words(read, self.topology)
            self._problems |= dict.fromkeys(f"{problem} (required by {origin})" for problem in problems)
            self._read[key] = Requirement(read, origin, str(constraint) if _has_choice_of_nodes(read) else "")
        return self._read[key]

    def check(self) -> None:
        """Raise `UnknownNameError` for paths that name no node, and for words that nothing known bears."""
        raise_all(UnknownNameError, list(self._problems))


def _has_choice_of_nodes(constraint: Constraint) -> bool:
    """Whether it holds a choice without order, as `Constraint.at_any` makes them, which nobody writes so."""
    is_choice = constraint.is_negated and constraint.all_of and all(one.is_negated for one in constraint.all_of)
    return bool(is_choice) or any(map(_has_choice_of_nodes, constraint.nested()))


def names_of(call: Call) -> tuple[str, ...]:
    """Return the names by which `where` speaks of an operation: its own, and `op:` with its operator's spellings."""
    return (call.source, f"op:{call.kind}", f"op:{call.op}", f"op:{call.op.removeprefix('onnx.')}")


def rules_matching(where: Mapping[str, Constraint], found: Scopes) -> list[tuple[int, ...]]:
    """Return for each operation the numbers of the rules that match it, in order; the last one counts.

    A name is matched exactly or as a glob; `op:Conv` by operator, with or without dialect; `function:NAME`, or NAME
    alone if no operation is called so, by the functions around the operation, or by the code that it calls. What
    matches the operation around a nested body matches those in it that nothing else does. `UnknownNameError` for rules
    that match nothing, `ModelError` for the name of a function and of an operation.
    """
    if not where:
        return [()] * len(found.body)
    functions = [_functions_of(index, found) for index in range(len(found.body))]
    both = {name for names in functions for name in names} & {call.source for call in found.body if call.op != CODE}
    raise_all(
        ModelError,
        [
            f"where {key!r} is a function and an op; write '{FUNCTION}{key}' for the function, or constrain the op in "
            f"the module: constrain({key!r}, ..., function=...)"
            for key in where
            if key in both
        ],
    )
    exact = {key: rank for rank, key in enumerate(where)}
    globs = [(rank, re.compile(translate(key))) for rank, key in enumerate(where) if set(key) & set("*?[")]

    def ranks(index: int) -> tuple[int, ...]:
        names = {*names_of(found.body[index]), found.sources[index]}
        names |= {f"{FUNCTION}{name}" for name in functions[index]}
        named = {exact[name] for name in names | functions[index] if name in exact}
        named.update(rank for rank, pattern in globs if any(pattern.match(name) for name in names))
        return tuple(sorted(named))

    matches = [ranks(index) for index in range(len(found.body))]
    used = {rank for ranks in matches for rank in ranks}
    raise_all(UnknownNameError, [_unmatched(key, found) for key, rank in exact.items() if rank not in used])
    for scope in found.scopes:
        if scope.owner is not None:
            for index in scope.calls:
                matches[index] = matches[index] or matches[scope.owner]
    return matches


def _functions_of(index: int, found: Scopes) -> frozenset[str]:
    """Return the functions that an operation of the flat program was in, at any depth, and the code that it calls."""
    callee = found.body[index].callee
    return frozenset({"main", *(frame.callee for frame in found.frames[index]), *([callee] if callee else [])})


def _unmatched(key: str, found: Scopes) -> str:
    if key.startswith("op:"):
        return f"where {key!r} matches no op; no {key[3:]!r} in the model" + did_you_mean(
            key[3:], {call.kind for call in found.body}, listing="it has"
        )
    return f"where {key!r} matches no op of the model" + did_you_mean(key, {call.source for call in found.body})
