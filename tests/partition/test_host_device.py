"""REQUIREMENTS N0, N4: mixed functions (E0) become host-driving functions and device functions (E1)."""

import numpy as np
import pytest
from control_models import inputs_for, random_program
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import DIGITS, inputs_of, random_graph

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, ModelError, TargetError
from tvmtarget.ir.function import COPY
from tvmtarget.partition.host_device.attributes import side_of
from tvmtarget.target.topology import Topology

PAIR = "[npu=probe,cpu=numpy](host=@cpu)"

# relu, reshape and tanh are device work; twice and shape are integers that only say how to reshape.
RESHAPED = """
func @main(%x: float32[2,6], %n: int64[1]) -> (float32[?,?]) opsets(onnx=17) {
  const %two: int64[1] = [2]
  const %three: int64[1] = [3]
  %r: float32[2,6] = onnx.Relu(%x) as relu
  %k: int64[1] = onnx.Mul(%n, %two) as twice
  %s: int64[2] = onnx.Concat(%k, %three) {axis=0} as shape
  %y: float32[?,?] = onnx.Reshape(%r, %s) as reshape
  %z: float32[?,?] = onnx.Tanh(%y) as tanh
  return %z
}
"""
X = {"x": np.linspace(-1, 1, 12, dtype="float32").reshape(2, 6), "n": np.array([2])}


@pytest.fixture
def device_only(monkeypatch):
    """Let the sample generator take device code only, for the operators that are given."""
    strategy = pytest.importorskip("tvmtarget_sample.backend", reason="pip install ./tests/plugin").ProbeStrategy

    def change(**unsupported):
        monkeypatch.setattr(strategy, "accepts", "device")
        monkeypatch.setattr(strategy, "unsupported", unsupported)

    return change


def sides(module):
    topology = Topology(module.target.resolve())
    return {function.name: (side_of(function, topology), str(function.constraint)) for function in module}


def test_a_mixed_function_becomes_a_driver_on_the_host_and_device_functions():
    split = tt.split_host_device(tt.IRModule.parse(RESHAPED), "probe(host=numpy)")
    assert list(sides(split).values()) == [("host", "@host"), ("host", "@host"), ("device", "@.")]
    assert [(f.attr("is-host-function"), f.attr("calling-convention"), f.attr("drives")) for f in split] == [
        (True, "packed", ""),
        (True, "packed", ""),
        (None, "device-kernel-launch", None),
    ]
    assert [[call.source for call in f.body] for f in split][1:] == [["twice", "shape"], ["relu", "reshape", "tanh"]]
    assert all(call.op == COPY or call.callee for call in split.main.body)
    assert tt.split_host_device(split) == split
    expected = tt.build(tt.IRModule.parse(RESHAPED), "numpy").run(X)
    np.testing.assert_allclose(tt.build(split).run(X)["z"], expected["z"], rtol=1e-6)


def test_a_split_stays_through_every_form_and_step(tmp_path):
    """Host and device functions are a decision of the module: no later step makes one mixed function of them."""
    for target in ("probe(host=numpy)", PAIR):
        split = tt.split_host_device(tt.IRModule.parse(RESHAPED).constrain("main", "probe"), target)
        split.save(tmp_path / "split.irm")
        for same in (
            tt.IRModule.parse(str(split)),
            tt.IRModule.from_json(split.to_json(), split.constants()),
            tt.IRModule.load(tmp_path / "split.irm"),
        ):
            assert same == split
            assert tt.decompose(same).module == split
            assert tt.decompose(same, target).module == split
        exe = tt.build(split)
        assert len(exe.backends) == 2
        exe.save(tmp_path / "split.tta")
        expected = tt.build(tt.IRModule.parse(RESHAPED), "numpy").run(X)["z"]
        for one in (exe, tt.load(tmp_path / "split.tta")):
            assert [subgraph["site"] for subgraph in one.report()["subgraphs"]] == [
                subgraph["site"] for subgraph in exe.report()["subgraphs"]
            ]
            np.testing.assert_allclose(one.run(X)["z"], expected, rtol=1e-6)


def test_functions_stay_whole_where_the_generator_takes_mixed_ones():
    plan = tt.decompose(tt.IRModule.parse(RESHAPED), "probe(host=numpy)")
    assert [(subgraph.site, subgraph.device, len(subgraph.ops)) for subgraph in plan.subgraphs] == [("", None, 5)]
    assert sides(plan.module) == {"main": ("mixed", "@.")}
    assert tt.split_host_device(tt.IRModule.from_onnx(DIGITS), "numpy").main.attr("role") == "leaf"  # drives itself


def test_decompose_splits_for_generators_of_device_code_only(device_only):
    device_only()
    plan = tt.decompose(tt.IRModule.parse(RESHAPED), "probe(host=numpy)")
    assert [(subgraph.site, subgraph.ops) for subgraph in plan.subgraphs] == [
        ("host", ("twice", "shape")),
        ("", ("relu", "reshape", "tanh")),
    ]
    assert plan.module == tt.split_host_device(tt.IRModule.parse(RESHAPED), "probe(host=numpy)")
    assert tt.decompose(plan.module).module == plan.module
    plan.verify()
    assert plan.site_of("shape") == "host"
    assert "it is shape or scalar work, which the host runs for @." in str(plan.explain("shape"))


@pytest.mark.parametrize(("shape", "functions"), [("superstep", 1), ("connected", 2), ("single", 3)])
def test_device_functions_have_the_shape_that_their_generator_requires(device_only, monkeypatch, shape, functions):
    from tvmtarget_sample.backend import ProbeStrategy

    device_only()
    monkeypatch.setattr(ProbeStrategy, "subgraphs", shape)
    text = """
    func @main(%x: float32[2,6]) opsets(onnx=17) {
      %a: float32[2,6] = onnx.Relu(%x) as a
      %b: float32[2,6] = onnx.Tanh(%a) as b
      %c: float32[2,6] = onnx.Neg(%x) as c
      return %b, %c
    }
    """
    plan = tt.decompose(tt.IRModule.parse(text), "probe(host=numpy)")
    assert len(plan.subgraphs) == functions
    assert tt.decompose(plan.module).module == plan.module


def test_in_a_system_a_device_function_without_host_work_has_its_driver_already(device_only):
    device_only()
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), PAIR, where={"op:Gemm": "@cpu"})
    assert {(f.attr("role"), f.attr("calling-convention")) for f in plan.functions("npu")} == {
        ("leaf", "device-kernel-launch")
    }
    assert len([f for f in plan.module if f.attr("role") == "driver"]) == 1


def test_shapes_that_the_device_does_not_support_are_computed_on_the_host_and_other_work_is_not(device_only):
    device_only(Shape="no shapes", Concat="no concatenation", Gather="no indices")
    text = """
    func @main(%x: float32[2,6]) -> (float32[?,?]) opsets(onnx=17) {
      const %at: int64[1] = [1]
      const %rest: int64[1] = [-1]
      %r: float32[2,6] = onnx.Relu(%x) as relu
      %s: int64[2] = onnx.Shape(%r) as shape
      %g: int64[1] = onnx.Gather(%s, %at) as gather
      %c: int64[2] = onnx.Concat(%g, %rest) {axis=0} as concat
      %y: float32[?,?] = onnx.Reshape(%r, %c) as reshape
      return %y
    }
    """
    plan = tt.decompose(tt.IRModule.parse(text), PAIR, where={"*": "@npu"}, fold_constants=False)
    assert [(subgraph.site, subgraph.device, subgraph.ops) for subgraph in plan.subgraphs] == [
        ("npu", "npu", ("relu",)),
        ("cpu", "npu", ("shape", "gather", "concat")),
        ("npu", "npu", ("reshape",)),
    ]
    assert tt.decompose(plan.module).module == plan.module
    x = {"x": X["x"]}
    np.testing.assert_array_equal(tt.build(plan).run(x)["y"], tt.build(tt.IRModule.parse(text), "numpy").run(x)["y"])
    device_only(Relu="no relu")
    with pytest.raises(InfeasibleError, match=r"op 'relu'.*no relu"):
        tt.decompose(tt.IRModule.parse(text), PAIR, where={"*": "@npu"})


def test_shapes_that_the_device_computes_do_not_go_to_the_host_and_back():
    text = (
        RESHAPED.replace("onnx.Mul(%n, %two)", "onnx.Mul(%q, %two)")
        .replace("%k: int64[1]", "%q: int64[1] = onnx.ArgMax(%r1) {axis=0,keepdims=0} as argmax\n  %k: int64[1]")
        .replace("%r: float32[2,6]", "%r1: float32[6,1] = onnx.Reshape(%x, %col) as col\n  %r: float32[2,6]")
        .replace("const %two", "const %col: int64[2] = [6, 1]\n  const %two")
    )
    split = tt.split_host_device(tt.IRModule.parse(text), "probe(host=numpy)")
    assert list(sides(split).values()) == [("host", "@host"), ("device", "@.")]


CALLED = """
func @main(%x: float32[2,6], %n: int64[1]) -> (float32[?,?]) opsets(onnx=17) {
  %a: float32[?,?] = @outer(%x, %n) as first
  %m: float32[] = onnx.ReduceMax(%a) {keepdims=0} [@cpu] as most
  %w: float32[2,6] = onnx.Mul(%x, %m) [@cpu] as scaled
  %b: float32[?,?] = @outer(%w, %n) as second
  %c: float32[?,?] = onnx.Add(%a, %b) [@cpu] as add
  return %c
}
func @outer(%x: float32[2,6], %n: int64[1]) -> (float32[?,?]) opsets(onnx=17) {
  %y: float32[?,?] = @inner(%x, %n)
  return %y
}
""" + RESHAPED.replace("func @main", "func @inner").replace("opsets(onnx=17) {", "opsets(onnx=17) [@npu] {")


def test_functions_that_are_called_from_several_places_and_at_depth_are_split_once():
    split = tt.split_host_device(tt.IRModule.parse(CALLED), PAIR)
    (driving,) = [f for f in split if f.attr("drives") == "npu" and f.attr("role") == "driver"]
    assert str(driving.constraint) == "@cpu"
    assert [call.callee for call in split.main.body].count(driving.name) == 2
    assert tt.split_host_device(split) == split
    expected = tt.build(tt.IRModule.parse(CALLED), PAIR).run(X)
    np.testing.assert_allclose(tt.build(split).run(X)["c"], expected["c"], rtol=1e-6)


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(size=st.integers(1, 25), seed=st.integers(0, 10**6), target=st.sampled_from(["probe(host=numpy)", PAIR]))
def test_a_split_program_is_the_same_program(size, seed, target):
    """Every function says which side it is for, doing it twice changes nothing, and the results are equal."""
    model = random_graph(size, seed)
    split = tt.split_host_device(tt.IRModule.from_onnx(model), target)
    found = sides(split)
    assert {side for side, _ in found.values()} <= {"host", "device"}
    assert all(
        (side == "device") == (constraint in ("@.", "@npu"))
        for name, (side, constraint) in found.items()
        if split[name].attr("role") == "leaf"
    )
    assert tt.split_host_device(split) == split
    expected = tt.build(tt.IRModule.from_onnx(model), "numpy").run(inputs_of(model))
    for name, value in tt.build(split).run(inputs_of(model)).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


def test_a_target_is_needed():
    with pytest.raises(TargetError, match="no target is given"):
        tt.split_host_device(tt.IRModule.from_onnx(DIGITS))


# TIR


def test_opaque_tir_functions_are_split_by_tvm_into_host_functions_and_kernels():
    tvm = pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
    import tir_modules

    from tvmtarget.partition.host_device.code import function_of, prim_of

    target = "[gpu=cuda(arch=sm_80),cpu=llvm](host=@cpu)"
    constraint = tt.Constraint.parse("@gpu")
    scale = function_of("main", tir_modules.Scale["main"], constraint)
    module = tt.IRModule((scale,)).with_target(target)
    assert sides(module) == {"main": ("mixed", "@gpu")}
    split = tt.split_host_device(module)
    assert sides(split) == {"main": ("host", "@cpu"), "main_kernel": ("device", "@gpu")}
    assert split.main.params == scale.params
    kernel = prim_of(split["main_kernel"])
    assert int(kernel.attrs["calling_conv"]) == 2
    assert [str(tag) for tag in kernel.attrs["tirx.kernel_launch_params"]] == ["threadIdx.x"]
    assert "main_kernel" in prim_of(split.main).script()
    assert tt.split_host_device(split) == split
    assert tt.IRModule.parse(str(split)) == split
    assert tvm.tirx.PrimFunc is type(kernel)


def test_private_tir_functions_of_both_sides_are_copied_when_their_callers_are_split():
    pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
    import tir_modules

    from tvmtarget.partition.host_device.code import function_of

    tir, gpu = tir_modules.Both, tt.Constraint.parse("@gpu")
    module = tt.IRModule(
        tuple(function_of(n, tir[n], gpu if n in ("main", "check") else None) for n in ("main", "check", "f", "g", "h"))
    )
    split = tt.split_host_device(module, "[gpu=cuda(arch=sm_80),cpu=llvm](host=@cpu)")
    assert sides(split) == {
        "main": ("host", "@cpu"),
        "check": ("host", "@cpu"),
        "f": ("host", "@cpu"),
        "g": ("device", "@gpu"),
        "h": ("device", "@gpu"),
        "g_host": ("host", "@cpu"),
        "h_host": ("host", "@cpu"),
        "main_kernel": ("device", "@gpu"),
    }
    assert tt.split_host_device(split) == split
    other = module.with_function(module["check"].replace(constraint=tt.Constraint.parse("@npu")))
    with pytest.raises(ModelError, match="function 'g' is called by code for @gpu and for @npu; make a copy for each"):
        tt.split_host_device(other, "[gpu=cuda(arch=sm_80),npu=cuda(arch=sm_70),cpu=llvm](host=@cpu)")


BRANCHED = """
func @main(%x: float32[2,6], %c: bool[1]) -> (float32[2,6]) opsets(onnx=17) {
  %r: float32[2,6] = onnx.Relu(%x) as relu
  %n: bool[1] = onnx.Not(%c) as turned
  %y: float32[2,6] = onnx.If(%n) as if
    then_branch @then() captures(%r) {
      const %two: float32[1] = [2.0]
      %t: float32[2,6] = onnx.Mul(%r, %two) as doubled
      return %t
    }
    else_branch @else() captures(%r) {
      %e: float32[2,6] = onnx.Neg(%r) as negated
      return %e
    }
  %z: float32[2,6] = onnx.Tanh(%y) as tanh
  return %z
}
"""


def test_control_flow_is_run_by_the_host_and_its_bodies_by_the_device(device_only):
    device_only(If="no control flow")
    module = tt.IRModule.parse(BRANCHED)
    for target in ("probe(host=numpy)", PAIR):
        plan = tt.decompose(module, target, where={"*": "probe"})
        host = "host" if target != PAIR else "cpu"
        assert [(subgraph.site, subgraph.ops) for subgraph in plan.subgraphs if subgraph.site == host] == [
            (host, ("turned",))
        ]
        ops = {op for subgraph in plan.subgraphs if subgraph.site != host for op in subgraph.ops}
        assert ops == {"relu", "doubled", "negated", "tanh"}
        assert [one.op for one in plan.outlined.driven] == ["if"]
        assert tt.decompose(plan.module).module == plan.module
        assert "driver" in str(plan.explain("if"))
        for condition in (True, False):
            given = {"x": X["x"], "c": np.array([condition])}
            expected = tt.build(module, "numpy").run(given)["z"]
            np.testing.assert_allclose(tt.build(plan).run(given)["z"], expected, rtol=1e-6)


def test_control_flow_is_split_on_request_too():
    split = tt.split_host_device(tt.IRModule.parse(BRANCHED), "probe(host=numpy)")
    (branch,) = [call for call in split.main.body if call.op == "onnx.If"]
    assert all(call.op == COPY or call.callee for _, body in branch.regions for call in body.body)
    assert tt.split_host_device(split) == split


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), trips=st.integers(0, 2), target=st.sampled_from(["probe(host=numpy)", PAIR]))
def test_random_programs_with_nested_control_flow_stay_the_same_programs(device_only, seed, trips, target):
    """Bodies at any depth are split; verify() proves borders and copies, and the results are equal."""
    device_only(If="no control flow", Loop="no control flow", Scan="no control flow")
    module = tt.IRModule.from_onnx(random_program(6, seed))
    pytest.importorskip("onnxruntime")
    plan = tt.decompose(module, target, where={"*": "probe"})
    assert tt.decompose(plan.module).module == plan.module
    given_ = inputs_for(seed, trips)
    read = {param.name for param in module.main.params}
    given_ = {name: value for name, value in given_.items() if name in read}
    expected = tt.build(module, "onnxruntime").run(given_)
    for name, value in tt.build(plan).run(given_).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)
