"""Renaming of children: match the nodes of two trees that are equal but for the names of children."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, permutations, product

from tvmtarget.target.identity import canonical
from tvmtarget.target.keys import View, view_of
from tvmtarget.target.tree import Target
from tvmtarget.target.tree_paths import join

__all__ = ["find_renaming", "renamed_path"]

# Limit on tried assignments of children that are equal by themselves and differ by links only. Deciding whether such
# trees are equal is graph isomorphism; trees that need more are taken to be different.
_MOST_TRIED = 1000
_NUMBER = re.compile(r"\.\d+$")


def find_renaming(source: Target, target: Target, view: View) -> dict[str, str] | None:
    """Match the nodes of two trees that differ only in the names of children.

    Args:
        source: the tree whose paths are the keys.
        target: the tree whose paths are the values.
        view: the view in which the trees have to be equal, as for tuning keys.

    Returns:
        The path in `target` of every node of `source`, without replica numbers; None if the trees differ otherwise.
    """
    source, target = (_named(tree.resolve()) for tree in (source, target))
    if _role(source, view) != _role(target, view):
        return None
    target_text = _text(view_of(target, view), {})
    source_view = view_of(source, view)
    candidates = islice(_assignments(source, target, "", "", view), _MOST_TRIED)
    return next((paths for paths in candidates if _text(source_view, paths) == target_text), None)


def renamed_path(path: str, paths: Mapping[str, str]) -> str:
    """Return the path of a site in the other tree; replica numbers stay.

    Args:
        path: path of the site.
        paths: the renaming, of `find_renaming`.

    Returns:
        The path in the other tree.

    >>> renamed_path("node.1/gpu", {"node": "n", "node/gpu": "n/g"})
    'n.1/g'
    """
    if path in paths:
        return paths[path]
    plain, found = "", []
    for name in path.split("/"):
        plain = join(plain, _NUMBER.sub("", name))
        number = _NUMBER.search(name)
        found.append(paths.get(plain, plain).rpartition("/")[2] + (number.group() if number else ""))
    return "/".join(found)


def _named(tree: Target) -> Target:
    """Return a tree in which every child states the name that paths have for it."""
    children = tuple(_named(child).replace(name=child.slot) for child in tree.targets)
    return tree.replace(targets=children) if children else tree


def _role(node: Target, view: View) -> str:
    """Return a text that is equal for nodes that differ in names only, of themselves and below."""
    alone = node.replace(name=None, host=None, count=1, executor=None, runtime=None)
    shown = {
        "own": {"kind": node.kind, **node.attrs.to_json()} if node.is_composite else view_of(alone, view),
        "counts": [node.count, len(node.links), len(node.memory)],
        "children": sorted(_role(child, view) for child in node.targets),
    }
    return canonical(shown)


def _assignments(source: Target, target: Target, old: str, new: str, view: View) -> Iterator[dict[str, str]]:
    """Yield maps of the paths below two nodes of one role; those that match equal names come first."""
    groups: dict[str, tuple[list[Target], list[Target]]] = {}
    for tree, node in enumerate((source, target)):
        for child in node.targets:
            groups.setdefault(_role(child, view), ([], []))[tree].append(child)
    orders: list[list[list[tuple[Target, Target]]]] = []
    for sources, targets in groups.values():
        by_slot = {one.slot: one for one in targets}
        same = {one.slot for one in sources} & by_slot.keys()
        by_name = [(one, by_slot[one.slot]) for one in sources if one.slot in same]
        rest = [one for one in sources if one.slot not in same], [one for one in targets if one.slot not in same]
        likely = [*by_name, *zip(*rest, strict=True)]
        others = (list(zip(sources, order, strict=True)) for order in permutations(targets))
        orders.append([likely, *islice(others, _MOST_TRIED)])
    for chosen in product(*orders):
        pairs = [pair for group in chosen for pair in group]
        below = [
            [*islice(_assignments(one, other, join(old, one.slot), join(new, other.slot), view), _MOST_TRIED)]
            for one, other in pairs
        ]
        for maps in product(*below):
            paths = {join(old, one.slot): join(new, other.slot) for one, other in pairs}
            yield {**paths, **{path: to for found in maps for path, to in found.items()}}


def _text(shown: Mapping[str, object], paths: Mapping[str, str]) -> str:
    """Return a view as text, with children renamed by a map of paths and sorted."""
    return json.dumps(_renamed(shown, "", paths), sort_keys=True)


def _renamed(value: object, path: str, paths: Mapping[str, str]) -> object:
    if isinstance(value, Mapping):
        return {name: _renamed_field(name, each, path, paths) for name, each in value.items()}
    return value


def _renamed_field(name: str, value: object, path: str, paths: Mapping[str, str]) -> object:
    if name == "host" and isinstance(value, str):
        return f"@{renamed_path(value.removeprefix('@'), paths)}"
    if name == "targets" and isinstance(value, Sequence):
        children = []
        for child in value:
            below = join(path, str(child["name"]))
            shown = _renamed(child, below, paths)
            assert isinstance(shown, dict)
            children.append({**shown, "name": _last(below, paths)})
        return sorted(children, key=canonical)
    if name in ("links", "memory") and isinstance(value, Sequence):
        return [_ends(row, path, paths) for row in value]
    return value


def _ends(row: object, path: str, paths: Mapping[str, str]) -> object:
    """Return a link or a memory with the names of its children replaced."""
    if not isinstance(row, Mapping):
        return row
    found = dict(row)
    for name in ("src", "dst"):
        if isinstance(found.get(name), str):
            found[name] = _last(join(path, found[name]), paths)
    if isinstance(found.get("of"), Sequence):
        found["of"] = sorted(_last(join(path, str(end)), paths) for end in found["of"])
    return found


def _last(path: str, paths: Mapping[str, str]) -> str:
    return renamed_path(path, paths).rpartition("/")[2]
