"""Greedy non-maximum suppression as one tensor function, as ONNX defines NonMaxSuppression.

Of the boxes of a class whose score is above a threshold, the one of the largest score is chosen, the first of several,
and those that overlap it too much are dropped, until none is left. Choosing a box reads those that are left, which are
few after a threshold; sorting them before, as ONNX Runtime does, gives the same. TVM is imported late and ships no
types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tvmtarget.backends.tvm.tir_builder import OPAQUE, TirBuilder

__all__ = ["non_max_suppression"]

Builder: TypeAlias = Any
Buffer: TypeAlias = Any
Expr: TypeAlias = Any
Stmt: TypeAlias = Any


def non_max_suppression(
    builder: Builder,
    boxes: Expr,
    scores: Expr,
    limits: tuple[Expr, Expr, Expr | None],
    most: int | None,
    *,
    is_centered: bool,
) -> tuple[Expr, Expr]:
    """Emit a non-maximum suppression.

    Args:
        builder: TVM's builder of Relax functions.
        boxes: (batch, boxes, 4) of float32.
        scores: (batch, classes, boxes) of float32.
        limits: vectors of one element: the most boxes of a class (int64), the overlap above which a box is dropped
            (float32), and the score that a box has to exceed (float32), None for any.
        most: the first limit, if it is known.
        is_centered: whether boxes are given by their centres and sizes, not by two corners.

    Returns:
        Rows of batch, class and box, in order (int64), as many as there may be, and the number of those that are
        chosen, (1,) of int64.
    """
    from tvm import relax, te, tirx

    def compute(boxes: Any, scores: Any, *limits: Any) -> Any:  # noqa: ANN401
        batch, classes, count = scores.shape
        each = count if most is None else tirx.min(count, tirx.IntImm("int64", max(0, most)))
        one = tirx.IntImm("int64", 1)

        def code(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
            return _Code(ins, outs, is_centered=is_centered).function()

        shapes = [(tirx.max(batch * classes * each, one), tirx.IntImm("int64", 3)), (one,), (tirx.max(count, one),)]
        return te.extern(shapes, [boxes, scores, *limits], code, name="non_max_suppression", dtype=["int64"] * 3)

    call = builder.call_te(
        compute,
        boxes,
        scores,
        *(one for one in limits if one is not None),
        primfunc_name_hint="non_max_suppression",
        primfunc_attrs={"op_pattern": OPAQUE},
    )
    found = builder.emit(call)
    return builder.emit(relax.TupleGetItem(found, 0)), builder.emit(relax.TupleGetItem(found, 1))


class _Code(TirBuilder):
    """Statements of a suppression.

    Args:
        operands: buffers of the boxes, the scores and the limits.
        results: buffers of the chosen boxes, of their number, and of the boxes that are left.
        is_centered: whether boxes are given by their centres and sizes.
    """

    def __init__(self, operands: Sequence[Buffer], results: Sequence[Buffer], *, is_centered: bool) -> None:
        super().__init__()
        self.boxes, self.scores, self.most, self.overlap, *self.least = operands
        self.chosen, self.total, self.left = results
        self.is_centered = is_centered
        self.zero, self.one = self.number(0), self.number(1)
        # The number of boxes that are left, of those that are kept of them, and of chosen ones; the places of the best
        # one that is left, and of the best one that is kept.
        self.declared, self.state = self.local(5, "int64", "state")
        self.count, self.kept, self.found, self.best, self.next = map(self.number, range(5))
        self.corners_declared, self.corners = self.local(4, "float32", "corners")

    def function(self) -> Stmt:
        """Return the whole function."""
        batch, classes, _ = self.scores.shape

        def rows(image: Expr) -> Stmt:
            return self.loop(classes, lambda number: self.one_class(image, number))

        return self.sequence(
            [
                self.declared,
                self.corners_declared,
                self.store(self.total, self.zero, self.zero),
                self.loop(batch, rows),
            ]
        )

    def one_class(self, image: Expr, number: Expr) -> list[Stmt]:
        """Return what chooses the boxes of a class."""
        tirx, state = self.tirx, self.state

        def score(box: Expr) -> Expr:
            return self.scores[image, number, box]

        def keep(box: Expr, condition: Expr) -> Stmt:
            place = state[self.kept]
            is_better = score(box) > score(self.left[state[self.next]])
            kept = [
                self.store(self.left, box, place),
                tirx.IfThenElse(is_better, self.store(state, place, self.next), None),
                self.store(state, place + self.one, self.kept),
            ]
            return tirx.IfThenElse(condition, self.sequence(kept), None)

        def start(box: Expr) -> Stmt:
            return keep(box, score(box) > self.least[0][self.zero] if self.least else tirx.const(True))

        def drop(at: Expr) -> Stmt:
            box = self.left[at]
            return keep(box, tirx.Not(tirx.any(at == state[self.best], self.overlaps(image, box))))

        def rest(loop: Stmt) -> list[Stmt]:
            return [
                self.store(state, self.zero, self.kept),
                self.store(state, self.zero, self.next),
                loop,
                self.store(state, state[self.kept], self.count),
                self.store(state, state[self.next], self.best),
            ]

        row, best = self.total[self.zero], self.left[state[self.best]]
        choose = [
            *(self.store(self.chosen, one, row, self.number(at)) for at, one in enumerate((image, number, best))),
            self.store(self.total, row + self.one, self.zero),
            self.store(state, state[self.found] + self.one, self.found),
            *(self.store(self.corners, one, self.number(at)) for at, one in enumerate(self.ends(image, best))),
            *rest(self.loop(state[self.count], drop)),
        ]
        goes_on = tirx.all(state[self.count] > self.zero, state[self.found] < self.most[self.zero])
        return [
            self.store(state, self.zero, self.found),
            *rest(self.loop(self.scores.shape[2], start)),
            tirx.While(goes_on, self.sequence(choose)),
        ]

    def ends(self, image: Expr, box: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        """Return the least and the greatest coordinates of a box along one axis, then along the other."""
        tirx = self.tirx
        first, second, third, fourth = (self.boxes[image, box, self.number(at)] for at in range(4))
        if self.is_centered:
            width, height = (side / tirx.const(2, "float32") for side in (third, fourth))
            return first - width, first + width, second - height, second + height
        return tirx.min(first, third), tirx.max(first, third), tirx.min(second, fourth), tirx.max(second, fourth)

    def overlaps(self, image: Expr, box: Expr) -> Expr:
        """Return whether a box overlaps the chosen one by more than the limit, as a share of both."""
        tirx, zero = self.tirx, self.tirx.const(0, "float32")
        chosen = [self.corners[self.number(at)] for at in range(4)]
        other = self.ends(image, box)
        sides = [tirx.min(chosen[at + 1], other[at + 1]) - tirx.max(chosen[at], other[at]) for at in (0, 2)]
        areas = [(ends[1] - ends[0]) * (ends[3] - ends[2]) for ends in (other, chosen)]
        common = sides[0] * sides[1]
        union = areas[0] + areas[1] - common
        positive = [one > zero for one in (*sides, common, *areas, union)]
        return tirx.all(*positive, common / union > self.overlap[self.zero])
