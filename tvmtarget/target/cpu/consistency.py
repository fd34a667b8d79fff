"""Where the attributes of one node contradict each other: its triple, CPU, features, ABIs and limits.

A value that is wrong by itself is refused when the node is made; what takes two attributes waits for `resolve`, for
until then either may still be changed. TVM sets right without a word what is said wrong here, or leaves it to LLVM,
which prints a line and goes on with another CPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from tvmtarget.errors import did_you_mean
from tvmtarget.target.attributes import Value
from tvmtarget.target.cpu.chips import chips_of, is_unchecked
from tvmtarget.target.cpu.features import FeatureTable, families, table_of
from tvmtarget.target.cpu.isa import Written, is_cpu, read_isa
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.problems import shown

__all__ = ["contradictions"]

# RISC-V's ABIs: bits, and the extension whose registers pass floats (RISC-V ELF psABI, "Integer/Floating ABIs").
_RISCV_ABI = re.compile(r"(ilp32|lp64)([efdq]?)")

# What to write instead for a CPU of another architecture.
_TRIPLES = {
    "x86": "x86_64-linux-gnu",
    "aarch64": "aarch64-linux-gnu",
    "arm": "armv7a-linux-gnueabihf",
    "riscv": "riscv64-linux-gnu",
    "hexagon": "hexagon",
    "wasm": "wasm32-unknown-unknown",
}

# Architectures whose CPUs say how wide they are; whatever the environment makes of pointers.
_ARCH_BITS = {"x86_64": 64, "riscv64": 64, "riscv32": 32}


def contradictions(kind: str, attrs: Mapping[str, Value]) -> Iterator[str]:
    """Yield what is wrong with attributes that are all right one by one."""
    if is_cpu(kind):
        written = read_isa(kind, attrs)
        for rule in _RULES:
            yield from rule(kind, attrs, written)
    elif kind == "webgpu":
        yield from _subgroups(attrs)


def _cpu_is_of_triple(_: str, attrs: Mapping[str, Value], written: Written) -> Iterator[str]:
    table, triple, cpu = written.table, written.triple, written.cpu
    if table is None or triple is None or not cpu or is_unchecked(attrs, "mcpu"):
        return
    if table.family == triple.family and cpu in chips_of(table.family):
        if not _runs(table, cpu, triple):
            yield f"mcpu {cpu!r} does not run {triple.bits}-bit code, which mtriple {shown(attrs['mtriple'])} asks for"
        return
    others = [family for family in _TRIPLES if cpu in chips_of(family) and family != triple.family]
    right = "arm-none-eabi" if cpu.startswith("cortex-m") else _TRIPLES[others[0]] if others else ""
    tail = f"; write mtriple={right}" if right else did_you_mean(cpu, chips_of(table.family))
    yield f"mcpu {shown(cpu)} is no CPU of {triple.machine!r}, which mtriple {shown(attrs['mtriple'])} is for{tail}"


def _runs(table: FeatureTable, cpu: str, triple: Triple) -> bool:
    """Whether a CPU has the width of a triple; RISC-V's have one, and x86's of 64 bits have both."""
    bits = _ARCH_BITS.get(triple.arch)
    return bits is None or cpu == "generic" or f"{bits}bit" in table.of_cpu(cpu)


def _features_are_known(kind: str, attrs: Mapping[str, Value], written: Written) -> Iterator[str]:
    if not written.words or is_unchecked(attrs, "mattr"):
        return
    if written.table is not None:
        known = [*written.table.implies, *written.table.tuning]
        yield from (_unknown(kind, name, f"of {written.table.family}", known) for name in written.unknown)
        return
    if written.triple is not None:
        return  # of this architecture nothing is known
    tables = [table for family in families() if (table := table_of(family))]
    every = {name for table in tables for name in (*table.implies, *table.tuning)}
    words = [*(f"+{name}" for name in written.added), *(f"-{name}" for name in written.removed)]
    wrong = [name for name in words if name[1:] not in every]
    yield from (_unknown(kind, name, "that LLVM knows", every) for name in wrong)
    names = {name[1:] for name in words} - {name[1:] for name in wrong}
    if names and not any(names <= {*table.implies, *table.tuning} for table in tables):
        yield f"features {' and '.join(sorted(written.words))} are of no one architecture; write mtriple or mcpu"


def _unknown(kind: str, name: str, where: str, known: Iterable[str]) -> str:
    near = did_you_mean(name[1:], known)
    return f"{shown(name)} of kind {kind!r} is no feature {where}{near}; if it is new, add unchecked=mattr"


def _features_agree(_: str, __: Mapping[str, Value], written: Written) -> Iterator[str]:
    tables = [table for family in written.families if (table := table_of(family)) is not None]
    problems = [problem for table in tables for problem in table.contradictions(written.added, written.removed)]
    yield from dict.fromkeys(problems)


def _width_is_one(_: str, attrs: Mapping[str, Value], written: Written) -> Iterator[str]:
    """Instruction sets of RISC-V say how wide they are, and so does the triple; x86 code of 64 bits needs them."""
    if written.triple is not None and f"{_ARCH_BITS.get(written.triple.arch)}bit" in written.removed:
        yield f"mtriple {shown(attrs['mtriple'])} needs feature {_ARCH_BITS[written.triple.arch]}bit, which is removed"
    if written.table is None or written.table.family != "riscv":
        return
    for width, other in (("32bit", "64bit"), ("64bit", "32bit")):
        if width in (written.model or ()) and other in written.added:
            said = f"mtriple {shown(attrs['mtriple'])}" if "mtriple" in attrs else f"mcpu {written.cpu!r}"
            yield f"feature +{other} contradicts {said}, which has {width[:2]} bits"


def _float_abi_fits(_: str, attrs: Mapping[str, Value], written: Written) -> Iterator[str]:
    wanted, triple = attrs.get("mfloat-abi"), written.triple
    by_triple = triple.float_abi if triple is not None else None
    if triple is not None and wanted in ("soft", "softfp") and by_triple == "hard":
        other = triple.environment.removesuffix("hf")
        yield (
            f"mfloat-abi {wanted!r} contradicts mtriple {shown(attrs['mtriple'])}, whose {triple.environment!r} passes "
            f"floats in registers; write {other!r} there or leave mfloat-abi out"
        )
    table, is_hard = written.table, "hard" in (wanted, by_triple)
    if is_hard and table is not None and table.family == "arm" and written.cpu in table.cpus:
        names = table.combine(written.model or (), written.added, written.removed)
        if not names & {"vfp2sp", "mve"}:
            why = "mfloat-abi 'hard'" if wanted == "hard" else f"mtriple {shown(attrs['mtriple'])}"
            yield f"{why} passes floats in registers, which mcpu {attrs['mcpu']!r} has not"


def _abi_fits(_: str, attrs: Mapping[str, Value], written: Written) -> Iterator[str]:
    """RISC-V's ABI names say how wide a pointer is, and which registers floats are passed in."""
    abi, table, triple = str(attrs.get("mabi", "")), written.table, written.triple
    if not abi or table is None or table.family != "riscv":
        return
    found = _RISCV_ABI.fullmatch(abi)
    if found is None or abi == "lp64q":
        known = [f"{base}{letter}" for base in ("ilp32", "lp64") for letter in ("", "f", "d", "e")]
        yield f"mabi {shown(abi)} is none of RISC-V{did_you_mean(abi, known)}"
        return
    bits, letter = 32 if found.group(1) == "ilp32" else 64, found.group(2)
    if triple is not None and triple.bits != bits:
        yield f"mabi {shown(abi)} is of {bits} bits, and mtriple {shown(attrs['mtriple'])} of {triple.bits}"
    if letter in ("f", "d") and written.model is not None:
        names = table.combine(written.model, written.added, written.removed)
        if letter not in names:
            yield f"mabi {shown(abi)} needs feature {letter!r}; add +{letter}, or write mabi={abi[:-1]}"


# An option of LLVM as TVM reads it (`LLVMTargetInfo::ParseOptionString`, src/target/llvm/llvm_instance.cc).
_OPTION = re.compile(r"--?[^-:=][^:=]*(?:=(?P<truth>.*)|:(?P<type>bool|int|uint|string)=(?P<value>.*))?", re.DOTALL)
_TRUTH = re.compile(r"0|1|true|false", re.IGNORECASE)
_VALUES = {"bool": _TRUTH, "int": re.compile(r"[+-]?[0-9]+"), "uint": re.compile(r"[+-]?[0-9]+")}


def _options_are_complete(_: str, attrs: Mapping[str, Value], __: Written) -> Iterator[str]:
    options = attrs.get("cl-opt", ())
    for option in map(str, options if isinstance(options, tuple) else ()):
        found = _OPTION.fullmatch(option)
        type_, value = (found["type"] or "bool", found["value"] or found["truth"] or "") if found else ("", "")
        has_value = found is not None and (found["type"] is not None or found["truth"] is not None)
        if found is None:
            yield f"{shown(option)} in cl-opt is not written as '-name', '-name=true' or '-name:int=4'"
        elif has_value and type_ in _VALUES and not _VALUES[type_].fullmatch(value):
            right = "true or false; write '-name:int=4' for a number" if type_ == "bool" else "a whole number"
            yield f"the value of {shown(option)} in cl-opt is {right}, not {shown(value)}"


def _subgroups(attrs: Mapping[str, Value]) -> Iterator[str]:
    """TVM's WebGPU has subgroups of 32 (`UpdateWebGPUAttrs` at main), and says so over what a user wrote."""
    size, has_subgroups = attrs.get("thread_warp_size", 1), attrs.get("supports_subgroups", False)
    if has_subgroups and "thread_warp_size" in attrs and size != 32:
        yield f"supports_subgroups means thread_warp_size=32, not {size}; leave thread_warp_size out"
    elif not has_subgroups and isinstance(size, int) and size > 1:
        yield f"thread_warp_size {size} needs subgroups; add supports_subgroups=true, which makes it 32"


_RULES: tuple[Callable[[str, Mapping[str, Value], Written], Iterator[str]], ...] = (
    _cpu_is_of_triple,
    _features_are_known,
    _features_agree,
    _width_is_one,
    _float_abi_fits,
    _abi_fits,
    _options_are_complete,
)
