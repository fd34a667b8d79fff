# ruff: noqa: N803, N805, N806
"""TVM's cases of BindTarget and SplitHostDevice, written anew (its tests at v0.18, v0.24 and main)."""

import pytest

import tvmtarget as tt
from tvmtarget.errors import ModelError
from tvmtarget.ir.function import code_callees
from tvmtarget.partition.host_device.attributes import side_of
from tvmtarget.partition.host_device.code import prim_of
from tvmtarget.target.topology import Topology

tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")

from tvm.script import ir as I  # noqa: E402, N812
from tvm.script import tirx as T  # noqa: E402, N812

CUDA = "cuda(arch=sm_80,host=llvm)"
THEIRS = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")


def split(module, target=CUDA):
    return tt.split_host_device(tt.IRModule.from_tvm(module), target)


def sides(module):
    topology = Topology(module.target.resolve())
    return {f.name: (side_of(f, topology), str(f.constraint)) for f in module}


def kernel_of(module, name):
    return prim_of(module[name])


def check_as_tvm(module):
    """Ours, read back by TVM, is what its own pipeline makes of the module."""
    theirs = tvm.tirx.transform.SplitHostDevice()(tvm.tirx.transform.BindTarget(THEIRS)(module))
    tvm.ir.assert_structural_equal(split(module).to_tvm(), theirs)


@I.ir_module
class Threads:
    @T.prim_func
    def main(A: T.Buffer((16,), "float32")):
        i = T.launch_thread("threadIdx.x", 16)
        A[i] = T.float32(1)


@I.ir_module
class Scope:
    @T.prim_func
    def main(A: T.Buffer((1,), "float32")):
        T.attr(0, "device_scope", 0)
        A[0] = T.float32(1)


@I.ir_module
class Named:
    @T.prim_func
    def main(n: T.int32):
        T.attr(T.target({"kind": "cuda", "arch": "sm_80"}), "target", 0)
        T.evaluate(n)


@I.ir_module
class OnHost:
    @T.prim_func
    def main(n: T.int32):
        T.attr(T.target("llvm"), "target", 0)
        T.evaluate(n)


@I.ir_module
class Dynamic:
    @T.prim_func
    def run(A: T.Buffer((1024,), "int32"), n: T.int32):
        blocks: T.let[T.int32] = (n + 127) // 128
        with T.attr(T.target({"kind": "cuda", "arch": "sm_80"}), "target", 0):
            b = T.launch_thread("blockIdx.x", blocks)
            t = T.launch_thread("threadIdx.x", 128)
            if b * 128 + t < n:
                A[b * 128 + t] = A[b * 128 + t] + 1


@I.ir_module
class Passing:
    """A private function of the device that takes its threads with it."""

    @T.prim_func
    def main(A: T.Buffer((16,), "float32"), n: T.int32):
        Passing.kernel(A.data, n)

    @T.prim_func
    def kernel(data: T.handle("float32"), n: T.int32):
        T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_80"}), "global_symbol": "other_name"})
        A = T.decl_buffer((16,), "float32", data=data)
        i = T.launch_thread("threadIdx.x", n + 1)
        A[i] = T.float32(0)


@pytest.mark.parametrize("module", [Threads, Scope, Named, OnHost, Dynamic], ids=lambda one: "")
def test_modules_without_targets_are_split_as_tvms_pipeline_does(module):
    check_as_tvm(module)


def test_functions_without_a_target_get_the_given_one():
    found = split(Threads)
    assert sides(found) == {"main": ("host", "@host"), "main_kernel": ("device", "@.")}
    assert tt.split_host_device(found) == found
    assert str(kernel_of(found, "main_kernel").attrs["target"].kind.name) == "cuda"
    only = split(Threads, "[gpu=cuda(arch=sm_80),cpu=llvm](host=@cpu)")
    assert sides(only) == {"main": ("host", "@cpu"), "main_kernel": ("device", "@gpu")}
    with pytest.raises(ModelError, match=r"function 'main' has device code.*@a, @b; constrain it to one"):
        split(Threads, "[a=cuda(arch=sm_80),b=cuda(arch=sm_70),cpu=llvm](host=@cpu)")
    bare = split(Threads, "cuda")
    assert sides(bare) == {"main": ("host", "@host"), "main_kernel": ("device", "@.")}


def test_functions_with_targets_of_their_own_find_their_device():
    module = tvm.IRModule(
        {"main": Threads["main"].with_attr("target", tvm.target.Target({"kind": "cuda", "arch": "sm_70"}))}
    )
    module["main"] = module["main"].with_attr(
        "target", tvm.target.Target({"kind": "cuda", "arch": "sm_70"}, host="llvm")
    )
    found = split(module, "[a=cuda(arch=sm_80),b=cuda(arch=sm_70),cpu=llvm](host=@cpu)")
    assert sides(found) == {"main": ("host", "@cpu"), "main_kernel": ("device", "@b")}


def test_a_kernel_on_the_host_returns_an_error_code():
    found = split(OnHost)
    assert sides(found) == {"main": ("host", "@host"), "main_kernel": ("host", "@host")}
    assert "calling_conv" not in kernel_of(found, "main_kernel").attrs
    assert code_callees(found.main) == {"main_kernel": "main_kernel"}


@pytest.mark.parametrize("region", ["target", "threads"])
def test_a_device_region_in_a_host_function_is_split_off(region):
    module = Named if region == "target" else Threads
    own = module["main"].with_attr("target", tvm.target.Target("llvm"))
    found = split(tvm.IRModule({"main": own}))
    assert sides(found) == {"main": ("host", "@host"), "main_kernel": ("device", "@.")}
    assert kernel_of(found, "main").attrs["target"].kind.name == "llvm"
    assert kernel_of(found, "main_kernel").attrs["target"].kind.name == "cuda"
    assert int(kernel_of(found, "main_kernel").attrs["calling_conv"]) == 2


def test_functions_with_the_name_of_a_kernel_are_kept():
    @I.ir_module
    class Taken:
        @T.prim_func
        def main(n: T.int32):
            T.attr(T.target({"kind": "cuda", "arch": "sm_80"}), "target", 0)
            T.evaluate(n)

        @T.prim_func
        def main_kernel():
            T.func_attr({"target": T.target("llvm")})
            T.evaluate(7)

    found = split(Taken)
    assert {f.name for f in found} == {"main", "main_kernel", "main_kernel_1"}
    assert code_callees(found.main) == {"main_kernel_1": "main_kernel_1"}
    assert "7" in kernel_of(found, "main_kernel").script()
    # one of another device, and one of operations, are functions of the module, too
    tree = "[gpu=cuda(arch=sm_80),cpu=llvm](host=@cpu)"
    ours = tt.IRModule.from_tvm(Taken).constrain("main", "@gpu").constrain("main_kernel", "@cpu")
    kept = tt.split_host_device(ours, tree)
    assert {f.name for f in kept} == {"main", "main_kernel", "main_kernel_1"}
    assert kept["main_kernel"] == ours["main_kernel"]


def test_a_separate_function_of_the_device_is_not_made_host_code():
    @I.ir_module
    class Separate:
        @T.prim_func
        def main(A: T.Buffer((16,), "float32")):
            i = T.launch_thread("threadIdx.x", 16)
            A[i] = T.float32(1)

        @T.prim_func
        def alone(data: T.handle("float32")):
            T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_80"})})
            A = T.decl_buffer((16,), "float32", data=data)
            i = T.launch_thread("threadIdx.x", 16)
            A[i] = T.float32(2)

    found = split(Separate)
    assert sides(found)["alone"] == ("device", "@.")
    assert kernel_of(found, "alone").attrs["target"].host is None
    assert {f.name for f in found} == {"main", "main_kernel", "alone"}


def test_launched_functions_get_the_calling_convention_and_their_threads():
    found = split(Passing)
    assert sides(found) == {"main": ("host", "@host"), "kernel": ("device", "@.")}
    kernel = kernel_of(found, "kernel")
    assert int(kernel.attrs["calling_conv"]) == 2
    assert [str(one) for one in kernel.attrs["tirx.kernel_launch_params"]] == ["threadIdx.x"]
    assert code_callees(found.main) == {"other_name": "kernel"}  # launched by its symbol
    assert "other_name" in kernel_of(found, "main").script()


def test_launch_parameters_and_flags_are_kept():
    flags = ["threadIdx.x", "tirx.use_programtic_dependent_launch"]
    module = tvm.IRModule({"main": Threads["main"].with_attr("tirx.kernel_launch_params", flags)})
    kernel = kernel_of(split(module), "main_kernel")
    assert [str(one) for one in kernel.attrs["tirx.kernel_launch_params"]] == flags
    assert bool(kernel.attrs["tirx.noalias"])
    assert bool(kernel.attrs["tirx.is_global_func"])


def test_functions_that_tvm_does_not_split_are_named_with_the_reason():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    body = tvm.tirx.AttrStmt(target, "target", 0, tvm.tirx.Return(tvm.tirx.IntImm("int32", 1)))
    wrong = tvm.tirx.PrimFunc([], body).with_attr("global_symbol", "wrong")
    module = tvm.IRModule({"main": Threads["main"], "wrong": wrong})
    with pytest.raises(ModelError, match=r"function 'wrong' cannot be split.*returns a value.*write the result"):
        split(module)


def test_loops_that_are_bound_to_threads_are_not_left_in_host_code():
    @I.ir_module
    class Bound:
        @T.prim_func
        def main(A: T.Buffer((16,), "float32")):
            for i in T.thread_binding(16, "threadIdx.x"):
                A[i] = T.float32(1)

    with pytest.raises(
        ModelError, match=r"function 'main' has device code that TVM does not split off \(thread_binding"
    ):
        split(Bound)


# BindTarget


def targets_of(module):
    found = {var.name_hint: f.attrs["target"] for var, f in module.functions.items()}
    return {name: (one.kind.name, None if one.host is None else one.host.kind.name) for name, one in found.items()}


def bind_as_tvm(module):
    tvm.ir.assert_structural_equal(tt.bind_targets(module, CUDA), tvm.tirx.transform.BindTarget(THEIRS)(module))


@I.ir_module
class Adding:
    """`add` is called by the host and, after the device's entry, by the device."""

    @T.prim_func(private=True)
    def add(a: T.int32, b: T.int32) -> T.int32:
        return a + b

    @T.prim_func
    def main(A: T.Buffer((1,), "int32")):
        value: T.let[T.int32] = Adding.add(1, 2)
        T.device_entry()
        t = T.thread_id([1])
        A[t] = Adding.add(value, 3)


@I.ir_module
class Looping:
    @T.prim_func(private=True)
    def add(a: T.int32, b: T.int32) -> T.int32:
        return a + b

    @T.prim_func
    def main(A: T.Buffer((128, 128), "int32")):
        size: T.let[T.int32] = Looping.add(64, 64)
        for b in T.thread_binding(size, "blockIdx.x"):
            for t in T.thread_binding(size, "threadIdx.x"):
                A[b, t] = Looping.add(A[b, t], 1)


@pytest.mark.parametrize("module", [Adding, Looping, Threads, Scope, Named, Dynamic], ids=lambda one: "")
def test_targets_are_bound_as_tvm_binds_them(module):
    bind_as_tvm(module)


def test_calls_after_the_entry_of_the_device_are_device_code():
    assert targets_of(tt.bind_targets(Adding, CUDA)) == {
        "add": ("cuda", None),
        "add_host": ("llvm", None),
        "main": ("cuda", "llvm"),
    }


def test_targets_of_functions_are_kept_and_public_ones_get_the_host():
    function = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0))
    own = tvm.target.Target("opencl")
    module = tvm.IRModule(
        {
            "kept": function.with_attr("target", own),
            "public": function.with_attr("target", own).with_attr("global_symbol", "public"),
            "host": function.with_attr("tirx.is_host_func", True).with_attr("global_symbol", "host"),
            "private": function,
        }
    )
    bind_as_tvm(module)
    assert targets_of(tt.bind_targets(module, CUDA)) == {
        "kept": ("opencl", None),
        "public": ("opencl", "llvm"),
        "host": ("llvm", "llvm"),
        "private": ("cuda", None),
    }


@pytest.mark.parametrize("mark", ["tirx.is_host_func", "target", None])
def test_device_code_that_calls_a_host_function_is_an_error(mark):
    @I.ir_module
    class Wrong:
        @T.prim_func
        def only_host(data: T.handle("float32"), i: T.int32):
            A = T.decl_buffer((16,), "float32", data=data)
            A[i] = T.float32(1)

        @T.prim_func
        def main(A: T.Buffer((16,), "float32")):
            i = T.launch_thread("threadIdx.x", 16)
            Wrong.only_host(A.data, i)

    module = Wrong
    if mark is not None:
        value = True if mark != "target" else tvm.target.Target("llvm")
        var = module.get_global_var("only_host")  # type: ignore[attr-defined]
        module.update_func(var, module[var].with_attr(mark, value))  # type: ignore[attr-defined]
    for call in (lambda: tt.bind_targets(module, CUDA), lambda: split(module)):
        with pytest.raises(ModelError, match="device code of function 'main' calls 'only_host', a host function"):
            call()


def test_a_region_for_the_host_calls_host_functions():
    @I.ir_module
    class Back:
        @T.prim_func(private=True)
        def helper(n: T.int32):
            T.evaluate(n)

        @T.prim_func
        def main(n: T.int32):
            T.attr(T.target("llvm"), "target", 0)
            Back.helper(n)

    assert targets_of(tt.bind_targets(Back, CUDA))["helper"] == ("llvm", None)
