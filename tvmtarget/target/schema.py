"""JSON Schema of targets in flat JSON, for editors and other programs that check them.

The schema is generated from the tables of kinds. It describes the canonical spelling; the reader also accepts '_' for
'-', numbers in texts, and texts of any form for nested targets. Rules that need the whole tree (`rules.py`) cannot be
expressed in a schema. `Target.model_json_schema()` returns the whole.
"""

from __future__ import annotations

from typing import TypeAlias, cast

from tvmtarget.target.kinds import Attribute, Kind, Role, kind_names, kind_of
from tvmtarget.target.values import MAX_COUNT, MAX_INT, SCHEMA

__all__ = ["Schema", "configured_schema", "forms_of", "target_schema"]

_TYPES: dict[str, dict[str, object]] = {
    "int": {"type": "integer", "maximum": MAX_INT},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
    "list[str]": {"type": "array", "items": {"type": "string"}},
    "list[int]": {"type": "array", "items": {"type": "integer"}},
    "features": {"type": "array", "items": {"type": "string", "pattern": "^[+-]"}, "uniqueItems": True},
}

_WORDS = {"type": "array", "items": {"type": "string"}}

Schema: TypeAlias = dict[str, object]


def target_schema(target: Schema, executor: Schema, runtime: Schema, link: Schema, memory: Schema) -> Schema:
    """Return the schema of a target in flat JSON, with the kinds that are registered here.

    Args:
        target: reference to this schema, for nested targets.
        executor: reference to the schema of executors.
        runtime: reference to the schema of runtimes.
        link: reference to the schema of links.
        memory: reference to the schema of memories.

    Returns:
        `anyOf` a text, a tag with overrides, and an object, whose `kind` selects the schema of its kind.
    """
    fields: Schema = {
        "schema": {"const": SCHEMA},
        "tag": {"type": "string"},
        "name": {"type": "string"},
        "keys": _WORDS,
        "count": {"type": "integer", "minimum": 1, "maximum": MAX_COUNT},
        "host": target,
        "targets": {"type": "array", "items": target},
        "links": {"type": "array", "items": link},
        "memory": {"type": "array", "items": memory},
        "executor": executor,
        "runtime": runtime,
    }
    forms = {name: _node(kind_of(name), fields) for name in kind_names()}
    # With `anyOf` the kinds, a checker would try all of them at every level, which is exponential in the depth.
    branches: list[Schema] = [
        {"if": {"properties": {"kind": {"const": name}}, "required": ["kind"]}, "then": form}
        for name, form in forms.items()
    ]
    unnamed = {"if": {"not": {"required": ["kind"]}}, "then": {**forms["composite"], "required": ["targets"]}}
    kinds: Schema = {"type": "object", "properties": {"kind": {"enum": list(forms)}}, "allOf": [*branches, unnamed]}
    return {"title": "Target", "anyOf": [{"type": "string"}, _TAGGED, kinds]}


def forms_of(target: Schema) -> dict[str, Schema]:
    """Return the parts of a schema of targets that describe objects.

    Args:
        target: what `target_schema` returned.

    Returns:
        The schema of each kind by its name, and that of a tag with overrides as `tag`.
    """
    *_, tagged, kinds = cast("list[Schema]", target["anyOf"])
    branches = cast("list[dict[str, Schema]]", kinds["allOf"])
    return {"tag": tagged} | {str(branch["then"]["title"]): branch["then"] for branch in branches[:-1]}


def configured_schema(role: Role) -> Schema:
    """Return the schema of executors or runtimes.

    Args:
        role: executor or runtime.

    Returns:
        `anyOf` the names of the kinds, and an object for each kind, whose title is the kind.
    """
    names = kind_names(role)
    return {"title": role.capitalize(), "anyOf": [{"enum": list(names)}, *(_node(kind_of(n, role), {}) for n in names)]}


def _node(kind: Kind, fields: Schema) -> Schema:
    """Return the schema of an object of one kind, with fields besides its attributes."""
    properties = {"kind": {"const": kind.name}, **fields, **{row.name: _attribute(row) for row in kind.attributes}}
    return {
        "title": kind.name,
        "type": "object",
        "description": kind.doc,
        "properties": properties,
        # An object with `targets` and no kind is a composite.
        "required": [] if kind.name == "composite" else ["kind"],
        "additionalProperties": False,
    }


def _attribute(row: Attribute) -> dict[str, object]:
    schema = {**_TYPES[row.type], "description": row.doc}
    if row.least is not None:
        schema["minimum"] = row.least
    if row.most is not None:
        schema["maximum"] = row.most
    if row.choices:
        schema["enum"] = [int(choice) if row.type == "int" else choice for choice in row.choices]
    if row.default is not None:
        schema["default"] = list(row.default) if isinstance(row.default, tuple) else row.default
    return schema


# Values at any path, features to add, and paths to unset.
_TAGGED: Schema = {
    "title": "tag",
    "type": "object",
    "description": "a tag, and what differs from it by path",
    "properties": {"tag": {"type": "string"}, "kind": False, "+": _WORDS, "~": _WORDS},
    "required": ["tag"],
}
