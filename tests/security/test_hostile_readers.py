"""Files and texts of strangers about targets: what is too large, too deep or no regular file is refused at once."""

import os
import resource
import time

import pytest

import tvmtarget as tt
from tvmtarget.errors import FileError, ModelError, TargetFileError, TvmTargetError
from tvmtarget.partition.costs.cost_file import load_costs
from tvmtarget.support.decorators import from_op_table
from tvmtarget.tags.registry import Registry
from tvmtarget.target.topology import Topology

NODES = 10**6


def refused(read, *, seconds=30.0):
    """Return the error of a reader; one whose cost is quadratic in these sizes takes many minutes, or over 500 MB."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(TvmTargetError) as caught:
        read()
    assert time.process_time() - began < seconds
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        f"[{'llvm,' * NODES}llvm]",
        "llvm," * (NODES // 2) + "llvm",
        '{"targets":[' + '{"kind":"llvm"},' * NODES + "]}",
        'kind = "composite"\n' + '[[targets]]\nkind = "llvm"\n' * (NODES // 5),
        "llvm|" * (NODES // 2),
        "x" * (1 << 24),
    ],
    ids=["one line", "list", "JSON", "TOML", "choice", "word"],
)
@pytest.mark.parametrize("read", [tt.Target.parse, tt.Constraint.parse])
def test_a_text_of_a_million_nodes_is_refused(text, read):
    refused(lambda: read(text))


def test_data_of_a_million_nodes_is_refused():
    child = {"kind": "llvm"}
    error = refused(lambda: tt.Target.from_json({"targets": [child] * NODES}))
    assert "1,000,000 nodes, more than the limit of 131,072; TVMTARGET_MAX_TARGET_NODES" in str(error)


def test_counts_that_multiply_are_refused_when_they_are_expanded():
    tree = tt.Target.parse("[a=[b=llvm(count=65536),c=cuda](count=65536)]")
    assert "4,295,098,369 sites" in str(refused(lambda: Topology(tree)))


def test_limits_of_targets_are_raised_by_the_environment(monkeypatch):
    text = "[first-of-three-nodes=llvm,second=llvm]"  # not one that another test has parsed, which is remembered
    monkeypatch.setenv("TVMTARGET_MAX_TARGET_NODES", "2")
    with pytest.raises(TvmTargetError, match="more than 2 nodes"):
        tt.Target.parse(text)
    monkeypatch.setenv("TVMTARGET_MAX_TARGET_NODES", "3")
    assert tt.Target.parse(text)


@pytest.mark.parametrize(
    "text",
    [f"{'.'.join('a' * 20000)} = 1", f"a = {'[' * 20000}", 'kind = "llvm"\nnum-cores = ' + "9" * 5000],
    ids=["key", "nesting", "number"],
)
def test_toml_that_costs_much_is_refused(text):
    refused(lambda: tt.Target.from_toml(text))


READERS = {
    "costs.json": load_costs,
    "ops.csv": from_op_table,
    "tvmtarget.toml": lambda path: raise_problems(Registry(path.parent)),
}


def raise_problems(registry):
    raise TargetFileError(*registry.problems())


def zeros(path):
    with path.open("wb") as file:
        file.truncate(1 << 30)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), zeros, lambda path: None])
@pytest.mark.parametrize("name", READERS)
def test_pipes_devices_and_huge_files_are_refused(tmp_path, name, make):
    make(tmp_path / name)
    if name == "tvmtarget.toml" and not (tmp_path / name).exists():
        return
    assert isinstance(refused(lambda: READERS[name](tmp_path / name)), FileError)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), zeros])
@pytest.mark.parametrize(
    "words",
    [("show", "FILE.json"), ("detect", "--machine", "FILE.json"), ("explain", "FILE.onnx", "-t", "llvm")],
    ids=lambda words: words[0],
)
def test_commands_refuse_pipes_devices_and_huge_files(cli, tmp_path, words, make):
    words = [word.replace("FILE", str(tmp_path / "x")) for word in words]
    make(next(tmp_path / os.path.basename(word) for word in words if str(tmp_path) in word))
    code, out, err = cli(*words)
    assert (code, out) == (1, "")
    assert str(tmp_path) in err


def test_a_damaged_target_file_is_named_with_the_place(cli, tmp_path):
    path = tmp_path / "board.json"
    path.write_text('{"kind": "cuda", "arch": }')
    code, _, err = cli("show", path)
    assert (code, err.count(str(path))) == (1, 1)
    path.write_text("{}")
    with pytest.raises(TargetFileError) as caught:
        load_costs(tmp_path / "absent.json")
    assert caught.value.path == str(tmp_path / "absent.json")
    path.write_text("[1,")
    with pytest.raises(TargetFileError) as caught:
        load_costs(path)
    assert caught.value.offset == 3


def test_json_of_millions_of_values_is_refused_before_memory_is_taken():
    text = "[" + "[]," * 3_000_000 + "[]]"
    assert "TVMTARGET_MAX_JSON_VALUES" in str(refused(lambda: tt.IRModule.from_json(text)))


def test_the_text_of_a_module_of_one_huge_line_is_refused():
    text = "func @main(%x: float32[4]) { " + "%y = onnx.Relu(%x) " * 4_000_000
    assert "TVMTARGET_MAX_TEXT_BYTES" in str(refused(lambda: tt.IRModule.parse(text)))


@pytest.mark.parametrize("version", [2**63, 10**300])
def test_a_version_of_operators_that_onnx_cannot_hold_is_refused(version):
    text = f"func @main(%x: float32[4]) -> (float32[4]) opsets(onnx={version}) {{ return %x }}"
    with pytest.raises(ModelError):
        tt.IRModule.parse(text).to_onnx()
