"""Texts of targets: the golden table of forms, and what no table shows well."""

import json

import pytest
from blocks import answered, inputs

from tvmtarget import Target
from tvmtarget.errors import TextError, TvmTargetError
from tvmtarget.tags.registry import default_registry
from tvmtarget.target.text.forms import detect

GOLDEN = "target/forms.golden"


def is_tag(name):
    return name in default_registry()


def answer(text):
    form = f"  {detect(text, is_tag)}"
    try:
        return [form, f"  {Target.parse(text)}"]
    except TvmTargetError as error:
        return [form, *(f"  {type(error).__name__}: {line}" for line in str(error).splitlines())]


def test_every_form_is_detected_and_read(golden):
    golden(GOLDEN, answered(GOLDEN, answer))


@pytest.mark.parametrize("text", inputs(GOLDEN))
def test_the_canonical_text_is_a_fixed_point(text):
    try:
        target = Target.parse(text)
    except TvmTargetError:
        return
    assert Target.parse(str(target)) == target
    assert str(Target.parse(str(target))) == str(target)


def test_flat_json_and_targets_are_parsed_too():
    flat = {"kind": "cuda", "arch": "sm_80", "host": {"kind": "llvm"}}
    tree = Target.parse(flat)
    assert tree == Target.parse("cuda(arch=sm_80,host=llvm)") == Target.parse(json.dumps(flat))
    assert Target.parse(tree) is tree
    assert Target.parse({"tag": "aws/c5", "cpu/num-cores": 3}).at("cpu")["num-cores"] == 3


def test_a_tag_may_hold_a_comma():
    """One historic tag does; it is not taken for a composition."""
    tag = "nvidia/geforce-gt-730-ddr3,128bit"
    tags = {tag: Target("cuda", {"arch": "sm_35"})}
    assert Target.parse(tag, tags=tags)["arch"] == "sm_35"


@pytest.mark.parametrize(
    "text", ["llvm(model=\ud800)", "\ud800", '{"kind": "\ud800"}', "nvidia/\ud800", "c -model=\ud800"]
)
def test_half_of_a_surrogate_pair_is_no_text(text):
    with pytest.raises(TvmTargetError):
        Target.parse(text)


def test_a_caret_shows_where_parsing_stopped():
    with pytest.raises(TextError) as caught:
        Target.parse("llvm(num-cores 4)")
    assert caught.value.caret().splitlines()[1:] == ["  llvm(num-cores 4)", "                 ^"]


def test_an_error_in_a_long_text_shows_the_text_around_it():
    text = "[" + ",".join(f"cpu{k}=llvm(num-cores=4)" for k in range(9999)) + ",oops=]"
    with pytest.raises(TextError) as caught:
        Target.parse(text)
    error = caught.value
    assert len(str(error)) < 600
    assert error.text[error.column] == "]"
    assert error.text.startswith("...")


@pytest.mark.parametrize(
    "text", ["a" * 1_000_000, "[" * 1_000_000, "x/" * 500_000, "llvm(" + "m=" * 500_000, "," * 99_999]
)
def test_very_long_texts_are_rejected_with_a_short_message(text):
    with pytest.raises(TvmTargetError) as caught:
        Target.parse(text)
    assert len(str(caught.value)) < 1000


def test_a_large_tree_is_read_back():
    tree = Target("composite", targets=[Target("llvm", {"num-cores": k}, name=f"cpu{k}") for k in range(1, 3000)])
    assert len(str(tree)) > 65_536
    assert Target.parse(str(tree)) == tree
