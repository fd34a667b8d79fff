"""Explain why a machine is not what a target describes, with one three-valued answer for each fact.

A target is read as "at least this": each of its devices is matched with a different device of the machine, and more
cores, memory or instructions are no difference. Names, hosts, links, executors, runtimes, options of code generators
and external code generators (which are software) are not compared. The answer is unknown for facts that detection does
not look for or that the machine did not report.

Values are compared as `Target.satisfies(..., measured=True)` does (`constraints/attribute_comparison.py`). In addition,
a leaf is compared like a composite of one device, and the measured compute capability implies limits of NVIDIA's GPUs.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, groupby
from typing import TypeAlias

from tvmtarget import plugins
from tvmtarget.errors import TargetError
from tvmtarget.human_units import bytes_text
from tvmtarget.target.attributes import Attributes, Value
from tvmtarget.target.constraints.attribute_comparison import (
    compare_attribute,
    compare_feature,
    compare_memory,
    required_operator,
)
from tvmtarget.target.constraints.instructions import (
    check_vector_width,
    is_reduced,
    missing_features,
    unused_features,
)
from tvmtarget.target.constraints.matching import assign, indices
from tvmtarget.target.constraints.reasons import Reason, Truth
from tvmtarget.target.cpu.isa import is_cpu, read_isa
from tvmtarget.target.gpu_archs import NvidiaArch
from tvmtarget.target.kinds import Attribute, AttributeClass, find_kind, kind_names, kind_of
from tvmtarget.target.target_node import TargetNode
from tvmtarget.target.tree_paths import join

__all__ = ["compare_instructions", "compare_triples", "why_not"]

# The device types that detection looks for.
_LOOKED_FOR = frozenset({"cpu", "cuda", "rocm"})

# Limits of NVIDIA GPUs since compute capability 5.0, and those with fewer registers (CUDA C++ Programming Guide,
# "Technical specifications per compute capability"); some can give a block more shared memory on request.
_NVIDIA = {
    "max_shared_memory_per_block": 49152,
    "max_threads_per_block": 1024,
    "registers_per_block": 65536,
    "thread_warp_size": 32,
}
_FEWER_REGISTERS = {"sm_53": 32768, "sm_62": 32768}

_MAX_LISTED = 12  # names of features in a message


_Facts: TypeAlias = tuple[str, Attributes, int | None]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """Devices of one node, with the bytes of the memories that each can use; None if not stated."""

    path: str
    node: TargetNode
    count: int
    memory: int | None

    @property
    def facts(self) -> _Facts:
        """The values that a comparison depends on."""
        return self.node.kind, self.node.attrs, self.memory


def why_not(machine: TargetNode, required: TargetNode) -> Reason:
    """Decide whether a detected machine is at least what a target describes.

    Args:
        machine: The measured target.
        required: The target to compare with.

    Returns:
        The answer; `parts` hold a reason for each required device.
    """
    available = _merge_identical(_leaves(machine, count=machine.count))
    devices = [leaf for leaf in _leaves(required, count=required.count) if not _is_software(leaf.node)]
    answers = _Answers(available)
    parts = tuple(
        _device_reason(leaf, answers, taken) for leaf, taken in zip(devices, _assign(devices, answers), strict=True)
    )
    truth = min((part.truth for part in parts), default=Truth.YES)
    verb = {Truth.YES: "is", Truth.UNKNOWN: "may be", Truth.NO: "is not"}[truth]
    return Reason(truth=truth, text=f"this machine {verb} {required.tag or required}", parts=parts)


def _merge_identical(leaves: Iterable[_Leaf]) -> Sequence[_Leaf]:
    """Merge devices with equal facts and add their counts; each group has the place of its first device."""
    found: dict[_Facts, _Leaf] = {}
    for leaf in leaves:
        known = found.get(leaf.facts)
        found[leaf.facts] = leaf if known is None else replace(known, count=known.count + leaf.count)
    return tuple(found.values())


def _leaves(node: TargetNode, path: str = "", count: int = 1, inherited: int | None = None) -> Iterator[_Leaf]:
    """Yield the devices of a tree, with replicas of composites multiplied out."""
    if not node.targets:
        yield _Leaf(path, node, count, _sum(inherited, _own_memory(node, "")))
    for child in node.targets:
        usable = _sum(inherited, _own_memory(node, child.slot))
        yield from _leaves(child, join(path, child.slot), count * child.count, usable)


def _own_memory(node: TargetNode, child: str) -> int | None:
    """Return the bytes of memory that a node states for itself or for one child."""
    shared = (memory for memory in node.memory if not memory.is_read_only and (not memory.of or child in memory.of))
    sizes = [memory.bytes for memory in shared if memory.bytes is not None]
    return sum(sizes) if sizes else None


def _sum(left: int | None, right: int | None) -> int | None:
    return None if left is None and right is None else (left or 0) + (right or 0)


def _is_software(node: TargetNode) -> bool:
    kind = find_kind(node.kind)
    return kind is not None and kind.is_external


_Sizes: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _Compared:
    """Answers of all available devices to one aspect of a required device, as sets of bits."""

    certain: int  # the answer is yes
    possible: int  # it is yes or unknown
    lacking: tuple[tuple[int, int], ...]  # numbers of differences above 0, and the devices that have as many


class _Answers:
    """Answers of all available devices to a required one, as sets of bits: bit 0 for the first device.

    Machines with thousands of devices, all different, would have millions of pairs to compare. But what is compared has
    independent aspects. Sizes (capacities and counts) have an order: the devices that have enough are found by
    bisection. The instruction set and each other attribute are compared once for each pair of different values.
    """

    def __init__(self, available: Sequence[_Leaf]) -> None:
        self.available = available
        self._counts: dict[int, int] = {}
        self._by_device: dict[str, int] = {}
        self._by_rest: dict[tuple[str, Attributes], int] = {}
        self._examples: dict[tuple[str, Attributes], _Leaf] = {}
        self._by_aspect: dict[str, list[tuple[_Leaf, int]]] = {}
        self._compared_aspects: dict[tuple[str, str, Attributes], _Compared] = {}
        self._with_size: dict[str, tuple[list[int], list[int]]] = {}
        sizes: dict[str, dict[int, int]] = {}
        for at, leaf in enumerate(available):
            bit, (rest, of_leaf) = 1 << at, _split_sizes(leaf)
            self._by_device[leaf.node.device] = self._by_device.get(leaf.node.device, 0) | bit
            self._by_rest[rest] = self._by_rest.get(rest, 0) | bit
            self._examples.setdefault(rest, _with_attributes(leaf, rest[1]))
            for name, size in of_leaf:
                at_size = sizes.setdefault(name, {})
                at_size[size] = at_size.get(size, 0) | bit
        for name, by_size in sizes.items():
            ordered = sorted(by_size)
            # For each size, the devices with at least that size.
            enough = list(accumulate((by_size[size] for size in reversed(ordered)), operator.or_))[::-1]
            self._with_size[name] = ordered, [*enough, 0]

    def same_device(self, required: _Leaf) -> int:
        """Return the devices of the type of a required one."""
        return self._by_device.get(required.node.device, 0)

    def at_least(self, required: _Leaf, truth: Truth) -> int:
        """Return the devices whose answer is at least a truth."""
        found = self.same_device(required)
        rest, sizes = _split_sizes(required)
        for aspect in self._aspects(required, rest):
            found &= aspect.possible if truth is Truth.UNKNOWN else aspect.certain
        for name, size in self._compared(required, sizes):
            enough, unknown, _ = self._sizes(name, size, required)
            found &= enough | unknown if truth is Truth.UNKNOWN else enough
        return found

    def best(self, required: _Leaf) -> Reason:
        """Return the best answer of the devices of its type: the truth, then the fewest differences, then the order."""
        for truth in (Truth.YES, Truth.UNKNOWN):
            if found := self.at_least(required, truth):
                return self.answer(next(indices(found)), required)
        rest, sizes = _split_sizes(required)
        lacking = [aspect.lacking for aspect in self._aspects(required, rest)]
        lacking += [((1, self._sizes(name, size, required)[2]),) for name, size in self._compared(required, sizes)]
        # by_number[n] are the devices with n differences.
        by_number = [self.same_device(required)]
        for differences in lacking:
            before, by_number = (
                by_number,
                [0] * (len(by_number) + max((number for number, _ in differences), default=0)),
            )
            for at, bits in enumerate(before):
                for number, lacks in differences:
                    by_number[at + number] |= bits & lacks
                    bits &= ~lacks
                by_number[at] |= bits
        return self.answer(next(indices(next(filter(None, by_number)))), required)

    def number(self, found: int) -> int:
        """Count devices with their replicas."""
        if found not in self._counts:
            self._counts[found] = sum(self.available[at].count for at in indices(found))
        return self._counts[found]

    def answer(self, at: int, required: _Leaf) -> Reason:
        """Compare one device."""
        return _compare(self.available[at], required)

    def _aspects(self, required: _Leaf, rest: tuple[str, Attributes]) -> Iterator[_Compared]:
        """Compare the instruction set, and each attribute that is neither part of it nor a size."""
        kind, attrs = rest
        core = Attributes({name: value for name, value in attrs.items() if name in _CORE})
        yield self._aspect(required, (kind, _ALL_OF_CORE, core))
        device = {name: value for name, value in attrs.items() if name == _DEVICE}
        for name, value in attrs.items():
            if name not in _CORE:
                yield self._aspect(required, (kind, name, Attributes({**device, name: value})))

    def _aspect(self, required: _Leaf, aspect: tuple[str, str, Attributes]) -> _Compared:
        if aspect not in self._compared_aspects:
            _, name, attrs = aspect
            bare, certain, possible = _with_attributes(required, attrs), 0, 0
            lacking: dict[int, int] = {}
            for example, bits in self._examples_of(name):
                answer = _compare(example, bare)
                certain |= bits if answer.truth is Truth.YES else 0
                possible |= bits if answer.truth is not Truth.NO else 0
                if number := sum(part.truth is Truth.NO for part in answer.parts):
                    lacking[number] = lacking.get(number, 0) | bits
            self._compared_aspects[aspect] = _Compared(certain, possible, tuple(lacking.items()))
        return self._compared_aspects[aspect]

    def _examples_of(self, name: str) -> list[tuple[_Leaf, int]]:
        """Return one device for each instruction set and value of an attribute, with the devices that are like it."""
        if name not in self._by_aspect:
            groups: dict[tuple[str, Attributes], int] = {}
            examples: dict[tuple[str, Attributes], _Leaf] = {}
            for (kind, attrs), bits in self._by_rest.items():
                key = kind, Attributes({one: value for one, value in attrs.items() if one in _CORE or one == name})
                groups[key] = groups.get(key, 0) | bits
                if key not in examples:
                    examples[key] = _with_attributes(self._examples[kind, attrs], key[1])
            self._by_aspect[name] = [(examples[key], bits) for key, bits in groups.items()]
        return self._by_aspect[name]

    def _compared(self, required: _Leaf, sizes: _Sizes) -> _Sizes:
        """Leave out sizes that have no meaning in the kind of a required device."""
        kind = find_kind(required.node.kind)
        return tuple(
            (name, size) for name, size in sizes if name == _MEMORY or (kind is not None and kind.attribute(name))
        )

    def _sizes(self, name: str, size: int, required: _Leaf) -> tuple[int, int, int]:
        """Return the devices that have enough, those for which it is unknown, and those that have too little."""
        ordered, enough = self._with_size.get(name, ([], [0]))
        is_memory = name == _MEMORY

        def has_enough(actual: int) -> bool:
            return bool(compare_memory("ge", actual, size, measured=True)) if is_memory else actual >= size

        at = bisect_left(ordered, True, key=has_enough)
        unstated = self.same_device(required) & ~enough[0]
        implied = 0
        if not is_memory and unstated:
            for rest, bits in self._by_rest.items():
                example = self._examples[rest].node
                if bits & unstated and name not in example.attrs and _is_implied(example, name, size):
                    implied |= bits & unstated
        return enough[at] | implied, unstated & ~implied, enough[0] & ~enough[at]


# The name of the size that is no attribute.
_MEMORY = ""

# The attributes that decide the device type, the instructions and the limits that these imply. They are one aspect.
_DEVICE, _ALL_OF_CORE = "target_device_type", ""
_CORE = frozenset({"mtriple", "mcpu", "march", "mattr", "arch", "vector-width", _DEVICE})


@plugins.cached
def _names_of_classes(*classes: AttributeClass) -> frozenset[str]:
    """Return the names of the attributes that are of some classes in every kind that has them."""
    rows = [row for name in kind_names() for row in kind_of(name).attributes]
    return frozenset({row.name for row in rows} - {row.name for row in rows if row.class_ not in classes})


def _split_sizes(leaf: _Leaf) -> tuple[tuple[str, Attributes], _Sizes]:
    """Split the facts of a device into its sizes, and its kind with all other attributes that are compared."""
    # The instruction set of a CPU decides about vectors whose width is not stated.
    names = _names_of_classes("capacity", "scale") - {"vector-width"}
    uncompared = _names_of_classes("model", "soft", "none") - {"unchecked"}
    sizes = {name: value for name, value in leaf.node.attrs.items() if name in names and isinstance(value, int)}
    apart = uncompared | sizes.keys()
    rest = Attributes({name: value for name, value in leaf.node.attrs.items() if name not in apart})
    memory = () if leaf.memory is None else ((_MEMORY, leaf.memory),)
    return (leaf.node.kind, rest), (*sizes.items(), *memory)


def _with_attributes(leaf: _Leaf, attrs: Attributes) -> _Leaf:
    """Return a device with these attributes alone, and without memory."""
    return replace(leaf, node=leaf.node.with_checked(attrs=attrs), memory=None)


def _assign(devices: Sequence[_Leaf], answers: _Answers) -> Sequence[Mapping[int, int]]:
    """Assign available devices to the required ones: only certain matches if these suffice, else possible ones too.

    Returns, for each required device, the counts taken by index of the available device.
    """
    # Adjacent equal devices are one demand, which keeps the flow problem small for large machines.
    runs = [list(run) for _, run in groupby(devices, lambda leaf: leaf.facts)]
    demands, supplies = [sum(leaf.count for leaf in run) for run in runs], [leaf.count for leaf in answers.available]
    assigned: list[dict[int, int]] = []
    for least in (Truth.YES, Truth.UNKNOWN):
        assigned = assign(demands, supplies, [answers.at_least(run[0], least) for run in runs])
        if [sum(taken.values()) for taken in assigned] == demands:
            break
    return [share for run, taken in zip(runs, assigned, strict=True) for share in _split(run, taken)]


def _split(run: Sequence[_Leaf], taken: Mapping[int, int]) -> Iterator[Mapping[int, int]]:
    """Split the assignment of a run of equal devices, in order."""
    rest = dict(taken)
    for leaf in run:
        need, share = leaf.count, dict[int, int]()
        for at in list(rest):
            share[at] = min(need, rest[at])
            need, rest[at] = need - share[at], rest[at] - share[at]
            if not rest[at]:
                del rest[at]
            if not need:
                break
        yield share


def _device_reason(required: _Leaf, answers: _Answers, taken: Mapping[int, int]) -> Reason:
    """Explain one required device by the devices assigned to it, else by the most similar device."""
    name = f"{required.path}: {required.node.kind}" if required.path else required.node.kind
    if sum(taken.values()) >= required.count:
        worst = min((answers.answer(at, required) for at in taken), key=lambda answer: answer.truth)
        return worst.replace(text=name)
    if not answers.same_device(required):
        truth = Truth.NO if required.node.device in _LOOKED_FOR else Truth.UNKNOWN
        problem = "there is none" if truth is Truth.NO else "detection does not look for it"
        return Reason(truth=truth, text=f"{name}: {problem}")
    best, problem = answers.best(required), ""
    if best.truth is not Truth.NO:
        number = answers.number(answers.at_least(required, Truth.UNKNOWN))
        is_few = required.count > number
        problem = f": {number} < {required.count}" if is_few else ": there is one, but another device needs it"
    return Reason(truth=Truth.NO, text=name + problem, parts=best.parts)


def _compare(have: _Leaf, required: _Leaf) -> Reason:
    """Compare two devices fact by fact."""
    if have.node.device != required.node.device:
        return Reason(truth=Truth.NO, text=f"{required.node.kind}: this is {have.node.kind}")
    parts = (
        *compare_triples(have.node, required.node),
        *compare_instructions(have.node, required.node),
        *_rows(have.node, required.node),
        *_memory(have, required),
    )
    truth = min((part.truth for part in parts), default=Truth.YES)
    return Reason(truth=truth, text=required.node.kind, parts=parts)


def compare_instructions(have: TargetNode, required: TargetNode) -> Iterator[Reason]:
    """Compare instruction sets.

    Those of CPUs are compared by features, those of other devices by attributes of class `isa`.

    Args:
        have: A measured device.
        required: A target of the same device type.

    Yields:
        One reason for each fact that the target states.
    """
    if is_cpu(required.kind):
        yield from _cpu_instructions(have, required)
        if isinstance(width := required.attrs.get("vector-width"), int):
            truth, finding = check_vector_width(have, width)
            yield _answer(truth, f"vector-width {width}", finding)
        return
    kind = find_kind(required.kind)
    for name, value in required.attrs.items():
        row = kind.attribute(name) if kind is not None else None
        if row is None or row.class_ != "isa":
            continue
        if row.type == "features":
            yield from _features(have, name, value)
            continue
        actual = have.attrs.get("arch", have.attrs.get("mcpu")) if name in ("arch", "mcpu") else have.attrs.get(name)
        yield _compare_values(row, actual, value)


def _features(have: TargetNode, name: str, required: Value) -> Iterator[Reason]:
    """Compare signed features one by one."""
    for feature in map(str, required if isinstance(required, tuple) else ()):
        truth = compare_feature("has" if feature[0] == "+" else "lacks", have.attrs.get(name, ()), feature[1:])
        yield Reason(truth=truth, text=feature if truth else f"{feature}: it is {_shown(have.attrs.get(name, ()))}")


def _cpu_instructions(have: TargetNode, required: TargetNode) -> Iterator[Reason]:
    try:
        here, there = have.features, required.features
    except TargetError as error:
        yield Reason(truth=Truth.UNKNOWN, text=str(error))
        return
    name = required.attrs.get("mcpu")
    signed = required.attrs.get("mattr", ())
    words = ([f"mcpu {name}"] if name else []) + [*map(str, signed if isinstance(signed, tuple) else ())]
    label = " ".join(words) or "instructions"
    if here.family and there.family and here.family != there.family:
        yield Reason(truth=Truth.NO, text=f"{label}: that is {there.family}, and this is {here.family}")
        return
    named = _added_features(required.kind, required.attrs) & there.names
    lacking, unknown = missing_features(here, there.names, there.family, named=named, measured=True)
    is_same = name is not None and name == have.attrs.get("mcpu") and not is_reduced(have)
    if is_same:  # the equal name settles features that the table does not list
        unknown = [feature for feature in unknown if feature in named]
    if lacking:
        yield Reason(truth=Truth.NO, text=f"{label}: lacks {_listed(lacking)}")
    elif unknown or (name is not None and not is_same and not there.is_complete):
        problem = f"not known: {_listed(unknown)}" if unknown else "its features are not known"
        yield Reason(truth=Truth.UNKNOWN, text=f"{label}: {problem}")
    elif there.names - unused_features(there.family, measured=True):
        yield Reason(truth=Truth.YES, text=f"{label}: all of it is here")


@lru_cache(maxsize=1024)  # a required device is compared with many others
def _added_features(kind: str, attrs: Attributes) -> frozenset[str]:
    """Return the features that a target names, apart from those of its CPU."""
    return frozenset(read_isa(kind, attrs).added)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def compare_triples(have: TargetNode, required: TargetNode) -> Iterator[Reason]:
    """Compare the platforms (architecture and operating system) of two devices.

    Args:
        have: A measured device.
        required: A target.

    Yields:
        One reason, if the target states a triple.
    """
    triple, actual = required.attrs.get("mtriple"), have.attrs.get("mtriple")
    if not isinstance(triple, str):
        return
    if not isinstance(actual, str):
        yield Reason(truth=Truth.UNKNOWN, text=f"mtriple {triple}: not measured")
        return
    truth = compare_attribute("mtriple", "eq", actual, triple, measured=True)
    yield _answer(truth, f"mtriple {triple}", f"it is {actual}")


def _rows(have: TargetNode, required: TargetNode) -> Iterator[Reason]:
    """Compare the other attributes by their class."""
    kind = find_kind(required.kind)
    for name, value in required.attrs.items():
        row = kind.attribute(name) if kind is not None else None
        if row is None or name == "mtriple" or row.class_ not in ("hard", "capacity", "scale"):
            continue
        if name not in have.attrs and _is_implied(have, name, value):
            yield Reason(truth=Truth.YES, text=f"{name} {value}: implied by {have.attrs['arch']}")
        else:
            yield _compare_values(row, have.attrs.get(name), value)


def _is_implied(have: TargetNode, name: str, value: Value) -> bool:
    """Whether the measured compute capability implies a limit."""
    arch = str(have.attrs.get("arch", ""))
    if have.device != "cuda" or NvidiaArch.parse(arch) is None or not isinstance(value, int):
        return False
    limit = _FEWER_REGISTERS.get(arch, _NVIDIA[name]) if name == "registers_per_block" else _NVIDIA.get(name, 0)
    return value == limit if name == "thread_warp_size" else value <= limit


def _compare_values(row: Attribute, actual: Value | None, value: Value) -> Reason:
    """Compare one attribute; a default is no measurement, so an absent value is unknown."""
    operator = required_operator(row, value)
    if actual is None or operator is None:
        return Reason(truth=Truth.UNKNOWN, text=f"{row.name} {_shown(value)}: not measured")
    truth = compare_attribute(row.name, operator, actual, value, measured=True)
    if isinstance(actual, int) and isinstance(value, int) and operator == "ge":
        return Reason(truth=truth, text=f"{row.name} {actual} {'>=' if truth else '<'} {value}")
    return _answer(truth, f"{row.name} {_shown(value)}", f"it is {_shown(actual)}")


def _memory(have: _Leaf, required: _Leaf) -> Iterator[Reason]:
    if required.memory is None:
        return
    size = bytes_text(required.memory)
    if have.memory is None:
        yield Reason(truth=Truth.UNKNOWN, text=f"memory {size}: not measured")
        return
    actual = bytes_text(have.memory)
    if not compare_memory("ge", have.memory, required.memory, measured=True):
        yield Reason(truth=Truth.NO, text=f"memory {actual} < {size}")
    elif have.memory < required.memory:
        yield Reason(truth=Truth.YES, text=f"memory {actual}: {size} except what the system reserves")
    else:
        yield Reason(truth=Truth.YES, text=f"memory {actual} >= {size}")


def _answer(truth: Truth, fact: str, finding: str) -> Reason:
    return Reason(truth=truth, text=fact if truth is Truth.YES else f"{fact}: {finding}")


def _shown(value: Value) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
