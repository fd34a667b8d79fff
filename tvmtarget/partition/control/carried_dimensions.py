"""Dimensions of loop-carried values that a model states, and that an iteration changes.

PyTorch states the shapes of the first iteration for the parameters of a body: of a loop that appends to a sequence,
`[b, 1]`, where the body makes `[b, 2]`. ONNX (Operators.md, Loop) lets shapes change between iterations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Any

from tvmtarget.ir.control_flow import body_arguments
from tvmtarget.ir.dim_expressions import symbols_of
from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.inference import infer_call
from tvmtarget.ir.names import Names
from tvmtarget.ir.types import Dim, TensorType, Type, rank_of

__all__ = ["changed_carried_types", "with_open_carried_dimensions"]


def with_open_carried_dimensions(function: Function, carried: Mapping[str, Type] = MappingProxyType({})) -> Function:
    """Give dimensions that iterations change symbols of their own.

    Args:
        function: the function.
        carried: types of parameters of bodies that are known to be changed, by name.

    Returns:
        The function, in which the dimensions of all that depends on the changed values are not known; the function
        itself if no iteration changes a stated dimension.
    """
    if function.calls is function.body:
        return function
    return _Opening(function, dict(carried)).function(function, {})


def changed_carried_types(function: Function) -> dict[str, Type]:
    """Return the types of loop-carried parameters whose stated dimensions iterations change.

    Args:
        function: the function.

    Returns:
        Types with symbols in place of these dimensions, by name of the parameter.
    """
    if function.calls is function.body:
        return {}
    opening = _Opening(function, {})
    opening.function(function, {})
    return opening.carried


class _Opening:
    def __init__(self, function: Function, carried: dict[str, Type]) -> None:
        self.carried = carried
        self._names = Names(symbol for type_ in _types(function) for symbol in _symbols(type_))
        self._stale: set[str] = set()  # values whose dimensions are not known any more
        self._varying: set[str] = set()  # parameters that do not have the rank of the first value in all iterations
        self._opsets = function.opsets
        self._values: dict[str, Any] = {}  # of constants

    def function(self, function: Function, outer: Mapping[str, Type]) -> Function:
        """Open the loops of a body; `outer` are the types of the values around it."""
        types, body, is_changed = {**outer, **function.types}, [], False
        self._values |= {one.name: one.data for one in function.constants}
        for call in function.body:
            new = self._opened(call, types) if call.regions else self._inferred(call, types)
            is_stale = [not call.regions and not self._stale.isdisjoint(call.inputs)] * len(call.outputs)
            for _, region in new.regions:
                results = region.results[1:] if call.op == "onnx.Loop" else region.results  # behind the condition
                is_stale = [one or name in self._stale for one, name in zip(is_stale, results, strict=False)]
            if any(is_stale):
                pairs = list(zip(new.outputs, is_stale, strict=True))
                new = replace(new, outputs=tuple(_without_dims(one) if stale else one for one, stale in pairs))
                self._stale.update(output.name for output, stale in pairs if stale)
            types |= {output.name: output.type for output in new.outputs}
            is_changed |= new is not call
            body.append(new)
        return function.replace(body=tuple(body)) if is_changed else function

    def _opened(self, call: Call, types: Mapping[str, Type]) -> Call:
        """Open a loop, whose states have the ranks of their first values if an iteration keeps these."""
        assumed = self._with_ranks_of_first_values(call, types)
        if assumed is not call:
            carried, stale = dict(self.carried), set(self._stale)
            opened = self._with_open_states(assumed, types)
            changed = _changed_ranks(opened)
            if not changed:
                return opened
            # They are not assumed again, so that nested loops are not tried ever more often.
            self._varying.update(changed)
            self.carried, self._stale = carried, stale
            return self._opened(call, types)
        return self._with_open_states(call, types)

    def _with_open_states(self, call: Call, types: Mapping[str, Type]) -> Call:
        regions = list(call.regions)
        for argument in body_arguments(call):
            label, region = regions[0]
            param, after = region.params[argument.param], region.types.get(region.results[argument.result])
            type_ = self._open(param, (types.get(call.inputs[argument.operand]), after), region, types)
            if type_ != param.type:
                self.carried[param.name] = type_
                self._stale |= {param.name, call.outputs[argument.output].name}
                outputs = list(call.outputs)
                outputs[argument.output] = _without_dims(outputs[argument.output])
                params = tuple(replace(one, type=type_) if one is param else one for one in region.params)
                call, regions[0] = replace(call, outputs=tuple(outputs)), (label, region.replace(params=params))
        regions = [(label, self.function(region, types)) for label, region in regions]
        is_same = all(new is old for (_, new), (_, old) in zip(regions, call.regions, strict=True))
        call = call if is_same else replace(call, regions=tuple(regions))
        for argument in body_arguments(call):
            (_, region), output = regions[0], call.outputs[argument.output]
            ends = region.params[argument.param].type, region.types.get(region.results[argument.result])
            type_ = self._last(output, (types.get(call.inputs[argument.operand]), *ends))
            if type_ is not output.type:
                outputs = list(call.outputs)
                outputs[argument.output] = replace(output, type=type_)
                call = replace(call, outputs=tuple(outputs))
        return call

    def _with_ranks_of_first_values(self, call: Call, types: Mapping[str, Type]) -> Call:
        if call.op != "onnx.Loop":
            return call
        ((label, region),) = call.regions
        params = list(region.params)
        for argument in body_arguments(call):
            param, first = params[argument.param], types.get(call.inputs[argument.operand])
            is_open = rank_of(param.type) is None and param.name not in self._varying
            if is_open and isinstance(first, TensorType) and first.shape is not None:
                symbols = (
                    self._names.fresh(re.sub(r"\W", "_", f"{param.name}_{at}")) for at in range(len(first.shape))
                )
                params[argument.param] = replace(param, type=TensorType(first.dtype, tuple(symbols)))
        if params == list(region.params):
            return call
        return replace(call, regions=((label, region.replace(params=tuple(params))),))

    def _inferred(self, call: Call, types: Mapping[str, Type]) -> Call:
        """Return an operation with results of known rank, where that follows from last values of states."""
        if all(rank_of(one.type) is not None for one in call.outputs if one.name):
            return call
        found = infer_call(call, types, self._values, self._opsets)
        pairs = [(one, found.get(one.name)) for one in call.outputs]
        return replace(
            call,
            outputs=tuple(
                replace(one, type=type_) if rank_of(one.type) is None and rank_of(type_) is not None else one
                for one, type_ in pairs
            ),
        )

    def _last(self, output: Value, ends: Iterable[Type]) -> Type:
        """Return the type of the last value of a state: where its shape is not stated, the rank of all others."""
        if not output.name or (isinstance(output.type, TensorType) and output.type.shape is not None):
            return output.type
        shapes, dtypes = [], set()
        for end in ends:
            if not isinstance(end, TensorType) or end.shape is None:
                return output.type
            shapes.append(end.shape)
            dtypes.add(end.dtype)
        if len({len(shape) for shape in shapes}) > 1 or len(dtypes) > 1:
            return output.type
        dims = (
            sizes[0]
            if sizes[0] is not None and len(set(sizes)) == 1
            else self._names.fresh(re.sub(r"\W", "_", f"{output.name}_{at}"))
            for at, sizes in enumerate(zip(*shapes, strict=True))
        )
        return TensorType(dtypes.pop(), tuple(dims))

    def _open(self, param: Value, ends: Iterable[Type], region: Function, types: Mapping[str, Type]) -> Type:
        """Return the type of a carried value without dimensions that are others before or behind an iteration."""

        def is_other(stated: Dim, found: Dim) -> bool:
            if isinstance(stated, str) and isinstance(found, str) and stated != found and stated in symbols_of(found):
                # A symbol that other values share is the same in all iterations.
                others = chain((one.type for one in region.params if one is not param), types.values())
                return any(stated in _symbols(type_) for type_ in others)
            return isinstance(stated, int) and isinstance(found, int) and stated != found

        if param.name in self.carried:
            return self.carried[param.name]
        type_ = param.type
        for other in ends:
            if not isinstance(type_, TensorType) or type_.shape is None:
                return type_
            if not isinstance(other, TensorType) or other.shape is None:
                continue
            if len(type_.shape) != len(other.shape):
                return replace(type_, shape=None)
            pairs = enumerate(zip(type_.shape, other.shape, strict=True))
            dims = (
                self._names.fresh(re.sub(r"\W", "_", f"{param.name}_{at}")) if is_other(stated, found) else stated
                for at, (stated, found) in pairs
            )
            type_ = replace(type_, shape=tuple(dims))
        return type_


def _changed_ranks(call: Call) -> list[str]:
    """List the parameters of a loop whose ranks are not those of the values after an iteration."""
    (_, region) = call.regions[0]
    pairs = [(region.params[one.param], region.types.get(region.results[one.result])) for one in body_arguments(call)]
    return [
        param.name
        for param, after in pairs
        if rank_of(param.type) is not None and rank_of(param.type) != rank_of(after)
    ]


def _without_dims(value: Value) -> Value:
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        return value
    return replace(value, type=replace(value.type, shape=(None,) * len(value.type.shape)))


def _types(function: Function) -> Iterable[Type]:
    yield from function.types.values()
    for call in function.body:
        for _, region in call.regions:
            yield from _types(region)


def _symbols(type_: Type) -> Iterable[str]:
    for dim in type_.shape or () if isinstance(type_, TensorType) else ():
        if isinstance(dim, str):
            yield from symbols_of(dim)
