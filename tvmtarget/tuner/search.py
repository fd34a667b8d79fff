"""Which candidate to try next: half at random, half changes of the best, none twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from tvmtarget.backends.protocol import Space

__all__ = ["Choices", "Search", "body_of"]

Choices = tuple[Mapping[str, int], ...]

PARENTS = 4  # of the best candidates that are changed
RANDOM_SHARE = 0.4
DRAWS = 256  # candidates that are drawn at once, as few of them fit
ROUNDS = 8  # draws without a new candidate after which the space counts as exhausted


def body_of(choices: Sequence[Mapping[str, int]]) -> dict[str, object]:
    """Return the body of a candidate of the log."""
    return {"blocks": [dict(block) for block in choices]}


class Search:
    """Proposes candidates of one space; the same seed and costs give the same proposals."""

    def __init__(self, space: Space, seed: int, is_legal: Callable[[Sequence[Choices]], list[bool]]) -> None:
        self._space = space
        self._random = random.Random(f"{seed} {space.kernel.key}")
        self._is_legal = is_legal
        self._told: dict[str, tuple[Choices, int | None]] = {}
        self._skipped: set[str] = set()

    def tell(self, choices: Choices, cost: int | None) -> None:
        """Remember what a candidate cost, None if it failed."""
        self._told[_name(choices)] = choices, cost

    def skip(self, choices: Choices) -> None:
        """Do not propose a candidate again in this run; nothing is known of it."""
        self._skipped.add(_name(choices))

    def knows(self, choices: Choices) -> bool:
        """Whether a candidate was measured."""
        return _name(choices) in self._told

    def best(self, count: int = 1) -> list[tuple[Choices, int]]:
        """Return the candidates that cost least, the best first."""
        ran = [(choices, cost) for choices, cost in self._told.values() if cost is not None]
        return sorted(ran, key=lambda pair: (pair[1], _name(pair[0])))[:count]

    def propose(self) -> Choices | None:
        """Return a new candidate that fits; None where none is found any more."""
        for _ in range(ROUNDS):
            drawn = {_name(choices): choices for choices in (self._draw() for _ in range(DRAWS))}
            new = [choices for name, choices in drawn.items() if name not in self._told and name not in self._skipped]
            fitting = [choices for choices, fits in zip(new, self._is_legal(new), strict=True) if fits]
            if fitting:
                return fitting[0]
        return None

    def _draw(self) -> Choices:
        parents = self.best(PARENTS)
        if not parents or self._random.random() < RANDOM_SHARE:
            return tuple(
                {name: self._random.choice(values) for name, values in block.items()} for block in self._space.choices
            )
        return self._changed(self._random.choice(parents)[0])

    def _changed(self, parent: Choices) -> Choices:
        """Change one to three choices, half of the time to a neighbouring value."""
        blocks = [dict(block) for block in parent]
        for _ in range(self._random.randint(1, 3)):
            at = self._random.randrange(len(blocks))
            name, values = self._random.choice(sorted(self._space.choices[at].items()))
            place = values.index(blocks[at][name]) if blocks[at][name] in values else 0
            near = values[max(0, place - 1) : place + 2] if self._random.random() < 0.5 else values
            blocks[at][name] = self._random.choice(near)
        return tuple(blocks)


def _name(choices: Choices) -> str:
    return str([sorted(block.items()) for block in choices])
