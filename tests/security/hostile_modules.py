# ruff: noqa: N805
"""Modules of TVM that do more than compute; what they run leaves a mark in the current folder. Imported where TVM is.

`MARK` is the file that is made.
"""

from tvm import relax
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812
from tvm.script import tirx as T  # noqa: N812

__all__ = ["HOSTILE", "MARK", "PLAIN"]

MARK = "mark-of-a-stranger"


def relaxed(value):
    """Return a module of Relax that returns what `value` makes of its input, behind an operation that is fine."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            gv = builder.emit_output(value(builder.emit(relax.op.abs(x))))
        builder.emit_func_output(gv)
    return builder.finalize()


@I.ir_module
class Extern:
    @T.prim_func(private=True, s_tir=True)
    def code(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
        for i in range(4):
            with T.sblock("b"):
                y[i] = x[i] + T.Cast("float32", T.call_extern("int32", "system", "touch mark-of-a-stranger"))

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        cls = Extern
        with R.dataflow():
            gv = R.call_tir(cls.code, (x,), out_ty=R.Tensor((4,), "float32"))
            R.output(gv)
        return gv


@I.ir_module
class Beyond:
    """Writes behind the end of a tensor."""

    @T.prim_func(private=True, s_tir=True)
    def code(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
        for i in range(4):
            with T.sblock("b"):
                y[i + 1000000] = x[i]

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        cls = Beyond
        with R.dataflow():
            gv = R.call_tir(cls.code, (x,), out_ty=R.Tensor((4,), "float32"))
            R.output(gv)
        return gv


SHAPE = R.Tensor((4,), "float32")
TYPE = relax.TensorType((4,), "float32")
PLAIN = relaxed(relax.op.negative)
HOSTILE = {
    "a symbol of the process": Extern,
    "a write beyond a tensor": Beyond,
    "a packed function": relaxed(lambda x: relax.call_dps_packed("ffi.Module.load_from_file", (x,), TYPE)),
    "a pure packed function": relaxed(lambda x: relax.op.call_pure_packed("testing.echo", x, ty_args=[TYPE])),
    "an external function": relaxed(lambda x: relax.Call(relax.ExternFunc("testing.echo"), [x], ty_args=[TYPE])),
    "an external module": PLAIN.with_attr("external_mods", ["x.so"]),
    "an external code generator": PLAIN.clone(),
    "a view of memory": relaxed(lambda x: relax.op.memory.view(x, [4], "float32", 0)),
}
HOSTILE["an external code generator"]["main"] = PLAIN["main"].with_attr("Codegen", "c")
