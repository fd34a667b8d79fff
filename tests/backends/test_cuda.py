"""Code for NVIDIA GPUs: what is generated anywhere, what is rejected by name, and what runs where a GPU is."""

import re
import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
from conformance import node_cases, run_case, symbolic
from gpus import needs_gpu, refusal
from models import DIGITS, EXAMPLES, LIGHT, inputs_of, light, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.errors import BackendError, InfeasibleError, RunError
from tvmtarget.executors.protocol import CallEvent, CopyEvent
from tvmtarget.python_process import python_command, python_environment

pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")

BOTH = "[gpu=cuda,cpu=llvm](host=@cpu)"
CHAIN = small(
    helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
    helper.make_node("Relu", ["a"], ["b"], name="rectified"),
    helper.make_node("Add", ["b", "b"], ["y"], name="twice"),
    w=np.arange(12, dtype="float32").reshape(3, 4) - 5,
)
X = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")
Y = 2 * np.maximum(X @ (np.arange(12, dtype="float32").reshape(3, 4) - 5), 0)


def sources(executable):
    """Return the CUDA C++ of each leaf function that has any."""
    programs = [leaf.compiled for leaf in executable.code.values()]
    return [program.source() for program in programs if hasattr(program, "source")]


def whole(model, inputs):
    """Run a model by onnxruntime."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def digits():
    with np.load(EXAMPLES / "digits.npz") as stored:
        return stored["input"], stored["labels"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a"])
def test_a_kernel_is_generated_for_every_function_of_a_network(arch):
    (source,) = sources(tt.build(onnx.load(DIGITS), f"cuda(arch={arch})"))
    assert source.count('extern "C" __global__') >= 3
    assert "__launch_bounds__" in source


def test_a_board_with_another_gpu_and_host_gets_code_without_asking_a_gpu():
    if refusal() is None:
        pytest.skip("CUDA 13 compiles for no sm_53")
    executable = tt.build(CHAIN, "nvidia/jetson-nano", where={"rectified": "cpu"})
    assert len(sources(executable)) == 2


def test_processes_that_import_tvm_without_its_gpus_load_them_for_a_leaf(tmp_path):
    onnx.save(CHAIN, tmp_path / "chain.onnx")
    code = f"""if True:
    import tvmtarget as tt
    from tvmtarget.ir.relax.tvm_library import the_tvm
    tvm = the_tvm()
    from tvm.backend import loader
    print(tvm.get_global_func("tvm.contrib.sort.topk") is not None, loader.is_loaded("cuda"))
    executable = tt.build({str(tmp_path / "chain.onnx")!r}, "cuda(arch=sm_90)")
    print(loader.is_loaded("cuda"), "__global__" in next(iter(executable.code.values())).compiled.source())
    """
    command = python_command("-c", code)
    done = subprocess.run(command, env=python_environment(), capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "False", "True", "True"], done.stderr


def test_blocks_have_no_more_threads_than_the_target_says():
    def threads(target):
        (source,) = sources(tt.build(onnx.load(DIGITS), target))
        return max(map(int, re.findall(r"__launch_bounds__\((\d+)\)", source)))

    assert threads("cuda(arch=sm_90)") > 256
    assert threads("cuda(arch=sm_90,max_threads_per_block=256)") <= 256


@pytest.mark.parametrize("case", ["test_reduce_log_sum_exp_keepdims_example", "test_roialign_aligned_false"])
def test_where_a_rule_of_tvm_raises_the_next_one_schedules(case):
    (found,) = (one for one in node_cases() if one.name == case)
    module = tt.IRModule.from_onnx(found.model)
    names = [param.name for param in module.main.params][1:]
    bound = module.bind(dict(zip(names, found.inputs[1:], strict=True)))
    assert all("threadIdx" in source for source in sources(tt.build(bound, "cuda(arch=sm_90)")))


def test_names_that_are_no_identifiers_of_c_do_not_reach_it():
    model = small(helper.make_node("Relu", ["gpu_0/data"], ["y"]), inputs=("gpu_0/data",))
    (source,) = sources(tt.build(model, "cuda(arch=sm_90)"))
    assert "/data" not in source


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (
            small(helper.make_node("Compress", ["x", "c"], ["y"]), c=np.array([True, False])),
            "its code for it runs on the host, on values of the GPU",
        ),
        (
            small(
                helper.make_node("Resize", ["x", "", "", "s"], ["y"], mode="nearest"),
                shape=(1, 1, 2, 2),
                s=np.array([1, 1, 7, 8], "int64"),
            ),
            "a GPU rounds where two elements are equally near",
        ),
    ],
)
def test_what_comes_out_otherwise_on_a_gpu_is_rejected_by_name(model, problem):
    with pytest.raises(InfeasibleError, match=problem):
        tt.build(model, "cuda(arch=sm_90)")
    tt.build(model, "llvm")


def test_without_a_gpu_a_program_is_built_and_its_run_fails_with_the_fix():
    if refusal() is None:
        pytest.skip("there is a GPU")
    executable = tt.build(CHAIN, BOTH)
    with pytest.raises(RunError, match="@gpu cannot run on this machine: there is no NVIDIA"):
        executable(X)


def test_generated_code_is_compiled_by_nvrtc_for_machines_elsewhere():
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install 'tvmtarget[cuda]'")
    from tvmtarget.backends.tvm.cuda_compiler import cuda_home, machine_code

    home = cuda_home()
    if home is None:
        pytest.skip("the headers of CUDA are not installed")
    (source,) = sources(tt.build(onnx.load(DIGITS), "cuda(arch=sm_80)"))
    assert machine_code(source, "sm_80", home)[:4] == b"\x7fELF"
    with pytest.raises(BackendError, match="error"):
        machine_code("no code", "sm_80", home)


@pytest.mark.parametrize(
    ("target", "where"),
    [
        ("cuda", None),
        (BOTH, None),
        (BOTH, {"rectified": "cpu"}),
        ("[gpu=cuda,cpu=onnxruntime](host=@cpu)", {"rectified": "cpu"}),
        ("[gpu=cuda,cpu=numpy](host=@cpu)", {"product": "cpu"}),
        ('[gpu=cuda,cpu=llvm](host=@cpu,memory=[{"name":"dram","bytes":8589934592}])', {"rectified": "cpu"}),
    ],
)
def test_a_program_runs_on_a_gpu_and_beside_it(target, where, tmp_path):
    needs_gpu()
    executable = tt.build(CHAIN, target, where=where)
    result = executable(X)
    assert isinstance(result, np.ndarray)
    np.testing.assert_allclose(result, Y, rtol=1e-5)
    executable.save(tmp_path / "program")
    for trust in (True, False):
        np.testing.assert_allclose(tt.load(tmp_path / "program", trust=trust)(X), Y, rtol=1e-5)


def test_values_cross_once_and_what_follows_on_the_gpu_finds_them_there():
    needs_gpu()
    events = tt.build(CHAIN, BOTH, where={"rectified": "cpu"}).profile({"x": X})
    copies = [(event.value, event.nbytes) for event in events if isinstance(event, CopyEvent)]
    assert copies == [("x", 24), ("a", 32), ("b", 32), ("y", 32)]
    assert [event.duration_ns > 0 for event in events if isinstance(event, CallEvent)] == [True] * 3


def test_a_gpu_that_is_not_here_is_rejected_by_its_number_and_site():
    needs_gpu()
    import tvm

    count = sum(tvm.cuda(number).exist for number in range(8))
    target = f"[gpu=cuda(count={count + 1}),cpu=llvm](host=@cpu)"
    executable = tt.build(CHAIN, target, where={"product": "@gpu.0", "rectified": f"@gpu.{count}"})
    with pytest.raises(RunError, match=rf"@gpu.{count} cannot run on this machine: it is NVIDIA GPU number {count}"):
        executable(X)


def test_a_gpu_of_another_capability_is_rejected():
    needs_gpu()
    from tvmtarget.backends.tvm.compiled_module import import_tvm
    from tvmtarget.backends.tvm.cuda import capability

    there = capability(import_tvm())
    other = "sm_75" if there != "sm_75" else "sm_80"
    with pytest.raises(RunError, match=f"code for {other} does not run on a GPU of {there}"):
        tt.build(CHAIN, f"cuda(arch={other})")(X)


def test_digits_are_read_by_a_gpu_and_onnxruntime_together():
    needs_gpu()
    model = onnx.load(DIGITS)
    images, labels = digits()
    executable = tt.build(model, "[gpu=cuda,cpu=onnxruntime](host=@cpu)", where={"op:Gemm": "cpu"})
    assert set(executable.backends.values()) == {"tvm", "onnxruntime"}
    expected = [whole(model, {executable.inputs[0]: image[None]})[0] for image in images[:50]]
    found = [executable(image[None]) for image in images[:50]]
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), rtol=1e-4, atol=1e-5)
    assert np.mean(np.concatenate(found).argmax(1) == labels[:50]) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_networks_compute_on_a_gpu_what_they_compute_on_a_cpu(name):
    needs_gpu()
    model, inputs = light(name), inputs_of(light(name))
    found = tt.build(model, BOTH).run(inputs).values()
    for got, expected in zip(found, whole(model, inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("start", range(0, 970, 97))
def test_what_its_strategy_takes_a_gpu_does(start):
    needs_gpu()
    for case in node_cases()[start::970]:  # making them takes ten seconds, and so is not done to collect tests
        for one in (case, symbolic(case)):
            assert run_case(one, "cuda").status != "failed", one.name
