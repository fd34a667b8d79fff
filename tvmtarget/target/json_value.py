"""Base of the values that have a JSON form of their own, which pydantic reads and writes too.

There is one reader: fields of other models, `model_validate` and `TypeAdapter` accept what `from_json` accepts, and
what pydantic writes is what `to_json` returns. Alone, errors are those of this library. In another model they are a
`ValidationError` with the place of each problem.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeAlias, cast

from pydantic import ValidationError, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from tvmtarget.errors import Problem, TextError, TvmTargetError
from tvmtarget.untrusted import parse_json

__all__ = ["JsonValue", "Value", "Word", "fold"]

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


class JsonValue:
    """A value that is read from JSON and written as JSON."""

    __slots__ = ()

    @classmethod
    @abstractmethod
    def from_json(cls, data: object) -> Self:
        """Read a value.

        Args:
            data: a value of the class, a text, or the object that `to_json` returns.

        Returns:
            The value; `data` itself if it is one.

        Raises:
            TextError: a text does not parse.
            UnknownNameError: unknown names.
            TargetError: anything else is wrong; all problems at once.
        """

    @classmethod
    def _accept(cls, value: object) -> Self:
        """Read what a field of the class is given."""
        return cls.from_json(value)

    @abstractmethod
    def to_json(self) -> dict[str, object]:
        """Return the object that `from_json` reads back to an equal value."""

    @classmethod
    def model_validate(cls, obj: object, **_options: object) -> Self:
        """Read a value as `from_json` does; the errors are those of this library.

        Args:
            obj: the value.
            **_options: pydantic's; no conversion is done that `strict` could forbid, and nothing reads a context.

        Returns:
            The value.

        Raises:
            TvmTargetError: the value is not valid; all problems at once.
        """
        return cls._accept(obj)

    @classmethod
    def model_validate_strings(cls, obj: object, **_options: object) -> Self:
        """Read a value whose numbers and truths may be texts, as `model_validate` does anyway.

        Args:
            obj: the value.
            **_options: as for `model_validate`.

        Returns:
            The value.

        Raises:
            TvmTargetError: the value is not valid; all problems at once.
        """
        return cls._accept(obj)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **_options: object) -> Self:
        """Read a value from a JSON text.

        Args:
            json_data: the text of an object or of a string.
            **_options: as for `model_validate`.

        Returns:
            The value.

        Raises:
            TextError: it is not JSON.
            TvmTargetError: the value is not valid; all problems at once.
        """
        data = json_data if isinstance(json_data, str) else bytes(json_data)
        return cls._accept(parse_json(data, f"the {cls.__name__.lower()}", error=TextError))

    @classmethod
    def _core_schema(cls, inner: CoreSchema, ref: str | None = None, written: CoreSchema | None = None) -> CoreSchema:
        """Return the schema of fields of this class in other models.

        Args:
            inner: the schema of the values themselves, for JSON Schema.
            ref: name of the schema, if others refer to it.
            written: the schema of what `to_json` returns, if it differs from `inner`.

        Returns:
            A schema whose validator calls `_validated`.
        """

        def read(value: object, handler: ValidatorFunctionWrapHandler) -> object:
            return cls._validated(value, handler)

        read.__name__ = cls.__name__  # pydantic shows it, in titles and in places within unions
        return core_schema.no_info_wrap_validator_function(
            read,
            inner,
            ref=ref,
            serialization=core_schema.plain_serializer_function_ser_schema(
                cls._serialise, info_arg=True, return_schema=written
            ),
        )

    @classmethod
    def _validated(cls, value: object, handler: ValidatorFunctionWrapHandler) -> object:
        return cls._read_field(value)

    def _serialise(self, info: Any) -> dict[str, object]:  # noqa: ANN401 - pydantic's, of no public type
        """Return the JSON form, with the keys that `include` and `exclude` of `model_dump` name."""
        return cast("dict[str, object]", _filtered(self.to_json(), info.include, info.exclude))

    @classmethod
    def _read_field(cls, value: object) -> Self:
        """Read what a field of another model is given.

        Raises:
            ValidationError: the value is not valid; all problems at once, each with its place.
        """
        if isinstance(value, cls):
            return value
        try:
            return cls._accept(value)
        except TvmTargetError as error:
            raise _validation_error(cls, error, value) from error


def _filtered(data: object, include: object, exclude: object) -> object:
    """Return the JSON that pydantic's `include` and `exclude` leave."""
    if (include is None and exclude is None) or not isinstance(data, dict | list):
        return data
    kept: dict[object, object] = {}
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        included = True if include is None else _chosen(include, key, len(data))
        excluded = _chosen(exclude, key, len(data))
        if included is not None and excluded is not True:
            kept[key] = _filtered(value, None if included is True else included, excluded)
    return kept if isinstance(data, dict) else list(kept.values())


def _chosen(choice: Any, key: Any, length: int) -> object:  # noqa: ANN401 - sets or mappings, as users write them
    """Return what a choice says of a key or index: None for nothing, True for all of it, else a choice in it."""
    names = ("__all__", key, key - length) if isinstance(key, int) else ("__all__", key)
    found: list[Any] = [
        choice[name] if isinstance(choice, Mapping) else True for name in names if name in (choice or ())
    ]
    if any(one is True or one is Ellipsis for one in found):
        return True
    parts = [one if isinstance(one, Mapping) else dict.fromkeys(one, True) for one in found if one is not False]
    return {name: one for part in parts for name, one in part.items()} if parts else None


def _validation_error(node: type[JsonValue], error: TvmTargetError, value: object) -> ValidationError:
    """Return pydantic's error with one line for each problem, at its place in the value."""
    lines = [str(error)] if isinstance(error, TextError) else error.problems
    code = type(error).__name__.removesuffix("Error").lower()
    details = list[InitErrorDetails]()
    for line, problem in zip(lines, error.problems, strict=True):
        loc, found = _located(problem.loc if isinstance(problem, Problem) else (), value)
        custom = PydanticCustomError(code, "{problem}", {"problem": str(line)})
        details.append(InitErrorDetails(type=custom, loc=loc, input=found))
    return ValidationError.from_exception_data(node.__name__, details)


def _located(loc: Sequence[str | int], value: object) -> tuple[tuple[str | int, ...], object]:
    """Follow a place through a value as far as it has such keys; return the place and what is there."""
    place = list[str | int]()
    for key in loc:
        if isinstance(value, Mapping):
            spelled = key if key in value else next((one for one in value if fold(str(one)) in _spellings(key)), None)
            if spelled is None:
                break
            place.append(spelled)
            value = value[spelled]
        elif isinstance(value, list | tuple) and isinstance(key, int) and key < len(value):
            place.append(key)
            value = value[key]
        else:
            break
    return tuple(place), value


def _spellings(key: str | int) -> tuple[str, ...]:
    return ("targets", "devices") if key == "targets" else (fold(str(key)),)
