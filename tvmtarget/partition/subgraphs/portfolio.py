"""Stage D: subgraphs of operations whose sites are known, by several ways; the best is kept.

All ways yield subgraphs whose graph has no circle. What is best is the least that calls cost, then the fewest
subgraphs,
then the fewest bytes that pass between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.subgraphs.beam_search import beam_search
from tvmtarget.partition.subgraphs.boundary_refinement import BoundaryRefinement
from tvmtarget.partition.subgraphs.components import components_of
from tvmtarget.partition.subgraphs.edge_contraction import contract_edges
from tvmtarget.partition.subgraphs.limits import Limiter, Limits
from tvmtarget.partition.subgraphs.lower_bound import least_total, weight_ahead
from tvmtarget.partition.subgraphs.typed_fusion import LabeledGraph, graph_from_edges, typed_fusion
from tvmtarget.partition.values import Values

__all__ = ["form_subgraphs"]


def form_subgraphs(
    labeled: LabeledGraph,
    limits: Sequence[Limits],
    launches: Sequence[int],
    limiter: Limiter,
    values: Values,
) -> list[list[int]]:
    """Return the best subgraphs of atoms; `limits` and `launches` (what a call costs) are by label."""
    labels = labeled.labels
    is_unlimited = all(limits[label].is_unlimited for label in labeled.distinct_labels)
    best: list[list[list[int]]] = []
    least = None
    for candidate in _candidates(labeled, launches, values, is_unlimited=is_unlimited):
        subgraphs = candidate if is_unlimited else limiter.split_all(candidate, labels, limits)
        score = _calls(subgraphs, labels, launches), len(subgraphs)
        if least is None or score < least:
            best, least = [subgraphs], score
        elif score == least and subgraphs not in best:
            best.append(subgraphs)
    if len(best) == 1:
        return best[0]
    return min(best, key=lambda subgraphs: values.cut(_owner(len(labels), subgraphs)))


def _candidates(
    labeled: LabeledGraph, launches: Sequence[int], values: Values, *, is_unlimited: bool
) -> Iterator[list[list[int]]]:
    swept = list(_swept(labeled, launches))
    yield from swept
    labels, count = labeled.labels, len(labeled.distinct_labels)
    if count < 2 or labeled.graph.is_large:
        return
    slack = BoundaryRefinement(labeled, values)
    best = min(reversed(swept), key=lambda subgraphs: _calls(subgraphs, labels, launches))
    moved = slack.refine(min(_starts(slack, best), key=lambda subgraphs: values.cut(_owner(len(labels), subgraphs))))
    yield moved
    if is_unlimited and count == 2 and _is_settled(slack, swept[0], moved):
        return
    joined = contract_edges(labeled.graph, labels, _by_bytes(values))
    yield joined
    again = _over(slack, joined)
    yield again
    yield slack.refine(again)


def _is_settled(slack: BoundaryRefinement, swept: Sequence[Sequence[int]], moved: Sequence[Sequence[int]]) -> bool:
    """Whether joining atoms of one label that follow each other leads to subgraphs of two labels that are known.
    It does where waves part no such atoms: waves over what is joined are the same. And it does where subgraphs as few
    as waves are just what such atoms connect: what is joined are these, and waves over them could only be fewer.
    """
    labels, count = np.array(slack.labels), len(slack.labels)
    starts, ends = slack.graph.starts, slack.graph.ends
    alike = labels[starts] == labels[ends]
    starts, ends = starts[alike], ends[alike]

    def parts_none(subgraphs: Sequence[Sequence[int]]) -> bool:
        owner = _owner(count, subgraphs)
        return bool((owner[starts] == owner[ends]).all())

    if parts_none(swept):
        return True
    return parts_none(moved) and len(np.unique(components_of(count, starts, ends))) == len(moved)


def _swept(labeled: LabeledGraph, launches: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yield subgraphs by waves: with more than two labels one way after the other until none can be better."""
    labels = labeled.labels
    yield (subgraphs := labeled.fused())
    cheap = _cheap(launches)
    least = _calls(subgraphs, labels, launches)
    is_alternating = len(labeled.distinct_labels) == 2  # what comes first is all that there is to choose
    if len(cheap) < len(launches) and not (is_alternating and labels[subgraphs[0][0]] in cheap):
        yield (subgraphs := labeled.fused(cheap))
        least = min(least, _calls(subgraphs, labels, launches))
    if len(labeled.distinct_labels) < 3 or labeled.graph.is_large:
        return
    heights = weight_ahead(labeled, launches)
    bound = least_total(labels, heights, launches)
    for found in _more_swept(labeled, launches, heights):
        if least <= bound:
            return
        yield found
        least = min(least, _calls(found, labels, launches))


def _more_swept(labeled: LabeledGraph, launches: Sequence[int], heights: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yield waves of three labels or more by what calls weight_ahead cost, and from the end."""
    cheap = _cheap(launches)
    yield typed_fusion(labeled, cheap, heights)
    yield labeled.transposed.fused()[::-1]
    yield typed_fusion(labeled.transposed, cheap, weight_ahead(labeled.transposed, launches))[::-1]
    found = beam_search(labeled, launches, heights)
    if found is not None:
        yield found


def _cheap(launches: Sequence[int]) -> frozenset[int]:
    """Return the labels of which calls cost least."""
    return frozenset(label for label, launch in enumerate(launches) if launch == min(launches))


def _starts(slack: BoundaryRefinement, best: list[list[int]]) -> Iterator[list[list[int]]]:
    """Yield subgraphs by waves, in which all runs as soon as it can, and with two labels those where it runs late."""
    yield best
    if len(slack.labeled.distinct_labels) == 2:
        last = slack.labels[best[-1][0]]
        yield slack.labeled.transposed.fused(frozenset({last}))[::-1]


def _calls(subgraphs: Sequence[Sequence[int]], labels: Sequence[int], launches: Sequence[int]) -> int:
    """Return what the calls of subgraphs cost."""
    return sum(launches[labels[subgraph[0]]] for subgraph in subgraphs)


def _by_bytes(values: Values) -> list[tuple[int, int]]:
    """Return producers and readers of values, the largest values first."""
    value, _ = values.reads
    value_kept = values.producer[value] >= 0
    order = np.argsort(-values.nbytes[value[value_kept]], kind="stable")
    starts = values.producer[value][value_kept][order].tolist()
    return list(zip(starts, values.readers[value_kept][order].tolist(), strict=True))


def _over(slack: BoundaryRefinement, joined: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return waves over subgraphs that are there already, in an order in which they can run."""
    owner = _owner(len(slack.graph), joined)
    quotient = graph_from_edges(len(joined), owner[slack.graph.starts], owner[slack.graph.ends])
    outer = typed_fusion(LabeledGraph(quotient, [slack.labels[subgraph[0]] for subgraph in joined]))
    return [sorted(vertex for place in subgraph for vertex in joined[place]) for subgraph in outer]


def _owner(count: int, subgraphs: Sequence[Sequence[int]]) -> Ints:
    owner = np.zeros(count, dtype=np.int64)
    members = np.fromiter(chain.from_iterable(subgraphs), dtype=np.int64)
    owner[members] = np.repeat(np.arange(len(subgraphs)), [len(subgraph) for subgraph in subgraphs])
    return owner
