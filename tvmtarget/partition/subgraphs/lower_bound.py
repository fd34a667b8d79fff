"""Lower bounds on the number of subgraphs that any acyclic partition of a labeled graph needs.

Subgraphs in execution order form a sequence of labels that contains the label sequence of every path. Each bound takes
one pass over the graph:

- The sequence is at least as long as the largest number of label changes on a path.
- The readers of a vertex come after it. If they have several labels, one subgraph of each label is needed, and the
  last one is followed by all that its vertices require. Ordering the labels by that requirement, largest first, gives
  the least total, as for jobs with due dates (Jackson, 1955), for any weights of the labels (`weight_ahead`).
- A label occurs at least as often as a path re-enters it.

With two labels the first bound is exact (Kennedy and McKinley, 1993); with more the minimum is NP-hard to find.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tvmtarget.partition.subgraphs.typed_fusion import LabeledGraph

__all__ = ["fewest_by_label", "least_sequence_weight", "least_total", "least_weight", "lower_bound", "weight_ahead"]


def lower_bound(labeled: LabeledGraph, achieved: int | None = None) -> int:
    """Return a number of subgraphs that no acyclic partition of a labeled graph can go below.

    Args:
        labeled: graph without cycles whose vertices are labeled with sites.
        achieved: number of subgraphs of a known partition; the search for a better bound stops when it is reached.

    Returns:
        The best of the bounds listed in the module docstring; 0 for an empty graph.
    """
    bound = 0
    for other in _bounds(labeled):
        bound = max(bound, other)
        if bound == achieved:
            break
    return bound


def _bounds(labeled: LabeledGraph) -> Iterator[int]:
    """Yield bounds, the cheapest to compute first."""
    labels, heights = labeled.labels, labeled.label_changes_ahead
    if not labels:
        return
    tallest = max(heights)
    first_labels = {label for label, height in zip(labels, heights, strict=True) if height == tallest}
    count = len(labeled.distinct_labels)
    yield max(1 + tallest + (len(first_labels) > 1), count)
    if count < 3:
        return
    weights = [1] * (1 + max(labels))
    yield least_total(labels, weight_ahead(labeled, weights), weights)
    if labeled.graph.is_large:
        return
    yield sum(_entries_per_label(labeled))
    yield least_total(labels, weight_ahead(labeled.transposed, weights), weights)


def least_weight(labeled: LabeledGraph, weights: Sequence[int]) -> int:
    """Bound the total weight of the subgraphs of any acyclic partition from below.

    Args:
        labeled: graph without cycles whose vertices are labeled with sites.
        weights: weight of a subgraph, by label.

    Returns:
        The best of the bounds listed in the module docstring, weighted; 0 for an empty graph.
    """
    if not labeled.labels:
        return 0
    fewest = fewest_by_label(labeled)
    more = max(0, lower_bound(labeled) - sum(fewest.values())) * min(weights[label] for label in fewest)
    return max(
        sum(weights[label] * count for label, count in fewest.items()) + more,
        *(least_total(one.labels, weight_ahead(one, weights), weights) for one in (labeled, labeled.transposed)),
    )


def fewest_by_label(labeled: LabeledGraph) -> dict[int, int]:
    """Bound the number of subgraphs of each label in any acyclic partition from below.

    Args:
        labeled: graph without cycles whose vertices are labeled with sites.

    Returns:
        Numbers by label, of the labels that occur.
    """
    entries = _entries_per_label(labeled)
    return {label: max(1, entries[label]) for label in labeled.distinct_labels}


def weight_ahead(labeled: LabeledGraph, weights: Sequence[int]) -> list[int]:
    """Bound the weight of the subgraphs that run after each vertex.

    Args:
        labeled: graph without cycles.
        weights: weight of a subgraph, by label.

    Returns:
        For each vertex a lower bound on the total weight of the subgraphs after its own.
    """
    successors, labels = labeled.graph.successors, labeled.labels
    none = [-1] * len(weights)
    heights = [0] * len(successors)
    # Per vertex and label: largest height of a vertex of that label in a later subgraph, -1 if there is none.
    most = [none] * len(successors)
    for vertex in reversed(labeled.graph.topological_order):
        label, targets = labels[vertex], successors[vertex]
        if len(targets) == 1 and labels[targets[0]] == label:
            heights[vertex], most[vertex] = heights[targets[0]], most[targets[0]]
            continue
        height, row = 0, none
        for target in targets:
            row = most[target] if row is none else list(map(max, row, most[target]))
            if labels[target] == label:
                height = max(height, heights[target])
            elif heights[target] > row[labels[target]]:
                row = row.copy()
                row[labels[target]] = heights[target]
        heights[vertex], most[vertex] = max(height, least_sequence_weight(row, weights)), row
    return heights


def least_total(labels: Iterable[int], heights: Iterable[int], weights: Sequence[int]) -> int:
    """Bound the total weight of all subgraphs from below.

    Args:
        labels: label of each vertex.
        heights: total weight that follows each vertex, as `weight_ahead` returns it.
        weights: weight of a subgraph, by label.

    Returns:
        A lower bound in the unit of the weights.
    """
    most = [-1] * len(weights)
    for label, height in zip(labels, heights, strict=True):
        if height > most[label]:
            most[label] = height
    return least_sequence_weight(most, weights)


def least_sequence_weight(heights: Sequence[int], weights: Sequence[int]) -> int:
    """Bound the weight of one subgraph of every label and what follows each.

    Jackson's rule (1955): run first the label that is followed by most.

    Args:
        heights: total weight that follows the subgraph of each label; -1 for a label that does not occur.
        weights: weight of a subgraph, by label.

    Returns:
        The least total weight of such a sequence.
    """
    total = least = 0
    if weights and weights.count(weights[0]) == len(weights):
        # The usual case: the order among equal heights does not matter.
        for height in sorted(heights, reverse=True):
            if height < 0:
                break
            total += weights[0]
            if total + height > least:
                least = total + height
        return least
    for height, weight in sorted(zip(heights, weights, strict=True), reverse=True):
        if height < 0:
            break
        total += weight
        if total + height > least:
            least = total + height
    return least


def _entries_per_label(labeled: LabeledGraph) -> list[int]:
    """Return, per label, how often at most one path enters it, coming from another label or starting there."""
    successors, labels = labeled.graph.successors, labeled.labels
    none = [0] * (1 + max(labels))
    rows = [none] * len(successors)
    most = none
    for vertex in reversed(labeled.graph.topological_order):
        label, row, own = labels[vertex], none, 1
        for target in successors[vertex]:
            row = rows[target] if row is none else list(map(max, row, rows[target]))
            own = max(own, rows[target][label] + (labels[target] != label))
        if row[label] != own:
            row = row.copy()
            row[label] = own
        rows[vertex] = row
        if row[label] > most[label]:
            most = list(map(max, most, row))
    return most
