"""Keeping subgraphs within what a code generator takes: their shape, and how many operations, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvmtarget.partition.subgraphs.topological_orders import backwards_in_depth, gathered, in_breadth
from tvmtarget.partition.values import Values

__all__ = ["Limiter", "Limits"]

# How many times as many atoms are looked at as were within the caps, to see whether outputs become fewer again.
AHEAD = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What a subgraph of a site may be; None where there is no limit.

    `shape` is as in `Strategy.subgraphs`; that a site gets one `program` is seen to where all subgraphs are known
    (`whole.py`). The others are numbers of operations, and of values read and returned.
    """

    shape: str = "superstep"
    max_ops: int | None = None
    max_inputs: int | None = None
    max_outputs: int | None = None

    @property
    def is_capped(self) -> bool:
        """Whether any number is limited."""
        return (self.max_ops, self.max_inputs, self.max_outputs) != (None, None, None)

    @property
    def is_unlimited(self) -> bool:
        """Whether a subgraph may be anything."""
        return self.shape in ("superstep", "program") and not self.is_capped


class Limiter:
    """Divides subgraphs so that each is within the limits of its site; parts come in an order in which they can run."""

    def __init__(self, successors: Sequence[Sequence[int]], atoms: Sequence[tuple[int, ...]], values: Values) -> None:
        self.successors = successors
        self.atoms = atoms
        self.values = values

    @cached_property
    def reads(self) -> list[list[int]]:
        """The values that every atom reads."""
        return self.values.read_by(len(self.atoms))

    @cached_property
    def makes(self) -> list[list[int]]:
        """The values that every atom computes."""
        return self.values.produced_by(len(self.atoms))

    def split_all(
        self, subgraphs: Iterable[list[int]], labels: Sequence[int], limits: Sequence[Limits]
    ) -> list[list[int]]:
        """Return the parts of all subgraphs; `limits` are by label, which `labels` are by atom."""
        return [part for subgraph in subgraphs for part in self.split(subgraph, limits[labels[subgraph[0]]])]

    def split(self, subgraph: list[int], limits: Limits) -> Iterator[list[int]]:
        """Yield the parts of a subgraph."""
        if limits.shape == "single":
            yield from ([atom] for atom in self._ordered(subgraph))
            return
        for part in self._connected(subgraph) if limits.shape == "connected" else [subgraph]:
            yield from self._capped(part, limits) if limits.is_capped else [part]

    def halve(self, subgraph: list[int]) -> list[list[int]]:
        """Return a subgraph of several atoms in two parts, divided where fewest bytes pass in the middle half."""
        order = self._ordered(subgraph)
        crossing = self._crossing(order)
        quarter = max(1, len(order) // 4)
        at = min(
            range(quarter, len(order) - quarter + 1), key=lambda size: (crossing[size], abs(2 * size - len(order)))
        )
        return [sorted(order[:at]), sorted(order[at:])]

    def _ordered(self, subgraph: Sequence[int]) -> list[int]:
        """Return the atoms of a subgraph so that edges point forward."""
        return in_breadth(self._after(subgraph))

    def _after(self, subgraph: Sequence[int]) -> dict[int, list[int]]:
        """Return the atoms of a subgraph that come after each of them."""
        inside = set(subgraph)
        return {atom: [target for target in self.successors[atom] if target in inside] for atom in subgraph}

    def _connected(self, subgraph: Sequence[int]) -> list[list[int]]:
        """Return the parts of a subgraph that no edge joins."""
        inside = set(subgraph)
        joined: dict[int, list[int]] = {atom: [] for atom in subgraph}
        for atom in subgraph:
            for target in self.successors[atom]:
                if target in inside:
                    joined[atom].append(target)
                    joined[target].append(atom)
        seen: set[int] = set()
        parts = []
        for start in sorted(subgraph):
            if start in seen:
                continue
            seen.add(start)
            part = [start]
            for atom in part:
                for other in joined[atom]:
                    if other not in seen:
                        seen.add(other)
                        part.append(other)
            parts.append(sorted(part))
        return parts

    def _capped(self, subgraph: Sequence[int], limits: Limits) -> list[list[int]]:
        """Return parts within the caps, as few as are found, then those that fewest bytes pass between.

        In several orders beginnings are cut off: the longest that is within the caps, or of the longer half of those
        that are the one that fewest bytes leave. One atom that breaks a cap by itself stays as it is.
        """
        after = self._after(subgraph)
        order = in_breadth(after)
        if self._sizes_within(order, 0, limits)[-1] == len(order):
            return [sorted(order)]
        orders = [order, backwards_in_depth(after)]
        if limits.max_inputs is not None:
            orders.append(gathered(after, self.reads, self.makes, self.values.readers_of, limits.max_inputs))
        ways = [self._cut(order, limits, is_longest=longest) for order in orders for longest in (True, False)]
        return min(ways, key=lambda way: (len(way[0]), way[1]))[0]

    def _cut(self, order: Sequence[int], limits: Limits, *, is_longest: bool) -> tuple[list[list[int]], int]:
        """Return the parts of an order within the caps, and the bytes that pass where it is cut."""
        crossing = self._crossing(order)
        parts, done, nbytes = [], 0, 0
        while done < len(order):
            sizes = self._sizes_within(order, done, limits)
            longest = sizes[-1]
            if not is_longest and done + longest < len(order):
                longer = (size for size in sizes if 2 * size >= longest)
                longest = min(longer, key=lambda size: (crossing[done + size], -size))
            parts.append(sorted(order[done : done + longest]))
            done += longest
            nbytes += crossing[done]
        return parts, nbytes

    def _crossing(self, order: Sequence[int]) -> list[int]:
        """Return, for every number of first atoms, how many bytes pass from those to the others."""
        place = {atom: number for number, atom in enumerate(order)}
        change = [0] * (len(order) + 1)
        for atom in order:
            for value in self.makes[atom]:
                last = max((place[reader] for reader in self.values.readers_of[value] if reader in place), default=-1)
                if last > place[atom]:
                    change[place[atom] + 1] += self.values.sizes[value]
                    change[last + 1] -= self.values.sizes[value]
        total, crossing = 0, []
        for step in change:
            total += step
            crossing.append(total)
        return crossing

    def _sizes_within(self, order: Sequence[int], done: int, limits: Limits) -> list[int]:
        """Return how many of the atoms after those done the caps hold, 1 at least; outputs may become fewer again."""
        inside: set[int] = set()
        inputs: set[int] = set()
        pending: dict[int, int] = {}
        ops = 0
        sizes: list[int] = []
        for at in range(done, len(order)):
            atom, size = order[at], at + 1 - done
            inside.add(atom)
            ops += len(self.atoms[atom])
            for value in self.reads[atom]:
                if value in pending:
                    pending[value] -= 1
                    if not pending[value]:
                        del pending[value]
                elif self.values.producers[value] not in inside:
                    inputs.add(value)
            for value in self.makes[atom]:
                open_ended = len(self.values.readers_of[value]) + int(self.values.is_live_out[value])
                if open_ended:
                    pending[value] = open_ended
            if _is_over(ops, limits.max_ops) or _is_over(len(inputs), limits.max_inputs):
                break
            if not _is_over(len(pending), limits.max_outputs):
                sizes.append(size)
            elif size > AHEAD * (sizes or [1])[-1]:
                break
        return sizes or [1]


def _is_over(number: int, most: int | None) -> bool:
    return most is not None and number > most
