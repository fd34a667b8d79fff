"""Identity of target trees: the JSON that equality compares, and the digest of its RFC 8785 bytes.

The identity has the stated, normalised attributes of the resolved tree without defaults; a host only where it is not
the default one (a host that equals a node of the tree is that node, see `hosts.py`); and executor and runtime of the
root only where they are not graph and python. It has no tags, provenance, derived features, default keys, or name of
the root. Features, links and memories have no order, so they are sorted. Keys are ASCII and numbers are integers, so
that `json.dumps` with sorted keys writes the bytes of RFC 8785.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from tvmtarget.target.attributes import Attributes
from tvmtarget.target.executor_compatibility import default_runtime
from tvmtarget.target.hosts import share_equal_hosts
from tvmtarget.target.kinds import Kind, Role, find_kind
from tvmtarget.target.node import Executor, Link, Memory, Runtime
from tvmtarget.target.node_facts import computed_once
from tvmtarget.target.target_node import HostChoice, TargetNode, hosts_by_path
from tvmtarget.target.tree_paths import join
from tvmtarget.target.values import SCHEMA

__all__ = ["authored", "canonical", "digest_of", "facts", "identity_of"]

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@computed_once
def digest_of(root: TargetNode) -> str:
    """Return the digest of a tree.

    Args:
        root: the tree.

    Returns:
        `tt1:` and the SHA-256 of the canonical bytes of its identity, in lower-case hexadecimal; equal trees have equal
        digests.
    """
    return f"tt{SCHEMA}:{hashlib.sha256(canonical(identity_of(root)).encode()).hexdigest()}"


def identity_of(root: TargetNode) -> dict[str, object]:
    """Return the identity of a tree: what equality, hash and digest depend on.

    Args:
        root: the tree.

    Returns:
        Flat JSON; lists without an order of their own are sorted.
    """
    shared = share_equal_hosts(root, digest_of)
    # Most trees write no host, and then the hosts of the nodes do not matter.
    return _identity(shared, "", "", hosts_by_path(shared) if _states_host(shared) else None)


def _states_host(node: TargetNode) -> bool:
    below = (child.host is not None or (child.targets and _states_host(child)) for child in node.targets)
    return node.host is not None or any(below)


def canonical(data: object) -> str:
    """Return JSON in its canonical spelling (RFC 8785).

    Args:
        data: JSON whose keys are ASCII and whose numbers are integers.

    Returns:
        The text.
    """
    return _ENCODER.encode(data)


def _identity(node: TargetNode, path: str, name: str, hosts: Mapping[str, HostChoice] | None) -> dict[str, object]:
    kind = find_kind(node.kind)
    flat = authored(kind, node.attrs)
    flat["kind"] = node.kind
    if name:
        flat["name"] = name
    if node.own_keys is not None:
        device = [str(node.attrs["device"])] if node.attrs.get("device") else []
        default = dict.fromkeys([*device, *(kind.keys if kind is not None else ())])
        # Keys that state the default are omitted like any other default; those of a CPU's model do not count.
        if tuple(dict.fromkeys([*node.own_keys, *device])) != tuple(default):
            flat["keys"] = list(node.own_keys)
    if node.count != 1:
        flat["count"] = node.count
    if node.host is not None and hosts is not None:
        flat |= _host(node, path, hosts[path])
    if node.targets:
        # Paths are made only where hosts are looked up by them.
        flat["targets"] = [
            _identity(child, "" if hosts is None else join(path, child.slot), child.slot, hosts)
            for child in node.targets
        ]
    if node.links or node.memory:
        flat |= facts("links", node.links) | facts("memory", node.memory)
    if node.executor is not None or node.runtime is not None:
        defaults = {} if name else {"executor": "graph", "runtime": default_runtime(node.executor)}
        flat |= _configured(node.executor, "executor", defaults) | _configured(node.runtime, "runtime", defaults)
    return flat


def authored(kind: Kind | None, attrs: Attributes) -> dict[str, object]:
    """Leave out attributes that equal a default, and empty lists without one.

    Args:
        kind: the kind of the node, or None if no installed package registers it.
        attrs: the attributes of the node.

    Returns:
        JSON values by name.
    """
    defaults = kind.defaults if kind is not None else {}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in attrs.items()
        if value != defaults.get(name, ())
    }


def _host(node: TargetNode, path: str, choice: HostChoice) -> dict[str, object]:
    """Return the host where it is not the default; an llvm written on a leaf is the default anyway.

    On a composite it is not: work is placed on a host that is written, never on an implied one.
    """
    if isinstance(node.host, str):
        if choice.effective == choice.default:
            return {}
        return {"host": f"@{choice.effective.removeprefix('@')}"}
    assert node.host is not None  # the caller looked
    written = identity_of(node.host)
    is_default = written == {"kind": "llvm"} and not node.is_composite and choice.default == join(path, "host")
    return {} if is_default else {"host": written}


def facts(field: str, rows: Iterable[Link | Memory]) -> dict[str, object]:
    """Return links or memories as flat JSON without defaults, sorted.

    Args:
        field: `links` or `memory`.
        rows: their values.

    Returns:
        A mapping with that field, or an empty one if there are no rows.
    """
    spelled = [
        {name: sorted(value) if isinstance(value, list) else value for name, value in fact.to_json().items()}
        for fact in rows
    ]
    return {field: sorted(spelled, key=canonical)} if spelled else {}


def _configured(chosen: Executor | Runtime | None, role: Role, defaults: Mapping[str, str]) -> dict[str, object]:
    """Return an executor or runtime in flat JSON, unless it is the default of a root."""
    if chosen is None:
        return {}
    flat = {"kind": chosen.kind} | authored(find_kind(chosen.kind, role), chosen.attrs)
    return {} if flat == {"kind": defaults.get(role)} else {role: flat}
