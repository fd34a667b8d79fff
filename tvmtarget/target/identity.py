"""What makes two trees the same: the identity JSON, and the digest over its RFC 8785 bytes.

Authored and normalised attributes of the resolved tree, every default omitted; a host only where it is not
the one the node would have anyway; executor and runtime of the root only where they are not graph and python.
Tags, origins, derived features and default keys are not in it. Keys are ASCII and numbers whole, so that
`json.dumps` with sorted keys writes the bytes of RFC 8785.
"""

from __future__ import annotations

import hashlib
import json

from tvmtarget.target.kinds import find_kind
from tvmtarget.target.nesting import Driver, NestedNode, drivers, join

__all__ = ["SCHEMA", "digest_of", "identity_of"]

SCHEMA = 1


def digest_of(root: NestedNode) -> str:
    """Return `tt1:` and the SHA-256 of the identity's canonical bytes, in lower-case hexadecimal."""
    data = json.dumps(identity_of(root), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"tt{SCHEMA}:{hashlib.sha256(data.encode()).hexdigest()}"


def identity_of(root: NestedNode) -> dict[str, object]:
    """Return the flat JSON that equality, hash and digest see; lists where order means something, else sorted."""
    return _identity(root, "", drivers(root))


def _identity(node: NestedNode, path: str, driven: dict[str, Driver]) -> dict[str, object]:
    kind = find_kind(node.kind)
    defaults = {row.name: row.default for row in kind.attributes} if kind else {}
    flat: dict[str, object] = {"kind": node.kind}
    if path:
        flat["name"] = node.slot
    for name, value in node.attrs.items():
        if value != () and defaults.get(name) != value:
            flat[name] = list(value) if isinstance(value, tuple) else value
    if node.keys is not None and node.keys != (kind.keys if kind else ()):
        flat["keys"] = list(node.keys)
    if node.count != 1:
        flat["count"] = node.count
    flat |= _host(node, path, driven[path])
    if node.targets:
        flat["targets"] = [_identity(child, join(path, child.slot), driven) for child in node.targets]
    if node.links:
        flat["links"] = [link.model_dump(mode="json", exclude_defaults=True) for link in node.links]
    if node.memory:
        flat["memory"] = [memory.model_dump(mode="json", exclude_defaults=True) for memory in node.memory]
    return flat | _configuration(node, is_root=not path)


def _host(node: NestedNode, path: str, driver: Driver) -> dict[str, object]:
    if node.host is None or (isinstance(node.host, str) and driver.effective == driver.default):
        return {}
    if isinstance(node.host, str):
        return {"host": f"@{driver.effective.removeprefix('@')}"}
    written = identity_of(node.host)
    is_stand_in = driver.default == join(path, "host") and written == {"kind": "llvm"}
    is_itself = driver.default == path and written == identity_of(node.replace(host=None))
    return {} if is_stand_in or is_itself else {"host": written}


def _configuration(node: NestedNode, *, is_root: bool) -> dict[str, object]:
    flat: dict[str, object] = {}
    if node.executor is not None and not (is_root and node.executor.kind == "graph" and not node.executor.attrs):
        flat["executor"] = node.executor.to_json()
    if node.runtime is not None and not (is_root and node.runtime.kind == "python" and not node.runtime.attrs):
        flat["runtime"] = node.runtime.to_json()
    return flat
