"""Bind targets to the functions of a TIR module (apache-tvm), and split them with TVM's SplitHostDevice.

Binding follows TVM's BindTarget (src/tirx/transform/bind_target.cc, v0.27) with four differences:

- BindTarget considers calls in public functions only. A private function called by a private host function gets the
  target of the device there, which SplitHostDevice then rejects.
- Calls in `device_scope` and `target` regions are device code, because SplitHostDevice splits these off.
- Device code that calls a host function is an error.
- There is always a host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from tvmtarget.errors import ModelError, TargetError, raise_all
from tvmtarget.ir.relax.code import CodeCall, calls_of_code, device_scope_of, is_prim, with_calls
from tvmtarget.ir.relax.tvm_library import checked_module, load_device, the_tvm
from tvmtarget.partition.host_device.callers import CallSite, call_contexts, context_names
from tvmtarget.target.tree import Target, TargetLike, as_target

__all__ = ["Context", "bind_missing_targets", "bind_targets", "is_launched", "side_of_prim", "split_tir"]

Context: TypeAlias = Literal["device", "host"]

# Where a function is copied because both sides call it, the copy for the first side keeps the name.
_SIDES: tuple[Context, ...] = ("device", "host")
_HOST_FUNCTION = "tirx.is_host_func"
_KERNEL = 2  # TVM: kDeviceKernelLaunch
_HOST_KINDS = ("llvm", "c", "cuda_host")


def bind_targets(module: Any, target: TargetLike) -> Any:  # noqa: ANN401 - TVM ships no types
    """Give every PrimFunc of a `tvm.IRModule` the target of the code that calls it.

    Public functions get the device with its host; private functions get the target of their caller. A private function
    called from both host and device code is copied as `<name>_host` for the host, at any depth. Existing targets are
    kept. A private function that nothing calls is device code, unless it calls a function that is host code only.

    Args:
        module: a `tvm.IRModule`.
        target: one device and its host.

    Returns:
        A module for TVM's pipeline.

    Raises:
        TargetError: `target` is composite.
        ModelError: `module` is not a `tvm.IRModule`, or its device code calls a host function.
    """
    checked = checked_module(module)
    device, host = _pair(the_tvm(), target)
    return _bind(checked, device, host)


def bind_missing_targets(module: Any, target: TargetLike) -> Any:  # noqa: ANN401
    """Bind targets as `bind_targets` does, and leave device functions with a target unchanged.

    Args:
        module: a `tvm.IRModule`.
        target: one device and its host.

    Returns:
        A module in which every PrimFunc has a target.
    """
    device, host = _pair(the_tvm(), target)
    return _bind(module, device, host, keeps_device_code=True)


def split_tir(module: Any, target: TargetLike, reserved: Iterable[str] = ()) -> Any:  # noqa: ANN401
    """Bind targets, then split all functions by TVM's SplitHostDevice.

    A function whose target is a device without a host stays device code. Device regions in a function for the host are
    split off for the device.

    Args:
        module: a `tvm.IRModule`.
        target: one device and its host.
        reserved: names that no new function may get.

    Returns:
        The split module.

    Raises:
        ModelError: TVM cannot split a function, or leaves device code in a host function.
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
    # Empty functions reserve names, because the pass only avoids names of functions in the module.
    placeholders = [tvm.ir.GlobalVar(name) for name in sorted({*reserved, *taken} - known - {""})]
    empty = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0)).with_attr("target", host)
    for var in placeholders:
        bound.update_func(var, empty)
    split = _split_by_tvm(tvm, bound)
    names = {str(var.name_hint) for var in placeholders}
    kept = {var: _kernel(function) for var, function in split.functions.items() if str(var.name_hint) not in names}
    unsplit = [
        f"function {str(var.name_hint)!r} has device code that TVM does not split off ({region}); lower it to "
        "T.launch_thread first, as tvm.s_tir.transform.LowerOpaqueBlock does for loops bound to threads"
        for var, function in kept.items()
        if is_prim(function) and side_of_prim(function) == "host" and is_other
        for region in (device_scope_of(function),)
        if region is not None
    ]
    raise_all(ModelError, unsplit)
    return tvm.IRModule(kept, attrs=module.attrs, global_infos=module.global_infos)


def is_launched(function: Any) -> bool:  # noqa: ANN401
    """Return whether a function is a kernel that a host function launches.

    Args:
        function: a PrimFunc of a split module.

    Returns:
        Whether it is a kernel.
    """
    own = function.attrs.get("target")
    return bool(function.attrs.get("tirx.is_global_func")) and own is not None and own.host is None


def _kernel(function: Any) -> Any:  # noqa: ANN401
    """Return a kernel for a CPU, which is called by its symbol, with the calling convention of kernels.

    TVM (0.27) leaves it the default one, and packs it like a public function when the split module is built.
    """
    is_plain = is_prim(function) and is_launched(function) and function.attrs.get("calling_conv") is None
    is_here = is_plain and "global_symbol" in function.attrs and function.attrs["target"].kind.name in _HOST_KINDS
    return function.with_attr("calling_conv", _KERNEL) if is_here else function


def _split_by_tvm(tvm: Any, module: Any) -> Any:  # noqa: ANN401
    """Run TVM's pass; on an error, run it on one function after the other to find the one at fault."""
    split = tvm.tirx.transform.SplitHostDevice()
    try:
        return split(module)
    except Exception as error:
        reason = _reason(error)
        by_name = {str(var.name_hint): var for var in module.functions}
        for name, var in sorted(by_name.items()):
            # The function with all that it calls.
            alone, waiting = {}, [var]
            while waiting:
                one = waiting.pop()
                if one not in alone and is_prim(module[one]):
                    alone[one] = module[one]
                    waiting += [by_name[call.name] for call in calls_of_code(module[one]) if call.name in by_name]
            try:
                split(tvm.IRModule(alone))
            except Exception as own:  # TVM raises errors of many types
                raise ModelError(
                    f"function {name!r} cannot be split into host and device code: {_reason(own)}"
                ) from error
        raise ModelError(f"the functions cannot be split into host and device code: {reason}") from error


# Explanations of TVM's error messages, by a part of the message.
_REASONS = {
    "successful return": "its device code returns a value; a kernel returns nothing, so write the result to a buffer",
    "has multiple callees": "it is launched as a kernel and called by code for another target; make a copy for each",
    "accepts": "it is called with another number of arguments than it has parameters",
}


def _reason(error: Exception) -> str:
    """Return an explanation of an error of TVM where its message is known, else the first line of the message."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    known = (reason for words, reason in _REASONS.items() if words in text)
    return next(known, lines[0] if lines else type(error).__name__)


def _annotated(tvm: Any, function: Any, device: Any) -> Any:  # noqa: ANN401
    """Return a host function whose outermost device regions name the device, as SplitHostDevice requires."""
    from tvm_ffi import structural_mutate

    def annotate(node: Any, mutator: Any) -> Any:  # noqa: ANN401
        if node.attr_key == "target":
            return node
        if node.attr_key in ("thread_extent", "device_scope"):
            return tvm.tirx.AttrStmt(device, "target", 0, node)
        return mutator.default_mutate(node)

    body = structural_mutate(function.body, [(tvm.tirx.AttrStmt, annotate)])
    return function if body.same_as(function.body) else function.with_body(body, function.span)


def _bind(module: Any, device: Any, host: Any, *, keeps_device_code: bool = False) -> Any:  # noqa: ANN401
    tvm = the_tvm()
    prims = {var: function for var, function in module.functions.items() if is_prim(function)}
    by_name = {str(var.name_hint): function for var, function in prims.items()}
    fixed = {name: (side_of_prim(function),) for name, function in by_name.items() if _is_decided(function)}
    calls = {name: tuple(map(_call_site, calls_of_code(function))) for name, function in by_name.items()}
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
            callee_side = fixed.get(call.name, (_call_site(call).context or side,))[0]
            return variables.get((call.name, callee_side), old)  # a function that nothing calls has no copies

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
    """Return the side of a function that nothing calls: the device, unless it calls a function of the host."""
    is_host = any(tuple(found.get(call.callee, ())) == ("host",) for call in calls[name])
    return ("host",) if is_host else ("device",)


def _call_site(call: CodeCall) -> CallSite[Context]:
    """Return a call with its side: device regions are device code, unless they name a target of the host's kind."""
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
    """Yield an error for each call of a host function in device code."""
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


def _pair(tvm: Any, target: TargetLike) -> tuple[Any, Any]:  # noqa: ANN401
    """Return TVM's targets of a device, without its host, and of the host."""
    tree = as_target(target).resolve()
    if tree.is_composite:
        raise TargetError(f"TIR is bound to one device and its host, not to {str(tree)!r}; pass one leaf of it")
    device = tree.replace(host=None, executor=None, runtime=None, name=None)
    host = tree.host if isinstance(tree.host, Target) else device if tree.can_host else Target("llvm")
    configs = ({key: value for key, value in one.to_tvm().config.items() if key != "host"} for one in (device, host))
    load_device(device.kind)
    made = [tvm.target.Target(config) for config in configs]
    return made[0], made[1]


def _is_decided(function: Any) -> bool:  # noqa: ANN401
    """Whether the target of a function does not depend on its callers."""
    return any(key in function.attrs for key in ("global_symbol", "target", _HOST_FUNCTION))


def side_of_prim(function: Any) -> Context:  # noqa: ANN401
    """Return the side of a function by its attributes, disregarding device regions in it.

    Args:
        function: a PrimFunc.

    Returns:
        `device` for a device target without a host, else `host`.
    """
    own = function.attrs.get("target")
    is_bare = own is not None and own.host is None and own.kind.name not in _HOST_KINDS
    return "device" if is_bare else "host"


def _bound(function: Any, side: Context, device: Any, host: Any, *, is_fixed: bool, is_kept: bool) -> Any:  # noqa: ANN401
    """Return a function with its target: as BindTarget gives it to a public function, else that of its side."""
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
