"""A choice for each of several parties, no two neighbours the same: colouring of a graph from lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["MAX_LOOKS", "list_coloring"]

# How often a choice is tried before the search is given up.
MAX_LOOKS = 20_000


def list_coloring(
    lists: Mapping[int, Sequence[str]], pairs: Sequence[tuple[int, int]], looks: int = MAX_LOOKS
) -> dict[int, str] | None:
    """Return what each party gets of its list, early entries first; None if no choice keeps all pairs apart.

    Of the parties that are left the one with the fewest choices is next, and what it gets is struck from its
    neighbours. Exponential at worst: after so many looks None is returned, too.
    """
    neighbours: dict[int, set[int]] = {party: set() for party in lists}
    for a, b in pairs:
        neighbours[a].add(b)
        neighbours[b].add(a)
    left = {party: list(choices) for party, choices in lists.items()}
    done: dict[int, str] = {}
    tried: list[tuple[int, list[str], list[int]]] = []  # a party, what else it could get, and whom that was struck from
    while len(done) < len(lists):
        party = min((one for one in left if one not in done), key=lambda one: (len(left[one]), one))
        choices = list(left[party])
        while not choices:
            if not tried:
                return None
            party, choices, struck = tried.pop()
            for one in struck:
                left[one] = [choice for choice in lists[one] if choice in left[one] or choice == done[party]]
            del done[party]
        looks -= 1
        if looks < 0:
            return None
        done[party] = choices.pop(0)
        struck = [one for one in neighbours[party] if one not in done and done[party] in left[one]]
        for one in struck:
            left[one].remove(done[party])
        tried.append((party, choices, struck))
    return done
