"""What constraints on CPUs and features mean: a node's closed features decide, not what its CPU is called.

`mcpu>=skylake-avx512` is met by any CPU of the family that has all features code for that one may take for granted,
those left out that hypervisors hide; `+avx2` by any node that is known to have it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache

from tvmtarget.errors import TargetError
from tvmtarget.target.constraints.attribute_comparison import Operator
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.cpu.features import FeatureTable, families, table_of
from tvmtarget.target.cpu.isa import Features, vector_bits
from tvmtarget.target.detection.processors import unasked
from tvmtarget.target.target_node import TargetNode

__all__ = [
    "all_needed",
    "check_cpu",
    "check_feature",
    "check_vector_width",
    "cpu_names",
    "implied_only",
    "is_cpu",
    "is_cpu_kind",
    "is_reduced",
    "known_features",
    "level",
    "missing",
    "needed",
]


def is_cpu(name: str) -> bool:
    """Whether a table of features has a CPU."""
    return name in cpu_names()


def is_cpu_kind(kind: str) -> bool:
    """Whether the `mcpu` of a kind is a CPU of a table."""
    return kind in ("llvm", "c", "hexagon", "cmsis-nn")


@cache
def cpu_names() -> frozenset[str]:
    """Return all CPUs whose features are known."""
    return frozenset().union(*(table.cpus for table in _tables())) - {"generic"}


def level(cpu: str) -> frozenset[str]:
    """Return what code for a CPU may take for granted in every family that has it; nothing for an unknown one."""
    levels = [table.level(cpu) for table in _tables_with(cpu)]
    return frozenset.intersection(*levels) if levels else frozenset()


def is_reduced(node: TargetNode) -> bool:
    """Whether features are taken from a node's CPU, so that its name says too much."""
    written = node.attrs.get("mattr")
    is_without = isinstance(written, tuple) and any(str(item).startswith("-") for item in written)
    return is_without or "+" in str(node.attrs.get("mcpu", ""))


@cache
def needed(feature: str) -> frozenset[str]:
    """Return a feature and what it needs in every family that has it."""
    closures = [table.need([feature]) for table in _tables() if feature in table.implies]
    return frozenset({feature}).union(frozenset.intersection(*closures)) if closures else frozenset({feature})


def all_needed(features: Iterable[str]) -> frozenset[str]:
    """Return features and what they need in every family."""
    return frozenset().union(*map(needed, features))


# An option of Arm's cores that LLVM takes to be there, and that a chip may lack (the Raspberry Pi's up to the 4);
# only programs that ask for these instructions by name have them.
_CRYPTOGRAPHY = frozenset({"aes", "sha2"})


def missing(
    have: Features, names: Iterable[str], family: str, *, named: Collection[str] = (), measured: bool
) -> tuple[list[str], list[str]]:
    """Return which of the features that code uses are not there, and of which nothing is known.

    Args:
        have: What a node or a machine has.
        names: Features that the code may use, closed under what they need.
        family: The table that they are of.
        named: Those of them that somebody wrote, which are needed whatever they are.
        measured: Whether `have` was measured: then features that no code generator uses by itself are not missed,
            and a version of the architecture is compared by what it consists of.
    """
    table = table_of(family)
    spared = implied_only(family, measured=measured)
    needed = {name for name in names if name in named or name not in spared}
    if measured and table is not None:
        needed = {name for name in needed if not _is_of_parts(table, name)}
    answers = {name: have.has(name) for name in sorted(needed)}
    return [name for name in answers if answers[name] is False], [name for name in answers if answers[name] is None]


def implied_only(family: str, *, measured: bool) -> frozenset[str]:
    """Return the features of a family that code does not use because its CPU has them."""
    table = table_of(family)
    if table is None:
        return frozenset()
    cryptography = _CRYPTOGRAPHY if family in ("arm", "aarch64") else frozenset()
    return table.system | (unasked() | cryptography if measured else frozenset())


def _is_of_parts(table: FeatureTable, name: str) -> bool:
    """Whether a feature is a level that consists of more than older levels."""
    return table.is_level(name) and any(not table.is_level(part) for part in table.need([name]))


def check_feature(node: TargetNode, name: str, *, measured: bool = False) -> tuple[Truth, str]:
    """Say whether a node has a feature, and by what."""
    written = node.attrs.get("mattr")
    signs = {str(item)[1:]: str(item)[0] for item in written} if isinstance(written, tuple) else {}
    features = known_features(node)
    if name in signs:
        is_whole = features is None or name not in features.absent  # a level that lost a feature is not whole
        said = f"it is {signs[name]}{name}"
        return _truth(signs[name] == "+" and is_whole), said if is_whole or signs[
            name
        ] == "-" else f"{said} without all of it"
    if features is None:
        return Truth.UNKNOWN, "its features contradict each other"
    has = features.has(name)
    if has is False and measured and (table := table_of(features.family)) and _is_of_parts(table, name):
        lacking, unknown = missing(features, table.need([name]), table.family, measured=True)
        has = False if lacking else None if unknown else True
    if has is None and name in all_needed(feature for feature, sign in signs.items() if sign == "+"):
        has = True
    if has is None or (not has and not any(name in table.implies for table in _tables())):
        return Truth.UNKNOWN, "the target does not say"
    source = next((f"{key} {node.attrs[key]}" for key in ("mcpu", "mtriple", "march") if key in node.attrs), "mattr")
    return _truth(has), f"{source} {'has' if has else 'lacks'} it"


def check_cpu(node: TargetNode, operator: Operator, cpu: str, *, measured: bool = False) -> tuple[Truth, str]:
    """Say whether a node's features are those of a CPU and more (`ge`), no more (`le`), or one but not the other."""
    features, own = known_features(node), node.attrs.get("mcpu")
    said = f"it is {own}" if own is not None else "the target does not say"
    if features is None:
        return Truth.UNKNOWN, "its features contradict each other"
    if (
        operator in ("ge", "le")
        and own == cpu
        and not is_reduced(node)
        and (operator == "ge" or "mattr" not in node.attrs)
    ):
        return Truth.YES, said
    if features.family and features.family not in {table.family for table in _tables_with(cpu)}:
        return Truth.NO, f"{said}, of {features.family}"
    covers, lacking = _covers(features, cpu, measured=measured)
    if lacking:
        said += f", without {', '.join(lacking[:4])}" + (f" and {len(lacking) - 4} more" if len(lacking) > 4 else "")
    if operator == "ge":
        return covers, said
    within = _is_within(features, cpu)
    turned = Truth(Truth.YES - covers), Truth(Truth.YES - within)
    answers = {"le": within, "gt": min(covers, turned[1]), "lt": min(within, turned[0])}
    return answers.get(operator, Truth.UNKNOWN), said


def _covers(features: Features, cpu: str, *, measured: bool) -> tuple[Truth, list[str]]:
    """Say whether features are all that code for a CPU takes for granted, and what is missing."""
    table = table_of(features.family)
    if table is None or cpu not in table.cpus:
        answer = features.covers(cpu)
        return (Truth.UNKNOWN if answer is None else _truth(answer)), []
    lacking, unknown = missing(features, table.level(cpu), table.family, measured=measured)
    return (Truth.NO if lacking else Truth.UNKNOWN if unknown else Truth.YES), lacking


def check_vector_width(node: TargetNode, bits: int) -> tuple[Truth, str]:
    """Say whether a node has vectors of so many bits: as it states, else as its instructions imply."""
    stated, features = node.attrs.get("vector-width"), known_features(node)
    if isinstance(stated, int):
        return _truth(stated >= bits), f"it is {stated}"
    width = vector_bits(features.names) if features is not None else 0
    if width >= bits:
        return Truth.YES, f"it is {width}"
    if features is None or not features.is_complete or not width or features.names & _SCALABLE:
        return Truth.UNKNOWN, "the target does not say"
    return Truth.NO, f"it is {width}"


# Vectors of which the instruction set leaves the length open.
_SCALABLE = frozenset({"sve", "sme", "zve32x"})


def _is_within(features: Features, cpu: str) -> Truth:
    """Say whether a node has nothing that a CPU has not."""
    table = table_of(features.family)
    if table is None or cpu not in table.cpus:
        return Truth.UNKNOWN
    if features.names - table.system - table.of_cpu(cpu):
        return Truth.NO
    return Truth.YES if features.is_complete else Truth.UNKNOWN


def known_features(node: TargetNode) -> Features | None:
    """Return the features of a node, or None where those that are written contradict each other."""
    try:
        return node.features
    except TargetError:
        return None


def _truth(holds: bool) -> Truth:
    return Truth.YES if holds else Truth.NO


def _tables() -> list[FeatureTable]:
    return [table for family in families() if (table := table_of(family)) is not None]


def _tables_with(cpu: str) -> list[FeatureTable]:
    """Return the tables that have a CPU; many of Arm's run 64-bit code and 32-bit code."""
    return [table for table in _tables() if cpu in table.cpus]
