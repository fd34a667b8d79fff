"""Inlining of calls, with a record of the calls that each operation came from."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from tvmtarget.errors import ModelError
from tvmtarget.ir.dim_aliases import compose_dims, dim_aliases, rename_dims
from tvmtarget.ir.function import COPY, Call, Constant, Function, Value, all_names, callees_of
from tvmtarget.ir.names import Names
from tvmtarget.ir.op_aliases import count_ops, is_named_op, op_aliases, rename_ops, with_op_aliases
from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["Frame", "Inlined", "inline_calls"]

# Expansion recurses for each call within a call, so that its depth needs a limit.
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Frame:
    """One inlined call around an operation.

    Attributes:
        callee: name of the called function.
        ordinal: number of the inlined call, from 1 in order of inlining; it tells calls of one function apart.
        provenance: constraints on the callee and on this call, each with a description of where it was stated.
    """

    callee: str
    ordinal: int
    provenance: tuple[tuple[Constraint, str], ...]

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """Constraints on the function and on this call of it."""
        return tuple(constraint for constraint, _ in self.provenance)


@dataclass(frozen=True, slots=True)
class Inlined:
    """A function after inlining.

    Attributes:
        function: the function, without calls of the inlined functions.
        frames: for each call of the body, the inlined calls around it, outermost first.
        bodies: the same for nested bodies, by index of the call; their frames begin with those of the call.
    """

    function: Function
    frames: tuple[tuple[Frame, ...], ...]
    bodies: Mapping[int, tuple[Inlined, ...]] = field(default_factory=dict)


def inline_calls(
    function: Function, functions: Mapping[str, Function], *, only: Container[str] | None = None
) -> Inlined:
    """Inline calls of functions, in nested bodies too.

    Names are kept where they are free. A value without a memory scope takes the first scope that a parameter bound to
    it, or a result returned as it, states. Functions in different versions of an operator set are converted to one
    (`onnx/opset_versions.py`).

    Args:
        function: function to inline into.
        functions: functions of the module by name.
        only: names of the callees to inline; by default all that are not code.

    Returns:
        The function, and the calls that each of its operations came from.

    Raises:
        ModelError: calls are nested deeper than 64, or operator set versions cannot be unified.
    """
    if not callees_of(function):
        return _framed(function, ())
    function, functions = _in_one_version(function, functions, only)
    inliner = _Inliner(functions, function, only)
    results = inliner.expand(function, {}, (), (function.name,))
    opsets = tuple(sorted(inliner.opsets.items()))
    constants = tuple(inliner.constants.values())
    flat = function.replace(body=tuple(inliner.body), constants=constants, results=results, opsets=opsets)
    inlined = Inlined(flat, tuple(inliner.frames), inliner.bodies)
    if inliner.scopes:
        inlined = _changed(inlined, lambda one: _in_scopes(one, inliner.scopes))
    return _with_results(inlined, function.results)


def _with_results(inlined: Inlined, results: tuple[str, ...]) -> Inlined:
    """Give results that callees compute the names that the function returned them under, where these are free."""
    flat = inlined.function
    computed = {output.name for call in flat.body for output in call.outputs}
    # Plans and executables name outputs by results, so that inlining should not change their names.
    pairs = [(new, old) for new, old in zip(flat.results, results, strict=True) if new != old and new in computed]
    taken = {*all_names(flat), *(old for new, old in pairs if flat.results.count(new) > 1)}
    names = {new: old for new, old in pairs if old not in taken}
    return _changed(inlined, lambda one: rename_values(one, names)) if names else inlined


def _changed(inlined: Inlined, change: Callable[[Function], Function]) -> Inlined:
    """Apply a change to the function and to the copies of its nested bodies."""
    bodies = {index: tuple(_changed(one, change) for one in found) for index, found in inlined.bodies.items()}
    return replace(inlined, function=change(inlined.function), bodies=bodies)


def _in_scopes(function: Function, scopes: Mapping[str, str]) -> Function:
    """Set the scope of values that have none, in nested bodies too."""

    def scoped(value: Value) -> Value:
        return value if value.scope or value.name not in scopes else replace(value, scope=scopes[value.name])

    body = tuple(
        replace(
            call,
            outputs=tuple(map(scoped, call.outputs)),
            regions=tuple((label, _in_scopes(region, scopes)) for label, region in call.regions),
        )
        for call in function.body
    )
    return function.replace(params=tuple(map(scoped, function.params)), body=body)


def _in_one_version(
    function: Function, functions: Mapping[str, Function], only: Container[str] | None
) -> tuple[Function, Mapping[str, Function]]:
    """Convert a function and all that it reaches by inlined calls to the same versions of operator sets."""
    reached: dict[str, Function] = {}
    waiting = [function]
    while waiting:
        for name in sorted(callees_of(waiting.pop())):
            if name in functions and name not in reached and (only is None or name in only):
                reached[name] = functions[name]
                waiting.append(functions[name])
    stated = {opset for one in (function, *reached.values()) for opset in one.opsets}
    # One version of each domain: nothing to convert, so that the converter is not even imported.
    if len(stated) == len({domain for domain, _ in stated}):
        return function, functions
    from tvmtarget.ir.onnx.opset_versions import unify_opsets

    first, *callees = unify_opsets((function, *reached.values()))
    return first, {**functions, **dict(zip(reached, callees, strict=True))}


class _Inliner:
    def __init__(self, functions: Mapping[str, Function], function: Function, only: Container[str] | None) -> None:
        self.functions = functions
        self.only = only
        self.depth = 1  # length of the call stack while the function's own body is expanded
        # Copies and inlined calls are not operations of the program, so that their names do not count as taken.
        self.sources = Names(call.source for call in function.body if call.callee is None and call.op != COPY)
        self.body: list[Call] = []
        self.frames: list[tuple[Frame, ...]] = []
        self.bodies: dict[int, tuple[Inlined, ...]] = {}
        self.constants: dict[str, Constant] = {}  # constants of this body
        self.shared = self.constants  # constants of the outermost function, which also gets those of callees
        self.opsets: dict[str, int] = {}
        self.names = Names(param.name for param in function.params)
        self.scopes: dict[str, str] = {}  # scopes stated by parameters and results of inlined functions
        self.calls = 0
        # Names that the call being inlined gives to operations (`ops`), dimensions (`dims`) and results of its callee.
        self.op_names: Iterator[str] | None = None
        self.dims: Mapping[str, str] = {}
        self.result_names: Mapping[str, str] = {}

    def expand(
        self, function: Function, names: dict[str, str], frames: tuple[Frame, ...], stack: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Append a function's body and return its results; `names` maps its parameters to values of this body."""
        if len(stack) > MAX_DEPTH:
            raise ModelError(f"functions call each other deeper than {MAX_DEPTH}: {' -> '.join(stack[:4])} ...")
        self.opsets |= dict(function.opsets)
        names = dict(names)
        is_own = len(stack) == self.depth
        for constant in function.constants:
            names[constant.name] = self._share(constant, self.constants if is_own else self.shared)
        for call in function.body:
            if call.callee is None or not self._is_inlined(call.callee):
                self._keep(call, names, frames, stack)
            else:
                self._call(call, names, frames, stack)
        return tuple(names.get(result, result) for result in function.results)

    def _is_inlined(self, callee: str) -> bool:
        """Return whether calls of a function are inlined; calls of code are kept."""
        return (self.only is None or callee in self.only) and self.functions[callee].code is None

    def _keep(self, call: Call, names: dict[str, str], frames: tuple[Frame, ...], stack: tuple[str, ...]) -> None:
        """Append an operation with its operands renamed; its results are added to `names`."""
        call = rename_dims(self._named(call), self.dims) if self.dims else self._named(call)
        nested = tuple(self._nested(region, names, frames, stack) for _, region in call.regions)
        inputs = tuple(names.get(name, name) for name in call.inputs)
        outputs = []
        for output in call.outputs:
            name = self.names.fresh(self.result_names.get(output.name, output.name)) if output.name else ""
            names[output.name] = name
            outputs.append(output if name == output.name else replace(output, name=name))
        regions = tuple((label, one.function) for (label, _), one in zip(call.regions, nested, strict=True))
        is_own = len(stack) == self.depth or not call.source
        source = call.source if is_own else self.sources.fresh(call.source)
        if nested:
            self.bodies[len(self.body)] = nested
        self.body.append(replace(call, inputs=inputs, outputs=tuple(outputs), regions=regions, source=source))
        self.frames.append(frames)

    def _named(self, call: Call) -> Call:
        """Name an operation, or all operations that a kept call leads to, as the inlined call does."""
        if self.op_names is None or call.op == COPY:
            return call
        if is_named_op(call, self.functions):
            return replace(call, source=next(self.op_names))
        callee = self.functions.get(call.callee or "")
        if callee is None:
            return call
        return with_op_aliases(call, tuple(islice(self.op_names, count_ops(callee, self.functions))))

    def _nested(
        self, region: Function, names: dict[str, str], frames: tuple[Frame, ...], stack: tuple[str, ...]
    ) -> Inlined:
        """Return a nested body with its captures renamed and its calls inlined."""
        if not callees_of(region):
            named = region if self.op_names is None else rename_ops(region, self.op_names, self.functions)
            # ONNX forbids a nested body to define a name that is visible around it, which inlining changes.
            own = {name: self.names.fresh(name) for name in sorted({*all_names(named)}) if name in self.names}
            captured = {name: names[name] for name in region.captures() if names.get(name, name) != name}
            return _framed(rename_values(named, {**own, **captured}) if own or captured else named, frames)
        inner = _Inliner(self.functions, region, self.only)
        # Shared with the enclosing body: ONNX forbids a nested body to define a name that is visible around it.
        inner.names, inner.sources, inner.opsets = self.names, self.sources, self.opsets
        inner.calls, inner.depth, inner.shared = self.calls, len(stack), self.shared
        inner.scopes, inner.op_names = self.scopes, self.op_names
        visible = {name: names.get(name, name) for name in region.captures()}
        visible |= {param.name: self.names.fresh(param.name) for param in region.params}
        params = tuple(replace(param, name=visible[param.name]) for param in region.params)
        results = inner.expand(region, visible, frames, stack)
        # Ordinals are unique over the whole function, nested bodies included.
        self.calls = inner.calls
        constants = tuple(inner.constants.values())
        function = region.replace(params=params, body=tuple(inner.body), constants=constants, results=results)
        return Inlined(function, tuple(inner.frames), inner.bodies)

    def _call(self, call: Call, names: dict[str, str], frames: tuple[Frame, ...], stack: tuple[str, ...]) -> None:
        callee = self.functions[call.op[1:]]
        self.calls += 1
        frame = Frame(callee.name, self.calls, tuple(_provenance(call, callee)))
        arguments = {param.name: names.get(name, name) for param, name in zip(callee.params, call.inputs, strict=True)}
        op_names, result_names, dims = self.op_names, self.result_names, self.dims
        aliases = op_aliases(call)
        # `ops` of an outer call covers all nested calls, so that an inner one is ignored.
        if op_names is None and aliases is not None:
            self.op_names = iter(aliases)
        self.result_names = _result_names(call, callee, result_names)
        self.dims = compose_dims(dim_aliases(call), dims)
        results = self.expand(callee, arguments, (*frames, frame), (*stack, callee.name))
        self.op_names, self.result_names, self.dims = op_names, result_names, dims
        for output, result in zip(call.outputs, results, strict=True):
            names[output.name] = result
        # Functions with a role come from a decomposition, which derives the scopes at their interface from its
        # assignment; only scopes that the user stated are carried into the inlined body.
        if callee.attr("role") is None:
            self._record_scopes([arguments[param.name] for param in callee.params], callee.params)
            self._record_scopes(results, call.outputs)

    def _record_scopes(self, names: Sequence[str], interface: Sequence[Value]) -> None:
        """Record the scopes that parameters or results of an inlined function state for values of this body."""
        for name, value in zip(names, interface, strict=True):
            if value.scope:
                # The first scope wins, as `inline_calls` promises; a value can be bound to several parameters.
                self.scopes.setdefault(name, value.scope)

    def _share(self, constant: Constant, constants: dict[str, Constant]) -> str:
        """Add a constant and return its name; the same data under the same name is added once."""
        known = constants.get(constant.name)
        # By identity: equal arrays of different functions are merged by `share_constants`, which hashes them.
        if known is not None and known.data is constant.data:
            return constant.name
        name = self.names.fresh(constant.name)
        constants[name] = constant if name == constant.name else replace(constant, name=name)
        return name


def _result_names(call: Call, callee: Function, around: Mapping[str, str]) -> dict[str, str]:
    """Return the names that a call gives to results, by name in the callee; a copied result names its source value."""
    pairs = zip(callee.results, call.outputs, strict=True)
    found = {result: around.get(output.name, output.name) for result, output in pairs if output.name}
    # Backwards, so that a chain of copies is followed from the result to the value that began it.
    for copy in reversed(callee.body):
        if copy.op == COPY and copy.outputs[0].name in found and copy.inputs[0] not in found:
            found[copy.inputs[0]] = found.pop(copy.outputs[0].name)
    return found


def _provenance(call: Call, callee: Function) -> Iterator[tuple[Constraint, str]]:
    if callee.site_constraint is not None:
        yield callee.site_constraint, f"function {callee.name!r}"
    if call.constraint is not None:
        yield call.constraint, f"call {call.source!r} of function {callee.name!r}"


def _framed(function: Function, frames: tuple[Frame, ...]) -> Inlined:
    """Return a function without calls of functions as inlined within the given frames."""
    bodies = {
        index: tuple(_framed(region, frames) for _, region in call.regions)
        for index, call in enumerate(function.body)
        if call.regions
    }
    return Inlined(function, (frames,) * len(function.body), bodies)


def rename_values(function: Function, names: Mapping[str, str]) -> Function:
    """Rename values in a function and in its nested bodies.

    Args:
        function: the function.
        names: new names by name.

    Returns:
        The changed function.
    """

    def new(name: str) -> str:
        return names.get(name, name)

    def renamed(value: Value) -> Value:
        return replace(value, name=new(value.name))

    body = tuple(
        replace(
            call,
            inputs=tuple(map(new, call.inputs)),
            outputs=tuple(map(renamed, call.outputs)),
            regions=tuple((label, rename_values(region, names)) for label, region in call.regions),
        )
        for call in function.body
    )
    constants = tuple(replace(constant, name=new(constant.name)) for constant in function.constants)
    results = tuple(map(new, function.results))
    return function.replace(
        params=tuple(map(renamed, function.params)), body=body, constants=constants, results=results
    )
