"""IRModule: a frozen program of functions on a target tree, with readers and writers of all its formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tvmtarget.errors import ModelError, TargetError, UnknownNameError, did_you_mean, raise_all, warn
from tvmtarget.human_units import counted
from tvmtarget.ir.archive import read_archive, write_archive
from tvmtarget.ir.def_use import dataflow_graph
from tvmtarget.ir.entry_function import set_entry
from tvmtarget.ir.function import CODE, FUNCTION, Constant, Function, constants_of, reachable_functions
from tvmtarget.ir.inline import inline_calls
from tvmtarget.ir.json_form import read_module, write_module
from tvmtarget.ir.structure import module_hash
from tvmtarget.ir.text.parser import parse_functions
from tvmtarget.ir.text.printer import MAX_DEPTH, print_module
from tvmtarget.ir.types import TensorType, dtype_of
from tvmtarget.ir.verify import mistyped_attributes, mistyped_fields, verify_functions, verify_result_types
from tvmtarget.target.argument_types import check_methods
from tvmtarget.target.configuration import CompilationConfig
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.problems import shown
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target, TargetLike, as_target

if TYPE_CHECKING:
    import networkx
    import onnx
    import tvm

__all__ = ["IRModule"]

_MAX_LISTED = 5  # constraints in a warning, functions in `repr`


@check_methods()
@dataclass(frozen=True)
class IRModule:
    """A program: functions, the target tree that their constraints refer to, and free attributes.

    The entry is the function called `main`; `with_entry` selects another one. A module read from text or a file is
    untrusted: its Relax functions are compiled only if they hold nothing but operators (`relax/safe_source.py`).

    Attributes:
        functions: functions in order; their names are unique.
        target: target tree, or None.
        attrs: attributes of the module; lists become tuples.
        is_trusted: whether code of TVM in the module may be compiled and run.
    """

    functions: tuple[Function, ...]
    target: Target | None = None
    attrs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    is_trusted: bool = field(default=True, compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        names = [function.name for function in self.functions]
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise ModelError(f"a function is named by a text, not {shown(wrong[0])}")
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) != len(names) else []
        if twice:
            raise ModelError(f"two functions are called {twice[0]!r}")
        # Frozen dataclass: normalization in `__post_init__` is the only assignment.
        object.__setattr__(self, "functions", tuple(self.functions))
        object.__setattr__(
            self, "attrs", MappingProxyType({name: _frozen(value) for name, value in self.attrs.items()})
        )

    def __hash__(self) -> int:
        # Without the attributes, whose values need not be hashable.
        return hash((self.functions, self.target))

    def __reduce__(self) -> tuple[object, ...]:
        # A mapping proxy cannot be pickled, so that the attributes travel as a dict.
        return (partial(IRModule, is_trusted=self.is_trusted), (self.functions, self.target, dict(self.attrs)))

    @classmethod
    def parse(
        cls, text: str, constants: Mapping[str, np.ndarray[Any, Any]] | None = None, *, trust: bool = False
    ) -> IRModule:
        """Parse the text form.

        Args:
            text: text of a module, as `str(module)` prints it.
            constants: arrays by SHA-256 digest, for constants that the text names by digest (`module.constants()`).
            trust: allow code of TVM in the module to be compiled and run with your rights.

        Returns:
            The verified module.

        Raises:
            TextError: a syntax error, with line and column.
            ModelError: the module breaks a rule of the IR.

        >>> module = IRModule.parse("func @main(%x: float32[n]) opsets(onnx=17) { %y = onnx.Relu(%x) return %y }")
        >>> IRModule.parse(str(module)) == module
        True
        """
        if not isinstance(text, str):
            raise ModelError(f"the text of a module is a string, not {shown(text)}")
        functions, target, attrs = parse_functions(text, constants or {})
        return cls(functions, target, attrs, is_trusted=trust).verify()

    def to_json(self) -> dict[str, object]:
        """Return the module as JSON data.

        Returns:
            Data for `json.dumps`; constants are named by digest (`constants()` returns their elements).

        Raises:
            ModelError: the module breaks a rule of the IR.
        """
        return write_module(self.verify().functions, self.target, self.attrs)

    @classmethod
    def from_json(
        cls, data: object, constants: Mapping[str, np.ndarray[Any, Any]] | None = None, *, trust: bool = False
    ) -> IRModule:
        """Read the JSON form.

        Args:
            data: what `to_json` returned, or its text.
            constants: arrays by SHA-256 digest.
            trust: allow code of TVM in the module to be compiled and run with your rights.

        Returns:
            The verified module.

        Raises:
            ModelError: the data is not a module, or the module breaks a rule of the IR.
        """
        return cls(*read_module(data, constants or {}), is_trusted=trust).verify()

    def save(self, path: str | Path) -> None:
        """Write the module with its constants into one file; equal modules give equal bytes.

        Args:
            path: file to write; it is replaced only when the new one is complete.
        """
        write_archive(Path(path), self.to_json(), self.constants())

    @classmethod
    def load(cls, path: str | Path, *, trust: bool = False) -> IRModule:
        """Read a saved module; later changes of the file do not affect it.

        Args:
            path: file written by `save`.
            trust: allow code of TVM in the module to be compiled and run with your rights.

        Returns:
            The verified module.

        Raises:
            ArtifactError: the file is damaged or not a module.
        """
        return cls(*read_archive(Path(path)), is_trusted=trust).verify()

    @classmethod
    def from_onnx(cls, model: str | Path | bytes | onnx.ModelProto, *, keep_functions: bool = False) -> IRModule:
        """Read an ONNX model.

        Initializers become constants by reference, shapes are inferred, symbolic dimensions are kept. Every operation
        keeps its name in the model; one without a name gets one. Metadata and documentation are carried
        (`onnx/metadata.py`).

        Args:
            model: path of a file, its bytes, or a loaded model.
            keep_functions: keep model-local functions as functions of the module, one for each set of types and
                attributes that they are called with, instead of inlining them.

        Returns:
            The verified module.

        Raises:
            ModelError: the model is malformed or uses something that is not supported.
        """
        from tvmtarget.ir.onnx.reader import read_model

        module = cls(read_model(model, keep_functions=keep_functions)).verify()
        # Functions with other operator set versions are inlined here, where they are converted.
        if keep_functions or len(module.functions) == 1:
            return module
        return cls((inline_calls(module.main, module.by_name).function,)).verify()

    def to_onnx(self, function: str = "main") -> onnx.ModelProto:
        """Write a function as a checked ONNX model that computes the same.

        Constraints, memory scopes, the target and attributes of the module are left out, with a warning that lists
        them; text, JSON and `save` keep them. Constraints refer to nodes of the target, for which ONNX has no place.

        Args:
            function: name of the function; all functions that it calls are inlined.

        Returns:
            The model.

        Raises:
            ModelError: the module breaks a rule of the IR, the function has no form in ONNX, or more than 2 GB of
                constants.
        """
        from tvmtarget.ir.onnx.writer import write_function

        written = write_function(self.verify()[function], self.by_name)
        self._warn_of_omissions(function, "to_onnx")
        return written

    def save_onnx(self, path: str | Path, function: str = "main") -> None:
        """Write a function as an ONNX file; as by `to_onnx`, a warning lists what is left out.

        Args:
            path: file to write; large constants go into `<path>.data` if the file would exceed 2 GB.
            function: name of the function; all functions that it calls are inlined.

        Raises:
            ModelError: the module breaks a rule of the IR, the function has no form in ONNX, or a file cannot be
                written.
        """
        from tvmtarget.ir.onnx.writer import save_function

        save_function(self.verify()[function], self.by_name, Path(path))
        self._warn_of_omissions(function, "save_onnx")

    def _warn_of_omissions(self, name: str, method: str) -> None:
        """Warn of decisions that a model of ONNX has no place for."""
        functions = [self[one] for one in reachable_functions([name], self.by_name)]
        bodies = [*functions, *(body for one in functions for call in one.calls for _, body in call.regions)]
        calls = [call for one in functions for call in one.calls]
        values = [
            *chain.from_iterable(one.params for one in bodies),
            *chain.from_iterable(one.outputs for one in calls),
        ]
        constraints = [
            *(f"{one.constraint} of function {one.name!r}" for one in bodies if one.constraint is not None),
            *(f"{one.constraint} of op {one.source or one.op!r}" for one in calls if one.constraint is not None),
        ]
        memories = sum(bool(value.scope) for value in values)
        omitted = ["the target"] * (self.target is not None)
        if constraints:
            more = f", and {len(constraints) - _MAX_LISTED} more" if len(constraints) > _MAX_LISTED else ""
            listed = ", ".join(constraints[:_MAX_LISTED])
            omitted.append(f"{counted(len(constraints), 'constraint')} ({listed}{more})")
        omitted += [f"the memories of {counted(memories, 'value')}"] * bool(memories)
        omitted += [f"attributes of the module ({', '.join(sorted(self.attrs))})"] * bool(self.attrs)
        if omitted:
            kept = "text, JSON, a saved module and to_tvm keep them"
            warn(f"{method} leaves out what ONNX has no place for: {', '.join(omitted)}; {kept}")

    @classmethod
    def of(cls, program: object, target: TargetLike | None = None, entry: str | None = None) -> IRModule:
        """Return the module of any supported form of a program.

        Args:
            program: a module, an ONNX file, bytes or model, or a module of TVM.
            target: target tree for a module of TVM, as in `from_tvm`.
            entry: function to make the entry, as in `with_entry`.

        Returns:
            The module.

        Raises:
            ModelError: the program is of another type or malformed.
        """
        if isinstance(program, IRModule):
            return program.with_entry(entry)
        # A model is recognized by the name of its type, which needs no import of onnx.
        if isinstance(program, str | Path | bytes) or type(program).__name__ == "ModelProto":
            return cls.from_onnx(cast("str | Path | bytes | onnx.ModelProto", program)).with_entry(entry)
        return cls.from_tvm(cast("tvm.IRModule", program), target).with_entry(entry)

    @classmethod
    def from_tvm(cls, module: tvm.IRModule, target: TargetLike | None = None) -> IRModule:
        """Read a module of Apache TVM.

        Relax functions become functions of calls; TIR functions and other code become functions of code. Everything
        else that TVM knows is kept in attributes `tvm.*`, so that `to_tvm` gives the same module back.

        Args:
            module: the module of TVM.
            target: target tree; with it, TVM's targets, code generators and virtual devices become constraints on its
                nodes.

        Returns:
            The verified module.

        Raises:
            ModelError: a function or binding cannot be represented; the message names it.
            TargetError: the target has no node for what functions and values say; the message names them.
        """
        from tvmtarget.ir.relax.constraint_attributes import read_constraint_attributes
        from tvmtarget.ir.relax.reader import read_tvm_module
        from tvmtarget.ir.relax.vdevice_constraints import constrain_from_tvm

        tree = None if target is None else as_target(target)
        functions, attrs = read_tvm_module(module)
        functions = read_constraint_attributes(functions)
        if tree is not None:
            functions = constrain_from_tvm(functions, attrs, Topology(tree.resolve()))
        return cls(functions, tree, attrs).verify()

    def to_tvm(self) -> tvm.IRModule:
        """Write the module as one of Apache TVM.

        Decisions of a decomposition are written in TVM's terms: functions of external code generators are outlined,
        values of TVM's devices get a virtual device, TIR functions their target. Other constraints become function
        attributes `tvmtarget.*`, which `from_tvm` reads.

        Returns:
            The module of TVM.

        Raises:
            ModelError: the module breaks a rule of the IR, or an operation is not one of Relax; the message names it.
        """
        from tvmtarget.ir.relax.lowering import tvm_module

        written: tvm.IRModule = tvm_module(self.verify().functions, self.attrs, self.target)
        return written

    @cached_property
    def by_name(self) -> Mapping[str, Function]:
        """Functions by name."""
        return {function.name: function for function in self.functions}

    def constants(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the elements of all constants in functions, nested bodies and attributes.

        Returns:
            Arrays by SHA-256 digest.

        Raises:
            ModelError: the module breaks a rule of the IR.
        """
        return {constant.digest: constant.data for function in self.verify() for constant in constants_of(function)}

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
        """Entry function."""
        return self["main"]

    def replace(self, **changes: Any) -> IRModule:  # noqa: ANN401
        """Return a copy with some fields changed.

        Args:
            **changes: new values by field name.

        Returns:
            The changed module.
        """
        return replace(self, **changes)

    def with_target(self, target: TargetLike | None) -> IRModule:
        """Return the module on another target tree.

        Args:
            target: target tree in any form that `Target.parse` reads, or None.

        Returns:
            The changed module.

        Raises:
            TargetError: the target is not valid.
        """
        return self.replace(target=None if target is None else as_target(target))

    def with_configuration(self, configuration: CompilationConfig) -> IRModule:
        """Return the module on the tree of a flat configuration (TVM's M0).

        Args:
            configuration: the configuration.

        Returns:
            The changed module.

        Raises:
            TargetError: the argument is not a configuration.
        """
        if not isinstance(configuration, CompilationConfig):
            raise TargetError(f"a configuration is a CompilationConfig, not {shown(configuration)}")
        return self.replace(target=configuration.to_target())

    @property
    def configuration(self) -> CompilationConfig | None:
        """The target as a flat configuration; raises `TargetError` if the tree cannot be expressed as one."""
        return None if self.target is None else CompilationConfig.from_target(self.target)

    def with_attrs(self, **attrs: Any) -> IRModule:  # noqa: ANN401
        """Return the module with attributes added or changed.

        Args:
            **attrs: values by attribute name.

        Returns:
            The changed module.
        """
        return self.replace(attrs={**self.attrs, **attrs})

    def with_entry(self, name: str | None = None) -> IRModule:
        """Return the module with another function as its entry, which is then called `main`.

        The previous entry gets its own name back, or one like `main_1`.

        Args:
            name: the function; by default `main`, or the only function that no other one calls.

        Returns:
            The changed module.

        Raises:
            ModelError: no name is given and several functions could be the entry.
            UnknownNameError: there is no function of the name.
        """
        return self.replace(functions=set_entry(self.functions, name))

    def with_function(self, function: Function) -> IRModule:
        """Return the module with a function added, or replaced if there is one of its name.

        Args:
            function: the function.

        Returns:
            The changed module.
        """
        if function.name not in self:
            return self.replace(functions=(*self.functions, function))
        return self.replace(functions=tuple(function if old.name == function.name else old for old in self.functions))

    def map(self, change: Callable[[Function], Function]) -> IRModule:
        """Return the module with every function changed: `module.map(remove_dead_code)`.

        Args:
            change: maps a function to a new one.

        Returns:
            The changed module.
        """
        return self.replace(functions=tuple(change(function) for function in self))

    def bind(self, values: Mapping[str, np.ndarray[Any, Any]]) -> IRModule:
        """Return the module with parameters of the entry turned into constants.

        Args:
            values: arrays by name of the parameter.

        Returns:
            The changed module.

        Raises:
            ModelError: there is no such tensor parameter, or an array does not agree with its type.
        """
        types = {param.name: param.type for param in self.main.params}
        constants: list[Constant] = []
        for name, value in values.items():
            type_ = types.get(name)
            if not isinstance(type_, TensorType):
                raise ModelError(f"{name!r} cannot be bound; tensors that can be: {', '.join(types)}")
            array = np.asanyarray(value)
            bound = TensorType(dtype_of(array.dtype), array.shape)
            if not bound.agrees_with(type_):
                raise ModelError(f"{name!r} is bound to {bound}, not {type_}")
            constants.append(Constant(name, bound, array))
        params = tuple(param for param in self.main.params if param.name not in values)
        return self.with_function(self.main.replace(params=params, constants=(*self.main.constants, *constants)))

    def constrain(self, name: str, constraint: Constraint | str | Target, *, function: str | None = None) -> IRModule:
        """Return the module with the constraint of a function or of one call replaced.

        Args:
            name: a function (`main`, or `function:NAME`), or a call of `main` by its source name.
            constraint: the placement constraint, its text, or a target.
            function: function that holds the call; `name` is then always the name of a call.

        Returns:
            The changed module.

        Raises:
            UnknownNameError: there is no such function or call; the nearest names are listed.
            ModelError: the name is that of a function and of a call.
            TargetError: the constraint is malformed.

        >>> module = IRModule.parse("func @main(%x) opsets(onnx=17) { %y = onnx.Relu(%x) as relu return %y }")
        >>> constrained = module.constrain("main", "gpu").constrain("relu", "cuda")
        >>> str(constrained.main.constraint), str(constrained.main.body[0].constraint)
        ('gpu', 'cuda')
        """
        parsed = Constraint.parse(constraint)
        if function is None and name.startswith(FUNCTION):
            return self.with_function(self[name.removeprefix(FUNCTION)].replace(constraint=parsed))
        old = self[function] if function is not None else self.by_name.get("main")
        sources = {call.source for call in old.body if call.op != CODE} - {""} if old is not None else set()
        if function is None and name in self:
            if name in sources:
                raise ModelError(
                    f"{name!r} is a function and an op of function 'main'; write {FUNCTION + name!r} for the function, "
                    f"or function='main' beside {name!r} for the op"
                )
            return self.with_function(self[name].replace(constraint=parsed))
        if old is None or name not in sources:
            known = sources if function is not None else sources.union(self.by_name)
            what = f"op {name!r} in function {function!r}" if function is not None else f"function or op {name!r}"
            is_pattern = name.startswith("op:") or any(letter in name for letter in "*?[")
            fix = "; pass operators and globs to decompose, as where" if is_pattern else did_you_mean(name, known)
            raise UnknownNameError(f"no {what}{fix}")
        body = tuple(replace(call, constraint=parsed) if call.source == name else call for call in old.body)
        return self.with_function(old.replace(body=body))

    def graph(self, function: str = "main") -> networkx.MultiDiGraph:
        """Return the dataflow of a function as a networkx graph.

        Nodes are the operations by source name, and `in` and `out`; edges are values, from the producer to each reader.
        `tvmtarget.ir.def_use.dataflow_graph` lists the attributes; calls of functions are not inlined.

        Args:
            function: name of the function.

        Returns:
            A new graph; changing it does not change the module.

        Raises:
            UnknownNameError: there is no function of the name.
            ModelError: the module breaks a rule of the IR.

        >>> import networkx
        >>> body = "%y = onnx.Relu(%x) as a %z = onnx.Neg(%y) as b return %z"
        >>> text = f"func @main(%x: float32[4]) opsets(onnx=17) {{ {body} }}"
        >>> graph = IRModule.parse(text).graph()
        >>> list(networkx.topological_sort(graph)), graph.nodes["b"]["op"]
        (['in', 'a', 'b', 'out'], 'onnx.Neg')
        >>> graph.edges["in", "a", "x"]
        {'value': 'x', 'type': 'float32[4]', 'nbytes': 16}
        """
        return dataflow_graph(self.verify()[function])

    def structural_hash(self) -> str:
        """Return the structural hash (`structure.py`).

        Returns:
            "s1:" and a SHA-256 in hexadecimal; names of values, operations and private functions do not enter it.

        Raises:
            ModelError: the module breaks a rule of the IR.
        """
        return module_hash(self.verify())

    def verify(self) -> IRModule:
        """Check every rule of the IR (`verify.py`).

        Returns:
            The module itself.

        Raises:
            ModelError: rules are broken; the first 5 problems are listed.
        """
        raise_all(ModelError, [*mistyped_attributes(self.attrs.items(), " of the module")])
        verify_functions(self.by_name, self.target)
        verify_result_types(self.by_name)
        return self

    def __str__(self) -> str:
        try:
            return print_module(self.functions, self.target, self.attrs)
        except (AttributeError, KeyError, TypeError, ValueError):
            if next(self._mistyped_fields(), None) is None:
                raise
            return f"<{self!r}>"  # its fields are not of their types, as `verify` reports

    def __repr__(self) -> str:
        # One line, as a module may have thousands of operations; `str` prints them.
        names = ", ".join(f"@{one.name}" for one in self.functions[:_MAX_LISTED])
        rest = len(self.functions) - _MAX_LISTED
        return f"<IRModule: {names}{f' and {rest} more' if rest > 0 else ''}>"

    def _mistyped_fields(self) -> Iterator[str]:
        yield from mistyped_attributes(self.attrs.items(), " of the module")
        yield from chain.from_iterable(map(mistyped_fields, self.functions))


def _frozen(value: object, depth: int = 0) -> object:
    """Convert lists to tuples and numbers of numpy to those of Python, as reading them from a file would."""
    if isinstance(value, np.generic):
        return value.item()
    if depth > MAX_DEPTH:  # an error, which the check of all attributes reports
        return value
    if isinstance(value, Mapping):
        return {name: _frozen(one, depth + 1) for name, one in value.items()}
    return tuple(_frozen(one, depth + 1) for one in value) if isinstance(value, list | tuple) else value
