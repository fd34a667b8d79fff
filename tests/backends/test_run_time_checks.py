"""What only a run on llvm or openvino can tell: sizes that fit or are broadcast, and divisors that are not 0."""

import numpy as np
import pytest
from onnx import parser

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, RunError

WEIGHTS = "float[1,8,3] w = {" + ", ".join(f"{one / 24}" for one in range(24)) + "}, "
WEIGHTS += "float[1,8,2] r = {" + ", ".join(f"{one / 16}" for one in range(16)) + "}"

# A program, shapes of its inputs that fit, and others that do not.
SIZES: dict[str, tuple[str, list[list[tuple[int, ...]]], list[list[tuple[int, ...]]]]] = {
    "sum": (
        "g (float[n,4] a, float[m,4] b) => (float[k,4] y) { c = Add(a, b) y = Neg(c) }",
        [[(3, 4), (3, 4)], [(1, 4), (3, 4)], [(3, 4), (1, 4)], [(0, 4), (1, 4)], [(1, 4), (0, 4)], [(1, 4), (1, 4)]],
        [[(2, 4), (3, 4)]],
    ),
    "remainder": (
        "g (float[n,4] a, float[m,4] b) => (float[k,4] y) { c = Mod<fmod = 1>(a, b) y = Neg(c) }",
        [[(3, 4), (3, 4)], [(1, 4), (3, 4)], [(3, 4), (1, 4)]],
        [[(2, 4), (3, 4)]],
    ),
    "sum-with-a-number": (
        "g (float[n,k] a, float[5,j] b) => (float[5,l] y) { y = Mul(a, b) }",
        [[(5, 4), (5, 4)], [(1, 4), (5, 1)], [(5, 1), (5, 6)], [(1, 0), (5, 1)]],
        [[(2, 4), (5, 4)], [(5, 4), (5, 3)]],
    ),
    "choice": (
        "g (bool[p,q] c, float[n,3] a, float[m,1] b) => (float[r,s] y) { y = Where(c, a, b) }",
        [[(4, 3), (4, 3), (4, 1)], [(1, 3), (4, 3), (1, 1)], [(1, 1), (1, 3), (4, 1)], [(4, 1), (1, 3), (1, 1)]],
        [[(4, 1), (3, 3), (1, 1)]],
    ),
    "chain": (
        """g (float[n,4] a, float[m,4] b, float[l,4] c) => (float[k,4] y) {
            d = Add(a, b) e = Mul(d, c) f = Sub(e, a) h = Max(f, d) i = Min(h, b) j = Add(i, c) y = Div(j, e) }""",
        [[(3, 4), (3, 4), (3, 4)], [(1, 4), (1, 4), (3, 4)], [(1, 4), (3, 4), (1, 4)]],
        [[(2, 4), (1, 4), (3, 4)]],
    ),
    "batches": (
        "g (float[n,2,5] a, float[m,5,3] b) => (float[k,2,3] y) { y = MatMul(a, b) }",
        [[(3, 2, 5), (3, 5, 3)], [(1, 2, 5), (3, 5, 3)], [(3, 2, 5), (1, 5, 3)]],
        [[(2, 2, 5), (3, 5, 3)]],
    ),
    "columns": (
        "g (float[n,k] a, float[j,3] b) => (float[n,3] y) { y = MatMul(a, b) }",
        [[(2, 5), (5, 3)]],
        [[(2, 5), (4, 3)], [(2, 5), (6, 3)]],
    ),
    "columns-of-weights": (
        "g (float[n,k] a) => (float[n,2] y) <float[2,3] b = {1, 2, 3, 4, 5, 6}> { y = Gemm<transB=1>(a, b) }",
        [[(2, 3)]],
        [[(2, 2)], [(2, 4)]],
    ),
    "channels-of-groups": (
        "g (float[n,4,w] a, float[m,2,2] b) => (float[n,m,v] y) { y = Conv<group=2>(a, b) }",
        [[(2, 4, 3), (4, 2, 2)], [(1, 4, 2), (2, 2, 2)]],
        [[(2, 4, 3), (3, 2, 2)], [(2, 4, 3), (1, 2, 2)]],
    ),
    "channels": (
        "g (float[n,c,w] a, float[4,3,2] b) => (float[n,4,v] y) { y = Conv<group=2>(a, b) }",
        [[(2, 6, 3), (4, 3, 2)]],
        [[(2, 8, 3), (4, 3, 2)], [(2, 4, 3), (4, 3, 2)]],
    ),
    "states": (
        f"""g (float[t,n,k] a, float[1,m,2] h) => (float[t,1,n,2] y) <{WEIGHTS}> {{
            y = LSTM<hidden_size=2>(a, w, r, , , h) }}""",
        [[(4, 2, 3), (1, 2, 2)]],
        [[(4, 2, 2), (1, 2, 2)], [(4, 2, 4), (1, 2, 2)], [(4, 2, 3), (1, 1, 2)], [(4, 2, 3), (1, 3, 2)]],
    ),
    "subscripts": (
        'g (float[c,n,m] a, float[d,p,q] b) => (float[e,n,q] y) { y = Einsum<equation="bij,bjk->bik">(a, b) }',
        [[(2, 3, 4), (2, 4, 5)], [(2, 3, 4), (1, 4, 5)]],
        [[(2, 3, 4), (3, 4, 5)], [(2, 3, 4), (2, 3, 5)]],
    ),
    "squeezed": (
        "g (float[n,m,2] a) => (float[m,2] y) <int64[1] axis = {0}> { y = Squeeze(a, axis) }",
        [[(1, 3, 2)], [(1, 1, 2)]],
        [[(2, 3, 2)]],
    ),
    "reshaped": (
        "g (float[n,4] a) => (float[2,1,m] y) <int64[3] s = {2, 1, 2}> { b = Reshape(a, s) y = Neg(b) }",
        [[(1, 4)]],
        [[(0, 4)], [(2, 4)]],
    ),
    "reshaped-to-the-rest": (
        "g (float[n,5,4] a) => (float[m,8,5] y) <int64[3] s = {-1, 8, 5}> { b = Reshape(a, s) y = Neg(b) }",
        [[(2, 5, 4)], [(4, 5, 4)], [(0, 5, 4)]],
        [[(3, 5, 4)], [(1, 5, 4)]],
    ),
    "reshaped-to-other-dimensions": (
        """g (float[n,m,8] a) => (float[n,o,2,4] y) <int64[4] s = {0, -1, 2, 4}> {
            b = Reshape(a, s) y = Neg(b) }""",
        [[(2, 5, 8)], [(1, 1, 8)]],
        [],
    ),
    "parts": (
        "g (float[n,2] a) => (float[m,2] y) <int64[2] s = {2, 1}> { b, c = Split(a, s) y = Neg(b) z = Neg(c) }",
        [[(3, 2)]],
        [[(2, 2)], [(4, 2)]],
    ),
    "largest": (
        "g (float[n,m] a) => (float[n,2] y) <int64[1] k = {2}> { y, places = TopK(a, k) }",
        [[(3, 2)], [(1, 5)], [(0, 2)]],
        [[(3, 1)], [(2, 0)]],
    ),
    "samples": (
        "g (float[n,1,3,5] a, float[m,2,3,k] b) => (float[n,1,2,3] y) { y = GridSample(a, b) }",
        [[(1, 1, 3, 5), (1, 2, 3, 2)]],
        [[(1, 1, 3, 5), (1, 2, 3, 1)], [(1, 1, 3, 5), (1, 2, 3, 3)], [(1, 1, 3, 5), (2, 2, 3, 2)]],
    ),
    "long-slice": (
        """g (float[n,3] a) => (float[m,3] y) <int64[1] start = {1}, int64[1] end = {1000000000}, int64[1] axis = {0}> {
            b = Slice(a, start, end, axis) y = Relu(b) }""",
        [[(4, 3)], [(1, 3)]],
        [],
    ),
}


def inputs_of(module, shapes):
    rng = np.random.default_rng(0)
    values = (rng.normal(size=shape) for shape in shapes)
    dtypes = {"float32": "float32", "bool": "bool"}
    return {
        param.name: (value > 0 if param.type.dtype == "bool" else value.astype(dtypes[param.type.dtype]))
        for param, value in zip(module.main.params, values, strict=True)
    }


# It divides floats and rounds, which is inexact, and takes weights of known sizes only.
REFUSED = {("remainder", "openvino"), ("channels-of-groups", "openvino")}


def model(text):
    return tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}'))


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in SIZES for kind in ("llvm", "openvino") if (name, kind) not in REFUSED]
)
def test_sizes_fit_or_are_refused_when_a_program_runs(name, kind):
    pytest.importorskip(kind.replace("llvm", "tvm"), reason=f"pip install tvmtarget[{kind}]")
    text, fitting, others = SIZES[name]
    module = model(text)
    program, expected = tt.build(module, kind), tt.build(module, "numpy")
    for shapes in fitting:
        given = inputs_of(module, shapes)
        np.testing.assert_allclose(program.run(given)["y"], expected.run(given)["y"], rtol=1e-5, atol=1e-6)
    for shapes in others:
        with pytest.raises(RunError, match=r"sizes .*do not fit|of no elements"):
            program.run(inputs_of(module, shapes))


@pytest.mark.parametrize("shape", [(2, 0, 3, 1), (2, 3, 0, 2), (0, 3, 2, 1), (2, 0, 0, 2)])
@pytest.mark.parametrize("kind", ["LogSoftmax<axis = 1>", "Softmax<axis = 0>", "LpNormalization<axis = 1>"])
def test_kernels_that_allocate_memory_run_over_no_elements(kind, shape):
    """The process ended by a division by zero."""
    program = tt.build(model(f"g (float[n,m,k,l] x) => (float[n,m,k,l] y) {{ y = {kind}(x) }}"), "llvm")
    assert program.run({"x": np.zeros(shape, "float32")})["y"].shape == shape


@pytest.mark.parametrize("text", ["Expand(x, s)", "Reshape(x, s)", "ConstantOfShape(s)"])
def test_results_of_an_unknown_number_of_sizes_are_refused(text):
    module = model(f"g (float[n,m] x, int64[k] s) => (float[a,b] y) {{ y = {text} }}")
    with pytest.raises(InfeasibleError, match=r"'s', is int64\[k\], which is not static"):
        tt.decompose(module, "llvm")


INDEXED: dict[str, tuple[str, list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    "elements": (
        "g (float[n,m] a, int64[p,q] i) => (float[p,q] y) { y = GatherElements<axis=1>(a, i) }",
        [(3, 2)],
        [(4, 2)],
    ),
    "scattered": (
        """g (float[n,m] a, int64[p,q] i, float[r,s] u) => (float[n,m] y) {
            y = ScatterElements<axis=1>(a, i, u) }""",
        [(3, 2), (3, 2)],
        [(3, 2), (3, 1)],
    ),
    "coordinates": (
        "g (float[n,m] a, int64[p,q,1] i) => (float[p,q] y) { y = GatherND<batch_dims=1>(a, i) }",
        [(3, 2, 1)],
        [(2, 2, 1)],
    ),
    "updates": (
        "g (float[n,m] a, int64[p,1] i, float[q,r] u) => (float[n,m] y) { y = ScatterND(a, i, u) }",
        [(2, 1), (2, 4)],
        [(2, 1), (3, 4)],
    ),
}


@pytest.mark.parametrize("kind", ["llvm", "openvino"])
@pytest.mark.parametrize("name", INDEXED)
def test_indices_and_updates_are_as_many_as_what_they_index(name, kind):
    pytest.importorskip(kind.replace("llvm", "tvm"), reason=f"pip install tvmtarget[{kind}]")
    text, fitting, others = INDEXED[name]
    module = model(text)
    program, expected = tt.build(module, kind), tt.build(module, "numpy")

    def given(shapes):
        values = {"i": np.arange(np.prod(shapes[0])).reshape(shapes[0]) % 2}
        return {"a": np.ones((3, 4), "float32"), **values} | (
            {"u": np.full(shapes[1], 2, "float32")} if len(shapes) > 1 else {}
        )

    np.testing.assert_array_equal(program.run(given(fitting))["y"], expected.run(given(fitting))["y"])
    with pytest.raises(RunError, match=r"sizes .*do not fit"):
        program.run(given(others))


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_remainders_of_floats_have_the_sign_of_the_dividend(dtype, target):
    module = model(f"g ({dtype}[2,5] a, {dtype}[5] b) => ({dtype}[2,5] y) {{ y = Mod<fmod = 1>(a, b) }}")
    a = np.array([[5, -5, 5, -7.5, 3], [1e9, 0.25, -1e9, 0, -3]], {"float": "float32", "double": "float64"}[dtype])
    b = np.array([2, 2, -1.3, 3, np.inf], a.dtype)
    np.testing.assert_array_equal(tt.build(module, target)(a, b), np.fmod(a, b))


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8"])
def test_integers_are_divided_by_what_a_run_knows(dtype):
    module = model(f"g ({dtype}[n] a, {dtype}[m] b) => ({dtype}[n] y, {dtype}[n] z) {{ y = Div(a, b) z = Mod(a, b) }}")
    program, least = tt.build(module, "llvm"), np.iinfo(dtype).min
    signs = [1, 1] if least == 0 else [1, -1, 1, -1]
    a = np.array([7 * sign for sign in signs], dtype)
    b = np.array([2, 3] if least == 0 else [2, 2, -2, -1], dtype)
    results = program.run({"a": a, "b": b})
    assert results["y"].tolist() == np.trunc(a / b).astype(dtype).tolist()
    assert results["z"].tolist() == np.mod(a, b).tolist()
    if least:
        overflow = program.run({"a": np.array([least], dtype), "b": np.array([-1], dtype)})
        assert (overflow["y"].tolist(), overflow["z"].tolist()) == ([least], [0])
    with pytest.raises(RunError, match="a divisor of Div is 0"):
        program.run({"a": a, "b": b * 0})


def test_sequences_are_reversed_up_to_their_lengths():
    module = model(
        """g (float[n,t,2] a, int64[m] l) => (float[n,t,2] y) {
            y = ReverseSequence<time_axis=1, batch_axis=0>(a, l) }"""
    )
    program, data = tt.build(module, "llvm"), np.arange(12, dtype="float32").reshape(2, 3, 2)
    expected = np.stack([data[0], data[1][[1, 0, 2]]])
    np.testing.assert_array_equal(program.run({"a": data, "l": np.array([1, 2])})["y"], expected)
    for lengths, message in (([1, 4], "out of bounds"), ([1, 2, 3], "sizes do not fit")):
        with pytest.raises(RunError, match=message):
            program.run({"a": data, "l": np.array(lengths)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float[n] a, float[m] b) => (float[k] y) { y = Add(a, b) }", "not known whether these fit"),
        ("g (float[n,2,3] a, float[m,3,2] b) => (float[k,2,2] y) { y = MatMul(a, b) }", "not known whether these fit"),
        ("g (int64[4] a, int64[4] b) => (int64[4] y) { y = Div(a, b) }", "no code on a GPU reports"),
        (
            "g (float[n,2] a) => (float[2] y) <int64[1] axis = {0}> { y = Squeeze(a, axis) }",
            "removes known dimensions only",
        ),
    ],
)
def test_what_only_a_run_can_tell_is_refused_on_a_gpu(text, message):
    with pytest.raises(InfeasibleError, match=message):
        tt.decompose(model(text), "cuda(arch=sm_80,host=llvm)")


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("step", [0.5, 0.3, -0.25])
def test_ranges_of_floats_are_as_long_as_onnxruntime_makes_them(dtype, step):
    ort = pytest.importorskip("onnxruntime")
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g ({dtype} a, {dtype} b) => ({dtype}[n] y) <{dtype} c = {{{step}}}> {{ z = Range(a, b, c) y = Neg(z) }}""")
    program = tt.build(tt.IRModule.from_onnx(proto), "llvm")
    session = ort.InferenceSession(proto.SerializeToString())
    for bounds in ((0, 5), (0.5, 3.2), (3, 1), (0, 0.9), (0, 1.2), (2, 2)):
        given = dict(zip("ab", np.array(bounds, "float32" if dtype == "float" else "float64"), strict=True))
        given = {name: np.asarray(value) for name, value in given.items()}
        np.testing.assert_allclose(program.run(given)["y"], session.run(None, given)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["llvm", "numpy"])
@pytest.mark.parametrize(
    ("opset", "mean"),
    [
        (17, "ReduceMean<axes = [0]>(x)"),
        (17, "ReduceMean<keepdims = 0>(x)"),
        (18, "ReduceMean<keepdims = 0>(x, a)"),
        (18, "ReduceMean<noop_with_empty_axes = 1>(x)"),
    ],
)
def test_a_mean_of_nothing_is_zero_as_onnxruntime_has_it(kind, opset, mean):
    """An empty bag of PyTorch's EmbeddingBag is such a mean."""
    ort = pytest.importorskip("onnxruntime")
    rank = 0 if mean == "ReduceMean<keepdims = 0>(x)" else 1 if "keepdims" in mean else 2
    shape = f"[{', '.join('pq'[:rank])}]" if rank else ""
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[n, 3] x) => (float{shape} y) <int64[1] a = {{0}}> {{ z = {mean} y = Neg(z) }}""")
    program = tt.build(tt.IRModule.from_onnx(proto), kind)
    session = ort.InferenceSession(proto.SerializeToString())
    for count in (0, 1, 4):
        x = np.arange(3 * count, dtype="float32").reshape(count, 3)
        np.testing.assert_allclose(program.run({"x": x})["y"], session.run(None, {"x": x})[0], strict=True)


def test_running_sums_along_a_symbolic_dimension_write_nothing_of_no_elements():
    """TVM's kernel (0.27) writes the first sum also where there is none, behind the result."""
    tvm = pytest.importorskip("tvm")
    from tvm import relax

    from tvmtarget.backends.tvm.running_sums import bound_running_sums

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([tvm.tirx.Var("n", "int64"), 3], "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(relax.op.cumsum(x, 0), relax.op.cumsum(x, 1))))
    text = str(bound_running_sums(builder.get()))
    assert text.count("cls.running_sum") == text.count("R.cumsum") == 1

    proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 3] x) => (float[n, 3] y, float[n, 3] z) <int64 a = {0}> {
            y = CumSum(x, a) z = CumSum<exclusive = 1, reverse = 1>(x, a) }""")
    program = tt.build(tt.IRModule.from_onnx(proto), "llvm")
    for count in (0, 4):
        values = np.arange(3 * count, dtype="float32").reshape(count, 3)
        found = program.run({"x": values})
        np.testing.assert_array_equal(found["y"], values.cumsum(0))
        np.testing.assert_array_equal(found["z"], values[::-1].cumsum(0)[::-1] - values)


@pytest.mark.parametrize("reduction", ["ReduceSum", "ReduceMean"])
def test_bags_between_computed_bounds_are_summed_by_one_function(reduction):
    """PyTorch writes each bag of an EmbeddingBag so; TVM would allocate, check and read the size of each step."""
    axes = "r = ReduceSum<keepdims = 0>(rows, a)" if reduction == "ReduceSum" else "r = ReduceMean<axes = [0]>(rows)"
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[4, 3] x, int64[n] at, int64 first, int64[1] last) => (float[rows, 3] y, float[3] z)
            <int64[1] a = {{0}}> {{
            begin = Unsqueeze(first, a) chosen = Slice(at, begin, last, a) rows = Gather(x, chosen)
            {axes} y = Neg(r)
            slice = Slice(x, begin, last) z = ReduceSum<keepdims = 0>(slice, a) }}""")
    del proto.graph.output[0].type.tensor_type.shape.dim[: reduction == "ReduceSum"]
    program = tt.build(tt.IRModule.from_onnx(proto), "llvm")
    x, at = np.arange(12, dtype="float32").reshape(4, 3), np.array([0, -1, 2, 2, -4])
    for first, last in ((1, 3), (-2, 2**62), (3, 1), (0, 5)):
        results = program.run({"x": x, "at": at, "first": np.array(first), "last": np.array([last])})
        rows = x[at[first:last]]
        expected = rows.sum(0) if reduction == "ReduceSum" else rows.sum(0, keepdims=True) / max(1, len(rows))
        np.testing.assert_allclose(results["y"], -expected, rtol=1e-6, strict=True)
        np.testing.assert_array_equal(results["z"], x[first:last].sum(0))
    with pytest.raises(tt.errors.RunError, match="an index of Gather is out of bounds for 4 elements"):
        program.run({"x": x, "at": at + 3, "first": np.array(0), "last": np.array([3])})
