"""Search over the candidates of a kernel: choices of register blocks, or traces that MetaSchedule proposes."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tvmtarget.backends.protocol import Space

__all__ = ["BlockSearch", "Choices", "Search", "TraceSearch", "as_json", "body_of"]

# A candidate: the choices of each register block, or a trace.
Choices: TypeAlias = tuple[Mapping[str, int], ...] | str

PARENTS = 4  # best candidates that are mutated
RANDOM_SHARE = 0.4
DRAWS = 256  # candidates drawn at once, of which few are legal
ROUNDS = 8  # draws without a new candidate after which the space counts as exhausted

TRACES = 8  # proposed at once
TRACE_PARENTS = 32  # best traces that MetaSchedule's evolutionary search begins with
TRACE_ROUNDS = 3


def as_json(choices: Sequence[Mapping[str, int]] | str) -> list[dict[str, int]] | str:
    """Return a candidate as plain data.

    Args:
        choices: the choices of each register block, or a trace.

    Returns:
        A list of objects, or the trace.
    """
    return choices if isinstance(choices, str) else [dict(block) for block in choices]


def body_of(choices: Sequence[Mapping[str, int]] | str) -> object:
    """Return the body of a candidate in the log.

    Args:
        choices: the choices of each register block, or a trace.

    Returns:
        An object with `blocks`, or the trace.
    """
    return choices if isinstance(choices, str) else {"blocks": as_json(choices)}


class Search(ABC):
    """Proposes candidates of one kernel; the same seed and costs give the same proposals."""

    def __init__(self) -> None:
        self._costs: dict[str, tuple[Choices, int | None]] = {}
        self._skipped: set[str] = set()

    def report(self, choices: Choices, cost: int | None) -> None:
        """Store the cost of a candidate.

        Args:
            choices: the candidate.
            cost: its cost, in any unit that is the same for all; None if it failed.
        """
        self._costs[_name(choices)] = choices, cost

    def skip(self, choices: Choices) -> None:
        """Exclude a candidate from further proposals, without a cost.

        Args:
            choices: the candidate.
        """
        self._skipped.add(_name(choices))

    def knows(self, choices: Choices) -> bool:
        """Return whether a candidate was reported.

        Args:
            choices: the candidate.

        Returns:
            True if it was, also if it failed.
        """
        return _name(choices) in self._costs

    def best(self, count: int = 1) -> list[tuple[Choices, int]]:
        """Return the candidates of least cost.

        Args:
            count: how many at most.

        Returns:
            Candidates and costs, the best first.
        """
        return self._ranked()[:count]

    @abstractmethod
    def propose(self) -> Choices | None:
        """Return a new legal candidate.

        Returns:
            The candidate; None if no more are found.
        """

    def _ranked(self) -> list[tuple[Choices, int]]:
        ran = [(choices, cost) for choices, cost in self._costs.values() if cost is not None]
        return sorted(ran, key=lambda pair: (pair[1], _name(pair[0])))

    def _is_new(self, choices: Choices) -> bool:
        return not self.knows(choices) and _name(choices) not in self._skipped


class BlockSearch(Search):
    """Evolutionary search over choices of register blocks: random draws, and mutations of the best.

    Args:
        space: the choices of the kernel.
        seed: makes the same search again.
        is_legal: returns which of some candidates fit the kernel.
    """

    def __init__(self, space: Space, seed: int, is_legal: Callable[[Sequence[Choices]], list[bool]]) -> None:
        super().__init__()
        self._space = space
        self._random = random.Random(f"{seed} {space.kernel.key}")
        self._is_legal = is_legal

    def propose(self) -> Choices | None:
        """Return new legal choices.

        Returns:
            The choices; None if no more are found.
        """
        for _ in range(ROUNDS if self._space.choices else 0):
            drawn = {_name(choices): choices for choices in (self._draw() for _ in range(DRAWS))}
            new = [choices for choices in drawn.values() if self._is_new(choices)]
            fitting = [choices for choices, fits in zip(new, self._is_legal(new), strict=True) if fits]
            if fitting:
                return fitting[0]
        return None

    def _draw(self) -> Choices:
        parents = [choices for choices, _ in self._ranked() if not isinstance(choices, str)][:PARENTS]
        if not parents or self._random.random() < RANDOM_SHARE:
            return tuple(
                {name: self._random.choice(values) for name, values in block.items()} for block in self._space.choices
            )
        return self._mutated(self._random.choice(parents))

    def _mutated(self, parent: Sequence[Mapping[str, int]]) -> Choices:
        """Change one to three choices, half of the time to a neighbouring value."""
        blocks = [dict(block) for block in parent]
        for _ in range(self._random.randint(1, 3)):
            at = self._random.randrange(len(blocks))
            name, values = self._random.choice(sorted(self._space.choices[at].items()))
            place = values.index(blocks[at][name]) if blocks[at][name] in values else 0
            near = values[max(0, place - 1) : place + 2] if self._random.random() < 0.5 else values
            blocks[at][name] = self._random.choice(near)
        return tuple(blocks)


class TraceSearch(Search):
    """Traces that MetaSchedule proposes, a few at a time.

    Args:
        seed: makes the same search again.
        propose: returns traces for the best known ones with their costs, a number of traces, and a seed.
    """

    def __init__(self, seed: int, propose: Callable[[Sequence[tuple[str, int]], int, int], list[str]]) -> None:
        super().__init__()
        self._propose_traces = propose
        self._random = random.Random(seed)
        self._waiting: list[str] = []

    def propose(self) -> Choices | None:
        """Return a new trace.

        Returns:
            The trace; None if no more are found.
        """
        for _ in range(TRACE_ROUNDS):
            if not self._waiting:
                traces = [(choices, cost) for choices, cost in self._ranked() if isinstance(choices, str)]
                self._waiting = self._propose_traces(traces[:TRACE_PARENTS], TRACES, self._random.randrange(2**30))
            while self._waiting:
                trace = self._waiting.pop(0)
                if self._is_new(trace):
                    return trace
        return None


def _name(choices: Choices) -> str:
    return choices if isinstance(choices, str) else str([sorted(block.items()) for block in choices])
