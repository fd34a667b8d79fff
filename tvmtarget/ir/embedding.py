"""A module on a system becomes a module on a larger one of which that system is a part; its decisions stay."""

from __future__ import annotations

from dataclasses import replace

from tvmtarget.ir.function import Call, Function
from tvmtarget.ir.module import IRModule
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.tree import Target
from tvmtarget.target.tree_paths import join

__all__ = ["embed"]


def embed(module: IRModule, target: Target | str, at: str) -> IRModule:
    """Return the module on a larger target, in which the one that its constraints name nodes of is the node `at`.

    Every `@path` in it is led by the path of that node; what names no node, such as `gpu`, stays as it is, and so may
    be met anywhere. `UnknownNameError` if there is no such node, `ModelError` for paths that it does not have.

    >>> module = IRModule.parse("func @main(%x) opsets(onnx=17) { %y = onnx.Relu(%x) [@npu] return %y }")
    >>> print(embed(module, "[soc=[npu=onnxruntime,cpu=llvm],cpu=llvm]", "soc").main.body[0].constraint)
    @soc/npu
    """
    whole = Target.parse(target) if isinstance(target, str) else target
    path = whole.locate(at)[0]
    functions = tuple(_led(function, path) for function in module)
    return module.replace(functions=functions, target=whole).verify()


def _led(function: Function, path: str) -> Function:
    return function.replace(
        constraint=_below(function.constraint, path), body=tuple(_call(call, path) for call in function.body)
    )


def _call(call: Call, path: str) -> Call:
    regions = tuple((label, _led(region, path)) for label, region in call.regions)
    return replace(call, constraint=_below(call.constraint, path), regions=regions)


def _below(constraint: Constraint | None, path: str) -> Constraint | None:
    return None if constraint is None else _prefixed(constraint, path)


def _prefixed(constraint: Constraint, path: str) -> Constraint:
    if constraint.path is not None:
        return constraint.replace(path=join(path, constraint.path))
    return constraint.map_nested(lambda nested: _prefixed(nested, path))
