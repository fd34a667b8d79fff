"""Operators of ONNX Runtime's domain com.microsoft, defined by functions of operators of ONNX.

They are what its optimizer for transformers writes. Source: docs/ContribOperators.md of ONNX Runtime, and its kernels
for CPUs (1.31), which the tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, TensorProto, numpy_helper

from tvmtarget.ir.function import Call
from tvmtarget.ir.types import TensorType

__all__ = ["CONTRIB_DEFINITIONS"]

_Types: TypeAlias = "Sequence[TensorType | None]"
_DOMAIN = "onnx.com.microsoft::"
_FLOATS = ("float16", "float32")
# Range and Slice with operands.
_FIRST_OPSET = 11
_NO_PLACE = 1 << 30
# GatherND of batches.
_FIRST_WITH_BATCHES = 12


class _Body:
    """The nodes of a function.

    Args:
        dtype: element type of its floats.
        opset: the version of ONNX's operator set.
    """

    def __init__(self, dtype: str, opset: int) -> None:
        self.nodes: list[NodeProto] = []
        self.opset = opset
        self._dtype = dtype

    def add(self, kind: str, *inputs: str, result: str = "", **attributes: Any) -> str:  # noqa: ANN401
        """Add a node, and return the name of its result."""
        name = result or f"t{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name

    def numbers(self, *values: int) -> str:
        """Add a vector of integers."""
        return self.add("Constant", value=numpy_helper.from_array(np.array(values, np.int64)))

    def number(self, value: int) -> str:
        """Add an integer."""
        return self.add("Constant", value=numpy_helper.from_array(np.array(value, np.int64)))

    def scalar(self, value: float) -> str:
        """Add a float of the type of the data; one that is too large for it becomes the largest."""
        limit = float(np.finfo(self._dtype).max)
        return self.add("Constant", value=numpy_helper.from_array(np.array(np.clip(value, -limit, limit), self._dtype)))

    def integers(self, name: str) -> str:
        """Add a conversion to int64."""
        return self.add("Cast", name, to=TensorProto.INT64)

    def along(self, kind: str, name: str, axis: int, **attributes: Any) -> str:  # noqa: ANN401
        """Add an operation along an axis, which is an attribute or operand by the version."""
        if self.opset >= (18 if kind == "ReduceMean" else 13):
            return self.add(kind, name, self.numbers(axis), **attributes)
        return self.add(kind, name, axes=[axis], **attributes)

    def size(self, name: str, axis: int) -> str:
        """Add a scalar with the size of a dimension."""
        return self.add("Gather", self.add("Shape", name), self.number(axis))

    def slice(self, name: str, start: int, end: int, axis: int, step: int = 1) -> str:
        """Add a slice with constant bounds."""
        return self.add("Slice", name, *(self.numbers(one) for one in (start, end, axis, step)))

    def reshape(self, name: str, *shape: int, result: str = "") -> str:
        """Add a Reshape; 0 keeps a dimension."""
        return self.add("Reshape", name, self.numbers(*shape), result=result)

    def heads(self, name: str, count: int) -> str:
        """Add the division of rows into heads, which become the second dimension."""
        return self.add("Transpose", self.reshape(name, 0, 0, count, -1), perm=[0, 2, 1, 3])

    def range(self, count: str) -> str:
        """Add the numbers from 0 up to a scalar."""
        return self.add("Range", self.number(0), count, self.number(1))

    def penalty(self, is_kept: str, value: float) -> str:
        """Add 0 where something is kept, and a value elsewhere."""
        return self.add("Where", is_kept, self.scalar(0), self.scalar(value))


def _last(type_: TensorType | None) -> int:
    """Return the last dimension, 0 if it is not a number."""
    last = ((type_.shape or ()) if type_ is not None else ())[-1:]
    return last[0] if last and isinstance(last[0], int) else 0


def _rank(type_: TensorType | None) -> int:
    return -1 if type_ is None or type_.shape is None else len(type_.shape)


def _number(call: Call, name: str, default: float) -> float:
    value = call.attr(name)
    return value if isinstance(value, int | float) else default


def _is_optional(call: Call, index: int) -> bool:
    """Return whether an operand is absent."""
    return index >= len(call.inputs) or not call.inputs[index]


def _mask(body: _Body, mask: str, rank: int, keys: str, value: float) -> str:
    """Return what is added to products where a mask is 0: one of lengths, of keys, or of queries and keys."""
    if rank == 1:
        lengths = body.reshape(body.integers(mask), -1, 1)
        is_kept = body.add("Less", body.range(keys), lengths)
    else:
        is_kept = body.add("Greater", body.integers(mask), body.number(0))
    added = body.penalty(is_kept, value)
    return body.along("Unsqueeze", added if rank == 3 else body.along("Unsqueeze", added, 1), 1)


def _attend(
    body: _Body,
    call: Call,
    query: str,
    keys: tuple[str, str],
    masks: Sequence[str],
    scale: float,
    *,
    hidden: int,
    past: str = "",
    limit: float = 0,
) -> None:
    """Add the weighted sum of values, from heads; the result has the heads side by side again.

    Args:
        body: takes the operations.
        call: the attention.
        query: the queries, of heads.
        keys: the keys and the values, of heads.
        masks: what is added to the products.
        scale: the factor of the products.
        hidden: the size of all heads of the result.
        past: the number of keys before that of the first query; 0 by default.
        limit: bound of the products, which a hyperbolic tangent keeps; 0 for none.
    """
    key, value = keys
    products = body.add("MatMul", query, body.add("Transpose", key, perm=[0, 1, 3, 2]))
    products = body.add("Mul", products, body.scalar(scale / (limit or 1)))
    products = body.add("Mul", body.add("Tanh", products), body.scalar(limit)) if limit else products
    masks = [*masks]
    if call.attr("unidirectional"):
        rows, columns = body.size(query, 2), body.size(key, 2)
        steps = body.range(rows)
        places = body.add("Add", steps, past) if past else steps
        is_kept = body.add("Not", body.add("Greater", body.range(columns), body.reshape(places, -1, 1)))
        # Of more keys than queries, the last query sees all (ONNX Runtime 1.32, `PrepareMask`).
        is_last = body.add("Equal", steps, body.add("Sub", rows, body.number(1)))
        masks.append(body.penalty(body.add("Or", is_kept, body.reshape(is_last, -1, 1)), float("-inf")))
    for mask in masks:
        products = body.add("Add", products, mask)
    result = body.add("MatMul", body.add("Softmax", products, axis=-1), value)
    body.reshape(body.add("Transpose", result, perm=[0, 2, 1, 3]), 0, 0, hidden, result="output")


def _multi_head_attention(call: Call, operands: _Types, opset: int) -> tuple[_Body, str, str] | None:
    query, key, value, bias, mask = operands[:5]
    heads, filler = int(_number(call, "num_heads", 0)), _number(call, "mask_filter_value", -10000.0)
    hidden, value_hidden = _last(query), _last(value)
    is_split = _rank(key) == 4
    if query is None or (_rank(query), _rank(key)) not in ((3, 3), (3, 4)) or _rank(value) != _rank(key):
        return None
    if heads < 1 or not hidden or not value_hidden or not all(_is_optional(call, at) for at in (8, 9)):
        return None
    if is_split and not (_is_optional(call, 3) and _is_optional(call, 6)):
        return None
    if mask is not None and _rank(mask) == 1 and (mask.shape or ())[:1] != (query.shape or ())[:1]:
        return None  # lengths and starts, or it is not known which
    body = _Body(query.dtype, opset)
    names = ["query", "key", "value"]
    if bias is not None:
        bounds = (0, hidden, 2 * hidden, 2 * hidden + value_hidden)
        names = [
            body.add("Add", name, body.slice("bias", bounds[at], bounds[at + 1], 0)) for at, name in enumerate(names)
        ]
    q = body.heads(names[0], heads)
    k, v = (name if is_split else body.heads(name, heads) for name in names[1:])
    if not _is_optional(call, 6):
        k, v = body.add("Concat", "past_key", k, axis=2), body.add("Concat", "past_value", v, axis=2)
    k, v = body.add("Identity", k, result="present_key"), body.add("Identity", v, result="present_value")
    masks = []
    if mask is not None:
        masks.append(_mask(body, "key_padding_mask", _rank(mask), body.size(k, 2), filler))
    if not _is_optional(call, 5):
        masks.append("attention_bias")
    scale = _number(call, "scale", 0.0) or (hidden // heads) ** -0.5
    total = heads * value_hidden if is_split else value_hidden
    past = "" if _is_optional(call, 6) else body.size("past_key", 2)
    _attend(body, call, q, (k, v), masks, scale, hidden=total, past=past)
    inputs = "query key value bias key_padding_mask attention_bias past_key past_value past_length indirection"
    return body, inputs, "output present_key present_value"


def _attention(call: Call, operands: _Types, opset: int) -> tuple[_Body, str, str] | None:
    """Define an attention that multiplies its operand by the weights of queries, keys and values."""
    x, weights, _, mask = operands[:4]
    heads, filler = int(_number(call, "num_heads", 0)), _number(call, "mask_filter_value", -10000.0)
    stated = call.attr("qkv_hidden_sizes")
    sizes = [int(str(one)) for one in stated] if isinstance(stated, tuple) and stated else [_last(weights) // 3] * 3
    if x is None or _rank(x) != 3 or heads < 1 or not sizes[0] or not _is_optional(call, 6):
        return None
    if call.attr("do_rotary") or call.attr("past_present_share_buffer") or _rank(mask) > 3:
        return None
    if mask is not None and _rank(mask) == 1 and (mask.shape or ())[:1] != (x.shape or ())[:1]:
        return None
    body = _Body(x.dtype, opset)
    joined = body.add("MatMul", "input", "weights")
    if not _is_optional(call, 2):
        joined = body.add("Add", joined, "bias")
    bounds = (0, sizes[0], sizes[0] + sizes[1], sum(sizes))
    q, k, v = (body.heads(body.slice(joined, bounds[at], bounds[at + 1], 2), heads) for at in range(3))
    if not _is_optional(call, 4):
        k, v = (
            body.add("Concat", body.add("Gather", "past", body.number(at)), one, axis=2)
            for at, one in enumerate((k, v))
        )
    if len(call.outputs) > 1:
        body.add("Concat", *(body.along("Unsqueeze", one, 0) for one in (k, v)), axis=0, result="present")
    masks = [] if mask is None else [_mask(body, "mask_index", _rank(mask), body.size(k, 2), filler)]
    if not _is_optional(call, 5):
        masks.append("attention_bias")
    scale = _number(call, "scale", 0.0) or (sizes[0] // heads) ** -0.5
    past = "" if _is_optional(call, 4) else body.size("past", 3)
    _attend(body, call, q, (k, v), masks, scale, hidden=sizes[2], past=past)
    return body, "input weights bias mask_index past attention_bias past_length", "output present"


def _group_query_attention(call: Call, operands: _Types, opset: int) -> tuple[_Body, str, str] | None:
    """Define an attention whose heads share keys, which are written behind those of a cache.

    The cache may have more places than are in use: `seqlens_k` says for each batch which is the last that the new keys
    fill. Those behind it are 0.
    """
    query, cosines = operands[0], operands[7]
    heads, shared = int(_number(call, "num_heads", 0)), int(_number(call, "kv_num_heads", 0))
    if query is None or _rank(query) != 3 or heads < 1 or shared < 1 or opset < _FIRST_WITH_BATCHES:
        return None
    is_packed, has_past = _is_optional(call, 1), not _is_optional(call, 3)
    size = _last(query) // (heads + 2 * shared if is_packed else heads)
    half = _last(cosines) if call.attr("do_rotary") else 0
    if not size or (call.attr("do_rotary") and not half) or not _has_defined_modes(call):
        return None
    body = _Body(query.dtype, opset)
    if is_packed:
        bounds = (0, heads * size, (heads + shared) * size, (heads + 2 * shared) * size)
        names = [body.slice("query", bounds[at], bounds[at + 1], 2) for at in range(3)]
    else:
        names = ["query", "key", "value"]
    q, k, v = (
        body.reshape(name, 0, 0, count, size) for name, count in zip(names, (heads, shared, shared), strict=True)
    )
    count = body.size("query", 1)
    steps = body.range(count)
    total = body.reshape(body.integers("total_sequence_length"))
    lengths = body.reshape(body.integers("seqlens_k"), -1, 1)
    # The number of places before the new ones: the first prompt has none, even if it is padded.
    before = body.add("Sub", body.add("Add", lengths, body.number(1)), count)
    before = body.add("Where", body.add("Equal", total, count), body.number(0), before)
    places = body.add("Add", steps, before)
    if half:
        at = places if _is_optional(call, 9) else "position_ids"
        cosine, sine = (body.along("Unsqueeze", body.add("Gather", one, at), 2) for one in ("cos_cache", "sin_cache"))
        interleaved = bool(call.attr("rotary_interleaved"))
        q, k = (_rotated(body, one, cosine, sine, 2 * half, size, interleaved=interleaved) for one in (q, k))
    if has_past:
        k, v, columns = _behind_cache(body, (k, v), count=count, total=total, before=before)
    else:
        columns = body.range(count)
    k = body.add("Transpose", k, perm=[0, 2, 1, 3], result="present_key")
    v = body.add("Transpose", v, perm=[0, 2, 1, 3], result="present_value")
    repeated = body.numbers(*(head * shared // heads for head in range(heads)))
    k, v = (body.add("Gather", one, repeated, axis=1) for one in (k, v))
    masks = [_causal_mask(body, places, columns, window=int(_number(call, "local_window_size", -1)))]
    if not _is_optional(call, 10):
        masks.append("attention_bias")
    scale, limit = _number(call, "scale", 0.0) or size**-0.5, _number(call, "softcap", 0.0)
    q = body.add("Transpose", q, perm=[0, 2, 1, 3])
    _attend(body, call, q, (k, v), masks, scale, hidden=heads * size, limit=limit)
    inputs = "query key value past_key past_value seqlens_k total_sequence_length cos_cache sin_cache position_ids"
    return body, f"{inputs} attention_bias head_sink k_scale v_scale q_norm k_norm", "output present_key present_value"


# Of GroupQueryAttention; what they switch on is not defined here.
_UNDEFINED_MODES = (
    *("smooth_softmax", "qk_output", "k_quant_type", "v_quant_type"),
    *("kv_cache_bit_width", "sliding_window_cache"),
)


def _has_defined_modes(call: Call) -> bool:
    is_plain = all(_is_optional(call, at) for at in range(11, len(call.inputs)))
    is_defined = all(call.attr(name) in (None, 0, "NONE") for name in _UNDEFINED_MODES)
    return is_plain and is_defined and call.attr("causal") != 0


def _behind_cache(body: _Body, new: tuple[str, str], *, count: str, total: str, before: str) -> tuple[str, str, str]:
    """Write new keys and values behind those of the cache; return both, and the numbers of their places.

    `count` is the number of new places, `total` that of all places in use, and `before` that of each batch without the
    new ones.
    """
    room = body.size("past_key", 2)
    columns = body.range(body.add("Where", body.add("Greater", total, room), total, room))
    place = body.add("Sub", columns, before)
    is_used, is_old = body.add("Less", place, count), body.add("Less", place, body.number(0))
    # Places that are said to be in use, and that the cache does not have, are errors.
    old = body.add("Where", body.add("Less", columns, room), columns, body.number(_NO_PLACE))
    at = body.add("Where", is_old, old, body.add("Add", place, room))
    rows = body.along("Unsqueeze", body.add("Where", is_used, at, body.number(0)), 2)
    is_used = body.along("Unsqueeze", body.along("Unsqueeze", is_used, 2), 3)
    key, value = (
        body.add("Concat", body.add("Transpose", past, perm=[0, 2, 1, 3]), one, axis=1)
        for past, one in zip(("past_key", "past_value"), new, strict=True)
    )
    key, value = (
        body.add("Where", is_used, body.add("GatherND", one, rows, batch_dims=1), body.scalar(0))
        for one in (key, value)
    )
    return key, value, columns


def _causal_mask(body: _Body, places: str, columns: str, *, window: int) -> str:
    """Return what is added to scores: keys behind a query, or before its window, have no weight."""
    limits = body.along("Unsqueeze", places, 2)
    is_kept = body.add("Not", body.add("Greater", columns, limits))
    if window >= 0:
        is_near = body.add("Greater", columns, body.add("Sub", limits, body.number(window)))
        is_kept = body.add("And", is_kept, is_near)
    return body.along("Unsqueeze", body.penalty(is_kept, float("-inf")), 1)


def _embedding(call: Call, operands: _Types, opset: int) -> tuple[_Body, str, str] | None:
    """Define the normalized sum of embeddings of words, of their positions and of segments."""
    words = operands[2]
    if words is None or _rank(operands[0]) != 2:
        return None
    body = _Body(words.dtype, opset)
    total = body.add("Gather", "word_embedding", "input_ids")
    places = "position_ids" if not _is_optional(call, 8) else body.range(body.size("input_ids", 1))
    total = body.add("Add", total, body.add("Gather", "position_embedding", places))
    if not _is_optional(call, 1):
        total = body.add("Add", total, body.add("Gather", "segment_embedding", "segment_ids"))
    total = body.add("Identity", total, result="embedding_sum")
    centered = body.add("Sub", total, body.along("ReduceMean", total, -1))
    variance = body.along("ReduceMean", body.add("Mul", centered, centered), -1)
    root = body.add("Sqrt", body.add("Add", variance, body.scalar(_number(call, "epsilon", 1e-12))))
    scaled = body.add("Mul", body.add("Div", centered, root), "gamma")
    body.add("Add", scaled, "beta", result="output")
    ones = "input_ids" if _is_optional(call, 7) else "mask"
    counted = body.add("Equal", body.integers(ones), body.number(1))
    counted = body.along("ReduceSum", body.add("Cast", counted, to=TensorProto.FLOAT), 1, keepdims=0)
    counted = body.add("Sub", counted, counted) if _is_optional(call, 7) else counted
    body.add("Cast", counted, to=TensorProto.INT32, result="mask_index")
    inputs = "input_ids segment_ids word_embedding position_embedding segment_embedding gamma beta mask position_ids"
    return body, inputs, "output mask_index embedding_sum"


def _rotated(body: _Body, data: str, cosines: str, sines: str, width: int, size: int, *, interleaved: bool) -> str:
    """Return heads whose first elements, in pairs, are rotated; the data is [batch, place, head, element]."""
    part = body.slice(data, 0, width, 3) if width < size else data
    bounds = [(0, width, 2), (1, width, 2)] if interleaved else [(0, width // 2, 1), (width // 2, width, 1)]
    first, second = (body.slice(part, start, end, 3, step) for start, end, step in bounds)
    turned = [
        body.add("Sub", body.add("Mul", first, cosines), body.add("Mul", second, sines)),
        body.add("Add", body.add("Mul", first, sines), body.add("Mul", second, cosines)),
    ]
    if interleaved:
        pairs = body.add("Concat", *(body.along("Unsqueeze", one, 4) for one in turned), axis=4)
        result = body.reshape(pairs, 0, 0, 0, width)
    else:
        result = body.add("Concat", *turned, axis=3)
    return body.add("Concat", result, body.slice(data, width, size, 3), axis=3) if width < size else result


def _rotary_embedding(call: Call, operands: _Types, opset: int) -> tuple[_Body, str, str] | None:
    x, places, cosines, _ = operands[:4]
    stated, half = int(_number(call, "rotary_embedding_dim", 0)), _last(cosines)
    heads = int(_number(call, "num_heads", 0))
    if x is None or _rank(x) not in (3, 4) or not half or not _last(x) or call.attr("is_packed_batching"):
        return None
    size = _last(x) if _rank(x) == 4 else _last(x) // heads if heads else 2 * half
    width = stated or size
    if width != 2 * half or _number(call, "scale", 1.0) != 1:
        return None
    body = _Body(x.dtype, opset)
    data = body.add("Transpose", "input", perm=[0, 2, 1, 3]) if _rank(x) == 4 else body.reshape("input", 0, 0, -1, size)
    at = "position_ids"
    if _rank(places) == 1:  # the first place
        at = body.along("Unsqueeze", body.add("Add", body.range(body.size(data, 1)), at), 0)
    cosine, sine = (body.along("Unsqueeze", body.add("Gather", one, at), 2) for one in ("cos_cache", "sin_cache"))
    result = _rotated(body, data, cosine, sine, width, size, interleaved=bool(call.attr("interleaved")))
    if _rank(x) == 4:
        body.add("Transpose", result, perm=[0, 2, 1, 3], result="output")
    else:
        body.reshape(result, 0, 0, _last(x), result="output")
    return body, "input position_ids cos_cache sin_cache", "output"


def _gelu(call: Call, operands: _Types, opset: int) -> tuple[_Body, str, str] | None:
    """Define x * (1 + erf(x / sqrt(2))) / 2, its approximation by tanh, or x * sigmoid(alpha * x), with a bias."""
    x = operands[0]
    if x is None:
        return None
    body = _Body(x.dtype, opset)
    data = "input" if _is_optional(call, 1) else body.add("Add", "input", "bias")
    if call.kind == "QuickGelu":
        scaled = body.add("Mul", data, body.scalar(_number(call, "alpha", 1.702)))
        body.add("Mul", data, body.add("Sigmoid", scaled), result="output")
        return body, "input bias", "output"
    if call.kind == "FastGelu":
        cube = body.add("Mul", body.add("Mul", data, data), data)
        inner = body.add("Add", data, body.add("Mul", cube, body.scalar(0.044715)))
        gate = body.add("Tanh", body.add("Mul", inner, body.scalar((2 / np.pi) ** 0.5)))
    else:
        gate = body.add("Erf", body.add("Mul", data, body.scalar(0.5**0.5)))
    half = body.add("Mul", data, body.scalar(0.5))
    body.add("Mul", half, body.add("Add", gate, body.scalar(1)), result="output")
    return body, "input bias", "output"


def _skip_norm(call: Call, operands: _Types, opset: int) -> tuple[_Body, str, str] | None:
    """Define the normalization of a sum over the last axis, with or without the mean; the fourth result is the sum."""
    x, is_simple = operands[0], call.kind == "SkipSimplifiedLayerNormalization"
    if x is None or any(output.name for output in call.outputs[1:3]):
        return None
    body = _Body(x.dtype, opset)
    total = body.add("Add", "input", "skip")
    total = total if _is_optional(call, 3 if is_simple else 4) else body.add("Add", total, "bias")
    total = body.add("Identity", total, result="sum")
    mean = body.add("Identity", body.along("ReduceMean", total, -1), result="mean")
    centered = total if is_simple else body.add("Sub", total, mean)
    variance = body.along("ReduceMean", body.add("Mul", centered, centered), -1)
    root = body.add("Sqrt", body.add("Add", variance, body.scalar(_number(call, "epsilon", 1e-12))))
    body.add("Reciprocal", root, result="inverse")
    scaled = body.add("Mul", body.add("Div", centered, root), "gamma")
    if is_simple or _is_optional(call, 3):
        body.add("Identity", scaled, result="output")
    else:
        body.add("Add", scaled, "beta", result="output")
    return body, f"input skip gamma {'' if is_simple else 'beta '}bias", "output mean inverse sum"


def _product(call: Call, operands: _Types, opset: int) -> tuple[_Body, str, str] | None:
    """Define a product of matrices that may be transposed, times a factor."""
    a, b = operands[:2]
    if a is None or _rank(a) < 2 or _rank(b) < 2 or call.attr("transBatchA") or call.attr("transBatchB"):
        return None
    body = _Body(a.dtype, opset)
    names = ["a", "b"]
    for at, (name, type_) in enumerate((("transA", a), ("transB", b))):
        if call.attr(name):
            rank = _rank(type_)
            names[at] = body.add("Transpose", names[at], perm=[*range(rank - 2), rank - 1, rank - 2])
    body.add("Mul", body.add("MatMul", *names), body.scalar(_number(call, "alpha", 1.0)), result="output")
    return body, "a b", "output"


_Definition: TypeAlias = Callable[[Call, _Types, int], "tuple[_Body, str, str] | None"]
_DEFINED: Mapping[str, _Definition] = {
    "Attention": _attention,
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu"), _gelu),
    "EmbedLayerNormalization": _embedding,
    "FusedMatMul": _product,
    "GroupQueryAttention": _group_query_attention,
    "MultiHeadAttention": _multi_head_attention,
    "RotaryEmbedding": _rotary_embedding,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_norm),
}


def _as_function(define: _Definition) -> Callable[[Call, _Types, int], FunctionProto | None]:
    def function(call: Call, operands: _Types, opset: int) -> FunctionProto | None:
        known = [*operands, *[None] * 16]
        floats = [one for one in known if one is not None and "float" in one.dtype]
        if any(one.dtype not in _FLOATS for one in floats) or opset < _FIRST_OPSET:
            return None
        found = define(call, known, opset)
        if found is None:
            return None
        body, inputs, outputs = found
        if any(output.name for output in call.outputs[len(outputs.split()) :]):
            return None
        domains = [onnx.helper.make_opsetid("", opset)]
        return onnx.helper.make_function(
            "com.microsoft", call.kind, inputs.split(), outputs.split()[: len(call.outputs)], body.nodes, domains
        )

    return function


# Functions of ONNX Runtime's operators by kind: each returns the definition of a call for the types of its operands and
# a version of ONNX's operator set; None if there is none.
CONTRIB_DEFINITIONS: Mapping[str, Callable[[Call, _Types, int], FunctionProto | None]] = {
    f"{_DOMAIN}{kind}": _as_function(define) for kind, define in _DEFINED.items()
}
