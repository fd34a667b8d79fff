"""Bodies for given sizes: what runs for which inputs, names, constants, and what is refused."""

import numpy as np
import pytest
from models import DIGITS
from onnx import checker, parser
from typer.testing import CliRunner

import tvmtarget as tt
from tvmtarget.cli.main import app
from tvmtarget.errors import ModelError
from tvmtarget.ir.function import calls_in

ATTENTION = """g (float[batch,seq,4] x, float[batch] scale, int64[seq] unused)
    => (float[batch,seq,seq] y, float[batch,seq,4] x) {
    t = Transpose<perm=[0,2,1]>(x) p = MatMul(x, t) y = Softmax(p) }"""
PAIR = "[cpu=llvm,ort=onnxruntime](host=@cpu)"


def model(text, opset=17):
    return tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{text}'))


def inputs(batch, seq):
    random = np.random.default_rng(batch * 100 + seq)
    return {
        "x": random.standard_normal((batch, seq, 4)).astype("float32"),
        "scale": np.ones(batch, "float32"),
        "unused": np.arange(seq),
    }


def called(program, given):
    return {event.function for event in program.profile(given)}


@pytest.mark.parametrize("target", ["numpy", "onnxruntime", PAIR])
def test_results_are_those_of_the_program_at_any_size(target):
    module = model(ATTENTION)
    program = tt.build(tt.with_buckets(module, [{"batch": 1, "seq": 3}, {"seq": 3}, {"batch": 2, "seq": 6}]), target)
    plain = tt.build(module, "numpy")
    # Sizes of which only the product is that of a bucket are other sizes.
    for sizes in ((1, 3), (2, 3), (2, 6), (6, 2), (3, 4), (1, 1)):
        given = inputs(*sizes)
        for name, expected in plain.run(given).items():
            np.testing.assert_allclose(program.run(given)[name], expected, rtol=1e-5, atol=1e-6)


def test_each_bucket_has_a_function_of_its_sizes():
    module = tt.with_buckets(model(ATTENTION), [{"batch": 2, "seq": 3}, {"seq": 6}])
    program = tt.build(module, PAIR, where={"*:seq?": "@cpu"})
    products = [call for one in program.plan.module.functions for call in one.body if call.kind == "MatMul"]
    assert {str(call.outputs[0].type) for call in products} == {
        "float32[2,3,3]",
        "float32[batch,6,6]",
        "float32[batch,seq,seq]",
    }
    first, second, other, another = (called(program, inputs(*sizes)) for sizes in ((2, 3), (1, 6), (3, 3), (1, 2)))
    assert len(first - second - other) == len(second - first - other) == len(other - first - second) == 1
    assert other == another


def test_bodies_share_the_constants():
    module = tt.IRModule.from_onnx(DIGITS)
    added = len(tt.with_buckets(module, [{"batch": 1}, {"batch": 8}]).main.constants) - len(module.main.constants)
    assert added == 5  # two sizes, two shapes, and the position of the batch


def test_names_of_operations_end_in_the_sizes_of_their_bucket():
    module = tt.with_buckets(model(ATTENTION), [{"batch": 1, "seq": 3}])
    names = [call.source for call in calls_in(module.main)]
    assert len(set(names)) == len(names)
    assert {"Softmax_2", "Softmax_2:batch1:seq3", "bucket:batch1:seq3"} <= set(names)


def test_a_program_with_buckets_is_valid_onnx_and_text():
    module = tt.with_buckets(model(ATTENTION), [{"batch": 1}, {"batch": 2}])
    checker.check_model(module.to_onnx(), full_check=True)
    assert tt.IRModule.parse(str(module)) == module


def test_bodies_with_bodies_of_their_own_get_names_and_sizes():
    module = model("""g (float[n] x, bool c) => (float[n] y) { y = If(c) <
        then_branch = t () => (float[n] p) { p = Neg(x) }, else_branch = e () => (float[n] q) { q = Abs(x) }> }""")
    program = tt.build(tt.with_buckets(module, [{"n": 3}]), "[cpu=numpy](host=@cpu)")
    for size in (3, 2):
        x = np.linspace(-1, 1, size).astype("float32")
        np.testing.assert_array_equal(program.run({"x": x, "c": np.array(False)})["y"], abs(x))


def test_no_buckets_change_nothing():
    module = model(ATTENTION)
    assert tt.with_buckets(module, []) is module
    passed = model("g (float[n] x) => (float[n] x) { y = Neg(x) }")
    assert tt.with_buckets(passed, [{"n": 1}]) is passed


@pytest.mark.parametrize(
    ("buckets", "reason"),
    [
        ([{}], "a bucket without sizes is the program itself; give it the size of a dimension"),
        ([{"batch": 1}, {"batch": 1}], "the bucket batch1 is given twice"),
        ([{"btch": 1}], "no symbolic dimension 'btch'; there is 'batch', 'seq'"),
        ([{"batch": -1}], "'batch' cannot be -1"),
    ],
)
def test_wrong_buckets_are_refused(buckets, reason):
    with pytest.raises(ModelError, match=reason):
        tt.with_buckets(model(ATTENTION), buckets)


def test_a_program_of_an_old_operator_set_is_refused():
    with pytest.raises(ModelError, match="buckets need operator set 7 of ONNX, and the program uses 4; upgrade it"):
        tt.with_buckets(model("g (float[n] x) => (float[n] y) { y = Relu(x) }", 4), [{"n": 1}])


def test_the_command_line_takes_buckets(tmp_path):
    path = tmp_path / "digits.tta"
    words = ["compile", str(DIGITS), "--dim", "batch=8", "--bucket", "batch=1", "-t", "numpy", "-o", str(path)]
    assert "no symbolic dimension 'batch'" in str(CliRunner().invoke(app, words).exception)
    words = ["compile", str(DIGITS), "--bucket", "batch=1", "--bucket", "batch=8", "-t", "onnxruntime", "-o", str(path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert tt.load(path).run({"input": np.ones((8, 1, 8, 8), "float32")})["logits"].shape == (8, 10)
