"""The default CPU schedule for TVM: what it keeps in registers, and that it computes what TVM alone computes."""

import importlib.util
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import onnx
import onnx.reference
import pytest
from conformance import node_cases
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from models import LIGHT, beginning
from onnx import TensorProto, helper, numpy_helper

from benchmarks.tvm_schedule import network, onnxruntime, sample
from tvmtarget.backends.tvm import cpu_schedule, register_tiling
from tvmtarget.backends.tvm.register_tiling import Access, Layout, Nest, Tile, VectorUnit, chunk_axes, panel, plan

AVX512, AVX2 = VectorUnit(512, 32, multiplies_pairs=True), VectorUnit(256, 16, multiplies_pairs=True)
NEON = VectorUnit(128, 32)


def access(*dims, shape=None, constant=None):
    """Return an access by what moves each dimension: an axis, several, or {axis: steps}."""
    maps = [
        dim if isinstance(dim, dict) else dict.fromkeys(dim if isinstance(dim, tuple) else (dim,), 1) for dim in dims
    ]
    return Access(tuple(maps), shape or (None,) * len(dims), constant)


def convolution(batch, filters, height, width, channels, kernel, *, group=1):
    """Return the nest of a 2-d convolution: axes n f y x, then c i j."""
    per = filters // group
    steps = (4,) if group == 1 else {1: per, 4: 1}
    data = access(0, steps, (2, 5), (3, 6))
    weights = access(1, 4, 5, 6, shape=(filters, channels // group, kernel, kernel), constant=1)
    extents = (batch, filters, height, width, channels // group, kernel, kernel)
    return Nest("SSSSRRR", extents, (data, weights), (access(0, 1, 2, 3),))


def product(rows, columns, inner, *, constant=None):
    """Return the nest of a matrix product: axes i j, then k."""
    left, right = access(0, 2), access(2, 1, shape=(inner, columns), constant=constant)
    return Nest("SSR", (rows, columns, inner), (left, right), (access(0, 1),))


TILES = {
    "all columns of a row, by few weights": (
        convolution(1, 64, 56, 56, 64, 1),
        Tile(1, 16, 4, 3, 4, (1, Layout(0, 64)), columns_first=True),
    ),
    "columns of a convolution": (
        convolution(1, 64, 56, 56, 64, 3),
        Tile(1, 16, 4, 3, 4, (1, Layout(0, 64))),
    ),
    "as many as divide": (
        convolution(1, 1000, 13, 13, 512, 1),
        Tile(1, 10, 2, 3, 13, (1, Layout(0, 20))),
    ),
    "inside one group": (
        convolution(1, 256, 26, 26, 96, 5, group=2),
        Tile(1, 16, 2, 3, 13, (1, Layout(0, 32))),
    ),
    "rows that leave a remainder": (
        convolution(1, 128, 37, 37, 128, 1),
        Tile(1, 16, 4, 3, 6, (1, Layout(0, 64))),
    ),
    "no remainder in symbolic nests": (
        convolution(None, 128, 37, 37, 128, 1),
        Tile(1, 16, 8, 3, 1, (1, Layout(0, 128))),
    ),
    "groups too narrow for vectors": (convolution(1, 272, 14, 14, 272, 1, group=4), Tile(3, 14, 1, 1, 8)),
    "one filter": (convolution(1, 1, 56, 56, 64, 3), Tile(3, 8, 7)),
    "a long sum in one image": (convolution(1, 1, 28, 28, 64, 5), Tile(3, 14, 2, 2, 4)),
    "contiguous weights stay": (product(64, 48, 256), Tile(1, 16, 3, 0, 8)),
    "constant weights are packed": (product(64, 48, 256, constant=1), Tile(1, 16, 3, 0, 8, (1, Layout(1, 48)))),
    "a symbolic number of rows": (product(None, 48, 256), Tile(1, 16, 3, 0, 4)),
    "one row": (product(1, 4096, 512), Tile(1, 16, 8, 0, 1)),
}


@pytest.mark.parametrize(("nest", "tile"), TILES.values(), ids=TILES)
def test_a_reduction_is_tiled_by_what_divides_and_what_fits(nest, tile):
    assert plan(nest, AVX512) == tile


SSE = VectorUnit(128, 16, broadcast=2, is_fused=False, multiplies_pairs=True)
WIDE = {
    "a matrix product": (product(64, 64, 256), 4, 2),
    "a convolution": (convolution(1, 64, 56, 56, 64, 1), 4, 2),
    "a convolution before a math function": (replace(convolution(1, 64, 56, 56, 64, 1), writes_math=True), 2, 4),
    "odd rows before a math function": (replace(convolution(1, 64, 7, 7, 64, 1), writes_math=True), 4, 2),
}


@pytest.mark.parametrize(("nest", "vectors", "rows"), WIDE.values(), ids=WIDE)
def test_tiles_for_sse_are_wide_as_broadcasts_take_two_instructions(nest, vectors, rows):
    tile = plan(nest, SSE)
    assert tile is not None
    assert (tile.vectors, tile.rows) == (vectors, rows)


FEW = {
    "14 rows leave a remainder": (convolution(1, 256, 14, 14, 256, 1), 2, 5),
    "13 rows are not read as vectors": (convolution(1, 64, 13, 13, 64, 1), 2, 5),
    "three vectors": (convolution(1, 96, 56, 56, 64, 1), 3, 4),
    "no remainder in symbolic nests": (convolution(None, 64, 13, 13, 64, 1), 1, 13),
    "one row": (product(1, 96, 512), 6, 1),
}


@pytest.mark.parametrize(("nest", "vectors", "rows"), FEW.values(), ids=FEW)
def test_tiles_for_avx2_leave_a_remainder_of_rows_rather_than_wait(nest, vectors, rows):
    tile = plan(nest, AVX2)
    assert tile is not None
    assert (tile.vectors, tile.rows) == (vectors, rows)


def test_pooling_takes_vectors_along_the_last_axis():
    image = access(0, 1, (2, 4), (3, 5))
    nest = Nest("SSSSRR", (1, 64, 55, 55, 3, 3), (image,), (access(0, 1, 2, 3),))
    assert plan(nest, AVX512) == Tile(3, 11, 5)


def test_a_product_that_is_added_by_another_instruction_takes_a_register():
    for unit, most in ((AVX2, 16), (replace(AVX2, is_fused=False), 15)):
        tile = plan(product(60, 96, 256), unit)
        assert tile is not None
        assert tile.vectors * tile.rows + tile.vectors + 1 <= most


WINDOW = Nest(
    "SSSSRR",
    (1, 480, 14, 14, 3, 3),
    (access(0, 1, (2, 4), (3, 5)), access(1, 4, 5)),
    (access(0, 1, 2, 3, shape=(1, 480, 14, 14)),),
    writes_math=True,
)
CHUNKS = {
    "whole images": (WINDOW, Tile(3, 2, 7), (2, 3)),
    "rows of large images": (replace(WINDOW, extents=(1, 480, 112, 112, 3, 3)), Tile(3, 4, 7), (3,)),
    "no part of a tile": (replace(WINDOW, extents=(1, 480, 112, 112, 3, 3)), Tile(3, 4, 4, 2, 2), ()),
    "no rows that leave a remainder": (WINDOW, Tile(3, 2, 1, 2, 4), ()),
    "no products": (convolution(1, 64, 14, 14, 64, 1), Tile(1, 4, 4, 3, 2, (1, Layout(0, 16))), ()),
}


@pytest.mark.parametrize(("nest", "tile", "axes"), CHUNKS.values(), ids=CHUNKS)
def test_math_functions_run_over_many_tiles_of_a_window(nest, tile, axes):
    nest = replace(nest, writes=(access(0, 1, 2, 3, shape=nest.extents[:4]),))
    assert chunk_axes(nest, tile) == axes


def of_one_weight(channels, height, width, filters, *, group=1):
    """Return the nest of a 1 x 1 convolution of images of known sizes, and its tile for AVX2."""
    nest = convolution(1, filters, height, width, channels, 1, group=group)
    read = replace(nest.reads[0], shape=(1, channels, height, width))
    nest = replace(nest, reads=(read, nest.reads[1]))
    return nest, plan(nest, AVX2)


PANELS = {
    "a row": (of_one_weight(2048, 25, 42, 256), (2, 1)),
    "several rows": (of_one_weight(256, 100, 168, 256), (2, 2)),
    "no small images": (of_one_weight(256, 28, 28, 256), None),
    "not for few terms": (of_one_weight(64, 200, 336, 128), None),
    "not for more weights": (of_one_weight(1024, 28, 28, 2048), None),
    "not in groups": (of_one_weight(2048, 25, 42, 256, group=2), None),
    "not of windows": (
        (convolution(1, 512, 100, 100, 512, 3), plan(convolution(1, 512, 100, 100, 512, 3), AVX2)),
        None,
    ),
}


@pytest.mark.parametrize(("given", "copied"), PANELS.values(), ids=PANELS)
def test_data_of_which_terms_are_far_apart_are_copied_in_panels(given, copied):
    assert panel(*given) == copied


@pytest.mark.parametrize(("size", "lanes"), [(58, 8), (114, 14)], ids=["step by step", "every other value"])
def test_windows_that_are_read_in_one_piece_take_a_power_of_two(size, lanes):
    image = access(0, 1, (2, 4), (3, 5), shape=(1, 64, size, size))
    nest = Nest("SSSSRR", (1, 64, 56, 56, 3, 3), (image,), (access(0, 1, 2, 3),))
    assert plan(nest, AVX512).lanes == lanes


@pytest.mark.parametrize("kinds", ["SS", "RR"])
def test_what_is_not_reduced_or_has_no_result_axis_has_no_tile(kinds):
    assert plan(Nest(kinds, (64, 64), (access(0, 1),), (access(0, 1),)), AVX512) is None


@given(
    unit=st.sampled_from([AVX512, AVX2, NEON, VectorUnit(128, 8)]),
    sizes=st.tuples(*[st.integers(1, 300)] * 3),
    constant=st.sampled_from([None, 1]),
)
def test_a_tile_of_a_product_fits_the_registers_and_cuts_columns_evenly(unit, sizes, constant):
    rows, columns, _ = sizes
    tile = plan(product(*sizes, constant=constant), unit)
    if tile is not None:
        assert tile.lanes <= unit.lanes(32)
        assert columns % (tile.lanes * tile.vectors) == 0
        assert tile.vectors * tile.rows + tile.vectors + 1 <= unit.registers
        assert tile.rows <= rows


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_a_layout_puts_every_element_where_its_index_says(shape, data):
    dim = data.draw(st.integers(0, len(shape) - 1))
    width = data.draw(st.integers(1, 3))
    shape[dim] *= width
    array = np.arange(np.prod(shape)).reshape(shape)
    layout = Layout(dim, width)
    packed = layout.apply(array)
    assert all(packed[tuple(layout.index(*at))] == array[at] for at in np.ndindex(*shape))


def test_importing_the_schedule_does_not_import_tvm():
    code = "import sys, tvmtarget.backends.tvm.cpu_schedule; sys.exit('tvm' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


needs_tvm = pytest.mark.skipif(importlib.util.find_spec("tvm") is None, reason="pip install tvmtarget[tvm]")


def relax(model):
    """Return a model as TVM imports it."""
    from tvm.relax.frontend.onnx import from_onnx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return from_onnx(model, sanitize_input_names=False)


def legal(model):
    """Return a model's module of tensor functions, as the schedule gets it."""
    import tvm
    from tvm.relax.backend.cpu_generic import pipeline

    target = tvm.target.Target("llvm")
    with target:
        return tvm.transform.Sequential(pipeline.legalize_passes(target))(relax(model))


def runner(model, **config):
    """Return a function that runs a model compiled by TVM, and lists its results."""
    import tvm
    from tvm.relax import VirtualMachine

    from tvmtarget.backends.tvm.cpu_schedule import PASS_CONFIG, cpu_pipeline

    target = tvm.target.Target({"kind": "llvm", **config})
    with tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG):
        machine = VirtualMachine(tvm.compile(relax(model), target, relax_pipeline=cpu_pipeline(target)), tvm.cpu())

    def run(*arrays):
        results = machine["main"](*(tvm.runtime.tensor(array) for array in arrays))
        return [result.numpy() for result in ([results] if hasattr(results, "numpy") else results)]

    return run


def host_cpu():
    from tvm.target import codegen

    return codegen.llvm_get_system_cpu()


def graph(nodes, inputs, outputs, constants=(), dtype=TensorProto.FLOAT):
    """Return a model of nodes; inputs and outputs are shapes by name, constants arrays by name."""
    ends = [
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in end.items()] for end in (inputs, outputs)
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in dict(constants).items()]
    body = helper.make_graph(nodes, "g", *ends, weights)  # type: ignore[call-arg]
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def random(*shape, dtype="float32"):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def convolutions(batch=1, dtype=TensorProto.FLOAT):
    """Return a model of two convolutions that share their weights, with a residual, and its input's shape."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c1"], pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w", "b"], ["c2"], pads=[1] * 4),
        helper.make_node("Add", ["c2", "x"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["y"], kernel_shape=[3, 3], strides=[2, 2]),
    ]
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    constants = {"w": random(48, 48, 3, 3, dtype=kind) / 20, "b": random(48, dtype=kind)}
    return graph(nodes, {"x": [batch, 48, 19, 19]}, {"y": [batch, 48, 9, 9]}, constants, dtype)


def expected(model, *arrays):
    names = [value.name for value in model.graph.input]
    return onnx.reference.ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))


UNITS = {
    "generic x86": ({"mtriple": "x86_64-linux-gnu"}, SSE),
    "AVX without FMA": ({"mtriple": "x86_64-linux-gnu", "mcpu": "sandybridge"}, replace(AVX2, is_fused=False)),
    "AVX2": ({"mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}, AVX2),
    "AVX-512": ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4"}, AVX512),
    "an attribute": (
        {"mtriple": "x86_64-linux-gnu", "mattr": ["+avx2", "+fma"], "vector-width": 128},
        replace(AVX2, bits=128),
    ),
    "32-bit x86": ({"mtriple": "i686-linux-gnu", "mcpu": "pentium4"}, replace(SSE, registers=8)),
    "Arm 64": ({"mtriple": "aarch64-linux-gnu"}, NEON),
    "Arm 64 with SVE": ({"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1"}, NEON),
    "Arm 32": ({"mtriple": "armv7a-linux-gnueabihf", "mcpu": "cortex-a9"}, VectorUnit(128, 16)),
    "Arm M": ({"mtriple": "armv7em-none-eabi", "mcpu": "cortex-m7"}, VectorUnit(32, 16)),
    "RISC-V": ({"mtriple": "riscv64-unknown-linux-gnu", "mcpu": "sifive-u74"}, VectorUnit(32, 16)),
    "RISC-V with V": ({"mtriple": "riscv64-unknown-linux-gnu", "mcpu": "sifive-x280"}, VectorUnit(512, 32)),
}


@needs_tvm
@pytest.mark.parametrize(("config", "unit"), UNITS.values(), ids=UNITS)
def test_the_vector_unit_follows_the_target(config, unit):
    import tvm

    from tvmtarget.backends.tvm.cpu_schedule import vector_unit

    assert vector_unit(tvm.target.Target({"kind": "llvm", **config})) == unit


@needs_tvm
@pytest.mark.parametrize("config", [config for config, _ in UNITS.values()], ids=UNITS)
def test_scheduled_code_compiles_for_every_target(config):
    import tvm

    from tvmtarget.backends.tvm.cpu_schedule import cpu_pipeline

    target = tvm.target.Target({"kind": "llvm", **config})
    assert tvm.compile(relax(convolutions()), target=target, relax_pipeline=cpu_pipeline(target))


@needs_tvm
@pytest.mark.parametrize("config", [{}, {"vector-width": 256}], ids=["host", "half its vectors"])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE], ids=["float", "double"])
def test_convolutions_compute_what_onnx_says(config, dtype):
    model = convolutions(dtype=dtype)
    x = random(1, 48, 19, 19, dtype=helper.tensor_dtype_to_np_dtype(dtype))
    np.testing.assert_allclose(runner(model, mcpu=host_cpu(), **config)(x), expected(model, x), rtol=1e-3, atol=1e-4)


@needs_tvm
@pytest.mark.parametrize(
    ("shape", "follows", "rows"),
    [
        ((2, 130, 12, 9), "Relu", 3),
        ((1, 128, 9, 13), "Sigmoid", 1),
        ((3, 128, 1, 100), "Relu", 1),
        ((1, 128, 20, 7), "Tanh", 4),
    ],
)
def test_convolutions_of_copied_panels_compute_what_onnx_says(shape, follows, rows, monkeypatch):
    copied = []
    monkeypatch.setattr(cpu_schedule, "panel", lambda *given: copied.append(panel(*given)) or copied[-1])
    monkeypatch.setattr(register_tiling, "FAR_DATA", 0)
    monkeypatch.setattr(register_tiling, "PANEL_BYTES", 1 << 14)
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"]), helper.make_node(follows, ["c"], ["y"])]
    weights = {"w": random(96, shape[1], 1, 1) / 10, "b": random(96)}
    model, x = graph(nodes, {"x": shape}, {"y": (shape[0], 96, *shape[2:])}, weights), random(*shape)
    np.testing.assert_allclose(runner(model, mcpu="x86-64-v3")(x), expected(model, x), rtol=1e-4, atol=1e-5)
    assert [count for _, count in filter(None, copied)] == [rows]


@needs_tvm
@pytest.mark.parametrize("config", [{}, {"mcpu": "x86-64-v3"}], ids=["SSE", "AVX2"])
def test_math_functions_behind_odd_rows_compute_what_onnx_says(config):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["y"]),
    ]
    constants = {"w": random(48, 16, 1, 1), "b": random(48)}
    model = graph(nodes, {"x": [2, 16, 7, 7]}, {"y": [2, 48, 7, 7]}, constants)
    x = random(2, 16, 7, 7)
    np.testing.assert_allclose(runner(model, **config)(x), expected(model, x), rtol=1e-4, atol=1e-5)


@needs_tvm
@pytest.mark.parametrize("config", [{}, {"mcpu": "x86-64-v3"}], ids=["generic", "AVX2"])
@pytest.mark.parametrize(("size", "kernel", "step"), [(7, 3, 1), (14, 5, 1), (20, 3, 2), (28, 5, 1), (66, 7, 1)])
def test_depthwise_convolutions_before_math_functions_compute_what_onnx_says(config, size, kernel, step):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], group=6, pads=[kernel // 2] * 4, strides=[step] * 2),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["y"]),
    ]
    constants = {"w": random(6, 1, kernel, kernel), "b": random(6)}
    model = graph(nodes, {"x": [1, 6, size, size]}, {"y": [1, 6, size // step, size // step]}, constants)
    x = random(1, 6, size, size)
    np.testing.assert_allclose(runner(model, **config)(x), expected(model, x), rtol=1e-4, atol=1e-5)


@needs_tvm
def test_a_symbolic_batch_runs_at_every_size():
    model = convolutions("n")
    run = runner(model, mcpu=host_cpu())
    for batch in (1, 3):
        x = random(batch, 48, 19, 19)
        np.testing.assert_allclose(run(x), expected(model, x), rtol=1e-3, atol=1e-4)


@needs_tvm
def test_loops_over_sums_of_sizes_are_scheduled():
    """As many tokens as words and 17 parts of an image, of which TVM splits no loops over two blocks of columns."""
    from tvmtarget.backends.tvm.cpu_schedule import schedule_functions

    nodes = [
        helper.make_node("Concat", ["token", "x"], ["all"], axis=1),
        helper.make_node("MatMul", ["all", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    inputs = {"token": ["n", 17, 64], "x": ["n", "s", 64]}
    model = graph(nodes, inputs, {"y": ["n", "t", 64]}, {"w": random(64, 64), "b": random(64)})
    scheduled, unscheduled = schedule_functions(legal(model), AVX2)
    assert unscheduled == {}
    products = [str(function) for _, function in scheduled.functions_items() if "matmul_update" in str(function)]
    assert len(products) == 1
    assert "T.vectorized" in products[0]
    run = runner(model, mcpu=host_cpu())
    for batch, count in ((2, 5), (1, 0), (1, 9)):
        arrays = random(batch, 17, 64), random(batch, count, 64)
        np.testing.assert_allclose(run(*arrays), expected(model, *arrays), rtol=1e-3, atol=1e-4)


@needs_tvm
def test_a_transposed_convolution_of_one_channel_and_any_size_compiles():
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], pads=[1] * 4, strides=[2, 2])
    model = graph([node], {"x": ["n", 1, "h", "w"]}, {"y": [None] * 4}, {"w": random(1, 8, 3, 3)})
    x = random(2, 1, 5, 6)
    np.testing.assert_allclose(runner(model)(x), expected(model, x), rtol=1e-4, atol=1e-5)


@needs_tvm
def test_a_float_that_depends_on_a_symbol_compiles():
    """In a parallel loop it is what `PASS_CONFIG` is for."""
    node = helper.make_node(
        "Resize", ["x", "", "scales"], ["y"], mode="linear", coordinate_transformation_mode="align_corners"
    )
    scales = np.array([1, 1, 2, 2], "float32")
    x = random(1, 1, 4, 6)
    reference = expected(graph([node], {"x": x.shape}, {"y": [1, 1, 8, 12]}, {"scales": scales}), x)
    symbolic = graph([node], {"x": ["n", 1, 4, "m"]}, {"y": [None] * 4}, {"scales": scales})
    np.testing.assert_allclose(runner(symbolic)(x), reference, rtol=1e-3, atol=1e-5)


@needs_tvm
def test_constant_weights_are_packed():
    from tvmtarget.backends.tvm.cpu_schedule import schedule_functions

    module = legal(convolutions())
    scheduled, unscheduled = schedule_functions(module, AVX512)
    shapes = {tuple(map(int, p.shape)) for _, f in scheduled.functions_items() for p in f.params if hasattr(p, "shape")}
    assert unscheduled == {}
    assert (1, 48, 3, 3, 48) in shapes
    assert (48, 48, 3, 3) not in shapes


@needs_tvm
def test_weights_that_are_an_input_are_packed_at_each_run():
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    model = graph([node], {"x": [1, 16, 24, 24], "w": [32, 16, 3, 3]}, {"y": [1, 32, 24, 24]})
    arrays = random(1, 16, 24, 24), random(32, 16, 3, 3)
    np.testing.assert_allclose(runner(model)(*arrays), expected(model, *arrays), rtol=1e-3, atol=1e-3)


@needs_tvm
def test_a_constant_that_two_blocks_read_keeps_its_layout():
    nodes = [helper.make_node("MatMul", ["w", "w"], ["s"]), helper.make_node("MatMul", ["x", "s"], ["y"])]
    model = graph(nodes, {"x": [64, 64]}, {"y": [64, 64]}, {"w": random(64, 64)})
    x = random(64, 64)
    np.testing.assert_allclose(runner(model)(x), expected(model, x), rtol=1e-3, atol=1e-2)


@needs_tvm
def test_a_function_without_blocks_stays_and_says_why():
    import tvm
    import tvm_ffi
    from tvm.script import tirx as script

    from tvmtarget.backends.tvm.cpu_schedule import schedule_functions

    @script.prim_func
    def plain(a: script.Buffer((4,), "float32")):
        for i in range(4):
            a[i] = script.float32(0)

    module = tvm.IRModule({"plain": plain})
    scheduled, unscheduled = schedule_functions(module, AVX512)
    assert tvm_ffi.structural_equal(scheduled, module)
    assert unscheduled == {"plain": "it has no root block"}


@needs_tvm
def test_inlining_does_not_double_the_text_at_each_step():
    from tvmtarget.backends.tvm.cpu_schedule import MOST_LOADS, schedule_functions

    nodes = []
    for i in range(24):
        nodes.append(helper.make_node("Sigmoid", [f"v{i}"], [f"s{i}"]))
        nodes.append(helper.make_node("Mul", [f"v{i}", f"s{i}"], [f"v{i + 1}"]))
    model = graph(nodes, {"v0": [8, 64]}, {"v24": [8, 64]})
    scheduled, _ = schedule_functions(legal(model), AVX512)
    lines = [line for _, function in scheduled.functions_items() for line in function.script().splitlines()]
    assert max(line.count("[v_") for line in lines) <= MOST_LOADS + 1
    x = random(8, 64)
    np.testing.assert_allclose(runner(model)(x), expected(model, x), rtol=1e-3, atol=1e-6)


@needs_tvm
def test_inlining_does_not_repeat_functions_and_choices():
    """These five choices took TVM's passes 34 s in one text, and so did DeBERTa's buckets of relative positions."""
    from tvmtarget.backends.tvm.cpu_schedule import LOADS_OF_CALL, MOST_LOADS, schedule_functions
    from tvmtarget.backends.tvm.vector_math import LN2_HIGH

    nodes = [helper.make_node("Log", ["x"], ["v0"])]
    for i in range(5):
        nodes.append(helper.make_node("IsNaN", [f"v{i}"], [f"n{i}"]))
        nodes.append(helper.make_node("Where", [f"n{i}", "x", f"v{i}"], [f"v{i + 1}"]))
    model = graph(nodes, {"x": [8, 64]}, {"v5": [8, 64]})
    scheduled, _ = schedule_functions(legal(model), AVX512)
    lines = [line for _, function in scheduled.functions_items() for line in function.script().splitlines()]
    assert 0 < max(line.count(str(LN2_HIGH)) for line in lines) <= MOST_LOADS / LOADS_OF_CALL
    x = random(8, 64)
    np.testing.assert_allclose(runner(model)(x)[0], expected(model, x)[0], rtol=1e-5, atol=1e-6)


@needs_tvm
def test_what_reads_many_tensors_has_vectors():
    """LLVM makes none by itself: it would have to check that no two of the tensors overlap."""
    from tvmtarget.backends.tvm.cpu_schedule import MOST_CHECKED, schedule_functions

    names = [f"x{number}" for number in range(MOST_CHECKED + 1)]
    nodes = [helper.make_node("Concat", names, ["c"], axis=1), helper.make_node("Relu", ["c"], ["y"])]
    shape, joined = [1, 4, 8, 8], [1, 4 * len(names), 8, 8]
    model = graph(nodes, dict.fromkeys(names, shape), {"y": joined})
    scheduled, _ = schedule_functions(legal(model), AVX512)
    assert any("T.vectorized(" in function.script() for _, function in scheduled.functions_items())
    arrays = [random(*shape) for _ in names]
    np.testing.assert_array_equal(runner(model)(*arrays)[0], expected(model, *arrays)[0])


SAMPLE = (
    "add_bcast",
    "argmax_keepdims_example",
    "averagepool_2d_precomputed_pads",
    "basic_conv_with_padding",
    "batchnorm_example",
    "concat_3d_axis_negative_1",
    "conv_with_strides_and_asymmetric_padding",
    "convtranspose",
    "convtranspose_group_2",
    "cumsum_2d_axis_1",
    "einsum_batch_matmul",
    "expand_dim_changed",
    "gather_elements_0",
    "gemm_transposeB",
    "globalmaxpool",
    "instancenorm_example",
    "lrn",
    "matmul_4d",
    "maxpool_2d_dilations",
    "maxpool_2d_uint8",
    "reduce_log_sum_exp_default_axes_keepdims_example",
    "reduce_max_do_not_keepdims_example",
    "scatter_elements_with_axis",
    "slice_start_out_of_bounds",
    "softmax_axis_2",
    "spacetodepth_example",
    "sum_example",
    "top_k",
    "transpose_all_permutations_4",
)


@needs_tvm
@pytest.mark.parametrize("name", SAMPLE)
def test_operators_compute_what_onnx_says(name):
    """Inputs but the first are constants, as TVM's importer wants most of them."""
    case = next(case for case in node_cases() if case.name == f"test_{name}")
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value, array in list(zip(model.graph.input, case.inputs, strict=True))[1:]:
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
        model.graph.input.remove(value)
    for actual, expected_output in zip(runner(model, mcpu=host_cpu())(case.inputs[0]), case.outputs, strict=True):
        np.testing.assert_allclose(actual, expected_output, rtol=1e-3, atol=1e-5)


# Of networks that repeat blocks, the first block of each kind: numbers of nodes, of 910, 144 and 509. TVM compiles all
# nodes for half a minute each. What comes at the end of them, others have too.
BLOCKS = {"densenet121": 110, "inception_v1": 60, "inception_v2": 135}
# Tests of builds compile these, too, and zfnet512 has the layers of bvlc_alexnet.
BUILT = {"bvlc_alexnet", "inception_v1", "shufflenet", "squeezenet"}


@pytest.mark.slow
@needs_tvm
@pytest.mark.parametrize("name", examples([name for name in LIGHT if name not in BUILT], LIGHT))
def test_networks_compute_what_onnxruntime_computes(name):
    pytest.importorskip("onnxruntime")
    model = beginning(network(name), BLOCKS[name]) if name in BLOCKS and examples(1, 0) else network(name)
    expected = onnxruntime(model, threads=2)()
    actual = runner(model, mcpu=host_cpu())(sample(model)[1])[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.std()))


def test_reductions_over_symbolic_sizes_start_before_their_loops():
    """A function that no schedule fits is compiled as TVM writes it, with the start in the first step of the loop."""
    from tvmtarget.backends.tvm import cpu_schedule

    tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")
    rows, columns = (tvm.tirx.Var(name, "int64") for name in ("m", "n"))
    given = tvm.te.placeholder((rows, columns), name="x")
    axis = tvm.te.reduce_axis((0, columns), name="k")
    total = tvm.te.compute((rows,), lambda row: tvm.te.sum(given[row, axis], axis=axis), name="y")
    function = tvm.te.create_prim_func([given, total])
    started = cpu_schedule._start_before_loops(function)
    program = tvm.compile(tvm.IRModule({"main": started}), target="llvm")
    result = tvm.runtime.tensor(np.ones(2, "float32"))
    program["main"](tvm.runtime.tensor(np.zeros((2, 0), "float32")), result)
    np.testing.assert_array_equal(result.numpy(), 0)
    assert cpu_schedule._start_before_loops(started) is started
