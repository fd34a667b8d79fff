"""TVM modules round-trip without loss: directly, as text, as JSON, and as files."""

import re

import pytest

tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")

import numpy as np  # noqa: E402
import tvm_ffi  # noqa: E402
from models import light  # noqa: E402
from relax_modules import EVERYTHING, SIX, random_module  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.relax.dpl import is_op, wildcard  # noqa: E402
from tvm.relax.frontend.onnx import from_onnx  # noqa: E402
from tvm.script import ir as I  # noqa: E402, N812
from tvm.script import relax as R  # noqa: E402, N812

import tvmtarget as tt  # noqa: E402
from tvmtarget import IRModule  # noqa: E402
from tvmtarget.errors import ModelError  # noqa: E402
from tvmtarget.ir.function import CODE  # noqa: E402

PATTERNS = [
    (
        "npu.conv_relu",
        is_op("relax.nn.relu")(is_op("relax.add")(is_op("relax.nn.conv2d")(wildcard(), wildcard()), wildcard())),
    ),
    ("npu.relu", is_op("relax.nn.relu")(wildcard())),
]
TRANSFORMS = relax.transform
FUSED = (TRANSFORMS.FuseOpsByPattern(PATTERNS, bind_constants=True, annotate_codegen=False),)
LOWERED = (
    TRANSFORMS.LegalizeOps(),
    TRANSFORMS.AnnotateTIROpPattern(),
    TRANSFORMS.FuseOps(),
    TRANSFORMS.FuseTIR(),
    TRANSFORMS.RewriteDataflowReshape(),
    TRANSFORMS.ToNonDataflow(),
    TRANSFORMS.RemovePurityChecking(),
    TRANSFORMS.CallTIRRewrite(),
    TRANSFORMS.StaticPlanBlockMemory(),
    TRANSFORMS.LowerAllocTensor(),
    TRANSFORMS.KillAfterLastUse(),
    TRANSFORMS.LowerRuntimeBuiltin(),
    TRANSFORMS.ComputePrimValue(),
    TRANSFORMS.VMShapeLower(),
)
STEPS = {
    "as imported": (),
    "composite": FUSED,
    "merged": (*FUSED, TRANSFORMS.MergeCompositeFunctions()),
    "annotated": (TRANSFORMS.FuseOpsByPattern(PATTERNS, annotate_codegen=True),),
    "legalized": LOWERED[:1],
    "fused": LOWERED[:3],
    "TIR": LOWERED[:4],
    "lowered": LOWERED,
}


def assert_nothing_lost(module, tmp_path):
    ours = IRModule.from_tvm(module)
    ours.save(tmp_path / "module.irm")
    forms = (
        ours,
        IRModule.parse(str(ours), ours.constants()),
        IRModule.from_json(ours.to_json(), ours.constants()),
        IRModule.load(tmp_path / "module.irm"),
    )
    for form in forms:
        assert form == ours
        tvm.ir.assert_structural_equal(form.to_tvm(), module)


@pytest.mark.parametrize("module", [EVERYTHING, SIX], ids=["everything", "six"])
def test_modules_round_trip(module, tmp_path):
    assert_nothing_lost(module, tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_random_modules_round_trip(seed, tmp_path):
    assert_nothing_lost(random_module(20, seed), tmp_path)


@pytest.mark.parametrize(
    "step", [pytest.param(s, marks=[pytest.mark.slow] * (s in ("legalized", "fused", "TIR"))) for s in STEPS]
)
def test_a_real_model_round_trips_at_every_step_of_tvms_pipeline(step, tmp_path):
    module = from_onnx(light("squeezenet"))
    for transform in STEPS[step]:
        module = transform(module)
    ours = IRModule.from_tvm(module)
    tvm.ir.assert_structural_equal(ours.to_tvm(), module)
    tvm.ir.assert_structural_equal(IRModule.from_json(ours.to_json(), ours.constants()).to_tvm(), module)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["densenet121", "shufflenet"])
def test_light_models_round_trip_through_relax(name, tmp_path):
    assert_nothing_lost(from_onnx(light(name)), tmp_path)


def test_a_relax_function_has_a_text_form(golden):
    module = IRModule.from_tvm(EVERYTHING)
    golden(
        "ir/relax_everything.golden", str(module.replace(functions=tuple(f for f in module if f.code is None))) + "\n"
    )


def test_a_tir_function_is_code_with_a_signature():
    module = IRModule.from_tvm(EVERYTHING)
    code = module["add_one"]
    assert [call.op for call in code.body] == [CODE]
    assert [str(param) for param in code.params] == ["%x: float32[4]"]
    assert [str(code.types[result]) for result in code.results] == ["float32[4]"]
    assert next(call for call in module.main.body if call.callee == "add_one").inputs == ("w",)


def test_constants_are_held_by_reference_and_shared():
    weight = relax.const(np.arange(12, dtype="float32").reshape(3, 4))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 4), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(builder.emit(relax.op.add(x, weight)), weight)))
    module = IRModule.from_tvm(builder.get())
    assert len(module.main.constants) == 1
    assert np.shares_memory(module.main.constants[0].data, np.from_dlpack(weight.value))


def test_attributes_of_functions_and_modules_are_kept(tmp_path):
    module = SIX.with_attr("release", 3).with_attr("note", "two").with_attr("sizes", [1, 2])
    function = module["main"].with_attr("Codegen", "npu").with_attr("target", tvm.target.Target("llvm"))
    module.update_func(module.get_global_var("main"), function.with_attr("num_input", 1))
    ours = IRModule.from_tvm(module)
    assert ours.attrs["tvm.release"] == 3
    assert ours.main.attr("Codegen") == "npu"
    assert_nothing_lost(module, tmp_path)


@I.ir_module
class _OnTwoDevices:
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0), I.vdevice({"kind": "cuda", "arch": "sm_80"}, 0)]})

    @R.function
    def main(x: R.Tensor((4,), "float32", "llvm:0")) -> R.Tensor((4,), "float32", "cuda:0"):  # noqa: N805
        with R.dataflow():
            there: R.Tensor((4,), "float32", "cuda:0") = R.to_vdevice(x, "cuda:0")
            y: R.Tensor((4,), "float32", "cuda:0") = R.nn.relu(there)
            R.output(y)
        return y


def test_virtual_devices_are_scopes_of_values(tmp_path):
    module = IRModule.from_tvm(_OnTwoDevices)
    assert module.main.params[0].scope == "vdevice:0"
    assert module.main.body[-1].outputs[0].scope == "vdevice:1"
    assert_nothing_lost(_OnTwoDevices, tmp_path)


def test_placement_in_tvm_becomes_constraints_on_the_target():
    module = IRModule.from_tvm(_OnTwoDevices, "[gpu=cuda(arch=sm_80),cpu=llvm]")
    assert str(module.main.body[-1].constraint) == "@gpu"


def test_a_module_without_main_is_read(tmp_path):
    module = tvm.IRModule({"decode": SIX["main"].with_attr("global_symbol", "decode")})
    assert_nothing_lost(module, tmp_path)


def test_errors_name_function_and_binding():
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    y = relax.Var("y", relax.TensorType((4,), "float32"))
    nested = relax.Call(tvm.ir.Op.get("relax.abs"), [relax.Call(tvm.ir.Op.get("relax.exp"), [x])])
    block = relax.BindingBlock([relax.VarBinding(y, nested)])
    function = relax.Function([x], relax.SeqExpr([block], y), relax.TensorType((4,), "float32"))
    with pytest.raises(ModelError, match="binding 'y' of function 'main': Call as an operand is not supported"):
        IRModule.from_tvm(tvm.IRModule({"main": function}))


def test_a_local_function_that_calls_itself_is_rejected():
    x, a, again = (relax.Var(name, relax.TensorType((4,), "float32")) for name in ("x", "a", "again"))
    result, own = (relax.Var(name, relax.TensorType((4,), "float32")) for name in ("y", "c"))
    block = relax.BindingBlock([relax.VarBinding(own, relax.Call(again, [a]))])
    inner = relax.Function([a], relax.SeqExpr([block], own), relax.TensorType((4,), "float32"))
    bindings = [relax.VarBinding(again, inner), relax.VarBinding(result, relax.Call(again, [x]))]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], result)
    main = relax.Function([x], body, relax.TensorType((4,), "float32"))
    with pytest.raises(ModelError, match=r"'again' is read before .*; local functions that call themselves are rej"):
        IRModule.from_tvm(tvm.IRModule({"main": main}))


def test_onnx_operations_cannot_be_written_as_relax():
    module = IRModule.parse(
        "func @main(%x: float32[2]) opsets(onnx=17) { %y: float32[2] = onnx.Relu(%x) as r return %y }"
    )
    with pytest.raises(ModelError, match=r"op 'r' of function 'main': 'onnx.Relu' is not a Relax operator"):
        module.to_tvm()


def test_only_modules_of_tvm_are_read():
    with pytest.raises(ModelError, match=r"dict is not a tvm.IRModule"):
        IRModule.from_tvm({})


HEAD = "func @main(%x: float32[4], %c: bool[]) {"


@pytest.mark.parametrize(
    ("text", "read", "problem"),
    [
        (
            f'{HEAD} %y: opaque("Tuple(") = relax.abs(%x) %z = relax.TupleGetItem(%y) {{index=0}} return %z }}',
            lambda module: tt.decompose(module, "[a=llvm,b=cuda](host=@a)"),
            "'Tuple(' is not a type or expression of Relax: '(' was never closed",
        ),
        (
            f"{HEAD} %y: opaque(\"Tuple(Tensor((4,), 'float32'))\") = relax.value(%x) {{tvm.args=\"(_7,)\"}} "
            "%z: float32[4] = relax.TupleGetItem(%y) {index=0} return %z }",
            lambda module: tt.decompose(module, "[a=llvm,b=cuda](host=@a)"),
            "'(_7,)' is not a type or expression of Relax",
        ),
        (
            f"{HEAD} %y: float32[4] = relax.Call() {{tvm.args=\"Global('f')\"}} as op return %y }}",
            lambda module: module,
            "op 'op' has operand 'f', which is not in the module",
        ),
        (
            "func @main(%x: float32[4]) attrs {tvm.result=\"list\"} { return %x, %x }",
            lambda module: module.to_tvm(),
            "attribute 'tvm.result' of function 'main' is 'tuple' or 'tuple NAME', not 'list'",
        ),
        (
            f"{HEAD} %y: float32[4] = relax.value(%x) {{tvm.args=\"\"}} as op return %y }}",
            lambda module: module.to_tvm(),
            "op 'op' of function 'main': operands, attributes or bodies are malformed: list index out of range",
        ),
        (
            f"{HEAD} %y: float32[4] = relax.If(%c) as op return %y }}",
            lambda module: module.to_tvm(),
            "op 'op' of function 'main': operands, attributes or bodies are malformed: KeyError: 'then'",
        ),
        (
            "func @main(%x: opaque(\"Tensor((4,), 'float32', vdevice=-1)\")) { return %x }",
            lambda module: module.to_tvm(),
            "there is no virtual device -1; the module has 0",
        ),
        (
            "func @main(%x: opaque(\"Prim('int64', size=1)\")) { return %x }",
            lambda module: module.to_tvm(),
            "Prim with size is unexpected",
        ),
    ],
)  # fmt: skip
def test_malformed_texts_of_relax_are_errors_of_the_module(text, read, problem):
    with pytest.raises(ModelError, match=re.escape(problem)):
        read(tt.IRModule.parse(text, trust=True))


def test_functions_that_are_not_partitioned_keep_the_devices_of_their_tuples():
    @I.ir_module
    class Module:
        I.module_global_infos({"vdevice": [I.vdevice("llvm")]})

        @R.function
        def main(x: R.Tensor((4,), "float32")):  # noqa: N805 - TVMScript has no self
            return R.abs(x)

        @R.function
        def other(t: R.Tuple(R.Tensor((4,), "float32", vdevice="llvm:0"))):  # noqa: N805
            return t

    written = tt.decompose(IRModule.from_tvm(Module), "[a=llvm,b=cuda](host=@a)").to_tvm()
    assert tvm_ffi.structural_equal(written["other"], Module["other"])
