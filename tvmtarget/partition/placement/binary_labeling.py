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

import numpy as np

from tvmtarget.partition.dataflow import Ints, spans
from tvmtarget.partition.placement.energy import Bools
from tvmtarget.partition.placement.maxflow import Budget, Network
from tvmtarget.partition.placement.variable_elimination import Coupled, Decisions, reduced, restored
from tvmtarget.partition.subgraphs.components import components_of

__all__ = ["ALWAYS", "Terms", "decide"]

# The tail of a term that is paid whenever a head asks for it.
ALWAYS = -1

# Rounds of settling end where one settles less than this share of what is open: the rest is left to the cuts.
LEAST_SHARE = 0.002

# Components with more decisions than the first number, and those whose cut takes more than half of the work that is
# left, are cut in windows of the second size, one after the other.
MAX_CUT, WINDOW = 10_000, 200

# Visits of every edge that the cut of a window may take; without that, few windows would take all work that is left.
WINDOW_WORK = 60


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
    graph, beside = _coupled(differences, terms, decisions)
    found = np.full(len(decisions) + len(beside), -1, dtype=np.int8)
    core, eliminated = reduced(graph, found)
    # What comes after this has a share of the work, too.
    spent = Budget(budget.left // 2)
    budget.left -= spent.left
    # What was put between decisions lies beside the first of them, so that windows hold neighbours.
    place = np.concatenate([np.arange(len(decisions)), beside])
    order = np.argsort(place[core.numbers], kind="stable")
    for component in _components(core, order):
        beyond = component.cut(spent, spent.left // 2)
        budget.is_kept &= beyond is not None
        found[component.numbers] = component.cut_windows(spent) if beyond is None else beyond
    budget.left += spent.left
    restored(found, eliminated)
    is_open = decisions < 0
    decisions[is_open] = found[: len(decisions)][is_open]


def _coupled(differences: Ints, terms: Terms, decisions: Decisions) -> tuple[Coupled, Ints]:
    """Return the same decisions coupled in pairs, all costs doubled.

    A term of several heads gets a decision of its own between them: what the heads ask for if any of them does, as
    anything else would cost as much as the whole term. Beside the graph is returned the first head of each of these.
    """
    count = len(decisions)
    terms, (starts, ends, shared) = _triangles(terms, count)
    sizes = np.bincount(terms.owner, minlength=len(terms.cost))
    several = sizes > 1
    place = count + np.cumsum(several) - 1
    first_head = terms.heads[np.argsort(terms.owner, kind="stable")][spans(sizes)[:-1]]
    middle = np.where(several, place, first_head)
    gates = int(several.sum())
    unary = np.concatenate([2 * differences, np.zeros(gates, dtype=np.int64)])
    # A tail that always pays is as one that has decided otherwise.
    always = terms.tail == ALWAYS
    change = 2 * np.where(terms.asked, terms.cost, -terms.cost)
    np.add.at(unary, middle[always], change[always])
    inner = several[terms.owner]
    owner = terms.owner[inner]
    # Only the second of a pair is yes: paid where yes is asked of a tail or head that says no.
    first = np.concatenate([terms.tail[~always], middle[owner], starts])
    second = np.concatenate([middle[~always], terms.heads[inner], ends])
    asked = np.concatenate([terms.asked[~always], terms.asked[owner]])
    cost = 2 * np.concatenate([terms.cost[~always], terms.cost[owner]])
    rising = np.concatenate([np.where(asked, cost, 0), shared])
    falling = np.concatenate([np.where(asked, 0, cost), shared])
    gone = np.concatenate([decisions >= 0, np.zeros(gates, dtype=np.bool_)])
    graph = Coupled(np.arange(count + gates), unary, first, second, rising, falling)
    return graph.without(gone), first_head[several]


def _triangles(terms: Terms, count: int) -> tuple[Terms, tuple[Ints, Ints, Ints]]:
    """Return terms less what couples a tail and two heads alike both ways, and that as pairs: both ends, and the cost.

    To pay once if not all three decide alike is to pay half for each two that do not, and all costs are doubled.
    """
    sizes = np.bincount(terms.owner, minlength=len(terms.cost))
    picked = np.flatnonzero((sizes == 2) & (terms.tail != ALWAYS))
    heads = terms.heads[np.argsort(terms.owner, kind="stable")]
    begun = spans(sizes)[:-1][picked]
    one, two = np.minimum(heads[begun], heads[begun + 1]), np.maximum(heads[begun], heads[begun + 1])
    tail, asked = terms.tail[picked], terms.asked[picked]
    order = np.lexsort((asked, two, one, tail))
    alike = np.ones(max(0, len(order) - 1), dtype=np.bool_)
    for part in (tail, one, two):
        alike &= part[order[1:]] == part[order[:-1]]
    alike &= asked[order[1:]] & ~asked[order[:-1]]
    no, yes = order[:-1][alike], order[1:][alike]
    shared = np.minimum(terms.cost[picked[no]], terms.cost[picked[yes]])
    cost = terms.cost.copy()
    cost[picked[no]] -= shared
    cost[picked[yes]] -= shared
    less = Terms(cost, terms.tail, terms.asked, terms.heads, terms.owner)
    every = np.ones(len(terms.heads), dtype=np.bool_)
    starts, ends = (tail[no], tail[no], one[no]), (one[no], two[no], two[no])
    pairs = np.concatenate(starts), np.concatenate(ends), np.concatenate([shared] * 3)
    return less.kept(cost > 0, every), pairs


def _components(graph: Coupled, order: Ints) -> Iterator[_Component]:
    """Yield what is open, in this order, in groups that no pair couples."""
    root = components_of(len(graph.unary), graph.a, graph.b)
    vertices = order[np.argsort(root[order], kind="stable")]
    pairs = np.argsort(root[graph.a], kind="stable")
    roots, begins = np.unique(root[vertices], return_index=True)
    pair_begins = np.searchsorted(root[graph.a][pairs], roots)
    place = np.zeros(len(graph.unary), dtype=np.int64)
    for (begin, end), (pair, pair_end) in zip(
        pairwise([*begins.tolist(), len(vertices)]), pairwise([*pair_begins.tolist(), len(pairs)]), strict=True
    ):
        inside, mine = vertices[begin:end], pairs[pair:pair_end]
        place[inside] = np.arange(len(inside))
        yield _Component(
            graph.numbers[inside],
            graph.unary[inside],
            place[graph.a[mine]],
            place[graph.b[mine]],
            graph.rising[mine],
            graph.falling[mine],
        )


@dataclass(frozen=True)
class _Component(Coupled):
    """Some vertices of a graph, in any order, and the pairs between them, numbered anew."""

    def cut(self, budget: Budget, work: int) -> list[bool] | None:
        """Return decisions by a minimum cut, or None if that takes more work."""
        if len(self.unary) > MAX_CUT or len(self.a) > work:
            return None
        parts = (self.unary, self.a, self.b, self.rising, self.falling)
        spent = Budget(min(work, budget.left))
        budget.left -= spent.left
        beyond = Network(*(part.tolist() for part in parts)).sink_side(spent)
        budget.left += spent.left
        return beyond

    def cut_windows(self, budget: Budget) -> Bools:
        """Return decisions that cuts of one window after the other improve, the others as they are.

        At first all are no, or all are yes, whichever costs less.
        """
        count = len(self.unary)
        decisions = np.full(count, self.unary.sum() < 0)
        across = np.flatnonzero(self.a // WINDOW != self.b // WINDOW)
        pairs = np.concatenate([np.arange(len(self.a)), across])
        windows = np.concatenate([self.a, self.b[across]]) // WINDOW
        order = np.argsort(windows, kind="stable")
        pairs, windows = pairs[order], windows[order]
        for begin in range(0, count, WINDOW):
            end = min(count, begin + WINDOW)
            mine = pairs[slice(*np.searchsorted(windows, [begin // WINDOW, begin // WINDOW + 1]))]
            if len(mine) > budget.left:
                break
            window = self._window(begin, end, mine, decisions)
            beyond = window.cut(budget, WINDOW_WORK * len(mine))
            if beyond is not None:
                decisions[begin:end] = beyond
        return decisions

    def _window(self, begin: int, end: int, mine: Ints, decisions: Bools) -> _Component:
        """Return some vertices as a component of their own: what they are coupled to is decided."""
        a, b, rising, falling = self.a[mine], self.b[mine], self.rising[mine], self.falling[mine]
        has_a, has_b = (a >= begin) & (a < end), (b >= begin) & (b < end)
        unary = self.unary[begin:end].copy()
        only_a, only_b = has_a & ~has_b, has_b & ~has_a
        np.add.at(unary, a[only_a] - begin, np.where(decisions[b], -rising, falling)[only_a])
        np.add.at(unary, b[only_b] - begin, np.where(decisions[a], -falling, rising)[only_b])
        both = has_a & has_b
        return _Component(self.numbers[begin:end], unary, a[both] - begin, b[both] - begin, rising[both], falling[both])
