"""What operations, launches and copies take: measured numbers and rates, each with where it comes from.

A file of costs is JSON (`cost_file.py`); times are in microseconds, rates in operations or bytes a second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tvmtarget.ir.function import Attribute, Constant, Opaque
from tvmtarget.partition.strategies.strategy import Op

__all__ = ["Costs", "LinkCost", "OpCost", "SiteCost", "structure_of"]


@dataclass(frozen=True, slots=True)
class SiteCost:
    """Rates of a leaf, by its path or its kind; what is not stated comes from the target's own facts.

    launch: microseconds that calling a function takes. flops: peak operations a second by element type.
    mem_bw: peak bytes a second. roofline: the share of the peaks that its code reaches. domain: a name by which
    links may call its memory. capacity: bytes of weights that its memory holds; without it, those that the target
    declares for the memory.
    """

    launch: float | None = None
    flops: Mapping[str, float] = field(default_factory=dict)
    mem_bw: float | None = None
    roofline: float | None = None
    domain: str | None = None
    capacity: int | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True)
class LinkCost:
    """What moving data between two memories takes, either way: microseconds, and bytes a second.

    An end is the path of a site, a memory domain of the target, or a domain that a `SiteCost` names.
    """

    src: str
    dst: str
    latency: float
    bandwidth: float
    origin: str = ""


@dataclass(frozen=True, slots=True)
class OpCost:
    """What operations take on a site (its path or kind): microseconds, or a share of the site's peaks.

    It speaks of one structure, else of an operator, as far as element type and shape of its first result are given.
    """

    site: str
    op: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    structure: str | None = None
    time: float | None = None
    roofline: float | None = None
    stdev: float | None = None
    origin: str = ""

    @property
    def rank(self) -> tuple[bool, int]:
        """How precise this is; of two that match, the more precise counts, then the later one."""
        return self.structure is not None, sum(part is not None for part in (self.op, self.dtype, self.shape))


@dataclass(frozen=True, slots=True)
class Costs:
    """Everything that is known of what a program takes; `Costs()` has only rooflines from the target's own facts.

    `roofline` and `launch` hold for code generators of which nothing is known; `symbolic_hints` are sizes to
    reckon with for symbolic dimensions. `load_costs` reads them from a file.
    """

    sites: Mapping[str, SiteCost] = field(default_factory=dict)
    links: tuple[LinkCost, ...] = ()
    ops: tuple[OpCost, ...] = ()
    roofline: float = 0.3
    launch: float = 10.0
    symbolic_hints: Mapping[str, int] = field(default_factory=dict)

    def with_records(self, records: Iterable[OpCost]) -> Costs:
        """Return costs that also hold these measurements; of equally precise ones the last counts."""
        return replace(self, ops=(*self.ops, *records))


def structure_of(op: Op) -> str:
    """Return `sha256:` and a digest of what an operation computes: operator and its version, attributes, types."""
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
