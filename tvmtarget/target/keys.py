"""What of a target matters to whom: views of a tree by the classes of its attributes, and the keys made of them.

    codegen    what changes the code that is generated for a leaf
    kernel     what a tuned kernel depends on: the leaf alone, without its host, system or vendor's spelling
    graph      what the placement of a program depends on: the tree by the names of its children, with hosts and links
    executor   what the settings of an executor depend on: all of that, and executor and runtime

A key is the SHA-256 of a view's canonical JSON (the bytes of RFC 8785). Its prefix names the version of these rules;
whoever stores a key stores the view beside it, so that later rules can make a new key of it. Measured facts
(clocks, peaks, memories) are in no key of a leaf: a fact that is corrected orphans no log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tvmtarget.errors import TargetError, did_you_mean
from tvmtarget.target.cpu.chips import is_unchecked
from tvmtarget.target.cpu.isa import is_cpu, read_isa
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.hosts import share_equal_hosts
from tvmtarget.target.identity import authored, canonical, facts, identity_text
from tvmtarget.target.kinds import AttributeClass, find_kind
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.problems import shown
from tvmtarget.target.target_node import HostChoice, TargetNode, hosts_by_path
from tvmtarget.target.tree_paths import join

__all__ = ["LEVELS", "CodegenGroup", "View", "codegen_groups", "codegen_key", "key_of", "tuning_key", "view_of"]

View: TypeAlias = Literal["codegen", "kernel", "graph", "executor"]

LEVELS: tuple[View, ...] = ("kernel", "graph", "executor")

_SPEED: frozenset[AttributeClass] = frozenset({"hard", "isa", "capacity", "scale", "model"})

# Which classes of attributes a leaf shows in a view; attributes of kinds that nobody knows count as hard.
_CLASSES: Mapping[View, frozenset[AttributeClass]] = {
    "codegen": _SPEED | {"soft"},
    "kernel": _SPEED,
    "graph": _SPEED,
    "executor": _SPEED | {"soft"},
}

# Libraries are called by programs, not by kernels (tuning records of one kernel serve with and without them).
_LEFT_OUT: Mapping[View, frozenset[str]] = {"kernel": frozenset({"libs"})}


def codegen_key(node: TargetNode) -> str:
    """Return `cg1:` and a digest; leaves with equal keys get the same code for the same function."""
    return key_of("cg1", view_of(node, "codegen"))


def tuning_key(node: TargetNode, level: View = "kernel") -> str:
    """Return `t1:` and a digest, under which tuning records of a level are kept; `TargetError` for no such level."""
    if not (isinstance(level, str) and level in LEVELS):
        raise TargetError(f"unknown level {shown(level)}{did_you_mean(str(level), LEVELS, listing='there are')}")
    return key_of("t1", view_of(node, level))


def key_of(prefix: str, view: Mapping[str, object]) -> str:
    """Return a prefix and the first 16 bytes of the SHA-256 of a view, in lower-case hexadecimal."""
    return f"{prefix}:{hashlib.sha256(canonical(view).encode()).hexdigest()[:32]}"


def view_of(node: TargetNode, view: View) -> dict[str, object]:
    """Return what a view shows of a tree; a kernel runs on a leaf, so there is no such view of a system."""
    if view == "kernel" and node.is_composite:
        raise TargetError(
            f"a kernel runs on a leaf, and {node.slot!r} is a system; ask for level 'graph', or for a part"
        )
    node = share_equal_hosts(node, identity_text)
    return {"view": view} | _view(node, "", view, hosts_by_path(node))


@dataclass(frozen=True, slots=True)
class CodegenGroup:
    """Leaves for which one code serves: those of one sub-system (a node with a program of its own) and one key."""

    system: str
    codegen_key: str
    leaves: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the paths and the key."""
        return {"system": self.system, "codegen_key": self.codegen_key, "leaves": list(self.leaves)}


def codegen_groups(root: TargetNode) -> tuple[CodegenGroup, ...]:
    """Group the leaves of a tree by where code generation diverges: the sub-system first, then the key of the code."""
    found: dict[tuple[str, str], list[str]] = {}
    systems = {"": ""}
    for path, node in root.walk():
        above = path.rpartition("/")[0]
        is_system = node.executor is not None or node.runtime is not None
        systems[path] = path if is_system else systems[above]
        if not node.is_composite:
            found.setdefault((systems[path], codegen_key(node)), []).append(path)
    return tuple(CodegenGroup(system, key, tuple(leaves)) for (system, key), leaves in found.items())


def _view(node: TargetNode, path: str, view: View, driven: Mapping[str, HostChoice]) -> dict[str, object]:
    shown: dict[str, object] = {"kind": node.kind} | _attributes(node, view)
    if node.is_composite:
        children = [(child, _view(child, join(path, child.slot), view, driven)) for child in node.targets]
        shown["targets"] = _by_role(children)
        shown |= facts("links", node.links) | facts("memory", node.memory)
    if view in ("graph", "executor") or node.is_composite:
        shown |= _host(node, path, view, driven[path])
    if view == "executor" or (view == "codegen" and node.is_composite):
        shown |= _configured("executor", node.executor) | _configured("runtime", node.runtime)
    return shown


def _attributes(node: TargetNode, view: View) -> dict[str, object]:
    """Return the attributes of the view's classes, CPU and triple by what they mean."""
    kind = find_kind(node.kind)
    classes = {row.name: row.class_ for row in kind.attributes} if kind else {}
    left_out = _LEFT_OUT.get(view, frozenset())
    shown = {
        name: value
        for name, value in authored(kind, node.attrs).items()
        if classes.get(name, "hard") in _CLASSES[view] and name not in left_out
    }
    if is_cpu(node.kind):
        cpu, deltas = _instructions(node)
        shown = {name: value for name, value in shown.items() if name not in ("mcpu", "mattr")}
        shown |= ({"mcpu": cpu} if cpu else {}) | ({"mattr": deltas} if deltas else {})
        if "mtriple" in shown and not is_unchecked(node.attrs, "mtriple"):
            shown |= _machine(Triple.parse(str(shown.pop("mtriple"))), shown, view)
    if view == "codegen" and node.all_keys:
        shown["keys"] = sorted(node.all_keys)
    return shown


def _instructions(node: TargetNode) -> tuple[str, list[str]]:
    """Return the CPU, and the features that it or the architecture does not have anyway, signed and sorted."""
    written = read_isa(node.kind, node.attrs)
    model: frozenset[str] | None = written.model
    added = {f"+{name}" for name in written.added if model is None or name not in model}
    removed = {f"-{name}" for name in written.removed if model is None or name in model}
    return written.cpu, sorted({*added, *removed, *written.options, *written.unknown})


def _machine(triple: Triple, shown: Mapping[str, object], view: View) -> dict[str, object]:
    """Return what a triple says without its vendor; to a kernel, only the architecture and how floats are passed."""
    if view == "codegen":
        return {"mtriple": triple.key}
    abi = shown.get("mfloat-abi") or triple.float_abi
    return {"machine": triple.machine} | ({"mfloat-abi": abi} if abi else {})


def _by_role(children: Sequence[tuple[TargetNode, dict[str, object]]]) -> list[dict[str, object]]:
    """Put children in an order that does not depend on how they were listed: by name, else by what they are."""
    named = [{"name": child.name, **_counted(child), **shown} for child, shown in children if child.name is not None]
    unnamed = [{**_counted(child), **shown} for child, shown in children if child.name is None]
    return sorted(named, key=lambda shown: str(shown["name"])) + sorted(unnamed, key=canonical)


def _counted(child: TargetNode) -> dict[str, object]:
    return {"count": child.count} if child.count != 1 else {}


def _host(node: TargetNode, path: str, view: View, driver: HostChoice) -> dict[str, object]:
    """Return who drives a node: a node of the tree by its path, a host that is written by what it is."""
    if driver.is_implied or driver.effective == path:
        return {}
    if isinstance(node.host, TargetNode):
        return {"host": _view(node.host, "", view, hosts_by_path(node.host))}
    return {"host": f"@{driver.effective.removeprefix('@')}"}


def _configured(role: Literal["executor", "runtime"], chosen: Executor | Runtime | None) -> dict[str, object]:
    if chosen is None:
        return {}
    return {role: {"kind": chosen.kind} | authored(find_kind(chosen.kind, role), chosen.attrs)}
