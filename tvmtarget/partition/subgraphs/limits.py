"""Split subgraphs until each is within the limits of its code generator: shape, operations, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvmtarget.partition.subgraphs.topological_orders import breadth_first, depth_first_backwards, fewest_new_inputs
from tvmtarget.partition.values import Values
from tvmtarget.support.registry import is_generator, strategy_at
from tvmtarget.target.topology import Site

__all__ = ["Limiter", "Limits", "limits_of"]

# The outputs of a growing part can become fewer again: the search goes on to this multiple of the largest valid size.
AHEAD = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on a subgraph of a site; None where there is none.

    Attributes:
        shape: as in `Strategy.subgraphs`. That a site gets a single `program` is enforced once all subgraphs are known
            (`single_subgraph.py`).
        max_ops: number of operations.
        max_inputs: number of values that the subgraph reads.
        max_outputs: number of values that are read outside of it.
    """

    shape: str = "superstep"
    max_ops: int | None = None
    max_inputs: int | None = None
    max_outputs: int | None = None

    @property
    def is_capped(self) -> bool:
        """Whether operations, inputs or outputs are limited."""
        return (self.max_ops, self.max_inputs, self.max_outputs) != (None, None, None)

    @property
    def is_unlimited(self) -> bool:
        """Whether there is no limit at all."""
        return self.shape in ("superstep", "program") and not self.is_capped


def limits_of(site: Site, *, is_driver: bool = False) -> Limits:
    """Return the limits of the subgraphs of a site.

    Args:
        site: where the subgraphs run.
        is_driver: whether the driver of the site runs them itself: single operations with regions.

    Returns:
        What the operator support of the site's code generator declares; no limits where none is known.
    """
    if is_driver:
        return Limits("single")
    strategy = strategy_at(site.target) if is_generator(site.target) else None
    if strategy is None:
        return Limits()
    return Limits(strategy.subgraphs, strategy.max_ops, strategy.max_inputs, strategy.max_outputs)


class Limiter:
    """Splits subgraphs of one program; parts are returned in execution order."""

    def __init__(self, successors: Sequence[Sequence[int]], atoms: Sequence[tuple[int, ...]], values: Values) -> None:
        """Prepare for splitting.

        Args:
            successors: successors of every atom.
            atoms: operations of every atom.
            values: values that pass between the atoms or leave them.
        """
        self.successors = successors
        self.atoms = atoms
        self.values = values

    @cached_property
    def reads(self) -> list[list[int]]:
        """Values that every atom reads."""
        return self.values.read_by(len(self.atoms))

    @cached_property
    def makes(self) -> list[list[int]]:
        """Values that every atom computes."""
        return self.values.produced_by(len(self.atoms))

    def split_all(
        self, subgraphs: Iterable[list[int]], labels: Sequence[int], limits: Sequence[Limits]
    ) -> list[list[int]]:
        """Split all subgraphs to keep the limits of their sites.

        Args:
            subgraphs: subgraphs of one label each, in execution order.
            labels: label of every atom.
            limits: limits by label.

        Returns:
            Parts in execution order.
        """
        return [part for subgraph in subgraphs for part in self.split(subgraph, limits[labels[subgraph[0]]])]

    def split(self, subgraph: list[int], limits: Limits) -> Iterator[list[int]]:
        """Split one subgraph to keep its limits.

        Args:
            subgraph: its atoms.
            limits: what each part may be. An atom that exceeds a limit by itself stays as it is.

        Yields:
            Parts as lists of atoms, in execution order.
        """
        if limits.shape == "single":
            yield from ([atom] for atom in self._ordered(subgraph))
            return
        if limits.shape != "connected":
            yield from self._capped(subgraph, limits) if limits.is_capped else [subgraph]
            return
        # Components first: a numeric limit may then be met without a further cut, which can disconnect a part again.
        for component in self._connected(subgraph):
            for part in self._capped(component, limits) if limits.is_capped else [component]:
                yield from self._connected(part)

    def halve(self, subgraph: list[int]) -> list[list[int]]:
        """Split a subgraph in two where few bytes pass, within the middle half of its order.

        Args:
            subgraph: at least two atoms.

        Returns:
            Both parts as ascending lists of atoms, in execution order.
        """
        order = self._ordered(subgraph)
        crossing = self._crossing(order)
        quarter = max(1, len(order) // 4)
        at = min(
            range(quarter, len(order) - quarter + 1), key=lambda size: (crossing[size], abs(2 * size - len(order)))
        )
        return [sorted(order[:at]), sorted(order[at:])]

    def _ordered(self, subgraph: Sequence[int]) -> list[int]:
        """Return the atoms of a subgraph in topological order."""
        return breadth_first(self._after(subgraph))

    def _after(self, subgraph: Sequence[int]) -> dict[int, list[int]]:
        """Return the successors of each atom within the subgraph."""
        inside = set(subgraph)
        return {atom: [target for target in self.successors[atom] if target in inside] for atom in subgraph}

    def _connected(self, subgraph: Sequence[int]) -> list[list[int]]:
        """Return the weakly connected components of a subgraph."""
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
        """Return parts within the numeric limits: the fewest found, then those with the fewest bytes between them.

        Prefixes of several topological orders are cut off repeatedly: the longest within the limits, or the one that
        fewest bytes leave among those at least half as long. On nets of `benchmarks/_graphs.py` (300 operations, nine
        sets of limits), breadth-first order alone gives 11 % (transformer) to 171 % (dense net) more parts than all
        three; without the greedy order there are 11 % more parts of the transformer.
        """
        after = self._after(subgraph)
        order = breadth_first(after)
        if self._sizes_within(order, 0, limits)[-1] == len(order):
            return [sorted(order)]
        orders = [order, depth_first_backwards(after)]
        if limits.max_inputs is not None:
            orders.append(fewest_new_inputs(after, self.reads, self.makes, self.values.readers_of, limits.max_inputs))
        splits = [self._cut(order, limits, is_longest=longest) for order in orders for longest in (True, False)]
        return min(splits, key=lambda split: (len(split[0]), split[1]))[0]

    def _cut(self, order: Sequence[int], limits: Limits, *, is_longest: bool) -> tuple[list[list[int]], int]:
        """Return the parts of an order within the limits, and the bytes that pass where it is cut."""
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
        """Return the bytes that pass from the first n atoms to the others, for every n from 0 up."""
        position = {atom: number for number, atom in enumerate(order)}
        change = [0] * (len(order) + 1)
        for atom in order:
            for value in self.makes[atom]:
                last = max(
                    (position[reader] for reader in self.values.readers_of[value] if reader in position), default=-1
                )
                if last > position[atom]:
                    change[position[atom] + 1] += self.values.sizes[value]
                    change[last + 1] -= self.values.sizes[value]
        total, crossing = 0, []
        for step in change:
            total += step
            crossing.append(total)
        return crossing

    def _sizes_within(self, order: Sequence[int], done: int, limits: Limits) -> list[int]:
        """Return the sizes within the limits of a part that follows the first `done` atoms; [1] if there is none."""
        inside: set[int] = set()
        inputs: set[int] = set()
        pending: dict[int, int] = {}  # for values that are outputs so far: number of readers still outside
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
                readers = len(self.values.readers_of[value]) + int(self.values.is_live_out[value])
                if readers:
                    pending[value] = readers
            # Operations and inputs only grow with the size; outputs may shrink again (see `AHEAD`).
            if _is_over(ops, limits.max_ops) or _is_over(len(inputs), limits.max_inputs):
                break
            if not _is_over(len(pending), limits.max_outputs):
                sizes.append(size)
            elif size > AHEAD * (sizes or [1])[-1]:
                break
        return sizes or [1]


def _is_over(number: int, most: int | None) -> bool:
    return most is not None and number > most
