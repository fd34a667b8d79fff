"""The bound by the dual: never above the least cost of all labelings, and close to it, with all kinds of edges."""

import random
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import tvmtarget as tt
from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost
from tvmtarget.partition.costs.memory_graph import MemoryGraph
from tvmtarget.partition.dataflow import NO_PRODUCER, spans
from tvmtarget.partition.placement import dual_bound, energy
from tvmtarget.partition.placement.detours import Detours
from tvmtarget.partition.placement.dual_bound import DualAscent
from tvmtarget.partition.placement.dual_edges import PairEdges
from tvmtarget.partition.placement.energy import LabelingProblem, enumerate_labelings
from tvmtarget.partition.subgraphs.lower_bound import fewest_by_label
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph, LabeledGraph
from tvmtarget.target.topology import Topology


def routes_of(rng, count, shape):
    """Return the times of routes between memories, 0 being at home, and the last memory before each end."""
    links = np.full((count, count), 10**6)
    for a in range(count):
        for b in range(a):
            if shape == "any" or b == 0 or (shape == "line" and a == b + 1):
                links[a, b] = links[b, a] = rng.randint(1, 30)
    np.fill_diagonal(links, 0)
    times, before = links.copy(), np.repeat(np.arange(count)[:, None], count, axis=1)
    for via in range(count):
        other = times[:, via, None] + times[None, via]
        is_less = other < times
        before = np.where(is_less, before[via], before)
        times = np.where(is_less, other, times)
    return times, before


def drawn(seed):
    """Return a random problem of up to six atoms, whose values have up to seven readers."""
    rng = random.Random(seed)
    size, memories, shape = rng.randint(1, 6), rng.randint(1, 4), rng.choice(["star", "line", "any"])
    # Domains are memories in another order, of which a few may be one memory; labels may share domains.
    domain_memory = rng.sample(range(memories), memories)
    if rng.random() < 0.3:
        domain_memory.append(rng.randrange(memories))
    domains = [*range(len(domain_memory)), *([0] if rng.random() < 0.3 else [])]
    tables = [routes_of(rng, memories, shape) for _ in range(2)]
    times, before = (np.array(arrays) for arrays in zip(*tables, strict=True))
    place = np.array(domain_memory)
    values = [(NO_PRODUCER, rng.choices(range(size), k=rng.randint(1, size)), False) for _ in range(2)]
    for atom in range(size):
        readers = [later for later in range(atom + 1, size) if rng.random() < 0.6]
        values.append((atom, readers, not readers or rng.random() < 0.3))
    values = [(producer, sorted(set(readers)), is_live_out) for producer, readers, is_live_out in values]
    allowed = np.array([[rng.random() < 0.8 for _ in domains] for _ in range(size)])
    allowed[:, 0] |= ~allowed.any(axis=1)
    return LabelingProblem(
        costs=np.array([[rng.randint(0, 60) for _ in domains] for _ in range(size)]),
        allowed=allowed,
        producer=np.array([producer for producer, _, _ in values]),
        start=spans([len(readers) for _, readers, _ in values]),
        readers=np.array([reader for _, readers, _ in values for reader in readers], dtype=np.int64),
        is_live_out=np.array([is_live_out for _, _, is_live_out in values]),
        cost_index=np.array([rng.randrange(2) for _ in values]),
        pair_costs=times[:, place][:, :, place],
        domains=np.array(domains),
        home=domain_memory.index(0),
        launches=np.zeros(len(domains), dtype=np.int64),
        domain_memory=place,
        route_times=times,
        route_before=before,
    )


def links_of(problem, labels):
    """Return what the links cost that copies take, each link once for a value."""
    total = 0
    for value, producer in enumerate(problem.producer.tolist()):
        readers = problem.readers[problem.start[value] : problem.start[value + 1]].tolist()
        ends = {int(problem.domains[labels[reader]]) for reader in readers}
        ends |= {problem.home} if problem.is_live_out[value] else set()
        source = problem.domain_memory[problem.home if producer < 0 else problem.domains[labels[producer]]]
        index, passed = problem.cost_index[value], set()
        for memory in problem.domain_memory[sorted(ends)].tolist():
            while memory != source and memory not in passed:
                passed.add(memory)
                memory = int(problem.route_before[index, source, memory])
        times, before = problem.route_times[index, source], problem.route_before[index, source]
        total += sum(int(times[memory] - times[before[memory]]) for memory in passed)
    return total


@pytest.mark.parametrize(("few", "equal"), [(2**10, 8), (0, 0), (0, 10**6)])
def test_costs_of_labelings_count_each_link_once_for_a_value(monkeypatch, few, equal):
    monkeypatch.setattr(energy, "FEW_PAIRS", few)
    monkeypatch.setattr(energy, "MIN_EQUAL", equal)
    for pairs in (2**16, 5):
        monkeypatch.setattr(energy, "MAX_PAIRS", pairs)
        for seed in range(40):
            problem, rng = drawn(seed), random.Random(seed)
            every = enumerate_labelings(problem, 10**5)
            rows = every[sorted(rng.sample(range(len(every)), min(len(every), 50)))]
            own = np.take_along_axis(problem.costs[None], rows[:, :, None], axis=2).sum(axis=(1, 2)).tolist()
            expected = [cost + links_of(problem, row) for cost, row in zip(own, rows, strict=True)]
            assert problem.totals(rows).tolist() == expected, seed
            assert problem.totals(rows[:0]).tolist() == []


@pytest.mark.parametrize(("most", "readers"), [(1, 16), (6, 16), (6, 1)])
def test_the_bound_is_at_most_the_least_cost_and_close_to_it(monkeypatch, most, readers):
    monkeypatch.setattr(dual_bound, "MAX_GROUPS", most)
    monkeypatch.setattr(dual_bound, "MAX_READERS", readers)
    reached = []
    for seed in range(120):
        problem = drawn(seed)
        labelings = enumerate_labelings(problem, 10**5)
        least = int(problem.totals(labelings).min())
        ascent = DualAscent(problem)
        ascent.climb(60)
        assert ascent.bound <= least, seed
        reached.append((ascent.bound + 2) / max(least, 1))
    assert np.mean(reached) > 0.95


def test_calls_are_bounded_by_one_path_per_label_with_60_labels():
    count, labels = 60, np.array([57, 58] * 3 + [57, 59] * 3)
    later = [[] if atom in {5, 11} else [atom + 1] for atom in range(12)]  # two chains, whose calls of 57 are the same
    problem = LabelingProblem(
        costs=np.zeros((12, count), dtype=np.int64),
        allowed=np.arange(count) == labels[:, None],
        producer=np.arange(12),
        start=spans([len(readers) for readers in later]),
        readers=np.array([reader for readers in later for reader in readers]),
        is_live_out=np.array([not readers for readers in later]),
        cost_index=np.zeros(12, dtype=np.int64),
        pair_costs=np.zeros((1, count, count), dtype=np.int64),
        domains=np.arange(count),
        home=0,
        launches=np.where(np.arange(count) == 57, 1000, 1),
    )
    ascent = DualAscent(problem)
    ascent.charge_calls(labels, AtomGraph(later))
    ascent.climb(60)
    assert 3000 < ascent.bound <= 3 * 1000 + 3 + 3


def test_60_labels_in_two_memories_have_tables_of_two_groups():
    count = 60
    rng = np.random.default_rng(0)
    problem = LabelingProblem(
        costs=rng.integers(10, 100, (8, count)),
        allowed=np.ones((8, count), dtype=np.bool_),
        producer=np.arange(8),
        start=spans([2, 2, 2, 2, 2, 1, 1, 0]),
        readers=np.array([1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]),
        is_live_out=np.arange(8) == 7,
        cost_index=np.zeros(8, dtype=np.int64),
        pair_costs=np.array([[[0, 25], [25, 0]]]),
        domains=np.arange(count) % 2,
        home=0,
        launches=np.zeros(count, dtype=np.int64),
    )
    ascent = DualAscent(problem)
    ascent.climb(60)
    # In a memory, each atom takes its cheapest label; so the program of the best one of each memory costs as much.
    best = np.stack([problem.costs[:, memory::2].min(axis=1) for memory in range(2)], axis=1)
    few = replace(
        problem,
        costs=best,
        allowed=np.ones((8, 2), dtype=np.bool_),
        domains=np.arange(2),
        launches=np.zeros(2, dtype=np.int64),
    )
    least = int(few.totals(enumerate_labelings(few, 10**5)).min())
    assert 0.95 * least < ascent.bound <= least


@pytest.mark.parametrize("readers", [64, 1])
def test_the_bound_leaves_out_what_values_may_save_by_detours(monkeypatch, readers):
    monkeypatch.setattr(dual_bound, "MAX_READERS", readers)
    tree = tt.Target.parse("[s=[a=numpy,b=numpy,c=numpy](host=@c),d=numpy](host=@d)")
    system = tree.at("s").replace(memory=tuple(tt.Memory(name=f"m{slot}", of=(slot,)) for slot in "ab"))
    tree = tree.replace(targets=(system, tree.at("d")), memory=(tt.Memory(name="ms", of=("s",)),))
    topology, leaves, reached, helped = Topology(tree.resolve()), ("s/a", "s/b", "s/c", "d"), [], 0
    domains, pairs = [topology[leaf].domain for leaf in leaves], list(combinations(leaves, 2))
    for seed in range(200):
        rng = random.Random(seed)
        # The direct link takes longer than the second half of the way over the driver's memory.
        latencies = [rng.randint(20, 30) if ends == ("s/a", "s/b") else rng.randint(12, 20) for ends in pairs]
        links = [
            LinkCost(*ends, latency=float(latency), bandwidth=1e9)
            for ends, latency in zip(pairs, latencies, strict=True)
        ]
        graph = MemoryGraph(topology, Costs(links=tuple(links)))
        detours = Detours(graph, topology, leaves, (0,))
        count = rng.randint(3, 6)
        later = [sorted(rng.sample(range(atom + 1, count), rng.randint(0, count - atom - 1))) for atom in range(count)]
        labels = [rng.choice([(0,), (0, 1), (1,), (1, 2), (3,)]) for _ in range(count)]
        problem = LabelingProblem(
            costs=np.array([[rng.randint(0, 10) * 10**6 for _ in leaves] for _ in range(count)]),
            allowed=np.array([[label in own for label in range(4)] for own in labels]),
            producer=np.arange(count),
            start=spans([len(own) for own in later]),
            readers=np.array([reader for own in later for reader in own], dtype=np.int64),
            is_live_out=np.array([not own for own in later]),
            cost_index=np.zeros(count, dtype=np.int64),
            pair_costs=np.array([[[graph.route(a, b, 0).time for b in domains] for a in domains]]),
            domains=np.arange(4),
            home=3,
            launches=np.zeros(4, dtype=np.int64),
        )
        labelings = enumerate_labelings(problem, 10**5)
        least = min(
            total - detours.saved(problem, row)
            for total, row in zip(problem.totals(labelings).tolist(), labelings, strict=True)
        )
        ascent = DualAscent(problem, detours)
        ascent.climb(100)
        assert ascent.bound <= least, seed
        reached.append(ascent.bound / max(1, least))
        helped += least < problem.totals(labelings).min()
    assert helped > 10
    assert np.mean(reached) > 0.7


@pytest.mark.parametrize(
    "tree", ["[a=numpy,b=numpy,c=numpy](host=@c)", "[a=numpy,s=[b=numpy,d=numpy](host=@d),c=numpy](host=@c)"]
)
def test_the_plan_of_many_operations_that_read_one_value_reaches_its_bound(tree):
    rng, type_, kinds = random.Random(0), TensorType("float32", (6,)), ("Relu", "Tanh", "Abs", "Neg")
    body = [
        Call(f"onnx.{rng.choice(kinds)}", ("x",), (Value(f"v{index}", type_),), source=f"n{index}")
        for index in range(3000)
    ]
    results = tuple(call.outputs[0].name for call in body)
    module = IRModule((Function("main", (Value("x", type_),), tuple(body), results, opsets=(("", 17),)),))
    target = tt.Target.parse(tree)
    leaves = [path for path, node in target.walk() if not node.is_composite]
    owners = [slot for slot in ("a", "b", "s") if target.child(slot)]
    target = target.replace(memory=tuple(tt.Memory(name=f"m{slot}", of=(slot,)) for slot in owners))
    costs = Costs(
        sites={leaf: SiteCost(launch=5.0) for leaf in leaves},
        ops=tuple(OpCost(leaf, op=kind, time=float(rng.randint(5, 40))) for leaf in leaves for kind in kinds),
        links=tuple(LinkCost("c", leaf, latency=8.0, bandwidth=1e9) for leaf in leaves if leaf != "c"),
    )
    prediction = tt.decompose(module, target, costs).prediction
    assert 0.999 * prediction.total < prediction.lower_bound <= prediction.total


def graph_of(problem):
    targets = [set() for _ in problem.costs]
    for producer, begin, end in zip(problem.producer, problem.start[:-1], problem.start[1:], strict=True):
        if producer >= 0:
            targets[producer].update(problem.readers[begin:end].tolist())
    return AtomGraph([sorted(each) for each in targets])


@pytest.mark.parametrize(("most", "readers"), [(1, 16), (6, 16), (6, 1)])
def test_the_bound_with_calls_holds_where_labels_share_groups_and_values_have_several_readers(
    monkeypatch, most, readers
):
    monkeypatch.setattr(dual_bound, "MAX_GROUPS", most)
    monkeypatch.setattr(dual_bound, "MAX_READERS", readers)
    without, reached = [], []
    for seed in range(120):
        problem, rng = drawn(seed), random.Random(seed)
        labels = len(problem.domains)
        problem = replace(problem, launches=np.array([rng.choice([0, 20, 40]) for _ in range(labels)]))
        graph = graph_of(problem)
        labelings = enumerate_labelings(problem, 10**5)
        calls = [fewest_by_label(LabeledGraph(graph, row.tolist())) for row in labelings]
        launched = [sum(int(problem.launches[label]) * count for label, count in found.items()) for found in calls]
        totals = problem.totals(labelings) + launched
        ascent = DualAscent(problem)
        ascent.climb(60)
        without.append((ascent.bound + 2) / max(int(totals.min()), 1))
        ascent.charge_calls(labelings[totals.argmin()], graph)
        ascent.climb(100)
        assert ascent.bound <= totals.min(), seed
        reached.append((ascent.bound + 2) / max(int(totals.min()), 1))
    assert np.mean(reached) > 0.95 > 0.85 > np.mean(without)


def test_the_bound_holds_for_labelings_that_keep_atoms_apart_and_limits_on_calls():
    without, reached = [], []
    for seed in range(60):
        problem, rng = drawn(seed), random.Random(seed)
        count, labels = problem.costs.shape
        pairs = [tuple(rng.sample(range(count), 2))] if count > 1 else []
        limited, most = np.arange(labels) == rng.randrange(labels), rng.randint(0, 2)
        graph = graph_of(problem)
        labelings = enumerate_labelings(problem, 10**5)
        apart = np.all([labelings[:, one] != labelings[:, other] for one, other in pairs], axis=0)
        calls = [fewest_by_label(LabeledGraph(graph, row.tolist())) for row in labelings]
        kept = apart & [
            sum(found.get(label, 0) for label in np.flatnonzero(limited).tolist()) <= most for found in calls
        ]
        if not kept.any():
            continue
        totals = problem.totals(labelings)
        ascent = DualAscent(problem)
        ascent.keep_apart(pairs)
        ascent.climb(60)
        while ascent.limit_calls(limited, most, graph, None):
            pass
        least = int(totals[kept].min())
        assert ascent.bound <= least, seed
        without.append(int(totals.min()) / max(least, 1))
        reached.append((ascent.bound + 2) / max(least, 1))
    assert np.mean(reached) > 0.98 > 0.95 > np.mean(without)


@pytest.mark.parametrize("limit", ["MAX_COSTS", "MAX_ENTRIES"])
def test_problems_with_too_large_tables_have_no_bound(monkeypatch, limit):
    monkeypatch.setattr(dual_bound, limit, 0)
    problem = drawn(0)
    ascent = DualAscent(problem)
    ascent.keep_apart([(0, 1)])
    ascent.keep_together([(0, 1)])
    ascent.charge_calls(np.zeros(len(problem.costs), dtype=np.int64), graph_of(problem))
    ascent.climb(10)
    assert (ascent.bound, ascent.steps) == (0, 0)


@pytest.mark.parametrize("by_edge", [False, True])
def test_edges_of_pairs_have_the_minima_of_tables_of_both_labels(by_edge):
    rng = np.random.default_rng(4)
    for labels, edges in ((1, 3), (2, 5), (7, 20)):
        first, second = rng.integers(0, 9, (2, edges))
        unequal = rng.integers(0, 50, (labels, edges if by_edge else 1)).astype(np.float64)
        part = PairEdges(first, second, 13.0, unequal, 9)
        part.to_tail[:], part.to_reader[:] = rng.normal(0, 30, (2, labels, edges))
        table = np.where(np.eye(labels, dtype=bool)[:, :, None], 13.0, unequal[None])
        whole = table - part.to_tail[:, None] - part.to_reader[None]
        least, by_first, by_second = part.minima()
        assert np.allclose(least, whole.min(axis=(0, 1)))
        assert np.allclose(by_first, (whole + part.to_tail[:, None]).min(axis=1))
        assert np.allclose(by_second, (whole + part.to_reader[None]).min(axis=0))
