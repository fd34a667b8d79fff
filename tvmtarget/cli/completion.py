"""Completion of targets in a shell: tags, kinds, and inside a parenthesis the attributes of the kind before it."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["complete_tag", "complete_target"]


def complete_tag(incomplete: str) -> list[str]:
    """Return the tags that begin with what is typed."""
    from tvmtarget.tags.registry import default_registry

    return [name for name in default_registry() if name.startswith(incomplete)]


def complete_target(incomplete: str) -> list[str]:
    """Return what could stand in a target where the typing stopped."""
    begin = max(incomplete.rfind(mark) for mark in "[,(=") + 1
    typed, word = incomplete[:begin], incomplete[begin:]
    return [typed + found for found in _words(typed) if found.startswith(word)]


def _words(typed: str) -> Iterator[str]:
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
    """Return the word before the innermost parenthesis that is open, or None if none is."""
    depth = 0
    for at in range(len(typed) - 1, -1, -1):
        depth += (typed[at] == ")") - (typed[at] == "(")
        if depth < 0:
            head = typed[:at]
            begin = max(head.rfind(mark) for mark in "[,(=") + 1
            return head[begin:]
    return None
