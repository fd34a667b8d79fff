"""What constraints on CPUs and features mean: a node's closed features decide, not what its CPU is called.

`mcpu>=skylake-avx512` is met by any CPU of the family that has all features code for that one may take for granted,
those left out that hypervisors hide; `+avx2` by any node that is known to have it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from tvmtarget.errors import TargetError
from tvmtarget.target.constraints.comparing import Operator
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.cpu.features import FeatureTable, families, table_of
from tvmtarget.target.cpu.isa import Features
from tvmtarget.target.nesting import NestedNode

__all__ = [
    "all_needed",
    "check_cpu",
    "check_feature",
    "cpu_names",
    "is_cpu",
    "is_cpu_kind",
    "is_reduced",
    "known_features",
    "level",
    "needed",
    "runs_all_of",
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


def runs_all_of(cpu: str, other: str) -> bool:
    """Whether a CPU runs code for another in every family that it is in."""
    tables = _tables_with(cpu)
    return bool(tables) and all(other in table.cpus and table.level(other) <= table.level(cpu) for table in tables)


def is_reduced(node: NestedNode) -> bool:
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


def check_feature(node: NestedNode, name: str) -> tuple[Truth, str]:
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
    if has is None and name in all_needed(feature for feature, sign in signs.items() if sign == "+"):
        has = True
    if has is None or (not has and not any(name in table.implies for table in _tables())):
        return Truth.UNKNOWN, "the target does not say"
    source = next((f"{key} {node.attrs[key]}" for key in ("mcpu", "mtriple", "march") if key in node.attrs), "mattr")
    return _truth(has), f"{source} {'has' if has else 'lacks'} it"


def check_cpu(node: NestedNode, operator: Operator, cpu: str) -> tuple[Truth, str]:
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
    covers = Truth.UNKNOWN if (answer := features.covers(cpu)) is None else _truth(answer)
    missing = sorted(level(cpu) - features.names) if covers is Truth.NO else []
    if missing:
        said += f", without {', '.join(missing[:4])}" + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
    if operator == "ge":
        return covers, said
    within = _is_within(features, cpu)
    turned = Truth(Truth.YES - covers), Truth(Truth.YES - within)
    answers = {"le": within, "gt": min(covers, turned[1]), "lt": min(within, turned[0])}
    return answers.get(operator, Truth.UNKNOWN), said


def _is_within(features: Features, cpu: str) -> Truth:
    """Say whether a node has nothing that a CPU has not."""
    table = table_of(features.family)
    if table is None or cpu not in table.cpus:
        return Truth.UNKNOWN
    if features.names - table.system - table.of_cpu(cpu):
        return Truth.NO
    return Truth.YES if features.is_complete else Truth.UNKNOWN


def known_features(node: NestedNode) -> Features | None:
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
