"""Why a machine is not what a target describes: one comparison for each fact, yes, no or not known.

A target is read as "at least this": its devices are matched with those of the machine, none of them twice; more cores,
memory or instructions do no harm. Not compared is what no machine has of itself: names, hosts, links, executors,
runtimes, options of code generators, and external code generators, which are software. An answer is unknown where
detection does not look, or where the machine did not say.

Values are compared as `Target.satisfies(..., measured=True)` compares them (`constraints/comparing.py`). Here a leaf
stands for a system of one, and a limit of NVIDIA's GPUs may follow from the capability that was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from tvmtarget.errors import TargetError
from tvmtarget.target.attributes import Attributes, Value
from tvmtarget.target.constraints.attribute_comparison import (
    compare_attribute,
    compare_feature,
    compare_memory,
    required_operator,
)
from tvmtarget.target.constraints.instructions import check_vector_width, implied_only, is_cpu_kind, is_reduced, missing
from tvmtarget.target.constraints.matching import assign
from tvmtarget.target.constraints.reasons import Reason, Truth
from tvmtarget.target.cpu.isa import read_isa
from tvmtarget.target.gpu_archs import NvidiaArch
from tvmtarget.target.kinds import Attribute, find_kind
from tvmtarget.target.target_node import TargetNode
from tvmtarget.target.tree_paths import join

__all__ = ["instructions", "triples", "why_not"]

# The device types that detection looks for; of any other it knows nothing.
_LOOKED_FOR = frozenset({"cpu", "cuda", "rocm"})

# What every NVIDIA GPU since compute capability 5.0 has, and which of them have fewer registers (CUDA C++ programming
# guide, "Technical specifications per compute capability"); a block may ask for more shared memory on some.
_NVIDIA = {
    "max_shared_memory_per_block": 49152,
    "max_threads_per_block": 1024,
    "registers_per_block": 65536,
    "thread_warp_size": 32,
}
_FEWER_REGISTERS = {"sm_53": 32768, "sm_62": 32768}

_LISTED = 12  # names of features in a message


_Facts: TypeAlias = tuple[str, Attributes, int | None]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A device with the memories it sees, in bytes; None where nobody said."""

    path: str
    node: TargetNode
    count: int
    memory: int | None

    @property
    def facts(self) -> _Facts:
        """All that a comparison sees."""
        return self.node.kind, self.node.attrs, self.memory


def why_not(machine: TargetNode, wanted: TargetNode) -> Reason:
    """Say whether a detected machine is at least what a target describes; `parts` hold a reason for each device.

    Devices that are alike are compared once, so that the time grows with their kinds and not with their pairs.
    """
    there = _alike(_leaves(machine, count=machine.count))
    asked = [leaf for leaf in _leaves(wanted, count=wanted.count) if not _is_software(leaf.node)]
    compared: dict[_Facts, list[Reason]] = {}
    for leaf in asked:
        if leaf.facts not in compared:
            compared[leaf.facts] = [_compare(have, leaf) for have in there]
    served = _serve(asked, there, compared)
    parts = tuple(_device(leaf, compared[leaf.facts], given, there) for leaf, given in zip(asked, served, strict=True))
    truth = min((part.truth for part in parts), default=Truth.YES)
    verb = {Truth.YES: "is", Truth.UNKNOWN: "may be", Truth.NO: "is not"}[truth]
    return Reason(truth=truth, text=f"this machine {verb} {wanted.tag or wanted}", parts=parts)


def _alike(leaves: Iterable[_Leaf]) -> Sequence[_Leaf]:
    """Return one device for all that are alike, with the count of them all, in the order of the first."""
    found: dict[_Facts, _Leaf] = {}
    for leaf in leaves:
        known = found.get(leaf.facts)
        found[leaf.facts] = leaf if known is None else replace(known, count=known.count + leaf.count)
    return tuple(found.values())


def _leaves(node: TargetNode, path: str = "", count: int = 1, around: int | None = None) -> Iterator[_Leaf]:
    """Yield the devices of a tree; a system in a system is more devices."""
    if not node.targets:
        yield _Leaf(path, node, count, _sum(around, _own_memory(node, "")))
    for child in node.targets:
        seen = _sum(around, _own_memory(node, child.slot))
        yield from _leaves(child, join(path, child.slot), count * child.count, seen)


def _own_memory(node: TargetNode, child: str) -> int | None:
    """Return the bytes that a node states for itself or for one child."""
    shared = (memory for memory in node.memory if memory.kind == "ram" and (not memory.of or child in memory.of))
    sizes = [memory.bytes for memory in shared if memory.bytes is not None]
    return sum(sizes) if sizes else None


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)


def _is_software(node: TargetNode) -> bool:
    kind = find_kind(node.kind)
    return kind is not None and kind.is_external


def _serve(
    asked: Sequence[_Leaf], there: Sequence[_Leaf], compared: Mapping[_Facts, Sequence[Reason]]
) -> Sequence[Mapping[int, int]]:
    """Give every device that is asked for some that are there: only sure ones if that is enough, else possible ones."""
    runs = [list(run) for _, run in groupby(asked, lambda leaf: leaf.facts)]
    demands, supplies = [sum(leaf.count for leaf in run) for run in runs], [leaf.count for leaf in there]
    served: list[dict[int, int]] = []
    for least in (Truth.YES, Truth.UNKNOWN):
        rows = (compared[run[0].facts] for run in runs)
        edges = [[at for at, answer in enumerate(row) if answer.truth >= least] for row in rows]
        served = assign(demands, supplies, edges)
        if [sum(given.values()) for given in served] == demands:
            break
    return [share for run, given in zip(runs, served, strict=True) for share in _shared(run, given)]


def _shared(run: Sequence[_Leaf], given: Mapping[int, int]) -> Iterator[Mapping[int, int]]:
    """Divide what devices that are alike were given, the first ones first."""
    left = dict(given)
    for leaf in run:
        need, share = leaf.count, dict[int, int]()
        for at in list(left):
            share[at] = min(need, left[at])
            need, left[at] = need - share[at], left[at] - share[at]
            if not left[at]:
                del left[at]
            if not need:
                break
        yield share


def _device(asked: _Leaf, answers: Sequence[Reason], served: Mapping[int, int], there: Sequence[_Leaf]) -> Reason:
    """Return the answer for one device that is asked for: what serves it, else what comes nearest to it."""
    name = f"{asked.path}: {asked.node.kind}" if asked.path else asked.node.kind
    if sum(served.values()) >= asked.count:
        worst = min((answers[at] for at in served), key=lambda answer: answer.truth)
        return worst.replace(text=name)
    same = [at for at, have in enumerate(there) if have.node.device == asked.node.device]
    if not same:
        truth = Truth.NO if asked.node.device in _LOOKED_FOR else Truth.UNKNOWN
        said = "there is none" if truth is Truth.NO else "detection does not look for it"
        return Reason(truth=truth, text=f"{name}: {said}")
    best = max((answers[at] for at in same), key=_nearness)
    number = sum(there[at].count for at in same if answers[at].truth is not Truth.NO)
    said = f": {number} < {asked.count}" if asked.count > number and best.truth is not Truth.NO else ""
    said = said or (": there is one, and it serves another" if best.truth is not Truth.NO else "")
    return Reason(truth=Truth.NO, text=name + said, parts=best.parts)


def _nearness(answer: Reason) -> tuple[int, int]:
    return answer.truth, -sum(part.truth is Truth.NO for part in answer.parts)


def _compare(have: _Leaf, wanted: _Leaf) -> Reason:
    """Compare two devices fact by fact."""
    if have.node.device != wanted.node.device:
        return Reason(truth=Truth.NO, text=f"{wanted.node.kind}: this is {have.node.kind}")
    parts = (
        *triples(have.node, wanted.node),
        *instructions(have.node, wanted.node),
        *_rows(have.node, wanted.node),
        *_memory(have, wanted),
    )
    truth = min((part.truth for part in parts), default=Truth.YES)
    return Reason(truth=truth, text=wanted.node.kind, parts=parts)


def instructions(have: TargetNode, wanted: TargetNode) -> Iterator[Reason]:
    """Compare what code may use: of a CPU by features, of others by the attributes that name instructions."""
    if is_cpu_kind(wanted.kind):
        yield from _cpu_instructions(have, wanted)
        if isinstance(width := wanted.attrs.get("vector-width"), int):
            truth, said = check_vector_width(have, width)
            yield _answer(truth, f"vector-width {width}", said)
        return
    kind = find_kind(wanted.kind)
    for name, value in wanted.attrs.items():
        row = kind.attribute(name) if kind is not None else None
        if row is None or row.class_ != "isa":
            continue
        if row.type == "features":
            yield from _features(have, name, value)
            continue
        actual = have.attrs.get("arch", have.attrs.get("mcpu")) if name in ("arch", "mcpu") else have.attrs.get(name)
        yield _compare_values(row, actual, value)


def _features(have: TargetNode, name: str, wanted: Value) -> Iterator[Reason]:
    """Compare signed features, each by itself."""
    for feature in map(str, wanted if isinstance(wanted, tuple) else ()):
        truth = compare_feature("has" if feature[0] == "+" else "lacks", have.attrs.get(name, ()), feature[1:])
        yield Reason(truth=truth, text=feature if truth else f"{feature}: it is {_shown(have.attrs.get(name, ()))}")


def _cpu_instructions(have: TargetNode, wanted: TargetNode) -> Iterator[Reason]:
    try:
        here, there = have.features, wanted.features
    except TargetError as error:
        yield Reason(truth=Truth.UNKNOWN, text=str(error))
        return
    name = wanted.attrs.get("mcpu")
    label = " ".join(filter(None, (f"mcpu {name}" if name else "", *map(str, _signed(wanted))))) or "instructions"
    if here.family and there.family and here.family != there.family:
        yield Reason(truth=Truth.NO, text=f"{label}: that is {there.family}, and this is {here.family}")
        return
    named = {*read_isa(wanted.kind, wanted.attrs).added} & there.names
    lacking, unknown = missing(here, there.names, there.family, named=named, measured=True)
    is_same = name is not None and name == have.attrs.get("mcpu") and not is_reduced(have)
    if is_same:  # what a CPU is called says more than no table
        unknown = [feature for feature in unknown if feature in named]
    if lacking:
        yield Reason(truth=Truth.NO, text=f"{label}: lacks {_listed(lacking)}")
    elif unknown or (name is not None and not is_same and not there.is_complete):
        said = f"not known: {_listed(unknown)}" if unknown else "what it has is not known"
        yield Reason(truth=Truth.UNKNOWN, text=f"{label}: {said}")
    elif there.names - implied_only(there.family, measured=True):
        yield Reason(truth=Truth.YES, text=f"{label}: all of it is here")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _signed(node: TargetNode) -> tuple[Value, ...]:
    features = node.attrs.get("mattr", ())
    return features if isinstance(features, tuple) else ()


def triples(have: TargetNode, wanted: TargetNode) -> Iterator[Reason]:
    """Compare the architectures and operating systems that code is for."""
    asked, actual = wanted.attrs.get("mtriple"), have.attrs.get("mtriple")
    if not isinstance(asked, str):
        return
    if not isinstance(actual, str):
        yield Reason(truth=Truth.UNKNOWN, text=f"mtriple {asked}: not measured")
        return
    truth = compare_attribute("mtriple", "eq", actual, asked, measured=True)
    yield _answer(truth, f"mtriple {asked}", f"it is {actual}")


def _rows(have: TargetNode, wanted: TargetNode) -> Iterator[Reason]:
    """Compare the other attributes by their class."""
    kind = find_kind(wanted.kind)
    for name, value in wanted.attrs.items():
        row = kind.attribute(name) if kind is not None else None
        if row is None or name == "mtriple" or row.class_ not in ("hard", "capacity", "scale"):
            continue
        if name not in have.attrs and _follows(have, name, value):
            yield Reason(truth=Truth.YES, text=f"{name} {value}: follows from {have.attrs['arch']}")
        else:
            yield _compare_values(row, have.attrs.get(name), value)


def _follows(have: TargetNode, name: str, value: Value) -> bool:
    """Whether a limit follows from the compute capability that was measured."""
    arch = str(have.attrs.get("arch", ""))
    if have.device != "cuda" or NvidiaArch.parse(arch) is None or not isinstance(value, int):
        return False
    limit = _FEWER_REGISTERS.get(arch, _NVIDIA[name]) if name == "registers_per_block" else _NVIDIA.get(name, 0)
    return value == limit if name == "thread_warp_size" else value <= limit


def _compare_values(row: Attribute, actual: Value | None, value: Value) -> Reason:
    """Compare one attribute; a default is what code is generated with, and no measurement."""
    operator = required_operator(row, value)
    if actual is None or operator is None:
        return Reason(truth=Truth.UNKNOWN, text=f"{row.name} {_shown(value)}: not measured")
    truth = compare_attribute(row.name, operator, actual, value, measured=True)
    if isinstance(actual, int) and isinstance(value, int) and operator == "ge":
        return Reason(truth=truth, text=f"{row.name} {actual} {'>=' if truth else '<'} {value}")
    return _answer(truth, f"{row.name} {_shown(value)}", f"it is {_shown(actual)}")


def _memory(have: _Leaf, wanted: _Leaf) -> Iterator[Reason]:
    if wanted.memory is None:
        return
    if have.memory is None:
        yield Reason(truth=Truth.UNKNOWN, text=f"memory {wanted.memory}: not measured")
    elif not compare_memory("ge", have.memory, wanted.memory, measured=True):
        yield Reason(truth=Truth.NO, text=f"memory {have.memory} < {wanted.memory}")
    elif have.memory < wanted.memory:
        yield Reason(truth=Truth.YES, text=f"memory {have.memory}: {wanted.memory} but for what the system keeps")
    else:
        yield Reason(truth=Truth.YES, text=f"memory {have.memory} >= {wanted.memory}")


def _answer(truth: Truth, what: str, but: str) -> Reason:
    return Reason(truth=truth, text=what if truth is Truth.YES else f"{what}: {but}")


def _shown(value: Value) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
