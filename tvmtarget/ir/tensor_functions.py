"""Structural key of a TVM tensor function: the body of its workload in a tuning log.

The tuner and the importers of other tools' files identify a function by this body, so that one function has one key. It
is the TVMScript with names numbered and without attributes that passes write on functions. A function with arguments in
a free layout, which MetaSchedule may rewrite beforehand, has another key, since its time differs.

TVM is imported late and has no type annotations: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Any, TypeAlias

__all__ = ["name_of", "script_of", "workload_body"]

PrimFunc: TypeAlias = Any

# Names in a script that belong to TVMScript or Python, and so are not renamed.
_WORDS = frozenset(
    {"Buffer", "False", "None", "T", "True", "and", "def", "else", "for", "func", "if", "in", "main", "not"}
)
_WORDS |= {"TypeVar", "or", "range", "return", "while", "with"}
# Groups: a block or type variable with its name, which has no meaning; another string, which is kept; and a name that
# is not an attribute of an object.
_TOKEN = re.compile(r'((?:T\.sblock|TypeVar)\()"[^"]*"|("[^"]*")|(?<![\w.])([A-Za-z_]\w*)')

# Attribute that lists arguments whose layout is rewritten before the call, so that its time does not include that.
_FREE = "layout_free_buffers"
_DIALECT = "s_tir"  # attribute that selects the dialect of the printed script


def workload_body(function: PrimFunc, constants: Collection[int] = ()) -> dict[str, object]:
    """Return the body of a function's workload.

    Args:
        function: the TIR function.
        constants: indices of the arguments that are constant in every call.

    Returns:
        `structure`, a hash of the script; `shapes` of the arguments, unless one is not a tensor or has a computed size;
        `constants`, if there are any.
    """
    shapes, text = _shapes(function), script_of(function)
    if free := dict(function.attrs or {}).get(_FREE):
        text += f"\n# {_FREE} {sorted(int(index) for index in free)}"
    body: dict[str, object] = {"structure": f"tvmscript:{hashlib.sha256(text.encode()).hexdigest()[:32]}"}
    if shapes is not None:
        body["shapes"] = shapes
    if constants:
        body["constants"] = sorted(constants)
    return body


def name_of(function: PrimFunc) -> str:
    """Return a readable name of a function.

    Args:
        function: the TIR function.

    Returns:
        Its symbol without numbers; if that is `main`, the names of its blocks.
    """
    symbol = str(dict(function.attrs or {}).get("global_symbol", "main"))
    if symbol == "main":
        blocks = re.findall(r'^ *with T\.sblock\("([^"]*)"', function.script(), re.MULTILINE)
        symbol = "_".join(dict.fromkeys(blocks)) or symbol
    return re.sub(r"\d+(?=_|$)", "", symbol)


def script_of(function: PrimFunc) -> str:
    """Return the normalized script of a function.

    Args:
        function: the TIR function.

    Returns:
        TVMScript without attributes; names are numbered in order of first use.
    """
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


def _shapes(function: PrimFunc) -> list[list[int | str]] | None:
    """Return the shapes of all arguments; None if an argument is not a tensor or a size is computed.

    Symbolic dimensions become s0, s1, ... in order of first use.
    """
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
