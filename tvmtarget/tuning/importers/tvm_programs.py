"""Programs of TVM, read by TVM where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

__all__ = ["normalised"]

# What passes write on a function; none of it changes what the function computes.
_MARKS = ("target", "global_symbol", "op_pattern", "num_unpacked_args", "tir.is_scheduled", "tirx.is_scheduled")


def normalised(workload: Sequence[str]) -> str | None:
    """Return the text of a workload's program without marks and names of functions; None where TVM cannot read it."""
    if importlib.util.find_spec("tvm") is None:
        return None
    import tvm
    from tvm.s_tir.meta_schedule.database import Workload

    try:
        functions = list(Workload.from_json(list(workload)).mod.functions.values())
    except (ValueError, TypeError, RuntimeError, AttributeError, KeyError):  # TVM of another time wrote it
        return None
    if len(functions) != 1:
        return None
    function = functions[0]
    for mark in _MARKS:
        function = function.without_attr(mark)
    return str(tvm.IRModule({"main": function}).script())
