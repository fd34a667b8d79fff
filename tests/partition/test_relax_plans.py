"""Relax modules divided over a tree and handed back to TVM, which builds them; they compute what the whole did."""

import doctest
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from effort import examples

tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")
pytest.importorskip("tvmtarget_sample.backend", reason="pip install ./tests/plugin")

import tvm_ffi  # noqa: E402
from models import DIGITS, inputs_of, light  # noqa: E402
from relax_modules import BRANCHES, EVERYTHING, IN_PLACE, SIX, TWO_STEPS, by_tvm, random_module, register_codegen, run  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.relax.dpl import is_op, wildcard  # noqa: E402
from tvm.relax.frontend.onnx import from_onnx  # noqa: E402

import tvmtarget as tt  # noqa: E402
from tvmtarget.errors import InfeasibleError, ModelError, TargetError  # noqa: E402

NPU = "[npu=probe(lanes=8),cpu=llvm](host=@cpu)"
CORES = "[big=llvm(num-cores=4),little=llvm(num-cores=2)](host=@big)"


def divided(module, target, seed):
    """Decompose with every operation on a random site, where that one takes it."""
    rng = random.Random(seed)
    sites = [child.slot for child in tt.Target.parse(target).targets]
    names = [call.source for call in tt.IRModule.from_tvm(module).main.body]
    return tt.decompose(module, target, where={name: f"@{rng.choice(sites)}?" for name in names})


def built(plan):
    """Have TVM build what a plan gives back."""
    module = plan.to_tvm()
    relax.analysis.well_formed(module)
    register_codegen("probe")
    return tvm.compile(relax.transform.RunCodegen(plan.codegen_options())(module), target="llvm")


def values(rows=2, columns=4):
    return np.random.default_rng(0).normal(size=(rows, columns)).astype("float32")


def assert_equal(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def check_well_formed(seed, size=40):
    rng = random.Random(seed)
    module = random_module(rng.randint(1, size), seed)
    written = divided(module, NPU if seed % 2 else CORES, seed).to_tvm()
    relax.analysis.well_formed(written)
    return written


@pytest.mark.parametrize("seed", range(8))
def test_branches_are_divided_and_compute_what_the_whole_does(seed):
    """A driver runs `If`: what is in branches goes to any site, which TVM's own partition never does."""
    rng = random.Random(seed)
    target = NPU if seed % 2 else CORES
    sites = [child.slot for child in tt.Target.parse(target).targets]
    names = [call.source for call in tt.decompose(BRANCHES, "llvm").program.body if call.op != "relax.If"]
    where = {name: f"@{rng.choice(sites)}{'?' if seed % 2 else ''}" for name in names}
    plan = tt.decompose(BRANCHES, target, where=where)
    assert seed % 2 or len(plan.outlined.driven) == 2
    assert tt.decompose(plan.module).module == plan.module
    module = plan.to_tvm()
    register_codegen("probe")
    relax.analysis.well_formed(module)
    executable = _compiled(relax.transform.RunCodegen(plan.codegen_options())(module))
    undivided, at_once = _compiled(BRANCHES), tt.build(BRANCHES, "llvm")
    devices = [tvm.cpu(0), tvm.cpu(1)]
    own = None if seed % 2 else tt.build(plan)
    for flag, sign in ((False, 1), (True, 1), (True, -1)):
        inputs = (np.array(flag), sign * np.abs(values()))
        whole = run(undivided, *inputs)
        assert_equal(run(executable, *inputs, devices=devices), whole)
        for ours in (at_once, own) if own is not None else (at_once,):
            assert_equal(list(ours.run(dict(zip("cx", inputs, strict=True))).values()), whole)


def test_a_branch_that_an_accelerator_serves_calls_it():
    plan = tt.decompose(BRANCHES, NPU, where={"p": "@npu"})
    names = [function.attr("Codegen") for function in tt.IRModule.from_tvm(plan.to_tvm())]
    assert names.count("probe") == len(plan.functions("npu"))
    assert plan.explain("p").reason == "it must meet @npu (required by where 'p')"
    assert plan.explain("y").reason == "no site can take it whole, so that its bodies are divided"


def _compiled(module):
    """Compile without the pass of TVM 0.27 that gives storage of one branch, or device, to tensors of another."""
    with tvm.transform.PassContext(disabled_pass=["StaticPlanBlockMemory"]):
        return tvm.compile(module, target="llvm")


@pytest.mark.parametrize("seed", range(30))
def test_divided_random_graphs_are_well_formed_and_read_back(seed):
    written = check_well_formed(seed)
    tvm.ir.assert_structural_equal(tt.IRModule.from_tvm(written).to_tvm(), written)


@pytest.mark.slow
def test_many_divided_random_graphs_are_well_formed():
    """1,000 random graphs never yield an ill-formed module; a quarter of them are tried on each run."""
    for seed in range(30, 30 + examples(120, 1000)):
        check_well_formed(seed, 20)


@pytest.mark.parametrize("seed", range(3))
def test_divided_random_graphs_compute_what_the_whole_one_does(seed):
    module = random_module(14, seed)
    executable = built(divided(module, NPU, seed))
    assert_equal(run(executable, values()), by_tvm(module, values()))


@pytest.mark.parametrize("seed", range(6, 8))
def test_two_virtual_devices_compute_what_one_does(seed):
    module = random_module(14, seed)
    executable = tvm.compile(divided(module, CORES, seed).to_tvm())
    actual = run(executable, values(), devices=[tvm.cpu(0), tvm.cpu(1)])
    assert_equal(actual, by_tvm(module, values()))


SIX_SITES = {"op:relax.tanh": "@cpu", "op:relax.nn.relu": "@npu", "op:relax.add": "@npu"}


def test_six_operations_that_tvms_own_passes_break():
    """facts: MergeCompositeFunctions makes two groups that each need the other's result, and says nothing."""
    patterns = [
        (f"probe.{name}", is_op(f"relax.{name}")(*[wildcard() for _ in range(count)]))
        for name, count in (("nn.relu", 1), ("add", 2))
    ]
    theirs = relax.transform.FuseOpsByPattern(patterns, bind_constants=True)(SIX)
    with pytest.raises(ValueError, match="not defined"):
        relax.analysis.well_formed(relax.transform.MergeCompositeFunctions()(theirs))
    plan = tt.decompose(SIX, NPU, where=SIX_SITES)
    assert [subgraph.ops for subgraph in plan.subgraphs] == [("lv", "lv1"), ("lv2", "lv3"), ("lv4", "lv5")]
    assert_equal(run(built(plan), values(2, 3)), by_tvm(SIX, values(2, 3)))


def test_external_generators_are_given_their_functions_and_the_options_of_their_node():
    plan = tt.decompose(SIX, NPU, where=SIX_SITES)
    seen = register_codegen("probe")
    relax.transform.RunCodegen(plan.codegen_options())(plan.to_tvm())
    assert seen == [(function.name, {"lanes": 8}) for function in plan.functions("npu")]


def test_two_generators_of_one_kind_with_different_options_are_refused():
    plan = tt.decompose(SIX, "[a=probe(lanes=8),b=probe(lanes=2),cpu=llvm](host=@cpu)", where={"op:relax.add": "@b"})
    with pytest.raises(TargetError, match="@a and @b are of kind 'probe' with different attributes"):
        plan.codegen_options()


def test_a_plan_of_one_llvm_is_the_module_itself():
    plan = tt.decompose(EVERYTHING, "llvm")
    relax.analysis.well_formed(plan.to_tvm())
    code = plan.to_tvm()["add_one"]
    assert code.attrs["target"].kind.name == "llvm"


def everything_inputs():
    return values(3, 4), values(1, 4)[0], np.array(True)


@pytest.fixture
def outside():
    """The function that EVERYTHING calls by name."""
    tvm_ffi.register_global_func("outside", lambda x: x, override=True)


@pytest.mark.usefixtures("outside")
def test_branches_tuples_symbols_and_code_are_divided_and_compute_the_same():
    where = {
        "op:relax.add": "@npu?",
        "op:relax.negative": "@npu",
        "op:relax.exp": "@npu",
        "op:relax.reshape": "@npu",
        "*": "@cpu?",
    }
    where = dict(reversed(where.items()))
    plan = tt.decompose(EVERYTHING, NPU, where=where)
    assert {plan.site_of("lv1"), plan.site_of("a")} == {"npu"}
    assert_equal(run(built(plan), *everything_inputs()), by_tvm(EVERYTHING, *everything_inputs()))


@pytest.mark.usefixtures("outside")
def test_branches_tuples_symbols_and_code_run_on_two_virtual_devices():
    plan = tt.decompose(EVERYTHING, CORES, where={"lv*": "@little", "halves": "@little"})
    module = plan.to_tvm()
    relax.analysis.well_formed(module)
    actual = run(tvm.compile(module), *everything_inputs(), devices=[tvm.cpu(0), tvm.cpu(1)])
    assert_equal(actual, by_tvm(EVERYTHING, *everything_inputs()))


def test_code_for_another_target_is_refused_where_it_cannot_run():
    module = EVERYTHING.clone()  # type: ignore[attr-defined]
    code = module["add_one"].with_attr("target", tvm.target.Target({"kind": "cuda", "arch": "sm_80"}))
    module.update_func(module.get_global_var("add_one"), code)
    plan = tt.decompose(module, "[cpu=llvm,gpu=cuda(arch=sm_80)](host=@cpu)")
    assert plan.site_of("lv3") == "gpu"
    with pytest.raises(InfeasibleError, match=r"'lv3' .*required by where"):
        tt.decompose(module, "[cpu=llvm,gpu=cuda(arch=sm_80)](host=@cpu)", where={"lv3": "@cpu"})


def test_a_plan_of_cpu_and_gpu_becomes_cuda_source():
    """As far as TVM's wheel goes, which has no CUDA runtime: kernels scheduled by dlight are printed as source."""
    dlight = pytest.importorskip("tvm.s_tir.dlight")
    plan = tt.decompose(SIX, "[gpu=cuda(arch=sm_80),cpu=llvm](host=@cpu)", where={"op:relax.tanh": "@cpu"})
    module = plan.to_tvm()
    relax.analysis.well_formed(module)
    with tvm.target.Target("llvm"):
        scheduled = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(relax.transform.LegalizeOps()(module))
    kernels = {
        var.name_hint: scheduled[var].attrs["target"].kind.name
        for var in scheduled.get_global_vars()
        if var.name_hint != "main"
    }
    assert kernels == {"relu_cuda": "cuda", "tir_tanh_llvm": "llvm", "add_cuda": "cuda"}
    host = tvm.compile(scheduled).mod.imports[0]
    assert [inner.kind for inner in host.imports] == ["cuda"]
    assert "relu_cuda_kernel" in host.imports[0].inspect_source()


@pytest.mark.slow
def test_a_real_model_is_divided_rebuilt_by_tvm_and_computes_the_same():
    model = light("squeezenet")
    module = from_onnx(model)
    where = {"*": "@cpu", "op:relax.nn.relu": "@npu", "op:relax.add": "@npu"}
    plan = tt.decompose(module, NPU, where=where)
    assert len([subgraph for subgraph in plan.subgraphs if subgraph.site == "npu"]) > 1
    inputs = list(inputs_of(model).values())
    assert_equal(run(built(plan), *inputs), by_tvm(module, *inputs))


def test_what_a_saved_plan_gives_tvm_is_what_the_plan_gave(tmp_path):
    plan = tt.decompose(random_module(30, 3), NPU, where={"op:relax.add": "@cpu", "op:relax.tanh": "@cpu"})
    plan.module.save(tmp_path / "divided.irm")
    tvm.ir.assert_structural_equal(tt.IRModule.load(tmp_path / "divided.irm").to_tvm(), plan.to_tvm())


def test_onnx_runtimes_leave_relax_alone():
    with pytest.raises(
        InfeasibleError, match=r"op 'lv' \(relax.nn.relu\) fits no site .*it runs ONNX, and relax.nn.relu is of Relax"
    ):
        tt.decompose(SIX, "[a=numpy,b=onnxruntime]")


def conv_bias_relu():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32"))
    w = relax.const(np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype("float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            conv = builder.emit(relax.op.nn.conv2d(x, w))
            relu = builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(conv, relax.const(np.float32(0.5))))))
            result = builder.emit_output(builder.emit(relax.op.add(relu, relax.op.tanh(relu))))
        builder.emit_func_output(result)
    return builder.get()


def test_matches_of_patterns_are_inner_functions_as_tvms_own_passes_leave_them():
    @tt.strategy("fusing-npu")
    class Fusing:
        """An engine for convolutions with what follows them."""

        ops = frozenset({"relax.nn.conv2d", "relax.nn.relu", "relax.add"})
        patterns = {"conv_relu": "relu(add(conv2d(x, w), b))", "add": "add(x, y)"}

    module = conv_bias_relu()
    plan = tt.decompose(module, "[npu=fusing-npu,cpu=llvm](host=@cpu)")
    written, function = plan.to_tvm(), plan.functions("npu")[0]
    relax.analysis.well_formed(written)
    tvm.ir.assert_structural_equal(tt.IRModule.from_tvm(written).to_tvm(), written)
    composites = []
    relax.analysis.post_order_visit(
        written[function.name],
        lambda one: (
            composites.append(str(one.attrs["Composite"]))
            if isinstance(one, relax.Function) and "Composite" in one.attrs
            else None
        ),
    )
    assert composites == ["fusing-npu.conv_relu"]
    assert "Codegen" in written[function.name].attrs
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype("float32")
    register_codegen("fusing-npu")
    executable = tvm.compile(relax.transform.RunCodegen(plan.codegen_options())(written), target="llvm")
    assert_equal(run(executable, x), by_tvm(module, x))


def _with_unused_fields(fields):
    """A split of two of which some fields are read, and a normalization of which only the first result is."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 4, 3, 3), "float32"))
    scale, zero = (relax.const(np.full(4, value, "float32")) for value in (2.0, 0.0))
    with builder.function("main", [x]):
        with builder.dataflow():
            relu = builder.emit(relax.op.nn.relu(x))
            normed = builder.emit(relax.op.nn.batch_norm(relu, scale, zero, zero, scale, axis=1, training=False))
            first = builder.emit(relax.op.nn.relu(builder.emit(normed[0])))
            halves = builder.emit(relax.op.split(first, 2, axis=1))
            taken = [builder.emit(halves[field]) for field in fields]
            read = [builder.emit(relax.op.tanh(half)) for half in taken]
            result = builder.emit_output(builder.emit(relax.op.concat(read, axis=1)))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("fields", [[0], [1], [0, 1]])
@pytest.mark.parametrize(
    ("patterns", "ops"),
    [
        ({"split": "split(x)", "norm": "batch_norm(x, ...)"}, None),
        ({"split": "split(relu(x))", "norm": "batch_norm(relu(x), ...)"}, None),
        ({"split": "split(x)"}, {"relax.nn.relu", "relax.split", "relax.nn.batch_norm"}),
    ],
)
def test_matches_may_end_in_operations_with_results_that_nobody_reads(patterns, ops, fields):
    class Fusing(tt.Strategy):
        pass

    Fusing.patterns, Fusing.ops = patterns, None if ops is None else frozenset(ops)
    tt.strategy("unread-npu")(Fusing)
    module = _with_unused_fields(fields)
    plan = tt.decompose(module, "[npu=unread-npu,cpu=llvm](host=@cpu)")
    written = plan.to_tvm()
    relax.analysis.well_formed(written)
    tvm.ir.assert_structural_equal(tt.IRModule.from_tvm(written).to_tvm(), written)
    named = [one.attrs["Composite"] for one in _local_functions(written)]
    assert sorted(map(str, named)) == sorted(f"unread-npu.{name}" for name in patterns)
    assert all(isinstance(one.ret_ty, tvm.ir.TupleType) for one in _local_functions(written))
    x = np.random.default_rng(1).normal(size=(2, 4, 3, 3)).astype("float32")
    register_codegen("unread-npu")
    executable = tvm.compile(relax.transform.RunCodegen(plan.codegen_options())(written), target="llvm")
    assert_equal(run(executable, x), by_tvm(module, x))


def _local_functions(module):
    """Return the functions inside functions."""
    found = []
    for function in module.functions.values():
        relax.analysis.post_order_visit(
            function.body, lambda one: found.append(one) if isinstance(one, relax.Function) else None
        )
    return found


def test_the_document_on_relax():
    failed, tried = doctest.testfile(str(Path(__file__).parents[2] / "docs" / "relax.md"), module_relative=False)
    assert tried
    assert not failed


@pytest.mark.parametrize(
    ("module", "target"),
    [(SIX, CORES), (random_module(10, 2), CORES), (conv_bias_relu(), "llvm")],
    ids=["six on two", "random on two", "convolution"],
)
def test_our_own_build_compiles_relax(module, target, tmp_path):
    shape = [int(getattr(dim, "value", 2)) for dim in module["main"].params[0].ty.shape.values]
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    executable = tt.build(divided(module, target, 0) if target is CORES else tt.decompose(module, target))
    assert_equal(list(executable.run({"x": x}).values()), by_tvm(module, x))
    executable.save(tmp_path / "program.tt")
    assert_equal(list(tt.load(tmp_path / "program.tt").run({"x": x}).values()), by_tvm(module, x))


@pytest.mark.parametrize("target", ["llvm", "[a=llvm](executor=vm,host=@a)"])
def test_code_that_writes_into_its_input_leaves_the_array_of_the_caller(target):
    executable, memory = tt.build(IN_PLACE, target), np.ones(32, "float32")
    start = -memory.ctypes.data // 4 % 16
    x = memory[start : start + 4]  # which the code can read in place
    assert executable(x).tolist() == [2.0] * 4
    assert x.tolist() == [1.0] * 4


def test_our_own_build_takes_dimensions_that_a_match_cast_defines():
    builder = relax.BlockBuilder()
    x, size = relax.Var("x", relax.TensorType((4,), "float32")), tvm.tirx.Var("m", "int64")
    with builder.function("main", [x]):
        with builder.dataflow():
            found = builder.emit(relax.op.unique(x, False, False, False))
            cast = builder.match_cast(found, relax.TensorType((size,), "float32"))
            out = builder.emit_output(relax.op.add(cast, cast))
        builder.emit_func_output(out)
    exe = tt.build(tt.IRModule.from_tvm(builder.get()), "llvm")
    (result,) = exe.run({"x": np.float32([3, 1, 3, 2])}).values()
    assert sorted(result.tolist()) == [2, 4, 6]


def test_our_own_build_names_dimensions_that_a_part_cannot_know():
    builder = relax.BlockBuilder()
    rows = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((rows, 4), "float32"))
    with builder.function("main", [x]):
        flat = builder.emit(relax.op.tanh(builder.emit(relax.op.reshape(x, (rows * 4,)))))
        builder.emit_func_output(builder.emit(relax.op.reshape(flat, (rows, 4))))
    module = builder.get()
    ones = np.ones((2, 4), "float32")
    assert_equal(list(tt.build(tt.decompose(module, "llvm")).run({"x": ones}).values()), by_tvm(module, ones))
    plan = tt.decompose(module, CORES, where={"gv2": "@little", "gv1": "@big"})
    with pytest.raises(ModelError, match=r"function 'little_reshape_\w+' needs dimension 'n', which no parameter of"):
        tt.build(plan)
    assert_equal(run(tvm.compile(plan.to_tvm()), ones, devices=[tvm.cpu(0), tvm.cpu(1)]), by_tvm(module, ones))


def test_what_tvm_gave_to_external_generators_stays_theirs():
    patterns = [
        ("probe.conv", is_op("relax.nn.conv2d")(wildcard(), wildcard())),
        ("probe.relu", is_op("relax.nn.relu")(wildcard())),
    ]
    module = conv_bias_relu()
    theirs = relax.transform.FuseOpsByPattern(patterns, bind_constants=False)(module)
    theirs = relax.transform.MergeCompositeFunctions()(theirs)
    plan = tt.decompose(theirs, NPU, where={"op:relax.tanh": "@cpu"})
    written = plan.to_tvm()
    relax.analysis.well_formed(written)
    seen = register_codegen("probe")
    executable = tvm.compile(relax.transform.RunCodegen(plan.codegen_options())(written))
    assert seen
    assert all(options == {"lanes": 8} for _, options in seen)
    with pytest.raises(TargetError, match=r"is for code generator 'probe', .* of that kind; it has @big \(llvm\), @l"):
        tt.decompose(theirs, CORES)
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype("float32")
    assert_equal(run(executable, x), by_tvm(module, x))


def test_what_was_divided_over_virtual_devices_stays_where_it_was():
    once = tt.decompose(SIX, CORES, where={"op:relax.tanh": "@little"}).to_tvm()
    plan = tt.decompose(once, CORES)
    assert {op: site for op, site in plan.sites().items() if "copy" not in op} == {
        "lv": "big", "lv1": "big", "lv2": "little", "lv3": "little", "lv4": "big", "lv5": "big"
    }  # fmt: skip
    relax.analysis.well_formed(plan.to_tvm())
    executable = tvm.compile(plan.to_tvm())
    assert_equal(run(executable, values(2, 3), devices=[tvm.cpu(0), tvm.cpu(1)]), by_tvm(SIX, values(2, 3)))


def test_the_digits_are_divided_and_recognised_as_before():
    module = from_onnx(onnx.load(DIGITS))
    plan = tt.decompose(module, NPU, where={"*": "@cpu?", "op:relax.nn.relu": "@npu", "op:relax.nn.conv2d": "@npu"})
    assert len([subgraph for subgraph in plan.subgraphs if subgraph.site == "npu"]) > 1
    image = np.random.default_rng(0).random((2, 1, 8, 8)).astype("float32")
    assert_equal(run(built(plan), image), by_tvm(module, image))


def tuples_constants_and_closures():
    """Tuples taken apart where they are not, constants handed on as they are, and a local function with captures."""
    x, c = relax.Var("x", relax.TensorType((2, 4), "float32")), relax.Var("c", relax.TensorType((2, 4), "float32"))
    pair = relax.Var("pair", tvm.ir.TupleType([x.ty, tvm.ir.TupleType([x.ty, x.ty])]))
    ones = relax.const(np.ones((2, 4), "float32"))
    builder = relax.BlockBuilder()
    local = relax.Var("inner", relax.FuncType([x.ty], x.ty))
    with builder.function("main", [x, pair]):
        alias = builder.emit(ones)
        inner = builder.emit(relax.TupleGetItem(pair, 1))
        taken = builder.emit(relax.TupleGetItem(inner, 0))
        body = relax.op.add(c, x)
        made = builder.emit(relax.op.multiply(taken, alias))
        result = relax.Var("result", x.ty)
        block = relax.BindingBlock([relax.VarBinding(result, body)])
        closure = relax.Function([c], relax.SeqExpr([block], result), x.ty)
        builder.emit_normalized(relax.VarBinding(local, closure))
        called = builder.emit(relax.Call(local, [ones]))
        joined = builder.emit(relax.op.concat(inner, axis=0))
        builder.emit_func_output(relax.Tuple([called, made, ones, joined]))
    return builder.get()


@pytest.mark.parametrize("site", ["big", "little"])
@pytest.mark.parametrize("op", ["value", "TupleGetItem", "multiply", "Function", "Call", "concat"])
def test_tuples_constants_and_closures_are_on_the_virtual_devices_of_their_readers(op, site):
    module = tuples_constants_and_closures()
    written = tt.decompose(module, CORES, where={"*": f"@{site}?", f"op:relax.{op}": "@little?"}).to_tvm()
    relax.analysis.well_formed(written)
    tvm.ir.assert_structural_equal(tt.IRModule.from_tvm(written).to_tvm(), written)


def test_tuples_that_inlined_functions_return_are_bound():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    pair = relax.Var("pair", tvm.ir.TupleType([x.ty, x.ty]))
    with builder.function("swapped", [pair], private=True):
        first, second = (builder.emit(relax.TupleGetItem(pair, index)) for index in (0, 1))
        builder.emit_func_output(relax.Tuple([relax.op.nn.relu(second), first]))
    swapped = builder.get().get_global_var("swapped")
    with builder.function("main", [x]):
        once = builder.emit(relax.Call(swapped, [builder.emit(relax.Tuple([x, relax.op.tanh(x)]))]))
        builder.emit_func_output(builder.emit(relax.op.concat(builder.emit(relax.Call(swapped, [once])))))
    module = relax.transform.Normalize()(builder.get())
    for target in ("llvm", NPU, CORES):
        written = tt.decompose(module, target).to_tvm()
        relax.analysis.well_formed(written)
        tvm.ir.assert_structural_equal(tt.IRModule.from_tvm(written).to_tvm(), written)


def test_parts_of_external_generators_stay_on_their_virtual_devices():
    """Divided twice: the part of the first time says where its operands are, by the same virtual device."""
    rack = "[cpu=llvm,soc=[npu=probe,cpu=llvm(num-cores=2)](host=@cpu)](host=@cpu)"
    where = {"op:relax.nn.relu": "@soc/npu", "op:relax.tanh": "@soc/cpu", "op:relax.add": "@cpu"}
    once = tt.decompose(SIX, rack, where=where).to_tvm()
    twice = tt.decompose(once, rack).to_tvm()
    relax.analysis.well_formed(twice)
    assert len(twice.global_infos["vdevice"]) == len(once.global_infos["vdevice"]) == 2


def test_tensors_of_one_size_go_to_and_fro_between_virtual_devices():
    """TVM's memory planner, where it is not left out, gives storage of one device to tensors of the other."""
    builder = relax.BlockBuilder()
    value = x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    with builder.function("main", [x]):
        for _ in range(3):
            value = builder.emit(relax.op.tanh(builder.emit(relax.op.nn.relu(value))))
        builder.emit_func_output(value)
    module = builder.get()
    written = tt.decompose(module, CORES, where={"op:relax.tanh": "@little", "op:relax.nn.relu": "@big"}).to_tvm()
    with tvm.transform.PassContext(disabled_pass=["StaticPlanBlockMemory"]):
        executable = tvm.compile(written)
    assert_equal(run(executable, values(), devices=[tvm.cpu(0), tvm.cpu(1)]), by_tvm(module, values()))


def test_readers_of_a_tuple_may_be_apart():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    pair = relax.Var("pair", tvm.ir.TupleType([tvm.ir.TupleType([x.ty, x.ty]), x.ty]))
    with builder.function("main", [pair]):
        inner = builder.emit(relax.TupleGetItem(pair, 0))
        relu = builder.emit(relax.op.nn.relu(builder.emit(relax.TupleGetItem(inner, 0))))
        builder.emit_func_output(relax.Tuple([inner, relu]))
    plan = tt.decompose(builder.get(), NPU, where={"op:relax.nn.relu": "@npu"})
    assert [subgraph.site for subgraph in plan.subgraphs] == ["cpu", "npu", "cpu"]
    relax.analysis.well_formed(plan.to_tvm())


@pytest.mark.parametrize("target", [NPU, CORES])
def test_a_module_without_main_is_divided_function_by_function(target):
    other = tt.Target.parse(target).targets[0].slot
    with pytest.raises(ModelError, match="'decode' or 'prefill'"):
        tt.decompose(TWO_STEPS, target)
    once = tt.decompose(TWO_STEPS, target, where={"op:relax.tanh": f"@{other}"}, entry="prefill")
    plan = tt.decompose(once.module, target, where={"op:relax.nn.relu": f"@{other}"}, entry="decode")
    executable, devices = built(plan), [tvm.cpu(0), tvm.cpu(1)]
    for entry, rows in (("prefill", 5), ("decode", 1)):
        given = values(rows, 4)
        assert_equal(run(executable, given, devices=devices, entry=entry), by_tvm(TWO_STEPS, given, entry=entry))


def test_the_only_function_of_a_module_needs_no_name():
    only = tvm.IRModule({variable: TWO_STEPS[variable] for variable in TWO_STEPS.get_global_vars()[:1]})
    entry = only.get_global_vars()[0].name_hint
    plan = tt.decompose(only, "llvm")
    assert [variable.name_hint for variable in plan.to_tvm().get_global_vars()] == [entry]
    given = values(5 if entry == "prefill" else 1, 4)
    assert_equal(tuple(tt.build(plan).run({"x": given}).values()), by_tvm(only, given, entry=entry))
