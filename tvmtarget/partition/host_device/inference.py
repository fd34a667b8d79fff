"""Which target a function is for that does not say so: that of the code that calls it, at any depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tvmtarget.ir.function import Call, Function, callees_of
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.host_device.attributes import CALLING_CONVENTION, DEVICE_KERNEL, as_device
from tvmtarget.partition.host_device.callers import CallSite, call_contexts, context_names
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.topology import Topology

__all__ = ["infer_targets"]


@dataclass(frozen=True, slots=True)
class _Context:
    """Where code runs: what it is constrained to, if to anything, and whether it is device code only."""

    constraint: Constraint | None
    is_device: bool = False


def infer_targets(module: IRModule) -> IRModule:
    """Give every function without a constraint those of the code that calls it, at any depth.

    A call with a constraint is code of its own. A function that is called in several contexts is copied for each;
    device code keeps the name, and what runs on the host of another context is called `<name>_host`. Functions that
    nothing calls, those with a constraint, and what they alone call without one, stay as they are, so that doing it
    twice changes nothing. `ModelError` for an invalid module, such as one whose functions call each other in a circle.

    >>> module = IRModule.parse('''
    ... func @main(%x) [@cpu] { %y = @f(%x) %z = @g(%y) [@gpu] return %z }
    ... func @f(%x) { %y = @g(%x) return %y }
    ... func @g(%x) opsets(onnx=17) { %y = onnx.Relu(%x) return %y }
    ... ''').with_target("[gpu=cuda,cpu=llvm](host=@cpu)")
    >>> [(function.name, str(function.constraint)) for function in infer_targets(module)]
    [('main', '@cpu'), ('f', '@cpu'), ('g', '@gpu'), ('g_host', '@cpu')]
    """
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
    made = (
        _made(function, context, names, fixed)
        for name, function in functions.items()
        for context in sorted(found[name], key=rank.__getitem__)
    )
    return module.replace(functions=tuple(made)).verify()


def _context(function: Function) -> _Context:
    return _Context(function.constraint, function.attr(CALLING_CONVENTION) == DEVICE_KERNEL)


def _asked(call: Call, around: _Context | None) -> _Context | None:
    """Return the context of a call, or of what is in its nested bodies; None is that of the function."""
    decides = call.constraint is not None and call.constraint.is_required
    return _Context(call.constraint) if decides else around


def _calls(function: Function, around: _Context | None) -> Iterator[CallSite[_Context]]:
    for call in function.body:
        asked = _asked(call, around)
        if call.callee is not None:
            yield CallSite(call.callee, asked)
        for _, region in call.regions:
            yield from _calls(region, asked)


def _hosts(module: IRModule, met: set[_Context]) -> set[_Context]:
    """Return the contexts that are hosts of others; and, beside device code, mixed code of the same site."""
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


def _made(
    function: Function,
    context: _Context,
    names: Mapping[tuple[str, _Context], str],
    fixed: Mapping[str, tuple[_Context, ...]],
) -> Function:
    """Return a function as it is in a context, calling others as they are there."""

    def called(body: Function, around: _Context | None) -> Function:
        return body.replace(body=tuple(renamed(call, _asked(call, around)) for call in body.body))

    def renamed(call: Call, asked: _Context | None) -> Call:
        regions = tuple((label, called(region, asked)) for label, region in call.regions)
        callee = call.callee
        if callee is None or callee in fixed:
            return replace(call, regions=regions) if regions else call
        return replace(call, op=f"@{names[callee, asked or context]}", regions=regions)

    made = called(function, None).replace(name=names[function.name, context], constraint=context.constraint)
    return as_device(made) if context.is_device else made
