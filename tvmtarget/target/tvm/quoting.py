"""How quotes and escapes work in TVM's command lines, which differs between versions: splitting, reading, writing.

    plain   what `Target.parse` reads: single and double quotes hold spaces together, and are dropped; as in a shell, a
            backslash protects a double quote or a backslash inside double quotes, and is a letter elsewhere
    v0.9    the same in words and in lists, and \\' is a quote (SplitString in src/target/target.cc at v0.9.0)
    v0.10   quotes nest: those around a whole value are dropped, those inside are kept for the lists in it, and a
            backslash protects any letter (SplitString, Interpret and Uninterpret there, v0.10.0 to v0.23.0)

The two dialects of TVM separate words by blanks only, and drop blanks around a value.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from tvmtarget.errors import TargetError
from tvmtarget.target.problems import shown, syntax_error

__all__ = ["DIALECTS", "Dialect", "can_write", "checked_dialect", "interpret", "quote", "split"]

Dialect: TypeAlias = Literal["plain", "v0.9", "v0.10"]

DIALECTS: tuple[Dialect, ...] = get_args(Dialect)

_MARKS = {"'": "single", '"': "double"}


def checked_dialect(dialect: object) -> Dialect:
    """Return a dialect by name, or raise `TargetError` with the names there are."""
    for known in DIALECTS:
        if dialect == known:
            return known
    raise TargetError(f"unknown dialect {shown(dialect)}; known: {', '.join(DIALECTS)}")


def split(text: str, separator: str, dialect: Dialect) -> list[tuple[int, str]]:
    """Split on a separator outside quotes into parts with their columns; empty parts are left out.

    >>> split("a 'b c'", " ", "v0.9"), split("a 'b c'", " ", "v0.10")
    ([(0, 'a'), (2, 'b c')], [(0, 'a'), (2, "'b c'")])
    """
    parts: list[tuple[int, str]] = []
    begin, part, opened, mark, at = 0, "", -1, "", 0
    while at < len(text):
        letter = text[at]
        is_escaped = letter == "\\" and _escapes(text[at + 1 : at + 2], mark, dialect)
        if is_escaped:
            part += text[at : at + 2] if dialect == "v0.10" else text[at + 1]
        elif letter == mark or (not mark and letter in _MARKS and (letter == "'" or dialect == "plain")):
            opened, mark = (at, letter) if not mark else (-1, "")
            part += letter if dialect == "v0.10" else ""
        elif not mark and (letter == separator or (dialect == "plain" and separator == " " and letter.isspace())):
            parts += [(begin, part)] if part else []
            begin, part = at + 1, ""
        else:
            part += letter
        at += 2 if is_escaped else 1
    if mark:
        raise syntax_error(f"a {_MARKS[mark]} quote is not closed", text, opened)
    return [*parts, (begin, part)] if part else parts


def _escapes(following: str, mark: str, dialect: Dialect) -> bool:
    """Whether a backslash means something before a letter, inside a quote or outside; at the end it does not."""
    match dialect:
        case "plain":
            return mark == '"' and following in ('"', "\\")
        case "v0.9":
            return following == "'"
        case "v0.10":
            return following != ""


def interpret(text: str, dialect: Dialect) -> str:
    """Take one level of quoting off a value.

    >>> interpret(r"'\\'two words\\''", "v0.10")
    "'two words'"
    """
    if dialect != "v0.10":
        return text if dialect == "plain" else text.strip(" ")
    body = text[1:-1] if _is_quoted(text) else text
    value, is_inside, is_escaped = "", False, False
    for letter in body:
        if is_escaped:
            is_escaped = False
        elif letter == "\\":
            is_escaped = True
            if not is_inside:
                continue
        elif letter == "'":
            is_inside = not is_inside
        value += letter
    if is_escaped:
        raise syntax_error("a backslash at the end protects nothing", text, len(text) - 1)
    return value.strip(" ")


def _is_quoted(text: str) -> bool:
    """Whether one pair of quotes is around the whole text."""
    if len(text) < 2 or text[0] != "'" or text[-1] != "'":
        return False
    is_escaped = False
    for letter in text[1:-1]:
        if letter == "'" and not is_escaped:
            return False
        is_escaped = letter == "\\" and not is_escaped
    return not is_escaped


def quote(value: str, separator: str, dialect: Dialect) -> str:
    """Write a value so that a text with it, split on the separator and interpreted, gives it back."""
    if dialect == "plain":
        is_plain = separator not in value and not any(letter.isspace() or letter in _MARKS for letter in value)
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return value if is_plain else f'"{escaped}"'
    if dialect == "v0.10":
        value = value.replace("\\", "\\\\")
    value = value.replace("'", "\\'")
    needs_quotes = any(letter.isspace() for letter in value) if separator == " " else separator in value
    return f"'{value}'" if needs_quotes else value


def can_write(value: str, dialect: Dialect) -> bool:
    """Whether `quote` can write a value; blanks at its ends are dropped, and nothing at all cannot be said."""
    if not value or (dialect != "plain" and value != value.strip(" ")):
        return False
    return dialect != "v0.9" or not value.endswith("\\")
