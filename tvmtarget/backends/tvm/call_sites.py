"""Call sites of a TVM module: which tensor functions are called how, other constants for them, and other calls.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.backends.protocol import Array
from tvmtarget.backends.tvm.register_tiling import Layout

__all__ = [
    "Producer",
    "Use",
    "constant_of",
    "folding_calls",
    "is_constant",
    "operator_of",
    "pack_constants",
    "rewrite_calls",
    "uses_of",
    "with_blocks",
    "with_values",
]

Module: TypeAlias = Any
Builder: TypeAlias = Any
Expr: TypeAlias = Any
Producer: TypeAlias = "Callable[[Expr], Expr]"


def is_constant(expr: Expr) -> bool:
    """Return whether an expression is a constant tensor, without a copy of its elements.

    Args:
        expr: an expression of Relax.

    Returns:
        True for a constant tensor.
    """
    from tvm import ir

    return isinstance(expr, ir.expr.GenericConst) and hasattr(expr.value, "numpy")


def constant_of(expr: Expr) -> Array | None:
    """Return the elements of a constant tensor.

    Args:
        expr: an expression of Relax.

    Returns:
        The array; None for other expressions.
    """
    return expr.value.numpy() if is_constant(expr) else None


def operator_of(expr: Expr) -> str:
    """Return the name of the operator that an expression calls.

    Args:
        expr: an expression of Relax.

    Returns:
        A name such as `relax.matmul`; empty if it calls none.
    """
    return str(getattr(getattr(expr, "op", None), "name", ""))


def with_blocks(function: Expr, blocks: Sequence[Any]) -> Expr:
    """Return a function with other blocks of bindings.

    Args:
        function: a function of Relax whose body is a sequence.
        blocks: the blocks.

    Returns:
        A new function.
    """
    from tvm import relax

    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def with_values(function: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """Return a function that binds other values to some variables.

    Args:
        function: a function of Relax whose body is a sequence.
        values: the values by variable.

    Returns:
        A new function; the same one if there are no values.
    """
    from tvm import relax

    if not values:
        return function
    blocks = [
        type(block)(
            [relax.VarBinding(one.var, values[one.var]) if one.var in values else one for one in block.bindings]
        )
        for block in function.body.blocks
    ]
    return with_blocks(function, blocks)


def folding_calls() -> Any:  # noqa: ANN401
    """Return a pass that computes calls of tensor functions that read constants only.

    `FoldConstant` of TVM does so, too, but compiles a function at a time, which takes 30 ms. Here all are compiled as
    one module, and `FoldConstant` has to run behind: it removes what is not read any more, and computes the rest.

    Returns:
        TVM's pass.
    """
    import tvm

    return tvm.transform.module_pass(_fold_calls, opt_level=0, name="FoldCalls")


def _fold_calls(module: Module, _context: object) -> Module:
    import tvm
    from tvm import relax

    calls = {
        variable: dict(_constant_calls(module, function))
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr)
    }
    called = {call.args[0].name_hint: call.args[0] for found in calls.values() for call in found.values()}
    if not called:
        return module
    parts = {name: module[variable].with_attr("global_symbol", name) for name, variable in called.items()}
    tensors: dict[Any, Any] = {}
    try:
        with tvm.transform.PassContext(opt_level=3):
            compiled = tvm.tirx.build(tvm.IRModule(parts), target=tvm.target.Target("llvm"))
        for var, call in ((var, call) for found in calls.values() for var, call in found.items()):
            operands = [one.value if is_constant(one) else tensors[one] for one in call.args[1].fields]
            result = tvm.runtime.empty(_static_sizes(call), str(call.ty_args[0].dtype))
            compiled[call.args[0].name_hint](*operands, result)
            tensors[var] = result
    except Exception:  # TVM's errors are of several types; `FoldConstant` leaves out the function that has one
        return module
    changed = module.clone()
    for variable, found in calls.items():
        changed[variable] = with_values(module[variable], {var: relax.const(tensors[var]) for var in found})
    return changed


def _constant_calls(module: Module, function: Expr) -> Iterator[tuple[Expr, Expr]]:
    """Yield the variables whose values follow from constants, and the calls of tensor functions that compute them."""
    from tvm import ir, tirx

    call_tir, plain = ir.Op.get("relax.call_tir"), 2  # arguments of a call without sizes that are computed
    known: set[Any] = set()
    for block in function.body.blocks:
        for binding in block.bindings:
            call = getattr(binding, "value", None)
            if not isinstance(call, ir.Call) or call.op != call_tir or len(call.args) != plain:
                continue
            is_known = all(one in known or is_constant(one) for one in call.args[1].fields)
            if is_known and _static_sizes(call) is not None and isinstance(module[call.args[0]], tirx.PrimFunc):
                known.add(binding.var)
                yield binding.var, call


def _static_sizes(call: Expr) -> tuple[int, ...] | None:
    """Return the shape of the only result of a call of a tensor function; None where it is not known or has several."""
    from tvm import tirx

    (type_,) = call.ty_args
    sizes = getattr(getattr(type_, "shape", None), "values", None)
    if sizes is None or not all(isinstance(size, tirx.IntImm) for size in sizes):
        return None
    return tuple(int(size) for size in sizes)


@dataclass(frozen=True)
class Use:
    """How a module uses a function.

    Attributes:
        calls: the number of calls.
        constants: positions of the arguments that are constants in each call.
        values: the arguments of each call.
    """

    calls: int = 0
    constants: frozenset[int] = frozenset()
    values: tuple[Sequence[Expr], ...] = ()

    def is_finite(self, at: int) -> bool:
        """Return whether an argument is a constant without infinities and NaN in each call.

        Args:
            at: position of the argument.

        Returns:
            True if all elements are finite.
        """
        return at in self.constants and all(np.isfinite(each[at].value.numpy()).all() for each in self.values)


def uses_of(module: Module) -> dict[str, Use]:
    """Collect the uses of functions.

    Args:
        module: a TVM module.

    Returns:
        Uses by name of the function.
    """
    from tvm import ir, relax

    call_tir = ir.Op.get("relax.call_tir")
    uses: dict[str, Use] = {}

    def visit(expr: Expr) -> None:
        for used in (expr.op, *expr.args) if isinstance(expr, relax.Call) else ():
            if isinstance(used, ir.GlobalVar):
                arguments = expr.args[1].fields if expr.op == call_tir else ()
                here = frozenset(at for at, value in enumerate(arguments) if isinstance(value, ir.expr.GenericConst))
                known = uses.get(used.name_hint, Use(0, here))
                uses[used.name_hint] = Use(known.calls + 1, known.constants & here, (*known.values, arguments))

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return uses


def pack_constants(module: Module, packed: Mapping[str, tuple[Expr, Mapping[int, Layout]]]) -> None:
    """Store constants in the layouts that scheduled functions read; changes the module.

    Args:
        module: a TVM module.
        packed: by name of the function, its new variable, and the layout of each argument by position.
    """
    from tvm import ir, relax
    from tvm.runtime import tensor
    from tvm_ffi import structural_map

    call_tir = ir.Op.get("relax.call_tir")

    def changed(call: Expr) -> Expr:
        if call.op != call_tir or call.args[0].name_hint not in packed:
            return call
        function, layouts = packed[call.args[0].name_hint]
        fields = list(call.args[1].fields)
        for at, layout in layouts.items():
            fields[at] = relax.const(tensor(layout.apply(fields[at].value.numpy())))
        call = relax.Call(call.op, [function, relax.Tuple(fields), *call.args[2:]], call.attrs, call.ty_args)
        return relax.BlockBuilder().normalize(call)

    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            module[variable] = structural_map(function, (relax.Call, changed))


def rewrite_calls(
    module: Module, rewrite: Callable[[Expr, Builder, Producer], Expr], operators: Set[str] | None = None
) -> Module:
    """Put other expressions in place of the calls of Relax functions.

    Args:
        module: a TVM module.
        rewrite: returns what stands in place of a call whose operands are rewritten, from it, the builder that takes
            further calls in front of it, and a function that returns the expression which a variable is bound to.
        operators: names of operators; functions that call none of them stay as they are. None rewrites all functions.

    Returns:
        A changed copy.
    """
    from tvm import relax

    def is_concerned(function: Expr) -> bool:
        if not isinstance(function, relax.Function) or operators is None:
            return isinstance(function, relax.Function)
        found: list[Expr] = []
        relax.analysis.post_order_visit(
            function, lambda one: found.append(one) if operator_of(one) in operators else None
        )
        return bool(found)

    functions = [(variable, function) for variable, function in module.functions_items() if is_concerned(function)]
    if not functions:
        return module

    @relax.expr_functor.mutator
    class Rewriting(relax.PyExprMutator):  # type: ignore[misc]
        def visit_call_(self, call: Expr) -> Expr:
            return rewrite(super().visit_call_(call), self.builder_, self.producer)

        def producer(self, value: Expr) -> Expr:
            found = self.lookup_binding(value) if isinstance(value, relax.Var) else None
            return value if found is None else found

    rewriting = Rewriting(module)
    for variable, function in functions:
        rewriting.builder_.update_func(variable, rewriting.visit_expr(function))
    return rewriting.builder_.get()
