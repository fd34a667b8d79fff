"""Target texts: telling the forms apart, reading them into flat JSON, and the canonical one-line printer.

A text is read by the first form that fits, in this order (golden table: `tests/target/forms.golden`):

1. a tag, if the whole text is one (one historic name holds a comma);
2. JSON, if it begins with `{`;
3. TOML, if its first line is `key = value` with a text or number, or opens a table of a list (`[[targets]]`);
4. tvmc's composition, if it has a top-level comma that is not in an option's list:  `cmsis-nn, c -mcpu=cortex-m55`
5. TVM's command-line form, if it has a top-level ` -`:       `llvm -mcpu=cortex-a72 -mattr=+neon,+crc`
6. the one-line form:                                         `composite[gpu=cuda(arch=sm_53),cpu=llvm](host=@cpu)`

Where a kind is expected, a triple stands for an llvm of that triple: `aarch64-linux-gnu(mcpu=cortex-a72)`.
Reading makes flat JSON with two keys that only overrides have: `"+"` (signed features) and `"~"` (paths to
unset). TVM's command line adds `"-executor"` and `"-runtime"`, which speak of the whole build. Nothing here looks
at tags or builds nodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from tvmtarget.errors import TextError
from tvmtarget.target.cpu.triples import looks_like_triple
from tvmtarget.target.grammar import Choice, Item, Reference, Spec, is_plain, parse_choice, read_json
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.problems import shown, syntax_error
from tvmtarget.target.tvm import command_line

__all__ = [
    "RESERVED",
    "Composition",
    "Flat",
    "Form",
    "detect",
    "read",
    "read_toml",
    "write",
    "write_indented",
    "write_toml",
    "write_value",
]

Flat: TypeAlias = dict[str, object]
Form: TypeAlias = Literal["tag", "json", "toml", "composition", "command-line", "one-line"]


@dataclass(frozen=True, slots=True)
class Composition:
    """The parts of tvmc's `a, b, host`; what they mean together depends on their kinds."""

    parts: tuple[Flat, ...]


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

_TOML = re.compile(r"""(?:[ \t]*(?:\#.*)?\n)*[ \t]*(?:[\w-]+[ \t]*=[ \t]*["'0-9]|\[\[[\w-]+\]\][ \t]*\n)""")
_OPTION = re.compile(r"\s-{1,2}[A-Za-z]")


def detect(text: str, is_tag: Callable[[str], bool] = lambda _: False) -> Form:
    """Say which form a text is in, by the order at the top of this module."""
    stripped = text.strip()
    if is_tag(stripped):
        return "tag"
    if stripped.startswith("{"):
        return "json"
    if _TOML.match(stripped):
        return "toml"
    top_level = _top_level(stripped)
    if _commas(top_level):
        return "composition"
    return "command-line" if _OPTION.search(top_level) else "one-line"


def read(text: str, is_tag: Callable[[str], bool] = lambda _: False) -> Flat | Composition:
    """Read any form into flat JSON; `TextError` names the column and what was expected."""
    stripped = text.strip()
    form = detect(stripped, is_tag)
    if form == "composition":
        ends = [-1, *_commas(_top_level(stripped)), len(stripped)]
        parts = [stripped[begin + 1 : end] for begin, end in pairwise(ends)]
        if not all(part.strip() for part in parts):
            raise syntax_error("expected a target on both sides of ','", stripped, ends[1])
        return Composition(tuple(_read_one(part, detect(part, is_tag)) for part in parts))
    return _read_one(stripped, form)


def _read_one(text: str, form: Form) -> Flat:
    stripped = text.strip()
    if not stripped:
        raise TextError("expected a target, but the text is empty; write a kind (llvm) or a tag (arm/rasp4b)")
    match form:
        case "tag":
            return {"tag": stripped}
        case "json":
            return _read_object(stripped)
        case "toml":
            return read_toml(stripped)
        case "command-line":
            return command_line.read(stripped)
        case _:
            return _flat_of(parse_choice(stripped), stripped)


def _top_level(text: str) -> str:
    """Blank out everything inside brackets and quotes, keeping columns."""
    depth, quote, is_escaped = 0, "", False
    kept: list[str] = []
    for letter in text:
        is_outside = depth == 0 and not quote
        if quote:
            quote = "" if letter == quote and not is_escaped else quote
            is_escaped = letter == "\\" and not is_escaped
        elif letter in "\"'":
            quote, is_outside = letter, False
        else:
            depth += (letter in "([{") - (letter in ")]}" and depth > 0)
            is_outside = is_outside and depth == 0
        kept.append(letter if is_outside else "_")
    return "".join(kept)


def _commas(top_level: str) -> list[int]:
    """Find the commas between targets; one inside a word that begins with '-' belongs to that option's list."""
    return [
        word.start() + offset
        for word in re.finditer(r"\S+", top_level)
        for offset, letter in enumerate(word.group())
        if letter == "," and (not word.group().startswith("-") or offset == len(word.group()) - 1)
    ]


def _read_object(text: str) -> Flat:
    flat = read_json(text)
    assert isinstance(flat, dict)  # the text begins with '{'
    return flat


def read_toml(text: str) -> Flat:
    """Read flat JSON that is written as TOML; `TextError` tells where reading stopped."""
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TextError(f"expected a target in TOML: {str(error)[:1].lower()}{str(error)[1:]}") from error


def _flat_of(choice: Choice, text: str) -> Flat:
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


def _head(spec: Spec, text: str) -> Flat:
    if "/" in spec.head:
        return {"tag": spec.head if spec.part is None else f"{spec.head}:{spec.part}"}
    if spec.part is not None:
        problem = f"only a tag has parts, and {shown(spec.head)} is a kind; write vendor/name:{spec.part}"
        raise syntax_error(problem, text, spec.column)
    if find_kind(spec.head) is None and looks_like_triple(spec.head):
        return {"kind": "llvm", "mtriple": spec.head}
    return {"kind": spec.head}


def _child(name: str | None, child: Choice, text: str) -> Flat:
    flat = _flat_of(child, text)
    if name is None:
        return flat
    if "name" in flat:
        raise syntax_error("'name' is given twice", text, child[0].column)
    return flat | {"name": name}


def _add_item(flat: Flat, item: Item, text: str) -> None:
    if item.operator in ("+", "-"):
        _append(flat, "+", item.operator + item.path)
    elif item.operator == "~":
        _append(flat, "~", item.path)
    elif item.operator != "=":
        problem = f"a target states values with '=', not {item.operator!r}; comparisons belong to constraints"
        raise syntax_error(problem, text, item.column)
    elif item.path in ("kind", "tag"):
        raise syntax_error(f"{item.path!r} is said by the word before the parenthesis", text, item.column)
    elif item.path in flat:
        raise syntax_error(f"{item.path!r} is given twice", text, item.column)
    else:
        flat[item.path] = _value(item, text)


def _append(flat: Flat, key: str, value: str) -> None:
    values = flat.setdefault(key, [])
    assert isinstance(values, list)  # only this function writes the key
    values.append(value)


def _value(item: Item, text: str) -> object:
    if isinstance(item.value, Reference):
        return f"@{item.value.path}"
    return _flat_of(item.value, text) if isinstance(item.value, tuple) else item.value


def write(flat: Mapping[str, object]) -> str:
    """Print flat JSON in the canonical one-line form; a tree with a kind nobody knows is printed as JSON."""
    if not _is_known(flat):
        return json.dumps(flat, ensure_ascii=False)
    return _one_line(flat) if flat.get("name") is None else _one_line(flat, f"name={flat['name']}")


def write_toml(flat: Mapping[str, object]) -> str:
    """Write flat JSON as TOML."""
    import tomli_w

    return tomli_w.dumps(flat)


def write_indented(flat: Mapping[str, object]) -> str:
    """Print flat JSON in the one-line form, with a line for each node; every reader takes it."""
    if not _is_known(flat):
        return json.dumps(flat, ensure_ascii=False, indent=2)
    return "\n".join(_indented(flat, *([] if flat.get("name") is None else [f"name={flat['name']}"])))


def _indented(flat: Mapping[str, object], *first: str) -> Iterator[str]:
    """Yield the lines of a node: one for a leaf, else its head, its children, and what it says of itself."""
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
    """Print children, then features, attributes and fields; of a child, its parent prints the name."""
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
    """Print a value as it stands after '=': a plain word, words joined by '+', else JSON."""
    if isinstance(value, Mapping):
        return _one_line(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list) and value and all(is_plain(str(item)) and "+" not in str(item) for item in value):
        return "+".join(map(str, value))
    if isinstance(value, str) and is_plain(value) and "+" not in value:
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
