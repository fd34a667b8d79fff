"""Check whole subgraphs with their code generators, and halve those that are rejected."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvmtarget.partition.subgraphs.limits import Limiter, Limits
from tvmtarget.support.strategy import Reject

__all__ = ["checked_subgraphs"]


def checked_subgraphs(
    subgraphs: Sequence[list[int]],
    check: Callable[[list[int]], Reject | None],
    limiter: Limiter,
    labels: Sequence[int],
    limits: Sequence[Limits],
) -> tuple[list[list[int]], dict[int, Reject]]:
    """Halve subgraphs until the code generator of each accepts it.

    Args:
        subgraphs: subgraphs in execution order.
        check: returns the reason why a code generator rejects a subgraph, or None.
        limiter: halves subgraphs.
        labels: label of every atom.
        limits: limits by label, which the halves keep too.

    Returns:
        The accepted subgraphs in execution order, and the atoms that are rejected even alone, with the reason.
    """
    accepted: list[list[int]] = []
    rejected: dict[int, Reject] = {}
    # A stack, so that the halves of a subgraph take its place in the order of execution.
    waiting = list(reversed(subgraphs))
    while waiting:
        subgraph = waiting.pop()
        reason = check(subgraph)
        if reason is None:
            accepted.append(subgraph)
        elif len(subgraph) == 1:
            rejected[subgraph[0]] = reason
        else:
            waiting += reversed(limiter.split_all(limiter.halve(subgraph), labels, limits))
    return accepted, rejected
