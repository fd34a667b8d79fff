"""Systems: a node with its own executor or runtime is compiled by that executor and called as one function."""

import json
import runpy
import shutil
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
from models import DIGITS, EXAMPLES

import tvmtarget as tt
from tvmtarget.executors.driver_program import DriverProgram
from tvmtarget.executors.protocol import CallEvent

BOARD = "[board=[npu=onnxruntime,cpu=numpy](host=@cpu,executor=graph),cpu=numpy](host=@cpu)"
WHERE = {"conv*": "@board/npu", "conv1": "@board/cpu", "fc*": "@cpu", "relu4": "@cpu"}
X = np.linspace(0, 1, 128, dtype="float32").reshape(2, 1, 8, 8)


def digits(x=X):
    return onnxruntime.InferenceSession(str(DIGITS)).run(None, {"input": x})[0]


def systems(exe):
    return [(one["path"], one["executor"], one["runtime"]) for one in exe.report()["systems"]]


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("[a=numpy,b=numpy]", [("", "graph", "python")]),
        ("numpy", [("", "graph", "python")]),
        (BOARD, [("board", "graph", "python"), ("", "graph", "python")]),
        (BOARD.replace(",executor=graph", ""), [("", "graph", "python")]),
        (
            "[m=[board=[a=numpy,b=numpy](host=@b,runtime=python),c=numpy](host=@c,executor=graph),cpu=numpy](host=@cpu)",
            [("m/board", "graph", "python"), ("m", "graph", "python"), ("", "graph", "python")],
        ),
        ("[npu=numpy(executor=graph),cpu=numpy](host=@cpu)", [("npu", "graph", "python"), ("", "graph", "python")]),
        ("[npu=numpy(executor=graph)]", [("npu", "graph", "python"), ("", "graph", "python")]),
        ("numpy(executor=graph)", [("", "graph", "python")]),
    ],
)
def test_a_system_is_the_root_or_a_node_with_its_own_executor_or_runtime(target, found, tmp_path):
    exe = tt.build(DIGITS, target, where=WHERE if target.startswith("[board") else None)
    assert systems(exe) == found
    np.testing.assert_allclose(exe(X), digits(), atol=1e-4)
    exe.save(tmp_path / "program.ttx")
    loaded = tt.load(tmp_path / "program.ttx")
    np.testing.assert_allclose(loaded(X), digits(), atol=1e-4)
    assert loaded.report() == exe.report()  # what ran inside is known after the first run


def test_events_of_a_nested_system_have_the_name_of_its_call():
    exe = tt.build(DIGITS, BOARD, where=WHERE)
    calls = [event.call for event in exe.profile({"input": X}) if isinstance(event, CallEvent)]
    assert calls == [subgraph["call"] for subgraph in exe.report()["subgraphs"]]
    leaf = tt.build(DIGITS, "[npu=numpy(executor=graph),cpu=numpy](host=@cpu)", where={"fc*": "@cpu"})
    calls = [event.call for event in leaf.profile({"input": X}) if isinstance(event, CallEvent)]
    assert calls == [subgraph["call"] for subgraph in leaf.report()["subgraphs"]]


def test_a_program_of_the_previous_schema_is_read():
    program = DriverProgram.of(tt.decompose(DIGITS, BOARD, where=WHERE).module)
    data = json.loads(program.write())
    assert data.pop("schema_version") == 2
    del data["signatures"]
    assert DriverProgram.read(json.dumps(data | {"schema_version": 1}).encode()).drivers == program.drivers


UNREAD = """
func @main(%x: float32[2]) -> (float32[2]) opsets(onnx=18) [@.] attrs {role="driver"} {
  () = @unread(%x) as abs
  return %x
}
func @unread(%y: float32[2]) -> () opsets(onnx=18) [@n] attrs {role="driver"} {
  %u: float32[2] = @a_abs(%y) as a_abs
  return
}
func @a_abs(%y: float32[2]) -> (float32[2]) opsets(onnx=18) [@n/a] attrs {role="leaf"} {
  %u: float32[2] = onnx.Abs(%y) as abs
  return %u
}
"""


def test_drivers_whose_calls_are_omitted_are_omitted_too():
    assert [*DriverProgram.of(tt.IRModule.parse(UNREAD)).drivers] == ["main"]


@pytest.mark.parametrize("runtime", ["processes", pytest.param("dask", marks=pytest.mark.slow)])
def test_systems_nest_inside_the_machines_of_a_cluster(runtime):
    pytest.importorskip("distributed" if runtime == "dask" else "numpy")
    machine = "[npu=[a=numpy,b=onnxruntime](host=@a,executor=graph),cpu=numpy](host=@cpu,executor=graph)"
    tree = f"[n0={machine},n1={machine}](host=@n0/cpu,runtime={runtime})"
    where = {"conv*": "@n0/npu/b", "conv1": "@n0/cpu", "fc*": "@n1/npu/a", "relu4": "@n1/cpu"}
    exe = tt.build(DIGITS, tree, where=where)
    try:
        assert list(dict.fromkeys(path for path, _, _ in systems(exe))) == ["n0/npu", "n0", "n1/npu", "n1", ""]
        np.testing.assert_allclose(exe(X), digits(), atol=1e-4)
    finally:
        exe.close()


@pytest.mark.slow
def test_the_accelerators_of_the_machines_of_a_cluster_run_programs_in_c():
    pytest.importorskip("distributed")
    machine = "[npu=[core=c](host=@core,executor=aot,runtime=crt),cpu=numpy](host=@cpu,executor=graph)"
    tree = f"[n0={machine},n1={machine}](host=@n0/cpu,runtime=dask)"
    where = {"*": "@n0/npu/core", "fc*": "@n1/npu/core", "relu4": "@n1/cpu"}
    exe = tt.build(tt.specialize(tt.IRModule.from_onnx(DIGITS), {"batch": 2}), tree, where=where)
    try:
        pairs = {path: (executor, runtime) for path, executor, runtime in systems(exe)}
        assert pairs["n0/npu"] == pairs["n1/npu"] == ("aot", "crt")
        assert (pairs["n0"], pairs["n1"], pairs[""]) == (("graph", "python"), ("graph", "python"), ("graph", "dask"))
        np.testing.assert_allclose(exe(X), digits(), atol=1e-4)
    finally:
        exe.close()


@pytest.mark.slow
@pytest.mark.parametrize("board", ["here", "aarch64"])
def test_the_example_calls_a_program_in_c_for_a_board(board, capsys):
    compiler = "gcc" if board == "here" else "aarch64-linux-gnu-gcc"
    if not shutil.which(compiler) or (board == "aarch64" and not shutil.which("qemu-aarch64")):
        pytest.skip(f"needs {compiler}, and qemu-aarch64 for code of another machine")
    runpy.run_path(str(EXAMPLES / "board.py"))["main"](board)
    assert capsys.readouterr().out.startswith("@board: aot on crt")


SCRIPT = """
import sys
import numpy as np
import tvmtarget as tt
from tvmtarget import plugins
from tvmtarget_sample.executor import KINDS

plugins.register("tvmtarget.kinds", "straight", KINDS)
path = sys.argv[2]
for tree in sys.argv[5:]:
    try:
        tt.build(tt.IRModule.from_onnx(sys.argv[1]), tree)
    except tt.TvmTargetError as error:
        print(*error.problems, sep="\\n")
if sys.argv[3]:
    program = tt.build(tt.IRModule.from_onnx(sys.argv[1]), sys.argv[3], where=eval(sys.argv[4]))
    program.save(path)
    for exe in (program, tt.load(path), tt.load(path, trust=True)):
        print([(one["path"], one["executor"].partition("(")[0]) for one in exe.report()["systems"]])
        events = exe.profile({"input": np.ones((2, 1, 8, 8), "float32")})
        print([event.call for event in events if hasattr(event, "call")])
        print(exe(np.ones((2, 1, 8, 8), "float32")).tolist())
    board = [one for one in program.systems.values() if one.system.executor.kind == "straight"][0].system.name
    program.export(path + ".py", board)
    print(open(path + ".py").read().splitlines()[0])
"""


def run_straight(folder, target="", where=None, refused=()):
    pytest.importorskip("tvmtarget_sample.executor", reason="pip install ./tests/plugin")
    command = [sys.executable, "-c", SCRIPT, str(DIGITS), str(folder / "program.ttx"), target, repr(where), *refused]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_executor_of_another_package_compiles_a_nested_system(tmp_path):
    tree = BOARD.replace("executor=graph", "executor=straight(greeting=hello)")
    lines = run_straight(tmp_path, tree, WHERE)
    ones = digits(np.ones((2, 1, 8, 8), "float32"))
    for number in range(3):
        listed, greeting, called, again, results = lines[5 * number : 5 * number + 5]
        assert listed == "[('board', 'straight'), ('', 'graph')]"
        assert greeting == again == "hello"
        assert called == "['conv1', 'fc1']"  # it reports no calls, so that its parent reports one
        np.testing.assert_allclose(json.loads(results), ones, atol=1e-4)
    assert lines[15] == "functions = {}"


def test_the_executor_of_another_package_compiles_a_root_and_the_drivers_inside(tmp_path):
    tree = BOARD.replace("executor=graph", "links=[]").replace("(host=@cpu)", "(host=@cpu,executor=straight)")
    lines = run_straight(tmp_path, tree, WHERE)
    assert lines[0] == "[('', 'straight')]"
    np.testing.assert_allclose(json.loads(lines[2]), digits(np.ones((2, 1, 8, 8), "float32")), atol=1e-4)


REFUSED = {
    "[s=[a=numpy](executor=straight(colour=red)),b=numpy](host=@b)": (
        "executor attribute 'colour' (red) of @s would be ignored: the straight executor does not honour it; "
    ),
    "[s=[a=numpy](executor=graph),b=numpy](host=@b,executor=straight)": (
        "@s cannot be built: executor 'straight' on runtime 'python' does not support a nested system of "
    ),
    "[s=[a=probe,c=probe,d=numpy](executor=straight,host=@d),b=numpy](host=@b)": (
        "@s/a cannot be built: executor 'straight' does not call leaves of kind 'probe'"
    ),
    "[n0=[a=numpy](host=@a),n1=[a=numpy](host=@a)](host=@n0/a,executor=straight,runtime=processes)": (
        "@. cannot be built: executor 'straight' on runtime 'processes' does not run programs of several"
    ),
}


def test_what_an_executor_cannot_honour_is_refused_with_the_path(tmp_path):
    lines = run_straight(tmp_path, refused=REFUSED)
    for line, problem in zip(lines, REFUSED.values(), strict=True):
        assert line.startswith(problem)
