# ruff: noqa: N803, N805, N806
"""TIR modules whose private functions are called from host code, device code, or both. Imported only where TVM is.

LLVM and CUDA take private functions that return nothing, so that these write through a pointer.
"""

from tvm.script import ir as I  # noqa: N812
from tvm.script import tirx as T  # noqa: N812


@I.ir_module
class Deep:
    """main (host and device) -> f (host) -> g (host), the case that BindTarget gets wrong."""

    @T.prim_func(private=True)
    def g(x: T.float32) -> T.float32:
        return x * T.float32(2)

    @T.prim_func(private=True)
    def f(x: T.float32) -> T.float32:
        return Deep.g(x) + T.float32(1)

    @T.prim_func
    def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
        for i in range(16):
            B[i] = Deep.f(A[i])


@I.ir_module
class Both:
    """h doubles an element, through g: called by a kernel, and by check through f, at depth three."""

    @T.prim_func(private=True)
    def h(data: T.handle("float32"), i: T.int32):
        A = T.decl_buffer((16,), "float32", data=data)
        A[i] = A[i] * T.float32(2)

    @T.prim_func(private=True)
    def g(data: T.handle("float32"), i: T.int32):
        Both.h(data, i)

    @T.prim_func(private=True)
    def f(data: T.handle("float32"), i: T.int32):
        Both.g(data, i)

    @T.prim_func(private=True)
    def unused(data: T.handle("float32"), i: T.int32):
        Both.h(data, i)

    @T.prim_func
    def main(A: T.Buffer((16,), "float32")):
        with T.launch_thread("threadIdx.x", 16) as i:
            Both.g(A.data, i)

    @T.prim_func
    def check(A: T.Buffer((16,), "float32")):
        T.func_attr({"tirx.is_host_func": True})
        for i in range(16):
            Both.f(A.data, i)


@I.ir_module
class Circle:
    """even and odd call each other, on the host and on the device."""

    @T.prim_func(private=True)
    def even(data: T.handle("int32"), n: T.int32):
        A = T.decl_buffer((16,), "int32", data=data)
        if n > 0:
            Circle.odd(data, n - 1)
        else:
            A[0] = 1

    @T.prim_func(private=True)
    def odd(data: T.handle("int32"), n: T.int32):
        A = T.decl_buffer((16,), "int32", data=data)
        if n > 0:
            Circle.even(data, n - 1)
        else:
            A[0] = 0

    @T.prim_func
    def main(A: T.Buffer((16,), "int32"), n: T.int32):
        Circle.even(A.data, n)
        with T.launch_thread("threadIdx.x", 16) as i:
            Circle.odd(A.data, i)


@I.ir_module
class Scale:
    """One function of host and device code."""

    @T.prim_func
    def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
        with T.launch_thread("threadIdx.x", 16) as i:
            B[i] = A[i] * T.float32(2)
