"""Laws of choosing sites by cost: for any graph and costs, no choice of sites is better than the one taken."""

import doctest
import json
import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import DIGITS, LIGHT, light, random_graph, small
from onnx import TensorProto, helper

import tvmtarget as tt
from tvmtarget.errors import ModelError, TargetError, UnknownNameError
from tvmtarget.partition.costs import cost_file
from tvmtarget.partition.costs.cost_file import load_costs, write_costs
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost, SubgraphCost
from tvmtarget.partition.costs.memory_graph import MemoryGraph
from tvmtarget.partition.costs.work import FORMS
from tvmtarget.partition.flat_program import normalise
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph, LabeledGraph
from tvmtarget.target.topology import Topology

ROOT = Path(__file__).parents[2]

# Three CPUs with a memory of their own each; the driver is in that of a.
APART = tt.Target.parse("[a=numpy,b=onnxruntime,c=llvm](host=@a)").replace(
    memory=(tt.Memory(name="mb", of=("b",)), tt.Memory(name="mc", of=("c",)))
)
PAIR = tt.Target.parse("[a=numpy,b=onnxruntime](host=@a)").replace(memory=(tt.Memory(name="mb", of=("b",)),))
SITES = ("a", "b", "c")
KINDS = ("Relu", "Tanh", "Abs", "Neg", "Sigmoid", "Add", "Mul", "Sub")


def random_costs(seed, sites=SITES):
    """Return a time per operator and site, launches, and links between all sites; whole microseconds."""
    rng = random.Random(seed)
    ops = [OpCost(site, op=kind, time=float(rng.randint(1, 60))) for site in sites for kind in KINDS]
    links = [
        LinkCost(a, b, latency=float(rng.randint(1, 30)), bandwidth=24e6)
        for i, a in enumerate(sites)
        for b in sites[i + 1 :]
    ]
    launches = {site: SiteCost(launch=float(rng.randint(0, 12))) for site in sites}
    return Costs(sites=launches, links=tuple(links), ops=tuple(ops))


def recount(module, costs, labels, sites=SITES, called=None):
    """Return what a choice of sites takes, in microseconds, written anew: every value has 24 bytes.

    `called` are the sites of the functions; without it, those of waves.
    """
    body = module.main.body
    times = {(rule.site, rule.op): rule.time for rule in costs.ops}
    direct = {frozenset((link.src, link.dst)): link.latency + 1 for link in costs.links}

    def hops(src, dst):
        """Hops cost a latency and a microsecond each; with three memories there is at most one stop between."""
        ways = [[(src, dst)], *([(src, by), (by, dst)] for by in sites if by not in (src, dst))]
        return [] if src == dst else min(ways, key=lambda way: sum(direct[frozenset(pair)] for pair in way))

    home = {"x": "a"} | {call.outputs[0].name: sites[label] for call, label in zip(body, labels, strict=True)}
    needed = {(name, sites[label]) for call, label in zip(body, labels, strict=True) for name in call.inputs}
    needed |= {(name, "a") for name in module.main.results}
    producer = {call.outputs[0].name: index for index, call in enumerate(body)}
    successors = [[] for _ in body]
    for index, call in enumerate(body):
        for name in set(call.inputs) & producer.keys():
            successors[producer[name]].append(index)
    subgraphs = LabeledGraph(AtomGraph(successors), labels).fused()
    total = sum(times[sites[label], call.kind] for call, label in zip(body, labels, strict=True))
    copied = {(name, *pair) for name, site in needed for pair in hops(home[name], site)}  # shared hops count once
    total += sum(direct[frozenset(pair)] for _, *pair in copied)
    called = [sites[labels[subgraph[0]]] for subgraph in subgraphs] if called is None else called
    return total + sum(costs.sites[site].launch for site in called)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(0, 25), seed=st.integers(0, 10**6))
def test_what_is_predicted_is_what_the_functions_and_copies_of_the_plan_take(size, seed):
    module, costs = tt.IRModule.from_onnx(random_graph(size, seed)), random_costs(seed)
    rng = random.Random(seed)
    labels = [rng.randrange(3) for _ in module.main.body]
    where = {call.source: f"@{SITES[label]}" for call, label in zip(module.main.body, labels, strict=True)}
    plan = tt.decompose(module, APART, costs, where=where)
    called = [subgraph.site for subgraph in plan.subgraphs]
    assert plan.prediction.total == recount(module, costs, labels, called=called) * 10**6
    assert plan.prediction.total <= recount(module, costs, labels) * 10**6
    assert plan.prediction.unknown == ()


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 7), seed=st.integers(0, 10**6))
def test_small_programs_take_the_least_of_all_choices(size, seed):
    module, costs = tt.IRModule.from_onnx(random_graph(size, seed)), random_costs(seed)
    best = min(recount(module, costs, labels) for labels in product(range(3), repeat=len(module.main.body)))
    prediction = tt.decompose(module, APART, costs).prediction
    assert prediction.total <= best * 10**6
    assert prediction.lower_bound <= best * 10**6
    assert prediction.lower_bound <= prediction.total


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 60), seed=st.integers(0, 10**6))
def test_the_choice_by_cost_is_never_slower_than_the_one_by_preference(size, seed):
    module, costs = tt.IRModule.from_onnx(random_graph(size, seed)), random_costs(seed)
    prediction = tt.decompose(module, APART, costs).prediction
    sites = tt.decompose(module, APART)
    labels = [SITES.index(sites.site_of(call.source)) for call in module.main.body]
    assert prediction.lower_bound <= prediction.total <= recount(module, costs, labels) * 10**6


@pytest.mark.parametrize("size", [14, 40])
def test_two_sites_without_launches_reach_the_bound(size):
    for seed in range(20):
        costs = random_costs(seed, SITES[:2])
        costs = Costs({site: SiteCost(launch=0.0) for site in SITES[:2]}, costs.links, costs.ops)
        prediction = tt.decompose(tt.IRModule.from_onnx(random_graph(size, seed)), PAIR, costs).prediction
        assert prediction.total == prediction.lower_bound


def shuffled(model, seed):
    """Return the model with its nodes in another valid order."""
    rng = random.Random(seed)
    waiting, ready, order = list(model.graph.node), {"x"}, []
    while waiting:
        node = rng.choice([node for node in waiting if set(node.input) <= ready])
        waiting.remove(node)
        order.append(node)
        ready.update(node.output)
    copy = type(model).FromString(model.SerializeToString())
    del copy.graph.node[:]
    copy.graph.node.extend(order)
    return copy


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_the_order_of_operations_changes_next_to_nothing(size, seed):
    model, costs = random_graph(size, seed), random_costs(seed)
    one = tt.decompose(tt.IRModule.from_onnx(model), APART, costs).prediction
    other = tt.decompose(tt.IRModule.from_onnx(shuffled(model, seed)), APART, costs).prediction
    assert abs(one.total - other.total) <= 0.02 * one.total


def test_the_same_costs_give_the_same_bytes_in_every_process(subprocess_with_hash_seed):
    code = (
        "import sys; sys.path[:0] = ['tests', 'tests/partition']; from models import random_graph\n"
        "from test_costs import APART, random_costs; import tvmtarget as tt\n"
        "p = tt.decompose(tt.IRModule.from_onnx(random_graph(60, 3)), APART, random_costs(5))\n"
        "print(p.module, p.summary())"
    )
    assert subprocess_with_hash_seed(code, "1") == subprocess_with_hash_seed(code, "2")


BOARD = {
    "schema": "tvmtarget.cost/1",
    "unit": "us",
    "sites": {
        "npu": {"launch": 20, "flops": {"float32": 2e12}, "mem_bw": 1e11, "roofline": 0.5, "domain": "hbm"},
        "cpu": {"launch": 1, "flops": {"float32": 1e11}, "mem_bw": 2e10, "roofline": 0.5},
    },
    "links": [{"src": "cpu", "dst": "hbm", "latency": 10, "bandwidth": 1e10, "from": "measured: bench, 2026-11"}],
    "symbolic_hints": {"batch": 4},
}
EDGE = tt.Target.parse("[npu=onnxruntime,cpu=numpy](host=@cpu)").replace(memory=(tt.Memory(name="sram", of=("npu",)),))


@pytest.mark.parametrize("name", LIGHT)
def test_heavy_models_go_to_the_fast_device_as_a_whole_and_nothing_of_them_is_unknown(name):
    plan = tt.decompose(tt.IRModule.from_onnx(light(name)), EDGE, BOARD)
    assert {subgraph.site for subgraph in plan.subgraphs} == {"npu"}
    assert plan.prediction.unknown == ()


def test_a_model_too_small_for_the_way_there_stays_at_home():
    plan = tt.decompose(tt.IRModule.from_onnx(small(helper.make_node("Relu", ["x"], ["y"], name="r"))), EDGE, BOARD)
    assert plan.site_of("r") == "cpu"
    assert "copies: 0" in plan.summary()


def test_measurements_win_over_rooflines_and_the_more_precise_one_over_the_rest():
    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(module, EDGE, BOARD)
    structure = plan.explain("fc1").to_json()["structure"]
    records = [
        OpCost("npu", op="Gemm", time=500.0),
        OpCost("npu", structure=structure, time=1.0, origin="bench"),
        OpCost("npu", op="Gemm", dtype="float32", time=400.0),
    ]
    after = plan.with_costs(records)
    assert "1 us (stated, bench)" in str(after.explain("fc1"))
    assert "400 us (stated)" in str(after.explain("fc2"))


@pytest.mark.parametrize("op", ["Gelu", "com.microsoft::Gelu"])
def test_a_cost_names_an_operator_as_a_where_rule_does(op):
    module = tt.IRModule.parse("""func @main(%x: float32[4]) opsets(onnx=17, com.microsoft=1) {
      %y: float32[4] = com.microsoft::Gelu(%x) as "gelu"
      return %y
    }""")
    plan = tt.decompose(module, "[ort=onnxruntime,cpu=numpy]", where={f"op:{op}": "ort"})
    costed = plan.with_costs([OpCost("ort", op=op, time=7.0)])
    assert "7 us (stated)" in str(costed.explain("gelu"))
    assert "costs of operator" not in costed.summary()


def test_preferences_come_first_and_requirements_are_met():
    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(module, EDGE, BOARD, where={"op:Conv": "numpy?", "fc1": "@npu"})
    assert {plan.site_of(f"conv{number}") for number in (1, 2, 3)} == {"cpu"}
    assert plan.site_of("fc1") == "npu"


def test_what_is_unknown_is_listed_and_moves_nothing_from_a_preferred_site():
    module = tt.IRModule.from_onnx(DIGITS)
    unlinked = {key: value for key, value in BOARD.items() if key != "links"}
    plan = tt.decompose(module, EDGE, unlinked)
    assert {subgraph.site for subgraph in plan.subgraphs} == {"npu"}
    assert [one.split(":")[0] for one in plan.prediction.unknown] == [
        "copy of 'input' from cpu to sram",
        "copy of 'logits' from sram to cpu",
    ]
    cpu_first = tt.Target.parse("[cpu=numpy,npu=onnxruntime](host=@cpu)").replace(memory=EDGE.memory)
    assert {subgraph.site for subgraph in tt.decompose(module, cpu_first, unlinked).subgraphs} == {"cpu"}
    forced = tt.decompose(module, EDGE, unlinked, where={"fc1": "@npu"})
    assert "unknown: copy of" in forced.summary()
    assert "no link says what that takes" in forced.summary()
    blind = tt.decompose(module, EDGE, Costs(symbolic_hints={"batch": 4}))
    assert "the peak of @npu for float32 is not known" in str(blind.explain("fc1"))
    strange = tt.decompose(module, "[gpu=cuda,cpu=numpy]", "roofline")
    assert "not known: what a call on @gpu (cuda) takes: 10 us assumed" in strange.summary()
    assert "@cpu (numpy) takes" not in strange.summary()


def test_symbolic_dimensions_have_the_hinted_sizes():
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"], name="r")],
            "open",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1000])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1000])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    module = tt.IRModule.from_onnx(model)
    unsized = BOARD | {"symbolic_hints": {}}
    assert "the size of 'x' is not known" in str(tt.decompose(module, EDGE, unsized).explain("r"))
    hinted = tt.decompose(module, EDGE, BOARD | {"symbolic_hints": {"n": 5}})
    assert hinted.prediction.ops == 2 * 5 * 4000 / 2e10 / 0.5 * 1e12


def test_the_target_gives_peaks_and_links_that_no_file_states():
    tree = tt.Target(
        "composite",
        targets=[
            tt.Target(
                "cuda",
                {"arch": "sm_80", "peak-gflops-float32": 19500},
                memory=[tt.Memory(name="hbm", bytes=40 * 10**9, bandwidth_Bps=1555 * 10**9)],
            ),
            tt.Target("llvm", {"mtriple": "x86_64-linux-gnu", "mcpu": "haswell", "num-cores": 4, "clock-mhz": 3000}),
        ],
        host="@llvm",
        links=[tt.Link(src="llvm", dst="cuda", bandwidth_Bps=16 * 10**9, latency_ns=5000)],
        memory=[tt.Memory(name="ddr", bandwidth_Bps=25 * 10**9, of=("llvm",))],
    )
    module = tt.IRModule.from_onnx(light("resnet50"))
    plan = tt.decompose(module, tree, "roofline")
    assert {subgraph.site for subgraph in plan.subgraphs} == {"cuda"}
    assert plan.prediction.unknown == ()
    # 150528 floats there and 1000 back, at 16 GB/s, 5 us each time
    assert plan.prediction.copies == round((150528 + 1000) * 4 / 16e9 * 1e12) + 10 * 10**6


def test_deeper_trees_are_never_slower_by_cost_than_by_preference():
    deep = tt.Target.parse("[x=[a=numpy,b=onnxruntime](host=@a),y=[c=llvm,d=numpy](host=@c)](host=@x/a)")
    costs = Costs(
        sites={"x/a": SiteCost(launch=1.0), "x/b": SiteCost(launch=2.0), "y/c": SiteCost(launch=0.0)},
        ops=tuple(
            OpCost(site, op=kind, time=time)
            for site, time in (("numpy", 9.0), ("onnxruntime", 4.0), ("llvm", 2.0))
            for kind in KINDS
        ),
        links=(LinkCost("x/a", "y/c", 3.0, 24e6),),
    )
    for seed in range(10):
        module = tt.IRModule.from_onnx(random_graph(30, seed))
        by_cost = tt.decompose(module, deep, costs)
        pins = {call.source: f"@{tt.decompose(module, deep).site_of(call.source)}" for call in module.main.body}
        assert by_cost.prediction.total <= tt.decompose(module, deep, costs, where=pins).prediction.total


def test_cost_files_are_read_and_written_back(tmp_path):
    costs = load_costs(
        BOARD
        | {
            "ops": [
                {
                    "match": {"op": "Conv", "dtype": "float16", "shape": [1, 8]},
                    "site": "npu",
                    "time": {"roofline": 0.6},
                },
                {"match": {"structure": "sha256:9ab"}, "site": "npu", "time": 132.5, "stdev": 2.1, "from": "log"},
                {
                    "match": {"op": "Conv", "form": "depthwise"},
                    "site": "npu",
                    "time": {"roofline": [[1e6, 0.2], [1e8, 0.5]]},
                },
            ],
            "default": {"roofline": 0.2, "launch": 3, "doubt": 0.1},
            "symbolic_hints": {"batch": 8},
        }
    )
    path = tmp_path / "board.json"
    path.write_text(json.dumps(write_costs(costs)))
    assert load_costs(path) == costs
    assert load_costs("roofline") == Costs()


def _shares(shares, **match):
    return {"ops": [{"match": {"op": "Conv"} | match, "site": "npu", "time": {"roofline": shares}}]}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": "tvmtarget.cost/2"}, "costs: schema: it should be 'tvmtarget.cost/1', not 'tvmtarget.cost/2'"),
        ({"unit": "min"}, "costs: unit: it should be one of ns, us, ms, s, nJ, uJ, mJ, J, not 'min'"),
        ({"site": {}}, "costs: no field 'site'; did you mean 'sites'?"),
        ({"sites": {"npu": {"launch": -1}}}, "costs: sites.npu.launch: it should be a number, 0 or more, not -1"),
        ({"sites": {"npu": {"mem_bw": 0}}}, "costs: sites.npu.mem_bw: it should be a number above 0, not 0"),
        ({"sites": {"npu": {"mem_bw": True}}}, "costs: sites.npu.mem_bw: it should be a number above 0, not True"),
        ({"sites": {"npu": {"flops": {"float31": 1}}}}, "no field 'float31'; did you mean 'float32'"),
        ({"sites": {"npu": {"roofline": 1.5}}}, "a share of the peaks is at most 1, not 1.5"),
        ({"sites": []}, "costs: sites: it should be an object, not []"),
        ({"links": [{"src": "cpu"}]}, "costs: links[0]: it needs 'dst', 'latency', 'bandwidth'"),
        ({"ops": [{"match": {}, "site": "npu", "time": 1}]}, "costs: ops[0].match: it needs 'op' or 'structure'"),
        ({"ops": [{"match": {"op": "Conv"}, "site": "npu", "time": "1"}]}, "ops[0].time: it should be a number, 0 or"),
        ({"ops": [{"match": {"op": "Conv"}, "site": "npu", "time": {}}]}, "costs: ops[0].time: it needs 'roofline'"),
        ({"ops": {}}, "costs: ops: it should be a list, not {}"),
        (_shares([[1, 0.5], [2]]), "costs: ops[0].time.roofline[1]: it should be a size and a share, not [2]"),
        (_shares([[1, 2]]), "costs: ops[0].time.roofline[0]: a share of the peaks is at most 1, not 2"),
        (_shares([[2, 0.5], [1, 0.5]]), "the shares of 'Conv' on 'npu' are to be by size, the smallest first"),
        (_shares([]), "the shares of 'Conv' on 'npu' are to be by size, the smallest first"),
        (_shares(0.5, form="deepwise"), "costs: ops[0].match.form: no form 'deepwise'; did you mean 'depthwise'?"),
        ({"symbolic_hints": {"n": 1.5}}, "costs: symbolic_hints.n: it should be a whole number, 0 or more, not 1.5"),
        (
            {"symbolic_hints": {"n": 10**400}},
            "symbolic_hints.n: it should be a whole number, 0 or more and at most 1e+18",
        ),
        ({"links": [{"src": "npu", "dst": "cpu", "latency": 1, "bandwidth": None}]}, "links[0]: it needs 'bandwidth'"),
        (
            {"regions": [{"match": {"structure": "s1:0"}, "site": "npu", "time": None}]},
            "regions[0]: it needs 'time'",
        ),
        ({"ops": [{"match": None, "site": "npu", "time": 1}]}, "costs: ops[0]: it needs 'match'"),
    ],
)
def test_wrong_costs_are_rejected_with_place_and_remedy(change, text):
    with pytest.raises(TargetError) as caught:
        load_costs(BOARD | change)
    assert text in str(caught.value)


def test_all_problems_are_reported_at_once():
    with pytest.raises(TargetError) as caught:
        load_costs(BOARD | {"unit": "hours", "sites": {"npu": {"lunch": 1}}, "default": 3})
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sites": {"nqu": {}}}, "the costs name site 'nqu', which is no node of the target or kind; did you mean"),
        ({"links": [{"src": "cqu", "dst": "npu", "latency": 1, "bandwidth": 1}]}, "ends at 'cqu', which is no site or"),
        ({"sites": {"npu": {"domain": "cpu"}}}, "ends at 'cpu', which means memories 'cpu' and 'sram'; name the site"),
    ],
)
def test_costs_of_sites_that_are_not_there_are_rejected(change, text):
    with pytest.raises(UnknownNameError) as caught:
        tt.decompose(tt.IRModule.from_onnx(DIGITS), EDGE, BOARD | change)
    assert text in str(caught.value)


def test_files_that_are_no_costs_are_rejected_by_name(tmp_path):
    with pytest.raises(TargetError, match="costs are data, a JSON file or 'roofline', not 3"):
        load_costs(3)
    with pytest.raises(TargetError, match="no cost file"):
        load_costs(tmp_path / "none.json")
    with pytest.raises(TargetError, match=r"on the command line only; pass .*measure_rates\(target\).costs"):
        load_costs("measured")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(TargetError, match="is not JSON"):
        load_costs(str(tmp_path / "bad.json"))
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(TargetError, match="it should be an object"):
        load_costs(tmp_path / "list.json")


def test_the_summary_and_the_explanation_of_a_plan_by_cost(golden):
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), EDGE, BOARD, where={"fc2": "@npu"})
    golden("partition/plan_by_cost.golden", f"{plan.summary()}\n{plan.explain('conv2')}\n{plan.explain('fc2')}\n")


def test_work_is_counted_from_shapes():
    from tvmtarget.partition.costs.work import work_of

    program = normalise(tt.IRModule.from_onnx(DIGITS), tt.Target("numpy"), {})
    works = {call.source: work_of(program.op(index), {"batch": 4}) for index, call in enumerate(program.body)}
    shapes = {call.source: program.function.types[call.outputs[0].name].shape for call in program.body}
    weights = {
        call.source: program.function.types[call.inputs[1]].shape for call in program.body if call.kind == "Conv"
    }
    for name, (_, channels, height, width) in weights.items():
        batch, filters, rows, columns = shapes[name]
        assert batch == "batch"
        assert works[name].flops == 2 * 4 * filters * rows * columns * channels * height * width
        assert works[name].size == 2 * filters * channels * height * width
    assert works["relu1"].nbytes == 2 * 4 * works["relu1"].flops


def test_the_document_on_costs(monkeypatch):
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(ROOT / "docs" / "costs.md"), module_relative=False)
    assert tried
    assert not failed
    failed, tried = doctest.testmod(cost_file)
    assert tried
    assert not failed


def test_copies_take_the_cheapest_way_over_links_and_a_link_leads_both_ways():
    tree = APART.replace(links=(tt.Link(src="a", dst="c", bandwidth_Bps=10**6, latency_ns=100_000),))
    costs = Costs(links=(LinkCost("a", "b", 10.0, 1e6), LinkCost("b", "c", 20.0, 1e6)))
    graph = MemoryGraph(Topology(tree.resolve()), costs)
    home = {site: Topology(tree.resolve()).home(site) for site in SITES}
    assert graph.route(home["a"], home["c"], 1).time == (10 + 1 + 20 + 1) * 10**6
    assert graph.route(home["a"], home["c"], 100).time == (100 + 100) * 10**6
    assert graph.route(home["c"], home["a"], 1).time == graph.route(home["a"], home["c"], 1).time
    assert graph.route(home["b"], home["b"], 7).time == 0
    assert MemoryGraph(Topology(APART.resolve())).route(home["a"], home["b"], 1).time is None


FACTS = """{"schema": "tvmtarget.cost/1", "unit": "us",
 "sites": {"gpu": {"launch": 6.0, "flops": {"float16": 1.2e14, "float32": 2e13}, "mem_bw": 8.0e11, "domain": "hbm0",
                   "capacity": 8589934592},
           "cpu": {"launch": 0.0, "flops": {"float32": 8e11}, "mem_bw": 6e10, "domain": "ddr"}},
 "links": [{"src": "ddr", "dst": "hbm0", "latency": 8.0, "bandwidth": 1.2e10, "from": "measured:pcie-2026-09"}],
 "ops":   [{"match": {"op": "Conv", "dtype": "float16"}, "site": "gpu", "time": {"roofline": 0.6}},
           {"match": {"structure": "sha256:9ab"}, "site": "npu", "time": 132.5, "stdev": 2.1, "from": "tuning-record"}],
 "regions": [{"match": {"structure": "sha256:77c"}, "site": "tensorrt", "time": 410.0, "from": "measured"}],
 "default": {"roofline": 0.3}, "symbolic_hints": {"batch": 8, "seq": 512}}"""


def test_the_file_of_the_facts_is_read_and_written_back():
    costs = load_costs(json.loads(FACTS))
    assert costs.subgraphs == (SubgraphCost("tensorrt", "sha256:77c", 410.0, origin="measured"),)
    assert load_costs(write_costs(costs)) == costs
    tree = tt.Target.parse("[gpu=cuda,npu=onnxruntime,tensorrt=onnxruntime,cpu=numpy](host=@cpu)")
    tree = tree.replace(memory=(tt.Memory(name="hbm", of=("gpu",)),))
    assert tt.decompose(tt.IRModule.from_onnx(DIGITS), tree, json.loads(FACTS)).prediction.launches == 6_000_000


@pytest.mark.parametrize(("unit", "factor"), [("ns", 1e-3), ("us", 1.0), ("ms", 1e3), ("s", 1e6)])
def test_times_are_read_in_the_unit_of_the_file(unit, factor):
    """I17: a scale of its own changes no decision; rates are by the second in every unit."""
    data = {
        "schema": "tvmtarget.cost/1",
        "unit": unit,
        "sites": {"a": {"launch": 3, "mem_bw": 5e9}},
        "links": [{"src": "a", "dst": "b", "latency": 2, "bandwidth": 1e9}],
        "ops": [{"match": {"op": "Relu"}, "site": "a", "time": 7, "stdev": 1}],
        "regions": [{"match": {"structure": "s1:0"}, "site": "a", "time": 11}],
        "default": {"launch": 4},
    }
    costs = load_costs(data)
    times = (costs.sites["a"].launch, costs.links[0].latency, costs.ops[0].time, costs.ops[0].stdev)
    assert (*times, costs.subgraphs[0].time, costs.launch) == tuple(number * factor for number in (3, 2, 7, 1, 11, 4))
    assert (costs.sites["a"].mem_bw, costs.links[0].bandwidth) == (5e9, 1e9)


def test_numbers_out_of_range_are_rejected_wherever_they_come_from():
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), PAIR, "roofline")
    for wrong, problem in (
        (
            [OpCost("b", op="Conv", time=float("nan"))],
            "time of 'Conv' on 'b' is nan; it should be a number from 0 to 1e",
        ),
        ([OpCost("b", op="Conv", time=-1.0)], "time of 'Conv' on 'b' is -1.0; it should be"),
        ([OpCost("b", op="Conv")], "the cost of 'Conv' on 'b' has neither 'time' nor 'roofline'"),
        ([OpCost("b", time=1.0)], "a cost of ops on 'b' says nothing of which; give 'op' or 'structure'"),
        ([SubgraphCost("b", "s1:0", float("inf"))], "time of subgraph 's1:0' is inf"),
        (
            [OpCost("b", op="Conv", roofline=0.5, stdev=1.0)],
            "has a 'stdev' without a 'time'; the error of shares is the 'doubt' of 'default'",
        ),
        (["x"], "a measurement is an OpCost or a SubgraphCost, not 'x'"),
        ([OpCost("b", op="Conv", time="1")], "time of 'Conv' on 'b' is '1'; it should be a number"),
        ([OpCost("b", op="Conv", time=1.0, stdev=float("nan"))], "stdev of 'Conv' on 'b' is nan"),
        ([OpCost("b", op="Conv", dtype="float31", time=1.0)], "no element type 'float31'; did you mean 'float32'"),
        ([OpCost("b", op="Conv", shape=(1, -1), time=1.0)], "a dimension of 'Conv' on 'b' is -1"),
        ([OpCost("b", op="Conv", roofline=((1.0,),))], "the shares of 'Conv' on 'b' are pairs of a size and a share"),
        ([OpCost(3, op="Conv", time=1.0)], "the site, op or structure of 'Conv' on 3 is 3; it should be text"),
        (Costs(sites={"a": 3}), "3 is no SiteCost"),
        (Costs(sites={"a": SiteCost(capacity=-1)}), "capacity of site 'a' is -1; it should be a whole number"),
        (Costs(sites={"a": SiteCost(flops={"half": 1.0})}), "flops of site 'a': no element type 'half'"),
        (Costs(sites={"a": SiteCost(flops=3)}), "flops of site 'a' is 3; it should be rates by element type"),
        (Costs(roofline=float("nan")), "roofline is nan; it should be a number from 1e-09 to 1"),
        (Costs(symbolic_hints={"batch": -1}), "the size of 'batch' is -1; it should be a whole number"),
        (Costs(links=(LinkCost("a", "b", 1.0, 1e-320),)), "bandwidth of link 'a' to 'b' is 1e-320"),
        ({"schema": "tvmtarget.cost/1", "default": {"launch": 10**400}}, "default.launch: it should be .* at most 1e"),
        (
            {"schema": "tvmtarget.cost/1", "unit": "min"},
            "unit: it should be one of ns, us, ms, s, nJ, uJ, mJ, J, not 'min'",
        ),
    ):
        with pytest.raises(TargetError, match=problem):
            plan.with_costs(wrong)


@pytest.mark.parametrize("dims", [[2**63 - 1], [2**63 - 1] * 20, ["batch"] * 20])
def test_sizes_beyond_what_a_computer_has_are_no_trouble(dims):
    nodes = (("Relu", "x", "p"), ("Tanh", "p", "y"))
    model = small(*(helper.make_node(op, [i], [o], name=o) for op, i, o in nodes), shape=dims)
    rates = {site: SiteCost(launch=1.0, flops={"float32": 1e9}, mem_bw=1e9) for site in ("a", "b")}
    costs = Costs(rates, (LinkCost("a", "mb", 1.0, 1e9),), symbolic_hints={"batch": 10**18})
    for wanted in (None, costs):
        plan = tt.decompose(tt.IRModule.from_onnx(model), PAIR, wanted, where={"p": "@b"})
        assert plan.site_of("p") == "b"
        assert plan.explain("p").to_json()


def test_costs_name_leaves_by_path_with_replicas_or_without_kind_and_system():
    machine = "[soc=[npu=onnxruntime(count=2),cpu=numpy](host=@cpu,executor=graph),ctl=numpy](host=@ctl,count=2)"
    tree = f"[n={machine},head=numpy](host=@head)"

    def launches(*names):
        sites = {name: SiteCost(launch=float(number)) for number, name in enumerate(names, 1)}
        plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), tree, Costs(sites))
        return {leaf.path: plan.estimates.launch(leaf) / 10**6 for leaf in plan.topology.leaves()}

    assert launches("n.0/soc/npu.1", "n/soc/npu.0", "n/soc/npu", "n.0", "numpy", "n", "") == {
        "n.0/soc/npu.0": 2,
        "n.0/soc/npu.1": 1,
        "n.0/soc/cpu": 5,
        "n.0/ctl": 5,
        "n.1/soc/npu.0": 2,
        "n.1/soc/npu.1": 3,
        "n.1/soc/cpu": 5,
        "n.1/ctl": 5,
        "head": 5,
    }
    assert set(launches("n.1/soc", "n").items()) >= {("n.1/soc/npu.0", 1), ("n.1/ctl", 2), ("n.0/soc/cpu", 2)}


def test_a_link_within_one_memory_is_reported_not_to_count():
    shared = tt.Target.parse("[a=numpy,b=onnxruntime](host=@a)")
    costs = Costs({"a": SiteCost(domain="ddr"), "b": SiteCost(domain="hbm")}, (LinkCost("ddr", "hbm", 1.0, 1e9),))
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), shared, costs)
    assert "the link from 'ddr' to 'hbm': not counted, as both are memory ':cpu' in the target" in plan.summary()


def test_a_measured_function_counts_as_it_was_measured():
    """Facts: records of subgraphs only re-score plans; an engine that fuses is faster than its operations."""
    nodes = (("Relu", "x", "p"), ("Tanh", "p", "q"), ("Relu", "q", "y"))
    model = small(*(helper.make_node(op, [i], [o], name=o) for op, i, o in nodes), shape=(2, 3))
    module = tt.IRModule.from_onnx(model)
    times = {"a": 10.0, "b": 4.0}
    ops = tuple(OpCost(site, op=kind, time=time) for site, time in times.items() for kind in ("Relu", "Tanh"))
    links = (LinkCost("a", "b", latency=1.0, bandwidth=24e6),)
    sites = {site: SiteCost(launch=1.0) for site in times}
    plan = tt.decompose(module, PAIR, Costs(sites=sites, links=links, ops=ops))
    assert (set(plan.sites().values()), plan.prediction.total) == ({"b"}, 17_000_000)
    whole = tt.decompose(module, PAIR, where={"*": "@a"}).tasks()[0].structure
    fused = plan.with_costs([SubgraphCost("a", whole, 12.0)])
    assert (set(fused.sites().values()), fused.prediction.total, fused.prediction.lower_bound) == (
        {"a"},
        12_000_000,
        None,
    )
    slower = plan.with_costs([SubgraphCost("b", plan.tasks()[0].structure, 400.0)])
    assert set(slower.sites().values()) == {"a"}


def test_a_value_in_a_memory_of_several_sites_is_computed_where_that_takes_least():
    module = tt.IRModule.parse("""func @main(%x: float32[2]) -> (float32[2]) opsets(onnx=17) {
      %y: float32[2] in ":cpu" = onnx.Relu(%x) as r
      return %y
    }""")
    costs = Costs(ops=(OpCost("a", op="Relu", time=9.0), OpCost("b", op="Relu", time=1.0)))
    assert tt.decompose(module, "[a=numpy,b=numpy](host=@a)", costs).sites() == {"r": "b"}
    assert tt.decompose(module, "[a=numpy,b=numpy](host=@a)").sites() == {"r": "a"}


def test_costs_of_subgraphs_that_match_nothing_are_listed():
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), "[a=numpy,b=numpy](host=@a)")
    used = SubgraphCost("a", plan.tasks()[0].structure, 9.0)
    known = plan.with_costs([used, SubgraphCost("a", "s1:0", 1.0), SubgraphCost("a", "s1:0", 2.0)])
    assert known.prediction.unused == ("costs of subgraphs that match no function of the plan: s1:0 on 'a'",)
    assert plan.with_costs([used]).prediction.unused == ()


@pytest.mark.parametrize(("time", "site"), [(1.0, "cpu"), (500.0, "npu")])
def test_a_loop_and_what_reads_its_collected_results_go_together_where_that_is_known_to_be_faster(time, site):
    text = """func @main(%x: float32[3], %trips: int64[], %p: bool[]) opsets(onnx=20) {
  %last: float32[3], %all: float32[n,3] = onnx.Loop(%trips, %p, %x) as "loop"
    body @body(%i: int64[], %on: bool[], %c: float32[3]) -> (bool[], float32[3], float32[3]) {
      %same: bool[] = onnx.Identity(%on) as "same"
      %next: float32[3] = onnx.Neg(%c) as "next"
      return %same, %next, %next
    }
  %b: float32[n,3] = onnx.Tanh(%all) as "b"
  %sum: float32[3] = onnx.ReduceMax(%b) {keepdims=0} as "sum"
  %far: float32[3] = onnx.Sin(%x) as "far"
  return %sum, %far
}"""
    times = {"npu": 100.0, "cpu": 1.0}
    kinds = ("Loop", "Identity", "Neg", "Tanh", "ReduceMax")
    ops = tuple(OpCost(site, op=op, time=times[site]) for op in kinds for site in times)
    ops += (OpCost("npu", op="Sin", time=100.0), OpCost("cpu", op="Sin", time=time))
    costs = Costs(links=(LinkCost("cpu", "npu", 5.0, 1e9),), ops=ops, sites={site: SiteCost(5.0) for site in times})
    plan = tt.decompose(tt.IRModule.parse(text), EDGE, costs)
    assert {name for name, found in plan.sites().items() if found != "cpu"} == ({"far"} if site == "npu" else set())
    assert plan.prediction.unknown == ()


def test_what_is_unknown_names_the_hint_that_is_missing():
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), PAIR, "roofline")
    assert "the size of 'input' is not known (give symbolic_hints, --assume-dim, for 'batch')" in plan.summary()


@given(st.lists(st.tuples(st.floats(1, 1e12), st.floats(1e-6, 1)), min_size=1, max_size=5), st.integers(0, 10**13))
def test_a_share_by_size_is_one_of_those_beside_it_or_between_them(pairs, size):
    shares = tuple(sorted(dict(pairs).items()))
    rule = OpCost("a", op="Conv", roofline=shares)
    below = [share for known, share in shares if known <= size][-1:]
    above = [share for known, share in shares if known >= size][:1]
    beside = [*below, *above]
    assert min(beside) * (1 - 1e-9) <= rule.share(size) <= max(beside) * (1 + 1e-9)
    assert all(rule.share(known) == pytest.approx(share) for known, share in shares if known == int(known))
    assert OpCost("a", op="Conv", roofline=0.5).share(size) == 0.5


@pytest.mark.parametrize(
    ("channels", "weights", "attrs", "form"),
    [
        (64, (64, 64, 3, 3), {}, "window"),
        (64, (64, 64, 3, 3), {"strides": [1, 1]}, "window"),
        (64, (64, 64, 3, 3), {"strides": [2, 1]}, "strided"),
        (64, (32, 64, 1, 1), {"strides": [2, 2]}, "pointwise"),
        (64, (64, 1, 3, 3), {"group": 64}, "depthwise"),
        (64, (64, 16, 1, 1), {"group": 4}, "grouped"),
        (3, (64, 3, 7, 7), {"strides": [2, 2]}, "shallow"),
    ],
)
def test_costs_distinguish_convolutions_by_form(channels, weights, attrs, form):
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="c", **attrs)
    ends = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (1, channels, 8, 8)), ("w", weights))
    )
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [*ends], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ops = (OpCost("numpy", op="Conv", form=name, time=float(number)) for number, name in enumerate(FORMS))
    costs = Costs(ops=(OpCost("numpy", op="Conv", time=99.0), *ops))
    plan = tt.decompose(tt.IRModule.from_onnx(model), "numpy", costs)
    assert plan.prediction.ops == FORMS.index(form) * 10**6


def _chain(*kinds):
    nodes = [
        helper.make_node(kind, ["x" if not number else f"v{number}"], [f"v{number + 1}"], name=f"{kind}{number}")
        for number, kind in enumerate(kinds)
    ]
    nodes[-1].output[0] = "y"
    return tt.IRModule.from_onnx(small(*nodes, shape=(1000, 6)))


def test_values_that_pass_between_sites_cost_what_they_take_at_their_ends():
    """Sites in one memory copy nothing, but 24,000 bytes take 24 us to enter a function of b, and as long to leave."""
    pair, module = tt.Target.parse("[a=numpy,b=onnxruntime](host=@a)"), _chain("Relu", "Tanh", "Relu")
    times = {("a", "Relu"): 10.0, ("a", "Tanh"): 60.0, ("b", "Relu"): 20.0, ("b", "Tanh"): 20.0}
    ops = tuple(OpCost(site, op=kind, time=time) for (site, kind), time in times.items())

    def planned(**rates):
        sites = {"a": SiteCost(launch=0.0), "b": SiteCost(launch=0.0, **rates)}
        return tt.decompose(module, pair, Costs(sites=sites, ops=ops))

    assert [subgraph.site for subgraph in planned().subgraphs] == ["a", "b", "a"]
    assert planned().prediction.boundary == 0
    passing = planned(boundary_bw=1e9)
    assert [subgraph.site for subgraph in passing.subgraphs] == ["a"]
    assert passing.prediction.total == 80 * 10**6
    fast = planned(boundary_bw=2e9)
    assert [subgraph.site for subgraph in fast.subgraphs] == ["a", "b", "a"]
    assert (fast.prediction.boundary, fast.prediction.total) == (24 * 10**6, 64 * 10**6)
    assert "passing 24 us" in fast.summary()


def test_one_copy_serves_the_driver_and_a_leaf_behind_a_boundary_in_its_memory():
    """The first result is read on a and returned, so it is copied once; counted twice, all on a would take less."""
    module = tt.IRModule.parse("""func @main(%x: float32[6000]) opsets(onnx=17) {
      %p: float32[6000] = onnx.Relu(%x) as "relu"
      %q: float32[6000] = onnx.Tanh(%p) as "tanh"
      return %p, %q
    }""")
    times = {("a", "Relu"): 300.0, ("b", "Relu"): 10.0, ("a", "Tanh"): 10.0, ("b", "Tanh"): 110.0}
    costs = Costs(
        sites=dict.fromkeys("ab", SiteCost(launch=0.0, boundary_bw=1e9)),
        links=(LinkCost("a", "b", latency=100.0, bandwidth=1e15),),
        ops=tuple(OpCost(site, op=kind, time=time) for (site, kind), time in times.items()),
    )
    plan = tt.decompose(module, PAIR, costs)
    assert plan.sites() == {"relu": "b", "tanh": "a"}
    # 20 us for operations, 200 us for two copies, and 24 us for each of five passages.
    assert round(plan.prediction.total / 10**6) == 340
    assert plan.prediction.lower_bound == plan.prediction.total


NESTED = "[t=onnxruntime,z=onnxruntime,s=[npu=onnxruntime,cpu=numpy](host=@cpu),cpu=numpy](host=@cpu)"


def nested_with_links(ways):
    """Return a system in a system, a chain of two operations, and costs with one-way links of a latency each."""
    target = tt.Target.parse(NESTED)
    inner = target.targets[2].replace(memory=(tt.Memory(name="mn", of=("npu",)),))
    outer = (tt.Memory(name="mt", of=("t",)), tt.Memory(name="mz", of=("z",)))
    target = target.replace(targets=(*target.targets[:2], inner, target.targets[3]), memory=outer)
    times = {"Relu": {"s/npu": 1.0}, "Tanh": {"cpu": 1.0, "s/cpu": 1.0}}
    sites = ("t", "z", "s/npu", "s/cpu", "cpu")
    ops = tuple(OpCost(site, op=kind, time=found.get(site, 1000.0)) for kind, found in times.items() for site in sites)
    links = tuple(LinkCost(*ends, latency=float(time), bandwidth=1e15) for ends, time in ways.items())
    return _chain("Relu", "Tanh"), target, Costs(dict.fromkeys(sites, SiteCost(launch=0.0)), links, ops)


def test_a_driver_copies_through_the_memory_where_a_system_had_the_value_computed():
    ways = {("s/cpu", "s/npu"): 1, ("s/npu", "cpu"): 1, ("cpu", "t"): 50, ("cpu", "z"): 50}
    plan = tt.decompose(*nested_with_links(ways), where={"Tanh1": "@cpu"})
    assert plan.sites() == {"Relu0": "s/npu", "Tanh1": "cpu"}
    made = [(copy.src, copy.dst) for copy in plan.copies if copy.value == "v1"]
    assert made == [("s/mn", "s/cpu"), ("s/cpu", "s/mn"), ("s/mn", "cpu")]
    assert round(plan.verify().prediction.copies / 10**6) == 6
    back = replace(next(copy for copy in plan.copies if copy.dst == "cpu"), dst="s/cpu")
    wrong = replace(plan, outlined=replace(plan.outlined, copies=(*plan.outlined.copies, back)))
    with pytest.raises(ModelError, match="copied back to 's/cpu'"):
        wrong.verify()


def test_routes_from_a_memory_on_a_route_may_pass_other_memories():
    """From t, a stop between the memories of s, the way to the memory of its CPU is through z, which is no stop."""
    ways = {("s/cpu", "t"): 1, ("t", "s/cpu"): 100, ("t", "s/npu"): 1, ("s/npu", "t"): 100, ("s/npu", "s/cpu"): 1}
    ways |= {("s/cpu", "s/npu"): 100, ("t", "z"): 1, ("z", "s/cpu"): 1, ("s/cpu", "z"): 100, ("cpu", "s/cpu"): 1}
    plan = tt.decompose(*nested_with_links(ways))
    assert plan.sites() == {"Relu0": "s/npu", "Tanh1": "s/cpu"}
    assert round(plan.prediction.copies / 10**6) == 5


def test_the_bound_counts_the_copies_of_each_driver_that_uses_a_memory():
    """The driver of s copies v1 to its NPU, and the driver around it copies v1 there again, on the way to the CPU."""
    module, target, costs = nested_with_links({("s/cpu", "s/npu"): 10, ("s/npu", "cpu"): 1, ("cpu", "t"): 50})
    module = module.replace(functions=(replace(module.main, results=("v1", "y")),))
    times = {"Relu": {"s/cpu": 10.0}, "Tanh": {"s/npu": 1.0}}
    ops = tuple(
        OpCost(site, op=kind, time=found.get(site, 40.0)) for kind, found in times.items() for site in costs.sites
    )
    plan = tt.decompose(module, target, replace(costs, ops=ops), where={"*": "!@t & !@z"})
    assert plan.sites() == {"Relu0": "s/cpu", "Tanh1": "s/npu"}
    assert [(copy.src, copy.dst) for copy in plan.copies if copy.value == "v1"] == [
        ("s/cpu", "s/mn"),
        ("s/cpu", "s/mn"),
        ("s/mn", "cpu"),
    ]
    assert round(plan.prediction.total / 10**6) == 64
    assert plan.prediction.lower_bound == plan.prediction.total


def test_operations_leave_the_best_site_only_for_more_than_the_error_of_the_rates():
    pair, module = tt.Target.parse("[a=numpy,b=onnxruntime](host=@a)"), _chain("Relu", "Tanh", "Relu")
    shares = {("a", "Relu"): 0.5, ("a", "Tanh"): 0.2, ("b", "Relu"): 0.25, ("b", "Tanh"): 0.25}
    ops = tuple(OpCost(site, op=kind, roofline=share) for (site, kind), share in shares.items())
    rates = SiteCost(launch=0.0, flops={"float32": 1e9}, mem_bw=1e9)
    costs = Costs(sites={"a": rates, "b": rates}, ops=ops)
    taken = {
        doubt: [subgraph.site for subgraph in tt.decompose(module, pair, replace(costs, doubt=doubt)).subgraphs]
        for doubt in (0.0, 0.2, 0.3)
    }
    assert taken == {0.0: ["a", "b", "a"], 0.2: ["a", "b", "a"], 0.3: ["a"]}
    stated = costs.with_records([OpCost("b", op="Tanh", dtype="float32", time=3.0)])
    plan = tt.decompose(module, pair, replace(stated, doubt=0.3))
    assert [subgraph.site for subgraph in plan.subgraphs] == ["a", "b", "a"]


def test_the_site_without_errors_is_the_best_one_with_the_copies_of_what_it_cannot_run():
    """All that a can run, and the rest on c, is best; c is not where the rest itself takes least, but b is far off."""
    times = {"a": {"Relu": 10.0}, "b": {"Relu": 0.1, "Tanh": 1.0}, "c": {"Relu": 500.0, "Tanh": 5.0}}
    ops = tuple(
        OpCost(site, op=kind, time=time, stdev=100.0 if site == "a" else 0.0)
        for site, found in times.items()
        for kind, time in found.items()
    )
    links = tuple(LinkCost("a", site, latency, 1e15) for site, latency in (("b", 100.0), ("c", 1.0)))
    costs = Costs(dict.fromkeys(SITES, SiteCost(launch=0.0)), links, ops, doubt=0.1)
    plan = tt.decompose(_chain("Relu", "Tanh", "Relu"), APART, costs, where={"Tanh1": "!@a"})
    assert [subgraph.site for subgraph in plan.subgraphs] == ["a", "c", "a"]


def test_errors_of_measured_times_count_without_a_doubt_of_rates():
    pair, module = tt.Target.parse("[a=numpy,b=onnxruntime](host=@a)"), _chain("Relu", "Tanh", "Relu")
    times = {("a", "Relu"): 10.0, ("a", "Tanh"): 30.0, ("b", "Relu"): 20.0, ("b", "Tanh"): 25.0}

    def planned(stdev):
        ops = tuple(OpCost(site, op=kind, time=time, stdev=stdev) for (site, kind), time in times.items())
        return tt.decompose(module, pair, Costs(dict.fromkeys("ab", SiteCost(launch=0.0)), ops=ops))

    taken = {stdev: [subgraph.site for subgraph in planned(stdev).subgraphs] for stdev in (None, 4.0, 6.0)}
    assert taken == {None: ["a", "b", "a"], 4.0: ["a", "b", "a"], 6.0: ["a"]}
    assert "with the errors of estimates added" in str(planned(6.0).explain("Tanh1"))
    assert "errors" not in str(planned(None).explain("Tanh1"))


def test_the_bound_counts_the_calls_of_required_boundaries():
    sites = {"a": SiteCost(launch=10.0), "b": SiteCost(launch=40.0)}
    ops = tuple(OpCost(site, op=kind, time=5.0) for site in "ab" for kind in ("Relu", "Tanh"))
    pair, module = tt.Target.parse("[a=numpy,b=onnxruntime](host=@a)"), _chain("Relu", "Tanh", "Relu")
    plan = tt.decompose(module, pair, Costs(sites, ops=ops), boundary_after=["Relu0", "Tanh1"])
    assert [subgraph.site for subgraph in plan.subgraphs] == ["a", "a", "a"]
    assert plan.prediction.total == plan.prediction.lower_bound == 45 * 10**6
