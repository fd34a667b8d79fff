"""Small random programs on trees of systems, with links and requests, and the least time that any plan can take.

The least time is found by trying every assignment of the operations of a system to its children, cheapest bound first.
What calls of the children take is found by dynamic programming over the sets of operations that have run, in which a
call of a child that is a system is such a problem again. A driver copies each value once to each memory that needs it,
over the links of its shortest path, each of them once for all memories.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np

from benchmarks._graphs import KINDS_OF_ONE, KINDS_OF_TWO, Graph
from tvmtarget.ir.function import Call, Constant, Function, Value
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost
from tvmtarget.target.node import Link, Memory
from tvmtarget.target.tree import Target

__all__ = ["FAMILIES", "TreeCase", "least_of_tree", "tree_case"]

FAMILIES = ("links", "depth-2", "depth-3", "same-site", "apart", "prefer", "capacity", "subgraphs", "boundary")

# Weights of the family `capacity` take multiples of so many bytes.
UNIT = 2**16


@dataclass(frozen=True)
class Node:
    """A node of the tree: its path, memory and children; a leaf has none."""

    path: str
    memory: str
    children: tuple[Node, ...] = ()

    def leaves(self) -> Iterator[Node]:
        """Yield the leaves below."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()


@dataclass(frozen=True)
class Wire:
    """A link between two memories: microseconds before the first byte, and bytes per second."""

    a: str
    b: str
    latency: float
    bandwidth: float


@dataclass(frozen=True)
class TreeCase:
    """A program to place: microseconds by operation and leaf, links, and what is required.

    Attributes:
        graph: the operations that each reads, -1 is the input.
        nbytes: bytes of each value; the last one is the input, so that it has number -1.
        root: the tree.
        times: microseconds by operation and path of a leaf; operations may only go to leaves with a time.
        launches: microseconds of a call by path of a leaf.
        wires: the links.
        module: the program.
        tree: the target.
        costs: the costs.
        options: the keyword arguments of `decompose`.
        weights: bytes of the constant that an operation reads.
        capacity: bytes by memory.
    """

    graph: Graph
    nbytes: list[int]
    root: Node
    times: list[dict[str, float]]
    launches: dict[str, float]
    wires: list[Wire]
    module: IRModule
    tree: Target
    costs: Costs
    options: Mapping[str, Any]
    weights: Mapping[int, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    same: tuple[tuple[int, ...], ...] = ()
    apart: tuple[tuple[int, ...], ...] = ()
    most: Mapping[str, int] = field(default_factory=dict)
    cuts: frozenset[tuple[int, int]] = frozenset()

    @property
    def results(self) -> frozenset[int]:
        """Operations that nothing reads."""
        return frozenset(range(len(self.graph))) - {before for reads, _ in self.graph for before in reads}


def tree_case(seed: int, family: str) -> TreeCase:
    """Return the random program of a seed and a family."""
    rng = random.Random(f"{seed} {family}")
    is_nested = family.startswith("depth")
    size = {"depth-2": 7, "depth-3": 6}.get(family, 9)
    reach = rng.choice((3, size))
    graph: Graph = []
    for index in range(size):
        reads = {rng.randrange(max(-1, index - reach), index) for _ in range(rng.randint(1, 2))}
        graph.append((tuple(sorted(reads)), rng.randrange(13)))
    elements: list[int] = []
    while len(elements) <= size:
        drawn = int(256 * 2 ** rng.uniform(0, 2 if family == "capacity" else 10))
        elements += [] if drawn in elements else [drawn]
    root = _nested(rng, 2 if family == "depth-2" else 3) if is_nested else _flat(rng.choice((3, 4)))
    leaves = [leaf.path for leaf in root.leaves()]
    times, launches = _times(rng, size, leaves)
    wires = list(_wires(rng, root)) if is_nested else list(_flat_wires(rng, root))
    options: dict[str, Any] = {}
    weights: dict[int, int] = {}
    capacity: dict[str, int] = {}
    case: dict[str, Any] = {}
    names = [f"n{index}" for index in range(size)]
    if family == "same-site":
        case["same"] = tuple(tuple(sorted(rng.sample(range(size), 2))) for _ in range(rng.randint(1, 3)))
        options["same_site"] = [[names[index] for index in group] for group in case["same"]]
    if family == "apart":
        case["apart"] = tuple(tuple(sorted(rng.sample(range(size), 2))) for _ in range(rng.randint(1, 3)))
        options["apart"] = [[names[index] for index in group] for group in case["apart"]]
    if family == "prefer":
        where = {}
        for index in rng.sample(range(size), 3):
            sites = sorted(rng.sample(sorted(times[index]), rng.randint(1, min(2, len(times[index])))))
            where[names[index]] = f"({'|'.join(f'@{site}' for site in sites)})?"
            times[index] = {site: times[index][site] for site in sites}
        options["where"] = where
    if family == "capacity":
        weights = {index: UNIT * rng.randint(1, 8) for index in range(size) if rng.random() < 0.7}
        devices = [leaf for leaf in root.leaves() if leaf.memory != root.memory]
        units = sum(weights.values()) // UNIT
        # All values together take less than one unit, so that the room for them is room for no other weights.
        values = 4 * sum(elements)
        capacity = {leaf.memory: UNIT * int(units * rng.uniform(0.2, 0.5)) + values for leaf in devices}
    if family == "subgraphs":
        case["most"] = {rng.choice(leaves[:-1]): 1}
        options["max_subgraphs"] = dict(case["most"])
    if family == "boundary":
        before = rng.sample(range(size), 2)
        options["boundary_before"] = [names[index] for index in before]
        case["cuts"] = frozenset((first, then) for then in before for first in graph[then][0] if first >= 0)
    module = _module(graph, elements, weights)
    ops = tuple(
        OpCost(leaf, op=call.kind, shape=(elements[index],), time=time)
        for index, call in enumerate(module["main"].body)
        for leaf, time in times[index].items()
    )
    stated = {site: SiteCost(launch=launch) for site, launch in launches.items()}
    links = () if family == "links" else tuple(_link_cost(wire) for wire in wires)
    target = _target(root, capacity, wires if family == "links" else ())
    nbytes = [4 * count for count in elements]
    every = {index: row for index, row in enumerate(times) if len(row) < len(leaves)}
    barred = {names[index]: "&".join(f"!@{leaf}" for leaf in leaves if leaf not in row) for index, row in every.items()}
    options["where"] = barred | options.get("where", {})
    costs = Costs(sites=stated, links=links, ops=ops)
    case |= {"weights": weights, "capacity": capacity}
    return TreeCase(graph, nbytes, root, times, launches, wires, module, target, costs, options, **case)


def _flat(count: int) -> Node:
    sites = ("npu", "gpu", "dsp", "cpu")[-count:]
    return Node("", ":cpu", tuple(Node(site, ":cpu" if site == "cpu" else f"m-{site}") for site in sites))


def _nested(rng: random.Random, depth: int, path: str = "") -> Node:
    """Return a system of systems; below the given depth there are devices and a CPU."""

    def at(name: str) -> str:
        return f"{path}/{name}" if path else name

    memory = f"{path}:cpu"
    children = [
        Node(at(name), f"{at('m-' + name)}")
        for name in ("npu", "dsp")[: rng.randint(depth == 1, 2 if depth == 1 else 1)]
    ]
    systems = () if depth == 1 else ("a", "b")[: rng.randint(1, 2) if depth == 2 else 1]
    children += [_nested(rng, depth - 1, at(name)) for name in systems]
    return Node(path, memory, (*children, Node(at("cpu"), memory)))


def _times(rng: random.Random, size: int, leaves: list[str]) -> tuple[list[dict[str, float]], dict[str, float]]:
    times: list[dict[str, float]] = []
    is_strewn = rng.random() < 0.5
    for _ in range(size):
        if is_strewn:
            row = {leaf: float(rng.randint(1, 80)) for leaf in leaves if rng.random() < 0.8}
        else:
            is_heavy = rng.random() < 0.35
            slow = rng.uniform(100, 400) if is_heavy else rng.uniform(1, 20)
            gains = [rng.uniform(3, 25) if is_heavy else rng.uniform(0.5, 2) for _ in leaves]
            row = {
                leaf: slow if leaf.endswith("cpu") else slow / gain for leaf, gain in zip(leaves, gains, strict=True)
            }
        times.append(row or {leaves[-1]: 60.0})
    if is_strewn:
        return times, {leaf: float(rng.randint(0, 12)) for leaf in leaves}
    return times, {leaf: 0.0 if leaf.endswith("cpu") else 10.0 for leaf in leaves}


def _wires(rng: random.Random, node: Node) -> Iterator[Wire]:
    """Yield a link between the memory of each system and those of its children, and some between children."""
    others = [child for child in node.children if child.memory != node.memory]
    for child in others:
        is_near = not child.children
        latency = rng.uniform(2, 10) if is_near else rng.uniform(10, 40)
        yield Wire(node.memory, child.memory, latency, rng.choice((5e9, 1.2e10, 3e10)))
        yield from _wires(rng, child)
    for a, b in pairwise(others):
        if rng.random() < 0.4:
            yield Wire(a.memory, b.memory, rng.uniform(1, 20), rng.choice((1e10, 5e10)))


def _flat_wires(rng: random.Random, root: Node) -> Iterator[Wire]:
    """Yield one or two parallel links that join each device to the CPU or to an earlier device, and some more."""
    joined = [root.memory]
    for leaf in root.children[:-1]:
        to = [other for other in joined if rng.random() < 0.5] or [rng.choice(joined)]
        for other in to:
            for _ in range(rng.randint(1, 2)):
                yield Wire(other, leaf.memory, float(rng.randint(1, 30)), rng.choice((1e8, 2e9, 1e10, 3e10)))
        joined.append(leaf.memory)


def _link_cost(wire: Wire) -> LinkCost:
    def end(memory: str) -> str:
        """Return the site that names a memory in costs."""
        return memory.replace("m-", "") if "m-" in memory else f"{memory.removesuffix(':cpu')}/cpu".removeprefix("/")

    return LinkCost(end(wire.a), end(wire.b), wire.latency, wire.bandwidth)


def _target(node: Node, capacity: Mapping[str, int], wires: list[Wire] | tuple[()]) -> Target:
    parsed = Target.parse(_text(node))

    def with_memories(target: Target, at: Node) -> Target:
        inner = {child.path.rpartition("/")[2]: child for child in at.children}
        devices = [(name, child) for name, child in inner.items() if not child.children and child.memory != at.memory]
        memory = tuple(
            Memory(name=child.memory.rpartition("/")[2], bytes=capacity.get(child.memory), of=(name,))
            for name, child in devices
        )
        children = tuple(
            with_memories(one, inner[one.name]) if one.name is not None and inner[one.name].children else one
            for one in target.targets
        )
        return target.replace(memory=memory, targets=children)

    found = with_memories(parsed, node)
    names = {child.memory: child.path for child in node.children}
    links = tuple(
        Link(
            src=names[wire.a],
            dst=names[wire.b],
            latency_ns=round(1000 * wire.latency),
            bandwidth_Bps=round(wire.bandwidth),
        )
        for wire in wires
    )
    return found.replace(links=links) if links else found


def _text(node: Node) -> str:
    """Return a tree in text form: CPUs drive, all else are devices."""
    children = []
    for child in node.children:
        name = child.path.rpartition("/")[2]
        children.append(f"{name}={_text(child) if child.children else 'numpy' if name == 'cpu' else 'onnxruntime'}")
    return f"[{','.join(children)}](host=@cpu)"


def _module(graph: Graph, elements: list[int], weights: Mapping[int, int]) -> IRModule:
    calls: list[Call] = []
    for index, (reads, number) in enumerate(graph):
        inputs = ["x" if before < 0 else f"v{before}" for before in reads]
        if index in weights and len(inputs) == 1:
            inputs.append(f"w{index}")
        kinds = KINDS_OF_TWO if len(inputs) == 2 else KINDS_OF_ONE
        type_ = TensorType("float32", (elements[index],))
        kind = f"onnx.{kinds[number % len(kinds)]}" if index not in weights or len(reads) == 1 else "onnx.Sum"
        if index in weights and len(reads) == 2:
            inputs.append(f"w{index}")
        calls.append(Call(kind, tuple(inputs), (Value(f"v{index}", type_),), source=f"n{index}"))
    read = {before for reads, _ in graph for before in reads}
    results = tuple(f"v{index}" for index in range(len(graph)) if index not in read)
    constants = tuple(
        Constant(f"w{index}", TensorType("float32", (nbytes // 4,)), np.full(nbytes // 4, index, dtype=np.float32))
        for index, nbytes in weights.items()
    )
    x = Value("x", TensorType("float32", (elements[-1],)))
    main = Function("main", (x,), tuple(calls), results, constants=constants, opsets=(("", 17),))
    return IRModule((main,))


def least_of_tree(case: TreeCase) -> float:
    """Return the least microseconds of all plans that keep what is required."""
    return _Least(case).of_tree()


class _Least:
    def __init__(self, case: TreeCase) -> None:
        self.case = case
        self.size = len(case.graph)
        self.readers: list[int] = [0] * (self.size + 1)  # sets of operations as bits
        for index, (reads, _) in enumerate(case.graph):
            for before in reads:
                self.readers[before] |= 1 << index
        self.before = [sum(1 << u for u in reads if u >= 0) for reads, _ in case.graph]
        self.call = cache(self._call)
        self.paths = cache(self._paths)

    def of_tree(self) -> float:
        """Return the least of the whole program."""
        return self._of_system(self.case.root, (1 << self.size) - 1, self._keeps)

    def _keeps(self, labels: np.ndarray[Any, Any], nodes: tuple[Node, ...]) -> np.ndarray[Any, Any]:
        """Return which rows of labels keep what is required of flat trees."""
        kept = np.ones(labels.shape[1], dtype=np.bool_)
        for group in self.case.same:
            kept &= (labels[list(group)] == labels[group[0]]).all(axis=0)
        for a, b in self.case.apart:
            kept &= labels[a] != labels[b]
        for number, node in enumerate(nodes):
            if node.memory in self.case.capacity:
                load = sum(nbytes * (labels[index] == number) for index, nbytes in self.case.weights.items())
                kept &= load <= self.case.capacity[node.memory]
        return kept

    def _paths(self, value: int, source: str) -> dict[str, tuple[float, str]]:
        """Return what a copy to each memory takes, and the memory before it on the way (Bellman, Ford)."""
        far, nbytes = {source: (0.0, source)}, self.case.nbytes[value]
        for _ in range(len(self.case.wires) + 1):
            for wire in self.case.wires:
                for a, b in ((wire.a, wire.b), (wire.b, wire.a)):
                    if a in far:
                        time = far[a][0] + wire.latency + nbytes * 1e6 / wire.bandwidth
                        if b not in far or time < far[b][0] - 1e-9:
                            far[b] = time, a
        return far

    def _call(self, node: Node, ops: int) -> float:
        """Return the least that one call of a node takes which runs some operations."""
        if node.children:
            return self._of_system(node, ops)
        return self.case.launches[node.path] + sum(self.case.times[v].get(node.path, np.inf) for v in _bits(ops))

    def _bound(self, node: Node, v: int) -> float:
        return min(self.case.times[v].get(leaf.path, np.inf) for leaf in node.leaves())

    def _of_system(
        self,
        node: Node,
        ops: int,
        keeps: Callable[[np.ndarray[Any, Any], tuple[Node, ...]], np.ndarray[Any, Any]] | None = None,
    ) -> float:
        """Return the least that some operations take in a system, with what they read and make in its memory."""
        inside = _bits(ops)
        bounds = {v: [self._bound(child, v) for child in node.children] for v in inside}
        options = [[k for k, bound in enumerate(bounds[v]) if bound < np.inf] for v in inside]
        labels = np.array(np.meshgrid(*options, indexing="ij"), dtype=np.int8).reshape(len(inside), -1)
        if keeps is not None:
            labels = labels[:, keeps(labels, node.children)]
        if not labels.shape[1]:
            return float("inf")
        place = {v: row for row, v in enumerate(inside)}
        totals = sum((np.array(bounds[v])[labels[row]] for v, row in place.items()), np.zeros(labels.shape[1]))
        memories = [child.memory for child in node.children]
        names = sorted({*memories, node.memory})
        number = np.array([names.index(memory) for memory in memories])[labels]
        exact = np.zeros(labels.shape[1])
        for value in range(-1, self.size):
            readers = self.readers[value] & ops
            is_own = value in place
            leaves_ops = is_own and (value in self.case.results or self.readers[value] & ~ops)
            if not readers and not leaves_ops:
                continue
            needed = {d: np.zeros(labels.shape[1], dtype=np.bool_) for d in range(len(names))}
            for reader in _bits(readers):
                for d in needed:
                    needed[d] |= number[place[reader]] == d
            if leaves_ops:
                needed[names.index(node.memory)][:] = True
            for s, source in enumerate(names):
                is_source = number[place[value]] == s if is_own else np.full(labels.shape[1], source == node.memory)
                if not is_source.any():
                    continue
                far = self.paths(value, source)
                reached: dict[str, np.ndarray[Any, Any]] = {}
                for d, wanted in needed.items():
                    at = names[d]
                    while at != source:
                        reached[at] = reached.get(at, np.zeros_like(wanted)) | wanted
                        at = far[at][1]
                for at, wanted in reached.items():
                    exact += np.where(is_source & wanted, far[at][0] - far[far[at][1]][0], 0.0)
        least_launch = [min(self.case.launches[leaf.path] for leaf in child.leaves()) for child in node.children]
        for k, launch in enumerate(least_launch):
            totals += launch * (labels == k).any(axis=0)
        floors = totals + exact
        least = np.inf
        for column in np.argsort(floors, kind="stable").tolist():
            if floors[column] >= least - 1e-9:
                break
            row = dict(zip(inside, labels[:, column].tolist(), strict=True))
            least = min(least, exact[column] + self._calls(node, ops, row, least - exact[column]))
        return float(least)

    def _calls(self, node: Node, ops: int, labels: Mapping[int, int], below: float) -> float:
        """Return the least that the calls of children take, by sets of operations that have run (Dijkstra)."""
        limit = {k: self.case.most[child.path] for k, child in enumerate(node.children) if child.path in self.case.most}
        start = (0, tuple(limit.values()))
        spent, done = {start: 0.0}, set()
        while True:
            state = min((state for state in spent if state not in done), key=spent.__getitem__, default=None)
            if state is None or spent[state] >= below:
                return float("inf")
            ran, left = state
            if ran == ops:
                return spent[state]
            done.add(state)
            for k, child in enumerate(node.children):
                position = list(limit).index(k) if k in limit else -1
                if position >= 0 and not left[position]:
                    continue
                for group in self._groups(child, k, ran, ops, labels):
                    calls = left if position < 0 else (*left[:position], left[position] - 1, *left[position + 1 :])
                    after, time = (ran | group, calls), spent[state] + self.call(child, group)
                    if time < min(spent.get(after, np.inf), below):
                        spent[after] = time

    def _groups(self, child: Node, k: int, ran: int, ops: int, labels: Mapping[int, int]) -> Iterator[int]:
        """Yield the sets of operations that one call of a child may run next."""
        ready = 0
        for v in _bits(ops):
            cut = any(then == v and (ready >> first) & 1 for first, then in self.case.cuts)
            if labels[v] == k and not ran >> v & 1 and not self.before[v] & ops & ~(ran | ready) and not cut:
                ready |= 1 << v
        # What a leaf runs earlier is in no one's way, but a call of a system may be cheaper for fewer operations.
        if not child.children and not self.case.cuts:
            yield from (ready,) if ready else ()
            return
        candidates = [v for v in _bits(ops) if labels[v] == k and not ran >> v & 1]
        for chosen in product((0, 1), repeat=len(candidates)):
            group = sum(1 << v for v, taken in zip(candidates, chosen, strict=True) if taken)
            is_cut = any(group >> first & 1 and group >> then & 1 for first, then in self.case.cuts)
            if group and not is_cut and all(not self.before[v] & ops & ~(ran | group) for v in _bits(group)):
                yield group


def _bits(ops: int) -> list[int]:
    return [v for v in range(ops.bit_length()) if ops >> v & 1]
