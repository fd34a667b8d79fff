"""Data of unknown origin: hostile or damaged data is rejected quickly, in little memory, with the place."""

import ast
import gzip
import io
import os
import resource
import stat
import time
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.write_limits import page

import tvmtarget as tt
from tvmtarget.errors import ArtifactError, FileError, LogError, TvmTargetError
from tvmtarget.files import write_arrays
from tvmtarget.untrusted import (
    LIMITS,
    check_members,
    limit,
    open_regular,
    open_zip,
    parse_json,
    parse_toml,
    read_arrays,
    read_bytes,
    read_member,
    read_text,
    unpack_gzip,
)

DIGITS = Path("examples/digits.onnx")


@contextmanager
def cheaply(seconds=10.0, megabytes=500):
    """Fail if a block takes more processor time, or raises the peak of memory by more."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert time.process_time() - began < seconds
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < megabytes * 1024


def zipped(members, compress=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compress) as archive:
        for name, data in members:
            archive.writestr(name, data)
    out.seek(0)
    return out


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "digits.tta"
    tt.build(tt.IRModule.from_onnx(DIGITS), "numpy").save(path)
    return path


# Files


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_only_regular_files_are_read(tmp_path, make):
    path = tmp_path / "x"
    make(path)
    with cheaply():
        for read in (read_bytes, tt.load, tt.IRModule.load):
            with pytest.raises(FileError, match=r"it is (a directory|no regular file)"):
                read(path)


def test_a_path_with_a_nul_and_a_missing_file_are_rejected():
    for path, problem in (("a\0b", "null (byte|character)"), ("not/there", "no file 'not/there'")):
        with pytest.raises(FileError, match=problem), open_regular(path):
            pass


def test_a_file_beyond_its_limit_is_rejected_unread(tmp_path, monkeypatch):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with (
        cheaply(),
        pytest.raises(FileError, match=r"1,073,741,824 bytes, more than the limit .* TVMTARGET_MAX_TEXT_BYTES"),
    ):
        read_text(path)
    path.write_text("12345")
    monkeypatch.setenv("TVMTARGET_MAX_TEXT_BYTES", "4")
    with pytest.raises(FileError, match="limit of 4"):
        read_text(path)


@pytest.mark.parametrize("value", ["", "0", "-1", "many", "1e9", "9" * 40, "9" * 5000])
def test_a_limit_that_is_no_number_is_rejected(monkeypatch, value):
    monkeypatch.setenv("TVMTARGET_MAX_JSON_DEPTH", value)
    with pytest.raises(TvmTargetError, match=r"TVMTARGET_MAX_JSON_DEPTH is .*; expected a whole number above 0"):
        limit("json-depth")


def test_the_page_of_limits_matches_the_table(golden):
    golden("../docs/limits.md", page())


def test_text_that_is_not_utf8_is_rejected_with_the_byte(tmp_path):
    (tmp_path / "x").write_bytes(b"ab\xff")
    with pytest.raises(FileError, match="byte 2 is 0xff"):
        read_text(tmp_path / "x")


# JSON


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"[" * 10**6, "nested deeper than 200 levels"),
        (b"[" * 201 + b"]" * 201, "nested deeper than 200 levels"),
        (b'{"a":' * 300 + b"1" + b"}" * 300, "nested deeper than 200 levels"),
        (b"[NaN]", "NaN is not a number of JSON"),
        (b"[-Infinity]", "Infinity is not a number"),
        (b'{"a": 1, "a": 2}', "key 'a' is given twice"),
        (b"{%s}" % b",".join(b'"k%d":1' % min(at, 10**5) for at in range(10**5 + 2)), "key 'k100000' is given twice"),
        (b"9" * 5000, "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[1,", "at offset 3"),
        (b"", "at offset 0"),
    ],
)
def test_invalid_json_is_rejected(data, problem):
    with cheaply(), pytest.raises(FileError, match=problem):
        parse_json(data, "the file")


def test_json_of_200_levels_is_read():
    assert parse_json(b"[" * 200 + b"]" * 200, "the file")


# Archives


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "a//b", "./a", "C:/x", "a\\b", "dir/"])
def test_names_of_members_that_could_leave_the_archive_are_rejected(name):
    with pytest.raises(FileError, match="relative name"):
        open_zip(zipped([(name, b"")]), "x")


def test_links_in_archives_are_rejected():
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(FileError, match="is a link"):
        open_zip(zipped([(info, b"/etc/passwd")]), "x")


def test_two_members_of_one_name_are_rejected():
    with pytest.warns(UserWarning, match="Duplicate name"):
        stream = zipped([("a", b"1"), ("a", b"2")])
    with pytest.raises(FileError, match="one name"):
        open_zip(stream, "x")


def test_a_zip_bomb_is_rejected_by_its_declared_size(tmp_path):
    path = tmp_path / "bomb.tta"
    data = bytes(1 << 28)
    path.write_bytes(zipped([("a", data), ("b", data)], zipfile.ZIP_DEFLATED).getvalue())
    del data
    with cheaply(), pytest.raises(ArtifactError, match="TVMTARGET_MAX_UNPACKED_RATIO"):
        tt.load(path)


def test_a_member_larger_than_declared_is_rejected():
    stream = zipped([("a", bytes(1000))], zipfile.ZIP_DEFLATED)
    data = bytearray(stream.getvalue())
    at = data.rindex(b"PK\x01\x02") + 24
    data[at : at + 4] = (10).to_bytes(4, "little")
    with open_zip(io.BytesIO(data), "x") as archive, pytest.raises(FileError, match="'a' cannot be unpacked") as caught:
        read_member(archive, archive.infolist()[0], "x")
    assert (caught.value.member, caught.value.offset) == ("a", 0)


def test_too_many_members_are_rejected(monkeypatch):
    monkeypatch.setenv("TVMTARGET_MAX_ARCHIVE_MEMBERS", "1")
    with pytest.raises(FileError, match="2 files, more than the limit of 1"):
        check_members([zipfile.ZipInfo("a"), zipfile.ZipInfo("b")], 100, "x")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_program_is_read_or_rejected_by_one_error(data):
    """Random bytes of a saved program are changed, cut or repeated."""
    whole = _digits()
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(whole) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "zero", "repeat"]))
        if kind == "flip":
            whole = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
        elif kind == "cut":
            whole = whole[:at] + whole[at + 1 :]
        elif kind == "zero":
            whole = whole[:at] + bytes(len(whole[at : at + 64])) + whole[at + 64 :]
        else:
            whole = whole[:at] + whole[at : at + 100] + whole[at:]
    path = _folder() / "x.tta"
    path.write_bytes(whole)
    try:
        tt.load(path)
    except ArtifactError as error:
        assert error.path == str(path)  # noqa: PT017 - an error is allowed, not required


_KEPT = {}


def _folder():
    if "folder" not in _KEPT:
        import tempfile

        _KEPT["folder"] = tempfile.TemporaryDirectory()
    return Path(_KEPT["folder"].name)


def _digits():
    if "data" not in _KEPT:
        path = _folder() / "digits.tta"
        tt.build(tt.IRModule.from_onnx(DIGITS), "numpy").save(path)
        _KEPT["data"] = path.read_bytes()
    return _KEPT["data"]


# Arrays


def npy(array, **changes):
    stream = io.BytesIO()
    np.save(stream, array)
    data = stream.getvalue()
    for old, new in changes.items():
        data = data.replace(old.encode(), new.encode())
    return data


def test_arrays_are_read_as_numpy_reads_them():
    stream = io.BytesIO()
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(1), "c": np.zeros((0, 3), "int8"), "d": np.array(["x"])}
    np.savez(stream, **arrays)
    found = read_arrays(stream, "x")
    assert found.keys() == arrays.keys()
    assert all(
        np.array_equal(found[name], array) and found[name].dtype == array.dtype for name, array in arrays.items()
    )


def test_names_of_arrays_are_no_paths():
    stream = io.BytesIO()
    names = ("/fc/Gemm_output_0", "../a", "a//b", "c:0", "C:/d", "file", "allow_pickle", "größe")
    write_arrays(stream, dict.fromkeys(names, np.arange(2)))
    assert read_arrays(stream, "x").keys() == set(names)
    stream.seek(0)
    assert np.load(stream)["file"].tolist() == [0, 1]


def test_arrays_of_objects_are_rejected():
    stream = io.BytesIO()
    np.savez(stream, a=np.array([{}]))
    with pytest.raises(FileError, match="array 'a' of x holds Python objects"):
        read_arrays(stream, "x")


def test_a_file_that_is_no_array_is_rejected():
    with pytest.raises(FileError, match=r"^x is damaged, or something else: 'manifest\.json' is no array$"):
        read_arrays(zipped([("manifest.json", b"{}")]), "x")


def test_two_arrays_of_one_name_are_rejected():
    with pytest.raises(FileError, match="array 'a' is given twice"):
        read_arrays(zipped([("a.npy", npy(np.arange(2))), ("a", npy(np.arange(3)))]), "x")


@pytest.mark.parametrize("shape", ["(9999999999999,)", "(-1,)", "(2, 2)", "(True,)", "'x'", "("])
def test_a_shape_that_does_not_match_the_bytes_is_rejected_before_memory_is_allocated(shape):
    data = npy(np.arange(3.0))
    old = b"(3,)"
    pad = len(old) - len(shape)
    head = data.replace(old, shape.encode() + b" " * max(pad, 0))
    if pad < 0:
        head = head.replace(b" " * -pad + b"\n", b"\n")
    with cheaply(), pytest.raises(FileError, match="array 'a'"):
        read_arrays(zipped([("a.npy", head)]), "x")


# TOML


@pytest.mark.parametrize("key", ["a" + ".a" * 200, 'a . "b.c"' + " .\ta" * 200, "'.\".'" + ".a" * 200 + '."x"'])
def test_a_key_of_many_parts_is_rejected_before_it_is_parsed(key):
    with pytest.raises(FileError, match="x has keys of more than 200 parts"):
        parse_toml(f"first = 1\n{key} = 1", "x")


def test_dots_that_are_not_in_one_key_are_read_cheaply():
    with cheaply(2):
        assert len(parse_toml("x = [" + "0.5, " * 1000 + f"]\ny = '{'.a' * 199} x {'.a' * 199}'", "x")) == 2
        with pytest.raises(FileError, match="not TOML"):
            parse_toml((".a" * 199 + " x ") * 4000, "x")


# Compressed logs


def test_a_small_log_that_unpacks_to_much_is_rejected(tmp_path):
    """30 million empty lines in 30 kB; an endless one would be the same."""
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n" * (100 << 20)))
    with cheaply(), pytest.raises(LogError, match=r"unpacks to more than [0-9,]+ bytes"):
        tt.TuningLog(str(path))


def test_a_gzip_stream_is_read_again_from_its_start(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    with path.open("rb") as file:
        stream = unpack_gzip(file, "x")
        assert stream.readlines() == [b"a\n", b"b\n"]
        stream.seek(2)
        assert stream.read() == b"b\n"


def test_damaged_gzip_is_an_error_of_this_library(tmp_path):
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"t":"x"}\n' * 1000)[:-20])
    with pytest.raises(LogError, match="cannot be read"):
        tt.TuningLog(str(path))


def test_zlib_has_the_ratio_that_the_limit_assumes():
    assert len(bytes(1 << 20)) / len(zlib.compress(bytes(1 << 20))) > 10 * LIMITS["unpacked-ratio"].default


# Sources

FILES_OF_OURS = {
    "artifact": "writes; reads by open_zip",
    "autotune.log.jsonl_store": "the log that was opened, whose kind is checked",
    "autotune.log.report": "writes",
    "autotune.log.sqlite_store": "writes rejected lines",
    "autotune.search.device": "files of the kernel, and locks",
    "autotune.search.programs": "a file that was just written",
    "backends.c.backend": "files of the library",
    "backends.c.project": "files of the library",
    "backends.tvm.c_functions": "an object file that was just written",
    "backends.tvm.compiled_module": "a library that was just compiled",
    "backends.tvm.llvm_options": "data of the library",
    "backends.tvm.operator_library": "files of a temporary folder of ours",
    "building.executable": "a file that was just written",
    "cli.main": "the null device",
    "executors.graph_cpp": "a header of the library",
    "files": "writes",
    "ir.onnx.writer": "writes",
    "plugins": "metadata of installed packages",
    "runtimes.dask": "opens a packed program of ours, not a file",
    "support.onnxruntime_rules": "data of the library",
    "tags.compiled": "tags that come with the library",
    "tags.tree_index": "tags that come with the library",
    "target.cpu.chips": "data of the library",
    "target.cpu.features": "data of the library",
    "target.detection.machine": "files of the kernel",
    "target.detection.processors": "data of the library",
    "toolchains.compilers": "a program that was just compiled",
    "untrusted": "the functions that open files of others",
}
OPENING = {"open", "read_text", "read_bytes", "ZipFile", "GzipFile", "load_model", "fromfile", "memmap", "loadtxt"}


def test_files_are_opened_in_one_way():
    """Readers of files of unknown origin use `tvmtarget.untrusted`."""
    root = Path(tt.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called, function = ast.unparse(node.func), node.func
            is_method = isinstance(function, ast.Attribute) and function.attr in OPENING and called != "os.open"
            if is_method or called in ("open", "json.load", "np.load", "onnx.load", "tomllib.load", "tomllib.loads"):
                found.add(path.relative_to(root).with_suffix("").as_posix().replace("/", "."))
    assert found - FILES_OF_OURS.keys() == set()
