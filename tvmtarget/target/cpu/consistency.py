"""Rules for attributes of one CPU node that must agree: triple, CPU, features, ABIs and LLVM options.

The constructor of a node rejects values that are wrong by themselves. These rules relate several attributes and run in
`resolve`, as each of the attributes may be overridden until then. TVM corrects such contradictions silently or leaves
them to LLVM, which prints a warning and compiles for another CPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from tvmtarget.errors import did_you_mean
from tvmtarget.target.attributes import Attributes, Value
from tvmtarget.target.cpu.chips import chips_of, is_unchecked, with_unchecked
from tvmtarget.target.cpu.features import FeatureTable, families, table_of
from tvmtarget.target.cpu.isa import StatedIsa, is_architecture_of, is_cpu, read_isa
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.problems import shown

__all__ = ["contradictions", "has_rules"]

# ABIs of RISC-V: width, and the extension whose registers pass floats (RISC-V ELF psABI, "Integer/Floating ABIs").
_RISCV_ABI = re.compile(r"(ilp32|lp64)([efdq]?)")

# The triple to suggest for a CPU of another architecture.
_TRIPLES = {
    "x86": "x86_64-linux-gnu",
    "aarch64": "aarch64-linux-gnu",
    "arm": "armv7a-linux-gnueabihf",
    "riscv": "riscv64-linux-gnu",
    "hexagon": "hexagon",
    "wasm": "wasm32-unknown-unknown",
}

# Architectures whose CPUs have a feature for their width, which may differ from that of pointers (gnux32).
_ARCH_BITS = {"x86_64": 64, "riscv64": 64, "riscv32": 32}


def contradictions(kind: str, attrs: Attributes) -> Iterable[str]:
    """Find contradictions between attributes that are valid one by one.

    Args:
        kind: The kind of the node.
        attrs: Its attributes.

    Returns:
        A message for each contradiction, with the fix where it is known.
    """
    if is_cpu(kind):
        return _contradictions_of_cpu(kind, attrs)
    return _subgroups(attrs) if kind == "webgpu" else ()


def has_rules(kind: str) -> bool:
    """Whether attributes of a kind can contradict each other.

    Args:
        kind: The name of a kind.

    Returns:
        False if `contradictions` finds none in any node of that kind.
    """
    return is_cpu(kind) or kind == "webgpu"


@lru_cache(maxsize=1024)  # the CPUs of many systems are equal
def _contradictions_of_cpu(kind: str, attrs: Attributes) -> tuple[str, ...]:
    stated = read_isa(kind, attrs)
    return tuple(problem for rule in _RULES for problem in rule(kind, attrs, stated))


def _cpu_is_of_triple(_: str, attrs: Mapping[str, Value], stated: StatedIsa) -> Iterator[str]:
    table, triple, cpu = stated.table, stated.triple, stated.cpu
    if table is None or triple is None or not cpu or is_unchecked(attrs, "mcpu"):
        return
    if table.family == triple.family and cpu in chips_of(table.family):
        if not _runs(table, cpu, triple):
            yield f"mcpu {cpu!r} does not run {triple.bits}-bit code, which mtriple {shown(attrs['mtriple'])} requires"
        return
    others = [family for family in _TRIPLES if cpu in chips_of(family) and family != triple.family]
    suggested = "arm-none-eabi" if cpu.startswith("cortex-m") else _TRIPLES[others[0]] if others else ""
    advice = f"; write mtriple={suggested}" if suggested else did_you_mean(cpu, chips_of(table.family))
    yield f"mcpu {shown(cpu)} is not a CPU of {triple.machine!r}, as mtriple {shown(attrs['mtriple'])} requires{advice}"


def _runs(table: FeatureTable, cpu: str, triple: Triple) -> bool:
    """Whether a CPU runs code of the width of a triple; 64-bit x86 CPUs run both widths, those of RISC-V one."""
    bits = _ARCH_BITS.get(triple.arch)
    return bits is None or cpu == "generic" or f"{bits}bit" in table.of_cpu(cpu)


def _architecture_is_of_cpu(_: str, attrs: Mapping[str, Value], stated: StatedIsa) -> Iterator[str]:
    """Check `march` beside `mcpu`, of which compilers read one and at most warn."""
    table, cpu, march = stated.table, stated.cpu, str(attrs.get("march", "")).partition("+")[0]
    is_known = table is not None and cpu in table.cpus and cpu != "generic"
    if march and table is not None and is_known and not is_architecture_of(march, cpu, table):
        yield f"march {shown(march)} is not the architecture of mcpu {shown(cpu)}; remove one, as only mcpu is used"


def _features_are_known(kind: str, attrs: Mapping[str, Value], stated: StatedIsa) -> Iterator[str]:
    if not stated.words or is_unchecked(attrs, "mattr"):
        return
    if stated.table is not None:
        known = [*stated.table.implies, *stated.table.tuning]
        yield from (_unknown(kind, name, f"of {stated.table.family}", known) for name in stated.unknown)
        return
    if stated.triple is not None:
        return  # an architecture without a feature table
    tables = [table for family in families() if (table := table_of(family))]
    known_anywhere = {name for table in tables for name in (*table.implies, *table.tuning)}
    words = [*(f"+{name}" for name in stated.added), *(f"-{name}" for name in stated.removed)]
    wrong = [name for name in words if name[1:] not in known_anywhere]
    yield from (_unknown(kind, name, "that LLVM knows", known_anywhere) for name in wrong)
    names = {name[1:] for name in words} - {name[1:] for name in wrong}
    if names and not any(names <= {*table.implies, *table.tuning} for table in tables):
        yield f"features {' and '.join(sorted(stated.words))} belong to no single architecture; add mtriple or mcpu"


def _unknown(kind: str, name: str, where: str, known: Iterable[str]) -> str:
    near = did_you_mean(name[1:], known)
    return with_unchecked(f"{shown(name)} of kind {kind!r} is not a feature {where}{near}", "mattr")


def _features_do_not_conflict(_: str, __: Mapping[str, Value], stated: StatedIsa) -> Iterator[str]:
    tables = [table for family in stated.families if (table := table_of(family)) is not None]
    problems = [problem for table in tables for problem in table.contradictions(stated.added, stated.removed)]
    yield from dict.fromkeys(problems)


def _width_is_one(_: str, attrs: Mapping[str, Value], stated: StatedIsa) -> Iterator[str]:
    """Check the features `32bit` and `64bit` against the triple and the CPU (RISC-V, x86)."""
    if stated.triple is not None and f"{_ARCH_BITS.get(stated.triple.arch)}bit" in stated.removed:
        yield f"mtriple {shown(attrs['mtriple'])} needs feature {_ARCH_BITS[stated.triple.arch]}bit, which is removed"
    if stated.table is None or stated.table.family != "riscv":
        return
    for width, other in (("32bit", "64bit"), ("64bit", "32bit")):
        if width in (stated.model or ()) and other in stated.added:
            source = f"mtriple {shown(attrs['mtriple'])}" if "mtriple" in attrs else f"mcpu {stated.cpu!r}"
            yield f"feature +{other} contradicts {source}, which has {width[:2]} bits"


def _float_abi_fits(_: str, attrs: Mapping[str, Value], stated: StatedIsa) -> Iterator[str]:
    float_abi, triple = attrs.get("mfloat-abi"), stated.triple
    by_triple = triple.float_abi if triple is not None else None
    if triple is not None and float_abi in ("soft", "softfp") and by_triple == "hard":
        other = triple.environment.removesuffix("hf")
        yield (
            f"mfloat-abi {float_abi!r} contradicts mtriple {shown(attrs['mtriple'])}, whose {triple.environment!r} "
            f"passes floats in registers; write {other!r} there or leave mfloat-abi out"
        )
    table, is_hard = stated.table, "hard" in (float_abi, by_triple)
    if is_hard and table is not None and table.family == "arm" and stated.cpu in table.cpus:
        names = table.combine(stated.model or (), stated.added, stated.removed)
        if not names & {"vfp2sp", "mve"}:
            source = "mfloat-abi 'hard'" if float_abi == "hard" else f"mtriple {shown(attrs['mtriple'])}"
            yield f"{source} passes floats in registers, which mcpu {attrs['mcpu']!r} lacks"


def _abi_fits(_: str, attrs: Mapping[str, Value], stated: StatedIsa) -> Iterator[str]:
    """Check the ABI of RISC-V, whose name states the width of pointers and the registers that pass floats."""
    abi, table, triple = str(attrs.get("mabi", "")), stated.table, stated.triple
    if not abi or table is None or table.family != "riscv":
        return
    found = _RISCV_ABI.fullmatch(abi)
    if found is None or abi == "lp64q":
        known = [f"{base}{letter}" for base in ("ilp32", "lp64") for letter in ("", "f", "d", "e")]
        yield f"mabi {shown(abi)} is not an ABI of RISC-V{did_you_mean(abi, known)}"
        return
    bits, letter = 32 if found.group(1) == "ilp32" else 64, found.group(2)
    if triple is not None and triple.bits != bits:
        yield f"mabi {shown(abi)} is of {bits} bits, and mtriple {shown(attrs['mtriple'])} of {triple.bits}"
    if letter in ("f", "d") and stated.model is not None:
        names = table.combine(stated.model, stated.added, stated.removed)
        if letter not in names:
            yield f"mabi {shown(abi)} needs feature {letter!r}; add +{letter}, or write mabi={abi[:-1]}"


def _fast_math_agrees(_: str, attrs: Mapping[str, Value], __: StatedIsa) -> Iterator[str]:
    """Check that `fast-math` means all of LLVM's flags: TVM then ignores the other attributes (`LLVMTargetInfo`)."""
    if attrs.get("fast-math") is True:
        for name in sorted(name for name, value in attrs.items() if name.startswith("fast-math-") and value is False):
            yield f"fast-math=true implies {name}, which is false; leave fast-math out, and state what code may assume"


# An option of LLVM as TVM reads it (`LLVMTargetInfo::ParseOptionString`, src/target/llvm/llvm_instance.cc).
_OPTION = re.compile(
    r"--?(?P<name>[^-:=][^:=]*)(?:=(?P<truth>.*)|:(?P<type>bool|int|uint|string)=(?P<value>.*))?", re.DOTALL
)
_TRUTH = re.compile(r"0|1|true|false", re.IGNORECASE)
# TVM shortens other integers to 32 bits.
_INTEGERS = {"int": range(-(2**31), 2**31), "uint": range(2**32)}


def _options_are_complete(_: str, attrs: Mapping[str, Value], __: StatedIsa) -> Iterator[str]:
    options = attrs.get("cl-opt", ())
    names: set[str] = set()
    for option in map(str, options if isinstance(options, tuple) else ()):
        found = _OPTION.fullmatch(option)
        if found is None:
            yield f"{shown(option)} in cl-opt is not written as '-name', '-name=true' or '-name:int=4'"
            continue
        type_, value = found["type"] or "bool", found["value"] if found["type"] else found["truth"]
        if value is not None and (expected := _expected(type_, value)):
            yield f"the value of {shown(option)} in cl-opt is {expected}, not {shown(value)}"
        if found["name"] in names:
            yield f"{shown('-' + found['name'])} is in cl-opt twice; LLVM would use the last one"
        names.add(found["name"])


def _expected(type_: str, value: str) -> str:
    """Return what a value of an option has to be; empty if it is that."""
    if type_ == "bool":
        return "" if _TRUTH.fullmatch(value) else "true or false; write '-name:int=4' for a number"
    if type_ not in _INTEGERS or (
        re.fullmatch("[+-]?[0-9]{1,10}", value) is not None and int(value) in _INTEGERS[type_]
    ):
        return ""
    allowed = _INTEGERS[type_]
    return f"an integer from {allowed.start} to {allowed.stop - 1}"


def _subgroups(attrs: Mapping[str, Value]) -> Iterator[str]:
    """Check subgroups of WebGPU, which TVM sets to 32 over a stated value (`UpdateWebGPUAttrs` at main)."""
    size, has_subgroups = attrs.get("thread_warp_size", 1), attrs.get("supports_subgroups", False)
    if has_subgroups and "thread_warp_size" in attrs and size != 32:
        yield f"supports_subgroups means thread_warp_size=32, not {size}; leave thread_warp_size out"
    elif not has_subgroups and isinstance(size, int) and size > 1:
        yield f"thread_warp_size {size} needs subgroups; add supports_subgroups=true, which makes it 32"


_RULES: tuple[Callable[[str, Mapping[str, Value], StatedIsa], Iterator[str]], ...] = (
    _cpu_is_of_triple,
    _architecture_is_of_cpu,
    _features_are_known,
    _features_do_not_conflict,
    _width_is_one,
    _float_abi_fits,
    _abi_fits,
    _fast_math_agrees,
    _options_are_complete,
)
