"""The law of readers: given any bytes, they return or raise a `TvmTargetError`, and soon."""

import pytest
from effort import examples
from fuzz.readers import CRASHES, READERS, failures, problem_of


@pytest.mark.parametrize("name", READERS)
def test_seeds_are_read(name, tmp_path):
    """An error of a seed would hide what comes after it."""
    for at, data in enumerate(READERS[name].seeds()):
        where = tmp_path / str(at)
        where.mkdir()
        READERS[name].read(data, where)


@pytest.mark.parametrize("path", sorted(CRASHES.glob("*/*.bin")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_once_broke_the_law_keeps_it(path):
    assert problem_of(READERS[path.parent.name], path.read_bytes()) is None


@pytest.mark.parametrize("name", READERS)
def test_changed_files_are_read_or_refused(name):
    """A failure leaves its input in tests/fuzz/crashes/, which becomes part of the corpus."""
    assert list(failures(name, seconds=1.0, seed=1, most=150)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_changed_files_are_read_or_refused(name):
    assert list(failures(name, seconds=examples(8.0, 15.0), seed=2, most=examples(80, 600))) == []
