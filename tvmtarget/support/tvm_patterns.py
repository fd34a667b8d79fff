"""Patterns of TVM's registry for external code generators as a strategy: TVM matches and checks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from tvmtarget.errors import TargetError, did_you_mean
from tvmtarget.ir.function import Function
from tvmtarget.ir.inline import rename_values
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.relax.blocks import BLOCKS
from tvmtarget.ir.relax.tvm_library import the_tvm
from tvmtarget.ir.types import TensorType
from tvmtarget.support.strategy import FoundMatch, Reject, Strategy, reject
from tvmtarget.target.argument_types import check_arguments

__all__ = ["from_tvm_patterns"]


@check_arguments
def from_tvm_patterns(prefix: str) -> type[Strategy]:
    """Return a strategy that supports what TVM's patterns of a code generator match.

    Register it for a kind of the same name, `tvmtarget.strategy("cublas")(from_tvm_patterns("cublas"))`, as functions
    of that kind are handed to `relax.ext.<kind>`. A pattern's check that fails is a rejection with code `RULE`.

    Args:
        prefix: the first components of the patterns' names: `cublas` selects `cublas.matmul`, but neither for
            `cublas_lt.matmul` nor for `cublas2.matmul`.

    Returns:
        The class of the strategy.

    Raises:
        TargetError: no pattern has a name that begins so.
    """
    tvm = the_tvm()
    parts = [] if not prefix else prefix.removesuffix(".").split(".")
    # TVM compares prefixes letter by letter, so `cublas` also finds the patterns of `cublas_lt`.
    registered = list(tvm.relax.backend.get_patterns_with_prefix(prefix.removesuffix(".")))
    patterns = tuple(one for one in registered if str(one.name).split(".")[: len(parts)] == parts)
    if not patterns:
        known = {str(one.name).partition(".")[0] for one in tvm.relax.backend.get_patterns_with_prefix("")}
        hint = "import the module that registers them, such as tvm.relax.backend.cuda.cublas"
        raise TargetError(f"TVM has no patterns {prefix!r}{did_you_mean(prefix, known)}; {hint}")
    return type("TvmPatterns", (_TvmPatterns,), {"prefix": ".".join(parts), "registered": patterns})


class _TvmPatterns(Strategy):
    """Supports what registered patterns match, in TVM's order: the one that it prefers first."""

    prefix: ClassVar[str]
    registered: ClassVar[tuple[Any, ...]]

    def find_matches(self, module: IRModule) -> Iterator[FoundMatch]:
        """Yield what TVM's own pass would fuse, and what the checks of patterns reject."""
        main = module.main
        if not all(call.op.startswith("relax.") or call.callee is not None for call in main.body):
            return
        # Names are the only link from a match of TVM back to an operation of this program.
        numbered, positions = _numbered(main)
        written = module.with_function(numbered).to_tvm()
        for pattern in self.registered:
            yield from self._matches(pattern, written, positions)

    def _matches(self, pattern: Any, module: Any, positions: Mapping[str, int]) -> Iterable[FoundMatch]:
        """Return all matches of a pattern, by running TVM's pass with a check that records and rejects each."""
        transform = the_tvm().relax.transform
        name = str(pattern.name).removeprefix(self.prefix).removeprefix(".")
        found: list[FoundMatch] = []

        def record(context: Any) -> bool:
            names = [str(var.name) for var in context.matched_bindings]
            if all(one in positions for one in names):
                calls = tuple(sorted({positions[one] for one in names}))
                found.append(FoundMatch(name, calls, _unsupported_reason(pattern, context)))
            return False

        # A check that always fails: the pass calls it for each match, and fuses nothing.
        recorder = transform.FusionPattern(pattern.name, pattern.pattern, pattern.annotation_patterns, record)
        transform.FuseOpsByPattern([recorder])(module)
        return found


def _unsupported_reason(pattern: Any, context: Any) -> Reject | None:
    if pattern.attrs_getter is not None:
        message = f"{pattern.name} adds attributes to its matches, which are not carried over"
        return reject("RULE", message, hint="run TVM's partition for it first")
    check: Callable[[Any], bool] | None = pattern.check
    try:
        is_taken = check is None or bool(check(context))
    except Exception as error:  # of its author; TVM's pass ends the compilation here
        return reject("RULE", f"the check of {pattern.name} fails: {error}")
    return None if is_taken else reject("RULE", f"the check of {pattern.name} says no")


def _numbered(function: Function) -> tuple[Function, dict[str, int]]:
    """Return a function whose values are named by the operation that computes them, and the positions by name.

    Symbolic dimensions keep their names, as types mention them.
    """
    positions: dict[str, int] = {}
    names: dict[str, str] = {}
    body = []
    for index, call in enumerate(function.body):
        whole = f"op {index}"
        positions[whole] = index
        for place, output in enumerate(call.outputs):
            is_renamed = output.name and isinstance(output.type, TensorType)
            new = (whole if len(call.outputs) == 1 else f"{whole} {place}") if is_renamed else output.name
            names[output.name] = new
            positions[new] = index
        body.append(replace(call, source=whole, constraint=None))
    named = rename_values(function.replace(body=tuple(body)), {old: new for old, new in names.items() if old})
    attrs = tuple(item for item in named.attrs if item[0] != BLOCKS)
    return named.replace(attrs=attrs, constraint=None), positions
