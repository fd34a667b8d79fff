"""Copies take the fastest route for their size, and the route that is priced is the route that runs."""

import random
from itertools import pairwise, product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_graph, small
from onnx import TensorProto, helper

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError
from tvmtarget.executors.protocol import CopyEvent
from tvmtarget.ir.function import COPY
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost
from tvmtarget.partition.costs.memory_graph import MemoryGraph
from tvmtarget.partition.costs.routes_by_size import routes_by_size
from tvmtarget.target.topology import Topology


def board(*links, children=("a", "b", "c")):
    """Return a board of leaves that each have a memory of their own, and links between some."""
    tree = tt.Target.parse(f"[{','.join(f'{name}=numpy' for name in children)},cpu=numpy](host=@cpu)")
    memory = tuple(tt.Memory(name=f"m{name}", bytes=1 << 30, of=(name,)) for name in children)
    return tree.replace(memory=memory, links=tuple(map(link, links)))


def link(ends, bandwidth=10**9, latency=1000):
    src, dst = ends.split("-")
    return tt.Link(src=src, dst=dst, bandwidth_Bps=bandwidth, latency_ns=latency)


CHAIN = small(
    helper.make_node("Relu", ["x"], ["r"], name="relu"),
    helper.make_node("Tanh", ["r"], ["t"], name="tanh"),
    helper.make_node("Abs", ["r"], ["u"], name="abs"),
    helper.make_node("Add", ["t", "u"], ["y"], name="add"),
)
WHERE = {"relu": "@a", "tanh": "@b", "abs": "@cpu", "add": "@b"}


def copies(plan):
    return [(copy.value, copy.src, copy.dst) for copy in plan.copies]


def test_without_a_link_between_them_a_value_comes_through_the_host_once():
    plan = tt.decompose(CHAIN, board("a-cpu", "b-cpu"), where=WHERE)
    cpu = plan.topology.home("")
    assert copies(plan) == [("x", cpu, "ma"), ("r", "ma", cpu), ("r", cpu, "mb"), ("u", cpu, "mb"), ("y", "mb", cpu)]
    made = {call.outputs[0].name: call.inputs[0] for call in plan.module.main.body if call.op == COPY}
    assert (made["r.copy"], made["r.copy_1"]) == ("r", "r.copy")
    assert tt.decompose(plan.module).module == plan.module
    exe, x = tt.build(plan), np.ones((2, 3), "float32")
    events = [(e.src, e.dst) for e in exe.profile({"x": x}) if isinstance(e, CopyEvent)]
    assert events == [(src, dst) for _, src, dst in copies(plan)]
    np.testing.assert_allclose(exe(x), tt.build(CHAIN, "numpy")(x))


@pytest.mark.parametrize(
    ("links", "stops"),
    [
        ((), ()),
        (("a-b", "a-cpu", "b-cpu"), ()),
        (("a-cpu", "b-cpu"), ("cpu",)),
        (("a-c", "c-b", "a-cpu"), ("mc",)),
        ((("a-b", 10**6), "a-cpu", "b-cpu"), ("cpu",)),
        (("a-cpu",), ("cpu",)),
    ],
)
def test_the_fastest_way_over_the_links_that_there_are_is_taken(links, stops):
    topology = Topology(board(*(one if isinstance(one, str) else one[0] for one in links)).resolve())
    if any(isinstance(one, tuple) for one in links):
        slow = tuple(link(one) if isinstance(one, str) else link(*one) for one in links)
        topology = Topology(board().replace(links=slow).resolve())
    wanted = tuple(topology.home("") if stop == "cpu" else stop for stop in stops)
    assert MemoryGraph(topology).route("ma", "mb", 1 << 20).stops == wanted
    assert MemoryGraph(topology).route("mb", "ma", 1 << 20).stops == wanted[::-1]


def test_what_a_copy_takes_is_the_sum_of_its_links():
    target = board("a-cpu", "b-cpu")
    plan = tt.decompose(CHAIN, target, Costs(), where=WHERE)
    assert len(plan.copies) == 5
    assert plan.prediction.copies == 5 * (1_000_000 + 24_000)  # picoseconds: 1 us each, and 24 bytes at 1 GB/s


def test_a_link_that_only_the_costs_know_is_used():
    plan = tt.decompose(CHAIN, board("a-cpu", "b-cpu"), Costs(links=(LinkCost("a", "b", 1.0, 1e9),)), where=WHERE)
    assert ("r", "ma", "mb") in copies(plan)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(2, 20),
    joined=st.sampled_from([(), ("a-b",), ("a-c",), ("a-b", "b-c")]),
)
def test_no_value_comes_back_and_every_copy_follows_a_link(seed, size, joined):
    """Facts I7: one copy for each value and memory, none to where it was made; the results stay the same."""
    target = board("a-cpu", *joined)
    model = random_graph(size, seed)
    module = tt.IRModule.from_onnx(model)
    sites = ("@a", "@b", "@c", "@cpu")
    where = {call.source: sites[(seed >> (2 * number)) % 4] for number, call in enumerate(module.main.body)}
    plan = tt.decompose(module, target, where=where)
    made = [(copy.value, copy.dst) for copy in plan.copies]
    assert len(set(made)) == len(made)
    graph = MemoryGraph(plan.topology)
    assert not any(graph.route(copy.src, copy.dst, copy.nbytes).stops for copy in plan.copies)
    origin = {output.name: output.scope for call in plan.module.main.body for output in call.outputs}
    assert not any(origin.get(copy.value) == copy.dst for copy in plan.copies)


def sized(seed, size=10):
    """Return a random model of values of five sizes: 4 bytes, 16 KB, 4 MB, nothing, and `n` rows of 16 bytes."""
    rng = random.Random(seed)
    shapes = {"x": (1, 1), "m": (64, 64), "l": (1024, 1024), "z": (0, 4), "s": ("n", 4)}
    values, nodes = {name: [name] for name in shapes}, []
    for index in range(size):
        family = values[rng.choice(list(values))]
        read = [rng.choice(family) for _ in range(rng.randint(1, 2))]
        op = "Add" if len(read) == 2 else rng.choice(("Relu", "Tanh", "Abs"))
        nodes.append(helper.make_node(op, read, [f"v{index}"], name=f"n{index}"))
        family.append(f"v{index}")
    results = [family[-1] for family in values.values() if len(family) > 1]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
    graph = helper.make_graph(nodes, "sized", inputs, outputs)
    return tt.IRModule.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


FLAT = {"a": "ma", "b": "mb", "c": "mc", "cpu": "cpu"}


def random_links(rng):
    """Return links between four memories, some parallel, one-way, or without a number, and measured ones."""
    pairs = [(a, b) for a in FLAT for b in FLAT if a != b]
    stated = [(name, "cpu") for name in ("a", "b", "c")] + [rng.choice(pairs) for _ in range(rng.randint(0, 5))]
    links = [
        tt.Link(
            src=src,
            dst=dst,
            bandwidth_Bps=rng.choice((None, 10**6, 10**9, 10**10)),
            latency_ns=rng.choice((None, 0, 1000, 10**6)),
        )
        for src, dst in stated
    ]
    measured = tuple(
        LinkCost(*rng.choice(pairs), rng.choice((0.0, 5.0, 5000.0)), rng.choice((1e6, 1e9, 1e11)))  # type: ignore[call-arg]
        for _ in range(rng.randint(0, 3))
    )
    return tuple(links), measured


def hop(links, measured, src, dst, nbytes):
    """Return the picoseconds of the fastest link between two memories, None if unknown, and False if there is none."""
    ways = (
        [(one.latency * 1e6, one.bandwidth) for one in measured if (FLAT[one.src], FLAT[one.dst]) == (src, dst)],
        [(one.latency * 1e6, one.bandwidth) for one in measured if (FLAT[one.src], FLAT[one.dst]) == (dst, src)],
        [(one.latency_ns, one.bandwidth_Bps) for one in links if (FLAT[one.src], FLAT[one.dst]) == (src, dst)],
        [(one.latency_ns, one.bandwidth_Bps) for one in links if (FLAT[one.src], FLAT[one.dst]) == (dst, src)],
    )
    number = next((number for number, found in enumerate(ways) if found), None)
    if number is None:
        return False
    scale = 1 if number < 2 else 1000
    known = [
        round(latency * scale) + (round(nbytes * 10**12 / bandwidth) if nbytes else 0)
        for latency, bandwidth in ways[number]
        if latency is not None and (bandwidth or not nbytes)
    ]
    return min(known, default=None)


def flat(links, measured=()):
    costs = Costs(
        sites={"numpy": SiteCost(launch=1.0)},
        links=measured,
        ops=tuple(OpCost("numpy", op=op, time=1.0) for op in ("Relu", "Tanh", "Abs", "Add", "Identity")),
        symbolic_hints={"n": 1000},
    )
    return board().replace(links=links), costs


def nbytes_of(type_):
    return int(np.prod([{"n": 1000}.get(dim, dim) for dim in type_.shape])) * 4


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_the_route_that_is_priced_is_the_route_that_runs(seed):
    """Copies of a plan, priced one by one from the links as they are written, give the predicted time of the copies.

    Each value takes a shortest path between the memory that has it and those that need it, by networkx.
    """
    rng = random.Random(seed)
    links, measured = random_links(rng)
    target, costs = flat(links, measured)
    module = sized(seed)
    where = {call.source: rng.choice(("@a", "@b", "@c", "@cpu")) for call in module.main.body}
    plan = tt.decompose(module, target, costs, where=where)
    home = plan.topology.home("")
    memory = {name: home if domain == "cpu" else domain for name, domain in FLAT.items()}
    FLAT["cpu"] = home
    times = [hop(links, measured, copy.src, copy.dst, nbytes_of(copy.type)) for copy in plan.copies]
    assert False not in [time is not False for time in times]
    assert plan.prediction.copies == sum(time for time in times if time is not None)
    assert len(plan.prediction.unknown) == times.count(None)
    made = {copy.outputs[0].name: copy.inputs[0] for copy in plan.module.main.body if copy.op == COPY}
    for size in {nbytes_of(copy.type) for copy in plan.copies}:
        graph = nx.DiGraph()
        for src in memory.values():
            for dst in memory.values():
                time = False if src == dst else hop(links, measured, src, dst, size)
                if time is not False:
                    graph.add_edge(src, dst, weight=10**30 if time is None else time)
        for call in plan.module.main.body:
            if call.op == COPY and nbytes_of(call.outputs[0].type) == size:
                path = [call.outputs[0].name]
                while path[-1] in made:
                    path.append(made[path[-1]])
                scopes = {value.name: value.scope for one in plan.module.main.body for value in one.outputs}
                stops = [scopes.get(name, home) for name in reversed(path)]
                length = sum(graph.edges[pair]["weight"] for pair in pairwise(stops))
                assert length == nx.shortest_path_length(graph, stops[0], stops[-1], "weight")


def test_a_slow_measured_link_is_no_shortcut():
    """A link of 5 ms and 1 MB/s beside two fast hops: what is predicted is what the copies of the plan take."""
    target, costs = flat((link("a-cpu", 10**10), link("b-cpu", 10**10)), (LinkCost("a", "b", 5000.0, 1e6),))
    x = small(
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Tanh", ["r"], ["y"], name="tanh"),
        shape=(256, 512),
    )
    plan = tt.decompose(x, target, costs, where={"relu": "@a", "tanh": "@b"})
    home = plan.topology.home("")
    assert copies(plan)[1:3] == [("r", "ma", home), ("r", home, "mb")]
    assert plan.prediction.copies == 4 * (1_000_000 + 52_428_800)


def test_of_parallel_links_the_fastest_for_the_size_counts():
    quick = tt.Link(src="a", dst="cpu", bandwidth_Bps=10**6, latency_ns=1)
    wide = tt.Link(src="cpu", dst="a", bandwidth_Bps=10**9, latency_ns=10**5)
    again = tt.Link(src="a", dst="cpu", bandwidth_Bps=10**9, latency_ns=10**5)
    topology = Topology(board("b-cpu").replace(links=(quick, wide, again, link("b-cpu"))).resolve())
    graph, home = MemoryGraph(topology), topology.home("")
    assert graph.route("ma", home, 4).time == 1000 + 4 * 10**6
    assert graph.route("ma", home, 10**6).time == 10**8 + 10**9
    assert graph.route(home, "ma", 4).time == 10**8 + 4000  # the way back is a link of its own


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), slow=st.sampled_from([10**5, 0.001]))
def test_routes_of_many_sizes_are_those_of_each_size(seed, slow):
    """Links of equal lengths, of unknown time, in parallel, and so slow that times do not fit 64 bits."""
    rng = random.Random(seed)
    names = ("a", "b", "c", "d", "cpu")
    ends = [f"{a}-{b}" for a in names for b in names if a != b] * 2
    some = ["a-b", "b-c", "c-d", "d-cpu", *rng.sample(ends, rng.choice((0, 4, 12)))]
    links = [link(one, rng.choice((10**6, 10**9, None)), rng.choice((0, 1000, 10**5, None))) for one in some]
    measured = tuple(
        LinkCost(*one.split("-"), latency=rng.choice((1.0, 100.0)), bandwidth=rng.choice((10**9, 10**7, slow)))
        for one in rng.sample(ends, rng.randint(0, 6))
    )
    topology = Topology(board(children=names[:-1]).replace(links=tuple(links)).resolve())
    graph = MemoryGraph(topology, Costs(links=measured))
    sizes = rng.sample([None, 0, 1, 7, 10, 100, 1000, 10**5, 10**6, 10**9], 8)
    memories = [topology.home(name) for name in names]
    pairs = [(a, b) for a in memories for b in memories]
    groups = routes_by_size(graph, memories, sizes)
    assert sorted(place for group in groups for place in group.places) == list(range(len(sizes)))
    for group in groups:
        times, is_unknown = group.times(pairs)
        for column, place in enumerate(group.places):
            routes = [MemoryGraph(topology, graph.costs).route(*pair, sizes[place]) for pair in pairs]
            assert [route.stops for route in routes] == [group.stops(*pair) for pair in pairs]
            assert [route.time is None for route in routes] == is_unknown.tolist()
            assert [route.time or 0 for route in routes] == times[:, column].tolist()


def test_sizes_that_take_the_same_routes_are_one_group():
    links = (link("a-cpu", 10**10, 1000), link("b-cpu", 10**10, 1000), link("a-b", 10**9, 0))
    graph = MemoryGraph(Topology(board(children=("a", "b")).replace(links=links).resolve()))
    groups = routes_by_size(graph, ("ma", "mb"), [10**6, 1, 10**7, 2, 3])
    assert [(group.places, len(group.stops("ma", "mb"))) for group in groups] == [([0, 2], 1), ([1, 3, 4], 0)]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**9), runtime=st.sampled_from(["python", "processes"]))
def test_in_nested_systems_and_on_clusters_the_copies_of_a_plan_take_what_is_predicted(seed, runtime):
    rng = random.Random(seed)

    def some(ends):
        return link(ends, rng.choice((10**6, 10**9, 10**11)), rng.choice((0, 1000, 10**6)))

    def node():
        inner = tt.Target.parse("[a=numpy,b=numpy,cpu=numpy](host=@cpu)")
        memory = tuple(tt.Memory(name=f"m{name}", bytes=1 << 30, of=(name,)) for name in "ab")
        links = tuple(some(ends) for ends in ("a-cpu", "b-cpu", *rng.sample(("a-b", "a-cpu", "a-b"), 2)))
        return inner.replace(memory=memory, links=links)

    names = ("n0", "n1", "n2")
    nodes = [node().replace(name=name) for name in names]
    links = tuple(some(ends) for ends in ("n0-n1", "n1-n2", *rng.sample(("n0-n2", "n0-n1"), 1)))
    target = tt.Target("composite", targets=nodes, host="@n0/cpu", links=links, runtime=runtime)
    module, costs = sized(seed), flat(())[1]
    where = {call.source: f"@{rng.choice(names)}/{rng.choice(('a', 'b', 'cpu'))}" for call in module.main.body}
    plan = tt.decompose(module, target, costs, where=where)
    edges = [(names.index(one.src), names.index(one.dst), one) for one in links]
    speeds = [(plan.topology.home(names[a]), plan.topology.home(names[b]), one) for a, b, one in edges]
    for name, one in zip(names, nodes, strict=True):
        home = {end: plan.topology.home(f"{name}/{end}") for end in ("a", "b", "cpu")}
        speeds += [(home[inner.src], home[inner.dst], inner) for inner in one.links]
    total = 0
    for copy in plan.copies:
        way = [one for a, b, one in speeds if {a, b} == {copy.src, copy.dst}]
        nbytes = nbytes_of(copy.type)
        total += min(one.latency_ns * 1000 + round(nbytes * 10**12 / one.bandwidth_Bps) for one in way)
    assert plan.prediction.copies == total
    assert not plan.prediction.unknown


def test_links_of_a_latency_alone_are_known_for_empty_values_alone():
    latency = tt.Link(src="a", dst="cpu", latency_ns=7)
    bandwidth = tt.Link(src="b", dst="cpu", bandwidth_Bps=10**9)
    graph = MemoryGraph(Topology(board().replace(links=(latency, bandwidth)).resolve()))
    home = graph.route("ma", "mb", 0).stops[0]
    assert graph.route("ma", home, 0).time == 7000
    assert graph.route("ma", home, 1).time is None
    assert graph.route("mb", home, 0).time is None
    assert graph.route("ma", home, None).time is None


def test_memories_that_nothing_joins_to_the_driver_are_rejected_by_name():
    with pytest.raises(InfeasibleError) as caught:
        tt.decompose(CHAIN, board("a-cpu", "b-c"))
    assert "no link joins memory 'mb' of @b to memory 'cpu' of the driver @cpu" in str(caught.value)
    assert len(caught.value.problems) == 2
    plan = tt.decompose(CHAIN, board("a-cpu", "b-c"), Costs(links=(LinkCost("a", "b", 1.0, 1e9),)), where={"*": "@c"})
    assert [dst for _, _, dst in copies(plan)][:3] == ["ma", "mb", "mc"]


def test_devices_whose_links_join_only_each_other_are_attached_to_their_host():
    plan = tt.decompose(CHAIN, tt.Target.parse("aws/p4d.24xlarge"), where={"*": "@gpu.1", "relu": "@gpu.0"})
    assert {copy.src for copy in plan.copies} | {copy.dst for copy in plan.copies} >= {"gpu.0/hbm", "gpu.1/hbm"}


STAR = board("a-cpu", "b-cpu", "c-cpu")


def star_costs(rng):
    ops = tuple(OpCost(name, op=op, time=float(rng.randint(1, 9))) for name in FLAT for op in STAR_OPS)
    links = tuple(LinkCost(name, "cpu", float(rng.randint(1, 9)), 24e6) for name in "abc")
    return Costs(sites={"numpy": SiteCost(launch=float(rng.randint(0, 2)))}, links=links, ops=ops)


STAR_OPS = ("Relu", "Tanh", "Abs", "Neg", "Sigmoid", "Add", "Mul", "Sub")


def star_total(module, costs, sites, results):
    """Return the microseconds of a choice of sites: hops that a value shares on its way count once, calls as waves."""
    took = {frozenset((link.src, link.dst)): link.latency + 1 for link in costs.links}
    times = {(rule.site, rule.op): rule.time for rule in costs.ops}
    body = module.main.body
    at = {"x": "cpu"} | {call.outputs[0].name: site for call, site in zip(body, sites, strict=True)}
    needed = {(name, site) for call, site in zip(body, sites, strict=True) for name in call.inputs}
    needed |= {(name, "cpu") for name in results}
    hops = set()
    for name, site in [pair for pair in needed if at[pair[0]] != pair[1]]:
        stops = [at[name], *(["cpu"] if "cpu" not in (at[name], site) else []), site]
        hops |= {(name, *pair) for pair in pairwise(stops) if pair[0] != pair[1]}
    return sum(took[frozenset(pair)] for _, *pair in hops) + sum(
        times[site, call.kind] for call, site in zip(body, sites, strict=True)
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9), sites=st.sampled_from(["ab", "abc"]), tries=st.booleans())
def test_a_bound_is_true_where_copies_share_links(seed, sites, tries):
    """Copies from one accelerator to others share the link to the host; no choice is below the bound."""
    rng = random.Random(seed)
    costs = star_costs(rng)
    costs = Costs(sites={"numpy": SiteCost(launch=0.0)}, links=costs.links, ops=costs.ops)
    module = tt.IRModule.from_onnx(random_graph(rng.randint(1, 6), seed))
    where = {"*": "!@cpu&!@c" if sites == "ab" else "!@cpu"}
    with pytest.MonkeyPatch.context() as patch:
        if not tries:
            patch.setattr("tvmtarget.partition.placement.labeling_search.MAX_ENUMERATED", 0)
        plan = tt.decompose(module, STAR, costs, where=where)
    least = min(
        star_total(module, costs, choice, module.main.results)
        for choice in product(sites, repeat=len(module.main.body))
    )
    chosen = [plan.site_of(call.source) for call in module.main.body]
    assert plan.prediction.total == star_total(module, costs, chosen, module.main.results) * 10**6
    assert plan.prediction.lower_bound <= least * 10**6
    if tries:
        assert plan.prediction.total == least * 10**6
