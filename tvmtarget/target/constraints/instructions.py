"""Check constraints on CPUs and instruction set features against the closed feature set of a node.

`mcpu>=skylake-avx512` is met by any CPU of the family with all features that code for that CPU may use, except those
that hypervisors hide; `+avx2` by any node that is known to have it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache, lru_cache

from tvmtarget.errors import TargetError
from tvmtarget.target.constraints.attribute_comparison import Operator
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.cpu.features import FeatureTable, families, table_of
from tvmtarget.target.cpu.isa import Features, vector_bits
from tvmtarget.target.detection.processors import explicit_features
from tvmtarget.target.target_node import TargetNode

__all__ = [
    "all_implied_features",
    "check_cpu",
    "check_feature",
    "check_vector_width",
    "cpu_names",
    "implied_features",
    "is_known_cpu",
    "is_reduced",
    "known_features",
    "level_features",
    "missing_features",
    "unused_features",
]


def is_known_cpu(name: str) -> bool:
    """Whether a feature table contains a CPU.

    Args:
        name: The name of a CPU as LLVM spells it.

    Returns:
        True if its features are known; False for `generic`.
    """
    return name in cpu_names()


@cache
def cpu_names() -> frozenset[str]:
    """Collect the CPUs of all feature tables.

    Returns:
        Their names, without `generic`.
    """
    return frozenset().union(*(table.cpus for table in _tables())) - {"generic"}


def level_features(cpu: str) -> frozenset[str]:
    """Return the features that code for a CPU may use.

    Args:
        cpu: The name of a CPU.

    Returns:
        The features common to all families with that CPU; empty for an unknown CPU.
    """
    levels = [table.level(cpu) for table in _tables_with(cpu)]
    return frozenset.intersection(*levels) if levels else frozenset()


def is_reduced(node: TargetNode) -> bool:
    """Whether a node has fewer features than the name of its CPU implies.

    Args:
        node: A node of a CPU kind.

    Returns:
        True if `mattr` removes a feature, or `mcpu` has a modifier (`cortex-m55+nomve`).
    """
    mattr = node.attrs.get("mattr")
    has_removals = isinstance(mattr, tuple) and any(str(item).startswith("-") for item in mattr)
    return has_removals or "+" in str(node.attrs.get("mcpu", ""))


@cache
def implied_features(feature: str) -> frozenset[str]:
    """Return the features that a feature implies in every family that has it.

    Args:
        feature: The name of a feature.

    Returns:
        The closure, with the feature itself.
    """
    closures = [table.closure([feature]) for table in _tables() if feature in table.implies]
    return frozenset({feature}).union(frozenset.intersection(*closures)) if closures else frozenset({feature})


def all_implied_features(features: Iterable[str]) -> frozenset[str]:
    """Return the features that several features imply.

    Args:
        features: Names of features.

    Returns:
        The union of their closures (`implied_features`).
    """
    return frozenset().union(*map(implied_features, features))


# The cryptography extension is optional in Arm's cores: LLVM assumes it for Cortex-A72, the Raspberry Pi 4 lacks it.
# Compilers do not emit these instructions by themselves, so only code that names the features needs them.
_CRYPTOGRAPHY = frozenset({"aes", "sha2"})


def missing_features(
    have: Features, names: Iterable[str], family: str, *, named: Collection[str] = (), measured: bool
) -> tuple[list[str], list[str]]:
    """Find the features that code uses and that a device lacks.

    Args:
        have: The features of a node or a machine.
        names: The features that the code may use, closed under implication.
        family: The family of the feature table that contains them.
        named: The features that the target names explicitly; these are always needed.
        measured: Whether `have` was measured. Features that no code generator uses by itself are then ignored, and an
            architecture version is compared by its parts.

    Returns:
        The absent features and the features of unknown presence, each sorted.
    """
    answers = [(name, have.has(name)) for name in _needed(frozenset(names), family, frozenset(named), measured)]
    return [name for name, has in answers if has is False], [name for name, has in answers if has is None]


@lru_cache(maxsize=1024)  # a required device is compared with many others
def _needed(names: frozenset[str], family: str, named: frozenset[str], measured: bool) -> tuple[str, ...]:
    """Return the features that a device needs to run code that may use some, sorted."""
    table = table_of(family)
    ignored = unused_features(family, measured=measured)
    used = {name for name in names if name in named or name not in ignored}
    if measured and table is not None:
        used = {name for name in used if not _is_composed(table, name)}
    return tuple(sorted(used))


@cache
def unused_features(family: str, *, measured: bool) -> frozenset[str]:
    """Return the features that a CPU implies and that compiled code does not use by itself.

    Args:
        family: The family of a feature table.
        measured: Whether features that detection cannot see are included.

    Returns:
        The system features of the table; with `measured` also the cryptography extension of Arm and the features
        that hypervisors hide.
    """
    table = table_of(family)
    if table is None:
        return frozenset()
    cryptography = _CRYPTOGRAPHY if family in ("arm", "aarch64") else frozenset()
    return table.system | (explicit_features() | cryptography if measured else frozenset())


def _is_composed(table: FeatureTable, name: str) -> bool:
    """Whether a feature is an architecture level with features beyond those of older levels."""
    return table.is_level(name) and any(not table.is_level(part) for part in table.closure([name]))


def check_feature(node: TargetNode, name: str, *, measured: bool = False) -> tuple[Truth, str]:
    """Decide whether a node has a feature.

    Args:
        node: A node of a CPU kind.
        name: The feature.
        measured: Whether the node was measured.

    Returns:
        The answer, and the attribute that decides it.
    """
    mattr = node.attrs.get("mattr")
    signs = {str(item)[1:]: str(item)[0] for item in mattr} if isinstance(mattr, tuple) else {}
    features = known_features(node)
    if name in signs:
        # `+v9a,-sve2` names a level of which a part was removed, so the level itself is absent.
        is_complete = features is None or name not in features.absent
        finding = f"it is {signs[name]}{name}"
        if signs[name] == "+" and not is_complete:
            finding += " without all of it"
        return Truth.of(signs[name] == "+" and is_complete), finding
    if features is None:
        return Truth.UNKNOWN, "its features contradict each other"
    has = features.has(name)
    if has is False and measured and (table := table_of(features.family)) and _is_composed(table, name):
        lacking, unknown = missing_features(features, table.closure([name]), table.family, measured=True)
        has = False if lacking else None if unknown else True
    # Added features imply others also where the family, and with it the table, is unknown.
    if has is None and name in all_implied_features(feature for feature, sign in signs.items() if sign == "+"):
        has = True
    if has is None or (not has and not any(name in table.implies for table in _tables())):
        return Truth.UNKNOWN, "the target does not state it"
    source = next((f"{key} {node.attrs[key]}" for key in ("mcpu", "mtriple", "march") if key in node.attrs), "mattr")
    return Truth.of(has), f"{source} {'has' if has else 'lacks'} it"


def check_cpu(node: TargetNode, operator: Operator, cpu: str, *, measured: bool = False) -> tuple[Truth, str]:
    """Compare the features of a node with those of a CPU.

    Args:
        node: A node of a CPU kind.
        operator: `ge` (all features of the CPU), `le` (no others), `gt` or `lt`.
        cpu: The name of a CPU.
        measured: Whether the node was measured.

    Returns:
        The answer, and what the node states.
    """
    features, own = known_features(node), node.attrs.get("mcpu")
    finding = f"it is {own}" if own is not None else "the target does not state it"
    if features is None:
        return Truth.UNKNOWN, "its features contradict each other"
    # A CPU has its own features also where no table lists them.
    if (
        operator in ("ge", "le")
        and own == cpu
        and not is_reduced(node)
        and (operator == "ge" or "mattr" not in node.attrs)
    ):
        return Truth.YES, finding
    if features.family and features.family not in {table.family for table in _tables_with(cpu)}:
        return Truth.NO, f"{finding}, of {features.family}"
    covers, lacking = _covers(features, cpu, measured=measured)
    if lacking:
        finding += f", without {', '.join(lacking[:4])}" + (f" and {len(lacking) - 4} more" if len(lacking) > 4 else "")
    if operator == "ge":
        return covers, finding
    within = _is_within(features, cpu)
    # "Greater" is "at least, and not at most": strict inclusion of feature sets.
    answers = {"le": within, "gt": min(covers, within.negated), "lt": min(within, covers.negated)}
    return answers.get(operator, Truth.UNKNOWN), finding


def _covers(features: Features, cpu: str, *, measured: bool) -> tuple[Truth, list[str]]:
    """Decide whether features include all that code for a CPU may use, and list the missing ones."""
    table = table_of(features.family)
    if table is None or cpu not in table.cpus:
        answer = features.covers(cpu)
        return Truth.of(answer), []
    lacking, unknown = missing_features(features, table.level(cpu), table.family, measured=measured)
    return (Truth.NO if lacking else Truth.UNKNOWN if unknown else Truth.YES), lacking


def check_vector_width(node: TargetNode, bits: int) -> tuple[Truth, str]:
    """Decide whether a node has vectors of a width.

    Args:
        node: A node of a CPU kind.
        bits: The required width in bits.

    Returns:
        The answer by the stated `vector-width`, else by the instruction set, and what the node states.
    """
    stated, features = node.attrs.get("vector-width"), known_features(node)
    if isinstance(stated, int):
        return Truth.of(stated >= bits), f"it is {stated}"
    width = vector_bits(features.names) if features is not None else 0
    if width >= bits:
        return Truth.YES, f"it is {width}"
    if features is None or not features.is_complete or not width or features.names & _SCALABLE:
        return Truth.UNKNOWN, "the target does not state it"
    return Truth.NO, f"it is {width}"


# Instruction sets with scalable vectors, which do not determine the width.
_SCALABLE = frozenset({"sve", "sme", "zve32x"})


def _is_within(features: Features, cpu: str) -> Truth:
    """Decide whether features are a subset of those of a CPU."""
    table = table_of(features.family)
    if table is None or cpu not in table.cpus:
        return Truth.UNKNOWN
    if features.names - table.system - table.of_cpu(cpu):
        return Truth.NO
    return Truth.YES if features.is_complete else Truth.UNKNOWN


def known_features(node: TargetNode) -> Features | None:
    """Compute the features of a node.

    Args:
        node: Any node.

    Returns:
        Its features, or None if the stated ones contradict each other.
    """
    try:
        return node.features
    except TargetError:
        return None


def _tables() -> list[FeatureTable]:
    return [table for family in families() if (table := table_of(family)) is not None]


def _tables_with(cpu: str) -> list[FeatureTable]:
    """Return the tables that contain a CPU; many of Arm's cores are in both the 64-bit and the 32-bit table."""
    return [table for table in _tables() if cpu in table.cpus]
