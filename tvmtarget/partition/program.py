"""Stage A, normalise: one flat function, its operations, and everything that was asked of each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import cached_property

from tvmtarget.errors import UnknownNameError, did_you_mean, raise_all
from tvmtarget.ir.flow import producers_of, readers_of
from tvmtarget.ir.function import COPY, Call, Constant, Function, callees_of
from tvmtarget.ir.inline import Frame, inline_calls, rename_values
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.dataflow import Dataflow, dataflow_of, signatures_of
from tvmtarget.partition.strategies.strategy import Op
from tvmtarget.target.constraints.constraint import Constraint, covers, known_words
from tvmtarget.target.constraints.satisfaction import satisfies
from tvmtarget.target.layout import Layout
from tvmtarget.target.tree import Target

__all__ = ["Asked", "Program", "names_of", "normalise", "open_frame"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A constraint and who wrote it."""

    constraint: Constraint
    origin: str

    def __str__(self) -> str:
        return f"{self.constraint} (asked by {self.origin})"


@dataclass(frozen=True)
class Program:
    """A function without calls of functions or copies, ready to be split.

    `asked[i]` holds the constraints on `function.body[i]`, `frames[i]` the inlined calls around it. `producer`
    maps a value to the operation that computes it, `consumers` to those that read it. `others` are the functions
    of the module that this one does not call: they stay as they are.
    """

    function: Function
    others: tuple[Function, ...]
    layout: Layout
    asked: tuple[tuple[Asked, ...], ...]
    frames: tuple[tuple[Frame, ...], ...]
    producer: Mapping[str, int]
    consumers: Mapping[str, tuple[int, ...]]

    @property
    def body(self) -> tuple[Call, ...]:
        """The operations."""
        return self.function.body

    def op(self, index: int) -> Op:
        """Return an operation as strategies see it."""
        opsets = dict(self.function.opsets)
        return Op(self.body[index], self.function.types, self.constants, self._read, opsets)

    @cached_property
    def constants(self) -> Mapping[str, Constant]:
        """The constants of the function, by name."""
        return {constant.name: constant for constant in self.function.constants}

    @cached_property
    def _read(self) -> frozenset[str]:
        return frozenset(self.consumers).union(self.function.results)

    @cached_property
    def dataflow(self) -> Dataflow:
        """The values between operations, as whole arrays."""
        return dataflow_of(self.function, self.producer, self.consumers)

    @cached_property
    def signatures(self) -> list[int]:
        """A number for every operation; those of one number differ in names and values of constants at most."""
        return signatures_of(self.function, self._read)

    def predecessors(self, index: int) -> Iterator[int]:
        """Yield the operations whose results this one reads, each once."""
        yield from dict.fromkeys(self.producer[name] for name in self.body[index].uses() if name in self.producer)

    def find(self, source: str) -> int:
        """Return the index of the operation of that name; `UnknownNameError` with the nearest ones."""
        for index, call in enumerate(self.body):
            if call.source == source:
                return index
        raise UnknownNameError(
            f"no op {source!r} in the model{did_you_mean(source, (call.source for call in self.body))}"
        )


def normalise(module: IRModule, target: Target, where: Mapping[str, Constraint]) -> Program:
    """Inline all calls, drop copies that an earlier decomposition made, and collect what is asked of each operation."""
    layout = Layout(target.resolve())
    kept = _uncalled(module)
    inlined = inline_calls(module.main, module.by_name)
    function, positions = _without_copies(inlined.function)
    frames = tuple(inlined.frames[index] for index in positions)
    rules = _Rules(where, function)
    body = function.body
    asked = tuple(_asked(call, frame, function, rules) for call, frame in zip(body, frames, strict=True))
    asked, spelled = _checked(asked, layout)
    frames = tuple(tuple(_spelled(frame, spelled) for frame in around) for around in frames)
    return Program(function, kept, layout, asked, frames, producers_of(function), readers_of(function))


def _spelled(frame: Frame, spelled: Mapping[Constraint, Constraint]) -> Frame:
    return replace(frame, asked=tuple((spelled[wanted], origin) for wanted, origin in frame.asked))


def _without_copies(function: Function) -> tuple[Function, list[int]]:
    kept = [index for index, call in enumerate(function.body) if call.op != COPY]
    if len(kept) == len(function.body):
        return function, kept
    origin: dict[str, str] = {}
    for call in function.body:
        if call.op == COPY:
            origin[call.outputs[0].name] = origin.get(call.inputs[0], call.inputs[0])
    body = tuple(function.body[index] for index in kept)
    flat = rename_values(function.replace(body=body, constants=()), origin)
    return flat.replace(constants=function.constants, params=function.params), kept


def _uncalled(module: IRModule) -> tuple[Function, ...]:
    reached: set[str] = set()
    waiting = ["main"]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += sorted(callees_of(module[name]))
    return tuple(function for function in module.functions if function.name not in reached)


def _asked(call: Call, frames: tuple[Frame, ...], function: Function, rules: _Rules) -> tuple[Asked, ...]:
    found = [] if function.asks is None else [Asked(function.asks, f"function {function.name!r}")]
    found += [Asked(wanted, origin) for frame in frames for wanted, origin in frame.asked]
    if call.constraint is not None:
        found.append(Asked(call.constraint, f"op {call.source!r}"))
    rule = rules.last(call)
    if rule is not None:
        found.append(rule)
    return tuple(found)


def names_of(call: Call) -> tuple[str, ...]:
    """Return the names by which `where` speaks of an operation: its own, and `op:` with its operator's spellings."""
    return (call.source, f"op:{call.kind}", f"op:{call.op}", f"op:{call.op.removeprefix('onnx.')}")


class _Rules:
    """The `where` rules: a name is matched exactly or as a glob; `op:Conv` by operator, with or without dialect."""

    def __init__(self, where: Mapping[str, Constraint], function: Function) -> None:
        self.rules = [Asked(value, f"where {key!r}") for key, value in where.items()]
        self.exact = {key: rank for rank, key in enumerate(where)}
        self.globs = [(rank, re.compile(translate(key))) for rank, key in enumerate(where) if set(key) & set("*?[")]
        self.used: set[int] = set()
        for call in function.body:
            self.last(call)
        raise_all(
            UnknownNameError, [_unmatched(key, function) for key, rank in self.exact.items() if rank not in self.used]
        )

    def last(self, call: Call) -> Asked | None:
        """Return the last rule that matches an operation, or None."""
        names = names_of(call)
        ranks = [self.exact[name] for name in names if name in self.exact]
        ranks += [rank for rank, pattern in self.globs if any(pattern.match(name) for name in names)]
        self.used.update(ranks)
        return self.rules[max(ranks)] if ranks else None


def _unmatched(key: str, function: Function) -> str:
    if key.startswith("op:"):
        return f"where {key!r} matches no op; no {key[3:]!r} in the model" + did_you_mean(
            key[3:], {call.kind for call in function.body}, listing="it has"
        )
    return f"where {key!r} matches no op of the model" + did_you_mean(key, {call.source for call in function.body})


def _checked(
    asked: tuple[tuple[Asked, ...], ...], layout: Layout
) -> tuple[tuple[tuple[Asked, ...], ...], dict[Constraint, Constraint]]:
    """Spell every path as the layout does; refuse paths that name no node and words that nothing known bears.

    Returns what is asked, spelled so, and how each constraint is spelled.
    """
    problems: list[str] = []
    words = known_words() | {key for _, node in layout.root.walk() for key in (node.kind, *node.all_keys)}
    spelled: dict[Asked, Asked] = {}
    for item in dict.fromkeys(item for items in asked for item in items):
        for word in item.constraint.words():
            if word not in words:
                problems.append(f"no target kind or key {word!r}{did_you_mean(word, words)} (asked by {item.origin})")
        try:
            spelled[item] = Asked(_canonical(item.constraint, layout), item.origin)
        except UnknownNameError as error:
            problems += [f"{problem} (asked by {item.origin})" for problem in error.problems]
    raise_all(UnknownNameError, problems)
    constraints = {item.constraint: new.constraint for item, new in spelled.items()}
    return tuple(tuple(spelled[item] for item in items) for items in asked), constraints


def _canonical(constraint: Constraint, layout: Layout) -> Constraint:
    """Return the constraint with every path as the layout spells it, and systems as paths of what meets them."""
    if constraint.path is not None:
        return constraint.replace(path=layout.canonical(constraint.path))
    if constraint.children:
        return _located(constraint, layout)
    return constraint.map_nested(lambda nested: _canonical(nested, layout))


def _located(constraint: Constraint, layout: Layout) -> Constraint:
    """Return the paths of the systems that meet a constraint with children; work that asks for one runs inside it."""
    plain = constraint.replace(is_negated=False, weight=None)
    found = [path for path, node in layout.root.walk() if plain.check(node, path, layout.root)]
    if not found:
        missed = [part.text for reason in satisfies(layout.root, plain).parts for part in reason.parts if not part]
        raise UnknownNameError(f"no system of the target meets {plain}: {', '.join(missed) or 'it has none'}")
    options = tuple(Constraint.at(path) for path in found)
    located = options[0] if len(options) == 1 else Constraint(any_of=options)
    return located.replace(is_negated=constraint.is_negated, weight=constraint.weight)


def open_frame(frames: tuple[Frame, ...], path: str) -> int | None:
    """Return the number of the outermost call around an operation that must stay whole at the node at `path`.

    A call of a constrained function is one atom until the decomposition stands in the node that it names.
    """
    for frame in frames:
        required = [wanted for wanted in frame.constraints if wanted.is_required]
        positive = [wanted for wanted in required if not wanted.is_negated]
        if required and not (positive and all(_is_inside(wanted, path) for wanted in positive)):
            return frame.ordinal
    return None


def _is_inside(wanted: Constraint, path: str) -> bool:
    """Whether a node is, or is in, one that a constraint names: itself, as a choice, or beside other conditions."""
    if wanted.is_negated or wanted.path is not None:
        return not wanted.is_negated and covers(wanted.path or "", path)
    return any(_is_inside(one, path) for one in (*wanted.any_of, *wanted.all_of))
