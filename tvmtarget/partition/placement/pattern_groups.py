"""Which operations a code generator takes together: matches of the patterns of strategies, none of which overlap.

A match has one operation whose results leave it. So no path leaves a match and comes back, and no two matches
wait for each other: whatever is chosen, putting each into one atom makes no circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tvmtarget.ir.module import IRModule
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.support.matched import Matched, Operand
from tvmtarget.support.patterns import Match, Matcher, Pattern, spellings
from tvmtarget.support.registry import strategy_at
from tvmtarget.support.strategy import Code, Found, Reject, Strategy
from tvmtarget.target.topology import Site

__all__ = ["PatternGroup", "PatternGroups", "check_caps", "groups_of"]


@dataclass(frozen=True, slots=True)
class PatternGroup:
    """Operations that leaves take together: by kind of leaf, the pattern that does; several may have the same."""

    patterns: tuple[tuple[str, str], ...]
    calls: tuple[int, ...]

    def __str__(self) -> str:
        return " and ".join(f"pattern {pattern!r} of {kind}" for kind, pattern in self.patterns)

    def pattern_of(self, kind: str) -> str | None:
        """Return the pattern by which a kind of leaf takes them, None if it does not."""
        return next((pattern for own, pattern in self.patterns if own == kind), None)


@dataclass(frozen=True, slots=True)
class PatternGroups:
    """All groups, the one that each operation is in, and why matches were refused, by their root and kind of leaf.

    `overlapped` are the kinds of leaves that lost a match to others, which came before.
    """

    all: tuple[PatternGroup, ...]
    of: Mapping[int, PatternGroup]
    refused: Mapping[tuple[int, str], Reject]
    overlapped: tuple[str, ...]

    def check(self, index: int, kind: str) -> Reject | None:
        """Return why no pattern of a kind of leaf has an operation; None if one has, or if nothing says why."""
        group = self.of.get(index)
        if group is not None and group.pattern_of(kind) is None:
            return Reject("OVERLAP", f"{group} has it")
        return self.refused.get((index, kind))


def check_caps(program: FlatProgram, strategy: Strategy, calls: Sequence[int]) -> Reject | None:
    """Return why operations of one body that stay together are more than one function of a strategy may be.

    Constants are not counted as inputs, nor are results that nothing reads as outputs.
    """
    if (strategy.max_ops, strategy.max_inputs, strategy.max_outputs) == (None, None, None):
        return None
    inside, body = set(calls), program.body
    made = dict.fromkeys(output.name for index in calls for output in body[index].outputs if output.name)
    read = {name for index in calls for name in body[index].uses()} - made.keys() - program.constants.keys()
    returned = set(program.scope_of(calls[0]).function.results)
    left = [name for name in made if name in returned or not inside.issuperset(program.consumers.get(name, ()))]
    counted: tuple[tuple[Code, int, int | None, str], ...] = (
        ("MAX_SIZE", len(calls), strategy.max_ops, "operations"),
        ("MAX_INPUTS", len(read), strategy.max_inputs, "inputs"),
        ("MAX_OUTPUTS", len(left), strategy.max_outputs, "outputs"),
    )
    over = (
        Reject(code, f"{number} {what}, and it takes at most {most}")
        for code, number, most, what in counted
        if most is not None and number > most
    )
    return next(over, None)


def groups_of(
    program: FlatProgram, leaves: Iterable[Site], allows: Callable[[int, Site], bool], first: str = ""
) -> PatternGroups:
    """Match the patterns of all strategies; of two that overlap, an earlier leaf's comes first, then the larger one.

    What several kinds of leaves take alike is one group, which may go to any of them. `allows` says whether what is
    asked of an operation lets it go to a leaf: no match goes beyond that. Leaves of the kind `first` come first of all.
    """
    sites: dict[str, list[Site]] = {first: []} if first else {}
    for leaf in leaves:
        sites.setdefault(leaf.target.kind, []).append(leaf)
    chooser = _Chooser(program, allows)
    for kind, pattern, calls in program.imported_matches:
        if any(all(allows(index, leaf) for index in calls) for leaf in sites.get(kind, ())):
            chooser.add(PatternGroup(((kind, pattern),), calls))
    for kind, alike in sites.items():
        by_options = {leaf.target.attrs: strategy_at(leaf.target) for leaf in reversed(alike)}
        strategies = tuple(strategy for strategy in reversed(by_options.values()) if strategy is not None)
        if strategies and strategies[0].is_matching:
            chooser.match(_Taker(kind, strategies, alike))
    groups = tuple(chooser.groups.values())
    of = {index: group for group in groups for index in group.calls}
    return PatternGroups(groups, of, chooser.refused, tuple(chooser.overlapped))


@dataclass(frozen=True, slots=True)
class _Taker:
    """A kind of leaf whose strategy takes operations together, and the leaves of that kind.

    Where these have different options, there is a strategy for each, and all of them must take a match.
    """

    kind: str
    strategies: tuple[Strategy, ...]
    sites: list[Site]

    @property
    def strategy(self) -> Strategy:
        """The strategy of the first leaf."""
        return self.strategies[0]


class _Chooser:
    def __init__(self, program: FlatProgram, allows: Callable[[int, Site], bool]) -> None:
        self.program = program
        self.allows = allows
        self.groups: dict[tuple[int, ...], PatternGroup] = {}
        self.of: dict[int, tuple[int, ...]] = {}
        self.refused: dict[tuple[int, str], Reject] = {}
        self.overlapped: dict[str, None] = {}

    def add(self, group: PatternGroup) -> None:
        """Add operations that a module gives to a code generator together."""
        self.groups[group.calls] = group
        self.of |= dict.fromkeys(group.calls, group.calls)

    def match(self, taker: _Taker) -> None:
        """Choose matches of one strategy, in every body from the last operation to the first."""
        patterns: dict[str, list[tuple[str, Pattern]]] = {}
        for name, text in taker.strategy.patterns.items():
            pattern = Pattern.parse(text)
            for op in pattern.roots():
                patterns.setdefault(op, []).append((name, pattern))
        found = self._found(taker.strategy)
        for scope in self.program.scopes:
            first, body = scope.calls.start, scope.function.body
            fixed = (at for at, call in enumerate(body) if call.regions or call.has_effect)
            matcher = Matcher(scope.function, fixed)
            for root in reversed(range(len(body))):
                if root not in matcher.taken:
                    fitting = [pair for op in dict.fromkeys(spellings(body[root].op)) for pair in patterns.get(op, ())]
                    groups = [*self._matched(taker, matcher, root, first, fitting)]
                    groups += self._checked(taker, matcher, found.get(first + root, ()))
                    self._take(matcher, first, groups)

    def _found(self, strategy: Strategy) -> dict[int, list[Found]]:
        """Return what a strategy finds by its own means in the function itself, by the last operation."""
        found: dict[int, list[Found]] = {}
        module = IRModule((self.program.function, *self.program.others), attrs=self.program.attrs)
        for one in strategy.matches_in(module):
            found.setdefault(max(one.calls), []).append(one)
        return found

    def _matched(
        self, taker: _Taker, matcher: Matcher, root: int, first: int, patterns: Iterable[tuple[str, Pattern]]
    ) -> Iterator[PatternGroup]:
        """Yield what patterns match at a root."""
        for name, pattern in patterns:
            match = self._first(taker, name, first, matcher.at(root, pattern))
            if match is not None:
                yield PatternGroup(((taker.kind, name),), tuple(first + at for at in match.calls))

    def _checked(self, taker: _Taker, matcher: Matcher, found: Iterable[Found]) -> Iterator[PatternGroup]:
        """Yield what can be a group of that which a strategy found by its own means."""
        for one in found:
            if not matcher.taken.isdisjoint(one.calls) or not self._may_take(taker, one.calls):
                continue
            refusal = one.refusal or self._limits(taker, one.calls)
            if not matcher.is_closed(Match(matcher.function, one.calls, max(one.calls), {})):
                refusal = Reject("RULE", f"a result inside a match of {one.pattern!r} is read outside of it")
            if refusal is None:
                yield PatternGroup(((taker.kind, one.pattern),), tuple(sorted(one.calls)))
            else:
                self._refuse(taker, one.calls, refusal)

    def _take(self, matcher: Matcher, first: int, groups: Sequence[PatternGroup]) -> None:
        """Choose the largest of the groups that end in one operation, if there are any."""
        if not groups:
            return
        group = max(groups, key=lambda group: len(group.calls))
        before = self.groups.get(group.calls)
        self.groups[group.calls] = (
            group if before is None else PatternGroup(before.patterns + group.patterns, group.calls)
        )
        self.of |= dict.fromkeys(group.calls, group.calls)
        matcher.taken.update(index - first for index in group.calls)
        kind, _ = group.patterns[0]
        for index in group.calls:
            self.refused.pop((index, kind), None)

    def _first(self, taker: _Taker, name: str, first: int, matches: Iterable[Match]) -> Match | None:
        """Return the first match that its constraints allow and the strategy takes."""
        for match in matches:
            calls = [first + at for at in match.calls]
            if not self._may_take(taker, calls):
                continue
            view = self._view(name, first, match)
            answers = (strategy.check_match(view) for strategy in taker.strategies)
            refusal = self._limits(taker, calls) or next((answer for answer in answers if answer is not None), None)
            if refusal is None:
                return match
            self._refuse(taker, calls, refusal)
        return None

    def _limits(self, taker: _Taker, calls: Sequence[int]) -> Reject | None:
        """Return which declared limit of a strategy operations of a match break, None if none."""
        for strategy in taker.strategies:
            for index in calls:
                op = self.program.op(index)
                refusal = strategy.check_limits(op)
                if refusal is not None:
                    name = op.call.source or op.kind
                    return replace(refusal, message=f"of {name!r}, {refusal.message}") if len(calls) > 1 else refusal
            refusal = check_caps(self.program, strategy, calls)
            if refusal is not None:
                return refusal
        return None

    def _may_take(self, taker: _Taker, calls: Sequence[int]) -> bool:
        """Whether operations stand in the same function, no other match has some, and requests let all go to a leaf."""
        if len({self.program.frames[index] for index in calls}) > 1 or self._is_parted(calls):
            return False
        owners = {self.of.get(index) for index in calls}
        if owners not in ({None}, {tuple(sorted(calls))}):
            self.overlapped[taker.kind] = None
            return False
        return any(all(self.allows(index, site) for index in calls) for site in taker.sites)

    def _is_parted(self, calls: Sequence[int]) -> bool:
        """Whether a boundary between functions is asked for among operations."""
        program = self.program
        return any(program.boundaries) and any(
            program.is_boundary(first, then) for then in calls for first in program.predecessors(then) if first in calls
        )

    def _refuse(self, taker: _Taker, calls: Iterable[int], refusal: Reject) -> None:
        for index in calls:
            self.refused.setdefault((index, taker.kind), refusal)

    def _view(self, name: str, first: int, match: Match) -> Matched:
        types, constants = self.program.types, self.program.constants
        values = {
            variable: Operand(value, types.get(value), constants[value].data if value in constants else None)
            for variable, value in match.values.items()
        }
        ordered = [*(at for at in match.calls if at != match.root), match.root]
        return Matched(name, tuple(self.program.op(first + at) for at in ordered), values)
