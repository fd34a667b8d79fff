"""Words of the one-line grammar, those that are reserved, and how deep it nests; `grammar.py` parses the rest."""

from __future__ import annotations

import re

__all__ = ["MAX_DEPTH", "RESERVED", "VALUE_WORD", "WORD", "is_plain", "is_word"]

MAX_DEPTH = 64

# The keys of flat JSON that are fields of a node, and no attributes of its kind.
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

# A word has no mark of the grammar and no character that cannot be printed; '+' and '-' neither begin nor end it.
_EXCLUDED = r"\s\x00-\x1f\x7f\ud800-\udfff,()\[\]{}|&\"=<>!?~@"
WORD = re.compile(rf"[^{_EXCLUDED}':+\-](?:[^{_EXCLUDED}':]*[^{_EXCLUDED}':+\-])?")
VALUE_WORD = re.compile(rf"[^{_EXCLUDED}]+")


def is_word(text: str) -> bool:
    """Whether a text can be written as a kind, name, path or feature.

    Args:
        text: the text.

    Returns:
        True for a word of the grammar.
    """
    return WORD.fullmatch(text) is not None


def is_plain(text: str) -> bool:
    """Whether a text can be written as a value without quotes, in every form of a target.

    Args:
        text: the text.

    Returns:
        True if no quotes are needed.
    """
    return VALUE_WORD.fullmatch(text) is not None and text.isprintable() and "'" not in text
