"""Options of LLVM's command line in a target (`cl-opt`): which there are, and of which type their values are.

TVM casts an option to the type that the target states (`LLVMTargetInfo::SetOptionValue`, `src/target/llvm/
llvm_instance.cc`), so that a value of another type overwrites the memory behind it. `data/llvm_options.json` has the
types; `tests/tools/derive_llvm_options.py` derives it.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tvmtarget.backends.tvm.compiled_module import quiet

__all__ = ["DATA", "option_problems", "unknown_options"]

DATA = Path(__file__).parent / "data/llvm_options.json"

# A value to show how an option of a type is written.
_EXAMPLES = {"bool": "=true", "int": ":int=4", "uint": ":uint=4", "string": ":string=text"}


def option_problems(tvm: Any, options: Iterable[str]) -> Iterator[str]:  # noqa: ANN401
    """Find options that TVM's LLVM does not have, or whose values are of another type.

    Args:
        tvm: The package.
        options: Items of `cl-opt`, written as `resolve` checks.

    Yields:
        A message for each option that cannot be set as it is written.
    """
    stated = {option: re.split("[:=]", option.lstrip("-"), maxsplit=1) for option in options}
    unknown = unknown_options(tvm, {name for name, *_ in stated.values()})
    for option, (name, *value) in stated.items():
        typed = re.match(r"-+[^:=]+:(\w+)=", option) if value else None
        type_, own = typed[1] if typed else "bool", _types().get(name)
        if name in unknown:
            yield f"LLVM has no option -{name}"
        elif own is None:
            yield f"LLVM's option -{name} is of a type that TVM cannot set"
        elif own != type_:
            yield f"LLVM's option -{name} is of type {own}, not {type_}; write '-{name}{_EXAMPLES[own]}'"


@cache
def _types() -> dict[str, str]:
    data = json.loads(DATA.read_bytes())
    return {name: type_ for type_ in _EXAMPLES for name in data[type_].split()}


def unknown_options(tvm: Any, names: Collection[str]) -> set[str]:  # noqa: ANN401
    """Return the names that are no options of TVM's LLVM.

    Args:
        tvm: The package.
        names: Names of options, without dashes.

    Returns:
        Those that LLVM does not have.
    """
    # TVM prints them when it reads a target. It sets options for a compilation only, so that their types are free here.
    target = tvm.target.Target({"kind": "llvm", "cl-opt": [f"-{name}" for name in sorted(names)]})
    with tempfile.TemporaryFile() as printed:
        with quiet(printed):
            tvm.target.codegen.llvm_get_cpu_features(target)
        printed.seek(0)
        return {*re.findall('"(.*)" is not an LLVM option', printed.read().decode(errors="replace"))}
