"""Loop-carried values: they stay in the memory of the device that computes them, or where the program requires them."""

import dataclasses

import numpy as np
import pytest
from onnx import parser

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, ModelError
from tvmtarget.ir.function import COPY
from tvmtarget.partition.verify import verify_plan

PAIR = "[gpu=probe,cpu=numpy](host=@cpu)"
BOX = "[box=[gpu=probe,cpu=numpy](host=@cpu),o=numpy](host=@o)"
X = np.array([-1, 2], "float32")


def module_of(graph):
    return tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}'))


STATE = module_of("""g (float[2] x, int64 n, bool c) => (float[2] y) {
    y = Loop(n, c, x) <body = b (int64 i, bool ci, float[2] v) => (bool co, float[2] w) {
        co = Identity(ci) q = Neg(v) w = Mul(q, x) }> }""")
SCAN = module_of("""g (float[2] x, float[3,2] seq) => (float[2] y, float[3,2] z) {
    y, z = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] e) => (float[2] so, float[2] o) {
        so = Add(s, e) o = Tanh(e) }>(x, seq) }""")
NESTED = module_of("""g (float[2] x, int64 n, bool c) => (float[2] y) {
    y = Loop(n, c, x) <body = b (int64 i, bool ci, float[2] v) => (bool co, float[2] w) {
        co = Identity(ci)
        w = Loop(n, ci, v) <body = d (int64 j, bool cj, float[2] p) => (bool cp, float[2] r) {
            cp = Identity(cj) r = Sigmoid(p) }> }> }""")


def copies_of(plan):
    return [(copy.value, copy.src, copy.dst, float(copy.runs)) for copy in plan.copies]


def same(module, plan, **inputs):
    whole = tt.build(module, "onnxruntime").run(inputs)
    for name, value in tt.build(plan).run(inputs).items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-6, strict=True)


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_a_state_stays_on_the_device_that_computes_it(turns):
    """As a cache of keys and values does: two copies around the loop instead of two in every iteration."""
    plan = tt.decompose(STATE, PAIR, where={"op:Neg": "@gpu", "op:Mul": "@gpu"})
    assert copies_of(plan) == [("x", ":cpu", ":ext_dev", 1.0), ("y", ":ext_dev", ":cpu", 1.0)]
    same(STATE, plan, x=X, n=np.array(turns), c=np.array(True))
    assert tt.decompose(plan.module).module == plan.module


def test_states_of_scans_and_of_nested_loops_stay_too():
    plan = tt.decompose(SCAN, PAIR, where={"op:Add": "@gpu", "op:Tanh": "@gpu"})
    assert [copy[0] for copy in copies_of(plan)] == ["x", "e", "o", "y"]
    same(SCAN, plan, x=X, seq=np.ones((3, 2), "float32"))
    plan = tt.decompose(NESTED, PAIR, where={"op:Sigmoid": "@gpu"})
    assert copies_of(plan) == [("x", ":cpu", ":ext_dev", 1.0), ("y", ":ext_dev", ":cpu", 1.0)]
    same(NESTED, plan, x=X, n=np.array(3), c=np.array(True))


def test_a_state_that_other_sites_read_in_every_iteration_is_in_the_drivers_memory():
    plan = tt.decompose(STATE, PAIR, where={"op:Neg": "@cpu", "op:Mul": "@gpu"})
    assert [copy[0] for copy in copies_of(plan) if copy[3] > 1] == ["q", "w"]


def requested(text, memory, module=STATE):
    return tt.IRModule.parse(str(module).replace(text, f'{text} in "{memory}"', 1))


def test_a_loop_carries_a_value_in_its_required_memory_at_any_depth():
    """The memory of a parameter of the body, or of the result of the loop; in a sub-system too."""
    where = {"op:Neg": "@gpu", "op:Mul": "@gpu"}
    plan = tt.decompose(requested("%v: float32[2]", ":cpu"), PAIR, where=where)
    assert [(copy[0], copy[3]) for copy in copies_of(plan)] == [("x", 1.0), ("v", 10.0), ("w", 10.0)]
    plan = tt.decompose(requested("%y: float32[2]", ":ext_dev"), PAIR, where={"op:Neg": "@cpu", "op:Mul": "@gpu"})
    assert [(copy[0], copy[3]) for copy in copies_of(plan)][-1] == ("y", 1.0)
    same(STATE, plan, x=X, n=np.array(2), c=np.array(True))
    inside = {name: f"@box/{site[1:]}" for name, site in where.items()}
    plan = tt.decompose(requested("%v: float32[2]", "box:cpu"), BOX, where=inside)
    assert ("v", "box:cpu", "box:ext_dev", 10.0) in copies_of(plan)
    same(STATE, plan, x=X, n=np.array(2), c=np.array(True))


@pytest.mark.parametrize(
    ("module", "where", "said"),
    [
        (
            requested("%i: int64[]", ":ext_dev"),
            {"op:Mul": "@gpu"},
            "'i' of op 'Loop_0' .* the driver of @. has it in ':cpu'",
        ),
        (requested("%v: float32[2]", ":ext_dev"), {}, "value 'v' of op 'Loop_0' .* but @cpu has it in ':cpu'"),
        (
            requested("%y: float32[2]", ":cpu", requested("%v: float32[2]", ":ext_dev")),
            {"op:Mul": "@gpu"},
            "op 'Loop_0' carries 'v' in one memory, not in :ext_dev and :cpu",
        ),
    ],
)
def test_values_that_cannot_be_in_their_required_memory_are_named_in_errors(module, where, said):
    with pytest.raises(InfeasibleError, match=said):
        tt.decompose(module, PAIR, where=where)


def test_a_state_that_changes_its_memory_on_the_way_is_no_plan():
    plan = tt.decompose(STATE, PAIR, where={"op:Neg": "@gpu", "op:Mul": "@gpu"})
    (loop,) = (call for call in plan.module.main.body if call.regions)
    copied = next(call for call in plan.module.main.body if call.op == COPY)
    broken = dataclasses.replace(
        loop, inputs=tuple(copied.inputs[0] if name == copied.outputs[0].name else name for name in loop.inputs)
    )
    body = tuple(broken if call is loop else call for call in plan.module.main.body)
    module = plan.module.replace(functions=(plan.module.main.replace(body=body), *plan.module.functions[1:]))
    with pytest.raises(ModelError, match="carries 'x' from one memory to another"):
        verify_plan(plan.program, plan.feasibility, module, plan.outlined)
