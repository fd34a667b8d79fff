"""Targets for the functions of a TIR module (apache-tvm), at any depth of calls, and TVM's split of host and device.

It does what TVM's BindTarget does (src/tirx/transform/bind_target.cc, v0.27), but for four things: BindTarget looks at
the calls in public functions only, so that a private function that a private host function calls gets the device's
target, which SplitHostDevice then refuses; calls in `device_scope` and `target` subgraphs are device code, as
SplitHostDevice splits these off; device code that calls a host function is refused; there always is a host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from tvmtarget.errors import ModelError, TargetError, raise_all
from tvmtarget.ir.relax.code import CodeCall, calls_of_code, device_scope_of, is_prim, with_calls
from tvmtarget.ir.relax.tvm_library import checked_module, the_tvm
from tvmtarget.partition.host_device.callers import CallSite, call_contexts, context_names
from tvmtarget.target.tree import Target

__all__ = ["Context", "bind_missing_targets", "bind_targets", "is_launched", "side_of_prim", "split_tir"]

Context: TypeAlias = Literal["device", "host"]

_SIDES: tuple[Context, ...] = ("device", "host")  # in the first of them a function keeps its name
_HOST_FUNCTION = "tirx.is_host_func"
_KERNEL = 2  # kDeviceKernelLaunch of TVM
_HOST_KINDS = ("llvm", "c", "cuda_host")


def bind_targets(module: Any, target: Target | str) -> Any:  # noqa: ANN401 - TVM ships no types
    """Return a `tvm.IRModule` in which every PrimFunc has the target of the code that calls it.

    `target` is one device and its host. Public functions get both, private ones what runs them; of one that both
    call there is a copy `<name>_host`, which host code calls at any depth. Targets that functions have are kept. What
    nothing calls is for the device. TVM's own pipeline takes the result.

    Raises:
        TargetError: `target` is a system of targets.
        ModelError: `module` is no `tvm.IRModule`, or device code in it calls a host function.
    """
    checked = checked_module(module)
    device, host = _pair(the_tvm(), target)
    return _bind(checked, device, host)


def bind_missing_targets(module: Any, target: Target | str) -> Any:  # noqa: ANN401
    """Return a `tvm.IRModule` as `bind_targets` does, in which functions that have a target stay as they are."""
    device, host = _pair(the_tvm(), target)
    return _bind(module, device, host, keeps_device_code=True)


def split_tir(module: Any, target: Target | str, reserved: Iterable[str] = ()) -> Any:  # noqa: ANN401
    """Bind targets, then split every function into one for the host and kernels for the device, by TVM's own pass.

    A function whose target is a device without a host is device code and stays it. Device subgraphs in a function for
    the host are split off for the device. No new function gets a name in `reserved`. `ModelError` with the function for
    what TVM does not split.
    """
    tvm = the_tvm()
    device, host = _pair(tvm, target)
    bound = _bind(module, device, host, keeps_device_code=True)
    is_other = device.kind.name not in _HOST_KINDS
    for var, function in bound.functions.items():
        own = function.attrs.get("target") if is_prim(function) else None
        if is_other and own is not None and own.kind.name in _HOST_KINDS:
            bound.update_func(var, _annotated(tvm, function, device))
    known = {str(var.name_hint) for var in bound.functions}
    taken = {str(function.attrs.get("global_symbol") or "") for function in bound.functions.values()}
    held = [tvm.ir.GlobalVar(name) for name in sorted({*reserved, *taken} - known - {""})]
    nothing = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0)).with_attr("target", host)
    for var in held:
        bound.update_func(var, nothing)
    split = _passed(tvm, bound)
    names = {str(var.name_hint) for var in held}
    kept = {var: _kernel(function) for var, function in split.functions.items() if str(var.name_hint) not in names}
    left = [
        f"function {str(var.name_hint)!r} has device code that TVM does not split off ({subgraph}); lower it to "
        "T.launch_thread first, as tvm.s_tir.transform.LowerOpaqueBlock does for loops bound to threads"
        for var, function in kept.items()
        if is_prim(function) and side_of_prim(function) == "host" and is_other
        for subgraph in (device_scope_of(function),)
        if subgraph is not None
    ]
    raise_all(ModelError, left)
    return tvm.IRModule(kept, attrs=module.attrs, global_infos=module.global_infos)


def is_launched(function: Any) -> bool:  # noqa: ANN401
    """Whether a function is a kernel that a host function launches."""
    own = function.attrs.get("target")
    return bool(function.attrs.get("tirx.is_global_func")) and own is not None and own.host is None


def _kernel(function: Any) -> Any:  # noqa: ANN401
    """Return a kernel on a CPU that is called by its symbol with the calling convention of kernels.

    TVM (0.27) leaves it the default one, and packs it like a public function when the split module is built.
    """
    is_plain = is_prim(function) and is_launched(function) and function.attrs.get("calling_conv") is None
    is_here = is_plain and "global_symbol" in function.attrs and function.attrs["target"].kind.name in _HOST_KINDS
    return function.with_attr("calling_conv", _KERNEL) if is_here else function


def _passed(tvm: Any, module: Any) -> Any:  # noqa: ANN401
    """Return what TVM's pass makes of a module; an error of it names the function."""
    split = tvm.tirx.transform.SplitHostDevice()
    try:
        return split(module)
    except Exception as error:
        reason = _reason(error)
        by_name = {str(var.name_hint): var for var in module.functions}
        for name, var in sorted(by_name.items()):
            alone, waiting = {}, [var]
            while waiting:
                one = waiting.pop()
                if one not in alone and is_prim(module[one]):
                    alone[one] = module[one]
                    waiting += [by_name[call.name] for call in calls_of_code(module[one]) if call.name in by_name]
            try:
                split(tvm.IRModule(alone))
            except Exception as own:  # whatever TVM raises
                raise ModelError(
                    f"function {name!r} cannot be split into host and device code: {_reason(own)}"
                ) from error
        raise ModelError(f"the functions cannot be split into host and device code: {reason}") from error


_REASONS = {
    "successful return": "its device code returns a value; a kernel returns nothing, so write the result to a buffer",
    "has multiple callees": "it is launched as a kernel and called by code for another target; make a copy for each",
    "accepts": "it is called with another number of arguments than it has parameters",
}


def _reason(error: Exception) -> str:
    """Return what is wrong, in words of ours where the message of TVM is known."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    known = (reason for words, reason in _REASONS.items() if words in text)
    return next(known, lines[0] if lines else type(error).__name__)


def _annotated(tvm: Any, function: Any, device: Any) -> Any:  # noqa: ANN401
    """Return a host function whose outermost device subgraphs name the device, as SplitHostDevice wants them."""
    from tvm_ffi import structural_mutate

    def subgraph(node: Any, mutator: Any) -> Any:  # noqa: ANN401
        if node.attr_key == "target":
            return node
        if node.attr_key in ("thread_extent", "device_scope"):
            return tvm.tirx.AttrStmt(device, "target", 0, node)
        return mutator.default_mutate(node)

    body = structural_mutate(function.body, [(tvm.tirx.AttrStmt, subgraph)])
    return function if body.same_as(function.body) else function.with_body(body, function.span)


def _bind(module: Any, device: Any, host: Any, *, keeps_device_code: bool = False) -> Any:  # noqa: ANN401
    tvm = the_tvm()
    prims = {var: function for var, function in module.functions.items() if is_prim(function)}
    by_name = {str(var.name_hint): function for var, function in prims.items()}
    fixed = {name: (side_of_prim(function),) for name, function in by_name.items() if _is_decided(function)}
    calls = {name: tuple(map(_site_of, calls_of_code(function))) for name, function in by_name.items()}
    found = call_contexts(calls, fixed)
    sides = {name: met or _dead_side(name, calls, found) for name, met in found.items()}
    if device.kind.name not in _HOST_KINDS:
        raise_all(ModelError, list(_host_calls(by_name, calls, sides, fixed)))
    names = context_names(sides, _SIDES.index, str)
    variables = {(str(var.name_hint), side): var for var in prims for side in sides[str(var.name_hint)]}
    for (name, side), new in names.items():
        if new != name:
            variables[name, side] = _variable(tvm, new, variables[name, side])

    def calling(side: Context) -> Callable[[Any, CodeCall], Any]:
        def variable(old: Any, call: CodeCall) -> Any:  # noqa: ANN401
            place = fixed.get(call.name, (_site_of(call).context or side,))[0]
            return variables.get((call.name, place), old)  # of what nothing calls there is no copy for each side

        return variable

    bound = {var: function for var, function in module.functions.items() if var not in prims}
    for name, side in names:
        made = with_calls(by_name[name], calling(side))
        made = made if names[name, side] == name else tvm.s_tir.renew_defs(made)
        is_kept = keeps_device_code and side_of_prim(made) == "device" and device_scope_of(made) != "target"
        bound[variables[name, side]] = _bound(made, side, device, host, is_fixed=name in fixed, is_kept=is_kept)
    return tvm.IRModule(bound, attrs=module.attrs, global_infos=module.global_infos)


def _dead_side(
    name: str, calls: Mapping[str, Sequence[CallSite[Context]]], found: Mapping[str, Sequence[Context]]
) -> tuple[Context, ...]:
    """Return the side of a function that nothing calls: the device's, unless it calls what only the host has."""
    is_host = any(tuple(found.get(call.callee, ())) == ("host",) for call in calls[name])
    return ("host",) if is_host else ("device",)


def _site_of(call: CodeCall) -> CallSite[Context]:
    """Return a call with its side: a subgraph is device code, unless it names a target of the host's kind."""
    if not call.is_device:
        return CallSite(call.name)
    is_host = call.target is not None and call.target.kind.name in _HOST_KINDS
    return CallSite(call.name, "host" if is_host else "device")


def _host_calls(
    by_name: Mapping[str, Any],
    calls: Mapping[str, tuple[CallSite[Context], ...]],
    sides: Mapping[str, tuple[Context, ...]],
    fixed: Mapping[str, tuple[Context, ...]],
) -> Iterator[str]:
    """Yield what is wrong with calls of host functions in device code."""
    for name, met in sides.items():
        for side in met:
            for call in calls[name]:
                if (call.context or side) == "device" and fixed.get(call.callee) == ("host",):
                    function = by_name[call.callee]
                    own = function.attrs.get("target")
                    why = "it is public" if own is None else f"its target is {own.kind.name}, with or as a host"
                    why = f"it has {_HOST_FUNCTION}" if function.attrs.get(_HOST_FUNCTION) else why
                    yield (
                        f"device code of function {name!r} calls {call.callee!r}, a host function ({why}); call it "
                        "from host code, or give the device a private copy of it"
                    )


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


def _bound(function: Any, side: Context, device: Any, host: Any, *, is_fixed: bool, is_kept: bool) -> Any:  # noqa: ANN401
    """Return a function with its target: of public ones as BindTarget gives it, of private ones that of the side."""
    own = function.attrs.get("target")
    if own is not None:
        lacks_host = "global_symbol" in function.attrs and own.host is None and not is_kept
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
