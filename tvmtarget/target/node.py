"""The frozen values a target tree is made of: links, memories, executors and runtimes."""

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


# What pydantic's errors mean, in the words of this library.
_WANTED = {
    "string_type": "is text",
    "string_unicode": "is text without halves of surrogate pairs",
    "int_type": "is a whole number",
    "bool_type": "is true or false",
    "tuple_type": "is a list",
    "greater_than_equal": "is at least {ge}",
    "less_than_equal": "is at most {le}",
}


class Node(BaseModel):
    """Base of the frozen values: strict, no extra fields, changed only by `replace`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True)

    def __init__(self, /, **values: object) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _own_error(error) or TargetError(
                *(_describe(type(self), problem) for problem in error.errors())
            ) from error

    def replace(self, **changes: object) -> Self:
        """Return a copy with some fields changed, checked like a new one."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        unknown = [name for name in changes if name not in fields]
        raise_all(TargetError, [_no_field(type(self), name) for name in unknown])
        return type(self)(**(fields | changes))


def _own_error(error: ValidationError) -> TvmTargetError | None:
    """Return the error of this library that a check of a node raised; pydantic keeps it as context of its own."""
    found = [problem.get("ctx", {}).get("error") for problem in error.errors(include_url=False)]
    return next((one for one in found if isinstance(one, TvmTargetError)), None)


def _describe(node: type[Node], problem: Mapping[str, Any]) -> str:
    what, field = node.__name__.lower(), ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"a {what} needs {shown(field)}, and {shown(problem['input'])} has none"
    if problem["type"] == "extra_forbidden":
        return _no_field(node, field)
    wanted = _WANTED.get(problem["type"], "is not right ({})").format(problem["msg"], **problem.get("ctx", {}))
    return f"{shown(field)} of a {what} {wanted}, not {shown(problem['input'])}"


def _no_field(node: type[Node], field: str) -> str:
    tail = did_you_mean(field, node.model_fields, listing="it has")
    return f"a {node.__name__.lower()} has no field {shown(field)}{tail}"


class _Fact(Node):
    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read an object; lists stand for tuples."""
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
    """A way for data between two children: bandwidth in bytes per second, latency in nanoseconds.

    A coherent link joins the memory of its ends into one domain; any other link says they are apart.
    """

    src: str
    dst: str
    bandwidth_Bps: int | None = Field(default=None, ge=0, le=MAX_INT)
    latency_ns: int | None = Field(default=None, ge=0, le=MAX_INT)
    coherent: bool = False


class Memory(_Fact):
    """A memory of `bytes` bytes; children named in `of` share it (all of them, or a leaf itself, if `of` is empty).

    `bandwidth_Bps` is the peak rate of reading it, in bytes per second.
    """

    name: str
    bytes: int | None = Field(default=None, ge=0, le=MAX_INT)
    kind: str = "ram"
    bandwidth_Bps: int | None = Field(default=None, ge=0, le=MAX_INT)
    of: tuple[str, ...] = ()


class _Configured(Node):
    """A kind and its attributes: an executor or a runtime."""

    role: ClassVar[Role]

    kind: str
    attrs: Attributes = Attributes()

    def __init__(self, kind: str, attrs: Mapping[str, object] | None = None) -> None:
        super().__init__(kind=kind, attrs=read_attributes(kind_of(kind, self.role), attrs))

    def __getitem__(self, name: str) -> Value | None:
        """Return an attribute, else its default, else None; an unknown one is an error."""
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
        """Read a flat object or a bare kind."""
        if isinstance(data, cls):
            return data
        if isinstance(data, str):
            return cls(data)
        if isinstance(data, Mapping) and isinstance(data.get("kind"), str):
            return cls(data["kind"], {key: value for key, value in data.items() if key != "kind"})
        raise TargetError(f"{cls.role} is a kind or an object with 'kind', not {shown(data)}")

    def to_json(self) -> dict[str, object]:
        """Return the flat object."""
        return {"kind": self.kind} | self.attrs.to_json()


class Executor(_Configured):
    """How the calls of a program are driven: `Executor("aot", {"unpacked-api": True})`."""

    role = "executor"

    def __init__(self, kind: str, attrs: Mapping[str, object] | None = None) -> None:
        super().__init__(kind, attrs)


class Runtime(_Configured):
    """What a compiled program is linked with and run by: `Runtime("crt", {"system-lib": True})`."""

    role = "runtime"

    def __init__(self, kind: str, attrs: Mapping[str, object] | None = None) -> None:
        super().__init__(kind, attrs)


def read_attributes(kind: Kind, attrs: object) -> Attributes:
    """Check attributes against the rows of a kind; all problems in one `TargetError`."""
    if not isinstance(attrs, Mapping | None):
        raise TargetError(f"attributes are a mapping of names to values, not {shown(attrs)}")
    return Attributes(kind.normalise(attrs or {}))


def opaque_attributes(kind: str, attrs: Mapping[str, object]) -> Attributes:
    """Check attributes of a kind that no installed package registers: they are kept as they are."""
    kept: dict[str, Value] = {}
    problems: list[str] = []
    for name, value in attrs.items():
        if not (name and name.isascii()):
            problems.append(f"attribute name {shown(name)} of kind {shown(kind)} is not in plain ASCII")
        elif fold(name) in map(fold, kept):
            problems.append(f"attribute {shown(name)} of kind {shown(kind)} is given twice")
        else:
            try:
                kept[name] = read_opaque(value)
            except ValueError as error:
                problems.append(f"attribute {shown(name)} of kind {shown(kind)} {error}")
    raise_all(TargetError, problems)
    return Attributes(kept)


def read_attribute(kind: Kind, attrs: Attributes, name: str) -> Value | None:
    """Return an attribute, else its default beside the others; `UnknownNameError` if the kind has no such row."""
    if name in attrs:
        return attrs[name]
    row = kind.attribute(name)
    if row is None:
        raise UnknownNameError(kind.unknown(name))
    return row.default_beside(attrs)
