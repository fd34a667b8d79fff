"""TIR functions and other code of TVM as functions of code, and back, with their calls of each other.

Code names the functions that it calls by a `GlobalVar`, and the kernels that it launches by symbol. A function read
from TVM's JSON alone has variables of its own. The attribute `callees` therefore maps each name in the code to a
function of the module, and the writer substitutes the variables of the new module.
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

# Attributes that begin device code in a TIR function, from TVM's AnnotateDeviceRegions and BindTarget
# (src/tir/transforms and src/tirx/transform, v0.18 to v0.27); `device_entry` is the name before v0.27.
_DEVICE_SCOPES = frozenset({"device_scope", "thread_extent", "virtual_thread", "tirx.device_entry", "device_entry"})
_BY_SYMBOL = frozenset(
    f"tirx.{name}"
    for name in ("call_extern", "call_ffi_kernel", "call_pure_extern", "tvm_call_packed", "tvm_call_cpacked")
)


@dataclass(frozen=True, slots=True)
class CodeCall:
    """A call in code.

    Attributes:
        name: name that the code uses for the callee.
        is_device: whether the call is within a device scope.
        target: TVM target of the innermost device scope that names one, or None.
    """

    name: str
    is_device: bool
    target: Any = None


def is_prim(code: Any) -> bool:
    """Return whether code is a TIR function.

    Args:
        code: a TVM function.

    Returns:
        True for a PrimFunc.
    """
    return isinstance(code, the_tvm().tirx.PrimFunc)


def calls_of_code(code: Any) -> tuple[CodeCall, ...]:
    """Return the calls of other functions in a TIR function.

    Args:
        code: the TIR function.

    Returns:
        The calls in order.
    """
    found: list[CodeCall] = []

    def record(variable: Any, call: CodeCall) -> Any:
        found.append(call)
        return variable

    with_calls(code, record)
    return tuple(found)


def with_calls(code: Any, change: Callable[[Any, CodeCall], Any]) -> Any:
    """Replace the functions that a TIR function calls.

    Args:
        code: the TIR function.
        change: maps the variable of a callee, and the call, to another variable or None. It must not raise: TVM turns
            exceptions of its callbacks into its own.

    Returns:
        The changed function; the same one if no call changed.
    """
    from tvm_ffi import structural_mutate

    tvm = the_tvm()
    scopes: list[Any] = []  # targets of the enclosing device scopes, or None

    def scope(node: Any, mutator: Any) -> Any:
        target, is_device = _device_scope(tvm, node)
        scopes.extend([target] * is_device)
        made = mutator.default_mutate(node)
        del scopes[len(scopes) - is_device :]
        return made

    def call(node: Any, mutator: Any) -> Any:
        made = mutator.default_mutate(node)
        if not isinstance(made.op, tvm.ir.GlobalVar):
            return made
        target = next((one for one in reversed(scopes) if one is not None), None)
        variable = change(made.op, CodeCall(str(made.op.name_hint), bool(scopes), target))
        if variable is None or variable.same_as(made.op):
            return made
        return tvm.ir.Call(variable, made.args, made.attrs, made.ty_args, made.span, made.ty)

    body = structural_mutate(code.body, [(tvm.tirx.AttrStmt, scope), (tvm.tirx.For, scope), (tvm.ir.Call, call)])
    return code if body.same_as(code.body) else code.with_body(body, code.span)


def device_scope_of(code: Any) -> str | None:
    """Return the start of the first device scope in a TIR function.

    Args:
        code: the TIR function.

    Returns:
        Key of the attribute, or `thread_binding` for a loop bound to a thread; None if there is no device code.
    """
    from tvm_ffi import structural_mutate

    tvm = the_tvm()
    found: list[str] = []

    def scope(node: Any, mutator: Any) -> Any:
        if _device_scope(tvm, node)[1]:
            found.append("thread_binding" if isinstance(node, tvm.tirx.For) else str(node.attr_key))
        return mutator.default_mutate(node)

    structural_mutate(code.body, [(tvm.tirx.AttrStmt, scope), (tvm.tirx.For, scope)])
    return found[0] if found else None


def _device_scope(tvm: Any, node: Any) -> tuple[Any, bool]:
    """Return the target that a statement sets for its body, and whether it begins a device scope."""
    if isinstance(node, tvm.tirx.For):
        return None, bool(node.kind == tvm.tirx.ForKind.THREAD_BINDING)
    if node.attr_key == "target":
        return node.node, True
    return None, node.attr_key in _DEVICE_SCOPES


def _symbols_called(code: Any) -> list[str]:
    """Return the symbols of the packed and external functions, including kernels, that code calls."""
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
    """Map the symbols under which code can be called to function names.

    Args:
        codes: TVM functions by name.

    Returns:
        Names of TIR functions by their `global_symbol`.
    """
    symbols = {str(code.attrs.get("global_symbol") or ""): name for name, code in codes.items() if is_prim(code)}
    return {symbol: name for symbol, name in symbols.items() if symbol}


def code_attrs(code: Any, symbols: Mapping[str, str]) -> tuple[tuple[str, Attribute], ...]:
    """Return the attributes of a `tt.code` call.

    Args:
        code: the TVM function.
        symbols: result of `symbols_of` for its module.

    Returns:
        The serialized code, and the functions that it calls.
    """
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
    """Return a function of code.

    Args:
        name: name of the function.
        code: the TVM function.
        params: parameters of its signature.
        results: results of its signature.
        symbols: result of `symbols_of` for its module.
        has_effect: whether the code has side effects.

    Returns:
        The function.
    """
    names = tuple(param.name for param in params)
    call = Call(CODE, names, results, code_attrs(code, symbols), source=name, has_effect=has_effect)
    return Function(name, params, (call,), tuple(result.name for result in results))


def with_code(function: Function, code: Any, symbols: Mapping[str, str] | None = None) -> Function:
    """Replace the code of a function of code.

    Args:
        function: the function.
        code: the new code.
        symbols: functions by the names that the new code uses; by default those of the old code.

    Returns:
        The changed function.
    """
    (call,) = function.body
    new = code_attrs(code, code_callees(function) if symbols is None else symbols)
    others = tuple(item for item in call.attrs if item[0] not in ("code", CALLEES))
    return function.replace(body=(replace(call, attrs=(*new, *others)),))


def with_callees(function: Function, change: Callable[[str, CodeCall], str]) -> Function:
    """Replace the callees of a function of code, call by call.

    Args:
        function: the function.
        change: maps a callee and the call to another function of the module.

    Returns:
        The changed function.
    """
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
    """Return a TVM target without its host.

    Args:
        target: the target.

    Returns:
        The target.
    """
    if target.host is None:
        return target
    return the_tvm().target.Target({name: value for name, value in target.export().items() if name != "host"})


def hide_subroutines(module: Any) -> Any:
    """Remove the symbols of TIR functions that only TIR functions call.

    TVM's AttachGlobalSymbol (0.27) gives every function a symbol; MakePackedAPI then changes the signature of those
    that have one, but not the calls of them.

    Args:
        module: the TVM module, changed in place.

    Returns:
        The module.
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
    """Deserialize the code of a function of code.

    Args:
        function: the function.
        variables: global variables of a module by name, to be used for calls; by default the code keeps its own.

    Returns:
        The TVM function.

    Raises:
        ModelError: the code is not TVM's, or calls a function that is not in the module.
    """
    code = function.code
    if code is None or code.kind != TVM:
        kind = "" if code is None else f" of kind {code.kind!r}"
        raise ModelError(f"function {function.name!r} is not code{kind} of TVM")
    made = read_blob(code)
    if variables is None or not is_prim(made):
        return made
    return with_variables(function, made, variables)


def with_variables(function: Function, code: Any, variables: Mapping[str, Any]) -> Any:
    """Replace the variables that TIR code calls by those of a module.

    Args:
        function: the function of code, whose `callees` map names to functions.
        code: its TIR function.
        variables: global variables of the module by name.

    Returns:
        The changed TIR function.

    Raises:
        ModelError: the code calls a function that is not in the module.
    """
    callees = code_callees(function)
    for call in calls_of_code(code):
        if callees.get(call.name, call.name) not in variables:
            raise ModelError(
                f"code of function {function.name!r} calls {call.name!r}, which is not in the module"
                f"{did_you_mean(call.name, variables)}"
            )
    return with_calls(code, lambda _, call: variables[callees.get(call.name, call.name)])
