"""What code generators say to whole regions: one that is refused is divided, and asked for again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvmtarget.partition.subgraphs.limits import Limiter
from tvmtarget.support.strategy import Reject

__all__ = ["checked_subgraphs"]


def checked_subgraphs(
    regions: Sequence[list[int]], ask: Callable[[list[int]], Reject | None], limiter: Limiter
) -> tuple[list[list[int]], dict[int, Reject]]:
    """Return regions of which none is refused, and the atoms that are refused even alone, with the reason."""
    taken: list[list[int]] = []
    refused: dict[int, Reject] = {}
    waiting = list(reversed(regions))
    while waiting:
        region = waiting.pop()
        refusal = ask(region)
        if refusal is None:
            taken.append(region)
        elif len(region) == 1:
            refused[region[0]] = refusal
        else:
            waiting += reversed(limiter.halves(region))
    return taken, refused
