"""Scans whose iterations are independent: what becomes operations on all slices, and what stays."""

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import tvmtarget as tt

OPSET = '<ir_version: 8, opset_import: ["": {}]> '
# Of skl2onnx: distances between rows of two matrices; the state is passed on as it is.
DISTANCES = """g (float[n,6] x, float[20,6] y) => (float[n,6] s, float[20,n] z) {
    s, z = Scan<num_scan_inputs = 1, body = b (float[n,6] whole, float[6] row) => (float[n,6] same, float[n] o)
        <int64[1] last = {1}> {
        same = Identity(whole)
        d = Sub(whole, row)
        q = Abs(d)
        o = ReduceSum<keepdims = 0>(q, last) }>(x, y) }"""
TWO_AXES = """g (float[3,4] x, float[4,5] y) => (float[5,4] z) {
    z = Scan<num_scan_inputs = 2, scan_input_axes = [1, 0], scan_output_axes = [-1],
        body = b (float[3] r, float[5] t) => (float[5] o) {
        m = ReduceMax<keepdims = 1>(r)
        e = Exp(t)
        o = Mul(m, e) }>(x, y) }"""
PRODUCTS = """g (float[7,4,5] y, float[5,3] w, float[2,4] v) => (float[7,2,3] z) {
    z = Scan<num_scan_inputs = 1, body = b (float[4,5] t) => (float[2,3] o) {
        p = MatMul(t, w)
        k = Tanh(v)
        o = MatMul(k, p) }>(y) }"""
BROADCAST = """g (float[6,3] y, float[2,1,3] w) => (float[6,2,4,3] z) <float[4,1] c = {1, 2, 3, 4}> {
    z = Scan<num_scan_inputs = 1, body = b (float[3] t) => (float[2,4,3] o) {
        p = Add(t, c)
        o = Max(w, p, t) }>(y) }"""
CARRIED = """g (float[6] x, float[20,6] y) => (float[6] s, float[20,6] z) {
    s, z = Scan<num_scan_inputs = 1, body = b (float[6] a, float[6] r) => (float[6] sum, float[6] o) {
        sum = Add(a, r)
        o = Mul(sum, r) }>(x, y) }"""
REVERSED = """g (float[4,5] y) => (float[4,5] z) {
    z = Scan<num_scan_inputs = 1, scan_input_directions = [1], body = b (float[5] t) => (float[5] o) {
        o = Exp(t) }>(y) }"""
SORTED = """g (float[4,5] y) => (float[4,2] z) <int64[1] k = {2}> {
    z = Scan<num_scan_inputs = 1, body = b (float[5] t) => (float[2] o) { o, i = TopK(t, k) }>(y) }"""
CONSTANT = """g (float[4,5] y, float[2] x) => (float[4,2] z) {
    z = Scan<num_scan_inputs = 1, body = b (float[5] t) => (float[2] o) { o = Exp(x) }>(y) }"""


def ran(text, target, opset=18, n=5):
    proto = parser.parse_model(OPSET.format(opset) + text)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    feeds = {
        one.name: random.standard_normal([n if isinstance(dim, str) else dim for dim in one.shape]).astype("float32")
        for one in session.get_inputs()
    }
    exe = tt.build(proto, target)
    for found, wanted in zip(exe.run(feeds).values(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert found.dtype == wanted.dtype
    return exe


@pytest.mark.parametrize(
    ("text", "opset"),
    [(DISTANCES, 13), (DISTANCES, 18), (TWO_AXES, 18), (TWO_AXES, 13), (PRODUCTS, 18), (BROADCAST, 18)],
)
def test_independent_iterations_become_operations_on_all_slices(text, opset):
    exe = ran(text, "llvm", opset)
    assert "Scan" not in str(exe.plan)
    assert len(exe.plan.subgraphs) == 1


def test_operators_whose_types_onnx_does_not_infer_stand_before_a_scan():
    """The types of its results and of its body follow from theirs."""
    scaled = DISTANCES.replace("{", "{ w = ai.onnx.ml.Scaler<offset = [0.5], scale = [2.0]>(x)", 1).replace(
        "(x, y)", "(w, y)"
    )
    text = scaled.replace("(float[n,6] s, float[20,n] z)", "(float[20,n] z)")
    proto = parser.parse_model(OPSET.format(18).replace("]", ', "ai.onnx.ml": 1]') + text)
    plan = tt.decompose(proto, "llvm")
    assert "Scan" not in str(plan)
    assert len(plan.subgraphs) == 1


@pytest.mark.parametrize("n", [0, 1, 3])
def test_matrices_without_rows_have_no_distances(n):
    ran(DISTANCES, "llvm", n=n)


@pytest.mark.parametrize(
    "text",
    [CARRIED, REVERSED, CONSTANT, SORTED],
    ids=["carried state", "backwards", "same in each iteration", "other operator"],
)
def test_other_scans_stay(text):
    assert "1 Scan" in str(ran(text, "llvm").plan)


def test_a_code_generator_that_runs_loops_gets_them():
    plan = tt.decompose(parser.parse_model(OPSET.format(18) + DISTANCES), "onnxruntime")
    assert [call.kind for one in plan.module for call in one.body if call.callee is None] == ["Scan"]
