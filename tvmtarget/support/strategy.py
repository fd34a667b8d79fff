"""Operator support of a code generator: the base class that authors of external code generators subclass.

A strategy answers one question per operation, "is this supported?", with None or with a `Reject` that says why not.
It is found by the entry-point group `tvmtarget.strategies`, under the name of the target kind that it describes. The
same question is answered by `OperatorSupport` in torch.fx and by `GetCapability` in ONNX Runtime.

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
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from tvmtarget.errors import TargetError, TvmTargetError, did_you_mean, raise_all
from tvmtarget.ir.function import COPY, Attribute
from tvmtarget.ir.symbolic_shapes import BROADCASTING
from tvmtarget.ir.types import DTYPES, TensorType
from tvmtarget.support.op import STATIC_INPUTS, Code, MatchedOps, Op, Reject, reject
from tvmtarget.target.tree import Target, TargetLike, as_target

if TYPE_CHECKING:
    from tvmtarget.ir.module import IRModule

_CheckMethod: TypeAlias = "Callable[[Any, Op], Reject | None]"

__all__ = [
    "Code",
    "FoundMatch",
    "Op",
    "OpCheck",
    "Reject",
    "Rule",
    "Strategy",
    "plugin_error",
    "reject",
]


@dataclass(frozen=True, slots=True)
class FoundMatch:
    """A match that `Strategy.find_matches` found.

    Attributes:
        pattern: name of the pattern.
        calls: positions of the operations in `main`.
        unsupported: why the code generator does not support the match, None if it does.
    """

    pattern: str
    calls: tuple[int, ...]
    unsupported: Reject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The supported uses of one operator; what is not stated is not limited.

    Attributes:
        dtypes: element types of operand number `typed`.
        typed: the operand that `dtypes` is about.
        constants: operands that must be constants.
        attrs: the supported values of an attribute that is present; none if it must be absent.
        opsets: versions of the operator set.
        results: number of results that are computed; nothing may read the others.
        max_rank: largest number of dimensions of any operand.
        checks: further checks, called in order.
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
        """Check an operation of this operator.

        Args:
            op: the operation.

        Returns:
            None if it is supported, else the first reason why not.
        """
        # In this order the further checks see only operations within the declared limits.
        steps = (self._opset, self._dtype, self._constants, self._attributes, self._results, self._rank, *self.checks)
        return next((rejection for step in steps if (rejection := step(op)) is not None), None)

    def _opset(self, op: Op) -> Reject | None:
        return None if self.opsets is None else _check_opset(op, self.opsets)

    def _dtype(self, op: Op) -> Reject | None:
        tensor = op.tensor(self.typed)
        if self.dtypes is None or tensor is None or tensor.dtype in self.dtypes:
            return None
        hint = f"cast to {_one_of(self.dtypes)}"
        return reject("DTYPE", f"it does not support {op.kind} on {tensor.dtype}", hint=hint)

    def _constants(self, op: Op) -> Reject | None:
        index = next((index for index in self.constants if not op.is_constant(index)), None)
        if index is None:
            return None
        message = f"operand {index} of {op.kind}, {op.operand(index)!r}, is computed at run time"
        # Such operands mostly follow from sizes of the inputs, and are folded where these are numbers.
        is_open = any(isinstance(type_, TensorType) and type_.nbytes is None for type_ in (*op.inputs, *op.outputs))
        fix = f", or {STATIC_INPUTS}" if is_open else ""
        return reject("NEED_CONST", message, hint=f"make it an initializer{fix}")

    def _attributes(self, op: Op) -> Reject | None:
        for name, value in op.call.attrs:
            if name in self.attrs and value not in self.attrs[name]:
                # Another value would be another model, which is no advice.
                limit = f", only with {_one_of(map(repr, self.attrs[name]))}" if self.attrs[name] else ""
                return reject("ATTR", f"it does not support {op.kind} with {name}={value!r}{limit}")
        return None

    def _rank(self, op: Op) -> Reject | None:
        if self.max_rank is None:
            return None
        limit = f"it supports {op.kind} of at most {self.max_rank} dimensions"
        tensors = [(name, type_) for name, type_ in zip(op.call.inputs, op.inputs, strict=True) if name]
        shapes = {name: type_.shape if isinstance(type_, TensorType) else () for name, type_ in tensors if type_}
        unknown = next((name for name, _ in tensors if shapes.get(name) is None), None)
        # An unknown rank counts as too large, because the rank at run time could be.
        if unknown is not None:
            return reject("RANK", f"{limit}, and the rank of {unknown!r} is not known", hint="give the inputs shapes")
        ranks = [len(shape) for shape in shapes.values() if shape is not None]
        return None if max(ranks, default=0) <= self.max_rank else reject("RANK", f"{limit}, not {max(ranks)}")

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
    message = f"it supports {op.kind} of operator sets {opsets[0]} to {opsets[-1]}, not {op.opset}"
    return reject("RULE", message, hint="convert the model with onnx.version_converter")


def _one_of(values: Iterable[str]) -> str:
    names = sorted(values)
    return f"one of {', '.join(names)}" if len(names) > 2 else " or ".join(names)


@dataclass(frozen=True, slots=True)
class OpCheck:
    """A decorated method of a strategy: the operators that it checks, and their limits."""

    ops: tuple[str, ...]
    rule: Rule
    method: _CheckMethod


class Strategy:
    """Operator support of one code generator: subclass it, fill the tables, refine `check_op`.

    Checks read the leaf that they are called for, with the options of the code generator as attributes, in
    `self.target`. The limits hold for an operation alone and for each operation of a match; `max_ops`, `max_inputs` and
    `max_outputs` also reject one operation, or one match, that exceeds them by itself. Only `ops` and `check_op` are
    about operations alone.

    Attributes:
        ops: supported operators, or None for all. With `patterns` and without `ops`, only matches are supported.
        unsupported: operators that are not supported although `ops` has them, with the reason.
        rules: limits of single operators.
        dtypes: supported element types, or None for all.
        opsets: supported versions of ONNX's own operator set, or None for all.
        supports_control_flow: whether operations with nested bodies are supported.
        supports_non_tensors: whether sequences, maps and optional values are supported.
        supports_unknown_ranks: whether operands of unknown rank are supported.
        patterns: operations that are supported together, by name, in the language of `support/patterns.py`. A method
            with the name of a pattern checks each match.
        subgraphs: `superstep` puts operations that do not depend on each other into one function, `connected` does
            not, `single` makes a function of each, and `program` is for generators that compile one function in all:
            the best one stays, the rest goes to other sites.
        max_ops: largest number of operations of a function, or None. Larger functions are split where the fewest bytes
            are transferred.
        max_inputs: largest number of values that a function reads, constants aside, or None.
        max_outputs: largest number of values that a function returns, or None.
        accepts: `mixed` functions of host and device code, or `device` code only; then shape computations, scalar work
            and control flow are given to the host.
        constants: `bind` makes weights parts of functions, `lift` makes them parameters, and `share` makes them
            parameters where one function then serves several subgraphs that differ in nothing else.
    """

    ops: ClassVar[frozenset[str] | None] = None
    unsupported: ClassVar[Mapping[str, str]] = {}
    rules: ClassVar[Mapping[str, Rule]] = {}
    dtypes: ClassVar[frozenset[str] | None] = None
    opsets: ClassVar[range | None] = None
    supports_control_flow: ClassVar[bool] = False
    supports_non_tensors: ClassVar[bool] = False
    supports_unknown_ranks: ClassVar[bool] = True
    patterns: ClassVar[Mapping[str, str]] = {}
    subgraphs: ClassVar[Literal["superstep", "connected", "single", "program"]] = "superstep"
    max_ops: ClassVar[int | None] = None
    max_inputs: ClassVar[int | None] = None
    max_outputs: ClassVar[int | None] = None
    accepts: ClassVar[Literal["mixed", "device"]] = "mixed"
    constants: ClassVar[Literal["bind", "lift", "share"]] = "bind"

    target: Target | None = None
    _op_checks: ClassVar[Mapping[str, _CheckMethod]] = {}

    def __init_subclass__(cls, **options: object) -> None:
        """Add the operators and limits of all `OpCheck` attributes to the tables of the new class."""
        super().__init_subclass__(**options)
        checks = [value for base in cls.__mro__ for value in vars(base).values() if isinstance(value, OpCheck)]
        if checks:
            by_op = {name: check for check in reversed(checks) for name in check.ops}  # those of subclasses win
            cls.rules = {**cls.rules, **{name: check.rule for name, check in by_op.items()}}
            cls._op_checks = {name: check.method for name, check in by_op.items()}
            # Without patterns, `ops` None means all operators; a set of the decorated ones would turn that into a
            # limit.
            if cls.ops is not None or cls.patterns:
                cls.ops = frozenset(cls.ops or ()) | by_op.keys()

    @staticmethod
    def op(
        *ops: str,
        dtypes: Iterable[str] | None = None,
        typed: int = 0,
        constants: Iterable[int] = (),
        attrs: Mapping[str, tuple[Attribute, ...]] | None = None,
        opsets: range | None = None,
        results: int | None = None,
        max_rank: int | None = None,
    ) -> Callable[[_CheckMethod], OpCheck]:
        """Support operators within limits, and as far as the decorated method allows.

        The limits hold for these operators in matches of patterns too.

        >>> class Npu(Strategy):
        ...     ops = frozenset({"Conv"})
        ...
        ...     @Strategy.op("Add", "Mul", dtypes={"float16"}, max_rank=4)
        ...     def check_elementwise(self, op):
        ...         return reject("RULE", "both operands are one value") if op.operand(0) == op.operand(1) else None
        >>> sorted(Npu.ops), Npu.rules["Add"].max_rank
        (['Add', 'Conv', 'Mul'], 4)

        Args:
            *ops: names of the operators.
            dtypes: as in `Rule`, like the following.
            typed: as in `Rule`.
            constants: as in `Rule`.
            attrs: as in `Rule`.
            opsets: as in `Rule`.
            results: as in `Rule`.
            max_rank: as in `Rule`.

        Returns:
            A decorator of the method, which gets an `Op` and returns None or why it is not supported. The class is a
            `Strategy`, or one that `tvmtarget.strategy` decorates.

        Raises:
            TargetError: there is no such element type.
        """
        names = None if dtypes is None else frozenset(dtypes)
        unknown = sorted((names or frozenset()) - DTYPES.keys())
        raise_all(TargetError, [f"no element type {dtype!r}{did_you_mean(dtype, DTYPES)}" for dtype in unknown])

        def decorate(method: _CheckMethod) -> OpCheck:
            rule = Rule(
                dtypes=names,
                typed=typed,
                constants=tuple(constants),
                attrs=attrs or {},
                opsets=opsets,
                results=results,
                max_rank=max_rank,
            )
            return OpCheck(ops, rule, method)

        return decorate

    def at(self, target: TargetLike) -> Strategy:
        """Return the strategy of one leaf.

        Args:
            target: the leaf, in any form that `Target.parse` reads.

        Returns:
            A copy whose `target` is the leaf.
        """
        # A copy, because one cached instance serves all leaves of its kind.
        bound = copy(self)
        bound.target = as_target(target)
        return bound

    def with_executor(self, executor: str) -> Strategy:
        """Return the strategy of the same leaf in a system with some executor; to be overridden.

        Args:
            executor: the kind of the executor, such as `aot`.

        Returns:
            The strategy; itself unless what the code generator supports depends on the executor.
        """
        return self

    def check(self, op: Op) -> Reject | None:
        """Check an operation, alone, with all in its nested bodies.

        Args:
            op: the operation.

        Returns:
            None if it is supported, else why not.
        """
        if op.call.op == COPY:
            return None
        for step in (self._check_kind, self.check_limits, self._check_op, self._check_nested):
            rejection = step(op)
            if rejection is not None:
                return rejection
        return None

    def check_limits(self, op: Op) -> Reject | None:
        """Check the declared limits, which hold for an operation alone and in a match.

        Args:
            op: the operation.

        Returns:
            None if it is within `unsupported`, `supports_control_flow`, `opsets`, `dtypes`, `supports_non_tensors`,
            `supports_unknown_ranks` and the row of its operator in `rules`, else why not.
        """
        for step in (self._check_declared, self._check_types, self._check_row):
            rejection = step(op)
            if rejection is not None:
                return rejection
        return None

    def check_op(self, op: Op) -> Reject | None:
        """Refine the tables; to be overridden.

        Args:
            op: an operation that the tables support.

        Returns:
            None if it is supported, else why not.
        """
        return None

    def check_subgraph(self, ops: Sequence[Op]) -> Reject | None:
        """Check operations that would form one function; to be overridden.

        Args:
            ops: operations, each of which is supported, in order.

        Returns:
            None if they are supported together, else why not: the subgraph is then split, and its parts are checked.
        """
        return None

    @property
    def checks_subgraphs(self) -> bool:
        """Whether `check_subgraph` is overridden."""
        return type(self).check_subgraph is not Strategy.check_subgraph

    def check_together(self, ops: Sequence[Op]) -> Reject | None:
        """Call `check_subgraph`, if it is overridden, and check its answer.

        Args:
            ops: operations, each of which is supported, in order.

        Returns:
            None if they are supported together, else why not.

        Raises:
            TargetError: the method fails, or returns something else.
        """
        if not self.checks_subgraphs:
            return None
        return self._checked_answer(self.check_subgraph, ops, f"a subgraph of {len(ops)} ops", first=ops[0])

    @property
    def is_matching(self) -> bool:
        """Whether it supports operations together: it has patterns, or overrides `find_matches`."""
        return bool(self.patterns) or type(self).find_matches is not Strategy.find_matches

    def find_matches(self, module: IRModule) -> Iterable[FoundMatch]:
        """Find operations that are supported together, by other means than `patterns`.

        Args:
            module: the program.

        Returns:
            Matches in `main`. Of those with the same last operation the largest counts; results of other operations
            may not leave a match.
        """
        return ()

    def matches_in(self, module: IRModule) -> tuple[FoundMatch, ...]:
        """Call `find_matches` and check its answer.

        Args:
            module: the program.

        Returns:
            The matches in `main`.

        Raises:
            TargetError: the method fails, or returns something that is no match.
        """
        name, count = type(self).__name__, len(module.main.body)
        try:
            found = tuple(self.find_matches(module))
        except Exception as error:  # of another author's code, which can raise anything
            raise plugin_error(f"strategy {name!r} fails on finding matches", error) from error
        wrong = [match for match in found if not _is_match(match, count)]
        expected = f"FoundMatch(pattern, calls), with calls that are positions in 'main', 0 to {count - 1}, each once"
        problems = [f"strategy {name!r} finds {one!r}, which is no match; it should be {expected}" for one in wrong[:5]]
        raise_all(TargetError, problems)
        return found

    def check_match(self, match: MatchedOps) -> Reject | None:
        """Call the method with the name of a match's pattern, if there is one.

        Args:
            match: a match of one of `patterns`.

        Returns:
            None if it is supported, else why not.

        Raises:
            TargetError: the method fails, or returns something else.
        """
        check = getattr(self, match.pattern, None)  # by name, as in ast.NodeVisitor
        about = f"a match of {match.pattern!r}"
        return None if check is None else self._checked_answer(check, match, about, first=match.ops[0])

    def _checked_answer(
        self, check: Callable[[Any], object], argument: object, about: str, *, first: Op
    ) -> Reject | None:
        """Call a check of the author's; `TargetError` if it fails, or returns neither None nor a `Reject`."""
        name = type(self).__name__
        try:
            answer = check(argument)
        except Exception as error:  # of another author's code, which can raise anything
            raise plugin_error(f"strategy {name!r} fails on {about}{_at(first)}", error) from error
        if answer is None or isinstance(answer, Reject):
            return answer
        expected = "None, or why not: tvmtarget.reject(code, message)"
        raise TargetError(f"strategy {name!r} answers {answer!r} about {about}{_at(first)}; it should be {expected}")

    def _check_op(self, op: Op) -> Reject | None:
        return self._checked_answer(self.check_op, op, op.kind, first=op)

    def _check_kind(self, op: Op) -> Reject | None:
        if op.call.callee is not None:
            return reject("NO_RULE", f"function {op.call.callee!r} is code, which only TVM's own generators support")
        if self.ops is None and self.is_matching:
            return reject("NO_RULE", f"no pattern of it matches {op.kind} here")
        if self.ops is not None and op.kind not in self.ops:
            return reject("NO_RULE", f"it has no rule for {op.kind}")
        return None

    def _check_declared(self, op: Op) -> Reject | None:
        if op.kind in self.unsupported:
            return reject("RULE", self.unsupported[op.kind])
        if op.call.regions and not self.supports_control_flow:
            return reject("CONTROL_FLOW", f"it does not support control flow, and {op.kind} has nested bodies")
        # Versions are numbered per domain: `opsets` is about the domain of ONNX itself, not about ai.onnx.ml or Relax.
        is_own = op.call.op.startswith("onnx.") and "::" not in op.kind
        return None if self.opsets is None or not is_own else _check_opset(op, self.opsets)

    def _check_types(self, op: Op) -> Reject | None:
        types = (*op.inputs, *op.outputs)
        opaque = next((type_ for type_ in types if not isinstance(type_, TensorType | None)), None)
        if opaque is not None and not self.supports_non_tensors:
            return reject("NON_TENSOR", f"it supports tensors only, not {opaque}")
        if not self.supports_unknown_ranks:
            for name, type_ in zip(op.call.inputs, op.inputs, strict=True):
                if name and type_ is None:
                    fix = f"state it with with_types(module, {{{name!r}: 'float32[?,?]'}})"
                    return reject("SHAPE_DYNAMIC", f"the type of {name!r} is not known", hint=fix)
                if isinstance(type_, TensorType) and type_.shape is None:
                    fix = f"state it with with_types(module, {{{name!r}: '{type_.dtype}[?,?]'}})"
                    hint = f"give the inputs shapes, or {fix}"
                    return reject("SHAPE_DYNAMIC", f"the rank of {name!r} is not known", hint=hint)
            if op.kind in BROADCASTING and op.outputs[:1] == (None,) and not _is_broadcast(op):
                message = f"the operands of {op.kind} are {' and '.join(map(str, op.inputs))}, which do not broadcast"
                return reject("SHAPE", message, hint="correct the model")
        foreign = [] if self.dtypes is None else [dtype for dtype in op.dtypes if dtype not in self.dtypes]
        if not foreign:
            return None
        # No Cast makes numbers of most texts.
        is_text = foreign[0] == "string"
        hint = (
            "give the target a leaf for texts, such as onnxruntime"
            if is_text
            else f"cast to {_one_of(self.dtypes or ())}"
        )
        return reject("DTYPE", f"it does not support {foreign[0]}", hint=hint)

    def _check_row(self, op: Op) -> Reject | None:
        if op.kind not in self.rules:
            return None
        rejection = self._checked_answer(self.rules[op.kind].check, op, op.kind, first=op)
        method = self._op_checks.get(op.kind)
        if rejection is not None or method is None:
            return rejection
        # An `OpCheck` is no descriptor: Python does not bind the method that it holds, so `self` is passed here.
        return self._checked_answer(partial(method, self), op, op.kind, first=op)

    def _check_nested(self, op: Op) -> Reject | None:
        known = {} if op.known is None else op.known
        for inner in op.nested():
            key = id(self), id(inner.call)
            if key not in known:
                # Strategy and operation are kept too, because the id of an object that was freed can be reused.
                known[key] = self, inner.call, self.check(inner)
            *_, rejection = known[key]
            if rejection is not None:
                return rejection
        return None


def plugin_error(problem: str, error: Exception) -> TvmTargetError:
    """Return the error to raise for an exception of a strategy's own code.

    Args:
        problem: what failed, such as `strategy 'Npu' fails on Conv`.
        error: the exception.

    Returns:
        An error whose message begins with what failed, once if strategies call each other.
    """
    if not isinstance(error, TvmTargetError):
        return TargetError(f"{problem}: {type(error).__name__}: {error}")
    return error if str(error).startswith("strategy ") else TargetError(f"{problem}: {error}")


def _at(op: Op) -> str:
    return f" at {op.call.source!r}" if op.call.source else ""


def _is_broadcast(op: Op) -> bool:
    """Return whether the sizes of operands that are known may be broadcast to one shape."""
    shapes = [type_.shape or () for type_ in op.inputs if isinstance(type_, TensorType)]
    sizes = ({dim for dim in dims if isinstance(dim, int)} - {1} for dims in zip_longest(*map(reversed, shapes)))
    return all(len(one) <= 1 for one in sizes)


def _is_match(found: object, count: int) -> bool:
    """Whether a value is a match of operations of a function with `count` operations."""
    if not isinstance(found, FoundMatch) or not isinstance(found.calls, tuple) or not found.calls:
        return False
    in_range = all(isinstance(call, int) and 0 <= call < count for call in found.calls)
    return in_range and len(set(found.calls)) == len(found.calls) and isinstance(found.unsupported, Reject | None)
