"""Link lowered functions and instructions into one executable of TVM's virtual machine (VM).

Functions of Relax become instructions of the VM, and tensor functions native code, one module for each target. Driver
functions are written as instructions directly, as Relax has no loop: its only form is recursion, which ends at the size
of the C++ stack.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tvmtarget.backends.aligned import HUGE_PAGE
from tvmtarget.backends.protocol import Array
from tvmtarget.backends.tvm.compiled_module import LARGE_WEIGHTS, import_tvm, tensor_nbytes
from tvmtarget.backends.tvm.cpu_versions import CHECKS, object_files
from tvmtarget.backends.tvm.wide_indices import register_pipeline
from tvmtarget.ir.names import Names
from tvmtarget.ir.relax.code import with_calls

__all__ = ["Label", "Operand", "Register", "VmFunction", "VmLinker"]

Module: TypeAlias = Any
Target: TypeAlias = Any
Executable: TypeAlias = Any
Tensor: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Register:
    """A register of a function; the first ones hold its arguments."""

    number: int


@dataclass(eq=False, slots=True)
class Label:
    """A place in a function that can be jumped to; `VmFunction.place` sets its position."""

    position: int | None = None


# An argument of a call: a register, an immediate, a constant tensor, or a constant shape.
Operand: TypeAlias = "Register | int | Array | tuple[int, ...]"


@dataclass(frozen=True, slots=True)
class _Instruction:
    kind: Literal["call", "if", "goto", "return"]
    function: str = ""
    operands: tuple[Operand, ...] = ()
    result: Register | None = None
    target: Label | None = None


class VmFunction:
    """Instructions of one function, in order; registers that are released are used again.

    Args:
        name: name of the function.
        params: names of its parameters.
    """

    def __init__(self, name: str, params: Sequence[str]) -> None:
        self.name = name
        self.params = tuple(params)
        self._instructions: list[_Instruction] = []
        self._registers = len(self.params)
        self._unused: list[Register] = []

    def arguments(self) -> list[Register]:
        """Return the registers of the parameters."""
        return [Register(number) for number in range(len(self.params))]

    def register(self) -> Register:
        """Return a register that nothing uses."""
        if self._unused:
            return self._unused.pop()
        self._registers += 1
        return Register(self._registers - 1)

    def release(self, register: Register, *, is_reused: bool = True) -> None:
        """Free the value of a register.

        Args:
            register: the register; it may not be read again before it is written.
            is_reused: whether `register` may return it from now on.
        """
        self.call("vm.builtin.null_value", into=register)
        if is_reused:
            self._unused.append(register)

    def call(self, function: str, *operands: Operand, into: Register | None = None) -> Register:
        """Call a function.

        Args:
            function: name of a function of the executable, or of one that TVM's runtime registers.
            *operands: the arguments.
            into: register for the result; a new one by default.

        Returns:
            The register of the result.
        """
        result = into or self.register()
        self._instructions.append(_Instruction("call", function, operands, result))
        return result

    def run(self, function: str, *operands: Operand) -> None:
        """Call a function without a result.

        Args:
            function: name of the function.
            *operands: the arguments.
        """
        self._instructions.append(_Instruction("call", function, operands))

    def copy(self, value: Operand, into: Register | None = None) -> Register:
        """Write a value, not its contents, into a register.

        Args:
            value: the value.
            into: the register; a new one by default.

        Returns:
            The register.
        """
        return self.call("vm.builtin.copy", value, into=into)

    def jump(self, target: Label) -> None:
        """Continue at a label.

        Args:
            target: the label.
        """
        self._instructions.append(_Instruction("goto", target=target))

    def jump_unless(self, condition: Register, target: Label) -> None:
        """Continue at a later label if a condition is false.

        Args:
            condition: a tensor of one element.
            target: the label.
        """
        flag = self.call("vm.builtin.read_if_cond", condition)
        self._instructions.append(_Instruction("if", operands=(flag,), target=target))
        self._unused.append(flag)

    def place(self, label: Label) -> None:
        """Put a label before the next instruction.

        Args:
            label: the label.
        """
        label.position = len(self._instructions)

    def finish(self, results: Sequence[Register], *, is_tuple: bool) -> None:
        """Return results.

        Args:
            results: the registers.
            is_tuple: whether to return a tuple, not the only result.
        """
        value = self.call("vm.builtin.make_tuple", *results) if is_tuple else results[0]
        self._instructions.append(_Instruction("return", operands=(value,)))

    def write(self, builder: Any) -> None:  # noqa: ANN401
        """Write the function into an executable.

        Args:
            builder: TVM's `ExecBuilder`.
        """
        known: dict[int, int] = {}  # one constant for all uses of an array
        tensor, shape = import_tvm().runtime.tensor, import_tvm().runtime.ShapeTuple

        def operand(value: Operand) -> int:
            match value:
                case Register(number):
                    return int(builder.r(number))
                case int():
                    return int(builder.imm(value))
                case tuple():
                    return int(builder.convert_constant(shape(value)))
            if id(value) not in known:
                known[id(value)] = int(builder.convert_constant(tensor(value)))
            return known[id(value)]

        with builder.function(self.name, len(self.params), list(self.params)):
            for position, one in enumerate(self._instructions):
                # Jumps are relative to their own position.
                offset = (one.target.position or 0) - position if one.target is not None else 0
                operands = [operand(value) for value in one.operands]
                if one.kind == "call":
                    result = builder.void_arg() if one.result is None else builder.r(one.result.number)
                    builder.emit_call(one.function, operands, result)
                elif one.kind == "if":
                    builder.emit_if(operands[0], offset)
                elif one.kind == "goto":
                    builder.emit_goto(offset)
                else:
                    builder.emit_ret(operands[0])


@dataclass
class VmLinker:
    """Collects functions, and links them.

    Use it in a PassContext, and with the lock of `compiled_module`.

    Attributes:
        is_library: whether the executable will run as a shared library of this machine, never as it is in memory. Its
            code is then compiled by several threads.
    """

    is_library: bool = False
    _builder: Any = field(default_factory=lambda: import_tvm().relax.ExecBuilder())
    _names: Names = field(default_factory=Names)
    _tensor_functions: dict[str, tuple[Sequence[Target], dict[Any, Any]]] = field(default_factory=dict)
    _large: dict[int, Tensor] = field(default_factory=dict)  # constants by their addresses

    def add_module(self, module: Module, targets: Sequence[Target]) -> None:
        """Add the functions of a lowered module; tensor functions whose names are taken get others.

        Args:
            module: the module. Names of its Relax functions must be unique in the executable.
            targets: TVM's target of its tensor functions; or two, as for `cpu_versions.object_files`. The executable
                then runs as a library only.
        """
        tvm = import_tvm()
        renamed = _renamed(tvm, _with_checks(tvm, module), self._names)
        self._large.update((one.data_ptr(), one) for one in _large_constants(tvm, renamed))
        left = tvm.relax.vm_build._vmcodegen(self._builder, renamed)
        _, functions = self._tensor_functions.setdefault(str(targets), (targets, {}))
        functions.update(
            (variable, function)
            for variable, function in left.functions_items()
            if isinstance(function, tvm.tirx.PrimFunc)
        )

    def add_function(self, function: VmFunction) -> None:
        """Add a function of instructions, after the functions of the executable that it calls.

        Args:
            function: the function.
        """
        function.write(self._builder)

    def link(self, host: Target) -> Executable:
        """Generate native code.

        Args:
            host: TVM's target of the driver.

        Returns:
            TVM's executable.
        """
        tvm = import_tvm()
        if self._large:
            with self._builder.function(LARGE_WEIGHTS, 0, []):
                result = self._builder.r(0)
                weights = [self._builder.convert_constant(one) for one in self._large.values()]
                self._builder.emit_call("vm.builtin.make_tuple", weights, result)
                self._builder.emit_ret(result)
        libraries = []
        for targets, functions in self._tensor_functions.values():
            if functions and (self.is_library or len(targets) > 1):
                libraries += object_files(functions, targets)
            elif functions:
                with targets[0]:
                    lowering = register_pipeline() if targets[0].kind.name == "llvm" else "default"
                    libraries.append(tvm.tirx.build(tvm.IRModule(functions), target=targets[0], pipeline=lowering))
        return tvm.relax.vm_build._vmlink(self._builder, host, ext_libs=libraries)


def _with_checks(tvm: Any, module: Module) -> Module:  # noqa: ANN401
    """Mark the tensor functions that read a parameter of a program, which may have strides or begin at an offset."""
    result = module.clone()
    for _, function in module.functions_items():
        if isinstance(function, tvm.relax.Function):
            for callee in _readers_of_params(tvm, module, function):
                result[callee] = module[callee].with_attr(CHECKS, True)
    return result


def _readers_of_params(tvm: Any, module: Module, function: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the variables of the tensor functions that read a parameter of a function, or a view of one."""
    from tvm_ffi import structural_walk

    given, bindings = set(function.params), list[Any]()
    structural_walk(function.body, ((tvm.relax.VarBinding, tvm.relax.MatchCast), bindings.append))
    for binding in bindings:
        read: list[Any] = []
        structural_walk(binding.value, (tvm.ir.Var, read.append))
        if given.isdisjoint(read):
            continue
        callee = getattr(binding.value, "op", None)
        if isinstance(callee, tvm.ir.GlobalVar) and isinstance(module[callee], tvm.tirx.PrimFunc):
            yield callee
        else:  # another name of the parameter, or a view of it
            given.add(binding.var)


def _large_constants(tvm: Any, module: Module) -> list[Tensor]:  # noqa: ANN401
    """Return the constants of Relax functions that have at least the size of a huge page."""
    found: list[Tensor] = []

    def visit(node: Any) -> None:  # noqa: ANN401
        value = node.value if isinstance(node, tvm.ir.expr.GenericConst) else None
        if hasattr(value, "data_ptr") and tensor_nbytes(value) >= HUGE_PAGE:
            found.append(value)

    for _, function in module.functions_items():
        if isinstance(function, tvm.relax.Function):
            tvm.relax.analysis.post_order_visit(function, visit)
    return found


def _renamed(tvm: Any, module: Module, names: Names) -> Module:  # noqa: ANN401
    """Give tensor functions whose names are taken other names, and take the names of all functions."""
    from tvm_ffi import structural_map

    new: dict[str, Any] = {}
    for variable in module.get_global_vars():
        fresh = names.fresh(variable.name_hint)
        if fresh != variable.name_hint:
            new[variable.name_hint] = tvm.ir.GlobalVar(fresh)
    if not new:
        return module
    functions = {}
    for variable, function in module.functions_items():
        name = variable.name_hint
        if isinstance(function, tvm.tirx.PrimFunc):
            function = with_calls(function, lambda _, call: new.get(call.name))
            symbol = function.attrs.get("global_symbol")
            if symbol in new:
                function = function.with_attr("global_symbol", new[symbol].name_hint)
        else:
            function = structural_map(function, (tvm.ir.GlobalVar, lambda used: new.get(used.name_hint, used)))
        functions[new.get(name, variable)] = function
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)
