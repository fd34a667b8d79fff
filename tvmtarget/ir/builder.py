"""FunctionBuilder: functions built call by call."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np

from tvmtarget.errors import ModelError, did_you_mean, raise_all
from tvmtarget.ir.function import Attribute, Call, Constant, Function, Value, domain_and_kind, kind_of_op
from tvmtarget.ir.names import Names
from tvmtarget.ir.text.parser import parse_type
from tvmtarget.ir.types import TensorType, Type, dtype_of
from tvmtarget.ir.verify import mistyped_fields
from tvmtarget.target.argument_types import check_methods
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.problems import shown

__all__ = ["FunctionBuilder"]


@check_methods()
class FunctionBuilder:
    """Collects parameters, constants and calls; `build` infers types and returns the function.

    Values are referred to by name, as in the IR. Operators are ONNX's unless they carry a dialect or `@`.

    >>> from tvmtarget.ir.text.printer import print_function
    >>> f = FunctionBuilder("main")
    >>> x = f.param("x", "float32[n,3,8,8]")
    >>> w = f.constant(np.zeros((4, 3, 3, 3), "float32"), "w")
    >>> y = f.call("Relu", f.call("Conv", x, w, strides=[2, 2]))
    >>> print(print_function(f.build(y)))
    func @main(%x: float32[n,3,8,8]) -> (float32[n,4,3,3]) opsets(onnx=17) {
      const %w: float32[4,3,3,3] = sha256:1fe2373734955e60
      %Conv: float32[n,4,3,3] = onnx.Conv(%x, %w) {strides=[2, 2]} as Conv
      %Relu: float32[n,4,3,3] = onnx.Relu(%Conv) as Relu
      return %Relu
    }
    """

    def __init__(
        self,
        name: str = "main",
        *,
        opset: int = 17,
        opsets: Mapping[str, int] | None = None,
        outer: FunctionBuilder | None = None,
    ) -> None:
        """Begin a function.

        Args:
            name: name of the function, or label of a nested body.
            opset: version of ONNX's own operator set.
            opsets: versions of operator sets by domain, besides that one.
            outer: builder of the enclosing function, for a nested body that may read its values.
        """
        self.name = name
        self._opsets = {"": opset} | dict(opsets or {}) if outer is None else {}
        self._versions: Mapping[str, int] = self._opsets if outer is None else outer._versions
        self._params: list[Value] = []
        self._constants: list[Constant] = []
        self._body: list[Call] = []
        self._names: Names = Names() if outer is None else outer._names
        self._known: set[str] = set() if outer is None else set(outer._known)
        self._sources: Names = Names() if outer is None else outer._sources

    def param(self, name: str, type: Type | str = None, *, scope: str = "") -> str:
        """Add a parameter.

        Args:
            name: name of the value; it gets a number if it is taken.
            type: type or its text; None if unknown.
            scope: memory that holds the value.

        Returns:
            Name of the value.
        """
        self._params.append(Value(self._new(name), parse_type(type) if isinstance(type, str) else type, scope))
        return self._params[-1].name

    def constant(self, data: object, name: str = "constant") -> str:
        """Add a constant.

        Args:
            data: array, or what numpy converts to one.
            name: name of the value; it gets a number if it is taken.

        Returns:
            Name of the value.

        Raises:
            ModelError: the data is not a tensor of numbers or strings.
        """
        try:
            array: np.ndarray[Any, Any] = np.asanyarray(data)
        except ValueError as error:
            raise ModelError(f"constant {name!r} is not a tensor: {error}") from error
        # numpy makes an array of objects of data that it cannot convert; only texts are elements of a tensor.
        if array.dtype == object and not all(isinstance(item, str | bytes) for item in array.flat):
            raise ModelError(
                f"constant {name!r} is not a tensor of numbers or strings, but of {type(array.flat[0]).__name__}"
            )
        self._constants.append(Constant(self._new(name), TensorType(dtype_of(array.dtype), array.shape), array))
        return self._constants[-1].name

    def call(self, op: str, *inputs: str, **rest: Any) -> str:  # noqa: ANN401
        """Add a call with one result.

        Args:
            op: operator.
            *inputs: names of the operands.
            **rest: further arguments of `calls`.

        Returns:
            Name of the result.
        """
        return self.calls(op, *inputs, results=1, **rest)[0]

    def calls(
        self,
        op: str,
        *inputs: str,
        results: int,
        name: str = "",
        constraint: Constraint | str | None = None,
        has_effect: bool = False,
        **attrs: object,
    ) -> tuple[str, ...]:
        """Add a call with several results.

        Args:
            op: operator: `Conv`, `com.a::Gelu`, one with a dialect (`relax.add`), or `@callee`.
            *inputs: names of the operands; "" for an absent one.
            results: number of results.
            name: source name of the operation; by default its operator.
            constraint: placement constraint or its text.
            has_effect: whether the operation has side effects.
            **attrs: attributes, converted to the types that ONNX states for the operator; a Function is a nested body
                under this label.

        Returns:
            Names of the results.

        Raises:
            ModelError: an operand is not defined, or an attribute is not one of the operator or of another type.
        """
        for value in inputs:
            if value and value not in self._known:
                raise ModelError(f"{op} reads {value!r}, but nothing defines it{did_you_mean(value, self._known)}")
        full = op if op.startswith("@") or "." in op else f"onnx.{op}"
        stated = {key: value for key, value in attrs.items() if not isinstance(value, Function)}
        types = self._attribute_types(full) if stated else None
        plain = tuple((key, _attribute(key, value, types, op)) for key, value in stated.items())
        parsed = None if constraint is None else Constraint.parse(constraint)
        kind = kind_of_op(op).removeprefix("@")
        source = self._sources.fresh(name or kind)
        outputs = tuple(Value(self._new(source if k == 0 else f"{source}.{k}"), None) for k in range(results))
        regions = tuple((key, value) for key, value in attrs.items() if isinstance(value, Function))
        self._body.append(Call(full, inputs, outputs, plain, regions, parsed, source, has_effect))
        return tuple(output.name for output in outputs)

    def build(self, *results: str, functions: Mapping[str, Function] | None = None, **fields: Any) -> Function:  # noqa: ANN401
        """Return the function with inferred types.

        Args:
            *results: names of the returned values.
            functions: functions that it calls, by name.
            **fields: further fields of `Function`, such as `constraint`.

        Returns:
            The function; a nested body without inference, which needs the enclosing function.

        Raises:
            ModelError: a result is not defined, a field is of another type, or ONNX rejects an operation.
        """
        for result in results:
            if result not in self._known:
                raise ModelError(f"result {result!r} is not defined{did_you_mean(result, self._known)}")
        built = Function(
            name=self.name,
            params=tuple(self._params),
            body=tuple(self._body),
            results=results,
            constants=tuple(self._constants),
            opsets=tuple(sorted(self._opsets.items())),
            **fields,
        )
        raise_all(ModelError, [*mistyped_fields(built.replace(body=()))])
        # A nested body has no operator sets of its own: its types are inferred with the enclosing function.
        if not self._opsets:
            return built
        from tvmtarget.ir.inference import infer_types

        return infer_types(built, functions)

    def _attribute_types(self, op: str) -> Mapping[str, str] | None:
        """Return the types of the attributes of an operator by ONNX's names; None if ONNX does not define it."""
        if not op.startswith("onnx."):
            return None
        import onnx.defs  # takes long, and is needed for attributes only

        domain, kind = domain_and_kind(op)
        try:
            schema = onnx.defs.get_schema(kind, self._versions.get(domain, 1), domain)
        except onnx.defs.SchemaError:
            return None
        return {name: attribute.type.name for name, attribute in schema.attributes.items()}

    def _new(self, name: str) -> str:
        fresh = self._names.fresh(name)
        self._known.add(fresh)
        return fresh


def _attribute(name: str, value: object, types: Mapping[str, str] | None, op: str) -> Attribute:
    """Convert the value of an attribute to the type that ONNX states for the operator, or else to one of the IR."""
    if types is None:
        return _plain(name, value)
    if name not in types:
        raise ModelError(f"{op} has no attribute {name!r}{did_you_mean(name, types)}")
    of, accepted = types[name], _OF_ONNX.get(types[name].removesuffix("S"))
    if isinstance(value, np.ndarray) and accepted is not None:
        value = value.tolist()
    plain = _plain(name, _as_floats(value) if of in ("FLOAT", "FLOATS") else value)
    if accepted is None:
        return plain
    items = plain if isinstance(plain, tuple) else (plain,)
    if isinstance(plain, tuple) != of.endswith("S") or not all(isinstance(item, accepted) for item in items):
        raise ModelError(f"attribute {name!r} of {op} is {_WORDS[of]}, not {shown(value)}")
    return plain


def _as_floats(value: object) -> object:
    if isinstance(value, list | tuple):
        return tuple(map(_as_floats, value))
    return float(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


# What is accepted for ONNX's types of attributes, and for lists of them, whose names end in S.
_OF_ONNX: Mapping[str, tuple[type, ...]] = {"INT": (int,), "FLOAT": (float,), "STRING": (str, bytes)}
_WORDS = {
    "INT": "a whole number",
    "FLOAT": "a number",
    "STRING": "a text",
    "INTS": "a list of whole numbers",
    "FLOATS": "a list of numbers",
    "STRINGS": "a list of texts",
}


def _plain(name: str, value: object) -> Attribute:
    """Convert the value of an attribute to a type of the IR: lists to tuples, arrays to constants."""
    if isinstance(value, np.ndarray):
        return Constant(name, TensorType(dtype_of(value.dtype), value.shape), value)
    if isinstance(value, list | tuple):
        items = tuple(_plain(name, item) for item in value)
        kinds = sorted({"number" if isinstance(item, int | float) else type(item).__name__ for item in items})
        if len(kinds) > 1:
            raise ModelError(f"attribute {name!r} is a list of {' and '.join(kinds)}; the items of one are of one type")
        return items  # type: ignore[return-value]
    if isinstance(value, np.generic):
        return _plain(name, value.item())
    if isinstance(value, int | float | str | bytes | Constant):
        return value
    raise ModelError(
        f"attribute {name!r} is a {type(value).__name__}; it can be a number, a string, bytes, an array or a list"
    )
