"""Laws of choosing at least cost: against trying everything, and against a mixed-integer program as the oracle."""

import random
import time
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_graph

from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.dataflow import NO_PRODUCER, spans
from tvmtarget.partition.flat_program import normalise
from tvmtarget.partition.placement.alpha_expansion import expand_each, expand_labels
from tvmtarget.partition.placement.binary_labeling import ALWAYS, Terms, decide
from tvmtarget.partition.placement.by_cost import CostChooser
from tvmtarget.partition.placement.energy import LabelingProblem, energy_of, enumerate_labelings, labelings_below
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.level import by_preference
from tvmtarget.partition.placement.local_search import SubgraphMoves, neighboring_labelings
from tvmtarget.partition.placement.maxflow import Budget
from tvmtarget.partition.plan import decompose
from tvmtarget.partition.stages import split
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.node import Memory
from tvmtarget.target.tree import Target


@dataclass(frozen=True)
class Flow:
    """A value: its producer (None if it is at home), readers, and copy costs by pair of domains."""

    producer: int | None
    readers: tuple[int, ...]
    is_live_out: bool
    routes: tuple


def problem_of(costs, flows, domains, home, launches):
    """Return a labeling problem of a few atoms; a cost of None forbids the label."""
    count = len(launches)
    rows = np.array([[-1 if cost is None else cost for cost in row] for row in costs], dtype=np.int64)
    rows = rows.reshape(len(costs), count)
    size = len(flows[0].routes) if flows else 1 + max((*domains, home))
    return LabelingProblem(
        costs=np.where(rows < 0, 0, rows),
        allowed=rows >= 0,
        producer=np.array([NO_PRODUCER if flow.producer is None else flow.producer for flow in flows], dtype=np.int64),
        start=spans([len(flow.readers) for flow in flows]),
        readers=np.array([reader for flow in flows for reader in flow.readers], dtype=np.int64),
        is_live_out=np.array([flow.is_live_out for flow in flows], dtype=np.bool_),
        cost_index=np.arange(len(flows), dtype=np.int64),
        pair_costs=np.array([flow.routes for flow in flows], dtype=np.int64).reshape(len(flows), size, size),
        domains=np.array(domains, dtype=np.int64),
        home=home,
        launches=np.array(launches, dtype=np.int64),
    )


@dataclass
class Term:
    cost: int
    tail: int
    heads: list[int]
    trigger: bool


def arrays_of(terms):
    return Terms(
        np.array([term.cost for term in terms], dtype=np.int64),
        np.array([term.tail for term in terms], dtype=np.int64),
        np.array([term.trigger for term in terms], dtype=np.bool_),
        np.array([head for term in terms for head in term.heads], dtype=np.int64),
        np.array([number for number, term in enumerate(terms) for _ in term.heads], dtype=np.int64),
    )


def term_cost(term, decisions):
    pays = term.tail == ALWAYS or decisions[term.tail] != term.trigger
    return term.cost if pays and any(decisions[head] == term.trigger for head in term.heads) else 0


def sum_of(differences, terms, decisions):
    return sum(d for d, yes in zip(differences, decisions, strict=True) if yes) + sum(
        term_cost(term, decisions) for term in terms
    )


@st.composite
def decisions_to_take(draw):
    size = draw(st.integers(1, 8))
    differences = draw(st.lists(st.integers(-20, 20), min_size=size, max_size=size))
    terms = []
    for _ in range(draw(st.integers(0, 10))):
        tail = draw(st.integers(-1, size - 1))
        heads = draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=4)) - {tail}
        if heads:
            terms.append(Term(draw(st.integers(1, 20)), tail, sorted(heads), draw(st.booleans())))
    return differences, terms


@settings(max_examples=500, deadline=None)
@given(decisions_to_take())
def test_decisions_are_the_best_of_all(case):
    differences, terms = case
    best = min(sum_of(differences, terms, some) for some in product((False, True), repeat=len(differences)))
    assert sum_of(differences, terms, decide(np.array(differences), arrays_of(terms), Budget(10**9))) == best


@pytest.mark.parametrize("seed", range(20))
def test_decisions_along_a_chain_are_the_best(seed):
    """Each decision decides the next one in some of these, from either end; others are left to be cut."""
    rng, size = random.Random(seed), 60
    steps = rng.choice((1, 20))
    differences = [rng.randint(-steps, steps) for _ in range(size)]
    differences[0], differences[-1] = rng.choice((-100, 0)), rng.choice((0, 100))
    terms = [
        Term(rng.randint(1, 20), head - 1, [head], trigger) for head in range(1, size) for trigger in (False, True)
    ]
    no, yes = 0, differences[0]
    for difference, no_to_yes, yes_to_no in zip(differences[1:], terms[1::2], terms[::2], strict=True):
        no, yes = min(no, yes + yes_to_no.cost), min(yes, no + no_to_yes.cost) + difference
    decisions = decide(np.array(differences), arrays_of(terms), Budget(10**9))
    assert sum_of(differences, terms, decisions) == min(no, yes)


def placement_of(rng, size, count, *, share=1.0, distinct=True):
    """Return a random problem: atoms in topological order, each reading up to two of those before it."""
    domains = tuple(range(count)) if distinct else tuple(rng.randrange(count) for _ in range(count))
    points = [rng.randint(0, 30) for _ in range(count)]
    costs = []
    for _ in range(size):
        row = [rng.randint(1, 60) if rng.random() < share else None for _ in range(count)]
        costs.append(tuple(row) if any(row) else (5, *row[1:]))
    readers = [[] for _ in range(size)]
    for atom in range(1, size):
        for before in rng.sample(range(atom), min(atom, rng.randint(1, 2))):
            readers[before].append(atom)
    flows = []
    for atom, found in enumerate(readers):
        nbytes = rng.randint(1, 20)
        routes = tuple(
            tuple(0 if a == b else nbytes + abs(p - q) for b, q in enumerate(points)) for a, p in enumerate(points)
        )
        if found or atom == size - 1:
            flows.append(Flow(atom, tuple(found), not found, routes))
    flows.append(Flow(None, tuple(rng.sample(range(size), min(3, size))), False, flows[0].routes))
    return problem_of(costs, flows, domains, 0, [rng.randint(0, 10) for _ in range(count)])


def best_of_all(problem):
    return int(problem.totals(enumerate_labelings(problem, 10**6)).min())


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**9), size=st.integers(1, 9), share=st.sampled_from([1.0, 0.7]), distinct=st.booleans())
def test_two_labels_reach_the_optimum(seed, size, share, distinct):
    problem = placement_of(random.Random(seed), size, 2, share=share, distinct=distinct)
    assert problem.total(expand_labels(problem, 0.0)) == best_of_all(problem)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**9), size=st.integers(1, 7), distinct=st.booleans(), more=st.integers(-5, 30))
def test_branch_and_bound_returns_every_labeling_that_may_be_better(seed, size, distinct, more):
    problem = placement_of(random.Random(seed), size, 3, share=0.8, distinct=distinct)
    rows = enumerate_labelings(problem, 10**6)
    used = (rows[:, :, None] == np.arange(3)).any(axis=1)
    totals = problem.totals(rows) + used @ problem.launches
    known = int(totals.min()) + more
    found = labelings_below(problem, known, 10**6)
    assert found.tolist() == rows[totals < known].tolist()
    assert labelings_below(problem, known, len(found) - 1) is None


def test_three_labels_are_placed_within_a_few_percent_of_the_best():
    rng = random.Random(1)
    ratios = []
    for _ in range(150):
        problem = placement_of(rng, rng.randint(2, 8), 3, share=rng.choice([1.0, 0.7]), distinct=rng.random() < 0.7)
        ratios.append(problem.total(expand_labels(problem, 0.0)) / best_of_all(problem))
    assert min(ratios) >= 1
    assert sum(ratios) / len(ratios) <= 1.005
    assert sorted(ratios)[-2] <= 1.05


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    size=st.integers(1, 30),
    count=st.integers(2, 4),
    share=st.sampled_from([0.0, 0.5]),
    left=st.sampled_from([0, 30, 100, 300, 1000, 3000, 10**6]),
)
def test_expansion_from_several_starts_is_that_from_each_alone(seed, size, count, share, left):
    rng = random.Random(seed)
    problem = placement_of(rng, size, count, share=0.8)
    options = [np.flatnonzero(row).tolist() for row in problem.allowed]
    starts = [np.array([rng.choice(found) for found in options]) for _ in range(6)]
    together, alone = Budget(left), Budget(left)
    found = expand_each(problem, share, together, [*starts, *starts])
    expected = [expand_labels(problem, share, alone, start) for start in [*starts, *starts]]
    assert [labels.tolist() for labels in found] == [labels.tolist() for labels in expected]
    assert together == alone


def test_two_labels_agree_with_the_maximum_flow_of_scipy():
    """Full network, no reduction: what is settled without a cut must not change the least sum."""
    sparse = pytest.importorskip("scipy.sparse")
    flow = pytest.importorskip("scipy.sparse.csgraph")
    rng = random.Random(2)
    for size in (50, 200, 600):
        problem = placement_of(rng, size, 2)
        names = {"source": 0, "sink": 1}
        capacity = {}

        def edge(a, b, cost, names=names, capacity=capacity):
            pair = (names.setdefault(a, len(names)), names.setdefault(b, len(names)))
            capacity[pair] = min(2**30, capacity.get(pair, 0) + cost)

        for atom, (no, yes) in enumerate(problem.costs.tolist()):
            edge("source", atom, yes)
            edge(atom, "sink", no)
        for number, producer in enumerate(problem.producer.tolist()):
            tail = "source" if producer < 0 else producer
            ends = problem.readers[problem.start[number] : problem.start[number + 1]].tolist()
            ends += ["source"] if problem.is_live_out[number] else []
            edge(tail, ("up", number), int(problem.pair_costs[number, 0, 1]))
            edge(("down", number), tail, int(problem.pair_costs[number, 1, 0]))
            for end in ends:
                edge(("up", number), end, 2**30)
                edge(end, ("down", number), 2**30)
        rows, columns = zip(*capacity, strict=True)
        matrix = sparse.csr_matrix((list(capacity.values()), (rows, columns)), shape=(len(names),) * 2, dtype="int32")
        assert problem.total(expand_labels(problem, 0.0)) == flow.maximum_flow(matrix, 0, 1).flow_value


def test_an_empty_problem_has_an_empty_labeling():
    assert expand_labels(problem_of((), (), (0, 1, 2), 0, (0, 0, 0)), 1.0).tolist() == []


def test_all_choices_are_listed_in_order_and_added_up_as_each_alone():
    rng = random.Random(3)
    for _ in range(20):
        problem = placement_of(rng, 5, 3, share=0.8, distinct=rng.random() < 0.5)
        rows = enumerate_labelings(problem, 3**5)
        allowed = [np.flatnonzero(row).tolist() for row in problem.allowed]
        assert [tuple(row) for row in rows.tolist()] == list(product(*allowed))
        assert problem.totals(rows).tolist() == [energy_of(problem, 0.0).total(row) for row in rows]


def test_small_changes_move_an_atom_or_all_at_a_value_to_a_label_that_all_may_have():
    same = ((0, 5), (0, 5))
    flows = [Flow(0, (1, 2), False, same)]
    problem = problem_of(((1, 1), (1, 1), (1, None)), flows, (0, 1), 0, (0, 0))
    moved = {tuple(labels.tolist()) for labels in neighboring_labelings(problem, np.array([0, 0, 0]))}
    assert moved == {(1, 0, 0), (0, 1, 0), (1, 1, 0)}


@pytest.mark.parametrize("seed", range(4))
def test_levels_at_which_nothing_is_to_be_decided_are_split_as_if_they_were_decided(seed):
    rng = random.Random(seed)
    tree = Target.parse("[a=numpy,b=[a=numpy,b=[a=numpy,b=[a=numpy,b=onnxruntime]]]]")
    leaves = [path for path, node in tree.walk() if not node.is_composite]
    where = {f"n{index}": Constraint.at(rng.choice(leaves)) for index in range(20)}
    program = normalise(IRModule.from_onnx(random_graph(20, seed)), tree, where)
    feasibility = Feasibility(program)
    root = program.topology[""]
    found = split(program, feasibility, root, program.top)
    decided = split(program, feasibility, root, program.top, lambda level: by_preference(level))
    assert found == decided
    assert [one.least_parts for one in found.walk()] == [one.least_parts for one in decided.walk()]
    assert len(found.parts) > 1


def matrix_of(sizes, tree, costs):
    """Return the labeling problem of the root for a chain of values of these sizes."""
    types = [TensorType("uint8", (size,)) for size in sizes]
    calls = [
        Call("onnx.Relu", (f"v{number}",), (Value(f"v{number + 1}", type_),), source=f"n{number}")
        for number, type_ in enumerate(types)
    ]
    main = Function("main", (Value("v0", types[0]),), tuple(calls), (f"v{len(types)}",), opsets=(("", 18),))
    program = normalise(IRModule((main,)), tree, {})
    chooser, found = CostChooser(Feasibility(program), Estimates(program, costs)), []
    split(program, chooser.feasibility, program.topology[""], program.top, lambda level: _kept(chooser, level, found))
    return found[0].problem


def _kept(chooser, level, found):
    found.append(chooser.matrix(level))
    return by_preference(level)


def routes_between_labels(problem, index):
    """Return for any two domains the memories on the route, from its end, with the time to each of them."""
    times, before = problem.route_times[index], problem.route_before[index]
    routes = []
    for start, end in product(problem.domain_memory.tolist(), repeat=2):
        at, route = end, []
        while at != start:
            route.append(int(times[start, at]))
            at = int(before[start, at])
        routes.append(route)
    return routes


@pytest.mark.parametrize("seed", range(6))
def test_copies_of_values_of_many_sizes_cost_what_they_cost_in_programs_of_one_size(seed):
    """Fast links of a high latency beside slow ones: the routes depend on the size."""
    rng = random.Random(seed)
    inner = "[a=numpy,b=onnxruntime,c=onnxruntime,cpu=numpy](host=@cpu)"
    tree = Target.parse(f"[a={inner},b={inner},c=onnxruntime,cpu=numpy](host=@cpu)" if seed % 2 else inner)
    tree = tree.replace(memory=(Memory(name="mc", bytes=1 << 30, of=("c",)),))
    leaves = [path for path, node in tree.walk() if not node.is_composite]
    ends = [(a, b) for a in ("a", "b", "c", "cpu") for b in ("a", "b", "c", "cpu") if a != b]
    links = rng.sample(ends, 6) + [(f"{one}/a", f"{one}/b") for one in "ab" if seed % 2]
    costs = Costs(
        sites={leaf: SiteCost(launch=1.0, boundary_bw=rng.choice((None, 3e8))) for leaf in leaves},
        ops=tuple(OpCost(site=leaf, op="Relu", time=rng.uniform(1, 50)) for leaf in leaves),
        links=tuple(
            LinkCost(*link, latency=rng.choice((1.0, 5.0, 20.0)), bandwidth=rng.choice((1e8, 1e9, 1e10)))
            for link in links
        ),
    )
    sizes = [1, 10**3, 10**4, 10**4, 10**5, 10**6]
    many = matrix_of(sizes, tree, costs)
    for atom, size in enumerate(sizes):
        (index,) = many.cost_index[many.producer == atom]
        one = matrix_of([size], tree, costs)
        assert many.pair_costs[index].tolist() == one.pair_costs[0].tolist()
        if one.domain_memory.size:
            assert routes_between_labels(many, index) == routes_between_labels(one, 0)
        elif many.domain_memory.size:
            assert all(len(route) < 2 for route in routes_between_labels(many, index))


def test_an_atom_that_must_be_apart_moves_with_its_neighbours_where_that_copies_less():
    """Atom 1 alone is cheapest on site 1, but the value between atoms 1 and 2 is large."""
    small, large = [[0, 5], [5, 0]], [[0, 90], [90, 0]]
    flows = [Flow(0, (1,), False, small), Flow(1, (2,), False, large)]
    problem = problem_of([(0, 99), (1, 0), (0, 2)], flows, (0, 1), home=0, launches=(0, 3))
    moves = SubgraphMoves(problem).of_groups_at([0, 0, 0], 1, {0: [1], 1: [0]})
    # The atoms, the label, and what they cost more: operations, copies, and a launch.
    assert sorted(moves) == [(-1 + 2 + 5 + 3, [1, 2], 1), (-1 + 5 + 90 + 3, [1], 1)]


def test_a_row_of_150_leaves_with_memories_of_their_own_is_planned_by_cost_in_seconds():
    rng, kinds = random.Random(0), ("Relu", "Exp", "Neg", "Abs")
    slots = [f"s{number}" for number in range(149)]
    tree = Target.parse(f"[{','.join(f'{slot}=onnxruntime' for slot in slots)},cpu=numpy](host=@cpu)")
    tree = tree.replace(memory=tuple(Memory(name=f"of-{slot}", of=(slot,)) for slot in slots))
    times = [
        OpCost(site=site, op=kind, time=round(rng.uniform(10, 100), 3)) for site in (*slots, "cpu") for kind in kinds
    ]
    costs = Costs(
        sites={site: SiteCost(launch=rng.uniform(1, 20)) for site in (*slots, "cpu")},
        ops=tuple(times),
        links=tuple(LinkCost(src="cpu", dst=slot, latency=rng.uniform(1, 20), bandwidth=1e10) for slot in slots),
    )
    type_ = TensorType("float32", (1024,))
    calls = [
        Call(f"onnx.{rng.choice(kinds)}", (f"v{index}",), (Value(f"v{index + 1}", type_),), source=f"n{index}")
        for index in range(1000)
    ]
    main = Function("main", (Value("v0", type_),), tuple(calls), ("v1000",), opsets=(("", 18),))
    begin = time.process_time()
    plan = decompose(IRModule((main,)), tree, costs)
    # With tables of costs by two leaves for each operation it takes 16 s.
    assert time.process_time() - begin < 10
    assert plan.prediction.total <= 1.02 * plan.prediction.lower_bound
