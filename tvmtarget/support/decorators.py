"""Define strategies without a package: a class decorator, and tables of operators."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_type_hints

from tvmtarget import plugins
from tvmtarget.errors import TargetError, TargetFileError, did_you_mean, raise_all
from tvmtarget.ir.types import DTYPES
from tvmtarget.support.registry import validated_strategy
from tvmtarget.support.strategy import Rule, Strategy
from tvmtarget.target.attributes import fold
from tvmtarget.target.kinds import Attribute, Kind, find_kind
from tvmtarget.untrusted import read_text

__all__ = ["from_op_table", "strategy"]


def strategy(
    kind: str,
    *,
    attributes: Mapping[str, bool | int | str] | None = None,
    **options: Any,  # noqa: ANN401 - of each its own type
) -> Callable[[type], type[Strategy]]:
    """Register the decorated class as the strategy of a kind, in this process.

    A kind that is not known is added. The class need not inherit from `Strategy`.

    >>> @strategy("fancy-npu", dtypes={"float16"})
    ... class FancyNpu:
    ...     ops = {"Conv", "Relu"}
    >>> FancyNpu().dtypes
    frozenset({'float16'})

    Args:
        kind: the target kind that it describes.
        attributes: attributes of the new kind with their defaults: options of the code generator, which checks read in
            `self.target`.
        **options: attributes of `Strategy`, such as `subgraphs="single"`.

    Returns:
        A decorator that returns the strategy class.

    Raises:
        TargetError: a strategy has no such option, a table is wrong, or a package registers a strategy for the kind.
    """
    known = {name: hint for name, hint in get_type_hints(Strategy).items() if name != "target" and name[0] != "_"}
    raise_all(
        TargetError, [f"no option {name!r} of strategies{did_you_mean(name, known)}" for name in options.keys() - known]
    )

    def register(described: type) -> type[Strategy]:
        if not isinstance(described, type):
            raise TargetError(f"strategy {kind!r} should be a class, not {described!r}")
        bases = (described,) if issubclass(described, Strategy) else (described, Strategy)
        stated = {name: getattr(described, name) for name in known if name in vars(described)} | options
        listed = {name: frozenset(stated[name]) for name in _SETS if isinstance(stated.get(name), set | list | tuple)}
        body = stated | listed
        made = type(
            described.__name__, bases, body | {"__module__": described.__module__, "__doc__": described.__doc__}
        )
        # Validated before anything is registered, so that a class with mistakes leaves no kind behind.
        validated_strategy(kind, made)
        # A known kind keeps its row with all its attributes, unless the author states others.
        if find_kind(kind) is None or attributes is not None:
            rows = (_kind(kind, attributes or {}, described.__doc__ or ""),)
            plugins.register("tvmtarget.kinds", kind, rows, owner=plugins.defining_module(described))
        plugins.register("tvmtarget.strategies", kind, made)
        return made

    return register


def _kind(name: str, attributes: Mapping[str, bool | int | str], doc: str) -> Kind:
    """Return the row of a new kind; attributes have the types of their defaults."""
    rows = tuple(
        Attribute(name=fold(attribute), type=_type(attribute, value), class_="hard", default=value)
        for attribute, value in attributes.items()
    )
    return Kind(name=name, device="ext_dev", keys=(name,), attributes=rows, is_external=True, doc=doc)


def _type(name: str, value: object) -> Literal["bool", "int", "str"]:
    found: Literal["bool", "int", "str"] | None = _TYPES.get(type(value))
    if found is None:
        raise TargetError(f"attribute {name!r} of a kind is a number, a text, true or false, not {value!r}")
    return found


# Looked up by the exact type, because bool is a subclass of int.
_TYPES: Mapping[type, Literal["bool", "int", "str"]] = {bool: "bool", int: "int", str: "str"}

# Options that are sets of texts, which may be stated as any list of them.
_SETS = ("ops", "dtypes")


def from_op_table(table: str | Path | Iterable[Mapping[str, str]]) -> type[Strategy]:
    """Return a strategy that supports the operators of a table.

    >>> table = from_op_table([{"op": "Conv", "dtypes": "float16 int8", "constants": "1", "max_rank": "4"}])
    >>> sorted(table.ops), table.rules["Conv"].max_rank
    (['Conv'], 4)

    Args:
        table: path of a CSV file, or its rows. Columns: `op`, and optionally `dtypes` (of the first operand) and
            `constants` (numbers of operands), both separated by spaces, `max_rank`, and `opsets` (`7-17`).

    Returns:
        A subclass of `Strategy`.

    Raises:
        TargetError: lists all rows that are wrong.
        TargetFileError: the file cannot be read.
    """
    where = str(table) if isinstance(table, str | Path) else "op table"
    problems: list[str] = []
    rules: dict[str, Rule] = {}
    for number, row in enumerate(_rows(table), 1):
        try:
            if _op(row) in rules:
                raise ValueError(f"there is a row of {_op(row)!r} already")
            rules[_op(row)] = _rule(row)
        except ValueError as error:
            problems.append(f"{where}, row {number}: {error}")
    raise_all(TargetError, problems)
    return type("OpTable", (Strategy,), {"ops": frozenset(rules), "rules": rules})


_COLUMNS = ("op", "dtypes", "constants", "max_rank", "opsets")


def _rows(table: str | Path | Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    if not isinstance(table, str | Path):
        return [{key: str(value) for key, value in row.items() if value is not None} for row in table]
    try:
        text = io.StringIO(read_text(table, "op table", error=TargetFileError), newline="")
        # Cells beyond the header get this name of a column, which `_op` then rejects like any unknown column.
        rows = csv.DictReader(text, restkey="more than there are columns")
        return [{key: value or "" for key, value in row.items()} for row in rows]
    except csv.Error as error:
        raise TargetFileError(f"op table {str(table)!r} cannot be read: {error}", path=str(table)) from error


def _op(row: Mapping[str, str]) -> str:
    for column in row:
        if column not in _COLUMNS:
            raise ValueError(f"no column {column!r}{did_you_mean(column, _COLUMNS, listing='there are')}")
    if not row.get("op"):
        raise ValueError("'op' is empty")
    return row["op"]


def _rule(row: Mapping[str, str]) -> Rule:
    dtypes = row.get("dtypes", "").split()
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"no element type {dtype!r}{did_you_mean(dtype, DTYPES)}")
    return Rule(
        dtypes=frozenset(dtypes) or None,
        constants=tuple(_number(text) for text in row.get("constants", "").split()),
        max_rank=_number(row["max_rank"]) if row.get("max_rank") else None,
        opsets=_opsets(row["opsets"]) if row.get("opsets") else None,
    )


def _opsets(text: str) -> range:
    first, separator, last = text.partition("-")
    versions = range(_number(first), _number(last if separator else first) + 1)
    # An empty range would reject every model; it is most likely a mistake such as 17-7.
    if not versions:
        raise ValueError(f"opsets {text!r} are none; write the first, '-', and the last")
    return versions


def _number(text: str) -> int:
    # `int` alone would also accept signs, underscores and digits of other scripts.
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{text!r} should be a whole number, 0 or more")
    return int(text)
