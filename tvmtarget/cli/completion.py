"""Shell completion of targets: tags and kinds, and the attributes of a kind inside its parentheses."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["complete_tag", "complete_target"]


def complete_tag(incomplete: str) -> list[str]:
    """Return the tags that begin with the typed text.

    Args:
        incomplete: The word to the left of the cursor.

    Returns:
        The names in the order of the registry.
    """
    from tvmtarget.tags.registry import default_registry

    return [name for name in default_registry() if name.startswith(incomplete)]


def complete_target(incomplete: str) -> list[str]:
    """Return the texts of targets with the last word completed.

    Args:
        incomplete: The text of a target up to the cursor, such as `llvm(num-`.

    Returns:
        The text with each kind, tag or attribute that fits at its end.
    """
    begin = max(incomplete.rfind(mark) for mark in "[,(=") + 1
    typed, word = incomplete[:begin], incomplete[begin:]
    return [typed + found for found in _words(typed) if found.startswith(word)]


def _words(typed: str) -> Iterator[str]:
    """Yield the words that may follow the typed text."""
    from tvmtarget.target.kinds import find_kind, kind_names

    head = _open_head(typed)
    kind = find_kind(head) if head is not None else None
    if kind is not None:
        yield from (f"{row.name}=" for row in kind.attributes)
        return
    yield from kind_names()
    yield "native"
    yield from complete_tag("")


def _open_head(typed: str) -> str | None:
    """Return the word before the innermost open parenthesis, or None if none is open."""
    # Scanned backwards, where a closing parenthesis comes first: groups that are closed already are counted out.
    depth = 0
    for at in range(len(typed) - 1, -1, -1):
        depth += (typed[at] == ")") - (typed[at] == "(")
        if depth < 0:
            head = typed[:at]
            begin = max(head.rfind(mark) for mark in "[,(=") + 1
            return head[begin:]
    return None
