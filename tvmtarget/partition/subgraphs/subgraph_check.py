"""What code generators say to whole subgraphs: one that is refused is divided, and asked for again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvmtarget.partition.subgraphs.limits import Limiter
from tvmtarget.support.strategy import Reject

__all__ = ["checked_subgraphs"]


def checked_subgraphs(
    subgraphs: Sequence[list[int]], ask: Callable[[list[int]], Reject | None], limiter: Limiter
) -> tuple[list[list[int]], dict[int, Reject]]:
    """Return subgraphs of which none is refused, and the atoms that are refused even alone, with the reason."""
    taken: list[list[int]] = []
    refused: dict[int, Reject] = {}
    waiting = list(reversed(subgraphs))
    while waiting:
        subgraph = waiting.pop()
        refusal = ask(subgraph)
        if refusal is None:
            taken.append(subgraph)
        elif len(subgraph) == 1:
            refused[subgraph[0]] = refusal
        else:
            waiting += reversed(limiter.halve(subgraph))
    return taken, refused
