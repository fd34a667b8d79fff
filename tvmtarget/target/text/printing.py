"""Printing of flat JSON: the canonical one-line form, the form with a line for each node, and TOML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from tvmtarget.target.kinds import find_kind
from tvmtarget.target.text.words import RESERVED, is_plain

__all__ = ["write", "write_indented", "write_toml", "write_value"]


def write(flat: Mapping[str, object]) -> str:
    """Print flat JSON in the canonical one-line form.

    Args:
        flat: the target; one with an unregistered kind is printed as JSON.

    Returns:
        The text, which `Target.parse` reads back to an equal target.
    """
    if not _is_known(flat):
        return json.dumps(flat, ensure_ascii=False)
    return _one_line(flat) if flat.get("name") is None else _one_line(flat, f"name={flat['name']}")


def write_toml(flat: Mapping[str, object]) -> str:
    """Print flat JSON as TOML.

    Args:
        flat: the target.

    Returns:
        The text.
    """
    import tomli_w

    return tomli_w.dumps(flat)


def write_indented(flat: Mapping[str, object]) -> str:
    """Print flat JSON in the one-line form, but with a line for each node.

    Args:
        flat: the target; one with an unregistered kind is printed as JSON.

    Returns:
        The text, which `Target.parse` reads back to an equal target.
    """
    if not _is_known(flat):
        return json.dumps(flat, ensure_ascii=False, indent=2)
    return "\n".join(_indented(flat, *([] if flat.get("name") is None else [f"name={flat['name']}"])))


def _indented(flat: Mapping[str, object], *first: str) -> Iterator[str]:
    """Yield the lines of a node: one for a leaf, else its head, its children, and its own attributes."""
    children = [child for child in _sequence(flat.get("targets")) if isinstance(child, Mapping)]
    if not children:
        yield _one_line(flat, *first)
        return
    yield f"{flat['kind']}["
    for at, child in enumerate(children):
        name = child.get("name")
        prefix = "" if name in (None, child["kind"]) else f"{name}="
        lines = [*_indented(child)]
        lines[0] = prefix + lines[0]
        lines[-1] += "," * (at + 1 < len(children))
        yield from (f"  {line}" for line in lines)
    own = _one_line({key: value for key, value in flat.items() if key != "targets"}, *first)
    yield "]" + own.removeprefix(str(flat["kind"]))


def _is_known(flat: Mapping[str, object]) -> bool:
    nested = [*_sequence(flat.get("targets")), flat.get("host")]
    return find_kind(str(flat["kind"])) is not None and all(_is_known(x) for x in nested if isinstance(x, Mapping))


def _sequence(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def _one_line(flat: Mapping[str, object], *first: str) -> str:
    """Print children, then features, attributes and fields; the name of a child is printed by its parent."""
    kind = find_kind(str(flat["kind"]))
    signed = kind.features.name if kind is not None and kind.features is not None else None
    children = [_one_line_child(child) for child in _sequence(flat.get("targets")) if isinstance(child, Mapping)]
    items = [*first, *(str(feature) for feature in (_sequence(flat.get(signed)) if signed else []))]
    items += [f"{key}={write_value(value)}" for key, value in sorted(flat.items()) if key not in (*RESERVED, signed)]
    for key in ("keys", "count", "host", "links", "memory", "executor", "runtime"):
        if key in flat:
            items.append(f"{key}={write_value(flat[key]) if not _is_reference(key, flat[key]) else flat[key]}")
    brackets = f"[{','.join(children)}]" if children else ""
    return str(flat["kind"]) + brackets + (f"({','.join(items)})" if items else "")


def _is_reference(key: str, value: object) -> bool:
    return key == "host" and isinstance(value, str)


def _one_line_child(child: Mapping[str, object]) -> str:
    name = child.get("name")
    return _one_line(child) if name in (None, child["kind"]) else f"{name}={_one_line(child)}"


def write_value(value: object) -> str:
    """Print a value as it is written after '='.

    Args:
        value: a value of flat JSON.

    Returns:
        A plain word, words joined by '+', a nested target, or JSON.
    """
    if isinstance(value, Mapping):
        return _one_line(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    # An item with '+' would be split when it is read, so such lists are printed as JSON.
    if isinstance(value, list) and value and all(is_plain(str(item)) and "+" not in str(item) for item in value):
        return "+".join(map(str, value))
    if isinstance(value, str) and is_plain(value) and "+" not in value:
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
