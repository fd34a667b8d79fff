"""Pad convolutions whose number of channels fits no vector with channels of zeros, which are cut off afterwards.

`register_tiling` lays vectors along the channels of a result. 1000 channels are divisible by 10 of 16 lanes; 1008
channels fill all lanes for 0.8 percent more work: 1.9 ms instead of 2.9 ms for the last convolution of SqueezeNet, on
one thread. The cut moves behind a bias and a rectifier, so that these are computed with the convolution. TVM is
imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tvmtarget.backends.protocol import Array
from tvmtarget.backends.tvm.register_tiling import VectorUnit, divisor

__all__ = ["widen_channels", "widened"]

Module: TypeAlias = Any
Function: TypeAlias = Any
Expr: TypeAlias = Any

WORTH = 1.2  # times as many lanes in use from which on it is done

_AFTER = ("relax.add", "relax.nn.relu")


def widened(channels: int, width: int) -> int:
    """Return the number of channels to compute so that vectors are well filled.

    >>> [widened(channels, 16) for channels in (1000, 58, 64, 24, 3)]
    [1008, 64, 64, 24, 3]

    Args:
        channels: number of channels of the result.
        width: lanes of a vector.

    Returns:
        At least `channels`.
    """
    more = -(-channels // width) * width
    return more if channels / more > WORTH * divisor(channels, width) / width else channels


def widen_channels(module: Module, unit: VectorUnit) -> Module:
    """Pad the convolutions of a module whose weights are constants.

    Args:
        module: a TVM module of Relax functions.
        unit: the vector unit.

    Returns:
        A changed copy.
    """
    from tvm import relax

    result = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function) and _is_worth_it(function, unit):
            result[variable] = relax.analysis.remove_all_unused(_mutated(result, function, unit))
    return result


def _is_worth_it(function: Function, unit: VectorUnit) -> bool:
    from tvm import relax

    found: list[int] = []
    relax.analysis.post_order_visit(function, lambda expr: found.append(_more(expr, unit)))
    return any(found)


def _more(expr: Expr, unit: VectorUnit) -> int:
    """Return how many channels to add to a convolution; 0 for other expressions."""
    from tvm import relax

    if not isinstance(expr, relax.Call) or getattr(expr.op, "name", "") != "relax.nn.conv2d":
        return 0
    weights, attrs = expr.args[1], expr.attrs
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
    if not _is_constant(weights) or int(attrs.groups) != 1 or layouts != ("NCHW", "OIHW", "NCHW"):
        return 0
    array: Array = weights.value.numpy()
    channels = array.shape[0]
    return widened(channels, unit.lanes(8 * array.itemsize)) - channels if array.dtype.kind == "f" else 0


def _is_constant(expr: Expr) -> bool:
    from tvm import ir

    return isinstance(expr, ir.expr.GenericConst)


def _mutated(module: Module, function: Function, unit: VectorUnit) -> Function:
    """Return a function with padded convolutions; cuts that nothing reads remain."""
    import numpy as np
    import tvm
    from tvm import relax

    @relax.expr_functor.mutator
    class Widening(relax.PyExprMutator):  # type: ignore[misc]
        """Keeps, by the variable of a cut, the result that was cut, and how much."""

        def __init__(self) -> None:
            super().__init__(module)
            self.wide: dict[Expr, tuple[Expr, int, int]] = {}

        def visit_var_binding_(self, binding: Expr) -> None:
            found = self.widened(binding.value)
            if found is None:
                super().visit_var_binding_(binding)
                return
            value, channels, more = found
            whole = self.builder_.emit(value)
            is_read_later = self.builder_.current_block_is_dataflow() and not isinstance(binding.var, relax.DataflowVar)
            emit = self.builder_.emit_output if is_read_later else self.builder_.emit
            cut = emit(relax.op.strided_slice(whole, [1], [0], [channels]))
            self.wide[cut] = whole, channels, more
            self.set_var_remap(binding.var, cut)

        def widened(self, call: Expr) -> tuple[Expr, int, int] | None:
            """Return a call on more channels, with how many there were and how many came; None if it is to stay."""
            more = _more(call, unit)
            if more:
                array = call.args[1].value.numpy()
                padded = np.pad(array, [(0, more), (0, 0), (0, 0), (0, 0)])
                arguments = [self.visit_expr(call.args[0]), relax.const(tvm.runtime.tensor(padded))]
                return relax.Call(call.op, arguments, call.attrs), array.shape[0], more
            if not isinstance(call, relax.Call) or getattr(call.op, "name", "") not in _AFTER:
                return None
            first, *rest = map(self.visit_expr, call.args)
            if first not in self.wide:
                return None
            whole, channels, more = self.wide[first]
            biases = [self.bias(bias, channels, more) for bias in rest]
            if None in biases:
                return None
            return relax.Call(call.op, [whole, *biases], call.attrs), channels, more

        def bias(self, bias: Expr, channels: int, more: int) -> Expr | None:
            """Return a constant for each channel with zeros behind; None for anything else."""
            value = self.lookup_binding(bias) if isinstance(bias, relax.Var) else bias
            if isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.reshape":
                value = value.args[0]
            shape = [int(size) for size in bias.ty.shape] if _is_constant(value) else []
            if shape != [1, channels, 1, 1]:
                return None
            array = value.value.numpy().reshape(shape)
            return relax.const(tvm.runtime.tensor(np.pad(array, [(0, 0), (0, more), (0, 0), (0, 0)])))

    return Widening().visit_expr(function)
