"""Whether a chip's name is one that LLVM knows: the names are data (`data/chips.json`), read at first use.

TVM takes `sm_999` or an mcpu in no table and goes on with a generic chip; here that is an error with the nearest
names. For a chip newer than the table, `unchecked=mcpu` says that the name is meant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from tvmtarget.errors import did_you_mean
from tvmtarget.target.attributes import Value

__all__ = ["chip_problems", "chips_of"]

# Tables by attribute of a kind; a CPU's table depends on its triple.
_TABLES = {
    ("llvm", "mcpu"): "cpu",
    ("c", "mcpu"): "cpu",
    ("cuda", "arch"): "nvptx",
    ("nvptx", "mcpu"): "nvptx",
    ("rocm", "mcpu"): "amdgcn",
    ("hexagon", "mcpu"): "hexagon",
}

_CPU_TABLES = ("x86", "aarch64", "arm", "riscv", "hexagon", "wasm")

# How a triple begins, and the table of its CPUs.
_TRIPLES = (
    ("aarch64", "aarch64"),
    ("arm64", "aarch64"),
    ("arm", "arm"),
    ("thumb", "arm"),
    ("x86_64", "x86"),
    ("i386", "x86"),
    ("i686", "x86"),
    ("riscv", "riscv"),
    ("hexagon", "hexagon"),
    ("wasm", "wasm"),
)


@cache
def _chips() -> dict[str, frozenset[str]]:
    data = json.loads(files("tvmtarget.target").joinpath("data/chips.json").read_text(encoding="utf-8"))
    return {table: frozenset(names) for table, names in data["chips"].items()}


def chips_of(table: str) -> frozenset[str]:
    """Return the names of a table: x86, aarch64, arm, riscv, hexagon, nvptx, amdgcn or wasm."""
    return _chips()[table]


def chip_problems(kind: str, attrs: Mapping[str, Value]) -> Iterable[str]:
    """Yield a message for each attribute that names a chip which is in no table."""
    unchecked = attrs.get("unchecked", ())
    for name, value in attrs.items():
        table = _TABLES.get((kind, name))
        if table is None or not isinstance(value, str) or (isinstance(unchecked, tuple) and name in unchecked):
            continue
        tables = _cpu_tables(attrs.get("mtriple")) if table == "cpu" else (table,)
        known = frozenset().union(*(chips_of(table) for table in tables))
        # Arm's own tools write options behind the name: cortex-m33+nodsp.
        if value.partition("+")[0] not in known:
            where = f" for {attrs['mtriple']!r}" if len(tables) == 1 and table == "cpu" else ""
            tail = f"{did_you_mean(value, known)}; if it is new, add unchecked={name}"
            yield f"{name} {value!r} of kind {kind!r} is no chip that LLVM knows{where}{tail}"


def _cpu_tables(triple: Value | None) -> tuple[str, ...]:
    if isinstance(triple, str):
        for begin, table in _TRIPLES:
            if triple.startswith(begin):
                return (table,)
    return _CPU_TABLES
