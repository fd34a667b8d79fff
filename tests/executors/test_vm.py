"""Programs under the executor `vm` compute what the graph executor computes."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from driver_models import DRIVER_MODELS
from gpus import needs_gpu
from models import DIGITS, EXAMPLES, small
from onnx import helper, parser

import tvmtarget as tt
from tvmtarget.errors import ArtifactError, BackendError, RunError, TvmTargetWarning
from tvmtarget.executors.protocol import CallEvent
from tvmtarget.executors.vm import LoopDrivers, VmSystem

PAIR = "[a=llvm,b=llvm](host=@a,executor={executor})"


def both(model, target=PAIR, **options):
    """Build a model for both executors, with equal placement."""
    return [tt.build(model, target.format(executor=executor), **options) for executor in ("graph", "vm")]


def check(executables, *inputs):
    """Compare both executors with the interpreter, which reports calls, on inputs given as tuples in order."""
    graph, vm = executables
    for values in inputs:
        given = dict(zip(graph.inputs, map(np.asarray, values), strict=True))
        expected = graph.run(given, record=lambda event: None)
        for actual in (vm.run(given), graph.run(given)):
            assert list(actual) == list(expected)
            for name, array in expected.items():
                np.testing.assert_array_equal(actual[name], array, strict=True)


def digits():
    with np.load(EXAMPLES / "digits.npz") as stored:
        return stored["input"]


def test_digits_on_two_leaves_are_those_of_the_graph_executor():
    x = digits()
    check(both(DIGITS, where={"op:Gemm": "@b"}), [x], [x[:1]])


def test_a_program_on_one_leaf_needs_no_driver():
    check(both(DIGITS, "llvm(executor={executor})"), [digits()[:3]])


def test_a_program_is_one_call_with_its_duration():
    executable = tt.build(DIGITS, PAIR.format(executor="vm"), where={"op:Gemm": "@b"})
    (event,) = executable.profile({"input": digits()[:2]})
    assert isinstance(event, CallEvent)
    assert event.function == "main"
    assert event.duration_ns > 0


@pytest.mark.parametrize("trust", [True, False])
def test_a_saved_program_computes_the_same_by_its_code_or_by_its_source(trust, tmp_path):
    x = digits()[:5]
    executable = tt.build(DIGITS, PAIR.format(executor="vm"), where={"op:Gemm": "@b"})
    executable.save(tmp_path / "program")
    loaded = tt.load(tmp_path / "program", trust=trust)
    np.testing.assert_array_equal(loaded(x), executable(x))


@pytest.mark.parametrize("name", DRIVER_MODELS)
def test_control_flow_of_drivers_is_that_of_the_graph_executor(name):
    """Loops exchange states and stack results, shapes are symbolic, scans have any axes and directions."""
    model, where, inputs = DRIVER_MODELS[name]
    check(both(tt.IRModule.from_onnx(model), where=where), *inputs)


def test_long_loops_do_not_recurse():
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x, int64 n) => (float[2] y) {
            [all] y = Loop(n, , x) <body = b (int64 i, bool c, float[2] u) => (bool d, float[2] v) {
                [keep] d = Identity(c)
                [half] h = Mul(u, u)
                [add] v = Sub(u, h)
            }>
        }""")
    executables = both(tt.IRModule.from_onnx(model), where={"half": "@a", "add": "@b"})
    check(executables, [np.float32([0.5, 0.1]), np.int64(30_000)])


@pytest.mark.parametrize("name", ["loop", "scan", "sums"])
def test_the_graph_executor_runs_loops_on_this_cpu_as_native_code(name, monkeypatch, tmp_path):
    """Only runs that report their calls are interpreted; each thread has machines of its own."""
    model, where, inputs = DRIVER_MODELS[name]
    built = tt.build(tt.IRModule.from_onnx(model), PAIR.format(executor="graph"), where=where)
    built.save(tmp_path / "program")
    values = dict(zip(built.inputs, map(np.asarray, inputs[-1]), strict=True))
    expected = built.run(values, record=lambda event: None)
    monkeypatch.setattr("tvmtarget.executors.graph.run_control", None)
    for executable in (built, tt.load(tmp_path / "program", trust=True)):
        with ThreadPoolExecutor(3) as threads:
            for found in threads.map(executable.run, [values] * 6):
                for one, array in expected.items():
                    np.testing.assert_array_equal(found[one], array, strict=True)


def test_native_loops_that_fail_where_the_interpreter_does_not_are_reported_once(monkeypatch):
    model, where, inputs = DRIVER_MODELS["loop"]
    built = tt.build(tt.IRModule.from_onnx(model), PAIR.format(executor="graph"), where=where)
    values = dict(zip(built.inputs, map(np.asarray, inputs[-1]), strict=True))
    expected = built.run(values)

    def fail(*_):
        raise RuntimeError("no such function\nin the machine")

    monkeypatch.setattr(LoopDrivers, "run", fail)
    with pytest.warns(TvmTargetWarning, match=r"loops of @\. failed; they are interpreted .*: no such function$"):
        found = built.run(values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = built.run(values)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
        np.testing.assert_array_equal(again[name], array, strict=True)


def test_an_error_in_a_loop_names_the_function_and_its_operations():
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (int64[2] x, int64 n) => (int64[2] y) {
            [all] y = Loop(n, , x) <body = b (int64 i, bool c, int64[2] u) => (bool d, int64[2] v) {
                [keep] d = Identity(c)
                [divide] v = Div(u, i)
            }>
        }""")
    executable = tt.build(tt.IRModule.from_onnx(model), "llvm")
    with pytest.raises(RunError, match=r"divide.*failed"):
        executable.run({"x": np.int64([1, 2]), "n": np.int64(3)})


def test_leaves_of_other_code_generators_are_rejected_with_their_path():
    with pytest.raises(
        BackendError, match=r"@b cannot be built: executor 'vm' runs code of TVM .*, not of onnxruntime"
    ):
        tt.build(DIGITS, "[a=llvm,b=onnxruntime](host=@a,executor=vm)", where={"op:Gemm": "@b"})


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        (helper.make_node("MatMul", ["x", "w"], ["y"]), ("n", 3)),
        (helper.make_node("MatMul", ["x", "w"], ["y"]), ("n", 4, 3)),
        (helper.make_node("Gemm", ["x", "w"], ["y"]), ("n", 3)),
        (helper.make_node("Gemm", ["x", "w"], ["y"], transA=1), (3, "n")),
        (helper.make_node("Gemm", ["w", "x"], ["y"], transA=1, transB=1), ("n", 3)),
        (helper.make_node("ReduceMax", ["x"], ["y"], axes=[1]), ("n", 3)),
        (helper.make_node("ReduceMax", ["x"], ["y"], axes=[0]), ("n", 3)),
        (helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0), ("n", 3)),
        (helper.make_node("Gemm", ["x", "x"], ["y"], transA=1), ("n", 3)),
        (helper.make_node("Einsum", ["x", "x"], ["y"], equation="ij,ik->jk"), ("n", 3)),
    ],
)
def test_sums_over_nothing_are_what_onnxruntime_computes(node, shape):
    model = small(node, shape=shape, **({"w": np.ones((3, 2), "float32")} if "w" in node.input else {}))
    none = np.zeros([0 if isinstance(size, str) else size for size in shape], "float32")
    for executable in both(model, "llvm(executor={executor})"):
        check([executable, tt.build(model, "onnxruntime")], [none])


def test_places_in_no_rows_are_an_error():
    model = small(helper.make_node("ArgMin", ["x"], ["y"]), shape=("n", 3))
    for executable in both(model, "llvm(executor={executor})"):
        with pytest.raises((BackendError, RunError), match="would compute no result"):
            executable(np.zeros((0, 3), "float32"))


def test_functions_of_two_targets_are_one_executable():
    """Code of a GPU is generated without one; weights are copied there once, by another function than `main`."""
    target = "[gpu=cuda(arch=sm_80),cpu=llvm](host=@cpu,executor=vm)"
    executable = tt.build(DIGITS, target, where={"op:Conv": "@gpu", "op:Gemm": "@cpu"})
    assert isinstance(executable.root.compiled, VmSystem)
    text = executable.root.compiled.instructions()
    weights, main = text[text.index("@weights:") : text.index("@main:")], text[text.index("@main:") :]
    assert weights.count("vm.builtin.to_device in: c[") == 6
    assert main.count("vm.builtin.to_device in: %") == len(executable.report()["copies"]) == 4


def test_a_program_with_a_gpu_computes_the_same():
    needs_gpu()
    target = "[gpu=cuda,cpu=llvm](host=@cpu,executor={executor})"
    check(both(DIGITS, target, where={"op:Conv": "@gpu", "op:Gemm": "@cpu"}), [digits()])


def test_vm_on_cpp_runs_the_shared_library_that_it_exports(tmp_path):
    x = digits()[:5]
    target = "[a=llvm,b=llvm](host=@a,executor=vm,runtime=cpp)"
    executable = tt.build(DIGITS, target, where={"op:Gemm": "@b"})
    expected = tt.build(DIGITS, PAIR.format(executor="vm"), where={"op:Gemm": "@b"})(x)
    np.testing.assert_array_equal(executable(x), expected)
    executable.export(tmp_path / "digits.so")
    assert (tmp_path / "digits.so").read_bytes()[:4] == b"\x7fELF"
    with pytest.raises(ArtifactError, match=r"exports a shared library only; name it NAME\.so"):
        executable.export(tmp_path)
    (tmp_path / "folder.so").mkdir()
    with pytest.raises(ArtifactError, match="cannot be written"):
        executable.export(tmp_path / "folder.so")


def test_a_node_with_executor_vm_is_one_function_of_the_system_around_it():
    x = digits()[:5]
    target = "[board=[a=llvm,b=llvm](host=@a,executor={executor}),rest=numpy](host=@rest)"
    where = {"op:Gemm": "@board/b", "op:Conv": "@board/a", "op:Flatten": "@rest"}
    graph, vm = both(DIGITS, target, where=where)
    np.testing.assert_array_equal(vm(x), graph(x))
    called = {event.function for event in vm.profile({"input": x}) if isinstance(event, CallEvent)}
    assert len(vm.systems) == 3
    assert called > vm.systems.keys() - {"main"}


@pytest.mark.parametrize(
    "wrong",
    [
        np.ones((2, 3)),
        np.ones((2, 3), "int32"),
        np.ones((3, 2), "float32"),
        np.ones((0, 3), "float32"),
        np.ones((2, 3, 1), "float32"),
        np.ones((), "float32"),
        np.ones((2, 6), "float32")[:, ::2],
        np.ones((3, 2), "float32").T,
        None,
        "text",
    ],
    ids=str,
)
def test_an_exported_library_refuses_what_its_program_does_not_take(wrong, exported_sum):
    import tvm_ffi

    assert exported_sum(tvm_ffi.from_dlpack(np.ones((2, 3), "float32"))).numpy().tolist() == [[2.0] * 3] * 2
    given = tvm_ffi.from_dlpack(wrong) if isinstance(wrong, np.ndarray) else wrong
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        exported_sum(given)


def test_an_exported_library_refuses_strides_of_what_it_reshapes(tmp_path):
    import tvm_ffi

    nodes = helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Add", ["r", "r"], ["y"])
    machine = exported(small(*nodes, s=np.array([6])), tmp_path / "reshaped.so")
    x = np.arange(6, dtype="float32").reshape(2, 3)
    assert machine(tvm_ffi.from_dlpack(x)).numpy().tolist() == [0, 2, 4, 6, 8, 10]
    with pytest.raises((RuntimeError, ValueError)):
        machine(tvm_ffi.from_dlpack(x.reshape(3, 2).T))


@pytest.fixture(scope="module")
def exported_sum(tmp_path_factory):
    """Return x + x of 2 by 3 numbers, by a library that `vm` on `cpp` exported."""
    model = small(helper.make_node("Add", ["x", "x"], ["y"]))
    return exported(model, tmp_path_factory.mktemp("exported") / "sum.so")


def exported(model, path):
    import tvm

    tt.build(model, "llvm(executor=vm,runtime=cpp)").export(path)
    machine = tvm.runtime.load_module(str(path))["vm_load_executable"]()
    machine["vm_initialization"](1, 0, 2)  # the CPU, its number, a pool of memory
    return machine["main"]
