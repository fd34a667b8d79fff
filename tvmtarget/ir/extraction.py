"""Extraction: a set of operations, or a nested body, as a module of its own.

Values read from outside become parameters. Shape computations are copied instead: an operand that is computed from
nothing but shapes of values at hand is computed inside, since ONNX cannot infer shapes behind a parameter that holds a
size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tvmtarget.errors import ModelError, UnknownNameError, did_you_mean
from tvmtarget.ir.def_use import producers_of, readers_of
from tvmtarget.ir.function import Function, Value, callees_of
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.rewrite import check_convex, extract, positions_of, remove_dead_functions, values_of
from tvmtarget.ir.text.parser import parse_type
from tvmtarget.ir.types import TensorType, Type

__all__ = ["add_shape_computations", "extract_body", "extract_operations", "with_types"]

# ONNX operators that compute sizes from sizes; those below compute sizes from any tensor.
_SIZE_OPERATORS = (
    "Abs", "Add", "Cast", "Ceil", "Concat", "Div", "Equal", "Floor", "Gather", "Greater", "Identity", "Less",
    "Max", "Min", "Mod", "Mul", "Neg", "Not", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum",
    "Reshape", "Slice", "Split", "Squeeze", "Sub", "Unsqueeze", "Where",
)  # fmt: skip
_OF_SIZES = frozenset(f"onnx.{kind}" for kind in _SIZE_OPERATORS)
_OF_SHAPES = frozenset({"onnx.Shape", "onnx.Size"})


def extract_operations(module: IRModule, calls: Iterable[str], *, function: str = "main") -> IRModule:
    """Return operations of a function as a module.

    Args:
        module: the module.
        calls: source names of the operations.
        function: function that holds them.

    Returns:
        A verified module whose `main` consists of the operations; its results are the values read outside of them.

    Raises:
        ModelError: no operations are given, a name is ambiguous, or a value leaves the set and comes back.
        UnknownNameError: there is no such operation.
    """
    old = module[function]
    chosen = set(positions_of(old, calls))
    if not chosen:
        raise ModelError(f"no operations of function {function!r} are given")
    # Before the convexity check: copied shape computations often make a set convex.
    inside = add_shape_computations(old, chosen)
    check_convex(old, inside)
    new, _ = extract(old, sorted(inside), "main", None, readers_of(old), values_of(old))
    copied = {output.name for index in inside - chosen for output in old.body[index].outputs}
    results = tuple(name for name in new.results if name not in copied)
    return _as_entry(module, new.replace(results=results))


def extract_body(module: IRModule, op: str, label: str, *, function: str = "main") -> IRModule:
    """Return a nested body of an operation as a module.

    Args:
        module: the module.
        op: source name of the operation.
        label: label of the body, such as `then_branch`.
        function: function that holds the operation.

    Returns:
        A verified module whose `main` is the body; captured values are its last parameters.

    Raises:
        UnknownNameError: there is no such operation or body.
        ModelError: the body calls `main`.
    """
    old = module[function]
    call = next((call for call in old.body if call.source == op), None)
    if call is None:
        raise UnknownNameError(f"no op {op!r} in function {function!r}{did_you_mean(op, (c.source for c in old.body))}")
    regions = dict(call.regions)
    if label not in regions:
        raise UnknownNameError(f"op {op!r} has no body {label!r}{did_you_mean(label, regions)}")
    body, values = regions[label], values_of(old)
    captures = body.captures()
    params = tuple(values[name] for name in captures if name in values)
    constants = tuple(one for one in old.constants if one.name in captures)
    main = body.replace(
        name="main",
        params=(*body.params, *params),
        constants=(*body.constants, *constants),
        constraint=body.constraint or call.constraint or old.constraint,
        opsets=old.opsets,
    )
    return _as_entry(module, main)


def with_types(module: IRModule, types: Mapping[str, Type | str], *, function: str = "main") -> IRModule:
    """Set the types of values whose types are not known.

    Args:
        module: the module.
        types: types, or their texts, by name of the value.
        function: function that defines the values.

    Returns:
        The changed module.

    Raises:
        UnknownNameError: there is no such value.
        ModelError: the value has a known type that the new one contradicts.
    """
    old = module[function]
    stated = {name: parse_type(type_) if isinstance(type_, str) else type_ for name, type_ in types.items()}
    for name, type_ in stated.items():
        if name not in old.types:
            raise UnknownNameError(f"no value {name!r} in function {function!r}{did_you_mean(name, old.types)}")
        if not _may_become(old.types[name], type_):
            raise ModelError(f"value {name!r} of function {function!r} is {old.types[name]}, not {type_}")

    def typed(value: Value) -> Value:
        return replace(value, type=stated[value.name]) if value.name in stated else value

    body = tuple(replace(call, outputs=tuple(map(typed, call.outputs))) for call in old.body)
    return module.with_function(old.replace(params=tuple(map(typed, old.params)), body=body))


def _may_become(old: Type, new: Type) -> bool:
    """Return whether a new type only adds to an old one: a type or dimensions that were unknown."""
    if old is None or old == new:
        return True
    if not isinstance(old, TensorType) or not isinstance(new, TensorType) or old.dtype != new.dtype:
        return False
    if old.shape is None or new.shape is None:
        return old.shape is None
    known = all(a == b for a, b in zip(old.shape, new.shape, strict=False) if isinstance(a, int))
    return len(old.shape) == len(new.shape) and known


def add_shape_computations(function: Function, calls: Collection[int]) -> set[int]:
    """Add to a set of operations the shape computations that its operands need.

    Args:
        function: the function.
        calls: indices of the operations.

    Returns:
        Indices of the operations, and of those that compute its operands from nothing but shapes of values at hand.
    """
    producer = producers_of(function)
    inside = set(calls)
    own = {output.name for index in inside for output in function.body[index].outputs}
    read = {name for index in inside for name in function.body[index].uses()}
    sizes = {name for name in read - own if name in producer and _is_size(function.types.get(name))}
    at_hand = (read | own) - sizes | function.constant_names

    def computations(size: str) -> set[int]:
        """Return the operations that compute a size from shapes at hand; none if it needs anything else."""
        found: set[int] = set()
        waiting = [size]
        while waiting:
            name = waiting.pop()
            index = producer.get(name)
            if name in function.constant_names or index in found:
                continue
            call = None if index is None else function.body[index]
            # A parameter, an effect or a placed operation cannot be copied.
            if index is None or call is None or call.has_effect or call.constraint is not None:
                return set()
            is_shape = call.op in _OF_SHAPES and call.inputs[0] in at_hand
            if not is_shape and (call.op not in _OF_SIZES or not all(_is_size(output.type) for output in call.outputs)):
                return set()
            found.add(index)
            waiting += () if is_shape else filter(None, call.inputs)
        return found

    return inside.union(*map(computations, sorted(sizes)))


def _is_size(type_: Type) -> bool:
    # ONNX passes shapes and axes as integers of rank 0 or 1.
    return isinstance(type_, TensorType) and "int" in type_.dtype and type_.shape is not None and len(type_.shape) <= 1


def _as_entry(module: IRModule, main: Function) -> IRModule:
    """Return a module with a function as its entry, and the functions that it calls."""
    if "main" in callees_of(main):
        raise ModelError("the extracted operations call 'main', so that they cannot become 'main' of a module")
    others = tuple(one for one in module if one.name != "main")
    return remove_dead_functions(module.replace(functions=(main, *others), attrs={})).verify()
