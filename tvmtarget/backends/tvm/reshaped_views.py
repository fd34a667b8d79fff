"""Reshape of tensors of symbolic shape as a view of the same memory, in place of a kernel that copies.

TVM recognises that a kernel only reshapes where the sizes are numbers. Of symbolic sizes it copies element by element,
with a division by each size, and LLVM takes seconds for the divisions of one kernel (32 s for a tensor that
MobileViT divides into patches).

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tvmtarget.backends.tvm.call_sites import uses_of, with_blocks
from tvmtarget.backends.tvm.tir_builder import OPAQUE

__all__ = ["legalise_reshape", "use_views"]

Module: TypeAlias = Any
Builder: TypeAlias = Any
Expr: TypeAlias = Any

_VIEW = "reshaped_view"  # attribute of a kernel that only reshapes


def legalise_reshape(builder: Builder, call: Expr) -> Expr:
    """Write a `relax.reshape` as a call of a kernel, for TVM's `LegalizeOps`.

    Args:
        builder: TVM's builder of blocks.
        call: the call.

    Returns:
        A call of a kernel; for symbolic sizes of one that `use_views` knows, and nothing is fused with.
    """
    from tvm import ir, tirx, topi

    shapes = [getattr(one.ty.shape, "values", None) for one in (call.args[0], call)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or all(isinstance(size, tirx.IntImm) for shape in known for size in shape):
        return ir.Op.get("relax.reshape").get_attr("FLegalize")(builder, call)
    attributes = {"op_pattern": OPAQUE, _VIEW: True}
    return builder.call_te(
        topi.reshape, call.args[0], shapes[1], primfunc_name_hint="reshape", primfunc_attrs=attributes
    )


def use_views(module: Module) -> Module:
    """Put views in place of kernels that only reshape, but for a single result of the function.

    Args:
        module: TVM's module after operator fusion, which is changed.

    Returns:
        The module.
    """
    from tvm import relax

    kernels = {
        variable
        for variable, function in module.functions_items()
        if function.attrs is not None and _VIEW in function.attrs
    }
    if not kernels:
        return module
    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            module[variable] = with_blocks(function, [_with_views(block, kernels) for block in function.body.blocks])
    used = uses_of(module)
    for variable in kernels:
        if variable.name_hint not in used:
            del module[variable]
    return module


def _with_views(block: Any, kernels: set[Any]) -> Any:  # noqa: ANN401
    from tvm import ir, relax

    call_tir, builder = ir.Op.get("relax.call_tir"), relax.BlockBuilder()

    def changed(binding: Any) -> Any:  # noqa: ANN401
        call = getattr(binding, "value", None)
        if not isinstance(binding, relax.VarBinding) or not isinstance(binding.var, relax.DataflowVar):
            return binding
        if not isinstance(call, relax.Call) or call.op != call_tir or call.args[0] not in kernels:
            return binding
        view = relax.op.reshape(call.args[1].fields[0], binding.var.ty.shape)
        return relax.VarBinding(binding.var, builder.normalize(view))

    return type(block)([changed(binding) for binding in block.bindings])
