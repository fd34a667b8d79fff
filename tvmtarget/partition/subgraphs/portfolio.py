"""Form subgraphs of atoms with known sites: run several methods and keep the best result.

Every method returns subgraphs without cycles between them. The best result has the lowest launch cost, then the fewest
subgraphs, then the fewest bytes between subgraphs.

What each method contributes, on nets and random graphs of 1000 operations (`benchmarks/_graphs.py`; operators assigned
to sites at random, 8 seeds):

- Typed fusion alone meets the lower bound for every chain, transformer and ResNet, and for every graph with two sites.
- Without beam search, nets of many branches on three or four sites have 5.6 % more subgraphs, and random graphs 4.9 %
  to 6.4 % more; dense nets pass 1.3 % more bytes.
- Without boundary refinement, as many subgraphs pass 0.7 % (dense nets) to 5.0 % (many branches) more bytes.
- Without edge contraction, dense nets on two sites pass 0.6 % more bytes.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from itertools import chain

import numpy as np

from tvmtarget.partition.dataflow import Ints, distinct
from tvmtarget.partition.subgraphs.beam_search import beam_search
from tvmtarget.partition.subgraphs.boundary_refinement import BoundaryRefinement
from tvmtarget.partition.subgraphs.components import components_of
from tvmtarget.partition.subgraphs.edge_contraction import contract_edges
from tvmtarget.partition.subgraphs.limits import Limiter, Limits
from tvmtarget.partition.subgraphs.lower_bound import least_total, weight_ahead
from tvmtarget.partition.subgraphs.typed_fusion import LabeledGraph, graph_from_edges, typed_fusion
from tvmtarget.partition.values import Values

__all__ = ["form_subgraphs", "fuse_subgraphs"]


def form_subgraphs(
    labeled: LabeledGraph,
    limits: Sequence[Limits],
    launch_costs: Sequence[int],
    limiter: Limiter,
    values: Values,
) -> list[list[int]]:
    """Return the best subgraphs of a labeled graph of atoms.

    Args:
        labeled: atoms without cycles, labeled with the number of their site.
        limits: what a subgraph of a site may be, by label.
        launch_costs: cost of one call of a subgraph, by label, in any unit.
        limiter: splits subgraphs that exceed their limits.
        values: values that pass between the atoms.

    Returns:
        Subgraphs as ascending lists of atoms, in execution order.
    """
    labels = labeled.labels
    is_unlimited = all(limits[label].is_unlimited for label in labeled.distinct_labels)
    best: list[list[list[int]]] = []
    least = None
    for candidate in _candidates(labeled, launch_costs, values, is_unlimited=is_unlimited):
        subgraphs = candidate if is_unlimited else limiter.split_all(candidate, labels, limits)
        score = _total_launch_cost(subgraphs, labels, launch_costs), len(subgraphs)
        if least is None or score < least:
            best, least = [subgraphs], score
        elif score == least and subgraphs not in best:
            best.append(subgraphs)
    # Bytes decide only between results of equal cost and number, so they are counted for those alone.
    if len(best) == 1:
        return best[0]
    return min(best, key=lambda subgraphs: values.cut(_owners(len(labels), subgraphs)))


def _candidates(
    labeled: LabeledGraph, launch_costs: Sequence[int], values: Values, *, is_unlimited: bool
) -> Iterator[list[list[int]]]:
    fused = list(_fused(labeled, launch_costs))
    yield from fused
    labels, count = labeled.labels, len(labeled.distinct_labels)
    if count < 2 or labeled.graph.is_large:
        return
    refinement = BoundaryRefinement(labeled, values)
    best = min(reversed(fused), key=lambda subgraphs: _total_launch_cost(subgraphs, labels, launch_costs))
    refined = refinement.refine(
        min(
            _starting_points(labeled, best),
            key=lambda subgraphs: values.cut(_owners(len(labels), subgraphs)),
        )
    )
    yield refined
    if is_unlimited and count == 2 and _is_contraction_redundant(labeled, fused[0], refined):
        return
    contracted = contract_edges(labeled.graph, labels, _edges_by_bytes(values))
    yield contracted
    fused_again = fuse_subgraphs(labeled, contracted)
    yield fused_again
    yield refinement.refine(fused_again)


def _is_contraction_redundant(
    labeled: LabeledGraph, fused: Sequence[Sequence[int]], refined: Sequence[Sequence[int]]
) -> bool:
    """Whether contracting the edges between atoms of one label cannot improve on known subgraphs of two labels.

    It cannot where typed fusion cuts no such edge, because fusing what is contracted gives the same subgraphs. It
    cannot either where the refined subgraphs are as few as those of typed fusion and are exactly the components that
    such edges connect: contraction yields these, and fusing them could only yield fewer.
    """
    labels, count = np.array(labeled.labels), len(labeled.labels)
    starts, ends = labeled.graph.starts, labeled.graph.ends
    same_label = labels[starts] == labels[ends]
    starts, ends = starts[same_label], ends[same_label]

    def cuts_no_edge(subgraphs: Sequence[Sequence[int]]) -> bool:
        owner = _owners(count, subgraphs)
        return bool((owner[starts] == owner[ends]).all())

    if cuts_no_edge(fused):
        return True
    return cuts_no_edge(refined) and len(distinct(components_of(count, starts, ends))) == len(refined)


def _fused(labeled: LabeledGraph, launch_costs: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yield results of typed fusion; with three labels or more, of further variants until one meets the bound."""
    labels = labeled.labels
    yield (subgraphs := labeled.fused())
    cheapest = _cheapest(labeled, launch_costs)
    least = _total_launch_cost(subgraphs, labels, launch_costs)
    is_alternating = len(labeled.distinct_labels) == 2  # then only the first label is a choice
    if len(cheapest) < len(labeled.distinct_labels) and not (is_alternating and labels[subgraphs[0][0]] in cheapest):
        yield (subgraphs := labeled.fused(cheapest))
        least = min(least, _total_launch_cost(subgraphs, labels, launch_costs))
    if len(labeled.distinct_labels) < 3 or labeled.graph.is_large:
        return
    heights = weight_ahead(labeled, launch_costs)
    bound = least_total(labels, heights, launch_costs)
    for subgraphs in _fused_by_weight(labeled, launch_costs, heights):
        if least <= bound:
            return
        yield subgraphs
        least = min(least, _total_launch_cost(subgraphs, labels, launch_costs))


def _fused_by_weight(
    labeled: LabeledGraph, launch_costs: Sequence[int], heights: Sequence[int]
) -> Iterator[list[list[int]]]:
    """Yield results of typed fusion by the launch cost ahead, from the end backwards, and of beam search."""
    cheapest = _cheapest(labeled, launch_costs)
    yield typed_fusion(labeled, cheapest, heights)
    yield labeled.transposed.fused()[::-1]
    yield typed_fusion(labeled.transposed, cheapest, weight_ahead(labeled.transposed, launch_costs))[::-1]
    found = beam_search(labeled, launch_costs, heights)
    if found is not None:
        yield found


def _cheapest(labeled: LabeledGraph, launch_costs: Sequence[int]) -> frozenset[int]:
    least = min((launch_costs[label] for label in labeled.distinct_labels), default=0)
    return frozenset(label for label in labeled.distinct_labels if launch_costs[label] == least)


def _starting_points(labeled: LabeledGraph, best: list[list[int]]) -> Iterator[list[list[int]]]:
    """Yield subgraphs in which every atom runs as early as it can; with two labels also those where it runs late."""
    yield best
    if len(labeled.distinct_labels) == 2:
        last = labeled.labels[best[-1][0]]
        yield labeled.transposed.fused(frozenset({last}))[::-1]


def _total_launch_cost(subgraphs: Sequence[Sequence[int]], labels: Sequence[int], launch_costs: Sequence[int]) -> int:
    return sum(launch_costs[labels[subgraph[0]]] for subgraph in subgraphs)


def _edges_by_bytes(values: Values) -> list[tuple[int, int]]:
    """Return pairs of producer and reader, those of the largest values first."""
    value, _ = values.reads
    has_producer = values.producer[value] >= 0
    order = np.argsort(-values.nbytes[value[has_producer]], kind="stable")
    starts = values.producer[value][has_producer][order].tolist()
    return list(zip(starts, values.readers[has_producer][order].tolist(), strict=True))


def fuse_subgraphs(
    labeled: LabeledGraph, subgraphs: Sequence[Sequence[int]], kept: Container[int] = ()
) -> list[list[int]]:
    """Return the typed fusion of the quotient graph of subgraphs.

    Args:
        labeled: atoms without cycles, labeled with the number of their site.
        subgraphs: subgraphs as lists of atoms, in execution order.
        kept: labels whose subgraphs stay as they are.

    Returns:
        Subgraphs as ascending lists of atoms, in execution order, each of which is several of the given ones.
    """
    graph = labeled.graph
    owner = _owners(len(graph), subgraphs)
    quotient = graph_from_edges(len(subgraphs), owner[graph.starts], owner[graph.ends])
    labels = [labeled.labels[subgraph[0]] for subgraph in subgraphs]
    # What has a label of its own fuses with nothing.
    first = max(labels, default=0) + 1
    own = [first + number if label in kept else label for number, label in enumerate(labels)]
    fused = typed_fusion(LabeledGraph(quotient, own))
    return [sorted(atom for number in group for atom in subgraphs[number]) for group in fused]


def _owners(count: int, subgraphs: Sequence[Sequence[int]]) -> Ints:
    """Return the number of the subgraph of each of `count` atoms."""
    owner = np.zeros(count, dtype=np.int64)
    members = np.fromiter(chain.from_iterable(subgraphs), dtype=np.int64)
    owner[members] = np.repeat(np.arange(len(subgraphs)), [len(subgraph) for subgraph in subgraphs])
    return owner
