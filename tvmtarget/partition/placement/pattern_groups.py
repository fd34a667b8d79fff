"""Groups of operations that a code generator runs together: non-overlapping matches of the patterns of strategies.

The results of a match leave it at one operation only. So no path leaves a match and returns, and no two matches wait
for each other: making each match one atom never creates a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tvmtarget.ir.module import IRModule
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.support.op import MatchedOps, Operand
from tvmtarget.support.patterns import Match, Matcher, Pattern, spellings
from tvmtarget.support.registry import strategy_at
from tvmtarget.support.strategy import Code, FoundMatch, Reject, Strategy
from tvmtarget.target.topology import Site

__all__ = ["PatternGroup", "PatternGroups", "counted_values", "exceeded_limit", "match_patterns"]


@dataclass(frozen=True, slots=True)
class PatternGroup:
    """Operations that leaves run together, and for each kind of leaf the pattern that matches them."""

    patterns: tuple[tuple[str, str], ...]
    calls: tuple[int, ...]

    def __str__(self) -> str:
        return " and ".join(f"pattern {pattern!r} of {kind}" for kind, pattern in self.patterns)

    def pattern_of(self, kind: str) -> str | None:
        """Return the pattern by which a kind of leaf runs the group.

        Args:
            kind: a target kind.

        Returns:
            The name of the pattern, None if there is none.
        """
        return next((pattern for own, pattern in self.patterns if own == kind), None)


@dataclass(frozen=True, slots=True)
class PatternGroups:
    """All groups of a program.

    Attributes:
        all: the groups.
        of: the group of each operation that is in one.
        rejected: why a match was rejected, by operation and kind of leaf.
        overlapped: kinds of leaves that lost a match to another kind, which came first.
    """

    all: tuple[PatternGroup, ...]
    of: Mapping[int, PatternGroup]
    rejected: Mapping[tuple[int, str], Reject]
    overlapped: tuple[str, ...]

    def check(self, index: int, kind: str) -> Reject | None:
        """Return why no pattern of a kind of leaf contains an operation.

        Args:
            index: number of the operation.
            kind: a target kind.

        Returns:
            The reason; None if a pattern contains it, or if no pattern came near.
        """
        group = self.of.get(index)
        if group is not None and group.pattern_of(kind) is None:
            return Reject("OVERLAP", f"{group} has it")
        return self.rejected.get((index, kind))


def counted_values(program: FlatProgram, calls: Sequence[int]) -> tuple[int, int]:
    """Count the inputs and outputs of a function of operations, as limits count them.

    Args:
        program: the program.
        calls: operations of one body.

    Returns:
        Number of values read, without constants; number of values that are read elsewhere or are results.
    """
    inside, body = set(calls), program.body
    made = dict.fromkeys(output.name for index in calls for output in body[index].outputs if output.name)
    read = {name for index in calls for name in body[index].uses()} - made.keys() - program.constants.keys()
    returned = program.scope_of(calls[0]).function.results
    left = [name for name in made if name in returned or not inside.issuperset(program.consumers.get(name, ()))]
    return len(read), len(left)


def exceeded_limit(program: FlatProgram, strategy: Strategy, calls: Sequence[int]) -> Reject | None:
    """Return which limit on the size of one function operations exceed.

    Constants do not count as inputs, nor unread results as outputs.

    Args:
        program: the program.
        strategy: operator support with the limits.
        calls: operations of one body that stay together.

    Returns:
        The first limit that is exceeded, None if there is none.
    """
    if (strategy.max_ops, strategy.max_inputs, strategy.max_outputs) == (None, None, None):
        return None
    inputs, outputs = counted_values(program, calls)
    counted: tuple[tuple[Code, int, int | None, str], ...] = (
        ("MAX_SIZE", len(calls), strategy.max_ops, "operations"),
        ("MAX_INPUTS", inputs, strategy.max_inputs, "inputs"),
        ("MAX_OUTPUTS", outputs, strategy.max_outputs, "outputs"),
    )
    over = (
        Reject(code, f"{number} {what}, and it takes at most {most}")
        for code, number, most, what in counted
        if most is not None and number > most
    )
    return next(over, None)


def match_patterns(
    program: FlatProgram, leaves: Iterable[Site], allows: Callable[[int, Site], bool], first_kind: str = ""
) -> PatternGroups:
    """Match the patterns of all strategies.

    Of overlapping matches, an earlier leaf's wins, then the larger one. A match that several kinds of leaves have in
    common is one group, which may go to any of them.

    Args:
        program: the program.
        leaves: leaves and external generators, in order of precedence.
        allows: whether the requirements on an operation allow a site.
        first_kind: a kind of leaf that precedes all others.

    Returns:
        The groups, none of which overlap.
    """
    # The order of the keys is the order of precedence, so the first kind is inserted before any leaf.
    sites: dict[str, list[Site]] = {first_kind: []} if first_kind else {}
    for leaf in leaves:
        sites.setdefault(leaf.target.kind, []).append(leaf)
    selector = _GroupSelector(program, allows)
    for kind, pattern, calls in program.imported_matches:
        if any(all(allows(index, leaf) for index in calls) for leaf in sites.get(kind, ())):
            selector.add(PatternGroup(((kind, pattern),), calls))
    for kind, same_kind in sites.items():
        by_options = {leaf.target.attrs: strategy_at(leaf.target) for leaf in reversed(same_kind)}
        strategies = tuple(strategy for strategy in reversed(by_options.values()) if strategy is not None)
        if strategies and strategies[0].is_matching:
            selector.match(_LeafKind(kind, strategies, same_kind))
    groups = tuple(selector.groups.values())
    of = {index: group for group in groups for index in group.calls}
    return PatternGroups(groups, of, selector.rejected, tuple(selector.overlapped))


@dataclass(frozen=True, slots=True)
class _LeafKind:
    """A kind of leaf whose strategy has patterns, and the leaves of that kind.

    Leaves with different options have a strategy each, all of which must accept a match.
    """

    name: str
    strategies: tuple[Strategy, ...]
    sites: list[Site]

    @property
    def strategy(self) -> Strategy:
        """The strategy of the first leaf, whose patterns are matched."""
        return self.strategies[0]


class _GroupSelector:
    """Collects groups, kind by kind; operations of a group are not matched again."""

    def __init__(self, program: FlatProgram, allows: Callable[[int, Site], bool]) -> None:
        self.program = program
        self.allows = allows
        self.groups: dict[tuple[int, ...], PatternGroup] = {}
        self.of: dict[int, tuple[int, ...]] = {}
        self.rejected: dict[tuple[int, str], Reject] = {}
        self.overlapped: dict[str, None] = {}

    def add(self, group: PatternGroup) -> None:
        """Add operations that the module assigns to a code generator as a group.

        Args:
            group: the group.
        """
        self.groups[group.calls] = group
        self.of |= dict.fromkeys(group.calls, group.calls)

    def match(self, leaf_kind: _LeafKind) -> None:
        """Select matches of one kind of leaf, in every body from the last operation to the first.

        Args:
            leaf_kind: the kind, its strategies and leaves.
        """
        patterns: dict[str, list[tuple[str, Pattern]]] = {}
        for name, text in leaf_kind.strategy.patterns.items():
            pattern = Pattern.parse(text)
            for op in pattern.roots():
                patterns.setdefault(op, []).append((name, pattern))
        found = self._found(leaf_kind.strategy)
        for scope in self.program.scopes:
            first, body = scope.calls.start, scope.function.body
            fixed = (at for at, call in enumerate(body) if call.regions or call.has_effect)
            matcher = Matcher(scope.function, fixed)
            for root in reversed(range(len(body))):
                if root not in matcher.taken:
                    fitting = [pair for op in dict.fromkeys(spellings(body[root].op)) for pair in patterns.get(op, ())]
                    groups = [*self._matched(leaf_kind, matcher, root, first, fitting)]
                    groups += self._checked(leaf_kind, matcher, found.get(first + root, ()))
                    self._take(matcher, first, groups)

    def _found(self, strategy: Strategy) -> dict[int, list[FoundMatch]]:
        """Return the matches that a strategy finds by code of its own, by their last operation."""
        found: dict[int, list[FoundMatch]] = {}
        module = IRModule((self.program.function, *self.program.others), attrs=self.program.attrs)
        for one in strategy.matches_in(module):
            found.setdefault(max(one.calls), []).append(one)
        return found

    def _matched(
        self,
        leaf_kind: _LeafKind,
        matcher: Matcher,
        root: int,
        first: int,
        patterns: Iterable[tuple[str, Pattern]],
    ) -> Iterator[PatternGroup]:
        """Yield a group for each pattern that matches at a root."""
        for name, pattern in patterns:
            match = self._first(leaf_kind, name, first, matcher.at(root, pattern))
            if match is not None:
                yield PatternGroup(((leaf_kind.name, name),), tuple(first + at for at in match.calls))

    def _checked(self, leaf_kind: _LeafKind, matcher: Matcher, found: Iterable[FoundMatch]) -> Iterator[PatternGroup]:
        """Yield a group for each acceptable match that a strategy found by code of its own."""
        for one in found:
            if not matcher.taken.isdisjoint(one.calls) or not self._may_group(leaf_kind, one.calls):
                continue
            reason = one.unsupported or self._limits(leaf_kind, one.calls)
            if not matcher.is_closed(Match(matcher.function, one.calls, max(one.calls), {})):
                reason = Reject("RULE", f"a result inside a match of {one.pattern!r} is read outside of it")
            if reason is None:
                yield PatternGroup(((leaf_kind.name, one.pattern),), tuple(sorted(one.calls)))
            else:
                self._reject(leaf_kind, one.calls, reason)

    def _take(self, matcher: Matcher, first: int, groups: Sequence[PatternGroup]) -> None:
        """Select the largest of the groups that end in one operation."""
        if not groups:
            return
        # The largest match fuses the most; `max` keeps the first of equally large ones, by order of patterns.
        group = max(groups, key=lambda group: len(group.calls))
        before = self.groups.get(group.calls)
        self.groups[group.calls] = (
            group if before is None else PatternGroup(before.patterns + group.patterns, group.calls)
        )
        self.of |= dict.fromkeys(group.calls, group.calls)
        matcher.taken.update(index - first for index in group.calls)
        kind, _ = group.patterns[0]
        for index in group.calls:
            # That another pattern rejected the operation no longer matters once this one has it.
            self.rejected.pop((index, kind), None)

    def _first(self, leaf_kind: _LeafKind, name: str, first: int, matches: Iterable[Match]) -> Match | None:
        """Return the first match that constraints, limits and the strategies accept."""
        for match in matches:
            calls = [first + at for at in match.calls]
            if not self._may_group(leaf_kind, calls):
                continue
            view = self._view(name, first, match)
            # Lazy, so that the checks of authors see only matches within the declared limits.
            answers = (strategy.check_match(view) for strategy in leaf_kind.strategies)
            reason = self._limits(leaf_kind, calls) or next((answer for answer in answers if answer is not None), None)
            if reason is None:
                return match
            self._reject(leaf_kind, calls, reason)
        return None

    def _limits(self, leaf_kind: _LeafKind, calls: Sequence[int]) -> Reject | None:
        """Return which limit of a strategy a match exceeds, None if none."""
        for strategy in leaf_kind.strategies:
            for index in calls:
                op = self.program.op(index)
                reason = strategy.check_limits(op)
                if reason is not None:
                    name = op.call.source or op.kind
                    return replace(reason, message=f"of {name!r}, {reason.message}") if len(calls) > 1 else reason
            reason = exceeded_limit(self.program, strategy, calls)
            if reason is not None:
                return reason
        return None

    def _may_group(self, leaf_kind: _LeafKind, calls: Sequence[int]) -> bool:
        """Check that operations are in one function, in no other match, and allowed on one leaf together."""
        if len({self.program.frames[index] for index in calls}) > 1 or self._spans_boundary(calls):
            return False
        owners = {self.of.get(index) for index in calls}
        # Exactly the same operations may be a match of another kind of leaf: then the kinds share the group.
        if owners not in ({None}, {tuple(sorted(calls))}):
            self.overlapped[leaf_kind.name] = None
            return False
        return any(all(self.allows(index, site) for index in calls) for site in leaf_kind.sites)

    def _spans_boundary(self, calls: Sequence[int]) -> bool:
        """Check whether a boundary between functions is required among operations."""
        program = self.program
        return any(program.boundaries) and any(
            program.is_boundary(first, then) for then in calls for first in program.predecessors(then) if first in calls
        )

    def _reject(self, leaf_kind: _LeafKind, calls: Iterable[int], reason: Reject) -> None:
        for index in calls:
            self.rejected.setdefault((index, leaf_kind.name), reason)

    def _view(self, name: str, first: int, match: Match) -> MatchedOps:
        types, constants = self.program.types, self.program.constants
        values = {
            variable: Operand(value, types.get(value), constants[value].data if value in constants else None)
            for variable, value in match.values.items()
        }
        ordered = [*(at for at in match.calls if at != match.root), match.root]
        return MatchedOps(name, tuple(self.program.op(first + at) for at in ordered), values)
