"""Laws of the decomposition: for any graph and constraints, the partitioned program is the same program."""

import random
import time

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import DIGITS, LIGHT, inputs_of, light, random_graph, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, ModelError, TargetError, UnknownNameError
from tvmtarget.ir.function import COPY, Call, Function, Value
from tvmtarget.ir.inline import inline_calls
from tvmtarget.ir.types import TensorType

FLAT = "composite[a=numpy,b=onnxruntime,c=llvm]"
DEEP = "[x=[a=numpy,b=onnxruntime](host=@a),y=[z=[c=llvm,d=numpy],e=onnxruntime](host=@z/c)](host=@x/a)"


def leaves(target):
    return [path for path, node in tt.Target.parse(target).walk() if not node.is_composite]


def checkerboard(module, target, seed):
    """Pin every operation to a random leaf."""
    rng = random.Random(seed)
    sites = leaves(target)
    return {call.source: f"@{rng.choice(sites)}" for call in module.main.body}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(size=st.integers(0, 40), seed=st.integers(0, 10**6), target=st.sampled_from([FLAT, DEEP]))
def test_a_divided_program_holds_every_op_once_where_it_was_asked_for(size, seed, target):
    """REQUIREMENTS N4: decomposition at every granularity (verify() proves acyclic quotient, exact borders, copies)."""
    module = tt.IRModule.from_onnx(random_graph(size, seed))
    where = checkerboard(module, target, seed)
    plan = tt.decompose(module, target, where=where)
    assert sorted(op for subgraph in plan.subgraphs for op in subgraph.ops) == sorted(where)
    for subgraph in plan.subgraphs:
        assert all(where[op] == f"@{subgraph.site}" for op in subgraph.ops)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(size=st.integers(1, 25), seed=st.integers(0, 10**6))
def test_inlining_the_parts_gives_the_whole_back(size, seed):
    module = tt.IRModule.from_onnx(random_graph(size, seed))
    plan = tt.decompose(module, DEEP, where=checkerboard(module, DEEP, seed))
    whole = inline_calls(plan.module.main, plan.module.by_name).function
    assert sorted(call.source for call in whole.body if call.op != COPY) == sorted(c.source for c in module.main.body)
    x = inputs_of(random_graph(size, seed))
    expected = tt.build(module, "onnxruntime").run(x)
    actual = tt.build(tt.IRModule.from_onnx(plan.module.to_onnx()), "onnxruntime").run(x)
    for name, other in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(expected[name], actual[other])


@settings(max_examples=15, deadline=None)
@given(size=st.integers(0, 30), seed=st.integers(0, 10**6), target=st.sampled_from([FLAT, DEEP]))
def test_decomposing_twice_changes_nothing(size, seed, target):
    """REQUIREMENTS G1: earlier decisions are kept in the module."""
    module = tt.IRModule.from_onnx(random_graph(size, seed))
    once = tt.decompose(module, target, where=checkerboard(module, target, seed))
    twice = tt.decompose(once.module)
    assert str(once.module) == str(twice.module)


def test_a_system_returns_values_in_the_order_of_its_own_calls():
    """The second function of @s/c is the first one, which runs the operation of the other result first."""
    text = """func @main(%x: float32[4], %y: float32[4]) opsets(onnx=18) {
  %a: float32[4] = onnx.Neg(%x) as "n1"
  %b: float32[4] = onnx.Abs(%y) as "n2"
  %c: float32[4] = onnx.Relu(%a) as "r1"
  %d: float32[4] = onnx.Relu(%b) as "r2"
  %e: float32[4] = onnx.Abs(%c) as "n3"
  %f: float32[4] = onnx.Neg(%d) as "n4"
  return %e, %f
}"""
    target = "[s=[o=onnxruntime,c=numpy](host=@c),h=numpy](host=@h)"
    once = tt.decompose(tt.IRModule.parse(text), target, where={"op:Relu": "@s/o", "n*": "@s/c"})
    assert once.module.main.results == ("e.copy", "f.copy")
    system = next(function for function in once.module if str(function.constraint) == "@s")
    assert system.results == ("f", "e")
    assert str(tt.decompose(once.module).module) == str(once.module)


def test_the_same_input_gives_the_same_bytes_in_every_process(subprocess_with_hash_seed):
    code = (
        "import sys; sys.path.insert(0, 'tests'); from models import random_graph; import tvmtarget as tt;"
        "m = tt.IRModule.from_onnx(random_graph(60, 3));"
        "p = tt.decompose(m, 'composite[a=numpy,b=onnxruntime]', where={'op:Add': '@b'}); print(p.module)"
    )
    assert subprocess_with_hash_seed(code, "1") == subprocess_with_hash_seed(code, "2")


def test_a_graph_on_which_greedy_merging_makes_a_circle_is_divided_right():
    """TVM's MergeCompositeFunctions (0.27) groups {0,5} and {1,4} here, which then need each other."""
    nodes = [
        helper.make_node("Relu", ["x"], ["v0"], name="n0"),
        helper.make_node("Relu", ["x"], ["v1"], name="n1"),
        helper.make_node("Tanh", ["v1"], ["v2"], name="n2"),
        helper.make_node("Tanh", ["v0"], ["v3"], name="n3"),
        helper.make_node("Add", ["v1", "v3"], ["v4"], name="n4"),
        helper.make_node("Add", ["v0", "v2"], ["v5"], name="n5"),
    ]
    module = tt.IRModule.from_onnx(small(*nodes, outputs=("v4", "v5")))
    plan = tt.decompose(module, FLAT, where={"op:Tanh": "@a", "op:Relu": "@b", "op:Add": "@b"})
    assert [subgraph.ops for subgraph in plan.subgraphs] == [("n0", "n1"), ("n2", "n3"), ("n4", "n5")]
    assert "CYCLE" in str(plan.explain("n0"))


@pytest.mark.parametrize("name", ["squeezenet", "inception_v1", "shufflenet", "resnet50"])
def test_subgraphs_of_one_accelerator_reach_the_lower_bound(name):
    module = tt.IRModule.from_onnx(light(name))
    kinds = sorted({call.kind for call in module.main.body})
    where = {f"op:{kind}": "@a" if place % 2 else "@b" for place, kind in enumerate(kinds)}
    plan = tt.decompose(module, FLAT, where=where)
    assert len(plan.subgraphs) <= plan.root.least_parts + 1


@pytest.mark.parametrize("host", ["npu", "cpu"])
def test_of_as_few_subgraphs_the_host_has_the_most(host):
    nodes = [
        helper.make_node(op, [before], [after], name=after)
        for op, before, after in (("Relu", "x", "a"), ("Exp", "a", "b"), ("Exp", "x", "c"), ("Relu", "c", "d"))
    ]
    module = tt.IRModule.from_onnx(small(*nodes, outputs=("b", "d")))
    where = {"op:Relu": "@npu", "op:Exp": "@cpu"}
    plan = tt.decompose(module, f"[npu=numpy,cpu=numpy](host=@{host})", where=where)
    assert [subgraph.site for subgraph in plan.subgraphs].count(host) == 2
    assert len(plan.subgraphs) == plan.root.least_parts == 3


def test_copies_are_paid_once_per_value_and_memory():
    nodes = [helper.make_node("Relu", ["x"], ["r"], name="r")]
    nodes += [helper.make_node("Tanh", ["r"], [f"t{k}"], name=f"t{k}") for k in range(3)]
    nodes += [helper.make_node("Sum", ["t0", "t1", "t2", "r"], ["y"], name="y")]
    module = tt.IRModule.from_onnx(small(*nodes))
    plan = tt.decompose(module, "[gpu=probe,cpu=numpy]", where={"op:Tanh": "@gpu", "op:Relu": "@cpu", "op:Sum": "@cpu"})
    assert sorted(copy.value for copy in plan.copies) == ["r", "t0", "t1", "t2"]
    assert all(copy.nbytes == 24 for copy in plan.copies)


def test_siblings_of_one_device_type_need_no_copies():
    module = tt.IRModule.from_onnx(DIGITS)
    assert not tt.decompose(module, FLAT, where={"op:Gemm": "@a", "op:Relu": "@c"}).copies


def test_a_constrained_function_stays_whole():
    inner = tt.IRModule.from_onnx(small(helper.make_node("Relu", ["x"], ["y"], name="in1"))).main
    call = tt.Call("@helper", ("x",), (tt.Value("y", inner.params[0].type),), source="call")
    more = tt.Call("onnx.Tanh", ("y",), (tt.Value("z", inner.params[0].type),), source="tanh")
    main = inner.replace(body=(call, more), results=("z",))
    helper_function = inner.replace(name="helper", constraint=tt.Constraint.parse("numpy"))
    plan = tt.decompose(tt.IRModule((main, helper_function)), FLAT, where={"tanh": "@b"})
    assert [(subgraph.site, subgraph.ops) for subgraph in plan.subgraphs] == [("a", ("in1",)), ("b", ("tanh",))]


def test_preferences_and_ordered_choices_decide_among_what_is_feasible():
    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(
        module, FLAT, where={"op:Relu": "onnxruntime?", "op:Conv": "cuda|llvm|numpy", "op:Gemm": "!numpy"}
    )
    assert plan.site_of("relu1") == "b"
    assert plan.site_of("conv1") == "c"
    assert plan.site_of("fc1") == "b"
    assert plan.site_of("pool") == "a"


def test_the_last_rule_that_matches_counts():
    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(module, FLAT, where={"conv*": "@b", "op:Conv": "@c", "conv2": "@a"})
    assert [plan.site_of(f"conv{k}") for k in (1, 2, 3)] == ["c", "a", "c"]


@pytest.mark.parametrize(
    ("where", "error", "text"),
    [
        (
            {"op:Gem": "@a"},
            UnknownNameError,
            "where 'op:Gem' matches no op; no 'Gem' in the model; did you mean 'Gemm'?",
        ),
        ({"fc": "@a"}, UnknownNameError, "where 'fc' matches no op of the model; did you mean"),
        ({"fc1": "@q"}, UnknownNameError, "no node 'q'"),
        ({"fc1": "gpux"}, UnknownNameError, "no target kind, key or child 'gpux'; did you mean 'gpu'"),
        ({"fc1": "cuda"}, InfeasibleError, "op 'fc1' (Gemm) fits no site of the target: @a: CONSTRAINT"),
        ({"fc1": "llvm(num-cores>=4)"}, InfeasibleError, "num-cores>=4: the target does not state it"),
        ({"fc1": "a&@c"}, InfeasibleError, "it does not meet @a&@c"),
        (
            {"fc1": "[cuda,llvm]"},
            UnknownNameError,
            "no system of the target meets composite[cuda,llvm]: child cuda: not found (required by where 'fc1')",
        ),
    ],
)
def test_requests_that_cannot_be_met_name_the_value_the_place_and_the_reason(where, error, text):
    with pytest.raises(error) as caught:
        tt.decompose(tt.IRModule.from_onnx(DIGITS), FLAT, where=where)
    assert text in str(caught.value)


def test_an_op_that_no_site_supports_is_refused_with_every_reason():
    node = helper.make_node("Fancy", ["x"], ["y"], name="fancy", domain="my.domain")
    model = small(node)
    model.opset_import.append(helper.make_opsetid("my.domain", 1))
    model.graph.output[0].type.tensor_type.shape.SetInParent()
    with pytest.raises(InfeasibleError, match=r"op 'fancy' .* fits no site .*@a: NO_RULE.*@b: NO_RULE.*@c: NO_RULE"):
        tt.decompose(tt.IRModule.from_onnx(model), FLAT)


_STATIC, _OTHER = "give the inputs static shapes, by tt.specialize or --dim NAME=N", "give the target a leaf that"


@pytest.mark.parametrize(
    ("rows", "weights", "fix"),
    [("n", "Identity(weights)", _STATIC), ("n", "Compress<axis = 0>(weights, kept)", _OTHER),
     ("6", "Compress<axis = 0>(weights, kept)", _OTHER)],
)  # fmt: skip
def test_static_inputs_are_advised_unless_they_are_static_or_sizes_depend_on_data(rows, weights, fix):
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 6, 5] x, float[{rows}, 4, 2] weights, bool[{rows}] kept) => (float y) {{
            some = {weights} y = ConvTranspose(x, some)
        }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(InfeasibleError, match=f"is float32.*, which is not static; {fix}"):
        tt.decompose(tt.IRModule.from_onnx(model), "llvm")


@pytest.mark.parametrize(("joined", "is_advised"), [("first", False), ("v", False), ("", True)])
def test_static_inputs_are_advised_in_loops_unless_sizes_change_there(joined, is_advised):
    """`v` grows by a row, or doubles; else it has the size of `x`."""
    body = f"Concat<axis = 0>(v, {joined})" if joined else "Neg(v)"
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[n,3] x, int64 count, int64[1] zero, int64[1] one) => (float[m,3] y) {{
            yes = Constant<value = bool {{1}}>()
            y = Loop(count, yes, x) <body = b (int64 i, bool c, float[p,3] v) => (bool d, float[q,3] w) {{
                d = Identity(c) first = Slice(v, zero, one) w = {body} }}>
        }}""")
    with pytest.raises(InfeasibleError, match="is not static, and memory is planned ahead of time") as caught:
        tt.decompose(tt.IRModule.from_onnx(model), "c")
    neg = next(line for line in str(caught.value).splitlines() if ("Concat" if joined else "Neg") in line)
    assert (_STATIC in neg) == is_advised


def test_static_inputs_are_not_advised_where_an_input_should_be_a_constant():
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 19]>
        g (float[n,k] x, int64[1] axes) => (float[a,b] y) { y = ReduceMax(x, axes) }""")
    with pytest.raises(InfeasibleError, match=r"'axes', is computed at run time; make it an initializer$"):
        tt.decompose(tt.IRModule.from_onnx(model), "llvm")


def test_replicas_are_sites_of_their_own():
    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(module, "[npu=probe(count=2),cpu=numpy]", where={"op:Conv": "@npu.1", "op:Gemm": "@npu"})
    assert plan.site_of("conv1") == "npu.1"
    assert plan.site_of("fc1") == "npu.0"


RACK = tt.Target.parse("[n0=[a=numpy,b=onnxruntime](host=@a),n1=[a=numpy](host=@a),cpu=numpy](host=@cpu)")
RACK = RACK.replace(memory=(tt.Memory(name="dram", bytes=8_000_000),))


def test_work_that_asks_for_a_system_runs_inside_one_that_meets_it():
    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(module, RACK, where={"op:Conv": "[numpy,onnxruntime]", "fc1": "[a=numpy]&!@n0"})
    assert {plan.site_of(f"conv{k}").partition("/")[0] for k in (1, 2, 3)} == {"n0"}
    assert plan.site_of("fc1") == "n1/a"


def test_what_a_leaf_inherits_counts_where_it_is_placed():
    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(module, RACK, where={"op:Conv": "numpy(memory>=8000000)&@n1"})
    assert plan.site_of("conv1") == "n1/a"
    with pytest.raises(InfeasibleError, match="memory>=9000000: it is 8000000"):
        tt.decompose(module, RACK, where={"op:Conv": "numpy(memory>=9000000)"})


def test_empty_functions_and_results_that_are_inputs_or_constants_survive():
    nodes = [helper.make_node("Relu", ["x"], ["r"], name="r")]
    model = small(*nodes, outputs=("r", "x", "k"), k=np.ones((2, 3), "float32"))
    module = tt.IRModule.from_onnx(model)
    x = np.full((2, 3), -1, "float32")
    results = tt.build(module, "[a=numpy,b=onnxruntime]").run({"x": x})
    np.testing.assert_array_equal(results["r"], np.zeros((2, 3)))
    np.testing.assert_array_equal(results["x"], x)
    np.testing.assert_array_equal(results["k"], np.ones((2, 3)))


def test_the_plan_of_a_leaf_is_the_function_itself():
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), "numpy")
    assert [(subgraph.site, len(subgraph.ops)) for subgraph in plan.subgraphs] == [("", 11)]


@pytest.mark.parametrize("name", LIGHT)
def test_every_light_model_divides_over_three_sites_at_depth_three(name):
    module = tt.IRModule.from_onnx(light(name))
    plan = tt.decompose(module, DEEP, where=checkerboard(module, DEEP, 7))
    assert sum(len(subgraph.ops) for subgraph in plan.subgraphs) == len(module.main.body)


def test_plan_functions_can_be_asked_for_by_path_kind_or_key():
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), FLAT, where={"op:Gemm": "@c"})
    assert {f.name for f in plan.functions("c")} == {f.name for f in plan.functions("llvm")} != set()
    assert len(plan.functions("cpu")) == len(plan.subgraphs)


def test_a_target_is_a_tree_its_text_or_a_flat_configuration():
    module = tt.IRModule.from_onnx(DIGITS)
    flat = tt.CompilationConfig.from_target(tt.Target.parse("[ort=onnxruntime,cpu=llvm](host=@cpu)"))
    assert set(tt.decompose(module, flat).sites().values()) <= {"onnxruntime", "llvm", "ort", "cpu"}
    with pytest.raises(TargetError, match=r"a target is a text, an object or a Target, not 5 \(argument 'target'\)"):
        tt.decompose(module, 5)


def in_memories(param="", output=""):
    return tt.IRModule.parse(f"""func @main(%x: float32[4]{param}) opsets(onnx=17) {{
      %a: float32[4]{output} = onnx.Relu(%x) as a
      %b: float32[4] = onnx.Tanh(%a) as b
      return %b }}""")


SRAM = tt.Target.parse("[npu=onnxruntime,cpu=numpy](host=@cpu)").replace(
    memory=(tt.Memory(name="sram", of=("npu",)), tt.Memory(name="ddr", of=("cpu",)))
)


@pytest.mark.parametrize(
    ("value", "result", "parameter", "site"),
    [
        ("", "", "", "npu"),
        ("", "", ' in "ddr"', "cpu"),
        ("", ' in "ddr"', "", "cpu"),
        ("", ' in "ddr"', ' in "sram"', "cpu"),
        (' in "ddr"', ' in "sram"', "", "cpu"),
        (' in "sram"', "", ' in "ddr"', "npu"),
    ],
)
def test_borders_of_inlined_functions_say_where_values_are_computed(value, result, parameter, site):
    text = f"""
    func @main(%x: float32[4]) opsets(onnx=17) {{
      %a: float32[4]{result} = @first(%x)
      %b: float32[4] = @second(%a)
      return %b
    }}
    func @first(%y: float32[4]) opsets(onnx=17) {{
      %z: float32[4]{value} = onnx.Relu(%y) as one
      return %z
    }}
    func @second(%p: float32[4]{parameter}) opsets(onnx=17) {{
      %q: float32[4] = onnx.Tanh(%p) as two
      return %q
    }}
    """
    assert tt.decompose(tt.IRModule.parse(text), SRAM).sites() == {"one": site, "two": "npu"}


def test_memories_of_values_say_where_they_are_computed():
    """DESIGN 4: constraints live on values, too (memory scope)."""
    board = tt.Target.parse("[npu=onnxruntime,cpu=numpy](host=@cpu)").replace(
        memory=(tt.Memory(name="sram", of=("npu",)),)
    )
    plan = tt.decompose(in_memories(output=' in "cpu"'), board)
    assert plan.sites() == {"a": "cpu", "b": "npu"}
    assert plan.explain("a").reason == "it must meet @cpu (required by value 'a' in memory 'cpu')"
    assert tt.decompose(plan.module).module == plan.module
    with pytest.raises(InfeasibleError, match=r"drop or change one of: @cpu .*, @npu \(required by where 'a'\)$"):
        tt.decompose(in_memories(output=' in "cpu"'), board, where={"a": "@npu"})
    with pytest.raises(InfeasibleError, match=r"input 'x' is in memory 'sram', but the driver takes inputs in 'cpu'"):
        tt.decompose(in_memories(param=' in "sram"'), board)
    with pytest.raises(
        ModelError, match=r"'x' is in memory 'dram', which the target does not have; .*: cpu, sram \(function 'main'\)$"
    ):
        tt.decompose(in_memories(param=' in "dram"'), board)
    with pytest.raises(
        ModelError, match=r"'a' is in memory 'dram', which the target .*: cpu, sram \(function 'main'\)$"
    ):
        tt.decompose(in_memories(output=' in "dram"'), board)
    assert tt.decompose(in_memories(param=' in "cpu"', output=' in "shared"'), board).sites() == {
        "a": "npu",
        "b": "npu",
    }


@pytest.mark.parametrize(
    ("operator", "domain", "target", "fix"),
    [
        ("MultiHeadAttention", "com.microsoft", "llvm", "such as onnxruntime"),
        ("Foo", "my", "llvm", "write it as other operators"),
        ("Foo", "my", "[ort=onnxruntime,cpu=llvm]", "write it as other operators"),
    ],
)
def test_an_operation_that_no_leaf_has_code_for_is_refused_with_what_would_help(operator, domain, target, fix):
    model = small(helper.make_node(operator, ["x"], ["y"], domain=domain))
    model.opset_import.append(helper.make_opsetid(domain, 1))
    with pytest.raises(InfeasibleError, match=f"; .*{fix}"):
        tt.decompose(tt.IRModule.from_onnx(model), target)


@pytest.mark.parametrize("value", [{"a": 1}, ({"a": 1},)])
def test_an_attribute_may_be_a_mapping(value):
    """Modules of Relax have such attributes, which cannot be hashed."""
    type_ = TensorType("float32", (2,))
    calls = (
        Call("onnx.Abs", ("x",), (Value("a", type_),), (("notes", value),)),
        Call("onnx.Abs", ("a",), (Value("y", type_),), (("notes", value),)),
    )
    module = tt.IRModule((Function("main", (Value("x", type_),), calls, ("y",), opsets=(("", 18),)),))
    assert len(tt.decompose(module, "numpy").subgraphs) == 1


def test_an_operation_that_reads_thousands_of_values_takes_time_in_proportion():
    count = 30_000
    text = TensorType("float32", (4,))
    body = [Call("onnx.Relu", ("x",), (Value(f"v{index}", text),), source=f"n{index}") for index in range(count)]
    body.append(Call("onnx.Sum", tuple(f"v{index}" for index in range(count)), (Value("y", text),), source="sum"))
    main = Function("main", (Value("x", text),), tuple(body), ("y",), opsets=(("", 18),))
    begin = time.process_time()
    plan = tt.decompose(tt.IRModule((main,)), "[npu=onnxruntime,gpu=llvm,cpu=numpy](host=@cpu)")
    # With one pass over the operands for each of them it takes 12 s.
    assert time.process_time() - begin < 8
    assert plan.site_of("sum") == "npu"
