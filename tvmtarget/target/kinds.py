"""The tables of kinds: of targets, executors and runtimes, with the attributes that each has.

A kind is data. Names, types and defaults of the attributes of TVM's kinds are those of TVM v0.8 to main
(`include/tvm/target/target_kind.h`, `src/target/target_kind.cc`, and, for executors and runtimes,
`src/relay/backend/{executor,runtime}.cc` at v0.9.0 to v0.19.0). Plugins add kinds by entry points of the group
`tvmtarget.kinds`, as does this library (`builtin_kinds.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from tvmtarget import plugins
from tvmtarget.errors import BackendError, Problem, TargetError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.target.argument_types import check_arguments
from tvmtarget.target.attributes import Value, fold
from tvmtarget.target.cpu.chips import chip_problems
from tvmtarget.target.problems import known_word, shown
from tvmtarget.target.text.words import RESERVED, is_word
from tvmtarget.target.validation_errors import own_error
from tvmtarget.target.values import READERS, AttributeType, read_integer, read_quantity

__all__ = [
    "Attribute",
    "AttributeClass",
    "AttributeType",
    "Kind",
    "Role",
    "find_kind",
    "kind_names",
    "kind_of",
    "kinds",
]

Role: TypeAlias = Literal["target", "executor", "runtime"]
AttributeClass: TypeAlias = Literal["hard", "isa", "capacity", "scale", "model", "soft", "none"]


class _Row(BaseModel):
    # Validators are built when a plugin makes the first row; importing pydantic's part for it takes 20 ms.
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", defer_build=True)

    _defaults: ClassVar[Mapping[str, object]] = {}

    def __init__(self, /, **values: object) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise own_error(type(self), error) from error

    @classmethod
    def of_library(cls, **values: object) -> Self:
        """Make a row of this library's own tables, which a test checks, without its validators.

        Args:
            values: values by the names of fields.

        Returns:
            The row.
        """
        row = object.__new__(cls)
        object.__setattr__(row, "__dict__", {**cls._defaults, **values})
        object.__setattr__(row, "__pydantic_fields_set__", set(values))
        object.__setattr__(row, "__pydantic_extra__", None)
        object.__setattr__(row, "__pydantic_private__", None)
        return row

    @classmethod
    def __pydantic_init_subclass__(cls, **_options: object) -> None:
        cls._defaults = {name: field.default for name, field in cls.model_fields.items()}


class Attribute(_Row):
    """One attribute of a kind.

    `class_` is the meaning of the attribute, which decides how it is compared, which keys it is part of, and how it is
    merged: hard (must be equal), isa (legal instructions), capacity (at least as much), scale (how many), model (which
    chip), soft (affects speed only), none (a note). `least` and `most` are the smallest and the largest legal number,
    `choices` are all legal values as text, and `power_of_two` is for alignments.

    `derived` is a default that depends on another attribute: it applies if that has a value (`derived_if`: name and
    value), or always if `derived_if` is None. Unlike `default`, identity does not omit it.
    """

    name: str
    type: AttributeType
    class_: AttributeClass
    default: bool | int | str | tuple[int, ...] | None = None
    derived: bool | int | str | None = None
    derived_if: tuple[str, bool | int | str] | None = None
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    power_of_two: bool = False
    doc: str = ""
    since: str = "v0.9"

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Reject a name that no target could state, and a default that is not a legal value."""
        if not (is_word(self.name) and self.name.isascii()):
            raise TargetError(f"the name of an attribute is a word in ASCII, not {self.name!r}")
        if self.default is not None:
            try:
                wrong = self.out_of_range(self.read(self.default))
            except ValueError as error:
                wrong = str(error)
            if wrong:
                raise TargetError(f"the default of attribute {self.name!r} {wrong}")
        return self

    def read(self, value: object) -> Value:
        """Convert a value to the type of this attribute.

        Args:
            value: a value of JSON or a word of a text; a quantity such as `64KiB` is an integer too.

        Returns:
            The value.

        Raises:
            ValueError: the value is not of that type.
        """
        return self.convert(value)

    @cached_property
    def convert(self) -> Callable[[object], Value]:
        """What `read` calls; a node looks it up once for each of its attributes."""
        return self._read_quantity if self.type == "int" else READERS[self.type]

    def _read_quantity(self, value: object) -> int:
        # Only words have units, so that a number needs no search for one.
        return read_integer(read_quantity(self.name, self.doc, value) if isinstance(value, str) else value)

    @cached_property
    def is_limited(self) -> bool:
        """Whether some values of its type are out of range."""
        return self.least is not None or self.most is not None or self.power_of_two or bool(self.choices)

    def out_of_range(self, value: Value) -> str:
        """Compare a value with the limits of this attribute.

        Args:
            value: a value of its type.

        Returns:
            What values are right, to follow the name of the attribute in a message; empty if this one is.
        """
        if self.least is not None and isinstance(value, int) and value < self.least:
            return f"is at least {self.least}, not {value}"
        if self.most is not None and isinstance(value, int) and value > self.most:
            return f"is at most {self.most}, not {value}"
        if self.power_of_two and isinstance(value, int) and value & (value - 1):
            return f"is a power of two, not {value}"
        if self.choices and isinstance(value, str | int) and str(value) not in self.choices:
            return f"is {' or '.join(self.choices)}, not {shown(value)}"
        return ""

    def default_beside(self, attrs: Mapping[str, Value]) -> Value | None:
        """Return the default of this attribute in a node.

        Args:
            attrs: the attributes that the node states.

        Returns:
            The derived default if it applies, else that of the kind, else None.
        """
        is_implied = self.derived_if is None or attrs.get(self.derived_if[0]) == self.derived_if[1]
        return self.default if self.derived is None or not is_implied else self.derived

    @property
    def is_list(self) -> bool:
        """Whether values are lists, whose items a text separates by '+' or ','."""
        return self.type in ("list[str]", "list[int]", "features")


class Kind(_Row):
    """One kind of target, executor or runtime.

    `device` is TVM's device type by name (its number changed between versions). `is_external` marks an external code
    generator, whose device is driven by another target; `can_host` marks kinds that drive other devices. `hardware`
    names the accelerator that the code needs besides a processor. `until` is the last version of TVM that has the kind,
    if it was removed. A runtime that `is_distributed` runs each machine of a cluster in a process of its own.
    """

    name: str
    role: Role = "target"
    device: str = "cpu"
    keys: tuple[str, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    can_host: bool = False
    is_external: bool = False
    is_distributed: bool = False
    hardware: str = ""
    until: str = ""
    doc: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Reject a name that no target could state, and attributes that have one name or that of a field."""
        if not is_word(self.name):
            raise TargetError(f"the name of a kind is a word, not {self.name!r}")
        names = [fold(row.name) for row in self.attributes]
        reserved = next((name for name in names if name in RESERVED), None)
        if reserved is not None:
            raise TargetError(f"kind {self.name!r} has an attribute {reserved!r}, which is a field of every target")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise TargetError(f"kind {self.name!r} has two attributes {twice!r}")
        return self

    def attribute(self, name: str) -> Attribute | None:
        """Return the row of an attribute.

        Args:
            name: its name, with '-' or '_'.

        Returns:
            The row, or None.
        """
        return self.by_spelling.get(fold(str(name)))

    @cached_property
    def by_spelling(self) -> Mapping[str, Attribute]:
        """The rows by their names as TVM spells them, and by those with '-' for '_'."""
        return {spelled: row for row in self.attributes for spelled in (row.name, fold(row.name))}

    @cached_property
    def defaults(self) -> Mapping[str, Value]:
        """Default of each attribute, or an empty list; without derived defaults.

        Identity omits values that equal these. A derived default depends on other attributes, which may change.
        """
        return {row.name: () if row.default is None else row.default for row in self.attributes}

    @property
    def features(self) -> Attribute | None:
        """The attribute that `+feature` and `-feature` set, or None."""
        return next((row for row in self.attributes if row.type == "features"), None)

    def unknown(self, name: str) -> str:
        """Return the message about an attribute that this kind does not have.

        Args:
            name: the name that was written.

        Returns:
            The message, with the nearest names.
        """
        # TVM writes derived features as attributes `feature.*`; accepting them would let a text contradict its CPU.
        if fold(str(name)).partition(".")[0] in ("feature", "features"):
            tail = f"; add one to {self.features.name!r}" if self.features is not None else ""
            return f"{shown(name)} is derived from the attributes of a target, never given{tail}"
        # TVM moved some attributes from one to the other: its first runtimes had `link-params`.
        parts: tuple[Role, ...] = ("executor", "runtime")
        owners = [f"{role} {kind.name!r}" for role in parts for kind in kinds(role) if kind.attribute(name)]
        names = [row.name for row in self.attributes]
        tail = did_you_mean(str(name), names, listing="it has") if names else "; it has none"
        tail = f"; it is an attribute of {' and '.join(owners)}" if owners else tail
        return f"kind {self.name!r} has no attribute {shown(name)}{tail}"

    def without_features(self, features: Sequence[str]) -> str:
        """Return the message about features of a kind that has none.

        Args:
            features: the signed features that were written.

        Returns:
            The message.
        """
        return f"kind {self.name!r} has no features, so {', '.join(map(shown, features))} has no meaning"

    def normalise(self, attrs: Mapping[str, object]) -> dict[str, Value]:
        """Check attributes against the table, and spell names and values canonically.

        Args:
            attrs: values by name.

        Returns:
            The values by canonical name, in the order of `attrs`.

        Raises:
            TargetError: attributes that are unknown, given twice, of a wrong type or out of range; all problems at
                once.
        """
        result: dict[str, Value] = {}
        problems: list[str] = []
        rows = self.by_spelling
        for name, value in attrs.items():
            row = rows.get(name) or self.attribute(name)
            if row is None:
                problems.append(Problem(self.unknown(name), (name,)))
            elif row.name in result:
                problems.append(Problem(f"attribute {row.name!r} of kind {self.name!r} is given twice", (name,)))
            else:
                try:
                    result[row.name] = row.convert(value)
                except ValueError as error:
                    problems.append(Problem(f"attribute {row.name!r} of kind {self.name!r} {error}", (name,)))
        for name, value in result.items():
            row = rows[name]
            if row.is_limited and (wrong := row.out_of_range(value)):
                problems.append(Problem(f"attribute {name!r} of kind {self.name!r} {wrong}", (name,)))
        if self.role == "target":
            problems += chip_problems(self.name, result)
        raise_all(TargetError, problems)
        return result


@plugins.cached
def _table(role: Role) -> dict[str, Kind]:
    """Return all kinds of a role by name; those of this library first, so that no plugin replaces one."""
    known_word("role", role, get_args(Role), UnknownNameError)
    table: dict[str, Kind] = {}
    # False sorts before True: `builtin` is first, then all others by name.
    for plugin in sorted(plugins.names("tvmtarget.kinds"), key=lambda name: name != "builtin"):
        again: list[str] = []
        for kind in _kinds_of(plugin):
            if kind.role == role and table.setdefault(kind.name, kind) is not kind:
                again.append(kind.name)
        if again:
            names = f"{again[0]!r} is" if len(again) == 1 else f"{again[0]!r} and {len(again) - 1} more are"
            owner = plugins.owner_of("tvmtarget.kinds", plugin)
            plugins.report(f"{role} kind {names} registered twice; the second time by {owner}")
    return table


def _kinds_of(plugin: str) -> Iterable[Kind]:
    """Return the kinds of a plugin; report it and return none if it does not load or is no tuple of kinds."""
    try:
        loaded = plugins.load("tvmtarget.kinds", plugin)
    except BackendError as error:
        plugins.report(str(error))
        return ()
    kinds = tuple(loaded) if isinstance(loaded, Iterable) else None
    if kinds is None or not all(isinstance(kind, Kind) for kind in kinds):
        owner = plugins.owner_of("tvmtarget.kinds", plugin)
        plugins.report(f"plugin {plugin!r} of {owner} is {shown(loaded)}; it should be a tuple of tvmtarget.Kind")
        return ()
    return kinds


def kind_names(role: Role = "target") -> tuple[str, ...]:
    """List the names of the kinds of a role.

    Args:
        role: target, executor or runtime.

    Returns:
        The names, sorted.
    """
    return tuple(sorted(_table(role)))


@check_arguments
def kinds(role: Role = "target") -> tuple[Kind, ...]:
    """Return the kinds of a role, with their attributes.

    Args:
        role: target, executor or runtime.

    Returns:
        The kinds of all installed packages, sorted by name.

    Raises:
        UnknownNameError: there is no such role.

    >>> [kind.name for kind in kinds("executor")]
    ['aot', 'graph', 'vm']
    """
    return tuple(_table(role)[name] for name in kind_names(role))


def find_kind(name: str, role: Role = "target") -> Kind | None:
    """Return a kind, or None if no installed package registers it.

    Args:
        name: its name.
        role: target, executor or runtime.

    Returns:
        The kind, or None.

    Raises:
        TargetError: the name is no text.
        UnknownNameError: there is no such role.
    """
    if not isinstance(name, str):
        raise TargetError(f"the name of a kind is a text, not {shown(name)}")
    if not isinstance(role, str):
        raise TargetError(f"the role of a kind is a text, not {shown(role)}")
    return _table(role).get(name)


def kind_of(name: object, role: Role = "target") -> Kind:
    """Return a kind.

    Args:
        name: its name, as a user wrote it.
        role: target, executor or runtime.

    Returns:
        The kind.

    Raises:
        TargetError: `name` is no text.
        UnknownNameError: no installed package registers it; the message has the nearest names.
    """
    what = "kind" if role == "target" else f"{role} kind"
    if not isinstance(name, str):
        article = "an" if role == "executor" else "a"
        raise TargetError(Problem(f"'kind' is the name of {article} {what}, not {shown(name)}", ("kind",)))
    kind = find_kind(name, role)
    if kind is None:
        tail = did_you_mean(name, kind_names(role)) or "; `tvmtarget kinds` lists them"
        raise UnknownNameError(Problem(f"unknown {what} {shown(name)}{tail}", ("kind",)))
    return kind
