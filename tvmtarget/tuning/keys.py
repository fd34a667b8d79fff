"""The key of a workload: the structure of a function without names, places and marks.

Values, constants and symbols of shapes are numbered in the order of their first use. Left out are the names of
functions and values, constraints, memory scopes, sources, and the marks that compilers write. Elements of constants
count only where they are few whole numbers, which are sizes and axes and no weights. Sizes of tensors stand apart,
in `shapes`, so that a family of workloads is the same structure with other sizes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping

import numpy as np

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import Attribute, Call, Constant, Function, Opaque
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.target.keys import key_of
from tvmtarget.tuning.records import Level, Workload

__all__ = ["structure_of", "workload_of"]

# What compilers write on functions: where and how, not what.
_MARKS = frozenset({"target", "role", "global_symbol", "op_pattern", "num_unpacked_args", "is_scheduled"})

_MAX_ELEMENTS = 64  # of a constant that says sizes or axes


def workload_of(
    function: Function, level: Level = "kernel", *, callees: Mapping[str, Function] | None = None
) -> Workload:
    """Return the workload that a function is; `callees` are the functions of its module by name."""
    structure, shapes = structure_of(function, callees or {})
    ops = Counter(call.op if call.callee is None else "@" for call in function.body)
    return Workload.of({"structure": key_of("st1", structure), "ops": dict(ops), "shapes": shapes}, level)


def structure_of(function: Function, callees: Mapping[str, Function]) -> tuple[dict[str, object], list[list[object]]]:
    """Return the JSON that `structure` of a workload is the digest of, and the sizes that were taken out of it."""
    writer = _Writer(callees)
    return writer.function(function, {}), writer.shapes


class _Writer:
    def __init__(self, callees: Mapping[str, Function]) -> None:
        self.shapes: list[list[object]] = []
        self._symbols: dict[str, int] = {}
        self._callees = callees
        self._open: list[str] = []

    def function(self, function: Function, outer: Mapping[str, int]) -> dict[str, object]:
        """Spell a function or a nested body; `outer` numbers the values of the functions around it."""
        names = dict(outer)
        params = [self._value(param.name, param.type, names) for param in function.params]
        constants = {constant.name: constant for constant in function.constants}
        used: list[object] = []
        body = [self._call(call, names, constants, used) for call in function.body]
        spelled: dict[str, object] = {
            "params": params,
            "body": body,
            "results": [self._use(name, names, constants, used) for name in function.results],
        }
        attrs = {name: _attribute(value) for name, value in function.attrs if name.split(".")[-1] not in _MARKS}
        opsets = {name or "ai.onnx": version for name, version in function.opsets}
        parts = {"constants": used, "attrs": attrs, "opsets": opsets}
        return spelled | {name: part for name, part in parts.items() if part}

    def _call(
        self, call: Call, names: dict[str, int], constants: Mapping[str, Constant], used: list[object]
    ) -> dict[str, object]:
        spelled: dict[str, object] = {
            "op": call.op if call.callee is None else self._callee(call.callee),
            "in": [self._use(name, names, constants, used) for name in call.inputs],
        }
        for name, region in call.regions:
            for captured in region.captures():
                self._use(captured, names, constants, used)
            spelled.setdefault("regions", {})[name] = self.function(region, names)  # type: ignore[index]
        spelled["out"] = [
            self._value(output.name, output.type, names) if output.name else -1 for output in call.outputs
        ]
        attrs = {name: _attribute(value) for name, value in call.attrs}
        return spelled | ({"attrs": attrs} if attrs else {})

    def _callee(self, name: str) -> object:
        callee = self._callees.get(name)
        if callee is None:
            raise ModelError(f"the workload calls '@{name}', which is not given in `callees`")
        if name in self._open:
            raise ModelError(f"'@{name}' calls itself, so that it has no key")
        self._open.append(name)
        spelled = self.function(callee, {})
        self._open.pop()
        return spelled

    def _value(self, name: str, type_: Type, names: dict[str, int]) -> object:
        names[name] = len(names)
        return self._type(type_)

    def _use(self, name: str, names: dict[str, int], constants: Mapping[str, Constant], used: list[object]) -> int:
        if not name:
            return -1
        if name not in names and name in constants:
            names[name] = len(names)
            used.append([names[name], self._constant(constants[name])])
        return names.setdefault(name, len(names))

    def _constant(self, constant: Constant) -> object:
        data = constant.data
        if data.dtype.kind in "iub" and data.size <= _MAX_ELEMENTS:
            return [constant.type.dtype, list(data.shape), [str(item) for item in data.ravel().tolist()]]
        return self._type(constant.type)

    def _type(self, type_: Type) -> object:
        if not isinstance(type_, TensorType):
            return None if type_ is None else [str(type_)]
        if type_.shape is None:
            return [type_.dtype, "..."]
        self.shapes.append(
            [self._symbol(dim) if isinstance(dim, str) else "?" if dim is None else dim for dim in type_.shape]
        )
        return [type_.dtype, len(type_.shape)]

    def _symbol(self, name: str) -> str:
        return f"s{self._symbols.setdefault(name, len(self._symbols))}"


def _attribute(value: Attribute) -> object:
    """Spell an attribute so that its type stays visible; floats are texts, as canonical JSON has none."""
    match value:
        case bool() | int() | str():
            return value
        case float():
            return {"float": float(np.float32(value)).hex() if np.isfinite(value) else str(value)}
        case bytes():
            return {"bytes": hashlib.sha256(value).hexdigest()}
        case Opaque():
            return {"opaque": [value.kind, hashlib.sha256(value.data).hexdigest()]}
        case Constant():
            data = repr(value.data.tolist()).encode() if value.data.dtype == object else value.data.tobytes()
            return {"tensor": [str(value.type), hashlib.sha256(data).hexdigest()]}
        case _:
            return [_attribute(item) for item in value]
