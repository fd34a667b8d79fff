"""Frozen values of a target tree: links, memories, executors and runtimes, and their common base class."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    InstanceOf,
    ValidationError,
    ValidatorFunctionWrapHandler,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tvmtarget.errors import (
    TargetError,
    TextError,
    UnknownNameError,
    raise_all,
    warn,
)
from tvmtarget.target.attributes import Attributes, Value
from tvmtarget.target.json_value import JsonValue
from tvmtarget.target.kinds import Kind, Role, kind_of
from tvmtarget.target.problems import Problems, shown
from tvmtarget.target.text.printing import write_value
from tvmtarget.target.validation_errors import no_field, own_error, words_of
from tvmtarget.target.values import MAX_INT, is_utf8
from tvmtarget.untrusted import parse_json

__all__ = [
    "HISTORIC_RUNTIMES",
    "Executor",
    "JsonNode",
    "Link",
    "Memory",
    "Node",
    "Runtime",
    "read_attribute",
    "read_attributes",
]


# Runtimes of TVM v0.8 and before by their names since.
HISTORIC_RUNTIMES = {"c": "crt", "c++": "cpp"}


class Node(BaseModel):
    """Base of the frozen values: strict types, no extra fields, changed only by `replace`."""

    # Validators are built when pydantic reads the first value of a class, which most programs never let it do.
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True, defer_build=True)

    def __init__(self, /, **values: object) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            # Users see one class of errors; pydantic's is its cause.
            raise own_error(type(self), error) from error

    def replace(self, **changes: object) -> Self:
        """Return a copy with some fields changed, checked like a new value.

        Args:
            changes: values by the names of fields in JSON, and by those in Python if the model takes them.

        Returns:
            The copy.

        Raises:
            TargetError: no such field, or values that a new one could not have.
        """
        written = {name: info.alias or name for name, info in type(self).model_fields.items()}
        fields = {alias: getattr(self, name) for name, alias in written.items()}
        names = {alias: alias for alias in fields} | (written if self.model_config.get("populate_by_name") else {})
        raise_all(TargetError, [no_field(type(self), name) for name in changes if name not in names])
        return type(self)(**(fields | {names[name]: value for name, value in changes.items()}))


_set = object.__setattr__  # that of pydantic refuses, as nodes are frozen


class _Fields(dict[str, object]):
    """The fields of a new node, as `JsonNode.__init__` passes them to pydantic: no value to be read."""


class JsonNode(JsonValue, Node):
    """Base of the nodes that have a JSON form of their own."""

    _schema_ref: ClassVar[str] = ""
    _names_of_fields: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, /, **values: object) -> None:
        try:
            self.__pydantic_validator__.validate_python(_Fields(values), self_instance=self)
        except ValidationError as error:
            raise own_error(type(self), error) from error

    def _fill(self, fields: dict[str, Any], private: dict[str, Any] | None = None) -> None:
        """Set all fields to values of their types; pydantic would check the types of each once more.

        Args:
            fields: values by the names of all fields; the node keeps the mapping.
            private: values of the private attributes, if the class has some.
        """
        _set(self, "__dict__", fields)
        _set(self, "__pydantic_fields_set__", self._names_of_fields)
        _set(self, "__pydantic_extra__", None)
        _set(self, "__pydantic_private__", private)

    @classmethod
    def __pydantic_init_subclass__(cls, **_options: object) -> None:
        cls._names_of_fields = frozenset(cls.model_fields)

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Return a copy; fields in `update` are checked, as by `replace`.

        Args:
            update: values by the names of fields.
            deep: copy nested values too.

        Returns:
            The copy.

        Raises:
            TargetError: no such field, or values that a new node could not have.
        """
        copied = super().model_copy(deep=deep)
        return copied.replace(**update) if update else copied

    def copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:  # type: ignore[override]
        """Return `model_copy`, which pydantic called so before version 2.

        Args:
            update: values by the names of fields.
            deep: copy nested values too.

        Returns:
            The copy.
        """
        return self.model_copy(update=update, deep=deep)

    @classmethod
    def model_construct(  # type: ignore[override]  # the first parameter has another name in pydantic's own stub
        cls, _fields_set: set[str] | None = None, **values: object
    ) -> Self:
        """Make a node of values by field; unlike other models of pydantic, it is checked.

        Args:
            _fields_set: ignored: the fields that are set are those that differ from their defaults.
            **values: values by the names of fields.

        Returns:
            The node.
        """
        return cls(**values)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        fields = cast("dict[str, Any]", {**handler(source)})
        # References to the class, from itself or other models, have to lead to the reader, not to the fields below it.
        cls._schema_ref = fields.pop("ref", cls._schema_ref)
        return cls._core_schema(cast("CoreSchema", fields), cls._schema_ref)

    @classmethod
    def _validated(cls, value: object, handler: ValidatorFunctionWrapHandler) -> object:
        return handler(value) if type(value) is _Fields else cls._read_field(value)


# By the type of a field, whether a value is certainly valid; pydantic judges and describes all others. Importing
# pydantic's validators takes longer than reading a whole system of the tags.
_IS_PLAIN: dict[object, Callable[[Any], bool]] = {
    str: lambda value: type(value) is str and value.isascii(),
    bool: lambda value: type(value) is bool,
    int | None: lambda value: value is None or (type(value) is int and 0 <= value <= MAX_INT),
    tuple[str, ...]: lambda value: type(value) is tuple and all(type(one) is str and one.isascii() for one in value),
}


class _Fact(JsonNode):
    """A statement about the children of a node; flat JSON leaves its defaults out.

    The numbers of all its classes are from 0 to `MAX_INT`.
    """

    _defaults: ClassVar[Mapping[str, object]] = {}
    _plain: ClassVar[Mapping[str, Callable[[Any], bool]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **options: object) -> None:
        super().__pydantic_init_subclass__(**options)
        cls._defaults = {name: info.default for name, info in cls.model_fields.items()}  # of no type if required
        cls._plain = {name: _IS_PLAIN[info.annotation] for name, info in cls.model_fields.items()}

    def __init__(self, /, **values: object) -> None:
        fields = {**self._defaults, **values}
        if fields.keys() == self._plain.keys() and all(
            is_plain(fields[name]) for name, is_plain in self._plain.items()
        ):
            self._fill(fields)
        else:
            lists = {name for name, default in self._defaults.items() if isinstance(default, tuple)}
            super().__init__(
                **{name: tuple(one) if name in lists and isinstance(one, list) else one for name, one in values.items()}
            )
            raise_all(TargetError, [*self._broken_texts()])
            # Before version 2.14 of pydantic, models of equal values differ if not the same fields were given.
            self._fill({name: getattr(self, name) for name in self._plain})
        raise_all(TargetError, [*self._problems()])

    def _problems(self) -> Iterable[str]:
        """Report values that have the right types."""
        return ()

    def _broken_texts(self) -> Iterator[str]:
        """Report texts that pydantic accepts but that have no UTF-8, so that the node has no JSON and no digest."""
        for name in self._plain:
            value = getattr(self, name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and not is_utf8(text):
                    yield f"{name!r} of {words_of(type(self))} has half of a surrogate pair in it: {shown(text)}"

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read an object of flat JSON.

        Args:
            data: a mapping, in which lists are read as tuples, or an instance of the class.

        Returns:
            The value.

        Raises:
            TargetError: unknown or missing fields, or values of wrong types.
        """
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise TargetError(f"a {cls.__name__.lower()} is an object, not {shown(data)}")
        return cls(**{str(key): value for key, value in data.items()})

    @classmethod
    def list_from_json(cls, rows: object, field: str) -> tuple[Self, ...]:
        """Read a list of objects; instances of the class are taken as they are.

        Args:
            rows: the list.
            field: name of the field that holds the list, for messages.

        Returns:
            The values in their order.

        Raises:
            TargetError: `rows` is no list, or some objects are wrong; all problems at once.
        """
        if not isinstance(rows, list | tuple):
            raise TargetError(f"{field!r} is a list of objects, not {shown(rows)}")
        problems, read = Problems(), list[Self]()
        for at, row in enumerate(rows):
            with problems.collect(loc=(at,)):
                read.append(cls.from_json(row))
        problems.raise_all()
        return tuple(read)

    def to_json(self) -> dict[str, object]:
        """Return the object without its defaults."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
            if value != type(self).model_fields[name].default
        }


class Link(_Fact):
    """A connection between two children of a node.

    `src` and `dst` are names of children, `bandwidth_Bps` is in bytes per second and `latency_ns` in nanoseconds. A
    coherent link joins the memories of its ends into one memory domain; any other link keeps them apart. A link
    leads both ways, unless another one states the way back.
    """

    src: str
    dst: str
    bandwidth_Bps: int | None = Field(default=None, ge=0, le=MAX_INT)
    latency_ns: int | None = Field(default=None, ge=0, le=MAX_INT)
    coherent: bool = False


class Memory(_Fact):
    """A memory of `bytes` bytes that is shared by the children named in `of`.

    If `of` is empty, all children share it, or it is the memory of a leaf itself. `bandwidth_Bps` is the peak read rate
    in bytes per second. Memories of kind `eeprom`, `flash`, `mram`, `nvm` and `rom` hold code and constants, those of
    all other kinds values, too.
    """

    # Kinds of memories that programs cannot write.
    _READ_ONLY: ClassVar = frozenset({"eeprom", "flash", "mram", "nvm", "rom"})
    _COMMON_KINDS: ClassVar = frozenset({"dram", "ram", "sram"})

    name: str
    bytes: int | None = Field(default=None, ge=0, le=MAX_INT)
    kind: str = "ram"
    bandwidth_Bps: int | None = Field(default=None, ge=0, le=MAX_INT)
    of: tuple[str, ...] = ()

    @property
    def is_read_only(self) -> bool:
        """Whether it holds code and constants, and no values that a program computes."""
        return self.kind in self._READ_ONLY

    def _problems(self) -> Iterator[str]:
        if not self.name:
            yield "a memory has a name, not ''"
        if self.kind not in self._COMMON_KINDS and not self.is_read_only:
            import difflib  # only messages need it, and reading a target is to start fast

            # Any other kind is that of a memory for values, so that one that is mistyped would change a plan.
            parts = re.split("[-_ ]", self.kind.lower())
            near = [kind for part in parts for kind in difflib.get_close_matches(part, sorted(self._READ_ONLY), 1, 0.8)]
            if near:
                yield f"memory {self.name!r} has kind {self.kind!r}; did you mean {near[0]!r}?"


class _Configured(JsonNode):
    """A kind and its attributes: the base of `Executor` and `Runtime`."""

    role: ClassVar[Role]

    kind: str
    attrs: InstanceOf[Attributes] = Attributes()

    def __init__(self, kind: str | Mapping[str, object], attrs: Mapping[str, object] | None = None) -> None:
        if isinstance(kind, str) and ("(" in kind or "{" in kind):
            kind = _read_text(kind)
        if isinstance(kind, Mapping):
            if attrs is not None:
                raise TargetError(
                    f"attributes of {self.role} {shown(kind)} are in the object; leave out {shown(attrs)}"
                )
            rest = {str(name): value for name, value in kind.items() if name != "kind"}
            name, attrs = kind.get("kind"), rest
        else:
            name = kind
        modern = HISTORIC_RUNTIMES.get(name) if self.role == "runtime" and isinstance(name, str) else None
        if modern is not None:
            warn(f"runtime {name!r} is historic; write {modern!r}")
        row = kind_of(modern or name, self.role)
        self._fill({"kind": row.name, "attrs": read_attributes(row, attrs)})

    def __getitem__(self, name: str) -> Value | None:
        """Return an attribute, else its default, else None.

        Args:
            name: the attribute, with '-' or '_'.

        Raises:
            UnknownNameError: the kind has no such attribute.
        """
        return read_attribute(kind_of(self.kind, self.role), self.attrs, name)

    def __str__(self) -> str:
        return write_value(self.to_json())

    def __repr__(self) -> str:
        attrs = f", {self.attrs.to_json()!r}" if self.attrs else ""
        return f"{type(self).__name__}({self.kind!r}{attrs})"

    def __contains__(self, name: object) -> bool:
        """Whether an attribute is stated or has a default."""
        row = kind_of(self.kind, self.role).attribute(str(name))
        return row is not None and (row.name in self.attrs or row.default_beside(self.attrs) is not None)

    def __hash__(self) -> int:
        return hash((self.kind, self.attrs))

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read an object of flat JSON or a text.

        Args:
            data: a mapping with `kind` and attributes, the name of a kind, the text that `str` or `json.dumps` makes,
                or an instance of the class.

        Returns:
            The value.

        Raises:
            TargetError: `data` is none of these, or attributes are wrong.
            UnknownNameError: there is no such kind.
        """
        if isinstance(data, cls):
            return data
        if isinstance(data, str) or (isinstance(data, Mapping) and "kind" in data):
            return cls(data)
        raise TargetError(f"{cls.role} is a kind or an object with 'kind', not {shown(data)}")

    def to_json(self) -> dict[str, object]:
        """Return an object of flat JSON: `kind` and the attributes."""
        return {"kind": self.kind} | self.attrs.to_json()

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        from tvmtarget.target.schema import configured_schema

        return configured_schema(cls.role)


def _read_text(text: str) -> Mapping[str, object]:
    """Read an executor or runtime in the one-line form, as `str` prints it, or in JSON."""
    if text.lstrip()[:1] == "{":
        return cast("Mapping[str, object]", parse_json(text, "the text", error=TextError))
    from tvmtarget.target.text.one_line import read_one_line  # names of kinds, which most texts are, need no parser

    return read_one_line(text.strip())


class Executor(_Configured):
    """The executor of a program, which makes its calls: `Executor("aot", {"unpacked-api": True})`.

    Flat JSON and texts are read too: `Executor({"kind": "aot", "unpacked-api": True})`,
    `Executor("aot(unpacked-api=true)")`.
    """

    role = "executor"

    def __init__(self, kind: str | Mapping[str, object], attrs: Mapping[str, object] | None = None) -> None:
        super().__init__(kind, attrs)


class Runtime(_Configured):
    """The runtime of a compiled program: `Runtime("crt", {"system-lib": True})`.

    Flat JSON and texts are read as by `Executor`; `Runtime("c")` and `Runtime("c++")` are historic names.
    """

    role = "runtime"

    def __init__(self, kind: str | Mapping[str, object], attrs: Mapping[str, object] | None = None) -> None:
        super().__init__(kind, attrs)


def read_attributes(kind: Kind, attrs: object) -> Attributes:
    """Check attributes against the table of a kind.

    Args:
        kind: the kind.
        attrs: a mapping of names to values, or None.

    Returns:
        The attributes in canonical spelling.

    Raises:
        TargetError: `attrs` is no mapping, or attributes are wrong; all problems at once.
    """
    if type(attrs) is not dict and not isinstance(attrs, Mapping | None):
        raise TargetError(f"attributes are a mapping of names to values, not {shown(attrs)}")
    if type(attrs) is Attributes and attrs.table is kind:
        return attrs
    return Attributes(kind.normalise(attrs or {}), kind)


def read_attribute(kind: Kind, attrs: Attributes, name: str) -> Value | None:
    """Return an attribute of a node, or its default.

    Args:
        kind: the kind of the node.
        attrs: the attributes that the node states; a default can depend on them.
        name: the attribute, with '-' or '_'.

    Returns:
        The value, or None if it is not stated and has no default.

    Raises:
        UnknownNameError: the kind has no such attribute.
    """
    if name in attrs:
        return attrs[name]
    row = kind.attribute(name)
    if row is None:
        raise UnknownNameError(kind.unknown(name))
    return row.default_beside(attrs)
