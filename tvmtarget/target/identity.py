"""What makes two trees the same: the identity JSON, and the digest over its RFC 8785 bytes.

Authored and normalised attributes of the resolved tree, every default omitted; a host only where it is not
the one the node would have anyway (a host that equals a node of the tree is that node, see `hosts.py`);
executor and runtime of the root only where they are not graph and python.
Tags, origins, derived features, default keys and the root's own name are not in it; what has no order of its
own (features, links, memories) is sorted. Keys are ASCII and numbers whole, so that `json.dumps` with sorted
keys writes the bytes of RFC 8785.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from tvmtarget.target.attributes import Value
from tvmtarget.target.executor_compatibility import default_runtime
from tvmtarget.target.hosts import share_equal_hosts
from tvmtarget.target.kinds import Kind, Role, find_kind
from tvmtarget.target.node import Executor, Link, Memory, Runtime
from tvmtarget.target.target_node import HostChoice, TargetNode, hosts_by_path
from tvmtarget.target.tree_paths import join

__all__ = ["SCHEMA", "authored", "canonical", "digest_of", "facts", "identity_of", "identity_text"]

SCHEMA = 1

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(root: TargetNode) -> str:
    """Return `tt1:` and the SHA-256 of the identity's canonical bytes, in lower-case hexadecimal."""
    return f"tt{SCHEMA}:{hashlib.sha256(identity_text(root).encode()).hexdigest()}"


def identity_text(root: TargetNode) -> str:
    """Return the identity in the one spelling that RFC 8785 has for it."""
    return canonical(identity_of(root))


def identity_of(root: TargetNode) -> dict[str, object]:
    """Return the flat JSON that equality, hash and digest see; lists where order means something, else sorted."""
    shared = share_equal_hosts(root, identity_text)
    return _identity(shared, "", hosts_by_path(shared))


def canonical(data: object) -> str:
    """Return JSON in the one spelling that RFC 8785 has for it; keys are ASCII, numbers whole."""
    return _ENCODER.encode(data)


def _identity(node: TargetNode, path: str, driven: dict[str, HostChoice]) -> dict[str, object]:
    kind = find_kind(node.kind)
    flat: dict[str, object] = {"kind": node.kind}
    if path:
        flat["name"] = node.slot
    flat |= authored(kind, node.attrs)
    if node.keys is not None and node.written_keys != node.replace(keys=None).written_keys:
        flat["keys"] = list(node.keys)
    if node.count != 1:
        flat["count"] = node.count
    flat |= _host(node, path, driven[path])
    if node.targets:
        flat["targets"] = [_identity(child, join(path, child.slot), driven) for child in node.targets]
    flat |= facts("links", node.links) | facts("memory", node.memory)
    usual = {} if path else {"executor": "graph", "runtime": default_runtime(node.executor)}
    return flat | _configured(node.executor, "executor", usual) | _configured(node.runtime, "runtime", usual)


def authored(kind: Kind | None, attrs: Mapping[str, Value]) -> dict[str, object]:
    """Leave out what says no more than the kind does: its defaults, and empty lists where it has none."""
    defaults = {row.name: row.default if row.default is not None else () for row in kind.attributes} if kind else {}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in attrs.items()
        if defaults.get(name, ()) != value
    }


def _host(node: TargetNode, path: str, driver: HostChoice) -> dict[str, object]:
    """Return the host where it changes something; an llvm written on a leaf is the one that stands in anyway.

    On a system it is not: work is given to a host that is written, and not to one that only stands in.
    """
    if node.host is None or (isinstance(node.host, str) and driver.effective == driver.default):
        return {}
    if isinstance(node.host, str):
        return {"host": f"@{driver.effective.removeprefix('@')}"}
    written = identity_of(node.host)
    stands_in_anyway = driver.default == join(path, "host") and not node.is_composite and written == {"kind": "llvm"}
    return {} if stands_in_anyway else {"host": written}


def facts(field: str, rows: Iterable[Link | Memory]) -> dict[str, object]:
    """Spell links or memories: each without its defaults, those and what shares a memory sorted."""
    spelled = [
        {name: sorted(value) if isinstance(value, list) else value for name, value in fact.to_json().items()}
        for fact in rows
    ]
    return {field: sorted(spelled, key=canonical)} if spelled else {}


def _configured(chosen: Executor | Runtime | None, role: Role, usual: Mapping[str, str]) -> dict[str, object]:
    """Spell an executor or runtime, unless it is what a root has anyway."""
    if chosen is None:
        return {}
    flat = {"kind": chosen.kind} | authored(find_kind(chosen.kind, role), chosen.attrs)
    return {} if flat == {"kind": usual.get(role)} else {role: flat}
