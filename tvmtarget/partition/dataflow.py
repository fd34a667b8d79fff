"""The data flow of a program as NumPy arrays: producers, readers and types of values, and classes of equal operations.

Arrays keep the cost of one planning step on a program of 100,000 operations to a few vector operations.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tvmtarget.ir.function import Call, Constant, Function, Opaque
from tvmtarget.ir.types import Type

__all__ = [
    "NO_PRODUCER",
    "Dataflow",
    "Ints",
    "Operands",
    "Signatures",
    "TypeNumbers",
    "dataflow_of",
    "distinct",
    "number_types",
    "operands_of",
    "ranges",
    "renumbered",
    "signatures_of",
    "spans",
]

Ints: TypeAlias = npt.NDArray[np.int64]

# The producer of a value that no operation computes: a parameter, or a value from outside a nested body.
NO_PRODUCER = -1


@dataclass(frozen=True, eq=False)
class Dataflow:
    """Values that operations read or return, without constants; all arrays are parallel to `names`.

    Attributes:
        names: names of the values.
        producer: the operation that computes each value, `NO_PRODUCER` for a parameter.
        start: the readers of value i are `readers[start[i]:start[i + 1]]`.
        readers: operations, each once per value.
        is_result: whether the function returns the value.
        type_ids: index of the value's type in `types`.
        types: the distinct types.
    """

    names: tuple[str, ...]
    producer: Ints
    start: Ints
    readers: Ints
    is_result: npt.NDArray[np.bool_]
    type_ids: Ints
    types: tuple[Type, ...]


@dataclass(frozen=True, eq=False)
class Operands:
    """The operands and results of every operation as numbers of values.

    Attributes:
        names: names of the values; number 0 is an absent operand, or a result that is not used.
        numbers: the number of each name.
        start: the operands, then the results of operation i are `values[start[i]:start[i + 1]]`.
        values: numbers of values.
        input_counts: how many operands each operation has.
    """

    names: tuple[str, ...]
    numbers: Mapping[str, int]
    start: Ints
    values: Ints
    input_counts: Ints


def operands_of(body: Sequence[Call], names: Iterable[str]) -> Operands:
    """Number the operands and results of operations.

    Args:
        body: the operations.
        names: names of all values.

    Returns:
        The numbers.
    """
    names = ("", *names)
    numbers = {name: number for number, name in enumerate(names)}
    rows = [(*call.inputs, *[output.name for output in call.outputs]) for call in body]
    return Operands(
        names=names,
        numbers=numbers,
        start=spans(map(len, rows)),
        values=np.fromiter(map(numbers.__getitem__, chain.from_iterable(rows)), dtype=np.int64),
        input_counts=np.fromiter([len(call.inputs) for call in body], dtype=np.int64),
    )


@dataclass(frozen=True, slots=True)
class TypeNumbers:
    """Distinct types, and for every value by name the index of its type."""

    numbers: Mapping[str, int]
    types: tuple[Type, ...]


def number_types(types: Mapping[str, Type]) -> TypeNumbers:
    """Number the distinct types of values.

    Args:
        types: the type of every value by name.

    Returns:
        The distinct types in the order of their first value; equal types have one number.
    """
    seen: dict[Type, int] = {}
    # Most values share type objects; a lookup by identity avoids hashing the same shape thousands of times.
    by_identity: dict[int, int] = {}
    numbers: dict[str, int] = {}
    for name, type_ in types.items():
        number = by_identity.get(id(type_))
        if number is None:
            number = by_identity[id(type_)] = seen.setdefault(type_, len(seen))
        numbers[name] = number
    return TypeNumbers(numbers, tuple(seen))


def dataflow_of(
    function: Function,
    first: int,
    consumers: Mapping[str, tuple[int, ...]],
    type_numbers: TypeNumbers,
    constants: Container[str],
    ranks: Sequence[int] | None = None,
    producers: Mapping[str, int] | None = None,
) -> Dataflow:
    """Return the data flow of a flat function or of a nested body.

    Args:
        function: the function; what a nested body reads of bodies around it counts as a parameter.
        first: the program's number of the first operation of `function`.
        consumers: readers of each value, counted from 0 within `function`.
        type_numbers: types of all values of the program.
        constants: names of all constants of the program, which are left out.
        ranks: canonical ranks of the operations, which then order the values too; None keeps the order as listed.
        producers: the operation that computes each value, in the order as listed, where that is known.

    Returns:
        The values that operations compute, in the order of their producers, then those of no producer.
    """
    if ranks is None and producers is not None:
        producer = producers
    else:
        order = range(len(function.body)) if ranks is None else sorted(range(len(ranks)), key=ranks.__getitem__)
        producer = {out.name: first + at for at in order for out in function.body[at].outputs if out.name}
    rest = [name for name in consumers if name not in producer and name not in constants]
    if ranks is not None:
        rest.sort(key=lambda name: sorted([ranks[reader] for reader in consumers[name]]))
    names = [*producer, *rest]
    results = frozenset(function.results)
    readers = [consumers.get(name, ()) for name in names]
    # Types are numbered anew by first use, so that the arrays do not depend on the rest of the program.
    numbers = np.fromiter(map(type_numbers.numbers.__getitem__, names), dtype=np.int64, count=len(names))
    used, type_ids = renumbered(numbers)
    return Dataflow(
        names=tuple(names),
        producer=np.array([*producer.values(), *([NO_PRODUCER] * len(rest))], dtype=np.int64),
        start=spans(map(len, readers)),
        readers=first + np.fromiter(chain.from_iterable(readers), dtype=np.int64),
        is_result=np.fromiter(map(results.__contains__, names), dtype=np.bool_, count=len(names)),
        type_ids=type_ids,
        types=tuple(type_numbers.types[number] for number in used.tolist()),
    )


def distinct(numbers: Ints) -> Ints:
    """Return the distinct elements of an array in ascending order, as `np.unique` does.

    Args:
        numbers: the array.

    Returns:
        Each element once. Sorting takes a tenth of the time of the hash table that NumPy 2.3 and later use.
    """
    ordered = np.sort(numbers)
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    found: Ints = ordered[is_first]
    return found


def renumbered(numbers: Ints) -> tuple[Ints, Ints]:
    """Number the distinct elements of an array in the order of their first occurrence.

    Args:
        numbers: the array.

    Returns:
        The distinct elements in that order, and for every position of the array the number of its element.
    """
    elements, firsts, places = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    rank = np.empty(len(elements), dtype=np.int64)
    rank[order] = np.arange(len(elements))
    return elements[order], rank[places]


def spans(lengths: Iterable[int] | Ints) -> Ints:
    """Return the offsets of concatenated lists.

    Args:
        lengths: the length of each list.

    Returns:
        The begin of each list, and the end of the last: one more than `lengths`.
    """
    flat = np.fromiter(lengths, dtype=np.int64) if not isinstance(lengths, np.ndarray) else lengths
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(flat, dtype=np.int64)])


def ranges(begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the elements of several ranges.

    Args:
        begins: the first element of each range.
        ends: the end of each range, which is no element of it.

    Returns:
        For each element the number of its range, and the element.
    """
    lengths = ends - begins
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return owner, np.arange(len(owner)) + (begins + lengths - np.cumsum(lengths))[owner]


@dataclass(frozen=True, slots=True)
class Signatures:
    """Operations numbered by their structure, without names and values of constants.

    An operation with nested bodies, or with a tensor among its attributes, has a number of its own.

    Attributes:
        body: the operations.
        numbers: a number for each operation, counted from 0 in the order of first occurrence.
        array: the same.
        by_key: the number of each structure; structures of operations with a number of their own are positions.
        firsts: the first operation of every number.
    """

    body: tuple[Call, ...]
    numbers: list[int]
    array: Ints
    by_key: Mapping[Hashable, int]
    firsts: list[int]

    def of(
        self,
        body: tuple[Call, ...],
        changed: Iterable[int],
        operands: Callable[[str], int | None],
        read: Container[str],
    ) -> Signatures:
        """Number the operations of a program in which others than these are few.

        Args:
            body: the operations, as many as here.
            changed: which of them are other ones.
            operands: as in `signatures_of`.
            read: as in `signatures_of`.

        Returns:
            What `signatures_of` returns.
        """
        numbers, by_key, free = self.array.copy(), dict(self.by_key), len(self.firsts)
        for index in changed:
            key = _key_of_op(index, body[index], operands, read)
            by_key.pop(index, None)
            number = by_key.setdefault(key, free)
            free += number == free
            numbers[index] = number
        # Of equal indices the last assignment counts.
        firsts = np.full(free, len(body))
        firsts[numbers[::-1]] = np.arange(len(body))[::-1]
        used = np.argsort(firsts, kind="stable")[: np.count_nonzero(firsts < len(body))]
        rank = np.full(free, -1)
        rank[used] = np.arange(len(used))
        renamed, new = rank[numbers], rank.tolist()
        by_key = {key: new[number] for key, number in by_key.items() if new[number] >= 0}
        return Signatures(body, renamed.tolist(), renamed, by_key, firsts[used].tolist())


def _has_mapping(value: object) -> bool:
    return isinstance(value, Mapping) or (type(value) is tuple and any(map(_has_mapping, value)))


def _key_of_op(index: int, call: Call, operands: Callable[[str], int | None], read: Container[str]) -> Hashable:
    """Return the structure of an operation, for comparison; its position if it equals no other."""
    attrs = call.attrs
    if call.regions or any(isinstance(value, Constant | Opaque) or _has_mapping(value) for _, value in attrs):
        return index
    names = call.inputs
    inputs = tuple(map(operands, names))
    # `add(x, x)` differs from `add(x, y)`: record which operands are the same value.
    if len(names) > 1 and len(set(names)) < len(names):
        inputs = (*inputs, *map(names.index, names))
    if len(call.outputs) == 1:
        name = call.outputs[0].name
        return call.op, inputs, operands(name), name in read, attrs, call.has_effect
    outputs = tuple([(operands(output.name), output.name in read) if output.name else None for output in call.outputs])
    return call.op, inputs, outputs, attrs, call.has_effect


def signatures_of(body: tuple[Call, ...], operands: Callable[[str], int | None], read: Container[str]) -> Signatures:
    """Number operations by their structure.

    Args:
        body: the operations.
        operands: returns the number of the type of a value, for a constant another one than for values of that type;
            None for the empty name.
        read: names of values that are read or returned.

    Returns:
        The numbers.
    """
    seen: dict[Hashable, int] = {}
    firsts: list[int] = []
    numbers: list[int] = []
    for index, call in enumerate(body):
        number = seen.setdefault(_key_of_op(index, call, operands, read), len(seen))
        if number == len(firsts):
            firsts.append(index)
        numbers.append(number)
    return Signatures(body, numbers, np.array(numbers, dtype=np.int64), seen, firsts)
