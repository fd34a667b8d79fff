"""JSON form and saved modules: round trips, and rejection of damaged files."""

import io
import json
import mmap
import struct
import zipfile

import numpy as np
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from models import DIGITS
from random_modules import modules

import tvmtarget as tt
from tvmtarget.errors import ArtifactError, ModelError, TvmTargetError
from tvmtarget.ir.function import Opaque

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def comes_back(module):
    data = module.to_json()
    read = tt.IRModule.from_json(json.dumps(data), module.constants())
    assert read == module
    assert read.to_json() == data


@settings(max_examples=30, deadline=None, suppress_health_check=SLOW)
@given(modules())
def test_json_round_trips(module):
    comes_back(module)


@pytest.mark.slow
@settings(max_examples=examples(50, 400), deadline=None, suppress_health_check=SLOW)
@given(modules())
def test_many_modules_are_read_back(module):
    comes_back(module)


@settings(max_examples=20, deadline=None, suppress_health_check=SLOW)
@given(modules())
def test_files_round_trip(tmp_path_factory, module):
    path = tmp_path_factory.mktemp("modules") / "m.irm"
    module.save(path)
    assert tt.IRModule.load(path) == module


def digits():
    return tt.IRModule.from_onnx(DIGITS).constrain("fc1", "@cpu").with_target("[gpu=cuda,cpu=llvm]")


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "m.irm"
    digits().save(path)
    return path


def base_of(array):
    while isinstance(array, np.ndarray | memoryview):
        array = array.obj if isinstance(array, memoryview) else array.base
    return array


def test_constants_share_one_copy_of_the_file_and_are_aligned(saved):
    constants = tt.IRModule.load(saved).main.constants
    constant = constants[0]
    assert isinstance(base_of(constant.data), mmap.mmap)
    assert len({id(base_of(constant.data)) for constant in constants}) == 1
    assert constant.data.ctypes.data % 64 == 0
    assert not constant.data.flags.writeable


def test_equal_constants_are_stored_once(tmp_path):
    module = digits()
    twice = module.with_function(module.main.replace(name="again"))
    twice.save(tmp_path / "m.irm")
    with zipfile.ZipFile(tmp_path / "m.irm") as archive:
        stored = [name for name in archive.namelist() if name.startswith("constants/")]
    assert len(stored) == len({constant.digest for constant in module.main.constants})


def test_equal_modules_give_equal_bytes(saved, tmp_path, subprocess_with_hash_seed):
    code = f"""
import sys; sys.path.insert(0, "tests")
import hashlib, tvmtarget as tt
tt.IRModule.load({str(saved)!r}).save({str(tmp_path / "n.irm")!r})
print(hashlib.sha256(open({str(tmp_path / "n.irm")!r}, "rb").read()).hexdigest())
"""
    assert subprocess_with_hash_seed(code, "1") == subprocess_with_hash_seed(code, "2")
    assert (tmp_path / "n.irm").read_bytes() == saved.read_bytes()


def test_a_loaded_module_computes_the_same(saved):
    x = np.random.default_rng(0).normal(size=(1, 1, 8, 8)).astype("float32")
    expected = tt.build(tt.IRModule.from_onnx(DIGITS), "[a=onnxruntime,cpu=numpy]")(x)
    found = tt.build(tt.IRModule.load(saved), "[a=onnxruntime,cpu=numpy]")(x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_constraints_of_a_saved_plan_hold_in_another_process(tmp_path, subprocess_with_hash_seed):
    """REQUIREMENTS G1: a pass slices, constrains and saves; another one loads, constrains more and builds."""
    first = f"""
import tvmtarget as tt
from tvmtarget.ir.rewrite import outline
module = tt.IRModule.from_onnx({str(DIGITS)!r})
outline(module, ["conv2", "relu2", "pool"], "slice", "@b").save({str(tmp_path / "m.irm")!r})
"""
    second = f"""
import tvmtarget as tt
module = tt.IRModule.load({str(tmp_path / "m.irm")!r}).constrain("fc1", "!@a")
plan = tt.decompose(module, "[a=onnxruntime,b=numpy,c=llvm]")
print(*(plan.site_of(op) for op in ("conv2", "relu2", "pool", "fc1")))
print("function 'slice'" in str(plan.explain("pool")), "op 'fc1'" in str(plan.explain("fc1")))
"""
    subprocess_with_hash_seed(first, "1")
    sites, reasons = subprocess_with_hash_seed(second, "2").splitlines()
    assert sites.split()[:3] == ["b", "b", "b"]
    assert sites.split()[3] in ("b", "c")
    assert reasons == "True True"


def rewritten(path, change, *, manifest=None, compress=zipfile.ZIP_STORED):
    """Rewrite the members of an archive; `change` maps name and data to new data, or to None to drop the member."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compress) as archive:
        for name, data in members.items():
            new = change(name, data)
            if new is not None:
                archive.writestr(name, new)
    path.write_bytes(out.getvalue())


DAMAGES = {
    "empty": (lambda path: path.write_bytes(b""), "is damaged, or not a zip file"),
    "no zip": (lambda path: path.write_bytes(b"hello" * 99), "is damaged, or not a zip file"),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "is damaged, or not a zip file"),
    "gone": (lambda path: path.unlink(), r"no saved module .*; write one with IRModule.save"),
    "one bit": (
        lambda path: rewritten(path, lambda name, data: data if name == "manifest.json" else data[:-1] + b"\x7f"),
        "does not have the digest in the manifest",
    ),
    "a file less": (
        lambda path: rewritten(path, lambda name, data: None if name == "module.json" else data),
        "'module.json' is not both in it and in its manifest",
    ),
    "no manifest": (
        lambda path: rewritten(path, lambda name, data: None if name == "manifest.json" else data),
        "it has no 'manifest.json'",
    ),
    "deep manifest": (
        lambda path: rewritten(path, lambda name, data: b"[" * 10**6 if name == "manifest.json" else data),
        "is nested deeper than 200 levels",
    ),
    "a newer schema": (
        lambda path: rewritten(path, lambda _, data: data.replace(b'"schema": 1', b'"schema": 2')),
        "schema 2; this version reads 'tvmtarget.module' schema 1",
    ),
    "compressed": (
        lambda path: rewritten(path, lambda _, data: data, compress=zipfile.ZIP_DEFLATED),
        "is compressed; a saved module is not",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_rejected(saved, damage):
    change, text = DAMAGES[damage]
    change(saved)
    with pytest.raises(ArtifactError, match=text):
        tt.IRModule.load(saved)


def test_members_that_overlap_are_rejected(saved):
    """A zip whose directory names one block of data many times would otherwise grow without bound."""
    data = saved.read_bytes()
    end = data.rindex(b"PK\x05\x06")
    count, size, start = struct.unpack_from("<HLL", data, end + 10)
    directory = data[start : start + size]
    entries = directory * 200
    names = b"".join(
        entries[at : at + len(directory)].replace(b"constants/", f"consta{k:03d}/".encode(), count)
        for k, at in enumerate(range(0, len(entries), len(directory)))
    ).replace(b"manifest.json", b"manifest.json", 1)
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count * 200, count * 200, len(names), start, 0)
    saved.write_bytes(data[:start] + names + tail)
    with pytest.raises(ArtifactError, match=r"bear one name|overlap"):
        tt.IRModule.load(saved)


def test_a_saved_executable_is_not_a_module(saved, tmp_path):
    tt.build(tt.IRModule.from_onnx(DIGITS), "onnxruntime").save(tmp_path / "p.tta")
    with pytest.raises(ArtifactError, match="is not a saved module but a compiled program"):
        tt.IRModule.load(tmp_path / "p.tta")
    with pytest.raises(ArtifactError, match=r"is not a saved program but a saved module or plan"):
        tt.load(saved)


def changed(**changes):
    return {"schema_version": 1, "functions": [{"name": "main"} | changes]}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "this is not a module"),
        (b"\xff\xfe", "this is not a module"),
        ("[" * 10**5, "this is not a module"),
        ([], "this is not a module, at its start"),
        ({"functions": []}, "this is not a module, at schema_version"),
        ({"schema_version": 2, "functions": []}, "this is not a module, at schema_version: Input should be 1"),
        ({"schema_version": 1, "functions": []}, "the module has no function 'main'"),
        (changed(results=["y"]), "result 'y' is not defined"),
        (changed(nope=1), r"this is not a module, at functions\.0\.nope: Extra inputs are not permitted"),
        (changed(params=[{"name": "x", "type": "flot32[]"}]), "unknown type 'flot32'; did you mean 'float32'"),
        (changed(constraint="@"), "expected a path after '@'"),
        (changed(attrs=[["a", {"x": 1}]]), r"\{'x': 1\} is not a value of an attribute"),
        (changed(attrs=[["a", {"float": "x"}]]), "could not convert"),
        (changed(attrs=[["a", {"bytes": "x"}]]), "non-hexadecimal"),
        (changed(constants=[{"name": "w", "type": "int8[1]", "digest": "0" * 64}]), "constant 'w' are not given"),
        (changed(constants=[{"name": "w", "type": "?", "digest": "0" * 64}]), "constant 'w' is a tensor, not ?"),
    ],
)
def test_malformed_data_is_rejected(data, text):
    with pytest.raises(TvmTargetError, match=text):
        tt.IRModule.from_json(data)


def test_bodies_nested_too_deep_are_rejected():
    body = {"name": "main"}
    for _ in range(80):
        body = {"name": "main", "body": [{"op": "onnx.If", "regions": [["then", body]]}]}
    with pytest.raises(ModelError, match=r"nested deeper than 64 levels|recursion limit"):
        tt.IRModule.from_json({"schema_version": 1, "functions": [body]})


def test_attributes_without_a_json_form_are_rejected():
    with pytest.raises(ModelError, match=r"attribute 'a' of the module is a number, .*, not <object object"):
        digits().with_attrs(a=object()).to_json()
    assert digits().with_attrs(a=[1, (2.5, Opaque("k", b"x"))]).to_json()["attrs"] == [
        ["a", [1, [{"float": "2.5"}, {"opaque": "k", "bytes": "78"}]]]
    ]
