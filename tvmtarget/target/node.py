"""The frozen values a target tree is made of: links, memories, executors and runtimes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean
from tvmtarget.target.attributes import Attributes, Value
from tvmtarget.target.kinds import Kind, Role, kind_of

__all__ = ["Executor", "Link", "Memory", "Node", "Runtime", "read_attribute"]


class Node(BaseModel):
    """Base of the frozen values: strict, no extra fields, changed only by `replace`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise TargetError(*(_describe(problem) for problem in error.errors())) from error

    def replace(self, **changes: object) -> Self:
        """Return a copy with some fields changed, checked like a new one."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**(fields | changes))


def _describe(problem: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    message = str(problem["msg"])
    return f"{place or 'value'}: {message[:1].lower()}{message[1:]}, not {problem['input']!r}"


class Link(Node):
    """A way for data between two children: bandwidth in bytes per second, latency in nanoseconds.

    A coherent link joins the memory of its ends into one domain; any other link says they are apart.
    """

    src: str
    dst: str
    bandwidth_Bps: int | None = Field(default=None, ge=0)
    latency_ns: int | None = Field(default=None, ge=0)
    coherent: bool = False


class Memory(Node):
    """A memory of `bytes` bytes; children named in `of` share it (all of them when `of` is empty)."""

    name: str
    bytes: int | None = Field(default=None, ge=0)
    kind: str = "ram"
    of: tuple[str, ...] = ()


class _Configured(Node):
    """A kind and its attributes: an executor or a runtime."""

    role: ClassVar[Role]

    kind: str
    attrs: Attributes = Attributes()

    def __init__(self, kind: str, attrs: Mapping[str, object] | None = None) -> None:
        row = kind_of(kind, self.role) if isinstance(kind, str) else None
        values = row.normalise(attrs or {}, where="") if row else {}
        super().__init__(kind=kind, attrs=Attributes(values))

    def __getitem__(self, name: str) -> Value | None:
        """Return an attribute, else its default, else None; an unknown one is an error."""
        return read_attribute(kind_of(self.kind, self.role), self.attrs, name)

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
        raise TargetError(f"{cls.role} is a kind or an object with 'kind', not {data!r}")

    def to_json(self) -> dict[str, object]:
        """Return the flat object."""
        return {"kind": self.kind, **self.attrs}


class Executor(_Configured):
    """How the calls of a program are driven: `Executor("aot", {"unpacked-api": True})`."""

    role = "executor"


class Runtime(_Configured):
    """What a compiled program is linked with and run by: `Runtime("crt", {"system-lib": True})`."""

    role = "runtime"


def read_attribute(kind: Kind, attrs: Attributes, name: str) -> Value | None:
    """Return an attribute, else the default of its row; `UnknownNameError` if the kind has no such row."""
    if name in attrs:
        return attrs[name]
    row = kind.attribute(name)
    if row is None:
        names = (row.name for row in kind.attributes)
        raise UnknownNameError(f"kind {kind.name!r} has no attribute {name!r}{did_you_mean(name, names)}")
    return row.default
