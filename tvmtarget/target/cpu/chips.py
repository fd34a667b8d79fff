"""Check names of chips against those that LLVM knows (`data/chips.json`, read at first use).

TVM accepts `sm_999` or an unknown mcpu and silently compiles for a generic chip; here it is an error with the nearest
names. `unchecked=mcpu` accepts the name of a chip that is newer than the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tvmtarget.errors import Problem, TargetError, did_you_mean
from tvmtarget.target.attributes import Value
from tvmtarget.target.cpu.riscv import is_isa_string
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.problems import shown

__all__ = ["chip_problems", "chips_of", "is_unchecked", "llvm_cpu_name", "with_unchecked"]

# By kind, the attribute that names a chip and the table of its names; "cpu" means that of the triple's architecture.
_TABLES = {
    "llvm": ("mcpu", "cpu"),
    "c": ("mcpu", "cpu"),
    "cuda": ("arch", "nvptx"),
    "nvptx": ("mcpu", "nvptx"),
    "rocm": ("mcpu", "amdgcn"),
    "hexagon": ("mcpu", "hexagon"),
    "cmsis-nn": ("mcpu", "arm"),
}

_CPU_TABLES = ("x86", "aarch64", "arm", "riscv", "hexagon", "wasm")

# Kinds that generate code for one triple only, with its spellings.
_FIXED = {
    "nvptx": ("nvptx64-nvidia-cuda",),
    "rocm": ("amdgcn-amd-amdhsa-hcc", "amdgcn-amd-amdhsa"),
}

# The form of names that may be newer than the table.
_SHAPES = {"nvptx": re.compile(r"sm_[0-9]+[af]?"), "amdgcn": re.compile(r"gfx[0-9a-f]+(-.*)?")}


@cache
def _chips() -> dict[str, frozenset[str]]:
    data = json.loads((Path(__file__).parent / "data/chips.json").read_bytes())
    return {table: frozenset(names) for table, names in data["chips"].items()}


def chips_of(table: str) -> frozenset[str]:
    """Return the chips of one table.

    Args:
        table: x86, aarch64, arm, riscv, hexagon, nvptx, amdgcn or wasm.

    Returns:
        The names as LLVM spells them.
    """
    return _chips()[table]


def is_unchecked(attrs: Mapping[str, Value], name: str) -> bool:
    """Whether a node exempts an attribute from the check against the tables.

    Args:
        attrs: The attributes of the node.
        name: The attribute.

    Returns:
        True if `unchecked` lists the attribute.
    """
    unchecked = attrs.get("unchecked", ())
    return isinstance(unchecked, tuple) and name in unchecked


@cache
def _names_in(table: str) -> frozenset[str]:
    return frozenset().union(*map(chips_of, _CPU_TABLES if table == "cpu" else (table,)))


def chip_problems(kind: str, attrs: Mapping[str, Value]) -> list[Problem]:
    """Check the chip names and the triple of a node.

    Args:
        kind: The kind of the node.
        attrs: Its attributes.

    Returns:
        A message for each attribute whose value is unknown to LLVM, with the nearest names.
    """
    problems = [Problem(line, ("mtriple",)) for line in _triple_problems(kind, attrs)] if "mtriple" in attrs else []
    name, table = _TABLES.get(kind, ("", ""))
    value = attrs.get(name) if name else None
    if not isinstance(value, str):
        return problems
    if is_unchecked(attrs, name):
        if table in _SHAPES and not _SHAPES[table].fullmatch(value):
            right = "sm_90" if table == "nvptx" else "gfx90a"
            problems.append(Problem(f"{name} {value!r} of kind {kind!r} is not written as {right}", (name,)))
    # Compilers for Arm accept modifiers after the name: cortex-m33+nodsp.
    elif value.partition("+")[0] not in _names_in(table) and not (
        table == "cpu" and _has_no_table(attrs.get("mtriple"))
    ):
        advice = _advice(name, value, _names_in(table))
        line = f"{name} {shown(value)} of kind {kind!r} is not a chip that LLVM knows{advice}"
        problems.append(Problem(line, (name,)))
    return problems


def _has_no_table(text: Value | None) -> bool:
    """Whether a triple is of an architecture whose CPUs are in no table."""
    try:
        return isinstance(text, str) and Triple.parse(text).family not in _CPU_TABLES
    except TargetError:
        return False


def _advice(name: str, value: str, known: frozenset[str]) -> str:
    if is_isa_string(value):
        return f"; an instruction set is features: +{value}"
    compute_capability = f"sm_{value.replace('.', '')}"  # 8.0, or 80 as the compilers of CUDA write it
    translated = compute_capability if compute_capability in known else llvm_cpu_name(value)
    near = f"; did you mean {translated!r}?" if translated in known else did_you_mean(value, known)
    return with_unchecked(near, name)


def with_unchecked(text: str, name: str) -> str:
    """Return a text, followed by how to allow a value that the tables do not know yet.

    Args:
        text: what is wrong, or what may be meant instead.
        name: the attribute.

    Returns:
        The text of a problem.
    """
    return f"{text}{' If' if text.endswith('?') else '; if'} it is new, add unchecked={name}"


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
        yield with_unchecked(str(error), "mtriple")
        return
    if kind == "hexagon" and triple.family != kind:
        yield f"mtriple {shown(text)} of kind 'hexagon' is for another machine; write mtriple=hexagon"


def llvm_cpu_name(name: str) -> str:
    """Translate archspec's name of a CPU to LLVM's.

    Args:
        name: A name such as `zen3` or `neoverse_v1`.

    Returns:
        LLVM's name (`znver3`, `neoverse-v1`); of names that are not in archspec, the same with hyphens for underscores.
    """
    folded = name.lower().replace("-", "_")
    return _ARCHSPEC.get(folded, folded.replace("_", "-"))


# Names that differ in more than hyphens (archspec, `cpu/microarchitectures.json`, the flags for clang).
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
