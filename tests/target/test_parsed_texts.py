"""Texts that were parsed before: the same tree, as long as plugins, tags and warnings stay what they were."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from trees import trees

from tvmtarget import Registry, Target, plugins
from tvmtarget.errors import TvmTargetError, TvmTargetWarning, UnknownNameError
from tvmtarget.tags.registry import default_registry
from tvmtarget.target.kinds import Attribute, Kind
from tvmtarget.target.tree import _ParsedTexts

few = settings(max_examples=60, deadline=None)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project folder whose tags the default registry has, and a function that rewrites them."""

    def write(text):
        (tmp_path / "tvmtarget.toml").write_text(f"schema = 1\n{text}")
        default_registry.cache_clear()

    monkeypatch.chdir(tmp_path)
    yield write
    monkeypatch.undo()
    default_registry.cache_clear()


@pytest.mark.parametrize("text", ["cuda(arch=sm_80)", "arm/rasp4b", "arm/rasp4b:cpu", json.dumps({"kind": "llvm"})])
def test_a_text_is_parsed_once(text):
    assert Target.parse(text) is Target.parse(text)


@few
@given(trees)
def test_a_remembered_tree_is_the_one_that_is_parsed(tree):
    text = str(tree)
    again, anew = Target.parse(text), _ParsedTexts().parse(text)
    assert again is Target.parse(text)
    assert again == anew == tree
    assert again.to_json() == anew.to_json()
    assert list(again.origins()) == list(anew.origins())


def test_spellings_of_one_tree_keep_their_own_provenance():
    short, long = Target.parse("cuda(arch=sm_80)"), Target.parse("cuda -arch=sm_80")
    assert short == long
    assert (short.origin("arch").detail, long.origin("arch").detail) == ("cuda(arch=sm_80)", "cuda -arch=sm_80")


def test_given_tags_are_looked_up_in():
    tags = default_registry().with_tags({"arm/rasp4b": "llvm(num-cores=2)"}, override=True)
    known = Target.parse("arm/rasp4b")
    assert Target.parse("arm/rasp4b", tags=tags)["num-cores"] == 2
    assert Target.parse("arm/rasp4b") is known
    with pytest.raises(UnknownNameError):
        Target.parse("arm/rasp4b", tags=Registry())


def test_another_registry_is_looked_up_in(project):
    project('[tag."acme/box"]\nkind = "llvm"\nnum-cores = 2\n')
    assert Target.parse("acme/box")["num-cores"] == 2
    assert Target.parse("acme/box(mcpu=znver3)")["num-cores"] == 2
    kept = Target.parse("llvm(num-cores=2)")
    project('[tag."acme/box"]\nkind = "llvm"\nnum-cores = 4\n')
    assert Target.parse("acme/box")["num-cores"] == 4
    assert Target.parse("acme/box(mcpu=znver3)")["num-cores"] == 4
    assert Target.parse("llvm(num-cores=2)") is kept
    project("")
    with pytest.raises(UnknownNameError, match="unknown tag 'acme/box'"):
        Target.parse("acme/box")


def test_a_tag_that_is_added_later_is_found(project):
    project("")
    with pytest.raises(UnknownNameError):
        Target.parse("acme/box")
    project('[tag."acme/box"]\nkind = "llvm"\n')
    assert Target.parse("acme/box") == Target("llvm")


def test_a_registered_kind_is_read_with_its_table():
    text = '{"kind": "kind-of-texts", "num_taps": 4}'
    assert Target.parse(text).to_json() == {"kind": "kind-of-texts", "num_taps": 4}
    rows = (Attribute(name="num-taps", type="int", class_="hard"),)
    plugins.register("tvmtarget.kinds", "kind-of-texts", (Kind(name="kind-of-texts", attributes=rows),))
    assert Target.parse(text).to_json() == {"kind": "kind-of-texts", "num-taps": 4}


def test_warnings_and_errors_appear_every_time(project):
    project('[tag."acme/old"]\nkind = "llvm"\ndeprecated = "acme/new"\n')
    for text, message in [("acme/old", "is deprecated"), ("llvm -libs=mkldnn", "historic spelling")]:
        for _ in range(2):
            with pytest.warns(TvmTargetWarning, match=message):
                Target.parse(text)
    for _ in range(2):
        with pytest.raises(TvmTargetError, match="no attribute"):
            Target.parse("llvm(num-coars=4)")


def test_the_number_and_length_of_remembered_texts_are_bounded():
    texts = _ParsedTexts()
    first = texts.parse("llvm(num-cores=1)")
    for cores in range(2, texts.most_texts + 2):
        texts.parse(f"llvm(num-cores={cores})")
    assert len(texts._trees) == texts.most_texts
    assert texts.parse("llvm(num-cores=1)") is not first
    long = "llvm(model=" + "x" * texts.most_letters + ")"
    assert texts.parse(long) is not texts.parse(long)


def test_threads_share_the_remembered_texts():
    texts, start = _ParsedTexts(), threading.Barrier(4)
    texts.most_texts = 8
    names = [f"llvm(num-cores={cores})" for cores in range(1, 33)]

    def parse_all(_):
        start.wait()
        return [texts.parse(name)["num-cores"] for _ in range(20) for name in names]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(parse_all, range(4)):
            assert found == [*range(1, 33)] * 20
    assert len(texts._trees) == texts.most_texts
