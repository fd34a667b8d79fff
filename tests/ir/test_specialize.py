"""Sizes of symbolic dimensions: types, results, and what is refused."""

import numpy as np
import pytest
from models import DIGITS, EXAMPLES
from onnx import parser
from typer.testing import CliRunner

import tvmtarget as tt
from tvmtarget.cli.main import app
from tvmtarget.errors import ModelError, TvmTargetError


def model(text):
    return tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}'))


def shapes(module):
    return {name: type_.shape for name, type_ in module.main.types.items()}


def test_types_follow_from_the_sizes():
    module = model("g (float[n,3] x, float[k,3] w) => (float[m,3] y) { h = Neg(x) y = Concat<axis=0>(h, w) }")
    assert shapes(tt.specialize(module, {"n": 2, "k": 5}))["y"] == (7, 3)
    assert shapes(tt.specialize(module, {"n": 2}))["h"] == (2, 3)


def test_shapes_that_the_model_computes_become_known():
    module = model("""g (float[n,3] x) => (float[a,b] y) <int64[1] last = {-1}> {
        s = Shape<start=0, end=1>(x) t = Concat<axis=0>(s, last) y = Reshape(x, t) }""")
    assert shapes(tt.specialize(module, {"n": 4}))["y"] == (4, 3)


def test_sizes_reach_nested_bodies():
    module = model("""g (float[n] x, bool c) => (float[n] y) { y = If(c) <
        then_branch = t () => (float[n] p) { p = Neg(x) }, else_branch = e () => (float[n] q) { q = Abs(x) }> }""")
    special = tt.specialize(module, {"n": 3})
    (call,) = special.main.body
    assert [region.types[region.results[0]].shape for _, region in call.regions] == [(3,), (3,)]
    given = {"x": np.float32([1, -2, 3]), "c": np.array(False)}
    np.testing.assert_array_equal(tt.build(special, "numpy").run(given)["y"], [1, 2, 3])


def test_zero_is_a_size():
    module = model("g (float[n,3] x) => (float[n,3] y) { y = Neg(x) }")
    assert tt.build(tt.specialize(module, {"n": 0}), "numpy").run({"x": np.zeros((0, 3), "float32")})["y"].shape == (
        0,
        3,
    )


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ({"k": 1}, "no symbolic dimension 'k'; there is 'n'"),
        ({"n": -1}, "'n' cannot be -1; give an integer from 0 to 9223372036854775807"),
        ({"n": 2**63}, "'n' cannot be 9223372036854775808; give an integer from 0 to 9223372036854775807"),
        ({"n": 10**5000}, "'n' cannot be a number of 16610 bits"),
        ({"n": 1.5}, "dims\\['n'\\] of specialize is a whole number, not 1.5"),
        ({"n": True}, "dims\\['n'\\] of specialize is a whole number, not True"),
    ],
)
def test_wrong_sizes_are_refused(dims, reason):
    with pytest.raises(TvmTargetError, match=reason):
        tt.specialize(model("g (float[n,3] x) => (float[n,3] y) { y = Neg(x) }"), dims)


def test_sizes_that_do_not_fit_together_are_refused():
    module = model("g (float[n,3] x, float[k,3] w) => (float[n,3] y) { y = Add(x, w) }")
    with pytest.raises(ModelError):
        tt.specialize(module, {"n": 2, "k": 5})


def test_a_module_keeps_its_target_and_attributes():
    module = model("g (float[n,3] x) => (float[n,3] y) { y = Neg(x) }").with_target("numpy").replace(attrs={"own": 1})
    for changed in (tt.specialize(module, {"n": 2}), tt.with_buckets(module, [{"n": 2}])):
        assert (changed.target, dict(changed.attrs)) == (module.target, {"own": 1})


def test_results_are_those_of_the_whole_model():
    module = tt.IRModule.from_onnx(DIGITS)
    with np.load(EXAMPLES / "digits.npz") as stored:
        x = stored["input"][:3]
    expected = tt.build(module, "numpy").run({"input": x})["logits"]
    actual = tt.build(tt.specialize(module, {"batch": 3}), "numpy").run({"input": x})["logits"]
    np.testing.assert_array_equal(actual, expected)


def test_the_command_line_takes_sizes(tmp_path):
    pytest.importorskip("tvm")
    words = ["compile", str(DIGITS), "--target", "c", "--executor", "aot", "--runtime", "crt", "--dim", "batch=1"]
    done = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "x.tta"), "--export", str(tmp_path / "project")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "project" / "include" / "tvmgen_digits.h").exists()
    done = CliRunner().invoke(app, [*words[:-1], "size=1", "-o", str(tmp_path / "y.tta")])
    assert done.exit_code == 1
