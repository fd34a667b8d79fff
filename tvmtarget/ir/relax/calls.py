"""Analysis of the calls in a TVM module: number of results of functions, and tuples that are only unpacked.

The IR has calls with several results where TVM has one tuple. A tuple becomes several results only if it is used for
nothing but its fields, which takes a look at all calls of the module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tvmtarget.ir.relax.tvm_library import are_same, the_tvm

__all__ = ["CALLEE", "TYPED", "CallAnalysis", "buffer_params", "is_pure", "is_tensor_constant"]

CALLEE = "tvm.callee"
# Operators whose calls state the types of their results.
TYPED = frozenset({"relax.call_tir", "relax.call_dps_packed"})


def is_pure(call: Any) -> bool:
    """Return whether a call has no side effects.

    Args:
        call: a TVM call.

    Returns:
        The attribute `FPurity` of the operator, or the purity in the type of the callee.
    """
    tvm = the_tvm()
    if isinstance(call.op, tvm.ir.Op):
        purity = call.op.get_attr("FPurity")
        return purity is None or bool(getattr(purity, "value", purity))
    return isinstance(call.op.ty, tvm.relax.FuncType) and bool(call.op.ty.purity)


def buffer_params(function: Any) -> list[Any]:
    """Return the buffer parameters of a TIR function.

    Args:
        function: the TIR function.

    Returns:
        The parameters in order.
    """
    return [param for param in function.params if type(param.ty).__name__ == "BufferType"]


def is_tensor_constant(expr: Any) -> bool:
    """Return whether an expression is a constant tensor.

    Args:
        expr: a TVM expression.

    Returns:
        True for a constant with a tensor.
    """
    return isinstance(expr, the_tvm().ir.GenericConst) and isinstance(expr.value, the_tvm().runtime.Tensor)


class CallAnalysis:
    """Uses of functions and tuples in a TVM module, collected in one pass over all calls."""

    def __init__(self, module: Any) -> None:
        self._tvm = the_tvm()
        self._module = module
        self._uses: Counter[Any] = Counter()
        self._results: dict[str, int | None] = {}
        self._whole: set[str] = set()  # functions whose result is used as one tuple somewhere
        self._result_unpacked: dict[str, bool] = {}
        self._bound: set[Any] = set()  # scalars that are values, not symbolic dimensions
        functions = {str(var.name_hint): module[var] for var in module.get_global_vars()}
        relax_functions = {n: f for n, f in functions.items() if isinstance(f, self._tvm.relax.Function)}
        self._code = functions.keys() - relax_functions.keys()
        self._relax = frozenset(relax_functions)
        for function in relax_functions.values():
            self._count(function)
        for function in relax_functions.values():
            for bindings in self._blocks(function.body):
                for index, binding in enumerate(bindings):
                    self._visit(bindings, index, binding.value)
        self._result_unpacked = {
            name: name not in self._whole and self.returned_fields(function.body.body, _last(function.body)) is not None
            for name, function in relax_functions.items()
        }

    def is_code(self, name: str) -> bool:
        """Return whether a function is not a Relax function.

        Args:
            name: name of the function.

        Returns:
            True for TIR functions and other code.
        """
        return name in self._code

    def is_result_unpacked(self, name: str) -> bool:
        """Return whether all callers of a function only unpack the tuple that it returns.

        Args:
            name: name of a Relax function.

        Returns:
            True if its fields can become several results.
        """
        return self._result_unpacked[name]

    def results(self, name: str) -> int | None:
        """Return the number of results of a function of code.

        Args:
            name: name of the function.

        Returns:
            Number of trailing buffers that all calls use as results; None if they disagree or there are no calls.
        """
        return self._results.get(name) if name in self._code else None

    def returned_fields(self, body: Any, last: Any) -> list[Any] | None:
        """Return the fields of a tuple that is built only to be returned.

        Args:
            body: expression that the function returns.
            last: last binding of the function, or None.

        Returns:
            The fields, if they are distinct tensors; None otherwise.
        """
        ir = self._tvm.ir
        packed = body
        if last is not None and body.same_as(last.var) and self._uses[body] == 1:
            packed = getattr(last, "value", None)
            is_cast = isinstance(last, self._tvm.relax.MatchCast)
            if is_cast or not isinstance(packed, ir.Tuple) or not are_same(packed.ty, body.ty):
                return None
        if not isinstance(packed, ir.Tuple) or not len(packed.fields):
            return None
        fields = list(packed.fields)
        tensor = self._tvm.relax.TensorType
        is_flat = all(
            isinstance(one.ty, tensor) and (isinstance(one, ir.Var) or is_tensor_constant(one)) for one in fields
        )
        return fields if is_flat and len(set(fields)) == len(fields) else None

    def unpacking_of(self, bindings: Sequence[Any], index: int) -> list[Any] | None:
        """Return the bindings behind a call that unpack its tuple of tensors.

        Args:
            bindings: bindings of the block.
            index: index of the call's binding.

        Returns:
            Bindings of single fields in ascending order; None if anything else reads the tuple.
        """
        ir, relax = self._tvm.ir, self._tvm.relax
        binding = bindings[index]
        value, var = getattr(binding, "value", None), binding.var
        if not isinstance(binding, relax.VarBinding) or not isinstance(value, ir.Call):
            return None
        callee = str(value.op.name_hint) if isinstance(value.op, ir.GlobalVar) else None
        if callee in self._relax and not self._result_unpacked.get(callee, True):
            return None
        fields = var.ty.fields if isinstance(var.ty, ir.TupleType) else ()
        if len(fields) < 2 or not all(isinstance(one, relax.TensorType) for one in fields):
            return None
        taken: list[Any] = []
        for one in bindings[index + 1 :]:
            item = getattr(one, "value", None)
            if not isinstance(item, ir.TupleGetItem) or not item.tuple_value.same_as(var):
                break
            if isinstance(one, relax.MatchCast) or not are_same(one.var.ty, fields[item.index]):
                break
            if not are_same(item.ty, one.var.ty) or (taken and int(taken[-1].value.index) >= int(item.index)):
                break
            taken.append(one)
        return taken if self._uses[var] == len(taken) else None

    def _visit(self, bindings: Sequence[Any], index: int, value: Any) -> None:
        ir = self._tvm.ir
        if not isinstance(value, ir.Call):
            self._visit_operand(value)
            return
        callee = str(value.op.name_hint) if isinstance(value.op, ir.GlobalVar) else None
        if callee in self._relax:
            is_tuple = isinstance(value.ty, ir.TupleType)
            if not is_tuple or self.unpacking_of(bindings, index) is None:
                self._whole.add(callee)
        elif callee is not None:
            self._results[callee] = None
        args = list(value.args)
        if isinstance(value.op, ir.Op) and value.op.name == "relax.call_tir" and isinstance(args[1], ir.Tuple):
            name = str(args[0].name_hint)
            count = len(value.ty.fields) if isinstance(value.ty, ir.TupleType) else 1
            is_apart = not isinstance(value.ty, ir.TupleType) or self.unpacking_of(bindings, index) is not None
            tensors = sum(isinstance(one.ty, self._tvm.relax.TensorType) for one in args[1].fields)
            is_whole = self._buffers(name) == tensors + count and not self._bound.intersection(args[1].fields)
            agreed = count if is_apart and is_whole else None
            self._results[name] = agreed if self._results.get(name, agreed) == agreed else None
            args = args[1:]
        for arg in args:
            self._visit_operand(arg)

    def _buffers(self, name: str) -> int:
        function = self._module[name]
        return len(buffer_params(function)) if isinstance(function, self._tvm.tirx.PrimFunc) else -1

    def _visit_operand(self, expr: Any) -> None:
        """Record a function that is passed as a value: its callers are unknown."""
        ir = self._tvm.ir
        if isinstance(expr, ir.GlobalVar):
            name = str(expr.name_hint)
            self._whole.add(name)
            self._results[name] = None
        for field in expr.fields if isinstance(expr, ir.Tuple) else ():
            self._visit_operand(field)

    def _blocks(self, sequence: Any) -> Iterator[Sequence[Any]]:
        for block in sequence.blocks:
            yield list(block.bindings)
            for binding in block.bindings:
                for inner in self._inner(binding.value):
                    yield from self._blocks(inner)

    def _inner(self, value: Any) -> Iterator[Any]:
        if isinstance(value, self._tvm.relax.If):
            yield from (value.true_branch, value.false_branch)
        elif isinstance(value, self._tvm.relax.Function):
            yield value.body

    def _count(self, function: Any) -> None:
        stack = [function.body]
        self._bound.update(param for param in function.params if isinstance(param.ty, self._tvm.ir.PrimType))
        while stack:
            sequence = stack.pop()
            self._count_in(sequence.body)
            for block in sequence.blocks:
                for binding in block.bindings:
                    self._count_in(binding.value)
                    self._bound.update([binding.var] if isinstance(binding.var.ty, self._tvm.ir.PrimType) else [])
                    stack += self._inner(binding.value)

    def _count_in(self, expr: Any) -> None:
        ir = self._tvm.ir
        match expr:
            case ir.Var():
                self._uses[expr] += 1
            case ir.Tuple():
                for field in expr.fields:
                    self._count_in(field)
            case ir.TupleGetItem():
                self._count_in(expr.tuple_value)
            case ir.Call():
                for arg in (expr.op, *expr.args):
                    self._count_in(arg)
            case self._tvm.relax.If():
                self._count_in(expr.cond)


def _last(sequence: Any) -> Any:
    blocks = [block for block in sequence.blocks if len(block.bindings)]
    return blocks[-1].bindings[-1] if blocks else None
