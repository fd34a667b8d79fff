"""Whether a chip's name is one that LLVM knows: the names are data (`data/chips.json`), read at first use.

TVM takes `sm_999` or an mcpu in no table and goes on with a generic chip; here that is an error with the nearest
names. For a chip newer than the table, `unchecked=mcpu` says that the name is meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from tvmtarget.errors import TargetError, did_you_mean
from tvmtarget.target.attributes import Value
from tvmtarget.target.cpu.riscv import is_isa_string
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.problems import shown

__all__ = ["chip_problems", "chips_of", "cpu_name", "is_unchecked"]

# Tables by attribute of a kind; a CPU's table depends on its triple.
_TABLES = {
    ("llvm", "mcpu"): "cpu",
    ("c", "mcpu"): "cpu",
    ("cuda", "arch"): "nvptx",
    ("nvptx", "mcpu"): "nvptx",
    ("rocm", "mcpu"): "amdgcn",
    ("hexagon", "mcpu"): "hexagon",
    ("cmsis-nn", "mcpu"): "arm",
}

_CPU_TABLES = ("x86", "aarch64", "arm", "riscv", "hexagon", "wasm")

# The only triple that a kind's code is for, in its spellings.
_FIXED = {
    "nvptx": ("nvptx64-nvidia-cuda",),
    "rocm": ("amdgcn-amd-amdhsa-hcc", "amdgcn-amd-amdhsa"),
}

# What a chip's name looks like, though no table has it.
_SHAPES = {"nvptx": re.compile(r"sm_[0-9]+[af]?"), "amdgcn": re.compile(r"gfx[0-9a-f]+(-.*)?")}


@cache
def _chips() -> dict[str, frozenset[str]]:
    data = json.loads(files("tvmtarget.target.cpu").joinpath("data/chips.json").read_text(encoding="utf-8"))
    return {table: frozenset(names) for table, names in data["chips"].items()}


def chips_of(table: str) -> frozenset[str]:
    """Return the names of a table: x86, aarch64, arm, riscv, hexagon, nvptx, amdgcn or wasm."""
    return _chips()[table]


def is_unchecked(attrs: Mapping[str, Value], name: str) -> bool:
    """Whether who wrote an attribute says that its value is newer than the tables."""
    unchecked = attrs.get("unchecked", ())
    return isinstance(unchecked, tuple) and name in unchecked


def chip_problems(kind: str, attrs: Mapping[str, Value]) -> Iterator[str]:
    """Yield a message for each attribute that names a chip which is in no table, or a machine that is none."""
    yield from _triple_problems(kind, attrs)
    for name, value in attrs.items():
        table = _TABLES.get((kind, name))
        if table is None or not isinstance(value, str):
            continue
        if is_unchecked(attrs, name):
            if table in _SHAPES and not _SHAPES[table].fullmatch(value):
                yield f"{name} {value!r} of kind {kind!r} is not written as {'sm_90' if table == 'nvptx' else 'gfx90a'}"
            continue
        if table == "cpu" and _is_foreign(attrs.get("mtriple")):
            continue
        known = frozenset().union(*map(chips_of, _CPU_TABLES if table == "cpu" else (table,)))
        # Arm's own tools write options behind the name: cortex-m33+nodsp.
        if value.partition("+")[0] not in known:
            yield f"{name} {shown(value)} of kind {kind!r} is no chip that LLVM knows{_instead(name, value, known)}"


def _is_foreign(text: Value | None) -> bool:
    """Whether a triple is of an architecture that has no table, so that nothing is known of its CPUs."""
    try:
        return isinstance(text, str) and Triple.parse(text).family not in _CPU_TABLES
    except TargetError:
        return False


def _instead(name: str, value: str, known: frozenset[str]) -> str:
    if is_isa_string(value):
        return f"; an instruction set is features: +{value}"
    other = cpu_name(value)
    near = f"; did you mean {other!r}?" if other in known else did_you_mean(value, known)
    return f"{near}; if it is new, add unchecked={name}"


def _triple_problems(kind: str, attrs: Mapping[str, Value]) -> Iterator[str]:
    text = attrs.get("mtriple")
    if not isinstance(text, str) or is_unchecked(attrs, "mtriple"):
        return
    if kind in _FIXED and text not in _FIXED[kind]:
        yield f"mtriple {shown(text)} of kind {kind!r} is always {_FIXED[kind][0]!r}; leave it out"
        return
    try:
        triple = Triple.parse(text)
    except TargetError as error:
        yield f"{error}; if it is new, add unchecked=mtriple"
        return
    if kind == "hexagon" and triple.family != kind:
        yield f"mtriple {shown(text)} of kind 'hexagon' is for another machine; write mtriple=hexagon"


def cpu_name(name: str) -> str:
    """Return LLVM's name of a CPU that archspec names: zen3 is znver3, neoverse_v1 is neoverse-v1.

    A name that archspec has not comes back with hyphens for underscores.
    """
    folded = name.lower().replace("-", "_")
    return _ARCHSPEC.get(folded, folded.replace("_", "-"))


# Where LLVM's name is not archspec's with hyphens (`cpu/microarchitectures.json`, the flags for clang).
_ARCHSPEC = {
    **{f"zen{version or ''}": f"znver{version or 1}" for version in (0, 2, 3, 4, 5, 6)},
    "k10": "amdfam10",
    "bulldozer": "bdver1",
    "piledriver": "bdver2",
    "steamroller": "bdver3",
    "excavator": "bdver4",
    "mic_knl": "knl",
    "icelake": "icelake-server",
    "arrowlake_s": "arrowlake-s",
    "thunderx2": "thunderx2t99",
    "m1": "apple-m1",
    "m2": "apple-m2",
    "m3": "apple-m3",
    "m4": "apple-m4",
    "aarch64": "generic",
    "u74mc": "sifive-u74",
    "x60": "spacemit-x60",
    "riscv64": "generic-rv64",
}
