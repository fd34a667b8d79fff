"""The kind table: what a target, executor or runtime kind is, and which attributes it has.

A kind is a row of data. Attribute names, types and defaults of the TVM kinds are those of TVM v0.8 to main
(`include/tvm/target/target_kind.h`, `src/target/target_kind.cc`, and, for executors and runtimes,
`src/relay/backend/{executor,runtime}.cc` at v0.9.0 to v0.19.0). Plugins add rows through the entry-point
group `tvmtarget.kinds`; the rows of this library come through it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from tvmtarget import plugins
from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean
from tvmtarget.target.attributes import Value, fold

__all__ = ["Attribute", "AttributeClass", "AttributeType", "Kind", "Role", "find_kind", "kind_names", "kind_of"]

Role: TypeAlias = Literal["target", "executor", "runtime"]
AttributeType: TypeAlias = Literal["int", "bool", "str", "list[str]", "list[int]", "features"]
AttributeClass: TypeAlias = Literal["hard", "isa", "capacity", "scale", "model", "soft", "none"]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Attribute(_Row):
    """One attribute of a kind.

    `class_` says what the attribute means, and from it follow comparison, key membership and merging:
    hard (must be equal), isa (legal instructions), capacity (at least so much), scale (how many),
    model (which chip), soft (changes speed only), none (a note).
    """

    name: str
    type: AttributeType
    class_: AttributeClass
    default: bool | int | str | tuple[int, ...] | None = None
    doc: str = ""
    since: str = "v0.9"


class Kind(_Row):
    """One kind of target, executor or runtime.

    `device` is TVM's device type by name (its number moved between versions). `is_external` marks a code
    generator that serves a device driven by somebody else; `can_host` marks kinds that drive other devices.
    """

    name: str
    role: Role = "target"
    device: str = "cpu"
    keys: tuple[str, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    can_host: bool = False
    is_external: bool = False
    doc: str = ""

    def attribute(self, name: str) -> Attribute | None:
        """Return the row of an attribute in either spelling, or None."""
        wanted = fold(name)
        return next((row for row in self.attributes if fold(row.name) == wanted), None)

    @property
    def features(self) -> Attribute | None:
        """The attribute that `+feature` and `-feature` write, if the kind has one."""
        return next((row for row in self.attributes if row.type == "features"), None)

    def normalise(self, attrs: Mapping[str, object], *, where: str) -> dict[str, Value]:
        """Check attributes against the rows and spell them canonically; all problems in one `TargetError`."""
        result: dict[str, Value] = {}
        problems: list[str] = []
        for name, value in attrs.items():
            row = self.attribute(name)
            if row is None:
                names = [row.name for row in self.attributes]
                tail = did_you_mean(name, names) if names else "; it has none"
                problems.append(f"kind {self.name!r} has no attribute {name!r}{tail}{where}")
            elif row.name in result:
                problems.append(f"attribute {row.name!r} of kind {self.name!r} is given twice{where}")
            else:
                try:
                    result[row.name] = _coerce(row, value)
                except ValueError as error:
                    problems.append(f"attribute {row.name!r} of kind {self.name!r} {error}{where}")
        if problems:
            raise TargetError(*problems)
        return result


def _coerce(row: Attribute, value: object) -> Value:
    """Read a value as the row's type; words of a text are strings until here."""
    match row.type:
        case "int":
            return _integer(value)
        case "bool":
            return _boolean(value)
        case "str":
            if isinstance(value, str):
                return str(value)
            if isinstance(value, int) and not isinstance(value, bool):
                return str(value)
            raise ValueError(f"is text, not {value!r}")
        case "list[str]":
            return tuple(str(item) for item in _items(value))
        case "list[int]":
            return tuple(_integer(item) for item in _items(value))
        case "features":
            return _features(str(item) for item in _items(value))


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"is a whole number, not {value!r}")
    try:
        number = int(value)
    except ValueError:
        raise ValueError(f"is a whole number, not {str(value)!r}") from None
    if abs(number) > 2**53 - 1:
        raise ValueError(f"is beyond 2**53 - 1: {number}")
    return number


def _boolean(value: object) -> bool:
    known = {"true": True, "false": False, "1": True, "0": False}
    text = str(value).lower()
    if isinstance(value, bool | int | str) and text in known:
        return known[text]
    raise ValueError(f"is true or false, not {value!r}")


def _items(value: object) -> tuple[object, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple):
        return tuple(value)
    raise ValueError(f"is a list, not {value!r}")


def _features(items: Iterable[str]) -> tuple[str, ...]:
    """Sort signed features into a set, '+' before '-'; a bare name means '+'."""
    signed = {item if item[:1] in ("+", "-") else f"+{item}" for item in items if item}
    both = sorted(item[1:] for item in signed if item[0] == "+" and f"-{item[1:]}" in signed)
    if both:
        raise ValueError(f"has feature {both[0]!r} both added and removed")
    return tuple(sorted(signed))


@cache
def _table(role: Role) -> dict[str, Kind]:
    table: dict[str, Kind] = {}
    for plugin in plugins.names("tvmtarget.kinds"):
        for kind in plugins.load("tvmtarget.kinds", plugin):
            if kind.role != role:
                continue
            if kind.name in table:
                raise TargetError(f"{role} kind {kind.name!r} is registered twice; the second time by {plugin!r}")
            table[kind.name] = kind
    return table


def kind_names(role: Role = "target") -> tuple[str, ...]:
    """List the kinds of a role, sorted."""
    return tuple(sorted(_table(role)))


def find_kind(name: str, role: Role = "target") -> Kind | None:
    """Return a kind's row, or None for one that no installed package registers."""
    return _table(role).get(name)


def kind_of(name: str, role: Role = "target", *, where: str = "") -> Kind:
    """Return a kind's row, or raise `UnknownNameError` with the nearest names."""
    kind = find_kind(name, role)
    if kind is None:
        what = "kind" if role == "target" else f"{role} kind"
        raise UnknownNameError(f"unknown {what} {name!r}{did_you_mean(name, kind_names(role))}{where}")
    return kind
