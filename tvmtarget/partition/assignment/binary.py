"""Yes-or-no decisions at least cost: what is clear is settled at once, the rest by minimum cuts.

Each decision has a cost for no and for yes. A term couples several: it is what moving a value costs, once, however
many readers ask for it. Such a sum is submodular, so that a minimum cut finds its least value (Stone, 1977). A
decision whose cost difference has one sign whatever the others decide needs no cut; settling it often settles its
neighbours. In programs few decisions are left, in small components, and the time stays near linear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from tvmtarget.partition.assignment.components import components_of
from tvmtarget.partition.assignment.coupling import Coupled, Decisions, reduced, restored
from tvmtarget.partition.assignment.maxflow import Budget, Network
from tvmtarget.partition.assignment.placement import Bools
from tvmtarget.partition.dataflow import Ints, spans

__all__ = ["ALWAYS", "Terms", "decide"]

# Vertices, and pairs of them.
Component: TypeAlias = "tuple[Ints, Ints]"

# The tail of a term that is paid whenever a head asks for it.
ALWAYS = -1

# Rounds of settling end where one settles less than this share of what is open: the rest is left to the cuts.
LEAST_SHARE = 0.002

# Components with more decisions than the first number, and those whose cut takes too much work, are cut in windows of
# the second size, one after the other.
MAX_CUT, WINDOW = 50_000, 2_000


@dataclass(frozen=True)
class Terms:
    """Costs that are paid once if any of the heads of a term decides `asked` while its tail does not.

    All arrays are parallel, but for `heads` and `owner`: the decisions that ask, and the term of each.
    """

    cost: Ints
    tail: Ints
    asked: Bools
    heads: Ints
    owner: Ints

    def kept(self, which: Bools, entries: Bools) -> Terms:
        """Return some of the terms and of their heads."""
        place = np.cumsum(which) - 1
        entries = entries & which[self.owner]
        return Terms(
            self.cost[which], self.tail[which], self.asked[which], self.heads[entries], place[self.owner[entries]]
        )


def decide(differences: Ints, terms: Terms, budget: Budget) -> Bools:
    """Return decisions at the least total cost; no where nothing speaks for yes.

    `differences[i]` is what yes costs more than no.
    """
    decisions = np.full(len(differences), -1, dtype=np.int8)
    _settle(*_reduced(differences.copy(), terms, decisions), decisions, budget)
    return decisions.astype(np.bool_)


def _settle(differences: Ints, terms: Terms, decisions: Decisions, budget: Budget) -> None:
    while True:
        is_open = decisions < 0
        left = int(is_open.sum())
        if not left:
            return
        least, most = _ranges(differences, terms)
        no = is_open & (least >= 0)
        yes = is_open & ~no & (most <= 0)
        decisions[no], decisions[yes] = 0, 1
        settled = int(no.sum() + yes.sum())
        if settled:
            differences, terms = _reduced(differences, terms, decisions)
        if settled <= LEAST_SHARE * left:
            break
    _cut_all(differences, terms, decisions, budget)


def _ranges(differences: Ints, terms: Terms) -> tuple[Ints, Ints]:
    """Return between what the cost difference of every decision can lie, whatever is still open."""
    least, most = differences.copy(), differences.copy()
    # The tail pays where it does not decide what is asked: yes is cheaper if yes is asked. With heads it is reversed.
    change = np.where(terms.asked, terms.cost, -terms.cost)
    has_tail = terms.tail >= 0
    tails, sent = terms.tail[has_tail], -change[has_tail]
    np.add.at(least, tails, np.minimum(sent, 0))
    np.add.at(most, tails, np.maximum(sent, 0))
    read = change[terms.owner]
    np.add.at(least, terms.heads, np.minimum(read, 0))
    np.add.at(most, terms.heads, np.maximum(read, 0))
    return least, most


def _reduced(differences: Ints, terms: Terms, decisions: Decisions) -> tuple[Ints, Terms]:
    """Return the same problem for what is open: what is decided becomes part of the differences or falls away."""
    count = len(terms.cost)
    heads = decisions[terms.heads]
    is_open = heads < 0
    hit = np.zeros(count, dtype=np.bool_)
    hit[terms.owner[(heads == terms.asked[terms.owner]) & ~is_open]] = True
    tails = np.where(terms.tail >= 0, decisions[terms.tail], -2)
    change = np.where(terms.asked, terms.cost, -terms.cost)
    pays = hit & (tails == -1)
    np.add.at(differences, terms.tail[pays], -change[pays])
    alive = ~hit & (tails != terms.asked)
    tail = np.where(tails == -1, terms.tail, ALWAYS)
    waiting = np.bincount(terms.owner[is_open], minlength=count)
    alone = alive & (tail == ALWAYS) & (waiting == 1)
    single = is_open & alone[terms.owner]
    np.add.at(differences, terms.heads[single], change[terms.owner[single]])
    reduced = Terms(terms.cost, tail, terms.asked, terms.heads, terms.owner)
    return differences, reduced.kept(alive & (waiting > 0) & ~alone, is_open)


def _cut_all(differences: Ints, terms: Terms, decisions: Decisions, budget: Budget) -> None:
    """Settle what is open by minimum cuts."""
    graph = _coupled(differences, terms, decisions)
    found = np.where(graph.is_open, -1, 0).astype(np.int8)
    core, eliminated = reduced(graph, found)
    for component in _components(core):
        if not _cut(core, component, found, budget):
            _cut_windows(core, component, found, budget)
    restored(found, eliminated)
    is_open = decisions < 0
    decisions[is_open] = found[: len(decisions)][is_open]


def _coupled(differences: Ints, terms: Terms, decisions: Decisions) -> Coupled:
    """Return the same decisions coupled in pairs: a term of several heads gets a decision of its own between them.

    It is what the heads ask for if any of them does, as anything else would cost as much as the whole term.
    """
    count = len(decisions)
    sizes = np.bincount(terms.owner, minlength=len(terms.cost))
    several = sizes > 1
    place = count + np.cumsum(several) - 1
    begun = spans(sizes)[:-1]
    spread = np.argsort(terms.owner, kind="stable")
    middle = np.where(several, place, terms.heads[spread][begun])
    gates = int(several.sum())
    unary = np.concatenate([differences, np.zeros(gates, dtype=np.int64)])
    # A tail that always pays is as one that has decided otherwise.
    always = terms.tail == ALWAYS
    change = np.where(terms.asked, terms.cost, -terms.cost)
    np.add.at(unary, middle[always], change[always])
    inner = several[terms.owner]
    owner = terms.owner[inner]
    # Only the second of a pair is yes: paid where yes is asked of a tail or head that says no.
    first = np.concatenate([terms.tail[~always], middle[owner]])
    second = np.concatenate([middle[~always], terms.heads[inner]])
    asked = np.concatenate([terms.asked[~always], terms.asked[owner]])
    cost = np.concatenate([terms.cost[~always], terms.cost[owner]])
    is_open = np.concatenate([decisions < 0, np.ones(gates, dtype=np.bool_)])
    return Coupled(unary, first, second, np.where(asked, cost, 0), np.where(asked, 0, cost), is_open)


def _components(graph: Coupled) -> Iterator[Component]:
    """Yield what is open in groups that no pair couples: their vertices, and the pairs within."""
    root = components_of(len(graph.unary), graph.a, graph.b)
    vertices = np.flatnonzero(graph.is_open)
    vertices = vertices[np.argsort(root[vertices], kind="stable")]
    pairs = np.argsort(root[graph.a], kind="stable")
    roots, begins = np.unique(root[vertices], return_index=True)
    pair_begins = np.searchsorted(root[graph.a][pairs], roots)
    for (begin, end), (pair, pair_end) in zip(
        pairwise([*begins.tolist(), len(vertices)]), pairwise([*pair_begins.tolist(), len(pairs)]), strict=True
    ):
        yield vertices[begin:end], pairs[pair:pair_end]


def _cut(graph: Coupled, component: Component, decisions: Decisions, budget: Budget) -> bool:
    """Decide one component by a minimum cut, if that does not take too much work."""
    vertices, pairs = component
    if len(vertices) > MAX_CUT or len(pairs) > budget.left:
        return False
    place = np.zeros(len(graph.unary), dtype=np.int64)
    place[vertices] = np.arange(len(vertices))
    network = Network(
        graph.unary[vertices].tolist(),
        place[graph.a[pairs]].tolist(),
        place[graph.b[pairs]].tolist(),
        graph.rising[pairs].tolist(),
        graph.falling[pairs].tolist(),
    )
    beyond = network.sink_side(budget)
    if beyond is not None:
        decisions[vertices] = beyond
    return beyond is not None


def _cut_windows(graph: Coupled, component: Component, decisions: Decisions, budget: Budget) -> None:
    """Decide a component that is too large for one cut: window by window, the others as they are.

    At first all are no, or all are yes, whichever costs less.
    """
    vertices, pairs = component
    decisions[vertices] = graph.unary[vertices].sum() < 0
    place = np.full(len(graph.unary), -1, dtype=np.int64)
    place[vertices] = np.arange(len(vertices)) // WINDOW
    a, b, rising, falling = graph.a[pairs], graph.b[pairs], graph.rising[pairs], graph.falling[pairs]
    for number in range(-(-len(vertices) // WINDOW)):
        if budget.left <= 0:
            return
        inside = place == number
        unary = graph.unary.copy()
        ends, starts = inside[b] & ~inside[a], inside[a] & ~inside[b]
        np.add.at(unary, b[ends], np.where(decisions[a] == 1, -falling, rising)[ends])
        np.add.at(unary, a[starts], np.where(decisions[b] == 1, -rising, falling)[starts])
        within = inside[a] & inside[b]
        window = Coupled(unary, a[within], b[within], rising[within], falling[within], inside)
        every = np.arange(int(within.sum()))
        _cut(window, (np.flatnonzero(inside), every), decisions, budget)
