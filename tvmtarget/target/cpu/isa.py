"""Derive the instruction set of a node from its CPU, its architecture and its stated features.

Nothing is probed. For a node that names neither CPU nor triple, the presence of a feature that it does not list is
unknown. The derived flags are those of TVM's canonicalizers
(`src/target/canonicalizer/llvm/arm_{aprofile,mprofile}.cc`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tvmtarget.errors import TargetError, did_you_mean, raise_all
from tvmtarget.target.attributes import Attributes, Value
from tvmtarget.target.cpu.chips import chips_of
from tvmtarget.target.cpu.features import FeatureTable, families, table_of
from tvmtarget.target.cpu.riscv import expand_isa, is_isa_string, isa_string
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.problems import shown

__all__ = [
    "Features",
    "StatedIsa",
    "family_of",
    "features_of",
    "is_architecture_of",
    "is_arm",
    "is_cpu",
    "read_isa",
    "spell_for_llvm",
    "vector_bits",
]

# Kinds that generate CPU code, with the family where the kind determines it.
_FAMILIES = {"llvm": "", "c": "", "hexagon": "hexagon", "cmsis-nn": "arm"}

# Families in the order of search: a CPU that is in two tables runs 64-bit code unless a triple is stated.
_BY_NAME = ("x86", "aarch64", "arm", "riscv", "hexagon", "wasm")

# TVM's flags, with the feature that sets each of them.
_FLAGS = {
    "has_asimd": "neon",
    "has_sve": "sve",
    "has_sme": "sme",
    "has_dotprod": "dotprod",
    "has_matmul_i8": "i8mm",
    "has_fp16_simd": "fullfp16",
    "has_dsp": "dsp",
    "has_mve": "mve",
}

# Names of Arm's features as modifiers of -mcpu and -march that differ from LLVM's (GCC manual, "AArch64 Options" and
# "ARM Options"; clang's --print-supported-extensions).
_ALIASES: dict[str, dict[str, str]] = {
    "aarch64": {
        "asimd": "neon",
        "crypto": "aes sha2",
        "fcma": "complxnum",
        "fp": "fp-armv8",
        "fp16": "fullfp16",
        "jscvt": "jsconv",
        "memtag": "mte",
        "pmuv3": "perfmon",
        "predres2": "specres2",
        "profile": "spe",
        "rdma": "rdm",
        "rng": "rand",
        "simd": "neon",
    },
    "arm": {
        "crypto": "aes sha2",
        "fp": "vfp2sp",
        "fp.dp": "fp64 vfp2sp",
        "fp16": "fullfp16",
        "idiv": "hwdiv hwdiv-arm",
        "sec": "trustzone",
        "simd": "neon",
        "virt": "virtualization",
    },
}

# The same for `+no...`, where removal is not the inverse of addition.
_WITHOUT: dict[str, dict[str, str]] = {"aarch64": {"crypto": "aes sha2 sm4"}, "arm": {"fp.dp": "fp64"}}

# Values of -march for 32-bit Arm only; `armv8-a` means 32-bit or 64-bit machines.
_ARMV7_OR_M = re.compile(r"armv([4-7].*|[89](\.[0-9])?-[mr].*)")
_ARMV8_A = re.compile(r"armv[89](\.[0-9])?-a")
_ARMV8_A_OR_R = re.compile(r"armv([89](?:\.[0-9])?)-([ar])")

_X86_WIDTHS = (("avx512f", 512), ("avx", 256), ("sse2", 128))

# RISC-V's vectors are at least as long as `zvl*b` says (Vector Extension 1.0, section 18.1).
_ZVL = re.compile(r"zvl([0-9]+)b")

_NVIDIA = re.compile(r"sm_([0-9]+)([0-9])[af]?")
_AMD = re.compile(r"gfx([0-9]+)([0-9])([0-9a-f])")


@dataclass(frozen=True, slots=True)
class Features:
    """Instruction set features that code for a node may use, closed under implication.

    `"avx2" in features` tests for a feature; `has` returns None for unknown presence, which occurs only where
    `is_complete` is false. TVM's flags (`has_sve`, `is_aarch64`, ...) are attributes. A GPU has no features but a
    `compute_capability`, which orders the chips of one vendor: (8, 0) of sm_80, (9, 0, 10) of gfx90a.
    """

    family: str = ""
    names: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    is_complete: bool = False
    compute_capability: tuple[int, ...] | None = None

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.names))

    def __len__(self) -> int:
        return len(self.names)

    def __bool__(self) -> bool:
        return bool(self.names)

    def __getattr__(self, name: str) -> bool:
        if name in _FLAGS:
            return _FLAGS[name] in self.names
        if name == "is_aarch64":
            return self.family == "aarch64"
        tail = "" if name.startswith("_") else did_you_mean(name, ["is_aarch64", *_FLAGS])
        raise AttributeError(f"features have no flag {name!r}{tail}")

    def has(self, name: str) -> bool | None:
        """Test for a feature.

        Args:
            name: LLVM's name of the feature.

        Returns:
            Whether it is present, or None if that is unknown.

        Raises:
            TargetError: the name is no text.
        """
        if not isinstance(name, str):
            raise TargetError(f"the name of a feature is a text, not {shown(name)}")
        if name in self.names:
            return True
        return False if self.is_complete or name in self.absent else None

    def covers(self, cpu: str) -> bool | None:
        """Decide whether code for a CPU runs with these features.

        Args:
            cpu: LLVM's name of the CPU. Features that hypervisors hide are not required.

        Returns:
            The answer, or None if the family, the CPU or the presence of a feature is unknown; False for a CPU of
            another family.

        Raises:
            TargetError: the name is no text.
        """
        if not isinstance(cpu, str):
            raise TargetError(f"the name of a CPU is a text, not {shown(cpu)}")
        table = table_of(self.family)
        if table is None:
            return None
        if cpu not in table.cpus:
            return False if any(cpu in chips_of(family) for family in _BY_NAME) else None
        answers = {self.has(name) for name in table.level(cpu)}
        return False if False in answers else None if None in answers else True

    @property
    def isa(self) -> str:
        """Instruction set string of RISC-V, such as `rv64imac_zicsr`; empty without a known base."""
        if self.family != "riscv" or not self.names & {"i", "e"}:
            return ""
        return isa_string(64 if "64bit" in self.names else 32, self.names)

    def to_json(self) -> dict[str, object]:
        """Convert the features to JSON data.

        Returns:
            `family`, the sorted `features`, `is_complete`, and the `compute_capability` of a GPU.
        """
        flat: dict[str, object] = {"family": self.family, "features": list(self), "is_complete": self.is_complete}
        capability = self.compute_capability
        return flat if capability is None else flat | {"compute_capability": list(capability)}


@dataclass(frozen=True, slots=True)
class StatedIsa:
    """Instruction set as the attributes of a node state it, in the names of its feature table.

    Attributes:
        families: The families that the machine may belong to.
        table: The feature table, if there is one family.
        triple: The parsed triple, or None if it is absent or invalid.
        cpu: The CPU without modifiers; empty if absent.
        model: The features of the CPU or the architecture; None for an unknown CPU.
        baseline: The features that every CPU of the architecture has.
        added: Added features by LLVM's names.
        removed: Removed features by LLVM's names.
        options: Signed features that affect tuning only.
        unknown: Signed features that are not in the table.
        words: The signed features and modifiers as they were stated.
    """

    families: tuple[str, ...]
    table: FeatureTable | None
    triple: Triple | None
    cpu: str
    model: frozenset[str] | None
    baseline: frozenset[str]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    options: tuple[str, ...]
    unknown: tuple[str, ...]
    words: tuple[str, ...]


# The attributes that this module reads.
_READ = ("mtriple", "mcpu", "march", "mattr", "arch")


def features_of(kind: str, attrs: Attributes) -> Features:
    """Compute the features of a node.

    Args:
        kind: The kind of the node.
        attrs: Its attributes.

    Returns:
        The features; those that all families have in common where several are possible.

    Raises:
        TargetError: Added and removed features contradict each other.
    """
    return _features_of(kind, *map(attrs.get, _READ))


@lru_cache(maxsize=4096)  # the CPUs of many systems are equal
def _features_of(kind: str, *values: Value | None) -> Features:
    attrs = {name: value for name, value in zip(_READ, values, strict=True) if value is not None}
    stated = read_isa(kind, attrs)
    if len(stated.families) > 1:
        # Only what all alternatives have in common is certain.
        options = [_features(read_isa(kind, attrs, family)) for family in stated.families]
        names = frozenset.intersection(*(option.names for option in options))
        return Features("", names, frozenset.intersection(*(option.absent for option in options)))
    if stated.table is None:
        capability = None if is_cpu(kind) else _capability(kind, attrs)
        return Features("", frozenset(stated.added), frozenset(stated.removed), compute_capability=capability)
    return _features(stated)


def _features(stated: StatedIsa) -> Features:
    table, claimed = stated.table, frozenset(name[1:] for name in stated.unknown if name[0] == "+")
    assert table is not None  # the caller checks
    raise_all(TargetError, [*table.contradictions(stated.added, stated.removed)])
    return Features(
        family=table.family,
        names=table.combine(stated.model or stated.baseline, stated.added, stated.removed) | claimed,
        absent=table.dependents(stated.removed),
        is_complete=stated.model is not None,
    )


def _is_arm_of_any_width(kind: str, attrs: Mapping[str, Value]) -> bool:
    """Whether only `-march=armv8-a` names the machine, which may be 32-bit Arm or AArch64."""
    march = _text(attrs, "march").partition("+")[0]
    return _FAMILIES.get(kind) == "" and not _text(attrs, "mcpu") and _ARMV8_A.fullmatch(march) is not None


def vector_bits(features: frozenset[str]) -> int:
    """Return the width of the widest vectors that features guarantee.

    Args:
        features: LLVM's features, closed under implication.

    Returns:
        The width in bits; 0 without vector features.
    """
    if width := next((bits for name, bits in _X86_WIDTHS if name in features), 0):
        return width
    if lengths := [int(found.group(1)) for name in features if (found := _ZVL.fullmatch(name))]:
        return max(lengths)
    hvx = next((name for name in features if name.startswith("hvx-length")), "")
    if hvx:  # hvx-length64b: bytes
        return 8 * int("".join(letter for letter in hvx if letter.isdigit()))
    # SVE is at least as wide, but its features do not state by how much.
    return 128 if features & {"neon", "mve"} else 0


def is_cpu(kind: str) -> bool:
    """Whether a kind generates CPU code.

    Args:
        kind: The name of a kind.

    Returns:
        True if its attributes may name a CPU and features.
    """
    return kind in _FAMILIES


def read_isa(kind: str, attrs: Mapping[str, Value], family: str = "") -> StatedIsa:
    """Read the CPU, triple and features that a node states.

    Invalid values are kept, as `consistency.py` reports them.

    Args:
        kind: The kind of the node.
        attrs: Its attributes.
        family: The family to read features for; derived from the attributes if empty.

    Returns:
        The stated instruction set.
    """
    triple = _triple(attrs)
    cpu, *cpu_modifiers = _text(attrs, "mcpu").split("+")
    march, *march_modifiers = _text(attrs, "march").split("+")
    if is_isa_string(march):
        march_modifiers += expand_isa(march)
    features, modifiers = _signed(attrs), [f"+{word}" for word in (*cpu_modifiers, *march_modifiers) if word]
    words = [*features, *modifiers]
    if family := family or _family(kind, attrs, triple):
        tables = [table for table in (table_of(family),) if table is not None]
    elif _is_arm_of_any_width(kind, attrs):
        tables = [found for name in ("aarch64", "arm") if (found := table_of(name)) is not None]
    else:
        tables = _tables_that_know(words) if is_cpu(kind) else []
    table = tables[0] if len(tables) == 1 else None
    signed = [name for word in features for name in _read_feature(word, tables)]
    signed += _resolve_modifiers([name for word in modifiers for name in _read_modifier(word, tables)], tables)
    known = [word for word in signed if table is None or word[1:] in table.implies]
    options = [word for word in signed if table is not None and word[1:] in table.tuning]
    return StatedIsa(
        families=tuple(candidate.family for candidate in tables),
        table=table,
        triple=triple,
        cpu=cpu,
        model=None if table is None else _model(table, triple, cpu, march),
        baseline=(table and triple and _baseline(table, triple)) or frozenset(),
        added=tuple(word[1:] for word in known if word[0] == "+"),
        removed=tuple(word[1:] for word in known if word[0] == "-"),
        options=tuple(options),
        unknown=tuple(word for word in signed if word not in known and word not in options),
        words=tuple(words),
    )


def spell_for_llvm(kind: str, attrs: Mapping[str, Value]) -> Mapping[str, Value]:
    """Replace compiler modifiers by LLVM's features.

    `mcpu=skylake+noavx2` becomes `mcpu=skylake` and `mattr=-avx2`. LLVM has CPUs and features only; modifiers are those
    of compilers (GCC manual, "AArch64 Options", -mcpu).

    Args:
        kind: The kind of the node.
        attrs: Its attributes.

    Returns:
        The attributes of an `llvm` node with modifiers replaced; other attributes unchanged.
    """
    stated = read_isa(kind, attrs)
    signed = [*(f"+{name}" for name in stated.added), *(f"-{name}" for name in stated.removed)]
    signed += [*stated.options, *stated.unknown]
    if kind != "llvm" or (stated.cpu == _text(attrs, "mcpu") and set(signed) == set(_signed(attrs))):
        return attrs
    cpu: dict[str, Value] = {"mcpu": stated.cpu} if stated.cpu else {}
    return {**attrs, **cpu, "mattr": tuple(signed)}


def family_of(kind: str, attrs: Mapping[str, Value]) -> str:
    """Return the CPU family that a node's triple, CPU or architecture determines.

    Args:
        kind: The kind of the node.
        attrs: Its attributes.

    Returns:
        The family; empty if the attributes do not determine one.
    """
    return _family(kind, attrs, _triple(attrs))


def _family(kind: str, attrs: Mapping[str, Value], triple: Triple | None) -> str:
    if forced := _FAMILIES.get(kind, ""):
        return forced
    if triple is not None:
        return triple.family
    cpu, march = _text(attrs, "mcpu").partition("+")[0], _text(attrs, "march").partition("+")[0]
    if cpu and cpu != "generic":
        return next((family for family in _BY_NAME if cpu in chips_of(family)), "")
    if march:
        return _family_of_march(march)
    return ""


def is_arm(kind: str, attrs: Mapping[str, Value]) -> bool:
    """Whether a node is for an Arm CPU, so that TVM gives it the key `arm_cpu`.

    Args:
        kind: The kind of the node.
        attrs: Its attributes.

    Returns:
        True for `llvm` and `c` nodes whose triple, CPU or architecture is Arm.
    """
    if kind not in ("llvm", "c"):
        return False
    return family_of(kind, attrs) in ("arm", "aarch64") or _text(attrs, "march").startswith("armv")


def _text(attrs: Mapping[str, Value], name: str) -> str:
    value = attrs.get(name, "")
    return value if isinstance(value, str) else ""


def _signed(attrs: Mapping[str, Value]) -> list[str]:
    items = attrs.get("mattr", ())
    return [str(item) for item in items] if isinstance(items, tuple) else []


def _triple(attrs: Mapping[str, Value]) -> Triple | None:
    text = _text(attrs, "mtriple")
    try:
        return Triple.parse(text) if text else None
    except TargetError:
        return None


def _tables_that_know(words: Sequence[str]) -> list[FeatureTable]:
    """Return the tables with all stated features, for a node that names its machine by features only."""
    if not words:
        return []
    tables = [table for family in families() if (table := table_of(family)) is not None]
    return [
        table
        for table in tables
        if all(name[1:] in table.implies for word in words for name in _read_feature(word, [table]))
    ]


def _read_feature(word: str, tables: Sequence[FeatureTable]) -> Sequence[str]:
    """Translate a signed feature to LLVM's; an unknown one may be a compiler modifier such as `+nomve`."""
    is_known = any(word[1:] in table.implies for table in tables)
    return [word] if is_known else _read_modifier(word, tables)


def _read_modifier(word: str, tables: Sequence[FeatureTable]) -> Sequence[str]:
    """Translate a modifier of a CPU or an architecture: `+fp16` adds features, `+nofp16` removes them."""
    sign, name = word[0], word[1:]
    for table in tables:
        if name in (aliases := _ALIASES.get(table.family, {})):
            return [f"{sign}{feature}" for feature in aliases[name].split()]
        if name in table.implies:
            return [word]
        if sign == "+" and name.startswith("no"):
            bare = name.removeprefix("no")
            removed = (_WITHOUT.get(table.family, {}).get(bare) or aliases.get(bare, bare)).split()
            if all(feature in table.implies for feature in removed):
                return [f"-{feature}" for feature in removed]
    return [word]


def _resolve_modifiers(words: Sequence[str], tables: Sequence[FeatureTable]) -> list[str]:
    """Resolve conflicting modifiers: the right-most one wins (GCC manual, "AArch64 Options", feature modifiers)."""
    added: dict[str, None] = {}
    removed: dict[str, None] = {}
    for word in words:
        name = word[1:]
        closure, dependents = (tables[0].closure([name]), tables[0].dependents([name])) if tables else ({name}, {name})
        if word[0] == "-":
            added = {other: None for other in added if other not in dependents}
            removed[name] = None
            continue
        # `+nosimd+fp16` restores the features that fp16 implies; the others that nosimd removed stay removed.
        if tables and closure & tables[0].dependents(removed):
            removed = {other: None for other in sorted(tables[0].dependents(removed)) if other not in closure}
        added[name] = None
    return [*(f"+{name}" for name in added), *(f"-{name}" for name in removed)]


def _model(table: FeatureTable, triple: Triple | None, cpu: str, march: str) -> frozenset[str] | None:
    """Return the features of the CPU, else those of the architecture; None if neither is known."""
    if cpu and cpu != "generic":
        if cpu not in table.cpus:
            return None
        # LLVM adds the baseline of x86-64 to a 32-bit CPU that is compiled for a 64-bit triple.
        has_base = triple is not None and triple.arch == "x86_64"
        return table.of_cpu(cpu) | (table.of_cpu("x86-64") if has_base else frozenset())
    if triple is not None:
        return _baseline(table, triple)
    if march:
        return _of_march(table, march)
    return None


def _baseline(table: FeatureTable, triple: Triple) -> frozenset[str] | None:
    if triple.arch == "x86_64":
        return table.of_cpu("x86-64")
    arch = triple.arch.removesuffix("eb")
    names = (triple.machine, f"arm{triple.sub}", f"thumb{triple.sub}", arch, "i386" if arch == "i386" else "arm")
    found = next((name for name in names if name in table.baselines), None)
    return None if found is None else table.closure(table.baselines[found])


def _family_of_march(march: str) -> str:
    if is_isa_string(march):
        return "riscv"
    if _ARMV7_OR_M.fullmatch(march):
        return "arm"
    return "x86" if march in chips_of("x86") else ""


def _of_march(table: FeatureTable, march: str) -> frozenset[str] | None:
    if is_isa_string(march):
        return frozenset()
    if table.family == "x86":
        return table.of_cpu(march)
    if table.family == "aarch64" and (found := _ARMV8_A_OR_R.fullmatch(march)):
        level = f"v{found.group(1)}{found.group(2)}"
        return table.closure((*table.baselines["aarch64"], level)) if level in table.implies else None
    return table.closure((march,)) if march in table.implies else None


def is_architecture_of(march: str, cpu: str, table: FeatureTable) -> bool:
    """Check whether `march` states the architecture of a CPU.

    Args:
        march: The architecture, without modifiers.
        cpu: A CPU of the table.
        table: The features of its family.

    Returns:
        True if the architecture has no feature that the CPU lacks, and all of the architecture that LLVM gives the CPU.
    """
    own = table.of_cpu(cpu)
    if is_isa_string(march):
        stated = table.closure(name for name in expand_isa(march) if name in table.implies)
        return Features(table.family, own, frozenset()).isa == Features(table.family, stated, frozenset()).isa
    # LLVM calls the architecture of a cortex-a7 armv7-a, and GCC armv7ve; what these imply is compared.
    ignored = {name for name in table.implies if name.startswith("armv")} | table.system
    levels = {name for name in own if table.is_level(name)}
    stated = _of_march(table, march) or frozenset()
    return bool(stated) and (table.closure(levels) if levels else own) - ignored <= stated and stated - ignored <= own


def _capability(kind: str, attrs: Mapping[str, Value]) -> tuple[int, ...] | None:
    name = _text(attrs, "arch" if kind == "cuda" else "mcpu")
    if found := _NVIDIA.fullmatch(name):
        return int(found.group(1)), int(found.group(2))
    found = _AMD.fullmatch(name)
    return (int(found.group(1)), int(found.group(2)), int(found.group(3), 16)) if found else None
