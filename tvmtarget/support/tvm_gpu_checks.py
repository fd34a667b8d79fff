"""Operations that Apache TVM supports on CPUs but not on NVIDIA GPUs.

Found by running ONNX's node tests with apache-tvm 0.27 and CUDA 13 on an H100.
"""

from __future__ import annotations

from fractions import Fraction

from tvmtarget.ir.symbolic_shapes import BROADCASTING
from tvmtarget.ir.types import Dim, TensorType
from tvmtarget.support.op import STATIC_INPUTS, Op, Reject, reject
from tvmtarget.support.tvm_rules import (
    ACTIVATIONS,
    OF_TENSORFLOW,
    check_broadcast,
    check_matmul,
    check_nonempty,
    computed_shape,
    reduced_dims,
    squeezed_dims,
    unknown_fit,
)

__all__ = ["UNSUPPORTED", "check_gpu"]

_MOST_STEPS = 256
# The second operand of products.
_PRODUCTS = {"MatMul": 1, "QLinearMatMul": 3, "com.microsoft::FusedMatMul": 1}

UNSUPPORTED = {
    **dict.fromkeys(("Compress", "NonMaxSuppression"), "its code for it runs on the host, on values of the GPU"),
    "Col2Im": "it sums windows on CPUs only",
    "ReverseSequence": "its checks of lengths run on the host, on values of the GPU",
}


def check_gpu(op: Op) -> Reject | None:
    """Reject operations that do not compile, or compute another result, on a GPU.

    Args:
        op: an operation that TVM supports on CPUs.

    Returns:
        None if it is supported, else why not.
    """
    if op.kind in UNSUPPORTED:
        return reject("NO_RULE", UNSUPPORTED[op.kind])
    if op.kind in ACTIVATIONS:
        return _check_recurrent(op)
    if op.kind in ("Shape", "Size") and not _is_static(op):
        return reject("SHAPE_DYNAMIC", f"its code for {op.kind} of symbolic shapes runs on the host")
    unfit = _check_fit(op)
    if unfit is not None:
        return unfit
    empty = check_nonempty(op, reduced_dims(op))
    if empty is not None:
        return empty
    computed = computed_shape(op)
    if computed:
        return reject("NEED_CONST", f"{computed!r} of {op.kind} is read on the host, and computed on the GPU")
    if any(isinstance(type_, TensorType) and 0 in (type_.shape or ()) for type_ in op.outputs):
        return reject("RULE", f"its schedules for GPUs do not support {op.kind} with an empty result")
    if op.kind == "AveragePool" and op.attr("ceil_mode") == 1 and not _is_static(op):
        return reject("RULE", "it does not pool symbolic shapes with ceil_mode on GPUs", hint=STATIC_INPUTS)
    if op.kind == "Resize" and op.attr("mode") in (None, "nearest") and _may_have_ties(op):
        return reject("RULE", "a GPU rounds where two elements are equally near", hint="let another leaf resize")
    if op.kind == "Resize" and not _gives_whole_sizes(op):
        return reject("RULE", "it resizes by scales that give no whole sizes on CPUs only", hint="give sizes")
    if op.kind == "Resize" and op.attr("coordinate_transformation_mode") == OF_TENSORFLOW:
        return reject("ATTR", f"it resizes with {OF_TENSORFLOW!r} on CPUs only", hint="let another leaf resize")
    if op.kind in ("DepthToSpace", "SpaceToDepth") and not _is_static(op):
        return reject("SHAPE_DYNAMIC", f"it computes {op.kind} of symbolic shapes on CPUs only", hint=STATIC_INPUTS)
    if op.kind == "MaxPool" and op.call.outputs[1:] and op.call.outputs[1].name in op.read:
        return reject("RULE", "it computes places of maxima on CPUs only", hint="let another leaf pool")
    if op.kind == "Pad" and op.operand(2) and not op.is_constant(2):
        return reject("NEED_CONST", f"it fills by a computed {op.operand(2)!r} on CPUs only", hint="make it constant")
    if op.kind == "Expand" and not _keeps_symbols(op):
        return reject("SHAPE_DYNAMIC", "it is not known which dimensions it expands", hint=STATIC_INPUTS)
    return None


def _check_fit(op: Op) -> Reject | None:
    """Reject what is checked at run time on CPUs: sizes that may not fit, and integer divisors that may be 0."""
    tensor = op.tensor(1)
    if op.kind in ("Div", "Mod") and tensor is not None and "int" in tensor.dtype and op.constant(1) is None:
        message = f"the divisor {op.operand(1)!r} of an integer {op.kind} may be 0, which no code on a GPU reports"
        return reject("NEED_CONST", message, hint="divide by an initializer")
    if op.kind == "Mod" and tensor is not None and "float" in tensor.dtype:
        return reject("DTYPE", "it computes Mod of floats on CPUs only", hint="let another leaf compute it")
    if op.kind == "Squeeze" and not all(isinstance(dim, int) for dim in squeezed_dims(op)):
        return reject("SHAPE_DYNAMIC", "its code on a GPU removes known dimensions only", hint=STATIC_INPUTS)
    if op.kind == "Concat":
        return None if _has_equal_dims(op) else unknown_fit(op)
    if op.kind in ("BatchNormalization", "InstanceNormalization"):
        shapes = [type_.shape or () for type_ in (op.tensor(0), op.tensor(1)) if type_ is not None]
        return None if len(shapes) == 2 and shapes[0][1:2] == shapes[1] else unknown_fit(op)
    if op.kind == "ScatterND":
        return None if _has_all_updates(op) else unknown_fit(op)
    if op.kind in _PRODUCTS:
        return check_matmul(op, _PRODUCTS[op.kind])
    if op.kind in ("com.microsoft::QLinearAdd", "com.microsoft::QLinearMul"):
        return check_broadcast(op, (0, 3))
    return check_broadcast(op) if op.kind in BROADCASTING or op.kind == "com.microsoft::BiasGelu" else None


def _gives_whole_sizes(op: Op) -> bool:
    """Whether a Resize has no scales, or all its sizes times these are whole."""
    scales, tensor = op.constant(2), op.tensor(0)
    if scales is None or not scales.size:
        return True
    shape = () if tensor is None else tensor.shape or ()
    pairs = zip(shape, scales.astype("float64").tolist(), strict=False)
    return all((dim if isinstance(dim, int) else 1) * factor % 1 == 0 for dim, factor in pairs)


def _keeps_symbols(op: Op) -> bool:
    """Whether an Expand leaves all dimensions as they are that are no numbers."""
    tensor, result = op.tensor(0), op.outputs[0]
    after = result.shape if isinstance(result, TensorType) and result.shape is not None else ()
    pairs = zip(reversed((tensor.shape or ()) if tensor is not None else ()), reversed(after), strict=False)
    return all(isinstance(old, int) or (old is not None and old == new) for old, new in pairs)


def _check_recurrent(op: Op) -> Reject | None:
    """Require a known, small number of steps, which are written out, and the usual network."""
    if op.kind == "RNN":
        return reject("NO_RULE", "it does not support RNN on GPUs")
    tensor = op.tensor(0)
    steps = (tensor.shape or (None,))[0] if tensor is not None else None
    if not isinstance(steps, int):
        return reject("SHAPE_DYNAMIC", f"it writes out the steps of {op.kind} on GPUs", hint=STATIC_INPUTS)
    directions = 2 if op.attr("direction") == "bidirectional" else 1
    if steps * directions > _MOST_STEPS or not steps:
        message = f"it writes out the steps of {op.kind} on GPUs, from 1 to {_MOST_STEPS}, not {steps * directions}"
        return reject("RULE", message)
    if op.operand(4) or op.operand(7):
        what = "lengths of sequences" if op.operand(4) else "peepholes"
        return reject("RULE", f"it does not support {op.kind} with {what} on GPUs", hint="omit them")
    usual = ACTIVATIONS[op.kind]
    if op.attr("activations") not in (None, (), usual, usual * 2):
        return reject("ATTR", f"it supports {op.kind} with the usual activations only on GPUs")
    return None


def _is_static(op: Op) -> bool:
    tensor = op.tensor(0)
    return tensor is not None and all(isinstance(dim, int) for dim in tensor.shape or ())


def _has_equal_dims(op: Op) -> bool:
    """Whether the operands of a Concat are known to be equal along all other dimensions."""
    axis = op.attr("axis")
    shapes = [type_.shape for type_ in op.inputs if isinstance(type_, TensorType) and type_.shape is not None]
    for number, dims in enumerate(zip(*shapes, strict=False)):
        is_axis = isinstance(axis, int) and number == axis % len(shapes[0])
        # None equals None in Python, but two unknown dimensions need not be equal.
        if not is_axis and (len(set(dims)) > 1 or dims.count(None) > 1):
            return False
    return True


def _has_all_updates(op: Op) -> bool:
    """Whether a ScatterND is known to have one update for each place."""
    data, places, updates = (type_.shape or () if isinstance(type_, TensorType) else () for type_ in op.inputs[:3])
    last = places[-1] if places else 0
    return isinstance(last, int) and updates == places[:-1] + data[last:]


def _may_have_ties(op: Op) -> bool:
    """Whether a resized element may lie halfway between two: a fused multiply-add then rounds otherwise than ONNX.

    A scale that is a power of two is exact, and so are the coordinates that it gives.
    """
    before, result = op.tensor(0), op.outputs[0]
    after = result.shape if isinstance(result, TensorType) else None
    if before is None or before.shape is None or after is None or len(after) != len(before.shape):
        return True
    mode = op.attr("coordinate_transformation_mode") or "half_pixel"
    return any(_ties(old, new, str(mode)) for old, new in zip(before.shape, after, strict=True))


def _ties(old: Dim, new: Dim, mode: str) -> bool:
    if old == new:
        return False
    if not isinstance(old, int) or not isinstance(new, int) or not old or not new:
        return True
    # Fractions keep coordinates exact; floats would round at the very ties that are looked for.
    scale = Fraction(old, new)
    if not scale.numerator & (scale.numerator - 1) and not scale.denominator & (scale.denominator - 1):
        return False
    half = Fraction(1, 2)
    if mode == "align_corners":
        scale = Fraction(old - 1, max(new - 1, 1))
    shift = half if "half_pixel" in mode else Fraction(0)
    places = ((at + shift) * scale - shift for at in range(new))
    return any((2 * place).denominator == 1 and place != 0 for place in places)
