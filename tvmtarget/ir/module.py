"""IRModule: a frozen program of functions on a target, read from ONNX, constrained, printed and handed on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tvmtarget.errors import ModelError, TargetError, UnknownNameError, did_you_mean
from tvmtarget.ir.archive import read_archive, write_archive
from tvmtarget.ir.entry_function import set_entry
from tvmtarget.ir.function import CODE, FUNCTION, Constant, Function, constants_of
from tvmtarget.ir.inline import inline_calls
from tvmtarget.ir.json_form import read_module, write_module
from tvmtarget.ir.structure import module_hash
from tvmtarget.ir.text.parser import parse_functions
from tvmtarget.ir.text.printer import print_module
from tvmtarget.ir.types import TensorType, dtype_of
from tvmtarget.ir.verify import verify_functions
from tvmtarget.target.configuration import CompilationConfig
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.problems import shown
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target

if TYPE_CHECKING:
    import onnx
    import tvm

__all__ = ["IRModule"]


@dataclass(frozen=True)
class IRModule:
    """A program: functions, the target tree they are constrained to, and free attributes.

    The entry is the function called `main`; `with_entry` makes it another one. What was read from a text or a file is
    not trusted: of its functions of Relax only those are compiled that hold nothing but operators (`safe_source.py`).
    """

    functions: tuple[Function, ...]
    target: Target | None = None
    attrs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    is_trusted: bool = field(default=True, compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        names = [function.name for function in self.functions]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) != len(names) else []
        if twice:
            raise ModelError(f"two functions are called {twice[0]!r}")
        object.__setattr__(
            self, "attrs", MappingProxyType({name: _frozen(value) for name, value in self.attrs.items()})
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (IRModule, (self.functions, self.target, dict(self.attrs)))

    @classmethod
    def parse(
        cls, text: str, constants: Mapping[str, np.ndarray[Any, Any]] | None = None, *, trust: bool = False
    ) -> IRModule:
        """Read the text form; `TextError` has line and column, `ModelError` what breaks a rule of the IR.

        `constants` are the arrays that the text names by digest, as `module.constants()` lists them. With `trust`, code
        of TVM in it may be compiled, and run as you.

        >>> module = IRModule.parse("func @main(%x: float32[n]) opsets(onnx=17) { %y = onnx.Relu(%x) return %y }")
        >>> IRModule.parse(str(module)) == module
        True
        """
        if not isinstance(text, str):
            raise ModelError(f"the text of a module is a string, not {shown(text)}")
        functions, target, attrs = parse_functions(text, constants or {})
        return cls(functions, target, attrs, is_trusted=trust).verify()

    def to_json(self) -> dict[str, object]:
        """Return the module as JSON, with constants by digest; `module.constants()` has their elements."""
        return write_module(self.functions, self.target, self.attrs)

    @classmethod
    def from_json(
        cls, data: object, constants: Mapping[str, np.ndarray[Any, Any]] | None = None, *, trust: bool = False
    ) -> IRModule:
        """Read what `to_json` gave, or its text; `constants` are arrays by digest. `ModelError` says what is wrong.

        With `trust`, code of TVM in it may be compiled, and run as you.
        """
        return cls(*read_module(data, constants or {}), is_trusted=trust).verify()

    def save(self, path: str | Path) -> None:
        """Write the module with its constants into one file; the same module makes the same bytes."""
        write_archive(Path(path), self.to_json(), self.constants())

    @classmethod
    def load(cls, path: str | Path, *, trust: bool = False) -> IRModule:
        """Read a saved module; what becomes of the file later does not matter. `ArtifactError` if it is damaged.

        With `trust`, code of TVM in it may be compiled, and run as you.
        """
        return cls(*read_archive(Path(path)), is_trusted=trust).verify()

    @classmethod
    def from_onnx(cls, model: str | Path | bytes | onnx.ModelProto, *, keep_functions: bool = False) -> IRModule:
        """Read an ONNX file, its bytes, or a loaded model; `ModelError` says what is wrong with it.

        Initializers become constants by reference, shapes are inferred, symbolic dimensions are kept, and every
        operation keeps the name it has in the model (one is made for those that have none). Functions of the model
        are inlined; with `keep_functions` each becomes a function of the module, one for each set of types and
        attributes that it is called with. Metadata and documentation are carried (`ir/onnx_notes.py`).
        """
        from tvmtarget.ir.onnx.reader import read_model

        module = cls(read_model(model, keep_functions=keep_functions)).verify()
        if keep_functions or len(module.functions) == 1:
            return module
        return cls((inline_calls(module.main, module.by_name).function,)).verify()

    def to_onnx(self, function: str = "main") -> onnx.ModelProto:
        """Write a function, with all it calls, as a checked ONNX model that computes the same."""
        from tvmtarget.ir.onnx.writer import write_function

        return write_function(self[function], self.by_name)

    def save_onnx(self, path: str | Path, function: str = "main") -> None:
        """Write a function as an ONNX file, with large constants in `<path>.data` where it would exceed 2 GB."""
        from tvmtarget.ir.onnx.writer import save_function

        save_function(self[function], self.by_name, Path(path))

    @classmethod
    def of(cls, program: object, target: Target | str | None = None, entry: str | None = None) -> IRModule:
        """Return the module of whatever holds a program: itself, an ONNX file, bytes or model, a module of TVM.

        `target` is for `from_tvm`, `entry` as in `with_entry`; `ModelError` for anything else.
        """
        if isinstance(program, IRModule):
            return program.with_entry(entry)
        if isinstance(program, str | Path | bytes) or type(program).__name__ == "ModelProto":
            return cls.from_onnx(cast("str | Path | bytes | onnx.ModelProto", program)).with_entry(entry)
        return cls.from_tvm(cast("tvm.IRModule", program), target).with_entry(entry)

    @classmethod
    def from_tvm(cls, module: tvm.IRModule, target: Target | str | None = None) -> IRModule:
        """Read a module of Apache TVM; `ModelError` names the function and binding of what is not carried.

        Functions of Relax become functions of calls, TIR functions and other code opaque ones with a signature.
        Whatever TVM knows besides stands in attributes `tvm.*`, so that `to_tvm` gives the same module back.
        With a target, what TVM's targets, code generators and virtual devices say becomes constraints on its nodes;
        `TargetError` names functions and values for which it has none, and why.
        """
        from tvmtarget.ir.relax.decisions import restored
        from tvmtarget.ir.relax.reader import read_tvm_module
        from tvmtarget.ir.relax.vdevice_constraints import constrained

        tree = Target.parse(target) if isinstance(target, str) else target
        functions, attrs = read_tvm_module(module)
        functions = restored(functions)
        if tree is not None:
            functions = constrained(functions, attrs, Topology(tree.resolve()))
        return cls(functions, tree, attrs).verify()

    def to_tvm(self) -> tvm.IRModule:
        """Return the module as one of Apache TVM; `ModelError` names operations that are not Relax's.

        What a decomposition decided is written as TVM says it: functions of external code generators are outlined,
        values of devices of TVM's own bear a virtual device, and TIR functions the target they are for. Constraints
        that this does not say are attributes `tvmtarget.*` of functions, which `from_tvm` reads.
        """
        from tvmtarget.ir.relax.decisions import with_decisions
        from tvmtarget.ir.relax.deployed import deployed_module
        from tvmtarget.ir.relax.writer import write_tvm_module

        functions, attrs = deployed_module(self.functions, self.attrs, self.target)
        topology = None if self.target is None else Topology(self.target.resolve())
        return write_tvm_module(with_decisions(functions, attrs, topology), attrs)

    @cached_property
    def by_name(self) -> Mapping[str, Function]:
        """The functions by name."""
        return {function.name: function for function in self.functions}

    def constants(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the elements of all constants by digest, in functions, nested bodies and attributes, each once."""
        return {constant.digest: constant.data for function in self for constant in constants_of(function)}

    def __getitem__(self, name: str) -> Function:
        if not isinstance(name, str) or name not in self.by_name:
            raise UnknownNameError(f"no function {shown(name)} in the module{did_you_mean(str(name), self.by_name)}")
        return self.by_name[name]

    def __iter__(self) -> Iterator[Function]:
        return iter(self.functions)

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    @property
    def main(self) -> Function:
        """The entry function."""
        return self["main"]

    def replace(self, **changes: Any) -> IRModule:  # noqa: ANN401
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    def with_target(self, target: Target | str | None) -> IRModule:
        """Return the module on another target tree."""
        if not isinstance(target, Target | str | None):
            raise TargetError(f"a target is a Target or its text, not {shown(target)}")
        return self.replace(target=Target.parse(target) if isinstance(target, str) else target)

    def with_configuration(self, configuration: CompilationConfig) -> IRModule:
        """Return the module on the tree of a flat configuration (TVM's M0)."""
        if not isinstance(configuration, CompilationConfig):
            raise TargetError(f"a configuration is a CompilationConfig, not {shown(configuration)}")
        return self.replace(target=configuration.to_target())

    @property
    def configuration(self) -> CompilationConfig | None:
        """The target viewed as a flat configuration; `TargetError` where that cannot say what the tree does."""
        return None if self.target is None else CompilationConfig.from_target(self.target)

    def with_attrs(self, **attrs: Any) -> IRModule:  # noqa: ANN401
        """Return the module with attributes added or changed."""
        return self.replace(attrs={**self.attrs, **attrs})

    def with_entry(self, name: str | None = None) -> IRModule:
        """Return the module with a function as its entry, which is called `main` as long as it is.

        The entry before gets its own name back, or one like `main_1`. Unless a name is given, the entry is `main`, else
        the only function that no other one calls; `ModelError` with the names where there are several.
        """
        return self.replace(functions=set_entry(self.functions, name))

    def with_function(self, function: Function) -> IRModule:
        """Return the module with one function added, or exchanged for the one of that name."""
        if function.name not in self:
            return self.replace(functions=(*self.functions, function))
        return self.replace(functions=tuple(function if old.name == function.name else old for old in self.functions))

    def map(self, change: Callable[[Function], Function]) -> IRModule:
        """Return the module with every function changed: `module.map(remove_dead_code)`."""
        return self.replace(functions=tuple(change(function) for function in self))

    def bind(self, values: Mapping[str, np.ndarray[Any, Any]]) -> IRModule:
        """Return the module with parameters of the entry turned into constants; `ModelError` if they do not fit."""
        types = {param.name: param.type for param in self.main.params}
        constants: list[Constant] = []
        for name, value in values.items():
            type_ = types.get(name)
            if not isinstance(type_, TensorType):
                raise ModelError(f"{name!r} cannot be bound; tensors that can be: {', '.join(types)}")
            array = np.asarray(value)
            given = TensorType(dtype_of(array.dtype), array.shape)
            if not given.agrees_with(type_):
                raise ModelError(f"{name!r} is bound to {given}, not {type_}")
            constants.append(Constant(name, given, array))
        params = tuple(param for param in self.main.params if param.name not in values)
        return self.with_function(self.main.replace(params=params, constants=(*self.main.constants, *constants)))

    def constrain(self, name: str, constraint: Constraint | str | Target, *, function: str | None = None) -> IRModule:
        """Return the module with a constraint on a function, or on one call; an earlier one on it is replaced.

        Args:
            name: a function (`main`, or `function:NAME`), or a call of `main` by its source. A name that is both is
                refused.
            constraint: what it must run on.
            function: the function that the call is in; `name` then is the name of a call and of nothing else.

        Raises:
            UnknownNameError: there is no such function or call; the nearest names are listed.
            ModelError: the name is that of a function and of a call.
            TargetError: what is given is no constraint.

        >>> module = IRModule.parse("func @main(%x) opsets(onnx=17) { %y = onnx.Relu(%x) as relu return %y }")
        >>> constrained = module.constrain("main", "gpu").constrain("relu", "cuda")
        >>> str(constrained.main.constraint), str(constrained.main.body[0].constraint)
        ('gpu', 'cuda')
        """
        wanted = Constraint.parse(constraint)
        if not isinstance(name, str):
            raise UnknownNameError(f"a function or an op is named by a text, not {shown(name)}")
        if function is None and name.startswith(FUNCTION):
            return self.with_function(self[name.removeprefix(FUNCTION)].replace(constraint=wanted))
        old = self[function] if function is not None else self.by_name.get("main")
        sources = {call.source for call in old.body if call.op != CODE} - {""} if old is not None else set()
        if function is None and name in self:
            if name in sources:
                raise ModelError(
                    f"{name!r} is a function and an op of function 'main'; write {FUNCTION + name!r} for the function, "
                    f"or function='main' beside {name!r} for the op"
                )
            return self.with_function(self[name].replace(constraint=wanted))
        if old is None or name not in sources:
            known = sources if function is not None else sources.union(self.by_name)
            what = f"op {name!r} in function {function!r}" if function is not None else f"function or op {name!r}"
            raise UnknownNameError(f"no {what}{did_you_mean(name, known)}")
        body = tuple(replace(call, constraint=wanted) if call.source == name else call for call in old.body)
        return self.with_function(old.replace(body=body))

    def structural_hash(self) -> str:
        """Return a hash in which names of values, operations and private functions do not matter (`structure.py`)."""
        return module_hash(self)

    def verify(self) -> IRModule:
        """Check every rule of the IR and return the module; `ModelError` lists all that is broken."""
        verify_functions(self.by_name, self.target)
        return self

    def __str__(self) -> str:
        return print_module(self.functions, self.target, self.attrs)


def _frozen(value: object) -> object:
    """Return the value of an attribute as files give it back: lists as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
