"""Moving a module onto a larger target that contains its present target as a node."""

from __future__ import annotations

from dataclasses import replace

from tvmtarget.ir.function import Call, Function
from tvmtarget.ir.module import IRModule
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.tree import TargetLike, as_target
from tvmtarget.target.tree_paths import join

__all__ = ["embed"]


def embed(module: IRModule, target: TargetLike, at: str) -> IRModule:
    """Return the module on a larger target tree.

    Args:
        module: the module.
        target: larger target tree, in any form that `Target.parse` reads.
        at: path or name of the node of `target` that is the module's present target.

    Returns:
        The verified module. The path of the node is put before every `@path` in its constraints; constraints without a
        path, such as `gpu`, are not changed and may then be met by any node.

    Raises:
        UnknownNameError: `target` has no such node.
        ModelError: a path of the module does not exist below the node.

    >>> module = IRModule.parse("func @main(%x) opsets(onnx=17) { %y = onnx.Relu(%x) [@npu] return %y }")
    >>> print(embed(module, "[soc=[npu=onnxruntime,cpu=llvm],cpu=llvm]", "soc").main.body[0].constraint)
    @soc/npu
    """
    tree = as_target(target)
    path = tree.locate(at)[0]
    functions = tuple(_prefix_function(function, path) for function in module)
    return module.replace(functions=functions, target=tree).verify()


def _prefix_function(function: Function, path: str) -> Function:
    constraint = None if function.constraint is None else _prefix_constraint(function.constraint, path)
    return function.replace(constraint=constraint, body=tuple(_prefix_call(call, path) for call in function.body))


def _prefix_call(call: Call, path: str) -> Call:
    constraint = None if call.constraint is None else _prefix_constraint(call.constraint, path)
    regions = tuple((label, _prefix_function(region, path)) for label, region in call.regions)
    return replace(call, constraint=constraint, regions=regions)


def _prefix_constraint(constraint: Constraint, path: str) -> Constraint:
    if constraint.path is not None:
        return constraint.replace(path=join(path, constraint.path))
    return constraint.map_nested(lambda nested: _prefix_constraint(nested, path))
