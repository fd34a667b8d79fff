"""Elimination of Relax tuples: fields become separate values within a function and at its interface.

An operation with a tuple and all its readers would have to be in one subgraph, since a tuple never crosses the boundary
of a function. So operations that return tuples get several results, operations that take tuples take their fields, and
functions that return a tuple of tensors return several results.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tvmtarget.ir.function import Call, Function, Value, all_names, callees_first, callees_of, calls_in
from tvmtarget.ir.inline import Inlined, rename_values
from tvmtarget.ir.names import Names
from tvmtarget.ir.relax.blocks import BLOCKS, RESULT, is_inline
from tvmtarget.ir.relax.syntax import read_text, tuple_fields, type_of
from tvmtarget.ir.types import OpaqueType, TensorType, Type

__all__ = ["split_tuples", "untuple_results"]

# Names of the values in a tuple, nested like its fields.
_Fields: TypeAlias = "str | tuple[_Fields, ...]"

_ARGS = "tvm.args"
# Operations that read a tuple as one value, or whose operands have no types of their own.
_WHOLE = frozenset({"relax.match_cast", "relax.If", "relax.Function", "relax.TupleGetItem"})


def split_tuples(inlined: Inlined, kept: Container[str] = ()) -> Inlined:
    """Split the tuples of a function into their fields as far as possible.

    TupleGetItem and Tuple then are no operations; a tuple that is returned is built only for that.

    Args:
        inlined: the function with the frames of its operations.
        kept: source names of operations to keep, besides those with a constraint.

    Returns:
        The changed function. Fields keep the names under which they were taken.
    """
    # Values share types: each is looked at once.
    outputs = {id(output.type): output for call in inlined.function.calls for output in call.outputs}
    if not any(_fields_of(output) is not None for output in outputs.values()):
        return inlined
    return _Rewriter(inlined.function, kept).function(inlined, {})


def _fields_of(value: Value) -> tuple[str, ...] | None:
    """Return the texts of the field types of a tuple; None for other values."""
    is_tuple = isinstance(value.type, OpaqueType) and value.type.name.startswith("Tuple(")
    return tuple_fields(value.type.name) if is_tuple and isinstance(value.type, OpaqueType) else None


@dataclass(frozen=True, slots=True)
class _Uses:
    """Uses of the values of a function.

    Attributes:
        taken: fields that TupleGetItem takes, with the name of each; "" if the operation is kept.
        inline: values that are operands of operations that can take fields instead.
        whole: values that are read as one tuple.
        returned: results of the function and of nested bodies.
    """

    taken: dict[str, dict[int, str]]
    inline: frozenset[str]
    whole: frozenset[str]
    returned: frozenset[str]


class _Rewriter:
    def __init__(self, function: Function, kept: Container[str]) -> None:
        self.kept = kept
        self.names = Names(all_names(function))
        self.sources = Names(call.source for call in calls_in(function))
        self.types = {output.name: output for call in calls_in(function) for output in call.outputs}

    def function(self, inlined: Inlined, outer: dict[str, _Fields]) -> Inlined:
        """Rewrite a body; `outer` holds the fields of tuples of enclosing bodies."""
        function, uses = inlined.function, self._uses(inlined.function)
        env = dict(outer)
        body: list[Call] = []
        frames = []
        bodies = {}
        for index, call in enumerate(function.body):
            for new in self._rewrite(call, env, uses, function):
                if new.regions:
                    inner = tuple(self.function(one, env) for one in inlined.bodies.get(index, ()))
                    labels = (label for label, _ in new.regions)
                    new = replace(
                        new, regions=tuple((label, one.function) for label, one in zip(labels, inner, strict=True))
                    )
                    bodies[len(body)] = inner
                body.append(new)
                frames.append(inlined.frames[index])
        if tuple(body) == function.body:
            return inlined
        # Recorded blocks count the bindings, whose number has changed.
        attrs = tuple(item for item in function.attrs if item[0] != BLOCKS)
        return Inlined(function.replace(body=tuple(body), attrs=attrs), tuple(frames), bodies)

    def _uses(self, function: Function) -> _Uses:
        taken: dict[str, dict[int, str]] = {}
        inline: set[str] = set()
        whole: set[str] = set()
        returned = set(function.results)
        for call in function.body:
            if _is_taking(call):
                fields = taken.setdefault(call.inputs[0], {})
                place = int(str(call.attr("index")))
                fields[place] = fields.get(place) or ("" if self._is_kept(call) else call.outputs[0].name)
            elif _takes_fields(call):
                inline.update(call.inputs)
            else:
                whole.update(call.inputs)
            for _, region in call.regions:
                inner = self._uses(region)
                for name, fields in inner.taken.items():
                    # A name from a nested body is not visible here, so that only the use of the field is recorded.
                    taken.setdefault(name, {}).update(
                        {place: "" for place in fields if place not in taken.get(name, ())}
                    )
                inline |= inner.inline
                whole |= inner.whole
                returned |= inner.returned
        return _Uses(taken, frozenset(inline), frozenset(whole), frozenset(returned))

    def _rewrite(self, call: Call, env: dict[str, _Fields], uses: _Uses, function: Function) -> Iterator[Call]:
        """Yield the operations that replace one; the fields of its tuple are added to `env`."""
        output = call.outputs[0] if len(call.outputs) == 1 else None
        if output is None or is_inline(function, call):
            yield self._with_fields(call, env)
            return
        fields = _resolve_fields(call, env)
        if fields is not None and not self._is_kept(call):
            if isinstance(fields, tuple):
                env[output.name] = fields
                if output.name in uses.returned or output.name in uses.whole:
                    yield self._tuple(call, fields)
                return
            if output.name == fields:
                return
            if output.name not in uses.returned:
                env[output.name] = fields
                return
        if fields is not None:
            inputs, text = _written(fields)
            args = ((_ARGS, text),) * (text != "_0")
            yield replace(call, op="relax.value", inputs=inputs, attrs=args)
            return
        types = _fields_of(output)
        new = self._with_fields(call, env)
        is_read = output.name in uses.taken or output.name in uses.inline or output.name in uses.whole
        if types is None or not is_read:
            yield new
        elif len(types) > 1 and not any(text.startswith("Tuple(") for text in types) and _can_give_several(call):
            yield from self._several(new, output, types, env, uses)
        elif output.name in uses.inline:
            yield new
            env[output.name] = yield from self._taken(output, output.name, types)
        else:
            yield new

    def _is_kept(self, call: Call) -> bool:
        """Return whether a TupleGetItem or Tuple is kept as an operation."""
        return call.constraint is not None or call.source in self.kept

    def _several(
        self, call: Call, output: Value, types: Sequence[str], env: dict[str, _Fields], uses: _Uses
    ) -> Iterator[Call]:
        """Yield an operation with a result for each field, and one that builds the tuple if it is still read."""
        taken = uses.taken.get(output.name, {})
        is_whole = output.name in uses.returned or output.name in uses.whole
        is_all = is_whole or output.name in uses.inline
        values = []
        for place, text in enumerate(types):
            is_used = is_all or place in taken
            name = (taken.get(place) or self.names.fresh(f"{output.name}.{place}")) if is_used else ""
            type_, scope = type_of(text)
            values.append(Value(name, type_, scope))
        env[output.name] = tuple(value.name for value in values)
        yield replace(call, outputs=tuple(values))
        if is_whole:
            built = Call("relax.Tuple", (), (output,), source=self.sources.fresh(output.name))
            yield self._tuple(built, env[output.name])

    def _taken(self, output: Value, name: str, types: Sequence[str]) -> Generator[Call, None, _Fields]:
        """Yield operations that take all fields of a tuple at any depth; return the names of the fields."""
        found: list[_Fields] = []
        for place, text in enumerate(types):
            type_, scope = type_of(text)
            value = Value(self.names.fresh(f"{output.name}.{place}"), type_, scope)
            source = self.sources.fresh(value.name)
            yield Call("relax.TupleGetItem", (name,), (value,), (("index", place),), source=source)
            inner = _fields_of(value)
            found.append(value.name if inner is None else (yield from self._taken(value, value.name, inner)))
        return tuple(found)

    def _tuple(self, call: Call, fields: _Fields) -> Call:
        """Return the operation that builds a tuple."""
        inputs, text = _written(fields)
        attrs = tuple(item for item in call.attrs if item[0] not in (_ARGS, "index"))
        if isinstance(fields, tuple) and all(isinstance(one, str) for one in fields):
            return replace(call, op="relax.Tuple", inputs=inputs, attrs=attrs)
        return replace(call, op="relax.value", inputs=inputs, attrs=((_ARGS, text), *attrs))

    def _with_fields(self, call: Call, env: dict[str, _Fields]) -> Call:
        """Substitute fields for tuples, and new names for values, in the operands of an operation."""
        inputs = tuple(_name(name, env) for name in call.inputs)
        if not _takes_fields(call) or not any(isinstance(env.get(name), tuple) for name in inputs):
            return call if inputs == call.inputs else replace(call, inputs=inputs)
        text = call.attr(_ARGS)
        text = ", ".join(f"_{place}" for place in range(len(inputs))) if not isinstance(text, str) else text
        flat: list[str] = []
        written = [_numbered(env.get(name, name), flat) for name in inputs]

        def renamed(tree: ast.expr) -> str:
            return ", ".join(ast.unparse(field) for field in _Renamer(written).visit(tree).elts)

        args = read_text(f"({text},)", renamed)
        attrs = tuple(item for item in call.attrs if item[0] != _ARGS)
        return replace(call, inputs=tuple(flat), attrs=((_ARGS, args), *attrs))


class _Renamer(ast.NodeTransformer):
    """Substitutes expressions for the operands `_0`, `_1`, ... of an expression."""

    def __init__(self, written: Sequence[str]) -> None:
        self.written = written

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace one operand."""
        is_operand = node.id[:1] == "_" and node.id[1:].isdecimal()
        return ast.parse(self.written[int(node.id[1:])], mode="eval").body if is_operand else node


def _name(name: str, env: dict[str, _Fields]) -> str:
    """Return the new name of a value that is not a tuple."""
    found = env.get(name)
    return found if isinstance(found, str) else name


def _written(fields: _Fields) -> tuple[tuple[str, ...], str]:
    """Return the values in a tuple, and the expression that builds it from them."""
    flat: list[str] = []
    text = _numbered(fields, flat)
    return tuple(flat), text


def _numbered(fields: _Fields, flat: list[str]) -> str:
    if isinstance(fields, str):
        flat.append(fields)
        return f"_{len(flat) - 1}"
    texts = [_numbered(field, flat) for field in fields]
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def _is_taking(call: Call) -> bool:
    return call.op == "relax.TupleGetItem" and call.attr(_ARGS) is None and call.attr("tvm.value_type") is None


def _takes_fields(call: Call) -> bool:
    return call.callee is None and call.op.startswith("relax.") and call.op not in _WHOLE


def _can_give_several(call: Call) -> bool:
    """Return whether an operation can have several results: it states no type of the whole tuple."""
    is_call = call.callee is None and call.op not in _WHOLE and call.op not in ("relax.value", "relax.Tuple")
    return is_call and call.attr("tvm.value_type") is None and call.attr("tvm.cast") is None


def _resolve_fields(call: Call, env: dict[str, _Fields]) -> _Fields | None:
    """Return the fields of a tuple that an operation builds, or the field that it takes; None for other operations."""
    if call.attr("tvm.value_type") is not None:
        return None
    fields: tuple[_Fields, ...] = tuple(env.get(name, name) for name in call.inputs)
    if call.op == "relax.Tuple":
        return fields
    if _is_taking(call):
        whole = env.get(call.inputs[0])
        return whole[int(str(call.attr("index")))] if isinstance(whole, tuple) else None
    if call.op == "relax.value" and _fields_of(call.outputs[0]) is not None:
        text = call.attr(_ARGS)
        parsed = None if text is None else read_text(str(text), lambda node: _parse_fields(node, fields))
        return fields[0] if text is None and len(fields) == 1 and isinstance(fields[0], tuple) else parsed
    return None


def _parse_fields(node: ast.expr, operands: Sequence[_Fields]) -> _Fields | None:
    """Return the fields of an expression that consists of operands and tuples only; None for others."""
    if isinstance(node, ast.Name) and node.id[:1] == "_" and node.id[1:].isdecimal():
        return operands[int(node.id[1:])]
    if not isinstance(node, ast.Tuple):
        return None
    found = [_parse_fields(field, operands) for field in node.elts]
    fields = tuple(field for field in found if field is not None)
    return fields if len(fields) == len(found) else None


def untuple_results(functions: Sequence[Function]) -> tuple[Function, ...]:
    """Give functions several results instead of one tuple of tensors.

    Args:
        functions: all functions of a module.

    Returns:
        The functions. Changed are those that are called, never passed as values, and not made by a decomposition; calls
        of them get several results.
    """
    known = {function.name: function for function in functions}
    mentioned = {
        name for one in functions for call in calls_in(one) if call.callee is None for name in _mentions(call, known)
    }
    called = frozenset[str]().union(*map(callees_of, functions))
    # Callees first: unpacked calls of a callee can make the results of its caller separate values.
    for name in [function.name for function in callees_first(known.values(), known)]:
        function = known[name]
        if name not in called or name in mentioned or function.code is not None or function.attr("role") is not None:
            continue
        untupled = _with_results(function)
        if untupled is None:
            continue
        known[name] = untupled
        types = [untupled.types[result] for result in untupled.results]
        for other in list(known.values()):
            if name in callees_of(other):
                known[other.name] = _with_unpacked_calls(other, name, types)
    return tuple(known.values())


def _mentions(call: Call, names: Mapping[str, Function]) -> list[str]:
    text = call.attr("tvm.args")
    return [name for name in names if isinstance(text, str) and f"Global({name!r})" in text]


def _with_results(function: Function) -> Function | None:
    """Return a function with the fields of its tuple as results; None if it returns something else."""
    if len(function.results) != 1:
        return None
    whole = function.results[0]
    type_ = function.types.get(whole)
    place = next((at for at, call in enumerate(function.body) if [out.name for out in call.outputs] == [whole]), None)
    fields = _tensor_fields(type_)
    if fields is None or place is None:
        return None
    call = function.body[place]
    attrs = tuple(item for item in function.attrs if item[0] not in (RESULT, BLOCKS, "tvm.returns"))
    body = list(function.body)
    is_read = any(whole in other.uses() for other in function.body)
    results = _values_in_tuple(call, function)
    if results is None:
        if is_read or call.op in ("relax.match_cast", "relax.If", "relax.TupleGetItem", "relax.value"):
            return None
        names = Names(all_names(function))
        outputs = tuple(replace(field, name=names.fresh(f"{whole}_{at}")) for at, field in enumerate(fields))
        body[place] = replace(call, outputs=outputs)
        results = tuple(output.name for output in outputs)
    elif not is_read:
        del body[place]
    return function.replace(body=tuple(body), results=results, attrs=attrs)


def _tensor_fields(type_: Type) -> list[Value] | None:
    """Return unnamed values with the field types of a tuple of tensors; None for other types."""
    if not isinstance(type_, OpaqueType) or not type_.name.startswith("Tuple("):
        return None
    texts = tuple_fields(type_.name)
    if not all(text.startswith("Tensor(") for text in texts):
        return None
    return [Value("", *type_of(text)) for text in texts]


def _values_in_tuple(call: Call, function: Function) -> tuple[str, ...] | None:
    """Return the values that an operation puts into a tuple; None if it does not, or one occurs twice."""
    text = call.attr("tvm.args")
    if call.op == "relax.Tuple":
        names = call.inputs
    elif call.op == "relax.value" and isinstance(text, str) and text.startswith("("):
        fields = read_text(text, lambda node: _parse_fields(node, call.inputs))
        if not isinstance(fields, tuple) or not all(isinstance(field, str) for field in fields):
            return None
        names = tuple(map(str, fields))
    else:
        return None
    if len(set(names)) != len(names) or not set(names) <= function.types.keys():
        return None
    return names


def _with_unpacked_calls(function: Function, callee: str, types: Sequence[Type]) -> Function:
    """Give the calls of a function several results instead of one tuple."""
    names = Names(all_names(function))

    def change(body: Function) -> Function:
        new: list[Call] = []
        renamed: dict[str, str] = {}
        dropped: set[int] = set()
        for index, call in enumerate(body.body):
            if index in dropped:
                continue
            regions = tuple((label, change(region)) for label, region in call.regions)
            call = replace(call, regions=regions) if regions else call
            if call.callee != callee or len(call.outputs) != 1 or isinstance(call.outputs[0].type, TensorType):
                new.append(call)
                continue
            whole = call.outputs[0]
            taken: dict[int, str] = {}
            is_tuple_read = whole.name in body.results
            for at, other in enumerate(body.body):
                if whole.name not in other.uses():
                    continue
                field = other.attr("index")
                if other.op != "relax.TupleGetItem" or not isinstance(field, int) or other.attr("tvm.value_type"):
                    is_tuple_read = True
                    continue
                dropped.add(at)
                name = taken.setdefault(field, other.outputs[0].name)
                if name != other.outputs[0].name:
                    renamed[other.outputs[0].name] = name
            if is_tuple_read:
                taken = {at: taken.get(at) or names.fresh(f"{whole.name}_{at}") for at in range(len(types))}
            fields = _tensor_fields(whole.type) or [Value("", type_) for type_ in types]
            outputs = tuple(replace(field, name=taken.get(at, "")) for at, field in enumerate(fields))
            new.append(replace(call, outputs=outputs))
            if is_tuple_read:
                new.append(Call("relax.Tuple", tuple(taken[at] for at in range(len(types))), (whole,), (), source=""))
        attrs = tuple(item for item in body.attrs if item[0] != BLOCKS)
        return rename_values(body.replace(body=tuple(new), attrs=attrs), renamed)

    return change(function)
