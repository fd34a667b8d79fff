"""Programs that C++ interprets compute what the graph executor computes in Python."""

import json
import platform
import shutil
import subprocess

import numpy as np
import pytest
from driver_models import DRIVER_MODELS
from models import DIGITS, EXAMPLES, small
from onnx import helper, parser

import tvmtarget as tt
from tvmtarget.backends.tvm.cpu_versions import LEVEL_VARIABLE
from tvmtarget.errors import ArtifactError, BackendError, RunError
from tvmtarget.executors import graph_cpp
from tvmtarget.executors.graph_cpp import _interpreter, header_flags, library_flags
from tvmtarget.toolchains.compilers import Toolchain

OPEN = []
PAIR = "[a=llvm,b=llvm](host=@a,runtime={runtime})"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def both(model, **options):
    """Build a model for both runtimes, with equal placement."""
    return [tt.build(model, PAIR.format(runtime=runtime), **options) for runtime in ("python", "cpp")]


def check(executables, *inputs):
    python, cpp = executables
    for values in inputs:
        given = dict(zip(python.inputs, map(np.asarray, values), strict=True))
        expected, actual = python.run(given), cpp.run(given)
        assert list(actual) == list(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(actual[name], array, strict=True)


def digits():
    with np.load(EXAMPLES / "digits.npz") as stored:
        return stored["input"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Compile the example programs in C++, with warnings as errors."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("run_graph", "run_vm"):
        source = str(EXAMPLES / "cpp" / f"{name}.cc")
        warnings = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
        command = ["g++", *warnings, *header_flags(), source, "-o", str(folder / name), *library_flags()]
        subprocess.run(command, check=True)
    return folder


def run_program(*words):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_digits_are_equal_in_python_in_cpp_and_in_a_program_without_python(programs, tmp_path):
    x = digits()
    executables = both(DIGITS, where={"op:Gemm": "@b"})
    check(executables, [x], [x[:1]])
    np.save(tmp_path / "x.npy", x)
    for name in ("folder", "archive.tar"):
        executables[1].export(tmp_path / name)
        done = run_program(programs / "run_graph", tmp_path / name, tmp_path / "x.npy", tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        np.testing.assert_array_equal(np.load(tmp_path / "0.npy"), executables[0](x), strict=True)


@pytest.fixture(scope="module")
def vm_library(tmp_path_factory):
    """Return the digits network for two leaves, and a library of it, beside its inputs."""
    folder = tmp_path_factory.mktemp("library")
    executable = tt.build(DIGITS, "[a=llvm,b=llvm](host=@a,executor=vm,runtime=cpp)", where={"op:Gemm": "@b"})
    executable.export(folder / "digits.so")
    np.save(folder / "x.npy", digits())
    return executable, folder


@pytest.mark.slow
def test_a_vm_library_runs_in_a_program_without_python(programs, vm_library, tmp_path):
    executable, folder = vm_library
    done = run_program(programs / "run_vm", folder / "digits.so", folder / "x.npy", tmp_path / "y.npy")
    assert (done.returncode, done.stderr) == (0, "")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), executable(digits()), strict=True)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="several versions are for x86-64")
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="needs qemu-x86_64 of Debian's qemu-user")
def test_a_cpu_without_avx_runs_a_library_that_was_built_on_one_with_it(programs, vm_library, tmp_path, monkeypatch):
    executable, folder = vm_library
    words = ["qemu-x86_64", "-cpu", "Nehalem", programs / "run_vm", folder / "digits.so", folder / "x.npy"]
    done = run_program(*words, tmp_path / "y.npy")
    assert (done.returncode, done.stderr) == (0, "")
    executable.save(tmp_path / "digits.tta")
    monkeypatch.setenv(LEVEL_VARIABLE, "1")
    oldest = tt.load(tmp_path / "digits.tta", trust=True)(digits())
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), oldest, strict=True)


@pytest.mark.slow
def test_a_loop_without_iterations_stacks_slices_of_the_sizes_of_the_inputs():
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[n,2] x, int64 count) => (float[n,2] y, float[k,n,2] z) {
            y, z = Loop(count, "", x) <body = b (int64 i, bool c, float[n,2] u)
                => (bool d, float[n,2] v, float[n,2] w) { d = Identity(c)  v = Tanh(u)  w = Neg(u) }>
        }""")
    cpp = tt.build(model, PAIR.format(runtime="cpp"), where={"op:Tanh": "@a", "op:Neg": "@b"})
    x = np.float32([[1, 2], [3, 4], [5, 6]])
    for count in (0, 1):
        y, z = cpp(x, np.asarray(count))
        np.testing.assert_allclose(y, np.tanh(x) if count else x, rtol=1e-6)
        np.testing.assert_array_equal(z, -x[None][:count], strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRIVER_MODELS)
def test_control_flow_and_symbolic_shapes_are_those_of_python(name):
    model, where, inputs = DRIVER_MODELS[name]
    check(both(tt.IRModule.from_onnx(model), where=where), *inputs)


def test_a_program_of_cached_code_and_its_interpreter_run_in_cpp(tmp_path, monkeypatch):
    """It is here since a process that has no cache compiles the interpreter, for seconds."""
    x = np.ones((2, 3), "float32")
    program = small(helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"]))
    for _ in range(2):
        # What is open stays open, as programs of other tests may call it.
        OPEN.extend(graph_cpp._opened)
        graph_cpp._opened.clear()
        exe = tt.build(program, "llvm(executor=graph,runtime=cpp)", cache=tmp_path / "cache")
        np.testing.assert_array_equal(exe(x), -x)
        monkeypatch.setattr(Toolchain, "compile", None)


def test_constants_of_drivers_are_npy_files(tmp_path):
    model = small(helper.make_node("Add", ["x", "w"], ["y"], name="add"), w=np.float32([[1, 2, 3], [4, 5, 6]]))
    (cpp,) = both(model)[1:]
    np.testing.assert_array_equal(cpp(np.zeros((2, 3), "float32")), [[1, 2, 3], [4, 5, 6]])
    cpp.export(tmp_path / "first.tar")
    cpp.export(tmp_path / "second.tar")
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("trust", [True, False])
def test_a_saved_program_is_interpreted_in_cpp_again(trust, tmp_path):
    x = digits()[:3]
    cpp = both(DIGITS, where={"op:Gemm": "@b"})[1]
    cpp.save(tmp_path / "program")
    np.testing.assert_array_equal(tt.load(tmp_path / "program", trust=trust)(x), cpp(x))


@pytest.mark.slow
def test_a_program_in_cpp_rejects_inputs_and_files_that_do_not_fit(programs, tmp_path):
    both(DIGITS)[1].export(tmp_path / "folder")
    for array, problem in (
        (np.zeros((1, 1, 8, 8)), "input 'input' is float64, not float32"),
        (np.zeros((1, 8, 8), "float32"), "input 'input' has shape (1, 8, 8), which does not fit the program"),
        (np.asfortranarray(np.zeros((2, 1, 8, 8), "float32")), "in Fortran order"),
    ):
        np.save(tmp_path / "x.npy", array)
        done = run_program(programs / "run_graph", tmp_path / "folder", tmp_path / "x.npy", tmp_path)
        assert done.returncode == 1
        assert problem in done.stderr
    (tmp_path / "folder" / "program.json").write_text("{")
    done = run_program(programs / "run_graph", tmp_path / "folder", tmp_path / "x.npy", tmp_path)
    assert "program.json is damaged" in done.stderr


@pytest.mark.slow
def test_results_that_cannot_be_written_are_an_error_and_leave_the_file_as_it_was(programs, tmp_path):
    executable = both(DIGITS)[1]
    for name in ("folder", "digits.tar"):
        executable.export(tmp_path / name)
    np.save(tmp_path / "x.npy", np.zeros((100, 1, 8, 8), "float32"))
    (tmp_path / "0.npy").write_text("before")
    # As on a full disk, writes fail beyond 1,024 bytes; the results have 4,128, the files of the archive more.
    limited = 'ulimit -f 1; trap "" XFSZ; exec "$@"'
    for program in ("folder", "digits.tar"):
        words = [programs / "run_graph", tmp_path / program, tmp_path / "x.npy", tmp_path]
        done = run_program("bash", "-c", limited, "bash", *words)
        assert (done.returncode, "cannot write" in done.stderr) == (1, True), done.stderr
    assert (tmp_path / "0.npy").read_text() == "before"
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.slow
def test_an_archive_cannot_write_outside_of_its_folder(programs, tmp_path):
    import tarfile

    with tarfile.open(tmp_path / "evil.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("../evil.txt"))
    done = run_program(programs / "run_graph", tmp_path / "evil.tar", tmp_path)
    assert "outside of its folder" in done.stderr


def test_what_is_no_tensor_is_an_error_that_names_the_input(tmp_path):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    both(small(helper.make_node("Neg", ["x"], ["y"]), shape=(2, 2)))[1].export(tmp_path / "program")
    program = _interpreter()["open_program"](str(tmp_path / "program"))
    for arguments in ((None,), (1,), ("x",), ([None],)):
        with pytest.raises(RuntimeError, match="input 'x' is not a tensor"):
            program(*arguments)
    with pytest.raises(RuntimeError, match="0 inputs are given, and the program takes 1"):
        program()
    strided = tvm_ffi.from_dlpack(np.ones((2, 2), "float32").T)
    with pytest.raises(RuntimeError, match="input 'x' has strides; copy it into one piece of memory"):
        program(strided)


def test_leaves_of_other_code_generators_are_rejected_with_their_path():
    with pytest.raises(BackendError, match=r"@b cannot be built: executor 'graph' on runtime 'cpp' .*onnxruntime"):
        tt.build(DIGITS, "[a=llvm,b=onnxruntime](host=@a,runtime=cpp)", where={"op:Gemm": "@b"})


@pytest.mark.slow
def test_a_place_among_nothing_is_an_error_that_names_the_function_and_a_sum_is_0():
    given = np.zeros((0, 3), "float32")
    nodes = [helper.make_node("ArgMax", ["x"], ["h"], axis=0), helper.make_node("Cast", ["h"], ["y"], to=1)]
    model = small(*nodes, shape=("n", 3))
    with pytest.raises(RunError, match=r"of @\. failed: input 0 has no elements"):
        tt.build(model, "llvm(runtime=cpp)")(given)
    model = small(helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0), shape=("n", 3))
    np.testing.assert_array_equal(tt.build(model, "llvm(runtime=cpp)")(given), 0)


@pytest.mark.slow
def test_an_export_that_fails_halfway_leaves_no_manifest_of_mixed_files(tmp_path):
    both(DIGITS, where={"op:Gemm": "@b"})[1].export(tmp_path)
    (tmp_path / "leaves" / "1.so").unlink()
    (tmp_path / "leaves" / "1.so").mkdir()
    with pytest.raises(ArtifactError, match="cannot be written"):
        both(DIGITS, where={"op:Conv": "@b"})[1].export(tmp_path)
    assert not (tmp_path / "manifest.json").exists()


def test_the_manifest_names_files_and_devices(tmp_path):
    both(DIGITS, where={"op:Gemm": "@b"})[1].export(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert {leaf["site"] for leaf in manifest["leaves"].values()} == {"a", "b"}
    for leaf in manifest["leaves"].values():
        assert leaf["device"] == [1, 0]
        assert (tmp_path / leaf["file"]).exists()


@pytest.mark.parametrize("executor", ["graph", "aot"])
@pytest.mark.parametrize("name", ["x.dll", "x.tar.gz"])
def test_no_folder_is_written_under_the_name_of_a_file(tmp_path, executor, name):
    model = small(helper.make_node("Neg", ["x"], ["y"]))
    executable = tt.build(model, f"llvm(executor={executor},runtime=cpp)")
    with pytest.raises(ArtifactError, match=r"there is no export that ends with .*; name a folder"):
        executable.export(tmp_path / name)
    assert not list(tmp_path.iterdir())
