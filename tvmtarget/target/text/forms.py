"""Forms of target texts: detection of the form, and conversion to flat JSON (`printing.py` does the reverse).

A text is read in the first form that fits, in this order (golden table: `tests/target/forms.golden`):

1. a tag, if the whole text is one (one historic name has a comma);
2. JSON, if it begins with `{`;
3. TOML, if its first line is `key = value` with a text or number, or opens a table of a list (`[[targets]]`);
4. tvmc's composition, if it has a top-level comma that is not in the list of an option:  `cmsis-nn, c -mcpu=cortex-m55`
5. TVM's command line, if it has a top-level ` -`:            `llvm -mcpu=cortex-a72 -mattr=+neon,+crc`
6. the one-line form:                                         `composite[gpu=cuda(arch=sm_53),cpu=llvm](host=@cpu)`

Where a kind is expected, a triple means an llvm of that triple: `aarch64-linux-gnu(mcpu=cortex-a72)`. The flat JSON of
a text can have two keys that only overrides have: `"+"` (signed features) and `"~"` (paths to unset). TVM's command
line adds `"-executor"` and `"-runtime"`, which are settings of the whole build. This module neither looks up tags nor
builds nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from tvmtarget.errors import TextError
from tvmtarget.target.problems import shown, syntax_error
from tvmtarget.target.tvm import command_line
from tvmtarget.untrusted import check_limit, parse_toml

__all__ = ["Composition", "Flat", "Form", "detect", "read", "read_toml"]

Flat: TypeAlias = dict[str, object]
Form: TypeAlias = Literal["tag", "json", "toml", "composition", "command-line", "one-line"]


class Composition(NamedTuple):
    """The parts of tvmc's `a, b, host`; their roles depend on their kinds."""

    parts: tuple[Flat, ...]


_TOML = re.compile(r"""(?:[ \t]*(?:\#.*)?\n)*[ \t]*(?:[\w-]+[ \t]*=[ \t]*["'0-9]|\[\[[\w-]+\]\][ \t]*\n)""")
_OPTION = re.compile(r"\s-{1,2}[A-Za-z]")


def detect(text: str, is_tag: Callable[[str], bool] = lambda _: False) -> Form:
    """Detect the form of a text, by the order at the top of this module.

    Args:
        text: the text.
        is_tag: whether a text is the name of a tag.

    Returns:
        The form.
    """
    stripped = text.strip()
    if is_tag(stripped):
        return "tag"
    if stripped.startswith("{"):
        return "json"
    # Before the command line and the one-line form: TOML has commas and '-' too, and neither begins with `word =`.
    if _TOML.match(stripped):
        return "toml"
    top_level = _top_level(stripped)
    if _commas(top_level):
        return "composition"
    return "command-line" if _OPTION.search(top_level) else "one-line"


def read(text: str, form: Form, is_tag: Callable[[str], bool] = lambda _: False) -> Flat | Composition:
    """Convert a text to flat JSON.

    Args:
        text: the text.
        form: its form, of `detect`.
        is_tag: whether a text is the name of a tag.

    Returns:
        Flat JSON, or the parts of a composition.

    Raises:
        TextError: the text does not parse; the error has the column.
    """
    stripped = text.strip()
    if form == "composition":
        ends = [-1, *_commas(_top_level(stripped)), len(stripped)]
        check_limit("target-nodes", len(ends) - 1, "the text", TextError)
        # -1 stands before the first part as if it were a comma.
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
            from tvmtarget.target.text.one_line import read_one_line  # tags and JSON need no parser

            return read_one_line(stripped)


def _top_level(text: str) -> str:
    """Replace everything inside brackets and quotes by '_', keeping columns."""
    depth, quote, is_escaped = 0, "", False
    masked: list[str] = []
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
        masked.append(letter if is_outside else "_")
    return "".join(masked)


def _commas(top_level: str) -> list[int]:
    """Find the commas between targets; one inside an option, or inside its value, belongs to a list."""
    found: list[int] = []
    expects_value = False
    for word in re.finditer(r"\S+", top_level):
        text = word.group()
        is_option = text.startswith("-")
        at = [word.start() + offset for offset, letter in enumerate(text) if letter == ","]
        # A comma that ends a word separates targets even after an option: `c -mcpu=x, llvm`.
        found += [one for one in at if not (is_option or expects_value) or one == word.end() - 1]
        expects_value = is_option and "=" not in text and not text.endswith(",")
    return found


def _read_object(text: str) -> Flat:
    from tvmtarget.target.text.grammar import read_json

    flat = read_json(text)
    assert isinstance(flat, dict)  # the text begins with '{'
    return flat


def read_toml(text: str) -> Flat:
    """Read flat JSON that is written as TOML.

    Args:
        text: the text.

    Returns:
        Flat JSON.

    Raises:
        TextError: it is not TOML.
    """
    if not isinstance(text, str):
        raise TextError(f"expected a target in TOML, not {shown(text)}")
    return parse_toml(text, "the text of a target", error=TextError)
