"""Check of untrusted TVM modules: every node of their JSON against allow lists.

TVM's JSON can hold everything that its compiler accepts: calls of any symbol of the process (`tirx.call_extern`), of
any registered function (`relax.call_dps_packed`, `relax.expr.ExternFunc`, `ir.EnvFunc`), pragmas with LLVM IR, external
modules in attributes, and loops that write anywhere, as TVM does not check indices of TIR. An untrusted module may
therefore only hold Relax functions with operators that TVM implements itself. The text is checked before TVM parses it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tvmtarget.target.problems import shown

__all__ = ["unsafe_parts"]

_MAX_NODES = 5_000_000


def _names(prefix: str, text: str) -> frozenset[str]:
    return frozenset(f"{prefix}{name}" for name in text.split())


# Values, types, attributes, and Relax itself.
_NODES = (
    _names("", "None int float bool DataType DLDevice")
    | _names("ffi.", "String SmallStr Array List Map Dict Tensor Shape")
    | _names(
        "ir.",
        "IntImm FloatImm StringImm Var Range GlobalVar Op Call Tuple TupleGetItem TupleType PrimType FuncType "
        "PointerType GenericConst DictAttrs SourceMap SourceName Span SequentialSpan IRModule",
    )
    | _names(
        "prim.",
        "Add Sub Mul Div Mod FloorDiv FloorMod Min Max EQ NE LT LE GT GE And Or Not Select Cast",
    )
    | _names("relax.", "TensorType ShapeType AnyType ObjectType FuncType")
    | _names(
        "relax.expr.",
        "ShapeExpr PrimValue StringImm DataTypeImm Constant If SeqExpr DataflowVar DataflowBlock BindingBlock "
        "VarBinding MatchCast Function",
    )
)
_ATTRIBUTES = "relax.attrs."  # prefix of operator attributes, which are numbers, strings and lists

# Operators that only compute with tensors or shapes: none that calls an operand, prints, or makes a view of memory.
_OPERATORS = frozenset({"prim.if_then_else"}) | _names(
    "relax.",
    """
    abs acos acosh add arange argmax argmin argsort asin asinh astype atan atan2 atanh bitwise_and bitwise_not
    bitwise_or bitwise_xor broadcast_to bucketize builtin.stop_lift_params ceil clip collapse_sum_like collapse_sum_to
    concat cos cosh cumprod cumsum dequantize divide dynamic_strided_slice einsum equal erf ewise_fma exp expand_dims
    eye eye_like flatten flip floor floor_divide floor_mod full full_like gather_elements gather_nd
    grad.avg_pool2d_backward grad.end_checkpoint grad.max_pool2d_backward grad.nll_loss_backward grad.no_grad
    grad.start_checkpoint grad.take_backward greater greater_equal hamming_window hint_on_device image.affine_grid
    image.grid_sample image.resize2d image.resize3d index_put index_tensor isfinite isinf isnan layout_transform
    left_shift less less_equal log log_add_exp logical_and logical_not logical_or logical_xor matmul max maximum mean
    median meshgrid min minimum mod multinomial_from_uniform multiply negative nn.adaptive_avg_pool1d
    nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.attention nn.attention_bias nn.attention_var_len nn.avg_pool1d
    nn.avg_pool2d nn.avg_pool3d nn.batch_flatten nn.batch_norm nn.conv1d nn.conv1d_transpose nn.conv2d
    nn.conv2d_transpose nn.conv3d nn.conv3d_transpose nn.cross_entropy_with_logits nn.dropout nn.gelu nn.gelu_tanh
    nn.group_norm nn.instance_norm nn.layer_norm nn.leakyrelu nn.log_softmax nn.max_pool1d nn.max_pool2d nn.max_pool3d
    nn.nll_loss nn.pad nn.pixel_shuffle nn.prelu nn.relu nn.rms_norm nn.selu nn.silu nn.softmax nn.softplus nonzero
    not_equal null_value one_hot ones ones_like outer permute_dims power prod quantize repeat reshape
    reverse_sequence right_shift round rsqrt scatter_elements scatter_nd shape_of shape_to_tensor sigmoid sign sin sinh
    size slice_scatter sort split sqrt square squeeze stack std strided_slice subtract sum take tan tanh
    tensor_to_shape tile to_vdevice topk tril triu trunc unique variance vision.all_class_non_max_suppression
    vision.get_valid_counts vision.multibox_transform_loc vision.non_max_suppression vision.roi_align
    vision.roi_pool where zeros zeros_like
    """,
)

# Attributes of functions that cannot name code; `external_mods` and `Codegen` can.
_KEYS = frozenset(
    {
        *("global_symbol", "num_input", "relax.force_pure", "Primitive", "op_pattern", "operator_name"),
        *("tirx.noalias", "s_tir", "calling-convention"),
    }
)


def unsafe_parts(source: bytes | str) -> Iterator[str]:
    """Yield the parts of a TVM module that may only be compiled if its writer is trusted.

    Args:
        source: module in TVM's JSON.

    Yields:
        Descriptions, each once; malformed JSON is one too. Nothing for a safe module.
    """
    try:
        data = json.loads(source)
    # Deeply nested JSON raises RecursionError, which is no ValueError.
    except (ValueError, RecursionError):
        data = None
    match data:
        case {"root_index": int() as root, "nodes": [*nodes], **rest} if rest.keys() <= {"metadata"}:
            pass
        case _:
            yield "it is not a module in TVM's JSON"
            return
    if len(nodes) > _MAX_NODES:
        yield f"it has more than {_MAX_NODES} nodes"
    elif not 0 <= root < len(nodes) or _type_of(nodes[root]) != "ir.IRModule":
        yield "it is not a module of functions"
    else:
        found = (problem for node in nodes for problem in _problems(node, nodes))
        yield from dict.fromkeys(found)


def _type_of(node: object) -> object:
    return node.get("type") if isinstance(node, dict) else None


def _problems(node: object, nodes: Sequence[Any]) -> Iterator[str]:
    kind = _type_of(node)
    data = node.get("data") if isinstance(node, dict) else None
    if not isinstance(kind, str):
        yield f"{shown(node)} is not a node of TVM's JSON"
    elif kind == "ir.Op":
        if not isinstance(data, str) or data not in _OPERATORS:
            yield f"operator {shown(data)} is not one that only computes"
    elif kind in ("ir.DictAttrs", "ir.IRModule"):
        yield from _keys(kind, data, nodes)
    elif kind.startswith(("tirx.", "s_tir.")):
        yield "it holds code of TIR, which may read and write any memory"
    elif kind not in _NODES and not kind.startswith(_ATTRIBUTES):
        yield f"{shown(kind)} may run more than TVM's own operators"


def _keys(kind: str, data: object, nodes: Sequence[Any]) -> Iterator[str]:
    """Yield the unsafe attributes of a function, or global information of a module."""
    if not isinstance(data, dict):
        yield f"{shown(data)} are not attributes"
        return
    if kind == "ir.IRModule":
        if _entries(data.get("global_infos"), nodes) not in ([], None):
            yield "a module with global information may run elsewhere"
        return
    entries = _entries(data.get("__dict__"), nodes)
    if entries is None:
        yield f"{shown(data)} are not attributes"
    for at in (entries or ())[::2]:
        named = nodes[at] if type(at) is int and 0 <= at < len(nodes) else None
        key = named.get("data") if isinstance(named, dict) else None
        if not isinstance(key, str) or key not in _KEYS:
            yield f"attribute {shown(key)} of a function may name code"


def _entries(at: object, nodes: Sequence[Any]) -> list[Any] | None:
    """Return the entries of a map node as node indices, keys and values alternating; None if it is not a map."""
    node = nodes[at] if type(at) is int and 0 <= at < len(nodes) else None
    if not isinstance(node, dict) or node.get("type") not in ("ffi.Map", "ffi.Dict"):
        return None
    return node["data"] if isinstance(node.get("data"), list) else None
