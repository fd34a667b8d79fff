"""Relax modules for tests: one with every feature, random graphs, and a code generator written in Python."""

# ruff: noqa: N805 - TVMScript has no self

from __future__ import annotations

import random

import numpy as np
import pytest

tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")

import tvm_ffi  # noqa: E402
from tvm import relax  # noqa: E402
from tvm import tirx as tir  # noqa: E402
from tvm.script import ir as I  # noqa: E402, N812
from tvm.script import relax as R  # noqa: E402, N812
from tvm.script import tirx as T  # noqa: E402, N812

__all__ = ["EVERYTHING", "IN_PLACE", "SIX", "by_tvm", "random_module", "register_codegen", "run"]


@I.ir_module
class _InPlace:
    @T.prim_func(private=True, s_tir=True)
    def double(x: T.Buffer((T.int64(4),), "float32")):
        for i in range(4):
            with T.sblock("b"):
                x[i] = x[i] + x[i]

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        cls = _InPlace
        with R.dataflow():
            y = R.call_tir_inplace(cls.double, (x,), [0], R.Tensor((4,), "float32"))
            R.output(y)
        return y


IN_PLACE = _InPlace


@I.ir_module
class _Everything:
    @T.prim_func(private=True, s_tir=True)
    def add_one(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
        for i in range(4):
            with T.sblock("b"):
                y[i] = x[i] + T.float32(1)

    @R.function(private=True)
    def pair(x: R.Tensor((4,), "float32")):
        with R.dataflow():
            a = R.negative(x)
            b = R.exp(x)
            gv = (a, b)
            R.output(gv)
        return gv

    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")):
        n = T.int64()
        cls = _Everything
        with R.dataflow():
            lv = R.add(x, R.const(1.0, "float32"))
            lv1 = R.reshape(lv, (n * 4,))
            lv2 = R.concat((lv1, w), axis=0)
            lv3 = R.call_tir(cls.add_one, (w,), out_ty=R.Tensor((4,), dtype="float32"))
            halves = R.split(x, 2, axis=1)
            second = halves[1]
            both = cls.pair(lv3)
            negated = both[0]
            full = R.full((n, 2), R.const(1.0, "float32"), dtype="float32")
            numbers = R.arange(0, n, 1, dtype="int64")
            kept = (second, full)
            R.output(lv2, negated, kept, numbers)
        if c:
            one = R.add(negated, negated)
            y = one
        else:
            y = R.multiply(negated, w)
        z = R.match_cast(R.call_pure_packed("outside", y, ty_args=R.Tensor((4,), "float32")), R.Tensor((4,), "float32"))
        return (lv2, z, kept, numbers)


EVERYTHING = _Everything


@I.ir_module
class _Branches:
    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        t = R.tanh(x)
        if c:
            s = R.less(R.sum(t), R.const(0.5, "float32"))
            if s:
                p = R.nn.relu(t)
                w = R.add(p, R.const(2.0, "float32"))
            else:
                q = R.exp(x)
                w = R.nn.relu(q)
            y = R.tanh(w)
        else:
            y = t
        z = R.nn.relu(y)
        return R.add(z, t)


BRANCHES = _Branches


def _six():
    """Two accelerated pairs that read each other's results: MergeCompositeFunctions makes a cycle of functions."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first, second = builder.emit(relax.op.nn.relu(x)), builder.emit(relax.op.nn.relu(x))
            third, fourth = builder.emit(relax.op.tanh(second)), builder.emit(relax.op.tanh(first))
            fifth, sixth = relax.op.add(second, fourth), relax.op.add(first, third)
            result = builder.emit_output(relax.Tuple([builder.emit(fifth), builder.emit(sixth)]))
        builder.emit_func_output(result)
    return builder.get()


SIX = _six()


def _two_steps():
    """A language model: functions `prefill` and `decode`, and no `main`."""
    builder = relax.BlockBuilder()
    for name, rows in (("prefill", 5), ("decode", 1)):
        x = relax.Var("x", relax.TensorType((rows, 4), "float32"))
        with builder.function(name, [x]):
            with builder.dataflow():
                hidden = builder.emit(relax.op.nn.relu(x))
                result = builder.emit_output(relax.op.add(builder.emit(relax.op.tanh(hidden)), hidden))
            builder.emit_func_output(result)
    return builder.get()


TWO_STEPS = _two_steps()

_UNARY = (relax.op.nn.relu, relax.op.tanh, relax.op.abs, relax.op.negative, relax.op.sigmoid)
_BINARY = (relax.op.add, relax.op.multiply, relax.op.subtract, relax.op.maximum)


def random_module(size: int, seed: int, *, reach: int = 6):
    """Return a random graph with tuples, shapes as operands, symbolic dimensions, constants and several blocks."""
    rng = random.Random(seed)
    builder = relax.BlockBuilder()
    rows = tir.Var("n", "int64") if rng.random() < 0.5 else 2
    x = relax.Var("x", relax.TensorType((rows, 4), "float32"))
    with builder.function("main", [x]):
        values = [x]
        left = size
        while left > 0:
            count = rng.randint(1, left)
            left -= count
            with builder.dataflow():
                made = [_emit(builder, rng, [*values][-reach:], rows) for _ in range(count)]
                values += [builder.emit_output(value) for value in made]
        results = rng.sample(values[1:], min(2, len(values) - 1))
        builder.emit_func_output(relax.Tuple([*results, values[-1]]) if rng.random() < 0.7 else values[-1])
    return builder.get()


def _emit(builder, rng, recent, rows):
    value = rng.choice(recent)
    form = rng.random()
    if form < 0.4:
        return builder.emit(rng.choice(_UNARY)(value))
    if form < 0.7:
        return builder.emit(rng.choice(_BINARY)(value, rng.choice(recent)))
    if form < 0.8:
        halves = builder.emit(relax.op.split(value, 2, axis=1))
        return builder.emit(relax.op.concat([builder.emit(halves[1]), builder.emit(halves[0])], axis=1))
    if form < 0.9:
        flat = builder.emit(relax.op.reshape(value, (rows * 4,)))
        return builder.emit(relax.op.reshape(flat, (rows, 4)))
    return builder.emit(relax.op.multiply(value, relax.const(np.float32(rng.random()))))


def register_codegen(kind: str) -> list[tuple[str, dict[str, object]]]:
    """Register `relax.ext.<kind>`: TVM compiles each function alone. Return the calls of it, in order."""
    seen: list[tuple[str, dict[str, object]]] = []

    def generate(functions, options, _constant_names):
        for function in functions:
            name = str(function.attrs["global_symbol"])
            seen.append((name, {str(key): value for key, value in options.items()}))
            inner = function.without_attr("Codegen").with_attr("global_symbol", "main")
            alone = relax.transform.LambdaLift()(tvm.IRModule({"main": inner}))
            machine = relax.VirtualMachine(tvm.compile(alone, target="llvm"), tvm.cpu())
            tvm_ffi.register_global_func(name, _destination_passing(machine, len(inner.params)), override=True)
        return []

    tvm_ffi.register_global_func(f"relax.ext.{kind}", generate, override=True)
    return seen


def _destination_passing(machine, count):
    def call(*args):
        for result, place in zip(_flat(machine["main"](*args[:count])), args[count:], strict=True):
            place.copyfrom(result)

    return call


def run(executable, *inputs, devices=None, entry="main") -> list[np.ndarray]:
    """Run a function of a compiled module."""
    machine = relax.VirtualMachine(executable, devices or tvm.cpu())
    return [result.numpy() for result in _flat(machine[entry](*map(tvm.runtime.tensor, inputs)))]


def by_tvm(module, *inputs, entry="main") -> list[np.ndarray]:
    """Compile a module with TVM, without partitioning, and run a function."""
    return run(tvm.compile(module, target="llvm"), *inputs, entry=entry)


def _flat(result):
    return [result] if hasattr(result, "numpy") else [one for item in result for one in _flat(item)]
