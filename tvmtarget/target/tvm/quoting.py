r"""Quoting dialects of TVM's command lines, which differ between versions: splitting, reading and writing.

    plain   what `Target.parse` reads: single and double quotes hold spaces together and are dropped; as in a shell, a
            backslash escapes a double quote or a backslash inside double quotes, and is an ordinary character elsewhere
    v0.9    the same in words and in lists, and \' is a quote (SplitString in src/target/target.cc at v0.9.0)
    v0.10   quotes nest: those around a whole value are dropped, those inside are kept for the lists in it, and a
            backslash escapes any character (SplitString, Interpret and Uninterpret there, v0.10.0 to v0.23.0)

The two dialects of TVM separate words by blanks only, and drop blanks around a value. The functions are ports of TVM's,
character by character; a `Cursor` would hide which rule of TVM a line implements.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from tvmtarget.target.problems import known_word, syntax_error

__all__ = ["DIALECTS", "Dialect", "can_write", "checked_dialect", "interpret", "quote", "split"]

Dialect: TypeAlias = Literal["plain", "v0.9", "v0.10"]

DIALECTS: tuple[Dialect, ...] = get_args(Dialect)

_MARKS = {"'": "single", '"': "double"}


def checked_dialect(dialect: object) -> Dialect:
    """Return a dialect by name.

    Args:
        dialect: the name.

    Returns:
        The dialect.

    Raises:
        TargetError: there is no such dialect.
    """
    return known_word("dialect", dialect, DIALECTS)


def split(text: str, separator: str, dialect: Dialect) -> list[tuple[int, str]]:
    """Split a text at a separator outside quotes.

    Args:
        text: the text.
        separator: one character.
        dialect: how quotes and escapes work.

    Returns:
        Column and text of each part that is not empty.

    Raises:
        TextError: a quote is not closed.

    >>> split("a 'b c'", " ", "v0.9"), split("a 'b c'", " ", "v0.10")
    ([(0, 'a'), (2, 'b c')], [(0, 'a'), (2, "'b c'")])
    """
    parts: list[tuple[int, str]] = []
    begin, part, opened, mark, at = 0, "", -1, "", 0
    # By index and not by character, because an escape takes two.
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
    """Whether a backslash escapes the following character, inside a quote `mark` or outside of quotes."""
    match dialect:
        case "plain":
            return mark == '"' and following in ('"', "\\")
        case "v0.9":
            return following == "'"
        case "v0.10":
            return following != ""


def interpret(text: str, dialect: Dialect) -> str:
    r"""Remove one level of quotes from a value.

    Args:
        text: the value.
        dialect: how quotes and escapes work.

    Returns:
        The value without quotes and escapes.

    Raises:
        TextError: the text ends in a backslash that escapes nothing.

    >>> interpret(r"'\'two words\''", "v0.10")
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
    """Quote a value so that splitting and interpreting the text returns it.

    Args:
        value: the value; see `can_write`.
        separator: the character at which the text will be split.
        dialect: how quotes and escapes work.

    Returns:
        The text of the value.
    """
    if dialect == "plain":
        is_plain = separator not in value and not any(letter.isspace() or letter in _MARKS for letter in value)
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return value if is_plain else f'"{escaped}"'
    # Only this dialect takes one level of backslashes off again.
    if dialect == "v0.10":
        value = value.replace("\\", "\\\\")
    value = value.replace("'", "\\'")
    needs_quotes = any(letter.isspace() for letter in value) if separator == " " else separator in value
    return f"'{value}'" if needs_quotes else value


def can_write(value: str, dialect: Dialect) -> bool:
    """Whether `quote` can write a value.

    Args:
        value: the value.
        dialect: how quotes and escapes work.

    Returns:
        False for an empty value, for blanks at its ends, which TVM drops, and for a last backslash in v0.9.
    """
    if not value or (dialect != "plain" and value != value.strip(" ")):
        return False
    return dialect != "v0.9" or not value.endswith("\\")
