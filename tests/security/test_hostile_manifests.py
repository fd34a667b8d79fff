"""Saved programs whose digests are right and whose contents are hostile: an `ArtifactError` with path and member."""

import hashlib
import json
import zipfile

import pytest

import tvmtarget as tt
from tvmtarget.errors import ArtifactError


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "digits.tta"
    tt.build(tt.IRModule.from_onnx("examples/digits.onnx"), "[a=numpy,b=onnxruntime]").save(path)
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def written(path, members, manifest):
    files = {name: data for name, data in members.items() if name != "manifest.json"}
    manifest["files"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, data in files.items():
            archive.writestr(name, data)
    return path


HOSTILE = (None, 1, -1, 2**63, 10**400, 0.5, True, "", "x", "../x", [], [[]], {}, {"x": 1}, [None], ["x"], [{}])


def places(value, path=()):
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def changed(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def test_a_manifest_with_wrong_values_at_any_place_is_read_or_refused_by_one_error(tmp_path, members):
    whole = json.loads(members["manifest.json"])
    del whole["files"]
    for place in places(whole):
        for value in HOSTILE if place else HOSTILE[-4:]:
            manifest = changed(whole, place, value)
            if not isinstance(manifest, dict):
                continue
            path = written(tmp_path / "x.tta", members, manifest)
            try:
                tt.load(path).report()
            except ArtifactError as error:
                assert str(path) in str(error), place  # noqa: PT017 - an error is allowed, not required


@pytest.mark.parametrize("place", [(), ("leaves", 0), ("calls", 0)])
def test_a_field_that_is_not_known_is_refused_and_named(tmp_path, members, place):
    manifest = json.loads(members["manifest.json"])
    held = manifest
    for key in place:
        held = held[key]
    held["lowest"] = 1
    where = ".".join(map(str, (*place, "lowest")))
    with pytest.raises(ArtifactError, match=rf"'manifest.json' has the unknown field '{where}'; a newer version"):
        tt.load(written(tmp_path / "x.tta", members, manifest))


@pytest.mark.parametrize("name", ["more.bin", "leaves/other/source.onnx", "self-test/inputs.npz", "machines/a.json"])
def test_a_file_that_belongs_to_nothing_in_the_manifest_is_refused(tmp_path, members, name):
    with pytest.raises(ArtifactError, match=rf"file '{name}' belongs to nothing that it lists"):
        tt.load(written(tmp_path / "x.tta", members | {name: b""}, json.loads(members["manifest.json"])))


def test_a_program_of_a_plugin_that_is_not_installed_is_not_called_damaged(tmp_path, members):
    manifest = changed(json.loads(members["manifest.json"]), ("leaves", 0, "backend"), "acme")
    with pytest.raises(ArtifactError, match=r"x\.tta' cannot be used here: 'manifest.json': no backend 'acme'"):
        tt.load(written(tmp_path / "x.tta", members, manifest))


MEMBERS = ["target.json", "program.json", "constants.npz"]


@pytest.mark.parametrize(
    "data", [b"", b"{", b"null", b"[" * 10**5, b'{"a":' * 150 + b"1" + b"}" * 150, b"PK\3\4", b"9" * 9999]
)
@pytest.mark.parametrize("name", [*MEMBERS, "leaf"])
def test_a_member_that_holds_something_else_is_named(tmp_path, members, name, data):
    name = next(one for one in members if one.endswith("source.onnx")) if name == "leaf" else name
    path = written(tmp_path / "x.tta", members | {name: data}, json.loads(members["manifest.json"]))
    if name.startswith("leaves/") and data[:1] == b"{":
        tt.load(path)  # TVM's JSON is read, and checked, where the leaf is compiled
        return
    with pytest.raises(ArtifactError) as caught:
        tt.load(path)
    assert (caught.value.path, caught.value.member) == (str(path), name)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", [*MEMBERS, "leaf"])
def test_a_member_that_is_missing_is_named(tmp_path, members, name):
    name = next(one for one in members if one.endswith("source.onnx")) if name == "leaf" else name
    rest = {one: data for one, data in members.items() if one != name}
    with pytest.raises(ArtifactError, match=r"x\.tta") as caught:
        tt.load(written(tmp_path / "x.tta", rest, json.loads(members["manifest.json"])))
    assert name in str(caught.value)


def test_leaves_that_are_swapped_are_refused(tmp_path):
    path = tmp_path / "two.tta"
    tt.build(tt.IRModule.from_onnx("examples/digits.onnx"), "[a=numpy,b=llvm]", where={"fc2": "@b"}).save(path)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    one, other = (name for name in members if name.endswith("source.onnx"))
    members[one], members[other] = members[other], members[one]
    with pytest.raises(ArtifactError, match=r"its (inputs|outputs) are .*, but the manifest has"):
        tt.load(written(path, members, json.loads(members["manifest.json"])))
