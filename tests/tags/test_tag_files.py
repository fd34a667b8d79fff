"""Tag files: the tags that their rows define, and the messages for invalid rows."""

import pytest

from tvmtarget import Target
from tvmtarget.errors import TargetError, TvmTargetError, UnknownNameError
from tvmtarget.tags.registry import Registry

HEAD = """
schema = 1
[source.sheet]
cite = "a data sheet"
"""

BOX = (
    HEAD
    + """
[tag.box]
doc = "A box"
aliases = ["crate", "old-box,128bit"]
source = ["sheet"]
confidence = "vendor"
kind = "composite"
host = "@cpu"
targets = [{ name = "gpu", kind = "cuda", arch = "sm_53" }, { name = "cpu", kind = "llvm", mattr = ["+neon"] }]

[tag.big-box]
base = "acme/box"
"cpu/num-cores" = 8
"cpu/mattr" = ["-neon"]
memory = [{ name = "dram", bytes = 4096 }]

[tag.part]
base = "acme/box:cpu"

[tag.rack]
kind = "composite"
host = "@a/cpu"
targets = [{ name = "a", tag = "acme/box" }, { name = "b", tag = "acme/box", "cpu/num-cores" = 2 }]

[tag.hidden]
abstract = true
kind = "llvm"

[family.box.sizes]
small = { "cpu/num-cores" = 1 }
large = { "cpu/num-cores" = 64, doc = "the large one", confidence = "derived" }
"""
)


@pytest.fixture
def read(tmp_path):
    """Return a function that makes a registry of one file."""

    def registry(text, name="acme"):
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
        return Registry(tmp_path)

    return registry


def test_a_file_defines_tags(read):
    registry = read(BOX)
    assert list(registry) == ["acme/big-box", "acme/box", "acme/box.large", "acme/box.small", "acme/part", "acme/rack"]
    assert registry.namespaces() == ("acme",)
    assert registry["acme/box"] == Target.parse("[gpu=cuda(arch=sm_53),cpu=llvm(+neon)](host=@cpu)")


def test_a_base_is_overridden_by_path(read):
    big = read(BOX)["acme/big-box"]
    assert big == Target.parse(
        '[gpu=cuda(arch=sm_53),cpu=llvm(-neon,num-cores=8)](memory=[{"name":"dram","bytes":4096}])'
    )
    assert big.tag == "acme/big-box"


def test_a_base_may_be_a_part(read):
    assert read(BOX)["acme/part"] == Target.parse("llvm(+neon)")


def test_a_tag_may_consist_of_tags(read):
    rack = read(BOX)["acme/rack"]
    assert rack.at("a").tag == "acme/box"
    assert rack.at("b/cpu")["num-cores"] == 2


def test_a_family_has_a_tag_for_each_size(read):
    registry = read(BOX)
    assert registry["acme/box.small"].at("cpu")["num-cores"] == 1
    small, large = registry.info("acme/box.small"), registry.info("acme/box.large")
    assert (small.doc, small.sources, small.confidence) == ("A box (small)", ("a data sheet",), "vendor")
    assert (large.doc, large.sources, large.confidence) == ("the large one", ("a data sheet",), "derived")


def test_aliases_and_abstract_tags_are_found_but_not_listed(read):
    registry = read(BOX)
    assert registry["acme/crate"].tag == "acme/box"
    assert registry["acme/old-box,128bit"].tag == "acme/box"
    assert registry["acme/hidden"] == Target("llvm")
    assert registry.info("acme/crate").aliases == ("acme/crate", "acme/old-box,128bit")
    assert registry.info("acme/hidden").is_abstract
    assert Target.parse("acme/old-box,128bit", tags=registry) == registry["acme/box"]


def test_an_unknown_name_comes_with_the_nearest(read):
    with pytest.raises(UnknownNameError, match="unknown tag 'acme/boks'; did you mean 'acme/box'"):
        read(BOX)["acme/boks"]


WRONG_FILES = {
    "tag = 5": "'tag' holds tables, not 5",
    "[tags.box]\nkind = 'llvm'": "unknown section 'tags'; did you mean 'tag'?",
    "[tag]\nbox = 5": "tag 'box' is a table, not 5",
    "[source]\nx = 5": "source 'x' is a table, not 5",
    "[source.x]\nurl = 'here'": "source 'x' needs a text 'cite', not None",
    "[tag.Box]\nkind = 'llvm'": (
        "'Box' is not a valid name of a tag; use lower-case letters, digits, '-', '_' and '.', at tag 'acme/Box'"
    ),
    "[tag.box]\nkind = 'llvm'\ndoc = 5": "'doc' is text, not 5, at tag 'acme/box'",
    "[tag.box]\nkind = 'llvm'\nabstract = 'yes'": "'abstract' is true or false, not 'yes', at tag 'acme/box'",
    "[tag.box]\nkind = 'llvm'\nsource = 'sheet'": "'source' is a list of texts, not 'sheet', at tag 'acme/box'",
    "[tag.box]\nkind = 'llvm'\naliases = [5]": "'aliases' is a list of texts, not [5], at tag 'acme/box'",
    "[tag.box]\nbase = 5": "'base' is text, not 5, at tag 'acme/box'",
    "[tag.box]\nkind = 'llvm'\nsource = ['shed']": "unknown source 'shed'; did you mean 'sheet'?, at tag 'acme/box'",
    "[tag.box]\nkind = 'llvm'\nconfidence = 'vendors'": (
        "unknown confidence 'vendors'; did you mean 'vendor'?, at tag 'acme/box'"
    ),
    "[tag.box]\nkind = 'llvm'\nbase = 'acme/x'": (
        "'kind' conflicts with 'base', which determines the target; leave one of them out, at tag 'acme/box'"
    ),
    "[tag.box]\nkind = 'llvm'\naliases = ['x']\n[tag.x]\nkind = 'c'": (
        "'acme/x' is defined twice, at tag 'acme/box' and at tag 'acme/x'"
    ),
    "[tag.box]\nkind = 'llvm'\naliases = ['box']": ("'acme/box' is defined twice, at tag 'acme/box'"),
    "[family.box.sizes]\nsmall = {}": "family 'box' has no tag; define [tag.box], the base of its sizes",
    "[tag.box]\nkind = 'llvm'\n[family.box]\nsmall = {}": "family 'box' holds 'sizes' and nothing else, not small",
    "[tag.box]\nkind = 'llvm'\n[family.box.sizes]\nsmall = 5": "sizes 'small' is a table, not 5",
}


@pytest.mark.parametrize(("text", "problem"), WRONG_FILES.items(), ids=range(len(WRONG_FILES)))
def test_an_invalid_file_is_reported_with_its_name(read, tmp_path, text, problem):
    whole = f"{text}\n{HEAD}" if text.startswith("tag") else HEAD + text
    registry = read(whole + "\n[tag.good]\nkind = 'c'" * (not text.startswith("tag") and text[:5] != "[tag]"))
    assert registry.problems() == (f"{problem}, in tag file {str(tmp_path / 'acme.toml')!r}",)
    assert "acme/good" not in registry or registry["acme/good"] == Target("c")


WRONG_TAGS = {
    "base = 'acme/nothing'": "unknown tag 'acme/nothing'; did you mean 'acme/box'?",
    "base = 'nobody/nothing'": "unknown tag 'nobody/nothing'; known: acme/box",
    "base = 'acme/box'": "tags form a cycle: acme/box -> acme/box",
    "targets = [{ name = 'a', tag = 'acme/box' }]": "tags form a cycle: acme/box -> acme/box",
    "nothing = 5": "a target needs a 'kind' or a 'tag'",
    "kind = 'llvm'\nnum-core = 4": "kind 'llvm' has no attribute 'num-core'; did you mean 'num-cores'?",
    "kind = 'llvm'\nnum-cores = 1.5": "attribute 'num-cores' of kind 'llvm' is a whole number, not 1.5",
    "kind = 'llvm'\nmodel = 2026-01-01": "attribute 'model' of kind 'llvm' is text, not datetime.date(2026, 1, 1)",
    "kind = 'llvm'\nhost = 5": "a target is a text or an object, not 5 (at 'host')",
    "kind = 'composite'\ntargets = 5": "'targets' is a list of targets, not 5",
    "kind = 'composite'\nmemory = [{ name = 'm', byte = 4 }]": "a memory has no field 'byte'; did you mean 'bytes'?",
}


@pytest.mark.parametrize(("text", "problem"), WRONG_TAGS.items(), ids=range(len(WRONG_TAGS)))
def test_an_invalid_tag_is_reported_with_its_file(read, tmp_path, text, problem):
    registry = read(f"{HEAD}[tag.box]\n{text}")
    with pytest.raises(TargetError) as caught:
        registry["acme/box"]
    place = f" (tag 'acme/box' in {str(tmp_path / 'acme.toml')!r}, line 5)"
    assert caught.value.problems[0].startswith(problem)
    assert caught.value.problems[0].count(place) == 1


def test_a_problem_is_reported_for_the_tag_that_has_it(read, tmp_path):
    registry = read(f"{HEAD}[tag.inner]\nkind = 'llvm'\nx = 1\n[tag.outer]\ntargets = [{{ tag = 'acme/inner' }}]")
    with pytest.raises(TargetError) as caught:
        registry["acme/outer"]
    assert f" (tag 'acme/inner' in {str(tmp_path / 'acme.toml')!r}, line 5)" in str(caught.value)
    assert "acme/outer" not in str(caught.value)


def test_cycles_of_bases_are_reported(read):
    registry = read(f"{HEAD}[tag.a]\nbase = 'acme/b'\n[tag.b]\nbase = 'acme/c'\n[tag.c]\nbase = 'acme/a'")
    with pytest.raises(TargetError, match="tags form a cycle: acme/a -> acme/b -> acme/c -> acme/a"):
        registry["acme/a"]


def test_a_chain_of_bases_has_a_maximum_length(read):
    rows = "".join(f"[tag.t{k}]\nbase = 'acme/t{k + 1}'\n" for k in range(20))
    registry = read(f"{HEAD}{rows}[tag.t20]\nkind = 'llvm'")
    assert registry["acme/t15"] == Target("llvm")
    with pytest.raises(TargetError, match="a chain of more than 8 tags: acme/t0 -> "):
        registry["acme/t0"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("schema = 2", "has schema 2; this version reads schema = 1"),
        ("", "has no schema; begin it with schema = 1"),
        ("schema = ", "is not TOML: invalid value"),
        ("\udcff", "is not UTF-8 text: byte 0 is 0xff"),
    ],
)
def test_an_unreadable_file_is_reported(tmp_path, text, problem):
    (tmp_path / "acme.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UnknownNameError) as caught:
        Registry(tmp_path)["acme/box"]
    assert caught.value.problems[0] == "unknown tag 'acme/box'; `tvmtarget tags` lists them"
    assert caught.value.problems[1].startswith(f"tag file {str(tmp_path / 'acme.toml')!r} {problem}")


def test_all_problems_of_a_file_are_reported_together(read):
    registry = read("schema = 1\n[tag.A]\nkind = 'llvm'\n[tag.b]\ndoc = 5\nsource = ['x']\n[family.c.sizes]")
    assert len(registry.problems()) == 4
    assert list(registry) == []


def test_an_invalid_namespace_does_not_hide_the_others(read):
    read("schema = 2", name="broken")
    registry = read(BOX)
    assert registry["acme/box"].kind == "composite"
    with pytest.raises(TvmTargetError):
        registry["broken/box"]


def test_an_empty_folder_has_no_tags(tmp_path):
    assert list(Registry(tmp_path)) == list(Registry(tmp_path / "nothing")) == []
