"""What a node's instructions are: its CPU or architecture, and the features written beside it.

Nothing is probed. A node that names neither CPU nor triple leaves the machine open, so a feature that is not in its
list is neither there nor absent. The derived flags are those of TVM's canonicalizers
(`src/target/canonicalizer/llvm/arm_{aprofile,mprofile}.cc`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tvmtarget.errors import TargetError, did_you_mean, raise_all
from tvmtarget.target.attributes import Attributes, Value
from tvmtarget.target.cpu.chips import chips_of
from tvmtarget.target.cpu.features import FeatureTable, families, table_of
from tvmtarget.target.cpu.riscv import expand_isa, is_isa_string, isa_string
from tvmtarget.target.cpu.triples import Triple

__all__ = [
    "Features",
    "Written",
    "family_of",
    "features_of",
    "is_arm",
    "is_cpu",
    "read_isa",
    "spelled_for_llvm",
    "vector_bits",
]

# Kinds whose code is for a CPU, and the family where it is not in the attributes.
_FAMILIES = {"llvm": "", "c": "", "hexagon": "hexagon", "cmsis-nn": "arm"}

# A CPU that is in both tables of a pair is taken to run 64-bit code unless a triple says otherwise.
_BY_NAME = ("x86", "aarch64", "arm", "riscv", "hexagon", "wasm")

# TVM's flags, and the feature each one asks for.
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

# What compilers call Arm's features behind -mcpu and -march, where LLVM's feature has another name (GCC manual,
# "AArch64 Options" and "ARM Options"; clang's --print-supported-extensions).
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

# The same for `+no...`, where taking a feature away is not the opposite of adding it.
_WITHOUT: dict[str, dict[str, str]] = {"aarch64": {"crypto": "aes sha2 sm4"}, "arm": {"fp.dp": "fp64"}}

# What a C compiler for 32-bit Arm takes; armv8-a is the name of 64-bit machines, too.
_ARMV7_OR_M = re.compile(r"armv([4-7].*|[89](\.[0-9])?-[mr].*)")
_ARMV8_A = re.compile(r"armv([89](?:\.[0-9])?)-a")

_X86_WIDTHS = (("avx512f", 512), ("avx", 256), ("sse2", 128))

# RISC-V's vectors are at least as long as `zvl*b` says (Vector Extension 1.0, section 18.1).
_ZVL = re.compile(r"zvl([0-9]+)b")

_NVIDIA = re.compile(r"sm_([0-9]+)([0-9])[af]?")
_AMD = re.compile(r"gfx([0-9]+)([0-9])([0-9a-f])")


@dataclass(frozen=True, slots=True)
class Features:
    """The features of the instruction set that code for a node may use, closed under what they need.

    `"avx2" in features` says whether one is there; `has` says None where nobody knows, which is only where
    `is_complete` is false. Flags of TVM (`has_sve`, `is_aarch64`, ...) are attributes. A GPU has none of it, but a
    `compute_capability` by which chips of one maker are ordered: (8, 0) of sm_80, (9, 0, 10) of gfx90a.
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
        """Say whether a feature is there; None if nothing says so and the machine is not known."""
        if name in self.names:
            return True
        return False if self.is_complete or name in self.absent else None

    def covers(self, cpu: str) -> bool | None:
        """Say whether code for a CPU runs here; features that hypervisors hide are not asked for.

        None where the machine is not known, or the CPU; False for a CPU of another family.
        """
        table = table_of(self.family)
        if table is None:
            return None
        if cpu not in table.cpus:
            return False if any(cpu in chips_of(family) for family in _BY_NAME) else None
        answers = {self.has(name) for name in table.level(cpu)}
        return False if False in answers else None if None in answers else True

    @property
    def isa(self) -> str:
        """The instruction set as RISC-V's tools write it, `rv64imac_zicsr`; empty where no base is known."""
        if self.family != "riscv" or not self.names & {"i", "e"}:
            return ""
        return isa_string(64 if "64bit" in self.names else 32, self.names)

    def to_json(self) -> dict[str, object]:
        """Return what JSON can hold."""
        flat: dict[str, object] = {"family": self.family, "features": list(self), "is_complete": self.is_complete}
        capability = self.compute_capability
        return flat if capability is None else flat | {"compute_capability": list(capability)}


@dataclass(frozen=True, slots=True)
class Written:
    """What the attributes of a node say about its instructions, by the names of its table.

    `families` are those that the machine may be of, and `table` is of the only one. `words` are the features as
    they are written: `added` and `removed` by LLVM's names, signed `options` that only tune, and signed `unknown`
    ones that the table has not. `model` is what follows from CPU or architecture, None if the CPU is not known;
    then `floor` is what every CPU of the architecture has.
    """

    families: tuple[str, ...]
    table: FeatureTable | None
    triple: Triple | None
    cpu: str
    model: frozenset[str] | None
    floor: frozenset[str]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    options: tuple[str, ...]
    unknown: tuple[str, ...]
    words: tuple[str, ...]


def features_of(kind: str, attrs: Attributes) -> Features:
    """Return the features of a node; a `TargetError` says which of them contradict each other."""
    written = read_isa(kind, attrs)
    if len(written.families) > 1:
        return _common([_features(read_isa(kind, attrs, family)) for family in written.families])
    if written.table is None:
        capability = None if is_cpu(kind) else _capability(kind, attrs)
        return Features("", frozenset(written.added), frozenset(written.removed), compute_capability=capability)
    return _features(written)


def _features(written: Written) -> Features:
    table, claimed = written.table, frozenset(name[1:] for name in written.unknown if name[0] == "+")
    assert table is not None  # the caller looks
    raise_all(TargetError, [*table.contradictions(written.added, written.removed)])
    return Features(
        family=table.family,
        names=table.combine(written.model or written.floor, written.added, written.removed) | claimed,
        absent=table.gone(written.removed),
        is_complete=written.model is not None,
    )


def _common(options: Sequence[Features]) -> Features:
    """Return what is certain of a machine that is one of several."""
    names = frozenset.intersection(*(one.names for one in options))
    return Features("", names, frozenset.intersection(*(one.absent for one in options)))


def _is_arm_of_any_width(kind: str, attrs: Mapping[str, Value]) -> bool:
    """Whether a C compiler's `-march=armv8-a` is all that names the machine: 32-bit Arm has it, and AArch64."""
    march = _text(attrs, "march").partition("+")[0]
    return _FAMILIES.get(kind) == "" and not _text(attrs, "mcpu") and _ARMV8_A.fullmatch(march) is not None


def vector_bits(features: frozenset[str]) -> int:
    """Return the bits of the widest vectors that features imply for certain; 0 where they do not say."""
    if width := next((bits for name, bits in _X86_WIDTHS if name in features), 0):
        return width
    if lengths := [int(found.group(1)) for name in features if (found := _ZVL.fullmatch(name))]:
        return max(lengths)
    hvx = next((name for name in features if name.startswith("hvx-length")), "")
    if hvx:
        return 8 * int("".join(letter for letter in hvx if letter.isdigit()))
    return 128 if features & {"neon", "mve"} else 0


def is_cpu(kind: str) -> bool:
    """Whether code of a kind is for a CPU, so that its attributes name one and its features."""
    return kind in _FAMILIES


def read_isa(kind: str, attrs: Mapping[str, Value], family: str = "") -> Written:
    """Read CPU, triple and features of a node, even wrong ones, by the table of a family if one is given."""
    triple = _triple(attrs)
    cpu, *behind_cpu = _text(attrs, "mcpu").split("+")
    march, *behind_march = _text(attrs, "march").split("+")
    if is_isa_string(march):
        behind_march += expand_isa(march)
    features, modifiers = _signed(attrs), [f"+{word}" for word in (*behind_cpu, *behind_march) if word]
    words = [*features, *modifiers]
    if family := family or _family(kind, attrs, triple):
        tables = [one for one in (table_of(family),) if one is not None]
    elif _is_arm_of_any_width(kind, attrs):
        tables = [one for name in ("aarch64", "arm") if (one := table_of(name)) is not None]
    else:
        tables = _tables_that_know(words) if is_cpu(kind) else []
    table = tables[0] if len(tables) == 1 else None
    signed = [one for word in features for one in _read_feature(word, tables)]
    signed += _rightmost([one for word in modifiers for one in _read_modifier(word, tables)], tables)
    known = [word for word in signed if table is None or word[1:] in table.implies]
    options = [word for word in signed if table is not None and word[1:] in table.tuning]
    return Written(
        families=tuple(one.family for one in tables),
        table=table,
        triple=triple,
        cpu=cpu,
        model=None if table is None else _model(table, triple, cpu, march),
        floor=(table and triple and _baseline(table, triple)) or frozenset(),
        added=tuple(word[1:] for word in known if word[0] == "+"),
        removed=tuple(word[1:] for word in known if word[0] == "-"),
        options=tuple(options),
        unknown=tuple(word for word in signed if word not in known and word not in options),
        words=tuple(words),
    )


def spelled_for_llvm(kind: str, attrs: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return attributes of an llvm with modifiers as LLVM spells them: `mcpu=skylake+noavx2` takes `-avx2` away.

    LLVM knows CPUs and features alone; modifiers are those of compilers (GCC manual, "AArch64 Options", -mcpu).
    Attributes without modifiers stay as they are.
    """
    written = read_isa(kind, attrs)
    signed = [*(f"+{name}" for name in written.added), *(f"-{name}" for name in written.removed)]
    signed += [*written.options, *written.unknown]
    if kind != "llvm" or (written.cpu == _text(attrs, "mcpu") and set(signed) == set(_signed(attrs))):
        return attrs
    cpu: dict[str, Value] = {"mcpu": written.cpu} if written.cpu else {}
    return {**attrs, **cpu, "mattr": tuple(signed)}


def family_of(kind: str, attrs: Mapping[str, Value]) -> str:
    """Return the table of CPUs that a node's triple, CPU or architecture is in; nothing where none of them says."""
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
    """Whether a node is for an Arm CPU, so that TVM gives it the key `arm_cpu`."""
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
    """Return the tables that have all features that are written where nothing else names the machine."""
    if not words:
        return []
    tables = [table for family in families() if (table := table_of(family)) is not None]
    return [
        table
        for table in tables
        if all(one[1:] in table.implies for word in words for one in _read_feature(word, [table]))
    ]


def _read_feature(word: str, tables: Sequence[FeatureTable]) -> Sequence[str]:
    """Read a signed feature as LLVM names it; what LLVM has not may be a modifier of compilers, as `+nomve`."""
    is_known = any(word[1:] in table.implies for table in tables)
    return [word] if is_known else _read_modifier(word, tables)


def _read_modifier(word: str, tables: Sequence[FeatureTable]) -> Sequence[str]:
    """Read what stands behind a CPU or an architecture: `+fp16` adds features, and `+nofp16` takes them away."""
    sign, name = word[0], word[1:]
    for table in tables:
        if name in (aliases := _ALIASES.get(table.family, {})):
            return [f"{sign}{one}" for one in aliases[name].split()]
        if name in table.implies:
            return [word]
        if sign == "+" and name.startswith("no"):
            bare = name.removeprefix("no")
            removed = (_WITHOUT.get(table.family, {}).get(bare) or aliases.get(bare, bare)).split()
            if all(one in table.implies for one in removed):
                return [f"-{one}" for one in removed]
    return [word]


def _rightmost(words: Sequence[str], tables: Sequence[FeatureTable]) -> list[str]:
    """Settle modifiers that conflict: the right-most one holds (GCC manual, "AArch64 Options", feature modifiers)."""
    added: dict[str, None] = {}
    removed: dict[str, None] = {}
    for word in words:
        name = word[1:]
        need, gone = (tables[0].need([name]), tables[0].gone([name])) if tables else ({name}, {name})
        if word[0] == "-":
            added = {one: None for one in added if one not in gone}
            removed[name] = None
            continue
        if tables and need & tables[0].gone(removed):  # what else was removed stays so
            removed = {one: None for one in sorted(tables[0].gone(removed)) if one not in need}
        added[name] = None
    return [*(f"+{name}" for name in added), *(f"-{name}" for name in removed)]


def _model(table: FeatureTable, triple: Triple | None, cpu: str, march: str) -> frozenset[str] | None:
    """Return what the CPU has, or what every machine of the architecture has; None if neither is known."""
    if cpu and cpu != "generic":
        if cpu not in table.cpus:
            return None
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
    return None if found is None else table.need(table.baselines[found])


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
    if table.family == "aarch64" and (found := _ARMV8_A.fullmatch(march)):
        level = f"v{found.group(1)}a"
        return table.need((*table.baselines["aarch64"], level)) if level in table.implies else None
    return table.need((march,)) if march in table.implies else None


def _capability(kind: str, attrs: Mapping[str, Value]) -> tuple[int, ...] | None:
    name = _text(attrs, "arch" if kind == "cuda" else "mcpu")
    if found := _NVIDIA.fullmatch(name):
        return int(found.group(1)), int(found.group(2))
    found = _AMD.fullmatch(name)
    return (int(found.group(1)), int(found.group(2)), int(found.group(3), 16)) if found else None
