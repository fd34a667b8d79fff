"""Yes-or-no decisions at least cost: what is clear is settled one by one, the rest by minimum cuts.

Each decision has a cost for no and for yes. A `Term` couples several: it is what moving a value costs, once,
however many readers ask for it. Such a sum is submodular, so that a minimum cut finds its least value (Stone, 1977).
A decision whose cost difference has one sign whatever the others decide needs no cut; settling it often settles its
neighbours. In programs few decisions are left, in small components, and the time stays near linear.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvmtarget.partition.assignment.maxflow import Network

__all__ = ["ALWAYS", "Term", "decide"]

# The tail of a term that is paid whenever a head asks for it.
ALWAYS = -1


@dataclass(slots=True)
class Term:
    """A cost that is paid once if any of `heads` decides `asked` while `tail` does not.

    `hits` counts the heads that are known to have decided so, `open` those that are not settled.
    """

    cost: int
    tail: int
    heads: Sequence[int]
    asked: bool
    hits: int = 0
    open: int = 0


def decide(differences: Sequence[int], terms: Sequence[Term]) -> list[bool]:
    """Return decisions at the least total cost; no where nothing speaks for yes.

    `differences[i]` is what yes costs more than no. Counters of the terms are used up.
    """
    problem = _Problem(list(differences), terms)
    problem.settle(range(len(differences)))
    for component in problem.components():
        problem.cut(component)
    return [bool(decision) for decision in problem.decisions]


class _Problem:
    def __init__(self, differences: list[int], terms: Sequence[Term]) -> None:
        self.differences = differences
        self.decisions: list[bool | None] = [None] * len(differences)
        self.tails: list[list[Term]] = [[] for _ in differences]
        self.heads: list[list[Term]] = [[] for _ in differences]
        for term in terms:
            term.open, term.hits = len(term.heads), 0
            if term.tail != ALWAYS:
                self.tails[term.tail].append(term)
            for head in term.heads:
                self.heads[head].append(term)

    def settle(self, which: Sequence[int]) -> None:
        """Settle decisions whose cost difference has one sign, and what follows from them."""
        waiting = deque(which)
        is_waiting = [False] * len(self.decisions)
        for index in which:
            is_waiting[index] = True
        while waiting:
            index = waiting.popleft()
            is_waiting[index] = False
            if self.decisions[index] is not None:
                continue
            least, most = self._range(index)
            if least >= 0 or most <= 0:
                for other in self._decide(index, least < 0):
                    if not is_waiting[other] and self.decisions[other] is None:
                        is_waiting[other] = True
                        waiting.append(other)

    def _pays(self, term: Term) -> bool | None:
        """Whether the tail of a term makes its heads pay; None while that is open."""
        if term.tail == ALWAYS:
            return True
        decision = self.decisions[term.tail]
        return None if decision is None else decision is not term.asked

    def _range(self, index: int) -> tuple[int, int]:
        """Return between what the cost difference of a decision can lie, whatever is still open."""
        least = most = self.differences[index]
        for term in self.tails[index]:
            if not term.hits and not term.open:
                continue
            # The tail pays where it does not decide what is asked: yes is cheaper if yes is asked.
            change = -term.cost if term.asked else term.cost
            least += change if term.hits or change < 0 else 0
            most += change if term.hits or change > 0 else 0
        for term in self.heads[index]:
            pays = self._pays(term)
            if term.hits or pays is False:
                continue
            is_sure = pays is True and term.open == 1
            change = term.cost if term.asked else -term.cost
            least += change if is_sure or change < 0 else 0
            most += change if is_sure or change > 0 else 0
        return least, most

    def _decide(self, index: int, decision: bool) -> Iterator[int]:
        """Take a decision and yield others whose range may have become narrower."""
        self.decisions[index] = decision
        for term in self.tails[index]:
            yield from term.heads
        for term in self.heads[index]:
            term.open -= 1
            term.hits += decision is term.asked
            is_news = term.open <= 1 or (term.hits == 1 and decision is term.asked)
            if is_news:
                yield from term.heads
                if term.tail != ALWAYS:
                    yield term.tail

    def components(self) -> Iterator[list[int]]:
        """Yield open decisions in groups that no term couples; settled groups do not come again."""
        seen = [decision is not None for decision in self.decisions]
        passed: set[int] = set()
        for start in range(len(self.decisions)):
            if seen[start]:
                continue
            seen[start] = True
            component = [start]
            for index in component:
                for term in self._coupling(index):
                    if id(term) in passed:
                        continue
                    passed.add(id(term))
                    for other in (*term.heads, *(() if term.tail == ALWAYS else (term.tail,))):
                        if not seen[other]:
                            seen[other] = True
                            component.append(other)
            yield sorted(component)

    def _coupling(self, index: int) -> Iterator[Term]:
        """Yield the terms of a decision of which it is open whether they are paid."""
        yield from (term for term in self.tails[index] if not term.hits)
        yield from (term for term in self.heads[index] if not term.hits and self._pays(term) is not False)

    def cut(self, component: Sequence[int]) -> None:
        """Settle the decisions of one component by a minimum cut; those beyond it are yes."""
        network = Network()
        vertices = {index: network.vertex() for index in component}
        terms: dict[int, Term] = {}
        for index, vertex in vertices.items():
            difference = self.differences[index]
            for term in self.tails[index]:
                if term.hits:
                    difference += -term.cost if term.asked else term.cost
                elif term.open:
                    terms[id(term)] = term
            network.edge(0, vertex, difference)
            network.edge(vertex, 1, -difference)
            terms |= {id(term): term for term in self.heads[index] if not term.hits and self._pays(term) is not False}
        endless = 1 + sum(term.cost for term in terms.values())
        for term in terms.values():
            self._wire(network, vertices, term, endless)
        beyond = network.sink_side()
        for index, vertex in vertices.items():
            self.decisions[index] = vertex in beyond

    def _wire(self, network: Network, vertices: dict[int, int], term: Term, endless: int) -> None:
        heads = [vertices[head] for head in term.heads if head in vertices]
        paying = 0 if term.asked else 1
        tail = vertices.get(term.tail, paying)
        gate = heads[0] if len(heads) == 1 else network.vertex()
        network.edge(*((tail, gate) if term.asked else (gate, tail)), term.cost)
        for head in heads if len(heads) > 1 else ():
            network.edge(*((gate, head) if term.asked else (head, gate)), endless)
