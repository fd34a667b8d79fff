"""Reader of files of TVM's `save_json`: a graph of numbered nodes, of which only the target is decoded.

There are two forms (src/node/serialization.cc at v0.6.0 to v0.21.0; the FFI's own since v0.22). Until v0.21 a node is
`{"type_key", "attrs", "keys", "data", "repr_str"}` with all attributes as texts, since then `{"type", "data"}`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence

from tvmtarget.errors import TargetError
from tvmtarget.human_units import counted
from tvmtarget.target.problems import shown
from tvmtarget.target.text.words import MAX_DEPTH
from tvmtarget.target.tvm import command_line

__all__ = ["main_target"]

_FIELDS = ("tag", "keys", "host")
_MAX_NESTED = 3 * MAX_DEPTH  # a composite, its attributes and their list for each level of a tree


def main_target(saved: Mapping[str, object]) -> dict[str, object]:
    """Return the only target of a saved graph that is not a part of another target.

    Args:
        saved: the decoded JSON of the file.

    Returns:
        The configuration of the target.

    Raises:
        TargetError: there is no such target, or several different ones, or nodes are damaged.
    """
    nodes = saved.get("nodes")
    if not isinstance(nodes, Sequence) or not all(isinstance(node, Mapping) for node in nodes):
        raise TargetError(f"the nodes of a file of TVM are a list of objects, not {shown(nodes)}")
    graph = _Graph(nodes, is_new="root_index" in saved)
    root = saved.get("root_index", saved.get("root"))
    # The saved value is the target itself; otherwise a module or a task contains it.
    if isinstance(root, int) and graph.is_target(root):
        return graph.target(root)
    targets = {at: graph.target(at) for at in range(len(nodes)) if graph.is_target(at)}
    inner = [part for target in targets.values() for part in _parts(target)]
    found: list[dict[str, object]] = []
    for target in targets.values():
        if target not in found and target not in inner:
            found.append(target)
    if len(found) != 1:
        listed = ", ".join(str(target["kind"]) for target in found) or "none"
        raise TargetError(f"a file of TVM is read for its one target, and this one has: {listed}")
    return found[0]


def _parts(target: Mapping[str, object]) -> Iterator[object]:
    devices = target.get("devices")
    yield from [target.get("host"), target.get("target_host"), *(devices if isinstance(devices, list) else ())]


class _Graph:
    """Decodes nodes by their numbers; rejects a node that contains itself."""

    def __init__(self, nodes: Sequence[Mapping[str, object]], *, is_new: bool) -> None:
        self._nodes = nodes
        self._type = "type" if is_new else "type_key"
        self._open: set[int] = set()

    def is_target(self, at: int) -> bool:
        return 0 <= at < len(self._nodes) and self._type_of(at) == "Target"

    def target(self, at: int) -> dict[str, object]:
        found = self.value(at)
        if not isinstance(found, dict):
            raise TargetError(f"node {at} of a file of TVM is a target, but {shown(found)} stands there")
        return found

    def value(self, at: object) -> object:
        """Decode a node; None for a type that targets do not contain."""
        number = _number(at)
        if not 0 <= number < len(self._nodes):
            raise TargetError(f"a file of TVM has {len(self._nodes)} nodes, and no node {number}")
        if number in self._open:
            raise TargetError(f"node {number} of a file of TVM is a part of itself")
        # The recursion is bounded, as files can come from anyone.
        if len(self._open) > _MAX_NESTED:
            raise TargetError(f"node {number} of a file of TVM is nested deeper than {_MAX_NESTED} nodes")
        read = _READERS.get(self._type_of(number))
        if read is None:
            return None
        self._open.add(number)
        try:
            return read(self, self._nodes[number])
        finally:
            self._open.remove(number)

    def _type_of(self, at: int) -> str:
        return str(self._nodes[at].get(self._type, "")).rpartition(".")[2]


def _number(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise TargetError(f"a file of TVM counts its nodes, and {shown(value)} is no number")


def _attrs(node: Mapping[str, object]) -> Mapping[str, object]:
    """Return the fields of an object, in either form."""
    fields = node.get("attrs", node.get("data"))
    return fields if isinstance(fields, Mapping) else {}


def _items(node: Mapping[str, object]) -> Sequence[object]:
    items = node.get("data", ())
    return items if isinstance(items, Sequence) and not isinstance(items, str) else ()


def _text(_: _Graph, node: Mapping[str, object]) -> str:
    """Decode a text: plain in the new form; in the old one printable, or in base64 after its length, or missing."""
    if "repr_b64" in node:
        try:
            # dmlc's serializer writes the length in 8 bytes before the text.
            return base64.b64decode(str(node["repr_b64"]), validate=True)[8:].decode()
        except (binascii.Error, ValueError) as error:
            raise TargetError(f"{shown(node['repr_b64'])} is no text in base64") from error
    value = node.get("repr_str", node.get("data", _attrs(node).get("value", "")))
    return str(value)


def _integer(_: _Graph, node: Mapping[str, object]) -> object:
    """Return a number as it is written; the reader of the attribute checks it."""
    fields = _attrs(node)
    return fields.get("value", fields.get("v_int64", node.get("repr_str", node.get("data"))))


def _kind(graph: _Graph, node: Mapping[str, object]) -> object:
    """Decode a kind: its name, or until v0.19 an object with a name."""
    return graph.value(_attrs(node)["name"]) if "name" in _attrs(node) else _text(graph, node)


def _list(graph: _Graph, node: Mapping[str, object]) -> object:
    return [graph.value(item) for item in _items(node)]


def _map(graph: _Graph, node: Mapping[str, object]) -> object:
    """Decode a map, whose keys are in a list of their own or precede the values."""
    items, keys = _items(node), node.get("keys")
    names: Sequence[object] = [graph.value(key) for key in items[::2]]
    values = items[1::2]
    if isinstance(keys, Sequence) and not isinstance(keys, str):
        names, values = keys, items
    if len(names) != len(values):
        problem = f"{counted(len(names), 'key')} and {counted(len(values), 'value')}"
        raise TargetError(f"a map in a file of TVM has {problem}")
    return {str(name): graph.value(item) for name, item in zip(names, values, strict=True)}


def _target(graph: _Graph, node: Mapping[str, object]) -> object:
    fields = _attrs(node)
    if "target_name" in fields:  # v0.6
        options = graph.value(fields["options_array"]) if "options_array" in fields else None
        words = [str(option) for option in options] if isinstance(options, list) else []
        return command_line.read(" ".join([str(fields["target_name"]), *words]))
    config = {"kind": graph.value(fields.get("kind"))}
    config |= {name: graph.value(fields[name]) for name in _FIELDS if fields.get(name) not in (None, "null")}
    attrs = graph.value(fields.get("attrs"))
    return config | (attrs if isinstance(attrs, dict) else {})


_READERS: dict[str, Callable[[_Graph, Mapping[str, object]], object]] = {
    "Target": _target,
    "TargetKind": _kind,
    "Array": _list,
    "Map": _map,
    "StrMap": _map,
    "String": _text,
    "StringImm": _text,
    "str": _text,
    "IntImm": _integer,
    "BoxInt": _integer,
    "BoxBool": _integer,
    "int": _integer,
    "bool": _integer,
}
