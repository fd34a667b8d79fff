"""Printer of the text form of a module; `parser.py` holds the grammar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tvmtarget.ir.function import Call, Constant, Function, Opaque
from tvmtarget.ir.tensors import print_items
from tvmtarget.ir.text.escaping import print_float, print_name, quote
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.tree import Target

__all__ = ["DIGITS", "MAX_DEPTH", "print_function", "print_module", "print_value"]

DIGITS = 16  # hexadecimal digits of a digest that are printed

# Levels of nested values, types and functions. Recursive descent takes a few frames of Python for each; this many stay
# well below its limit of 1000.
MAX_DEPTH = 64


def print_module(functions: Sequence[Function], target: Target | None, attrs: Mapping[str, object]) -> str:
    """Print a module.

    Args:
        functions: functions in order.
        target: target tree, or None.
        attrs: attributes of the module.

    Returns:
        Text that `parse_functions` reads back as equal values.
    """
    head = [] if target is None else [f"target {target}"]
    head += [f"attr {print_name(key)} = {print_value(value)}" for key, value in sorted(attrs.items())]
    return "\n\n".join(["\n".join(head)] * bool(head) + [print_function(function) for function in functions])


def print_function(function: Function) -> str:
    """Print one function: signature, constants, then a line per call.

    Args:
        function: the function.

    Returns:
        Text without a final newline.
    """
    return "\n".join(_lines(function, "func", ""))


def _lines(function: Function, word: str, indent: str) -> Iterator[str]:
    params = ", ".join(map(str, function.params))
    results = ", ".join(f"{function.types.get(name) or '?'}" for name in function.results)
    captures = ", ".join(map(_operand, function.captures())) if word != "func" else ""
    opsets = ", ".join(f"{_domain(domain)}={version}" for domain, version in function.opsets)
    notes = [f"captures({captures})"] * bool(captures) + [f"opsets({opsets})"] * bool(opsets)
    notes += _constraint(function.constraint)
    notes += [f"attrs {_attributes(function.attrs)}"] * bool(function.attrs)
    yield " ".join([f"{indent}{word} @{print_name(function.name)}({params}) -> ({results})", *notes, "{"])
    for constant in function.constants:
        yield f"{indent}  const {constant} = {_elements(constant)}"
    for call in function.body:
        yield from _call_lines(call, f"{indent}  ")
    yield f"{indent}  return {', '.join(map(_operand, function.results))}".rstrip()
    yield f"{indent}}}"


def _call_lines(call: Call, indent: str) -> Iterator[str]:
    outputs = ", ".join(map(str, call.outputs)) or "()"
    operator = f"@{print_name(call.callee)}" if call.callee is not None else print_name(call.op)
    notes = [_attributes(call.attrs)] * bool(call.attrs) + _constraint(call.constraint)
    notes += ["effect"] * call.has_effect + [f"as {print_name(call.source)}"] * bool(call.source)
    yield " ".join([f"{indent}{outputs} = {operator}({', '.join(map(_operand, call.inputs))})", *notes])
    for label, region in call.regions:
        yield from _lines(region, print_name(label), f"{indent}  ")


def _domain(domain: str) -> str:
    """Print a domain; ONNX's own, which has an empty name, is the word `onnx`."""
    if not domain:
        return "onnx"
    # Quotes distinguish a domain that is called onnx from ONNX's own, which the bare word means.
    return quote(domain) if domain == "onnx" else print_name(domain)


def _operand(name: str) -> str:
    return f"%{print_name(name)}" if name else "_"


def _constraint(constraint: Constraint | None) -> list[str]:
    return [] if constraint is None else [f"[{constraint}]"]


def _attributes(attrs: Sequence[tuple[str, object]], depth: int = 0) -> str:
    return f"{{{', '.join(f'{print_name(name)}={print_value(value, depth)}' for name, value in attrs)}}}"


def _elements(constant: Constant) -> str:
    return print_items(constant.data) or f"sha256:{constant.digest[:DIGITS]}"


def print_value(value: object, depth: int = 0) -> str:
    """Print the value of an attribute.

    Args:
        value: the value.
        depth: the number of values that it is in.

    Returns:
        The text; a value of an unsupported type is printed as `<repr>`, which does not parse, and one that is nested
        too deep as `<...>`.
    """
    if depth > MAX_DEPTH:
        return "<...>"
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return print_float(value)
        case str():
            return quote(value)
        case bytes():
            return f'b"{value.hex()}"'
        case tuple() | list():
            return f"[{', '.join(print_value(item, depth + 1) for item in value)}]"
        case Constant():
            return f"dense {value} = {_elements(value)}"
        case Opaque():
            return f'opaque {quote(value.kind)} b"{value.data.hex()}"'
        case Mapping() if all(isinstance(key, str) for key in value):
            return _attributes([*value.items()], depth + 1)
        case _:
            return f"<{value!r}>"
