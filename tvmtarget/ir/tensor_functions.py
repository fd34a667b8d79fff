"""What a tensor function of TVM computes, apart from names: the body of its workload in a tuning log.

Whoever writes a record of such a function, the tuner or the reader of another tool's file, knows it by this body, so
that one function has one key. The structure is its TVMScript with the names of its own numbered and without what passes
write on functions; but one of which an argument is laid out beforehand, as MetaSchedule may, takes another time.
TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Any, TypeAlias

__all__ = ["name_of", "script_of", "workload_body"]

Function: TypeAlias = Any

# Names in a script that are TVMScript's or Python's.
_WORDS = frozenset(
    {"Buffer", "False", "None", "T", "True", "and", "def", "else", "for", "func", "if", "in", "main", "not"}
)
_WORDS |= {"TypeVar", "or", "range", "return", "while", "with"}
_TOKEN = re.compile(r'((?:T\.sblock|TypeVar)\()"[^"]*"|("[^"]*")|(?<![\w.])([A-Za-z_]\w*)')

# Arguments that are laid out anew before the function is called, which is not in its time.
_FREE = "layout_free_buffers"
_DIALECT = "s_tir"  # how TVM spells a function, and no mark


def workload_body(function: Function, constants: Collection[int] = ()) -> dict[str, object]:
    """Return the body of a function's workload; `constants` are the arguments that are constants in every call.

    It has no `shapes` if a size is computed, or an argument is no tensor.
    """
    shapes, text = _shapes(function), script_of(function)
    if free := dict(function.attrs or {}).get(_FREE):
        text += f"\n# {_FREE} {sorted(int(at) for at in free)}"
    body: dict[str, object] = {"structure": f"tvmscript:{hashlib.sha256(text.encode()).hexdigest()[:32]}"}
    if shapes is not None:
        body["shapes"] = shapes
    if constants:
        body["constants"] = sorted(constants)
    return body


def name_of(function: Function) -> str:
    """Return what a function is called, without a number; if that is `main`, what it computes by its blocks' names."""
    symbol = str(dict(function.attrs or {}).get("global_symbol", "main"))
    if symbol == "main":
        blocks = re.findall(r'^ *with T\.sblock\("([^"]*)"', function.script(), re.MULTILINE)
        symbol = "_".join(dict.fromkeys(blocks)) or symbol
    return re.sub(r"\d+(?=_|$)", "", symbol)


def script_of(function: Function) -> str:
    """Return the script of a function without attributes, its own names numbered in the order of their first use."""
    for attribute in dict(function.attrs or {}).keys() - {_DIALECT}:
        function = function.without_attr(attribute)
    lines = function.script(show_meta=True).splitlines()
    kept = [line for line in lines if line.strip() and not line.lstrip().startswith(("#", "@"))]
    names: dict[str, str] = {}

    def renamed(match: re.Match[str]) -> str:
        named, text, name = match.groups()
        if named:
            return f'{named}"b"'
        return text or (name if name in _WORDS else names.setdefault(name, f"v{len(names)}"))

    return "\n".join(_TOKEN.sub(renamed, line) for line in kept)


def _shapes(function: Function) -> list[list[int | str]] | None:
    """Return the shapes of all arguments, open sizes as s0, s1, ...; None if one is a number or has a computed size."""
    import tvm

    names: dict[Any, str] = {}
    shapes: list[list[int | str]] = []
    for param in function.params:
        sizes = list(getattr(param, "shape", None) or ()) if hasattr(param, "shape") else None
        if sizes is None or not all(isinstance(size, tvm.tirx.IntImm | tvm.tirx.Var) for size in sizes):
            return None
        shapes.append(
            [
                int(size) if isinstance(size, tvm.tirx.IntImm) else names.setdefault(size, f"s{len(names)}")
                for size in sizes
            ]
        )
    return shapes
