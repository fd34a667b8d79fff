"""Tree ensembles as one tensor function: loops over blocks of rows, groups of trees, rows and levels.

The trees of a group go down in lock-step, without branches: a leaf is its own child. So the loads of one tree do not
wait for those of another, and rows of a block find the nodes of a group in the cache. TVM is imported late and ships no
types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.backends.tvm.tir_builder import OPAQUE, TirBuilder
from tvmtarget.support.tree_ensembles import Ensemble

__all__ = ["tree_ensemble"]

Builder: TypeAlias = Any
Buffer: TypeAlias = Any
Expr: TypeAlias = Any
Stmt: TypeAlias = Any

LANES = 8  # trees of a group
BLOCK = 64  # rows of a block, of which several run in parallel


def tree_ensemble(builder: Builder, ensemble: Ensemble, data: Expr, labels: Sequence[int] = ()) -> list[Expr]:
    """Emit an ensemble.

    Args:
        builder: TVM's builder of Relax functions.
        ensemble: its tables.
        data: the inputs, (rows, columns) of the type of the thresholds.
        labels: the labels of a classifier.

    Returns:
        Sums of weights, or what else the ensemble makes of them, (rows, targets) of the type of the thresholds, before
        the post-transform; behind them the labels of a classifier, (rows,) of int64.

    Raises:
        ValueError: a node compares a column that the inputs do not have.
    """
    from tvm import relax, te, tirx

    thresholds, is_single = ensemble.thresholds, ensemble.is_single
    dtype = str(thresholds.dtype)
    if is_single:  # the weight of a leaf is in place of its threshold
        is_leaf = ensemble.children[:, 0] == np.arange(len(thresholds))
        thresholds = thresholds.copy()
        thresholds[is_leaf] = ensemble.weights[ensemble.first[:-1][is_leaf]]
    tables = {
        "roots": ensemble.roots,
        "depths": _group_depths(ensemble.depths),
        "features": ensemble.features,
        "thresholds": thresholds,
        "children": ensemble.children.reshape(-1),
        "base": ensemble.base,
    }
    if labels:
        tables["labels"] = np.array(labels, np.int64)
    if not is_single:
        tables |= {"first": ensemble.first, "weighted": ensemble.weighted, "weights": ensemble.weights}
    names = [name for name, table in tables.items() if table.size]

    def compute(operand: Any, *tensors: Any) -> Any:  # noqa: ANN401
        rows, columns = operand.shape
        # The rules require this, too, but the source in a saved program is compiled without them.
        columns, most = int(columns) if isinstance(columns, tirx.IntImm) else 0, int(ensemble.features.max(initial=0))
        if most >= columns:
            raise ValueError(f"an ensemble compares column {most}, and its input is known to have {columns}")

        def code(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
            return _Code(ensemble, ins[0], dict(zip(names, ins[1:], strict=True)), outs, rows).function()

        shapes, dtypes = [(rows, ensemble.targets), (rows,)], [dtype, "int64"]
        count = 2 if labels else 1
        return te.extern(shapes[:count], [operand, *tensors], code, name="tree_ensemble", dtype=dtypes[:count])

    constants = [relax.const(tables[name], str(tables[name].dtype)) for name in names]
    call = builder.call_te(
        compute, data, *constants, primfunc_name_hint="tree_ensemble", primfunc_attrs={"op_pattern": OPAQUE}
    )
    found = builder.emit(call)
    return [builder.emit(relax.TupleGetItem(found, at)) for at in range(2)] if labels else [found]


def _group_depths(depths: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the depth of the deepest tree of each group."""
    groups = -(-len(depths) // LANES)
    padded = np.pad(depths, (0, groups * LANES - len(depths)))
    return np.asarray(padded.reshape(groups, LANES).max(axis=1), np.int32)


class _Code(TirBuilder):
    """Statements of an ensemble.

    Args:
        ensemble: its form.
        data: buffer of the inputs.
        tables: buffers of its tables by name.
        results: buffers of the results.
        rows: number of rows.
    """

    def __init__(
        self, ensemble: Ensemble, data: Buffer, tables: dict[str, Buffer], results: Sequence[Buffer], rows: Expr
    ) -> None:
        super().__init__()
        self.ensemble, self.data, self.tables, self.rows = ensemble, data, tables, rows
        self.result, self.label = results[0], results[1] if len(results) > 1 else None
        self.dtype = str(ensemble.thresholds.dtype)

    def function(self) -> Stmt:
        """Return the whole function."""
        tirx = self.tirx
        if isinstance(self.rows, tirx.IntImm) and int(self.rows) <= BLOCK:
            return self.block(self.number(0), self.rows)
        blocks = tirx.floordiv(self.rows + (BLOCK - 1), self.number(BLOCK))

        def one(block: Expr) -> Stmt:
            start = block * BLOCK
            return self.block(start, tirx.min(self.rows - start, self.number(BLOCK)))

        every = self.loop(blocks, one, "PARALLEL")
        if isinstance(self.rows, tirx.IntImm):
            return every
        return tirx.IfThenElse(self.rows <= self.number(BLOCK), self.block(self.number(0), self.rows), every)

    def block(self, start: Expr, count: Expr) -> Stmt:
        """Return what computes some rows."""
        made = [self.loop(count, lambda row: self.begin(start + row))]
        trees = len(self.ensemble.roots)
        whole, rest = divmod(trees, LANES)

        def group(number: Expr, lanes: int) -> Stmt:
            return self.loop(count, lambda row: self.walk(start + row, number, lanes))

        if whole:
            made.append(self.loop(whole, lambda number: group(number, LANES)))
        if rest:
            made.append(group(self.number(whole), rest))
        return self.sequence([*made, self.loop(count, lambda row: self.end(start + row))])

    def begin(self, row: Expr) -> Stmt:
        """Return what sets the results of a row before the first tree."""
        limits = {"MIN": self.tirx.max_value(self.dtype), "MAX": self.tirx.min_value(self.dtype)}
        start = limits.get(self.ensemble.aggregate, self.tirx.const(0.0, self.dtype))
        return self.loop(self.ensemble.targets, lambda target: self.store(self.result, start, row, target))

    def end(self, row: Expr) -> list[Stmt]:
        """Return what completes the results of a row behind the last tree."""
        trees = self.tirx.const(float(len(self.ensemble.roots)), self.dtype)

        def target(at: Expr) -> Stmt:
            value = self.result[row, at]
            if self.ensemble.aggregate == "AVERAGE":
                value = value / trees
            return self.store(self.result, value + self.tables["base"][at], row, at)

        return [self.loop(self.ensemble.targets, target), *(self.choose(row) if self.label is not None else [])]

    def choose(self, row: Expr) -> list[Stmt]:
        """Return what stores the label of a row: the one of the first largest sum, or of two by the sum of the second.

        Sums of weights that are not negative are probabilities, and compared with a half, as in ONNX Runtime.
        """
        labels, tirx, zero = self.tables["labels"], self.tirx, self.number(0)
        if self.ensemble.is_binary or self.ensemble.by_second:
            bound = 0.5 if self.ensemble.is_binary and (self.ensemble.weights >= 0).all() else 0.0
            score = self.result[row, self.number(int(self.ensemble.by_second))]
            is_second = score > tirx.const(bound, self.dtype)
            return [self.store(self.label, labels[is_second.astype("int64")], row)]
        declared, best = self.local(1, "int64", "best")

        def compare(at: Expr) -> Stmt:
            better = self.result[row, at] > self.result[row, best[zero]]
            return self.store(best, tirx.Select(better, at, best[zero]), zero)

        return [
            declared,
            self.store(best, zero, zero),
            self.loop(self.ensemble.targets, compare),
            self.store(self.label, labels[best[zero]], row),
        ]

    def walk(self, row: Expr, group: Expr, lanes: int) -> list[Stmt]:
        """Return what adds the leaves that a row reaches in the trees of a group."""
        tables, width = self.tables, self.ensemble.children.shape[1]
        declared, at = self.local(lanes, "int32", "at")

        def each(body: Callable[[Expr], Stmt]) -> Stmt:
            return self.loop(lanes, body, "UNROLLED")

        def root(lane: Expr) -> Stmt:
            return self.store(at, tables["roots"][group * LANES + lane], lane)

        def down(lane: Expr) -> Stmt:
            node = at[lane]
            value = self.data[row, tables["features"][node]]
            # A comparison is a number, as its negation would not be false for NaN.
            side = (value <= tables["thresholds"][node]).astype("int32")
            if width == 4:
                side = side + self.tirx.isnan(value).astype("int32") * self.number(2, "int32")
            return self.store(at, tables["children"][node * width + side], lane)

        return [
            declared,
            each(root),
            self.loop(tables["depths"][group].astype("int64"), lambda _: each(down)),
            each(lambda lane: self.leaf(row, at[lane])),
        ]

    def leaf(self, row: Expr, node: Expr) -> Stmt:
        """Return what adds the weights of a leaf."""
        tables = self.tables
        if self.ensemble.is_single:
            return self.add(tables["thresholds"][node], row, self.number(int(self.ensemble.weighted[0])))
        first = tables["first"][node]
        count = (tables["first"][node + 1] - first).astype("int64")

        def weight(number: Expr) -> Stmt:
            place = first.astype("int64") + number
            return self.add(tables["weights"][place], row, tables["weighted"][place])

        return self.loop(count, weight)

    def add(self, weight: Expr, row: Expr, target: Expr) -> Stmt:
        """Return what adds a weight to a result."""
        found = self.result[row, target]
        functions = {"MIN": self.tirx.min, "MAX": self.tirx.max}
        combine = functions.get(self.ensemble.aggregate, lambda a, b: a + b)
        return self.store(self.result, combine(found, weight), row, target)
