"""What the code generators that this library drives take (entry points of `tvmtarget.strategies`)."""

from __future__ import annotations

from typing import ClassVar

from tvmtarget.partition.strategy import Op, Reject, Strategy, reject

__all__ = ["CUDA", "LLVM", "NUMPY", "ONNXRUNTIME", "C"]

# Operators with a converter in apache-tvm 0.27, python/tvm/relax/frontend/onnx/onnx_frontend.py.
_TVM_OPS = frozenset(
    ["Abs", "Acos", "Acosh", "Add", "And", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh", "AveragePool", "BatchNormalization", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Conv", "ConvTranspose", "Cos", "Cosh", "CumSum", "DepthToSpace", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LRN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "MatMul", "Max", "MaxPool", "Mean", "Min", "Mish", "Mul", "Neg", "Not", "Or", "PRelu", "Pad", "Pow", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Selu", "Shape", "Sigmoid", "Sign", "Sin", "Sinh", "Slice", "Softmax", "Softplus", "Softsign", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tan", "Tanh", "ThresholdedRelu", "Tile", "Transpose", "Unsqueeze", "Where", "Xor"]
)


class LLVM(Strategy):
    """Apache TVM for CPUs: ONNX through Relax."""

    ops = _TVM_OPS
    dtypes = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}) | frozenset(
        {"float16", "float32", "float64"}
    )
    _shape_operands: ClassVar[dict[str, tuple[int, ...]]] = {
        "Reshape": (1,),
        "Expand": (1,),
        "Tile": (1,),
        "Pad": (1,),
        "ConstantOfShape": (0,),
        "Slice": (1, 2, 3, 4),
        "Squeeze": (1,),
        "Unsqueeze": (1,),
        "Split": (1,),
        "ReduceSum": (1,),
    }

    def check_op(self, op: Op) -> Reject | None:
        """Refuse shapes, axes and pads that are computed at run time."""
        for index in self._shape_operands.get(op.kind, ()):
            if index < len(op.call.inputs) and not op.is_constant(index):
                return reject("NEED_CONST", f"operand {index} of {op.kind} is computed at run time", hint="fold it")
        return None


class CUDA(LLVM):
    """Apache TVM for NVIDIA GPUs: the same operators as for CPUs."""


class C(LLVM):
    """Generated C: the same operators as for CPUs."""


class NUMPY(Strategy):
    """ONNX's reference evaluator: everything that ONNX defines."""

    takes_control_flow = True
    takes_non_tensors = True

    def check_op(self, op: Op) -> Reject | None:
        """Refuse operators of domains that are not ONNX's own."""
        return _only_onnx(op)


class ONNXRUNTIME(Strategy):
    """ONNX Runtime on the CPU: everything that ONNX defines, and its own domain."""

    takes_control_flow = True
    takes_non_tensors = True

    def check_op(self, op: Op) -> Reject | None:
        """Refuse operators of domains that nobody registers with it."""
        return None if op.kind.startswith("com.microsoft::") else _only_onnx(op)


def _only_onnx(op: Op) -> Reject | None:
    domain, separator, _ = op.kind.rpartition("::")
    if separator and domain not in ("ai.onnx.ml", "ai.onnx.preview.training"):
        return reject("NO_RULE", f"it does not know the domain {domain!r}")
    return None
