"""Builders, rewrites and patterns: results are valid and compute the same; invalid requests are rejected."""

import random

import numpy as np
import pytest
from models import DIGITS, random_graph

import tvmtarget as tt
from tvmtarget.errors import ModelError, TextError, UnknownNameError
from tvmtarget.ir.builder import FunctionBuilder
from tvmtarget.ir.def_use import detour
from tvmtarget.ir.rewrite import (
    clone,
    inline,
    outline,
    outline_calls,
    remove_dead_code,
    remove_dead_functions,
    rename,
    replace_uses,
    share_constants,
)
from tvmtarget.ir.structure import structural_hash, structurally_equal
from tvmtarget.support.patterns import Pattern, find_matches, outline_matches


def parse(text):
    return tt.IRModule.parse(text)


CHAIN = """
func @main(%x: float32[2]) -> (float32[2]) opsets(onnx=17) {
  %a: float32[2] = onnx.Relu(%x) as a
  %b: float32[2] = onnx.Abs(%a) as b
  %c: float32[2] = onnx.Add(%a, %b) as c
  %d: float32[2] = onnx.Neg(%x) as d
  %e: float32[2] = onnx.Mul(%c, %d) as e
  return %e
}"""


def test_a_function_is_built_with_types_inferred():
    f = FunctionBuilder(opset=18)
    x, c = f.param("x", "float32[n,3,8,8]"), f.param("c", "bool[]")
    w = f.constant(np.zeros((4, 3, 3, 3), "float32"), "w")
    y = f.call("Conv", x, w, strides=[2, 2], constraint="@gpu", name="conv")
    then = FunctionBuilder("then", outer=f)
    other = FunctionBuilder("else", outer=f)
    z = f.call("If", c, then_branch=then.build(then.call("Relu", y)), else_branch=other.build(other.call("Neg", y)))
    parts = f.calls("Split", z, results=2, axis=1, num_outputs=2)
    module = tt.IRModule((f.build(*parts),)).verify()
    assert [str(module.main.types[name]) for name in (y, z, *parts)] == [
        "float32[n,4,3,3]",
        "float32[n,4,3,3]",
        "float32[n,2,3,3]",
        "float32[n,2,3,3]",
    ]
    assert str(module.main.body[0].constraint) == "@gpu"


def test_calls_of_functions_and_foreign_operators_are_built_too():
    g = FunctionBuilder("g")
    helper = g.build(g.call("Relu", g.param("x", "float32[2]")))
    f = FunctionBuilder()
    y = f.call("@g", f.param("x", "float32[2]"))
    z = f.call("relax.nn.gelu", y)
    main = f.build(f.call("Abs", y), z, functions={"g": helper})
    assert str(main.types["Abs"]) == "float32[2]"
    assert main.types[z] is None
    tt.IRModule((main, helper)).verify()


def test_invalid_calls_are_rejected():
    f = FunctionBuilder()
    x = f.param("x", "float32[2,3]")
    with pytest.raises(ModelError, match="Relu reads 'xx', but nothing defines it"):
        f.call("Relu", "xx")
    with pytest.raises(ModelError, match="attribute 'a' is a object; it can be a number"):
        f.call("com.a::Relu", x, a=object())
    with pytest.raises(ModelError, match="result 'q' is not defined; known: x"):
        f.build("q")
    with pytest.raises(ModelError, match="attribute 'a' is a list of number and str; the items of one are of one type"):
        f.call("com.a::Relu", x, a=[1, "a"])
    for data, problem in (([[1], [1, 2]], "inhomogeneous"), (object(), "of numbers or strings, but of object")):
        with pytest.raises(ModelError, match=rf"constant 'k' is not a tensor.*{problem}"):
            f.constant(data, "k")
    with pytest.raises(ModelError, match="attrs is a tuple of pairs of a name and its value, not 5"):
        f.build(x, attrs=5)
    y = f.call("MatMul", x, x)
    with pytest.raises(ModelError, match=r"function 'main' does not fit together: .*Incompatible dimensions"):
        f.build(y)


def test_numbers_of_numpy_are_attributes():
    f = FunctionBuilder()
    y = f.call("LeakyRelu", f.param("x", "float32[2]"), alpha=np.float32(0.5))
    assert f.build(y).body[0].attr("alpha") == 0.5


@pytest.mark.parametrize(
    ("op", "stated", "attribute"),
    [
        ("Transpose", {"perm": np.array([1, 0])}, (1, 0)),
        ("Softmax", {"axis": np.array(1)}, 1),
        ("LeakyRelu", {"alpha": 1}, 1.0),
        ("com.a::Scale", {"by": 1}, 1),
    ],
)
def test_attributes_get_the_types_that_onnx_states(op, stated, attribute):
    f = FunctionBuilder(opsets={"com.a": 1})
    y = f.call(op, f.param("x", "float32[2,3]"), **stated)
    found = f.build(y).body[0].attrs[0][1]
    assert (found, type(found)) == (attribute, type(attribute))


@pytest.mark.parametrize(
    ("op", "stated", "problem"),
    [
        ("Transpose", {"perm": "10"}, "attribute 'perm' of Transpose is a list of whole numbers, not '10'"),
        ("Softmax", {"axis": [1]}, r"attribute 'axis' of Softmax is a whole number, not \[1\]"),
        ("Cast", {"to": "float16"}, "attribute 'to' of Cast is a whole number, not 'float16'"),
        ("Relu", {"axis": 1}, "Relu has no attribute 'axis'"),
        ("Gemm", {"transA": 1, "transb": 1}, "Gemm has no attribute 'transb'; did you mean 'transB'"),
    ],
)
def test_attributes_that_onnx_does_not_state_are_rejected(op, stated, problem):
    f = FunctionBuilder()
    with pytest.raises(ModelError, match=problem):
        f.call(op, f.param("x", "float32[2,3]"), **stated)


def test_passes_of_functions_are_mapped_over_a_module():
    module = outline(parse(CHAIN), ["a"], "part").map(remove_dead_code).map(share_constants)
    assert [function.name for function in module.verify()] == ["main", "part"]


def test_ambiguous_names_are_rejected():
    twice = parse(CHAIN.replace("as b", "as a"))
    with pytest.raises(ModelError, match="2 ops of function 'main' are called 'a'; rename them"):
        outline(twice, ["a"], "part")


def test_dead_code_is_removed_but_effects_are_kept():
    module = parse(
        """func @main(%x) opsets(onnx=17) {
             const %w: int8[1] = [1]
             %a = onnx.Relu(%x)
             %b = onnx.Abs(%a)
             () = tt.print(%a) effect
             %i = onnx.If(%x) then @t() { %u = onnx.Abs(%w) return %x }
             return %i }"""
    )
    main = remove_dead_code(module.main)
    assert [call.op for call in main.body] == ["onnx.Relu", "tt.print", "onnx.If"]
    assert main.constants == ()
    assert main.body[2].regions[0][1].body == ()


def test_equal_constants_are_merged():
    f = FunctionBuilder()
    x, a, b = f.param("x", "float32[2]"), f.constant(np.ones(2, "float32")), f.constant(np.ones(2, "float32"))
    main = share_constants(f.build(f.call("Add", f.call("Add", x, a), b)))
    assert [constant.name for constant in main.constants] == ["constant"]
    assert [call.inputs[1] for call in main.body] == ["constant", "constant"]


def test_uses_are_replaced_in_results_and_nested_bodies():
    module = parse(
        "func @main(%x, %y) opsets(onnx=17) { %i = onnx.If(%x) t @t() { %u = onnx.Abs(%x) return %x } return %i, %x }"
    )
    main = replace_uses(module.main, {"x": "y"})
    assert main.results == ("i", "y")
    assert main.body[0].uses() == ("y",)


def test_functions_are_renamed_cloned_and_removed():
    module = parse(
        """func @main(%x) opsets(onnx=17) { %y = onnx.If(%x) t @t() { %z = @f(%x) return %z } return %y }
           func @f(%x) { %y = @g(%x) return %y } func @g(%x) { return %x } func @h(%x) { %y = @g(%x) return %y }"""
    )
    renamed = rename(module, "f", "ff").verify()
    assert [function.name for function in renamed] == ["main", "ff", "g", "h"]
    assert structurally_equal(renamed, module)
    assert [function.name for function in remove_dead_functions(module)] == ["main", "f", "g"]
    assert clone(module, "f", "f2").verify()["f2"].body == module["f"].body
    for change in (rename, clone):
        with pytest.raises(ModelError, match="there is one with that name"):
            change(module, "f", "g")
        with pytest.raises(UnknownNameError, match="no function 'q' in the module"):
            change(module, "q", "z")


def test_operations_are_outlined_and_inlined_back():
    module = parse(CHAIN)
    outlined = outline(module, ["b", "c"], "part", "@gpu").verify()
    part = outlined["part"]
    assert (part.results, [param.name for param in part.params]) == (("c",), ["a"])
    assert [call.op for call in outlined.main.body] == ["onnx.Relu", "onnx.Neg", "@part", "onnx.Mul"]
    with pytest.raises(ModelError, match="function 'part' is constrained to @gpu, so it is one unit of work"):
        inline(outlined, "part")
    back = inline(outlined.with_function(part.replace(constraint=None)), "part").verify()
    assert structural_hash(back.main) == structural_hash(module.main)


NESTED = """
func @main(%c: bool[], %x: float32[2]) -> (float32[2]) opsets(onnx=17) {
  %y: float32[2] = onnx.If(%c) as if
    then_branch @then() {
      %x.1: float32[2] = @f(%x)
      return %x.1
    }
    else_branch @else() {
      %z: float32[2] = onnx.Neg(%x)
      return %z
    }
  return %y
}

func @f(%a: float32[2]) -> (float32[2]) opsets(onnx=17) {
  %x: float32[2] = onnx.Abs(%a)
  return %x
}"""


def test_calls_in_nested_bodies_are_inlined():
    module = parse(NESTED)
    main = inline(module, "f").verify().main
    then = main.body[0].regions[0][1]
    assert [call.op for call in then.body] == ["onnx.Abs"]
    assert then.captures() == ("x",)
    assert then.results == ("x.1",)
    exe = tt.build(module, "onnxruntime")
    x = np.array([-1, 2], "float32")
    np.testing.assert_array_equal(exe.run({"c": np.array(True), "x": x})["y"], [1, 2])
    np.testing.assert_array_equal(exe.run({"c": np.array(False), "x": x})["y"], [1, -2])


def test_constrained_calls_and_code_stay_functions():
    with pytest.raises(ModelError, match="the call of 'f' in function 'main' is constrained to @b, so it is one unit"):
        inline(parse(NESTED.replace("@f(%x)", "@f(%x) [@b]")), "f")
    code = """func @main(%x: float32[8]) { %y: float32[8] = @kernel(%x) return %y }
    func @kernel(%x: float32[8]) { %y: float32[8] = tt.code(%x) {code=opaque "c" b"2f2f"} return %y }"""
    with pytest.raises(ModelError, match="function 'kernel' is code of 'c', which is not inlined"):
        inline(parse(code), "kernel")


def test_constraints_of_functions_called_in_nested_bodies_hold():
    module = parse(NESTED)
    constrained = module.with_function(module["f"].replace(constraint=tt.Constraint.parse("@b")))
    plan = tt.decompose(constrained, "[a=onnxruntime,b=numpy]")
    assert plan.site_of("if") == "b"
    assert "required by function 'f'" in str(plan.explain("if"))


def test_functions_that_call_themselves_are_not_inlined():
    module = tt.IRModule((*parse(NESTED).functions, tt.Function("g", (), (tt.Call("@g", (), ()),), ())))
    with pytest.raises(ModelError, match="call each other deeper than 64"):
        inline(module, "g")


def test_a_set_that_is_not_convex_is_rejected_with_the_path():
    with pytest.raises(ModelError, match="do not fit into one function: 'a' -> 'b' -> 'c' leaves it and comes back"):
        outline(parse(CHAIN), ["a", "c"], "part")
    with pytest.raises(UnknownNameError, match="no op 'z' in function 'main'"):
        outline(parse(CHAIN), ["z"], "part")
    with pytest.raises(ModelError, match="no operations are given"):
        outline(parse(CHAIN), [], "part")
    with pytest.raises(ModelError, match="there is a function with that name"):
        outline(parse(CHAIN), ["a"], "main")


def test_effects_are_not_reordered():
    module = parse(
        """func @main(%x) opsets(onnx=17) {
             () = tt.one(%x) effect as one
             () = tt.two(%x) effect as two
             () = tt.three(%x) effect as three
             return }"""
    )
    with pytest.raises(ModelError, match="'one' -> 'two' -> 'three' leaves it"):
        outline(module, ["one", "three"], "part")
    outlined = outline(module, ["two"], "part")
    assert [call.op for call in outlined.main.body] == ["tt.one", "@part", "tt.three"]
    assert outlined.main.body[1].has_effect


def test_captures_of_nested_bodies_become_parameters():
    module = parse(
        """func @main(%x, %c) opsets(onnx=17) {
             %a = onnx.Relu(%x) as a
             %i = onnx.If(%c) as i then @t() { %u = onnx.Abs(%a) return %u } else @e() { return %x }
             return %i }"""
    )
    outlined = outline(module, ["i"], "part").verify()
    assert [param.name for param in outlined["part"].params] == ["c", "a", "x"]


@pytest.mark.parametrize("seed", range(20))
def test_random_sets_are_outlined_or_rejected(seed):
    module = tt.IRModule.from_onnx(random_graph(30, seed))
    rng = random.Random(seed)
    calls = sorted(rng.sample(range(30), rng.randint(1, 6)))
    if detour(module.main, calls)[0]:
        with pytest.raises(ModelError, match="leaves it and comes back"):
            outline_calls(module, calls, "part")
        return
    outlined = outline_calls(module, calls, "part").verify()
    assert structural_hash(inline(outlined, "part").main) == structural_hash(module.main)


def test_an_outlined_model_computes_the_same():
    module = tt.IRModule.from_onnx(DIGITS)
    outlined = outline(module, ["relu1", "conv2", "relu2"], "part", "@b")
    x = np.random.default_rng(0).normal(size=(1, 1, 8, 8)).astype("float32")
    expected = tt.build(module, "onnxruntime")(x)
    plan = tt.decompose(outlined, "[a=onnxruntime,b=numpy]")
    assert plan.site_of("conv2") == "b"
    np.testing.assert_allclose(tt.build(plan.module)(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("pattern", "sources"),
    [
        ("relu(conv(x, w, b))", [("conv1", "relu1"), ("conv2", "relu2"), ("conv3", "relu3")]),
        ("Relu(Conv(x, w))", []),
        ("relu(conv(x, w, ...))", [("conv1", "relu1"), ("conv2", "relu2"), ("conv3", "relu3")]),
        ("onnx.Relu(onnx.Conv(...))", [("conv1", "relu1"), ("conv2", "relu2"), ("conv3", "relu3")]),
        ("relu(conv(...) {pads=[0, 0, 0, 0]})", [("conv3", "relu3")]),
        (
            "relu(conv(...) | gemm(_, _, b))",
            [("conv1", "relu1"), ("conv2", "relu2"), ("conv3", "relu3"), ("fc1", "relu4")],
        ),
        ("gemm(relu(gemm(...)), ...)", [("fc1", "relu4", "fc2")]),
        ("max_pool(x) | flatten(x)", [("pool",), ("flatten",)]),
        ("conv(x, x, b)", []),
        ("nothing(x)", []),
    ],
)
def test_patterns_match(pattern, sources):
    main = tt.IRModule.from_onnx(DIGITS).main
    assert [match.sources for match in find_matches(main, pattern)] == sources


def test_operands_of_commutative_operators_match_in_both_orders():
    main = parse(CHAIN).main
    for pattern in ("add(abs(y), y)", "add(y, abs(y))"):
        matches = find_matches(main, pattern)
        assert [(match.sources, match.values) for match in matches] == [(("b", "c"), {"y": "a"})]
    assert find_matches(main, "sub(y, abs(y))") == ()


def test_results_read_outside_are_not_inner_results_of_a_match():
    assert find_matches(parse(CHAIN).main, "abs(relu(x))") == ()
    assert len(find_matches(parse(CHAIN).main, "add(relu(x), abs(relu(x)))")) == 1


def test_matches_do_not_overlap_each_other_nor_pinned_operations():
    text = "func @main(%x) opsets(onnx=17) { %a = onnx.Abs(%x) %b = onnx.Abs(%a) %c = onnx.Abs(%b) return %c }"
    assert [match.calls for match in find_matches(parse(text).main, "abs(abs(x))")] == [(1, 2)]
    pinned = parse(text.replace("(%b)", "(%b) [gpu]"))
    assert [match.calls for match in find_matches(pinned.main, "abs(abs(x))")] == [(0, 1)]


def test_conditions_of_patterns_are_checked():
    main = tt.IRModule.from_onnx(DIGITS).main
    constant = Pattern.parse("conv(x, w, ...)", lambda match: match.is_constant("w"))
    variable = Pattern.parse("conv(x, w, ...)", lambda match: not match.is_constant("w"))
    assert len(find_matches(main, constant)) == 3
    assert find_matches(main, variable) == ()
    with pytest.raises(UnknownNameError, match="no variable 'v' in the pattern; known: w, x"):
        find_matches(main, Pattern.parse("conv(x, w, ...)", lambda match: match.is_constant("v")))


def test_matches_are_outlined():
    module = outline_matches(tt.IRModule.from_onnx(DIGITS), "relu(conv(...) | gemm(...))", "fused", "@b").verify()
    assert [function.name for function in module] == ["main", "fused_0", "fused_1", "fused_2", "fused_3"]
    assert [call.op for call in module.main.body if call.callee] == ["@fused_0", "@fused_1", "@fused_2", "@fused_3"]
    assert find_matches(module.main, "relu(conv(...))") == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x", "a pattern begins with an operation, such as relu(x)"),
        ("relu(x", "expected ',' or ')' in the list of operands, but the text ended"),
        ("relu(..., x)", "'...' is the last of the operands"),
        ("relu(x) y", "expected the end of the text, not 'y'"),
        ("relu(|)", "expected an operator, a variable or '_', not '|'"),
        ("r(" * 500, "patterns are nested deeper than 64 levels"),
        ("relu(x) {a=}", "expected a value, not '}'"),
    ],
)
def test_malformed_patterns_are_rejected(text, problem):
    with pytest.raises(TextError) as caught:
        Pattern.parse(text)
    assert problem in str(caught.value)


def test_a_chain_of_ten_thousand_is_matched_and_outlined():
    calls = [tt.Call("onnx.Abs", (f"v{k}",), (tt.Value(f"v{k + 1}", None),), source=f"n{k}") for k in range(10_000)]
    main = tt.Function("main", (tt.Value("v0", None),), tuple(calls), ("v10000",), opsets=(("", 17),))
    outlined = outline_matches(tt.IRModule((main,)), "abs(abs(x))", "pair").verify()
    assert len(outlined.functions) == 5001
    assert [call.op for call in outlined.main.body][:2] == ["@pair_0", "@pair_1"]
