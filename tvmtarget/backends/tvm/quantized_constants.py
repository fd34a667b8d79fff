"""Quantized constants that stay quantized: kernels dequantize what they read of them.

TVM computes at compile time what depends on constants only, so that the weights of a quantized model are stored as
floats, in four times the memory. Here such constants are parameters until operators are fused, and the kernels that
dequantize them become parts of the kernels that read them. Results are the same, bit for bit: each element is
dequantized by the same operations, only later.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from tvmtarget.backends.tvm.call_sites import constant_of, is_constant, uses_of, with_values

__all__ = ["blocks_of_constants", "compute_rows", "lift_quantized", "read_quantized"]

Module: TypeAlias = Any
Function: TypeAlias = Any
Expr: TypeAlias = Any
Block: TypeAlias = Any
Schedule: TypeAlias = Any

_FLOAT = 4  # bytes
_FEW = 64  # elements; fewer stay floats


def lift_quantized(module: Module) -> tuple[Module, dict[str, Expr]]:
    """Make quantized constants that are dequantized parameters of the function `main`.

    Args:
        module: TVM's module of a function of Relax, before its operators are lowered.

    Returns:
        A module, and the constants by name of their parameters.
    """
    from tvm import ir, relax
    from tvm_ffi import structural_map

    dequantize, lifted = ir.Op.get("relax.dequantize"), dict[Any, Any]()

    def changed(call: Expr) -> Expr:
        if call.op != dequantize or not _is_quantized(call.args[0]):
            return call
        data, scale, zero = call.args
        if data not in lifted:
            lifted[data] = relax.Var(f"quantized_{len(lifted)}", data.ty)
        call = relax.Call(call.op, [lifted[data], scale, _as_scalar(zero)], call.attrs, call.ty_args)
        return relax.BlockBuilder().normalize(call)

    main = module["main"]
    body = structural_map(main.body, (ir.Call, changed))
    if not lifted:
        return module, {}
    result = module.clone()
    params = [*main.params, *lifted.values()]
    result["main"] = relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs)
    return result, {variable.name: constant for constant, variable in lifted.items()}


def _is_quantized(expr: Expr) -> bool:
    """Return whether a value is a constant of many integers that are shorter than floats."""
    array = constant_of(expr)
    return array is not None and array.dtype.kind in "iu" and array.itemsize < _FLOAT and array.size >= _FEW


def _as_scalar(zero: Expr) -> Expr:
    """Return zero points that are all equal as one, which is a number in the code."""
    from tvm import relax

    array = constant_of(zero)
    if array is None:
        return zero
    return relax.const(array.flat[0], str(array.dtype)) if array.size and (array == array.flat[0]).all() else zero


def read_quantized(module: Module, constants: Mapping[str, Expr]) -> tuple[Module, dict[str, Function]]:
    """Let kernels read quantized constants, in place of kernels that dequantize these.

    Args:
        module: TVM's module of `lift_quantized` after operator fusion.
        constants: the constants by name of their parameters.

    Returns:
        A module whose function `main` has its own parameters again, and by name the functions that dequantize what
        they read, scheduled to do this a row at a time. Constants that are not only read by kernels are floats.
    """
    import tvm
    from tvm import relax

    if not constants:
        return module, {}
    fused, names = _fused(module, frozenset(constants))
    bound = relax.transform.BindParams("main", {name: one.value for name, one in constants.items()})
    passes = [relax.transform.FuseTIR(), bound, relax.transform.FoldConstant(), relax.transform.DeadCodeElimination()]
    result = tvm.transform.Sequential(passes)(fused)
    uses = uses_of(result)
    return result, {
        variable.name_hint: _with_rows(function, uses[variable.name_hint].constants)
        for variable, function in result.functions_items()
        if variable.name_hint in names
    }


def _fused(module: Module, names: frozenset[str]) -> tuple[Module, set[str]]:
    """Put the calls of kernels that read only constants, and a call that reads their results, into one function.

    Returns:
        The module, and the names of these functions.
    """
    from tvm import ir, relax

    call_tir, plain = ir.Op.get("relax.call_tir"), 2  # arguments of a call without shapes that are computed
    main = module["main"]
    weights: dict[Any, Expr] = {param: param for param in main.params if param.name in names}
    builder, made = relax.BlockBuilder(module), set[str]()
    changed: dict[Any, Expr] = {}

    def is_weight(expr: Expr) -> bool:
        return is_constant(expr) or expr in weights

    def needed(expr: Expr, found: dict[Any, Expr]) -> None:
        """Collect the calls that compute a weight, in order."""
        if expr in weights and expr not in found and not weights[expr].same_as(expr):
            for one in weights[expr].args[1].fields:
                needed(one, found)
            found[expr] = weights[expr]

    for block in main.body.blocks:
        for binding in block.bindings:
            call = getattr(binding, "value", None)
            if not isinstance(call, ir.Call) or call.op != call_tir or len(call.args) != plain:
                continue
            given = list(call.args[1].fields)
            if any(one in weights for one in given) and all(map(is_weight, given)) and _is_cheap(module[call.args[0]]):
                weights[binding.var] = call
                continue
            before: dict[Any, Expr] = {}
            for one in given:
                needed(one, before)
            if before:
                changed[binding.var] = _one_function(builder, binding.var, call, before)
                made.add(changed[binding.var].op.name_hint)
    result = builder.get()
    result["main"] = with_values(main, changed)
    return result, made


def _is_cheap(function: Function) -> bool:
    """Return whether a kernel computes each element by itself, and without functions, which round otherwise in C."""
    from tvm import ir, tirx
    from tvm.s_tir import SBlock
    from tvm_ffi import structural_walk

    found: list[bool] = []

    def block(one: Block) -> None:
        found.extend(axis.iter_type == tirx.IterVar.DataPar for axis in one.iter_vars)

    def call(one: Expr) -> None:
        found.append(getattr(one.op, "name", "") == "prim.if_then_else")

    structural_walk(function.body, [(SBlock, block), (ir.Call, call)])
    return all(found)


def _one_function(builder: Any, variable: Expr, call: Expr, before: Mapping[Any, Expr]) -> Expr:  # noqa: ANN401
    """Add a function of some calls and one that reads their results, and return a call of it."""
    from tvm import relax

    calls = [*before.items(), (variable, call)]
    inner: dict[Any, Expr] = {}
    outer: list[Expr] = []
    for _, one in calls:
        for value in one.args[1].fields:
            if value not in before and value not in inner:
                inner[value] = relax.Var(f"p{len(inner)}", value.ty)
                outer.append(value)
    params = list(inner.values())
    name = f"dequantize_{call.args[0].name_hint}"
    with builder.function(name, params, attrs={"Primitive": True}, private=True):
        with builder.dataflow():
            for result, one in calls[:-1]:
                inner[result] = builder.emit(_with_arguments(one, inner))
            last = builder.emit_output(_with_arguments(call, inner))
        function = builder.emit_func_output(last)
    return builder.normalize(relax.Call(function, outer))


def _with_arguments(call: Expr, values: Mapping[Any, Expr]) -> Expr:
    from tvm import relax

    given = relax.Tuple([values[one] for one in call.args[1].fields])
    return relax.Call(call.op, [call.args[0], given], call.attrs, call.ty_args)


def _with_rows(function: Function, constants: frozenset[int]) -> Function:
    """Compute the blocks of a function that read only constants where their results are used.

    Args:
        function: a tensor function as TVM wrote it.
        constants: positions of arguments that are constants.

    Returns:
        The function, in which such a block computes a row at a time, or single elements if each is used once. If TVM
        cannot move it, the function as it was.
    """
    import tvm

    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
    root = schedule.get_sblock(function.body.block.name_hint)
    try:
        weights = blocks_of_constants(schedule, root, [function.params[position] for position in constants])
        for weight in weights.values():
            compute_rows(schedule, weight)
    except tvm.s_tir.ScheduleError:  # what reads them is no loop nest that TVM can change
        return function
    return schedule.mod["main"]


def blocks_of_constants(schedule: Schedule, root: Block, constants: Iterable[Any]) -> dict[Any, Block]:
    """Return the blocks that read only constants, if one block reads them; inline others.

    Args:
        schedule: the schedule; changed.
        root: its root block.
        constants: the tensors that are constants.

    Returns:
        Blocks by the tensor that each writes, in order.
    """
    from tvm import tirx

    known, found = list(constants), dict[Any, Block]()
    for block in schedule.get_child_blocks(root):
        statement = schedule.get(block)
        is_weight = statement.reads and all(any(read.source.same_as(one) for one in known) for read in statement.reads)
        is_elementwise = all(axis.iter_type == tirx.IterVar.DataPar for axis in statement.iter_vars)
        if is_weight and is_elementwise and schedule.get_consumers(block):
            (write,) = statement.writes
            known.append(write.source)
            found[write.source] = block
    for tensor, block in list(found.items()):
        readers = [schedule.get(reader).writes[0].source for reader in schedule.get_consumers(block)]
        if len(readers) != 1 or readers[0] in found:
            schedule.compute_inline(found.pop(tensor))
    return found


def compute_rows(schedule: Schedule, weight: Block) -> list[Block]:
    """Compute a block of constants in the loops of the block that reads it.

    Args:
        schedule: the schedule; changed.
        weight: a block that reads only constants and has one reader.

    Returns:
        The reader, if its loops were changed; else none, as the block is computed where each element is used.
    """
    (reader,) = schedule.get_consumers(weight)
    loop = _loop_of_rows(schedule, weight, reader)
    if loop is None:
        schedule.compute_inline(weight)
        return []
    schedule.compute_at(weight, loop)
    return [reader]


def _loop_of_rows(schedule: Schedule, block: Block, reader: Block) -> Any:  # noqa: ANN401
    """Return the innermost loop of a reduction around all uses of a row of constants; None if it uses each once.

    The loops over rows become the outermost ones.
    """
    from tvm import tirx
    from tvm_ffi import structural_walk

    statement, loops = schedule.get(reader), schedule.get_loops(reader)
    (write,) = schedule.get(block).writes
    used: list[Any] = []
    for read in statement.reads:
        if read.source.same_as(write.source):
            for index in read.region:
                structural_walk(index.min, (tirx.Var, used.append))
    axes = [axis for axis in statement.iter_vars if axis.iter_type == tirx.IterVar.DataPar]
    rows = [any(axis.var.same_as(one) for one in used) for axis in axes]
    others = [axis.dom.extent for axis, is_row in zip(axes, rows, strict=True) if not is_row]
    is_repeated = any(not isinstance(extent, tirx.IntImm) or extent > 1 for extent in others)
    if not is_repeated or not any(rows) or len(loops) != len(statement.iter_vars):
        return None
    outer = [loop for loop, is_row in zip(loops, rows, strict=False) if is_row]
    inner = [loop for loop, is_row in zip(loops, rows, strict=False) if not is_row]
    schedule.reorder(*outer, *inner)
    return outer[-1]
