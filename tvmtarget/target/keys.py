"""Views and keys of target trees: which attributes matter for code, for tuning and for placement.

    codegen    what changes the code that is generated for a leaf
    kernel     what a tuned kernel depends on: the leaf alone, without host, siblings and vendor spellings
    graph      what the placement of a program depends on: the tree by the names of its children, with hosts and links
    executor   what the settings of an executor depend on: the graph view, and executor and runtime

A key is the SHA-256 of the canonical JSON (RFC 8785) of a view. Its prefix is the version of these rules. A tuning log
stores the view beside the key, so that later rules can derive a new key from it. Measured facts (clocks, peaks,
memories) are in no key of a leaf, so that correcting one does not invalidate a log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tvmtarget.errors import TargetError
from tvmtarget.target.cpu.chips import is_unchecked
from tvmtarget.target.cpu.isa import is_cpu, read_isa
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.hosts import share_equal_hosts
from tvmtarget.target.identity import authored, canonical, digest_of, facts
from tvmtarget.target.kinds import AttributeClass, find_kind
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.problems import known_word
from tvmtarget.target.target_node import HostChoice, TargetNode, hosts_by_path
from tvmtarget.target.tree_paths import join

__all__ = ["LEVELS", "CodegenGroup", "View", "codegen_groups", "codegen_key", "key_of", "tuning_key", "view_of"]

View: TypeAlias = Literal["codegen", "kernel", "graph", "executor"]

LEVELS: tuple[View, ...] = ("kernel", "graph", "executor")

_SPEED: frozenset[AttributeClass] = frozenset({"hard", "isa", "capacity", "scale", "model"})

# The classes of attributes in the views of a leaf; attributes of unregistered kinds count as hard.
_CLASSES: Mapping[View, frozenset[AttributeClass]] = {
    "codegen": _SPEED | {"soft"},
    "kernel": _SPEED,
    "graph": _SPEED,
    "executor": _SPEED | {"soft"},
}

# Libraries are called by programs, not by kernels (tuning records of one kernel serve with and without them).
_LEFT_OUT: Mapping[View, frozenset[str]] = {"kernel": frozenset({"libs"})}


def codegen_key(node: TargetNode) -> str:
    """Return the key of the code that is generated for a node.

    Args:
        node: a leaf or a composite.

    Returns:
        `cg1:` and a digest; leaves with equal keys get the same code for the same function.
    """
    return key_of("cg1", view_of(node, "codegen"))


def tuning_key(node: TargetNode, level: View = "kernel") -> str:
    """Return the key under which tuning records are stored.

    Args:
        node: a leaf or a composite.
        level: kernel, graph or executor.

    Returns:
        `t1:` and a digest.

    Raises:
        TargetError: there is no such level, or a composite has no kernel view.
    """
    return key_of("t1", view_of(node, known_word("level", level, LEVELS)))


def key_of(prefix: str, view: Mapping[str, object]) -> str:
    """Return a key of a view.

    Args:
        prefix: version of the rules that made the view.
        view: flat JSON.

    Returns:
        The prefix, a colon, and the first 16 bytes of the SHA-256 of the view, in lower-case hexadecimal.
    """
    return f"{prefix}:{hashlib.sha256(canonical(view).encode()).hexdigest()[:32]}"


def view_of(node: TargetNode, view: View) -> dict[str, object]:
    """Return a view of a tree.

    Args:
        node: a leaf or a composite.
        view: codegen, kernel, graph or executor.

    Returns:
        Flat JSON.

    Raises:
        TargetError: there is no such view, or a composite has no kernel view, because a kernel runs on a leaf.
    """
    if known_word("view", view, _CLASSES) == "kernel" and node.is_composite:
        raise TargetError(f"a kernel runs on a leaf, and {node.slot!r} is a system; use level 'graph', or a part")
    node = share_equal_hosts(node, digest_of)
    return {"view": view} | _view(node, "", view, hosts_by_path(node))


@dataclass(frozen=True, slots=True)
class CodegenGroup:
    """Leaves that can share code: those of one codegen key in one sub-system.

    A sub-system is a node with an executor or runtime of its own, and so with a program of its own.
    """

    system: str
    codegen_key: str
    leaves: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the paths and the key."""
        return {"system": self.system, "codegen_key": self.codegen_key, "leaves": list(self.leaves)}


def codegen_groups(root: TargetNode) -> tuple[CodegenGroup, ...]:
    """Group the leaves of a tree by sub-system and codegen key.

    Args:
        root: the tree.

    Returns:
        The groups, in the order of their first leaves.
    """
    found: dict[tuple[str, str], list[str]] = {}
    systems = {"": ""}
    for path, node in root.walk():
        above = path.rpartition("/")[0]
        # Such a node is compiled to a program of its own, with its own interfaces.
        is_system = node.executor is not None or node.runtime is not None
        systems[path] = path if is_system else systems[above]
        if not node.is_composite:
            found.setdefault((systems[path], codegen_key(node)), []).append(path)
    return tuple(CodegenGroup(system, key, tuple(leaves)) for (system, key), leaves in found.items())


def _view(node: TargetNode, path: str, view: View, hosts: Mapping[str, HostChoice]) -> dict[str, object]:
    shown: dict[str, object] = {"kind": node.kind} | _attributes(node, view)
    if node.is_composite:
        children = [(child, _view(child, join(path, child.slot), view, hosts)) for child in node.targets]
        shown["targets"] = _by_role(children)
        shown |= facts("links", node.links) | facts("memory", node.memory)
    if view in ("graph", "executor") or node.is_composite:
        shown |= _host(node, path, view, hosts[path])
    if view == "executor" or (view == "codegen" and node.is_composite):
        shown |= _configured("executor", node.executor) | _configured("runtime", node.runtime)
    return shown


def _attributes(node: TargetNode, view: View) -> dict[str, object]:
    """Return the attributes of the view's classes, CPU and triple by their meaning."""
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
        # Aliases of a CPU get one key, and features that the CPU has anyway are left out.
        shown = {name: value for name, value in shown.items() if name not in ("mcpu", "mattr")}
        shown |= ({"mcpu": cpu} if cpu else {}) | ({"mattr": deltas} if deltas else {})
        if "mtriple" in shown and not is_unchecked(node.attrs, "mtriple"):
            shown |= _machine(Triple.parse(str(shown.pop("mtriple"))), shown, view)
    if view == "codegen" and node.keys:
        shown["keys"] = sorted(node.keys)
    return shown


def _instructions(node: TargetNode) -> tuple[str, list[str]]:
    """Return the CPU, and the features that differ from those of the CPU or architecture, signed and sorted."""
    written = read_isa(node.kind, node.attrs)
    model: frozenset[str] | None = written.model
    added = {f"+{name}" for name in written.added if model is None or name not in model}
    removed = {f"-{name}" for name in written.removed if model is None or name in model}
    return written.cpu, sorted({*added, *removed, *written.options, *written.unknown})


def _machine(triple: Triple, shown: Mapping[str, object], view: View) -> dict[str, object]:
    """Return a triple without its vendor; for a kernel, only the architecture and how floats are passed."""
    if view == "codegen":
        return {"mtriple": triple.key}
    abi = shown.get("mfloat-abi") or triple.float_abi
    return {"machine": triple.machine} | ({"mfloat-abi": abi} if abi else {})


def _by_role(children: Sequence[tuple[TargetNode, dict[str, object]]]) -> list[dict[str, object]]:
    """Order children independently of how they were listed: by name, else by their view."""
    named = [{"name": child.name, **_counted(child), **shown} for child, shown in children if child.name is not None]
    unnamed = [{**_counted(child), **shown} for child, shown in children if child.name is None]
    return sorted(named, key=lambda shown: str(shown["name"])) + sorted(unnamed, key=canonical)


def _counted(child: TargetNode) -> dict[str, object]:
    return {"count": child.count} if child.count != 1 else {}


def _host(node: TargetNode, path: str, view: View, choice: HostChoice) -> dict[str, object]:
    """Return the host of a node: a node of the tree by its path, a written host by its view."""
    if choice.is_implied or choice.effective == path:
        return {}
    if isinstance(node.host, TargetNode):
        return {"host": _view(node.host, "", view, hosts_by_path(node.host))}
    return {"host": f"@{choice.effective.removeprefix('@')}"}


def _configured(role: Literal["executor", "runtime"], chosen: Executor | Runtime | None) -> dict[str, object]:
    if chosen is None:
        return {}
    return {role: {"kind": chosen.kind} | authored(find_kind(chosen.kind, role), chosen.attrs)}
