"""What Apache TVM takes of ONNX: a row per operator, and the few questions that a row cannot hold.

Source: the converters of apache-tvm 0.27, python/tvm/relax/frontend/onnx/onnx_frontend.py, and what came of running
them on ONNX's node tests, on older operator sets, on every element type and on symbolic shapes. An operator that is
not here has no converter, or one that raises, is wrong without a word, or kills the process; so is what the
columns of a row exclude. The importer looks at names only: it takes an operator of any domain for ONNX's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tvmtarget.ir.module import Attribute
from tvmtarget.ir.types import Dim, TensorType
from tvmtarget.partition.strategy import Op, Reject, reject

__all__ = ["DTYPES", "RULES", "Rule", "check_rule"]

Check: TypeAlias = Callable[[Op], Reject | None]

_SIGNED = frozenset({"int8", "int16", "int32", "int64"})
_UNSIGNED = frozenset({"uint8", "uint16", "uint32", "uint64"})
_INTEGERS = _SIGNED | _UNSIGNED
_FLOATS = frozenset({"float16", "float32", "float64"})
_NUMBERS = _INTEGERS | _FLOATS
_BOOL = frozenset({"bool"})
_WIDE = frozenset({"int32", "int64", "uint32", "uint64"})

DTYPES = _NUMBERS | _BOOL

# Before version 7 operands are broadcast by an `axis` attribute that the importer does not know; versions after 28
# are not known to these rows.
_OPSETS = range(7, 29)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is taken of one operator.

    dtypes: element types of the first operand. constants: operands that must be constants. attrs: the values that
    an attribute may have where it is present. opsets: versions of the operator set. results: how many results are
    right, the others may not be read. checks: what else is asked, in this order.
    """

    dtypes: frozenset[str] = DTYPES
    constants: tuple[int, ...] = ()
    attrs: Mapping[str, tuple[Attribute, ...]] = field(default_factory=dict)
    opsets: range = _OPSETS
    results: int | None = None
    checks: tuple[Check, ...] = ()


def check_rule(op: Op, rule: Rule) -> Reject | None:
    """Return None if an operation is within a row, else why not."""
    columns = (_opset, _ranks, _dtype, _constants, _attributes, _results)
    refusals = (column(op, rule) for column in columns)
    further = (check(op) for check in (_empty, *rule.checks))
    return next((refusal for refusal in (*refusals, *further) if refusal is not None), None)
