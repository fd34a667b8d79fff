"""The distance between devices, term by term: how much a kernel's record is worth on another device.

Devices of one family have equal kind, architecture and `hard` attributes. Within a family, each difference has a
declared weight, by the class of its attribute; the weights follow measurements of one kernel under five instruction
sets (docs/tuning.md). Whether a kernel is legal is not a matter of distance: the constraint of its record decides that
first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import log2
from typing import NamedTuple

from tvmtarget.errors import TvmTargetError
from tvmtarget.target.attributes import Value
from tvmtarget.target.constraints.attribute_comparison import doublings
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.cpu.isa import Features, features_of, is_cpu, vector_bits
from tvmtarget.target.keys import key_of
from tvmtarget.target.kinds import AttributeClass, find_kind
from tvmtarget.target.tree import Target

__all__ = [
    "NAME",
    "WEIGHTS",
    "Device",
    "Term",
    "device_of",
    "differences",
    "distance",
    "family_of",
    "how_far",
    "least_needs",
    "shape_distance",
    "terms_between",
]

NAME = "dist/1"

# The cost of one difference, and of numbers that of a factor of two.
WEIGHTS: Mapping[str, float] = {
    "isa": 2.0,
    "vector": 4.0,
    "scale": 1.0,
    "cache": 0.5,
    "capacity": 0.5,
    "model": 1.0,
    "soft": 0.1,
    "shape": 0.5,
    "default": 2.0,
}

# Features that kernels are written for, in groups that CPUs have together; other features do not change kernels.
_GROUPS = re.compile(
    r"avx512|avx10|avx2|avxvnni|avx|amx|sse4|s?sse|fma|f16c|neon|dotprod|i8mm|bf16|fullfp16|sve2|sve|sme|mve|hvx|zve|zvl"
    r"|v$|dsp$"
)


@dataclass(frozen=True, slots=True)
class Term:
    """One difference between two devices.

    Attributes:
        what: the attribute.
        was: its value where the record was measured.
        now: its value here.
        cost: its weight.
    """

    what: str
    was: str
    now: str
    cost: float

    def __str__(self) -> str:
        change = " -> ".join(filter(None, (self.was, self.now)))
        return f"{self.what} {change} (+{self.cost:g})"


@dataclass(frozen=True, slots=True)
class Device:
    """What the distances of a leaf are computed from.

    Attributes:
        kind: the kind of the leaf.
        values: the values of all attributes with a weight.
        features: the instruction-set features of a CPU.
        width: bits of the widest vectors, 0 if unknown.
        model: the model of a CPU.
    """

    kind: str
    values: tuple[Value | None, ...]
    features: frozenset[str] = frozenset()
    width: int = 0  # bits of the widest vectors, 0 where that is not known
    model: str = ""


def family_of(leaf: Target) -> str:
    """Return the key of the family of a leaf.

    Args:
        leaf: the leaf.

    Returns:
        `f1:` and a digest of everything that must be equal for a record to be carried over.
    """
    kind = find_kind(leaf.kind)
    hard = {
        name: _plain(value) for name, value in leaf.attrs.items() if _class(leaf, name) == "hard" and name != "libs"
    }
    if is_cpu(leaf.kind):
        hard.pop("mtriple", None)
        hard["machine"] = leaf.view("kernel").get("machine") or _features(leaf).family
    elif (capability := leaf.features.compute_capability) is not None:
        hard["capability"] = capability[0]
    return key_of("f1", {"kind": leaf.kind, **hard} | ({} if kind else {"unknown": True}))


def device_of(leaf: Target) -> Device:
    """Return what the distances of a leaf are computed from.

    Args:
        leaf: the leaf.

    Returns:
        Its weighted attributes.
    """
    values = tuple(leaf[row.name] for row in _weighted(leaf.kind))
    if not is_cpu(leaf.kind):
        return Device(leaf.kind, values)
    features, stated = _once(_features(leaf).names), leaf.attrs.get("vector-width")
    width = stated if isinstance(stated, int) else vector_bits(features)
    return Device(leaf.kind, values, features, width, str(leaf["mcpu"] or "unknown"))


def differences(was: Target, now: Target) -> tuple[Term, ...]:
    """Return the terms between two leaves of one family.

    Args:
        was: where a record was measured.
        now: where it is to be used.

    Returns:
        The terms, the heaviest first.
    """
    return terms_between(device_of(was), device_of(now))


def terms_between(was: Device, now: Device) -> tuple[Term, ...]:
    """Return the terms between two devices of one family.

    Args:
        was: where a record was measured.
        now: where it is to be used.

    Returns:
        The terms, the heaviest first.
    """
    found = [*_instructions(was.features, now.features)]
    if wider := _wider(was, now):
        found.append(Term("vector bits", str(was.width), str(now.width), wider))
    found += (Term(name, _shown(a), _shown(b), cost) for name, a, b, cost in _changes(was, now))
    if was.model != now.model:
        found.append(Term("mcpu", was.model, now.model, WEIGHTS["model"]))
    return tuple(sorted(found, key=lambda term: (-term.cost, term.what)))


def how_far(devices: Iterable[Device], now: Device) -> list[float]:
    """Return the distances of devices of one family to one of them, without making terms.

    Args:
        devices: where records were measured.
        now: where they are to be used.

    Returns:
        A distance for each device, equal to the sum of its terms.
    """
    rows, values, width = _weighted(now.kind), now.values, now.width
    weights, apart = {now.model: 0.0}, dict[frozenset[str], float]()
    found = []
    for was in devices:
        far = apart.get(was.features)
        if far is None:
            far = apart[was.features] = _apart(was.features, now.features)
        far += weights.get(was.model, WEIGHTS["model"])
        if was.width != width:
            far += _wider(was, now)
        if was.values != values:
            for row, before, after in zip(rows, was.values, values, strict=True):
                if before != after:
                    far += _cost(row, before, after)
        found.append(round(far, 2))
    return found


def _wider(was: Device, now: Device) -> float:
    """Return the cost of the difference between two known vector widths."""
    is_known = was.width != now.width and was.width and now.width
    return round(abs(log2(was.width / now.width)) * WEIGHTS["vector"], 2) if is_known else 0.0


def _changes(was: Device, now: Device) -> list[tuple[str, Value | None, Value | None, float]]:
    """Return the attributes that differ and have a weight, with the costs."""
    rows = zip(_weighted(was.kind), was.values, now.values, strict=True)
    found = [(row.name, a, b, _cost(row, a, b)) for row, a, b in rows if a != b]
    return [one for one in found if one[3]]


def distance(terms: tuple[Term, ...]) -> float:
    """Return the sum of terms.

    Args:
        terms: the terms.

    Returns:
        The sum, rounded like the printed terms.
    """
    return round(sum(term.cost for term in terms), 2)


def shape_distance(one: tuple[tuple[object, ...], ...], other: tuple[tuple[object, ...], ...]) -> float | None:
    """Return the distance between the sizes of two workloads of a family.

    Args:
        one: the sizes of each tensor of one workload.
        other: those of the other.

    Returns:
        The distance; None if a differing size is symbolic.
    """
    total = 0.0
    for mine, yours in zip(one, other, strict=True):
        for a, b in zip(mine, yours, strict=True):
            if a == b:
                continue
            if not isinstance(a, int) or not isinstance(b, int) or a < 1 or b < 1:
                return None
            total += abs(log2(a / b)) * WEIGHTS["shape"]
    return round(total, 2)


def least_needs(leaf: Target) -> Constraint:
    """Return what a candidate without `requires` is assumed to need of a target.

    Args:
        leaf: where it was measured.

    Returns:
        A constraint with the instructions and capacities of the leaf.
    """
    if leaf.host or leaf.count != 1 or leaf.memory or leaf.executor or leaf.runtime:
        leaf = leaf.replace(host=None, count=1, memory=(), executor=None, runtime=None)
    least = Constraint.of(leaf)
    kept = tuple(one for one in least.conditions if one.name == "+" or _is_needed(leaf, one.name))
    return least if kept == least.conditions else least.replace(conditions=kept)


class _Row(NamedTuple):
    """An attribute with a weight; that of a ratio is for each factor of two."""

    name: str
    weight: float
    is_ratio: bool


@lru_cache(maxsize=4096)
def _instructions(mine: frozenset[str], yours: frozenset[str]) -> tuple[Term, ...]:
    """Return the terms of the instruction-set features of two CPUs."""
    left, right = mine - yours, yours - mine
    found = []
    for group in sorted({_group(name) for name in left | right} - {""}):
        gone, new = (sorted(name for name in one if _group(name) == group) for one in (left, right))
        names = " ".join(f"-{name}" for name in gone), " ".join(f"+{name}" for name in new)
        found.append(Term("isa", *names, WEIGHTS["isa"]))
    return tuple(found)


@lru_cache
def _weighted(kind: str) -> tuple[_Row, ...]:
    """Return the attributes of a kind that have a weight, without the features of a CPU."""
    known = find_kind(kind)
    named = {"mcpu", "mattr", "mtriple", "vector-width"} if is_cpu(kind) else set()
    rows = known.attributes if known is not None else ()
    return tuple(_row(row.name, row.class_) for row in rows if row.class_ in WEIGHTS and row.name not in named)


def _row(name: str, class_: AttributeClass) -> _Row:
    is_ratio = class_ in ("scale", "capacity")
    return _Row(name, WEIGHTS["cache" if is_ratio and "cache" in name else class_], is_ratio)


@lru_cache(maxsize=4096)  # most devices of a log are a few CPUs in several sizes
def _once(names: frozenset[str]) -> frozenset[str]:
    """Return the same object for equal names, which makes comparisons faster."""
    return names


@lru_cache(maxsize=4096)
def _apart(mine: frozenset[str], yours: frozenset[str]) -> float:
    return sum(term.cost for term in _instructions(mine, yours))


def _is_needed(leaf: Target, name: str) -> bool:
    return name != "libs" and _class(leaf, name) in ("hard", "isa", "capacity")


def _class(leaf: Target, name: str) -> AttributeClass:
    kind = find_kind(leaf.kind)
    row = kind.attribute(name) if kind is not None else None
    return row.class_ if row is not None else "hard"


def _features(leaf: Target) -> Features:
    try:
        return features_of(leaf.kind, leaf.attrs)
    except TvmTargetError:  # contradictory features: treated as unknown
        return Features()


def _group(feature: str) -> str:
    found = _GROUPS.match(feature)
    return found.group() if found else ""


def _cost(row: _Row, before: Value | None, after: Value | None) -> float:
    """Return the cost of a difference; a number that is unknown on one side counts as a factor of two."""
    _, weight, is_ratio = row
    far = doublings(before, after) if is_ratio else None
    return weight if far is None else round(weight * far, 2)


def _plain(value: Value) -> object:
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Value | None) -> str:
    if value is None:
        return "unknown"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
