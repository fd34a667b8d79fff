"""Conversion of the one-line form of a target, as `grammar.py` parses it, to flat JSON."""

from __future__ import annotations

from tvmtarget.target.cpu.triples import looks_like_triple
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.problems import shown, syntax_error
from tvmtarget.target.text.grammar import Choice, Item, Reference, Spec, parse_choice

__all__ = ["read_one_line"]


def read_one_line(text: str) -> dict[str, object]:
    """Convert a text in the one-line form to flat JSON.

    Args:
        text: the text.

    Returns:
        Flat JSON.

    Raises:
        TextError: the text does not parse, or is a constraint; the error has the column.
    """
    return _flat_of(parse_choice(text), text)


def _flat_of(choice: Choice, text: str) -> dict[str, object]:
    term = choice[0]
    if len(choice) > 1 or term.negated or term.weight is not None or not isinstance(term.body, Spec):
        column = choice[1].column if len(choice) > 1 else term.column
        raise syntax_error("a target has no '|', '!', '?', '@' or group; those belong to constraints", text, column)
    spec = term.body
    flat = _head(spec, text)
    for item in spec.items:
        _add_item(flat, item, text)
    if spec.children:
        if "targets" in flat:
            raise syntax_error("'targets' is given twice", text, spec.column)
        flat["targets"] = [_child(name, child, text) for name, child in spec.children]
    return flat


def _head(spec: Spec, text: str) -> dict[str, object]:
    if "/" in spec.head:
        return {"tag": spec.head if spec.part is None else f"{spec.head}:{spec.part}"}
    if spec.part is not None:
        problem = f"only a tag has parts, and {shown(spec.head)} is a kind; write vendor/name:{spec.part}"
        raise syntax_error(problem, text, spec.column)
    if find_kind(spec.head) is None and looks_like_triple(spec.head):
        return {"kind": "llvm", "mtriple": spec.head}
    return {"kind": spec.head}


def _child(name: str | None, child: Choice, text: str) -> dict[str, object]:
    flat = _flat_of(child, text)
    if name is None:
        return flat
    if "name" in flat:
        raise syntax_error("'name' is given twice", text, child[0].column)
    return flat | {"name": name}


def _add_item(flat: dict[str, object], item: Item, text: str) -> None:
    if item.operator in ("+", "-"):
        _append(flat, "+", item.operator + item.path)
    elif item.operator == "~":
        _append(flat, "~", item.path)
    elif item.operator != "=":
        problem = f"a target states values with '=', not {item.operator!r}; comparisons belong to constraints"
        raise syntax_error(problem, text, item.column)
    elif item.path in ("kind", "tag"):
        raise syntax_error(f"{shown(item.path)} is set by the word before the parenthesis", text, item.column)
    elif item.path in flat:
        raise syntax_error(f"{shown(item.path)} is given twice", text, item.column)
    else:
        flat[item.path] = _value(item, text)


def _append(flat: dict[str, object], key: str, value: str) -> None:
    values = flat.setdefault(key, [])
    assert isinstance(values, list)  # only this function writes the key
    values.append(value)


def _value(item: Item, text: str) -> object:
    if isinstance(item.value, Reference):
        return f"@{item.value.path}"
    return _flat_of(item.value, text) if isinstance(item.value, tuple) else item.value
