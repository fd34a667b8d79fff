"""Patterns of TVM's registry as strategies: the matches that TVM's own passes make, and why there are no others."""

import numpy as np
import onnx
import pytest

tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")

from models import DIGITS  # noqa: E402
from relax_modules import EVERYTHING, SIX, by_tvm, random_module, register_codegen, run  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.relax.backend.cuda import cublas  # noqa: E402, F401 - registers its patterns
from tvm.relax.backend.pattern_registry import get_patterns_with_prefix, register_patterns  # noqa: E402
from tvm.relax.backend.utils import has_leaking_intermediate_variables  # noqa: E402
from tvm.relax.dpl import is_op, wildcard  # noqa: E402
from tvm.relax.frontend.onnx import from_onnx  # noqa: E402

import tvmtarget as tt  # noqa: E402
from tvmtarget.errors import TargetError  # noqa: E402
from tvmtarget.support.tvm_patterns import from_tvm_patterns  # noqa: E402

ADAPTED = "[npu=adapted,cpu=llvm](host=@cpu)"


def _of_relu(name, *, check=None):
    operand = wildcard()
    relu = is_op("relax.nn.relu")(operand)
    pattern = is_op(name)(relu, wildcard()) if name == "relax.add" else is_op(name)(relu)
    return pattern, {"operand": operand}, check


def _is_static(context):
    if has_leaking_intermediate_variables(context):
        return False
    return isinstance(context.annotated_expr["operand"].ty.shape[0], tvm.tirx.IntImm)


register_patterns(
    [
        ("adapted.relu_add", *_of_relu("relax.add", check=_is_static)),
        ("adapted.relu_tanh", *_of_relu("relax.tanh", check=_is_static)),
        ("adapted.abs", is_op("relax.abs")(wildcard())),
    ]
)


@pytest.fixture(scope="module", autouse=True)
def strategies():
    """The strategies of both prefixes, registered."""
    tt.strategy("adapted")(from_tvm_patterns("adapted"))
    tt.strategy("cublas")(from_tvm_patterns("cublas"))


def matches_of(plan):
    """List the matches in all functions: the name of the pattern, and the operations."""
    return sorted(
        match for subgraph in plan.subgraphs for match in plan.module[subgraph.function].attr("matches") or ()
    )


def fused_by_tvm(module, prefix):
    return relax.transform.FuseOpsByPattern(get_patterns_with_prefix(prefix), bind_constants=True)(module)


def composites_of(module, prefix):
    """List what TVM's pass calls of composites: the name of the pattern, and the operators of each call."""
    fused = fused_by_tvm(module, prefix)
    calls = [value for value in _values(fused["main"]) if _is_global(value)]
    return sorted(
        (
            str(fused[call.op].attrs["Composite"]).removeprefix(f"{prefix}."),
            *(str(value.op.name) for value in _values(fused[call.op])),
        )
        for call in calls
    )


def _values(function):
    return [binding.value for block in function.body.blocks for binding in block.bindings]


def _is_global(value):
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)


def external_functions(module):
    return [var for var in module.get_global_vars() if "Codegen" in (module[var].attrs or {})]


def kinds_of(plan, module):
    """List the matches of a plan with operators in place of names."""
    kinds = {call.source: call.op for call in tt.IRModule.from_tvm(module).main.body}
    return sorted((pattern, *map(kinds.get, sources)) for pattern, *sources in matches_of(plan))


def classifier(rows=2):
    """Return two layers; of the second product another operation reads the result, too."""
    rng = np.random.default_rng(0)
    weights = relax.const(rng.normal(size=(4, 4)).astype("float32"))
    bias = relax.const(rng.normal(size=4).astype("float32"))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.add(builder.emit(relax.op.matmul(x, weights)), bias))
            hidden = builder.emit(relax.op.tanh(builder.emit(relax.op.nn.relu(first))))
            turned = builder.emit(relax.op.permute_dims(weights))
            second = builder.emit(relax.op.matmul(hidden, turned))
            biased = builder.emit(relax.op.add(second, bias))
            result = builder.emit_output(relax.op.multiply(biased, builder.emit(relax.op.exp(second))))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("rows", [2, tvm.tirx.Var("n", "int64")], ids=["static", "dynamic"])
def test_cublas_takes_what_tvms_own_passes_give_it(rows):
    module = classifier(rows)
    plan = tt.decompose(module, "[gpu=cublas,cpu=llvm](host=@cpu)")
    assert matches_of(plan) == [("matmul_bias_relu", "lv", "lv1", "lv2"), ("matmul_transposed", "lv4", "lv5")]
    assert kinds_of(plan, module) == composites_of(module, "cublas")
    verdict = "@gpu: no, RULE: a result inside a match of 'matmul_transposed_bias' is read outside of it"
    assert verdict in str(plan.explain("lv6"))
    merged = relax.transform.MergeCompositeFunctions()(fused_by_tvm(module, "cublas"))
    written = plan.to_tvm()
    relax.analysis.well_formed(written)
    assert len(external_functions(written)) == len(external_functions(merged)) == 2


def test_random_graphs_are_matched_as_by_tvm():
    count = 0
    for seed in range(20):
        module = relax.transform.DeadCodeElimination()(random_module(60, seed))
        matched = kinds_of(tt.decompose(module, ADAPTED), module)
        assert matched == composites_of(module, "adapted"), seed
        count += len(matched)
    assert count > 10


def test_what_is_matched_computes_the_same():
    module = random_module(30, 7)
    plan = tt.decompose(module, ADAPTED)
    assert matches_of(plan)
    register_codegen("adapted")
    executable = tvm.compile(relax.transform.RunCodegen(plan.codegen_options())(plan.to_tvm()), target="llvm")
    x = np.random.default_rng(0).normal(size=(2, 4)).astype("float32")
    for one, other in zip(run(executable, x), by_tvm(module, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_digit_classifier_is_matched_as_by_tvm():
    module = from_onnx(onnx.load(DIGITS))
    plan = tt.decompose(module, "[gpu=cublas,cpu=llvm](host=@cpu)")
    assert kinds_of(plan, module) == composites_of(module, "cublas")


def chain(*operators, rows=2):
    builder = relax.BlockBuilder()
    value = relax.Var("x", relax.TensorType((rows, 4), "float32"))
    with builder.function("main", [value]):
        with builder.dataflow():
            for operator in operators:
                value = builder.emit(operator(value))
            value = builder.emit_output(relax.op.negative(value))
        builder.emit_func_output(value)
    return builder.get()


def test_a_check_that_fails_is_a_rejection():
    module = chain(relax.op.nn.relu, relax.op.tanh, rows=tvm.tirx.Var("n", "int64"))
    plan = tt.decompose(module, ADAPTED)
    assert "@npu: no, RULE: the check of adapted.relu_tanh says no" in str(plan.explain("lv"))
    assert set(plan.sites().values()) == {"cpu"}


def test_a_check_that_raises_is_a_rejection():
    def fails(_context):
        raise LookupError("no such table")

    register_patterns([("failing.abs", is_op("relax.abs")(wildcard()), {}, fails)])
    tt.strategy("failing")(from_tvm_patterns("failing"))
    plan = tt.decompose(chain(relax.op.abs), "[npu=failing,cpu=llvm](host=@cpu)")
    assert "@npu: no, RULE: the check of failing.abs fails: no such table" in str(plan.explain("lv"))


def test_a_match_that_others_read_into_is_rejected_though_its_check_passes():
    operand = wildcard()
    register_patterns([("leaky.abs_exp", is_op("relax.exp")(is_op("relax.abs")(operand)))])
    tt.strategy("leaky")(from_tvm_patterns("leaky"))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            inner = builder.emit(relax.op.abs(x))
            result = builder.emit_output(relax.op.add(builder.emit(relax.op.exp(inner)), inner))
        builder.emit_func_output(result)
    plan = tt.decompose(builder.get(), "[npu=leaky,cpu=llvm](host=@cpu)")
    assert set(plan.sites().values()) == {"cpu"}
    assert "RULE: a result inside a match of 'abs_exp' is read outside of it" in str(plan.explain("lv1"))


def test_no_match_of_tvm_violates_a_requirement():
    module = chain(relax.op.nn.relu, relax.op.tanh, relax.op.abs)
    assert matches_of(tt.decompose(module, ADAPTED)) == [("abs", "lv2"), ("relu_tanh", "lv", "lv1")]
    assert matches_of(tt.decompose(module, ADAPTED, where={"lv": "@cpu"})) == [("abs", "lv2")]


def test_patterns_that_give_attributes_are_rejected():
    pattern = ("giving.abs", is_op("relax.abs")(wildcard()), {}, None, lambda _: {"layout": "NHWC"})
    register_patterns([pattern])
    tt.strategy("giving")(from_tvm_patterns("giving"))
    plan = tt.decompose(chain(relax.op.abs), "[npu=giving,cpu=llvm](host=@cpu)")
    assert "RULE: giving.abs adds attributes to its matches, which are not carried over" in str(plan.explain("lv"))


def test_other_modules_go_through():
    assert tt.decompose(EVERYTHING, ADAPTED).sites()
    assert set(tt.decompose(tt.IRModule.from_onnx(DIGITS), "[npu=adapted,cpu=numpy]").sites().values()) == {"cpu"}
    cores = "[big=llvm(num-cores=4),little=llvm(num-cores=2)](host=@big)"
    placed = tt.decompose(SIX, cores, where={"op:relax.tanh": "@little"}).to_tvm()
    assert tt.decompose(placed, ADAPTED).sites()


def test_a_prefix_without_patterns_is_an_error_that_names_the_nearest():
    with pytest.raises(TargetError, match=r"TVM has no patterns 'cublass'; did you mean 'cublas'.*import the module"):
        from_tvm_patterns("cublass")


def test_a_prefix_ends_at_a_dot():
    """A code generator supports the patterns of its own name, not of those whose names only begin with it."""
    names = ["longnpu.abs", "longnpu.deep.exp", "longnpu2.abs", "longnpu2.exp", "longnpu_lite.tanh", "long.negative"]
    for name in names:
        operator = f"relax.{name.rpartition('.')[2]}"
        register_patterns([(name, is_op(operator)(wildcard()))])
    taken = {
        prefix: {str(pattern.name) for pattern in from_tvm_patterns(prefix).registered}  # type: ignore[attr-defined]
        for prefix in ("longnpu", "longnpu.", "longnpu2", "longnpu_lite", "longnpu.deep", "longnpu.abs", "long")
    }
    assert taken == {
        "longnpu": {"longnpu.abs", "longnpu.deep.exp"},
        "longnpu.": {"longnpu.abs", "longnpu.deep.exp"},
        "longnpu2": {"longnpu2.abs", "longnpu2.exp"},
        "longnpu_lite": {"longnpu_lite.tanh"},
        "longnpu.deep": {"longnpu.deep.exp"},
        "longnpu.abs": {"longnpu.abs"},
        "long": {"long.negative"},
    }
    for missing in ("longnp", "longnpu.a", "longnpu..", "longnpu2.ab"):
        with pytest.raises(TargetError, match="TVM has no patterns"):
            from_tvm_patterns(missing)
    tt.strategy("longnpu")(from_tvm_patterns("longnpu"))
    module = chain(relax.op.abs, relax.op.exp, relax.op.tanh)
    assert matches_of(tt.decompose(module, "[npu=longnpu,cpu=llvm](host=@cpu)")) == [("abs", "lv"), ("deep.exp", "lv1")]


@pytest.mark.parametrize("constants", ["lift", "share"])
def test_weights_of_matches_that_tvm_finds_are_parameters_if_requested(constants):
    rng = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for _ in range(2):
                weights = relax.const(rng.normal(size=(4, 4)).astype("float32"))
                value = builder.emit(relax.op.tanh(builder.emit(relax.op.matmul(value, weights))))
            result = builder.emit_output(builder.emit(relax.op.negative(value)))
        builder.emit_func_output(result)
    plan = tt.decompose(builder.get(), "[gpu=cublas,cpu=llvm](host=@cpu)", constants=constants)
    (function,) = plan.functions("gpu")
    assert [len(function.params), len(function.constants)] == [2, 0]
    written = plan.to_tvm()
    relax.analysis.well_formed(written)
    register_codegen("cublas")
    executable = tvm.compile(relax.transform.RunCodegen(plan.codegen_options())(written), target="llvm")
    given = rng.normal(size=(2, 4)).astype("float32")
    np.testing.assert_allclose(run(executable, given)[0], by_tvm(builder.get(), given)[0], rtol=1e-5)


def test_a_weight_that_a_check_of_tvm_asks_for_stays_bound():
    weights = wildcard()

    def is_known(context):
        return not isinstance(context.annotated_expr["weights"], relax.Var)

    register_patterns([("knowing.add", is_op("relax.add")(wildcard(), weights), {"weights": weights}, is_known)])
    tt.strategy("knowing")(from_tvm_patterns("knowing"))
    ones = relax.const(np.ones((2, 4), "float32"))
    module = chain(lambda value: relax.op.add(value, ones))
    plan = tt.decompose(module, "[npu=knowing,cpu=llvm](host=@cpu)", constants="lift")
    assert [len(function.constants) for function in plan.functions("npu")] == [1]
    assert "not lifted: 1 weight such as 'constant' of 'npu_add_" in plan.summary()
