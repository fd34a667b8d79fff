"""TIR functions and other code of TVM as opaque functions, and back with their calls of each other.

Code names the functions that it calls by a `GlobalVar`, and the kernels that it launches by their symbols. A function
read alone from TVM's JSON has variables of its own, so that the attribute `callees` keeps which function of the module
each name is, and the writer puts the variables of the new module there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvmtarget.errors import ModelError, did_you_mean
from tvmtarget.ir.function import CALLEES, CODE, Attribute, Call, Function, Value, code_callees
from tvmtarget.ir.relax.attributes import TVM, read_blob, write_blob
from tvmtarget.ir.relax.tvm_library import the_tvm

__all__ = [
    "CodeCall",
    "calls_of_code",
    "code_attrs",
    "code_function",
    "device_scope_of",
    "hide_subroutines",
    "is_prim",
    "read_code",
    "symbols_of",
    "with_callees",
    "with_calls",
    "with_code",
    "with_variables",
    "without_host",
]

# What begins code of a device in a TIR function: TVM's AnnotateDeviceRegions and BindTarget (src/tir/transforms and
# src/tirx/transform, v0.18 to v0.27); `device_entry` was called so before v0.27.
_DEVICE_SCOPES = frozenset({"device_scope", "thread_extent", "virtual_thread", "tirx.device_entry", "device_entry"})
_BY_SYMBOL = frozenset(
    f"tirx.{name}"
    for name in ("call_extern", "call_ffi_kernel", "call_pure_extern", "tvm_call_packed", "tvm_call_cpacked")
)


@dataclass(frozen=True, slots=True)
class CodeCall:
    """A call in code: the name it calls, whether in a device region, and the target of the region if it names one."""

    name: str
    is_device: bool
    target: Any = None


def is_prim(code: Any) -> bool:
    """Whether code is a TIR function."""
    return isinstance(code, the_tvm().tirx.PrimFunc)


def calls_of_code(code: Any) -> tuple[CodeCall, ...]:
    """Return the calls of other functions in a TIR function, in order."""
    found: list[CodeCall] = []

    def noted(variable: Any, place: CodeCall) -> Any:
        found.append(place)
        return variable

    with_calls(code, noted)
    return tuple(found)


def with_calls(code: Any, change: Callable[[Any, CodeCall], Any]) -> Any:
    """Return a TIR function that calls what `change` returns for each variable of a function that it calls.

    `change` must not raise: TVM turns the exceptions of its callbacks into its own.
    """
    from tvm_ffi import structural_mutate

    tvm = the_tvm()
    regions: list[Any] = []  # the device regions around: their target, or None

    def scope(node: Any, mutator: Any) -> Any:
        target, is_region = _region(tvm, node)
        regions.extend([target] * is_region)
        made = mutator.default_mutate(node)
        del regions[len(regions) - is_region :]
        return made

    def call(node: Any, mutator: Any) -> Any:
        made = mutator.default_mutate(node)
        if not isinstance(made.op, tvm.ir.GlobalVar):
            return made
        target = next((one for one in reversed(regions) if one is not None), None)
        variable = change(made.op, CodeCall(str(made.op.name_hint), bool(regions), target))
        if variable is None or variable.same_as(made.op):
            return made
        return tvm.ir.Call(variable, made.args, made.attrs, made.ty_args, made.span, made.ty)

    body = structural_mutate(code.body, [(tvm.tirx.AttrStmt, scope), (tvm.tirx.For, scope), (tvm.ir.Call, call)])
    return code if body.same_as(code.body) else code.with_body(body, code.span)


def device_scope_of(code: Any) -> str | None:
    """Return what begins the first device region of a TIR function: the key of an attribute, or `thread_binding`."""
    from tvm_ffi import structural_mutate

    tvm = the_tvm()
    found: list[str] = []

    def scope(node: Any, mutator: Any) -> Any:
        if _region(tvm, node)[1]:
            found.append("thread_binding" if isinstance(node, tvm.tirx.For) else str(node.attr_key))
        return mutator.default_mutate(node)

    structural_mutate(code.body, [(tvm.tirx.AttrStmt, scope), (tvm.tirx.For, scope)])
    return found[0] if found else None


def _region(tvm: Any, node: Any) -> tuple[Any, bool]:
    """Return the target that a statement names for what is in it, and whether that is a device region."""
    if isinstance(node, tvm.tirx.For):
        return None, bool(node.kind == tvm.tirx.ForKind.THREAD_BINDING)
    if node.attr_key == "target":
        return node.node, True
    return None, node.attr_key in _DEVICE_SCOPES


def _symbols_called(code: Any) -> list[str]:
    """Return the symbols by which code calls packed and external functions, kernels among them."""
    from tvm_ffi import structural_mutate

    tvm = the_tvm()
    found: list[str] = []

    def call(node: Any, mutator: Any) -> Any:
        is_named = isinstance(node.op, tvm.ir.Op) and node.op.name in _BY_SYMBOL and len(node.args)
        if is_named and isinstance(node.args[0], tvm.ir.StringImm):
            found.append(str(node.args[0].value))
        return mutator.default_mutate(node)

    structural_mutate(code.body, [(tvm.ir.Call, call)])
    return found


def symbols_of(codes: Mapping[str, Any]) -> dict[str, str]:
    """Return the functions by the symbols under which code can call them."""
    symbols = {str(code.attrs.get("global_symbol") or ""): name for name, code in codes.items() if is_prim(code)}
    return {symbol: name for symbol, name in symbols.items() if symbol}


def code_attrs(code: Any, symbols: Mapping[str, str]) -> tuple[tuple[str, Attribute], ...]:
    """Return the attributes of the call that is an opaque function: the code, and the functions that it calls."""
    attrs: list[tuple[str, Attribute]] = [("code", write_blob(code))]
    if is_prim(code):
        called = {one.name: one.name for one in calls_of_code(code)}
        called |= {name: symbols[name] for name in _symbols_called(code) if name in symbols}
        if called:
            attrs.append((CALLEES, tuple(name for pair in called.items() for name in pair)))
    return tuple(attrs)


def code_function(
    name: str,
    code: Any,
    params: tuple[Value, ...],
    results: tuple[Value, ...],
    symbols: Mapping[str, str],
    *,
    has_effect: bool = False,
) -> Function:
    """Return an opaque function of code, with its signature; `symbols` are those of the module it stands in."""
    names = tuple(param.name for param in params)
    call = Call(CODE, names, results, code_attrs(code, symbols), source=name, has_effect=has_effect)
    return Function(name, params, (call,), tuple(result.name for result in results))


def with_code(function: Function, code: Any, symbols: Mapping[str, str] | None = None) -> Function:
    """Return an opaque function with other code, which calls functions of the module by their names or by `symbols`."""
    (call,) = function.body
    made = code_attrs(code, code_callees(function) if symbols is None else symbols)
    kept = tuple(item for item in call.attrs if item[0] not in ("code", CALLEES))
    return function.replace(body=(replace(call, attrs=(*made, *kept)),))


def with_callees(function: Function, change: Callable[[str, CodeCall], str]) -> Function:
    """Return an opaque function whose code calls other functions, call by call; `change` gets callee and call."""
    code, callees = read_code(function), code_callees(function)
    if not is_prim(code) or not callees:
        return function
    tvm = the_tvm()

    def variable(old: Any, call: CodeCall) -> Any:
        name = change(callees.get(call.name, call.name), call)
        if name == call.name:
            return old
        made = tvm.ir.GlobalVar(name)
        tvm.relax.expr._update_type(made, old.ty)
        return made

    return with_code(function, with_calls(code, variable))


def without_host(target: Any) -> Any:
    """Return a target of TVM without its host."""
    if target.host is None:
        return target
    return the_tvm().target.Target({name: value for name, value in target.export().items() if name != "host"})


def hide_subroutines(module: Any) -> Any:
    """Return a module of TVM in which functions that only TIR functions call have no symbol.

    TVM's AttachGlobalSymbol (0.27) gives one to all of them; MakePackedAPI then changes their signature, but not the
    calls of them.
    """
    tvm = the_tvm()
    called = {call.name for code in module.functions.values() if is_prim(code) for call in calls_of_code(code)}
    kept: set[str] = set()

    def visit(node: Any) -> None:
        kept.update(str(getattr(node, name)) for name in ("name_hint", "global_symbol") if hasattr(node, name))

    for function in module.functions.values() if called else ():
        if isinstance(function, tvm.relax.Function):
            tvm.relax.analysis.post_order_visit(function, visit)
    hidden = {var: code for var, code in module.functions.items() if var.name_hint in called - kept and is_prim(code)}
    for var, code in hidden.items():
        module.update_func(var, code.without_attr("global_symbol"))
    return module


def read_code(function: Function, variables: Mapping[str, Any] | None = None) -> Any:
    """Return the code of an opaque function; with `variables` of a module, its calls are calls of these.

    `ModelError` for code of another compiler, and for a call of a function that is not in the module.
    """
    code = function.code
    if code is None or code.kind != TVM:
        kind = "" if code is None else f" of kind {code.kind!r}"
        raise ModelError(f"function {function.name!r} is no code{kind} that TVM wrote")
    made = read_blob(code)
    if variables is None or not is_prim(made):
        return made
    return with_variables(function, made, variables)


def with_variables(function: Function, code: Any, variables: Mapping[str, Any]) -> Any:
    """Return the TIR code of a function with calls of the variables of a module; `ModelError` for one it has not."""
    callees = code_callees(function)
    for call in calls_of_code(code):
        if callees.get(call.name, call.name) not in variables:
            raise ModelError(
                f"code of function {function.name!r} calls {call.name!r}, which is not in the module"
                f"{did_you_mean(call.name, variables)}"
            )
    return with_calls(code, lambda _, call: variables[callees.get(call.name, call.name)])
