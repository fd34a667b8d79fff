"""VirtualDevice: where a value is or a call runs, as far as that is known; TVM's four-tuple.

The semantics are those of TVM's `include/tvm/target/virtual_device.h` (v0.9 to v0.19), except that equal targets join.
TVM compares targets by address, so that two equal ones do not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from pydantic import Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from tvmtarget.errors import Problem, TargetError, TextError, did_you_mean, raise_all
from tvmtarget.target.argument_types import check_methods
from tvmtarget.target.constraints.constraint import Condition, Constraint
from tvmtarget.target.device_types import read_device_type
from tvmtarget.target.node import JsonNode
from tvmtarget.target.problems import Problems, shown, syntax_error
from tvmtarget.target.text.words import is_word
from tvmtarget.target.tree import Target, TargetLike, as_target
from tvmtarget.target.values import MAX_INT
from tvmtarget.untrusted import parse_json

__all__ = ["VirtualDevice"]


@check_methods("__init__")
class VirtualDevice(JsonNode):
    """A device type, the number of a device of that type, a target, and a memory scope; each may be unknown.

    Without a target it has a text form, `type:number:scope`, in which parts at the end may be left out: `cuda:3`,
    `cuda:0:global`, `:1`. TVM's scripts write devices of Relax so.

    Args:
        device_type: its name, or TVM's number.
        virtual_device_id: number of the device among those of its type, from 0.
        target: the target; a text or flat JSON is parsed.
        memory_scope: a word such as `global`; empty if unknown.

    >>> VirtualDevice(device_type="cuda").join(VirtualDevice(virtual_device_id=1))
    VirtualDevice(device_type='cuda', virtual_device_id=1, target=None, memory_scope='')
    """

    device_type: str | None = None
    virtual_device_id: int | None = Field(default=None, ge=0, le=MAX_INT)
    target: Target | None = None
    memory_scope: str = ""

    def __init__(
        self,
        *,
        device_type: str | int | None = None,
        virtual_device_id: int | None = None,
        target: TargetLike | None = None,
        memory_scope: str = "",
    ) -> None:
        problems = Problems()
        read: Target | None = None
        with problems.collect(loc=("target",)):
            read = None if target is None else as_target(target)
        with problems.collect(loc=("device_type",)):
            # A kind that is not registered has a type of its own.
            if device_type is not None and (read is None or device_type != read.device):
                device_type = read_device_type(device_type)
        problems.raise_all()
        super().__init__(
            device_type=device_type, virtual_device_id=virtual_device_id, target=read, memory_scope=memory_scope
        )

    def model_post_init(self, _context: object) -> None:
        """Check that the target is of the device type, and that the memory scope is a word.

        Raises:
            TargetError: one of them is not.
        """
        if self.memory_scope and not is_word(self.memory_scope):
            line = f"{shown(self.memory_scope)} is no memory scope; write a word: global, shared.dyn, local"
            raise TargetError(Problem(line, ("memory_scope",)))
        if self.target is not None and self.device_type not in (None, self.target.device):
            raise TargetError(
                f"target {str(self.target)!r} is of device type {self.target.device!r}, not {shown(self.device_type)}"
            )

    @classmethod
    def parse(cls, text: str) -> VirtualDevice:
        """Read the text form, or JSON of an object.

        Args:
            text: the text.

        Returns:
            The device.

        Raises:
            TextError: the text is not of that form.
            TargetError: the device contradicts itself.

        >>> VirtualDevice.parse("cuda:3").virtual_device_id, str(VirtualDevice.parse("hexagon::global"))
        (3, 'hexagon::global')
        """
        if not isinstance(text, str):
            raise TargetError(f"a virtual device is a text, an object or a VirtualDevice, not {shown(text)}")
        if text.lstrip()[:1] == "{":
            return cls.from_json(parse_json(text, "the virtual device", error=TextError))
        device_type, _, rest = text.strip().partition(":")
        number, _, scope = rest.partition(":")
        if number and not re.fullmatch("[0-9]{1,16}", number):
            column = len(device_type) + 1
            raise syntax_error(f"{shown(number)} is no number of a device; write type:number:scope", text, column)
        return cls(
            device_type=device_type or None, virtual_device_id=int(number) if number else None, memory_scope=scope
        )

    @classmethod
    def from_json(cls, data: object) -> VirtualDevice:
        """Read a virtual device.

        Args:
            data: the object that `to_json` returns, a text for `parse`, or a virtual device.

        Returns:
            The device.

        Raises:
            TextError: a text is not of the text form.
            TargetError: a field is unknown, or the device contradicts itself.
        """
        if isinstance(data, VirtualDevice):
            return data
        if not isinstance(data, Mapping):
            return cls.parse(cast("str", data))
        unknown = [name for name in data if name not in cls.model_fields]
        raise_all(
            TargetError,
            [
                Problem(
                    f"a virtual device has no field {shown(name)}{did_you_mean(str(name), cls.model_fields)}", (name,)
                )
                for name in unknown
            ],
        )
        return cls(**{str(name): value for name, value in data.items()})

    def to_json(self) -> dict[str, object]:
        """Return the known facts; `from_json` reads them back."""
        target = None if self.target is None else self.target.to_json()
        facts = {
            "device_type": self.device_type,
            "virtual_device_id": self.virtual_device_id,
            "target": target,
            "memory_scope": self.memory_scope or None,
        }
        return {name: fact for name, fact in facts.items() if fact is not None}

    def __str__(self) -> str:
        if self.target is not None:
            return json.dumps(self.to_json(), ensure_ascii=False, separators=(",", ":"))
        number = "" if self.virtual_device_id is None else str(self.virtual_device_id)
        return f"{self.device_type or ''}:{number}:{self.memory_scope}".rstrip(":")

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        (target,) = handler(core_schema.tuple_positional_schema([Target.__pydantic_core_schema__]))["prefixItems"]
        fields = {
            "device_type": {"type": ["string", "integer"]},
            "virtual_device_id": {"type": "integer", "minimum": 0, "maximum": MAX_INT},
            "target": target,
            "memory_scope": {"type": "string"},
        }
        facts = {"type": "object", "properties": fields, "additionalProperties": False}
        return {"title": "VirtualDevice", "anyOf": [{"type": "string"}, facts]}

    @classmethod
    def for_target(cls, target: Target, virtual_device_id: int = 0) -> VirtualDevice:
        """Return the virtual device of a target.

        Args:
            target: the target.
            virtual_device_id: number of the device among those of its type.

        Returns:
            A device whose memory scope is unknown.
        """
        return cls(device_type=target.device, virtual_device_id=virtual_device_id, target=target)

    @property
    def is_fully_unconstrained(self) -> bool:
        """Whether nothing is known."""
        return self == VirtualDevice()

    @property
    def is_fully_constrained(self) -> bool:
        """Whether target, number and memory scope are all known."""
        return self.target is not None and self.virtual_device_id is not None and bool(self.memory_scope)

    def join(self, other: VirtualDevice) -> VirtualDevice | None:
        """Combine the facts of two virtual devices.

        Args:
            other: the other device.

        Returns:
            The device with the facts of both, or None if they contradict each other.
        """
        fields: dict[str, Any] = {}
        for name, nothing in (
            ("device_type", None),
            ("virtual_device_id", None),
            ("target", None),
            ("memory_scope", ""),
        ):
            mine, theirs = getattr(self, name), getattr(other, name)
            if nothing not in (mine, theirs) and mine != theirs:
                return None
            fields[name] = theirs if mine == nothing else mine
        try:
            return VirtualDevice(**fields)
        except TargetError:
            return None

    def default(self, other: VirtualDevice) -> VirtualDevice:
        """Fill unknown facts from another virtual device.

        Args:
            other: the source of the facts; its target is used only if it is of the resulting device type.

        Returns:
            The device with its own facts, then those of `other`.
        """
        device_type = self.device_type or (self.target.device if self.target else other.device_type)
        target = self.target
        if target is None and other.target is not None and other.target.device == device_type:
            target = other.target
        # Device 0 is a number too, so `or` would lose it.
        number = self.virtual_device_id if self.virtual_device_id is not None else other.virtual_device_id
        return VirtualDevice(
            device_type=device_type,
            virtual_device_id=number,
            target=target,
            memory_scope=self.memory_scope or other.memory_scope,
        )

    def to_constraint(self) -> Constraint | None:
        """Return the constraint that a call on this device must meet.

        Returns:
            The kind of the target with equal attributes; without a target, the device type as a key; None if neither is
            known.
        """
        if self.target is None:
            return None if self.device_type is None else Constraint(word=self.device_type)
        attrs = self.target.attrs.items()
        conditions = tuple(Condition(name=name, operator="eq", value=value) for name, value in attrs)
        return Constraint(word=self.target.kind, conditions=conditions)
