"""Fold operations whose results are known before the program runs: operations on constants, and on sizes.

Sizes are propagated as ONNX's data propagation does: `Shape` of a value of known dimensions is a constant, and of one
with symbolic dimensions a vector of numbers and expressions of symbols, of which `Gather`, `Slice`, `Concat` and
arithmetic may keep only the numbers. Exporters compute the operands of `Reshape` and `Expand` this way; the types of
what these return, and of what follows, get these expressions as dimensions. An `If` whose condition is known is
replaced by the operations of the branch that runs. The bodies of loops get the sizes that follow from the first
iteration by induction. On request, a `Scan` of independent iterations is replaced by operations on all slices, and an
operation that ONNX defines by a function by the operations of that.
"""

from __future__ import annotations

from collections import ChainMap, Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import ceil, isfinite, nan
from typing import Any, ClassVar, TypeAlias

import numpy as np
import onnx

from tvmtarget.ir.control_flow import BATCHED_SCAN, body_arguments
from tvmtarget.ir.dim_expressions import (
    add_dims,
    divide_dims,
    least_dim,
    min_dims,
    multiply_dims,
    product_of_dims,
    subtract_dims,
    symbols_of,
)
from tvmtarget.ir.function import Call, Constant, Function, Value, all_names, calls_in, kind_of_op
from tvmtarget.ir.independent_scans import operations_on_slices
from tvmtarget.ir.inference import infer_call
from tvmtarget.ir.inline import rename_values
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.names import Names
from tvmtarget.ir.onnx.definitions import definition
from tvmtarget.ir.onnx.graph import write_call
from tvmtarget.ir.onnx.tensors import constant_of, dense_constant_of, read_tensor, write_tensor
from tvmtarget.ir.onnx.types import write_type
from tvmtarget.ir.symbolic_shapes import BROADCASTING, ShapeOperands, symbolic_shape
from tvmtarget.ir.types import Dim, TensorType, Type, dtype_of, rank_of, type_of_array
from tvmtarget.untrusted import limit

__all__ = ["fold_constants", "folded_ops"]

_Array: TypeAlias = "np.ndarray[Any, Any]"

_MOST_SIZES = 64  # elements of a vector of sizes
_MOST_PRODUCTS = 1 << 28  # multiplications of one matrix product


def _kinds(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Operators whose results ONNX's reference evaluator computes exactly as ONNX defines them, or to the last digits of
# the element type. Weights that are quantized to integers stay so, and what draws random numbers stays.
_MOVES = _kinds(
    "Compress Concat ConstantOfShape Expand Flatten Gather GatherND Identity NonZero Pad Reshape ScatterElements "
    "ScatterND Slice Split Squeeze Tile Transpose Trilu Unsqueeze Where"
)
_COMPUTES = _kinds(
    "Abs Add And BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Clip Cos Div Equal Erf Exp "
    "Floor Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Log Max MelWeightMatrix Min Mod Mul Neg Not Or Pow "
    "Range Reciprocal ReduceMax ReduceMin Relu Round Sigmoid Sign Sin Sqrt Sub Tanh Xor"
)
# Sums, which the reference evaluator accumulates in the element type.
_SUMS = _kinds("BatchNormalization CumSum MatMul ReduceMean ReduceProd ReduceSum")
# Orders of integers: that of NaN is not defined, and the evaluator ignores that a Unique shall not sort.
_ORDERS = _kinds("TopK Unique")
_NUMBERS = frozenset(
    {"bool", "float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
)
# Floats that few code generators know, as what constants are stored in; in float32, these are exact.
_STORED = frozenset({"bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"})
_MOST_ROUNDS = 64  # of folding bodies again, as assumed sizes do not hold
_FIRST_OPSET = 7  # before it, operands are broadcast by an attribute
_SIZES_AS_OPERANDS = 13  # from it on, sizes and axes are operands


def fold_constants(
    module: IRModule,
    keep: Callable[[Call], bool] = lambda _: False,
    *,
    defined: Collection[str] = (),
    slices_scans: bool = False,
) -> IRModule:
    """Replace operations whose results are known before the program runs by constants.

    Operations with a constraint stay, and those that compute a result of their function. So do operations that would
    make the constants of a function larger by more than the limit `folded-bytes`.

    Args:
        module: the program; functions that are not of ONNX stay as they are.
        keep: whether an operation stays, with what it computes.
        defined: names of operations to replace by the operations that define them in ONNX, where there are some.
        slices_scans: replace each Scan of independent iterations by operations on all slices, whose values then exist
            for all iterations at a time.

    Returns:
        The program with fewer operations; the same one if there is nothing to fold. Types that follow from the folded
        values are filled in.
    """
    functions = tuple(_folded(function, keep, defined, slices_scans) for function in module)
    is_same = all(new is old for new, old in zip(functions, module.functions, strict=True))
    return module if is_same else module.replace(functions=functions)


def folded_ops(before: IRModule, after: IRModule) -> tuple[str, ...]:
    """Return the operations that were folded.

    Args:
        before: the program.
        after: what `fold_constants` returned for it.

    Returns:
        Names of the operations in order.
    """
    if before is after:
        return ()
    left = {call.source for function in after for call in calls_in(function)}
    return tuple(
        dict.fromkeys(call.source for function in before for call in calls_in(function) if call.source not in left)
    )


def _folded(function: Function, keep: Callable[[Call], bool], defined: Collection[str], slices_scans: bool) -> Function:
    if function.code is not None:
        return function
    folding = _Folding(function, keep, defined, slices_scans)
    is_replaced = bool(defined) or (slices_scans and "onnx.Scan" in function.ops)
    if not is_replaced and not _has_candidates(function) and not folding.has_open_types(function):
        return function
    return folding.function(function, _Scope(ChainMap(), ChainMap(), ChainMap(), set()))


def _has_candidates(function: Function, outer: frozenset[str] = frozenset()) -> bool:
    """Return whether there is an operation to begin with, which most programs lack."""
    constants = outer | function.constant_names | {""}
    return (
        any(kind_of_op(op) in ("Constant", "Shape", "Size") for op in function.ops)
        or any(_is_foldable(call) for call in function.body if call.inputs and constants.issuperset(call.inputs))
        or _has_empty_parts(function)
        or any(
            (call.op == "onnx.If" and constants.issuperset(call.inputs))
            or any(_has_candidates(region, constants) or _has_open_params(region) for _, region in call.regions)
            for call in function.body
            if call.regions
        )
    )


def _has_open_params(function: Function) -> bool:
    """Return whether sizes of parameters may follow from those of the first iteration."""
    types = (one.type for one in function.params)
    return any(
        one is None or (isinstance(one, TensorType) and (one.shape is None or None in one.shape)) for one in types
    )


def _has_empty_parts(function: Function) -> bool:
    """Return whether there may be a Split or Concat of values of which some have no elements."""
    if function.ops.isdisjoint(("onnx.Split", "onnx.Concat")):
        return False
    types = chain(
        (one.type for one in function.params),
        (one.type for one in function.constants),
        (output.type for call in function.body for output in call.outputs),
    )
    return any(isinstance(one, TensorType) and one.shape is not None and 0 in one.shape for one in types)


def _is_foldable(call: Call) -> bool:
    is_known = any(call.kind in kinds for kinds in (_MOVES, _COMPUTES, _SUMS, _ORDERS, _kinds("DequantizeLinear")))
    return is_known and call.op == f"onnx.{call.kind}" and not call.has_effect and not call.regions


@dataclass(frozen=True)
class _Scope:
    """What is known of the values that a function and its nested bodies may read.

    Attributes:
        values: arrays by name.
        sizes: by name, integers of which some are not known: arrays of numbers, expressions of symbols, and None.
        types: types by name.
        changed: values of which more is known than when the program was read.
    """

    values: ChainMap[str, _Array]
    sizes: ChainMap[str, _Array]
    types: ChainMap[str, Type]
    changed: set[str]

    def nested(self, function: Function) -> _Scope:
        """Return the scope of a function in this one."""
        values = self.values.new_child({one.name: one.data for one in function.constants})
        types = self.types.new_child(dict(function.types))
        return _Scope(values, self.sizes.new_child(), types, {*self.changed})

    def tensor(self, name: str) -> TensorType | None:
        """Return the type of a tensor."""
        type_ = self.types.get(name)
        return type_ if isinstance(type_, TensorType) else None

    def sizes_of(self, name: str) -> _Array | None:
        """Return a scalar or vector of integers as Python objects."""
        if name in self.sizes:
            return self.sizes[name]
        value = self.values.get(name)
        if value is None or value.dtype.kind not in "iub" or value.ndim > 1 or value.size > _MOST_SIZES:
            return None
        return value.astype(object)


class _Folding:
    """Folds one function and its nested bodies."""

    def __init__(
        self, function: Function, keep: Callable[[Call], bool], defined: Collection[str], slices_scans: bool
    ) -> None:
        self._keep = keep
        self._defined = defined
        self._slices_scans = slices_scans
        self._opsets = function.opsets
        self._version = dict(function.opsets).get("", 0)
        self._function = function
        self._bytes_left = limit("folded-bytes")
        dims = {
            dim
            for param in function.params
            if isinstance(param.type, TensorType)
            for dim in param.type.shape or ()
            if isinstance(dim, str)
        }
        self._symbols = frozenset(dims).union(*map(symbols_of, dims))
        # Expressions are spelled as the parameters spell them.
        self._spelled: dict[Dim, Dim] = {add_dims(dim, 0): dim for dim in sorted(dims)}
        self._unclamped: dict[str, Dim] = {}
        self._retyped: dict[str, Type] = {}
        self._rounds_left = _MOST_ROUNDS

    @cached_property
    def _names(self) -> Names:
        return Names(all_names(self._function))

    @cached_property
    def _definitions(self) -> Counter[str]:
        return Counter(all_names(self._function))

    def has_open_types(self, function: Function) -> bool:
        """Return whether results have dimensions that are no numbers or expressions of symbols of parameters.

        Args:
            function: the function that is folded.

        Returns:
            False if all dimensions are settled so.
        """
        # Values share types: each is looked at once.
        types = {id(output.type): output.type for call in function.body for output in call.outputs if output.name}
        return not all(map(self._is_settled, types.values()))

    def function(self, function: Function, outer: _Scope) -> Function:
        """Fold a function.

        Args:
            function: the function or nested body.
            outer: what is known of the enclosing functions.

        Returns:
            The changed function.
        """
        scope = outer.nested(function)
        constants, results = list(function.constants), frozenset(function.results)
        body: list[Call] = []
        before: list[Call] = []  # all that is read, with operations that others replace
        waiting = deque(function.body)
        while waiting:
            old = waiting.popleft()
            before.append(old)
            branch = self._inlined(old, scope)
            if branch is not None:
                waiting.extendleft(reversed(branch.body))
                constants += branch.constants
                scope.values.update({one.name: one.data for one in branch.constants})
                scope.types.update(branch.types)
                scope.changed.update(output.name for output in old.outputs)
                continue
            call = self._with_regions(old, scope) if old.regions else old
            is_kept = call.constraint is not None or self._keep(call)
            # What a function returns is computed by an operation, which has a site.
            is_result = any(output.name in results for output in call.outputs)
            is_open = not all(self._is_settled(output.type) for output in call.outputs if output.name)
            if is_result or is_open or not scope.changed.isdisjoint(call.inputs) or _is_constant(call, scope):
                self._fit_slices(call, scope)
                call = self._with_types(call, scope)
            found = None if is_kept else self._found(call, scope)
            if found is None or is_result:
                call, shape = self._with_sizes(call, scope)
                body.append(call)
                constants += [] if shape is None else [shape]
            for output, value in zip(call.outputs, found or (), strict=False):
                if output.name:
                    scope.values[output.name] = value
                    scope.types[output.name] = type_of_array(value, output.type)
                    scope.changed.add(output.name)
                    if not is_result:
                        constants.append(Constant(output.name, type_of_array(value, output.type), value))
        body = [self._with_retyped(call) for call in body] if self._retyped else body
        folded = function.replace(body=tuple(body), constants=tuple(constants))
        return _without_unused(folded, function.replace(body=tuple(before)), self._keep)

    def _with_regions(self, call: Call, scope: _Scope) -> Call:
        """Fold the regions of an operation.

        Where a body states no shapes of what a loop carries, those of the first iteration are assumed. Dimensions for
        which the folded body returns others are left open, and it is folded again: what is left holds by induction.
        """
        types = self._first_types(call, scope)
        while True:
            saved = self._bytes_left, self._retyped.copy(), self._unclamped.copy()
            regions = tuple((label, self.function(_with_param_types(one, types), scope)) for label, one in call.regions)
            left = self._kept_types(call, regions, types, scope)
            if left == types:
                break
            self._bytes_left, self._retyped, self._unclamped = saved
            self._rounds_left -= 1
            types = left if self._rounds_left > 0 else {}
        outputs = list(call.outputs)
        for at, type_ in self._types_after(call, regions, types, scope).items():
            outputs[at] = replace(outputs[at], type=self._more_static(outputs[at].type, type_))
            if outputs[at].type != call.outputs[at].type and outputs[at].name:
                scope.types[outputs[at].name] = outputs[at].type
                scope.changed.add(outputs[at].name)
        return replace(call, regions=regions, outputs=tuple(outputs))

    def _first_types(self, call: Call, scope: _Scope) -> dict[str, TensorType]:
        """Return the types in the first iteration of parameters whose sizes a body does not state, by name."""
        arguments = body_arguments(call)
        if call.op not in ("onnx.Loop", "onnx.Scan") or self._version <= BATCHED_SCAN:
            return {}
        ((_, body),) = call.regions
        pairs = [(body.params[one.param], scope.tensor(call.inputs[one.operand])) for one in arguments]
        if call.op == "onnx.Loop":
            pairs += zip(body.params, (TensorType("int64", ()), TensorType("bool", ())), strict=False)
        else:
            axes = call.attr("scan_input_axes")
            for at, name in enumerate(call.inputs[len(arguments) :]):
                axis, type_ = axes[at] if isinstance(axes, tuple) and at < len(axes) else 0, scope.tensor(name)
                shape = [] if type_ is None or type_.shape is None else list(type_.shape)
                if type_ is not None and isinstance(axis, int) and -len(shape) <= axis < len(shape):
                    del shape[axis]
                    pairs.append((body.params[len(arguments) + at], replace(type_, shape=tuple(shape))))
        found: dict[str, TensorType] = {}
        for param, first in pairs:
            known = self._more_static(param.type, first)
            if isinstance(known, TensorType) and known != param.type:
                found[param.name] = known
        return found

    def _kept_types(
        self, call: Call, regions: Sequence[tuple[str, Function]], types: dict[str, TensorType], scope: _Scope
    ) -> dict[str, TensorType]:
        """Return the types of parameters without the dimensions that the body changes."""
        left, ((_, body), *_), ((_, stated), *_) = types.copy(), regions, call.regions
        for argument in body_arguments(call) if types else ():
            param, result = stated.params[argument.param], body.results[argument.result]
            after = body.types.get(result) or scope.types.get(result)
            if param.name not in types:
                continue
            kept = _common(types[param.name], after)
            type_ = None if kept is None else self._more_static(param.type, kept)
            if isinstance(type_, TensorType) and type_ != param.type:
                left[param.name] = type_
            else:
                del left[param.name]
        return left

    def _types_after(
        self, call: Call, regions: Sequence[tuple[str, Function]], types: Mapping[str, TensorType], scope: _Scope
    ) -> dict[int, TensorType]:
        """Return the types of results that follow from those of the regions, by number."""
        if call.op not in ("onnx.If", "onnx.Loop", "onnx.Scan"):
            return {}
        first, *others = [[one.types.get(name) or scope.types.get(name) for name in one.results] for _, one in regions]
        found: dict[int, TensorType | None] = {}
        if call.op == "onnx.If":
            pairs = zip(first, *others, strict=False)
            found = {at: _common(one, *rest) for at, (one, *rest) in enumerate(pairs) if rest}
        else:
            arguments, ((_, body),) = body_arguments(call), regions
            found = {one.output: types.get(body.params[one.param].name) for one in arguments}
            if call.op == "onnx.Loop":
                stacked = zip(range(len(arguments), len(call.outputs)), first[1 + len(arguments) :], strict=False)
                found |= {
                    at: replace(one, shape=(None, *one.shape))
                    for at, one in stacked
                    if isinstance(one, TensorType) and one.shape is not None
                }
        return {at: type_ for at, type_ in found.items() if type_ is not None}

    def _taken_branch(self, call: Call, scope: _Scope) -> Function | None:
        """Return the branch of an If that runs; None if that is not known."""
        condition = scope.values.get(call.inputs[0])
        if condition is None or condition.size != 1:
            return None
        return dict(call.regions)["then_branch" if condition.item() else "else_branch"]

    def _inlined(self, call: Call, scope: _Scope) -> Function | None:
        """Return operations that compute the results of an operation in its place; None if it stays."""
        own, is_defined = self._OWN.get(call.op), call.source in self._defined
        is_sliced = self._slices_scans and call.op == "onnx.Scan"
        if own is None and not is_defined and not is_sliced:
            return None
        if call.constraint is not None or call.has_effect or self._keep(call):
            return None
        branch = None if own is None else own(self, call, scope)
        if branch is None and (is_defined or is_sliced):
            by = operations_on_slices if is_sliced else definition
            branch = by(call, scope.types, self._version, self._names.fresh)
        if branch is None:
            return None
        # Names of values are unique in the body that the branch becomes a part of.
        renamed = {name: self._names.fresh(name) for name in branch.types if self._definitions[name] > 1}
        branch = rename_values(branch, renamed) if renamed else branch
        computed = {output.name: output for one in branch.body for output in one.outputs}
        names: dict[str, str] = {}
        copies: list[Call] = []
        for output, name in zip(call.outputs, branch.results, strict=True):
            if name in computed and name not in names and output.name:
                names[name] = output.name
            elif output.name:
                copies.append(Call("onnx.Identity", (names.get(name, name),), (output,), source=call.source))
        branch = rename_values(branch, names)
        stated = {output.name: output.type for output in call.outputs}
        body = tuple(
            replace(one, outputs=tuple(self._stated(value, stated) for value in one.outputs)) for one in branch.body
        )
        return branch.replace(body=(*body, *copies), results=tuple(name for name in stated if name))

    def _full_part(self, call: Call, scope: _Scope) -> Function | None:
        """Return operations for a Split of which one part is all, and the others have no elements; None for others."""
        stated = scope.values.get(call.inputs[1]) if len(call.inputs) > 1 else None
        data = scope.tensor(call.inputs[0])
        axis = self._axis(call, data)
        if stated is None or axis is None or data is None or data.shape is None or self._version < _SIZES_AS_OPERANDS:
            return None
        sizes = stated.tolist()
        if data.shape[axis] != sum(sizes):  # where only a run can tell whether they fit, the Split checks it
            return None
        if len(sizes) != len(call.outputs) or len(sizes) - sizes.count(0) != 1 or len(sizes) == 1:
            return None
        zero, along = (self._names.fresh(f"{call.outputs[0].name}_{name}") for name in ("zero", "axis"))
        numbers = {zero: np.zeros(1, "int64"), along: np.array([axis])}
        body = [
            Call(
                "onnx.Identity" if size else "onnx.Slice",
                call.inputs[:1] if size else (call.inputs[0], zero, zero, along),
                (output,),
                source=call.source if size else f"{call.source}/{at}",
            )
            for at, (output, size) in enumerate(zip(call.outputs, sizes, strict=True))
            if output.name
        ]
        constants = tuple(Constant(name, type_of_array(array), array) for name, array in numbers.items())
        return Function("split", (), tuple(body), tuple(output.name for output in call.outputs), constants)

    def _without_empty(self, call: Call, scope: _Scope) -> Function | None:
        """Return a Concat without operands of size 0, one of which is all if there are no others; None if all stay."""
        tensors = [scope.tensor(name) for name in call.inputs]
        axis = self._axis(call, tensors[0])
        if axis is None:
            return None
        sizes = [None if one is None or one.shape is None else one.shape[axis] for one in tensors]
        left = tuple(name for name, size in zip(call.inputs, sizes, strict=True) if size != 0)
        # Engines refuse constants without elements sooner than computed values.
        left = left or tuple(sorted(call.inputs, key=lambda name: name in scope.values)[:1])
        if len(left) == len(call.inputs):
            return None
        one = replace(call, inputs=left) if len(left) > 1 else replace(call, op="onnx.Identity", inputs=left, attrs=())
        return Function("concat", (), (one,), (call.outputs[0].name,))

    def _cast(self, call: Call, scope: _Scope) -> Function | None:
        """Return a Cast for a CastLike of a known value, as only the type of the other operand counts."""
        like = scope.tensor(call.inputs[1])
        if like is None or call.inputs[0] not in scope.values:
            return None
        attrs = (*call.attrs, ("to", write_type(like, what="").tensor_type.elem_type))
        one = replace(call, op="onnx.Cast", inputs=call.inputs[:1], attrs=attrs)
        return Function("cast", (), (one,), (call.outputs[0].name,))

    def _axis(self, call: Call, data: TensorType | None) -> int | None:
        """Return the dimension that an operation is along; None if that is not known."""
        axis, shape = call.attr("axis") or 0, None if data is None else data.shape
        return axis % len(shape) if isinstance(axis, int) and shape else None

    # What replaces an operation that no code generator has to run.
    _OWN: ClassVar[Mapping[str, Callable[..., Function | None]]] = {
        "onnx.CastLike": _cast,
        "onnx.Concat": _without_empty,
        "onnx.If": _taken_branch,
        "onnx.Split": _full_part,
    }

    def _stated(self, value: Value, stated: Mapping[str, Type]) -> Value:
        """Return a value with what an If states of its type, where that is more."""
        return replace(value, type=self._more_static(value.type, stated.get(value.name)))

    def _with_types(self, call: Call, scope: _Scope) -> Call:
        """Return an operation with the types of its results that follow from what is known of its operands."""
        if all(isinstance(one.type, TensorType) and one.type.nbytes is not None for one in call.outputs):
            return call
        inferred = infer_call(call, scope.types, scope.values, self._opsets)
        if self._symbols and call.outputs:
            inferred = self._with_expressions(call, scope, inferred)
        outputs = tuple(replace(one, type=self._more_static(one.type, inferred.get(one.name))) for one in call.outputs)
        for old, new in zip(call.outputs, outputs, strict=True):
            if new.type != old.type and new.name:
                scope.types[new.name] = new.type
                scope.changed.add(new.name)
        return replace(call, outputs=outputs)

    def _with_expressions(self, call: Call, scope: _Scope, inferred: dict[str, Type]) -> dict[str, Type]:
        """Return inferred types with the dimensions of the first result that are expressions of others."""

        def sizes(index: int) -> Sequence[object] | None:
            name = call.inputs[index] if index < len(call.inputs) else ""
            found = scope.sizes_of(name) if name else None
            return None if found is None else found.reshape(-1).tolist()

        def tensor(index: int) -> TensorType | None:
            return scope.tensor(call.inputs[index]) if index < len(call.inputs) else None

        shape = symbolic_shape(call, ShapeOperands(tensor, sizes, self._unclamped))
        output = call.outputs[0]
        known = inferred.get(output.name) or output.type
        if shape is None or not isinstance(known, TensorType):
            return inferred
        shape = tuple(self._spelled.get(dim, dim) for dim in shape)
        computed = TensorType(known.dtype, shape)
        return {**inferred, output.name: self._more_static(inferred.get(output.name) or known, computed)}

    def _is_settled(self, type_: Type) -> bool:
        """Return whether a type is known, and all its dimensions are numbers or expressions of those of parameters."""
        if not isinstance(type_, TensorType):
            return type_ is not None
        return type_.shape is not None and all(isinstance(dim, int) or self._is_derived(dim) for dim in type_.shape)

    def _is_derived(self, dim: Dim) -> bool:
        return isinstance(dim, str) and (dim in self._symbols or symbols_of(dim) <= self._symbols)

    def _fit_slices(self, call: Call, scope: _Scope) -> None:
        """Type slices by their bounds where they are broadcast with values of that size.

        A table of positions is sliced to the length of a sequence: the sum with the sequence fits only if the slice is
        not cut short by the end of the table.
        """
        if not self._unclamped or call.op not in _BROADCASTING:
            return
        tensors = {name: type_ for name in call.inputs if (type_ := scope.tensor(name)) is not None and type_.shape}
        dims = {(-at, dim) for type_ in tensors.values() for at, dim in enumerate(reversed(type_.shape or ()))}
        wanted = scope.sizes.get(call.inputs[1]) if call.op == "onnx.Expand" and len(call.inputs) == 2 else None
        if wanted is not None and wanted.ndim == 1:
            dims |= {(-at, dim) for at, dim in enumerate(reversed(wanted.tolist()))}
        for name, type_ in tensors.items():
            shape = type_.shape or ()
            fitted = tuple(
                self._unclamped[dim]
                if isinstance(dim, str)
                and dim in self._unclamped
                and (at - len(shape) + 1, self._unclamped[dim]) in dims
                else dim
                for at, dim in enumerate(shape)
            )
            if fitted != shape and name not in scope.values:
                self._retyped[name] = scope.types[name] = TensorType(type_.dtype, fitted)

    def _with_retyped(self, call: Call) -> Call:
        outputs = tuple(replace(one, type=self._retyped.get(one.name, one.type)) for one in call.outputs)
        return replace(call, outputs=outputs)

    def _found(self, call: Call, scope: _Scope) -> tuple[_Array, ...] | None:
        """Return the results of an operation if they are known; record sizes of which a part is known."""
        if call.op == "onnx.Constant":  # `IRModule.from_onnx` leaves sparse ones only
            return self._constant(call)
        if _is_constant(call, scope):
            return self._evaluated(call, scope)
        if len(call.outputs) != 1 or self._version < _FIRST_OPSET:
            return None
        sizes = _sizes(call, scope)
        if sizes is None or sizes.size > _MOST_SIZES:
            return None
        if all(isinstance(item, int) for item in sizes.flat):
            type_ = call.outputs[0].type
            dtype = type_.dtype if isinstance(type_, TensorType) else "int64"
            return (sizes.astype(dtype),) if dtype in _NUMBERS else None
        scope.sizes[call.outputs[0].name] = sizes
        scope.changed.add(call.outputs[0].name)
        return None

    def _constant(self, call: Call) -> tuple[_Array, ...] | None:
        """Return the value of a Constant; None if it is too large, or is not of the type that the result states."""
        node, (output,) = write_call(call, write_tensor), call.outputs
        tensor, dense = constant_of(node), dense_constant_of(node, self._bytes_left)
        if tensor is not None:
            constant = read_tensor(tensor, None, f"op {call.source!r}")
        elif dense is not None:
            self._bytes_left -= dense.nbytes
            constant = Constant(output.name, TensorType(dtype_of(dense.dtype), dense.shape), dense)
        else:
            return None
        agrees = not isinstance(output.type, TensorType) or constant.type.agrees_with(output.type)
        return (constant.data,) if agrees else None

    def _evaluated(self, call: Call, scope: _Scope) -> tuple[_Array, ...] | None:
        """Return the results of an operation on constants; None if they would be too large, or are not defined."""
        inputs = {name: scope.values[name] for name in call.inputs if name}
        if call.kind == "Range":
            # Exporters, and ONNX's own function of AffineGrid, pass vectors of one element.
            inputs = {name: value.reshape(()) if value.size == 1 else value for name, value in inputs.items()}
        given = sum(value.nbytes for value in inputs.values())
        dtypes = {dtype_of(value.dtype) for value in inputs.values()}
        stated = [output.type for output in call.outputs if output.name]
        if call.kind == "Identity":
            return (*inputs.values(),)
        if not _is_exact(call, dtypes, stated) or self._version < _FIRST_OPSET:
            return None
        # The number of results of these depends on values, and is bounded by that of their operands.
        is_bounded = call.kind in ("Compress", "NonZero")
        sizes = [type_.nbytes if isinstance(type_, TensorType) else None for type_ in stated]
        if call.kind == "Range" and len(call.inputs) == 3 and all(value.shape == () for value in inputs.values()):
            sizes = [_range_bytes(*(inputs[name].item() for name in call.inputs))]
        if call.kind == "Unique":  # of each element a value, and three numbers
            sizes = [given + 24 * sum(value.size for value in inputs.values())]
        grown = sum(size or 0 for size in sizes) - given
        if (None in sizes and not is_bounded and "string" not in dtypes) or max(grown, 0) > self._bytes_left:
            return None
        if call.kind == "MatMul" and _products(call, scope) > _MOST_PRODUCTS:
            return None
        values = self._run(call, inputs)
        if values is None or len(values) != len(call.outputs):
            return None
        for output, value in zip(call.outputs, values, strict=True):
            found = TensorType(dtype_of(value.dtype), value.shape)
            if output.name and isinstance(output.type, TensorType) and not found.agrees_with(output.type):
                return None
        self._bytes_left -= max(0, sum(value.nbytes for value in values) - given)
        return values

    def _run(self, call: Call, inputs: dict[str, _Array]) -> tuple[_Array, ...] | None:
        """Run an operation by ONNX's reference evaluator; None if it fails, or ONNX leaves the result undefined."""
        node = write_call(call, write_tensor)
        graph = onnx.GraphProto(node=[node])
        graph.input.extend(onnx.ValueInfoProto(name=name) for name in inputs)
        graph.output.extend(onnx.ValueInfoProto(name=output.name) for output in call.outputs if output.name)
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in self._opsets]
        model = onnx.ModelProto(ir_version=10, graph=graph, opset_import=imports)
        is_integer = any(isinstance(one.type, TensorType) and "float" not in one.type.dtype for one in call.outputs)
        # Division of integers by zero, and floats that no integer represents, have no result in ONNX.
        mode: Any = "raise" if is_integer else "ignore"
        from onnx.reference import ReferenceEvaluator  # most programs have nothing to fold

        try:
            with np.errstate(divide=mode, invalid=mode, over="ignore", under="ignore"):
                found = iter(ReferenceEvaluator(model).run(None, inputs))
        # The evaluator passes on any error of numpy; where the operation runs it may fail or not.
        except Exception:
            return None
        values = tuple(np.asarray(next(found)) if output.name else np.empty(0) for output in call.outputs)
        return tuple(map(_frozen, values))

    def _with_sizes(self, call: Call, scope: _Scope) -> tuple[Call, Constant | None]:
        """Return a Reshape or Expand without the operand that computes its sizes, where these are known well enough.

        A Reshape gets a constant: 0 for a dimension that it leaves as it is, and -1 for another one that is not known.
        An Expand to the dimensions of its operand is an Identity.
        """
        if call.op not in ("onnx.Reshape", "onnx.Expand") or len(call.inputs) != 2:
            return call, None
        data, sizes = scope.tensor(call.inputs[0]), scope.sizes.get(call.inputs[1])
        if data is None or data.shape is None or sizes is None or sizes.ndim != 1:
            return call, None
        wanted = sizes.tolist()
        if call.kind == "Expand":
            fitting = list(zip(reversed(wanted), reversed(data.shape), strict=False))
            is_same = len(wanted) <= len(data.shape) and all(_is_equal(size, dim) or size == 1 for size, dim in fitting)
            return (replace(call, op="onnx.Identity", inputs=call.inputs[:1]), None) if is_same else (call, None)
        if call.attr("allowzero"):
            return call, None
        call = self._with_shape(call, wanted, data.shape, scope)
        fitting = list(zip(wanted, [*data.shape, *[None] * len(wanted)], strict=False))
        shape = [size if isinstance(size, int) else 0 if _is_equal(size, dim) else -1 for size, dim in fitting]
        unknown = [size for size, dim in fitting if not isinstance(size, int) and not _is_equal(size, dim)]
        copied = [size for size, dim in fitting if not isinstance(size, int) and _is_equal(size, dim)]
        # A dimension beside one that may be 0 cannot be inferred.
        if shape.count(-1) > 1 or (unknown and (copied or 0 in data.shape)):
            return call, None
        name = self._names.fresh(f"{call.outputs[0].name}_shape")
        constant = Constant(name, TensorType("int64", (len(shape),)), np.array(shape, "int64"))
        return replace(call, inputs=(call.inputs[0], name)), constant

    def _with_shape(self, call: Call, wanted: Sequence[Dim], shape: tuple[Dim, ...], scope: _Scope) -> Call:
        """Return a Reshape with the type of its result that follows from the sizes."""
        dims = (None if dim == -1 else (*shape, *wanted)[at] if dim == 0 else dim for at, dim in enumerate(wanted))
        output, data = call.outputs[0], scope.tensor(call.inputs[0])
        type_ = output.type if data is None else self._more_static(output.type, TensorType(data.dtype, tuple(dims)))
        if type_ != output.type:
            scope.types[output.name] = type_
            scope.changed.add(output.name)
        return replace(call, outputs=(replace(output, type=type_),))

    def _more_static(self, stated: Type, inferred: Type) -> Type:
        """Return a type with the dimensions that are known of either; symbols of parameters replace others."""
        if stated is None:
            return inferred
        if not isinstance(stated, TensorType) or not isinstance(inferred, TensorType):
            return stated
        if not stated.agrees_with(inferred) or stated.shape is None or inferred.shape is None:
            return inferred if stated.shape is None and stated.agrees_with(inferred) else stated
        return replace(stated, shape=tuple(map(self._better, stated.shape, inferred.shape)))

    def _better(self, old: Dim, new: Dim) -> Dim:
        is_named = self._is_derived(new) and isinstance(old, str) and not self._is_derived(old)
        return new if isinstance(new, int) or old is None or is_named else old


def _with_param_types(function: Function, types: Mapping[str, TensorType]) -> Function:
    if not types:
        return function
    return function.replace(params=tuple(replace(one, type=types.get(one.name, one.type)) for one in function.params))


def _common(one: Type, other: Type) -> TensorType | None:
    """Return a type with the dimensions that two types agree in; None if their ranks are not known to be the same."""
    if not isinstance(one, TensorType) or not isinstance(other, TensorType) or one.dtype != other.dtype:
        return None
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return None
    dims = zip(one.shape, other.shape, strict=True)
    return replace(one, shape=tuple(first if _is_equal(first, second) else None for first, second in dims))


def _without_unused(function: Function, before: Function, keep: Callable[[Call], bool]) -> Function:
    """Remove operations and constants that were used before the function was folded, and are not any more."""
    used_before = {name for call in before.body for name in call.uses()}.union(before.results)
    used = set(function.results)
    body: list[Call] = []
    for call in reversed(function.body):
        names = {output.name for output in call.outputs if output.name}
        is_needed = call.has_effect or call.constraint is not None or keep(call) or not names.isdisjoint(used)
        if is_needed or names.isdisjoint(used_before):
            body.append(call)
            used.update(call.uses())
    own = before.constant_names
    constants = tuple(
        one for one in function.constants if one.name in used or (one.name in own and one.name not in used_before)
    )
    return function.replace(body=tuple(reversed(body)), constants=constants)


def _is_constant(call: Call, scope: _Scope) -> bool:
    names = [name for name in call.inputs if name]
    return bool(names) and _is_foldable(call) and all(name in scope.values for name in names)


def _is_exact(call: Call, dtypes: set[str], stated: Sequence[Type]) -> bool:
    """Return whether the reference evaluator computes an operation on some element types as ONNX defines it."""
    results = {type_.dtype for type_ in stated if isinstance(type_, TensorType)}
    if call.kind == "DequantizeLinear" or (call.kind == "Cast" and dtypes <= _STORED):
        return not dtypes.isdisjoint(_STORED) and dtypes <= _STORED | {"float32"} and results == {"float32"}
    dtypes = dtypes | results
    if call.kind in _MOVES:
        return dtypes <= _NUMBERS | _STORED | {"string"}
    if call.kind in _ORDERS:
        return call.attr("sorted") != 0 and dtypes <= {one for one in _NUMBERS if "int" in one}
    return dtypes <= _NUMBERS and not (call.kind in _SUMS and "float16" in dtypes)


def _range_bytes(start: float, stop: float, step: float) -> int | None:
    """Return an upper bound of the bytes of a Range; None if it is not defined."""
    length = (stop - start) / step if step else nan
    return 8 * max(0, ceil(length)) if isfinite(length) else None


def _products(call: Call, scope: _Scope) -> int:
    first, second = (scope.values[name] for name in call.inputs)
    return int(first.size) * int(second.shape[-1] if second.ndim > 1 else 1) * max(1, int(np.prod(second.shape[:-2])))


def _frozen(value: _Array) -> _Array:
    """Return an array that owns its elements, so that results which are views keep no larger arrays."""
    owned = np.array(value) if value.base is not None else value
    owned.flags.writeable = False
    return owned


# Sizes of which a part is known


def _sizes(call: Call, scope: _Scope) -> _Array | None:
    """Return the sizes that an operation computes; None if it computes none, or nothing is known of them."""
    if call.op in ("onnx.Shape", "onnx.Size"):
        type_ = scope.tensor(call.inputs[0])
        return None if type_ is None or type_.shape is None else _sizes_of_shape(call, type_.shape)
    compute = _SIZES.get(call.op)
    operands: list[Any] = [scope.sizes_of(name) if name else None for name in call.inputs]
    if compute is None or any(one is None for one, name in zip(operands, call.inputs, strict=True) if name):
        return None
    if call.op in ("onnx.Squeeze", "onnx.Unsqueeze", "onnx.Reshape"):
        result = call.outputs[0].type
        shape = result.shape if isinstance(result, TensorType) else None
        if shape is None or len(shape) > 1 or operands[0] is None or operands[0].size != (shape or (1,))[0]:
            return None
        reshaped: _Array = operands[0].reshape(shape)
        return reshaped
    try:
        return compute(call, operands)
    except (IndexError, TypeError, ValueError):
        return None


def _sizes_of_shape(call: Call, shape: tuple[Dim, ...]) -> _Array | None:
    if call.kind == "Size":
        return _scalar(product_of_dims(shape))
    start, end = call.attr("start") or 0, call.attr("end")
    return _vector(shape[slice(start, end if isinstance(end, int) else None)]) if isinstance(start, int) else None


def _vector(items: Sequence[object]) -> _Array:
    found = np.empty(len(items), object)
    found[:] = items
    return found


def _gather(call: Call, operands: Sequence[Any]) -> _Array | None:
    data, indices = operands
    if data.ndim != 1 or not all(isinstance(one, int) for one in indices.flat):
        return None
    found: _Array = np.asarray(data[indices.astype("int64")], object)
    return found if found.ndim == indices.ndim else _scalar(data[int(indices)])


def _scalar(item: object) -> _Array:
    found = np.empty((), object)
    found[()] = item
    return found


def _slice(call: Call, operands: Sequence[Any]) -> _Array | None:
    data, starts, ends, *others = operands
    axes, steps = [*others, None, None][:2]
    bounds = [starts, ends, *(one for one in (axes, steps) if one is not None)]
    if data.ndim != 1 or any(one.size != 1 or not isinstance(one.item(), int) for one in bounds):
        return None
    start, end, step = starts.item(), ends.item(), 1 if steps is None else steps.item()
    # ONNX clamps the end of a backward slice to -1, which means the last element in Python.
    if step < 1 or (axes is not None and axes.item() not in (0, -1)):
        return None
    found: _Array = data[start:end:step]
    return found


def _concat(_call: Call, operands: Sequence[Any]) -> _Array | None:
    return np.concatenate(operands) if all(one.ndim == 1 for one in operands) else None


def _same(call: Call, operands: Sequence[Any]) -> _Array | None:
    type_ = call.outputs[0].type
    # The sizes that an int32 does not hold are no sizes.
    is_size = isinstance(type_, TensorType) and type_.dtype in ("int32", "int64")
    found: _Array | None = operands[0] if is_size else None
    return found


def _elementwise(compute: Callable[..., object]) -> Callable[[Call, Sequence[Any]], _Array | None]:
    def apply(_call: Call, operands: Sequence[Any]) -> _Array:
        found = np.frompyfunc(compute, len(operands), 1)(*operands)
        return found if isinstance(found, np.ndarray) else _scalar(found)

    return apply


def _is_equal(first: object, second: object) -> bool:
    """Return whether two sizes are known to be equal; those that are not known have no name."""
    return first is not None and type(first) is type(second) and first == second


def _less(first: object, second: object) -> bool | None:
    """Return whether a size is less than another, None if that is not known; no symbol is negative."""
    if not isinstance(first, int | str) or not isinstance(second, int | str):
        return None
    more, less = (least_dim(subtract_dims(a, b), 0) for a, b in ((second, first), (first, second)))
    return True if more is not None and more > 0 else False if less is not None and less >= 0 else None


def _equal(first: object, second: object) -> bool | None:
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    if _less(first, second) or _less(second, first):
        return False
    return True if _is_equal(first, second) else None


def _number(
    compute: Callable[[int, int], int | None], of_dims: Callable[[Dim, Dim], Dim] | None = None
) -> Callable[..., object]:
    """Return a function of numbers and expressions."""

    def apply(first: object, second: object) -> object:
        if isinstance(first, int) and isinstance(second, int):
            return compute(first, second)
        if of_dims is None or not isinstance(first, int | str) or not isinstance(second, int | str):
            return None
        return of_dims(first, second)

    return apply


def _quotient_of_dims(first: Dim, second: Dim) -> Dim:
    """Divide what is not negative, so that rounding down is rounding towards zero."""
    least = least_dim(first, 0)
    return divide_dims(first, second) if least is not None and least >= 0 else None


def _max_of_dims(first: Dim, second: Dim) -> Dim:
    least = min_dims(first, second)
    # The other one, if it is known which is less.
    return second if _is_equal(least, first) else first if _is_equal(least, second) else None


def _product(call: Call, operands: Sequence[Any]) -> _Array | None:
    """Return the product of all elements of a vector."""
    rank = rank_of(call.outputs[0].type)
    if operands[0].ndim != 1 or rank not in (0, 1) or not all(isinstance(one, int | str) for one in operands[0]):
        return None
    found = _scalar(product_of_dims(operands[0].tolist()))
    return found.reshape((1,) * (rank or 0))


def _quotient(first: int, second: int) -> int | None:
    """Divide as ONNX does, towards zero."""
    if second == 0:
        return None
    return abs(first) // abs(second) * (1 if (first < 0) == (second < 0) else -1)


_SIZES: dict[str, Callable[[Call, Sequence[Any]], _Array | None]] = {
    "onnx.Add": _elementwise(_number(lambda a, b: a + b, add_dims)),
    "onnx.Cast": _same,
    "onnx.Concat": _concat,
    "onnx.Div": _elementwise(_number(_quotient, _quotient_of_dims)),
    "onnx.Equal": _elementwise(_equal),
    "onnx.Gather": _gather,
    "onnx.Greater": _elementwise(lambda a, b: _less(b, a)),
    "onnx.Identity": _same,
    "onnx.Less": _elementwise(_less),
    "onnx.Max": _elementwise(_number(max, _max_of_dims)),
    "onnx.Min": _elementwise(_number(min, min_dims)),
    "onnx.Mul": _elementwise(_number(lambda a, b: a * b, multiply_dims)),
    "onnx.Neg": _elementwise(lambda a: subtract_dims(0, a) if isinstance(a, int | str) else None),
    "onnx.ReduceProd": _product,
    "onnx.Reshape": _same,
    "onnx.Slice": _slice,
    "onnx.Squeeze": _same,
    "onnx.Sub": _elementwise(_number(lambda a, b: a - b, subtract_dims)),
    "onnx.Unsqueeze": _same,
    "onnx.Where": _elementwise(lambda condition, a, b: None if condition is None else a if condition else b),
}
_BROADCASTING = frozenset(
    f"onnx.{kind}" for kind in {*BROADCASTING, "Expand", "com.microsoft::QLinearAdd", "com.microsoft::QLinearMul"}
)
