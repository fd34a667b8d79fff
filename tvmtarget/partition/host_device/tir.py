"""Targets for the functions of a TIR module (apache-tvm): what TVM's BindTarget does, at any depth of calls.

BindTarget (TVM 0.27) looks at the calls in public functions only, so that a private function that a private host
function calls gets the device's target, which SplitHostDevice then refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from tvmtarget.errors import MissingExtraError, TargetError
from tvmtarget.ir.relax.tvm_library import checked_module
from tvmtarget.partition.host_device.callers import CallSite, contexts, names_in
from tvmtarget.target.tree import Target

__all__ = ["Context", "bind_targets", "callees_of_prim", "side_of_prim", "split_tir", "the_tvm"]

Context: TypeAlias = Literal["device", "host"]

_SIDES: tuple[Context, ...] = ("device", "host")  # in the first of them a function keeps its name
_DEVICE_SCOPES = frozenset({"device_entry", "device_scope", "target", "thread_extent", "virtual_thread"})
_HOST_FUNCTION = "tirx.is_host_func"
_HOST_KINDS = ("llvm", "c")


def bind_targets(module: Any, target: Target | str) -> Any:  # noqa: ANN401 - TVM ships no types
    """Return a `tvm.IRModule` in which every PrimFunc has the target of the code that calls it.

    `target` is one device and its host. Public functions get both, private ones what runs them; of one that both
    call there is a copy `<name>_host`, which host code calls at any depth. Targets that functions have are kept. What
    nothing calls is for the device. TVM's own pipeline takes the result. `TargetError` for a system of targets,
    `ModelError` for what is no `tvm.IRModule`.
    """
    tvm = the_tvm()
    device, host = _pair(tvm, target)
    prims = {
        var: function
        for var, function in checked_module(module).functions.items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }
    by_name = {var.name_hint: function for var, function in prims.items()}
    fixed = {name: (side_of_prim(function),) for name, function in by_name.items() if _is_decided(function)}
    found = contexts({name: _calls(tvm, function) for name, function in by_name.items()}, fixed)
    sides = {name: met or _SIDES[:1] for name, met in found.items()}
    names = names_in(sides, _SIDES.index, str)
    variables = {(var.name_hint, side): var for var in prims for side in sides[var.name_hint]}
    for (name, side), new in names.items():
        if new != name:
            variables[name, side] = _variable(tvm, new, variables[name, side])

    def callee(name: str, side: Context) -> Any:  # noqa: ANN401
        return variables[name, fixed.get(name, (side,))[0]] if name in by_name else None

    bound = {var: function for var, function in module.functions.items() if var not in prims}
    for name, side in names:
        made = _calling(tvm, by_name[name], side, callee)
        made = made if names[name, side] == name else tvm.s_tir.renew_defs(made)
        bound[variables[name, side]] = _bound(made, side, device, host, is_fixed=name in fixed)
    return tvm.IRModule(bound, attrs=module.attrs, global_infos=module.global_infos)


def split_tir(module: Any, target: Target | str) -> Any:  # noqa: ANN401
    """Bind targets, then split every function into one for the host and kernels for the device, by TVM's own pass."""
    tvm = the_tvm()
    return tvm.tirx.transform.SplitHostDevice()(bind_targets(module, target))


def the_tvm() -> Any:  # noqa: ANN401
    """Return the package; `MissingExtraError` where it is not installed."""
    try:
        import tvm
        import tvm.s_tir
        import tvm.tirx
    except ImportError as error:
        raise MissingExtraError("apache-tvm", "tvm") from error
    return tvm


def _pair(tvm: Any, target: Target | str) -> tuple[Any, Any]:  # noqa: ANN401
    """Return TVM's targets of a device, without its host, and of the host."""
    tree = (Target.parse(target) if isinstance(target, str) else target).resolve()
    if tree.is_composite:
        raise TargetError(f"TIR is bound to one device and its host, not to {str(tree)!r}; take a part of it")
    device = tree.replace(host=None, executor=None, runtime=None, name=None)
    host = tree.host if isinstance(tree.host, Target) else device if tree.can_host else Target("llvm")
    configs = ({key: value for key, value in one.to_tvm().config.items() if key != "host"} for one in (device, host))
    made = [tvm.target.Target(config) for config in configs]
    return made[0], made[1]


def _is_decided(function: Any) -> bool:  # noqa: ANN401
    """Whether what a function is for does not depend on who calls it."""
    return any(key in function.attrs for key in ("global_symbol", "target", _HOST_FUNCTION))


def side_of_prim(function: Any) -> Context:  # noqa: ANN401
    """Return where a function that says so runs, but for device scopes in it."""
    own = function.attrs.get("target")
    is_bare = own is not None and own.host is None and own.kind.name not in _HOST_KINDS
    return "device" if is_bare else "host"


def _bound(function: Any, side: Context, device: Any, host: Any, *, is_fixed: bool) -> Any:  # noqa: ANN401
    """Return a function with its target: of public ones as BindTarget gives it, of private ones that of the side."""
    own = function.attrs.get("target")
    if own is not None:
        lacks_host = "global_symbol" in function.attrs and own.host is None
        return function.with_attr("target", own.with_host(host)) if lacks_host else function
    if function.attrs.get(_HOST_FUNCTION):
        return function.with_attr("target", host.with_host(host)).without_attr(_HOST_FUNCTION)
    if is_fixed:
        return function.with_attr("target", device.with_host(host))
    return function.with_attr("target", host if side == "host" else device)


def _variable(tvm: Any, name: str, like: Any) -> Any:  # noqa: ANN401
    variable = tvm.ir.GlobalVar(name)
    tvm.relax.expr._update_type(variable, like.ty)
    return variable


def callees_of_prim(function: Any) -> list[str]:  # noqa: ANN401
    """Return the names of the functions that a PrimFunc calls, each once, in order."""
    return list(dict.fromkeys(call.callee for call in _calls(the_tvm(), function)))


def _calls(tvm: Any, function: Any) -> tuple[CallSite[Context], ...]:  # noqa: ANN401
    """Return the calls of functions of the module; those in a device scope are device code."""
    found: list[CallSite[Context]] = []

    def noted(call: Any, context: Context | None) -> Any:  # noqa: ANN401
        found.append(CallSite(call.op.name_hint, context))
        return call

    _with_calls(tvm, function, noted)
    return tuple(found)


def _calling(
    tvm: Any,  # noqa: ANN401
    function: Any,  # noqa: ANN401
    side: Context,
    callee: Callable[[str, Context], Any],
) -> Any:  # noqa: ANN401
    """Return a function that calls others as they are on the side where it calls them."""

    def renamed(call: Any, context: Context | None) -> Any:  # noqa: ANN401
        variable = callee(call.op.name_hint, context or side)
        if variable is None or variable.same_as(call.op):
            return call
        return tvm.ir.Call(variable, call.args, call.attrs, call.ty_args, call.span, call.ty)

    return _with_calls(tvm, function, renamed)


def _with_calls(tvm: Any, function: Any, change: Callable[[Any, Context | None], Any]) -> Any:  # noqa: ANN401
    """Return a function with its calls of others changed; the change is told which of them are in a device scope."""
    from tvm_ffi import structural_mutate

    depth = 0

    def scope(node: Any, mutator: Any) -> Any:  # noqa: ANN401
        nonlocal depth
        inside = _is_device_scope(tvm, node)
        depth += inside
        made = mutator.default_mutate(node)
        depth -= inside
        return made

    def call(node: Any, mutator: Any) -> Any:  # noqa: ANN401
        made = mutator.default_mutate(node)
        is_own = isinstance(made.op, tvm.ir.GlobalVar)
        return change(made, "device" if depth else None) if is_own else made

    callbacks = [(tvm.tirx.AttrStmt, scope), (tvm.tirx.For, scope), (tvm.ir.Call, call)]
    body = structural_mutate(function.body, callbacks)
    return function if body.same_as(function.body) else function.with_body(body, function.span)


def _is_device_scope(tvm: Any, node: Any) -> bool:  # noqa: ANN401
    if isinstance(node, tvm.tirx.For):
        return bool(node.kind == tvm.tirx.ForKind.THREAD_BINDING)
    return node.attr_key in _DEVICE_SCOPES
