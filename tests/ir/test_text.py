"""The text form: round trips, and positions of syntax errors."""

from pathlib import Path

import numpy as np
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from models import LIGHT, light
from random_modules import functions, modules

import tvmtarget as tt
from tvmtarget.errors import ModelError, TextError
from tvmtarget.ir.text.parser import parse_type
from tvmtarget.ir.types import SequenceType, TensorType

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def comes_back(module):
    text = str(module)
    read = tt.IRModule.parse(text, module.constants())
    assert read == module
    assert str(read) == text


@settings(max_examples=30, deadline=None, suppress_health_check=SLOW)
@given(modules())
def test_what_is_printed_is_read_back(module):
    comes_back(module)


@pytest.mark.slow
@settings(max_examples=examples(30, 200), deadline=None, suppress_health_check=SLOW)
@given(modules())
def test_many_modules_are_read_back(module):
    comes_back(module)


@pytest.mark.parametrize("name", LIGHT[:3])
def test_light_models_are_read_back(name):
    comes_back(tt.IRModule.from_onnx(light(name)))


def test_every_feature_has_a_text_form(golden):
    text = (Path(__file__).parent / "everything.golden").read_text(encoding="utf-8")
    weights = np.zeros((64, 64), "float32")
    digest = tt.Constant("w", TensorType("float32", (64, 64)), weights).digest
    module = tt.IRModule.parse(text, {digest: weights})
    golden("ir/everything.golden", f"{module}\n")
    assert module.main.constants[4].data is weights
    assert module["helper one"].code.data == b"//"
    assert module.main.body[2].has_effect


def test_a_number_that_float64_cannot_hold_is_no_infinity():
    text = "func @main() { const %c: float64[2] = [1E5, NUMBER] return %c }"
    assert tt.IRModule.parse(text.replace("NUMBER", "inf")).main.constants[0].data.tolist() == [1e5, float("inf")]
    with pytest.raises(TextError, match="1e400 is beyond the numbers of float64; write inf, at line 1, column 45"):
        tt.IRModule.parse(text.replace("NUMBER", "1e400"))


@pytest.mark.parametrize("version", [-1, 0, 9999])
def test_versions_of_operators_that_onnx_does_not_know_are_refused(version):
    text = f"func @main(%x: float32[3]) opsets(onnx={version}) {{ %y: float32[3] = onnx.Relu(%x) return %y }}"
    with pytest.raises(ModelError, match=f"^version {version} of ONNX's operators is stated; the installed onnx knows"):
        tt.IRModule.parse(text)


def test_an_operator_that_onnx_does_not_know_is_named_with_the_nearest_ones():
    module = tt.IRModule.parse("func @main(%x: float32[3]) opsets(onnx=17) { %y = onnx.Reluu(%x) return %y }")
    with pytest.raises(
        ModelError, match=r"version 17 of ONNX has no operator 'Reluu' \(op 'Reluu'\); did you mean 'Relu'"
    ):
        tt.build(module, "numpy")


def test_attributes_of_a_module_survive_a_file_or_are_refused(tmp_path):
    module = tt.IRModule.parse("func @main(%x: float32[3]) { return %x }")
    numbers = module.with_attrs(count=np.int64(3), rate=np.float32(0.5))
    comes_back(numbers)
    with pytest.raises(ModelError, match=r"attribute 'sizes' of the module is .* mapping by name of these, not \{1: 2"):
        module.with_attrs(sizes={1: 2, "1": 3}).save(tmp_path / "m.irm")


def test_types_that_can_be_inferred_may_be_left_out():
    module = tt.IRModule.parse(
        """# a comment
        func @main(%x) opsets(onnx=17) { %y = onnx.Relu(%x)  # another
          return %y }"""
    )
    assert module.main.types == {"x": None, "y": None}


@pytest.mark.parametrize(
    ("text", "problem", "line", "column"),
    [
        ("func @main(%x: flot32[2]) {", "unknown type 'flot32'; did you mean 'float32'", 1, 16),
        ("func @main(%x: sequence(flot32[2])) {", "unknown type 'flot32'", 1, 25),
        (
            "func @main() {\n  %y = onnx.Relu(%x\n  return }",
            "expected ',' or ')' in the list of operands, not 'r'",
            3,
            3,
        ),
        ("func @main() {\n  %y onnx.Relu() }", "expected '=' and an operator, not 'o'", 2, 6),
        ("func @main() {\n  const %c: int64[2] = [1]\n return }", "int64[2] has 2 elements, not 1", 2, 24),
        ("func @main() {\n  const %c: int8[1] = [300]\n return }", "int8[1] cannot hold all of [300]", 2, 23),
        ("func @main() {\n  const %c: float16[1] = [1e9]\n return }", "float16[1] cannot hold all of", 2, 26),
        ("func @main() {\n  const %c: int8[1] = [1.5]\n return }", "1.5 is not an element of int8[1]", 2, 23),
        ("func @main() {\n  const %c: int8[n] = [1]\n return }", "dimensions that are numbers, not int8[n]", 2, 23),
        ("func @main() {\n  const %c: ? = [1]\n return }", "a constant is a tensor", 2, 13),
        (
            f"func @main() {{ const %c: int8[1] = sha256:{'0' * 16}",
            "no constant with the digest of 'c' is given",
            1,
            36,
        ),
        ("func @main() [llvm(mcpuu=1)] { return }", "has no attribute 'mcpuu'", 1, 15),
        ("func @main() [gpu(] { return }", "the bracket is never closed", 1, 14),
        ("func @main() [cuda(arch>)] { return }", "expected", 1, 25),
        ("target lvm\nfunc @main() { return }", "unknown kind 'lvm'", 1, 8),
        ("target llvm\ntarget llvm", "a module has one target", 2, 1),
        ("func @f() { return }\nattr a = 1", "expected target, attr (before all functions) or func, not 'attr'", 2, 1),
        ("fun @main() {", "expected target, attr (before all functions) or func, not 'fun'", 1, 1),
        (
            "func @main(%x) -> (int8[2]) { return %x }",
            "function 'main' returns (?), which is not what '->' says",
            1,
            16,
        ),
        ("func @main() { %y = onnx.Relu() {a=1, a=2} return }", "attribute 'a' is given twice", 1, 39),
        (
            "func @main() { %y = onnx.Relu() {a=yes} return }",
            "expected a value, not 'yes'; strings are in quotes",
            1,
            36,
        ),
        ('func @main() { %y = onnx.Relu() {a="yes} return }', "the string has no end on its line", 1, 36),
        ('func @main() { %y = onnx.Relu() {a=b"0"} return }', "bytes have two digits each", 1, 36),
        (f"func @main() {{ %y = onnx.R() {{a={'9' * 5000}}}", "expected a number of at most 400 characters", 1, 33),
        (f"func @main() {{ %y = onnx.R() {{a={'[' * 500}", "values are nested deeper than 64 levels", 1, 97),
        (f"func @main(%x: {'optional(' * 500}", "types are nested deeper than 64 levels", 1, 601),
        (
            f"func @main() {{ {'() = onnx.If() then @b() {' * 500}",
            "functions are nested deeper than 64 levels",
            1,
            1641,
        ),
        ("func @main() {", "expected '%' and the name of a value, but the text ended", 1, 15),
        (
            "func @main(%c) opsets(onnx=17) {\n %y = onnx.If(%c)\n  t @t() captures(%d) { return %c } return %y }",
            "region 't' reads c from outside",
            3,
            10,
        ),
    ],
)
def test_syntax_errors_have_a_line_and_a_column(text, problem, line, column):
    with pytest.raises(TextError) as caught:
        tt.IRModule.parse(text)
    assert problem in caught.value.problems[0]
    assert caught.value.line == line
    if len(text) < 400:
        assert caught.value.column + 1 == column
        assert caught.value.caret().splitlines()[-1] == " " * (column + 1) + "^"
        assert f"at line {line}, column {column} of" in str(caught.value)


def test_parsed_modules_are_verified():
    with pytest.raises(ModelError, match=r"op 'onnx\.Relu' reads 'z' but nothing defines it"):
        tt.IRModule.parse("func @main() opsets(onnx=17) { %y = onnx.Relu(%z) return %y }")


def test_any_text_is_parsed_or_a_text_error():
    for text in ("", "\x00", "func", "func @", "\ud800", "target [", "func @main() [", '"', "func @main() {{{{"):
        with pytest.raises((TextError, ModelError)):
            tt.IRModule.parse(text)


@settings(max_examples=30, deadline=None, suppress_health_check=SLOW)
@given(functions())
def test_a_truncated_text_is_rejected(function):
    text = str(tt.IRModule((function,)))
    for end in range(0, len(text) - 1, max(1, len(text) // 15)):
        with pytest.raises((TextError, ModelError)):
            tt.IRModule.parse(text[:end], tt.IRModule((function,)).constants())


def test_constants_of_the_wrong_size_are_rejected():
    data = np.zeros((4, 5), "float32")
    constant = tt.Constant("w", TensorType("float32", (4, 5)), data)
    text = f"func @main() {{ const %w: float32[7] = sha256:{constant.digest[:16]} return %w }}"
    with pytest.raises(TextError, match=r"constant 'w': float32\[7\] takes 28 bytes, not 80"):
        tt.IRModule.parse(text, {constant.digest: data})


def test_types_are_parsed_alone():
    assert parse_type("sequence(float32[2,n])") == SequenceType(TensorType("float32", (2, "n")))
    with pytest.raises(TextError, match="expected the end of the text, not 'x'"):
        parse_type("? x")
