"""Weights that are given to functions lie where compiled code reads them without a copy."""

import gc
import platform
import re
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tvmtarget as tt
from tvmtarget.backends.aligned import ALIGNMENT, HUGE_PAGE, aligned, is_aligned

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype="float32").reshape(3, 4),
        np.asfortranarray(np.arange(12, dtype="float16").reshape(3, 4)),
        np.arange(9, dtype="int64")[1::2],
        np.array(True),
        np.zeros((0, 3), "float64"),
    ],
)
def test_an_aligned_array_is_the_same_array_where_it_may_be_read_as_it_is(array):
    found = aligned(array)
    np.testing.assert_array_equal(found, array, strict=True)
    assert not found.size or found.__array_interface__["data"][0] % ALIGNMENT == 0
    assert is_aligned(found)
    assert not found.flags.writeable
    assert aligned(found) is found


def test_arrays_of_objects_stay_as_they_are():
    words = np.array(["a", "b"], object)
    assert aligned(words) is words


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool"])
def test_tvm_reads_weights_that_are_given_without_a_copy_and_leaves_them_as_they_are(dtype, tmp_path):
    pytest.importorskip("tvm")
    kind = "Not" if dtype == "bool" else "Abs"
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = [helper.make_tensor_value_info(name, element, [3, 64]) for name in "xy"]
    weights = [
        numpy_helper.from_array(np.random.default_rng(at).random((3, 64)).astype(dtype), f"w{at}") for at in (0, 1)
    ]
    join = "And" if dtype == "bool" else "Mul"
    nodes = [
        helper.make_node(join, ["x", "w0"], ["a"], "mul0"),
        helper.make_node(kind, ["a"], ["b"], "abs"),
        helper.make_node(join, ["b", "w1"], ["y"], "mul1"),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    plan = tt.decompose(model, "composite[a=llvm,b=numpy](host=@b)", where={f"op:{kind}": "@b"}, constants="lift")
    assert len(plan.functions("a")) == 1
    exe = tt.build(plan)
    exe.save(tmp_path / "saved")
    x = np.random.default_rng(2).random((3, 64)).astype(dtype)
    whole = tt.build(model, "numpy")(x)
    for program in (exe, tt.load(tmp_path / "saved", trust=True)):
        for _ in range(2):
            np.testing.assert_array_equal(program(x), whole)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_results_of_small_inputs_do_not_change_with_later_runs(dtype):
    pytest.importorskip("tvm")
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = [helper.make_tensor_value_info(name, element, ["n", 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "same", ends[:1], ends[1:])
    exe = tt.build(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "llvm")
    given = [np.array(rows).astype(dtype) for rows in ([[1, 0, 1]], [[0, 1, 1]], [[0, 0, 0], [1, 1, 1]])]
    found = [exe(one) for one in given]
    for result, wanted in zip(found, given, strict=True):
        np.testing.assert_array_equal(result, wanted, strict=True)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="it looks into /proc")
@pytest.mark.parametrize("executor", ["graph", "vm"])
def test_a_program_that_nothing_refers_to_leaves_no_weights_and_no_library_in_memory(executor):
    """TVM keeps libraries until the process ends, unless it is requested not to."""
    pytest.importorskip("tvm")
    builder = tt.FunctionBuilder()
    weights = np.random.default_rng(0).standard_normal((64, 64), dtype="float32")
    product = builder.call("MatMul", builder.param("x", "float32[1,64]"), builder.constant(weights, "w"))
    exe = tt.build(tt.IRModule((builder.build(product),)), f"llvm(executor={executor})")
    assert not any("model" in vars(leaf.request) for leaf in exe.code.values())
    result = exe(np.ones((1, 64), "float32"))
    opened = libraries()
    del exe
    gc.collect()
    assert libraries() < opened
    np.testing.assert_allclose(result, weights.sum(0, keepdims=True), rtol=1e-4, atol=1e-4)


def libraries():
    """Return the number of mappings of libraries of programs in the memory of this process."""
    return Path("/proc/self/maps").read_text().count("/lib.so")


def has_huge_pages():
    """Return whether this system moves memory to huge pages on request: Linux since 6.1, unless switched off."""
    version = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    return HUGE_PAGES.exists() and "[never]" not in HUGE_PAGES.read_text() and version >= (6, 1)


def huge_bytes_at(address):
    """Return the bytes in huge pages of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return 1024 * int(line.split()[1])
    raise AssertionError(f"nothing is mapped at {address:#x}")


@pytest.mark.parametrize("rows", [64, 4096])
def test_large_weights_of_llvm_leaves_lie_in_huge_pages(rows, tmp_path, monkeypatch):
    pytest.importorskip("tvm")
    from tvmtarget.backends.tvm import compiled_module

    moved = []
    move = compiled_module.use_huge_pages
    monkeypatch.setattr(compiled_module, "use_huge_pages", lambda *given: (moved.append(given), move(*given)))
    weights = np.random.default_rng(0).standard_normal((rows, 1024), dtype="float32")
    builder = tt.FunctionBuilder()
    product = builder.call("MatMul", builder.param("x", f"float32[1,{rows}]"), builder.constant(weights, "w"))
    module = tt.IRModule((builder.build(product),))
    tt.build(module, "llvm").save(tmp_path / "saved")
    x = np.random.default_rng(1).standard_normal((1, rows), dtype="float32")
    np.testing.assert_allclose(tt.load(tmp_path / "saved", trust=True)(x), x @ weights, rtol=1e-4, atol=1e-3)
    assert len(moved) == (weights.nbytes >= HUGE_PAGE)
    for address, nbytes in moved:
        assert nbytes == weights.nbytes
        assert not has_huge_pages() or huge_bytes_at(address + nbytes // 2) >= nbytes // 2
