"""The JSON Schema of tag files accepts all shipped files and rejects invalid ones."""

import tomllib

import jsonschema_rs
import pytest

from tvmtarget.tags.discovery import shipped_folder
from tvmtarget.tags.files import CONFIDENCES, METADATA
from tvmtarget.tags.schema import tag_file_schema

SCHEMA = tag_file_schema()
VALIDATOR = jsonschema_rs.Draft202012Validator(SCHEMA)


def test_the_schema_is_valid():
    jsonschema_rs.meta.validate(SCHEMA)


@pytest.mark.parametrize("path", sorted(shipped_folder().glob("*.toml")), ids=lambda path: path.stem)
def test_a_shipped_file_is_valid(path):
    assert [error.message for error in VALIDATOR.iter_errors(tomllib.loads(path.read_text(encoding="utf-8")))] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "schema = 2",
        "schema = 1\ntags = {}",
        "schema = 1\n[source.x]",
        "schema = 1\n[tag.Box]\nkind = 'llvm'",
        "schema = 1\n[tag.box]\nkind = 'lvm'",
        "schema = 1\n[tag.box]\nkind = 'llvm'\nnum-core = 4",
        "schema = 1\n[tag.box]\nkind = 'llvm'\nnum-cores = 1.5",
        "schema = 1\n[tag.box]\nkind = 'llvm'\nconfidence = 'certain'",
        "schema = 1\n[tag.box]\nkind = 'llvm'\nbase = 'acme/other'",
        "schema = 1\n[tag.box]\nbase = 'acme/other'\naliases = 'b'",
        "schema = 1\n[tag.box]\ntargets = 5",
        "schema = 1\n[family.box]\nsize = {}",
    ],
)
def test_an_invalid_file_violates_the_schema(text):
    assert not VALIDATOR.is_valid(tomllib.loads(text))


def test_the_schema_has_all_metadata_of_a_row():
    based = SCHEMA["$defs"]["based"]["properties"]
    assert set(METADATA) <= set(based)
    assert based["confidence"]["enum"] == list(CONFIDENCES)
