"""Operator support of ONNX Runtime on the CPU, as far as it is less than ONNX: a row per operator.

Found by running ONNX's node tests with onnxruntime 1.31 and 1.32. What is left out is rejected when a session is
created or runs, or computes another result than ONNX defines. Element types that have no kernel are in
`data/onnxruntime_kernels.json`, which is read at first use.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from tvmtarget.ir.function import domain_and_kind
from tvmtarget.ir.onnx import antialiased_resize
from tvmtarget.ir.onnx.opset_versions import since_version
from tvmtarget.ir.resized_sizes import scales_at
from tvmtarget.ir.symbolic_shapes import integers_of
from tvmtarget.ir.types import Dim, TensorType
from tvmtarget.support.op import STATIC_INPUTS
from tvmtarget.support.strategy import Op, Reject, Rule, reject

__all__ = [
    "ENDED_BY_NOTHING",
    "RULES",
    "UNSUPPORTED",
    "ResizedDim",
    "check_aligned_corners",
    "check_antialias",
    "check_kept_sizes",
    "check_kernels",
    "resized_dims",
    "sizes_and_scales",
]

_UNSIGNED = frozenset({"uint8", "uint16", "uint32", "uint64"})
_SIGNED = frozenset({"int8", "int16", "int32", "int64"})
_FLOATS = frozenset({"float16", "float32", "float64"})
_NUMBERS = _UNSIGNED | _SIGNED | _FLOATS
# Those that the list of kernels is about.
_LIMITED = _NUMBERS | {"bool", "string"}


@cache
def _kernels() -> dict[str, dict[str, tuple[list[list[int]], list[list[list[str]]]]]]:
    """Return operands of each type parameter, and types that go together, by operator and its version.

    Operators and versions without limits are left out. Results count from -1 downwards.
    """
    found: Any = json.loads((Path(__file__).parent / "data/onnxruntime_kernels.json").read_bytes())
    return dict(found)


def check_kernels(op: Op) -> Reject | None:
    """Check that there is a kernel for the types of an operation.

    Args:
        op: the operation.

    Returns:
        None if there is one or the types are unknown, else why not.
    """
    versions = _kernels().get(op.kind)
    if versions is None:
        return None
    domain, kind = domain_and_kind(op.kind)
    limits = versions.get(str(since_version(kind, op.opset, domain)))
    if limits is None:
        return None
    parameters, rows = limits
    if not rows:
        message = f"it has no kernel for {op.kind} of operator set {op.opset}"
        return reject("RULE", message, hint="convert the model with onnx.version_converter")
    types = [_dtype(op, operands) for operands in parameters]
    if any(all(dtype is None or dtype in one for dtype, one in zip(types, row, strict=True)) for row in rows):
        return None
    found = " and ".join(dtype for dtype in types if dtype is not None)
    known = [at for at, dtype in enumerate(types) if dtype is not None]
    choices = list(dict.fromkeys(" and ".join("/".join(row[at]) for at in known) for row in rows))
    return reject("DTYPE", f"it does not support {op.kind} on {found}", hint=f"cast to {'; or '.join(choices)}")


def _dtype(op: Op, operands: list[int]) -> str | None:
    """Return the element type that some operands and results have; None if it is unknown or not limited."""
    inputs, outputs = op.inputs, op.outputs[::-1]
    for number in operands:
        if -len(outputs) <= number < len(inputs):
            one = (inputs if number >= 0 else outputs)[number]
            if isinstance(one, TensorType) and one.dtype in _LIMITED:
                return one.dtype
    return None


def _no_causal_products(op: Op) -> Reject | None:
    """Reject causal attention whose masked products are read: they are the least number, not minus infinity."""
    if not op.attr("is_causal") or not op.is_read(3):
        return None
    return reject("RULE", "its products before the softmax of causal attention are not those of ONNX")


def _no_padded_mask(op: Op) -> Reject | None:
    """Reject numbers of keys that are not padding beside a mask, and of float64, whose results are wrong (1.31)."""
    # Operand 3 is `attn_mask`; operand 6 is `nonpad_kv_seqlen`, the number of keys that are not padding.
    data = op.tensor(0)
    if not op.operand(6) or (not op.operand(3) and (data is None or data.dtype != "float64")):
        return None
    if not op.operand(3):
        return reject("DTYPE", "it computes attention of float64 over padding", hint="cast to float32")
    return reject("RULE", "it needs the mask as long as the keys, where some of these are padding")


def _no_broadcast_mask(op: Op) -> Reject | None:
    """Reject masks of one query, or key, for all: it fails at the first run (onnxruntime 1.31)."""
    mask, queries, keys = op.tensor(3), op.tensor(0), op.tensor(1)
    if mask is None or not mask.shape or len(mask.shape) < 2:
        return None
    sizes = [(mask.shape[-2], queries)]
    if not op.operand(4):  # `past_key`, whose keys come before these
        sizes.append((mask.shape[-1], keys))
    for size, data in sizes:
        wanted = None if data is None or data.shape is None else data.shape[-2]
        is_certain = isinstance(size, int) and (size == 1 or isinstance(wanted, int))
        if is_certain and wanted is not None and wanted != size:
            message = f"it broadcasts no mask, and that of size {size} is for {wanted} queries or keys"
            return reject("RULE", message, hint="expand the mask")
    return None


def _no_products_with_past(op: Op) -> Reject | None:
    """Reject a past without results for keys and values, and products of a length that is not known (1.31).

    It fails at the first run, and folds the shape of the products, which it infers without the past.
    """
    if not op.operand(4):
        return None
    names = [output.name for output in op.call.outputs[1:3]]
    if len(names) < 2 or not all(names):
        return reject("RULE", "it needs names for present_key and present_value where there is a past")
    products = op.call.outputs[3].type if op.is_read(3) else None
    if not isinstance(products, TensorType) or (products.shape and isinstance(products.shape[-1], int)):
        return None
    return reject("SHAPE_DYNAMIC", f"it infers a wrong size of {op.call.outputs[3].name!r}, which depends on the past")


def _no_broadcast_caches(op: Op) -> Reject | None:
    """Reject cosines and sines of one batch or position for all: it fails at the first run (1.31).

    PyTorch exports those of one batch.
    """
    data = op.tensor(0)
    if op.operand(3) or data is None or not data.shape:
        return None
    wanted = (data.shape[0], data.shape[-2])
    for index in (1, 2):
        tensor = op.tensor(index)
        sizes = () if tensor is None or tensor.shape is None or len(tensor.shape) != 3 else tensor.shape[:2]
        for size, needed in zip(sizes, wanted, strict=False):
            if isinstance(size, int) and size != needed and (size == 1 or isinstance(needed, int)):
                message = (
                    f"it broadcasts no cosines and sines, and size {size} of {op.operand(index)!r} is for {needed}"
                )
                return reject("RULE", message, hint="expand them")
    return None


def _one_zero_point(op: Op) -> Reject | None:
    point = op.tensor(3)
    if point is None or point.shape in ((), (1,)):
        return None
    return reject("RULE", "it supports one zero point for all channels of the weights", hint="quantise per tensor")


def _no_output_shape(op: Op) -> Reject | None:
    if not op.operand(2):
        return None
    return reject("RULE", f"it ignores the output shape of {op.kind}", hint="leave operand 2 out")


def _no_empty_booleans(op: Op) -> Reject | None:
    tensor = op.tensor(0)
    is_full = tensor is None or tensor.dtype != "bool" or (tensor.shape is not None and 0 not in tensor.shape)
    return None if is_full else reject("DTYPE", f"it does not support {op.kind} of an empty bool tensor")


def check_antialias(op: Op) -> Reject | None:
    """Reject antialiasing that has no definition by products (`ir/onnx/antialiased_resize.py`).

    Args:
        op: a Resize of a code generator that has none of its own.

    Returns:
        None if there is no antialiasing, else why it is not supported.
    """
    if not op.attr("antialias"):
        return None
    data, result = op.tensor(0), op.outputs[0]
    old, new = (each.shape or () if isinstance(each, TensorType) else () for each in (data, result))
    pairs = zip_longest(old, new)
    is_known = bool(old) and all(one == other or {type(one), type(other)} == {int} for one, other in pairs)
    steps = ["" if is_known else STATIC_INPUTS, "" if op.operand(3) else "give sizes instead of scales"]
    hint = " and ".join(filter(None, steps)) if antialiased_resize.is_defined(op.call, data) else ""
    return reject("ATTR", "it does not support Resize with antialias=1", hint=hint)


def check_aligned_corners(op: Op) -> Reject | None:
    """Reject aligned corners of sizes that are rounded.

    ONNX Runtime divides by the rounded size, and ONNX's reference evaluator by the one before that.

    Args:
        op: a Resize.

    Returns:
        None if it is supported, else why not.
    """
    if op.attr("coordinate_transformation_mode") != "align_corners" or not op.operand(2):
        return None
    pairs = sizes_and_scales(op)
    # TensorFlow's scale of 20 / 12 gives 20 in float32 only; the element nearest to a place may be another one.
    real = float if op.attr("mode") in (None, "nearest") else np.float32
    if pairs is not None and all(
        scale % 1 == 0 or (isinstance(size, int) and real(size) * real(scale) % 1 == 0) for size, scale in pairs
    ):
        return None
    message = f"its {op.kind} aligns corners otherwise than ONNX where scales give no whole sizes"
    return reject("ATTR", message, hint="give sizes")


def sizes_and_scales(op: Op) -> list[tuple[Dim, np.float32]] | None:
    """Pair the sizes that a Resize or Upsample changes with its scales.

    Args:
        op: the operation.

    Returns:
        A size and a scale for each axis, with None for a size that is not known, and for an axis that the operand does
        not have; None if the scales are not constant, or there are none.
    """
    scales, tensor = _scales(op), op.tensor(0)
    if scales is None:
        return None
    shape = () if tensor is None or tensor.shape is None else tensor.shape
    axes = integers_of(op.call, "axes", range(len(scales)))
    sizes = (shape[axis] if -len(shape) <= axis < len(shape) else None for axis in axes)
    return list(zip(sizes, scales, strict=False))


def _scales(op: Op) -> np.ndarray[Any, Any] | None:
    """Return the constant scales of a Resize or Upsample; before version 9, they are an attribute."""
    stated, operand = op.attr("scales"), scales_at(op.call.inputs)
    if isinstance(stated, tuple):
        return np.array(stated, "float32")
    return None if operand is None else op.constant(operand)


@dataclass(frozen=True, slots=True)
class ResizedDim:
    """A dimension of what is resized.

    Attributes:
        old: its size before.
        new: its size after.
        scale: by what it is scaled; None if that is computed from sizes.
    """

    old: Dim
    new: Dim
    scale: float | None

    @property
    def is_kept(self) -> bool:
        """Whether it is known to stay as it is."""
        return self.old is not None and self.old == self.new if self.scale is None else self.scale == 1

    @property
    def is_changed(self) -> bool:
        """Whether it is known not to stay as it is; a symbolic size that is made a number counts as changed."""
        if self.scale is not None:
            return self.scale != 1
        return isinstance(self.new, int) and self.old is not None and self.old != self.new

    @property
    def may_ignore_scale(self) -> bool:
        """Whether a scale may leave a size of more than 1 as it is, as 1.05 leaves 12: its elements are other ones."""
        if self.scale is None or self.scale == 1:
            return False
        # The result of one element is that element, and products below 1.5 are those that keep 2 or more.
        return 1 < self.scale < 1.5 if not isinstance(self.old, int) else self.old == self.new and self.old > 1


def resized_dims(op: Op) -> tuple[ResizedDim, ...]:
    """Return what is known of the dimensions of a Resize or Upsample.

    Args:
        op: the operation.

    Returns:
        The dimensions, in order; none if the rank is not known.
    """
    tensor, result = op.tensor(0), op.outputs[0]
    if tensor is None or tensor.shape is None:
        return ()
    rank = len(tensor.shape)
    after = result.shape if isinstance(result, TensorType) and result.shape is not None else (None,) * rank
    axes = [axis % rank for axis in integers_of(op.call, "axes", range(rank))] if rank else []
    scales = _scales(op)
    factors: dict[int, float | None] = {axis: 1.0 for axis in range(rank) if axis not in axes}
    if scales is not None and scales.size:
        factors |= dict(zip(axes, map(float, scales.tolist()), strict=False))
    dims = [
        ResizedDim(old, new, factors.get(axis))
        for axis, (old, new) in enumerate(zip(tensor.shape, after, strict=False))
    ]
    if op.attr("keep_aspect_ratio_policy") in (None, "stretch") or not any(dims[axis].is_changed for axis in axes):
        return tuple(dims)
    # All are scaled by one ratio, which is not 1, also those of size 1 that stay so.
    return tuple(ResizedDim(one.old, None, math.nan) if axis in axes else one for axis, one in enumerate(dims))


def check_kept_sizes(op: Op) -> Reject | None:
    """Reject scales that leave sizes as they are, which engines ignore where ONNX does not.

    Args:
        op: a Resize or Upsample by constant scales.

    Returns:
        None if it is supported, else why not.
    """
    one = next((one for one in resized_dims(op) if one.may_ignore_scale), None)
    if one is None:
        return None
    message = f"it ignores a scale of {one.scale:g} where it leaves a size as it is"
    return reject("RULE", message, hint="give sizes instead of scales, or let another leaf resize")


def _copies_kept_sizes(op: Op) -> Reject | None:
    """Reject scales that leave all sizes as they are: it copies the image (1.31)."""
    others = [one for one in resized_dims(op) if one.scale != 1]
    return check_kept_sizes(op) if all(one.may_ignore_scale for one in others) else None


def _resizes_images(op: Op) -> Reject | None:
    """Reject what its kernels of interpolation lack: at the first run it fails, or no session can be made (1.31)."""
    mode, dims = str(op.attr("mode") or "nearest"), resized_dims(op)
    if op.attr("antialias") and mode == "nearest":
        return reject("ATTR", "it does not support Resize with antialias=1 to nearest elements")
    if op.attr("exclude_outside") and mode != "cubic" and not (mode == "linear" and op.attr("antialias")):
        return reject("ATTR", f"it does not support Resize with exclude_outside=1 and mode={mode!r}")
    if mode == "nearest" or not dims:
        return None
    if mode == "cubic" and (tensor := op.tensor(0)) is not None and tensor.dtype not in _FLOATS:
        return reject("DTYPE", f"it does not support cubic Resize on {tensor.dtype}", hint="cast to float32")

    def stay(axes: Iterable[int]) -> bool:
        # Of a batch that is symbolic, sizes that were folded can be the one of the example.
        return not any(dims[axis].is_changed and (axis or isinstance(dims[0].old, int)) for axis in axes)

    is_supported = len(dims) == 2 or (len(dims) in (4, 5) and stay((0, 1)))
    if mode == "linear":
        is_supported |= len(dims) == 3 or (len(dims) == 4 and stay((0, 3)))
    else:
        shrinks = any((one.scale or 1) < 1 or not _is_at_least(one.new, one.old) for one in dims[1:3])
        is_supported &= len(dims) != 5
        is_supported |= len(dims) == 4 and stay((0, 3)) and (bool(op.attr("antialias")) or not shrinks)
    if is_supported:
        return None
    message = f"it has no {mode} Resize of these dimensions"
    return reject("RULE", message, hint="resize the last two dimensions of four, with channels before them")


def _is_at_least(new: Dim, old: Dim) -> bool:
    return not isinstance(new, int) or (isinstance(old, int) and new >= old)


def _plain_region(op: Op) -> Reject | None:
    """Reject regions of a type that neither the data nor the kernel has: no session can be made (onnxruntime 1.31)."""
    data, region = op.tensor(0), op.tensor(1)
    if op.attr("coordinate_transformation_mode") != "tf_crop_and_resize" or data is None or region is None:
        return None
    if region.dtype in ("float32", data.dtype):
        return None
    return reject("DTYPE", f"it does not support a roi of {region.dtype}", hint="cast it to float32")


def _one_type_of_floats(op: Op) -> Reject | None:
    """Reject scales of another type than the data: it fails at the first run (onnxruntime 1.31)."""
    data, scale = op.tensor(0), op.tensor(1)
    if data is None or scale is None or data.dtype == scale.dtype:
        return None
    message = f"it quantizes {data.dtype} by scales of that type only, not of {scale.dtype}"
    return reject("DTYPE", message, hint="cast one of them")


def _no_other_padding(op: Op) -> Reject | None:
    """Reject automatic padding of windows with gaps, which it ignores, and of windows that do not meet (1.31).

    It crops images by the negative padding of the latter, and does not extend the results of a ConvTranspose.
    """
    mode = op.attr("auto_pad")
    if mode not in ("SAME_LOWER", "SAME_UPPER"):
        return None
    weights = op.tensor(1)
    given = [] if weights is None or op.kind in _POOLS else [one for one in weights.shape or () if isinstance(one, int)]
    kernel = integers_of(op.call, "kernel_shape", given[-max(0, len(given) - 2) :])
    strides, gaps = (integers_of(op.call, name, [1] * len(kernel)) for name in ("strides", "dilations"))
    extents = [(size - 1) * gap + 1 for size, gap in zip(kernel, gaps, strict=False)]
    meets = op.kind == "Conv" or all(extent >= step for extent, step in zip(extents, strides, strict=False))
    if meets and (op.kind == "ConvTranspose" or all(gap == 1 for gap in gaps)):
        return None
    return reject("ATTR", f"it pads {op.kind} otherwise than ONNX with auto_pad={mode!r} here", hint="write pads")


def _some_terms(op: Op) -> Reject | None:
    """Reject products of matrices without elements: they are not sums of nothing, which are 0 (1.31)."""
    operands = map(op.tensor, (0, 3) if op.kind == "QLinearMatMul" else (0, 1))
    a, b = (() if one is None or one.shape is None else one.shape for one in operands)
    if 0 not in ((*a[-1:], *b[-2:][:1]) if op.kind in ("MatMul", "QLinearMatMul") else (*a, *b)):
        return None
    return reject("RULE", f"its {op.kind} of no elements is not that of ONNX")


def _ellipses_of_one_rank(op: Op) -> Reject | None:
    """Reject an Einsum whose ellipses stand for different numbers of dimensions, which is no model to it (1.31)."""
    terms = str(op.attr("equation") or "").replace(" ", "").partition("->")[0].split(",")
    ranks = {
        len(tensor.shape) - len(term.replace("...", ""))
        for index, term in enumerate(terms)
        if "..." in term and (tensor := op.tensor(index)) is not None and tensor.shape is not None
    }
    if len(ranks) < 2:
        return None
    message = f"it supports no ellipses of different numbers of dimensions, as in {op.attr('equation')!r}"
    return reject("RANK", message, hint="unsqueeze the operands to one rank")


def _ranks(least: int, most: int = 99) -> Callable[[Op], Reject | None]:
    def check(op: Op) -> Reject | None:
        tensor = op.tensor(0)
        rank = least if tensor is None or tensor.shape is None else len(tensor.shape)
        if least <= rank <= most:
            return None
        count = f"{least}" if least == most else f"at least {least}"
        return reject("RANK", f"it supports {op.kind} of {count} dimensions only, not of {rank}")

    return check


def _usual_blocks(op: Op) -> Reject | None:
    """Reject zero points and groups of weights in blocks that it ignores, or fails at when it runs (1.31)."""
    bits, zeros, has_groups = op.attr("bits") or 4, op.tensor(3), bool(op.operand(4))
    if has_groups and bits != 4:
        return reject("RULE", f"it computes {op.kind} of {bits!r} bits without an order of groups only")
    if has_groups and zeros is not None and zeros.dtype == "uint8":
        message = f"it ignores the zero points {op.operand(3)!r} of {op.kind} beside an order of groups"
        return reject("RULE", message, hint="make them floats")
    if bits == 8 and zeros is not None and zeros.dtype != "uint8":
        return reject("DTYPE", f"it does not support {op.kind} of 8 bits with zero points of {zeros.dtype}")
    return None


# Types whose scattered elements it reduces when it runs only to fail (1.31).
_NOT_SCATTERED = {
    ("ScatterElements", "add"): {"float16"},
    ("ScatterElements", "mul"): {"float16", "string"},
    **{key: {"bool", "string"} for key in (("ScatterElements", "max"), ("ScatterElements", "min"))},
    ("ScatterND", "add"): {"float16"},
    ("ScatterND", "mul"): {"float16", "string"},
    **{key: {"bool", "float16", "string"} for key in (("ScatterND", "max"), ("ScatterND", "min"))},
}


def _reduced_elements(op: Op) -> Reject | None:
    """Reject scattered elements that it has no reduction for."""
    reduction, tensor = op.attr("reduction"), op.tensor(0)
    if tensor is None or tensor.dtype not in _NOT_SCATTERED.get((op.kind, str(reduction)), ()):
        return None
    message = f"it does not support {op.kind} with reduction={reduction!r} on {tensor.dtype}"
    return reject("DTYPE", message, hint={"float16": "cast to float32", "bool": "cast to uint8"}.get(tensor.dtype, ""))


def _odd_window(op: Op) -> Reject | None:
    size = op.attr("size")
    if isinstance(size, int) and size % 2 == 0:
        return reject("ATTR", f"it supports LRN of an odd size, not of {size}")
    return None


def _texts_of_known_rank(op: Op) -> Reject | None:
    """Reject texts that are not known to be gathered along the last axis, where GatherND cannot do it instead.

    Its Gather copies the first text of each block only (1.31).
    """
    data, places = op.tensor(0), op.tensor(1)
    if data is None or data.dtype != "string":
        return None
    if data.shape is None or places is None or places.shape is None:
        return reject("SHAPE_DYNAMIC", f"the ranks of the operands of {op.kind} are not known", hint=STATIC_INPUTS)
    axis = op.attr("axis") or 0
    if op.opset >= 11 or not isinstance(axis, int) or axis % len(data.shape) == len(data.shape) - 1:
        return None
    message = f"it gathers texts along the last axis only in operator set {op.opset}"
    return reject("RULE", message, hint="convert the model with onnx.version_converter")


def _no_ratio_of_negative_axes(op: Op) -> Reject | None:
    """Reject a ratio that is kept along axes that count from the last: it keeps these as they are (1.31)."""
    axes = op.attr("axes")
    if op.attr("keep_aspect_ratio_policy") in (None, "stretch") or not isinstance(axes, tuple):
        return None
    if all(isinstance(axis, int) and axis >= 0 for axis in axes):
        return None
    return reject("ATTR", f"it keeps no ratio along axes {axes}", hint="count them from the first")


def _number_of_sizes_is_known(op: Op) -> Reject | None:
    sizes = op.tensor(3)
    if sizes is None or (sizes.shape is not None and all(isinstance(size, int) for size in sizes.shape)):
        return None
    message = f"how many sizes {op.operand(3)!r} holds is not known"
    return reject("SHAPE_DYNAMIC", message, hint="give the input a shape")


_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
# Dimensions of a first operand of this rank of which none may be 0: it ends the process (1.31).
ENDED_BY_NOTHING = {"ConvTranspose": (5, (2, 3)), "GRU": (3, (0, 1, 2)), "LSTM": (3, (1,))}


def _has_elements(op: Op) -> Reject | None:
    tensor = op.tensor(0)
    shape = () if tensor is None else tensor.shape or ()
    rank, axes = ENDED_BY_NOTHING.get(op.kind, (0, ()))
    if len(shape) == rank and any(shape[axis] == 0 for axis in axes):
        return reject("RULE", f"it has no {op.kind} of no elements, as in {op.operand(0)!r}")
    return None


def _known_channels(op: Op) -> Reject | None:
    """Reject weights of an open number of channels, without which it does not expand the function (1.32)."""
    weights = op.tensor(1)
    if weights is not None and weights.shape and isinstance(weights.shape[0], int):
        return None
    return reject("SHAPE_DYNAMIC", f"the number of channels of {op.operand(1)!r} is not known", hint=STATIC_INPUTS)


def _no_numbered_transform(op: Op) -> Reject | None:
    """Reject SOFTMAX (1) and LOGISTIC (2) of TreeEnsemble, which it exchanges, and those of one target (1.31).

    It applies none to one target.
    """
    post_transform = op.attr("post_transform") or 0
    if post_transform not in (1, 2) and (post_transform == 0 or op.attr("n_targets") != 1):
        return None
    message = f"it computes another post_transform than {post_transform!r} of {op.kind}"
    return reject("ATTR", message, hint="set it to 0 (NONE), and write the transform as operations behind")


_RECURRENT = Rule(dtypes=frozenset({"float16", "float32"}), attrs={"layout": (0,)}, checks=(_has_elements,))

RULES: dict[str, Rule] = {
    "Attention": Rule(
        attrs={"left_window_size": (), "right_window_size": ()},
        checks=(_no_causal_products, _no_padded_mask, _no_broadcast_mask, _no_products_with_past),
    ),
    **dict.fromkeys(sorted(_POOLS), Rule(checks=(_no_other_padding,))),
    "CausalConvWithState": Rule(checks=(_known_channels,)),
    "Conv": Rule(checks=(_no_other_padding,)),
    "ConvInteger": Rule(checks=(_one_zero_point, _no_other_padding)),
    "ConvTranspose": Rule(checks=(_no_other_padding, _has_elements)),
    **dict.fromkeys(("Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"), Rule(checks=(_some_terms,))),
    "Einsum": Rule(checks=(_ellipses_of_one_rank,)),
    "GRU": _RECURRENT,
    "Gather": Rule(checks=(_texts_of_known_rank,)),
    "GlobalAveragePool": Rule(checks=(_ranks(3),)),
    "GlobalMaxPool": Rule(checks=(_ranks(3),)),
    "LRN": Rule(checks=(_ranks(4, 4), _odd_window)),
    "NonZero": Rule(checks=(_ranks(1),)),
    "LSTM": _RECURRENT,
    "MaxUnpool": Rule(checks=(_no_output_shape,)),
    "QuantizeLinear": Rule(checks=(_one_type_of_floats,)),
    "RNN": _RECURRENT,
    "ReduceMax": Rule(checks=(_no_empty_booleans,)),
    "ReduceMin": Rule(checks=(_no_empty_booleans,)),
    "Resize": Rule(
        checks=(
            *(check_aligned_corners, _no_ratio_of_negative_axes, _number_of_sizes_is_known, _plain_region),
            *(_resizes_images, _copies_kept_sizes),
        )
    ),
    "RotaryEmbedding": Rule(checks=(_no_broadcast_caches,)),
    **dict.fromkeys(("ScatterElements", "ScatterND"), Rule(checks=(_reduced_elements,))),
    # Changing case needs a locale that the machine may not have.
    "StringNormalizer": Rule(attrs={"case_change_action": ("NONE",)}),
    "TopK": Rule(dtypes=_SIGNED - {"int16"} | _FLOATS | {"uint8"}),
    "ai.onnx.ml::TreeEnsemble": Rule(checks=(_no_numbered_transform,)),
    "com.microsoft::FastGelu": Rule(checks=(_ranks(1),)),
    "com.microsoft::MatMulNBits": Rule(checks=(_usual_blocks,)),
}

UNSUPPORTED = {"ImageDecoder": "it has no kernel for ImageDecoder"}
