"""Each rule of the IR rejects a module that breaks it, with function, op and value in the message."""

import re
from dataclasses import replace
from functools import partial, reduce

import numpy as np
import pytest
from models import DIGITS, small
from onnx import helper, numpy_helper, parser

import tvmtarget as tt
from tvmtarget.errors import ModelError, UnknownNameError
from tvmtarget.ir.function import Call, Function, Opaque, Value
from tvmtarget.ir.types import TensorType
from tvmtarget.ir.verify import verify_functions

FLOAT = TensorType("float32", (2, 3))


def module():
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="r"), helper.make_node("Tanh", ["a"], ["y"], name="t")]
    return tt.IRModule.from_onnx(small(*nodes))


def changed(**changes):
    return tt.IRModule((module().main.replace(**changes),))


def body(*calls):
    return changed(body=calls)


RELU, TANH = module().main.body


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (body(TANH, RELU), "op 't' reads 'a' before it is computed (function 'main')"),
        (body(TANH), "op 't' reads 'a' but nothing defines it (function 'main')"),
        (body(RELU, RELU, TANH), "value 'a' is defined again by op 'r' (function 'main')"),
        (changed(results=("z",)), "result 'z' is not defined"),
        (changed(opsets=()), "is of domain 'onnx', but no version of it is stated"),
        (changed(name="other"), "the module has no function 'main'"),
        (body(RELU, replace(TANH, op="@f")), "op 't' calls '@f', which is not in the module"),
        (body(RELU, replace(TANH, op="@main")), "functions call each other in a cycle: main -> main"),
        (body(RELU, replace(TANH, op="tt.copy")), "copy 't' is not from one memory to another"),
        (
            changed(constraint=tt.Constraint.parse("@gpu")).with_target("[cpu=llvm]"),
            "no node 'gpu' in target",
        ),
    ],
)
def test_a_broken_rule_is_reported(broken, text):
    with pytest.raises(ModelError) as caught:
        broken.verify()
    assert text in str(caught.value)


HEAD = "func @main(%x: int8[2], %c: bool[]) opsets(onnx=17) {"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"{HEAD} %y = onnx.If(%c) then @t() {{ %z = onnx.Abs(%q) return %z }} return %y }}",
            "op 'onnx.Abs' reads 'q' but nothing defines it in 'then' of op 'onnx.If' (function 'main')",
        ),
        (
            f"{HEAD} %y = onnx.If(%c) then @t() {{ return %zz }} return %y }}",
            "result 'zz' is not defined; known: c, x in 'then' of op 'onnx.If'",
        ),
        (
            f"{HEAD} %y = onnx.If(%c) then @t() {{ %x = onnx.Abs(%c) return %x }} return %y }}",
            "value 'x' is defined again by op 'onnx.Abs' in 'then' of op 'onnx.If'",
        ),
        (
            f"{HEAD} %y = onnx.If(%c) as if then @t() {{ %z = @g(%x) return %z }} return %y }} func @f() {{ return }}",
            "op '@g' calls '@g', which is not in the module",
        ),
        (
            f"{HEAD} %y = onnx.If(%c) then @t() {{ %z = @f(%x) return %z }} return %y }}"
            "func @f(%x) opsets(onnx=17) { %y = onnx.If(%x) then @t() { %z = @main(%x, %x) return %z } return %y }",
            "functions call each other in a cycle: main -> f -> main",
        ),
        (
            f"{HEAD} %y = onnx.If(%c) then @t() {{ %z = onnx.ml::Abs(%c) return %z }} return %y }}",
            "is of domain 'ml', but no version of it is stated",
        ),
        (f"{HEAD} %y = onnx.If(%c) t @t() {{ return %c }} t @t() {{ return %c }} return %y }}", "has two bodies 't'"),
        (
            f"{HEAD} %y = onnx.If(%c) as if t @t() {{ () = tt.print(%c) effect return %c }} return %y }}",
            "op 'if' is not marked with an effect, but its body has one",
        ),
        (
            "func @main(%x) opsets(onnx=17, onnx=18) { return %x }",
            "operator set '' has two versions (function 'main')",
        ),
        (
            f"{HEAD} %y: int8[3] = @f(%x) return %y }} func @f(%a: int8[2]) {{ return %a }}",
            "calls '@f', which returns int8[2] as 'a', but 'y' is int8[3]",
        ),
        (f"{HEAD} %y = tt.code(%x) {{code=1}} return %y }}", "op 'tt.code' is code, which must be alone"),
        (
            f'{HEAD} %z = onnx.Abs(%x) %y = tt.code(%z) {{code=opaque "c" b"00"}} return %y }}',
            "op 'tt.code' is code, which must be alone in a function of its own, with an attribute 'code'",
        ),
        (
            "target [cpu=llvm] func @main(%x) [@npu] { return %x }".replace("] func", "]\nfunc"),
            "no node 'npu' in target",
        ),
    ],
)
def test_rules_hold_in_nested_bodies_too(text, problem):
    with pytest.raises(ModelError) as caught:
        tt.IRModule.parse(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("%y: float32[2] = onnx.Abs(%d) as a", "op 'a' states 'y' as float32[2], but element type float64 is inferred"),
        (
            "%y: int8[2] = onnx.Cast(%d) {to=1}",
            "op 'onnx.Cast' states 'y' as int8[2], but element type float32",
        ),
        ("%y: int32[1] = onnx.Shape(%d)", "states 'y' as int32[1], but element type int64 is inferred"),
        ("_, %y: int32[2] = onnx.TopK(%d, %k) {axis=0}", "states 'y' as int32[2], but element type int64 is inferred"),
        ("%y: int8[2] = onnx.Clip(%d, _, %d)", "states 'y' as int8[2], but element type float64 is inferred"),
        (
            "%y: sequence(int8[2]) = onnx.SequenceConstruct(%d)",
            "but sequence(float64[...]) is inferred from its operands",
        ),
        ("%y: int8[2] = onnx.SequenceConstruct(%d)", "states 'y' as int8[2], but sequence(float64[...]) is inferred"),
        ("%y: int8[2] = onnx.com.microsoft::FusedMatMul(%m, %m)", "but element type float32 is inferred"),
        ('%y: int8[2] = tt.copy(%d) {src="a", dst="b"}', "states 'y' as int8[2], but element type float64 is inferred"),
        (
            "%y = onnx.If(%c) as if then_branch @t() { %z: int8[2] = onnx.Abs(%d) as b return %z } "
            "else_branch @e() { return %d }",
            "op 'b' states 'z' as int8[2], but element type float64 is inferred from its operands",
        ),
    ],
)
def test_results_are_of_the_types_that_operands_and_attributes_imply(call, problem):
    params = "%d: float64[2], %m: float32[2,2], %k: int64[1], %c: bool[]"
    head = f"func @main({params}) opsets(onnx=17, com.microsoft=1) {{"
    right = "%r: float32[2] = onnx.Cast(%d) {to=1} %s: int8[2] = onnx.Cast(%d) {to=3}"
    assert tt.IRModule.parse(f"{head} {right} return %r }}")
    with pytest.raises(ModelError, match=re.escape(problem)):
        tt.IRModule.parse(f"{head} {right} {call} return %y }}")


@pytest.mark.parametrize(
    ("call", "opsets"),
    [
        (Call("onnx.Relu", ("x",), (Value("y", FLOAT),), (("a", Opaque("", b"\0")),)), (("", 17),)),
        (Call("onnx.Cast", ("x",), (Value("y", FLOAT),), (("to", {"a": 1}),)), (("", 17),)),
        (Call("onnx.Cast", ("x",), (Value("y", FLOAT),), (("to", 2**70),)), (("", 17),)),
        (Call("onnx.ai.onnx.ml::Scaler", ("x",), (Value("y", FLOAT),)), (("", 17), ("ai.onnx.ml", 2**70))),
        (Call("onnx.Abs", ("x", "x"), (Value("y", FLOAT), Value("z", FLOAT))), (("", 17),)),
        (Call("onnx.\ud800", (), (Value("y", FLOAT),)), (("", 17),)),
    ],
)
def test_nothing_follows_of_the_types_of_operations_that_onnx_does_not_take(call, opsets):
    assert changed(body=(call,), results=("y",), opsets=opsets).verify()


def test_two_branches_may_use_one_name():
    branch = "@b() { %z = onnx.Abs(%x) return %z }"
    assert tt.IRModule.parse(f"{HEAD} %y = onnx.If(%c) then_branch {branch} else_branch {branch} return %y }}")


def test_constants_have_their_types():
    constant = tt.Constant("w", FLOAT, np.zeros((3, 2), "float32"))
    with pytest.raises(ModelError, match=r"constant 'w' is float32\[2,3\], but holds float32\[3,2\]"):
        changed(constants=(constant,)).verify()
    with pytest.raises(ModelError, match=r"value 'x' has element type 'flot32'; did you mean 'float32'"):
        changed(params=(tt.Value("x", TensorType("flot32", ())),)).verify()


@pytest.mark.parametrize(("size", "printed"), [(-1, "-1"), (2**63, "9223372036854775808"), (2**70, "a number of 71")])
def test_dimensions_are_sizes_of_64_bits(size, printed):
    assert changed(params=(tt.Value("x", TensorType("float32", (0, 2**63 - 1))),)).verify()
    with pytest.raises(ModelError, match=f"value 'x' has dimension {printed}.*; it should be from 0 to 9223372036854"):
        changed(params=(tt.Value("x", TensorType("float32", (2, size))),)).verify()


def test_attribute_names_are_unique():
    with pytest.raises(ModelError, match="op 't' has two attributes 'a'"):
        body(RELU, replace(TANH, attrs=(("a", 1), ("a", 2)))).verify()
    with pytest.raises(ModelError, match="there are two attributes 'a'"):
        changed(attrs=(("a", 1), ("a", 2))).verify()


def test_the_depth_of_nested_bodies_is_limited():
    inner = tt.Function("b", (), (), ())
    for _ in range(200):
        inner = tt.Function("b", (), (tt.Call("tt.x", (), (), regions=(("r", inner),)),), ())
    with pytest.raises(ModelError, match="bodies are nested deeper than 64 levels"):
        changed(body=(RELU, TANH, *inner.body)).verify()


def test_calls_match_the_signature_of_their_callee():
    callee = module().main.replace(name="f")
    call = tt.Call("@f", ("x", "x"), (tt.Value("y", FLOAT),), source="c")
    with pytest.raises(ModelError, match="op 'c' calls '@f', which takes 1 and returns 1 values, not 2 and 1"):
        tt.IRModule((module().main.replace(body=(call,)), callee)).verify()
    wide = callee.replace(params=(tt.Value("x", TensorType("float64", (2, 3))),))
    call = replace(call, inputs=("x",))
    with pytest.raises(
        ModelError, match=r"op 'c' calls '@f', which takes float64\[2,3\] as 'x', but 'x' is float32\[2,3\]"
    ):
        tt.IRModule((module().main.replace(body=(call,)), wide)).verify()


def test_at_most_five_problems_are_reported_at_once():
    calls = [replace(TANH, inputs=(f"q{k}",), outputs=(tt.Value(f"z{k}", FLOAT),)) for k in range(9)]
    with pytest.raises(ModelError) as caught:
        body(RELU, TANH, *calls).verify()
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    assert lines[-1] == "... and 4 more problems"


def test_modules_are_frozen_and_changed_by_replacement():
    m = module()
    with pytest.raises(AttributeError):
        m.target = None
    assert m.with_attrs(woof="woof").attrs["woof"] == "woof"
    assert m.with_target("llvm").target == tt.Target("llvm")
    assert str(m.constrain("r", "@cpu").main.body[0].constraint) == "@cpu"
    with pytest.raises(UnknownNameError, match="no function or op 'rr'; did you mean 'r'"):
        m.constrain("rr", "@cpu")
    with pytest.raises(UnknownNameError, match="no function or op 'op:Relu'; pass operators and globs to decompose"):
        m.constrain("op:Relu", "@cpu")
    with pytest.raises(UnknownNameError, match="no function 'mian' in the module; did you mean 'main'"):
        m["mian"]


def test_constraints_set_by_a_pass_hold():
    """REQUIREMENTS G1: a pass slices, constrains and hands the module back to build."""
    m = tt.IRModule.from_onnx(DIGITS).constrain("fc1", "numpy").constrain("fc2", "@b")
    plan = tt.decompose(m, "[a=onnxruntime,b=llvm,c=numpy]")
    assert plan.site_of("fc1") == "c"
    assert plan.site_of("fc2") == "b"


PLACED = """target [gpu=cuda,cpu=llvm]
func @main(%x: float32[2] in "SCOPE") opsets(onnx=17) {
  %y: float32[2] = onnx.If(%x) as if then_branch @t() { %z: float32[2] in "INNER" = onnx.Abs(%x) return %z }
  return %y
}"""


def test_memory_scopes_are_those_of_the_target():
    def parse(scope, inner=":cpu", text=PLACED):
        return tt.IRModule.parse(text.replace("SCOPE", scope).replace("INNER", inner))

    for scope in (":cuda", ":cpu", "global", "shared.dyn"):
        module = parse(scope)
        assert module.main.params[0].scope == scope
        assert tt.IRModule.parse(str(module)) == tt.IRModule.from_json(module.to_json()) == module
    known = "which the target does not have; memories of the target: :cpu, :cuda"
    cases = (("x", ("gpu",)), ("z", (":cpu", "gpu")), ("x", (":gpu",)), ("x", ("@gpu",)))
    for value, text in cases:
        with pytest.raises(ModelError) as caught:
            parse(*text)
        problem = f"value {value!r} is in memory {text[-1]!r}, {known}; that of @gpu is :cuda (function 'main')"
        assert problem in str(caught.value)
    with pytest.raises(ModelError, match=f"value 'x' is in memory ':gpus', {known} "):
        parse(":gpus")
    assert parse("gpu", text=PLACED.split("\n", 1)[1])
    with pytest.raises(ModelError, match="value 'x' is in memory ':cuda', which the target does not have"):
        parse(":cuda").with_target("llvm").verify()


def test_parameters_are_bound_to_matching_arrays():
    module = tt.IRModule.parse("func @main(%x: float32[n,3]) { return %x }")
    assert module.bind({"x": np.zeros((2, 3), "float32")}).verify().main.types["x"] == TensorType("float32", (2, 3))
    for shape in ((2, 4), (3,)):
        with pytest.raises(ModelError, match=r"'x' is bound to float32\[.*\], not float32\[n,3\]"):
            module.bind({"x": np.zeros(shape, "float32")})


def test_a_list_of_functions_makes_an_equal_module():
    assert tt.IRModule([module().main]) == module()


def test_lists_in_attributes_become_tuples():
    module = tt.IRModule.parse("func @main(%x: float32[3]) { return %x }").with_attrs(sizes=[1, [2.0, "a"], []])
    assert tt.IRModule.parse(str(module)) == tt.IRModule.from_json(module.to_json()) == module


def test_calls_of_functions_with_effects_are_marked():
    text = """func @main(%x: float32[2]) { () = @f(%x) as c return %x }
    func @f(%x: float32[2]) { () = tt.print(%x) effect return }"""
    with pytest.raises(ModelError, match="op 'c' is not marked with an effect, but '@f' has one"):
        tt.IRModule.parse(text)
    assert tt.IRModule.parse(text.replace("as c", "effect as c"))


def test_a_function_that_was_verified_is_judged_again_in_another_module():
    text = "func @main(%x) opsets(onnx=17) {{ %y{0} = @f(%x) as call return %y }} func @f(%a) {{ return %a }}"
    good = tt.IRModule.parse(text.format("")).verify()
    with pytest.raises(ModelError, match="calls '@f', which is not in the module"):
        tt.IRModule((good.main,)).verify()
    with pytest.raises(ModelError, match="no node 'npu' in target"):
        tt.IRModule((good.main.replace(constraint="@npu"), good["f"]), target=tt.Target.parse("[cpu=llvm]")).verify()


EDITS = {
    "another operator": {"op": "onnx.Tanh"},
    "an operator of a domain without a version": {"op": "onnx.com.microsoft::Gelu"},
    "an unknown element type": {"outputs": (Value("b", TensorType("float33", (2,))),)},
    "two attributes of a name": {"attrs": (("axis", 0), ("axis", 1))},
    "a copy without ends": {"op": "tt.copy"},
    "code beside other operations": {"op": "tt.code"},
    "another operand": {"inputs": ("missing",)},
    "operands that are no tuple": {"inputs": ["a"]},
    "a type that is a text": {"outputs": (Value("b", "float32[2]"),)},
    "an attribute that is a list": {"attrs": (("axes", [0]),)},
    "another result": {"outputs": (Value("a", TensorType("float32", (2,))),)},
}


Y = Value("y", FLOAT)


def nested(levels, container):
    """Return 1 inside of many containers."""
    return reduce(lambda value, _: container([value]), range(levels), 1)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (body(5), "body[0] is a Call, not 5"),
        (changed(body=5), "body is a tuple of Calls, not 5"),
        (changed(params=("x",)), "params[0] is a Value, not 'x'"),
        (changed(params=[Value("x", FLOAT)]), "params is a tuple of Values, not [Value("),
        (changed(results="y"), "results is a tuple of texts, not 'y'"),
        (changed(constants=(np.zeros(1),)), "constants[0] is a Constant, not array([0.])"),
        (changed(opsets={"": 17}), "opsets is a tuple of pairs of a name and a whole number, not {'': 17}"),
        (changed(opsets=(("", "17"),)), "opsets is a tuple of pairs of a name and a whole number, not (('', '17'),)"),
        (changed(attrs={"role": "host"}), "attrs is a tuple of pairs of a name and its value, not {'role': 'host'}"),
        (body(Call(5, ("x",), (Y,))), "op of op 5 is a text, not 5"),
        (body(Call([], ("x",), (Y,), source="r")), "op of op 'r' is a text, not []"),
        (body(Call("onnx.Relu", "x", (Y,))), "inputs of op 'onnx.Relu' is a tuple of texts, not 'x'"),
        (body(Call("onnx.Relu", (["x"],), (Y,))), "inputs[0] of op 'onnx.Relu' is a text, not ['x']"),
        (body(Call("onnx.Relu", ("x",), ("y",))), "outputs[0] of op 'onnx.Relu' is a Value, not 'y'"),
        (body(Call("onnx.Relu", ("x",), (Y,), {"a": 1})), "attrs of op 'onnx.Relu' is a tuple of pairs of a name"),
        (body(Call("onnx.Relu", ("x",), (Y,), None)), "attrs of op 'onnx.Relu' is a tuple of pairs of a name"),
        (
            body(Call("onnx.Transpose", ("x",), (Y,), (("perm", [1, 0]),))),
            "attribute 'perm' of op 'onnx.Transpose' is a number, a text, bytes, None, a Constant, or a tuple or "
            "mapping by name of these, not [1, 0]",
        ),
        (changed(attrs=(("role", object),)), "attribute 'role' is a number, a text, bytes, None"),
        (module().with_attrs(note={1}), "attribute 'note' of the module is a number, a text, bytes, None, a Constant"),
        (module().with_attrs(note={1: 2}), "attribute 'note' of the module is a number"),
        (changed(attrs=(("role", nested(999, tuple)),)), "attribute 'role' is nested deeper than 64 levels"),
        (module().with_attrs(note=nested(65, tuple)), "attribute 'note' of the module is nested deeper than 64 levels"),
        (module().with_attrs(note=nested(999, lambda one: {"a": one[0]})), "is nested deeper than 64 levels"),
        (module().replace(attrs={1: 2}), "the name of an attribute of the module is a text, not 1"),
        (body(Call("onnx.Relu", ("x",), (Y,), (), None)), "regions of op 'onnx.Relu' is a tuple of pairs"),
        (body(Call("onnx.Relu", ("x",), (Y,), source=5)), "source of op 5 is a text, not 5"),
        (body(Call("onnx.Relu", ("x",), (Y,), has_effect=1)), "has_effect of op 'onnx.Relu' is True or False, not 1"),
        (body(Call("onnx.Relu", ("x",), (Value(5, None),))), "name of value 5 is a text, not 5"),
        (
            body(Call("onnx.Relu", ("x",), (Value("y", "float32[2]"),))),
            "the type of value 'y' is one such as TensorType('float32', (2, 3)), not 'float32[2]'",
        ),
        (body(Call("onnx.Relu", ("x",), (Value("y", TensorType("float32", [2])),))), "the type of value 'y' is one"),
        (body(Call("onnx.Relu", ("x",), (Value("y", TensorType("float32", (2.5,))),))), "the type of value 'y' is one"),
        (body(Call("onnx.Relu", ("x",), (Value("y", FLOAT, None),))), "scope of value 'y' is a text, not None"),
        (
            body(Call("onnx.If", ("x",), (Y,), (), (("then_branch", Function("t", (), (5,), ())),), source="if")),
            "body[0] is a Call, not 5 in 'then_branch' of op 'if' (function 'main')",
        ),
    ],
)
def test_a_field_of_another_type_is_named_with_its_value_and_what_is_expected(broken, problem):
    methods = (broken.to_onnx, broken.to_tvm, broken.to_json, broken.constants, broken.graph, broken.structural_hash)
    for method in (broken.verify, *methods):
        with pytest.raises(ModelError, match=re.escape(problem)):
            method()
    assert "main" in str(broken)


def test_the_deepest_attribute_is_read_back():
    deep = module().with_attrs(note=nested(64, tuple))
    assert tt.IRModule.parse(str(deep)) == tt.IRModule.from_json(deep.to_json()) == deep


def test_the_name_of_a_function_is_a_text():
    with pytest.raises(ModelError, match=re.escape("a function is named by a text, not ['f']")):
        changed(name=["f"])


def test_an_attribute_in_a_list_of_a_mapping_is_kept_as_a_file_keeps_it():
    kept = module().with_attrs(sizes={"small": [1, np.int64(2)]}).verify()
    assert kept.attrs["sizes"] == {"small": (1, 2)}
    assert tt.IRModule.parse(str(kept)) == kept


def test_a_type_of_unknown_elements_is_an_error_of_every_writer(tmp_path):
    broken = changed(params=(Value("x", TensorType("float33", (2, 3))),))
    save = partial(broken.save, tmp_path / "m.tt")
    save_onnx = partial(broken.save_onnx, tmp_path / "m.onnx")
    for method in (save, save_onnx, broken.to_onnx, broken.to_tvm, broken.to_json, broken.graph):
        with pytest.raises(ModelError, match=re.escape("value 'x' has element type 'float33'; did you mean 'float32'")):
            method()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_a_function_after_an_edit_breaks_the_rules_that_it_breaks_by_itself(change):
    type_ = TensorType("float32", (2,))
    calls = tuple(
        Call("onnx.Relu", (one,), (Value(other, type_),), source=other)
        for one, other in (("x", "a"), ("a", "b"), ("b", "c"))
    )

    def problems(since):
        edited = (calls[0], replace(calls[1], **change), calls[2])
        main = Function("main", (Value("x", type_),), edited, ("c",), opsets=(("", 17),))
        try:
            verify_functions({"main": main}, since=since)
        except ModelError as error:
            return str(error)
        return ""

    before = Function("main", (Value("x", type_),), calls, ("c",), opsets=(("", 17),))
    verify_functions({"main": before})
    assert problems({"main": before}) == problems(None)


@pytest.mark.parametrize(
    ("node", "shape", "constants", "problem"),
    [
        (
            helper.make_node("MaxPool", ["x"], ["y"], name="p", kernel_shape=[2], dilations=[3], pads=[1, 0]),
            (1, 1, 2), {}, "op 'p' has windows that need 3 elements along axis 2 of 'x' beside its padding, not 2",
        ),
        (
            helper.make_node("Conv", ["x", "w"], ["y"], name="c"),
            (1, 1, 3, 2), {"w": np.ones((1, 1, 3, 3), "float32")},
            "op 'c' has windows that need 3 elements along axis 3 of 'x' beside its padding, not 2",
        ),
        (
            helper.make_node("Conv", ["x", "w"], ["y"], name="c", pads=[-1, 0, 0, 0]),
            (1, 1, 3, 3), {"w": np.ones((1, 1, 2, 2), "float32")},
            "op 'c' has pads [-1, 0, 0, 0]; give 4 numbers of at least 0, as 'x' has 2 dimensions",
        ),
        (
            helper.make_node("Conv", ["x", "w"], ["y"], name="c", kernel_shape=[1, 1]),
            (1, 1, 3, 3), {"w": np.ones((1, 1, 2, 2), "float32")},
            "op 'c' has kernel_shape [1, 1], but weights of shape [1, 1, 2, 2]",
        ),
        (
            helper.make_node("DepthToSpace", ["x"], ["y"], name="d", blocksize=2), (1, 6, 2, 2), {},
            "op 'd' needs a multiple of 4 along axis 1 of 'x', not 6",
        ),
        (
            helper.make_node("PRelu", ["x", "w"], ["y"], name="r"), (2, 4, 1), {"w": np.ones(4, "float32")},
            "the slope of op 'r' does not fit: 'w' of shape (4,) does not broadcast to 'x' of shape (2, 4, 1)",
        ),
    ],
)  # fmt: skip
def test_operands_that_runtimes_take_otherwise_are_rejected(node, shape, constants, problem):
    with pytest.raises(ModelError, match=re.escape(problem)):
        tt.IRModule.from_onnx(small(node, shape=shape, opset=19, **constants))


@pytest.mark.parametrize(
    ("kind", "operands", "attributes", "problem"),
    [
        ("Softmax", (), {"axis": 2}, "has axis 2, but 'x' has 2 dimensions: axes are -2 to 1"),
        ("Flatten", (), {"axis": 3}, "has axis 3, but 'x' has 2 dimensions: axes are -2 to 1"),
        ("CumSum", (2,), {}, "has axis 2, but"),
        ("ReduceMean", (), {"axes": [-3]}, "has axis -3, but"),
        ("ReduceSum", ([2],), {}, "has axis 2, but"),
        (
            "OneHot",
            (3, [0, 1]),
            {"axis": 3},
            "has axis 3, but 'x' has 2 dimensions and OneHot adds 1: axes are -3 to 2",
        ),
        ("Unsqueeze", ([0, -4],), {}, "has axes [0, -4], of which one is repeated"),
        ("Squeeze", ([0],), {}, "removes axis 0 of 'x', whose size is 2, not 1"),
        ("Transpose", (), {"perm": [1, 1]}, "has perm [1, 1], which is no order of 2 dimensions"),
        ("Slice", ([0], [1], [2]), {}, "has axis 2, but"),
        ("Slice", ([0], [1, 1]), {}, "has lists of different lengths: 1 starts, 2 ends"),
        ("Slice", ([0], [1], [1], [0]), {}, "has a step of 0"),
        ("Split", ([1, 1],), {"axis": 1}, "has parts of [1, 1] elements, but 'x' has 3 along axis 1"),
        ("Pad", ([1, 1],), {}, "has 2 pads; give two for each of 2 dimensions"),
        ("Tile", ([2],), {}, "has repeats [2]; give a count for each of 2 dimensions"),
        ("TopK", ([4],), {}, "returns 4 elements along axis -1 of 'x', which has 3"),
    ],
)
def test_arguments_that_fit_no_shape_are_errors_of_the_operation(kind, operands, attributes, problem):
    """Engines find some of them, and some read or write other elements."""
    names = [f"c{at}" for at in range(len(operands))]
    results = [f"y{at}" for at in range(2 if kind in ("Split", "TopK") else 1)]
    node = helper.make_node(kind, ["x", *names], results, name="n", **attributes)
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in zip(names, operands, strict=True)]
    ends = [helper.make_tensor_value_info(name, 7 if (kind, name) == ("TopK", "y1") else 1, None) for name in results]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 1, [2, 3])], ends, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(ModelError, match=re.escape(f"op 'n' {problem}")):
        tt.IRModule.from_onnx(model)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3], strides=[2], ceil_mode=1),
        helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3], auto_pad="SAME_UPPER"),
        helper.make_node("PRelu", ["x", "x"], ["y"]),
    ],
)
def test_operands_that_may_fit_are_accepted(node):
    tt.IRModule.from_onnx(small(node, shape=(1, 1, 2), opset=19))


def test_symbolic_slopes_may_fit():
    text = "g (float[2,4,8] x, float[n] s) => (float[2,4,8] y) { y = PRelu(x, s) }"
    tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'))


@pytest.mark.parametrize(
    "scales", [[1, 1, np.nan, 1], [1, 1, np.inf, 1], [1, 1, -2, 1], [1, 1, 0, 1], [[1, 1], [2, 1]], 1.5]
)
def test_scales_are_positive_numbers(scales):
    text = "g (float[1,1,7,2] x) => (float[1,1,m,2] y) { y = Resize(x, , s) }"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    model.graph.initializer.append(numpy_helper.from_array(np.array(scales, "float32"), "s"))
    with pytest.raises(ModelError, match=r"Resize_0.* has scales 's' of .*; give a positive number for each axis"):
        tt.IRModule.from_onnx(model)


def test_scales_without_elements_are_left_out():
    text = """<ir_version: 8, opset_import: ["": 11]> g (float[1,1,7,2] x) => (float[a,b,c,d] y)
        <float[0] s = {}, int64[4] n = {1, 1, 9, 2}> { y = Resize(x, s, s, n) }"""
    assert tt.IRModule.from_onnx(parser.parse_model(text)).main.types["y"] == TensorType("float32", (1, 1, 9, 2))
