"""Index of the trees of the shipped tags, from which constraints are checked without building every tree.

Most tags have the devices of others: 4,000 tags are 2,000 different trees of 1,500 different devices. A constraint that
depends on a single node is checked once for each different node. Of other constraints the parts that depend on a single
node are checked first, and the whole constraint only on trees that have nodes for all parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.constraints.node_context import NodeContext, walk_contexts
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.constraints.satisfaction import is_for_leaves, meets, satisfies
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.tree import Target

__all__ = ["TreeIndex", "write_index"]

# Conditions on these depend on what surrounds a device, such as the memories of the system.
_OF_A_SYSTEM = frozenset({"count", "memory"})


class TreeIndex:
    """The different devices, nodes and trees of tags.

    A device is the kind, the attributes and the keys of a node. A node is a device with its count, the sizes of the
    memories that it can use, and whether it is a leaf. A tree has the numbers of its nodes.
    """

    def __init__(self, file: Path) -> None:
        """Read an index.

        Args:
            file: The file that `write_index` wrote.
        """
        data: dict[str, Any] = json.loads(file.read_bytes())
        self._tree_of: dict[str, int] = data["tags"]
        self._devices: list[dict[str, object]] = data["devices"]
        self._nodes: list[tuple[int, int, list[int | None], bool]] = data["nodes"]
        self._trees: list[tuple[list[int], str]] = data["trees"]
        self._built_devices: dict[int, Target] = {}
        self._built_nodes: dict[int, Target] = {}
        self._built_trees: dict[int, Target] = {}

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the tags whose trees are indexed."""
        return frozenset(self._tree_of)

    def checker(self, constraint: Constraint) -> Callable[[str], Truth]:
        """Return a function that checks tags.

        Args:
            constraint: The constraint.

        Returns:
            A function from the name of an indexed tag to the truth of `satisfies` for its tree.
        """
        check = _is_of_one_node(constraint)
        bound = _Bound(self, constraint, leaves_only=check and is_for_leaves(constraint))
        answers: dict[int, Truth] = {}

        def truth(name: str) -> Truth:
            number = self._tree_of[name]
            if number not in answers:
                answer = bound.of(self._trees[number][0])
                if answer is not Truth.NO and not check:
                    answer = satisfies(self._tree(number), constraint).truth
                answers[number] = answer
            return answers[number]

        return truth

    def truths(self, constraint: Constraint, *, leaves_only: bool) -> Sequence[Truth]:
        """Check a constraint that depends on a single node.

        Args:
            constraint: The constraint.
            leaves_only: Whether nodes with children count as not meeting it.

        Returns:
            The truth of each node of the index.
        """
        kinds = {kind for device in self._devices if _may_mean(constraint, kind := str(device["kind"]))}
        needs_system = any(name in _OF_A_SYSTEM for name in _names(constraint))
        known: dict[int, Truth] = {}
        found = list[Truth]()
        for number, (device, _, _, is_leaf) in enumerate(self._nodes):
            key = number if needs_system else device
            if (leaves_only and not is_leaf) or self._devices[device]["kind"] not in kinds:
                found.append(Truth.NO)
                continue
            if key not in known:
                node = self._node(number) if needs_system else self._device(device)
                known[key] = meets(constraint, NodeContext(node)).truth
            found.append(known[key])
        return found

    def _device(self, number: int) -> Target:
        if number not in self._built_devices:
            self._built_devices[number] = Target.from_json(self._devices[number])
        return self._built_devices[number]

    def _node(self, number: int) -> Target:
        if number not in self._built_nodes:
            device, count, sizes, _ = self._nodes[number]
            memory = [{"name": f"m{at}", "bytes": size} for at, size in enumerate(sizes)]
            self._built_nodes[number] = Target.from_json({**self._devices[device], "count": count, "memory": memory})
        return self._built_nodes[number]

    def _tree(self, number: int) -> Target:
        if number not in self._built_trees:
            self._built_trees[number] = Target.from_json(json.loads(self._trees[number][1]))
        return self._built_trees[number]


class _Bound:
    """Upper bound of the truth of a constraint on a tree, from its nodes alone; exact for those on a single node."""

    def __init__(self, index: TreeIndex, constraint: Constraint, *, leaves_only: bool = False) -> None:
        self._combine: Callable[[Iterable[Truth]], Truth] = min
        self._parts: list[_Bound] = []
        self._truths: Sequence[Truth] | None = None
        if _is_of_one_node(constraint):
            self._truths = index.truths(constraint, leaves_only=leaves_only)
        elif constraint.is_negated or constraint.path is not None:
            pass  # nothing follows from single nodes
        elif constraint.any_of or constraint.all_of:
            self._combine = max if constraint.any_of else min
            self._parts = [_Bound(index, part) for part in constraint.any_of or constraint.all_of]
        else:
            here = tuple(one for one in constraint.conditions if one.name not in _OF_A_SYSTEM)
            alone = constraint.replace(conditions=here, children=(), host=None, executor=None, runtime=None)
            # A path to a child may lead to a host that is no node of the tree, and several children share a count.
            below = [child for name, child in constraint.children if "/" not in (name or "")]
            self._parts = [_Bound(index, alone), *(_Bound(index, _without_count(child)) for child in below)]

    def of(self, nodes: Iterable[int]) -> Truth:
        """Return the bound for a tree with some nodes."""
        if self._truths is not None:
            truths = self._truths
            return max((truths[node] for node in nodes), default=Truth.NO)
        return self._combine(part.of(nodes) for part in self._parts) if self._parts else Truth.YES


def _without_count(constraint: Constraint) -> Constraint:
    rest = tuple(condition for condition in constraint.conditions if condition.name != "count")
    return constraint if constraint.is_negated else constraint.replace(conditions=rest)


def _is_of_one_node(constraint: Constraint) -> bool:
    """Whether the kind, the attributes, the keys, the count and the memories of a node decide a constraint."""
    if constraint.path is not None or constraint.children or any(True for _ in constraint.parts()):
        return False
    return all(map(_is_of_one_node, (*constraint.any_of, *constraint.all_of)))


def _names(constraint: Constraint) -> Iterable[str]:
    yield from (condition.name for condition in constraint.conditions)
    for part in constraint.nested():
        yield from _names(part)


def _may_mean(constraint: Constraint, kind: str) -> bool:
    """Whether a node of a kind could meet a constraint on a single node, by its words alone."""
    if constraint.is_negated:
        return True
    if constraint.any_of or constraint.all_of:
        parts = (_may_mean(part, kind) for part in constraint.any_of or constraint.all_of)
        return any(parts) if constraint.any_of else all(parts)
    word, row = str(constraint.word), find_kind(kind)
    return row is None or find_kind(word) is None or word in (kind, *row.keys)


def write_index(trees: Mapping[str, Target]) -> bytes:
    """Index trees.

    Args:
        trees: Trees by the names of their tags.

    Returns:
        The content of a file for `TreeIndex`.
    """
    devices: dict[str, int] = {}
    nodes: dict[str, int] = {}
    numbers: dict[str, int] = {}
    texts: dict[str, int] = {}
    rows = list[tuple[list[int], str]]()
    for name, tree in sorted(trees.items()):
        text = _compact(_without_tags(tree.replace(name=None).to_json()))
        if text not in texts:
            texts[text] = len(texts)
            here = {
                nodes.setdefault(_node_text(context, devices), len(nodes))
                for context in walk_contexts(NodeContext(tree))
            }
            rows.append((sorted(here), text))
        numbers[name] = texts[text]
    data = {"tags": numbers, "devices": [*map(json.loads, devices)], "nodes": [*map(json.loads, nodes)], "trees": rows}
    return (_compact(data) + "\n").encode()


def _without_tags(data: object) -> object:
    """Remove the labels of nodes from flat JSON, by which otherwise equal trees differ."""
    if isinstance(data, dict):
        return {key: _without_tags(value) for key, value in data.items() if key != "tag"}
    return [*map(_without_tags, data)] if isinstance(data, list) else data


def _node_text(context: NodeContext, devices: dict[str, int]) -> str:
    node = context.node
    device: dict[str, object] = {"kind": node.kind, **node.attrs.to_json()}
    device |= {"keys": list(node.own_keys)} if node.own_keys is not None else {}
    number = devices.setdefault(_compact(device), len(devices))
    return _compact([number, node.count, [memory.bytes for memory in context.memories()], not node.targets])


def _compact(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))
