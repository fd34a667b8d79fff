"""`inspect` says whether this machine can run a saved program, by the facts of its manifest alone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from models import DIGITS, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.artifact import folder_reader, read_files, write_files
from tvmtarget.backends.protocol import backend_named
from tvmtarget.errors import ArtifactError

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")

HERE = str(tt.Target.detect().attrs.get("mtriple", "")).split("-", maxsplit=1)[0]
FOREIGN = "x86_64-linux-gnu" if HERE == "aarch64" else "aarch64-linux-gnu"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return a program of two leaf functions: `a` by TVM, and `b` by onnxruntime."""
    path = tmp_path_factory.mktemp("saved") / "program.tta"
    model = small(helper.make_node("Relu", ["x"], ["h"], name="r"), helper.make_node("Neg", ["h"], ["y"], name="n"))
    module = tt.IRModule.from_onnx(model)
    tt.build(module, "[a=llvm,b=onnxruntime](host=@a)", where={"r": "@a", "n": "@b"}, mod_name="two").save(path)
    return path


@pytest.fixture
def changed(compiled, tmp_path):
    """Return a function that writes the program with changes of the entry of leaf `a`, and inspects it."""

    def change(*, without_native=False, target=None, **entries):
        facts, files = read_files(compiled)
        leaf = next(leaf for leaf in facts["leaves"] if leaf["site"] == "a")
        leaf.update(entries, **({} if target is None else {"target": tt.Target.parse(target).to_json()}))
        if without_native:
            files.pop(f"leaves/{leaf['function']}/lib.so")
        kept = {name: value for name, value in facts.items() if name not in ("format", "schema", "files")}
        write_files(tmp_path / "changed.tta", files, **kept)
        return tt.inspect(tmp_path / "changed.tta")

    return change


def verdicts(found):
    return {leaf.site: leaf.verdict for leaf in found.leaves}


def reason(found):
    return next(leaf.reason for leaf in found.leaves if leaf.site == "a")


def test_a_model_in_place_of_a_program_is_sent_to_the_reader_of_models():
    with pytest.raises(ArtifactError, match=r"; an ONNX model is read by IRModule.from_onnx, and compiled by"):
        tt.load(DIGITS)


def test_a_program_of_this_machine_fits(compiled):
    found = tt.inspect(compiled)
    assert verdicts(found) == {"a": "fits", "b": "fits"}
    assert (found.name, found.verdict, found.hosts) == ("two", "fits", {})
    leaf = next(leaf for leaf in found.leaves if leaf.site == "a")
    assert leaf.backend == backend_named("tvm").version()
    assert leaf.native_bytes > 1000


def test_code_of_another_version_is_compiled_again(changed):
    found = changed(version="apache-tvm 0.1")
    assert verdicts(found) == {"a": "recompile", "b": "fits"}
    assert reason(found).startswith("apache-tvm 0.1 compiled it, and apache-tvm 0.")
    assert found.verdict == "recompile"


def test_a_function_without_native_code_is_compiled_again(changed):
    found = changed(without_native=True)
    assert verdicts(found)["a"] == "recompile"
    assert reason(found) == "the file has no native code for it"


def test_code_for_another_architecture_cannot_run(changed):
    found = changed(target=f"llvm(mtriple={FOREIGN})")
    assert verdicts(found) == {"a": "cannot", "b": "fits"}
    assert FOREIGN.split("-", maxsplit=1)[0] in reason(found)
    assert found.verdict == "cannot"


@pytest.mark.skipif(HERE != "x86_64", reason="instructions of x86-64")
def test_code_with_instructions_that_this_cpu_lacks_cannot_run(changed):
    found = changed(target="llvm -mtriple=x86_64-linux-gnu -mattr=+amx-tile,+xop")
    assert verdicts(found)["a"] == "cannot"
    assert "amx-tile" in reason(found) or "xop" in reason(found)


def test_code_for_a_device_that_is_not_here_cannot_run(changed):
    found = changed(target="cuda(arch=sm_20)")
    assert verdicts(found)["a"] == "cannot"
    assert "GPU" in reason(found) or "NVIDIA" in reason(found)


def test_code_of_a_code_generator_that_is_not_installed_cannot_run(changed):
    found = changed(backend="glow", version="glow 1")
    assert verdicts(found)["a"] == "cannot"
    assert "no backend 'glow' is installed" in reason(found)


def test_a_host_that_is_another_machine_cannot_run(compiled, tmp_path):
    facts, files = read_files(compiled)
    tree = tt.Target.parse(f"[a=onnxruntime,b=onnxruntime](host=llvm(mtriple={FOREIGN}))").resolve()
    for leaf in facts["leaves"]:
        leaf["backend"], leaf["version"] = "onnxruntime", backend_named("onnxruntime").version()
        leaf["target"] = tt.Target("onnxruntime").to_json()
    kept = {name: value for name, value in facts.items() if name not in ("format", "schema", "files")}
    write_files(tmp_path / "x.tta", files | {"target.json": json.dumps(tree.to_json()).encode()}, **kept)
    found = tt.inspect(tmp_path / "x.tta")
    assert verdicts(found) == {"a": "fits", "b": "fits"}
    assert found.verdict == "cannot"
    assert [FOREIGN.split("-", maxsplit=1)[0] in why for why in found.hosts.values()] == [True]


def test_nothing_is_opened_or_compiled(compiled):
    code = f"""
import sys, tvmtarget as tt
print([leaf.verdict for leaf in tt.inspect({str(compiled)!r}).leaves], "tvm" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['fits', 'fits'] False\n"


AOT = "llvm(mtriple=aarch64-linux-gnu,executor=aot,runtime=cpp)"
needs_qemu = pytest.mark.skipif(
    HERE == "aarch64" or not shutil.which("qemu-aarch64") or not shutil.which("aarch64-linux-gnu-gcc"),
    reason="needs qemu-aarch64 and aarch64-linux-gnu-gcc",
)


@pytest.fixture
def foreign(tmp_path):
    path = tmp_path / "foreign.tta"
    tt.build(tt.IRModule.from_onnx(small(helper.make_node("Neg", ["x"], ["y"]))), AOT).save(path)
    return path


@needs_qemu
def test_programs_of_another_machine_fit_through_its_runner(foreign):
    (leaf,) = tt.inspect(foreign).leaves
    assert (leaf.verdict, leaf.reason) == ("fits", "")
    assert "qemu-aarch64" in leaf.runner
    assert str(leaf).startswith(f"@. {leaf.function}: fits through runner '")


@needs_qemu
def test_without_a_runner_programs_of_another_machine_cannot_run(foreign, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    found = tt.inspect(foreign)
    assert found.verdict == "cannot"
    assert "'qemu-aarch64' is not on PATH" in found.leaves[0].reason


def test_programs_of_this_machine_have_no_runner(compiled):
    assert {leaf.runner for leaf in tt.inspect(compiled).leaves} == {""}


@needs_qemu
def test_the_machine_of_a_nested_program_is_no_host_of_this_process(tmp_path):
    board = f"board=[core=llvm(mtriple={FOREIGN})](host=@core,executor=aot,runtime=cpp)"
    model = small(helper.make_node("Relu", ["x"], ["h"], name="r"), helper.make_node("Neg", ["h"], ["y"], name="n"))
    module = tt.IRModule.from_onnx(model)
    exe = tt.build(module, f"[{board},cpu=llvm](host=@cpu)", where={"r": "@board/core", "n": "@cpu"})
    exe.save(tmp_path / "x.tta")
    found = tt.inspect(tmp_path / "x.tta")
    assert (found.verdict, found.hosts) == ("fits", {})
    assert {leaf.site: bool(leaf.runner) for leaf in found.leaves} == {"board/core": True, "cpu": False}


def test_a_damaged_file_is_an_error(compiled, tmp_path):
    (tmp_path / "x.tta").write_bytes(compiled.read_bytes()[:-100])
    with pytest.raises(ArtifactError, match="is damaged"):
        tt.inspect(tmp_path / "x.tta")


def test_code_in_the_artifact_of_a_system_counts_as_native_code(tmp_path):
    module = tt.IRModule.from_onnx(small(helper.make_node("Relu", ["x"], ["y"])))
    tt.build(module, "llvm(executor=vm)").save(tmp_path / "x.tta")
    assert [leaf.verdict for leaf in tt.inspect(tmp_path / "x.tta").leaves] == ["fits"]


# Files of schema 1 as it was written first, without the fields that came later (`systems`, `self_test`, ...). They are
# never written anew: each schema that was ever written gets such files.
OLDER = Path(__file__).parent


def test_a_program_that_an_older_version_wrote_is_read():
    path = OLDER / "schema_1.tta"
    x = np.array([[1, 1, 1], [1, -2, 3]], "float32")
    manifest = read_files(path)[0]
    assert {"systems", "self_test"}.isdisjoint(manifest)
    # Another version of an engine compiles its functions again.
    are_same = [leaf["version"] == backend_named(leaf["backend"]).version() for leaf in manifest["leaves"]]
    assert [leaf.verdict for leaf in tt.inspect(path).leaves] == ["fits" if one else "recompile" for one in are_same]
    for trust in (False, True):
        assert tt.load(path, trust=trust)(x).tolist() == [[0.0, 3.0], [4.0, 6.0]]


def test_a_module_that_an_older_version_wrote_is_read(tmp_path):
    module = tt.IRModule.load(OLDER / "schema_1.irm")
    assert [call.kind for call in module["main"].body] == ["MatMul", "Relu"]
    module.save(tmp_path / "again.ttm")
    assert (tmp_path / "again.ttm").read_bytes() == (OLDER / "schema_1.irm").read_bytes()


@pytest.mark.parametrize("target", ["numpy", "llvm", "[a=llvm,b=numpy](host=@a)"])
@pytest.mark.parametrize("results", ["%x", "%x, %x", "%y, %x, %y"])
def test_a_program_that_returns_an_input_or_a_value_twice_is_read(results, target, tmp_path):
    text = f"func @main(%x: float32[3]) opsets(onnx=17) {{ %y = onnx.Neg(%x) return {results} }}"
    given, path = {"x": np.arange(3, dtype="float32")}, tmp_path / "program.tta"
    program = tt.build(tt.IRModule.parse(text), target)
    program.save(path)
    np.testing.assert_equal(tt.load(path).run(given), program.run(given))


def test_a_program_of_a_later_schema_says_what_this_version_reads(tmp_path, monkeypatch):
    monkeypatch.setattr("tvmtarget.artifact.SCHEMA", 2)
    write_files(tmp_path / "later.tta", {})
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match=r"schema 2; this version reads 'tvmtarget.artifact' schema 1"):
        tt.load(tmp_path / "later.tta")


def test_a_folder_of_a_saved_program_has_the_files_below_it_alone():
    names = ("a", "leaves/f/native/x.so", "leaves/f/source.onnx", "leaves/f.g/source.onnx", "leaves/f/g/y", "z")
    folder = folder_reader({name: name.encode() for name in names})
    assert sorted(folder("leaves/f/")) == ["g/y", "native/x.so", "source.onnx"]
    assert folder("leaves/f.g/") == {"source.onnx": b"leaves/f.g/source.onnx"}
    assert folder("leaves/g/") == folder("zz/") == {}
