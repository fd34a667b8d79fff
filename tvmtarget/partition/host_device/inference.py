"""Infer the constraints of functions from their callers, at any depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tvmtarget.ir.function import Call, Function, callees_of
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.host_device.attributes import CALLING_CONVENTION, DEVICE_KERNEL, as_device
from tvmtarget.partition.host_device.callers import CallSite, call_contexts, context_names
from tvmtarget.target.argument_types import check_arguments
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import TargetLike

__all__ = ["infer_targets"]


@dataclass(frozen=True, slots=True)
class _Context:
    """Where code runs.

    Attributes:
        constraint: constraint of the code; None for none.
        is_device: whether it is device code only.
    """

    constraint: Constraint | None
    is_device: bool = False


@check_arguments
def infer_targets(module: IRModule, target: TargetLike | None = None) -> IRModule:
    """Constrain every function without a constraint like the code that calls it, at any depth.

    A call with a constraint is a context of its own. A function that is called in several contexts is copied for each;
    device code keeps the name, and the copy for the host of another context is named `<name>_host`. Functions that
    nothing calls, and functions with a constraint, stay as they are. Inference is idempotent.

    Args:
        module: a valid module.
        target: target tree; by default that of the module.

    Returns:
        The module with constrained functions.

    Raises:
        ModelError: the module is invalid, for example because its functions are recursive.
        TargetError: the target is not valid.

    Example:
        >>> module = IRModule.parse('''
        ... func @main(%x) [@cpu] { %y = @f(%x) %z = @g(%y) [@gpu] return %z }
        ... func @f(%x) { %y = @g(%x) return %y }
        ... func @g(%x) opsets(onnx=17) { %y = onnx.Relu(%x) return %y }
        ... ''')
        >>> inferred = infer_targets(module, "[gpu=cuda,cpu=llvm](host=@cpu)")
        >>> [(function.name, str(function.constraint)) for function in inferred]
        [('main', '@cpu'), ('f', '@cpu'), ('g', '@gpu'), ('g_host', '@cpu')]
    """
    module = module if target is None else module.with_target(target)
    functions = module.verify().by_name
    called = {name for function in module for name in callees_of(function)}
    calls = {name: tuple(_calls(function, None)) for name, function in functions.items()}
    fixed = {
        name: (_context(function),)
        for name, function in functions.items()
        if function.constraint is not None or name not in called
    }
    found = call_contexts(calls, fixed)
    hosts = _hosts(module, {context for met in found.values() for context in met})
    rank = {context: _rank(context, hosts) for met in found.values() for context in met}
    names = context_names(found, rank.__getitem__, lambda context: _suffix(context, hosts))
    copies = (
        _copy_for(function, context, names, fixed)
        for name, function in functions.items()
        for context in sorted(found[name], key=rank.__getitem__)
    )
    return module.replace(functions=tuple(copies)).verify()


def _context(function: Function) -> _Context:
    return _Context(function.constraint, function.attr(CALLING_CONVENTION) == DEVICE_KERNEL)


def _context_of_call(call: Call, around: _Context | None) -> _Context | None:
    """Return the context of a call and of its regions; None for that of the function."""
    decides = call.constraint is not None and call.constraint.is_required
    return _Context(call.constraint) if decides else around


def _calls(function: Function, around: _Context | None) -> Iterator[CallSite[_Context]]:
    for call in function.body:
        context = _context_of_call(call, around)
        if call.callee is not None:
            yield CallSite(call.callee, context)
        for _, region in call.regions:
            yield from _calls(region, context)


def _hosts(module: IRModule, met: set[_Context]) -> set[_Context]:
    """Return the contexts that drive others: hosts, and mixed code of a site that also has device code."""
    found = {context for context in met if not context.is_device and replace(context, is_device=True) in met}
    if module.target is None:
        return found
    topology = Topology(module.target.resolve())
    paths = {context: context.constraint.path for context in met if context.constraint is not None}
    sites = {context: topology[topology.canonical(path)] for context, path in paths.items() if path is not None}
    driving = {site.host for site in sites.values() if site.host != site.path}
    return found | {context for context, site in sites.items() if site.path in driving}


def _rank(context: _Context, hosts: set[_Context]) -> int:
    return 2 if context in hosts else int(context.constraint is not None)


def _suffix(context: _Context, hosts: set[_Context]) -> str:
    if context in hosts:
        return "host"
    constraint = context.constraint
    name = None if constraint is None else (constraint.path or constraint.word)
    return (name or "any").rpartition("/")[2].replace(".", "_")


def _copy_for(
    function: Function,
    context: _Context,
    names: Mapping[tuple[str, _Context], str],
    fixed: Mapping[str, tuple[_Context, ...]],
) -> Function:
    """Return the copy of a function for a context, which calls the copies of its callees."""

    def called(body: Function, around: _Context | None) -> Function:
        return body.replace(body=tuple(renamed(call, _context_of_call(call, around)) for call in body.body))

    def renamed(call: Call, own: _Context | None) -> Call:
        regions = tuple((label, called(region, own)) for label, region in call.regions)
        callee = call.callee
        if callee is None or callee in fixed:
            return replace(call, regions=regions) if regions else call
        return replace(call, op=f"@{names[callee, own or context]}", regions=regions)

    copied = called(function, None).replace(name=names[function.name, context], constraint=context.constraint)
    return as_device(copied) if context.is_device else copied
