"""Who computes and who reads each value of a program, and what follows from that alone.

Programs that differ only in operators, attributes, requirements or the data of constants have one wiring, which keeps
what was derived from it: their data flow as arrays, and the graphs of their atoms (`placement/level.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar, cast

from tvmtarget.ir.types import Type
from tvmtarget.partition.dataflow import TypeNumbers, number_types

__all__ = ["Wiring"]

_Result = TypeVar("_Result")


@dataclass(frozen=True, eq=False)
class Wiring:
    """The values of a program, by name.

    Attributes:
        producer: the operation that computes each value.
        consumers: the operations that read each value, of the body that defines it; an operation also reads what its
            nested bodies read.
        types: the type of each value.
        results: the values that the function returns.
    """

    producer: Mapping[str, int]
    consumers: Mapping[str, tuple[int, ...]]
    types: Mapping[str, Type]
    results: frozenset[str]
    # `replace` makes a wiring that has derived nothing yet.
    _derived: dict[str, tuple[object, object]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def read(self) -> frozenset[str]:
        """Values that an operation reads, or that the function returns."""
        return frozenset(self.consumers) | self.results

    @cached_property
    def type_numbers(self) -> TypeNumbers:
        """The types of all values by number."""
        return number_types(self.types)

    def derived(
        self,
        kind: str,
        key: object,
        make: Callable[[], _Result],
        update: Callable[[_Result], _Result] | None = None,
    ) -> _Result:
        """Return what follows from the wiring, which is kept until it is needed for another key.

        Args:
            kind: what is derived; the latest result of each kind is kept.
            key: all else that the result depends on.
            make: derives it.
            update: derives it from the latest result, which was for another key; None derives it anew.

        Returns:
            The result; callers must not change it.
        """
        known = self._derived.get(kind)
        if known is None or known[0] != key:
            found = make() if known is None or update is None else update(cast("_Result", known[1]))
            known = self._derived[kind] = (key, found)
        return cast("_Result", known[1])
