"""TVM's command-line form of a target (v0.6 to v0.23): `kind -key=value -key value -flag`.

The grammar is that of TargetInternal::FromRawString (src/target/target.cc at v0.9.0 to v0.23.0): items of lists are
separated by commas, quotes hold spaces together, a flag alone means 1, and `--host` and `--devices` hold targets. The
dialect decides what quotes and backslashes mean (`quoting.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tvmtarget.target.kinds import Kind, find_kind
from tvmtarget.target.problems import shown, syntax_error
from tvmtarget.target.tvm.legacy import as_tvm_meant
from tvmtarget.target.tvm.quoting import Dialect, can_write, interpret, quote, split

__all__ = ["read", "write"]


def read(text: str, dialect: Dialect = "plain") -> dict[str, object]:
    """Parse a command line.

    Args:
        text: the command line; its first word is a kind or a tag.
        dialect: how quotes and escapes work.

    Returns:
        Flat JSON.

    Raises:
        TextError: the text does not parse; the error has the column.
    """
    words = split(text, " ", dialect)
    if not words:
        raise syntax_error("expected a kind or a tag, but there is no word", text, 0)
    head = words[0][1]
    flat: dict[str, object] = {"tag": head} if "/" in head else {"kind": head}
    kind = find_kind(head)
    at = 1
    while at < len(words):
        column, word = words[at]
        at += 1
        key, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not key or (equals and not value):
            raise syntax_error(f"expected -key=value, not {shown(word)}", text, column)
        if key == "kind":
            raise syntax_error("'kind' is set by the first word", text, column)
        if key in flat:
            raise syntax_error(f"{shown(key)} is given twice", text, column)
        # `-key value`; a word that begins with '-' is the next option, and this one a flag.
        if not equals and at < len(words) and not words[at][1].startswith("-"):
            value = words[at][1]
            at += 1
        row = kind.attribute(key) if kind else None
        if not value and row is not None and row.type not in ("bool", "int"):
            raise syntax_error(f"expected a value of {shown(key)}, as in -{key}=...", text, column + len(word))
        flat[key] = _value(kind, key, value or "1", dialect)
    # TVM's name of `targets`.
    if "devices" in flat:
        flat["targets"] = flat.pop("devices")
    return as_tvm_meant(flat)


def _value(kind: Kind | None, key: str, value: str, dialect: Dialect) -> object:
    """Convert a nested target, a list if the attribute is one, or a text; attributes of a tag are not known here."""
    value = interpret(value, dialect)
    if key in ("host", "target_host"):
        return _nested(value, dialect)
    row = kind.attribute(key) if kind else None
    if not (key in ("keys", "devices") or (row.is_list if row else "," in value)):
        return value
    items = [interpret(item, dialect) for _, item in split(value, ",", dialect)]
    items = [item.strip() for item in items] if dialect == "plain" else items
    return [_nested(item, dialect) for item in items] if key == "devices" else items


def _nested(text: str, dialect: Dialect) -> object:
    if text.startswith("{"):
        from tvmtarget.target.text.grammar import read_json

        return read_json(text)
    return read(text, dialect)


def write(flat: Mapping[str, object], dialect: Dialect) -> str | None:
    """Write flat JSON of a kind as a command line.

    Args:
        flat: the target.
        dialect: how quotes and escapes work.

    Returns:
        The command line, or None if the dialect cannot express it.

    >>> write({"kind": "llvm", "mattr": ["+neon", "+crc"], "model": "two words"}, "v0.10")
    "llvm -mattr=+neon,+crc -model='two words'"
    """
    options = dict(_options(flat, dialect))
    if not all(value is not None and can_write(value, dialect) for value in options.values()):
        return None
    return " ".join([str(flat["kind"]), *(f"-{key}={quote(str(options[key]), ' ', dialect)}" for key in options)])


def _options(flat: Mapping[str, object], dialect: Dialect) -> Iterator[tuple[str, str | None]]:
    """Yield each option and its value before quoting; None for a value that cannot be written."""
    for key, value in flat.items():
        if key != "kind":
            yield key, _list(value, dialect) if isinstance(value, list) else _item(value, dialect)


def _list(items: list[object], dialect: Dialect) -> str | None:
    texts = [_item(item, dialect) for item in items]
    if not texts or not all(text is not None and can_write(text, dialect) for text in texts):
        return None
    return ",".join(quote(str(text), ",", dialect) for text in texts)


def _item(value: object, dialect: Dialect) -> str | None:
    if isinstance(value, Mapping):
        return write(value, dialect)
    return str(int(value)) if isinstance(value, bool) else str(value)
