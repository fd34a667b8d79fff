"""VirtualDevice: where a value is or a call runs, as far as that is known; TVM's four-tuple.

The semantics are those of TVM's `include/tvm/target/virtual_device.h` (v0.9 to v0.19), except that equal targets join.
TVM compares targets by address, so that two equal ones do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from tvmtarget.errors import TargetError
from tvmtarget.target.constraints.constraint import Condition, Constraint
from tvmtarget.target.device_types import read_device_type
from tvmtarget.target.node import Node
from tvmtarget.target.problems import shown
from tvmtarget.target.text.grammar import is_word
from tvmtarget.target.tree import Target, read_target
from tvmtarget.target.values import MAX_INT

__all__ = ["VirtualDevice"]


class VirtualDevice(Node):
    """A device type, the number of a device of that type, a target, and a memory scope; each may be unknown.

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
        target: Target | str | Mapping[str, object] | None = None,
        memory_scope: str = "",
    ) -> None:
        read = None if target is None else read_target(target)
        if device_type is not None and (read is None or device_type != read.device):  # a new kind has a type of its own
            device_type = read_device_type(device_type)
        super().__init__(
            device_type=device_type, virtual_device_id=virtual_device_id, target=read, memory_scope=memory_scope
        )

    def model_post_init(self, _context: object) -> None:
        """Check that the target is of the device type, and that the memory scope is a word.

        Raises:
            TargetError: one of them is not.
        """
        if self.memory_scope and not is_word(self.memory_scope):
            raise TargetError(f"{shown(self.memory_scope)} is no memory scope; write a word: global, shared.dyn, local")
        if self.target is not None and self.device_type not in (None, self.target.device):
            raise TargetError(
                f"target {str(self.target)!r} is of device type {self.target.device!r}, not {shown(self.device_type)}"
            )

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
