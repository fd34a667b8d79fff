"""The default CPU schedule for TVM: apply `register_tiling` to all functions of a module, without tuning.

TVM's own CPU pipeline runs the loops of an operator as they are written. This one first pads convolutions whose
channels fit no vector (`channel_padding`) and chooses Winograd's algorithm for others (`winograd`), and adds, after
operator fusion:

1. inline elementwise operations into their readers, where that repeats no work;
2. keep a block of a reduction's results in registers. Constant weights are laid out at compile time so that its
   vectors are contiguous;
3. make everything else parallel outer loops around one long inner loop, which LLVM vectorizes.

A function that does not fit stays as TVM wrote it, and `schedule_functions` returns why. TVM is imported late and ships
no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, Protocol, TypeAlias

from tvmtarget.backends.tvm.call_sites import Use, folding_calls, is_constant, pack_constants, uses_of, with_blocks
from tvmtarget.backends.tvm.channel_padding import widen_channels
from tvmtarget.backends.tvm.compiled_module import LARGEST_SIZE
from tvmtarget.backends.tvm.exact_arithmetic import keep_arithmetic
from tvmtarget.backends.tvm.integer_products import PAIRS, multiply_in_pairs, narrow_products, pair_intrinsic
from tvmtarget.backends.tvm.nan_propagation import propagate_nan
from tvmtarget.backends.tvm.nonzero_places import write_nonzero_places
from tvmtarget.backends.tvm.open_rows import TILE_ROWS, divide_tiles
from tvmtarget.backends.tvm.quantized_constants import blocks_of_constants, compute_rows
from tvmtarget.backends.tvm.reductions import reduce_in_lanes
from tvmtarget.backends.tvm.register_tiling import (
    PARALLEL_TASKS,
    Access,
    Layout,
    Nest,
    Tile,
    VectorUnit,
    chunk_axes,
    divisor,
    panel,
    plan,
    strip,
)
from tvmtarget.backends.tvm.reshaped_views import legalise_reshape, use_views
from tvmtarget.backends.tvm.running_sums import bound_running_sums
from tvmtarget.backends.tvm.schedule_space import Knobs, tile_of
from tvmtarget.backends.tvm.skipped_padding import skip_padding
from tvmtarget.backends.tvm.tir_builder import OPAQUE
from tvmtarget.backends.tvm.traces import applied
from tvmtarget.backends.tvm.vector_math import library_calls, vectorisable
from tvmtarget.backends.tvm.vector_units import vector_unit
from tvmtarget.backends.tvm.winograd import ROWS, run_in_strips, use_winograd
from tvmtarget.ir.relax.code import hide_subroutines

__all__ = [
    "PASS_CONFIG",
    "Choose",
    "Scheduler",
    "cpu_pipeline",
    "legal_passes",
    "schedule_functions",
    "scheduling",
    "vector_unit",
]

Target: TypeAlias = Any
Pass: TypeAlias = Any
Pipeline: TypeAlias = Any
Module: TypeAlias = Any
Function: TypeAlias = Any
Block: TypeAlias = Any
Loop: TypeAlias = Any
Expr: TypeAlias = Any


class Choose(Protocol):
    """Chooses schedules of functions in place of the static model."""

    def __call__(self, name: str, function: Function, use: Use) -> Sequence[Knobs] | str | None:
        """Return the schedule of a function, again after `reject`.

        Args:
            name: name of the function.
            function: the function.
            use: how the module calls it.

        Returns:
            The knobs of its register blocks in order, or a trace; None for the static model.
        """

    def reject(self, name: str, reason: str) -> None:
        """Record that the schedule of a function does not fit it.

        Args:
            name: name of the function.
            reason: why it does not fit.
        """


# For the PassContext around `tvm.compile`: TVM 0.27 cannot compile a float that this pass moves out of a parallel loop,
# as it does in functions with symbolic extents. LLVM eliminates common subexpressions anyway.
PASS_CONFIG = {"tirx.disable_cse_tir": True}

STACK_BYTES = 1024  # from which on TVM allocates memory of global scope: `kMaxStackAlloca` of TVM 0.27
MAX_REJECTED = 16  # schedules of one function that do not fit, after which the static model is used
MOST_CHECKED = 8  # tensors from which on LLVM does not check whether they overlap, and makes no vectors by itself
PARALLEL_WORK = 32_768  # iterations, of vectors in a tile, below which a block stays on one thread
# In the text of a block after inlining, which chains such as x * sigmoid(x) would double at each step. A function that
# is expanded counts as several loads, and so does a choice of two values: the time of TVM's passes grows with the
# square of long expressions, and doubles with each choice whose condition holds another one.
MOST_LOADS, LOADS_OF_CALL, LOADS_OF_CHOICE = 64, 8, 4


def legal_passes(target: Target, *, saves_memory: bool = False) -> list[Pass]:
    """Return passes that lower operators to tensor functions and fuse these.

    They are TVM's passes for CPUs, after those that write kernels of our own, such as `use_winograd`.

    Args:
        target: TVM's target of kind llvm.
        saves_memory: whether to leave out `use_winograd`, which takes more memory for less time.

    Returns:
        Passes, in order.
    """
    import tvm
    from tvm.relax.backend.cpu_generic import pipeline

    unit = vector_unit(target)

    def widen(module: Module, _context: object) -> Module:
        module = narrow_products(bound_running_sums(write_nonzero_places(module)))
        if not saves_memory:
            module = use_winograd(module, unit)
        return widen_channels(multiply_in_pairs(module, unit), unit)

    widening = tvm.transform.module_pass(widen, opt_level=0, name="WidenChannels")
    keeping = tvm.transform.module_pass(_keep_sizes_apart, opt_level=0, name="KeepSizesApart")
    lower = tvm.relax.transform.LegalizeOps({"relax.reshape": legalise_reshape})
    _, *others = pipeline.legalize_passes(target)
    ordering = tvm.transform.module_pass(_read_sizes_first, opt_level=0, name="ReadSizesFirst")
    return [widening, *pipeline.library_dispatch_passes(target), lower, keeping, folding_calls(), *others, ordering]


def _keep_sizes_apart(module: Module, _context: object) -> Module:
    """Keep functions of sizes alone, such as `shape_to_tensor`, out of operator fusion.

    `FuseTIR` of TVM 0.27 would make the sizes parameters of the fused function twice, and fail (`VarRemapGet`).
    """
    from tvm.tirx import PrimFunc

    result = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, PrimFunc) and len(function.params) > 1 and not function.attrs.get("op_pattern"):
            tensors = [param for param in function.params if hasattr(param.ty, "shape")]
            if len(tensors) == 1:
                result[variable] = function.with_attr("op_pattern", OPAQUE)
    return result


def _read_sizes_first(module: Module, _context: object) -> Module:
    """Put bindings behind those that read the sizes in them when a program runs.

    `FuseOps` of TVM 0.27 puts a fused function where its first operation was, and what it reads before it; it does not
    see that a function needs a size.
    """
    from tvm import ir, relax
    from tvm_ffi import structural_walk

    result = module.clone()
    for variable, function in module.functions_items():
        if not isinstance(function, relax.Function) or not isinstance(function.body, relax.SeqExpr):
            continue
        given: list[Any] = []
        structural_walk([param.ty for param in function.params], (ir.Var, given.append))
        blocks = [_in_order(block, frozenset(given)) for block in function.body.blocks]
        if any(new is not old for new, old in zip(blocks, function.body.blocks, strict=True)):
            result[variable] = with_blocks(function, blocks)
    return result


def _in_order(block: Any, given: frozenset[Any]) -> Any:  # noqa: ANN401
    """Return a block with each binding behind those of its values, and of its sizes that are not given."""
    from tvm import ir, relax
    from tvm_ffi import structural_walk

    bindings = list(block.bindings)
    if not any(isinstance(binding, relax.MatchCast) for binding in bindings):
        return block
    makers: dict[Any, int] = {}
    for at, binding in enumerate(bindings):
        makers[binding.var] = at
        if isinstance(binding, relax.MatchCast):
            sizes: list[Any] = []
            structural_walk(binding.ty, (ir.Var, sizes.append))
            # Those in the type of the value are compared, and must be known before.
            compared: list[Any] = []
            structural_walk(getattr(binding.value, "ty", None), (ir.Var, compared.append))
            for size in sizes:
                if size not in given and size not in compared:
                    makers.setdefault(size, at)
    order: dict[int, None] = {}
    for at in range(len(bindings)):
        _add_after(at, bindings, makers, order)
    return block if list(order) == [*range(len(bindings))] else type(block)([bindings[at] for at in order])


def _add_after(at: int, bindings: Sequence[Any], makers: Mapping[Any, int], order: dict[int, None]) -> None:
    """Add a binding to an order, after those that make what it reads."""
    from tvm import ir
    from tvm_ffi import structural_walk

    waiting, seen = [(at, False)], set[int]()
    while waiting:
        one, is_ready = waiting.pop()
        if is_ready:
            order[one] = None
        if is_ready or one in order or one in seen:
            continue
        seen.add(one)
        read: list[Any] = []
        structural_walk([bindings[one].value, bindings[one].var.ty], (ir.Var, read.append))
        waiting.append((one, True))
        waiting += [(makers[name], False) for name in reversed(read) if makers.get(name, one) != one]


def cpu_pipeline(target: Target, choose: Choose | None = None, *, saves_memory: bool = False) -> Pass:
    """Return TVM's pipeline for CPUs with this schedule after operator fusion.

    The pipeline is `tvm.relax.backend.cpu_generic.pipeline`. Use it in a PassContext with `PASS_CONFIG`:
    `tvm.compile(module, target, relax_pipeline=cpu_pipeline(target))`.

    Args:
        target: TVM's target of kind llvm.
        choose: chooses the schedules of functions; None for the static model.
        saves_memory: as for `legal_passes`.

    Returns:
        A pass.
    """
    from tvm.relax.backend.cpu_generic import pipeline

    unit, passes = vector_unit(target), legal_passes(target, saves_memory=saves_memory)
    return scheduling(target, passes, lambda module: schedule_functions(module, unit, choose)[0], pipeline)


def scheduling(target: Target, passes: Sequence[Pass], schedule: Callable[[Module], Module], theirs: Pipeline) -> Pass:
    """Return a pipeline of TVM with a schedule after operator fusion.

    Args:
        target: TVM's target.
        passes: passes up to operator fusion.
        schedule: schedules the functions of a module.
        theirs: TVM's module with the later passes.

    Returns:
        A pass.
    """
    import tvm

    def scheduled(module: Module, _context: object) -> Module:
        return use_views(schedule(module))

    def keep(module: Module, _context: object) -> Module:
        return keep_arithmetic(module, is_llvm=target.kind.name == "llvm")

    every = (
        *passes,
        tvm.transform.module_pass(scheduled, opt_level=0, name="Schedule"),
        *theirs.dataflow_lower_passes(target),
        tvm.transform.module_pass(_allocate_empty_constants, opt_level=0, name="AllocateEmptyConstants"),
        *theirs.finalize_passes(target),
        tvm.tirx.transform.prim_func_pass(_plain_divisions, opt_level=0, name="PlainDivisions"),
        tvm.transform.module_pass(keep, opt_level=0, name="KeepArithmetic"),
        tvm.transform.module_pass(lambda module, _: hide_subroutines(module), opt_level=0, name="HideSubroutines"),
    )

    def run(module: Module, _context: object) -> Module:
        with target:
            return tvm.transform.Sequential(every)(module)

    return tvm.transform.module_pass(run, opt_level=0, name="SchedulingPipeline")


def _allocate_empty_constants(module: Module, _context: object) -> Module:
    """Allocate constants without elements, which TVM's virtual machine writes to a library but cannot read (0.27)."""
    from tvm import relax

    @relax.expr_functor.mutator
    class Allocation(relax.PyExprMutator):  # type: ignore[misc]  # TVM ships no types
        def visit_generic_const_(self, op: Expr) -> Expr:
            if not is_empty(op):
                return op
            return self.builder_.emit(relax.op.builtin.alloc_tensor(op.ty.shape, str(op.ty.dtype), 0))

    def is_empty(value: Expr) -> bool:
        return is_constant(value) and any(int(size) == 0 for size in value.ty.shape)

    def has_empty(function: Function) -> bool:
        found: list[Expr] = []
        relax.analysis.post_order_visit(function, lambda one: found.append(one) if is_empty(one) else None)
        return bool(found)

    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function) and has_empty(function):
            module[variable] = Allocation(module).visit_expr(function)
    return module


def _plain_divisions(function: Function, _module: Module, _context: object) -> Function:
    """Return a function that divides numbers that are not negative as machines do, which truncate.

    TVM lowers a division that rounds down by the signs of both numbers. It does not know that a size is not negative,
    and states both numbers several times: with nested divisions, as `Reshape` between symbolic sizes has them, the code
    grows exponentially.
    """
    from tvm import ir, sym, tirx
    from tvm.s_tir import SBlock
    from tvm_ffi import structural_map, structural_walk

    shapes = [getattr(param.ty, "shape", ()) for param in function.params]
    if all(isinstance(size, tirx.IntImm) for shape in shapes for size in shape):
        return function
    bounds = sym.Analyzer()

    def bind_size(size: Expr) -> None:
        bounds.bind(size, ir.Range(0, tirx.const(LARGEST_SIZE, str(size.ty))))

    def bind_loop(loop: Loop) -> None:
        bounds.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))

    def bind_block(block: Block) -> None:
        for one in block.iter_vars:
            bounds.bind(one.var, one.dom)

    def plain(division: Expr) -> Expr:
        if isinstance(division.b, tirx.IntImm) and int(division.b).bit_count() == 1:
            return division  # a shift
        if any(bounds.const_int_bound(one).min_value < 0 for one in (division.a, division.b)):
            return division
        # Loops over no elements divide nothing, but TVM works out the sizes of what a kernel allocates before them.
        is_positive = bounds.const_int_bound(division.b).min_value > 0
        divisor = division.b if is_positive else tirx.max(division.b, tirx.const(1, str(division.b.ty)))
        return (tirx.truncdiv if isinstance(division, tirx.FloorDiv) else tirx.truncmod)(division.a, divisor)

    structural_walk(shapes, (ir.Var, bind_size))
    structural_walk(function.body, [(tirx.For, bind_loop), (SBlock, bind_block)])
    return structural_map(function, [((tirx.FloorDiv, tirx.FloorMod), plain)])


def schedule_functions(
    module: Module, unit: VectorUnit, choose: Choose | None = None, *, uses_stack: bool = True
) -> tuple[Module, dict[str, str]]:
    """Schedule the tensor functions of a module.

    Args:
        module: a TVM module.
        unit: the vector registers.
        choose: chooses schedules in place of the static model. One that does not fit is rejected.
        uses_stack: as for `Scheduler`.

    Returns:
        A changed copy, and by name why a function was not scheduled.
    """
    from tvm.error import InternalError
    from tvm.relax import BlockBuilder
    from tvm.s_tir import SBlockRealize, ScheduleError
    from tvm.tirx import PrimFunc

    result, unscheduled, packed = module.clone(), {}, {}
    uses = uses_of(module)
    for variable, function in module.functions_items():
        name = variable.name_hint
        if not isinstance(function, PrimFunc):
            continue
        if not isinstance(function.body, SBlockRealize):
            unscheduled[name] = "it has no root block"
            continue
        use = uses.get(name, Use())
        for option in _options(choose, name, function, use):
            knobs = None if isinstance(option, str) else option
            try:
                if isinstance(option, str):
                    scheduled, layouts = vectorisable(applied(function, option)), dict[int, Layout]()
                else:
                    schedulers = partial(Scheduler, unit=unit, use=use, knobs=knobs, uses_stack=uses_stack)
                    scheduled, layouts = _scheduled(function, schedulers)
                break
            except (InternalError, ScheduleError, ValueError) as error:
                unscheduled[name] = str(error)
                if choose is not None and option is not None:
                    choose.reject(name, str(error))
        else:
            continue
        if layouts:
            del result[variable]
            variable = BlockBuilder().add_func(scheduled, name)  # a new variable, as its type is the function's
            packed[name] = (variable, layouts)
        result[variable] = scheduled
    for variable, function in result.functions_items():
        if isinstance(function, PrimFunc):
            result[variable] = _start_before_loops(function)
    pack_constants(result, packed)
    # Not before: schedules of tuning logs are found by the functions as TVM writes them.
    return propagate_nan(result), unscheduled


def _scheduled(function: Function, make: Callable[[Function], Scheduler]) -> tuple[Function, dict[int, Layout]]:
    """Return a scheduled function, and the layouts in which it reads constant arguments.

    TVM 0.27 cannot split a loop that was fused from one over a sum of sizes, `s + 1`, so that these sums are symbols
    where it fails.
    """
    from tvm import tirx
    from tvm.error import InternalError
    from tvm.s_tir import ScheduleError
    from tvm_ffi import structural_equal, structural_map, structural_walk

    first = make(function)
    try:
        return first.run(), first.layouts
    except (InternalError, ScheduleError):
        sums: list[tuple[Expr, Any]] = []

        def note(one: Expr) -> None:
            if not any(structural_equal(one, known) for known, _ in sums):
                sums.append((one, tirx.Var(f"size{len(sums)}", str(one.ty))))

        for param in function.params:
            structural_walk(getattr(param.ty, "shape", ()), ((tirx.Add, tirx.Sub), note))
        if not sums:
            raise

    def named(one: Expr) -> Expr:
        return next((symbol for known, symbol in sums if structural_equal(one, known)), one)

    def written(variable: Expr) -> Expr:
        return next((known for known, symbol in sums if variable.same_as(symbol)), variable)

    second = make(structural_map(function, [((tirx.Add, tirx.Sub), named)]))
    return structural_map(second.run(), [(tirx.Var, written)]), second.layouts


def _start_before_loops(function: Function) -> Function:
    """Start reductions over symbolic sizes before their loops, so that their results are written if a size is 0."""
    from tvm import IRModule, tirx
    from tvm.s_tir import SBlockRealize, Schedule
    from tvm_ffi import structural_walk

    found: dict[str, Any] = {}  # variables of the loops that a block reduces over, by its name

    def find(realize: Any) -> None:  # noqa: ANN401
        block = realize.block
        reduced = [
            (axis, value)
            for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)
            if axis.iter_type == tirx.IterVar.CommReduce
        ]
        if block.init is not None and not all(isinstance(axis.dom.extent, tirx.IntImm) for axis, _ in reduced):
            found[block.name_hint] = [
                one for _, value in reduced for one in tirx.analysis.undefined_vars(tirx.Evaluate(value), [])
            ]

    structural_walk(function.body, (SBlockRealize, find))
    if not found:
        return function
    schedule = Schedule(IRModule({"main": function}))
    for name, variables in found.items():
        block = schedule.get_sblock(name)
        loops = schedule.get_loops(block)
        first = next(
            loop for loop in loops if any(schedule.get(loop).loop_var.same_as(variable) for variable in variables)
        )
        schedule.decompose_reduction(block, first)
    return schedule.mod["main"]


def _options(choose: Choose | None, name: str, function: Function, use: Use) -> Iterator[Sequence[Knobs] | str | None]:
    """Yield the chosen schedules as long as they are rejected, then None for the static model."""
    if choose is not None:
        yield from takewhile(
            lambda option: option is not None, (choose(name, function, use) for _ in range(MAX_REJECTED))
        )
    yield None


class Scheduler:
    """Schedules one function.

    A step that would change results is rejected by TVM's own checks, with a `ScheduleError`.

    Args:
        function: the function.
        unit: the vector registers.
        use: how the module calls it.
        knobs: knobs of its register blocks in order; None for the static model.
        uses_stack: whether TVM's CPU code keeps small memory of global scope on the stack, and allocates other memory
            in each run of a loop, as it does for its virtual machine.

    Attributes:
        layouts: layouts in which the scheduled function reads constant arguments, by position.
        blocks: nests that got a register block, each with the tile of the static model.
    """

    def __init__(
        self,
        function: Function,
        unit: VectorUnit,
        use: Use,
        knobs: Sequence[Knobs] | None = None,
        *,
        uses_stack: bool = True,
    ) -> None:
        import tvm

        self.tvm = tvm
        self.schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
        self.root = self.schedule.get_sblock(function.body.block.name_hint)
        self.unit = unit
        self.use = use
        self.parameters = {position: function.params[position] for position in use.constants}
        self.layouts: dict[int, Layout] = {}
        self.knobs = knobs
        self.uses_stack = uses_stack
        self.is_parallel = False  # as a loop around all blocks is
        self.blocks: list[tuple[Nest, Tile]] = []

    def run(self) -> Function:
        """Schedule the function.

        Returns:
            The scheduled function.
        """
        self.inline()
        weights = blocks_of_constants(self.schedule, self.root, self.parameters.values())
        self.keep_own_parameters()
        in_strips = run_in_strips(self.schedule, self.root)
        self.is_parallel = in_strips is not None
        done = [in_strips] if in_strips is not None else []
        for block in self.schedule.get_child_blocks(self.root):
            if any(write.source in weights for write in self.schedule.get(block).writes):
                continue
            nest = self.nest(block)
            tile = self.tile(nest)
            rows = self.rows_of_constants(block, weights)
            if tile is not None:
                self.pack(block, nest, tile, rows)
                done += self.keep_in_registers(block, nest, tile, rows)
            else:
                done += [one for row in rows.values() for one in compute_rows(self.schedule, row)]
        names = {self.schedule.get(block).name_hint for block in done}
        for block in self.schedule.get_child_blocks(self.root):
            statement = self.schedule.get(block)
            if ROWS in statement.annotations:
                self.run_rows(block, int(statement.annotations[ROWS]))
            elif statement.name_hint not in names:
                self.run_parallel(block)
        return vectorisable(skip_padding(divide_tiles(self.schedule.mod["main"]), self.use))

    def tile(self, nest: Nest) -> Tile | None:
        """Return the register block of a nest: that of the knobs, else that of the static model.

        Args:
            nest: the loop nest.

        Returns:
            The tile, or None if the model has none.

        Raises:
            ValueError: the knobs make no tile that fits.
        """
        tile = plan(nest, self.unit)
        if tile is None:
            return None
        at = len(self.blocks)
        self.blocks.append((nest, tile))
        if self.knobs is None:
            return tile
        chosen = tile_of(nest, self.knobs[at], self.unit) if at < len(self.knobs) else None
        if chosen is None:
            raise ValueError(f"the knobs of register block {at} fit neither its loops nor {self.unit}")
        return chosen

    def inline(self) -> None:
        """Inline elementwise blocks where that computes nothing more than once.

        Readers are inlined before their operands.
        """
        for block in reversed(self.schedule.get_child_blocks(self.root)):
            readers = self.schedule.get_consumers(block)
            is_inlined = readers and "R" not in self.kinds(block) and ROWS not in self.schedule.get(block).annotations
            if is_inlined and self.may_inline(block, readers):
                with contextlib.suppress(self.tvm.s_tir.ScheduleError):
                    self.schedule.compute_inline(block)

    def keep_own_parameters(self) -> None:
        """Drop constants that several blocks read, as these may need different layouts."""
        blocks = map(self.schedule.get, self.schedule.get_child_blocks(self.root))
        sources = [read.source for block in blocks for read in block.reads]
        readers = {at: sum(map(parameter.same_as, sources)) for at, parameter in self.parameters.items()}
        self.parameters = {at: parameter for at, parameter in self.parameters.items() if readers[at] == 1}

    def may_inline(self, block: Block, readers: Sequence[Block]) -> bool:
        """Return whether a block may be inlined.

        Its readers must stay short, and nothing may be computed twice.

        Args:
            block: an elementwise block.
            readers: the blocks that read its result.

        Returns:
            True for a copy, a scalar, or for one reader that runs no more often.
        """
        result, calls = self.schedule.get(block).writes[0].source, library_calls(self.schedule.get(block))
        length = self.length(block)
        for reader in readers:
            if calls and library_calls(self.schedule.get(reader)):
                return False
            uses = sum(load.source.same_as(result) for load in self.loads(reader))
            if self.length(reader) + uses * (length - 1) > MOST_LOADS:
                return False
        if isinstance(getattr(self.schedule.get(block).body, "value", None), self.tvm.ir.expr.TensorLoad):
            return True
        work, *repeated = (
            math.prod(axis.dom.extent for axis in self.schedule.get(each).iter_vars) for each in (block, *readers)
        )
        # LLVM computes a scalar once, outside of the loops of its readers.
        if not calls and self.tvm.sym.Analyzer().can_prove(work == 1):
            return True
        return len(repeated) == 1 and bool(self.tvm.sym.Analyzer().can_prove(repeated[0] <= work))

    def length(self, block: Block) -> int:
        """Return the length of the text of a block.

        Args:
            block: the block.

        Returns:
            The number of loads that would take as long to compile.
        """
        from tvm_ffi import structural_walk

        statement, choices = self.schedule.get(block), list[Expr]()
        structural_walk(statement.body, (self.tvm.tirx.Select, choices.append))
        calls = LOADS_OF_CALL * library_calls(statement)
        return len(self.loads(block)) + calls + LOADS_OF_CHOICE * len(choices)

    def loads(self, block: Block) -> list[Expr]:
        """Return the loads in the body of a block.

        Args:
            block: the block.

        Returns:
            Expressions, in order.
        """
        from tvm_ffi import structural_walk

        found: list[Expr] = []
        structural_walk(self.schedule.get(block).body, (self.tvm.ir.expr.TensorLoad, found.append))
        return found

    def nest(self, block: Block) -> Nest:
        """Describe a block for `plan`.

        Args:
            block: the block.

        Returns:
            Its loop nest.
        """
        statement = self.schedule.get(block)
        return Nest(
            self.kinds(block),
            tuple(self.static(axis.dom.extent) for axis in statement.iter_vars),
            tuple(self.access(region, statement.iter_vars) for region in statement.reads),
            tuple(self.access(region, statement.iter_vars) for region in statement.writes),
            max((int(region.source.dtype.bits) for region in statement.writes), default=32),
            any(library_calls(self.schedule.get(reader)) for reader in self.schedule.get_consumers(block)),
        )

    def kinds(self, block: Block) -> str:
        """Return the kinds of a block's axes.

        Args:
            block: the block.

        Returns:
            A letter per axis: S spatial, R reduced, P a pair of reduced terms, ? none of these.
        """
        axis = self.tvm.tirx.IterVar
        letters, statement = {axis.DataPar: "S", axis.CommReduce: "R"}, self.schedule.get(block)
        kinds = "".join(letters.get(each.iter_type, "?") for each in statement.iter_vars)
        return f"{kinds[:-1]}P" if PAIRS in statement.annotations else kinds

    def static(self, extent: Expr) -> int | None:
        """Return an extent as a number.

        Args:
            extent: an expression.

        Returns:
            The number, or None if it is symbolic.
        """
        return int(extent) if isinstance(extent, self.tvm.tirx.IntImm) else None

    def access(self, region: Expr, axes: Sequence[Expr]) -> Access:
        """Describe how a block reads or writes a tensor.

        Args:
            region: the accessed region of the tensor.
            axes: axes of the block.

        Returns:
            The access.
        """
        constant = (at for at, parameter in self.parameters.items() if region.source.same_as(parameter))
        return Access(
            tuple(self.steps(index.min, axes) for index in region.region),
            tuple(self.static(size) for size in region.source.shape),
            next(constant, None),
        )

    def steps(self, index: Expr, axes: Sequence[Expr]) -> dict[int, int]:
        """Return the axes in an index.

        Args:
            index: an expression.
            axes: axes of the block.

        Returns:
            By axis, the number of steps along it that move the index by one.
        """
        from tvm_ffi import WalkResult, structural_walk

        tirx, steps = self.tvm.tirx, dict[int, int]()

        def note(variable: Expr, step: int = 1) -> None:
            for at in (at for at, axis in enumerate(axes) if axis.var.same_as(variable)):
                steps[at] = math.gcd(steps.get(at, 0), step)

        def division(expr: Expr) -> object:
            if not isinstance(expr.a, tirx.Var) or not isinstance(expr.b, tirx.IntImm):
                return WalkResult.ADVANCE
            note(expr.a, int(expr.b))
            return WalkResult.SKIP

        structural_walk(index, [(tirx.FloorDiv, division), (tirx.Var, note)], order="pre")
        return steps

    def rows_of_constants(self, block: Block, weights: Mapping[Any, Block]) -> dict[int, Block]:
        """Return the blocks that compute what a block reads of constants, by read.

        Args:
            block: the block.
            weights: blocks that read only constants, with one reader each, by what they compute.

        Returns:
            Those of `weights` that it reads.
        """
        reads = [read.source for read in self.schedule.get(block).reads]
        return {at: weights[source] for at, source in enumerate(reads) if source in weights}

    def pack(self, block: Block, nest: Nest, tile: Tile, rows: Mapping[int, Block]) -> None:
        """Make the vectors that a tile reads contiguous.

        Constants are laid out at compile time, other values in each run.

        Args:
            block: the block.
            nest: its loop nest.
            tile: its tile.
            rows: blocks that compute what it reads from constants, by the number of the read.
        """
        if tile.pack is None:
            return
        read, layout = tile.pack
        argument = nest.reads[read].constant
        if read in rows:
            self.pack_row(rows[read], layout)
        elif argument is None:
            self.schedule.transform_layout(self.schedule.cache_read(block, read, "global"), ("write", 0), layout.index)
        else:
            self.schedule.transform_layout(block, ("read", read), layout.index)
            self.layouts[argument] = layout

    def pack_row(self, row: Block, layout: Layout) -> None:
        """Let a block of constants write a layout, and lay its constants out in the same order.

        Args:
            row: the block.
            layout: the layout of what it writes.
        """
        nest = self.nest(row)
        (axis,) = nest.writes[0].dims[layout.dim]
        for read, access in enumerate(nest.reads):
            moved = [steps for steps in access.dims if steps]
            if access.constant is not None and len(moved) == len(access.dims) == len(nest.extents):
                own = replace(layout, dim=moved.index({axis: 1}))
                self.schedule.transform_layout(row, ("read", read), own.index)
                self.layouts[access.constant] = own
        self.schedule.transform_layout(row, ("write", 0), layout.index)

    def compute_row(self, row: Block, at: Loop, lanes: int) -> None:
        """Compute a block of constants in a loop of its reader.

        Vectors lie along the last dimension that it writes.

        Args:
            row: the block.
            at: the loop.
            lanes: values in a vector.
        """
        axes = len(self.schedule.get(row).iter_vars)
        along = min(self.nest(row).writes[0].dims[-1], default=axes - 1)
        self.schedule.compute_at(row, at, preserve_unit_loops=True)
        loops = self.schedule.get_loops(row)[-axes:]
        if along != axes - 1:
            self.schedule.reorder(*loops[:along], *loops[along + 1 :], loops[along])
        self.vectorise(row, lanes)

    def keep_in_registers(self, block: Block, nest: Nest, tile: Tile, rows: Mapping[int, Block]) -> list[Block]:
        """Apply a tile.

        Args:
            block: the block.
            nest: its loop nest.
            tile: its tile.
            rows: blocks that compute what it reads from constants, by the number of the read. They compute the part
                that a tile needs, in loops around all tiles that need it.

        Returns:
            The blocks that are scheduled by this.
        """
        schedule, loops = self.schedule, self.schedule.get_loops(block)[-len(nest.kinds) :]
        if rows:
            tile = replace(tile, columns_first=False)
        chunk = chunk_axes(nest, tile) if self.has_math_reader(block, nest) and not rows else ()
        if chunk:
            return self.keep_in_chunks(block, nest, tile, chunk)
        copied = panel(nest, tile) if self.uses_stack and not rows else None
        outer, inner = self.split(loops, nest, tile)
        reduced = self.reduced(loops, nest, tile)
        first = self.loops_of_reads(outer, nest, tile, rows)
        copies = []
        if copied is not None and tile.pack is not None:
            first, outer = self.split_panels(loops, outer, nest, tile, copied)
            copies = [schedule.cache_read(block, 1 - tile.pack[0], "global")]
        outer = [*first, *(loop for loop in outer if loop not in first)]
        pair = [loops[-1]] if nest.is_in_pairs else []
        schedule.reorder(*outer, *reduced, *inner, *pair)
        for copy in copies:
            schedule.compute_at(copy, first[-1], preserve_unit_loops=True)
            self.vectorise(copy, tile.lanes)
        for row in rows.values():
            self.compute_row(row, first[-1] if first else outer[0], tile.lanes)
        if tile.unroll > 1:
            schedule.unroll(reduced[-1])
        scope = self.scope(tile.rows * tile.vectors * tile.lanes, nest.bits)
        result = self.write_back(block, outer[-1], scope)
        dim = nest.writes[0].dimension(tile.axis)
        if dim is not None:
            schedule.transform_layout(block, ("write", 0), lambda *at: [*at[:dim], *at[dim + 1 :], at[dim]])
        for loop in inner[:-1]:
            schedule.unroll(loop)
        if pair:
            data, weights = (str(read.source.dtype) for read in schedule.get(block).reads)
            intrinsic = pair_intrinsic(tile.lanes, data, weights, scope)
            block = schedule.blockize(inner[-1])
        else:
            schedule.vectorize(inner[-1])
        count = 1 if tile.row_axis is None else nest.extents[tile.row_axis]
        if tile.rows > 1 and (count is None or count % tile.rows):
            split = -2 if tile.columns_first else -1
            hint = (TILE_ROWS, tile.rows) if count is None else ("pragma_loop_partition_hint", True)
            schedule.annotate(outer[split], *hint)
            del outer[split:]
        if not rows:
            self.parallel(first if copies else outer, nest.work / tile.lanes, tile.tasks)
        start = schedule.decompose_reduction(block, reduced[0])
        if pair:
            self.vectorise(schedule.get_child_blocks(start)[0], tile.lanes)
            schedule.tensorize(block, intrinsic)
        else:
            self.vectorise(start, tile.lanes)
        if dim is not None and (pair or library_calls(schedule.get(result))):
            self.turn_to_columns(result, dim, tile.lanes)
        self.vectorise(result, tile.lanes)
        return [*copies, start, block, result]

    def has_math_reader(self, block: Block, nest: Nest) -> bool:
        """Return whether all that reads a block is one that computes math functions of its elements.

        Args:
            block: the block.
            nest: its loop nest.

        Returns:
            False if the reader also reads other blocks.
        """
        readers = self.schedule.get_consumers(block)
        is_one = nest.writes_math and len(readers) == 1
        return is_one and self.reads_in_place(readers[0], block) and self.reads_only(readers[0], block)

    def keep_in_chunks(self, block: Block, nest: Nest, tile: Tile, chunk: Sequence[int]) -> list[Block]:
        """Apply a tile of a window, and run math functions of the reader over a chunk of tiles.

        Args:
            block: the block.
            nest: its loop nest.
            tile: its tile.
            chunk: the axes of a chunk, as `chunk_axes` returns them.

        Returns:
            The blocks that are scheduled by this.
        """
        schedule, loops = self.schedule, self.schedule.get_loops(block)[-len(nest.kinds) :]
        (result,) = schedule.get_consumers(block)
        tiles, inner = self.split(loops, nest, tile)
        reduced = self.reduced(loops, nest, tile)
        around = [loops[axis] for axis in nest.spatial if axis not in chunk]
        within = tiles[len(around) :]
        schedule.reorder(*around, *within, *reduced, *inner)
        if tile.unroll > 1:
            schedule.unroll(reduced[-1])
        copied = schedule.cache_write(block, 0, self.scope(tile.rows * tile.vectors * tile.lanes, nest.bits))
        schedule.reverse_compute_at(copied, within[-1], preserve_unit_loops=True)
        schedule.reverse_compute_at(result, around[-1], preserve_unit_loops=True)
        for loop in inner[:-1]:
            schedule.unroll(loop)
        schedule.vectorize(inner[-1])
        self.parallel(around, nest.work / tile.lanes, tile.tasks)
        start = schedule.decompose_reduction(block, reduced[0])
        if len(chunk) > 1:
            schedule.fuse(*schedule.get_loops(result)[-len(chunk) :])
        self.vectorise(start, tile.lanes)
        self.vectorise(copied, tile.lanes)
        self.vectorise(result, self.unit.lanes(nest.bits))
        return [start, block, copied, result]

    def loops_of_reads(self, outer: Sequence[Loop], nest: Nest, tile: Tile, reads: Iterable[int]) -> list[Loop]:
        """Return the loops over tiles along which some reads move, but for that over rows.

        Args:
            outer: the loops over tiles, as `split` returns them.
            nest: the loop nest.
            tile: its tile.
            reads: numbers of the reads.

        Returns:
            Loops, in order.
        """
        axes = [axis for axis in nest.spatial if axis != tile.row_axis]
        moved = {axis for read in reads for steps in nest.reads[read].dims for axis in steps}
        return [loop for axis, loop in zip(axes, outer, strict=False) if axis in moved]

    def split(self, loops: Sequence[Loop], nest: Nest, tile: Tile) -> tuple[list[Loop], list[Loop]]:
        """Split the axes of a tile.

        Args:
            loops: loops of the block, one for each axis.
            nest: its loop nest.
            tile: its tile.

        Returns:
            The loops over tiles, that over rows last, and the loops of one tile.
        """
        columns, *inner = self.schedule.split(loops[tile.axis], [None, tile.vectors, tile.lanes])
        outer = [columns if axis == tile.axis else loops[axis] for axis in nest.spatial if axis != tile.row_axis]
        if tile.row_axis is None:
            return outer, inner
        rows, row = self.schedule.split(loops[tile.row_axis], [None, tile.rows])
        if tile.columns_first:
            outer.remove(columns)
            return [*outer, rows, columns], [row, *inner]
        return [*outer, rows], [row, *inner]

    def split_panels(
        self, loops: Sequence[Loop], outer: Sequence[Loop], nest: Nest, tile: Tile, panel: tuple[int, int]
    ) -> tuple[list[Loop], list[Loop]]:
        """Split the loop over the axis of a panel.

        Args:
            loops: loops of the block, one for each axis.
            outer: the loops over tiles, as `split` returns them.
            nest: its loop nest.
            tile: its tile.
            panel: the axis, and how many steps along it a panel is for.

        Returns:
            The loops over panels, and those over tiles with the steps of a panel in place of all.
        """
        axis, count = panel
        panels, within = self.schedule.split(loops[axis], [None, count])
        axes = [one for one in nest.spatial if one != tile.row_axis]
        around = [loop for one, loop in zip(axes, outer, strict=False) if one not in (axis, tile.axis)]
        return [*around, panels], [within if loop.same_as(loops[axis]) else loop for loop in outer]

    def reduced(self, loops: Sequence[Loop], nest: Nest, tile: Tile) -> list[Loop]:
        """Return the loops of a reduction in their order.

        Args:
            loops: loops of the block, one for each axis.
            nest: its loop nest.
            tile: its tile.

        Returns:
            Loops; the last one is to be unrolled, if the tile unrolls.
        """
        order = list(nest.reduced)
        order.append(order.pop(tile.inner))
        found = [loops[axis] for axis in order]
        return [*found[:-1], *self.schedule.split(found[-1], [None, tile.unroll])] if tile.unroll > 1 else found

    def scope(self, count: int, bits: int) -> str:
        """Return the scope of memory that stays in registers or on the stack.

        Args:
            count: number of values.
            bits: width of a value.

        Returns:
            TVM's name of the scope.
        """
        return "global" if self.uses_stack and count * bits // 8 < STACK_BYTES else "local"

    def write_back(self, block: Block, at: Loop, scope: str) -> Block:
        """Compute a block into local memory, and its reader, or a copy, where a tile is finished.

        Args:
            block: the block.
            at: the loop over tiles.
            scope: the scope of that memory.

        Returns:
            The reader, or the block that copies.
        """
        readers = self.schedule.get_consumers(block)
        # A reader moves into the loops only with all that it reads.
        if len(readers) == 1 and self.reads_in_place(readers[0], block) and self.reads_only(readers[0], block):
            result = readers[0]
            self.schedule.set_scope(block, 0, scope)
        else:
            result = self.schedule.cache_write(block, 0, scope)
        self.schedule.reverse_compute_at(result, at, preserve_unit_loops=True)
        return result

    def reads_in_place(self, reader: Block, block: Block) -> bool:
        """Return whether a block computes each element from the same element of another's result.

        Args:
            reader: the block.
            block: the other block.

        Returns:
            False if the reader reduces or indexes otherwise, or has more elements, as behind what it pads, or less.
        """
        result, iterated = self.schedule.get(block).writes[0].source, self.schedule.get(reader).iter_vars
        axes = [axis.var for axis in iterated]
        prove_equal = self.tvm.sym.Analyzer().can_prove_equal
        if len(axes) != len(result.shape) or not all(
            prove_equal(axis.dom.extent, size) for axis, size in zip(iterated, result.shape, strict=True)
        ):
            return False
        places = [
            [index.min for index in read.region]
            for read in self.schedule.get(reader).reads
            if read.source.same_as(result)
        ]
        return "R" not in self.kinds(reader) and all(
            len(place) == len(axes) and all(at.same_as(axis) for at, axis in zip(place, axes, strict=True))
            for place in places
        )

    def reads_only(self, reader: Block, block: Block) -> bool:
        """Return whether a block reads the result of one other block only.

        Args:
            reader: the block.
            block: the other block.

        Returns:
            False if it also reads results of further blocks.
        """
        get = self.schedule.get
        return all(get(one).same_as(get(block)) for one in self.schedule.get_producers(reader))

    def vectorise(self, block: Block, width: int) -> None:
        """Vectorize the innermost loop of a block, as far as its extent divides.

        Args:
            block: the block.
            width: the largest number of lanes.
        """
        loop = self.schedule.get_loops(block)[-1]
        lanes = divisor(self.static(self.schedule.get(loop).extent) or 1, width)
        if lanes > 1:
            self.schedule.vectorize(self.schedule.split(loop, [None, lanes])[1])

    def turn_to_columns(self, block: Block, axis: int, width: int) -> None:
        """Make the columns of a tile the innermost loop, unless the last one makes longer vectors.

        Math functions are worth vectors whose elements are stored one by one: images of 7 x 7 have none in their rows,
        and rows may leave a remainder.

        Args:
            block: the block that writes the result of a tile.
            axis: its axis of the columns.
            width: the largest number of lanes.
        """
        loops = self.schedule.get_loops(block)[-len(self.schedule.get(block).iter_vars) :]
        columns, last = (
            divisor(self.static(self.schedule.get(loop).extent) or 1, width) for loop in (loops[axis], loops[-1])
        )
        if columns >= last:
            self.schedule.reorder(*loops[:axis], *loops[axis + 1 :], loops[axis])

    def run_rows(self, block: Block, axis: int) -> None:
        """Unroll the rows of a product with a constant matrix, for vectors along the last axis.

        Args:
            block: a block of `winograd`.
            axis: its axis over the rows.
        """
        schedule, nest, loops = self.schedule, self.nest(block), self.schedule.get_loops(block)
        if len(nest.kinds) > len(loops):
            return
        *outer, along = (loop for at, loop in enumerate(loops[-len(nest.kinds) :]) if at != axis)
        rows = loops[axis - len(nest.kinds)]
        lanes = divisor(nest.extents[-1] or 1, self.unit.lanes(nest.bits))
        along, vector = schedule.split(along, [None, lanes])
        schedule.reorder(*outer, along, rows, vector)
        schedule.unroll(rows)
        schedule.vectorize(vector)
        self.parallel(outer, nest.work / lanes)

    def run_parallel(self, block: Block) -> None:
        """Make outer loops parallel, and the innermost loop run along memory as far as possible.

        Args:
            block: a block without a tile.
        """
        nest, loops = self.nest(block), self.schedule.get_loops(block)
        if self.is_parallel:
            loops = loops[-len(nest.kinds) :]
        if len(loops) != len(nest.kinds) or "?" in nest.kinds or 0 in nest.extents:
            return
        spatial, reduced = ([loops[axis] for axis in axes] for axes in (nest.spatial, nest.reduced))
        along = strip(nest, self.unit)
        if along is not None:
            work = nest.work / along.lanes
            scope = self.scope(along.lanes, nest.bits)
            reduce_in_lanes(self.schedule, block, nest, along, scope, lambda loops: self.parallel(loops, work))
            return
        if reduced:
            cut = len(spatial) - nest.slides
            self.parallel(spatial[:cut], nest.work)
            self.schedule.reorder(*reduced, *spatial[cut:])
            self.schedule.decompose_reduction(block, reduced[0])
            return
        # TVM 0.27 cannot divide the remainder of a fused loop and a symbol once more, as transposed convolutions do.
        divided = [
            at
            for at, axis in enumerate(nest.spatial)
            if at and nest.extents[axis] is None and any(read.run(axis) > 1 for read in nest.reads)
        ]
        taken = self.parallel(spatial[: min([len(spatial) - 1 or 1, *divided])], nest.work)
        # An index of a fused loop is divided by the sizes of the axes but the first, for each element if these are
        # symbolic.
        open_axes = [at for at, axis in enumerate(nest.spatial) if nest.extents[axis] is None]
        flat = spatial[max(taken, len(spatial) - nest.flat_axes, *open_axes) :]
        if len(flat) > 1:
            self.schedule.fuse(*flat)
        if flat and len(nest.reads) > MOST_CHECKED:
            self.vectorise(block, self.unit.lanes(nest.bits))

    def parallel(self, loops: Sequence[Loop], work: float, tasks: int = PARALLEL_TASKS) -> int:
        """Run the first of some loops in parallel, as many as give enough tasks.

        Args:
            loops: loops, the outermost first.
            work: number of iterations of the block.
            tasks: number of tasks that are enough.

        Returns:
            The number of loops that were fused.
        """
        if self.is_parallel or work < PARALLEL_WORK or not loops or not tasks:
            return 0
        extents = [self.static(self.schedule.get(loop).extent) or 1 for loop in loops]
        taken = next((n for n in range(1, len(loops)) if math.prod(extents[:n]) >= tasks), len(loops))
        self.schedule.parallel(self.schedule.fuse(*loops[:taken]))
        return taken
