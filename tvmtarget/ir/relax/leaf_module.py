"""TVM modules of single functions: the input of TVM's own backend and of external code generators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import Call, Function, Value, callees_of, reachable_functions
from tvmtarget.ir.relax.blocks import BLOCKS
from tvmtarget.ir.relax.syntax import symbols_in
from tvmtarget.ir.relax.tvm_library import the_tvm
from tvmtarget.ir.relax.writer import write_tvm_module
from tvmtarget.ir.types import OpaqueType, TensorType

__all__ = ["external_module_json", "leaf_module_json", "needs_relax", "unbound_symbols"]


def needs_relax(function: Function) -> bool:
    """Return whether a function cannot be represented in ONNX.

    Args:
        function: the function.

    Returns:
        True if it has Relax operations or calls code, so that TVM must compile it.
    """
    return any(call.op.startswith("relax.") or call.callee is not None for call in function.body)


def leaf_module_json(function: Function, functions: Mapping[str, Function]) -> bytes:
    """Return a function as `main` of a TVM module, with the code that it calls.

    Args:
        function: the function.
        functions: functions of its module by name.

    Returns:
        The module in TVM's JSON.

    Raises:
        ModelError: the function uses a symbolic dimension that its parameters do not determine.
    """
    body = _checked_body(function)
    attrs = tuple((key, value) for key, value in function.attrs if key not in ("role", "global_symbol", BLOCKS))
    main = function.replace(name="main", body=body, attrs=(*attrs, ("global_symbol", "main")))
    codes = [functions[name] for name in sorted(reachable_functions(callees_of(function), functions))]
    return str(the_tvm().ir.save_json(write_tvm_module((main, *codes), {}))).encode()


def external_module_json(function: Function, kind: str) -> bytes:
    """Return a TVM module whose `main` calls a function of an external code generator.

    Args:
        function: the function.
        kind: name of the code generator; the function is one that `RunCodegen` passes to `relax.ext.<kind>`.

    Returns:
        The module in TVM's JSON.

    Raises:
        ModelError: the function uses a symbolic dimension that its parameters do not determine.
    """
    params = tuple(replace(param, scope="") for param in function.params)
    attrs = (("Codegen", kind), ("global_symbol", function.name), ("tvm.own_symbols", True))
    external = function.replace(params=params, body=_checked_body(function), attrs=attrs, constraint=None)
    outputs = tuple(Value(name, function.types[name]) for name in function.results)
    call = Call(f"@{function.name}", tuple(param.name for param in params), outputs, source="results")
    main = Function("main", params, (call,), function.results, attrs=(("global_symbol", "main"),))
    return str(the_tvm().ir.save_json(write_tvm_module((main, external), {}))).encode()


def _checked_body(function: Function) -> tuple[Call, ...]:
    """Return the operations without virtual devices; unbound symbolic dimensions are an error."""
    unbound = unbound_symbols(function)
    if unbound:
        raise ModelError(
            f"function {function.name!r} needs dimension {unbound[0]!r}, which no parameter of it has by itself; keep "
            "its operations with one that reads a value of that dimension, by a constraint"
        )
    return tuple(
        replace(call, outputs=tuple(replace(output, scope="") for output in call.outputs)) for call in function.body
    )


def unbound_symbols(function: Function) -> tuple[str, ...]:
    """Return the symbolic dimensions that a function's parameters do not determine.

    Args:
        function: the function.

    Returns:
        The symbols in order of first use. A parameter determines a symbol that is a dimension by itself, and so does
        the result of a `match_cast`.
    """
    known: set[str] = set()
    used: dict[str, None] = {}
    for value in function.params:
        for dim in value.type.shape or () if isinstance(value.type, TensorType) else ():
            words = [] if isinstance(dim, int | None) else symbols_in(dim)
            # Of `n * 4` TVM cannot compute `n`.
            known.update(words if words == [dim] else [])
            used |= dict.fromkeys(words)
        if isinstance(value.type, OpaqueType) and value.type.name.startswith("Shape("):
            known.update(symbols_in(value.type.name))
    for call in function.body:
        text = call.attr("tvm.args")
        used |= dict.fromkeys(symbols_in(text) if isinstance(text, str) else ())
        for output in call.outputs:
            dims = (output.type.shape or ()) if isinstance(output.type, TensorType) else ()
            used |= dict.fromkeys(word for dim in dims if isinstance(dim, str) for word in symbols_in(dim))
            if call.op == "relax.match_cast" or call.attr("tvm.cast"):
                known.update(dim for dim in dims if isinstance(dim, str) and symbols_in(dim) == [dim])
    return tuple(word for word in used if word not in known)
