"""Corrections of OpenVINO's graphs, where it computes other results than ONNX defines (2026.4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.backends.engine_packages import engine_package
from tvmtarget.backends.openvino.library import core, run_to_end

__all__ = ["correct"]

# What does not overwrite its operands; weights that it dequantizes stay small.
_KEEPS_OPERANDS = frozenset({"Convolution", "Gather", "GroupConvolution", "MatMul", "Result"})
# What rounds, and what may lie between a division and that.
_ROUNDS = frozenset({"Ceiling", "Floor", "Round"})
_SCALES = frozenset(
    {"Add", "Clamp", "Divide", "Maximum", "Minimum", "Multiply", "Negative", "Reshape", "Select", "Squeeze", "Subtract"}
)
# Operations that only move elements: OpenVINO computes operations of one value before them, and then may fuse these
# into a reduction (`MoveEltwiseUpThroughDataMov`).
_MOVES = frozenset(
    {
        *("BatchToSpace", "Broadcast", "DepthToSpace", "Gather", "ReorgYolo", "Reshape", "ReverseSequence"),
        *("ShuffleChannels", "Squeeze", "Transpose", "Unsqueeze"),
    }
)
# What it computes before it compiles, where its operands are so computed.
_FOLDED = frozenset({"Broadcast", "Concat", "Reshape", "ShapeOf", "Squeeze", "Subtract", "Transpose", "Unsqueeze"})
_SEQUENCES = frozenset({"GRUSequence", "LSTMSequence", "RNNSequence"})
_NEVER_CONSTANT = frozenset({"If", "Loop", "Multinomial", "RandomUniform", "TensorIterator"})
# Inputs of nodes by the output that they read: name of the node, and index.
_Readers: TypeAlias = "dict[tuple[str, int], list[Any]]"


def correct(model: Any) -> None:  # noqa: ANN401
    """Change a graph so that its results are those that ONNX defines.

    Args:
        model: a model that OpenVINO has read, which is changed in place.
    """
    ov = engine_package("openvino")
    _remove_conversions(model)
    _keep_order_of_ties(ov, model)
    _keep_infinities(ov, model)
    _compare_nan(ov, model)
    _end_ranges(ov, model)
    _keep_signs(ov, model)
    _widen_single_channels(ov, model)
    _activate_after_pools(ov, model)
    _reduce_before_squeezes(ov, model)
    _reduce_four_dimensions(ov, model)
    _divide_exactly(model)
    _stride_before_products(ov, model)
    model.validate_nodes_and_infer_types()
    _separate_sequences(ov, model)
    _separate_biases(ov, model)
    _compute_constants(ov, model)


def _remove_conversions(model: Any) -> None:  # noqa: ANN401
    """Have what reads a conversion between equal types read its operand.

    Where an input of open sizes is so converted to a result, OpenVINO writes beyond memory in later runs (2026.4).
    """
    for node in model.get_ordered_ops():
        is_conversion = node.get_type_name() in ("Convert", "ConvertLike")
        if is_conversion and node.get_input_element_type(0) == node.get_output_element_type(0):
            source = node.input_value(0)
            source.add_names(node.output(0).get_names())
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(source)


def _keep_order_of_ties(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have TopK return the lowest of the indices of equal values, as ONNX requires."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "TopK":
            continue
        stated = node.get_attributes()
        kept = {name: stated[name] for name in ("axis", "mode", "index_element_type")}
        operands = [node.input_value(index) for index in range(2)]
        # Only what is sorted by value may be stable.
        stable = ov.opset11.topk(*operands, **kept, sort="value", stable=True)
        for result, replacement in zip(node.outputs(), stable.outputs(), strict=True):
            _replace(result, replacement)


def _replace(old: Any, result: Any, readers: Iterable[Any] | None = None) -> None:  # noqa: ANN401
    """Have what reads a result read another one, which takes over its names.

    If that is computed from the result, `readers` are those from before.
    """
    result.set_names(old.get_names())
    old.set_names(set())
    for reader in old.get_target_inputs() if readers is None else readers:
        reader.replace_source_output(result)


def _keep_infinities(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have ReduceMax of -inf only, and ReduceMin of inf only, return it: OpenVINO begins with finite numbers.

    The extreme of halves, doubled, is the same number, where it is not subnormal.
    """
    for node in model.get_ordered_ops():
        kind = {"ReduceMax": "reduce_max", "ReduceMin": "reduce_min"}.get(node.get_type_name())
        if kind is None or not node.get_output_element_type(0).is_real():
            continue
        half, two = (ov.opset1.constant(value, node.get_output_element_type(0)) for value in (0.5, 2))
        halves = ov.opset1.multiply(node.input_value(0), half)
        extreme = getattr(ov.opset1, kind)(halves, node.input_value(1), node.get_attributes()["keep_dims"])
        doubled = ov.opset1.multiply(extreme, two).output(0)
        _replace(node.output(0), doubled)


def _compare_nan(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have values compared by what is less, which is false of NaN: OpenVINO's `Greater` is true of it (2026.4)."""
    for node in model.get_ordered_ops():
        kind = {"Greater": "less", "GreaterEqual": "less_equal"}.get(node.get_type_name())
        if kind is not None and node.get_input_element_type(0).is_real():
            less = getattr(ov.opset1, kind)(node.input_value(1), node.input_value(0)).output(0)
            _replace(node.output(0), less)


def _end_ranges(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have ranges away from their ends be empty: OpenVINO counts by the distance, in either direction (2026.4)."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Range" or all(map(_is_constant, _sources(node))):
            continue
        start, stop, step = (node.input_value(at) for at in range(3))
        if len({str(one.get_element_type()) for one in (start, stop, step)}) > 1:  # axes, of the reader's own
            continue
        rises = ov.opset1.greater(step, ov.opset1.constant(0, step.get_element_type()))
        ends = (ov.opset1.maximum(stop, start), ov.opset1.minimum(stop, start))
        node.input(1).replace_source_output(ov.opset1.select(rises, *ends).output(0))


def _keep_signs(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have an Abs leave a concatenation as it is: OpenVINO overwrites those of one dimension (2026.4)."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Abs":
            continue
        joined = _sources(node)[0]
        while joined.get_type_name() == "Identity":
            joined = _sources(joined)[0]
        if joined.get_type_name() != "Concat" or joined.get_output_partial_shape(0).rank != 1:
            continue
        x = node.input_value(0)
        largest = ov.opset1.maximum(x, ov.opset1.negative(x)).output(0)
        _replace(node.output(0), largest)


def _widen_single_channels(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Compute convolutions of one channel to one as of one to two, where OpenVINO reads memory of others (2026.4).

    These are those with windows in nothing but padding, and those of three dimensions with dilations.
    """
    for node in model.get_ordered_ops():
        weights = node.get_input_partial_shape(1) if node.get_type_name() == "Convolution" else None
        if weights is None or weights.is_dynamic or list(weights)[:2] != [1, 1]:
            continue
        attributes = node.get_attributes()
        begins, ends, strides, gaps = (
            list(map(int, attributes[name])) for name in ("pads_begin", "pads_end", "strides", "dilations")
        )
        kernel = [int(size.get_length()) for size in list(weights)[2:]]
        widths = [(size - 1) * gap + 1 for size, gap in zip(kernel, gaps, strict=True)]
        is_outside = any(max(pads) >= width for *pads, width in zip(begins, ends, widths, strict=True))
        if not is_outside and not (len(kernel) == 3 and any(gap > 1 for gap in gaps)):
            continue
        given = node.input_value(1)
        zeros = ov.opset1.constant(np.zeros(kernel, "float32")[None, None], given.get_element_type())
        both = ov.opset1.concat([given, zeros], 0)
        product = ov.opset1.convolution(node.input_value(0), both, strides, begins, ends, gaps, attributes["auto_pad"])
        first = ov.opset8.slice(product, *(np.array([one]) for one in (0, 1, 1, 1))).output(0)
        _replace(node.output(0), first)


def _activate_after_pools(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Keep activations that fall anywhere behind the MaxPool that they follow.

    OpenVINO applies all that follow a convolution and a MaxPool before the MaxPool (2026.4), which gives other results
    unless they rise only. A MaxPool of single elements between the two keeps it from that.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MaxPool":
            continue
        readers = list(node.output(0).get_target_inputs())
        activations = [one.get_node() for one in readers]
        while any(one.get_type_name() in _SHAPES for one in activations):
            nested = ([one] if one.get_type_name() not in _SHAPES else _readers_of(one) for one in activations)
            activations = [reader for ones in nested for reader in ones]
        kinds = {
            one.get_type_name()
            for one in activations
            if one.get_type_name() != "Add" or any(map(_is_constant, _sources(one)))
        }
        # Exporters write x * f(x), which OpenVINO makes one activation.
        if kinds.isdisjoint(_FALLING) and (len(activations) < 2 or kinds.isdisjoint(_PARTS_OF_FALLING)):
            continue
        whole, none = ([number] * (len(node.get_output_partial_shape(0)) - 2) for number in (1, 0))
        kept = ov.opset1.max_pool(node.output(0), whole, none, none, whole).output(0)
        _replace(node.output(0), kept, readers)


def _readers_of(node: Any) -> list[Any]:  # noqa: ANN401
    return [one.get_node() for one in node.output(0).get_target_inputs()]


_SHAPES = frozenset({"Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_FALLING = frozenset({"Abs", "Gelu", "HSwish", "Mish", "PRelu", "Selu", "Sqrt", "Swish"})
_PARTS_OF_FALLING = frozenset({"Add", "Divide", "Erf", "HSigmoid", "Multiply", "Power", "Sigmoid", "SoftPlus", "Tanh"})


def _reduce_before_squeezes(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have reductions of transposed values keep dimensions, and these removed behind them.

    OpenVINO may else leave out a Transpose that moves dimensions of one element only, and their places too (2026.4).
    """
    for node in model.get_ordered_ops():
        is_reduction = node.get_type_name().startswith("Reduce") and not node.get_attributes()["keep_dims"]
        if not is_reduction or _sources(node)[0].get_type_name() != "Transpose":
            continue
        readers = list(node.output(0).get_target_inputs())
        node.set_attribute("keep_dims", True)
        node.constructor_validate_and_infer_types()
        removed = ov.opset1.squeeze(node, node.input_value(1)).output(0)
        _replace(node.output(0), removed, readers)


def _reduce_four_dimensions(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have dimensions of three-dimensional values reduced together with a fourth one, of one element.

    OpenVINO fuses what follows by channel, such as a scale, into a reduction, but takes the batches of three dimensions
    for channels (2026.4).
    """
    for node in model.get_ordered_ops():
        shape = node.get_input_partial_shape(0) if node.get_type_name().startswith("Reduce") else None
        if shape is None or shape.rank.is_dynamic or len(shape) != 3:
            continue
        axes = _sources(node)[1]
        if axes.get_type_name() == "Constant":
            listed = [int(one) % 3 for one in axes.data.flat]
        else:  # those of a global pool begin with 2; others are all dimensions
            listed = [2] if axes.get_type_name() == "Range" and _begins_with(axes, 2) else []
        if not listed:
            continue
        node.input(0).replace_source_output(ov.opset1.unsqueeze(node.input_value(0), np.array([3])).output(0))
        node.input(1).replace_source_output(ov.opset1.constant(np.array([*listed, 3])).output(0))
        if not node.get_attributes()["keep_dims"]:
            continue
        readers = list(node.output(0).get_target_inputs())
        node.constructor_validate_and_infer_types()
        reduced = ov.opset1.squeeze(node, np.array([3])).output(0)
        _replace(node.output(0), reduced, readers)


def _begins_with(numbers: Any, first: int) -> bool:  # noqa: ANN401
    start = _sources(numbers)[0]
    return bool(start.get_type_name() == "Constant" and start.data.flat[0] == first)


def _divide_exactly(model: Any) -> None:  # noqa: ANN401
    """Have floats that are rounded divided, not multiplied by inverses, which is off by a unit in the last place.

    The mark is that of OpenVINO's `disable_divide_conversion` (`transformations/rt_info/nonconvertible_divide.hpp`). An
    inverse so marked is fused wrongly into the operation before it, and a division into a reduction (2026.4).

    Quotients of integers are cut off, where OpenVINO rounds those of constants down.
    """
    rounded: set[str] = set()
    for node in reversed(model.get_ordered_ops()):
        kind, name = node.get_type_name(), node.get_friendly_name()
        readers = [one.get_node() for output in node.outputs() for one in output.get_target_inputs()]
        is_integer = kind == "Convert" and node.get_output_element_type(0).is_integral_number()
        if kind == "Divide" and not node.get_output_element_type(0).is_real():
            node.set_attribute("m_pythondiv", False)
        if (
            kind in _ROUNDS
            or is_integer
            or (kind in _SCALES and any(one.get_friendly_name() in rounded for one in readers))
        ):
            rounded.add(name)
            is_inverse = kind == "Divide" and node.input_value(0).get_node().get_type_name() == "Constant"
            is_real = kind == "Divide" and node.get_output_element_type(0).is_real()
            if is_real and not is_inverse and not _follows_reduction(node):
                node.get_rt_info()["nonconvertable_divide_0"] = True


def _stride_before_products(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have convolutions by one weight for each channel and strides read elements that are taken before them.

    OpenVINO moves such strides to operations before. It fails at those of several results, and convolutions that pad
    their image, these or others before them, read other elements then (2026.4).
    """
    products, has_parts = [], False
    for node in model.get_ordered_ops():
        has_parts = has_parts or len(node.outputs()) > 1
        if node.get_type_name() == "Convolution" and all(
            size == 1 for size in list(node.get_input_partial_shape(1))[2:]
        ):
            products.append((node, node.get_attributes()))
    is_padded = any(
        any([*one["pads_begin"], *one["pads_end"]]) or node.input_value(0).get_node().get_type_name() == "Pad"
        for node, one in products
    )
    for node, attributes in products if has_parts or is_padded else ():
        before, after, strides = (list(map(int, attributes[name])) for name in ("pads_begin", "pads_end", "strides"))
        if all(step == 1 for step in strides):
            continue
        data, rank = node.input_value(0), len(strides)
        margins = (np.array([0, 0, *margin]) for margin in (before, after))
        padded = ov.opset1.pad(data, *margins, "constant", ov.opset1.constant(0, data.get_element_type()))
        first, last = np.zeros(rank, "int64"), np.full(rank, np.iinfo("int64").max)
        taken = ov.opset8.slice(padded, first, last, np.array(strides), np.arange(2, 2 + rank))
        whole = [1] * rank
        product = ov.opset1.convolution(taken, node.input_value(1), whole, [0] * rank, [0] * rank, whole).output(0)
        _replace(node.output(0), product)


def _follows_reduction(node: Any) -> bool:  # noqa: ANN401
    """Whether an operation of one value may be fused into the reduction that makes it, also past moves of elements."""
    while not node.get_type_name().startswith("Reduce"):
        if node.get_type_name() in _MOVES:
            node = _sources(node)[0]
            continue
        given = [one for one in _sources(node) if not _is_constant(one)]
        if len(given) != 1 or node.get_type_name() in _KEEPS_OPERANDS:
            return False
        (node,) = given
    return True


def _is_constant(node: Any) -> bool:  # noqa: ANN401
    """Whether a node is a constant, or one in another type or shape."""
    while node.get_type_name() in ("Convert", "Reshape", "Unsqueeze"):
        node = _sources(node)[0]
    return bool(node.get_type_name() == "Constant")


def _sources(node: Any) -> list[Any]:  # noqa: ANN401
    return [one.get_source_output().get_node() for one in node.inputs()]


def _separate_sequences(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have recurrent networks transpose by themselves what others transpose too.

    OpenVINO shares the transposition, and removes it for one of them only (2026.4).
    """
    for node in model.get_ordered_ops():
        moves = node.input_value(0).get_node() if node.get_type_name() in _SEQUENCES else node
        if moves is node or moves.get_type_name() != "Transpose":
            continue
        source = moves.input_value(0)
        readers = [one.get_node().get_type_name() for one in source.get_target_inputs()]
        if readers.count("Transpose") > 1:
            wide = ov.opset1.unsqueeze(source, np.array([2]))
            moved = ov.opset1.transpose(wide, np.array([1, 0, 2, 3]))
            node.input(0).replace_source_output(ov.opset1.squeeze(moved, np.array([2])).output(0))


def _separate_biases(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Keep a bias of known size out of a product of open columns, with which OpenVINO does not compile it (2026.4)."""
    for node in model.get_ordered_ops():
        operands = _sources(node) if node.get_type_name() == "Add" else []
        for position, product in enumerate(operands):
            if product.get_type_name() == "Multiply":
                product = next((one for one in _sources(product) if not _is_constant(one)), product)
            shape, other = (node.get_input_partial_shape(at) for at in (position, 1 - position))
            is_open = product.get_type_name() == "MatMul" and shape.rank.is_static and _columns(shape) is None
            if is_open and (_columns(other) or 1) > 1:
                kept = np.array([*[0] * (len(shape) - 1), -1])
                same = ov.opset1.reshape(node.input_value(position), kept, special_zero=True)
                node.input(position).replace_source_output(same.output(0))


def _columns(shape: Any) -> int | None:  # noqa: ANN401
    """Return the last dimension of a shape of OpenVINO; None if it is not known."""
    return int(shape[-1].get_length()) if shape.rank.is_static and len(shape) and shape[-1].is_static else None


def _compute_constants(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Compute the operands that depend on constants only, of operations that depend on more, and of products.

    OpenVINO computes some of these at the first run, overwrites them by the result, and begins the next run with that.
    In a product of computed constants it reads transposed ones in the order that they had before (2026.4).
    """
    constant: set[str] = set()
    folded: set[str] = set()
    readers: _Readers = {}
    for node in model.get_ordered_ops():
        kind, sources = node.get_type_name(), [(one, one.get_source_output()) for one in node.inputs()]
        names = {source.get_node().get_friendly_name() for _, source in sources}
        is_constant = kind == "Constant" or (names and names <= constant and kind not in _NEVER_CONSTANT)
        if is_constant:
            constant.add(node.get_friendly_name())
            if kind == "Constant" or (names <= folded and kind in _FOLDED):
                folded.add(node.get_friendly_name())
        if kind == "MatMul" if is_constant else kind not in _KEEPS_OPERANDS:
            computed: _Readers = {} if is_constant else readers
            for one, source in sources:
                name = source.get_node().get_friendly_name()
                if name in constant - folded and source.get_element_type().bitwidth >= 8:
                    computed.setdefault((name, source.get_index()), []).append(one)
            if is_constant:  # at once: a later product may depend on it
                _replace_by_values(ov, computed)
    _replace_by_values(ov, readers)


def _replace_by_values(ov: Any, readers: _Readers) -> None:  # noqa: ANN401
    """Replace values that depend on constants only by what they are."""
    if not readers:
        return
    outputs = [ones[0].get_source_output() for ones in readers.values()]
    precision = {"INFERENCE_PRECISION_HINT": ov.Type.f32}
    request = core().compile_model(ov.Model(outputs, []).clone(), "CPU", precision).create_infer_request()
    run_to_end(request)
    for ones, tensor in zip(readers.values(), request.output_tensors, strict=True):
        computed = ov.op.Constant(tensor).output(0)  # from numbers in a list, OpenVINO makes no infinity of float16
        for one in ones:
            one.replace_source_output(computed)
