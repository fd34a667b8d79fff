"""Functions of the C library written out for vectors: how near they are, and that nothing else changes."""

import importlib.util
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

import tvmtarget as tt
from tvmtarget.backends.tvm.vector_math import MOST_NAMES, library_calls, vectorisable

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tvm") is None, reason="pip install tvmtarget[tvm]")

WITHIN = {"exp": 4, "log": 4, "sigmoid": 4, "tanh": 6, "erf": 6}  # units in the last place


def _erf(x):
    return np.vectorize(math.erf, otypes=["float64"])(x)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


WANTED = {"exp": np.exp, "log": np.log, "tanh": np.tanh, "erf": _erf, "sigmoid": _sigmoid}
ENDS = [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 88.7228, 88.7229, -87.3, -87.4, -104, 1e-40, 3.95, 0.625, 3e38]


def function_of(compute, size=1024, dtype="float32"):
    """Return a tensor function of one input, element by element."""
    from tvm import te

    x = te.placeholder((size,), dtype)
    return te.create_prim_func([x, te.compute((size,), lambda at: compute(x[at]))])


def run(function, array, dtype="float32"):
    """Return what a function computes on this machine."""
    import tvm

    named = function.with_attr("global_symbol", "main")
    compiled = tvm.compile(tvm.IRModule({"main": named}), target=tvm.target.Target("llvm"))
    given, result = tvm.runtime.tensor(array), tvm.runtime.tensor(np.zeros_like(array, dtype))
    compiled["main"](given, result)
    return result.numpy()


def written(name, count=1):
    """Return a function that applies one of TVM's by name, so many times."""
    from tvm import tirx

    def compute(value):
        for _ in range(count):
            value = getattr(tirx, name)(value)
        return value

    return vectorisable(function_of(compute))


@pytest.fixture(scope="module")
def compiled():
    import tvm

    target = tvm.target.Target("llvm")
    modules = {
        name: tvm.compile(tvm.IRModule({"main": written(name).with_attr("global_symbol", "main")}), target=target)
        for name in WANTED
    }

    def compute(name, array):
        given, result = tvm.runtime.tensor(array), tvm.runtime.tensor(np.zeros_like(array))
        modules[name]["main"](given, result)
        return result.numpy()

    return compute


@pytest.mark.parametrize("name", WANTED)
@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.01, 1, 10, 100]))
@settings(max_examples=20, deadline=None)
def test_results_are_within_some_units_in_the_last_place(compiled, name, seed, spread):
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2**32, 512, dtype="uint64").astype("uint32").view("float32")
    x = np.concatenate([bits, (random.standard_normal(512 - len(ENDS)) * spread).astype("float32"), ENDS])
    with np.errstate(all="ignore"):
        x = x.astype("float32")
        exact = WANTED[name](x.astype("float64"))
        rounded = exact.astype("float32")
    actual = compiled(name, x)
    plain = np.isfinite(rounded) & (np.abs(rounded) >= np.finfo("float32").tiny)
    off = np.abs(actual[plain] - exact[plain]) / np.spacing(np.abs(rounded[plain])).astype("float64")
    assert off.max() <= WITHIN[name]
    np.testing.assert_allclose(actual[~plain], rounded[~plain], rtol=0, atol=2e-38)


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_functions_that_approach_1_reach_it(compiled, name):
    """Gelu multiplies what is left by its operand."""
    x = np.resize(np.float32([-20, -1e10, 20, 1e10]), 1024)
    np.testing.assert_array_equal(compiled(name, x), np.sign(x))


@pytest.mark.parametrize("exponent", [2.0, 3.0, 4.0])
def test_whole_powers_are_products(exponent):
    from tvm import tirx

    function = vectorisable(function_of(lambda x: tirx.pow(x, tirx.const(exponent, "float32"))))
    x = np.linspace(-3, 3, 1024, dtype="float32")
    assert "pow" not in function.script()
    np.testing.assert_allclose(run(function, x), x.astype("float64") ** exponent, rtol=1e-6)


@pytest.mark.parametrize("exponent", [0.25, 0.5, 0.75, -0.25, -0.5, -0.75])
def test_powers_of_quarters_are_square_roots(exponent):
    from tvm import tirx

    function = vectorisable(function_of(lambda x: tirx.pow(x, tirx.const(exponent, "float32"))))
    assert "pow" not in function.script()
    x = np.concatenate([np.geomspace(1e-44, 3e38, 1024 - len(ENDS)).astype("float32"), np.array(ENDS, "float32")])
    with np.errstate(all="ignore"):
        exact = np.power(x.astype("float64"), np.full(len(x), exponent))
    np.testing.assert_allclose(run(function, x), exact.astype("float32"), rtol=4e-7)


@pytest.mark.parametrize("name", [*WANTED, "sin"])
def test_other_functions_and_other_types_stay(name):
    import tvm_ffi
    from tvm import tirx

    dtype = "float32" if name == "sin" else "float64"
    function = function_of(lambda x: getattr(tirx, name)(x), dtype=dtype)
    assert tvm_ffi.structural_equal(vectorisable(function), function)
    assert library_calls(function.body) == 0


def test_calls_of_functions_that_are_expanded_are_counted():
    from tvm import tirx

    assert library_calls(function_of(lambda x: tirx.exp(x) + tirx.log(tirx.exp(x)) + tirx.sin(x)).body) == 3


def test_a_chain_of_functions_stays_short_enough_to_compile():
    """Names in values of names would take TVM a second for four in a row, and a quarter of an hour for six."""
    chain = written("sigmoid", 12)
    assert chain.script().count("T.Let") <= MOST_NAMES + 3
    x = np.linspace(-3, 3, 1024, dtype="float32")
    expected = x
    for _ in range(12):
        expected = _sigmoid(expected)
    np.testing.assert_allclose(run(chain, x), expected, rtol=1e-5)


@pytest.mark.parametrize("name", WANTED)
def test_results_can_be_converted_to_integers(name):
    """TVM's analysis of integers looks into what is converted."""
    from tvm import tirx

    function = vectorisable(function_of(lambda x: tirx.Cast("int32", getattr(tirx, name)(x))))
    x = np.linspace(0.1, 5.05, 1024, dtype="float32")
    wanted = WANTED[name](x.astype("float64"))
    sure = np.abs(wanted - np.round(wanted)) > 1e-5
    np.testing.assert_array_equal(run(function, x, "int32")[sure], wanted.astype("int32")[sure])


@pytest.mark.parametrize("inner", ["sinh", "atan"])
def test_names_between_functions_that_tvm_does_not_vectorize_are_none(inner):
    """TVM visits what two of these contain twice, and fails at the second definition of a name."""
    from tvm import tirx

    function = vectorisable(function_of(lambda x: tirx.atan(tirx.exp(getattr(tirx, inner)(x)))))
    assert "T.Let" not in function.script()
    x = np.linspace(-3, 3, 1024, dtype="float32")
    np.testing.assert_allclose(
        run(function, x), np.arctan(np.exp(getattr(np, inner.replace("atan", "arctan"))(x))), 1e-5
    )


def test_rounding_and_nan_are_vectorized():
    """TVM divided loops of these into iterations, and failed at the name for the squared value."""
    text = """g (float[3,37] x) => (float[3,37] y, float[3,37] z) <float k = {0.5}> {
        r = Round(x) q = Mul(r, r) y = Round(q) n = IsNaN(y) w = Where(n, x, y) e = Exp(w) z = Mul(e, k) }"""
    module = tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}'))
    x = np.resize(np.array([0.5, 1.5, 2.5, np.nan, -3.7, -0.2, 1], "float32"), (3, 37))
    expected, found = (tt.build(module, target).run({"x": x}) for target in ("numpy", "llvm"))
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-6)


@pytest.mark.parametrize(("kind", "dtype"), [("Sinh", "float"), ("Cosh", "float"), ("Sinh", "double")])
def test_functions_that_tvm_does_not_vectorize_are_fused_with_products(kind, dtype):
    text = f"g ({dtype}[3,6,7] x, {dtype}[7,8] w) => ({dtype}[3,6,8] y) {{ z = MatMul(x, w) y = {kind}(z) }}"
    module = tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'))
    rng = np.random.default_rng(0)
    given = {one.name: np.asarray(rng.normal(size=one.type.shape), one.type.dtype) for one in module.main.params}
    found = tt.build(module, "llvm").run(given)["y"]
    np.testing.assert_allclose(found, getattr(np, kind.lower())(given["x"] @ given["w"]), rtol=1e-4, atol=1e-6)
