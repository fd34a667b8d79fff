"""The JSON Schema accepts what the library prints, and rejects what the library rejects."""

import jsonschema
import pytest
from hypothesis import given, settings
from trees import trees

from tvmtarget import Target
from tvmtarget.tags.registry import default_registry
from tvmtarget.target.schema import json_schema

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@settings(deadline=None, max_examples=40)
@given(trees)
def test_every_printed_target_is_valid(tree):
    assert VALIDATOR.is_valid(tree.to_json())
    assert VALIDATOR.is_valid(tree.override({}).to_json())


@pytest.mark.parametrize("name", ["aws/c5.large", "nvidia/jetson-nano", "nvidia/a100-rack", "arm/rasp4b64"])
def test_tags_are_valid(name):
    assert VALIDATOR.is_valid(default_registry()[name].to_json())


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
    ],
)
def test_targets_that_the_library_rejects_are_not_valid(data):
    assert not VALIDATOR.is_valid(data)
