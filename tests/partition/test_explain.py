"""Why an operation is where it is, and why its neighbours are elsewhere: every one has a reason, and costs add up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import DIGITS, random_graph

import tvmtarget as tt

TWO = "[npu=onnxruntime,cpu=numpy](host=@cpu)"
DIAMOND = tt.IRModule.parse("""func @main(%x: float32[4], %y: float32[4]) opsets(onnx=17) {
  %a: float32[4] = onnx.Relu(%x) as a
  %b: float32[4] = onnx.Tanh(%a) as b
  %c: float32[4] = onnx.Sqrt(%y) as c
  %d: float32[4] = onnx.Add(%b, %c) as d
  return %d, %a
}""")
COSTS = {
    "schema": "tvmtarget.cost/1",
    "sites": {
        "npu": {"launch": 5, "flops": {"float32": 2e11}, "mem_bw": 1e11, "roofline": 0.5},
        "cpu": {"launch": 1, "flops": {"float32": 1e10}, "mem_bw": 2e9, "roofline": 0.5},
    },
    "links": [{"src": "cpu", "dst": "npu", "latency": 1, "bandwidth": 1e9}],
    "symbolic_hints": {"batch": 16},
}


def board(**memory):
    return tt.Target.parse(TWO).replace(memory=(tt.Memory(name="sram", of=("npu",), **memory),))


SUMS = tt.IRModule.parse("""func @main(%x: float32[4], %y: float32[4], %z: float32[4]) opsets(onnx=17) {
  %b: float32[4] = onnx.Add(%x, %y) as b
  %d: float32[4] = onnx.Add(%b, %z) as d
  return %d
}""")


def apart(kind, module=DIAMOND, **options):
    """Divide the diamond for a strategy with these options; return why others are apart from `b`."""
    body = {"check_subgraph": options.pop("check_subgraph")} if "check_subgraph" in options else {}
    tt.strategy(kind, **options)(type("Engine", (), {"ops": {"Relu", "Tanh", "Sqrt", "Add"}} | body))
    plan = tt.decompose(module, f"[npu={kind},cpu=numpy](host=@cpu)")
    return dict(plan.explain("b").neighbours)


def test_neighbours_on_one_site_are_apart_for_what_the_code_generator_takes():
    assert apart("shape-engine", subgraphs="single")["a"] == "SHAPE, shape-engine takes each operation alone"
    size = "MAX_SIZE, one subgraph would have 4 operations, and it takes at most 1"
    assert apart("size-engine", max_ops=1)["a"] == size
    inputs = "MAX_INPUTS, one subgraph would have 3 inputs, and it takes at most 2"
    assert apart("inputs-engine", SUMS, max_inputs=2)["d"] == inputs
    outputs = "MAX_OUTPUTS, one subgraph would have 2 outputs, and it takes at most 1"
    assert apart("outputs-engine", max_outputs=1)["a"] == outputs

    def few(strategy, ops):
        return tt.reject("RULE", "no two together") if len(ops) > 1 else None

    veto = "VETO, veto-engine rejects one function of these 3 operations: RULE: no two together"
    assert apart("veto-engine", check_subgraph=few)["d"] == veto


def test_an_operation_that_is_refused_even_alone_says_so():
    @tt.strategy("refusing-engine")
    class Refusing:
        ops = frozenset({"Sqrt", "Tanh"})

        def check_subgraph(self, ops):
            return tt.reject("RULE", "it takes nothing today")

    plan = tt.decompose(DIAMOND, "[npu=refusing-engine,cpu=numpy](host=@cpu)")
    wanted = "VETO, refusing-engine on @npu rejects a function of it alone: RULE: it takes nothing today"
    assert plan.explain("b").reason == wanted


def test_a_memory_that_is_full_is_a_reason():
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), board(bytes=20000))
    wanted = "MEMORY, 'sram' holds 19.5 KiB of weights, has 1.25 KiB, and this needs 64.2 KiB more"
    assert plan.explain("fc1").reason == wanted


def test_what_steers_control_flow_is_in_the_memory_of_its_driver():
    module = tt.IRModule.parse("""func @main(%x: float32[1]) opsets(onnx=17) {
      %n: float32[1] = onnx.Neg(%x) as neg
      %c: bool[1] = onnx.Greater(%n, %x) as greater
      %y: float32[1] = onnx.If(%c) as if
        then_branch @t() -> (float32[1]) captures(%x) { %t: float32[1] = onnx.Abs(%x) as abs return %t }
        else_branch @e() -> (float32[1]) captures(%x) { %e: float32[1] = onnx.Tanh(%x) as tanh return %e }
      return %y }""")
    plan = tt.decompose(module, board(), where={"abs": "@npu", "tanh": "@cpu"})
    wanted = "a driver reads what it computes to run control flow, and this is the driver's memory"
    assert plan.explain("greater").reason == wanted


def test_preferences_that_are_not_kept_are_recorded():
    """Facts: unclaimed soft pins are released with a record."""
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), TWO, where={"conv*": "cuda?10", "fc1": "@cpu?"})
    assert plan.explain("conv1").released == ("cuda?10 (required by where 'conv*')",)
    assert "RELEASED_PIN: cuda?10 (required by where 'conv*') is not kept" in str(plan.explain("conv1"))
    assert plan.explain("fc1").released == ()
    assert "released: cuda?10 (required by where 'conv*'), for 3 ops such as 'conv1'" in plan.summary()
    assert plan.explain("conv1").to_json()["released"] == ["cuda?10 (required by where 'conv*')"]


def test_copies_tell_their_bytes_and_time():
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), board(), COSTS, where={"fc1": "@cpu", "flatten": "@npu"})
    assert "flatten from sram to cpu, 16 KiB, 17.38 us" in plan.explain("fc1").copies
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), board(), where={"fc1": "@cpu"})
    assert "flatten from sram to cpu, of dynamic shape" in plan.explain("fc1").copies


def test_copies_of_what_is_read_are_those_to_where_it_runs():
    text = """func @main(%x: float32[4]) opsets(onnx=17) {
      %a: float32[4] = onnx.Relu(%x) as here
      %b: float32[4] = onnx.Neg(%x) as there
      return %a, %b
    }"""
    plan = tt.decompose(tt.IRModule.parse(text), board(), where={"here": "@cpu", "there": "@npu"})
    assert plan.explain("here").copies == ()
    assert plan.explain("there").copies == ("x from cpu to sram, 16 bytes", "b from sram to cpu, 16 bytes")


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 25), seed=st.integers(0, 10**6))
def test_explanations_add_up_to_the_objective(size, seed):
    """I18: each operation that is not on its cheapest site has a reason; explained costs add up to the objective."""
    plan = tt.decompose(tt.IRModule.from_onnx(random_graph(size, seed)), board(), COSTS)
    reported = [plan.explain(op) for op in plan.sites()]
    ops = sum(dict(one.times)[one.site].time for one in reported)
    copies = sum(
        plan.estimates.links.copy(plan.estimates.nbytes(copy.type), copy.src, copy.dst) for copy in plan.copies
    )
    calls = sum(plan.estimates.launch(plan.topology[subgraph.site]) for subgraph in plan.subgraphs)
    assert ops + copies + calls == plan.prediction.total
    for one in reported:
        cheapest = min(time.time for _, time in one.times)
        if dict(one.times)[one.site].time > cheapest:
            assert one.reason
            assert one.alone


@settings(max_examples=15, deadline=None)
@given(size=st.integers(2, 12), seed=st.integers(0, 10**6))
def test_what_moving_an_operation_alone_changes_is_what_a_plan_with_it_there_says(size, seed):
    """Calls of functions are not counted, as which there are depends on all the others."""
    plan = tt.decompose(tt.IRModule.from_onnx(random_graph(size, seed)), board(), COSTS)
    op = f"n{seed % size}"
    for site, longer in plan.explain(op).alone:
        sites = {**plan.sites(), op: site}
        moved = plan.with_sites([sites[call.source] for call in plan.program.body])
        spent = [one.prediction.ops + one.prediction.copies for one in (plan, moved)]
        assert spent[1] - spent[0] == longer


def test_what_moving_an_operation_alone_changes_has_what_passing_values_takes():
    sites = {"npu": {"launch": 0, "boundary_bw": 2e6}, "cpu": {"launch": 0, "boundary_bw": 4e6}}
    kinds = ("Relu", "Tanh", "Sqrt", "Add")
    ops = [{"match": {"op": kind}, "site": site, "time": 3} for kind in kinds for site in sites]
    costs = {"schema": "tvmtarget.cost/1", "sites": sites, "ops": ops, "links": COSTS["links"]}
    module = DIAMOND.replace(functions=(DIAMOND.main.replace(results=("d", "a", "b")),))
    plan = tt.decompose(module, board(), costs)
    for op in "abcd":
        for site, longer in plan.explain(op).alone:
            pinned = {name: f"@{plan.site_of(name)}" for name in "abcd"} | {op: f"@{site}"}
            moved = tt.decompose(module, board(), costs, where=pinned).prediction
            assert moved.total - plan.prediction.total == longer > 0


def test_an_operation_that_errors_of_costs_keep_says_so():
    costs = {
        "schema": "tvmtarget.cost/1",
        "sites": {site: {"launch": 0} for site in ("npu", "cpu")},
        "ops": [
            {"match": {"op": op}, "site": site, "time": time, "stdev": 2}
            for op, times in {"Relu": (1, 9), "Tanh": (5, 4), "Sqrt": (1, 9), "Add": (1, 9)}.items()
            for site, time in zip(("npu", "cpu"), times, strict=True)
        ],
        "default": {"doubt": 0.1},
    }
    plan = tt.decompose(DIAMOND, TWO, costs)
    assert plan.explain("b").reason.endswith("with the errors of estimates added on all sites but the best one")
    assert str(plan.sensitivity("b")) == (
        "b takes 5 us on @npu, and is better elsewhere, as that is more than 4 us\n"
        "  on @cpu the whole would take 1 us less"
    )


def test_the_summary_shares_out_the_arithmetic_where_it_is_known():
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), board(), COSTS, where={"conv*": "@npu", "fc*": "@cpu"})
    assert "% of flops) in" in plan.summary()
    unknown = tt.decompose(tt.IRModule.from_onnx(DIGITS), board(), "roofline")
    assert "flops" not in unknown.summary().split("predicted")[0]


@pytest.mark.parametrize("shape", ["superstep", "connected"])
def test_a_neighbour_beyond_a_circle_names_the_path(shape):
    tt.strategy(f"circle-{shape}", subgraphs=shape)(type("Engine", (), {"ops": {"Relu", "Add"}}))
    plan = tt.decompose(DIAMOND, f"[npu=circle-{shape},cpu=numpy](host=@cpu)")
    assert dict(plan.explain("a").neighbours) == {"b": "SITE, it runs on @cpu"}
    body = (
        "%a: float32[4] = onnx.Relu(%x) as a %b: float32[4] = onnx.Tanh(%a) as b %d: float32[4] = onnx.Add(%a, %b) as d"
    )
    module = tt.IRModule.parse(f"func @main(%x: float32[4]) opsets(onnx=17) {{ {body} return %d }}")
    plan = tt.decompose(module, f"[npu=circle-{shape},cpu=numpy](host=@cpu)")
    assert dict(plan.explain("a").neighbours)["d"] == "CYCLE, one subgraph of both would wait for itself: a -> b -> d"


def test_copies_of_an_operation_in_a_deep_tree_are_told_as_they_are_made():
    """What others copy of the same value within the same system is not printed again."""
    text = """func @main(%x: float32[4]) opsets(onnx=17) {
      %a: float32[4] = onnx.Relu(%x) as a
      %b: float32[4] = onnx.Tanh(%a) as b
      %c: float32[4] = onnx.Neg(%b) as c
      %d: float32[4] = onnx.Add(%c, %a) as d
      return %d }"""
    machine = "[soc=[npu=onnxruntime,cpu=numpy](host=@cpu,executor=graph),ctl=numpy](host=@ctl,count=2)"
    where = {"a": "@n.0/soc/npu", "b": "@n.1/soc/npu", "c": "@n.0/soc", "d": "@n.1/soc"}
    plan = tt.decompose(tt.IRModule.parse(text), f"[n={machine}](host=@n.0/ctl)", where=where)
    out = ["{} from n.0/soc:cpu to n.0:cpu", "{} from n.0:cpu to n.1:cpu", "{} from n.1:cpu to n.1/soc:cpu"]
    back = ["{} from n.1/soc:cpu to n.1:cpu", "{} from n.1:cpu to n.0:cpu", "{} from n.0:cpu to n.0/soc:cpu"]
    wanted = [*(way.format("a") for way in out), *(way.format("b") for way in back)]
    assert [copy.partition(",")[0] for copy in plan.explain("b").copies] == wanted
