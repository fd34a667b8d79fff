"""TVM's command-line form of a target (v0.6 to v0.23): `kind -key=value -key value -flag`.

The grammar is that of TargetInternal::FromRawString (src/target/target.cc at v0.9.0 to v0.23.0): lists are
separated by commas, single quotes hold spaces together, a flag alone means 1, and `--host` and `--devices`
hold targets themselves.
"""

from __future__ import annotations

from tvmtarget.target.kinds import find_kind
from tvmtarget.target.problems import shown, syntax_error

__all__ = ["read"]


def read(text: str) -> dict[str, object]:
    """Read a command-line target into flat JSON; a tag may stand where the kind does."""
    words = _words(text)
    if not words:
        raise syntax_error("expected a kind or a tag, but there is no word", text, 0)
    head = words[0][1]
    flat: dict[str, object] = {"tag": head} if "/" in head else {"kind": head}
    at = 1
    while at < len(words):
        column, word = words[at]
        at += 1
        key, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not key or (equals and not value):
            raise syntax_error(f"expected -key=value, not {shown(word)}", text, column)
        if key == "kind":
            raise syntax_error("'kind' is said by the first word", text, column)
        if key in flat:
            raise syntax_error(f"{key!r} is given twice", text, column)
        if not equals and at < len(words) and not words[at][1].startswith("-"):
            value = words[at][1]
            at += 1
        flat[key] = _value(str(flat.get("kind", "")), key, value or "1")
    if "devices" in flat:
        flat["targets"] = flat.pop("devices")
    return flat


def _value(kind_name: str, key: str, value: str) -> object:
    """Read nested targets, and lists where the attribute is one; a tag's attributes are not known here."""
    if key == "host":
        return read(value)
    if key == "devices":
        return [read(part) for part in value.split(",")]
    kind = find_kind(kind_name)
    row = kind.attribute(key) if kind else None
    is_list = key == "keys" or (row.is_list if row else "," in value)
    return value.split(",") if is_list else value


def _words(text: str) -> list[tuple[int, str]]:
    """Split on spaces outside single quotes; each word with its column, quotes removed."""
    words: list[tuple[int, str]] = []
    begin, word, quoted = 0, "", False
    for column, letter in enumerate(text + " "):
        if letter == "'":
            quoted = not quoted
        elif letter.isspace() and not quoted:
            if word:
                words.append((begin, word))
            begin, word = column + 1, ""
        else:
            word += letter
    if quoted:
        raise syntax_error("a single quote is not closed", text, text.rindex("'"))
    return words
