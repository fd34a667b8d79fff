"""Conversion of attributes of TVM's calls, functions and modules, in both directions.

Numbers, booleans, strings and lists of these are plain values. All other values, and those that TVM would return
with another type, are stored in TVM's own JSON (`opaque "tvm"`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmtarget.errors import ModelError, TvmTargetError
from tvmtarget.ir.function import Opaque
from tvmtarget.ir.relax.tvm_library import the_tvm

__all__ = ["TVM", "fields_of", "node_of", "read_any", "read_blob", "write_any", "write_blob"]

TVM = "tvm"  # kind of opaque attributes in TVM's JSON


def write_blob(value: Any) -> Opaque:
    """Serialize a value of TVM.

    Args:
        value: the value.

    Returns:
        The value in TVM's JSON.

    Raises:
        ModelError: the value cannot be serialized.
    """
    try:
        return Opaque(TVM, str(the_tvm().ir.save_json(value)).encode())
    except Exception as error:  # TVM documents no exception type for values that it cannot serialize
        raise ModelError(f"a {type(value).__name__}, which TVM cannot serialize, is not supported") from error


def read_blob(value: Opaque) -> Any:
    """Deserialize a value of TVM.

    Args:
        value: result of `write_blob`.

    Returns:
        The value.

    Raises:
        ModelError: the bytes are not TVM's JSON.
    """
    try:
        return the_tvm().ir.load_json(value.data.decode())
    except Exception as error:  # TVM documents no exception type for malformed JSON
        raise ModelError(f"an attribute of kind {value.kind!r} is not TVM's JSON") from error


def read_any(value: Any) -> Any:
    """Convert a value of TVM to an attribute.

    Args:
        value: the value.

    Returns:
        A plain value where that loses nothing, else the value in TVM's JSON.
    """
    # By exact type: a value of a subclass would come back as another type.
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, str):
        return str(value)
    # Containers are recognized by name, which needs no import of TVM's packages.
    kind = type(value).__name__
    if kind in ("Array", "List", "list", "tuple"):
        items = tuple(read_any(item) for item in value)
        return items if not any(isinstance(item, Opaque) for item in items) else write_blob(value)
    return write_blob(value)


def write_any(value: Any) -> Any:
    """Convert an attribute to a value of TVM.

    Args:
        value: result of `read_any`.

    Returns:
        The value.
    """
    if isinstance(value, Opaque):
        return read_blob(value)
    if isinstance(value, Mapping):
        return {key: write_any(item) for key, item in value.items()}
    return [write_any(item) for item in value] if isinstance(value, tuple | list) else value


def fields_of(node: Any) -> tuple[tuple[str, Any], ...]:
    """Read the fields of a TVM attribute node.

    Args:
        node: the node.

    Returns:
        Attributes by name; sorted for DictAttrs, else in order of the node's type.
    """
    if type(node).__name__ == "DictAttrs":
        return tuple((str(key), read_any(node[key])) for key in sorted(map(str, node.keys())))
    return tuple((name, _read_field(getattr(node, name), kind)) for name, kind in _schema(_key_of(node)).items())


def node_of(key: str, fields: Mapping[str, Any]) -> Any:
    """Build a TVM attribute node.

    Args:
        key: type key of the node, such as `relax.attrs.Conv2DAttrs`.
        fields: attributes by name.

    Returns:
        The node.

    Raises:
        ModelError: a field is missing or does not fit.
    """
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
    """Return the names and type texts of the fields of a node type, from TVM's reflection."""
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
        # Sizes in fields of type Object are IntImm of 64 bits, which `_read_field` made plain integers.
        imm = the_tvm().tirx.IntImm
        return [imm("int64", item) for item in value] if isinstance(value, tuple | list) else imm("int64", value)
    if kind == "float":
        return float(value)
    return write_any(value)
