"""JSON form of a module: the content of the text form as data; types and constraints are strings in it.

Values of attributes are JSON numbers, strings, booleans, null and lists. What JSON lacks is an object: `{"float":
"0.5"}`, `{"bytes": "00ff"}`, `{"map": [["key", value]]}`, `{"opaque": kind, "bytes": "00ff"}`, and `{"tensor": {"name":
..., "type": ..., "digest": ...}}`. Constants are named by digest; their elements are kept outside of the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tvmtarget.errors import ModelError, TvmTargetError
from tvmtarget.ir.function import Call, Constant, Function, Opaque, Value
from tvmtarget.ir.tensors import array_of_bytes, bytes_of
from tvmtarget.ir.text.escaping import canonical_nan, print_float
from tvmtarget.ir.text.parser import parse_type
from tvmtarget.ir.text.printer import MAX_DEPTH
from tvmtarget.ir.types import TensorType, dtype_of
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import check_json_size

__all__ = ["SCHEMA", "read_module", "write_module", "write_value"]

SCHEMA = 1


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Value(_Data):
    name: str
    type: str = "?"
    scope: str = ""


class _Constant(_Data):
    name: str
    type: str
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


_Pairs = tuple[tuple[str, Any], ...]


class _Call(_Data):
    op: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[_Value, ...] = ()
    attrs: _Pairs = ()
    regions: tuple[tuple[str, _Function], ...] = ()
    constraint: str | None = None
    source: str = ""
    effect: bool = False


class _Function(_Data):
    name: str
    params: tuple[_Value, ...] = ()
    constants: tuple[_Constant, ...] = ()
    body: tuple[_Call, ...] = ()
    results: tuple[str, ...] = ()
    constraint: str | None = None
    opsets: tuple[tuple[str, int], ...] = ()
    attrs: _Pairs = ()


class _Module(_Data):
    schema_version: Literal[1]
    target: dict[str, Any] | None = None
    attrs: _Pairs = ()
    functions: tuple[_Function, ...]


def write_module(
    functions: Sequence[Function], target: Target | None, attrs: Mapping[str, object]
) -> dict[str, object]:
    """Return a module as JSON data.

    Args:
        functions: functions of the module.
        target: target tree, or None.
        attrs: attributes of the module.

    Returns:
        Data for `json.dumps`, without fields that have their default.

    Raises:
        ModelError: an attribute has no form in JSON; the message names it.
    """
    flat: dict[str, object] = {"schema_version": SCHEMA, "functions": [_write_function(one) for one in functions]}
    if target is not None:
        flat["target"] = target.to_json()
    return flat | _present(attrs=[[key, write_value(value, key)] for key, value in sorted(attrs.items())])


def _present(**fields: object) -> dict[str, object]:
    """Leave out fields that are empty."""
    return {name: value for name, value in fields.items() if value not in (None, "", False, [])}


def _write_function(function: Function) -> dict[str, object]:
    return {"name": function.name} | _present(
        params=[_write_typed(param) for param in function.params],
        constants=[_write_constant(constant) for constant in function.constants],
        body=[_write_call(call) for call in function.body],
        results=list(function.results),
        constraint=_text(function.constraint),
        opsets=[[domain, version] for domain, version in function.opsets],
        attrs=[[name, write_value(value, name)] for name, value in function.attrs],
    )


def _write_call(call: Call) -> dict[str, object]:
    return {"op": call.op} | _present(
        inputs=list(call.inputs),
        outputs=[_write_typed(output) for output in call.outputs],
        attrs=[[name, write_value(value, name)] for name, value in call.attrs],
        regions=[[label, _write_function(region)] for label, region in call.regions],
        constraint=_text(call.constraint),
        source=call.source,
        effect=call.has_effect,
    )


def _write_typed(value: Value) -> dict[str, object]:
    return {"name": value.name} | _present(type=str(value.type) if value.type else None, scope=value.scope)


def _write_constant(constant: Constant) -> dict[str, object]:
    return {"name": constant.name, "type": str(constant.type), "digest": constant.digest}


def _text(constraint: Constraint | None) -> str | None:
    return None if constraint is None else str(constraint)


def write_value(value: object, name: str) -> object:
    """Return the value of an attribute as JSON data.

    Args:
        value: the value.
        name: name of the attribute, for the error.

    Returns:
        The JSON value.

    Raises:
        ModelError: the type of the value has no form in JSON.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            # JSON has neither NaN nor infinity, and its canonical form (RFC 8785) writes 1.0 as 1.
            return {"float": print_float(value)}
        case bytes():
            return {"bytes": value.hex()}
        case tuple() | list():
            return [write_value(item, name) for item in value]
        case Constant():
            return {"tensor": _write_constant(value)}
        case Opaque():
            return {"opaque": value.kind, "bytes": value.data.hex()}
        case Mapping() if all(isinstance(key, str) for key in value):
            # Pairs keep the order, and a key such as "float" cannot be taken for a form of this schema.
            return {"map": [[key, write_value(item, name)] for key, item in value.items()]}
        case Mapping():
            key = next(key for key in value if not isinstance(key, str))
            raise ModelError(f"attribute {name!r} has key {shown(key)}, and a file holds only texts as keys")
        case _:
            raise ModelError(f"attribute {name!r} is a {type(value).__name__}, which no file can hold")


def read_module(
    data: object, constants: Mapping[str, np.ndarray[Any, Any]]
) -> tuple[tuple[Function, ...], Target | None, dict[str, object]]:
    """Read the JSON form of a module.

    Args:
        data: result of `write_module`, or its text.
        constants: arrays by SHA-256 digest.

    Returns:
        Functions, target and attributes; not yet verified.

    Raises:
        ModelError: the data is malformed; the message gives the place in it.
    """
    try:
        # Data is validated as JSON text too, so that both forms of input accept exactly the same.
        text = data if isinstance(data, str | bytes) else json.dumps(data)
        if isinstance(data, str | bytes):
            check_json_size(text, "it", error=ModelError)
        module = _Module.model_validate_json(text)
        reader = _Reader(constants)
        functions = tuple(reader.function(function, 0) for function in module.functions)
        target = None if module.target is None else Target.from_json(module.target)
        return functions, target, {name: reader.value(value, 0) for name, value in module.attrs}
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        path = ".".join(map(str, problem["loc"]))
        raise ModelError(f"this is not a module, at {path or 'its start'}: {problem['msg']}") from error
    except TvmTargetError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelError(f"this is not a module: {error}") from error


class _Reader:
    def __init__(self, constants: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.constants = constants
        self.type = cache(parse_type)  # most values of a program have one of a few types

    def function(self, data: _Function, depth: int) -> Function:
        if depth > MAX_DEPTH:
            raise ModelError(f"functions are nested deeper than {MAX_DEPTH} levels")
        return Function(
            name=data.name,
            params=tuple(map(self.typed, data.params)),
            body=tuple(self.call(call, depth) for call in data.body),
            results=data.results,
            constants=tuple(map(self.constant, data.constants)),
            constraint=_constraint(data.constraint),
            opsets=data.opsets,
            attrs=self.pairs(data.attrs),
        )

    def call(self, data: _Call, depth: int) -> Call:
        return Call(
            op=data.op,
            inputs=data.inputs,
            outputs=tuple(map(self.typed, data.outputs)),
            attrs=self.pairs(data.attrs),
            regions=tuple((label, self.function(region, depth + 1)) for label, region in data.regions),
            constraint=_constraint(data.constraint),
            source=data.source,
            has_effect=data.effect,
        )

    def typed(self, data: _Value) -> Value:
        return Value(data.name, self.type(data.type), data.scope)

    def constant(self, data: _Constant) -> Constant:
        type_ = self.type(data.type)
        if not isinstance(type_, TensorType):
            raise ModelError(f"constant {data.name!r} is a tensor, not {data.type}")
        array = self.constants.get(data.digest)
        if array is None:
            raise ModelError(f"the elements of constant {data.name!r} are not given: nothing has its digest")
        try:
            # An archive gives constants as plain bytes: only the module states their types.
            if array.shape != type_.shape or dtype_of(array.dtype) != type_.dtype:
                array = array_of_bytes(type_, bytes_of(array))
        except ModelError as error:
            raise ModelError(f"constant {data.name!r}: {error}") from error
        return Constant(data.name, type_, array, data.digest)

    def pairs(self, data: _Pairs) -> tuple[tuple[str, Any], ...]:
        return tuple((name, self.value(value, 0)) for name, value in data)

    def value(self, data: object, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise ModelError(f"values are nested deeper than {MAX_DEPTH} levels")
        match data:
            case None | bool() | int() | str():
                return data
            case list():
                return tuple(self.value(item, depth + 1) for item in data)
            case {"float": str(text), **rest} if not rest:
                return canonical_nan(float(text))
            case {"bytes": str(text), **rest} if not rest:
                return bytes.fromhex(text)
            case {"map": list(pairs), **rest} if not rest:
                return {str(key): self.value(item, depth + 1) for key, item in pairs}
            case {"opaque": str(kind), "bytes": str(text), **rest} if not rest:
                return Opaque(kind, bytes.fromhex(text))
            case {"tensor": tensor, **rest} if not rest:
                return self.constant(_Constant.model_validate(tensor))
            case _:
                raise ModelError(f"{data!r:.80} is not a value of an attribute")


def _constraint(text: str | None) -> Constraint | None:
    return None if text is None else Constraint.parse(text)
