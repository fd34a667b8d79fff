"""Stage C with costs: labels for atoms at the least sum of what they take, of copies, and of launches.

With two labels one minimum cut is exact. With more, labels that cannot be best are ruled out, what is left falls into
small components, and in each of them labels are offered one after the other, and a cut decides who takes the one on
offer: alpha-expansion (Boykov, Veksler and Zabih, 2001). All numbers are whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvmtarget.partition.assignment.binary import ALWAYS, Term, decide
from tvmtarget.partition.assignment.placement import Edge, Energy, Placement, energy_of, enumerated
from tvmtarget.partition.assignment.pruning import components, pruned

__all__ = ["expanded"]

# Sweeps over the labels; each must gain, and two or three are usual.
MAX_SWEEPS = 4

# Components with more atoms than this are improved from one start, smaller ones from two; and above the second number
# in one sweep only, as cuts of large networks take more than linear time.
MAX_TWICE = 200
MAX_SWEPT = 2000

# A component with no more labellings than this is searched whole.
MAX_SEARCHED = 81


def expanded(placement: Placement, share: float) -> list[int]:
    """Return labels at a least sum, exact for two labels; `share` of a launch is charged wherever a value passes."""
    energy = energy_of(placement, share)
    if len(placement.domains) == 2:
        return _offered(energy, [allowed[0] for allowed in energy.allowed], 1)
    narrowed = pruned(energy)
    labels = [allowed[0] for allowed in narrowed.allowed]
    for atoms, part in components(narrowed):
        for atom, label in zip(atoms, _best(part), strict=True):
            labels[atom] = label
    return labels


def _best(energy: Energy) -> list[int]:
    searched = min(enumerated(energy, MAX_SEARCHED), key=energy.total, default=None)
    if searched is not None:
        return searched
    cheapest = [
        min(labels, key=lambda label: row[label] or 0) for row, labels in zip(energy.costs, energy.allowed, strict=True)
    ]
    starts = [cheapest]
    if len(energy.costs) <= MAX_TWICE:
        starts.append([allowed[0] for allowed in energy.allowed])
    return min((_swept(energy, start) for start in starts), key=energy.total)


def _swept(energy: Energy, labels: list[int]) -> list[int]:
    least = energy.total(labels)
    for _ in range(MAX_SWEEPS if len(labels) <= MAX_SWEPT else 1):
        before = least
        for label in range(len(energy.costs[0])):
            moved = _offered(energy, labels, label)
            total = energy.total(moved)
            if total < least:
                labels, least = moved, total
        if least == before:
            break
    return labels


def _offered(energy: Energy, labels: Sequence[int], label: int) -> list[int]:
    """Offer one label to every atom that may take it, and return what is best."""
    movable = [atom for atom, row in enumerate(energy.costs) if labels[atom] != label and row[label] is not None]
    offer = _Offer(energy, labels, label, {atom: index for index, atom in enumerate(movable)})
    for edge in energy.edges:
        offer.couple(edge)
    taken = decide(offer.differences, offer.terms)
    result = list(labels)
    for atom, is_taken in zip(movable, taken, strict=True):
        if is_taken:
            result[atom] = label
    return result


class _Offer:
    """One label on offer, as decisions: whether each atom that may take it does."""

    def __init__(self, energy: Energy, labels: Sequence[int], label: int, movable: dict[int, int]) -> None:
        rows = energy.costs
        self.labels = labels
        self.label = label
        self.movable = movable
        self.differences = [(rows[atom][label] or 0) - (rows[atom][labels[atom]] or 0) for atom in movable]
        self.terms: list[Term] = []

    def couple(self, edge: Edge) -> None:
        """Add what a value costs from where its producer is, and from where its producer would be."""
        producer, movable = edge.producer, self.movable
        source = edge.source if producer is None else edge.groups[self.labels[producer]]
        tail = ALWAYS if producer is None else movable.get(producer, ALWAYS)
        offered = edge.groups[self.label]
        settled = set(edge.settled)
        moving: dict[int, list[int]] = {}
        for reader in edge.readers:
            group = edge.groups[self.labels[reader]]
            if reader in movable and group != offered:
                moving.setdefault(group, []).append(movable[reader])
            else:
                settled.add(group)
        stay, go = edge.routes[source], edge.routes[offered]
        if tail != ALWAYS:
            self.differences[tail] += sum(go[group] - stay[group] for group in settled)
        arriving = stay[offered]
        heads = [head for group in moving.values() for head in group]
        for group, readers in moving.items():
            if group in settled:
                continue
            least = stay[group] if tail == ALWAYS else min(stay[group], go[group])
            self._add(least, ALWAYS, readers, asked=False)
            if tail == ALWAYS or stay[group] == go[group]:
                continue
            if go[group] > stay[group]:
                self._add(go[group] - stay[group], tail, readers, asked=False)
                continue
            # It is dearer to reach this group from here than from there, which no cut can say of several readers;
            # for them the dearer way is charged to both, an upper bound that is exact while nothing moves.
            excess = stay[group] - go[group]
            if len(heads) == 1:
                self.differences[tail] -= excess
                arriving = max(0, arriving - excess)
            else:
                self._add(excess, ALWAYS, readers, asked=False)
        if heads and offered not in settled:
            self._add(arriving, tail, heads, asked=True)

    def _add(self, cost: int, tail: int, heads: Sequence[int], *, asked: bool) -> None:
        if not cost or not heads:
            return
        if tail == ALWAYS and len(heads) == 1:
            self.differences[heads[0]] += cost if asked else -cost
        else:
            self.terms.append(Term(cost, tail, heads, asked))
