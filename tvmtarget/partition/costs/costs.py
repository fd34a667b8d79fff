"""Measured times or energies, and rates, of operations, launches and copies, each with its origin.

Times are in microseconds, rates in operations or bytes per second; where `Costs.unit` is `uJ`, all of them are energies
instead, in microjoules and per joule. `cost_file.py` reads and writes them as JSON.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import exp, log
from numbers import Real
from typing import Literal, TypeAlias, get_args

from tvmtarget.errors import TargetError, did_you_mean, raise_all
from tvmtarget.ir.function import Attribute, Constant, Opaque
from tvmtarget.ir.types import DTYPES
from tvmtarget.partition.costs.work import FORMS
from tvmtarget.support.strategy import Op
from tvmtarget.target.problems import shown

__all__ = ["MOST", "Costs", "LinkCost", "OpCost", "Shares", "SiteCost", "SubgraphCost", "check_costs", "structure_of"]

# Units of the numbers of `Costs`; files may state other ones (`cost_file.py`).
Unit: TypeAlias = Literal["us", "uJ"]
UNITS: tuple[Unit, ...] = get_args(Unit)

# The largest number of any kind, and the smallest rate, so that times stay whole picoseconds.
MOST, LEAST_RATE = 1e18, 1e-9


@dataclass(frozen=True, slots=True)
class SiteCost:
    """Rates of a leaf, given by its path or its kind; the target's own attributes supply what is not stated.

    Attributes:
        launch: microseconds to call a function.
        flops: peak operations per second by element type.
        mem_bw: peak bytes per second.
        boundary_bw: bytes per second at which values enter functions from another site, or leave for one, in addition
            to the call: layouts change, and caches are lost.
        roofline: share of the peaks that code reaches, from 0 to 1.
        domain: a name by which links may refer to its memory.
        capacity: bytes of weights that its memory holds; overrides what the target declares.
        origin: where the numbers come from.
    """

    launch: float | None = None
    flops: Mapping[str, float] = field(default_factory=dict)
    mem_bw: float | None = None
    boundary_bw: float | None = None
    roofline: float | None = None
    domain: str | None = None
    capacity: int | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True)
class LinkCost:
    """Time to move data between two memories, in both directions unless another link states the way back.

    Attributes:
        src: the path of a site, a memory domain of the target, or a domain that a `SiteCost` names.
        dst: the same for the other end.
        latency: microseconds before the first byte arrives.
        bandwidth: bytes per second.
        origin: where the numbers come from.
    """

    src: str
    dst: str
    latency: float
    bandwidth: float
    origin: str = ""


# One share of the peaks for all sizes, or pairs of (`Work.size`, share), smallest size first.
Shares: TypeAlias = float | tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class OpCost:
    """Time of operations on a site: microseconds, or a share of the peaks of the site.

    It applies to the operations that match all of the fields that are given, from `op` to `structure`.

    Attributes:
        site: the path or kind of the site.
        op: operator, with or without its domain, as in `where` after `op:`.
        form: form of a convolution, one of `FORMS`.
        dtype: element type of the first result.
        shape: shape of the first result.
        structure: structure of one operation, see `structure_of`.
        time: microseconds.
        roofline: share of the peaks, used if `time` is None.
        stdev: standard deviation of `time` in microseconds; only with a `time`. An operation leaves the site that would
            be the best one for the whole program only for a gain above it, as with `Costs.doubt`.
        origin: where the numbers come from.
    """

    site: str
    op: str | None = None
    form: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    structure: str | None = None
    time: float | None = None
    roofline: Shares | None = None
    stdev: float | None = None
    origin: str = ""

    def share(self, size: int) -> float | None:
        """Return the share of the peaks for an operation of some size.

        Args:
            size: see `Work.size`.

        Returns:
            The share, interpolated linearly between the logarithms of sizes and shares, and constant beyond the ends;
            None if the cost is a time.
        """
        if not isinstance(self.roofline, tuple):
            return self.roofline
        sizes, shares = zip(*self.roofline, strict=True)
        after = bisect(sizes, size)
        if after in (0, len(sizes)):
            return float(shares[min(after, len(sizes) - 1)])
        (low, below), (high, above) = self.roofline[after - 1 : after + 1]
        part = log(size / low) / log(high / low)
        return exp((1 - part) * log(below) + part * log(above))

    @property
    def rank(self) -> tuple[bool, int]:
        """Specificity: of two costs that match an operation the higher rank wins, then the later one."""
        parts = (self.op, self.form, self.dtype, self.shape)
        return self.structure is not None, sum(part is not None for part in parts)


@dataclass(frozen=True, slots=True)
class SubgraphCost:
    """Time of one call of a leaf function as a whole, the launch included.

    Sites are assigned by the costs of operations; among the plans that are made, these measurements decide.

    Attributes:
        site: the path or kind of the site.
        structure: structural hash of the function, as `plan.tasks()` lists it.
        time: microseconds.
        origin: where the numbers come from.
    """

    site: str
    structure: str
    time: float
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Costs:
    """All costs for one program and target; `Costs()` has only rooflines from the target's own attributes.

    Attributes:
        sites: rates of leaves by path or kind.
        links: measured links.
        ops: measured operations.
        subgraphs: measured functions.
        roofline: share of the peaks for code generators without a known one; unless given 0.3, and 1 of energies.
        launch: microseconds per call for code generators without a known time; unless given 10, and 0 of energies.
        doubt: relative error of roofline estimates. An operation leaves the site that would be the best one for the
            whole program only for a gain above this error.
        symbolic_hints: sizes to assume for symbolic dimensions.
        unit: `us`, or `uJ`: then times are energies in microjoules, rates are per joule, and what target and code
            generators state as times is unknown.
    """

    sites: Mapping[str, SiteCost] = field(default_factory=dict)
    links: tuple[LinkCost, ...] = ()
    ops: tuple[OpCost, ...] = ()
    subgraphs: tuple[SubgraphCost, ...] = ()
    roofline: float = None  # type: ignore[assignment]  # filled in by `__post_init__`
    launch: float = None  # type: ignore[assignment]
    doubt: float = 0.0
    symbolic_hints: Mapping[str, int] = field(default_factory=dict)
    unit: Unit = "us"

    def __post_init__(self) -> None:
        defaults = {"roofline": 1.0, "launch": 0.0} if self.is_energy else {"roofline": 0.3, "launch": 10.0}
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def is_energy(self) -> bool:
        """Whether these are energies."""
        return self.unit == "uJ"

    def with_records(self, records: Iterable[OpCost | SubgraphCost]) -> Costs:
        """Add measurements.

        Args:
            records: measurements; of equally specific ones the last counts.

        Returns:
            New costs.

        Raises:
            TargetError: with all records that are no measurements, or whose numbers are out of range.
        """
        found = tuple(records)
        odd = [
            f"a measurement is an OpCost or a SubgraphCost, not {shown(one)}" for one in found if not _is_record(one)
        ]
        raise_all(TargetError, odd)
        ops = tuple(one for one in found if isinstance(one, OpCost))
        subgraphs = tuple(one for one in found if isinstance(one, SubgraphCost))
        return check_costs(replace(self, ops=(*self.ops, *ops), subgraphs=(*self.subgraphs, *subgraphs)))


def _is_record(one: object) -> bool:
    return isinstance(one, OpCost | SubgraphCost)


def check_costs(costs: Costs) -> Costs:
    """Check that all numbers of costs are in range.

    Args:
        costs: costs from any source.

    Returns:
        The same costs.

    Raises:
        TargetError: with all problems.
    """
    raise_all(TargetError, [*_problems(costs)])
    return costs


def _problems(costs: Costs) -> Iterator[str]:
    """Yield all problems; numbers are only checked once all records have the right class."""
    parts = (
        (costs.sites.values(), SiteCost),
        (costs.links, LinkCost),
        (costs.ops, OpCost),
        (costs.subgraphs, SubgraphCost),
    )
    odd = [(one, kind) for listed, kind in parts for one in listed if not isinstance(one, kind)]
    if odd:
        yield from (f"{shown(one)} is no {kind.__name__}" for one, kind in odd)
        return
    for name, site in costs.sites.items():
        yield from _problems_of_site(name, site)
    for link in costs.links:
        ends = f"link {link.src!r} to {link.dst!r}"
        yield from _number(f"latency of {ends}", link.latency, 0)
        yield from _number(f"bandwidth of {ends}", link.bandwidth, LEAST_RATE)
        yield from _texts(f"an end of {ends}", link.src, link.dst)
    for op in costs.ops:
        yield from _problems_of_op(op)
    for subgraph in costs.subgraphs:
        about = f"subgraph {subgraph.structure!r}"
        yield from _texts(f"the site or structure of {about}", subgraph.site, subgraph.structure)
        yield from _number(f"time of {about}", subgraph.time, 0)
    yield from _number("doubt", costs.doubt, 0)
    yield from _number("launch", costs.launch, 0)
    yield from _number("roofline", costs.roofline, LEAST_RATE, 1)
    if costs.unit not in UNITS:
        yield f"unit is {shown(costs.unit)}; it should be {' or '.join(map(repr, UNITS))}"
    for name, size in costs.symbolic_hints.items():
        yield from _number(f"the size of {name!r}", size, 0, is_whole=True)


def _problems_of_site(name: str, site: SiteCost) -> Iterator[str]:
    yield from _texts(f"the domain of site {name!r}", site.domain or "")
    yield from _number(f"launch of site {name!r}", site.launch or 0, 0)
    yield from _number(f"capacity of site {name!r}", site.capacity or 0, 0, is_whole=True)
    if not isinstance(site.flops, Mapping):
        yield f"flops of site {name!r} is {shown(site.flops)}; it should be rates by element type"
        return
    rates = {"mem_bw": site.mem_bw, "boundary_bw": site.boundary_bw, **site.flops}
    for what, rate in rates.items():
        if rate is not None:
            yield from _number(f"{what} of site {name!r}", rate, LEAST_RATE)
    if site.roofline is not None:
        yield from _number(f"roofline of site {name!r}", site.roofline, LEAST_RATE, 1)
    yield from (
        f"flops of site {name!r}: no element type {dtype!r}{did_you_mean(str(dtype), DTYPES)}"
        for dtype in site.flops.keys() - DTYPES.keys()
    )


def _problems_of_op(op: OpCost) -> Iterator[str]:
    about = f"{op.op or op.structure!r} on {op.site!r}"
    yield from _texts(f"the site, op or structure of {about}", op.site, op.op or "", op.structure or "")
    if op.op is None and op.structure is None:
        yield f"a cost of ops on {op.site!r} says nothing of which; give 'op' or 'structure'"
    if op.form is not None and op.form not in FORMS:
        yield f"{about} has no form {op.form!r}; a convolution is {', '.join(FORMS)}"
    if op.dtype is not None and op.dtype not in DTYPES:
        yield f"{about} has no element type {op.dtype!r}{did_you_mean(str(op.dtype), DTYPES)}"
    for size in op.shape or ():
        yield from _number(f"a dimension of {about}", size, 0, is_whole=True)
    yield from _number(f"time of {about}", op.time or 0, 0)
    yield from _number(f"stdev of {about}", op.stdev or 0, 0)
    if op.time is None and op.roofline is None:
        yield f"the cost of {about} has neither 'time' nor 'roofline'"
    if op.time is None and op.stdev is not None:
        yield f"the cost of {about} has a 'stdev' without a 'time'; the error of shares is the 'doubt' of 'default'"
    # One share for all sizes is checked like a single pair.
    shares = op.roofline if isinstance(op.roofline, tuple) else ((1.0, op.roofline),)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in shares):
        yield f"the shares of {about} are pairs of a size and a share, not {shown(shares)}"
        return
    wrong = [
        problem
        for size, share in shares
        for problem in (
            *_number(f"a size of {about}", size, LEAST_RATE),
            *(() if op.roofline is None else _number(f"roofline of {about}", share, LEAST_RATE, 1)),
        )
    ]
    yield from wrong
    if not wrong and (not shares or any(one >= other for (one, _), (other, _) in pairwise(shares))):
        yield f"the shares of {about} are to be by size, the smallest first, each once"


def _number(what: str, number: object, least: float, most: float = MOST, *, is_whole: bool = False) -> Iterator[str]:
    """Yield a problem if a value is no number between two bounds."""
    is_number = isinstance(number, int if is_whole else Real) and not isinstance(number, bool)
    if not is_number or not least <= number <= most:  # type: ignore[operator]
        yield f"{what} is {shown(number)}; it should be a {'whole ' * is_whole}number from {least:g} to {most:g}"


def _texts(what: str, *values: object) -> Iterator[str]:
    yield from (f"{what} is {shown(value)}; it should be text" for value in values if not isinstance(value, str))


def structure_of(op: Op) -> str:
    """Return the structural digest of an operation, which cost files match.

    Args:
        op: the operation.

    Returns:
        `sha256:` and the digest of operator, opset, attributes and types.
    """
    values = [[str(type_), op.is_constant(index)] for index, type_ in enumerate(op.inputs)]
    attrs = [[name, _plain(value)] for name, value in sorted(op.call.attrs, key=lambda pair: pair[0])]
    described = [op.call.op, op.opset, attrs, values, [str(type_) for type_ in op.outputs]]
    return "sha256:" + hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _plain(value: Attribute) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Constant):
        return [value.data.dtype.str, value.data.shape, hashlib.sha256(value.data.tobytes()).hexdigest()]
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, Opaque) else value
