"""Operator support of Apache TVM for Relax: operators by name, and calls of other code.

Source: the operators of apache-tvm 0.27 that have a legalization (`FLegalize`), and those that its passes and its
virtual machine know by name. Of the first, collectives need several devices, and `nn.attention_var_len` only raises.
"""

from __future__ import annotations

from tvmtarget.ir.types import TensorType
from tvmtarget.support.strategy import Op, Reject, reject

__all__ = ["check_relax", "is_relax"]


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# Become TIR code, for which shapes are needed.
_LEGALIZED = _names(
    """
    abs acos acosh add arange argmax argmin asin asinh astype atan atan2 atanh bitwise_and bitwise_not
    bitwise_or bitwise_xor broadcast_to bucketize ceil clip collapse_sum_like collapse_sum_to concat cos cosh
    dequantize divide dynamic_strided_slice einsum equal erf exp expand_dims eye eye_like flatten flip floor
    floor_divide floor_mod full full_like gather_elements gather_nd grad.avg_pool2d_backward
    grad.max_pool2d_backward grad.nll_loss_backward grad.take_backward greater greater_equal hamming_window
    image.affine_grid image.grid_sample image.resize2d image.resize3d index_put index_tensor
    inspect.tensor_byte_offset inspect.tensor_dtype_bits inspect.tensor_dtype_code inspect.tensor_dtype_lanes
    inspect.tensor_elem_offset inspect.tensor_ndim inspect.tensor_shape_i inspect.tensor_stride_i isfinite isinf
    isnan layout_transform left_shift less less_equal log log_add_exp logical_and logical_not logical_or
    logical_xor matmul max maximum mean median meshgrid min minimum mod multiply negative nn.adaptive_avg_pool1d
    nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.attention nn.attention_bias nn.avg_pool1d nn.avg_pool2d
    nn.avg_pool3d nn.batch_flatten nn.batch_norm nn.conv1d nn.conv1d_transpose nn.conv2d nn.conv2d_transpose
    nn.conv3d nn.conv3d_transpose nn.cross_entropy_with_logits nn.dropout nn.gelu nn.gelu_tanh nn.group_norm
    nn.instance_norm nn.layer_norm nn.leakyrelu nn.log_softmax nn.max_pool1d nn.max_pool2d nn.max_pool3d
    nn.nll_loss nn.pad nn.pixel_shuffle nn.prelu nn.relu nn.rms_norm nn.selu nn.silu nn.softmax nn.softplus
    not_equal one_hot ones ones_like outer permute_dims power prod quantize repeat reshape reverse_sequence
    right_shift round rsqrt scatter_elements scatter_nd shape_to_tensor sigmoid sign sin sinh size slice_scatter
    split sqrt square squeeze stack std strided_slice subtract sum take tan tanh tile tril triu trunc variance
    vision.all_class_non_max_suppression vision.get_valid_counts vision.multibox_transform_loc
    vision.non_max_suppression vision.roi_align vision.roi_pool where zeros zeros_like
"""
)

# Run as they are, or are replaced by calls of a library.
_BUILTIN = _names(
    """
    alloc_tensor argsort assert_op builtin.alloc_tensor builtin.stop_lift_params call_builtin_with_ctx call_dps_packed
    call_inplace_packed call_pure_packed call_tir call_tir_inplace cumprod cumsum ewise_fma hint_on_device
    invoke_closure invoke_pure_closure make_closure memory.alloc_storage memory.alloc_tensor
    memory.ensure_zero_offset memory.kill_storage memory.kill_tensor memory.view multinomial_from_uniform nonzero
    null_value print shape_of sort tensor_to_shape to_vdevice topk unique
    Call ExternFunc Function If Tuple TupleGetItem match_cast value
"""
)


def is_relax(op: Op) -> bool:
    """Return whether an operation is one of Relax.

    Args:
        op: the operation.

    Returns:
        True for operators of Relax and for calls of code.
    """
    return op.call.op.startswith("relax.") or op.call.callee is not None


def check_relax(op: Op) -> Reject | None:
    """Check an operation of Relax, with all in its nested bodies.

    Args:
        op: the operation.

    Returns:
        None if TVM compiles it, else why not.
    """
    name = op.call.op.removeprefix("relax.")
    if op.call.callee is None and name not in _LEGALIZED and name not in _BUILTIN:
        return reject("NO_RULE", f"TVM has no code for {op.call.op}", hint="give it to an external code generator")
    if name in _LEGALIZED:
        unknown = next((value for value in op.call.inputs if _is_open(op.types.get(value))), None)
        if unknown is not None:
            message = f"the shape of {unknown!r} is not known"
            return reject("SHAPE_DYNAMIC", message, hint="match_cast it to symbolic dimensions")
    return next((refusal for inner in op.nested() if (refusal := check_relax(inner)) is not None), None)


def _is_open(type_: object) -> bool:
    return isinstance(type_, TensorType) and (type_.shape is None or None in type_.shape)
