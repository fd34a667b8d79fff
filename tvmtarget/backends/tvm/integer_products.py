"""Products of 8-bit integers, and extrema of whole tensors, in the form that the CPU schedule runs fast.

The operands of a product of 8-bit integers are widened to 32 bits before it, and those of a QDQ model are dequantized.
Here such a product gets the integers, constants in the narrowest type that holds them, and widens each element where it
multiplies. With constant weights its terms are summed in pairs: x86 multiplies and adds two pairs of 16-bit integers by
one instruction, `pmaddwd` (Intel SDM 2B), which LLVM writes for what `pair_intrinsic` states. 128x768x768 of dynamic
quantization take 1.0 ms with AVX2 in place of 3.1 ms (`python -m benchmarks quantized`).

The maximum or minimum of all elements is a chain of dependent comparisons; that of each row first has vectors of them.
TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.backends.protocol import Array
from tvmtarget.backends.tvm.call_sites import Producer, constant_of, operator_of, rewrite_calls
from tvmtarget.backends.tvm.register_tiling import VectorUnit
from tvmtarget.backends.tvm.tir_builder import FUSES_WHAT_FOLLOWS

__all__ = [
    "DEQUANTIZE",
    "PAIRS",
    "converted_product",
    "fits_int32",
    "is_plain",
    "multiply_in_pairs",
    "narrow_products",
    "pair_intrinsic",
]

Module: TypeAlias = Any
Builder: TypeAlias = Any
Expr: TypeAlias = Any
Tensor: TypeAlias = Any

PAIRS = "sums_in_pairs"  # annotation of a block whose last axis is a pair of terms

DEQUANTIZE = "relax.dequantize"

_NARROW = ("int8", "int16")
_BYTES = ("int8", "uint8")
_PAIR = 2
_LEAST_CHANNELS = 3  # of what a window is moved over; pairs of 1 have a term of 2 that counts
_ROWS = (3, 4, 5)  # of a register block, one of which divides the padded rows


def narrow_products(module: Module) -> Module:
    """Rewrite products of widened integers, and extrema of whole tensors.

    Args:
        module: TVM's module of functions of Relax.

    Returns:
        A module that computes the same; the same one if it has none.
    """
    from tvm import relax
    from tvm.relax.dpl import is_const, is_op, rewrite_call, wildcard

    tensor = wildcard()
    operands = [(is_op("relax.astype")(narrow), narrow, is_const()) for narrow in (wildcard(), wildcard())]
    product = is_op("relax.matmul")(*(widened | constant for widened, _, constant in operands))
    extremum = is_op("relax.max")(tensor) | is_op("relax.min")(tensor)

    # A variable that is bound to another one, which is bound to a call, is matched, too.
    def multiply(call: Expr, found: Any) -> Expr:  # noqa: ANN401
        if not isinstance(call, relax.Call) or call.ty.dtype.dtype != "int32":
            return call
        narrow = [
            found[tensor] if tensor in found else _narrow_array(found[constant].value.numpy())
            for _, tensor, constant in operands
        ]
        is_narrow = all(one is not None and _dtype(one) in (*_NARROW, "uint8") for one in narrow)
        return relax.op.matmul(*narrow, out_dtype="int32") if is_narrow else call

    def reduce(call: Expr, found: Any) -> Expr:  # noqa: ANN401
        if (
            not isinstance(call, relax.Call)
            or call.attrs.axis is not None
            or call.attrs.keepdims
            or found[tensor].ty.ndim < 2
        ):
            return call
        compute = relax.op.max if call.op.name == "relax.max" else relax.op.min
        return compute(compute(found[tensor], axis=-1))

    result = module
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            changed = rewrite_call(extremum, reduce, rewrite_call(product, multiply, function))
            if not changed.same_as(function):
                result = module.clone() if result is module else result
                result[variable] = changed
    return result


def multiply_in_pairs(module: Module, unit: VectorUnit) -> Module:
    """Sum products of integers with constant matrices or windows in pairs.

    This includes dequantized integers, whose product is that of the integers, times both scales: exact but for the last
    rounding.

    Args:
        module: TVM's module of functions of Relax, of `narrow_products`.
        unit: the vector registers.

    Returns:
        A changed copy; the same module for a CPU without an instruction for it.
    """
    from tvm import relax

    if not unit.multiplies_pairs:
        return module

    def rewrite(call: Expr, builder: Builder, producer: Producer) -> Expr:
        product = _product(call, producer) if operator_of(call) in ("relax.matmul", "relax.nn.conv2d") else None
        if product is None or not product.fits(unit):
            return call
        sums = product.emit(builder, call)
        if _dtype(call) == "int32":
            return sums
        floats = relax.op.astype(sums, _dtype(call))
        if product.scale is None:
            return floats
        return relax.op.multiply(builder.emit(floats), builder.normalize(product.scale))

    return rewrite_calls(module, rewrite)


@dataclass(frozen=True)
class _Product:
    """A product of integers with a constant matrix, or windows of constants.

    Attributes:
        data: the integers, of shape [..., rows, terms] or [batch, terms, height, width].
        zero: their zero point, a scalar; None for 0.
        weights: constants without zero points, of shape [terms, columns] or [columns, terms, height, width].
        scale: what the sums are multiplied by; None for 1.
    """

    data: Expr
    zero: Expr | None
    weights: Array
    scale: Expr | None = None

    def fits(self, unit: VectorUnit) -> bool:
        """Return whether vectors of columns fill the registers well, and most pairs have two terms."""
        from tvm import tirx

        is_window = self.weights.ndim > _PAIR
        columns, terms = self.weights.shape[:2] if is_window else self.weights.shape[::-1]
        # A check that runs with the program may be what says how many terms there are.
        shape = self.data.ty.shape
        if shape is None or not isinstance(shape[1 if is_window else -1], tirx.IntImm):
            return False
        if not self.weights.size or (is_window and terms < _LEAST_CHANNELS):
            return False
        return 2 * math.gcd(columns, unit.lanes(32)) >= unit.lanes(32)

    def emit(self, builder: Builder, call: Expr) -> Expr:
        """Add calls that compute the sums of a call, of 32 bits, and return the last one."""
        from tvm import relax

        attributes = {"op_pattern": FUSES_WHAT_FOLLOWS}
        if self.weights.ndim > _PAIR:
            attrs = call.attrs
            zero = [] if self.zero is None else [builder.emit(self.zero)]
            return builder.call_te(
                _window_sums,
                self.data,
                _in_pairs(self.weights.transpose(1, 2, 3, 0)),
                [int(step) for step in attrs.strides],
                [int(size) for size in attrs.padding],
                [int(step) for step in attrs.dilation],
                *zero,
                primfunc_name_hint="conv2d_in_pairs",
                primfunc_attrs=attributes,
            )
        data = self.data
        if _dtype(data) != "int16":
            data = builder.emit(relax.op.astype(data, "int16"))
        if self.zero is not None:
            data = builder.emit(relax.op.subtract(data, builder.emit(relax.op.astype(self.zero, "int16"))))
        return builder.call_te(
            _row_sums,
            data,
            _in_pairs(self.weights),
            primfunc_name_hint="matmul_in_pairs",
            primfunc_attrs=attributes,
        )


def _in_pairs(weights: Array) -> Expr:
    """Return constants of shape [terms, ..., columns] as [pairs, ..., columns, 2]; an odd term is padded with zeros."""
    padded = np.pad(weights, ((0, len(weights) % _PAIR), *[(0, 0)] * (weights.ndim - 1)))
    pairs = np.moveaxis(padded.reshape(-1, _PAIR, *weights.shape[1:]), 1, -1)
    return _narrow_array(np.ascontiguousarray(pairs))


def _row_sums(data: Tensor, weights: Tensor) -> Tensor:
    """Define a product of matrices in TVM's tensor expressions.

    Args:
        data: int16, of shape [..., rows, terms].
        weights: int8 or int16, of shape [pairs, columns, 2].

    Returns:
        The sums, of shape [..., rows, columns].
    """
    from tvm import te

    *sizes, terms = data.shape
    pairs, columns, _ = map(int, weights.shape)
    source = data
    if pairs * _PAIR != int(terms):  # the weight of the last term is 0
        padded = (*sizes, pairs * _PAIR)
        data = te.compute(padded, lambda *at: source[(*at[:-1], te.min(at[-1], terms - 1))], "repeat_last_term")
    pair, term = te.reduce_axis((0, pairs), "pair"), te.reduce_axis((0, _PAIR), "term")
    rows = _padded(sizes)

    def summed(*at: Expr) -> Expr:
        # The last row is repeated where it fills a register block; nothing reads these sums.
        place = [
            one if more is size else te.min(one, size - 1) for one, size, more in zip(at[:-1], sizes, rows, strict=True)
        ]
        left, right = data[(*place, pair * _PAIR + term)], weights[pair, at[-1], term]
        return te.sum(left.astype("int32") * right.astype("int32"), axis=[pair, term])

    sums = te.compute((*rows, columns), summed, "sums_in_pairs", attrs={PAIRS: True})
    return te.compute((*sizes, columns), lambda *at: sums[at], "matmul_in_pairs")


def _window_sums(
    data: Tensor,
    weights: Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    zero: Tensor | None = None,
) -> Tensor:
    """Define a convolution in TVM's tensor expressions.

    Args:
        data: 8-bit integers, of shape [batch, channels, height, width].
        weights: int8 or int16, of shape [pairs, height, width, columns, 2].
        strides: steps of the window, down and to the right.
        padding: zeros above, left of, below and right of the data.
        dilation: steps of its elements.
        zero: the zero point of the data, a scalar; None for 0.

    Returns:
        The sums, of shape [batch, columns, height, width].
    """
    from tvm import te, tirx

    batch, channels, *sizes = data.shape
    pairs, *window, columns, _ = map(int, weights.shape)
    spans = [(size - 1) * step + 1 for size, step in zip(window, dilation, strict=True)]
    before, after = padding[:2], padding[2:]
    height, width = (
        (size + first + last - span) // step + 1
        for size, first, last, span, step in zip(sizes, before, after, spans, strides, strict=True)
    )
    rows = _padded([batch, height, width])  # nothing reads the sums of what is added
    lines = [(size - 1) * step + span for size, step, span in zip(rows[1:], strides, spans, strict=True)]
    channels = int(channels)

    def term_of(pair: Expr, term: int, place: Sequence[Expr], n: Expr) -> Expr:
        value = data[(n, pair * _PAIR + term, *place)].astype("int32")
        value = value if zero is None else value - zero().astype("int32")
        if term and channels % _PAIR:
            return tirx.if_then_else(pair < pairs - 1, value, tirx.const(0, "int32"))
        return value

    def paired(n: Expr, pair: Expr, y: Expr, x: Expr) -> Expr:
        place = y - before[0], x - before[1]
        value = (term_of(pair, 1, place, n) << 16) | (term_of(pair, 0, place, n) & 0xFFFF)
        inside = []
        for at, size, count, first in zip(place, sizes, lines, before, strict=True):
            inside += [at >= 0] if first else []
            is_within = isinstance(count - size, int | tirx.IntImm) and int(count - size) <= first
            inside += [] if is_within else [at < size]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, "int32")) if inside else value

    blocks = te.compute((batch, pairs, *lines), paired, "pairs_of_channels")
    pair, term = te.reduce_axis((0, pairs), "pair"), te.reduce_axis((0, tirx.const(_PAIR, "int64")), "term")
    down, right = (te.reduce_axis((0, size), name) for size, name in zip(window, ("down", "right"), strict=True))

    def summed(n: Expr, column: Expr, y: Expr, x: Expr) -> Expr:
        image = n if rows[0] is batch else te.min(n, batch - 1)
        place = image, pair, y * strides[0] + down * dilation[0], x * strides[1] + right * dilation[1]
        left, factor = _half(blocks[place], term), weights[pair, down, right, column, term]
        return te.sum(left.astype("int32") * factor.astype("int32"), axis=[pair, down, right, term])

    sums = te.compute((rows[0], columns, *rows[1:]), summed, "sums_in_pairs", attrs={PAIRS: True})
    return te.compute((batch, columns, height, width), lambda *at: sums[at], "conv2d_in_pairs")


def _padded(sizes: Sequence[Expr]) -> list[Expr]:
    """Return sizes of which a register block divides the last one that is not 1: the least such size from it on.

    A symbolic size is returned as it is: TVM 0.27 does not vectorize what is written under the condition that a rest of
    rows needs.
    """
    from tvm import tirx

    found = list(sizes)
    axis = next((axis for axis in reversed(range(len(sizes))) if not _is_one(sizes[axis])), None)
    if axis is not None and isinstance(sizes[axis], int | tirx.IntImm):
        size = int(sizes[axis])
        rows = next(count for count in range(size, size + max(_ROWS)) if _has_block(count))
        found[axis] = found[axis] if rows == size else rows
    return found


def _has_block(rows: int) -> bool:
    return rows < min(_ROWS) or any(rows % height == 0 for height in _ROWS)


def _is_one(size: Expr) -> bool:
    from tvm import tirx

    return isinstance(size, tirx.IntImm) and int(size) == 1


@functools.cache  # TVM parses the text of both functions
def pair_intrinsic(lanes: int, data: str, weights: str, scope: str) -> str:
    """Register TVM's intrinsic that adds the products of a pair to each of some sums.

    LLVM recognises the sum of the even and the odd products of 16-bit integers in twice the lanes.

    Args:
        lanes: number of the sums.
        data: type of the pair that all lanes have: int16 for two of them, int32 for one in each half of its bits.
        weights: type of the pairs of the lanes: int8 or int16.
        scope: the scope of the memory of the sums.

    Returns:
        Its name.
    """
    from tvm import tirx
    from tvm.s_tir import TensorIntrin
    from tvm.script import tirx as T  # noqa: N812 - the name that TVMScript is parsed by

    double, count = _PAIR * lanes, 1 if data == "int32" else _PAIR
    even, odd = list(range(0, double, _PAIR)), list(range(1, double, _PAIR))

    def element(one: Expr, term: Expr) -> Expr:
        return one[term] if count == _PAIR else _half(one[0], term)

    def products(one: Expr, matrix: Expr) -> Expr:
        """Return the products of a pair and the elements of as many pairs as there are sums."""
        both = one.vload([0], "int32") if count == 1 else tirx.reinterpret("int32", one.vload([0], f"int16x{_PAIR}"))
        left = tirx.reinterpret(f"int16x{double}", tirx.Broadcast(both, lanes))
        right = tirx.Cast(f"int16x{double}", matrix.vload([0, 0], f"{weights}x{double}"))
        return tirx.Cast(f"int32x{double}", left) * tirx.Cast(f"int32x{double}", right)

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def stated(first: T.handle, second: T.handle, third: T.handle) -> None:
        one = T.match_buffer(first, (count,), data, offset_factor=1)
        matrix = T.match_buffer(second, (lanes, _PAIR), weights, offset_factor=1)
        sums = T.match_buffer(third, (lanes,), "int32", offset_factor=1, scope=scope)
        with T.sblock("root"):
            T.reads(sums[0:lanes], one[0:count], matrix[0:lanes, 0:_PAIR])
            T.writes(sums[0:lanes])
            for lane, term in T.grid(T.int64(lanes), T.int64(_PAIR)):
                with T.sblock("update"):
                    at, of = T.axis.remap("SR", [lane, term])
                    sums[at] = sums[at] + T.cast(element(one, of), "int32") * T.cast(matrix[at, of], "int32")

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def computed(first: T.handle, second: T.handle, third: T.handle) -> None:
        one = T.match_buffer(first, (count,), data, offset_factor=1)
        matrix = T.match_buffer(second, (lanes, _PAIR), weights, offset_factor=1)
        sums = T.match_buffer(third, (lanes,), "int32", offset_factor=1, scope=scope)
        with T.sblock("root"):
            T.reads(sums[0:lanes], one[0:count], matrix[0:lanes, 0:_PAIR])
            T.writes(sums[0:lanes])
            sums[T.ramp(T.int32(0), 1, lanes)] = (
                sums.vload([0], f"int32x{lanes}")
                + T.Shuffle([products(one, matrix)], even)
                + T.Shuffle([products(one, matrix)], odd)
            )

    name = f"tvmtarget_pairs_{lanes}_{data}_{weights}_{scope}"
    TensorIntrin.register(name, stated, computed, override=True)
    return name


def _half(pair: Expr, term: Expr) -> Expr:
    """Return the lower or upper half of 32 bits, as an integer of 16 bits."""
    from tvm import tirx

    return (pair.astype("int64") >> (term * tirx.const(16, "int64"))).astype("int16")


def _product(call: Expr, producer: Producer) -> _Product | None:
    """Return the product of integers that a call computes; None for others, and for weights that are no constants."""
    is_window = operator_of(call) == "relax.nn.conv2d"
    made, weights = producer(call.args[0]), producer(call.args[1])
    if is_window and not is_plain(call):
        return None
    if _dtype(call) == "int32":
        known = constant_of(weights)
        found = None if known is None or is_window else _Product(call.args[0], None, known)
    elif operator_of(made) == DEQUANTIZE:
        found = _dequantized(made, weights, producer, is_window=is_window)
    else:
        known = constant_of(weights)
        found = None if known is None or not is_window else converted_product(made, known, producer)
    if found is None or _dtype(found.data) not in (*_NARROW, "uint8"):
        return None
    if found.weights.ndim != (len("OIHW") if is_window else _PAIR) or found.weights.dtype.kind not in "iu":
        return None
    return found if _dtype(call) == "int32" or fits_int32(found) else None


def is_plain(call: Expr) -> bool:
    """Return whether a convolution is of images with their channels first, in one group.

    Args:
        call: a call of `relax.nn.conv2d`.

    Returns:
        False for other layouts, and for several groups.
    """
    attrs = call.attrs
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
    return layouts == ("NCHW", "OIHW", "NCHW") and int(attrs.groups) == 1


def fits_int32(product: _Product) -> bool:
    """Return whether 32 bits hold all sums of 8-bit integers.

    They differ from their zero point by 255 at most.

    Args:
        product: the product.

    Returns:
        False for data of other types, too.
    """
    weights = product.weights.astype(np.int64)
    terms = (0,) if weights.ndim == _PAIR else (1, 2, 3)
    return _dtype(product.data) in _BYTES and int(np.abs(weights).sum(terms).max(initial=0)) * 255 < 2**31


def converted_product(made: Expr, weights: Array, producer: Producer) -> _Product | None:
    """Return the product of converted integers with whole numbers, as of a ConvInteger.

    Args:
        made: the expression of the floats.
        weights: the whole numbers.
        producer: returns the expression that a variable is bound to.

    Returns:
        The product; None for other operands.
    """
    zero, offset = None, None
    if operator_of(made) == "relax.subtract":
        made, zero = map(producer, made.args)
    if operator_of(made) != "relax.astype" or _dtype(made.args[0]) not in _BYTES:
        return None
    (data,) = made.args
    if zero is not None:
        offset = _integer(zero, _dtype(data))
        if offset is None:
            return None
    if (weights != np.round(weights)).any() or np.abs(weights).max(initial=0) > np.iinfo(np.int16).max:
        return None
    return _Product(data, offset, weights.astype(np.int16))


def _integer(zero: Expr, dtype: str) -> Expr | None:
    """Return the scalar of an integer type that a zero point of floats is converted from or equal to.

    Args:
        zero: the expression of the zero point.
        dtype: the type.

    Returns:
        None for other zero points.
    """
    from tvm import relax

    known = constant_of(zero)
    if known is None:
        if operator_of(zero) != "relax.astype" or _dtype(zero.args[0]) != dtype or not all(map(_is_one, zero.ty.shape)):
            return None
        return relax.op.reshape(zero.args[0], ()) if zero.ty.ndim else zero.args[0]
    value = known.astype(dtype)
    return relax.const(value.reshape(()), dtype) if value.size == 1 and (value == known).all() else None


def _dequantized(made: Expr, weights: Expr, producer: Producer, *, is_window: bool) -> _Product | None:
    """Return the product of the integers that data and weights are dequantized from."""
    is_turned = operator_of(weights) == "relax.permute_dims" and weights.attrs.axes is None
    matrix = producer(weights.args[0]) if is_turned else weights
    if operator_of(matrix) != DEQUANTIZE or _dtype(made) != "float32":
        return None
    array, factors, shift = map(constant_of, matrix.args)
    data, scale, zero = made.args[0], *map(_as_scalar, made.args[1:])
    if array is None or factors is None or shift is None or scale is None or zero is None:
        return None
    axis = 0 if is_window or is_turned else 1
    if array.dtype.name not in _BYTES or (factors.size > 1 and int(matrix.attrs.axis) % array.ndim != axis):
        return None
    along = [-1 if at == axis else 1 for at in range(array.ndim)]
    wide = array.astype(np.int16) - shift.astype(np.int16).reshape(along if shift.size > 1 else ())
    factors = factors.reshape([-1, 1, 1] if is_window else -1) if factors.size > 1 else factors.reshape(())
    known = constant_of(zero)
    offset = zero if known is None or known.any() else None
    return _Product(data, offset, wide.T if is_turned else wide, _times(scale, factors))


def _as_scalar(expr: Expr) -> Expr | None:
    """Return a tensor of one element as a scalar; None for others."""
    from tvm import relax

    known = constant_of(expr)
    if known is not None:
        return relax.const(known.reshape(()), _dtype(expr)) if known.size == 1 else None
    return None if expr.ty.ndim else expr


def _times(scale: Expr, factors: Array) -> Expr:
    """Return a scalar times constants."""
    from tvm import relax

    known = constant_of(scale)
    return relax.op.multiply(scale, relax.const(factors)) if known is None else relax.const(known * factors)


def _dtype(expr: Expr) -> str:
    return str(expr.ty.dtype.dtype)


def _narrow_array(array: Array) -> Expr | None:
    """Return a constant in the narrowest type that holds it; None if that is too wide."""
    from tvm import relax
    from tvm.runtime import tensor

    for dtype in _NARROW:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        if array.dtype.kind in "iu" and least <= array.min(initial=0) and array.max(initial=0) <= most:
            return relax.const(tensor(array.astype(dtype)))
    return None
