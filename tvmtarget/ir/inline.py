"""Inlining: one function with the bodies of all it calls, and where each operation came from."""

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

MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Frame:
    """One inlined call: which callee, the how-manieth call, what was asked of it, and who asked."""

    callee: str
    ordinal: int
    provenance: tuple[tuple[Constraint, str], ...]

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """What was asked of the function, and of this call of it."""
        return tuple(wanted for wanted, _ in self.provenance)


@dataclass(frozen=True, slots=True)
class Inlined:
    """A function without calls of functions; `frames[i]` are the inlined calls around `body[i]`, outermost first.

    `bodies[i]` tells the same of the nested bodies of `body[i]`; their frames begin with those of `body[i]`.
    """

    function: Function
    frames: tuple[tuple[Frame, ...], ...]
    bodies: Mapping[int, tuple[Inlined, ...]] = field(default_factory=dict)


def inline_calls(
    function: Function, functions: Mapping[str, Function], *, only: Container[str] | None = None
) -> Inlined:
    """Inline every call of other functions, or `only` of some, in nested bodies too.

    What has a name keeps it where it is free. Constants of functions that nested bodies call are the function's own.
    A value that says no memory is in the first one that a parameter which it is given as, or a result which it is
    returned as, says. Functions in several versions of an operator set are converted to one (`onnx_versions.py`).
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
    """Give what a callee computes the name that the function returned it under, where that is one value."""
    flat = inlined.function
    computed = {output.name for call in flat.body for output in call.outputs}
    pairs = [(new, old) for new, old in zip(flat.results, results, strict=True) if new != old and new in computed]
    taken = {*all_names(flat), *(old for new, old in pairs if flat.results.count(new) > 1)}
    names = {new: old for new, old in pairs if old not in taken}
    return _changed(inlined, lambda one: rename_values(one, names)) if names else inlined


def _changed(inlined: Inlined, change: Callable[[Function], Function]) -> Inlined:
    """Return the same with its function changed, and those of its nested bodies, which the function holds as well."""
    bodies = {index: tuple(_changed(one, change) for one in found) for index, found in inlined.bodies.items()}
    return replace(inlined, function=change(inlined.function), bodies=bodies)


def _in_scopes(function: Function, scopes: Mapping[str, str]) -> Function:
    """Put values that say no memory into those of `scopes`, in the nested bodies of its calls too."""

    def placed(value: Value) -> Value:
        return value if value.scope or value.name not in scopes else replace(value, scope=scopes[value.name])

    body = tuple(
        replace(
            call,
            outputs=tuple(map(placed, call.outputs)),
            regions=tuple((label, _in_scopes(region, scopes)) for label, region in call.regions),
        )
        for call in function.body
    )
    return function.replace(params=tuple(map(placed, function.params)), body=body)


def _in_one_version(
    function: Function, functions: Mapping[str, Function], only: Container[str] | None
) -> tuple[Function, Mapping[str, Function]]:
    """Return a function and those it calls, directly or through others, in the same versions of operator sets."""
    reached: dict[str, Function] = {}
    waiting = [function]
    while waiting:
        for name in sorted(callees_of(waiting.pop())):
            if name in functions and name not in reached and (only is None or name in only):
                reached[name] = functions[name]
                waiting.append(functions[name])
    stated = {opset for one in (function, *reached.values()) for opset in one.opsets}
    if len(stated) == len({domain for domain, _ in stated}):
        return function, functions
    from tvmtarget.ir.onnx.opset_versions import unify_opsets

    first, *others = unify_opsets((function, *reached.values()))
    return first, {**functions, **dict(zip(reached, others, strict=True))}


class _Inliner:
    def __init__(self, functions: Mapping[str, Function], function: Function, only: Container[str] | None) -> None:
        self.functions = functions
        self.only = only
        self.depth = 1  # of the stack while the function's own body is read
        self.sources = Names(call.source for call in function.body if call.callee is None and call.op != COPY)
        self.body: list[Call] = []
        self.frames: list[tuple[Frame, ...]] = []
        self.bodies: dict[int, tuple[Inlined, ...]] = {}
        self.constants: dict[str, Constant] = {}  # of this body
        self.shared = self.constants  # of the function around all bodies, where those of callees go
        self.opsets: dict[str, int] = {}
        self.names = Names(param.name for param in function.params)
        self.scopes: dict[str, str] = {}  # the memories that the borders of what is inlined say values are in
        self.calls = 0
        self.told: Iterator[str] | None = None  # what the operations of the call that is inlined are called there
        self.dims: Mapping[str, str] = {}  # what symbolic dimensions of the function that is inlined are called there
        self.wanted: Mapping[str, str] = {}  # what values of the function that is inlined are called where it is called

    def expand(
        self, function: Function, names: dict[str, str], frames: tuple[Frame, ...], stack: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Append a function's body; `names` maps its parameters to values here. Returns its results."""
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
        """Whether calls of a function are inlined; code stays where it is, as there is nothing to see in it."""
        return (self.only is None or callee in self.only) and self.functions[callee].code is None

    def _keep(self, call: Call, names: dict[str, str], frames: tuple[Frame, ...], stack: tuple[str, ...]) -> None:
        """Append an operation in the names of its new surroundings; its results are added to `names`."""
        call = rename_dims(self._named(call), self.dims) if self.dims else self._named(call)
        nested = tuple(self._nested(region, names, frames, stack) for _, region in call.regions)
        inputs = tuple(names.get(name, name) for name in call.inputs)
        outputs = []
        for output in call.outputs:
            name = self.names.fresh(self.wanted.get(output.name, output.name)) if output.name else ""
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
        """Return an operation by the name that it has where its function is called; or a call that names others."""
        if self.told is None or call.op == COPY:
            return call
        if is_named_op(call, self.functions):
            return replace(call, source=next(self.told))
        callee = self.functions.get(call.callee or "")
        if callee is None:
            return call
        return with_op_aliases(call, tuple(islice(self.told, count_ops(callee, self.functions))))

    def _nested(
        self, region: Function, names: dict[str, str], frames: tuple[Frame, ...], stack: tuple[str, ...]
    ) -> Inlined:
        """Return a nested body with its captures renamed and its calls inlined."""
        if not callees_of(region):
            known = region if self.told is None else rename_ops(region, self.told, self.functions)
            return _framed(_captured(known, names), frames)
        inner = _Inliner(self.functions, region, self.only)
        inner.names, inner.sources, inner.opsets = self.names, self.sources, self.opsets
        inner.calls, inner.depth, inner.shared, inner.told = self.calls, len(stack), self.shared, self.told
        inner.scopes = self.scopes
        for param in region.params:
            self.names.add(param.name)
        results = inner.expand(region, {name: names.get(name, name) for name in region.captures()}, frames, stack)
        self.calls = inner.calls
        constants = tuple(inner.constants.values())
        function = region.replace(body=tuple(inner.body), constants=constants, results=results)
        return Inlined(function, tuple(inner.frames), inner.bodies)

    def _call(self, call: Call, names: dict[str, str], frames: tuple[Frame, ...], stack: tuple[str, ...]) -> None:
        callee = self.functions[call.op[1:]]
        self.calls += 1
        frame = Frame(callee.name, self.calls, tuple(_asked(call, callee)))
        arguments = {
            param.name: names.get(given, given) for param, given in zip(callee.params, call.inputs, strict=True)
        }
        told, wanted, dims = self.told, self.wanted, self.dims
        given = op_aliases(call)
        if told is None and given is not None:
            self.told = iter(given)
        self.wanted = _wanted(call, callee, wanted)
        self.dims = compose_dims(dim_aliases(call), dims)
        results = self.expand(callee, arguments, (*frames, frame), (*stack, callee.name))
        self.told, self.wanted, self.dims = told, wanted, dims
        for output, result in zip(call.outputs, results, strict=True):
            names[output.name] = result
        if callee.attr("role") is None:  # memories at borders that a decomposition drew follow from where it put what
            self._place([arguments[param.name] for param in callee.params], callee.params)
            self._place(results, call.outputs)

    def _place(self, names: Sequence[str], border: Sequence[Value]) -> None:
        """Note the memories that values at the border of a function say of those that they are here."""
        for name, value in zip(names, border, strict=True):
            if value.scope:
                self.scopes.setdefault(name, value.scope)

    def _share(self, constant: Constant, constants: dict[str, Constant]) -> str:
        """Add a constant once: the same data under the same name is one constant."""
        known = constants.get(constant.name)
        if known is not None and known.data is constant.data:
            return constant.name
        name = self.names.fresh(constant.name)
        constants[name] = constant if name == constant.name else replace(constant, name=name)
        return name


def _wanted(call: Call, callee: Function, around: Mapping[str, str]) -> dict[str, str]:
    """Return what a call names the results of a function, by their names in it; those of copies are of their origin."""
    pairs = zip(callee.results, call.outputs, strict=True)
    found = {result: around.get(output.name, output.name) for result, output in pairs if output.name}
    for copy in reversed(callee.body):
        if copy.op == COPY and copy.outputs[0].name in found and copy.inputs[0] not in found:
            found[copy.inputs[0]] = found.pop(copy.outputs[0].name)
    return found


def _asked(call: Call, callee: Function) -> Iterator[tuple[Constraint, str]]:
    if callee.site_constraint is not None:
        yield callee.site_constraint, f"function {callee.name!r}"
    if call.constraint is not None:
        yield call.constraint, f"call {call.source!r} of function {callee.name!r}"


def _framed(function: Function, frames: tuple[Frame, ...]) -> Inlined:
    """Return what stands for a function without calls of functions that stands inside some."""
    bodies = {
        index: tuple(_framed(region, frames) for _, region in call.regions)
        for index, call in enumerate(function.body)
        if call.regions
    }
    return Inlined(function, (frames,) * len(function.body), bodies)


def _captured(region: Function, names: Mapping[str, str]) -> Function:
    """Rename what a nested body reads from outside; its own names hide outer ones, as ONNX forbids shadowing."""
    outer = {name: names[name] for name in region.captures() if names.get(name, name) != name}
    return rename_values(region, outer) if outer else region


def rename_values(function: Function, names: Mapping[str, str]) -> Function:
    """Rename values in a function and in the nested bodies of its calls."""

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
