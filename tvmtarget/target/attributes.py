"""The attributes of a node: an immutable mapping in which '-' and '_' in names are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

__all__ = ["Attributes", "Value", "Word", "fold"]

Value: TypeAlias = "bool | int | str | tuple[str, ...] | tuple[int, ...]"


class Word(str):
    """An unquoted word of a text; read as a list, ',' and '+' separate its items."""

    __slots__ = ()


def fold(name: str) -> str:
    """Return the spelling of a name in which '_' is replaced by '-'.

    Args:
        name: name of an attribute.

    Returns:
        The key by which names are compared.
    """
    return name.replace("_", "-")


class Attributes(Mapping[str, Value]):
    """Immutable, hashable attributes in alphabetical order; `a["num_cores"]` and `a["num-cores"]` are the same."""

    __slots__ = ("_items", "_names")

    _items: dict[str, Value]
    _names: dict[str, str]

    def __init__(self, items: Mapping[str, Value] | None = None) -> None:
        # Sorted once, so that printing, hashing and digests need no order of their own.
        ordered = dict(sorted((items or {}).items()))
        object.__setattr__(self, "_items", ordered)
        object.__setattr__(self, "_names", {fold(name): name for name in ordered})

    def __getitem__(self, name: str) -> Value:
        return self._items[self._names[fold(str(name))]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def to_json(self) -> dict[str, object]:
        """Return the attributes as JSON values, with lists in place of tuples."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self._items.items()}

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attributes) and self._items == other._items

    def __repr__(self) -> str:
        return f"Attributes({self._items!r})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("attributes are frozen; use Target.override or Target.replace")

    def __reduce__(self) -> tuple[object, ...]:
        return (Attributes, (self._items,))
