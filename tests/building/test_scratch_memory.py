"""Memory that kernels allocate while they run: reported, stored with the code, and counted against limits."""

import numpy as np
import pytest
from models import small
from onnx import helper

import tvmtarget as tt
from tvmtarget.backends.protocol import scratch_in
from tvmtarget.errors import CompileError, FileError, TvmTargetWarning

WEIGHTS = np.random.default_rng(0).normal(size=(8, 4, 5, 5)).astype("float32")
MODEL = small(
    helper.make_node("Conv", ["x", "w"], ["c"], pads=[2] * 4, name="conv"),
    helper.make_node("Relu", ["c"], ["y"], name="relu"),
    shape=(1, 4, 32, 32),
    w=WEIGHTS,
)
PADDED = 4 * 4 * 36 * 36
VALUES = 4 * (4 + 2 * 8) * 32 * 32  # the input, and both results


def scratch(executable):
    (subgraph,) = executable.report()["subgraphs"]
    return subgraph["scratch"]


def board(nbytes):
    return {"kind": "llvm", "name": "a", "memory": [{"name": "dram", "bytes": nbytes}]}


def test_a_build_reports_what_kernels_allocate_also_from_the_cache_or_a_file(tmp_path):
    built = tt.build(MODEL, "llvm", cache=tmp_path / "cache")
    assert PADDED <= scratch(built) < 2 * PADDED
    assert scratch(tt.build(MODEL, "llvm", cache=tmp_path / "cache")) == scratch(built)
    built.save(tmp_path / "saved.tta")
    for trust in (False, True):
        assert scratch(tt.load(tmp_path / "saved.tta", trust=trust)) == scratch(built)


def test_a_memory_without_room_for_what_a_kernel_allocates_is_an_error():
    room = VALUES + WEIGHTS.nbytes
    with pytest.raises(CompileError, match=r"'conv', 'relu'\): kernel 'fused_conv2d_relu.*too many; allow these ops"):
        tt.build(MODEL, board(room + PADDED - 1))
    assert scratch(tt.build(MODEL, board(room + 2 * PADDED))) >= PADDED


def test_operations_whose_kernels_allocate_too_much_move_to_another_memory():
    nodes = [board(VALUES + WEIGHTS.nbytes), {"kind": "llvm", "name": "b"}]
    target = tt.Target.from_json({"kind": "composite", "host": "@b", "targets": nodes})
    with pytest.warns(TvmTargetWarning, match=r"kernel 'fused_conv2d_relu.* its operations run on other leaves now"):
        built = tt.build(MODEL, target)
    assert {one["site"] for one in built.report()["subgraphs"]} == {"b"}


@pytest.mark.parametrize("text", ["[]", '{"k": -1}', '{"k": true}', "{"])
def test_stated_bytes_that_are_none_are_errors(text):
    with pytest.raises(FileError):
        scratch_in({"scratch.json": text.encode()})
