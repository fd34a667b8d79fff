"""Give symbolic dimensions of a program a size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tvmtarget.errors import ModelError, raise_all
from tvmtarget.ir.constant_folding import fold_constants
from tvmtarget.ir.dim_aliases import with_dims
from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.inference import infer_types
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.types import MAX_DIM, TensorType, Type
from tvmtarget.target.argument_types import check_arguments
from tvmtarget.target.problems import shown

__all__ = ["specialize", "values_of_open_size"]


@check_arguments
def specialize(module: IRModule, dims: Mapping[str, int]) -> IRModule:
    """Give symbolic dimensions of the inputs a size, and infer what follows from it.

    Args:
        module: the program, with one function.
        dims: sizes by the names of dimensions, such as `{"batch": 1}`; others stay symbolic.

    Returns:
        The program with types that ONNX infers for these sizes; other values keep the types that were stated, and the
        module its target and attributes.

    Raises:
        ModelError: a size is no integer from 0 to 2^63 - 1, the program has no such dimension or several functions, or
            ONNX finds that the sizes do not fit together.
    """
    if len(module.functions) != 1:
        raise ModelError(
            f"a module of {len(module.functions)} functions is not specialized; do so before it is partitioned"
        )
    main = module.main
    if main.code is not None:
        raise ModelError("dimensions of a main function that is code are not known; specialize it where it was written")
    known = {dim for param in main.params for dim in _symbols(param.type)}
    problems = [f"the inputs have no symbolic dimension {name!r}{_choice(known)}" for name in dims if name not in known]
    for name, size in dims.items():
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_DIM:
            problems.append(f"dimension {name!r} cannot be {shown(size)}; give an integer from 0 to {MAX_DIM}")
    raise_all(ModelError, problems)
    if not dims:
        return module
    return module.replace(functions=(_specialized(main, dims),)).verify()


def values_of_open_size(function: Function) -> frozenset[str]:
    """Find the values whose size depends on more than the sizes of inputs, as on elements.

    Args:
        function: the function.

    Returns:
        Names, also in nested bodies: the values whose size cannot be inferred, by folding constants too, for any number
        that is tried as all open sizes of the inputs. None if no such number fits.
    """
    symbols = {dim for param in function.params for dim in _symbols(param.type)}
    open_values: list[frozenset[str]] = []
    for size in _TRIED_SIZES:
        try:
            specialized = _specialized(function, dict.fromkeys(symbols, size))
        except ModelError:
            continue
        found, functions = set[str](), [fold_constants(IRModule((specialized,))).main]
        for one in functions:
            found |= {name for name, type_ in one.types.items() if _is_open(type_)}
            functions += [region for call in one.body for _, region in call.regions]
        open_values.append(frozenset(found))
    return frozenset.intersection(*open_values) if open_values else frozenset()


_TRIED_SIZES = (64, 1)


def _specialized(function: Function, dims: Mapping[str, int]) -> Function:
    given = _with_sizes(function, dims)
    # What ONNX cannot infer, such as results of unknown operators, keeps the stated type.
    open_calls = tuple(_without_open_types(call) for call in given.body)
    inferred = infer_types(given.replace(body=open_calls))
    body = tuple(_filled(new, stated) for new, stated in zip(inferred.body, given.body, strict=True))
    return given.replace(body=body)


def _with_sizes(function: Function, dims: Mapping[str, int]) -> Function:
    """Return a function whose types have sizes in place of symbolic dimensions, also in nested bodies."""

    def value(one: Value) -> Value:
        return replace(one, type=with_dims(one.type, dims))

    def call(one: Call) -> Call:
        regions = tuple((label, _with_sizes(region, dims)) for label, region in one.regions)
        return replace(one, outputs=tuple(map(value, one.outputs)), regions=regions)

    return function.replace(params=tuple(map(value, function.params)), body=tuple(map(call, function.body)))


def _symbols(type_: Type) -> Iterator[str]:
    if isinstance(type_, TensorType):
        yield from (dim for dim in type_.shape or () if isinstance(dim, str))


def _is_open(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.nbytes is None


def _without_open_types(call: Call) -> Call:
    return replace(call, outputs=tuple(replace(one, type=None) if _is_open(one.type) else one for one in call.outputs))


def _filled(call: Call, stated: Call) -> Call:
    pairs = zip(call.outputs, stated.outputs, strict=True)
    outputs = tuple(replace(new, type=old.type) if new.type is None else new for new, old in pairs)
    return replace(call, outputs=outputs)


def _choice(known: set[str]) -> str:
    return f"; there is {', '.join(map(repr, sorted(known)))}" if known else "; all their shapes are static"
