"""The operations of a program as whole arrays: who computes and who reads each value, and which of them are alike."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tvmtarget.ir.function import Call, Constant, Function, Opaque
from tvmtarget.ir.types import Type

__all__ = ["Dataflow", "Ints", "Kinds", "dataflow_of", "kinds_of", "signatures_of", "spans"]

Ints: TypeAlias = npt.NDArray[np.int64]

# Who computes a value that is given from outside.
GIVEN = -1


@dataclass(frozen=True)
class Dataflow:
    """Values that operations read or return, constants aside; all arrays are parallel to `names`.

    `producer` is the operation that computes a value, `GIVEN` for a parameter. Its readers are
    `readers[start[i]:start[i + 1]]`, each once. `kinds` says which of `types` a value has.
    """

    names: tuple[str, ...]
    producer: Ints
    start: Ints
    readers: Ints
    is_result: npt.NDArray[np.bool_]
    kinds: Ints
    types: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Kinds:
    """The types of values by number, and the number of every value by its name; equal types have one number."""

    numbers: Mapping[str, int]
    types: tuple[Type, ...]


def kinds_of(types: Mapping[str, Type]) -> Kinds:
    """Number types, given by the names of values. Most are one object for many values, and only looked at once."""
    seen: dict[Type, int] = {}
    objects: dict[int, int] = {}
    numbers: dict[str, int] = {}
    for name, type_ in types.items():
        number = objects.get(id(type_))
        if number is None:
            number = objects[id(type_)] = seen.setdefault(type_, len(seen))
        numbers[name] = number
    return Kinds(numbers, tuple(seen))


def dataflow_of(
    function: Function,
    first: int,
    consumers: Mapping[str, tuple[int, ...]],
    kinds: Kinds,
    constants: Container[str],
    ranks: Sequence[int] | None = None,
) -> Dataflow:
    """Return the values of a flat function, or of a nested body, as arrays: what operations compute, then the rest.

    `first` is the number of the first operation, and `consumers` are the readers of each value, counted from 0. What
    a nested body reads of those around it is given to it, but for constants; `kinds` and `constants` are of all. Values
    are in the order of those who compute and read them: as these are listed, or by their `ranks`.
    """
    order = range(len(function.body)) if ranks is None else sorted(range(len(ranks)), key=ranks.__getitem__)
    producer = {out.name: first + at for at in order for out in function.body[at].outputs if out.name}
    rest = [name for name in consumers if name not in producer and name not in constants]
    if ranks is not None:
        rest.sort(key=lambda name: sorted([ranks[reader] for reader in consumers[name]]))
    names = [*producer, *rest]
    results = frozenset(function.results)
    found = [consumers.get(name, ()) for name in names]
    seen: dict[int, int] = {}
    own = [seen.setdefault(kinds.numbers[name], len(seen)) for name in names]
    return Dataflow(
        names=tuple(names),
        producer=np.array([*producer.values(), *([GIVEN] * len(rest))], dtype=np.int64),
        start=spans(map(len, found)),
        readers=first + np.fromiter(chain.from_iterable(found), dtype=np.int64),
        is_result=np.fromiter(map(results.__contains__, names), dtype=np.bool_, count=len(names)),
        kinds=np.array(own, dtype=np.int64),
        types=tuple(kinds.types[number] for number in seen),
    )


def spans(lengths: Iterable[int] | Ints) -> Ints:
    """Return where lists of these lengths begin when they are laid end to end, and the end of the last."""
    flat = np.fromiter(lengths, dtype=np.int64) if not isinstance(lengths, np.ndarray) else lengths
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(flat, dtype=np.int64)])


def signatures_of(body: Sequence[Call], kinds: Kinds, constants: Iterable[str], read: Container[str]) -> list[int]:
    """Number operations so that those of one number differ in nothing but names and the values of constants.

    An operation with nested bodies, or with a tensor among its attributes, has a number of its own.
    """
    seen: dict[Hashable, int] = {}
    known = {**kinds.numbers, **{name: -1 - kinds.numbers[name] for name in constants}}
    numbers = []
    for index, call in enumerate(body):
        if call.regions or (call.attrs and any(isinstance(value, Constant | Opaque) for _, value in call.attrs)):
            key: Hashable = index
        else:
            inputs = tuple(map(known.get, call.inputs))
            if len(set(call.inputs)) < len(call.inputs):  # which operands are one value
                inputs = (*inputs, *map(call.inputs.index, call.inputs))
            outputs = tuple(
                [(known[output.name], output.name in read) if output.name else None for output in call.outputs]
            )
            key = (call.op, inputs, outputs, call.attrs, call.has_effect)
        numbers.append(seen.setdefault(key, len(seen)))
    return numbers
