"""Atomic writes of files, and removal of what killed processes left."""

import io
import os
import stat
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import tvmtarget as tt
from tvmtarget import IRModule
from tvmtarget.errors import TvmTargetError
from tvmtarget.files import atomic_write, temporary_folder, write_folder


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_names_that_no_file_can_have_are_errors_of_the_library(name):
    for read in (tt.Plan.load, tt.read_configuration, lambda path: tt.TuningLog("memory:", layers=[path])):
        with pytest.raises(TvmTargetError):
            read(name)
    relu = IRModule.parse("func @main(%x: float32[2]) opsets(onnx=17) { %y = onnx.Relu(%x) return %y }")
    with pytest.raises(TvmTargetError, match="cannot be used: "):
        tt.build(relu, "numpy", cache=name)


def write(path, data=b"new"):
    with atomic_write(path) as stream:
        stream.write(data)


def test_a_new_file_has_the_permissions_of_new_files(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write(tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == b"new"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_existing_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "old"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write(path)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_failed_write_leaves_only_the_old_file(tmp_path):
    path = tmp_path / "old"
    path.write_bytes(b"old")

    def stop():
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), atomic_write(path) as stream:
        stream.writelines(stop())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_has_its_last_files_only_if_it_has_all_others(tmp_path):
    files = {"manifest": b"2", "inner/a": b"2", "inner/b": b"2"}
    write_folder(tmp_path, dict.fromkeys(files, b"1"), last=["manifest"])
    (tmp_path / "inner/b").unlink()
    (tmp_path / "inner/b").mkdir()  # in its place nothing can be written
    with pytest.raises(OSError, match="inner/b"):
        write_folder(tmp_path, files, last=["manifest"])
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    (tmp_path / "inner/b").rmdir()
    write_folder(tmp_path, files, last=["manifest"])
    assert {name: (tmp_path / name).read_bytes() for name in files} == files


LIMITED = """
import resource, sys
from pathlib import Path
from tvmtarget.files import write_folder
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_folder(Path(sys.argv[1]), {"a": b"2", "inner/b": bytes(2000), "manifest": b"2"}, last=["manifest"])
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits of POSIX")
def test_a_folder_that_does_not_fit_on_the_disk_leaves_the_old_one_or_none(tmp_path):
    folder = tmp_path / "new" / "folder"
    done = subprocess.run([sys.executable, "-c", LIMITED, str(folder)], capture_output=True, text=True, check=True)
    assert (done.stdout, list(tmp_path.iterdir())) == ("File too large\n", [])
    old = {"a": b"1", "manifest": b"1"}
    write_folder(folder, old, last=["manifest"])
    done = subprocess.run([sys.executable, "-c", LIMITED, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout == "File too large\n"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == old


def test_an_interrupted_write_of_a_folder_leaves_nothing(tmp_path):
    class Interrupted(dict):
        def items(self):
            yield "a", b"1"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "folder", Interrupted(), last=[])
    assert list(tmp_path.iterdir()) == []


def test_concurrent_writers_of_one_new_folder_all_write_their_files(tmp_path):
    names = [f"{at}" for at in range(16)]
    for at in range(8):
        folder = tmp_path / f"folder{at}"
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda name, folder=folder: write_folder(folder, {name: b"x"}, last=[name]), names))
        assert sorted(path.name for path in folder.iterdir()) == sorted(names)


def test_files_of_a_folder_keep_their_permissions_and_links(tmp_path):
    (tmp_path / "plain").mkdir()
    write_folder(tmp_path / "folder", {"file": b"1", "linked": b"1"}, last=[])
    assert (tmp_path / "folder").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "folder/file").chmod(0o640)
    (tmp_path / "folder/linked").rename(tmp_path / "away")
    (tmp_path / "folder/linked").symlink_to(tmp_path / "away")
    write_folder(tmp_path / "folder", {"file": b"2", "linked": b"2"}, last=[])
    assert stat.S_IMODE((tmp_path / "folder/file").stat().st_mode) == 0o640
    assert (tmp_path / "folder/linked").is_symlink()
    assert (tmp_path / "away").read_bytes() == (tmp_path / "folder/file").read_bytes() == b"2"
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["file", "linked"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "away").mkdir()
    path = tmp_path / "link"
    path.symlink_to(tmp_path / "away" / "file")
    for data in (b"first", b"second"):
        write(path, data)
        assert path.is_symlink()
        assert (tmp_path / "away" / "file").read_bytes() == data
    assert [found.name for found in (tmp_path / "away").iterdir()] == ["file"]


def test_long_names_in_any_script_leave_space_for_the_staging_name(tmp_path):
    path = tmp_path / ("目" * 85)
    write(path)
    assert path.read_bytes() == b"new"


@contextmanager
def pipe(folder):
    """Yield the path of a pipe, and a list of what was read from it at the end."""
    path, received = folder / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()))
    reader.start()
    yield path, received
    reader.join()


def test_a_pipe_is_written_to(tmp_path):
    with pipe(tmp_path) as (path, received):
        write(path)
    assert received == [b"new"]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_what_is_no_file_is_written_in_one_piece(tmp_path):
    # An archive goes back to its headers.
    with pipe(tmp_path) as (path, received), atomic_write(path) as stream, zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("name", b"data")
    assert zipfile.ZipFile(io.BytesIO(received[0])).read("name") == b"data"
    IRModule.parse("func @main(%x: float32[n]) opsets(onnx=17) { return %x }").save("/dev/null")


@pytest.mark.parametrize("name", ["loop", "null\0"])
def test_a_path_that_leads_nowhere_is_an_error_of_the_system(tmp_path, name):
    if name == "loop":
        (tmp_path / name).symlink_to(name)
    with pytest.raises(OSError, match=r"Invalid|loop|null byte|Too many"), atomic_write(tmp_path / name):
        pass


def test_a_folder_is_rejected(tmp_path):
    with pytest.raises(IsADirectoryError):
        write(tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
from tvmtarget.files import atomic_write, temporary_folder
path = Path(sys.argv[1])
with atomic_write(path) as stream, temporary_folder(path.parent) as folder, temporary_folder(path.parent, ".m."):
    stream.write(b"half")
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_bytes(b"scratch")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_leftovers_of_killed_processes_are_removed_and_files_of_live_ones_are_not(tmp_path):
    path = tmp_path / "new[1]*"
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        held = sorted(tmp_path.iterdir())
        assert len(held) == 3

        def make_all():
            write(path)
            with temporary_folder(tmp_path), temporary_folder(tmp_path, ".m."):
                pass

        make_all()
        assert sorted(tmp_path.iterdir()) == sorted([*held, path])
        process.kill()
        process.wait()
        assert sorted(tmp_path.iterdir()) == sorted([*held, path])
        make_all()
        assert list(tmp_path.iterdir()) == [path]


def test_a_fork_does_not_remove_the_folder_of_its_parent():
    code = """
import os
from tvmtarget.files import temporary_folder
with temporary_folder() as folder:
    if not (child := os.fork()):
        raise SystemExit
    os.waitpid(child, 0)
    print(folder.is_dir())
print(folder.exists())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_files_that_only_look_like_leftovers_stay(tmp_path):
    others = [".file.new", ".file.0123456.new", ".file.01234567.new.txt", ".files.01234567.new", "x.file.01234567.new"]
    for name in others:
        (tmp_path / name).write_bytes(b"")
    os.mkfifo(tmp_path / ".file.00000000.new")
    (tmp_path / ".file.11111111.new").symlink_to(tmp_path / "away")
    before = sorted(tmp_path.iterdir())
    write(tmp_path / "file")
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "file"])


def test_concurrent_writers_of_one_file_do_not_remove_each_others_files(tmp_path):
    path = tmp_path / "file"

    def use(at):
        write(path, b"%d" % at)
        with temporary_folder(tmp_path, ".f.") as folder:
            (folder / "x").write_bytes(b"x")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(200)))
    assert list(tmp_path.iterdir()) == [path]
