"""The text form of a module, for people and golden files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tvmtarget.ir.function import Attribute, Call, Constant, Function, Opaque
from tvmtarget.target.tree import Target

__all__ = ["print_function", "print_module"]


def print_module(functions: Sequence[Function], target: Target | None, attrs: Mapping[str, object]) -> str:
    """Print the target, the attributes, and every function in order."""
    head = [] if target is None else [f"target {target}"]
    head += [f"attr {key} = {value!r}" for key, value in sorted(attrs.items())]
    return "\n\n".join(["\n".join(head)] * bool(head) + [print_function(function) for function in functions])


def print_function(function: Function) -> str:
    """Print one function: signature, constants, then a line per call."""
    return "\n".join(_lines(function, "func", ""))


def _lines(function: Function, word: str, indent: str) -> Iterator[str]:
    params = ", ".join(map(str, function.params))
    results = ", ".join(f"{function.types.get(name) or '?'}" for name in function.results)
    notes = [str(function.constraint)] if function.constraint is not None else []
    notes += [f"{key}={value}" for key, value in function.attrs]
    opsets = ", ".join(f"{domain or 'onnx'}={version}" for domain, version in function.opsets)
    suffix = f" opsets({opsets})" * bool(opsets) + (f" [{'; '.join(notes)}]" if notes else "")
    yield f"{indent}{word} @{function.name}({params}) -> ({results}){suffix} {{"
    for constant in function.constants:
        yield f"{indent}  const {constant}"
    for call in function.body:
        yield from _call_lines(call, f"{indent}  ")
    yield f"{indent}  return {', '.join(f'%{name}' for name in function.results)}"
    yield f"{indent}}}"


def _call_lines(call: Call, indent: str) -> Iterator[str]:
    outputs = ", ".join(map(str, call.outputs))
    inputs = ", ".join(f"%{name}" if name else "_" for name in call.inputs)
    attrs = ", ".join(f"{key}={_print(value)}" for key, value in call.attrs)
    note = f" [{call.constraint}]" if call.constraint is not None else ""
    name = f" # {call.source}" if call.source else ""
    yield f"{indent}{outputs} = {call.op}({inputs})" + (f" {{{attrs}}}" if attrs else "") + note + name
    for label, region in call.regions:
        yield from _lines(region, label, f"{indent}  ")


def _print(value: Attribute) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_print, value))}]"
    if isinstance(value, Constant):
        return f"dense<{value.type}>"
    if isinstance(value, Opaque):
        return f"opaque<{value.kind}>"
    return repr(value)
