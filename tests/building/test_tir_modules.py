# ruff: noqa: N803, N805, N806
"""REQUIREMENTS N0, BUILD: TIR of host and device code is built and run, and stays split."""

import numpy as np
import pytest

import tvmtarget as tt
from tvmtarget.autotune.log.match import Policy
from tvmtarget.errors import BackendError, ModelError, RunError, TargetError

tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")

from tvm.script import ir as I  # noqa: E402, N812
from tvm.script import tirx as T  # noqa: E402, N812

PAIR = "llvm(mcpu=x86-64-v2,host=llvm)"
A = np.arange(16, dtype="float32")


@I.ir_module
class Pair:
    """Host code, and a subgraph for another CPU, both of which call a private function."""

    @T.prim_func(private=True)
    def more(data: T.handle("float32"), i: T.int32):
        B = T.decl_buffer((16,), "float32", data=data)
        B[i] = B[i] + T.float32(1)

    @T.prim_func
    def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32"), n: T.int32):
        with T.attr(T.target({"kind": "llvm", "mcpu": "x86-64-v2"}), "target", 0):
            for i in range(16):
                B[i] = A[i] * T.Cast("float32", n)
        for i in range(16):
            Pair.more(B.data, i)


@I.ir_module
class Threads:
    @T.prim_func
    def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
        i = T.launch_thread("threadIdx.x", 16)
        B[i] = A[i] * T.float32(2)


def given():
    return {"A": A.copy(), "B": np.zeros(16, "float32"), "n": 3}


@pytest.mark.parametrize("form", ["tvm", "ours", "split", "text", "back"])
def test_host_and_device_code_of_two_cpus_runs_as_one_program(form, tmp_path):
    module = Pair if form == "tvm" else tt.IRModule.from_tvm(Pair)
    if form in ("split", "text", "back"):
        module = tt.split_host_device(module, PAIR)
        assert {f.name for f in module} >= {"main", "main_kernel", "more"}
        assert module["main_kernel"].attr("calling-convention") == "device-kernel-launch"
    if form == "text":
        module = tt.IRModule.parse(str(module))
    if form == "back":
        module = tt.IRModule.from_tvm(module.to_tvm())
    exe = tt.build(module, PAIR)
    values = given()
    results = exe.run(values)
    np.testing.assert_array_equal(results["B"], 3 * A + 1)
    np.testing.assert_array_equal(values["B"], 3 * A + 1)  # written, as TVM writes it
    exe.save(tmp_path / "pair.tta")
    with pytest.raises(BackendError, match="is compiled only if you trust who wrote it"):
        tt.load(tmp_path / "pair.tta").run(given())
    trusted = tt.load(tmp_path / "pair.tta", trust=True)
    np.testing.assert_array_equal(trusted.run(given())["B"], 3 * A + 1)


@I.ir_module
class Calling:
    """Host code alone: main doubles through a private function, and adds one through a second one."""

    @T.prim_func(private=True)
    def more(data: T.handle("float32"), i: T.int32):
        B = T.decl_buffer((16,), "float32", data=data)
        B[i] = B[i] + T.float32(1)

    @T.prim_func(private=True)
    def twice(data: T.handle("float32"), i: T.int32):
        B = T.decl_buffer((16,), "float32", data=data)
        B[i] = B[i] * T.float32(2)
        Calling.more(data, i)

    @T.prim_func
    def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
        for i in range(16):
            B[i] = A[i]
            Calling.twice(B.data, i)


@pytest.mark.parametrize("tree", ["llvm", "[a=llvm,b=llvm](host=@b)", "llvm(host=llvm(num-cores=2))"])
@pytest.mark.parametrize("form", ["tvm", "ours", "split", "text", "back"])
def test_code_of_the_host_alone_runs_as_a_program(form, tree):
    module = Calling if form == "tvm" else tt.IRModule.from_tvm(Calling)
    if form in ("split", "text", "back"):
        module = tt.split_host_device(module, tree)
    if form == "text":
        module = tt.IRModule.parse(str(module))
    if form == "back":
        module = tt.IRModule.from_tvm(module.to_tvm())
    values = {"A": A.copy(), "B": np.zeros(16, "float32")}
    np.testing.assert_array_equal(tt.build(module, tree).run(values)["B"], 2 * A + 1)


def test_the_progress_of_building_code_is_reported():
    steps = []
    tt.build(Pair, PAIR, progress=lambda *step: steps.append(step))
    assert steps == [("compile main", 0, 1), ("compiled", 1, 1)]


def test_tvm_builds_and_runs_what_a_split_writes():
    written = tt.split_host_device(tt.IRModule.from_tvm(Pair), PAIR).to_tvm()
    built = tvm.compile(written, target="llvm")
    b = tvm.runtime.tensor(np.zeros(16, "float32"))
    built["main"](tvm.runtime.tensor(A), b, 3)
    np.testing.assert_array_equal(b.numpy(), 3 * A + 1)


def test_outputs_of_read_only_inputs_are_returned():
    values = given()
    values["B"].flags.writeable = False
    np.testing.assert_array_equal(tt.build(Pair, PAIR).run(values)["B"], 3 * A + 1)
    assert not values["B"].any()


def test_code_for_cuda_is_generated_and_runs_where_a_gpu_is():
    split = tt.split_host_device(tt.IRModule.from_tvm(Threads), "cuda(arch=sm_80,host=llvm)")
    for module in (split, tt.IRModule.from_tvm(Threads)):
        exe = tt.build(module, "cuda(arch=sm_80,host=llvm)")
        (leaf,) = exe._leaves.values()
        assert "main_kernel" in leaf.compiled.source()  # type: ignore[attr-defined]
        assert leaf.request.ops[0] == "main"
        values = {"A": A.copy(), "B": np.zeros(16, "float32")}
        if leaf.cannot_run is None:
            np.testing.assert_array_equal(exe.run(values)["B"], 2 * A)
        else:
            with pytest.raises(RunError, match=r"@\. cannot run on this machine"):
                exe.run(values)


def test_code_that_cannot_be_built_is_an_error_with_its_place():
    with pytest.raises(BackendError, match=r"'main_kernel' for @gpu cannot be built: TIR is built.*not vulkan"):
        tt.build(Threads, "[gpu=vulkan,cpu=llvm](host=@cpu)")
    with pytest.raises(TargetError, match="where has no effect: the entry of the module is TIR code"):
        tt.build(Pair, PAIR, where={"main": "@host"})
    for given in ({"policy": Policy(max_distance=1.0)}, {"since": tt.build(Pair, PAIR)}):
        with pytest.raises(TargetError, match="has no effect: the entry of the module is TIR code"):
            tt.build(Pair, PAIR, **given)
    with pytest.raises(BackendError, match="not numpy, and numpy interprets none"):
        tt.build(Calling, "numpy", allow_interpreter=True)
    with pytest.raises(BackendError, match="executor 'aot' cannot drive TIR code"):
        tt.build(Pair, PAIR, executor="aot")
    with pytest.raises(BackendError, match=r"executor attribute 'link-params' \(true\) of @\. would be ignored"):
        tt.build(Pair, PAIR, executor={"kind": "graph", "link-params": True})
    with pytest.raises(BackendError, match="executor 'vm' cannot drive TIR code of @board"):
        tt.build(Calling, "[board=[core=llvm](host=@core,executor=vm)](host=@board/core)")
    with pytest.raises(ModelError, match=r"no function 'main'; name the entry \(entry=...\): 'go', 'more'"):
        tt.build(tvm.IRModule({"go": Pair["main"], "more": Threads["main"]}), PAIR)


def test_threads_on_a_cpu_are_an_error_that_names_the_function():
    with pytest.raises(BackendError, match=r"tvm cannot take function 'main' of @"):
        tt.build(Threads, PAIR)


def test_decompose_refers_to_build_for_code():
    with pytest.raises(ModelError, match=r"function 'main' is TIR code.*split_host_device.*build"):
        tt.decompose(tt.IRModule.from_tvm(Pair), PAIR)
