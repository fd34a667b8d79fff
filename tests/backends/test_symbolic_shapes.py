"""Sizes of symbolic dimensions that llvm reads when a program runs."""

import shutil
import warnings
from typing import Any

import numpy as np
import pytest
from onnx import parser

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, RunError


def model(text):
    return tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}'))


@pytest.mark.parametrize(
    "text",
    [
        "g (float[n,3,m] x) => (int64[3] y, int64 z) { y = Shape(x) z = Size(x) }",
        "g (float[n,3,m] x) => (int64[2] y, int64[1] z) { y = Shape<start=1>(x) z = Shape<start=-3, end=-2>(x) }",
        "g (float[n,3,m] x) => (int64[0] y) { y = Shape<start=2, end=1>(x) }",
        """g (float[n,3,m] x) => (int64 y, bool z) <int64 last = {2}, int64 four = {4}> {
            s = Shape(x) y = Gather(s, last) z = Equal(y, four) }""",
        """g (float[n,3,m] x) => (float[n,3,m] z) {
            s = Shape(x) a = Size(x) b = Add(s, a) c = Cast<to=1>(b) d = ReduceSum<keepdims=0>(c) z = Add(x, d) }""",
    ],
    ids=["whole", "parts", "none", "condition", "number"],
)
def test_llvm_computes_with_sizes_that_are_not_known_before(text):
    module = model(text)
    program, expected = tt.build(module, "llvm"), tt.build(module, "numpy")
    for shape in ((2, 3, 4), (1, 3, 1)):
        given = {"x": np.ones(shape, "float32")}
        for name, array in expected.run(given).items():
            np.testing.assert_array_equal(program.run(given)[name], array)
            assert program.run(given)[name].dtype == array.dtype


@pytest.mark.parametrize("shape", ["n,3", "0,n", "0,3"])
def test_an_empty_tensor_has_a_shape(shape):
    module = model(f"g (float[{shape}] x) => (int64[2] y, int64 z) {{ y = Shape(x) z = Size(x) }}")
    results = tt.build(module, "llvm").run({"x": np.zeros((0, 3), "float32")})
    assert (results["y"].tolist(), int(results["z"])) == ([0, 3], 0)


def test_a_gpu_leaves_sizes_that_are_not_known_before_to_its_host():
    module = model("g (float[n,3] x) => (int64[2] y, float[n,3] z) { y = Shape(x) z = Relu(x) }")
    with pytest.raises(InfeasibleError, match="SHAPE_DYNAMIC: its code for Shape of symbolic shapes runs on the host"):
        tt.decompose(module, "cuda(arch=sm_80,host=llvm)", where={"op:Shape": "cuda"})


COMPUTED: dict[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "heads": (
        """g (float[b,s,12] x) => (float[b,s,h,d] y) <int64 zero = {0}, int64 one = {1}, int64[1] axis = {0},
            int64[1] heads = {3}, int64[1] depth = {4}> {
            z = Shape(x) b = Gather(z, zero) s = Gather(z, one) m = Mul(b, s) um = Unsqueeze(m, axis)
            flat = Concat<axis = 0>(um, heads, depth) r = Reshape(x, flat)
            ub = Unsqueeze(b, axis) us = Unsqueeze(s, axis) whole = Concat<axis = 0>(ub, us, heads, depth)
            y = Reshape(r, whole) }""",
        ({"x": (1, 1, 12)}, {"x": (7, 2, 12)}, {"x": (0, 2, 12)}),
    ),
    "positions": (
        """g (float[b,s,4] x, float[b,p,4] past) => (float[b,t,4] y) <int64 zero = {0},
            int64 one = {1}, int64[1] axis = {0}> {
            k = Concat<axis = 1>(past, x) z = Shape(k) n = Gather(z, one) r = Range(zero, n, one) f = Cast<to = 1>(r)
            last = Unsqueeze(one, axis) u = Unsqueeze(f, last) y = Add(k, u) }""",
        ({"x": (2, 3, 4), "past": (2, 5, 4)}, {"x": (1, 1, 4), "past": (1, 0, 4)}),
    ),
    "mask": (
        """g (float[b,s] x) => (float[b,1,s,s] y) <int64 zero = {0}, int64 one = {1}, int64[1] axis = {0},
            int64[1] three = {1}, int64[2] places = {1, 2}> {
            z = Shape(x) b = Gather(z, zero) n = Gather(z, one) ub = Unsqueeze(b, axis) un = Unsqueeze(n, axis)
            t = Concat<axis = 0>(ub, three, un, un) e = Unsqueeze(x, places) w = Expand(e, t)
            ones = ConstantOfShape<value = float[1] {2}>(t) y = Mul(w, ones) }""",
        ({"x": (2, 3)}, {"x": (1, 1)}, {"x": (0, 7)}),
    ),
    "table": (
        """g (float[b,s,2] x) => (float[b,s,2] y) <float[1,4,2] t = {1, 2, 3, 4, 5, 6, 7, 8}, int64 one = {1},
            int64[1] axis = {0}, int64[1] start = {0}, int64[1] place = {1}> {
            z = Shape(x) n = Gather(z, one) end = Unsqueeze(n, axis) p = Slice(t, start, end, place) y = Add(x, p) }""",
        ({"x": (2, 3, 2)}, {"x": (1, 4, 2)}),
    ),
    "blocks": (
        """g (float[n,c,h,w] x) => (float[n,d,k,l] y) <int64[1] two = {2}, int64[1] four = {4}> {
            n = Shape<start = 0, end = 1>(x) c = Shape<start = 1, end = 2>(x)
            h = Shape<start = 2, end = 3>(x) w = Shape<start = 3>(x) k = Div(h, two) l = Div(w, two)
            split = Concat<axis = 0>(n, c, k, two, l, two) b = Reshape(x, split)
            t = Transpose<perm = [0, 3, 5, 1, 2, 4]>(b) d = Mul(c, four)
            joined = Concat<axis = 0>(n, d, k, l) y = Reshape(t, joined) }""",
        ({"x": (1, 3, 4, 6)}, {"x": (2, 1, 2, 2)}, {"x": (0, 1, 2, 2)}),
    ),
    "run-time shape": (
        "g (float[b,s] x, int64[3] t) => (float[k,l,m] y) { r = Reshape(x, t) y = Relu(r) }",
        ({"x": (2, 6), "t": [0, -1, 3]}, {"x": (2, 6), "t": [3, 2, 2]}),
    ),
    "run-time slice": (
        """g (float[b,s] x, int64[1] i, int64[1] j) => (float[b,k] y) <int64[1] axis = {1}, int64[1] step = {2}> {
            r = Slice(x, i, j, axis, step) y = Relu(r) }""",
        ({"x": (2, 6), "i": [1], "j": [-1]}, {"x": (2, 6), "i": [3], "j": [2]}, {"x": (2, 6), "i": [-9], "j": [99]}),
    ),
    "tile": (
        """g (float[b,3] x, float[k,3] z) => (float[m,3] y) <int64[1] one = {1}> {
            s = Shape<start = 0, end = 1>(z) r = Concat<axis = 0>(s, one) t = Tile(x, r) y = Relu(t) }""",
        ({"x": (2, 3), "z": (4, 3)}, {"x": (1, 3), "z": (1, 3)}),
    ),
    "windows": (
        """g (float[n,1,h,w] x, float[2,1,3,3] k) => (float[n,2,a] y) <int64[3] t = {0, 2, -1}> {
            c = Conv<strides = [2, 2]>(x, k) r = Reshape(c, t) q = Transpose<perm = [0, 2, 1]>(r) m = MatMul(r, q)
            y = MatMul(m, r) }""",
        ({"x": (1, 1, 3, 3), "k": (2, 1, 3, 3)}, {"x": (2, 1, 8, 13), "k": (2, 1, 3, 3)}),
    ),
}


@pytest.mark.parametrize(
    "name", [name if name == "table" else pytest.param(name, marks=pytest.mark.slow) for name in COMPUTED]
)
def test_llvm_makes_shapes_that_are_computed_at_run_time(name):
    text, cases = COMPUTED[name]
    module = model(text)
    program, expected = tt.build(module, "llvm"), tt.build(module, "numpy")
    assert len(program.plan.subgraphs) == 1
    random = np.random.default_rng(0)
    for case in cases:
        given = {
            key: np.array(one) if isinstance(one, list) else random.standard_normal(one).astype("float32")
            for key, one in case.items()
        }
        for key, array in expected.run(given).items():
            np.testing.assert_allclose(program.run(given)[key], array, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("table", {"x": np.ones((2, 5, 2), "float32")}),
        ("windows", {"x": np.ones((2, 1, 2, 9), "float32"), "k": np.ones((2, 1, 3, 3), "float32")}),
    ],
)
def test_sizes_that_do_not_fit_are_refused_when_a_program_runs(name, given):
    program = tt.build(model(COMPUTED[name][0]), "llvm")
    with pytest.raises(RunError, match="sizes do not fit: a value has"):
        program.run(given)


@pytest.mark.parametrize("target", ["c", "cuda(arch=sm_80,host=llvm)"])
def test_computed_shapes_are_refused_where_memory_is_planned_or_on_a_gpu(target):
    with pytest.raises(InfeasibleError, match="'t'"):
        tt.decompose(model("g (float[2,6] x, int64[2] t) => (float[3,4] y) { y = Reshape(x, t) }"), target)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_c_reshapes_as_pytorch_states_it_unless_a_dimension_is_empty():
    text = "g (float[2,6] x) => (float[3,4] y) <int64[2] shape = {3, 4}> { y = Reshape<allowzero = 1>(x, shape) }"
    x = np.arange(12, dtype="float32").reshape(2, 6)
    np.testing.assert_array_equal(tt.build(model(text), "c")(x), x.reshape(3, 4))
    with pytest.raises(InfeasibleError, match="does not reshape empty tensors by 'shape'; omit allowzero"):
        tt.decompose(model(text.replace("2,6", "2,0").replace("3,4", "0,4").replace("3, 4", "0, 4")), "c")


@pytest.mark.slow
def test_a_cache_may_be_empty_if_sums_read_it_with_more():
    module = model("""g (float[b,s,4] x, float[b,p,4] past) => (float[b,s,t] y, float[b,t,4] k) {
        k = Concat<axis = 1>(past, x) q = Transpose<perm = [0, 2, 1]>(k) y = MatMul(x, q) }""")
    program, expected = tt.build(module, "llvm"), tt.build(module, "numpy")
    for steps, before in ((3, 0), (0, 1), (0, 0)):
        given = {"x": np.ones((2, steps, 4), "float32"), "past": np.ones((2, before, 4), "float32")}
        for name, array in expected.run(given).items():
            np.testing.assert_allclose(program.run(given)[name], array)


def test_all_parts_of_a_sum_may_be_empty():
    module = model("""g (float[s,4] x, float[p,4] past) => (float[4] y, float[t,4] k) {
        axis = Constant<value_ints = [0]>() k = Concat<axis = 0>(past, x) y = ReduceSum<keepdims = 0>(k, axis) }""")
    program, expected = tt.build(module, "llvm"), tt.build(module, "numpy")
    parts = {count: np.ones((count, 4), "float32") for count in (0, 2)}
    for one, other in ((2, 0), (0, 0)):
        np.testing.assert_array_equal(program(parts[one], parts[other])[0], expected(parts[one], parts[other])[0])


def test_operands_of_concat_are_equal_where_that_is_known_when_a_program_runs():
    module = model("""g (float[n,2,h] x, float[m,2,k] y, float[3,2,h] z) => (float[a,b,h] r) {
        p = Concat<axis = 1>(x, y) q = Relu(p) r = Concat<axis = -2>(z, q, x) }""")
    program = tt.build(module, "llvm")
    x = np.random.default_rng(0).random((3, 2, 5), "float32")
    np.testing.assert_array_equal(program(x, x, x), np.concatenate([x] * 4, 1))
    for wrong in ((x, x[:, :, :4], x), (x[:2], x[:2], x), (x, x[:2], x)):
        with pytest.raises(RunError, match=r"a value has [24] elements along axis [02], .* needs [35]$"):
            program(*wrong)
    with pytest.raises(InfeasibleError, match="not known whether these fit"):
        tt.decompose(module, "cuda(arch=sm_80,host=llvm)")


def test_what_was_halved_and_doubled_is_joined_with_what_was_before():
    module = model("""g (float[n,1,h] x) => (float[n,2,h] y) <float[1,1,2] w = {1, 1}> {
        half = MaxPool<kernel_shape = [2], strides = [2]>(x) d = ConvTranspose<strides = [2]>(half, w)
        y = Concat<axis = 1>(x, d) }""")
    program, expected = tt.build(module, "llvm"), tt.build(module, "numpy")
    for size in (6, 2):
        x = np.random.default_rng(size).random((2, 1, size), "float32")
        np.testing.assert_array_equal(program(x), expected(x))
    with pytest.raises(RunError, match="a value has 4 elements along axis 2, and what it is combined with needs 5"):
        program(np.ones((2, 1, 5), "float32"))


@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
def test_any_number_of_regions_is_aligned(mode):
    text = f"""g (float[1,2,9,9] x, float[n,k] r, int64[m] i) => (float[n,2,2,2] y) {{
        y = RoiAlign<output_height=2, output_width=2, sampling_ratio=2, spatial_scale=0.5,
            coordinate_transformation_mode="{mode}">(x, r, i) }}"""
    program, expected = (tt.build(model(text), target) for target in ("llvm", "numpy"))
    random = np.random.default_rng(5)
    x, regions = random.random((1, 2, 9, 9), np.float32), np.float32([[0, 0, 18, 9], [4, 3, 9, 16], [2, 2, 30, 30]])
    for count in (3, 0):
        given = {"x": x, "r": regions[:count], "i": np.zeros(count, "int64")}
        np.testing.assert_allclose(program.run(given)["y"], expected.run(given)["y"], rtol=1e-5, atol=1e-6)
    with pytest.raises(RunError, match="3 elements along axis 0"):
        program.run({"x": x, "r": regions[:2], "i": np.zeros(3, "int64")})
    with pytest.raises(RunError, match="out of bounds for 1 elements"):
        program.run({"x": x, "r": regions[:2], "i": np.arange(2)})
    with pytest.raises(RunError, match="3 elements along axis 1"):
        program.run({"x": x, "r": regions[:2, :3], "i": np.zeros(2, "int64")})
    for given in (regions[:, :3], np.ones((3, 5), "float32")):
        with pytest.raises(RunError, match="are not 4 numbers for each of 3 batches"):
            expected.run({"x": x, "r": given, "i": np.zeros(3, "int64")})
    with pytest.raises(RunError, match="batch -1 of a region is out of bounds for 1 elements"):
        expected.run({"x": x, "r": regions[:1], "i": np.int64([-1])})


def test_a_tensor_is_split_into_parts_of_computed_sizes():
    program = tt.build(
        model("""g (float[2,n] x, int64[3] s) => (float[2,i] p, float[2,j] q, float[2,k] r) {
        p, b, c = Split<axis=1>(x, s) q = Relu(b) r = Neg(c) }"""),
        "llvm",
    )
    x = np.arange(12, dtype="float32").reshape(2, 6)
    for sizes in ([1, 2, 3], [6, 0, 0], [0, 0, 6]):
        found, (p, q, r) = program.run({"x": x, "s": np.array(sizes)}), np.split(x, np.cumsum(sizes)[:2], 1)
        for name, array in {"p": p, "q": q, "r": -r}.items():
            np.testing.assert_array_equal(found[name], array)
    for sizes in ([1, 2, 4], [1, -1, 6]):
        with pytest.raises(RunError, match="a value has 6 elements along axis 1, and what it is combined with needs 7"):
            program.run({"x": x, "s": np.array(sizes)})


@pytest.mark.parametrize(("version", "code"), [(17, "x, s"), (11, "x")])
def test_parts_may_be_empty(version, code):
    split = "split = [2, 0, 3], " if code == "x" else ""
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {version}]>
        g (float[5,2] x) => (float[2,2] p, float[0,2] q, float[3,2] r) <int64[3] s = {{2, 0, 3}}> {{
        p, b, r = Split<{split}axis = 0>({code}) q = Neg(b) }}"""
    )
    program = tt.build(proto, "llvm")
    x = np.arange(10, dtype="float32").reshape(5, 2)
    for found, expected in zip(program.run({"x": x}).values(), (x[:2], x[:0], x[2:]), strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)


QUANTIZED_SUM = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (uint8[b,2,s,t] x, uint8[b,1,s,u] z) => (uint8[b,2,s,v] y) <float k = {0.1}, uint8 o = {7}> {
    y = com.microsoft.QLinearAdd(x, k, o, z, k, o, k, o) }"""


def test_quantized_operands_that_only_a_run_can_tell_to_fit_are_combined():
    program = tt.build(tt.IRModule.from_onnx(parser.parse_model(QUANTIZED_SUM)), "llvm")
    x, z = np.full((2, 2, 3, 5), 9, np.uint8), np.arange(30, dtype=np.uint8).reshape(2, 1, 3, 5)
    np.testing.assert_array_equal(program.run({"x": x, "z": z})["y"], np.broadcast_to(z + 2, x.shape))
    assert program.run({"x": x[..., :1], "z": z})["y"].shape == x.shape
    with pytest.raises(RunError, match="a value has 4 elements along axis 3, and what it is combined with needs 5"):
        program.run({"x": x[..., :4], "z": z})


def test_as_many_channels_as_parameters_are_normalized():
    module = model("""g (float[b,c,h] x) => (float[b,c,h] y) <float[3] k = {1, 2, 3}> {
        y = BatchNormalization(x, k, k, k, k) }""")
    program, x = tt.build(module, "llvm"), np.random.default_rng(5).random((2, 3, 4), np.float32)
    expected = tt.build(module, "numpy").run({"x": x})["y"]
    np.testing.assert_allclose(program.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(RunError, match="a value has 2 elements along axis 1"):
        program.run({"x": x[:, :2]})


@pytest.mark.parametrize("dims", ["b,4,8", "b,s,8"])
def test_rows_that_a_reshape_counts_are_normalized(dims):
    """The number of rows is an expression, in which weights that are computed for each column are repeated."""
    module = model(f"""g (float[{dims}] x) => (float[n,8] y) <int64[2] k = {{-1, 8}},
        float[8] scale = {{1, 2, 3, 4, 5, 6, 7, 8}}, float[8] bias = {{0, 1, 0, 1, 0, 1, 0, 1}}> {{
        z = Reshape(x, k) y = BatchNormalization(z, scale, bias, bias, scale) }}""")
    given = {"x": np.random.default_rng(5).random((3, 4, 8), np.float32)}
    expected = tt.build(module, "numpy").run(given)["y"]
    np.testing.assert_allclose(tt.build(module, "llvm").run(given)["y"], expected, rtol=1e-5, atol=1e-6)


def test_numbers_up_to_several_sizes_are_fused_with_what_reads_them():
    module = model("""g (bool[b,s] a, float[n] p, float[k] q) => (bool[n,k] z) <
        int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}, int64[1] first = {0}, int64[1] second = {1}> {
        sp = Shape(p) np = Squeeze(sp) sq = Shape(q) nq = Squeeze(sq) r = Range(zero, np, one) t = Range(zero, nq, one)
        u = Unsqueeze(r, second) v = Unsqueeze(t, first) m = Max(u, v) sh = Shape(m) e = Expand(u, sh) f = Expand(v, sh)
        e1 = Unsqueeze(e, last) f1 = Unsqueeze(f, last) c = Concat<axis=-1>(e1, f1) z = GatherND(a, c) }""")
    given = {"a": np.eye(3, 4, dtype=bool), "p": np.ones(3, "float32"), "q": np.ones(4, "float32")}
    np.testing.assert_array_equal(tt.build(module, "llvm").run(given)["z"], given["a"])


def test_sizes_of_a_value_that_is_computed_are_fused_with_no_other_operation():
    module = model("""g (float[n,m] p, float[k,j] q) => (float[l] y) <
        int64 zero = {0}, int64 one = {1}, int64[1] second = {1}> {
        s = Shape(p) total = ReduceSum<keepdims = 0>(s) r = Range(zero, total, one) u = Unsqueeze(r, second)
        c = Concat<axis = 1>(u, u) d = Relu(q) y = GatherND(d, c) }""")
    q = np.arange(49, dtype="float32").reshape(7, 7)
    results = tt.build(module, "llvm").run({"p": np.ones((2, 3), "float32"), "q": q})
    np.testing.assert_array_equal(results["y"], np.diag(q)[:5])


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [(-1, -(2**63) + 1, -1), (-1, -100, -2), (7, 1, -3), (100, -9, -1), (8, -10, -4), (-1, 2**63 - 1, -1), (2, 5, -1)],
)
def test_slices_run_backwards(start, end, step):
    """PyTorch exports `flip` so: one element too many was read, from behind the tensor."""
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[b,9] x, float[2,n] z) => (float[p,q] y, float[2,m] w)
        <int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, int64[1] a = {{1}}, int64[1] d = {{{step}}}>
        {{ u = Slice(x, s, e, a, d) y = Neg(u) v = Slice(z, s, e, a, d) w = Neg(v) }}""")
    ort = pytest.importorskip("onnxruntime")
    session, program = ort.InferenceSession(proto.SerializeToString()), tt.build(tt.IRModule.from_onnx(proto), "llvm")
    for size in (9, 1, 0, 3):
        given = {"x": np.ones((3, 9), "float32").cumsum(1), "z": np.ones((2, size), "float32").cumsum(1)}
        for found, expected in zip(program.run(given).values(), session.run(None, given), strict=True):
            np.testing.assert_array_equal(found, expected, strict=True)


def test_a_dimension_that_is_reversed_keeps_its_name():
    module = model("""g (float[b,n] x) => (float[b,n] y)
        <int64[1] last = {-1}, int64[1] end = {-9223372036854775807}, int64[1] axis = {1}> {
        r = Slice(x, last, end, axis, last) y = Add(x, r) }""")
    assert tt.build(module, "llvm").run({"x": np.float32([[1, 2, 4]])})["y"].tolist() == [[5, 4, 5]]


@pytest.mark.parametrize("leaf", ["llvm", "c"])
def test_a_part_may_have_no_elements(leaf):
    module = model("""g (float[2,3] x) => (float[2,0] y, float[2,3] z) <int64[2] sizes = {0, 3}> {
        y, w = Split<axis = 1>(x, sizes) z = Neg(w) }""")
    found = tt.build(module, leaf).run({"x": np.ones((2, 3), "float32")})
    assert (found["y"].shape, found["z"].tolist()) == ((2, 0), [[-1, -1, -1]] * 2)


def test_what_reads_a_range_of_computed_length_runs_after_that_is_known():
    module = model("""g (float p, float q) => (float[n] y) <float zero = {0}, float one = {1}, float tau = {6.28}> {
        s = Sub(q, one) d = Div(tau, s) r = Range(zero, p, one) m = Mul(r, d) y = Cos(m) }""")
    results = tt.build(module, "llvm").run({"p": np.float32(5), "q": np.float32(4)})
    np.testing.assert_allclose(results["y"], np.cos(np.arange(5) * 6.28 / 3), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("executor", ["graph", "vm"])
@pytest.mark.parametrize(
    "text",
    [
        """(float[n,2] x) => (float[a,2] y, float[b,2] z) <int64[2] s = {2, 1}> {
            u, v = Split<axis = 0>(x, s) y = Min(v, u) z = Ceil(v) }""",
        """(float[n,m] x) => (float[5,k] y, float[1,k] z) <int64[4] p = {1, 2, 2, 2}, int64[2] s = {5, 1}> {
            u = Pad<mode = "edge">(x, p) y, z = Split<axis = 0>(u, s) }""",
    ],
)
def test_operations_that_tvm_cannot_compile_fused_run_one_by_one(text, executor):
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g {text}')
    module, given = tt.IRModule.from_onnx(proto), {"x": np.arange(6, dtype="float32").reshape(3, 2)}
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        found = tt.build(module, "llvm", executor=executor).run(given)
    assert not issued or "they run one by one" in str(issued[-1].message)
    for name, expected in tt.build(module, "numpy").run(given).items():
        np.testing.assert_array_equal(found[name], expected)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (2, 0, 3)])
def test_constants_without_elements_are_allocated(shape):
    dims = ",".join(map(str, shape))
    module = model(
        f"""g (float[1] x) => (float[{dims}] y, float[{dims}] z) <float[{dims}] none = {{}}> {{
            y = Add(x, none) z = Identity(none) }}"""
    )
    found = tt.build(tt.decompose(module, "llvm", fold_constants=False)).run({"x": np.ones(1, "float32")})
    assert [one.shape for one in found.values()] == [shape, shape]


def test_an_expand_that_does_not_fit_is_an_error():
    executable = tt.build(model("g (float[n,3] x, int64[2] t) => (float[p,q] y) { y = Expand(x, t) }"), "llvm")
    inputs = {"x": np.ones((1, 3), "float32"), "t": np.array([2, 1])}
    assert executable.run(inputs)["y"].shape == (2, 3)
    with pytest.raises(RunError, match="2 elements along axis 0, and what it is combined with needs 3"):
        executable.run({**inputs, "t": np.array([2, 2])})
    known = model("g (float[n,3] x) => (float[p,q] y) <int64[2] t = {2, 2}> { y = Expand(x, t) }")
    with pytest.raises(InfeasibleError, match="it expands no dimension of 3 to 2"):
        tt.decompose(known, "llvm")


@pytest.mark.parametrize("leaf", ["llvm", "numpy"])
@pytest.mark.parametrize("kind", ["LayerNormalization", "RMSNormalization"])
def test_what_is_normalized_has_the_dimensions_of_the_scale(kind, leaf):
    text = f"g (float[2,n] x) => (float[2,n] y) <float[4] s = {{1, 2, 3, 4}}> {{ y = {kind}(x, s) }}"
    module = tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]>\n{text}'))
    executable = tt.build(module, leaf)
    x = np.arange(8, dtype="float32").reshape(2, 4)
    np.testing.assert_allclose(executable(x), tt.build(module, "onnxruntime")(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(RunError, match="fit"):
        executable(x[:, :1])


def test_what_has_no_elements_is_broadcast_and_added_up():
    module = model("""g (float[6,1,5] x, float[n,2,m] z) => (float[6,0,5] y, float[n,0,m] c)
        <int64[1] start = {1}, int64[1] end = {9}, int64[1] axes = {1}, int64[2] parts = {0, 2}, int64 axis = {1}> {
            none = Slice(x, start, end, axes) y = Min(none, x)
            first, second = Split<axis = 1>(z, parts) c = CumSum(first, axis) }""")
    results = tt.build(module, "llvm").run({"x": np.zeros((6, 1, 5), "float32"), "z": np.zeros((3, 2, 4), "float32")})
    assert [results[name].shape for name in "yc"] == [(6, 0, 5), (3, 0, 4)]


@pytest.mark.parametrize(
    ("shape", "sizes", "allowzero"),
    [
        ("0,3", "3, 0", 1),
        ("0,3", "0, 0, 5", 0),
        *(("n,3", *one) for one in (("3, 0", 1), ("3, -1", 0), ("0, 0, 5", 0))),
    ],
)
def test_an_empty_tensor_is_reshaped(shape, sizes, allowzero):
    count = len(sizes.split(","))
    text = f"<int64[{count}] s = {{{sizes}}}> {{ y = Reshape<allowzero={allowzero}>(x, s) }}"
    module = model(f"g (float[{shape}] x) => (float[{','.join('pqr'[:count])}] y) {text}")
    x = np.zeros((0, 3), "float32")
    assert tt.build(module, "llvm")(x).shape == tt.build(module, "onnxruntime")(x).shape


def test_a_size_of_0_that_copies_another_size_is_refused_when_a_program_runs():
    module = model("""g (float[a,4,b,c] x) => (float[d,e,f,g] z) {
        s = Shape(x) t = Transpose<perm = [0, 3, 2, 1]>(x) y = Reshape(t, s) z = Neg(y) }""")
    inferred = model("""g (float[a,4,b,c] x) => (float[b,d] z) <int64[1] rest = {-1}> {
        b = Shape<start = 2, end = 3>(x) s = Concat<axis = 0>(b, rest) y = Reshape(x, s) z = Neg(y) }""")
    program, of_inferred = tt.build(module, "llvm"), tt.build(inferred, "llvm")
    for shape in ((2, 4, 3, 5), (2, 4, 0, 1)):
        assert program(np.zeros(shape, "float32")).shape == shape
    assert of_inferred(np.zeros((2, 4, 3, 5), "float32")).shape == (3, 40)
    assert of_inferred(np.zeros((2, 4, 3, 0), "float32")).shape == (3, 0)
    with pytest.raises(RunError, match="sizes do not fit: a value has 4 elements"):  # ONNX: (2, 4, 0, 4)
        program(np.zeros((2, 4, 0, 0), "float32"))
    with pytest.raises(RunError, match="sizes do not fit: a value has 2 elements"):  # ONNX: (2, 0)
        of_inferred(np.zeros((2, 4, 0, 5), "float32"))


@pytest.mark.parametrize(
    ("signature", "shapes"),
    [
        ("float x, float s) => (float y", [()]),
        ("float[n,3,h,w] x, float[3,1,1] s) => (float[n,3,h,w] y", [(2, 3, 4, 5), (1, 3, 1, 1), (1, 3, 0, 2)]),
        ("int64[n,k] x, int64[1] s) => (int64[n,k] y", [(2, 3), (0, 3)]),
    ],
    ids=["scalar", "images", "integers"],
)
def test_slopes_rectify_scalars_integers_and_images_of_any_size(signature, shapes):
    module = tt.IRModule.from_onnx(
        parser.parse_model(f'<ir_version: 8, opset_import: ["": 13]> g ({signature}) {{ y = PRelu(x, s) }}')
    )
    program, random = tt.build(module, "llvm"), np.random.default_rng(0)
    slope = module.main.params[1].type
    for shape in shapes:
        x, s = (np.array(random.normal(scale=4, size=one), slope.dtype) for one in (shape, slope.shape))
        np.testing.assert_array_equal(program.run({"x": x, "s": s})["y"], np.where(x < 0, x * s, x), strict=True)


def test_the_maximum_of_all_is_read_under_two_names():
    """A check that it fits, which is known beforehand, gives it another name."""
    module = model("""g (float[n,3,d] x) => (float[1,1,2] y) <float[2] s = {2, 3}> {
        m = ReduceMax<axes = [0, 1]>(x) t = ReduceMean<axes = [-1]>(m) u = Sub(m, t) v = Mul(u, s) y = Mul(v, m) }""")
    x = np.array([[[1, 5], [4, 2], [3, 3]]], "float32")
    assert tt.build(module, "llvm").run({"x": x})["y"].tolist() == [[[-4, 7.5]]]


def test_a_symbolic_dimension_is_split_into_a_number_of_parts():
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        g (float[n,2] x) => (float[a,2] y, float[b,2] z, float[c,2] w) {
            u, y, v = Split<axis = 0, num_outputs = 3>(x) z = Neg(u) w = Neg(v) }""")
    program = tt.build(tt.IRModule.from_onnx(proto), "llvm")
    for size, last in ((9, 3), (7, 1), (3, 1)):
        x = np.arange(2 * size, dtype="float32").reshape(size, 2)
        found, most = program.run({"x": x}), -(-size // 3)
        for part, expected in zip(found.values(), (x[most:-last], -x[:most], -x[-last:]), strict=True):
            np.testing.assert_array_equal(part, expected, strict=True)
    with pytest.raises(RunError, match="sizes do not fit"):
        program.run({"x": np.zeros((1, 2), "float32")})


def test_the_first_of_equal_maxima_along_a_symbolic_dimension_is_the_hard_one():
    module = model("g (float[n,m] x) => (float[n,m] y, float[n,m] z) { y = Hardmax(x) z = Hardmax<axis = 0>(x) }")
    found = tt.build(module, "llvm").run({"x": np.float32([[1, 3, 3], [2, 0, 3]])})
    assert found["y"].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert found["z"].tolist() == [[0, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_images_of_symbolic_sizes_are_padded_automatically(mode):
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 13]>
        g (float[n,1,h,w] x, float[1,1,3,1] k) => (float[n,1,h,w] y, float[n,1,p,q] z) {{
            m = MaxPool<auto_pad = "{mode}", kernel_shape = [2, 3]>(x) y = Add(m, x)
            z = Conv<auto_pad = "{mode}", strides = [2, 2], dilations = [2, 1]>(x, k) }}""")
    program, expected = tt.build(tt.IRModule.from_onnx(proto), "llvm"), tt.build(proto, "numpy")
    random = np.random.default_rng(0)
    for shape in ((1, 1, 5, 6), (2, 1, 1, 1), (1, 1, 8, 3)):
        given = {"x": -random.random(shape, "float32"), "k": random.random((1, 1, 3, 1), "float32")}
        for found, wanted in zip(program.run(given).values(), expected.run(given).values(), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, strict=True)
