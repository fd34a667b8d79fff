"""What a code generator of a plugin returns is checked before anything reads it."""

from itertools import combinations

import numpy as np
import pytest
from onnx import parser

import tvmtarget as tt
from tvmtarget import plugins
from tvmtarget.backends.protocol import Backend, Compiled
from tvmtarget.errors import BackendError, CompileError, RunError, TvmTargetWarning
from tvmtarget.target.kinds import Kind

MODEL = parser.parse_model("""<ir_version: 8, opset_import: ["": 18]> g (float[4] x) => (float[2] y, float[2] b) {
    [halve] a, b = Split <num_outputs = 2> (x)
    [negate] y = Neg(a)
}""")
HALVES = [np.float32([1, 2]), np.float32([3, 4])]


class Returns(Compiled):
    def __init__(self, value):
        self.value = value

    def run(self, inputs):
        return self.value


class Returning(Backend):
    """Compiles every function to code that returns the same."""

    name = "returning"
    kinds = ("returning",)
    compiled: object = None

    def version(self):
        return "1"

    def compile(self, request):
        return self.compiled


@pytest.fixture(scope="module")
def backend():
    backend = Returning()
    plugins.register("tvmtarget.kinds", "returning", (Kind(name="returning", role="target"),))
    plugins.register("tvmtarget.strategies", "returning", type("Splits", (tt.Strategy,), {"ops": {"Split"}}))
    plugins.register("tvmtarget.backends", "returning", backend)
    return backend


def run(backend, value):
    backend.compiled = Returns(value)
    return tt.build(MODEL, "[a=returning,b=numpy](host=@b)", cache=False).run({"x": np.float32([1, 2, 3, 4])})


@pytest.mark.parametrize("value", [HALVES, tuple(HALVES), [one.astype(">f4") for one in HALVES]])
def test_results_are_arrays_in_order(backend, value):
    results = run(backend, value)
    assert {name: (one.dtype, one.tolist()) for name, one in results.items()} == {
        "y": (np.float32, [-1, -2]),
        "b": (np.float32, [3, 4]),
    }


def test_code_cannot_write_into_its_inputs_which_others_read_too(backend):
    class Clears(Compiled):
        def run(self, inputs):
            inputs[0][...] = 0
            return [one.copy() for one in np.split(inputs[0], 2)]

    backend.compiled, x = Clears(), np.float32([1, 2, 3, 4])
    exe = tt.build(MODEL, "[a=returning,b=numpy](host=@b)", cache=False)
    with pytest.raises(RunError, match=r"of @a \(halve\) failed: assignment destination is read-only"):
        exe.run({"x": x})
    assert x.tolist() == [1, 2, 3, 4]


def test_results_that_are_views_of_inputs_are_copied(backend):
    class Views(Compiled):
        def run(self, inputs):
            return np.split(inputs[0], 2)

    backend.compiled, x = Views(), np.float32([1, 2, 3, 4])
    outputs = tt.build(MODEL, "[a=returning,b=numpy](host=@b)", cache=False).run({"x": x})
    outputs["b"][...] = 0
    assert x.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "text",
    [
        "=> (float[2, 2] y) { y = Transpose(x) }",
        "=> (float[2, 2] y, float[4] z) <int64[1] all = {-1}> { w = Neg(x) y = Transpose(w) z = Reshape(w, all) }",
        "=> (seq(float[2, 2]) y) { y = SequenceConstruct(x, x) }",
    ],
)
def test_results_on_numpy_share_no_memory(text):
    """The reference evaluator returns views."""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g (float[2, 2] x) {text}')
    x = np.arange(4, dtype="float32").reshape(2, 2)
    results = tt.build(proto, "numpy").run({"x": x}).values()
    arrays = [x, *(array for one in results for array in (one if isinstance(one, list) else [one]))]
    assert not any(np.shares_memory(one, other) for one, other in combinations(arrays, 2))
    assert all(array.flags.writeable for array in arrays)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (HALVES[:1], "its code returned 1 result, not a list of 2 results"),
        (None, "its code returned a NoneType, not a list of 2 results"),
        (np.stack(HALVES), "its code returned a ndarray, not a list of 2 results"),
        ({"a": 1, "b": 2}, "its code returned a dict"),
        ([HALVES[0], HALVES[1].astype("float64")], r"result 'b' of its code is float64, not float32\[2\]"),
        ([HALVES[0].tolist(), HALVES[1]], r"result 'a' of its code is of type list, not float32\[2\]"),
        ([np.ma.masked_array(HALVES[0]), HALVES[1]], "result 'a' of its code is a masked array"),
    ],
)
def test_other_results_are_errors_that_name_function_site_and_operation(backend, value, problem):
    with pytest.raises(RunError, match=rf"function 'a_split_\w+' of @a \(halve\) failed: {problem}"):
        run(backend, value)


def test_a_key_error_of_a_backend_is_one(backend):
    backend.compiled = type("Fails", (Compiled,), {"run": lambda self, inputs: {}["weights"]})()
    exe = tt.build(MODEL, "[a=returning,b=numpy](host=@b)", cache=False)
    with pytest.raises(RunError, match=r"failed: KeyError: 'weights'"):
        exe(np.float32([1, 2, 3, 4]))


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ("compile", r"fails to compile function 'a_split_\w+' of @a \(halve\): KeyError: 'weights'"),
        ("code_version", "fails for 'returning.*': KeyError: 'weights'"),
        ("unsupported_reason", "fails for @a: KeyError: 'weights'"),
    ],
)
def test_an_error_in_the_code_of_a_backend_names_what_failed(backend, monkeypatch, tmp_path, method, problem):
    backend.compiled = Returns(HALVES)
    monkeypatch.setattr(type(backend), method, lambda *_, **__: {}["weights"])
    with pytest.raises(BackendError, match=f"backend 'returning' {problem}") as caught:
        tt.build(MODEL, "[a=returning,b=numpy](host=@b)", cache=tmp_path / "cache").run({"x": np.float32([1, 2, 3, 4])})
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_compile_error_of_a_backend_needs_no_name_of_the_function(backend, monkeypatch):
    def compile_(_, request):
        raise CompileError("no halves")

    monkeypatch.setattr(type(backend), "compile", compile_)
    problem = r"returning cannot compile function 'a_split_\w+' of @a \(halve\): no halves"
    with pytest.warns(TvmTargetWarning, match=f"{problem}; its operations run on other leaves now"):
        exe = tt.build(MODEL, "[a=returning,b=numpy](host=@b)", cache=False)
    assert exe.plan.site_of("halve") == "b"


def test_code_derives_from_the_class_for_it(backend):
    backend.compiled = object()
    with pytest.raises(
        BackendError, match=r"backend 'returning' compiled function .* which does not derive from .*Comp"
    ):
        tt.build(MODEL, "[a=returning,b=numpy](host=@b)", cache=False)
