"""Operator support of the code generators that come with this library (entry points of `tvmtarget.strategies`)."""

from __future__ import annotations

from typing import ClassVar

from tvmtarget.ir.function import Attribute, domain_of_op
from tvmtarget.ir.types import TensorType
from tvmtarget.support import onnxruntime_rules, openvino_rules, tvm_rules
from tvmtarget.support.classical_rules import check_tree
from tvmtarget.support.four_bits import FOUR_BITS, check_four_bits
from tvmtarget.support.op import STATIC_INPUTS
from tvmtarget.support.relax_rules import check_relax, is_relax
from tvmtarget.support.strategy import Op, Reject, Rule, Strategy, reject
from tvmtarget.support.tvm_gpu_checks import check_gpu

__all__ = ["CUDA", "LLVM", "NUMPY", "ONNXRUNTIME", "OPENVINO", "C"]


class LLVM(Strategy):
    """Apache TVM for CPUs: ONNX through Relax, Relax, and TIR.

    An operation is rejected if it would fail late, compute a wrong result silently, or kill the process. Indices,
    divisors and sizes that only a run knows are checked then.
    """

    ops = frozenset(tvm_rules.RULES) | frozenset(tvm_rules.EXPANDED) | frozenset(tvm_rules.UNSUPPORTED)
    unsupported = tvm_rules.UNSUPPORTED
    rules: ClassVar[dict[str, Rule]] = tvm_rules.RULES | tvm_rules.EXPANDED
    dtypes = tvm_rules.DTYPES | FOUR_BITS
    opsets = tvm_rules.OPSETS
    supports_unknown_ranks = False

    def check(self, op: Op) -> Reject | None:
        """Check operations of Relax by their own table, those of ONNX by this one.

        Args:
            op: the operation.

        Returns:
            None if it is supported, else why not.
        """
        return check_relax(op) if is_relax(op) else super().check(op)

    def check_op(self, op: Op) -> Reject | None:
        """Reject empty operands of non-empty results, and values of 4 bits that are no weights.

        Args:
            op: an operation that the tables support.

        Returns:
            None if it is supported, else why not.
        """
        return tvm_rules.check_empty_operands(op) or check_four_bits(op)

    def with_executor(self, executor: str) -> Strategy:
        """Return the strategy of object code for executor `aot`: it has no runtime of TVM.

        Args:
            executor: the kind of the executor.

        Returns:
            The strategy.
        """
        if executor != "aot":
            return self
        found = ObjectCode()
        found.target = self.target
        return found


class CUDA(LLVM):
    """Apache TVM for NVIDIA GPUs: the operators of its importer, except what its GPU schedules do not support."""

    ops = frozenset(tvm_rules.RULES) | frozenset(tvm_rules.UNSUPPORTED)
    rules = tvm_rules.RULES

    def check(self, op: Op) -> Reject | None:
        """Check an operation for a CPU, then for a GPU.

        Args:
            op: the operation.

        Returns:
            None if it is supported, else why not.
        """
        return super().check(op) or check_gpu(op)


class ObjectCode(LLVM):
    """Apache TVM for programs without its runtime: operators on values of static shape, which call no library."""

    unsupported: ClassVar[dict[str, str]] = {
        **LLVM.unsupported,
        **dict.fromkeys(("Compress", "NonZero", "TopK", "Unique"), "its code calls functions of TVM's runtime"),
        "NonMaxSuppression": "its result has as many rows as boxes are chosen, and memory is planned ahead of time",
    }

    def with_executor(self, executor: str) -> Strategy:
        """Return this strategy: it holds for all executors.

        Args:
            executor: the kind of the executor.

        Returns:
            The strategy.
        """
        return self

    def check_op(self, op: Op) -> Reject | None:
        """Reject values whose shape is not static, as their memory is planned ahead of time.

        Args:
            op: an operation that the tables support.

        Returns:
            None if it is supported, else why not.
        """
        named = zip(
            (*op.call.inputs, *(output.name for output in op.call.outputs)), (*op.inputs, *op.outputs), strict=True
        )
        for name, type_ in named:
            if name and isinstance(type_, TensorType) and type_.nbytes is None:
                return reject(
                    "SHAPE_DYNAMIC",
                    f"the shape of {name!r} is not static, and memory is planned ahead of time",
                    hint=STATIC_INPUTS,
                )
        computed = tvm_rules.computed_shape(op)
        if computed:
            return reject(
                "NEED_CONST",
                f"{computed!r} is computed at run time, and memory is planned ahead of time",
                hint="make it an initializer",
            )
        sizes = op.constant(1) if op.kind == "Reshape" and op.attr("allowzero") else None
        if sizes is not None and 0 in sizes:  # TVM's importer computes such a shape at run time
            return reject("RULE", f"it does not reshape empty tensors by {op.call.inputs[1]!r}", hint="omit allowzero")
        return super().check_op(op)


class C(ObjectCode):
    """Generated C: the operators of object code without the types that C99 has not."""

    dtypes = LLVM.dtypes - {"float16", "bfloat16"}


# A rule compares whole values of an attribute, so lists of zeros are written out, for up to 16 scanned values.
_FORWARDS: dict[str, tuple[Attribute, ...]] = {
    f"scan_{side}_{what}": tuple((0,) * count for count in range(1, 17))
    for side in ("input", "output")
    for what in ("axes", "directions")
}


# Attributes of recurrent networks that the reference evaluator ignores.
_USUAL = {"activation_alpha": (), "activation_beta": (), "clip": (), "input_forget": (0,)}


def _usual_network(op: Op) -> Reject | None:
    """Reject lengths of sequences and activations, which the reference evaluator ignores."""
    if op.operand(4):
        return reject("RULE", f"it ignores the lengths of sequences of {op.kind}", hint="omit operand 4")
    usual = tvm_rules.ACTIVATIONS[op.kind]
    if op.attr("activations") in (None, (), usual, usual * 2):
        return None
    return reject("ATTR", f"it computes {op.kind} with the usual activations only, {', '.join(usual)}")


def _own_values(op: Op) -> Reject | None:
    """Reject bodies that read values from outside, which the reference evaluator does not pass to them (onnx 1.23)."""
    read = [name for _, body in op.call.regions for name in body.captures()]
    if not read:
        return None
    return reject("RULE", f"the body of its {op.kind} cannot read {read[0]!r} from outside", hint="make it an operand")


def _no_flattening(op: Op) -> Reject | None:
    """Reject a Hardmax over several dimensions, as it is before version 13: ONNX does not convert it."""
    tensor, axis = op.tensor(0), op.attr("axis")
    axis = 1 if axis is None else axis
    rank = 0 if tensor is None else len(tensor.shape or ())
    if op.opset >= 13 or axis in (-1, rank - 1):
        return None
    return reject("ATTR", f"it computes Hardmax along one axis only, not from axis {axis!r} on", hint="flatten before")


def _no_old_broadcast(op: Op) -> Reject | None:
    """Reject operands of symbolic sizes that broadcast as before version 7: ONNX converts them by their sizes."""
    if op.opset >= 7 or all(isinstance(type_, TensorType) and type_.nbytes is not None for type_ in op.inputs):
        return None
    message = f"it computes {op.kind} of operator set {op.opset} for static shapes only"
    return reject("SHAPE_DYNAMIC", message, hint=STATIC_INPUTS)


def _no_old_coordinates(op: Op) -> Reject | None:
    """Reject a way of Resize that ONNX has no longer since version 13."""
    mode = op.attr("coordinate_transformation_mode")
    if mode != tvm_rules.OF_TENSORFLOW:
        return None
    message = f"it does not support Resize with coordinate_transformation_mode={mode!r}"
    return reject("ATTR", message, hint="let another leaf resize")


def _no_cubic_border(op: Op) -> Reject | None:
    """Reject cubic samples near a border: the reference evaluator moves the place, not the elements around it."""
    if op.attr("mode") not in ("bicubic", "cubic") or op.attr("padding_mode") != "border":
        return None
    return reject("ATTR", "it samples by cubic interpolation with padding_mode='border' otherwise than other engines")


def _check_classes(op: Op) -> Reject | None:
    """Reject classifiers whose labels or scores the reference evaluator computes otherwise than ONNX Runtime."""
    labels = next((len(v) for n, v in op.call.attrs if n.startswith("classlabels_") and isinstance(v, tuple) and v), 0)
    post_transform = op.attr("post_transform") or "NONE"
    is_usual = post_transform != "PROBIT"
    if op.kind.endswith("::LinearClassifier"):
        scores = op.attr("intercepts")
        one_score = not isinstance(scores, tuple) or len(scores) < 2
        is_usual = post_transform == "LOGISTIC" if one_score else is_usual
    elif op.kind.endswith("::SVMClassifier"):
        is_usual = bool(op.attr("vectors_per_class")) and (labels > 2 or post_transform in ("NONE", "LOGISTIC"))
    elif labels == 2:
        ids, weights, base = (op.attr(name) for name in ("class_ids", "class_weights", "base_values"))
        is_plain = isinstance(ids, tuple) and not any(ids) and isinstance(weights, tuple)
        is_probability = isinstance(weights, tuple) and all(isinstance(one, float) and one >= 0 for one in weights)
        wanted = "NONE" if is_probability else "LOGISTIC"
        is_usual = is_plain and post_transform == wanted and (not isinstance(base, tuple) or len(base) < 2)
    if is_usual:
        return None
    return reject("ATTR", f"it makes other labels or scores of this {op.kind} than ONNX Runtime")


def _check_matrix(op: Op) -> Reject | None:
    tensor = op.tensor(0)
    if tensor is None or tensor.shape is None or len(tensor.shape) == 2:
        return None
    return reject("RANK", f"it supports {op.kind} of two dimensions, and {op.operand(0)!r} is {tensor}")


def _check_intercepts(op: Op) -> Reject | None:
    if op.attr("intercepts"):
        return None
    return reject("ATTR", f"it adds NaN for intercepts of {op.kind} that are absent", hint="write zeros")


# Operators of ai.onnx.ml that the reference evaluator computes in another type, or with another meaning.
_NO_TRANSFORM: dict[str, tuple[Attribute, ...]] = {"post_transform": ("NONE",)}
_CLASSICAL: dict[str, Rule] = {
    f"ai.onnx.ml::{kind}": rule
    for kind, rule in {
        "LinearClassifier": Rule(checks=(_check_classes,)),
        "LinearRegressor": Rule(attrs=_NO_TRANSFORM, checks=(_check_intercepts,)),
        "Normalizer": Rule(dtypes=frozenset({"float32"}), attrs={"norm": ("L1", "L2")}, checks=(_check_matrix,)),
        "OneHotEncoder": Rule(dtypes=frozenset({"int64", "string"})),
        "SVMClassifier": Rule(attrs={"prob_a": ()}, checks=(_check_classes,)),
        "SVMRegressor": Rule(attrs=_NO_TRANSFORM),
        "Scaler": Rule(dtypes=frozenset({"float32"})),
        "TreeEnsemble": Rule(attrs={"post_transform": (0,)}, checks=(check_tree,)),
        "TreeEnsembleClassifier": Rule(checks=(_check_classes,)),
        "TreeEnsembleRegressor": Rule(dtypes=frozenset({"float32"}), attrs=_NO_TRANSFORM),
    }.items()
}


_NUMBERS = tvm_rules.DTYPES - {"bool"}

# Operators with the attribute `broadcast` before version 7.
_BROADCAST_BEFORE_7 = ("Add", "And", "Div", "Equal", "Gemm", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")


class NUMPY(Strategy):
    """ONNX's reference evaluator: all of ONNX, except what it computes otherwise.

    Found by running ONNX's node tests with onnx 1.23: Scan has the meaning that it has since version 9, forwards and
    along first axes only, and images are decoded only where Pillow is installed, which this library does not require.
    """

    unsupported: ClassVar[dict[str, str]] = {
        "ImageDecoder": "it decodes images by Pillow only",
        **{
            kind: f"it has no kernel for {kind}"
            for kind in ("MaxRoiPool", "Multinomial", "SimplifiedLayerNormalization")
        },
        **{
            f"{domain}::{kind}": f"it has no kernel for {kind}"
            for domain, kind in (
                ("ai.onnx.ml", "CastMap"),
                ("ai.onnx.ml", "CategoryMapper"),
                ("ai.onnx.preview.training", "Gradient"),
            )
        },
    }
    rules: ClassVar[dict[str, Rule]] = {
        **{kind: Rule(attrs=_USUAL, checks=(_usual_network,)) for kind in ("GRU", "LSTM", "RNN")},
        **dict.fromkeys(_BROADCAST_BEFORE_7, Rule(checks=(_no_old_broadcast,))),
        "GridSample": Rule(checks=(_no_cubic_border,)),
        "Hardmax": Rule(checks=(_no_flattening,)),
        **dict.fromkeys(("Resize", "Upsample"), Rule(dtypes=_NUMBERS, checks=(_no_old_coordinates,))),
        "Scan": Rule(opsets=range(9, 1000), attrs=_FORWARDS),
        "SequenceMap": Rule(checks=(_own_values,)),
        **_CLASSICAL,
    }

    supports_control_flow = True
    supports_non_tensors = True

    def check_op(self, op: Op) -> Reject | None:
        """Reject operators of unknown domains, and absent optional values.

        Args:
            op: an operation that the tables support.

        Returns:
            None if it is supported, else why not.
        """
        if op.kind == "Optional" and not op.inputs:
            return reject("RULE", "it cannot make an optional value that is absent")
        return _only_domains(op, "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


class ONNXRUNTIME(Strategy):
    """ONNX Runtime on the CPU: all of ONNX on the types of its Python interface and kernels.

    Found by running ONNX's node tests with onnxruntime 1.32, which supports operator sets up to 28.
    """

    unsupported = onnxruntime_rules.UNSUPPORTED
    rules = onnxruntime_rules.RULES
    dtypes = tvm_rules.DTYPES - {"bfloat16"} | {"string", *FOUR_BITS}
    opsets = range(1, 29)
    supports_control_flow = True
    supports_non_tensors = True

    def check_op(self, op: Op) -> Reject | None:
        """Reject other domains, types without a kernel, and values of 4 bits that are no weights.

        Args:
            op: an operation that the tables support.

        Returns:
            None if it is supported, else why not.
        """
        other = _only_domains(op, "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc") or check_four_bits(op)
        # Other execution providers have kernels of their own.
        provider = "cpu" if self.target is None else str(self.target["provider"]).lower()
        return other or (onnxruntime_rules.check_kernels(op) if provider.startswith("cpu") else None)


class OPENVINO(Strategy):
    """OpenVINO: operators on tensors, without control flow, 64-bit floats, ensembles of trees and texts.

    Operators that ONNX Runtime's quantization and optimisation write, and those of classical models, are written as
    ONNX's own. Two risks are accepted. int64 is computed in 32 bits, as rejecting it would reject every embedding:
    inputs and constants that exceed them are errors, sums and products that do are not noticed. On processors with
    instructions for sums of products of bytes, networks of quantized convolutions and products round halves after the
    zero point is added, so that results may be one step off.
    """

    unsupported = openvino_rules.UNSUPPORTED
    rules = openvino_rules.RULES
    dtypes = openvino_rules.DTYPES
    opsets = openvino_rules.OPSETS
    supports_unknown_ranks = False

    def check_op(self, op: Op) -> Reject | None:
        """Reject unknown operators, inexact integers, no elements, and lists of unknown length.

        Args:
            op: an operation that the tables support.

        Returns:
            None if it is supported, else why not.
        """
        other = None if op.kind in openvino_rules.RULES else _only_domains(op)
        checks = (
            *(openvino_rules.check_integers, openvino_rules.check_empty, openvino_rules.check_lists),
            check_four_bits,
        )
        return other or next((rejection for check in checks if (rejection := check(op)) is not None), None)


def _only_domains(op: Op, *domains: str) -> Reject | None:
    if is_relax(op):
        return reject("NO_RULE", f"it runs ONNX, and {op.kind} is of Relax")
    domain = domain_of_op(op.call.op)
    if domain and domain not in domains:
        return reject("NO_RULE", f"it does not know the domain {domain!r}")
    return None
