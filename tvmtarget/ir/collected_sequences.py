"""Write sequences that a Loop appends to as its scan outputs, where they become one tensor behind the loop.

TorchScript writes a list to which a loop appends, and a `stack` or `cat` of it, as SequenceInsert in the body and a
ConcatFromSequence. Code generators of tensors have no sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from tvmtarget.ir.control_flow import BodyArgument, body_arguments
from tvmtarget.ir.def_use import readers_of
from tvmtarget.ir.function import Call, Constant, Function, Value, all_names
from tvmtarget.ir.names import Names
from tvmtarget.ir.types import Dim, TensorType

__all__ = ["stack_collected_sequences"]


def stack_collected_sequences(function: Function, keep: Callable[[Call], bool]) -> Function:
    """Write sequences that loops collect as stacked tensors.

    Loops in nested bodies stay.

    Args:
        function: the function.
        keep: whether an operation stays.

    Returns:
        The changed function; the same one if it has no such loop.
    """
    if not {"onnx.Loop", "onnx.ConcatFromSequence"} <= function.ops:
        return function
    return _Stacking(function, keep).function()


class _Stacking:
    def __init__(self, function: Function, keep: Callable[[Call], bool]) -> None:
        self._function = function
        self._readers = readers_of(function)
        self._keep = keep
        self._names = Names(all_names(function))
        self._written: dict[int, tuple[Call, ...]] = {}  # instead of the operations at these positions
        self._constants = list(function.constants)

    def function(self) -> Function:
        """Return the changed function."""
        for index, call in enumerate(self._function.body):
            # From the last one on, so that the positions of those before stay.
            for argument in reversed(body_arguments(call) if call.op == "onnx.Loop" else ()):
                self._stack(index, argument)
        if not self._written:
            return self._function
        parts = (self._written.get(index, (call,)) for index, call in enumerate(self._function.body))
        body = tuple(call for part in parts for call in part)
        return self._function.replace(body=body, constants=tuple(self._constants))

    def _stack(self, index: int, argument: BodyArgument) -> None:
        """Write one value that a loop carries as a scan output, if it is a sequence that is collected."""
        function, (call,) = self._function, self._written.get(index, (self._function.body[index],))
        ((label, inner),) = call.regions
        if len(call.outputs) + 1 != len(inner.results):
            return
        operand, output = call.inputs[argument.operand], call.outputs[argument.output].name
        param, result = inner.params[argument.param].name, inner.results[argument.result]
        made, inserted = function.producers.get(operand), inner.producers.get(result)
        readers = self._readers.get(output, ())
        if made is None or inserted is None or not readers or output in function.results:
            return
        insertion, joins = inner.body[inserted], [function.body[at] for at in readers]
        if function.body[made].op != "onnx.SequenceEmpty" or insertion.op != "onnx.SequenceInsert":
            return
        inner_readers = readers_of(inner)
        is_appended = insertion.inputs[0] == param and not any(insertion.inputs[2:])
        is_private = inner_readers.get(param) == (inserted,) and result not in inner_readers
        is_result_once = inner.results.count(result) == 1 and param not in inner.results
        if not (is_appended and is_private and is_result_once) or not all(map(self._may_change, (insertion, *joins))):
            return
        element = inner.types.get(insertion.inputs[1]) or function.types.get(insertion.inputs[1])
        if not isinstance(element, TensorType) or element.shape is None:
            return
        stacked = self._names.fresh(f"{output}_stacked")
        written = [self._joined(join, stacked, element.shape) for join in joins]
        if not all(written):
            return
        copy = Value(self._names.fresh(f"{insertion.inputs[1]}_collected"), element)
        collected = Call("onnx.Identity", (insertion.inputs[1],), (copy,), source=insertion.source)
        region = inner.replace(
            params=_without(inner.params, argument.param),
            body=tuple(collected if at == inserted else one for at, one in enumerate(inner.body)),
            results=(*_without(inner.results, argument.result), copy.name),
        )
        sizes = (None, *(size if isinstance(size, int) else None for size in element.shape))
        changed = replace(
            call,
            inputs=_without(call.inputs, argument.operand),
            outputs=(*_without(call.outputs, argument.output), Value(stacked, replace(element, shape=sizes))),
            regions=((label, region),),
        )
        self._written |= {index: (changed,), **dict(zip(readers, written, strict=True))}
        if self._readers[operand] == (index,) and operand not in function.results:
            self._written[made] = ()

    def _may_change(self, call: Call) -> bool:
        is_known = call.op in ("onnx.SequenceInsert", "onnx.ConcatFromSequence")
        return is_known and call.constraint is None and not call.has_effect and not self._keep(call)

    def _joined(self, join: Call, stacked: str, shape: Sequence[Dim]) -> tuple[Call, ...]:
        """Return operations that compute a ConcatFromSequence of a stack; () if elements may differ in size."""
        is_new, axis = join.attr("new_axis") == 1, join.attr("axis")
        rank = len(shape) + is_new
        if not isinstance(axis, int) or not -rank <= axis < rank:
            return ()
        axis %= rank
        order = (*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1))
        (output,) = join.outputs
        if is_new:
            return (Call("onnx.Transpose", (stacked,), (output,), (("perm", order),), source=join.source),)
        known = [size for size in shape[axis:] if isinstance(size, int) and size]
        if axis + len(known) < len(shape):
            return ()
        moved = Value(self._names.fresh(f"{output.name}_moved"), None)
        sizes = self._names.fresh(f"{output.name}_sizes")
        target = np.array([*[0] * axis, -1, *known[1:]], "int64")
        self._constants.append(Constant(sizes, TensorType("int64", target.shape), target))
        return (
            Call("onnx.Transpose", (stacked,), (moved,), (("perm", order),), source=join.source),
            Call("onnx.Reshape", (moved.name, sizes), (output,), source=join.source),
        )


_Item = TypeVar("_Item")


def _without(items: Sequence[_Item], index: int) -> tuple[_Item, ...]:
    return (*items[:index], *items[index + 1 :])
