"""The attributes of a node: an immutable mapping in which '-' and '_' in names are the same."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from pydantic_core import CoreSchema, core_schema

from tvmtarget.errors import Problem, TargetError, raise_all
from tvmtarget.target.json_value import JsonValue, Value, Word, fold
from tvmtarget.target.problems import shown
from tvmtarget.target.values import read_opaque

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["Attributes", "Value", "Word", "fold"]

_T = TypeVar("_T")


class Attributes(JsonValue, Mapping[str, Value]):
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
    def read(cls, items: Mapping[str, object], owner: str = "") -> Self:
        """Check attributes that no table describes; values are kept as they are written.

        Args:
            items: values by name.
            owner: whose attributes they are, for messages: " of kind 'x'".

        Returns:
            The attributes.

        Raises:
            TargetError: names that are not ASCII or repeat, or values that no kind could have; all problems at once.
        """
        read: dict[str, Value] = {}
        problems: list[str] = []
        for name, value in items.items():
            if not (isinstance(name, str) and name and name.isascii()):
                line = f"attribute name {shown(name)}{owner} is not in plain ASCII"
            elif fold(name) in map(fold, read):
                line = f"attribute {shown(name)}{owner} is given twice"
            else:
                try:
                    read[name] = read_opaque(value)
                    continue
                except ValueError as error:
                    line = f"attribute {shown(name)}{owner} {error}"
            problems.append(Problem(line, (name,)))
        raise_all(TargetError, problems)
        return cls(read)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read attributes of any kind.

        Args:
            data: a mapping of names to values, or attributes.

        Returns:
            The attributes.

        Raises:
            TargetError: it is no mapping, or names or values are not valid; all problems at once.
        """
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise TargetError(f"attributes are a mapping of names to values, not {shown(data)}")
        return cls.read(data)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> CoreSchema:
        number, text = core_schema.int_schema(), core_schema.str_schema()
        lists = [core_schema.list_schema(number), core_schema.list_schema(text)]
        items = core_schema.dict_schema(
            text, core_schema.union_schema([core_schema.bool_schema(), number, text, *lists])
        )
        return cls._core_schema(items, written=items)

    def model_dump(self, **options: Any) -> dict[str, object]:  # noqa: ANN401 - those of pydantic
        """Return `to_json`, as models of pydantic do.

        Args:
            **options: those of `model_dump` of pydantic; `include` and `exclude` choose names.

        Returns:
            The values by name.
        """
        dumped: dict[str, object] = self._adapter().dump_python(self, **options)
        return dumped

    def model_dump_json(self, **options: Any) -> str:  # noqa: ANN401 - those of pydantic
        """Return `model_dump` as a text.

        Args:
            **options: those of `model_dump_json` of pydantic.

        Returns:
            The JSON text, which `model_validate_json` reads.
        """
        return self._adapter().dump_json(self, **options).decode()

    @classmethod
    def model_json_schema(cls, **options: Any) -> dict[str, object]:  # noqa: ANN401 - those of pydantic
        """Return the JSON Schema of attributes of any kind.

        Args:
            **options: those of `model_json_schema` of pydantic.

        Returns:
            The schema.
        """
        return cls._adapter().json_schema(**options)

    @classmethod
    def _adapter(cls) -> TypeAdapter[Self]:
        from pydantic import TypeAdapter  # only programs that use pydantic's methods need it

        return TypeAdapter(cls)

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
