"""Structural identity of subgraphs, by which identical subgraphs of one site share one function.

Names of values, operations and symbolic dimensions do not matter, nor the order of independent operations. Unlike the
canonical bodies of `ir/structure.py`, a structure here is taken before any function exists, leaves out the data of
constants, and records which operation, value and dimension is where, so that two subgraphs can be mapped to each other.
The canonical order of all operations of a large program would take most of the time of planning, so that its leaves are
compared as they are listed, and in canonical order only where that may find two identical ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b, sha256
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tvmtarget.ir.function import Constant
from tvmtarget.ir.structure import OpFingerprint, type_pattern
from tvmtarget.ir.tensors import bytes_of
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.outline.canonical_order import CanonicalOrders
from tvmtarget.partition.outline.leaf_wiring import LeafWirings, has_listed_leaves, wirings_of_leaves
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.pattern_groups import PatternGroup
from tvmtarget.partition.plan_cache import PlanCache

__all__ = ["SubgraphStructure", "SubgraphStructures", "same_data"]

# Elements of a constant that names contain, and that comparisons read before all others.
_SAMPLE = 16

# Hexadecimal digits in the name of a function. Two functions of the same name get numbered suffixes; by the birthday
# bound that happens in one of eighty programs with ten thousand functions.
_DIGITS = 8

# What tells constants that are parameters of a leaf from those that it holds, in the key of its driver: less than any
# number of these.
_PARAMETER = -(1 << 40)

# What `PlanCache` calls structures of subgraphs.
_STRUCTURES = "structures of subgraphs"

HeldConstants: TypeAlias = Callable[[PartitionNode], Collection[str]]


@dataclass(frozen=True)
class SubgraphStructure:
    """Structure of one subgraph: a key for comparison, and the names behind it.

    In subgraphs with equal keys, the entries at the same position of each tuple correspond.

    Attributes:
        key: name-independent identity without the data of constants, the same in every program and process.
        ops: operations by number in canonical order, each before those in its regions; in large programs as listed, or
            as the first identical leaf is.
        values: values that the operations read and compute, by first occurrence.
        constants: constants that the function holds, by first occurrence.
        dims: symbolic dimensions, by first occurrence.
        name_key: what the name of the function derives from, if not from `key`.
        named_op: the operation that calls are named after, if it is not the first one.
    """

    key: tuple[Hashable, ...]
    ops: tuple[int, ...]
    values: tuple[str, ...]
    constants: tuple[str, ...]
    dims: tuple[str, ...]
    name_key: tuple[Hashable, ...] = ()
    named_op: int | None = None

    @property
    def first_op(self) -> int | None:
        """The operation that function and calls are named after; None if there are no operations."""
        return self.named_op if self.named_op is not None else next(iter(self.ops), None)

    def correspondence(self, other: SubgraphStructure, execution_order: Sequence[int]) -> Correspondence:
        """Map this subgraph to another one with an equal key.

        Args:
            other: structure of the other subgraph.
            execution_order: operations of this subgraph as its function runs them.

        Returns:
            The counterparts of operations (in that order), values and symbolic dimensions.
        """
        values = zip((*self.values, *self.constants), (*other.values, *other.constants), strict=True)
        dims = zip(self.dims, other.dims, strict=True)
        ops = dict(zip(self.ops, other.ops, strict=True))
        return Correspondence({index: ops[index] for index in execution_order}, dict(values), dict(dims))


@dataclass(frozen=True, slots=True)
class Correspondence:
    """Mapping of the operations, values and symbolic dimensions of one subgraph to those of an identical one.

    Operations are in the order in which the first subgraph runs them.
    """

    ops: Mapping[int, int]
    values: Mapping[str, str]
    dims: Mapping[str, str]


class SubgraphStructures:
    """Computes structures of the subgraphs of one program."""

    def __init__(
        self, program: FlatProgram, groups: Iterable[PatternGroup] = (), cache: PlanCache | None = None
    ) -> None:
        """Prepare for a program.

        Args:
            program: the program.
            groups: operations that patterns of code generators match together.
            cache: structures of subgraphs of an earlier plan.
        """
        self.program = program
        self._cache = cache or PlanCache()
        self.groups = {group.calls[-1]: group for group in groups}
        self._matched = frozenset(index for group in self.groups.values() for index in group.calls)
        self._orders: dict[int, tuple[int, ...]] = {}  # of leaves, by their first operation
        self._ordered_by_data: set[int] = set()  # first operations of leaves whose order depends on constants
        self._canonical_orders = CanonicalOrders()
        self._wirings: LeafWirings | None = None  # of the leaves of a large program
        self._leaves: Sequence[PartitionNode] = ()
        self._numbers: dict[int, int] = {}  # of these leaves, by their first operation
        self._listings: dict[int, SubgraphStructure] = {}  # by number of the leaf
        self._of_one_name: dict[Hashable, _LeavesOfOneName] = {}  # by `SubgraphStructure.name_key`
        self.fingerprints = _Fingerprints(program)

    def is_matched(self, index: int) -> bool:
        """Return whether a pattern matches an operation together with others.

        Args:
            index: number of the operation.

        Returns:
            Whether it is in any group.
        """
        return index in self._matched

    def of(self, subgraph: PartitionNode, results: Sequence[str], held: HeldConstants) -> SubgraphStructure:
        """Compute the structure of a subgraph.

        Args:
            subgraph: leaf or system.
            results: values that its function returns.
            held: returns the names of the constants that the function of a leaf may hold; all other constants are
                parameters, like other values.

        Returns:
            Its structure.
        """
        calls = subgraph.calls
        if self.is_listed(subgraph):
            return self._of_listed_leaf(self._numbers[calls[0]], held)
        if not subgraph.is_leaf or len(calls) < 2 or self.program.bodies:
            return self._written(subgraph, results, held)
        # Programs repeat layers: subgraphs that are listed in the same way have the same structure.
        listing = _Listing(self.program, self.fingerprints, self.groups, subgraph, results, held(subgraph))
        known = cast("_Positions | None", self._cache.recall(_STRUCTURES, listing.key))
        if known is not None:
            return listing.structure(known)
        written = self._written(subgraph, results, held)
        if calls[0] not in self._ordered_by_data:
            self._cache.store(_STRUCTURES, listing.key, listing.positions(written))
        return written

    def list_leaves(
        self, root: PartitionNode, lifted: Mapping[int, frozenset[str]], only: Collection[int] | None = None
    ) -> None:
        """Prepare for the leaves of a partition of a large program.

        Args:
            root: the partition.
            lifted: constants that are parameters of leaves, by their first operation.
            only: first operations of the leaves whose structures will be needed; None for all.
        """
        if root.is_leaf or not has_listed_leaves(self.program):
            return
        self._leaves = [node for node in root.walk() if node.is_leaf and node.calls]
        calls = tuple([leaf.calls for leaf in self._leaves])
        self._numbers = {first: number for number, (first, *_) in enumerate(calls)}
        # An edit may change the data of constants, but neither the wiring of the program nor their names.
        key = self.program.wiring, calls, frozenset(lifted.items())
        wirings = self._cache.find("wirings of leaves", key, lambda: wirings_of_leaves(self.program, calls, lifted))
        if only is not None:
            numbers = [self._numbers[first] for first in only]
            listed = (next(self._listed([self._leaves[number]], wirings.of(number))) for number in numbers)
            self._listings = dict(zip(numbers, listed, strict=True))
        elif self._wirings is not wirings:
            self._listings = dict(enumerate(self._listed(self._leaves, wirings)))
        self._wirings, self._of_one_name = wirings, {}

    def is_listed(self, subgraph: PartitionNode) -> bool:
        """Return whether a subgraph is a leaf that `list_leaves` has prepared for.

        Args:
            subgraph: leaf or system.

        Returns:
            Whether its boundary is known from the wiring of the leaves.
        """
        return self._wirings is not None and subgraph.is_leaf and bool(subgraph.calls)

    def boundary(self, leaf: PartitionNode) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what a listed leaf reads and returns.

        Args:
            leaf: a leaf that `list_leaves` has prepared for.

        Returns:
            The values that it reads from elsewhere, by first use, and those it computes for others, in order.
        """
        assert self._wirings is not None
        number = self._numbers[leaf.calls[0]]
        return self._wirings.inputs[number], self._wirings.outputs[number]

    def _of_listed_leaf(self, number: int, held: HeldConstants) -> SubgraphStructure:
        """Compute the structure of a leaf, whose operations stay as listed if no earlier leaf is identical.

        Only leaves of one name are compared in canonical order.
        """
        found = self._listings[number]
        same = self._of_one_name.setdefault(found.name_key, _LeavesOfOneName(number))
        if found.key in same.listed:
            known = same.listed[found.key]
            return found if known is None else _at_positions(found, known)
        if not same.listed:
            same.listed[found.key] = None
            return found
        if not same.written:
            same.written[self._written_leaf(same.first, held).key] = same.first
        written = self._written_leaf(number, held)
        other = same.written.setdefault(written.key, number)
        if other == number:
            same.listed[found.key] = None
            return found
        # The places of both correspond in canonical order.
        shared, first = self._listings[other], self._written_leaf(other, held)
        parts = "ops", "values", "constants", "dims"
        places = []
        for part in parts:
            place = {name: at for at, name in enumerate(getattr(found, part))}
            counterparts = dict(zip(getattr(first, part), getattr(written, part), strict=True))
            places.append(tuple([place[counterparts[name]] for name in getattr(shared, part)]))
        known = same.listed[found.key] = _Positions(shared.key, *places)
        return _at_positions(found, known)

    def _written_leaf(self, number: int, held: HeldConstants) -> SubgraphStructure:
        leaf = self._leaves[number]
        return self._written(leaf, self.boundary(leaf)[1], held)

    def _listed(self, leaves: Sequence[PartitionNode], wirings: LeafWirings) -> Iterator[SubgraphStructure]:
        """Yield the structures of leaves as they are listed. O(E log E).

        Names derive from labels of the operations, which do not depend on the order of the list.
        """
        program, start = self.program, wirings.start.tolist()
        signature = program.signature_array[wirings.ops]
        is_used = np.zeros(len(program.representatives), dtype=np.bool_)
        is_used[signature] = True
        signatures, kinds = np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[signature]
        first_calls = [program.body[program.representatives[number]] for number in signatures.tolist()]
        fingerprints = [self.fingerprints[number] for number in signatures.tolist()]
        texts = [f"{one.text} {call.has_effect}" for one, call in zip(fingerprints, first_calls, strict=True)]
        words = np.array([np.frombuffer(blake2b(text.encode(), digest_size=16).digest(), "<u8") for text in texts])
        ops = words[kinds].astype("<u8").tobytes()
        labels = wirings.labels(words[kinds, 0])
        owner = np.repeat(np.arange(len(leaves)), np.diff(wirings.start))
        by_label = np.lexsort((labels, owner))
        sorted_labels = labels[by_label].astype("<u8").tobytes()
        # Of the operations that read nothing that the leaf computes, the one with the smallest label.
        is_start = np.ones(len(owner), dtype=np.bool_)
        is_start[wirings.readers[wirings.producers >= 0]] = False
        starting = by_label[is_start[by_label]]
        named = wirings.ops[starting[np.searchsorted(owner[starting], np.arange(len(leaves)))]].tolist()
        with_dims = [bool(one.dims) for one in fingerprints]
        is_onnx = [call.op.startswith("onnx.") for call in first_calls]
        for number, leaf in enumerate(leaves):
            begin, end = start[number : number + 2]
            own = (leaf.site.path, leaf.device)
            key: list[Hashable] = [ops[16 * begin : 16 * end], wirings.digests[number]]
            dims: dict[str, int] = {}
            if any(with_dims):
                numbers = kinds[begin:end].tolist()
                found = [fingerprints[kind].dims for kind in numbers if with_dims[kind]]
                key += [dims.setdefault(name, len(dims)) for names in found for name in names]
                key += dims if not all(is_onnx[kind] for kind in numbers) else ()
            if self.groups:
                position = {index: at for at, index in enumerate(leaf.calls)}
                key += _matches_at(position, self.groups, leaf.site.target.kind)
            yield SubgraphStructure(
                (*own, *key),
                leaf.calls,
                wirings.values[number],
                wirings.constants[number],
                tuple(dims),
                (*own, blake2b(sorted_labels[8 * begin : 8 * end]).hexdigest()),
                named[number],
            )

    def _written(self, subgraph: PartitionNode, results: Sequence[str], held: HeldConstants) -> SubgraphStructure:
        writer = _StructureWriter(self, held, is_driver=not subgraph.is_leaf)
        writer.subgraph(subgraph)
        return writer.structure(results)

    def order(self, calls: tuple[int, ...]) -> tuple[int, ...]:
        """Return the operations of a leaf in canonical order.

        Args:
            calls: numbers of its operations. With regions among them the given order is kept.

        Returns:
            The same numbers, reordered.
        """
        program = self.program
        if len(calls) == 1 or any(index in program.bodies for index in calls):
            return calls
        if calls[0] not in self._orders:
            by_signature, numbers = self.fingerprints, program.signatures
            fingerprints = [by_signature[numbers[index]].text for index in calls]
            body, inside = [program.body[index] for index in calls], frozenset(calls)

            def is_returned(name: str) -> bool:
                return name in program.results or not inside.issuperset(program.consumers.get(name, ()))

            def data(name: str) -> str | None:
                found = self._data(name)
                if found is not None:
                    self._ordered_by_data.add(calls[0])
                return found

            positions = self._canonical_orders.order(body, fingerprints, is_returned, data)
            self._orders[calls[0]] = tuple(calls[position] for position in positions)
        return self._orders[calls[0]]

    def _data(self, name: str) -> str | None:
        """Return what names contain of a constant."""
        constant = self.program.constants.get(name)
        return None if constant is None else bytes(bytes_of(_sample(constant))).hex()

    def name(self, subgraph: PartitionNode, structure: SubgraphStructure) -> str:
        """Derive the name of a function from structure and a sample of the constants.

        Args:
            subgraph: leaf or system.
            structure: its structure.

        Returns:
            Name of the site, of a leaf the first operator, and digits: `npu_conv_1c9f2b3d`.
        """
        held, first = (self.program.constants[name] for name in structure.constants), structure.first_op
        samples = [(str(constant.type), bytes(bytes_of(_sample(constant))).hex()) for constant in held]
        if structure.name_key:
            samples.sort()  # the order of constants is that of the list
        digits = sha256(repr((structure.name_key or structure.key, samples)).encode()).hexdigest()[:_DIGITS]
        place = subgraph.site.path.rpartition("/")[2] or subgraph.site.target.kind
        kind = self.program.body[first].kind.rpartition(".")[2] if subgraph.is_leaf and first is not None else ""
        return re.sub(r"\W+", "_", f"{place}_{kind}".lower()).strip("_") + f"_{digits}"


class _Fingerprints(dict[int, OpFingerprint]):
    """The fingerprint of each signature (`FlatProgram.signatures`), of which there are few."""

    def __init__(self, program: FlatProgram) -> None:
        super().__init__()
        self._program = program

    def __missing__(self, number: int) -> OpFingerprint:
        found = self[number] = self._program.fingerprint(self._program.representatives[number])
        return found


@dataclass(frozen=True, slots=True)
class _Positions:
    """A structure by positions in the listing of its subgraph (`_Listing`, `SubgraphStructures.list_leaves`)."""

    key: tuple[Hashable, ...]
    ops: tuple[int, ...]
    values: tuple[int, ...]
    constants: tuple[int, ...]
    dims: tuple[int, ...]


def _at_positions(listed: SubgraphStructure, known: _Positions) -> SubgraphStructure:
    """Return the structure of a listed leaf with everything at the positions that an identical leaf has it at."""
    pairs = ((getattr(listed, part), getattr(known, part)) for part in ("ops", "values", "constants", "dims"))
    ops, values, constants, dims = (tuple([names[place] for place in places]) for names, places in pairs)
    return replace(listed, key=known.key, ops=ops, values=values, constants=constants, dims=dims)


@dataclass
class _LeavesOfOneName:
    """The leaves of a large program whose functions have one name, which may be identical.

    Attributes:
        first: number of the first leaf.
        listed: by key of the listing, the positions of an identical earlier leaf; None if there is none.
        written: the first leaf of each key in canonical order, once two leaves are listed in different ways.
    """

    first: int
    listed: dict[Hashable, _Positions | None] = field(default_factory=dict)
    written: dict[Hashable, int] = field(default_factory=dict)


class _Listing:
    """A leaf as its operations are listed, without names: equal keys mean equal structures.

    The key has all that the canonical order of the operations depends on, but the data of constants.
    """

    def __init__(
        self,
        program: FlatProgram,
        fingerprints: Mapping[int, OpFingerprint],
        groups: Mapping[int, PatternGroup],
        leaf: PartitionNode,
        results: Sequence[str],
        own: Collection[str],
    ) -> None:
        self.calls = leaf.calls
        values: dict[str, int] = {"": -1}  # "" is an absent operand
        constants: dict[str, int] = {}
        dims: dict[str, int] = {}
        known = program.constants
        ops: list[Hashable] = []
        may_name_dims = False

        def refer(name: str) -> int:
            if name in known and name in own:
                return -2 - constants.setdefault(name, len(constants))
            return values.setdefault(name, len(values) - 1)

        body, numbers = program.body, program.signatures
        for index in leaf.calls:
            call, fingerprint = body[index], fingerprints[numbers[index]]
            inputs = [values[name] if name in values else refer(name) for name in call.inputs]
            outputs = [values[output.name] if output.name in values else refer(output.name) for output in call.outputs]
            symbols = [dims.setdefault(name, len(dims)) for name in fingerprint.dims] if fingerprint.dims else ()
            ops.append((fingerprint.text, *inputs, *outputs, *symbols, call.has_effect))
            may_name_dims = may_name_dims or not call.op.startswith("onnx.")
        position = {index: number for number, index in enumerate(leaf.calls)} if groups else {}
        matches = _matches_at(position, groups, leaf.site.target.kind)
        # Operations whose constant operands are parameters are ordered as if these were constants.
        lifted = [number for name, number in values.items() if name in known] if known else []
        returned = [refer(name) for name in results]
        self.values, self.constants, self.dims = [*values][1:], [*constants], [*dims]
        named = tuple(dims) if may_name_dims else ()
        self.key = (leaf.site.path, leaf.device, tuple(ops), tuple(matches), tuple(lifted), tuple(returned), named)

    def positions(self, structure: SubgraphStructure) -> _Positions:
        """Return the structure of this subgraph by positions."""
        places = ({name: place for place, name in enumerate(names)} for names in self._names())
        found = (structure.ops, structure.values, structure.constants, structure.dims)
        ops, values, constants, dims = (
            tuple([place[name] for name in names]) for place, names in zip(places, found, strict=True)
        )
        return _Positions(structure.key, ops, values, constants, dims)

    def structure(self, known: _Positions) -> SubgraphStructure:
        """Return the structure of this subgraph from that of one with the same key."""
        calls, values, constants, dims = self._names()
        return SubgraphStructure(
            known.key,
            tuple([calls[place] for place in known.ops]),
            tuple([values[place] for place in known.values]),
            tuple([constants[place] for place in known.constants]),
            tuple([dims[place] for place in known.dims]),
        )

    def _names(self) -> tuple[Sequence[Any], ...]:
        return self.calls, self.values, self.constants, self.dims


def _matches_at(
    position: Mapping[int, int], groups: Mapping[int, PatternGroup], kind: str
) -> Iterator[tuple[Hashable, ...]]:
    """Yield the pattern of each match of a leaf, None where its site has none, and the positions of the operations."""
    for index in position:
        if index in groups:
            yield groups[index].pattern_of(kind), *(position[one] for one in groups[index].calls)


@dataclass
class _StructureWriter:
    """Writes the key of one subgraph while it numbers values, constants and dimensions by first occurrence."""

    structures: SubgraphStructures
    held: HeldConstants
    key: list[Hashable] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    own: Collection[str] = ()  # constants that the function being written may hold
    is_driver: bool = False  # whether the subgraph has a driver, which holds the parameters of its leaves
    may_name_dims: bool = False

    @cached_property
    def program(self) -> FlatProgram:
        return self.structures.program

    def structure(self, results: Sequence[str]) -> SubgraphStructure:
        """Return the finished structure of a subgraph with these results."""
        # Sorted, because the order of results follows the order in which operations are listed.
        self.key.append(tuple(sorted(map(self.refer, results))))
        # Attributes of dialects other than ONNX may contain the names of dimensions, so there these count.
        self.key += self.dims if self.may_name_dims else ()
        return SubgraphStructure(
            tuple(self.key), tuple(self.ops), tuple(self.values), tuple(self.constants), tuple(self.dims)
        )

    def subgraph(self, subgraph: PartitionNode) -> None:
        # The literals "region" and "end" are part of the names of functions: do not rename them.
        self.key += ("region", subgraph.site.path, subgraph.device)
        if subgraph.is_leaf:
            self.own = self.held(subgraph)
            calls = self.structures.order(subgraph.calls) if subgraph.calls else ()
            if self.program.bodies:
                for index in calls:
                    self.op(index)
            else:
                self.plain_ops(calls)
            self.key += self.matches(calls, subgraph.site.target.kind)
            return
        self.own = self.program.constants
        for part in subgraph.parts:
            self.subgraph(part)
        for index in subgraph.calls if subgraph.bodies else ():
            self.op(index, subgraph.bodies)
        self.key.append("end")

    def plain_ops(self, calls: Sequence[int]) -> None:
        """Add operations of a program without regions, as `op` does."""
        program, values, refer = self.program, self.values, self.refer
        numbers, fingerprints, first_of = program.signatures, self.structures.fingerprints, program.representatives
        self.ops += calls
        distinct = {numbers[index] for index in calls}
        is_onnx = all(program.body[first_of[number]].op.startswith("onnx.") for number in distinct)
        self.may_name_dims = self.may_name_dims or not is_onnx
        add, known = self.key.append, values.get
        for index in calls:
            call, fingerprint = program.body[index], fingerprints[numbers[index]]
            add(fingerprint.text)
            if fingerprint.dims:
                self.key += map(self.dim, fingerprint.dims)
            for name in call.inputs:
                number = known(name)
                add(refer(name) if number is None else number)
            for output in call.outputs:
                number = known(output.name)
                add(refer(output.name) if number is None else number)

    def op(self, index: int, partitioned: Sequence[PartitionNode] = ()) -> None:
        """Add an operation; `partitioned` are the partitions of its regions if a driver runs it."""
        call = self.program.body[index]
        self.ops.append(index)
        self.may_name_dims = self.may_name_dims or not call.op.startswith("onnx.")
        fingerprint = self.program.fingerprint(index)
        self.key.append(fingerprint.text)
        if fingerprint.dims:
            self.key += map(self.dim, fingerprint.dims)
        self.key += map(self.refer, call.inputs)
        self.key += [self.refer(output.name) for output in call.outputs]
        scopes = self.program.bodies.get(index, ())
        # Regions that stay in one function are written here; those that a driver runs are subgraphs of their own.
        for place, scope in enumerate(scopes):
            dims: list[str] = []
            types = [type_pattern(param.type, dims) for param in scope.function.params]
            self.key.append((scope.label, *types, *map(self.dim, dims)))
            self.key += [self.refer(param.name) for param in scope.function.params]
            if partitioned:
                self.subgraph(partitioned[place])
                self.own = self.program.constants
            for inner in () if partitioned else scope.calls:
                self.op(inner)
            self.key.append(tuple(map(self.refer, scope.function.results)))

    def dim(self, name: str) -> int:
        """Return the number of a symbolic dimension."""
        return self.dims.setdefault(name, len(self.dims))

    def refer(self, name: str) -> int:
        """Return the number of a value: from 0 up; for constants that are held, from -2 down; -1 for none.

        The driver of a leaf holds its parameters, so that they are no values of a subgraph that has both.
        """
        number = self.values.get(name)
        if number is not None:
            return number
        if not name:
            return -1
        if name in self.program.constants and (self.is_driver or name in self.own):
            number = -2 - self.constants.setdefault(name, len(self.constants))
            return number if name in self.own else _PARAMETER + number
        return self.values.setdefault(name, len(self.values))

    def matches(self, calls: Sequence[int], kind: str) -> Iterator[Hashable]:
        """Yield the matches of patterns of the site: pattern and positions of the operations."""
        groups = self.structures.groups
        position = {index: number for number, index in enumerate(calls)} if groups else {}
        for index in position:
            group = groups.get(index)
            pattern = None if group is None else group.pattern_of(kind)
            if group is not None and pattern is not None:
                yield pattern, tuple(position[one] for one in group.calls)


def _sample(constant: Constant) -> npt.NDArray[Any]:
    """Return up to `_SAMPLE` evenly spaced elements of a constant."""
    flat = constant.data.reshape(-1)
    return flat[:: max(1, flat.size // _SAMPLE)][:_SAMPLE]


def same_data(one: Constant, other: Constant) -> bool:
    """Compare the data of two constants of one type, samples of it first.

    Args:
        one: a constant.
        other: a constant of the same type.

    Returns:
        Whether all bytes are equal.
    """
    if one.data is other.data:
        return True
    first, second = (bytes(bytes_of(_sample(constant))) for constant in (one, other))
    return first == second and one.digest == other.digest
