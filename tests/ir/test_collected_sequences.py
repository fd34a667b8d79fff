"""Sequences that a loop appends to: which become scan outputs, and that results stay."""

import numpy as np
import pytest
from onnx import parser
from onnxruntime import InferenceSession

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError
from tvmtarget.ir.collected_sequences import stack_collected_sequences
from tvmtarget.ir.rewrite import with_op_names

APPENDS = "t = SequenceInsert(s, k)"


def collecting(joins, appends=APPENDS, result="float[a,b,c]"):
    """Return a model that appends two rows in each of four iterations, and has a scan output."""
    return parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]> g (float[2,4,3] x) => ({result} y, float[d,2,3] z) {{
        n = Constant<value = int64 {{4}}>() go = Constant<value = bool {{1}}>()
        first = Constant<value = float[2,3] {{0, 1, 2, 3, 4, 5}}>() s0 = SequenceEmpty<dtype = 1>()
        h, s, z = Loop(n, go, first, s0) <body = b
            (int64 i, bool c, float[2,3] h, seq(float[u,v]) s)
            => (bool d, float[2,3] k, seq(float[u,v]) t, float[2,3] o) {{
            d = Identity(c) e = Gather<axis = 1>(x, i) f = Add(e, h) k = Tanh(f) {appends} o = Neg(k) }}>
        {joins} }}""")


@pytest.mark.parametrize(
    ("joins", "result"),
    [
        ("y = ConcatFromSequence<axis = 0, new_axis = 1>(s)", "float[a,b,c]"),
        ("y = ConcatFromSequence<axis = -1, new_axis = 1>(s)", "float[a,b,c]"),
        ("y = ConcatFromSequence<axis = 0>(s)", "float[a,b]"),
        ("y = ConcatFromSequence<axis = 1>(s)", "float[a,b]"),
        (
            "v = ConcatFromSequence<axis = 1, new_axis = 1>(s) w = ConcatFromSequence<axis = 1, new_axis = 1>(s) "
            "y = Concat<axis = -1>(v, w)",
            "float[a,b,c]",
        ),
    ],
)
def test_what_a_loop_collects_is_stacked(joins, result):
    proto = collecting(joins, result=result)
    module = tt.IRModule.from_onnx(proto)
    changed = stack_collected_sequences(module.main, lambda _: False)
    assert not any("Sequence" in op for op in changed.ops)
    check(proto, tt.build(module.replace(functions=(changed,)), "numpy"))


def check(proto, program):
    x = np.random.default_rng(0).standard_normal((2, 4, 3), "float32")
    expected = InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    for found, wanted in zip(program.run({"x": x}).values(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6, strict=True)


def test_code_generators_of_tensors_run_loops_that_collect():
    proto = collecting("y = ConcatFromSequence<axis = 1, new_axis = 1>(s)")
    check(proto, tt.build(proto, "llvm"))


@pytest.mark.parametrize(
    "changes",
    [
        {"joins": "p = Constant<value = int64 {0}>() y = SequenceAt(s, p)", "result": "float[2,3]"},
        {"appends": "p = Constant<value = int64 {0}>() t = SequenceInsert(s, k, p)"},
        {"appends": "r = SequenceInsert(s, k) t = SequenceInsert(r, k)"},
        {
            "appends": "p = NonZero(k) q = Cast<to = 1>(p) t = SequenceInsert(s, q)",
            "joins": "y = ConcatFromSequence<axis = 1>(s)",
            "result": "float[a,b]",
        },
    ],
)
def test_what_is_read_otherwise_stays(changes):
    joins = {"joins": "y = ConcatFromSequence<axis = 0, new_axis = 1>(s)"}
    function = tt.IRModule.from_onnx(collecting(**joins | changes))["main"]
    assert stack_collected_sequences(function, lambda _: False) is function


def test_operations_that_are_named_stay():
    module = tt.IRModule.from_onnx(collecting("y = ConcatFromSequence<axis = 0, new_axis = 1>(s)"))
    name = next(call.source for call in with_op_names(module["main"]).body if call.kind == "ConcatFromSequence")
    with pytest.raises(InfeasibleError, match="it supports tensors only, no sequences"):
        tt.decompose(module, "llvm", where={name: "llvm"})
