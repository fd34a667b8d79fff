"""LSTM, GRU and RNN as one tensor function for each direction, with loops over steps and rows.

The products of all inputs are one matrix product in front; the loops hold the products of the states. Their weights are
in blocks of neighbouring units, so that a vector of sums for each gate stays in registers. Steps and rows may
be symbolic.

Source: ONNX's definitions of the operators, and ONNX Runtime for what they leave open (values behind the end of a
sequence are 0, and so are the last states of an empty one). TVM is imported late and ships no types: its objects are
Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.backends.protocol import Array
from tvmtarget.backends.tvm.tir_builder import OPAQUE, TirBuilder
from tvmtarget.support.tvm_rules import ACTIVATIONS

__all__ = ["Network", "recurrent"]

Builder: TypeAlias = Any
Buffer: TypeAlias = Any
Expr: TypeAlias = Any
Stmt: TypeAlias = Any

WIDTH = 8  # units of a block: with four gates their sums fit the registers of SSE2
PARALLEL_WORK = 1 << 19  # products of a step from which blocks of units run in parallel
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class Network:
    """One direction of a recurrent operator.

    Attributes:
        kind: LSTM, GRU or RNN.
        weights: of the inputs, (gates * hidden, inputs).
        inner: of the states, (gates * hidden, hidden).
        bias: of both, (2 * gates * hidden,).
        peepholes: of an LSTM, (3 * hidden,); None without.
        is_reset_last: whether a GRU applies its reset gate behind the product.
        is_backward: whether it starts at the end of the sequences.
        activations: names of the activations; empty for the usual ones.
        rounds_states: whether an LSTM multiplies states that were rounded to 255 steps between their least and largest
            value, as ONNX Runtime's DynamicQuantizeLSTM does.
    """

    kind: str
    weights: Array
    inner: Array
    bias: Array
    peepholes: Array | None = None
    is_reset_last: bool = False
    is_backward: bool = False
    activations: tuple[str, ...] = ()
    rounds_states: bool = False

    @property
    def gates(self) -> int:
        """Number of gates."""
        return _GATES[self.kind]

    @property
    def hidden(self) -> int:
        """Number of units."""
        return int(self.inner.shape[1])

    @property
    def padded(self) -> int:
        """Number of units in whole blocks."""
        return -(-self.hidden // WIDTH) * WIDTH

    def pad(self, array: Array) -> Array:
        """Append rows of zeros to each gate.

        Args:
            array: rows of all gates, (gates * hidden, ...).

        Returns:
            The rows by gate, (gates, padded, ...), of float32.
        """
        rows = array.reshape(-1, self.hidden, *array.shape[1:]).astype("float32")
        return np.pad(rows, [(0, 0), (0, self.padded - self.hidden), *[(0, 0)] * (rows.ndim - 2)])

    def blocks(self, first: int, last: int) -> Array:
        """Lay out the weights of the states of some gates by blocks of units.

        Args:
            first: the first gate.
            last: the one behind the last gate.

        Returns:
            The weights, (blocks, hidden, gates * width).
        """
        rows = self.pad(self.inner)[first:last].reshape(last - first, -1, WIDTH, self.hidden)
        return np.ascontiguousarray(rows.transpose(1, 3, 0, 2).reshape(rows.shape[1], self.hidden, -1))


def recurrent(
    builder: Builder, network: Network, data: Expr, states: Sequence[Expr | None], lengths: Expr | None
) -> list[Expr]:
    """Emit one direction.

    Args:
        builder: TVM's builder of Relax functions.
        network: weights and form.
        data: the inputs, (steps, rows, inputs) of float32.
        states: the first states, (rows, hidden) each; None for zero.
        lengths: lengths of the sequences as int32, (rows,); None if all are as long as the inputs.

    Returns:
        The states of all steps, (steps, rows, hidden), and the last states, (rows, hidden) each.
    """
    from tvm import relax

    n = network
    is_split = n.kind == "GRU" and not n.is_reset_last
    outer, inner = (n.pad(part).reshape(-1) for part in np.split(n.bias, 2))
    last = inner.reshape(n.gates, -1)[2] if n.is_reset_last else None
    bias = outer + inner
    if last is not None:
        bias = outer + np.concatenate([inner[: 2 * n.padded], np.zeros_like(last)])
    columns = n.pad(n.weights).reshape(n.gates * n.padded, -1).T
    product = builder.normalize(relax.op.matmul(data, relax.const(np.ascontiguousarray(columns), "float32")))
    gates = builder.emit(relax.op.add(product, relax.const(bias, "float32")))
    operands = {
        "gates": gates,
        "weights": relax.const(n.blocks(0, 2 if is_split else n.gates), "float32"),
        "last_weights": relax.const(n.blocks(2, 3), "float32") if is_split else None,
        "last_bias": None if last is None else relax.const(last, "float32"),
        "peepholes": None if n.peepholes is None else relax.const(n.pad(n.peepholes), "float32"),
        "lengths": lengths,
        "h": states[0],
        "c": states[1] if len(states) > 1 else None,
    }
    names = [name for name, value in operands.items() if value is not None]

    def compute(*tensors: Any) -> list[Any]:  # noqa: ANN401
        return _function(network, dict(zip(names, tensors, strict=True)))

    call = builder.call_te(
        compute,
        *(operands[name] for name in names),
        primfunc_name_hint=n.kind.lower(),
        primfunc_attrs={"op_pattern": OPAQUE},
    )
    found = builder.emit(call)
    return [builder.emit(relax.TupleGetItem(found, at)) for at in range(3 if n.kind == "LSTM" else 2)]


def _function(network: Network, tensors: dict[str, Any]) -> list[Any]:
    """Return the results and the scratch memory of a direction as tensors of TE."""
    from tvm import te

    steps, rows = tensors["gates"].shape[:2]
    hidden, padded = network.hidden, network.padded
    scratch = {"LSTM": 1 + network.rounds_states, "RNN": 0}.get(network.kind, 0 if network.is_reset_last else 2)
    shapes = [
        (steps, rows, hidden),
        *[(rows, hidden)] * (2 if network.kind == "LSTM" else 1),
        (2, rows, padded),
        *[(rows, padded)] * scratch,
    ]
    order = list(tensors)

    def code(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        return _Code(network, dict(zip(order, ins, strict=True)), list(outs), steps, rows).function()

    made: list[Any] = te.extern(
        shapes, [tensors[name] for name in order], code, name="recurrent", dtype=["float32"] * len(shapes)
    )
    return made


class _Code(TirBuilder):
    """Statements of one direction.

    Args:
        network: its form.
        ins: buffers of the operands by name.
        outs: buffers of the results, and of the scratch memory behind them.
        steps: number of steps.
        rows: number of rows.
    """

    def __init__(
        self, network: Network, ins: dict[str, Buffer], outs: Sequence[Buffer], steps: Expr, rows: Expr
    ) -> None:
        super().__init__()
        self.network, self.ins, self.steps, self.rows = network, ins, steps, rows
        states = 2 if network.kind == "LSTM" else 1
        self.all_steps, self.last = outs[0], outs[1 : 1 + states]
        self.h, *self.others = outs[1 + states :]

    def vector(self, body: Callable[[Expr], Stmt]) -> Stmt:
        return self.loop(WIDTH, body, "VECTORIZED")

    def function(self) -> Stmt:
        """Return the whole function."""
        tirx, n = self.tirx, self.network
        zero = tirx.const(0.0, "float32")
        buffers = {"h": self.h, "c": self.others[0]} if n.kind == "LSTM" else {"h": self.h}

        def start(row: Expr) -> list[Stmt]:
            return [one for name, buffer in buffers.items() for one in begun(name, buffer, row)]

        def begun(name: str, buffer: Buffer, row: Expr) -> Iterator[Stmt]:
            first = [self.number(0)] if name == "h" else []
            yield self.loop(n.padded, lambda at: self.store(buffer, zero, *first, row, at))
            if name in self.ins:
                yield self.loop(n.hidden, lambda at: self.store(buffer, self.ins[name][row, at], *first, row, at))

        def end(row: Expr) -> list[Stmt]:
            h = self.h
            parity = tirx.floormod(self.steps, self.number(2))

            def last(value: Expr) -> Expr:
                # As ONNX Runtime, whose states of empty sequences are 0.
                return value if "lengths" not in self.ins else tirx.Select(self.ins["lengths"][row] > 0, value, zero)

            made = [self.loop(n.hidden, lambda at: self.store(self.last[0], last(h[parity, row, at]), row, at))]
            if n.kind == "LSTM":
                c = self.others[0]
                made.append(self.loop(n.hidden, lambda at: self.store(self.last[1], last(c[row, at]), row, at)))
            return made

        return self.sequence([self.loop(self.rows, start), self.loop(self.steps, self.step), self.loop(self.rows, end)])

    def step(self, step: Expr) -> list[Stmt]:
        """Return a step of all rows."""
        tirx, n = self.tirx, self.network
        old = tirx.floormod(step, self.number(2))
        new = self.number(1) - old
        work = n.gates * n.hidden * n.hidden
        kind = "PARALLEL" if work >= PARALLEL_WORK else "SERIAL"
        is_split = n.kind == "GRU" and not n.is_reset_last
        phases = [self.gru_gates, self.gru_last] if is_split else [self.units]

        def within(row: Expr) -> Expr | None:
            return step < self.ins["lengths"][row].astype("int64") if "lengths" in self.ins else None

        def place(row: Expr) -> Expr:
            if not n.is_backward:
                return step
            length = self.ins["lengths"][row].astype("int64") if "lengths" in self.ins else self.steps
            return length - 1 - step

        def guarded(row: Expr, inside: Stmt, outside: Stmt | None) -> Stmt:
            condition = within(row)
            return inside if condition is None else tirx.IfThenElse(condition, inside, outside)

        def phase(compute: Callable[..., list[Stmt]], *, is_last: bool) -> Stmt:
            def rows(block: Expr) -> Stmt:
                def row_of(row: Expr) -> Stmt:
                    keep = self.vector(
                        lambda at: self.store(
                            self.h, self.h[old, row, block * WIDTH + at], new, row, block * WIDTH + at
                        )
                    )
                    made = self.sequence(compute(block, row, place(row), old, new))
                    return guarded(row, made, keep if is_last else None)

                return self.loop(self.rows, row_of)

            return self.loop(n.padded // WIDTH, rows, kind)

        def copied(row: Expr) -> Stmt:
            y, h = self.all_steps, self.h
            made = self.loop(n.hidden, lambda at: self.store(y, h[new, row, at], place(row), row, at))
            empty = self.loop(n.hidden, lambda at: self.store(y, tirx.const(0.0, "float32"), step, row, at))
            return guarded(row, made, empty)

        made = [phase(compute, is_last=compute is phases[-1]) for compute in phases]
        return [*(self.rounded(old) if n.rounds_states else []), *made, self.loop(self.rows, copied)]

    def rounded(self, old: Expr) -> list[Stmt]:
        """Return what rounds the states of all rows, as ONNX defines DynamicQuantizeLinear."""
        tirx, n, h, result = self.tirx, self.network, self.h, self.others[1]
        declared, ends = self.local(2, "float32", "ends")
        least, most = self.number(0), self.number(1)
        zero, one, steps = (tirx.const(value, "float32") for value in (0.0, 1.0, 255.0))

        def extend(row: Expr, at: Expr) -> list[Stmt]:
            value = h[old, row, at]
            return [
                self.store(ends, tirx.min(ends[least], value), least),
                self.store(ends, tirx.max(ends[most], value), most),
            ]

        wide = ends[most] - ends[least]
        scale = tirx.Select(wide > zero, wide / steps, one)
        point = tirx.nearbyint(zero - ends[least] / scale)

        def rounded(value: Expr) -> Expr:
            step = tirx.nearbyint(value / scale) + point
            return (tirx.max(tirx.min(step, steps), zero) - point) * scale

        def each(row: Expr, at: Expr) -> Stmt:
            return self.store(result, rounded(h[old, row, at]), row, at)

        return [
            declared,
            self.store(ends, zero, least),
            self.store(ends, zero, most),
            self.loop(self.rows, lambda row: self.loop(n.hidden, lambda at: extend(row, at))),
            self.loop(self.rows, lambda row: self.loop(n.hidden, lambda at: each(row, at))),
        ]

    def sums(self, weights: Buffer, block: Expr, state: Callable[[Expr], Expr]) -> tuple[list[Stmt], Buffer]:
        """Return the sums of products of a state, in one local buffer for all gates."""
        gates = int(weights.shape[2]) // WIDTH
        declared, total = self.local(gates * WIDTH, "float32", "sums")
        zero = self.tirx.const(0.0, "float32")

        def part(gate: int, value: Callable[[Expr], Expr]) -> Stmt:
            return self.vector(lambda at: self.store(total, value(at + gate * WIDTH), at + gate * WIDTH))

        def term(k: Expr) -> list[Stmt]:
            return [part(g, lambda at: total[at] + state(k) * weights[block, k, at]) for g in range(gates)]

        made = [declared, *(part(gate, lambda _: zero) for gate in range(gates))]
        return [*made, self.loop(self.network.hidden, term)], total

    def one_vector(self) -> tuple[Stmt, Buffer]:
        """Return the declaration of a vector of local memory, and the vector."""
        return self.local(WIDTH, "float32", "vector")

    def activation(self, number: int, value: Expr) -> Expr:
        tirx = self.tirx
        name = (self.network.activations or ACTIVATIONS[self.network.kind])[number]
        if name == "Relu":
            return tirx.max(value, tirx.const(0.0, "float32"))
        return tirx.sigmoid(value) if name == "Sigmoid" else tirx.tanh(value)

    def units(self, block: Expr, row: Expr, place: Expr, old: Expr, new: Expr) -> list[Stmt]:
        """Return what computes the new states of the units of a block at once."""
        n, h, x = self.network, self.h, self.ins["gates"]
        made, total = self.sums(
            self.ins["weights"], block, lambda k: self.others[1][row, k] if n.rounds_states else h[old, row, k]
        )

        def unit(at: Expr) -> Expr:
            return block * WIDTH + at

        def given(gate: int, at: Expr) -> Expr:
            return x[place, row, gate * n.padded + unit(at)]

        def whole(gate: int, at: Expr) -> Expr:
            return given(gate, at) + total[gate * WIDTH + at]

        def result(compute: Callable[[Expr], Expr]) -> Stmt:
            return self.vector(lambda at: self.store(h, compute(at), new, row, unit(at)))

        if n.kind == "RNN":
            return [*made, result(lambda at: self.activation(0, whole(0, at)))]

        def gate(compute: Callable[[Expr], Expr]) -> Buffer:
            declared, buffer = self.one_vector()
            made.extend([declared, self.vector(lambda at: self.store(buffer, compute(at), at))])
            return buffer

        if n.kind == "GRU":
            update = gate(lambda at: self.activation(0, whole(0, at)))
            reset = gate(lambda at: self.activation(0, whole(1, at)))
            bias = self.ins["last_bias"]
            inner = gate(lambda at: given(2, at) + reset[at] * (total[2 * WIDTH + at] + bias[unit(at)]))
            return [*made, self.mixed(block, row, old, new, update, inner)]

        c = self.others[0]
        peepholes = self.ins.get("peepholes")

        def peeped(number: int, value: Expr, at: Expr) -> Expr:
            return value if peepholes is None else value + peepholes[number, unit(at)] * c[row, unit(at)]

        # Gates are in the order input, output, forget, cell; peepholes in the order input, output, forget.
        enter = gate(lambda at: self.activation(0, peeped(0, whole(0, at), at)))
        forget = gate(lambda at: self.activation(0, peeped(2, whole(2, at), at)))
        cell = gate(lambda at: self.activation(1, whole(3, at)))
        made.append(
            self.vector(lambda at: self.store(c, forget[at] * c[row, unit(at)] + enter[at] * cell[at], row, unit(at)))
        )
        leave = gate(lambda at: self.activation(0, peeped(1, whole(1, at), at)))
        return [*made, result(lambda at: leave[at] * self.activation(2, c[row, unit(at)]))]

    def mixed(self, block: Expr, row: Expr, old: Expr, new: Expr, update: Buffer, inner: Buffer) -> Stmt:
        """Return what stores the new state of a GRU."""
        declared, candidate = self.one_vector()
        made = self.vector(lambda at: self.store(candidate, self.activation(1, inner[at]), at))

        def state(at: Expr) -> Stmt:
            unit = block * WIDTH + at
            value = candidate[at] + update[at] * (self.h[old, row, unit] - candidate[at])
            return self.store(self.h, value, new, row, unit)

        return self.sequence([declared, made, self.vector(state)])

    def gru_gates(self, block: Expr, row: Expr, place: Expr, old: Expr, _new: Expr) -> list[Stmt]:
        """Return what computes the gates of a GRU whose product needs the state after the reset gate."""
        n, x, (update, reset) = self.network, self.ins["gates"], self.others
        made, total = self.sums(self.ins["weights"], block, lambda k: self.h[old, row, k])

        def whole(gate: int, at: Expr) -> Expr:
            return self.activation(0, x[place, row, gate * n.padded + block * WIDTH + at] + total[gate * WIDTH + at])

        def stored(buffer: Buffer, compute: Callable[[Expr], Expr]) -> Stmt:
            return self.vector(lambda at: self.store(buffer, compute(at), row, block * WIDTH + at))

        return [
            *made,
            stored(update, lambda at: whole(0, at)),
            stored(reset, lambda at: whole(1, at) * self.h[old, row, block * WIDTH + at]),
        ]

    def gru_last(self, block: Expr, row: Expr, place: Expr, old: Expr, new: Expr) -> list[Stmt]:
        """Return what computes the new state of such a GRU."""
        n, x, (update, reset) = self.network, self.ins["gates"], self.others
        made, total = self.sums(self.ins["last_weights"], block, lambda k: reset[row, k])
        made_update, mine = self.one_vector()
        made_inner, inner = self.one_vector()
        return [
            *made,
            made_update,
            self.vector(lambda at: self.store(mine, update[row, block * WIDTH + at], at)),
            made_inner,
            self.vector(lambda at: self.store(inner, x[place, row, 2 * n.padded + block * WIDTH + at] + total[at], at)),
            self.mixed(block, row, old, new, mine, inner),
        ]
