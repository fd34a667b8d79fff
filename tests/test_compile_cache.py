"""The compile cache stores bytes by key, for several processes, and never returns a damaged entry."""

import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmtarget.compile_cache import CompileCache, default_folder, open_cache
from tvmtarget.errors import CacheWarning, FileError

FILES = {"lib.so": b"code" * 100, "lookups.json": b"[]"}

WRITER = """
import sys
from tvmtarget.compile_cache import CompileCache
cache = CompileCache(sys.argv[1])
data = sys.argv[2].encode() * 3_000_000
print("ready", flush=True)
for number in range(1_000_000 if len(sys.argv) < 4 else int(sys.argv[3])):
    cache.put(f"key {number % 4}", {"lib.so": data})
"""


def writer(*arguments, **options):
    return subprocess.Popen([sys.executable, "-c", WRITER, *map(str, arguments)], stdout=subprocess.PIPE, **options)


@pytest.fixture
def cache(tmp_path):
    return CompileCache(tmp_path / "cache")


def entry(cache):
    (path,) = cache.folder.rglob("*.entry")
    return path


def test_files_are_found_by_their_key(cache):
    assert cache.get("a") is None
    cache.put("a", FILES)
    cache.put("b", {})
    assert cache.get("a") == FILES
    assert cache.get("b") == {}
    assert CompileCache(cache.folder).get("a") == FILES


def test_the_later_of_two_writers_wins(cache):
    cache.put("a", FILES)
    CompileCache(cache.folder).put("a", {"lib.so": b"other"})
    assert cache.get("a") == {"lib.so": b"other"}
    cache.remove("a")
    assert cache.get("a") is None


@settings(max_examples=60)
@given(data=st.data())
def test_a_changed_or_truncated_entry_is_a_miss_and_is_removed(tmp_path_factory, data):
    cache = CompileCache(tmp_path_factory.mktemp("cache"))
    cache.put("a", FILES)
    path = entry(cache)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    broken = data.draw(
        st.sampled_from([whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], b"#!/bin/sh"])
    )
    path.write_bytes(broken)
    assert cache.get("a") is None
    assert not path.exists()


def test_an_entry_of_another_key_is_a_miss(cache):
    cache.put("a", FILES)
    path = entry(cache)
    cache.put("b", FILES)
    (other,) = set(cache.folder.rglob("*.entry")) - {path}
    os.replace(path, other)
    assert cache.get("b") is None


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_a_miss(cache, make):
    cache.put("a", FILES)
    path = entry(cache)
    path.unlink()
    make(path)
    assert cache.get("a") is None


def test_folders_and_files_are_private(cache):
    cache.put("a", FILES)
    path = entry(cache)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(one.stat().st_mode) for one in (cache.folder, path.parent)] == [0o700, 0o700]


def test_an_entry_that_others_may_write_is_a_miss(cache):
    cache.put("a", FILES)
    entry(cache).chmod(0o666)
    assert cache.get("a") is None


def test_a_folder_that_others_may_write_is_refused(cache):
    cache.folder.mkdir()
    cache.folder.chmod(0o777)
    with pytest.raises(FileError, match="others may write to it; make it yours alone"):
        open_cache(cache.folder)
    cache.folder.chmod(0o700)
    assert open_cache(cache.folder) is not None


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_folder_or_entry_of_another_user_is_refused(cache):
    cache.put("a", FILES)
    os.chown(cache.folder, 12345, -1)
    with pytest.raises(FileError, match="user 12345 owns it"):
        open_cache(cache.folder)
    os.chown(cache.folder, 0, -1)
    os.chown(entry(cache), 12345, -1)
    assert cache.get("a") is None


def test_a_default_folder_that_is_refused_is_a_warning(cache, monkeypatch):
    cache.folder.mkdir()
    cache.folder.chmod(0o777)
    monkeypatch.setenv("TVMTARGET_CACHE", str(cache.folder))
    with pytest.warns(CacheWarning, match="others may write"):
        assert open_cache(True) is None


def test_the_default_folder_follows_the_environment():
    assert default_folder({"TVMTARGET_CACHE": "/x", "HOME": "/home/u"}) == Path("/x")
    assert default_folder({"TVMTARGET_CACHE": "off", "HOME": "/home/u"}) is None
    assert default_folder({"TVMTARGET_CACHE": "OFF", "HOME": "/home/u"}) is None
    assert default_folder({}) is None
    if sys.platform == "linux":
        assert default_folder({"HOME": "/home/u"}) == Path("/home/u/.cache/tvmtarget")
        assert default_folder({"XDG_CACHE_HOME": "/c", "HOME": "/home/u"}) == Path("/c/tvmtarget")
        assert default_folder({"XDG_CACHE_HOME": "c", "HOME": "/home/u"}) == Path("/home/u/.cache/tvmtarget")


def test_entries_that_were_not_used_longest_are_removed(tmp_path):
    cache = CompileCache(tmp_path, most=10_000)
    for number, key in enumerate("abc"):
        cache.put(key, {"lib.so": bytes(2500)})
        os.utime(cache._path(key), (number, number))
    assert cache.get("a") is not None  # used now, so that b is the next to go
    cache.put("d", {"lib.so": bytes(2500)})
    assert [key for key in "abcd" if cache.get(key) is not None] == ["a", "c", "d"]
    assert sum(one.nbytes for one in cache.entries()) <= 10_000


def test_an_entry_larger_than_the_cache_is_not_stored(tmp_path):
    cache = CompileCache(tmp_path, most=1000)
    cache.put("a", {"lib.so": bytes(1000)})
    assert cache.entries() == []


def test_a_listing_has_the_facts_of_entries_and_survives_damage(cache):
    cache.put("a", FILES, function="f")
    cache.put("b", FILES, function="g")
    cache._path("b").write_bytes(b"")
    assert sorted(dict(one.facts).get("function", "") for one in cache.entries()) == ["", "f"]


def test_what_killed_writers_leave_is_never_read_and_is_removed(cache):
    process = writer(cache.folder, "x")
    process.stdout.readline()
    leftovers = []
    for _ in range(20):
        while not any(cache.folder.rglob("*.new")):
            pass
        process.kill()
        process.wait()
        leftovers += cache.folder.rglob("*.new")
        for number in range(4):
            assert cache.get(f"key {number}") in (None, {"lib.so": b"x" * 3_000_000})
        process = writer(cache.folder, "x")
        process.stdout.readline()
    process.kill()
    process.wait()
    assert leftovers
    cache.prune(cache.most)
    assert not [*cache.folder.rglob("*.new")]


def test_several_processes_write_and_read_one_key(cache):
    processes = [writer(cache.folder, letter, 12) for letter in "xyz"]
    valid = [{"lib.so": letter * 3_000_000} for letter in (b"x", b"y", b"z")]
    seen = 0
    while any(process.poll() is None for process in processes):
        for number in range(4):
            found = cache.get(f"key {number}")
            assert found is None or found in valid
            seen += found is not None
    assert seen
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert all(cache.get(f"key {number}") in valid for number in range(4))


LIMITED = """
import resource, signal, sys, warnings
from tvmtarget.compile_cache import CompileCache
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
cache = CompileCache(sys.argv[1])
cache.put("small", {"lib.so": b"code"})
for key in "ab":
    cache.put(key, {"lib.so": bytes(1_000_000)})
print([cache.get(key) is not None for key in ("small", "a", "b")])
"""


def test_a_write_that_fails_warns_once_and_leaves_nothing(cache):
    done = subprocess.run([sys.executable, "-c", LIMITED, cache.folder], capture_output=True, text=True, check=True)
    assert done.stdout == "[True, False, False]\n"
    assert done.stderr.count("CacheWarning") == 1
    assert "cannot be written: File too large; the build goes on without storing code" in done.stderr
    assert not [*cache.folder.rglob("*.new")]


def test_a_full_disk_warns_once_and_leaves_nothing(small_disk):
    cache = CompileCache(small_disk)
    cache.put("small", FILES)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for key in "ab":
            cache.put(key, {"lib.so": bytes(5_000_000)})
    (warning,) = caught
    assert "No space left on device" in str(warning.message)
    assert [cache.get(key) for key in ("small", "a", "b")] == [FILES, None, None]
    assert not [*small_disk.rglob("*.new")]


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_only_read_serves_entries(cache):
    cache.put("a", FILES)
    entry(cache).parent.chmod(0o500)
    assert cache.get("a") == FILES
    with pytest.warns(CacheWarning):
        cache.put("a", {})
