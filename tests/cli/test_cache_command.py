"""`tvmtarget cache`: what it prints and removes, and `--no-cache` and `--jobs` of compile and run."""

import json

import pytest
from models import DIGITS, EXAMPLES

from tvmtarget.compile_cache import CompileCache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the cache of the command line, with two entries of which the first was used last."""
    monkeypatch.setenv("TVMTARGET_CACHE", str(tmp_path / "cache"))
    made = CompileCache(tmp_path / "cache")
    for key in ("b", "a"):
        made.put(key, {"lib.so": bytes(5000)}, function=key, target="llvm")
    return made


def test_the_path_is_printed_even_if_there_is_no_folder(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("TVMTARGET_CACHE", str(tmp_path / "none"))
    assert cli("cache", "path") == (0, f"{tmp_path / 'none'}\n", "")
    assert cli("cache", "list")[1].startswith("0 entries, 0 bytes of at most 5 GiB in ")
    assert cli("cache", "clear")[1] == "0 entries removed, 0 bytes; 0 bytes left\n"


def test_entries_are_listed_with_their_sizes(cli, cache):
    code, printed, _ = cli("cache", "list")
    lines = printed.splitlines()
    assert code == 0
    assert [line.split("  ")[-1] for line in lines[:-1]] == ["a for llvm", "b for llvm"]
    assert lines[-1] == f"2 entries, 10 KiB of at most 5 GiB in {cache.folder}"


def test_a_listing_in_json_has_the_facts(cli, cache):
    listed = json.loads(cli("cache", "list", "--json")[1])
    assert [entry["facts"]["function"] for entry in listed["entries"]] == ["a", "b"]
    assert listed["bytes"] == sum(entry["bytes"] for entry in listed["entries"])
    assert (listed["path"], listed["limit"]) == (str(cache.folder), 5 << 30)


def test_prune_removes_down_to_a_size_and_clear_everything(cli, cache):
    assert cli("cache", "prune")[1].startswith("0 entries removed")
    assert json.loads(cli("cache", "prune", "--max-bytes", "6000", "--json")[1])["removed"] == 1
    assert [cache.get(key) is not None for key in "ab"] == [True, False]
    assert cli("cache", "clear")[1].startswith("1 entry removed")
    assert cache.entries() == []


def test_entries_that_cannot_be_removed_are_an_error(cli, cache):
    (cache.folder / "ab" / f"{'0' * 62}.entry" / "in-the-way").mkdir(parents=True)
    code, printed, error = cli("cache", "clear")
    assert code == 1
    assert not printed.endswith("; 0 bytes left\n")
    assert "cannot be removed" in error


def test_a_folder_that_others_may_write_is_an_error(cli, cache):
    cache.folder.chmod(0o777)
    code, _, error = cli("cache", "list")
    assert code == 1
    assert "others may write to it" in error


def test_a_cache_that_is_off_is_an_error(cli, monkeypatch):
    monkeypatch.setenv("TVMTARGET_CACHE", "off")
    assert cli("cache", "path")[0] == 1


def test_compile_stores_code_without_the_option_no_cache(cli, cache, tmp_path):
    pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
    words = ("compile", DIGITS, "-t", "llvm", "--output", tmp_path / "digits.tta")
    assert cli(*words, "--no-cache", "--jobs", "1")[0] == 0
    assert len(cache.entries()) == 2
    assert cli(*words)[0] == 0
    assert len(cache.entries()) == 3
    code, _, error = cli("run", tmp_path / "digits.tta", "--input", EXAMPLES / "digits.npz", "--no-cache")
    assert code == 2
    assert "--no-cache and --jobs need a model" in error
