"""Write a Scan whose iterations do not depend on each other as operations on all slices at once.

Exporters of scikit-learn write distances between the rows of two matrices so. Each operation of the body gets one more
dimension, the first one, for the iterations, as `vmap` of JAX does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tvmtarget.ir.function import Attribute, Call, Constant, Function, Value
from tvmtarget.ir.types import DTYPES, Dim, TensorType, Type

__all__ = ["operations_on_slices"]

_MOST_BYTES = 256 << 20  # of the values of all iterations, as far as their dimensions are numbers


def _ops(names: str) -> frozenset[str]:
    return frozenset(f"onnx.{name}" for name in names.split())


_UNARY = _ops(
    "Abs Cast Ceil Clip Cos Elu Erf Exp Floor HardSigmoid Identity IsInf IsNaN LeakyRelu Log Neg Not Reciprocal Relu "
    "Round Selu Sigmoid Sign Sin Softplus Softsign Sqrt Tan Tanh"
)
_BROADCAST = _ops("Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Or Pow Sub Sum Where Xor")
_REDUCTIONS = _ops(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)
_FIRST_OPSET = 13  # before it, some operators treat their trailing dimensions as one


class _DependsOnOthers(Exception):  # noqa: N818 - control flow of this module
    """An iteration depends on others, or on operators that this module does not know."""


@dataclass(frozen=True)
class _Operand:
    """A value of the body outside of it.

    Attributes:
        name: its name.
        type: its type there, with the dimension of the iterations first, if it has that.
        is_sliced: whether it has that dimension.
    """

    name: str
    type: TensorType
    is_sliced: bool

    @property
    def rank(self) -> int:
        """Number of dimensions in one iteration."""
        return len(self.type.shape or ()) - self.is_sliced


def operations_on_slices(
    call: Call, types: Mapping[str, Type], opset: int, fresh: Callable[[str], str]
) -> Function | None:
    """Return operations that compute the results of a Scan.

    Args:
        call: the operation.
        types: the types of the values around it, by name.
        opset: the version of ONNX's operator set.
        fresh: makes names that no value has.

    Returns:
        A body that reads the values around it, and returns the results in order; None if iterations depend on each
        other, or the body has an operator that is not known here.
    """
    if call.op != "onnx.Scan" or opset < _FIRST_OPSET:
        return None
    try:
        return _Mapping(call, types, opset, fresh).function()
    except _DependsOnOthers:
        return None


class _Mapping:
    def __init__(self, call: Call, types: Mapping[str, Type], opset: int, fresh: Callable[[str], str]) -> None:
        self._call, self._types, self._opset, self._fresh = call, types, opset, fresh
        ((_, self._body),) = call.regions
        sliced = call.attr("num_scan_inputs")
        self._states = len(call.inputs) - (sliced if isinstance(sliced, int) else 0)
        self._calls: list[Call] = []
        self._constants = list(self._body.constants)
        self._operands: dict[str, _Operand] = {}
        self._count: Dim = None

    def function(self) -> Function:
        """Return the body."""
        body, states = self._body, self._states
        for name in ("scan_input_directions", "scan_output_directions"):
            directions = self._call.attr(name)
            if isinstance(directions, tuple) and any(directions):
                raise _DependsOnOthers
        for param, name in zip(body.params[:states], self._call.inputs[:states], strict=True):
            self._operands[param.name] = _Operand(name, _known(param.type), False)
        for at, param in enumerate(body.params[states:]):
            self._operands[param.name] = self._slices(at, param)
        for one in body.body:
            self._add(one)
        results = [self._state(at) for at in range(states)]
        results += [self._stacked(at, name) for at, name in enumerate(body.results[states:])]
        return Function(body.name, (), tuple(self._calls), tuple(results), tuple(self._constants), opsets=body.opsets)

    def _slices(self, at: int, param: Value) -> _Operand:
        """Return an input that is sliced, with the dimension of the iterations first."""
        name = self._call.inputs[self._states + at]
        type_, rank = _known(self._types.get(name)), len(_known(param.type).shape or ())
        shape = type_.shape or ()
        if len(shape) != rank + 1:
            raise _DependsOnOthers
        axis = self._axis("scan_input_axes", at, rank + 1)
        count = shape[axis]
        if isinstance(self._count, int) and isinstance(count, int) and count != self._count:
            raise _DependsOnOthers
        self._count = count if isinstance(count, int) or self._count is None else self._count
        if axis:
            order = (axis, *(one for one in range(rank + 1) if one != axis))
            type_ = TensorType(type_.dtype, tuple(shape[one] for one in order))
            name = self._append("onnx.Transpose", (name,), type_, name, perm=order)
        return _Operand(name, type_, True)

    def _axis(self, attribute: str, at: int, rank: int) -> int:
        axes = self._call.attr(attribute)
        return int(axes[at]) % rank if isinstance(axes, tuple) and axes else 0  # type: ignore[arg-type]

    def _operand(self, name: str) -> _Operand:
        """Return an operand of an operation of the body; names of captured values and constants stay."""
        if name not in self._operands:
            type_ = self._body.types.get(name, self._types.get(name)) if name else TensorType("float32", ())
            self._operands[name] = _Operand(name, _known(type_), False)
        return self._operands[name]

    def _append(self, op: str, inputs: tuple[str, ...], type_: Type, like: str, **attrs: Attribute) -> str:
        name = self._fresh(like)
        self._calls.append(Call(op, inputs, (Value(name, type_),), tuple(attrs.items()), source=name))
        return name

    def _constant(self, numbers: Sequence[int], like: str) -> str:
        name = self._fresh(f"{like}_axes")
        self._constants.append(Constant(name, TensorType("int64", (len(numbers),)), np.array(numbers, "int64")))
        return name

    def _add(self, call: Call) -> None:
        """Add an operation of the body, for all iterations if it depends on them."""
        if len(call.outputs) != 1 or call.regions or call.has_effect or call.constraint is not None:
            raise _DependsOnOthers
        operands = [self._operand(name) for name in call.inputs]
        output, type_ = call.outputs[0], _known(call.outputs[0].type)
        rank, is_sliced = len(type_.shape or ()), any(one.is_sliced for one in operands)
        inputs = tuple(one.name for one in operands)
        if call.op in _UNARY and not any(one.is_sliced for one in operands[1:]):
            changed = replace(call, inputs=inputs)
        elif call.op in _BROADCAST:
            changed = replace(call, inputs=self._aligned(operands, rank))
        elif call.op in _REDUCTIONS and not any(one.is_sliced for one in operands[1:]):
            changed = self._reduction(call, operands[0]) if is_sliced else replace(call, inputs=inputs)
        elif call.op == "onnx.MatMul" and all(one.rank == 2 for one in operands):
            changed = replace(call, inputs=inputs)
        else:
            raise _DependsOnOthers
        if is_sliced:
            type_ = TensorType(type_.dtype, (self._count, *(type_.shape or ())))
            sizes = [dim for dim in type_.shape or () if isinstance(dim, int)]
            if prod(sizes) * DTYPES[type_.dtype][1] // 8 > _MOST_BYTES:
                raise _DependsOnOthers
        self._operands[output.name] = _Operand(output.name, type_, is_sliced)
        self._calls.append(replace(changed, outputs=(replace(output, type=type_),)))

    def _aligned(self, operands: Sequence[_Operand], rank: int) -> tuple[str, ...]:
        """Return operands with dimensions of 1 behind that of the iterations, so that the others stay aligned."""
        return tuple(self._expanded(one, rank) if one.is_sliced and one.rank < rank else one.name for one in operands)

    def _expanded(self, operand: _Operand, rank: int) -> str:
        count, *others = operand.type.shape or ()
        added = rank - operand.rank
        type_ = TensorType(operand.type.dtype, (count, *[1] * added, *others))
        axes = self._constant([*range(1, added + 1)], operand.name)
        return self._append("onnx.Unsqueeze", (operand.name, axes), type_, operand.name)

    def _reduction(self, call: Call, operand: _Operand) -> Call:
        """Return a reduction along the axes behind that of the iterations."""
        in_attribute = self._opset < (13 if call.kind == "ReduceSum" else 18)
        if in_attribute:
            axes = call.attr("axes")
        elif len(call.inputs) > 1 and call.inputs[1]:
            known = [one.data for one in self._body.constants if one.name == call.inputs[1]]
            if not known:
                raise _DependsOnOthers
            axes = tuple(map(int, known[0].reshape(-1)))
        else:
            axes = ()
        if not axes and call.attr("noop_with_empty_axes"):
            raise _DependsOnOthers
        listed = [int(axis) % operand.rank for axis in axes] if isinstance(axes, tuple) else []  # type: ignore[arg-type]
        moved = tuple(axis + 1 for axis in listed or range(operand.rank))
        others = tuple((name, value) for name, value in call.attrs if name != "axes")
        if in_attribute:
            return replace(call, inputs=(operand.name,), attrs=(*others, ("axes", moved)))
        return replace(call, inputs=(operand.name, self._constant(moved, call.outputs[0].name)), attrs=others)

    def _state(self, at: int) -> str:
        """Return the last value of a state, which no iteration may change."""
        name, copies = self._body.results[at], {one.outputs[0].name: one for one in self._body.body}
        while name in copies and copies[name].op == "onnx.Identity":
            name = copies[name].inputs[0]
        if name != self._body.params[at].name:
            raise _DependsOnOthers
        return self._call.inputs[at]

    def _stacked(self, at: int, name: str) -> str:
        """Return the slices of a result in one value."""
        found = self._operands.get(name)
        if found is None or not found.is_sliced:
            raise _DependsOnOthers
        axis = self._axis("scan_output_axes", at, found.rank + 1)
        if not axis:
            return found.name
        order = (*range(1, axis + 1), 0, *range(axis + 1, found.rank + 1))
        shape = found.type.shape or ()
        type_ = TensorType(found.type.dtype, tuple(shape[one] for one in order))
        return self._append("onnx.Transpose", (found.name,), type_, found.name, perm=order)


def _known(type_: Type) -> TensorType:
    """Return the type of a tensor of known rank."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        raise _DependsOnOthers
    return type_
