"""Families of graphs that partitioning is measured on: real nets in outline, and random ones.

Operations are elementwise kinds of ONNX on tensors of several sizes, so that any runtime takes them; what a family
fixes is who reads whom. Kinds repeat as in the nets, and which of them a site supports is up to the caller.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost
from tvmtarget.target.node import Memory
from tvmtarget.target.tree import Target

__all__ = [
    "FAMILIES",
    "KINDS_OF_ONE",
    "KINDS_OF_TWO",
    "MANY_SITES",
    "SITES",
    "Graph",
    "costs_of",
    "module_of",
    "shuffled",
    "times_of_kinds",
    "tree_of",
]

KINDS_OF_ONE = ("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Exp", "Softplus", "Softsign")
KINDS_OF_TWO = ("Add", "Mul", "Sub", "Max", "Min")

# Operations before each that a random graph reads from.
REACH = 50

# Elements of a tensor, from which those of a stage of a net are drawn.
SIZES = (1024, 16_384, 65_536, 262_144)

# For every operation the ones that it reads (-1 is the input), and a number that stands for its kind.
Graph = list[tuple[tuple[int, ...], int]]


def chain(size: int) -> Graph:
    """Operations one after the other."""
    return [((index - 1,), index % 7) for index in range(size)]


def transformer(size: int) -> Graph:
    """Layers of attention and feed-forward parts with what is passed around them: 15 operations each."""
    graph: Graph = []
    while len(graph) < size:
        x = len(graph) - 1
        q, k, v = (len(graph) + 1 + part for part in range(3))
        graph += [((x,), 0), *[((x + 1,), kind) for kind in (1, 2, 1)], ((q, k), 0), ((q + 3,), 3), ((q + 4, v), 1)]
        graph += [((q + 5,), 1), ((q + 6, x), 2)]
        base = len(graph) - 1
        graph += [((base,), 0), ((base + 1,), 1), ((base + 2,), 4), ((base + 3,), 1), ((base + 4, base), 2)]
        graph += [((base + 5,), 5)]
    return graph[:size]


def resnet(size: int) -> Graph:
    """Blocks of three convolutions with what follows each, passed around by their input: 10 operations each."""
    graph: Graph = []
    while len(graph) < size:
        x = len(graph) - 1
        for kind in (0, 1, 2, 0, 1, 2, 0, 1):
            graph.append(((len(graph) - 1,), kind))
        graph += [((len(graph) - 1, x), 2), ((len(graph),), 3)]
    return graph[:size]


def densenet(size: int) -> Graph:
    """Blocks of up to 12 layers that each read all layers before them, by additions."""
    graph: Graph = []
    while len(graph) < size:
        layers = [len(graph) - 1]
        for _ in range(12):
            joined = layers[0]
            for other in layers[1:]:
                graph.append(((joined, other), 3))
                joined = len(graph) - 1
            for kind in (0, 1, 2):
                graph.append(((joined,), kind))
                joined = len(graph) - 1
            layers.append(joined)
    return graph[:size]


def wide(size: int) -> Graph:
    """Layers of a hundred operations that each read two of the layer before."""
    rng = random.Random(0)
    graph: Graph = []
    for index in range(size):
        layer = index // 100
        above = [(layer - 1) * 100 + rng.randrange(100) for _ in range(2)] if layer else [-1]
        graph.append((tuple(dict.fromkeys(above)), rng.randrange(13)))
    return graph


def scattered(size: int) -> Graph:
    """Operations that read one or two of the last fifty, of random kinds."""
    rng = random.Random(0)
    graph: Graph = []
    for index in range(size):
        read = [rng.randrange(max(0, index - REACH), index + 1) - 1 for _ in range(rng.randint(1, 2))]
        graph.append((tuple(dict.fromkeys(read)), rng.randrange(13)))
    return graph


FAMILIES: Mapping[str, Callable[[int], Graph]] = {
    "chain": chain,
    "transformer": transformer,
    "resnet": resnet,
    "densenet": densenet,
    "wide": wide,
    "random": scattered,
}


def module_of(
    graph: Graph, seed: int = 0, sizes: Sequence[int] | None = None, taken: Sequence[bool] | None = None
) -> IRModule:
    """Return a graph as a program; values that nothing reads are its results.

    `sizes` are numbers of elements that tensors have; with a single one the program can run. With `taken`, kinds of
    operations say which of them are, the first kinds, and which are not, the second.
    """
    rng = random.Random(seed)
    types = [TensorType("float32", (rng.choice(sizes or SIZES),)) for _ in range(16)]
    body = tuple(_calls(graph, types, taken))
    read = {before for reads, _ in graph for before in reads}
    results = tuple(f"v{index}" for index in range(len(graph)) if index not in read)
    main = Function("main", (Value("x", types[0]),), body, results, opsets=(("", 17),))
    return IRModule((main,))


def _calls(graph: Graph, types: list[TensorType], taken: Sequence[bool] | None) -> Iterator[Call]:
    for index, (reads, number) in enumerate(graph):
        kinds = KINDS_OF_TWO if len(reads) == 2 else KINDS_OF_ONE
        inputs = tuple("x" if before < 0 else f"v{before}" for before in reads)
        # A result is as large as its kind and its place say, not as its operands: only the partitioner looks at sizes.
        type_ = types[(number * 5 + index // 997) % len(types)]
        kind = kinds[number % len(kinds) if taken is None else int(not taken[index])]
        yield Call(f"onnx.{kind}", inputs, (Value(f"v{index}", type_),), source=f"n{index}")


SITES = ("npu", "gpu", "dsp", "cpu")
MANY_SITES = (*(f"npu{number}" for number in range(13, 1, -1)), *SITES)


def tree_of(count: int, kind: str = "onnxruntime") -> Target:
    """Return a tree of the last of `MANY_SITES`, each with a memory of its own; the CPU drives."""
    sites = MANY_SITES[-count:]
    kinds = dict.fromkeys(sites, kind) | {"cpu": "numpy"}  # not every kind can drive the others
    tree = Target.parse(f"[{','.join(f'{site}={kinds[site]}' for site in sites)}](host=@cpu)")
    return tree.replace(memory=tuple(Memory(name=f"of-{site}", of=(site,)) for site in sites if site != "cpu"))


def times_of_kinds(sites: Sequence[str], seed: int, cpus: Collection[str] = ()) -> tuple[OpCost, ...]:
    """Return a time for every operator and site; some are heavy and far faster on sites that are no CPU.

    The last site is a CPU, to which the others are compared; so are `cpus`, which are about as fast.
    """
    ops = [OpCost(site, op="Identity", time=1.0) for site in sites]
    for number, kind in enumerate((*KINDS_OF_ONE, *KINDS_OF_TWO)):
        rng = random.Random(f"{seed} {kind}")
        is_heavy = number % 4 == seed % 4
        slow = rng.uniform(100, 400) if is_heavy else rng.uniform(1, 20)
        device = (5, 25) if is_heavy else (0.02, 1)
        for site in sites[:-1]:
            ops.append(OpCost(site, op=kind, time=slow / rng.uniform(*((0.7, 1.5) if site in cpus else device))))
        ops.append(OpCost(sites[-1], op=kind, time=slow))
    return tuple(ops)


def costs_of(sites: Sequence[str], seed: int = 3) -> Costs:
    """Return a time for every operator and site; some are heavy and far faster off the last site, which drives."""
    home = sites[-1]
    ops = times_of_kinds(sites, seed)
    links = tuple(LinkCost(home, site, 8.0, 1.2e10) for site in sites if site != home)
    launches = {site: SiteCost(launch=0.0 if site == home else 10.0) for site in sites}
    return Costs(sites=launches, links=links, ops=ops)


def shuffled(graph: Graph, rng: random.Random) -> Graph:
    """Return a graph with its operations in another valid order."""
    readers: list[list[int]] = [[] for _ in graph]
    waiting = [0] * len(graph)
    for index, (reads, _) in enumerate(graph):
        for before in reads:
            if before >= 0:
                readers[before].append(index)
                waiting[index] += 1
    ready = [index for index, count in enumerate(waiting) if not count]
    place = [-1] * len(graph)
    order: list[int] = []
    while ready:
        at = rng.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        index = ready.pop()
        place[index] = len(order)
        order.append(index)
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return [(tuple(place[b] if b >= 0 else -1 for b in graph[index][0]), graph[index][1]) for index in order]
