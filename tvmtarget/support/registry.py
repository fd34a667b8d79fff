"""Registered strategies: find the strategy of a target kind, and validate its tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache

from tvmtarget import plugins
from tvmtarget.errors import TargetError, TextError, did_you_mean, raise_all
from tvmtarget.ir.types import DTYPES
from tvmtarget.support.patterns import Pattern
from tvmtarget.support.strategy import OpCheck, Rule, Strategy, plugin_error
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target

__all__ = ["is_generator", "onnx_operators", "strategy_at", "strategy_for", "validated_strategy"]


@plugins.cached
def strategy_for(kind: str) -> Strategy | None:
    """Return the strategy of a target kind.

    Args:
        kind: a target kind, such as `llvm`.

    Returns:
        The validated strategy, or None if none is registered.
    """
    if kind not in plugins.names("tvmtarget.strategies"):
        return None
    return validated_strategy(kind, plugins.load("tvmtarget.strategies", kind))


def validated_strategy(kind: str, described: object) -> Strategy:
    """Instantiate a strategy and validate its tables.

    Args:
        kind: the target kind that it describes, for messages.
        described: a subclass or an instance of `Strategy`.

    Returns:
        The instance.

    Raises:
        TargetError: it is neither, its class cannot be instantiated, or its tables are wrong; lists all problems.
    """
    strategy = described
    if isinstance(described, type):
        try:
            strategy = described()
        except Exception as error:  # of the author, who finds it as the cause
            raise plugin_error(f"strategy {kind!r} cannot be made of class {described.__name__!r}", error) from error
    if not isinstance(strategy, Strategy):
        raise TargetError(f"strategy {kind!r} is {described!r}; it should be a tvmtarget.Strategy")
    _check_tables(kind, strategy)
    return strategy


@plugins.cached
def strategy_at(target: Target, executor: str = "graph") -> Strategy | None:
    """Return the strategy of a leaf.

    Args:
        target: the leaf.
        executor: the kind of the executor of its system.

    Returns:
        The strategy with the leaf as its `target`, or None if none is registered.
    """
    found = strategy_for(target.kind)
    return None if found is None else found.at(target).with_executor(executor)


def is_generator(target: Target) -> bool:
    """Return whether one code generator gets all the work of a node.

    Args:
        target: the node.

    Returns:
        True for a leaf, and for an external code generator that has children.
    """
    if not target.is_composite:
        return True
    kind = find_kind(target.kind)
    return kind is None or kind.is_external


def _check_tables(kind: str, strategy: Strategy) -> None:
    """Raise `TargetError` with all problems in the tables of a strategy."""
    raise_all(TargetError, [f"strategy {kind!r}: {problem}" for problem in _problems(strategy)])


def _problems(strategy: Strategy) -> Iterator[str]:
    for name, (kind, wanted) in _TABLES.items():
        value: object = getattr(strategy, name)
        if value is not None and not isinstance(value, kind):
            yield f"{name} is {shown(value)}; it should be {wanted}"
        if isinstance(value, Set):
            yield from (f"{name} has {shown(one)}; it should be text" for one in value if not isinstance(one, str))
    # Operators of ONNX begin with capitals, so the lower-case name of one is a mistake; other lower-case names may be
    # operators of a private domain. Most strategies are thus validated without an import of onnx.
    small = [op for op in _texts(strategy.ops) if op.islower() and op in onnx_operators()]
    yield from (f"no operator {op!r}; did you mean {onnx_operators()[op]!r}?" for op in small)
    for dtype in _texts(strategy.dtypes):
        if dtype not in DTYPES:
            yield f"no element type {dtype!r}{did_you_mean(dtype, DTYPES)}"
    for name, choices in _CHOICES.items():
        if getattr(strategy, name) not in choices:
            yield f"{name} is {getattr(strategy, name)!r}; it should be {' or '.join(map(repr, choices))}"
    for name in ("max_ops", "max_inputs", "max_outputs"):
        most: object = getattr(strategy, name)
        # True is an int in Python, and would otherwise count as a limit of 1.
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            yield f"{name} is {most!r}; it should be a number from 1, or None for any"
    for name, (kind, wanted) in _ROWS.items():
        rows = getattr(strategy, name)
        for key, row in rows.items() if isinstance(rows, Mapping) else ():
            if not isinstance(row, kind) or not isinstance(key, str) or not key:
                yield f"{name} has {shown(row)} for {shown(key)}; it should be {wanted}"
    patterns = strategy.patterns if isinstance(strategy.patterns, Mapping) else {}
    yield from _without_effect(strategy, [name for name in patterns if isinstance(name, str)])
    yield from _problems_of_patterns({name: text for name, text in patterns.items() if isinstance(text, str)})


def _texts(listed: object) -> list[str]:
    """Return the texts of a set, sorted; of any other value, none."""
    return sorted(one for one in listed if isinstance(one, str)) if isinstance(listed, Set) else []


def _without_effect(strategy: Strategy, patterns: Iterable[str]) -> Iterator[str]:
    """Yield a message for each name of a class that is nearly one which strategies read."""
    known = {name for name in vars(Strategy) if not name.startswith("_")}.union(patterns)
    classes = type(strategy).__mro__
    added = {name: value for one in classes[: classes.index(Strategy)] for name, value in vars(one).items()}
    others = [name for name, value in added.items() if name[0] != "_" and not isinstance(value, OpCheck)]
    if not set(others) - known:
        return
    from difflib import get_close_matches  # few strategies have other names

    for name in sorted(set(others) - known):
        for near in get_close_matches(name, sorted(known), n=1, cutoff=_NEARLY_EQUAL):
            yield f"{name!r} has no effect; did you mean {near!r}? The name of a helper begins with '_'"


# `dtype` and `dtypes`, `conv_rleu` and `conv_relu`; not `conv_check` and `conv_relu`.
_NEARLY_EQUAL = 0.85


def _problems_of_patterns(patterns: Mapping[str, str]) -> Iterator[str]:
    for name, text in patterns.items():
        # `check_match` finds the method by the name of the pattern, and would call the inherited attribute.
        if hasattr(Strategy, name):
            yield f"no pattern can be called {name!r}, since strategies have something else of that name"
        try:
            Pattern.parse(text)
        except TextError as error:
            yield f"pattern {name!r}: {error}"


@cache
def onnx_operators() -> dict[str, str]:
    """Return the operators of ONNX's own domain by lower-case name, for "did you mean" hints.

    Returns:
        Names of operators, by the same name in lower case.
    """
    from onnx.defs import get_all_schemas

    return {schema.name.lower(): schema.name for schema in get_all_schemas() if schema.domain == ""}


# What the tables of a strategy are, and what their rows.
_TABLES: Mapping[str, tuple[type, str]] = {
    "ops": (Set, "a set of texts, or None for all"),
    "dtypes": (Set, "a set of texts, or None for all"),
    "opsets": (range, "a range, such as range(7, 18), or None for all"),
    "unsupported": (Mapping, "a mapping of operators to reasons"),
    "rules": (Mapping, "a mapping of operators to rows (`Rule`)"),
    "patterns": (Mapping, "a mapping of names to patterns"),
}
_ROWS: Mapping[str, tuple[type, str]] = {
    "unsupported": (str, "a reason by operator"),
    "rules": (Rule, "a `Rule` by operator"),
    "patterns": (str, "a pattern by name, such as 'relu(conv(x, w, ...))'"),
}
_CHOICES = {
    "subgraphs": ("superstep", "connected", "single", "program"),
    "accepts": ("mixed", "device"),
    "constants": ("bind", "lift", "share"),
}
