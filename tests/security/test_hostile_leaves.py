"""Leaf sources of strangers: what TVM's own operators do not say is refused, and what ends TVM costs itself alone."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

import tvmtarget as tt
from tvmtarget.artifact import read_files, write_files
from tvmtarget.errors import ArtifactError, BackendError, TvmTargetError
from tvmtarget.ir.relax.safe_source import unsafe_parts

tvm = pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")

from hostile_modules import HOSTILE, MARK, PLAIN  # noqa: E402
from relax_modules import BRANCHES, SIX  # noqa: E402

X = np.array([1, -2, 3, -4], "float32")


def text_of(module):
    return str(tvm.ir.save_json(module)).encode()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "plain.tta"
    tt.build(PLAIN, "llvm").save(path)
    return path


@pytest.fixture
def artifact(saved, tmp_path, monkeypatch):
    """Return a function that writes a program with another source of its leaf, and changed facts, beside nothing."""
    monkeypatch.chdir(tmp_path)

    def write(source=None, **changes):
        manifest, files = read_files(saved)
        (leaf,) = manifest["leaves"]
        leaf |= changes
        name = f"leaves/{leaf['function']}/source.onnx"
        files[name] = files[name] if source is None else source
        files.pop(f"leaves/{leaf['function']}/lib.so", None)
        facts = {key: value for key, value in manifest.items() if key not in ("format", "schema", "files")}
        write_files(tmp_path / "evil.tta", files, **facts)
        return tmp_path / "evil.tta"

    return write


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_leaf_that_does_more_than_compute_is_refused_without_trust_by_its_place(name, artifact, cli):
    path = artifact(text_of(HOSTILE[name]))
    with pytest.raises(BackendError, match=r"function 'main' of @\. \(leaves/main/source\.onnx\) is compiled only if"):
        tt.load(path).run({"x": X})
    np.savez("x.npz", x=X)
    code, _, error = cli("run", path, "-i", "x.npz")
    assert (code, error.count("\n")) == (1, 1)
    assert "--trust" in error
    assert not Path(MARK).exists()


def test_trust_lets_a_leaf_run_what_it_holds(artifact):
    tt.load(artifact(text_of(HOSTILE["a symbol of the process"])), trust=True).run({"x": X})
    assert Path(MARK).exists()


READERS = {
    "text": lambda module, path, trust: tt.IRModule.parse(str(module), module.constants(), trust=trust),
    "JSON": lambda module, path, trust: tt.IRModule.from_json(module.to_json(), module.constants(), trust=trust),
    "file": lambda module, path, trust: module.save(path) or tt.IRModule.load(path, trust=trust),
    "plan": lambda module, path, trust: tt.decompose(module, "llvm").save(path) or tt.Plan.load(path, trust=trust),
}


@pytest.mark.parametrize("reader", sorted(READERS))
def test_a_program_that_was_read_is_compiled_without_trust_only_if_it_holds_operators_alone(reader, tmp_path, cli):
    read, path = READERS[reader], tmp_path / "m"
    for module, trust in ((PLAIN, False), (HOSTILE["a symbol of the process"], True)):
        program = read(tt.IRModule.from_tvm(module), path, trust)
        assert tt.build(program, None if reader == "plan" else "llvm").backends == {"main": "tvm"}
    for name in ("a symbol of the process", "a packed function"):
        program = read(tt.IRModule.from_tvm(HOSTILE[name]), path, False)
        for made in (tt.build, tt.tune) if reader != "plan" else (tt.build,):
            with pytest.raises(TvmTargetError, match=r"compiled only if you trust who wrote it|no kernel"):
                made(program, None if reader == "plan" else "llvm", **({"log": "memory:"} if made is tt.tune else {}))


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("module", [PLAIN, SIX, BRANCHES], ids=["plain", "six", "branches"])
def test_a_leaf_that_only_computes_needs_no_trust(module, trust, tmp_path):
    exe = tt.build(module, "llvm")
    exe.save(tmp_path / "p.tta")
    (leaf,) = exe._leaves.values()
    assert list(unsafe_parts(leaf.request.source)) == []
    inputs = {
        value.name: np.ones([dim if isinstance(dim, int) else 2 for dim in value.shape], value.dtype)
        for value in exe._program.inputs
    }
    expected, actual = exe.run(inputs), tt.load(tmp_path / "p.tta", trust=trust).run(inputs)
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array)


def test_options_of_llvm_need_trust(artifact):
    path = artifact(target={"kind": "llvm", "cl-opt": ["-info-output-file:string=x"]})
    with pytest.raises(ArtifactError, match=r"evil\.tta.*options of LLVM \(cl-opt\), which need trust"):
        tt.load(path)


def test_damaged_leaves_never_end_the_process(artifact):
    """Numbers and names of a source are changed; most are refused before TVM reads them, others end its process."""
    rng = random.Random(7)
    whole = json.loads(text_of(PLAIN))
    said = []
    for _ in range(5):
        data = json.loads(json.dumps(whole))
        node = rng.choice([one for one in data["nodes"] if isinstance(one.get("data"), dict)])
        field = rng.choice(sorted(node["data"]))
        node["data"][field] = rng.choice([0, 1, len(data["nodes"]) - 1, 10**6, -1, 2**63, None, "x", [], 1.5])
        try:
            tt.load(artifact(json.dumps(data).encode())).run({"x": X})
        except TvmTargetError as error:
            said.append(str(error))
    assert said
    assert [text for text in said if "main" not in text] == []


@pytest.mark.parametrize(
    "source",
    [
        b"{",
        b"{}",
        b'{"root_index": 0, "nodes": [], "metadata": {}}',
        b'{"root_index": 0, "nodes": [{"type": "ir.IRModule", "data": 3}], "metadata": {}}',
        b'{"root_index": 0, "nodes": [3], "metadata": {}}',
        b'{"root_index": -1, "nodes": [{"type": "ir.IRModule"}], "metadata": {}}',
        b'{"root_index": 0, "nodes": [{"type": "ffi.Module"}], "metadata": {}}',
        b'{"b64ndarrays": [], "root": 1, "nodes": []}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_module_is_told_before_tvm_reads_it(source):
    assert list(unsafe_parts(source))
