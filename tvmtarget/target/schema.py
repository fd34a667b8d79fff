"""JSON Schema of targets in flat JSON, for editors and other programs that check them.

The schema is generated from the tables of kinds. It describes the canonical spelling; the reader also accepts '_' for
'-', numbers in texts, and texts of any form for nested targets. Rules that need the whole tree (`rules.py`) cannot be
expressed in a schema.
"""

from __future__ import annotations

from tvmtarget.target.kinds import Attribute, Kind, Role, find_kind, kind_names
from tvmtarget.target.node import Link, Memory
from tvmtarget.target.target_node import MAX_COUNT
from tvmtarget.target.values import MAX_INT

__all__ = ["json_schema"]

_DRAFT = "https://json-schema.org/draft/2020-12/schema"

_TYPES: dict[str, dict[str, object]] = {
    "int": {"type": "integer", "maximum": MAX_INT},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
    "list[str]": {"type": "array", "items": {"type": "string"}},
    "list[int]": {"type": "array", "items": {"type": "integer"}},
    "features": {"type": "array", "items": {"type": "string", "pattern": "^[+-]"}, "uniqueItems": True},
}

_TARGET = {"$ref": "#/$defs/target"}
_WORDS = {"type": "array", "items": {"type": "string"}}


def json_schema() -> dict[str, object]:
    """Return the schema of a target in flat JSON, with the kinds that are registered here.

    >>> json_schema()["$defs"]["cuda"]["properties"]["arch"]["type"]
    'string'
    """
    kinds = [_kind(name, "target") for name in kind_names()]
    definitions: dict[str, object] = {kind.name: _target(kind) for kind in kinds}
    for role in ("executor", "runtime"):
        configured = [_configured(_kind(name, role)) for name in kind_names(role)]
        definitions[role] = {"anyOf": [{"enum": list(kind_names(role))}, *configured]}
    definitions["tagged"] = _tagged()
    forms = [{"type": "string"}, {"$ref": "#/$defs/tagged"}, *({"$ref": f"#/$defs/{kind.name}"} for kind in kinds)]
    definitions["target"] = {"anyOf": forms}
    return {"$schema": _DRAFT, "title": "tvmtarget target", "$ref": "#/$defs/target", "$defs": definitions}


def _kind(name: str, role: Role) -> Kind:
    kind = find_kind(name, role)
    assert kind is not None  # it is one of the names
    return kind


def _target(kind: Kind) -> dict[str, object]:
    properties: dict[str, object] = {"kind": {"const": kind.name}, **_fields(), **_attributes(kind)}
    # An object with `targets` and no kind is a composite.
    required = [] if kind.name == "composite" else ["kind"]
    return {
        "type": "object",
        "description": kind.doc,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _fields() -> dict[str, object]:
    """Return the fields that a target of any kind has."""
    facts = {field: {"type": "array", "items": _fact(cls)} for field, cls in (("links", Link), ("memory", Memory))}
    return {
        "schema": {"const": 1},
        "tag": {"type": "string"},
        "name": {"type": "string"},
        "keys": _WORDS,
        "count": {"type": "integer", "minimum": 1, "maximum": MAX_COUNT},
        "host": _TARGET,
        "targets": {"type": "array", "items": _TARGET},
        **facts,
        "executor": {"$ref": "#/$defs/executor"},
        "runtime": {"$ref": "#/$defs/runtime"},
    }


def _fact(cls: type[Link | Memory]) -> dict[str, object]:
    schema = cls.model_json_schema()
    return {key: schema[key] for key in ("type", "properties", "required", "additionalProperties") if key in schema}


def _attributes(kind: Kind) -> dict[str, object]:
    return {row.name: _attribute(row) for row in kind.attributes}


def _attribute(row: Attribute) -> dict[str, object]:
    schema = {**_TYPES[row.type], "description": row.doc}
    if row.least is not None:
        schema["minimum"] = row.least
    if row.choices:
        schema["enum"] = [int(choice) if row.type == "int" else choice for choice in row.choices]
    if row.default is not None:
        schema["default"] = list(row.default) if isinstance(row.default, tuple) else row.default
    return schema


def _configured(kind: Kind) -> dict[str, object]:
    properties: dict[str, object] = {"kind": {"const": kind.name}, **_attributes(kind)}
    return {
        "type": "object",
        "description": kind.doc,
        "properties": properties,
        "required": ["kind"],
        "additionalProperties": False,
    }


def _tagged() -> dict[str, object]:
    """Return the schema of a tag with overrides: values at any path, features to add, and paths to unset."""
    return {
        "type": "object",
        "description": "a tag, and what differs from it by path",
        "properties": {"tag": {"type": "string"}, "kind": False, "+": _WORDS, "~": _WORDS},
        "required": ["tag"],
    }
