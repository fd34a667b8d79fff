"""Reading the arguments of a target that hold no other target: counts, keys, links, memories."""

from __future__ import annotations

from typing import TypeVar

from tvmtarget.errors import TargetError
from tvmtarget.target.attributes import Attributes
from tvmtarget.target.kinds import find_kind, kind_of
from tvmtarget.target.node import Link, Memory, read_attributes
from tvmtarget.target.problems import Problems, shown
from tvmtarget.target.target_node import MAX_COUNT
from tvmtarget.target.text.grammar import is_word
from tvmtarget.target.values import read_integer, read_items

__all__ = ["read_count", "read_keys", "read_links", "read_memory", "read_target_attributes"]

_F = TypeVar("_F", Link, Memory)


def read_target_attributes(kind: object, attrs: object) -> Attributes:
    """Check attributes; those of a kind that nobody knows were checked where its JSON was read."""
    if isinstance(attrs, Attributes) and isinstance(kind, str) and find_kind(kind) is None:
        return attrs
    return read_attributes(kind_of(kind), attrs)


def read_count(count: object) -> int:
    """Check how many replicas a node stands for."""
    try:
        number = read_integer(count)
    except ValueError as error:
        raise TargetError(f"'count' {error}") from error
    if not 1 <= number <= MAX_COUNT:
        raise TargetError(f"'count' is 1 to {MAX_COUNT}, not {number}")
    return number


def read_keys(keys: object) -> tuple[str, ...]:
    """Check dispatch keys: a list of words, or one."""
    items = read_items(keys) if isinstance(keys, str | list | tuple) else (keys,)
    if not all(isinstance(key, str) and is_word(key) for key in items):
        raise TargetError(f"'keys' is a list of words, not {shown(keys)}")
    return tuple(map(str, items))


def read_links(rows: object) -> tuple[Link, ...]:
    """Read links: objects, or links themselves."""
    return _facts(Link, "links", rows)


def read_memory(rows: object) -> tuple[Memory, ...]:
    """Read memories: objects, or memories themselves."""
    return _facts(Memory, "memory", rows)


def _facts(cls: type[_F], field: str, rows: object) -> tuple[_F, ...]:
    if not isinstance(rows, list | tuple):
        raise TargetError(f"{field!r} is a list of objects, not {shown(rows)}")
    problems, read = Problems(), list[_F]()
    for row in rows:
        with problems.collect():
            read.append(cls.from_json(row))
    problems.raise_all()
    return tuple(read)
