"""Target texts: telling the forms apart, reading them into flat JSON, and the canonical one-line printer.

A text is read by the first form that fits, in this order (golden table: `tests/target/forms.golden`):

1. a tag, if the whole text is one (one historic name holds a comma);
2. JSON, if it begins with `{`;
3. tvmc's composition, if it has a top-level comma that is not in an option's list:  `cmsis-nn, c -mcpu=cortex-m55`
4. TVM's command-line form, if it has a top-level ` -`:       `llvm -mcpu=cortex-a72 -mattr=+neon,+crc`
5. the one-line form:                                         `composite[gpu=cuda(arch=sm_53),cpu=llvm](host=@cpu)`

Reading makes flat JSON with two keys that only overrides have: `"+"` (signed features) and `"~"` (paths to
unset). Nothing here looks at tags or builds nodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from tvmtarget.errors import TextError
from tvmtarget.target import command_line
from tvmtarget.target.grammar import Choice, Item, Reference, Spec, parse_choice
from tvmtarget.target.kinds import find_kind

__all__ = ["RESERVED", "Flat", "Form", "detect", "read", "write"]

Flat: TypeAlias = dict[str, object]
Form: TypeAlias = Literal["tag", "json", "command-line", "composition", "one-line"]

RESERVED = (
    "kind",
    "name",
    "keys",
    "tag",
    "host",
    "targets",
    "count",
    "links",
    "memory",
    "executor",
    "runtime",
    "schema",
)

_OPTION = re.compile(r"\s-{1,2}[A-Za-z]")
_PLAIN = re.compile(r"[^\s,()\[\]{}|\"'=<>!?~@]+")


def detect(text: str, is_tag: Callable[[str], bool] = lambda _: False) -> Form:
    """Say which form a text is in, by the order at the top of this module."""
    stripped = text.strip()
    if is_tag(stripped):
        return "tag"
    if stripped.startswith("{"):
        return "json"
    if len(_split_composition(stripped)) > 1:
        return "composition"
    return "command-line" if _OPTION.search(_top_level(stripped)) else "one-line"


def read(text: str, is_tag: Callable[[str], bool] = lambda _: False) -> Flat:
    """Read any form into flat JSON; `TextError` names the column and what was expected."""
    stripped = text.strip()
    if not stripped:
        raise TextError("expected a target, but the text is empty; write a kind (llvm) or a tag (arm/rasp4b)")
    match detect(stripped, is_tag):
        case "tag":
            return {"tag": stripped}
        case "json":
            return _read_json(stripped)
        case "composition":
            return _read_composition(stripped, is_tag)
        case "command-line":
            return command_line.read(stripped)
        case "one-line":
            return _flat_of(parse_choice(stripped), stripped)


def _top_level(text: str) -> str:
    """Blank out everything inside brackets and quotes, keeping columns."""
    depth, quote = 0, ""
    shown: list[str] = []
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
            shown.append(" " if depth else "_")
        elif letter in "\"'":
            quote = letter
            shown.append("_")
        else:
            depth += letter in "([{"
            shown.append(letter if depth == 0 else "_")
            depth -= letter in ")]}" and depth > 0
    return "".join(shown)


def _read_json(text: str) -> Flat:
    try:
        flat = json.loads(text)
    except json.JSONDecodeError as error:
        raise TextError(f"expected JSON: {error.msg.lower()}", text=text, column=error.pos) from error
    if not isinstance(flat, dict):
        raise TextError("expected a JSON object", text=text, column=0)
    return flat


def _read_composition(text: str, is_tag: Callable[[str], bool]) -> Flat:
    """Read tvmc's `a, b, host`: external code generators before their device, `device, host` otherwise."""
    parts = [read(part, is_tag) for part in _split_composition(text)]
    *first, last = parts
    if len(parts) == 2 and not _is_external(first[0]):
        return first[0] | {"host": last}
    if not all(_is_external(part) for part in first):
        names = ", ".join(str(part.get("kind", part.get("tag"))) for part in first)
        raise TextError(f"only external code generators may stand before the last target, not {names}", text=text)
    return {"kind": "composite", "targets": parts, "host": f"@{last.get('kind', 'host')}"}


def _split_composition(text: str) -> list[str]:
    """Split at top-level commas; a comma inside a word that begins with '-' belongs to that option's list."""
    ends = [
        match.start() + offset
        for match in re.finditer(r"\S+", _top_level(text))
        for offset, letter in enumerate(match.group())
        if letter == "," and (not match.group().startswith("-") or offset == len(match.group()) - 1)
    ]
    return [text[begin:end] for begin, end in zip([0, *(end + 1 for end in ends)], [*ends, len(text)], strict=True)]


def _is_external(flat: Flat) -> bool:
    kind = find_kind(str(flat.get("kind")))
    return kind is None or kind.is_external


def _flat_of(choice: Choice, text: str) -> Flat:
    term = choice[0]
    if len(choice) > 1 or term.negated or term.weight is not None or isinstance(term.body, Reference):
        column = choice[1].column if len(choice) > 1 else term.column
        problem = "a target has no '|', '!', '?' or '@'; those belong to constraints"
        raise TextError(problem, text=text, column=column)
    spec = term.body
    flat: Flat = _head(spec, text)
    for item in spec.items:
        _add_item(flat, item, text)
    if spec.children:
        if "targets" in flat:
            raise TextError("'targets' is given twice", text=text, column=spec.column)
        flat["targets"] = [_child(name, child, text) for name, child in spec.children]
    return flat


def _head(spec: Spec, text: str) -> Flat:
    if "/" in spec.head:
        return {"tag": spec.head if spec.part is None else f"{spec.head}:{spec.part}"}
    if spec.part is not None:
        problem = f"only a tag has parts, and {spec.head!r} is a kind; write vendor/name:{spec.part}"
        raise TextError(problem, text=text, column=spec.column)
    return {"kind": spec.head}


def _child(name: str | None, child: Choice, text: str) -> Flat:
    flat = _flat_of(child, text)
    return flat if name is None else flat | {"name": name}


def _add_item(flat: Flat, item: Item, text: str) -> None:
    if item.operator in ("+", "-"):
        features = flat.setdefault("+", [])
        assert isinstance(features, list)  # only this function writes the key
        features.append(item.operator + item.path)
    elif item.operator == "~":
        unset = flat.setdefault("~", [])
        assert isinstance(unset, list)  # only this function writes the key
        unset.append(item.path)
    elif item.operator != "=":
        problem = f"a target states values with '=', not {item.operator!r}; comparisons belong to constraints"
        raise TextError(problem, text=text, column=item.column)
    elif item.path in flat:
        raise TextError(f"{item.path!r} is given twice", text=text, column=item.column)
    else:
        flat[item.path] = _value(item, text)


def _value(item: Item, text: str) -> object:
    value = item.value
    if isinstance(value, Reference):
        return f"@{value.path}"
    if isinstance(value, tuple):
        return _flat_of(value, text)
    if not isinstance(value, str):
        return value
    if item.path == "host" or item.path.endswith("/host"):
        return _flat_of(parse_choice(value), value)
    return value.split("+") if "+" in value.strip("+") else value


def write(flat: Mapping[str, object]) -> str:
    """Print flat JSON in the canonical one-line form; a tree with a kind nobody knows is printed as JSON."""
    if not _is_known(flat):
        return json.dumps(_jsonable(flat), ensure_ascii=False, separators=(", ", ": "))
    return _one_line(flat)


def _jsonable(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    return [_jsonable(item) for item in value] if isinstance(value, list | tuple) else value


def _is_known(flat: Mapping[str, object]) -> bool:
    nested = [*_sequence(flat.get("targets")), flat.get("host")]
    return find_kind(str(flat["kind"])) is not None and all(_is_known(x) for x in nested if isinstance(x, Mapping))


def _sequence(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _one_line(flat: Mapping[str, object]) -> str:
    kind = find_kind(str(flat["kind"]))
    signed = kind.features.name if kind is not None and kind.features is not None else None
    children = [_one_line_child(child) for child in _sequence(flat.get("targets")) if isinstance(child, Mapping)]
    items = [str(feature) for feature in _sequence(flat.get(signed))] if signed else []
    items += [f"{key}={_print(value)}" for key, value in sorted(flat.items()) if key not in (*RESERVED, signed)]
    for key in ("keys", "count", "host", "links", "memory", "executor", "runtime"):
        if key in flat:
            items.append(f"{key}={_print(flat[key])}")
    brackets = f"[{','.join(children)}]" if children else ""
    return str(flat["kind"]) + brackets + (f"({','.join(items)})" if items else "")


def _one_line_child(child: Mapping[str, object]) -> str:
    name = child.get("name")
    return _one_line(child) if name in (None, child["kind"]) else f"{name}={_one_line(child)}"


def _print(value: object) -> str:
    if isinstance(value, Mapping):
        return _one_line(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        plain = value and all(isinstance(item, str) and _PLAIN.fullmatch(item) and "+" not in item for item in value)
        if plain:
            return "+".join(str(item) for item in value)
        return json.dumps(_jsonable(value), ensure_ascii=False, separators=(",", ":"))
    text = str(value)
    plain_text = text.startswith("@") or (_PLAIN.fullmatch(text) and "+" not in text.strip("+"))
    return text if plain_text else json.dumps(text, ensure_ascii=False)
