"""What a code generator takes: the protocol that authors of external code generators write.

A strategy answers one question per operation, "can you take this?", with None or with a `Reject` that says why
not. It is found by the entry-point group `tvmtarget.strategies`, under the name of the target kind it speaks for.

    from tvmtarget import Strategy, reject

    class Npu(Strategy):
        ops = frozenset({"Conv", "Relu", "MatMul"})

        def check_op(self, op):
            if op.inputs[0].dtype != "float16":
                return reject("DTYPE", op.inputs[0].dtype, hint="cast to float16")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from tvmtarget.errors import TargetError, TvmTargetError, did_you_mean, raise_all
from tvmtarget.ir.function import COPY, Attribute
from tvmtarget.ir.types import DTYPES, TensorType
from tvmtarget.support.op import Code, Op, Reject, reject
from tvmtarget.target.tree import Target

if TYPE_CHECKING:
    from tvmtarget.ir.module import IRModule
    from tvmtarget.support.matched import Matched

__all__ = [
    "Code",
    "Found",
    "Op",
    "Reject",
    "Rule",
    "Strategy",
    "blamed",
    "reject",
]

_Check = TypeVar("_Check", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Found:
    """Operations that a strategy found by its own means: by position in the function, and why not, if it refuses."""

    pattern: str
    calls: tuple[int, ...]
    refusal: Reject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The row of one operator in a strategy's table: what of it is taken. What is not stated is not limited.

    dtypes: element types of operand number `typed`. constants: operands that must be constants. attrs: the values
    that an attribute may have where it is present, none if it must be absent. opsets: versions of the operator set.
    results: how many results can be had; nothing may read the others. max_rank: most dimensions of any operand.
    checks: questions that no column can hold.
    """

    dtypes: frozenset[str] | None = None
    typed: int = 0
    constants: tuple[int, ...] = ()
    attrs: Mapping[str, tuple[Attribute, ...]] = field(default_factory=dict)
    opsets: range | None = None
    results: int | None = None
    max_rank: int | None = None
    checks: tuple[Callable[[Op], Reject | None], ...] = ()

    def check(self, op: Op) -> Reject | None:
        """Return None if an operation is within the row, else why not."""
        steps = (self._opset, self._dtype, self._constants, self._attributes, self._results, self._rank, *self.checks)
        return next((refusal for step in steps if (refusal := step(op)) is not None), None)

    def _opset(self, op: Op) -> Reject | None:
        return None if self.opsets is None else _check_opset(op, self.opsets)

    def _dtype(self, op: Op) -> Reject | None:
        tensor = op.tensor(self.typed)
        if self.dtypes is None or tensor is None or tensor.dtype in self.dtypes:
            return None
        return reject("DTYPE", f"it takes no {op.kind} on {tensor.dtype}", hint=f"cast to {_one_of(self.dtypes)}")

    def _constants(self, op: Op) -> Reject | None:
        index = next((index for index in self.constants if not op.is_constant(index)), None)
        if index is None:
            return None
        message = f"operand {index} of {op.kind}, {op.operand(index)!r}, is computed at run time"
        return reject("NEED_CONST", message, hint="make it an initializer")

    def _attributes(self, op: Op) -> Reject | None:
        for name, value in op.call.attrs:
            if name in self.attrs and value not in self.attrs[name]:
                hint = f"set it to {_one_of(map(str, self.attrs[name]))}" if self.attrs[name] else "leave it out"
                return reject("ATTR", f"it takes no {op.kind} with {name}={value!r}", hint=hint)
        return None

    def _rank(self, op: Op) -> Reject | None:
        if self.max_rank is None:
            return None
        tensors = [(name, type_) for name, type_ in zip(op.call.inputs, op.inputs, strict=True) if name]
        shapes = {name: type_.shape if isinstance(type_, TensorType) else () for name, type_ in tensors if type_}
        unknown = next((name for name, _ in tensors if shapes.get(name) is None), None)
        if unknown is not None:
            message = (
                f"it takes {op.kind} of at most {self.max_rank} dimensions, and the rank of {unknown!r} is not known"
            )
            return reject("RANK", message, hint="give the inputs shapes")
        ranks = [len(shape) for shape in shapes.values() if shape is not None]
        if max(ranks, default=0) <= self.max_rank:
            return None
        return reject("RANK", f"it takes {op.kind} of at most {self.max_rank} dimensions, not {max(ranks)}")

    def _results(self, op: Op) -> Reject | None:
        first = len(op.call.outputs) if self.results is None else self.results
        index = next((index for index in range(first, len(op.call.outputs)) if op.is_read(index)), None)
        if index is None:
            return None
        message = f"it does not compute result {index} of {op.kind}, {op.call.outputs[index].name!r}"
        return reject("RULE", message, hint="do not read it")


def _check_opset(op: Op, opsets: range) -> Reject | None:
    if op.opset in opsets:
        return None
    message = f"it takes {op.kind} of operator sets {opsets[0]} to {opsets[-1]}, not {op.opset}"
    return reject("RULE", message, hint="convert the model with onnx.version_converter")


def _one_of(values: Iterable[str]) -> str:
    listed = sorted(values)
    return f"one of {', '.join(listed)}" if len(listed) > 2 else " or ".join(listed)


class Strategy:
    """What one code generator takes; subclass, fill the tables, refine `check_op`.

    ops: operators taken, or None for all; refused: operators not taken although they are in `ops`, with the reason;
    rules: what is taken of an operator, where not all of it is. dtypes: element types taken, or None for all.
    opsets: versions taken of ONNX's own operator set, or None for all. patterns: operations taken together, by name, as
    `ir/patterns.py` reads them; with patterns and without `ops` nothing else is taken, and a method of the same name
    gets each match and says why not. subgraphs: `superstep` puts operations that do not feed each other into one
    function, `connected` does not, `single` makes a function of each, and `program` is for generators that compile one
    function in all: the best one stays, the rest goes to other sites. max_ops, max_inputs, max_outputs: the most
    operations that a function may have, values that it may read (constants aside) and return, or None for any number;
    larger ones are divided where fewest bytes pass. takes: `mixed` functions of host and device code whole, or code for
    the `device` only: then its host is given shape and scalar work, and control flow. constants: `bind` makes weights
    parts of functions, `lift` gives them to functions as parameters, and `share` does where one function so does for
    several parts of a program that differ in nothing else.

    These limits hold for an operation alone and for each operation of a match; `max_ops`, `max_inputs` and
    `max_outputs` also refuse one operation, or one match, that exceeds them by itself. Only `ops` and `check_op` are
    about operations alone.

    Checks find the leaf that they are asked for in `self.target`, with the options of the code generator as attributes.
    """

    ops: ClassVar[frozenset[str] | None] = None
    refused: ClassVar[Mapping[str, str]] = {}
    rules: ClassVar[Mapping[str, Rule]] = {}
    dtypes: ClassVar[frozenset[str] | None] = None
    opsets: ClassVar[range | None] = None
    takes_control_flow: ClassVar[bool] = False
    takes_non_tensors: ClassVar[bool] = False
    takes_unknown_ranks: ClassVar[bool] = True
    patterns: ClassVar[Mapping[str, str]] = {}
    subgraphs: ClassVar[Literal["superstep", "connected", "single", "program"]] = "superstep"
    max_ops: ClassVar[int | None] = None
    max_inputs: ClassVar[int | None] = None
    max_outputs: ClassVar[int | None] = None
    takes: ClassVar[Literal["mixed", "device"]] = "mixed"
    constants: ClassVar[Literal["bind", "lift", "share"]] = "bind"

    target: Target | None = None

    def check(self, op: Op) -> Reject | None:
        """Return None if this can take the operation, with all in its nested bodies, else why not."""
        if op.call.op == COPY:
            return None
        for step in (self._check_kind, self.check_limits, self._check_op, self._check_nested):
            refusal = step(op)
            if refusal is not None:
                return refusal
        return None

    def check_limits(self, op: Op) -> Reject | None:
        """Return None if an operation, alone or in a match, is within the declared limits, else why not.

        The limits are `refused`, `takes_control_flow`, `opsets`, `dtypes`, `takes_non_tensors`, `takes_unknown_ranks`
        and the row of the operator in `rules`.
        """
        for step in (self._check_declared, self._check_types, self._check_row):
            refusal = step(op)
            if refusal is not None:
                return refusal
        return None

    @classmethod
    def op(
        cls,
        *ops: str,
        dtypes: Iterable[str] | None = None,
        typed: int = 0,
        constants: Iterable[int] = (),
        attrs: Mapping[str, tuple[Attribute, ...]] | None = None,
        opsets: range | None = None,
        results: int | None = None,
        max_rank: int | None = None,
    ) -> Callable[[_Check], _Check]:
        """Take operators within limits, those of a `Rule`, as far as the function below says None and not why not.

        The limits hold for these operators in matches of patterns too.

        >>> class Npu(Strategy):
        ...     ops = frozenset({"Conv"})
        >>> @Npu.op("Add", "Mul", dtypes={"float16"}, max_rank=4)
        ... def check_elementwise(op):
        ...     return reject("RULE", "it adds nothing to itself") if op.operand(0) == op.operand(1) else None
        >>> sorted(Npu.ops), Npu.rules["Add"].max_rank
        (['Add', 'Conv', 'Mul'], 4)
        """
        listed = None if dtypes is None else frozenset(dtypes)
        unknown = sorted((listed or frozenset()) - DTYPES.keys())
        raise_all(TargetError, [f"no element type {dtype!r}{did_you_mean(dtype, DTYPES)}" for dtype in unknown])

        def add(check: _Check) -> _Check:
            rule = Rule(
                dtypes=listed,
                typed=typed,
                constants=tuple(constants),
                attrs=attrs or {},
                opsets=opsets,
                results=results,
                max_rank=max_rank,
                checks=(check,),
            )
            if cls.ops is not None or cls.patterns:
                cls.ops = (cls.ops or frozenset()) | frozenset(ops)
            cls.rules = {**cls.rules, **dict.fromkeys(ops, rule)}
            return check

        return add

    def at(self, target: Target) -> Strategy:
        """Return the strategy with the leaf that it is asked for."""
        bound = copy(self)
        bound.target = target
        return bound

    @property
    def is_matching(self) -> bool:
        """Whether it takes operations together: it has patterns, or finds matches by its own means."""
        return bool(self.patterns) or type(self).find_matches is not Strategy.find_matches

    def find_matches(self, module: IRModule) -> Iterable[Found]:
        """Return what it would take together of `main`; for strategies whose patterns are not text.

        Of those with the same last operation the largest counts. Results of others than the last may not leave a match.
        """
        return ()

    def check_match(self, match: Matched) -> Reject | None:
        """Return None if this takes a match of one of its patterns, else why not; asks the method of that name."""
        asked = getattr(self, match.pattern, None)
        about = f"a match of {match.pattern!r}"
        return None if asked is None else self._answer(asked, match, about, place=match.ops[0])

    def matches_in(self, module: IRModule) -> tuple[Found, ...]:
        """Return what `find_matches` finds; `TargetError` for what is no match, and for what it raises."""
        name, count = type(self).__name__, len(module.main.body)
        try:
            found = tuple(self.find_matches(module))
        except Exception as error:  # of the author, who finds it as the cause
            raise blamed(f"strategy {name!r} fails on finding matches", error) from error
        odd = [one for one in found if not _is_found(one, count)]
        should = f"Found(pattern, calls), with calls that are positions in 'main', 0 to {count - 1}, each once"
        problems = [f"strategy {name!r} finds {one!r}, which is no match; it should be {should}" for one in odd[:5]]
        raise_all(TargetError, problems)
        return found

    def check_together(self, ops: Sequence[Op]) -> Reject | None:
        """Return None if this takes operations in one function, each of which it takes, else why not."""
        about = f"a subgraph of {len(ops)} ops"
        return self._answer(self.check_subgraph, ops, about, place=ops[0]) if self.is_vetoing else None

    @property
    def is_vetoing(self) -> bool:
        """Whether it has something to say to whole subgraphs."""
        return type(self).check_subgraph is not Strategy.check_subgraph

    def _answer(self, ask: Callable[[Any], object], asked: object, about: str, *, place: Op) -> Reject | None:
        """Ask a question of the author's; `TargetError` for an answer that is none, and for what it raises."""
        name = type(self).__name__
        try:
            answer = ask(asked)
        except Exception as error:  # of the author, who finds it as the cause
            raise blamed(f"strategy {name!r} fails on {about}{_at(place)}", error) from error
        if answer is None or isinstance(answer, Reject):
            return answer
        should = "None, or why not: tvmtarget.reject(code, message)"
        raise TargetError(f"strategy {name!r} answers {answer!r} about {about}{_at(place)}; it should be {should}")

    def _check_op(self, op: Op) -> Reject | None:
        return self._answer(self.check_op, op, op.kind, place=op)

    def check_op(self, op: Op) -> Reject | None:
        """Refine the tables; called for operations that they let pass."""
        return None

    def check_subgraph(self, ops: Sequence[Op]) -> Reject | None:
        """Refuse operations together, all of which it takes; they are then divided, and asked for again in parts."""
        return None

    def _check_kind(self, op: Op) -> Reject | None:
        if op.call.callee is not None:
            return reject("NO_RULE", f"function {op.call.callee!r} is code, which only TVM's own generators take")
        if self.ops is None and self.is_matching:
            return reject("NO_RULE", f"no pattern of it matches {op.kind} here")
        if self.ops is not None and op.kind not in self.ops:
            return reject("NO_RULE", f"it has no rule for {op.kind}")
        return None

    def _check_declared(self, op: Op) -> Reject | None:
        if op.kind in self.refused:
            return reject("RULE", self.refused[op.kind])
        if op.call.regions and not self.takes_control_flow:
            return reject("CONTROL_FLOW", f"it takes no control flow, and {op.kind} has nested bodies")
        is_own = op.call.op.startswith("onnx.") and "::" not in op.kind
        return None if self.opsets is None or not is_own else _check_opset(op, self.opsets)

    def _check_types(self, op: Op) -> Reject | None:
        around = (*op.inputs, *op.outputs)
        opaque = next((type_ for type_ in around if not isinstance(type_, TensorType | None)), None)
        if opaque is not None and not self.takes_non_tensors:
            return reject("NON_TENSOR", f"it takes tensors only, not {opaque}")
        if not self.takes_unknown_ranks:
            for name, type_ in zip(op.call.inputs, op.inputs, strict=True):
                if name and (type_ is None or (isinstance(type_, TensorType) and type_.shape is None)):
                    return reject("SHAPE_DYNAMIC", f"the rank of {name!r} is not known", hint="give the inputs shapes")
        foreign = [] if self.dtypes is None else [dtype for dtype in op.dtypes if dtype not in self.dtypes]
        if not foreign:
            return None
        return reject("DTYPE", f"it takes no {foreign[0]}", hint=f"cast to {_one_of(self.dtypes or ())}")

    def _check_row(self, op: Op) -> Reject | None:
        return self._answer(self.rules[op.kind].check, op, op.kind, place=op) if op.kind in self.rules else None

    def _check_nested(self, op: Op) -> Reject | None:
        return next((refusal for inner in op.nested() if (refusal := self.check(inner)) is not None), None)


def blamed(what: str, error: Exception) -> TvmTargetError:
    """Return the error for what an author's code raised: it begins with what failed, once."""
    if not isinstance(error, TvmTargetError):
        return TargetError(f"{what}: {type(error).__name__}: {error}")
    return error if str(error).startswith("strategy ") else TargetError(f"{what}: {error}")


def _at(op: Op) -> str:
    return f" at {op.call.source!r}" if op.call.source else ""


def _is_found(found: object, count: int) -> bool:
    """Whether a match is of operations of a function of `count`, and says why not if it is refused."""
    if not isinstance(found, Found) or not isinstance(found.calls, tuple) or not found.calls:
        return False
    in_range = all(isinstance(call, int) and 0 <= call < count for call in found.calls)
    return in_range and len(set(found.calls)) == len(found.calls) and isinstance(found.refusal, Reject | None)
