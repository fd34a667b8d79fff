"""Check whole subgraphs with their code generators, and divide those that are rejected."""

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
    """Divide subgraphs until code generators accept all parts, as few as consecutive ones allow.

    Args:
        subgraphs: subgraphs in execution order.
        check: returns the reason why a code generator rejects a subgraph, or None.
        limiter: halves subgraphs, and says which parts are within the limits together.
        labels: label of every atom.
        limits: limits by label, which the parts keep too.

    Returns:
        The accepted subgraphs in execution order, and the atoms that are rejected even alone, with the reason.
    """
    accepted: list[list[int]] = []
    rejected: dict[int, Reject] = {}
    for whole in subgraphs:
        parts: list[list[int]] = []
        # A stack, so that the halves of a subgraph take its place in the order of execution.
        waiting = [whole]
        while waiting:
            subgraph = waiting.pop()
            reason = check(subgraph)
            if reason is not None and len(subgraph) == 1:
                rejected[subgraph[0]] = reason
            elif reason is not None:
                waiting += reversed(limiter.split_all(limiter.halve(subgraph), labels, limits))
            # Nothing runs between two parts unless an atom between them is rejected; then all is planned anew.
            elif (
                parts
                and not rejected
                and len(limiter.split_all([both := [*parts[-1], *subgraph]], labels, limits)) == 1
                and check(both) is None
            ):
                parts[-1] = both
            else:
                parts.append(subgraph)
        accepted += parts
    return accepted, rejected
