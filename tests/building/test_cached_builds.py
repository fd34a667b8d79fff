"""Builds take native code from the compile cache, in any process, if nothing that it depends on has changed."""

import os
import subprocess
import sys

import numpy as np
import pytest
from models import DIGITS, EXAMPLES, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.backends.protocol import backend_named
from tvmtarget.backends.sharing import function_key, stored_key
from tvmtarget.building.compile_plan import codegen_target
from tvmtarget.compile_cache import CompileCache
from tvmtarget.errors import BackendError, FileError

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")

TVM = backend_named("tvm")
X = np.ones((2, 3), "float32")


def module(*ops, **constants):
    nodes = [
        helper.make_node(op, [f"v{number}", *extra], [f"v{number + 1}"]) for number, (op, *extra) in enumerate(ops)
    ]
    model = small(*nodes, inputs=("v0",), outputs=(f"v{len(ops)}",), **constants)
    return tt.IRModule.from_onnx(model)


def key(program, target="llvm"):
    plan = tt.decompose(program, target)
    (subgraph,) = plan.subgraphs
    leaf = codegen_target(plan.topology, subgraph.site)
    return stored_key(function_key(plan.module[subgraph.function], plan.module.by_name), leaf, TVM)


def code(exe):
    return {name: dict(leaf.code.native_files()) for name, leaf in exe._leaves.items()}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch):
    """Return the list of the functions that TVM compiles, without native code, from now on."""
    names, compile_ = [], type(TVM).compile

    def counted(self, request):
        if not request.native:
            names.append(request.name)
        return compile_(self, request)

    monkeypatch.setattr(type(TVM), "compile", counted)
    return names


def test_a_second_build_compiles_nothing_and_computes_the_same(folder, compiled):
    program = module(("Relu",), ("Add", "c"), c=np.ones(3, "float32"))
    first = tt.build(program, "llvm", cache=folder)
    assert len(compiled) == 1
    second = tt.build(program, "llvm", cache=str(folder))
    assert len(compiled) == 1
    assert code(second) == code(first)
    np.testing.assert_array_equal(second(X), first(X))
    np.testing.assert_array_equal(second(X), tt.build(program, "llvm", cache=False)(X))
    assert len(compiled) == 2


BUILD = """
import sys
LATE = {
    "tvm", "onnx.reference", "tvmtarget.autotune.log.tuning_log", "tvmtarget.backends.c.project",
    "tvmtarget.backends.tvm.cpu_schedule", "tvmtarget.partition.placement.by_cost",
}
import numpy as np
import tvmtarget as tt
exe = tt.build(tt.IRModule.from_onnx(sys.argv[1]), sys.argv[2])
print(sorted(LATE & sys.modules.keys()))
with np.load(sys.argv[3]) as stored:
    print((exe(stored["input"]).argmax(1) == stored["labels"]).mean() > 0.97)
exe.save(sys.argv[4])
"""


def test_another_process_does_not_even_import_what_compiles(folder, tmp_path):
    saved = [tmp_path / "first.tta", tmp_path / "second.tta"]
    words = [sys.executable, "-c", BUILD, DIGITS, "[a=llvm,b=onnxruntime]", EXAMPLES / "digits.npz"]
    environment = os.environ | {"TVMTARGET_CACHE": str(folder)}
    printed = [
        subprocess.run([*words, path], env=environment, capture_output=True, text=True, check=True).stdout
        for path in saved
    ]
    assert "'tvm'" in printed[0]
    assert printed[1] == "[]\nTrue\n"
    assert saved[0].read_bytes() == saved[1].read_bytes()


def test_the_cache_is_on_by_default_and_the_environment_turns_it_off(folder, monkeypatch):
    monkeypatch.setenv("TVMTARGET_CACHE", str(folder))
    tt.build(module(("Relu",)), "llvm", cache=False)
    assert not folder.exists()
    monkeypatch.setenv("TVMTARGET_CACHE", "off")
    tt.build(module(("Relu",)), "llvm")
    monkeypatch.setenv("TVMTARGET_CACHE", str(folder))
    tt.build(module(("Relu",)), "llvm")
    assert len(CompileCache(folder).entries()) == 1


def test_names_and_the_order_of_independent_operations_do_not_matter():
    def program(names, order):
        nodes = [helper.make_node("Relu", ["x"], [names[0]]), helper.make_node("Neg", ["x"], [names[1]])]
        last = helper.make_node("Add", names, ["y"])
        return tt.IRModule.from_onnx(small(*[nodes[at] for at in order], last))

    assert key(program(["a", "b"], (0, 1))) == key(program(["c", "d"], (1, 0)))


@pytest.mark.parametrize(
    "other",
    [
        module(("Neg",), ("Add", "c"), c=np.ones(3, "float32")),
        module(("Relu",), ("Add", "c"), c=np.array([1, 1, 2], "float32")),
        module(("Relu",), ("Add", "c"), c=np.ones((1, 3), "float32")),
    ],
)
def test_operators_shapes_and_the_values_of_constants_matter(other):
    assert key(module(("Relu",), ("Add", "c"), c=np.ones(3, "float32"))) != key(other)


@pytest.mark.parametrize("name", sorted(TVM.honours["llvm"]))
def test_every_attribute_that_changes_code_changes_the_key(name):
    values = {
        "mcpu": "x86-64-v3",
        "mtriple": "aarch64-linux-gnu",
        "mattr": ("+avx2",),
        "mfloat-abi": "soft",
        "mabi": "lp64d",
        "cl-opt": ("-disable-lsr:bool=true",),
    }
    value = values.get(name, {"opt-level": 0, "vector-width": 64}.get(name, True))
    base = {
        "mabi": {"mtriple": "riscv64-linux-gnu", "mattr": ("+d",)},
        "mfloat-abi": {"mtriple": "arm-linux-gnueabi"},
    }.get(name, {})
    program = module(("Relu",))
    assert key(program, tt.Target("llvm", base)) != key(program, tt.Target("llvm", base | {name: value}))


def test_versions_of_the_code_generator_matter(monkeypatch):
    program = module(("Relu",))
    before = key(program)
    monkeypatch.setattr("tvmtarget.backends.tvm.backend.generator_version", lambda: "apache-tvm 99")
    assert key(program) != before


def test_code_without_a_native_form_is_not_stored(folder):
    tt.build(module(("Relu",)), "onnxruntime", cache=folder)
    tt.build(module(("Relu",)), "numpy", cache=folder)
    assert not folder.exists()


def test_a_damaged_entry_is_compiled_again(folder, compiled):
    program = module(("Relu",))
    tt.build(program, "llvm", cache=folder)
    (path,) = folder.rglob("*.entry")
    path.write_bytes(path.read_bytes()[:-1])
    np.testing.assert_array_equal(tt.build(program, "llvm", cache=folder)(X), X)
    assert len(compiled) == 2
    tt.build(program, "llvm", cache=folder)
    assert len(compiled) == 2


def test_code_that_this_machine_cannot_open_is_compiled_again(folder, compiled):
    program = module(("Relu",))
    CompileCache(folder).put(key(program), {"lib.so": b"of a machine with other libraries"})
    exe = tt.build(program, "llvm", cache=folder)
    assert compiled == []
    np.testing.assert_array_equal(exe(X), X)
    assert len(compiled) == 1
    assert CompileCache(folder).get(key(program)) is None


def test_a_build_goes_on_if_the_cache_cannot_be_written(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o700)
    for number in range(256):
        (tmp_path / "cache" / f"{number:02x}").touch()
    with pytest.warns(UserWarning, match="cannot be written"):
        exe = tt.build(module(("Relu",)), "llvm", cache=tmp_path / "cache")
    np.testing.assert_array_equal(exe(X), X)


def test_a_folder_that_others_may_write_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(FileError, match="others may write to it"):
        tt.build(module(("Relu",)), "llvm", cache=tmp_path)


def test_a_context_of_tvm_around_a_build_is_not_ignored(folder):
    import tvm

    program = module(("Relu",))
    tt.build(program, "llvm", cache=folder)
    with (
        tvm.transform.PassContext(disabled_pass=["FuseOps"]),
        pytest.raises(BackendError, match=r"FuseOps.*would be ignored"),
    ):
        tt.build(program, "llvm", cache=folder)


def test_a_later_build_of_this_process_shares_cached_code(folder, compiled):
    program = module(("Relu",))
    tt.build(program, "llvm", cache=folder)
    second = tt.build(program, "llvm", cache=folder)
    third = tt.build(program, "llvm", cache=False, since=second)
    assert len(compiled) == 1
    assert code(third) == code(second)


def tuned(log):
    program = tt.IRModule.from_onnx(
        small(helper.make_node("MatMul", ["x", "w"], ["y"]), shape=(16, 64), w=np.ones((64, 32), "float32"))
    )
    tt.tune(program, "llvm", log=log, levels=("kernel",), trials=4, seed=1)
    return program


def test_code_with_a_tuning_log_is_found_if_its_lookups_have_the_same_results(tmp_path, folder, compiled):
    program = tuned(tmp_path / "log.db")
    first = tt.build(program, "llvm", log=tmp_path / "log.db", cache=folder)
    count = len(compiled)
    second = tt.build(program, "llvm", log=tmp_path / "log.db", cache=folder)
    assert len(compiled) == count
    assert second.tuned == first.tuned
    assert code(second) == code(first)
    with TuningLog("memory:") as empty:
        assert not any(one.is_used for one in tt.build(program, "llvm", log=empty, cache=folder).tuned)
        assert len(compiled) == count + any(one.is_used for one in first.tuned)
        tt.build(program, "llvm", log=empty, cache=folder)
    third = tt.build(program, "llvm", log=tmp_path / "log.db", cache=folder)
    assert third.tuned == first.tuned
    assert len(compiled) == count + any(one.is_used for one in first.tuned)
