"""Constant folding: what is folded, what stays, and that folded programs compute the same."""

import numpy as np
import pytest
from onnx import SparseTensorProto, TensorProto, helper, numpy_helper, parser

import tvmtarget as tt
from tvmtarget.errors import UnknownNameError
from tvmtarget.ir.constant_folding import fold_constants, folded_ops

# Of torch's exporter: the heads of an attention, with sizes computed from the shape of the input.
HEADS = """g (float[{dims}] x) => (float[a,b,c,d] y) <int64 first = {{0}}, int64 second = {{1}}, int64[1] axis = {{0}},
    int64[1] heads = {{4}}, int64[1] depth = {{12}}> {{
    s = Shape(x)
    n = Gather(s, first)
    t = Shape(x)
    m = Gather(t, second)
    un = Unsqueeze(n, axis)
    um = Unsqueeze(m, axis)
    shape = Concat<axis = 0>(un, um, heads, depth)
    r = Reshape(x, shape)
    y = Transpose<perm = [0, 2, 1, 3]>(r) }}"""
# Of torch's exporter: `expand`, where -1 keeps a dimension, and a mask of positions.
EXPAND = """g (float[{dims}] x, float[1,1,48] w) => (float[a,b,c] y) <int64[1] axis = {{0}}, int64 minus = {{-1}},
    int64[3] wanted = {{-1, -1, 48}}, int64[1] three = {{3}}> {{
    s = Shape(x)
    ones = ConstantOfShape<value = int64[1] {{1}}>(three)
    keep = Mul(ones, minus)
    is_kept = Equal(wanted, keep)
    target = Where(is_kept, s, wanted)
    e = Expand(x, target)
    y = Add(e, w) }}"""


def read(text, opset=17):
    return tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{text}'))


def kinds(module):
    return [call.kind for call in module.main.body]


def run(module, **inputs):
    return tt.build(tt.decompose(module, "numpy", fold_constants=False)).run(inputs)


@pytest.mark.parametrize("dims", ["2,8,48", "n,8,48", "n,m,48"])
@pytest.mark.parametrize(("text", "left"), [(HEADS, ["Reshape", "Transpose"]), (EXPAND, ["Identity", "Add"])])
def test_sizes_that_an_exporter_computes_become_constants(text, left, dims):
    module = read(text.format(dims=dims))
    folded = fold_constants(module).verify()
    assert [kind.replace("Expand", "Identity") for kind in kinds(folded)] == left
    assert folded_ops(module, folded) == tuple(
        call.source for call in module.main.body if call.source not in {one.source for one in folded.main.body}
    )
    x = np.random.default_rng(0).standard_normal((2, 8, 48)).astype("float32")
    given = {"x": x, "w": np.ones((1, 1, 48), "float32")} if text is EXPAND else {"x": x}
    np.testing.assert_array_equal(run(folded, **given)["y"], run(module, **given)["y"])


def test_a_dimension_beside_one_that_may_be_empty_is_not_inferred():
    module = read("""g (float[n,k,6] x) => (float[n,m,3] y) <int64[1] two = {2}, int64[1] three = {3}> {
        a = Shape<start = 0, end = 1>(x) b = Shape<start = 1, end = 2>(x) c = Mul(b, two)
        s = Concat<axis = 0>(a, c, three) y = Reshape(x, s) }""")
    folded = fold_constants(module)
    assert "Concat" in kinds(folded)
    assert run(folded, x=np.zeros((0, 2, 6), "float32"))["y"].shape == (0, 4, 3)


def test_a_constant_that_is_written_as_an_operation_becomes_one():
    """The ONNX importer leaves no such operations, but texts and builders may have some."""
    module = tt.IRModule.parse("""func @main(%x: float32[2]) opsets(onnx=17) {
      %w: float32[2] = onnx.Constant() {value_floats=[1.0, 2.0]} as w
      %y: float32[2] = onnx.Sub(%x, %w) as y
      return %y
    }""")
    folded = fold_constants(module)
    assert (kinds(folded), folded_ops(module, folded)) == (["Sub"], ("w",))
    np.testing.assert_array_equal(folded.main.constants[0].data, np.array([1, 2], "float32"))


def test_types_follow_from_folded_values():
    module = read("""g (float[2,3] x) => (float[a,b] y) <int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}> {
        s = Shape(x) n = ReduceMax<keepdims = 0>(s) r = Range(zero, n, one) f = Cast<to = 1>(r)
        t = Shape(f) u = Concat<axis = 0>(axis, t) y = Add(x, f) }""")
    folded = fold_constants(module)
    assert kinds(folded) == ["Add"]
    assert folded.main.types["y"].shape == (2, 3)


def test_lengths_that_only_a_value_states_become_known():
    module = tt.IRModule.parse("""func @main(%x: float32[2,6]) -> (float32[?,?]) opsets(onnx=17) {
        const %begin: int64[1] = [-1] const %end: int64[1] = [9] const %first: int64[1] = [2]
        %s: int64[k] = onnx.Shape(%x) as s %t: int64[m] = onnx.Slice(%s, %begin, %end) as t
        %u: int64[q] = onnx.Concat(%first, %t) {axis=0} as u
        %y: float32[?,?] = onnx.Reshape(%x, %u) as y return %y }""")
    folded = fold_constants(module).verify()
    assert (kinds(folded), folded.main.types["y"].shape) == (["Reshape"], (2, 6))


# Of tf2onnx: the rows of each segment, whose numbers are constants.
SEGMENTS = """g (float[n,5] x) => (float[m,5] y) <int64[4] segments = {0, 2, 0, 1}, int64[1] count = {4}> {
    sorted, order = TopK<axis = 0, largest = 0>(segments, count)
    values, first, place, lengths = Unique<axis = 0>(sorted)
    length = Gather(lengths, place)
    rows = Sub(order, length)
    kept = Gather(order, first)
    z = Gather(x, kept)
    w = Gather(x, rows)
    u = ReduceMax<axes = [0]>(w)
    y = Add(z, u) }"""


@pytest.mark.parametrize("target", ["numpy", "onnxruntime", "openvino"])
def test_orders_of_integers_become_constants(target):
    module = read(SEGMENTS)
    assert kinds(fold_constants(module)) == ["Gather", "Gather", "ReduceMax", "Add"]
    x = np.random.default_rng(0).standard_normal((4, 5)).astype("float32")
    rows = [-2, 0, 2, 0]  # sorted are 0, 2, 3, 1, of segments of 2, 2, 1 and 1 rows
    np.testing.assert_array_equal(tt.build(module, target)(x), x[[0, 3, 1]] + x[rows].max(0))


def test_orders_of_floats_and_unsorted_ones_stay():
    for constant, attribute in (("float[2] c = {2, 1}", ""), ("int64[2] c = {2, 1}", "<sorted = 0>")):
        left = kinds(
            fold_constants(
                read(f"g () => (float[?] y) <{constant}> {{ u = Unique{attribute}(c) y = Cast<to = 1>(u) }}")
            )
        )
        assert left == ["Unique", "Cast"]


def test_constants_are_folded_in_nested_bodies_too():
    module = read("""g (float[2,3] x, bool c) => (float[k] y) <int64[1] six = {6}> {
        y = If(c) <then_branch = t () => (float[k] p) { s = Shape(x) m = Neg(s) n = Neg(m) q = ReduceProd(n)
                                                          p = Reshape(x, q) },
                   else_branch = e () => (float[k] p) { p = Reshape(x, six) }> }""")
    folded = fold_constants(module).verify()
    assert [kinds_of(region) for _, region in folded.main.body[0].regions] == [["Reshape"], ["Reshape"]]
    x = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(run(folded, x=x, c=np.array(True))["y"], x.ravel())


def kinds_of(function):
    return [call.kind for call in function.body]


def test_what_is_random_quantized_or_returned_stays():
    module = read("""g (float[2] x) => (float[2] y, float[2] z) <int8[2] q = {1, 2}, float scale = {0.5},
        float[2] c = {1, 2}> {
        w = DequantizeLinear(q, scale) r = RandomUniformLike(c) a = Add(w, r) y = Add(x, a) z = Neg(c) }""")
    assert fold_constants(module) is module or kinds(fold_constants(module)) == kinds(module)


def test_weights_that_are_standardized_become_constants():
    """Exporters write that as a normalization of a batch, in the mode of training, which code generators have not."""
    module = read("""g (float[n,2] x) => (float[n,3] y) <float[1,2,3] w = {1, 2, 6, -1, 0, 4}, float[2] one = {1, 1},
        float[2] zero = {0, 0}, int64[2] sizes = {2, 3}> {
            s, mean, variance = BatchNormalization<training_mode = 1, epsilon = 1.0e-6>(w, one, zero, zero, one)
            m = Reshape(s, sizes) y = MatMul(x, m) }""")
    folded = fold_constants(module)
    assert kinds(folded) == ["MatMul"]
    weights = np.array([[1, 2, 6], [-1, 0, 4]], "float32")
    wanted = (weights - weights.mean(1, keepdims=True)) / weights.std(1, keepdims=True)
    np.testing.assert_allclose(run(folded, x=np.eye(2, dtype="float32"))["y"], wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2FNUZ"])
def test_constants_of_short_floats_become_those_of_float32(dtype):
    element, numbers = getattr(TensorProto, dtype), [0.5, -1.5, 3.0, 0.25, -8.0, 1.0]
    model = parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[n,2] x) => (float[n,3] y, float[n,3] z) <float[3] scale = {0.5, 2.0, 4.0}> {
            t = Transpose(w) c = Cast<to = 1>(t) y = MatMul(x, c)
            f = DequantizeLinear<axis = 0>(w, scale) u = Transpose(f) z = MatMul(x, u) }""")
    if dtype == "BFLOAT16":  # which no operator dequantizes
        model.graph.node[3].CopyFrom(helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT))
    model.graph.initializer.append(helper.make_tensor("w", element, (3, 2), numbers))
    module = tt.IRModule.from_onnx(model)
    folded = fold_constants(module)
    assert kinds(folded) == ["MatMul", "MatMul"]
    x = np.float32([[1, 2], [3, -4]])
    for name, array in run(module, x=x).items():
        np.testing.assert_array_equal(run(folded, x=x)[name], array)
    tt.decompose(module, "onnxruntime")


@pytest.mark.parametrize(("size", "left"), [("2", ["Slice", "Identity"]), ("n", ["Split"])])
def test_a_split_into_all_and_nothing_stays_where_a_run_checks_its_sizes(size, left):
    module = read(f"""g (float[{size},3] x) => (float[2,3] y, float[0,3] z) <int64[2] parts = {{2, 0}}> {{
        y, z = Split<axis = 0>(x, parts) }}""")
    assert sorted(kinds(fold_constants(module))) == sorted(left)


def test_results_that_onnx_does_not_define_stay():
    module = read("""g (int64[2] x) => (int64[2] y) <int64[2] a = {7, -7}, int64[2] zero = {0, 0},
        float[2] f = {nan, 1}> {
        b = Div(a, zero) c = Cast<to = 7>(f) d = Add(x, b) y = Add(d, c) }""")
    assert kinds(fold_constants(module)) == kinds(module)


def test_nan_and_strings_keep_their_values():
    module = read("""g (float[2] x, int64 i) => (float[2] y, string z) <float[2] f = {nan, 4}, int64[2] at = {1, 0}> {
        n = Neg(f) s = Sqrt(n) y = Add(x, s)
        words = Constant<value_strings = ["a", "b"]>() turned = Gather(words, at) z = Gather(turned, i) }""")
    folded = fold_constants(module).verify()
    assert kinds(folded) == ["Add", "Gather"]
    found = run(folded, x=np.float32([1, 1]), i=np.array(0))
    assert np.isnan(found["y"]).all()
    assert found["z"] == "b"


def test_results_larger_than_the_limit_stay(monkeypatch):
    text = """g (float[n] x) => (float[n] y) <int64[1] size = {1000}, float[1] a = {2}> {
        b = Expand(a, size) c = ReduceMax<keepdims = 1>(b) y = Add(x, c) }"""
    module = read(text)
    assert kinds(fold_constants(module)) == ["Add"]
    monkeypatch.setenv("TVMTARGET_MAX_FOLDED_BYTES", "999")
    assert fold_constants(module) == module


def test_operations_that_options_name_stay():
    module = read(HEADS.format(dims="2,8,48"))
    pair = "[a=numpy,b=numpy](host=@a)"
    first, second = (call.source for call in module.main.body if call.kind == "Gather")
    plan = tt.decompose(module, pair, where={first: "@b"})
    assert plan.site_of(first) == "b"
    assert "folded into constants" in str(plan)
    with pytest.raises(UnknownNameError, match=r"was folded into a constant.*--no-fold-constants"):
        plan.explain(second)
    # A rule by operator is honoured if only folded operations match it.
    assert tt.decompose(module, pair, where={"op:Gather": "@b"}).site_of(second) == "b"
    assert {call.kind for call in tt.decompose(module, pair, fold_constants=False).program.body} > {"Shape"}
    # A plan that is decomposed again, or read from a file, is the same.
    again = tt.decompose(plan.module, pair)
    assert again.sites() == plan.sites()


def test_a_saved_plan_keeps_what_was_folded(tmp_path):
    plan = tt.decompose(read(HEADS.format(dims="2,8,48")), "[a=numpy,b=numpy](host=@a)")
    plan.save(tmp_path / "plan.tt")
    assert tt.Plan.load(tmp_path / "plan.tt").sites() == plan.sites()


# Two branches that define one name each, the taken one captures a value and computes sizes.
BRANCH = """g (float[2,8] x) => (float[n,m] y) <bool c = {{{c}}}, int64[1] four = {{4}}> {{
    a = Neg(x)
    b = If (c) <
        then_branch = t () => (float[n,m] u) {{ s = Shape(x)
            u = Abs(a) }},
        else_branch = e () => (float[n,m] v) {{ s = Exp(x)
            v = Add(s, a) }}>
    d = If (c) <
        then_branch = t2 () => (float[n,m] w) {{ w = Identity(b) }},
        else_branch = e2 () => (float[n,m] z) {{ s = Relu(b)
            z = Tanh(s) }}>
    y = Sqrt(d) }}"""


@pytest.mark.parametrize(
    ("taken", "left"), [(1, ["Neg", "Abs", "Identity", "Sqrt"]), (0, "Neg Exp Add Relu Tanh Sqrt")]
)
def test_a_branch_whose_condition_is_known_replaces_its_if(taken, left):
    module = read(BRANCH.format(c=taken))
    folded = fold_constants(module).verify()
    assert kinds(folded) == (left if isinstance(left, list) else left.split())
    x = np.random.default_rng(0).standard_normal((2, 8)).astype("float32")
    np.testing.assert_array_equal(run(folded, x=x)["y"], run(module, x=x)["y"])


def test_a_condition_that_follows_from_sizes_is_known():
    text = """g (float[2,8] x) => (float[2,8] y) <int64 zero = {0}, int64 two = {2}> {
        s = Shape(x)
        n = Gather(s, zero)
        c = Equal(n, two)
        y = If (c) <then_branch = t () => (float[2,8] u) { u = Abs(x) },
                    else_branch = e () => (float[2,8] v) { v = Neg(x) }> }"""
    folded = fold_constants(read(text)).verify()
    assert kinds(folded) == ["Abs"]
    assert tt.decompose(folded, "llvm").sites() == {folded.main.body[0].source: ""}


def test_a_branch_in_a_branch_and_a_branch_that_returns_what_it_captures_are_inlined():
    text = """g (float[2] x, bool p) => (float[2] y, float[2] k) <bool c = {1}> {
        y = If (p) <then_branch = t () => (float[2] u) {
                u = If (c) <then_branch = t2 () => (float[2] w) { w = Abs(x) },
                            else_branch = e2 () => (float[2] q) { q = Exp(x) }> },
                    else_branch = e () => (float[2] v) { v = Neg(x) }>
        k = If (c) <then_branch = t3 () => (float[2] f) { f = Identity(x) },
                    else_branch = e3 () => (float[2] h) { h = Exp(x) }> }"""
    module = read(text)
    folded = fold_constants(module).verify()
    assert kinds(folded) == ["If", "Identity"]
    assert [call.kind for _, region in folded.main.body[0].regions for call in region.body] == ["Abs", "Neg"]
    for p in (True, False):
        given = {"x": np.array([1, -2], "float32"), "p": np.array(p)}
        found, wanted = run(folded, **given), run(module, **given)
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_a_branch_that_an_option_names_stays():
    module = read(BRANCH.format(c=1))
    name = next(call.source for call in module.main.body if call.kind == "If")
    plan = tt.decompose(module, "[a=numpy,b=numpy](host=@a)", where={name: "@b"})
    assert plan.sites()[name] == "b"


@pytest.mark.parametrize(("limit", "left"), [("{6}", ["Add"]), ("{9000000000}", ["Range", "Add"])])
def test_a_range_of_known_length_is_folded_also_if_its_operands_are_vectors_of_one_element(limit, left):
    text = f"""g (int64[n] x) => (int64[n] y) <int64 zero = {{0}}, int64[1] most = {limit}, int64 two = {{2}}> {{
        r = Range(zero, most, two)
        y = Add(x, r) }}"""
    folded = fold_constants(read(text))
    assert kinds(folded) == left
    if left == ["Add"]:
        np.testing.assert_array_equal(folded.main.constants[-1].data, [0, 2, 4])


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (
            """g (float[b,s,6] x, float[b,p,6] past) => (float[k,l] y) <int64[2] t = {0, -1}> {
            k = Concat<axis = 1>(past, x) r = Reshape(k, t) y = Relu(r) }""",
            ("b", "6*p + 6*s"),
        ),
        (
            """g (float[b,s] x, float[1,9] table) => (float[k,l] y) <int64[1] a = {0}, int64[1] i = {1}> {
            n = Shape<start = 1, end = 2>(x) p = Slice(table, a, n, i) y = Relu(p) }""",
            (1, "min(9, s)"),
        ),
        (
            """g (float[b,s] x, float[1,9] table) => (float[k,l] y) <int64[1] a = {0}, int64[1] i = {1}> {
            n = Shape<start = 1, end = 2>(x) p = Slice(table, a, n, i) y = Add(p, x) }""",
            ("b", "s"),
        ),
        (
            """g (float[b,1,t] x, float[2,1,4] w) => (float[k,l,m] y) {
            c = Conv<strides = [3], pads = [1, 0]>(x, w) y = Relu(c) }""",
            ("b", 2, "((t - 3)//3) + 1"),
        ),
        (
            """g (float["past + new",4] w, float[past,4] p, float[new,4] n) => (float[k,4] y) {
            c = Concat<axis = 0>(p, n) d = Relu(c) y = Add(d, w) }""",
            ("past + new", 4),
        ),
    ],
    ids=["inferred", "cut short", "fits", "window", "spelled"],
)
def test_dimensions_are_expressions_of_those_of_the_inputs(text, shape):
    assert fold_constants(read(text)).main.types["y"].shape == shape


def test_open_dimensions_of_a_program_of_static_inputs_follow_from_its_operands():
    text = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]>
        g (float[2,6] x) => (float[k] y) <int64[3] at = {0, 2, 5}, int64[1] flat = {-1}> {
        part = ai.onnx.ml.ArrayFeatureExtractor(x, at)
        r = Reshape(part, flat)
        y = Relu(r) }"""
    module = tt.IRModule.from_onnx(parser.parse_model(text))
    assert str(fold_constants(module).main.body[-1].outputs[0].type) == "float32[6]"


@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_constants_become_dense(places):
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }""")
    values, indices = (numpy_helper.from_array(one) for one in (np.array([3, 4], "float32"), np.array(places)))
    sparse = SparseTensorProto(dims=[2, 3], values=values, indices=indices)
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    (constant,) = fold_constants(tt.IRModule.from_onnx(proto)).main.constants
    np.testing.assert_array_equal(constant.data, [[0, 3, 0], [0, 0, 4]])


@pytest.mark.parametrize("kind", ["ConvInteger", "QLinearConv"])
def test_sizes_of_quantized_convolutions_are_expressions(kind):
    scales = "s, z, w, s, z, s, z" if kind == "QLinearConv" else "w, z, z"
    text = f"""g (uint8[n,2,k,k] x) => ({"uint8" if kind == "QLinearConv" else "int32"}[a,b,c,d] y)
        <uint8[3,2,3,3] w = {{{", ".join(["1"] * 54)}}}, float s = {{0.5}}, uint8 z = {{3}}> {{
        y = {kind}<pads = [1, 1, 1, 1], strides = [2, 2]>(x, {scales}) }}"""
    assert fold_constants(read(text)).main.types["y"].shape == ("n", 3, "((k - 1)//2) + 1", "((k - 1)//2) + 1")


def test_sizes_of_a_fused_convolution_are_those_of_a_convolution():
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[n,2,k,k] x) => (float[a,b,c,d] y)
        <float[3,2,3,3] w = {{{", ".join(["1"] * 54)}}}, float[3] z = {{3, 2, 1}}> {{
        y = com.microsoft.FusedConv<activation = "Relu", pads = [1, 1, 1, 1], strides = [2, 2]>(x, w, z) }}"""
    module = tt.IRModule.from_onnx(parser.parse_model(text))
    assert fold_constants(module).main.types["y"].shape == ("n", 3, "((k - 1)//2) + 1", "((k - 1)//2) + 1")


def test_types_that_a_module_leaves_out_are_inferred():
    text = """func @main(%x: float32[n,4]) opsets(com.own=1, onnx=17) {
      %a = onnx.Relu(%x) as a
      %h = @halves(%a)
      %o = onnx.com.own::Own(%h) as own
      return %h, %o }
    func @halves(%z: float32[n,4]) opsets(onnx=17) { %c = onnx.Cast(%z) {to=10} as cast return %c }"""
    module = tt.IRModule.parse(text)
    folded = fold_constants(module)
    assert [str(folded["main"].types["a"]), str(folded["halves"].types["c"])] == ["float32[n,4]", "float16[n,4]"]
    assert folded["main"].types["o"] is None  # what ONNX does not know
    text = "func @main(%x: float32[n,4]) opsets(onnx=17) { %a = onnx.Relu(%x) %y = onnx.Neg(%a) return %y }"
    plan = tt.decompose(tt.IRModule.parse(text), "llvm")
    assert [str(call.outputs[0].type) for call in plan.program.body] == ["float32[n,4]"] * 2


def test_the_mask_of_a_dropout_has_the_shape_of_its_data():
    module = read("g (float[2,4] x) => (float[2,4] y) { y, mask = Dropout<ratio = 0.5>(x) }", opset=9)
    assert str(fold_constants(module).main.types["mask"]) == "float32[2,4]"
    assert tt.decompose(module, "[core=c](host=@core,executor=aot,runtime=crt)").subgraphs
