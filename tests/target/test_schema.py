"""The JSON Schema accepts what the library prints, and rejects what the library rejects."""

import json

import jsonschema_rs
import pytest
from hypothesis import given, settings
from trees import trees

from tvmtarget import Target
from tvmtarget.cli.main import main
from tvmtarget.tags.registry import default_registry

SCHEMA = Target.model_json_schema()
VALIDATOR = jsonschema_rs.Draft202012Validator(SCHEMA)


def test_it_is_a_schema():
    jsonschema_rs.meta.validate(SCHEMA)


@settings(deadline=None, max_examples=15)
@given(trees)
def test_every_printed_target_is_valid(tree):
    assert VALIDATOR.is_valid(tree.to_json())
    assert VALIDATOR.is_valid(tree.override({}).to_json())


@pytest.mark.parametrize("name", ["aws/c5.large", "nvidia/jetson-nano", "nvidia/a100-rack", "arm/rasp4b64"])
def test_tags_are_valid(name):
    assert VALIDATOR.is_valid(default_registry()[name].to_json())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_shipped_tag_is_valid_after_resolving(part):
    """Of all tags, a quarter each: the resolved tree, and the tree of its text."""
    registry = default_registry()
    names = list(registry)[part::4]
    assert len(names) > 1000
    wrong = []
    for name in names:
        resolved = registry[name].resolve()
        if not VALIDATOR.is_valid(resolved.to_json()) or Target.parse(str(resolved)) != resolved:
            wrong.append(name)
    assert not wrong


def test_the_command_line_prints_the_schema_of_the_model(capsys):
    assert main(["kinds", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(Target.model_json_schema()))


def test_a_deep_tree_is_checked_one_kind_at_a_node():
    """A checker that tried all kinds at all levels would take years."""
    tree = Target("llvm")
    for _ in range(16):
        tree = Target("composite", targets=[tree, Target("cuda", host="llvm")])
    assert VALIDATOR.is_valid(tree.to_json())


@pytest.mark.parametrize(
    "text", ["aws/c5", "cuda -arch=sm_80", "[gpu=cuda,cpu=llvm](host=@cpu)", "aarch64-linux-gnu(mcpu=cortex-a72)"]
)
def test_texts_are_valid_as_targets_and_as_children(text):
    for data in (text, {"kind": "cuda", "host": text}, {"targets": [text]}):
        assert VALIDATOR.is_valid(data)
    assert VALIDATOR.is_valid(Target.parse(text).to_json())


@pytest.mark.parametrize(
    "data",
    [
        "aws/c5",
        {"tag": "aws/c5", "cpu/num-cores": 2, "cpu/+": ["-avx2"], "~": ["host"]},
        {"targets": ["llvm", {"kind": "cuda", "arch": "sm_80"}]},
        {"kind": "llvm", "executor": "aot", "runtime": {"kind": "crt", "system-lib": True}},
    ],
)
def test_short_forms_are_valid(data):
    assert VALIDATOR.is_valid(data)
    assert Target.from_json(data)


@pytest.mark.parametrize(
    "data",
    [
        5,
        {"kind": "cuda", "arhc": "sm_80"},
        {"kind": "llvm", "num-cores": 0},
        {"kind": "llvm", "num-cores": 1.5},
        {"kind": "llvm", "executor": "atom"},
        {"kind": "llvm", "executor": {"kind": "aot", "interface-api": "woof"}},
        {"kind": "llvm", "mattr": ["+neon", "+neon"]},
        {"kind": "llvm", "count": 0},
        {"kind": "composite", "links": [{"src": "a"}]},
        {"kind": "cudaa"},
        {},
        {"arch": "sm_80"},
        {"targets": [{"kind": "llvm", "arch": "sm_80"}]},
        {"kind": "cuda", "host": {"kind": "llvm", "arch": "sm_80"}},
    ],
)
def test_targets_that_the_library_rejects_are_not_valid(data):
    assert not VALIDATOR.is_valid(data)
