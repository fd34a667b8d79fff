"""Minimize a sum over yes-or-no decisions exactly: a dominance test decides most of them, minimum cuts the rest.

A term couples several decisions: the cost of moving a value, paid once however many readers need it. Such a sum is
submodular, so a minimum cut minimizes it (Stone, "Multiprocessor Scheduling with the Aid of Network Flow Algorithms",
1977). A decision whose cost difference has one sign in all cases needs no cut (the Goldstein criterion
of dead-end elimination), and deciding it often decides its neighbours. In programs few decisions are left, in small
components, so the time stays near linear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import cast

import numpy as np

from tvmtarget.partition.dataflow import Ints, spans
from tvmtarget.partition.placement.energy import Bools
from tvmtarget.partition.placement.maxflow import Budget, Network
from tvmtarget.partition.placement.variable_elimination import Decisions, PairwiseProblem, back_substitute, eliminate
from tvmtarget.partition.subgraphs.components import components_of

__all__ = ["ALWAYS", "Terms", "decide"]

# The tail of a term that is paid whenever a head is equal to the trigger.
ALWAYS = -1

# Rounds of the dominance test end when one decides no more than this share of what is open, or no more than `FEW`; the
# rest is left to cuts.
LEAST_SHARE, FEW = 0.002, 4

# Components with more decisions than `MAX_CUT`, and those whose cut takes more than half of the remaining budget, are
# cut in windows of `WINDOW` decisions, one after the other.
MAX_CUT, WINDOW = 10_000, 200

# Visits per edge that the cut of one window may take; without a limit a few windows would use up the budget.
WINDOW_WORK = 60

# What `PlanCache` calls the cuts.
_CUTS = "minimum cuts"


@dataclass(frozen=True)
class Terms:
    """Costs that are paid once if any head of a term decides as its trigger while its tail does not.

    Attributes:
        cost: cost of each term.
        tail: the decision at the tail, `ALWAYS` if there is none.
        trigger: the decision (yes or no) of heads that causes the cost.
        heads: the heads of all terms.
        owner: the term of each entry of `heads`.
    """

    cost: Ints
    tail: Ints
    trigger: Bools
    heads: Ints
    owner: Ints

    def select(self, mask: Bools, entries: Bools) -> Terms:
        """Drop terms and heads.

        Args:
            mask: the terms to keep.
            entries: the entries of `heads` to keep; those of dropped terms go in any case.

        Returns:
            The other terms, renumbered.
        """
        position = np.cumsum(mask) - 1
        entries = entries & mask[self.owner]
        return Terms(
            self.cost[mask], self.tail[mask], self.trigger[mask], self.heads[entries], position[self.owner[entries]]
        )


def decide(differences: Ints, terms: Terms, budget: Budget) -> Bools:
    """Return decisions of least total cost.

    Args:
        differences: cost of yes minus cost of no for each decision.
        terms: costs that couple decisions.
        budget: edge visits that the cuts may take; if it is too small, `is_sufficient` becomes false.

    Returns:
        A decision each; no where both are equal.
    """
    decisions = np.full(len(differences), -1, dtype=np.int8)
    _solve(*_substituted(differences.copy(), terms, decisions), decisions, budget)
    return decisions.astype(np.bool_)


def _solve(differences: Ints, terms: Terms, decisions: Decisions, budget: Budget) -> None:
    """Decide what dominance decides, in rounds, then cut the rest."""
    while True:
        is_open = decisions < 0
        left = int(is_open.sum())
        if not left:
            return
        least, most = _ranges(differences, terms)
        no = is_open & (least >= 0)
        yes = is_open & ~no & (most <= 0)
        decisions[no], decisions[yes] = 0, 1
        fixed = int(no.sum() + yes.sum())
        if fixed:
            differences, terms = _substituted(differences, terms, decisions)
        # Each round takes time in proportion to what is open, and some in any case, so that a chain in which a decision
        # decides the next one is slow; stop when cuts are cheaper than further rounds.
        if fixed <= max(FEW, LEAST_SHARE * left):
            break
    _cut_all(differences, terms, decisions, budget)


def _ranges(differences: Ints, terms: Terms) -> tuple[Ints, Ints]:
    """Return the least and the largest cost difference of every decision, over all choices of the open ones."""
    least, most = differences.copy(), differences.copy()
    # A tail avoids the cost by deciding as the trigger, a head by deciding against it: opposite signs.
    change = np.where(terms.trigger, terms.cost, -terms.cost)
    has_tail = terms.tail >= 0
    tails, sent = terms.tail[has_tail], -change[has_tail]
    np.add.at(least, tails, np.minimum(sent, 0))
    np.add.at(most, tails, np.maximum(sent, 0))
    read = change[terms.owner]
    np.add.at(least, terms.heads, np.minimum(read, 0))
    np.add.at(most, terms.heads, np.maximum(read, 0))
    return least, most


def _substituted(differences: Ints, terms: Terms, decisions: Decisions) -> tuple[Ints, Terms]:
    """Return the problem for the open decisions; the decided ones become part of the differences or drop out."""
    count = len(terms.cost)
    heads = decisions[terms.heads]
    is_open = heads < 0
    is_triggered = np.zeros(count, dtype=np.bool_)
    is_triggered[terms.owner[(heads == terms.trigger[terms.owner]) & ~is_open]] = True
    tails = np.where(terms.tail >= 0, decisions[terms.tail], -2)
    change = np.where(terms.trigger, terms.cost, -terms.cost)
    pays = is_triggered & (tails == -1)
    np.add.at(differences, terms.tail[pays], -change[pays])
    is_open_term = ~is_triggered & (tails != terms.trigger)
    tail = np.where(tails == -1, terms.tail, ALWAYS)
    waiting = np.bincount(terms.owner[is_open], minlength=count)
    alone = is_open_term & (tail == ALWAYS) & (waiting == 1)
    single = is_open & alone[terms.owner]
    np.add.at(differences, terms.heads[single], change[terms.owner[single]])
    reduced = Terms(terms.cost, tail, terms.trigger, terms.heads, terms.owner)
    return differences, reduced.select(is_open_term & (waiting > 0) & ~alone, is_open)


def _cut_all(differences: Ints, terms: Terms, decisions: Decisions, budget: Budget) -> None:
    """Decide the open decisions by minimum cuts."""
    graph, gate_heads = _pairwise(differences, terms, decisions)
    found = np.full(len(decisions) + len(gate_heads), -1, dtype=np.int8)
    core, eliminated = eliminate(graph, found)
    # Leave half of the budget to later expansions.
    spent = budget.part(budget.left // 2)
    # Place gates next to the first of their heads, so that windows hold neighbours.
    position = np.concatenate([np.arange(len(decisions)), gate_heads])
    order = np.argsort(position[core.ids], kind="stable")
    for component in _components(core, order):
        cut = component.cut(spent, spent.left // 2)
        budget.is_sufficient &= cut is not None
        found[component.ids] = component.cut_windows(spent) if cut is None else cut
    budget.left += spent.left
    back_substitute(found, eliminated)
    is_open = decisions < 0
    decisions[is_open] = found[: len(decisions)][is_open]


def _pairwise(differences: Ints, terms: Terms, decisions: Decisions) -> tuple[PairwiseProblem, Ints]:
    """Return the problem with pairwise terms only, all costs doubled, and the first head of each gate.

    A term of several heads gets a gate, a decision between them and the tail that is equal to the trigger if any head
    is; any other choice would cost as much as the whole term.
    """
    count = len(decisions)
    terms, (starts, ends, shared) = _triangles(terms)
    sizes = np.bincount(terms.owner, minlength=len(terms.cost))
    several = sizes > 1
    position = count + np.cumsum(several) - 1
    first_head = terms.heads[np.argsort(terms.owner, kind="stable")][spans(sizes)[:-1]]
    middle = np.where(several, position, first_head)
    gates = int(several.sum())
    unary = np.concatenate([2 * differences, np.zeros(gates, dtype=np.int64)])
    # A term without a tail is paid as if its tail had decided against the trigger.
    always = terms.tail == ALWAYS
    change = 2 * np.where(terms.trigger, terms.cost, -terms.cost)
    np.add.at(unary, middle[always], change[always])
    inner = several[terms.owner]
    owner = terms.owner[inner]
    # `rising` is paid if only the second of a pair is yes: the heads are yes, and the tail or gate is no.
    first = np.concatenate([terms.tail[~always], middle[owner], starts])
    second = np.concatenate([middle[~always], terms.heads[inner], ends])
    trigger = np.concatenate([terms.trigger[~always], terms.trigger[owner]])
    cost = 2 * np.concatenate([terms.cost[~always], terms.cost[owner]])
    rising = np.concatenate([np.where(trigger, cost, 0), shared])
    falling = np.concatenate([np.where(trigger, 0, cost), shared])
    gone = np.concatenate([decisions >= 0, np.zeros(gates, dtype=np.bool_)])
    graph = PairwiseProblem(np.arange(count + gates), unary, first, second, rising, falling)
    return graph.without(gone), first_head[several]


def _triangles(terms: Terms) -> tuple[Terms, tuple[Ints, Ints, Ints]]:
    """Replace two opposite terms over the same tail and two heads by three pairs: both ends of each, and their cost.

    A cost that is paid once if not all three agree is half of that cost for each of the two pairs that disagree; all
    costs are doubled, so no half appears. Pairs need no gate, and the vertices more often have few neighbours.
    """
    sizes = np.bincount(terms.owner, minlength=len(terms.cost))
    candidates = np.flatnonzero((sizes == 2) & (terms.tail != ALWAYS))
    heads = terms.heads[np.argsort(terms.owner, kind="stable")]
    begin_of = spans(sizes)[:-1][candidates]
    one, two = np.minimum(heads[begin_of], heads[begin_of + 1]), np.maximum(heads[begin_of], heads[begin_of + 1])
    tail, trigger = terms.tail[candidates], terms.trigger[candidates]
    order = np.lexsort((trigger, two, one, tail))
    is_pair = np.ones(max(0, len(order) - 1), dtype=np.bool_)
    for part in (tail, one, two):
        is_pair &= part[order[1:]] == part[order[:-1]]
    is_pair &= trigger[order[1:]] & ~trigger[order[:-1]]
    no, yes = order[:-1][is_pair], order[1:][is_pair]
    shared = np.minimum(terms.cost[candidates[no]], terms.cost[candidates[yes]])
    cost = terms.cost.copy()
    cost[candidates[no]] -= shared
    cost[candidates[yes]] -= shared
    rest = Terms(cost, terms.tail, terms.trigger, terms.heads, terms.owner)
    every = np.ones(len(terms.heads), dtype=np.bool_)
    starts, ends = (tail[no], tail[no], one[no]), (one[no], two[no], two[no])
    pairs = np.concatenate(starts), np.concatenate(ends), np.concatenate([shared] * 3)
    return rest.select(cost > 0, every), pairs


def _components(graph: PairwiseProblem, order: Ints) -> Iterator[_Component]:
    """Yield the connected components of what is open, vertices in some order."""
    root = components_of(len(graph.unary), graph.a, graph.b)
    vertices = order[np.argsort(root[order], kind="stable")]
    pairs = np.argsort(root[graph.a], kind="stable")
    roots, begins = np.unique(root[vertices], return_index=True)
    pair_begins = np.searchsorted(root[graph.a][pairs], roots)
    position = np.zeros(len(graph.unary), dtype=np.int64)
    for (begin, end), (pair, pair_end) in zip(
        pairwise([*begins.tolist(), len(vertices)]), pairwise([*pair_begins.tolist(), len(pairs)]), strict=True
    ):
        inside, own = vertices[begin:end], pairs[pair:pair_end]
        position[inside] = np.arange(len(inside))
        yield _Component(
            graph.ids[inside],
            graph.unary[inside],
            position[graph.a[own]],
            position[graph.b[own]],
            graph.rising[own],
            graph.falling[own],
        )


@dataclass(frozen=True)
class _Component(PairwiseProblem):
    """A connected component, or a window of one, with vertices numbered anew."""

    def cut(self, budget: Budget, work: int) -> list[bool] | None:
        """Return decisions by a minimum cut, or None if that takes more work than allowed."""
        if len(self.unary) > MAX_CUT or len(self.a) > work:
            return None
        parts = (self.unary, self.a, self.b, self.rising, self.falling)
        work, cache = min(work, budget.left), budget.cache
        # Programs repeat layers, and an edit leaves most components as they were.
        known = key = None
        if cache is not None:
            key = blake2b(b"".join([b"%d" % len(self.unary), *(part.tobytes() for part in parts)])).digest()
            known = cast("tuple[int, list[bool]] | None", cache.recall(_CUTS, key))
        # A cut that is known is charged as if it were made, so that the rest of the budget is the same.
        if known is not None and known[0] < work:
            budget.left -= known[0]
            return known[1]
        spent = budget.part(work)
        found = Network(*(part.tolist() for part in parts)).sink_side(spent)
        if cache is not None and known is None and found is not None:
            cache.store(_CUTS, key, (work - spent.left, found))
        budget.left += spent.left
        return found

    def cut_windows(self, budget: Budget) -> Bools:
        """Return decisions that cuts of one window after the other improve; decisions outside the window are fixed.

        They start as all no or all yes, whichever costs less.
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
            own = pairs[slice(*np.searchsorted(windows, [begin // WINDOW, begin // WINDOW + 1]))]
            if len(own) > budget.left:
                break
            window = self._window(begin, end, own, decisions)
            found = window.cut(budget, WINDOW_WORK * len(own))
            if found is not None:
                decisions[begin:end] = found
        return decisions

    def _window(self, begin: int, end: int, own: Ints, decisions: Bools) -> _Component:
        """Return some vertices as a problem of their own; their neighbours outside are decided."""
        a, b, rising, falling = self.a[own], self.b[own], self.rising[own], self.falling[own]
        has_a, has_b = (a >= begin) & (a < end), (b >= begin) & (b < end)
        unary = self.unary[begin:end].copy()
        only_a, only_b = has_a & ~has_b, has_b & ~has_a
        np.add.at(unary, a[only_a] - begin, np.where(decisions[b], -rising, falling)[only_a])
        np.add.at(unary, b[only_b] - begin, np.where(decisions[a], -falling, rising)[only_b])
        both = has_a & has_b
        return _Component(self.ids[begin:end], unary, a[both] - begin, b[both] - begin, rising[both], falling[both])
