"""JSON Schema of tag files, generated from the registered kinds and the metadata of rows, for editors and checkers.

As for targets (`target/schema.py`), it describes the canonical spelling. It cannot check what depends on other tags:
the paths of a base, and the consistency of the resulting tree.
"""

from __future__ import annotations

from typing import Any

from tvmtarget.tags.files import CONFIDENCES, METADATA, NAME_PATTERN, SCHEMA
from tvmtarget.target.kinds import kind_names
from tvmtarget.target.schema import forms_of
from tvmtarget.target.tree import Target

__all__ = ["tag_file_schema"]

_TYPES: dict[type, dict[str, object]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    list: {"type": "array", "items": {"type": "string"}},
}
_ROW = {"$ref": "#/$defs/row"}
_CHANGES = {"$ref": "#/$defs/changes"}


def tag_file_schema() -> dict[str, object]:
    """Generate the schema of a tag file with the kinds that are registered here.

    Returns:
        A JSON Schema document.

    >>> tag_file_schema()["properties"]["tag"]["additionalProperties"]
    {'$ref': '#/$defs/row'}
    """
    definitions: dict[str, Any] = Target.model_json_schema()["$defs"]
    forms: dict[str, dict[str, Any]] = forms_of(definitions["Target"])
    rows = {f"row.{name}": _with_metadata(forms[name]) for name in kind_names()}
    fields = forms["composite"]["properties"]
    changes = {name: fields[name] for name in ("count", "links", "memory", "executor", "runtime")}
    definitions |= {
        **rows,
        "changes": {"type": "object", "description": "differences from a base, by path", "properties": changes},
        "based": _with_metadata({**forms["tag"], "properties": changes | {"kind": False, "tag": False}}, "base"),
        "row.tag": _with_metadata(forms["tag"]),
        # A base determines the kind, so rows with and without one have different fields.
        "row": {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in ("based", "row.tag", *rows)]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tvmtarget tag file",
        "type": "object",
        "properties": {
            "schema": {"const": SCHEMA},
            "source": _tables({"type": "object", "properties": {"cite": _TYPES[str]}, "required": ["cite"]}),
            "tag": {**_tables(_ROW), "propertyNames": {"pattern": f"^{NAME_PATTERN}$"}},
            "family": _tables(
                {
                    "type": "object",
                    "properties": {"sizes": _tables(_CHANGES)},
                    "required": ["sizes"],
                    "additionalProperties": False,
                }
            ),
        },
        "required": ["schema"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _tables(of: dict[str, Any]) -> dict[str, object]:
    return {"type": "object", "additionalProperties": of}


def _with_metadata(definition: dict[str, Any], *required: str) -> dict[str, object]:
    """Add the metadata of a row to the definition of a target."""
    metadata = {name: _TYPES[type_] for name, type_ in METADATA.items()}
    metadata["confidence"] = {"enum": list(CONFIDENCES)}
    if not required:
        del metadata["base"]
    properties = {**definition["properties"], **metadata}
    return {**definition, "properties": properties, "required": list(required or definition["required"])}
