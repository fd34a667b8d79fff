"""Frozen values of a target tree: links, memories, executors and runtimes, and their common base class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tvmtarget.errors import TargetError, TvmTargetError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.target.attributes import Attributes, Value, fold
from tvmtarget.target.kinds import Kind, Role, kind_of
from tvmtarget.target.problems import Problems, shown
from tvmtarget.target.text.printing import write_value
from tvmtarget.target.values import MAX_INT, read_opaque

__all__ = ["Executor", "Link", "Memory", "Node", "Runtime", "opaque_attributes", "read_attribute", "read_attributes"]


# Messages of this library for the types of pydantic's errors.
_EXPECTED = {
    "string_type": "is text",
    "string_unicode": "is text without halves of surrogate pairs",
    "int_type": "is a whole number",
    "bool_type": "is true or false",
    "tuple_type": "is a list",
    "greater_than_equal": "is at least {ge}",
    "less_than_equal": "is at most {le}",
}


class Node(BaseModel):
    """Base of the frozen values: strict types, no extra fields, changed only by `replace`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True)

    def __init__(self, /, **values: object) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            # Users see one class of errors; pydantic's is its cause.
            raise _own_error(error) or TargetError(
                *(_describe(type(self), problem) for problem in error.errors())
            ) from error

    def replace(self, **changes: object) -> Self:
        """Return a copy with some fields changed, checked like a new value.

        Args:
            changes: values by the names of fields.

        Returns:
            The copy.

        Raises:
            TargetError: no such field, or values that a new one could not have.
        """
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        unknown = [name for name in changes if name not in fields]
        raise_all(TargetError, [_no_field(type(self), name) for name in unknown])
        return type(self)(**(fields | changes))


def _own_error(error: ValidationError) -> TvmTargetError | None:
    """Return the error of this library that a check raised, which pydantic keeps in the context of its own error."""
    found = [problem.get("ctx", {}).get("error") for problem in error.errors(include_url=False)]
    return next((one for one in found if isinstance(one, TvmTargetError)), None)


def _describe(node: type[Node], problem: Mapping[str, Any]) -> str:
    what, field = node.__name__.lower(), ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"a {what} needs {shown(field)}, and {shown(problem['input'])} has none"
    if problem["type"] == "extra_forbidden":
        return _no_field(node, field)
    expected = _EXPECTED.get(problem["type"], "is not right ({})").format(problem["msg"], **problem.get("ctx", {}))
    return f"{shown(field)} of a {what} {expected}, not {shown(problem['input'])}"


def _no_field(node: type[Node], field: str) -> str:
    tail = did_you_mean(field, node.model_fields, listing="it has")
    return f"a {node.__name__.lower()} has no field {shown(field)}{tail}"


class _Fact(Node):
    """A statement about the children of a node; flat JSON leaves its defaults out."""

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
        return cls(**{str(key): tuple(value) if isinstance(value, list) else value for key, value in data.items()})

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
        for row in rows:
            with problems.collect():
                read.append(cls.from_json(row))
        problems.raise_all()
        return tuple(read)

    def to_json(self) -> dict[str, object]:
        """Return the object without its defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Link(_Fact):
    """A connection between two children of a node.

    `src` and `dst` are names of children, `bandwidth_Bps` is in bytes per second and `latency_ns` in nanoseconds. A
    coherent link joins the memories of its ends into one memory domain; any other link keeps them apart.
    """

    src: str
    dst: str
    bandwidth_Bps: int | None = Field(default=None, ge=0, le=MAX_INT)
    latency_ns: int | None = Field(default=None, ge=0, le=MAX_INT)
    coherent: bool = False


class Memory(_Fact):
    """A memory of `bytes` bytes that is shared by the children named in `of`.

    If `of` is empty, all children share it, or it is the memory of a leaf itself. `bandwidth_Bps` is the peak read rate
    in bytes per second.
    """

    name: str
    bytes: int | None = Field(default=None, ge=0, le=MAX_INT)
    kind: str = "ram"
    bandwidth_Bps: int | None = Field(default=None, ge=0, le=MAX_INT)
    of: tuple[str, ...] = ()


class _Configured(Node):
    """A kind and its attributes: the base of `Executor` and `Runtime`."""

    role: ClassVar[Role]

    kind: str
    attrs: Attributes = Attributes()

    def __init__(self, kind: str, attrs: Mapping[str, object] | None = None) -> None:
        super().__init__(kind=kind, attrs=read_attributes(kind_of(kind, self.role), attrs))

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
        """Read an object of flat JSON or the name of a kind.

        Args:
            data: a mapping with `kind` and attributes, a name, or an instance of the class.

        Returns:
            The value.

        Raises:
            TargetError: `data` is none of these, or attributes are wrong.
            UnknownNameError: there is no such kind.
        """
        if isinstance(data, cls):
            return data
        if isinstance(data, str):
            return cls(data)
        if isinstance(data, Mapping) and isinstance(data.get("kind"), str):
            return cls(data["kind"], {key: value for key, value in data.items() if key != "kind"})
        raise TargetError(f"{cls.role} is a kind or an object with 'kind', not {shown(data)}")

    def to_json(self) -> dict[str, object]:
        """Return an object of flat JSON: `kind` and the attributes."""
        return {"kind": self.kind} | self.attrs.to_json()


class Executor(_Configured):
    """The executor of a program, which makes its calls: `Executor("aot", {"unpacked-api": True})`."""

    role = "executor"

    def __init__(self, kind: str, attrs: Mapping[str, object] | None = None) -> None:
        super().__init__(kind, attrs)


class Runtime(_Configured):
    """The runtime of a compiled program: `Runtime("crt", {"system-lib": True})`."""

    role = "runtime"

    def __init__(self, kind: str, attrs: Mapping[str, object] | None = None) -> None:
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
    if not isinstance(attrs, Mapping | None):
        raise TargetError(f"attributes are a mapping of names to values, not {shown(attrs)}")
    return Attributes(kind.normalise(attrs or {}))


def opaque_attributes(kind: str, attrs: Mapping[str, object]) -> Attributes:
    """Check attributes of a kind that no installed package registers.

    Args:
        kind: name of the kind, for messages.
        attrs: values by name.

    Returns:
        The attributes as they are written.

    Raises:
        TargetError: names that are not ASCII or repeat, or values that no kind could have; all problems at once.
    """
    read: dict[str, Value] = {}
    problems: list[str] = []
    for name, value in attrs.items():
        if not (name and name.isascii()):
            problems.append(f"attribute name {shown(name)} of kind {shown(kind)} is not in plain ASCII")
        elif fold(name) in map(fold, read):
            problems.append(f"attribute {shown(name)} of kind {shown(kind)} is given twice")
        else:
            try:
                read[name] = read_opaque(value)
            except ValueError as error:
                problems.append(f"attribute {shown(name)} of kind {shown(kind)} {error}")
    raise_all(TargetError, problems)
    return Attributes(read)


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
