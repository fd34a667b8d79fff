"""The attributes of a node: an immutable mapping in which '-' and '_' in names are the same."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping
from typing import TypeAlias, TypeVar, overload

from pydantic_core import CoreSchema, core_schema

__all__ = ["Attributes", "Value", "Word", "fold"]

Value: TypeAlias = "bool | int | str | tuple[str, ...] | tuple[int, ...]"

_T = TypeVar("_T")


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

    __slots__ = ("_items", "table")

    _items: dict[str, Value]
    table: object  # the kind whose table they were checked with, or None; no part of the value

    def __init__(self, items: Mapping[str, Value] | None = None, table: object = None) -> None:
        # Sorted once, so that printing, hashing and digests need no order of their own.
        object.__setattr__(self, "_items", dict(sorted(items.items())) if items else {})
        object.__setattr__(self, "table", table)

    def __getitem__(self, name: str) -> Value:
        return self._items[self._spelled(name)]

    def __contains__(self, name: object) -> bool:
        return self._spelled(name) in self._items

    @overload
    def get(self, name: str, /) -> Value | None: ...
    @overload
    def get(self, name: str, /, default: Value | _T) -> Value | _T: ...
    def get(self, name: str, default: object = None) -> object:
        """Return an attribute.

        Args:
            name: its name, with '-' or '_'.
            default: what to return if the attribute is not stated.

        Returns:
            The value, or `default`.
        """
        return self._items.get(self._spelled(name), default)

    def _spelled(self, name: object) -> str:
        """Return the spelling of a name in these attributes; the name itself if they do not have it."""
        name = str(name)
        if name in self._items or not ("-" in name or "_" in name):
            return name
        folded = fold(name)
        return next((known for known in self._items if fold(known) == folded), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> ItemsView[str, Value]:
        """Return the names and values, sorted by name."""
        return self._items.items()

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> CoreSchema:
        number, text = core_schema.int_schema(strict=True), core_schema.str_schema(strict=True)
        lists = [core_schema.list_schema(number), core_schema.list_schema(text)]
        value = core_schema.union_schema([core_schema.bool_schema(strict=True), number, text, *lists])
        items = core_schema.dict_schema(text, value)
        return core_schema.no_info_wrap_validator_function(
            cls._accept,
            items,
            serialization=core_schema.plain_serializer_function_ser_schema(cls.to_json, return_schema=items),
        )

    @classmethod
    def _accept(cls, value: object, read: Callable[[object], dict[str, Value | list[int] | list[str]]]) -> Attributes:
        """Return what a field of another model is given: attributes, or a mapping of names to JSON values."""
        if isinstance(value, Attributes):
            return value
        items = read(value).items()
        return cls({name: tuple(item) if isinstance(item, list) else item for name, item in items})  # type: ignore[misc]

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
