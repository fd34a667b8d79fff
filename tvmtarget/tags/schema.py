"""JSON Schema of tag files, made of the rows of the kinds and of what is read of a row, for editors and other checks.

As with targets (`target/schema.py`) it is the canonical spelling; what needs other tags, no schema can say: which
paths a base has, and whether the tree that is made is consistent.
"""

from __future__ import annotations

from typing import Any, cast

from tvmtarget.tags.files import CONFIDENCES, NAME, NOTES, SCHEMA
from tvmtarget.target.kinds import kind_names
from tvmtarget.target.schema import json_schema

__all__ = ["tag_file_schema"]

_TYPES: dict[type, dict[str, object]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    list: {"type": "array", "items": {"type": "string"}},
}
_ROW = {"$ref": "#/$defs/row"}
_CHANGES = {"$ref": "#/$defs/changes"}


def tag_file_schema() -> dict[str, object]:
    """Return the schema of a file of tags, with the kinds that are registered here.

    >>> tag_file_schema()["properties"]["tag"]["additionalProperties"]
    {'$ref': '#/$defs/row'}
    """
    targets = json_schema()
    definitions = cast("dict[str, Any]", targets["$defs"])
    kinds = [f"tag of {name}" for name in kind_names()]
    rows = {name: _with_notes(definitions[name.removeprefix("tag of ")]) for name in kinds}
    fields = definitions["composite"]["properties"]
    changes = {name: fields[name] for name in ("count", "links", "memory", "executor", "runtime")}
    definitions |= {
        **rows,
        "changes": {"type": "object", "description": "what differs from a base, by path", "properties": changes},
        "based": _with_notes({**definitions["tagged"], "properties": changes | {"kind": False, "tag": False}}, "base"),
        "tag of a tag": _with_notes(definitions["tagged"]),
        "row": {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in ("based", "tag of a tag", *rows)]},
    }
    return {
        "$schema": targets["$schema"],
        "title": "tvmtarget tag file",
        "type": "object",
        "properties": {
            "schema": {"const": SCHEMA},
            "source": _tables({"type": "object", "properties": {"cite": _TYPES[str]}, "required": ["cite"]}),
            "tag": {**_tables(_ROW), "propertyNames": {"pattern": f"^{NAME}$"}},
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


def _with_notes(definition: dict[str, Any], *required: str) -> dict[str, object]:
    """Return the definition of a target with what a row says besides it."""
    notes = {name: _TYPES[type_] for name, type_ in NOTES.items()}
    notes["confidence"] = {"enum": list(CONFIDENCES)}
    if not required:
        del notes["base"]
    properties = {**definition["properties"], **notes}
    return {**definition, "properties": properties, "required": list(required or definition["required"])}
