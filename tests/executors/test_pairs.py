"""Every pair of executor and runtime computes what numpy does, or is refused by a rule of docs/executors.md."""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from effort import examples
from onnx import parser

import tvmtarget as tt
from tvmtarget.errors import BackendError, InfeasibleError, TargetError

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

DOCUMENT = Path(__file__).parents[2] / "docs" / "executors.md"
X = np.float32([[1, -2, 3], [0.5, 0, -1]])
K = np.float32([1, 2, 3])


@dataclass(frozen=True)
class Case:
    """A model, the leaf of each of its operators, inputs in order, and what it computes."""

    text: str
    leaves: dict[str, str]
    inputs: list[np.ndarray]
    reference: Callable[..., list[np.ndarray]]

    @property
    def model(self):
        return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {self.text}')


MODELS = {
    "chain": Case(
        "(float[2,3] x) => (float[2,3] y) { a = Neg(x) b = Tanh(a) y = Add(b, x) }",
        {"Neg": "a", "Tanh": "b", "Add": "a"},
        [X],
        lambda x: [np.tanh(-x) + x],
    ),
    "two-inputs": Case(
        "(float[2,3] x, float[2,3] z) => (float[2,3] y, float[2,3] w) { y = Sub(x, z) w = Mul(y, z) }",
        {"Sub": "a", "Mul": "b"},
        [X, X + 1],
        lambda x, z: [x - z, (x - z) * z],
    ),
    "branch": Case(
        """(float[2,3] x, bool c) => (float[2,3] y) { y = If(c) <
            then_branch = t () => (float[2,3] p) { p = Tanh(x) },
            else_branch = e () => (float[2,3] q) { r = Neg(x) q = Tanh(r) }> }""",
        {"Neg": "b", "Tanh": "b"},
        [X, np.array(False)],
        lambda x, c: [np.tanh(x if c else -x)],
    ),
    "loop": Case(
        """(float[2,3] x, int64 n) => (float[2,3] y) { y = Loop(n, , x) <body = b (int64 i, bool c, float[2,3] u)
            => (bool d, float[2,3] v) { d = Identity(c) v = Add(u, x) }> }""",
        {"Add": "b"},
        [X, np.array(3)],
        lambda x, n: [x * (1 + n).astype("float32")],
    ),
    "dynamic-shape": Case(
        "(float[n,3] x) => (float[n,3] y) { a = Neg(x) y = Tanh(a) }",
        {"Neg": "a", "Tanh": "b"},
        [X],
        lambda x: [np.tanh(-x)],
    ),
    "strings": Case(
        "(string[2] x) => (string[2] y) { y = Identity(x) }",
        {"Identity": "b"},
        [np.array(["one", "two"], dtype=object)],
        lambda x: [x],
    ),
    "int8": Case(
        "(int8[2,3] x, int8[2,3] z) => (int8[2,3] y) { a = Add(x, z) y = Max(a, x) }",
        {"Add": "a", "Max": "b"},
        [np.int8([[1, -128, 127], [0, 5, -7]]), np.int8([[1, -1, 1], [3, 4, -9]])],
        lambda x, z: [np.maximum(x + z, x)],
    ),
    "zero-dimensional": Case(
        "(float x) => (float y) { a = Neg(x) y = Tanh(a) }",
        {"Neg": "a", "Tanh": "b"},
        [np.float32(0.5)],
        lambda x: [np.tanh(-x)],
    ),
    "empty-tensor": Case(
        "(float[0,3] x) => (float[0,3] y) { a = Neg(x) y = Tanh(a) }",
        {"Neg": "a", "Tanh": "b"},
        [np.zeros((0, 3), "float32")],
        lambda x: [np.tanh(-x)],
    ),
    "result-is-an-input": Case(
        "(float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Identity(x) z = Neg(x) }",
        {"Identity": "a", "Neg": "b"},
        [X],
        lambda x: [x, -x],
    ),
    "result-is-a-constant": Case(
        "(float[2,3] x) => (float[3] y, float[2,3] z) <float[3] k = {1.0, 2.0, 3.0}> { y = Identity(k) z = Add(x, k) }",
        {"Identity": "a", "Add": "b"},
        [X],
        lambda x: [K, x + K],
    ),
    "one-value-twice": Case(
        "(float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Neg(x) z = Identity(y) }",
        {"Neg": "a", "Identity": "b"},
        [X],
        lambda x: [-x, -x],
    ),
}


@dataclass(frozen=True)
class Pair:
    """A tree of two leaves of different code where the pair allows it, and the refused models with the reason."""

    target: str
    refused: dict[str, str] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=lambda: {"a": "@a", "b": "@b"})


STRINGS_OF_TVM = r"@a: .*@b: DTYPE: it does not support string"
CONTROL = r"^@\. cannot be built: executor 'aot' on runtime '{}' does not support control flow, '(If|Loop)_0'"
STATIC = {
    "dynamic-shape": r"@a: SHAPE_DYNAMIC: the shape of 'x' is not static",
    "strings": STRINGS_OF_TVM,
}
MACHINES = "[m=[a=llvm,c=numpy](host=@c),n=[b=onnxruntime,c=numpy](host=@c)](runtime={})"
ON_MACHINES = {"a": "@m/a", "b": "@n/b"}

PAIRS = {
    ("graph", "python"): Pair("[a=llvm,b=numpy](host=@b)"),
    ("graph", "processes"): Pair(MACHINES.format("processes"), where=ON_MACHINES),
    ("graph", "dask"): Pair(MACHINES.format("dask"), where=ON_MACHINES),
    ("graph", "cpp"): Pair("[a=llvm,b=llvm](host=@a,runtime=cpp)", {"strings": STRINGS_OF_TVM}),
    ("graph", "crt"): Pair(
        "[a=llvm,b=c](host=@a,runtime=crt(system-lib=true))",
        dict.fromkeys(MODELS, r"^@\. cannot be built: executor 'graph' is not built for runtime 'crt'")
        | {"dynamic-shape": r"@b: SHAPE_DYNAMIC: the shape of 'a' is not static", "strings": STRINGS_OF_TVM},
    ),
    ("vm", "python"): Pair("[a=llvm,b=llvm](host=@a,executor=vm)", {"strings": STRINGS_OF_TVM}),
    ("vm", "cpp"): Pair("[a=llvm,b=llvm](host=@a,executor=vm,runtime=cpp)", {"strings": STRINGS_OF_TVM}),
    ("aot", "cpp"): Pair(
        "[a=c,b=llvm](host=@b,executor=aot,runtime=cpp)",
        STATIC | dict.fromkeys(("branch", "loop"), CONTROL.format("cpp")),
    ),
    ("aot", "crt"): Pair(
        "[a=c,b=llvm](host=@b,executor=aot(interface-api=c,unpacked-api=true),runtime=crt(system-lib=true))",
        STATIC | dict.fromkeys(("branch", "loop"), CONTROL.format("crt")),
    ),
}
NO_PAIRS = {
    ("aot", "python"): "executor 'aot' does not run on runtime 'python'; it runs on: cpp, crt",
    ("aot", "processes"): "executor 'aot' does not run on runtime 'processes'; it runs on: cpp, crt",
    ("aot", "dask"): "executor 'aot' does not run on runtime 'dask'; it runs on: cpp, crt",
    ("vm", "processes"): "executor 'vm' does not run on runtime 'processes'; it runs on: python, cpp",
    ("vm", "dask"): "executor 'vm' does not run on runtime 'dask'; it runs on: python, cpp",
    ("vm", "crt"): "executor 'vm' does not run on runtime 'crt'; it runs on: python, cpp",
}
# Workers that start, and the interpreter in C++, which is compiled once in each process, take seconds.
SLOW = {("graph", "processes"), ("graph", "dask"), ("graph", "cpp")}


# Starting the processes of machines takes seconds.
IN_PROCESSES = examples(("chain", "loop", "strings", "empty-tensor", "one-value-twice"), tuple(MODELS))


def cells():
    for pair, row in PAIRS.items():
        for name in MODELS if "processes" not in pair else IN_PROCESSES:
            is_slow = pair in SLOW and name not in row.refused
            yield pytest.param(pair, name, id="-".join((*pair, name)), marks=[pytest.mark.slow] * is_slow)


@pytest.fixture(scope="module")
def scheduler():
    """Return the address of a Dask cluster that programs share: to start one for each takes seconds."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the folder of an empty compile cache, which has an entry as soon as TVM has compiled anything."""
    monkeypatch.setenv("TVMTARGET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(executable, values):
    return list(executable.run(dict(zip(executable.inputs, values, strict=True))).values())


def check(executable, case):
    """Compare two runs with the reference; between them the results of the first one are overwritten."""
    for _ in range(2):
        given = [np.array(value) for value in case.inputs]
        results = run(executable, given)
        for result, expected in zip(results, case.reference(*case.inputs), strict=True):
            expected = np.asarray(expected)
            assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
            else:
                np.testing.assert_array_equal(result, expected)
        for result in results:
            result[...] = "other" if result.dtype == object else 7
        for value, kept in zip(given, case.inputs, strict=True):
            np.testing.assert_array_equal(value, kept)


@pytest.mark.parametrize(("pair", "name"), list(cells()))
def test_a_pair_computes_what_numpy_does_or_refuses_with_the_path(pair, name, cache, request):
    row, case = PAIRS[pair], MODELS[name]
    target = row.target
    if "dask" in pair:
        address = request.getfixturevalue("scheduler")
        target = target.replace("runtime=dask", f"runtime=dask(address={address},insecure=true)")
    where = {f"op:{op}": row.where[leaf] for op, leaf in case.leaves.items()}
    module = tt.IRModule.from_onnx(case.model)
    if name in row.refused:
        with pytest.raises((BackendError, InfeasibleError), match=row.refused[name]):
            tt.build(module, target, where=where)
        assert not list(cache.rglob("*.entry"))
        return
    executable = tt.build(module, target, where=where)
    try:
        check(executable, case)
    finally:
        executable.close()


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("(float[n,3] x) => (float[n,3] y) { a = Neg(x) y = Tanh(a) }", {"Neg", "Tanh"}),
        ("(float[3] x) => (float[2] y) <int64[1] k = {2}> { a = Neg(x) y, i = TopK(a, k) }", {"TopK"}),
    ],
)
def test_object_code_gets_no_operations_that_need_a_runtime_library(text, moved):
    board = "board=[core=llvm](host=@core,executor=aot,runtime=crt(system-lib=true))"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    plan = tt.decompose(tt.IRModule.from_onnx(model), f"[{board},pc=onnxruntime,cpu=numpy](host=@cpu)")
    assert {call.kind for call in plan.program.body if plan.site_of(call.source) == "pc"} == moved


@pytest.mark.parametrize(("pair", "problem"), list(NO_PAIRS.items()), ids=list(map("-".join, NO_PAIRS)))
def test_other_pairs_are_contradictions_of_the_target(pair, problem):
    pair_text = "executor={},runtime={}".format(*pair)
    with pytest.raises(TargetError) as caught:
        tt.build(MODELS["chain"].model, f"c({pair_text})")
    assert str(caught.value) == problem
    with pytest.raises(TargetError) as caught:
        tt.build(MODELS["chain"].model, f"[board=c({pair_text}),pc=llvm](host=@pc)")
    assert str(caught.value) == f"{problem} (at 'board')"


def test_the_document_has_each_pair_of_the_table():
    lines = DOCUMENT.read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("| executor |"))
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[begin : begin + 5])
    stated = {
        (name.strip("`"), runtime): text.startswith("refused")
        for name, *texts in rows
        for column, text in zip(head[1:], texts, strict=True)
        for runtime in re.findall(r"`(\w+)`", column)
    }
    is_refused = {pair: len(row.refused) == len(MODELS) for pair, row in PAIRS.items()}
    assert stated == is_refused | dict.fromkeys(NO_PAIRS, True)


OF_TVM = "runs code of TVM for llvm and cuda, not of {0} for {0}"
OTHER = "riscv64-linux-gnu"
IN_C = "links code in C or in object files, which {0} for {0} does not generate"


@pytest.mark.parametrize(
    ("target", "path", "problem"),
    [
        ("[a=llvm,b=numpy](host=@a,executor=vm)", "b", OF_TVM.format("numpy")),
        ("[a=llvm,b=c](host=@a,executor=vm,runtime=cpp)", "b", OF_TVM.format("c")),
        ("[a=onnxruntime,b=llvm](host=@b,executor=vm)", "a", OF_TVM.format("onnxruntime")),
        ("[a=llvm,b=numpy](host=@a,runtime=cpp)", "b", OF_TVM.format("numpy")),
        ("[a=c,b=llvm](host=@b,runtime=cpp)", "a", OF_TVM.format("c")),
        ("[a=c,b=onnxruntime](host=@a,executor=aot,runtime=crt)", "b", IN_C.format("onnxruntime")),
        ("[a=onnxruntime,b=c](host=@b,executor=aot,runtime=cpp)", "a", IN_C.format("onnxruntime")),
        (f"[a=llvm,b=llvm(mtriple={OTHER})](host=@a,executor=vm)", "b", f"for this machine, not for {OTHER!r}"),
        (f"[a=llvm,b=llvm(mtriple={OTHER})](host=@a,runtime=cpp)", "b", f"for this machine, not for {OTHER!r}"),
        ("[a=c,b=c](host=@a,executor=vm)", ".", "generates its driver for a host of kind llvm, not 'c'"),
    ],
)
def test_leaves_and_hosts_that_an_executor_cannot_compile_are_refused(target, path, problem, cache):
    case = MODELS["chain"]
    with pytest.raises(BackendError) as caught:
        tt.build(case.model, target, where={f"op:{op}": f"@{leaf}" for op, leaf in case.leaves.items()})
    assert any(
        line.startswith(f"@{path} cannot be built: executor") and problem in line for line in caught.value.problems
    )
    assert not list(cache.rglob("*.entry"))


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("llvm(executor=aot,runtime=crt)", "needs system-lib=true for a host of kind 'llvm'"),
        ("[a=c,b=llvm](host=@a,executor=aot,runtime=crt)", "needs system-lib=true for a host of kind 'llvm' (at 'b')"),
        ("numpy(executor=aot,runtime=cpp)", "needs a host of kind llvm or c, not 'numpy'"),
        ("c(executor=graph,runtime=crt)", "needs system-lib=true"),
        ("c(executor=aot(interface-api=c),runtime=crt)", "needs unpacked-api=true or interface-api=packed"),
        (
            "c(executor=aot(interface-api=c,unpacked-api=true),runtime=cpp)",
            "needs unpacked-api=false and interface-api=packed",
        ),
    ],
)
def test_options_that_a_pair_needs_are_named(target, problem):
    with pytest.raises(TargetError) as caught:
        tt.build(MODELS["chain"].model, target)
    assert str(caught.value).endswith(problem)


# An artifact of each executor as one function of each system around it.
INNER = {
    "graph": "[core=llvm](host=@core,executor=graph,runtime=python)",
    "vm": "[core=llvm](host=@core,executor=vm,runtime=python)",
    "aot": "[core=c](host=@core,executor=aot,runtime=crt)",
}
AROUND = {
    "graph-python": "[b={},a=numpy](host=@a)",
    "graph-processes": "[m=[b={},c=numpy](host=@c),n=[a=onnxruntime,c=numpy](host=@c)](runtime=processes)",
    "graph-cpp": "[b={},a=llvm](host=@a,runtime=cpp)",
    "vm-python": "[b={},a=llvm](host=@a,executor=vm)",
    "aot-crt": "[b={},a=c](host=@a,executor=aot,runtime=crt)",
}


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize(
    "around", [pytest.param(one, marks=[pytest.mark.slow] * ("processes" in one)) for one in AROUND]
)
@pytest.mark.parametrize("name", ["chain", "result-is-a-constant", "dynamic-shape"])
def test_systems_are_functions_of_systems_around_them_that_call_any_code(inner, around, name, cache):
    case, target = MODELS[name], AROUND[around].format(INNER[inner])
    leaves = {"a": "@n/a", "b": "@m/b/core"} if "processes" in around else {"a": "@a", "b": "@b/core"}
    where = {f"op:{op}": leaves[leaf] for op, leaf in case.leaves.items()}
    module = tt.IRModule.from_onnx(case.model)
    if name == "dynamic-shape" and "aot" in (inner, around.partition("-")[0]):
        with pytest.raises(tt.TvmTargetError, match=r"@(a|b/core|m/b/core): SHAPE_DYNAMIC"):
            tt.build(module, target, where=where)
        return
    if around not in ("graph-python", "graph-processes"):
        with pytest.raises(BackendError) as caught:
            tt.build(module, target, where=where)
        expected = f"@b cannot be built: executor {around.partition('-')[0]!r} on runtime"
        assert any(line.startswith(expected) and line.endswith("(systems)") for line in caught.value.problems)
        assert not list(cache.rglob("*.entry"))
        return
    executable = tt.build(module, target, where=where)
    try:
        check(executable, case)
    finally:
        executable.close()


def test_a_model_that_a_code_generator_rejects_is_refused_with_the_path_of_the_root():
    model = Case("(string[2] x, string[2] z) => (bool[2] y) { y = Equal(x, z) }", {}, [], list).model
    with pytest.raises(BackendError, match=r"cannot take function 'main' of @\.: "):
        tt.build(model, "onnxruntime")
