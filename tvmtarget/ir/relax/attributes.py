"""Attributes of TVM's calls, functions and modules as ours, and back.

Numbers, truths, texts and lists of these are as they are. What else there is stands in TVM's own JSON
(`opaque "tvm"`), and so does whatever would come back as something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmtarget.errors import ModelError, TvmTargetError
from tvmtarget.ir.function import Opaque
from tvmtarget.ir.relax.tvm_library import the_tvm

__all__ = ["TVM", "fields_of", "node_of", "read_any", "read_blob", "write_any", "write_blob"]

TVM = "tvm"  # the kind of opaque attributes that are TVM's JSON


def write_blob(value: Any) -> Opaque:
    """Return a value in TVM's JSON; `ModelError` for code and other things that have no such form."""
    try:
        return Opaque(TVM, str(the_tvm().ir.save_json(value)).encode())
    except Exception as error:  # whatever TVM raises for what it cannot write
        raise ModelError(f"a {type(value).__name__}, which has no text in TVM, is not carried") from error


def read_blob(value: Opaque) -> Any:
    """Return what `write_blob` was given."""
    try:
        return the_tvm().ir.load_json(value.data.decode())
    except Exception as error:  # whatever TVM raises for a text that is none of its own
        raise ModelError(f"an attribute of kind {value.kind!r} is not TVM's JSON") from error


def read_any(value: Any) -> Any:
    """Return a value of TVM as ours: plain where that says all, else its JSON."""
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, str):
        return str(value)
    kind = type(value).__name__
    if kind in ("Array", "List", "list", "tuple"):
        items = tuple(read_any(item) for item in value)
        return items if not any(isinstance(item, Opaque) for item in items) else write_blob(value)
    return write_blob(value)


def write_any(value: Any) -> Any:
    """Return what `read_any` was given."""
    if isinstance(value, Opaque):
        return read_blob(value)
    if isinstance(value, Mapping):
        return {key: write_any(item) for key, item in value.items()}
    return [write_any(item) for item in value] if isinstance(value, tuple | list) else value


def fields_of(node: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields of an attribute node of TVM, which `node_of` makes of them again."""
    if type(node).__name__ == "DictAttrs":
        return tuple((str(key), read_any(node[key])) for key in sorted(map(str, node.keys())))
    return tuple((name, _read_field(getattr(node, name), kind)) for name, kind in _schema(_key_of(node)).items())


def node_of(key: str, fields: Mapping[str, Any]) -> Any:
    """Return an attribute node by the name of its type; `ModelError` where a field does not fit."""
    tvm = the_tvm()
    if key == "ir.DictAttrs":
        return tvm.ir.make_node(key, **{name: write_any(value) for name, value in fields.items()})
    schema = _schema(key)
    try:
        return tvm.ir.make_node(key, **{name: _write_field(fields[name], kind) for name, kind in schema.items()})
    except TvmTargetError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"attributes {dict(fields)!r} do not fit {key}, which has {', '.join(schema)}") from error


def _key_of(node: Any) -> str:
    return str(type(node).__tvm_ffi_type_info__.type_key)


def _schema(key: str) -> dict[str, str]:
    """Return the fields of a node by name, with their types as TVM spells them."""
    import tvm_ffi.core

    info = tvm_ffi.core._lookup_or_register_type_info_from_type_key(key)
    return {field.name: str(field.ty) for field in info.fields}


def _read_field(value: Any, kind: str) -> Any:
    if value is not None and kind.startswith("dtype"):
        return str(value)
    if type(value).__name__ == "IntImm" and str(value.ty.dtype) == "int64" and kind == "Object":
        return int(value.value)
    if kind == "Object" and type(value).__name__ == "Array":
        items = tuple(_read_field(item, kind) for item in value)
        return items if all(isinstance(item, int) for item in items) else write_blob(value)
    return read_any(value)


def _write_field(value: Any, kind: str) -> Any:
    if isinstance(value, Opaque) or value is None:
        return write_any(value)
    if kind.startswith("dtype"):
        return the_tvm().DataType(value)
    if kind == "Object":
        imm = the_tvm().tirx.IntImm
        return [imm("int64", item) for item in value] if isinstance(value, tuple | list) else imm("int64", value)
    if kind == "float":
        return float(value)
    return write_any(value)
