"""Small random programs with costs, and the least time that any plan of them can take, by mixed-integer programming.

Two kinds. "devices": a quarter of the operations is heavy and 5 to 25 times faster off the CPU, the rest between half
and twice as fast; copies go over the CPU's memory at 8 us and 12 GB/s, a call off the CPU takes 10 us. "strewn": whole
numbers of microseconds without any order in them, sites that refuse operations, sites that share the CPU's memory, a
link between any two memories, and calls that cost something everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from benchmarks._graphs import KINDS_OF_ONE, KINDS_OF_TWO, SITES, Graph, tree_of
from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost
from tvmtarget.target.tree import Target

__all__ = ["STYLES", "Small", "least_by_milp", "least_by_trying", "small"]

STYLES = ("devices", "strewn")


@dataclass(frozen=True)
class Small:
    """A small program to place; the last site is the CPU, which is the host, and holds inputs and outputs.

    `times[operation][site]` are microseconds, None where a site may not take it. Value -1 is the input; `copies[value]`
    says what it takes from one memory to another, and `before[value]` the last memory on the way there;
    `memories[site]` is that of a site.
    """

    graph: Graph
    times: list[list[float | None]]
    copies: dict[int, list[list[float]]]
    before: dict[int, list[list[int]]]
    memories: list[int]
    launches: list[float]
    module: IRModule
    tree: Target
    costs: Costs
    where: Mapping[str, str]

    @property
    def results(self) -> list[int]:
        """Operations that nothing reads."""
        read = {before for reads, _ in self.graph for before in reads}
        return [index for index in range(len(self.graph)) if index not in read]


def small(seed: int, size: int, count: int, style: str) -> Small:
    """Return the random program of a seed: `size` operations, `count` sites."""
    rng = random.Random(f"{seed} {size} {count} {style}")
    sites = SITES[-count:]
    apart = [site for site in sites[:-1] if style == "devices" or rng.random() < 0.8]
    reach = rng.choice((3, size))
    graph: Graph = []
    for index in range(size):
        reads = {rng.randrange(max(-1, index - reach), index) for _ in range(rng.randint(1, 2))}
        graph.append((tuple(sorted(reads)), rng.randrange(13)))
    # Every value has a size of its own, so that times can be stated operation by operation.
    elements: list[int] = []
    while len(elements) <= size:
        drawn = int(256 * 2 ** rng.uniform(0, 10))
        elements += [] if drawn in elements else [drawn]
    times, launches, links = (_devices if style == "devices" else _strewn)(rng, size, sites, apart)
    memories = [place if site in apart else count - 1 for place, site in enumerate(sites)]
    found = {place - 1: _copies(4 * of_value, sites, links) for place, of_value in enumerate(elements)}
    copies, before = ({value: pair[which] for value, pair in found.items()} for which in (0, 1))
    calls = []
    for index, (reads, number) in enumerate(graph):
        kinds = KINDS_OF_TWO if len(reads) == 2 else KINDS_OF_ONE
        inputs = tuple("x" if before < 0 else f"v{before}" for before in reads)
        type_ = TensorType("float32", (elements[index + 1],))
        calls.append(
            Call(f"onnx.{kinds[number % len(kinds)]}", inputs, (Value(f"v{index}", type_),), source=f"n{index}")
        )
    ops = tuple(
        OpCost(site, op=call.kind, shape=(elements[index + 1],), time=time)
        for index, call in enumerate(calls)
        for site, time in zip(sites, times[index], strict=True)
        if time is not None
    )
    where = {
        f"n{index}": "&".join(f"!@{site}" for site, time in zip(sites, row, strict=True) if time is None)
        for index, row in enumerate(times)
        if None in row
    }
    read = {before for reads, _ in graph for before in reads}
    results = tuple(f"v{index}" for index in range(size) if index not in read)
    x = Value("x", TensorType("float32", (elements[0],)))
    module = IRModule((Function("main", (x,), tuple(calls), results, opsets=(("", 17),)),))
    stated = {site: SiteCost(launch=launch) for site, launch in zip(sites, launches, strict=True)}
    costs = Costs(sites=stated, links=tuple(links), ops=ops)
    tree = tree_of(count)
    tree = tree.replace(memory=tuple(memory for memory in tree.memory if set(memory.of) <= set(apart)))
    return Small(graph, times, copies, before, memories, launches, module, tree, costs, where)


_Drawn = tuple[list[list[float | None]], list[float], list[LinkCost]]


def _devices(rng: random.Random, size: int, sites: tuple[str, ...], apart: list[str]) -> _Drawn:
    times: list[list[float | None]] = []
    for _ in range(size):
        is_heavy = rng.random() < 0.25
        slow = rng.uniform(100, 400) if is_heavy else rng.uniform(1, 20)
        gains = [rng.uniform(5, 25) if is_heavy else rng.uniform(0.5, 2) for _ in sites[:-1]]
        times.append([*(slow / gain for gain in gains), slow])
    links = [LinkCost(sites[-1], site, 8.0, 1.2e10) for site in apart]
    return times, [10.0] * (len(sites) - 1) + [0.0], links


def _strewn(rng: random.Random, size: int, sites: tuple[str, ...], apart: list[str]) -> _Drawn:
    times: list[list[float | None]] = []
    for _ in range(size):
        row = [float(rng.randint(1, 60)) if rng.random() < 0.8 else None for _ in sites]
        times.append(row if any(row) else [*row[:-1], 60.0])
    links = [
        LinkCost(a, b, float(rng.randint(0, 30)), rng.choice((1e10, 3e10, 1e11)))
        for a, b in combinations([*apart, sites[-1]], 2)
    ]
    return times, [float(rng.randint(0, 12)) for _ in sites], links


def _copies(nbytes: int, sites: tuple[str, ...], links: list[LinkCost]) -> tuple[list[list[float]], list[list[int]]]:
    """Return the times of shortest paths between memories, and the last memory before each end (Floyd, Warshall)."""
    far = [[0.0 if a == b else np.inf for b in sites] for a in sites]
    before = [[a for _ in sites] for a, _ in enumerate(sites)]
    for link in links:
        a, b = sites.index(link.src), sites.index(link.dst)
        far[a][b] = far[b][a] = link.latency + nbytes * 1e6 / link.bandwidth
    for by, a, b in product(range(len(sites)), repeat=3):
        if far[a][by] + far[by][b] < far[a][b] - 1e-9:
            far[a][b], before[a][b] = far[a][by] + far[by][b], before[by][b]
    return far, before


def _path(before: list[list[int]], src: int, dst: int) -> list[int]:
    """Return the memories that a copy reaches on its way, its goal included."""
    found = []
    while dst != src:
        found.append(dst)
        dst = before[src][dst]
    return found


def least_by_milp(case: Small, steps: int = 8) -> float:
    """Return the least microseconds of all sites and subgraphs chosen together, of at most `steps` subgraphs; by HiGHS.

    An operation is in one step on one site (x), a step is a call on one site (y), and a value goes from the site that
    makes it to each site where it is needed (z, a transport whose source and goals are what x says), over the links on
    its shortest path, each once for all goals.
    """
    from scipy import sparse
    from scipy.optimize import Bounds, LinearConstraint, milp

    size, count = len(case.graph), len(case.launches)
    price: list[float] = []
    whole: list[int] = []
    upper: list[float] = []

    def column(cost: float, *, is_whole: bool, most: float = 1) -> int:
        price.append(cost)
        whole.append(int(is_whole))
        upper.append(most)
        return len(price) - 1

    rows: list[dict[int, float]] = []
    bounds: list[tuple[float, float]] = []

    def require(row: dict[int, float], low: float, high: float) -> None:
        rows.append(row)
        bounds.append((low, high))

    x = {}
    for v, p, k in product(range(size), range(steps), range(count)):
        time = case.times[v][k]
        x[v, p, k] = column(time or 0, is_whole=True, most=0 if time is None else 1)
    y = {(p, k): column(case.launches[k], is_whole=True) for p, k in product(range(steps), range(count))}
    for v in range(size):
        require({x[v, p, k]: 1 for p in range(steps) for k in range(count)}, 1, 1)
    for p in range(steps):
        require({y[p, k]: 1 for k in range(count)}, 0, 1)
        for v, k in product(range(size), range(count)):
            require({y[p, k]: 1, x[v, p, k]: -1}, 0, np.inf)
    held = {memory: [k for k in range(count) if case.memories[k] == memory] for memory in set(case.memories)}
    readers: dict[int, list[int]] = {}
    for v, (reads, _) in enumerate(case.graph):
        for u in reads:
            readers.setdefault(u, []).append(v)
            if u >= 0:
                for q in range(steps):  # what is read is computed no later: tighter than the sum over all steps
                    later = {x[u, p, k]: 1.0 for p in range(q + 1) for k in range(count)}
                    require(later | {x[v, p, k]: -1.0 for p in range(q + 1) for k in range(count)}, 0, np.inf)
    for u in range(-1, size):
        z = {(s, d): column(0.0, is_whole=False) for s, d in product(set(case.memories), repeat=2)}
        far, before = case.copies[u], case.before[u]
        for s in held:
            hops = {
                m: column(far[s][m] - far[s][before[s][m]], is_whole=False) for d in held for m in _path(before, s, d)
            }
            for d in held:
                for m in _path(before, s, d):
                    require({hops[m]: 1.0, z[s, d]: -1.0}, 0, np.inf)
        for s, d in z:
            made = {x[u, p, k]: -1.0 for p in range(steps) for k in held[s]} if u >= 0 else {}
            require({z[s, d]: 1.0} | made, -np.inf, float(u < 0 and s == count - 1))
        for d in held:
            arriving = {z[s, d]: 1.0 for s in held}
            for v in readers.get(u, ()):
                require(arriving | {x[v, p, k]: -1.0 for p in range(steps) for k in held[d]}, 0, np.inf)
        if u in case.results:
            require({z[s, count - 1]: 1.0 for s in held}, 1, np.inf)
    entries = [(number, place, value) for number, row in enumerate(rows) for place, value in row.items()]
    places, columns, values = zip(*entries, strict=True)
    matrix = sparse.csr_array((values, (places, columns)), shape=(len(rows), len(price)))
    low, high = np.array(bounds).T
    found = milp(
        np.array(price),
        constraints=LinearConstraint(matrix, low, high),
        integrality=np.array(whole),
        bounds=Bounds(np.zeros(len(upper)), np.array(upper)),
        options={"mip_rel_gap": 1e-9},
    )
    if not found.success:
        raise ArithmeticError(f"the mixed-integer program was not solved: {found.message}")
    return float(found.fun)


def least_by_trying(case: Small) -> float:
    """Return the least microseconds by trying every choice of sites, each with as cheap calls as can be."""
    size, count = len(case.graph), len(case.launches)
    options = [[k for k in range(count) if row[k] is not None] for row in case.times]
    labels = np.array(np.meshgrid(*options, indexing="ij"), dtype=np.int8).reshape(size, -1)
    totals = np.zeros(labels.shape[1])
    for v, row in enumerate(case.times):
        totals += np.array([time or 0.0 for time in row])[labels[v]]
    readers: dict[int, list[int]] = {}
    for v, (reads, _) in enumerate(case.graph):
        for u in reads:
            readers.setdefault(u, []).append(v)
    memories = np.array(case.memories)[labels]
    for u in range(-1, size):
        far, before = case.copies[u], case.before[u]
        source = memories[u] if u >= 0 else np.full(labels.shape[1], count - 1)
        copied = np.zeros((count, count, labels.shape[1]), dtype=np.bool_)  # over the last link from s to m
        for d in set(case.memories):
            needed = np.full(labels.shape[1], d == count - 1 and u in case.results)
            for v in readers.get(u, ()):
                needed |= memories[v] == d
            for s in set(case.memories):
                for m in _path(before, s, d):
                    copied[s, m] |= needed & (source == s)
        for s, m in product(set(case.memories), repeat=2):
            totals += np.where(copied[s, m], far[s][m] - far[s][before[s][m]], 0)
    floors = totals + sum(launch * (labels == k).any(axis=0) for k, launch in enumerate(case.launches))
    least = np.inf
    for place in np.argsort(floors, kind="stable").tolist():
        if floors[place] >= least:
            break
        least = min(least, totals[place] + _calls(case, labels[:, place].tolist()))
    return float(least)


def _calls(case: Small, labels: list[int]) -> float:
    """Return the least that calls take: a call runs all that it can, so what has run says all (Dijkstra)."""
    size = len(labels)
    before = [sum(1 << u for u in reads if u >= 0) for reads, _ in case.graph]
    spent = {0: 0.0}
    done: set[int] = set()
    while True:
        state = min((state for state in spent if state not in done), key=spent.__getitem__)
        if state == (1 << size) - 1:
            return spent[state]
        done.add(state)
        for k, launch in enumerate(case.launches):
            after = state
            for v in range(size):
                if labels[v] == k and before[v] & ~after == 0:
                    after |= 1 << v
            if after != state and spent[state] + launch < spent.get(after, np.inf):
                spent[after] = spent[state] + launch
