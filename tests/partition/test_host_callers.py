"""Targets inferred from callers, at any depth: on our IR, and on TIR where TVM's BindTarget fails."""

import doctest
import importlib
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, ModelError, TargetError
from tvmtarget.partition.host_device.callers import CallSite, call_contexts

TREE = "[gpu=cuda,npu=probe,cpu=llvm](host=@cpu)"


def module_of(text, target=TREE):
    return tt.IRModule.parse(text).with_target(target)


def constraints_of(module):
    return {function.name: str(function.constraint) for function in module}


DEEP = """
func @main(%x) [@gpu] { %y = @f(%x) %z = @k(%y) return %z }
func @f(%x) [@cpu] { %y = @g(%x) return %y }
func @g(%x) { %y = @h(%x) return %y }
func @h(%x) opsets(onnx=17) { %y = onnx.Relu(%x) return %y }
func @k(%x) { %y = @h(%x) return %y }
"""


def test_a_private_function_of_a_host_function_is_for_the_host_at_any_depth():
    """main -> f (host) -> private g: TVM's BindTarget looks one level deep and gives g to the device."""
    inferred = tt.infer_targets(module_of(DEEP))
    assert constraints_of(inferred) == {
        "main": "@gpu",
        "f": "@cpu",
        "g": "@cpu",
        "h": "@gpu",
        "h_host": "@cpu",
        "k": "@gpu",
    }
    assert [call.op for name in ("f", "g", "k") for call in inferred[name].body] == ["@g", "@h_host", "@h"]


def test_inferring_twice_changes_nothing_and_order_does_not_matter():
    once = tt.infer_targets(module_of(DEEP))
    assert tt.infer_targets(once) == once
    module = module_of(DEEP)
    turned = tt.infer_targets(module.replace(functions=module.functions[::-1]))
    assert constraints_of(turned) == constraints_of(once)
    assert {f.name: str(f) for f in turned} == {f.name: str(f) for f in once}


def test_calls_with_constraints_and_nested_bodies_are_contexts_of_their_own():
    module = module_of("""
        func @main(%x, %c) opsets(onnx=17) {
          %y = @f(%x) [@npu]
          %z = @f(%y) [gpu?]
          %r = onnx.If(%c) [@gpu] as r
            then_branch @then() { %t = @f(%z) return %t }
            else_branch @else() { %e = @k(%z) return %e }
          return %r
        }
        func @f(%x) { %y = @k(%x) return %y }
        func @k(%x) opsets(onnx=17) { %y = onnx.Relu(%x) return %y }
    """)
    inferred = tt.infer_targets(module)
    assert constraints_of(inferred) == {
        "main": "None",
        "f": "None",
        "f_npu": "@npu",
        "f_gpu": "@gpu",
        "k": "None",
        "k_gpu": "@gpu",
        "k_npu": "@npu",
    }
    branches = dict(inferred.main.body[2].regions)
    assert [branches[name].body[0].op for name in ("then_branch", "else_branch")] == ["@f_gpu", "@k_gpu"]
    assert inferred["f_npu"].body[0].op == "@k_npu"


def test_what_device_code_calls_is_device_code_and_keeps_its_name():
    module = module_of("""
        func @main(%x) [@gpu] { %y = @kernel(%x) %z = @f(%y) return %z }
        func @kernel(%x) [@gpu] attrs {calling-convention="device-kernel-launch"} { %y = @f(%x) return %y }
        func @f(%x) opsets(onnx=17) { %y = onnx.Relu(%x) return %y }
    """)
    inferred = tt.infer_targets(module)
    assert [(f.name, f.attr("calling-convention")) for f in inferred] == [
        ("main", None),
        ("kernel", "device-kernel-launch"),
        ("f", "device-kernel-launch"),
        ("f_host", None),
    ]
    assert inferred.main.body[1].op == "@f_host"


def test_names_that_are_taken_get_a_number():
    text = DEEP + "func @h_host(%x) { return %x }"
    assert "h_host_1" in tt.infer_targets(module_of(text))


def test_recursive_functions_are_named_in_the_error():
    with pytest.raises(ModelError, match="call each other in a cycle: a -> b -> a"):
        tt.infer_targets(
            tt.IRModule(
                tuple(
                    tt.Function(name, (), (tt.Call(f"@{other}", (), (), source="c"),), ())
                    for name, other in (("main", "a"), ("a", "b"), ("b", "a"))
                )
            )
        )


def test_arguments_that_are_no_tvm_module_are_errors():
    pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")
    with pytest.raises(ModelError, match=r"int is not a tvm\.IRModule"):
        tt.bind_targets(7, "cuda")


def test_unnamed_operations_get_a_name_before_they_are_reported():
    module = module_of("""
func @main(%x: float32[4]) [@gpu] { %y = @f(%x) return %y }
func @f(%x: float32[4]) opsets(onnx=17) [!@gpu] { %r: float32[4] = onnx.Relu(%x) return %r }
""")
    with pytest.raises(InfeasibleError, match=r"op 'Relu' \(Relu\) fits no site"):
        tt.decompose(module)


def test_code_constrained_to_the_host_within_a_mixed_function_runs_there():
    module = module_of("""
func @main(%x: float32[4]) opsets(onnx=17) [@gpu] {
  %a: float32[4] = onnx.Neg(%x) as "first"
  %b: float32[4] = @f(%a)
  %c: float32[4] = onnx.Neg(%b) as "last"
  return %c
}
func @f(%x: float32[4]) [@cpu] { %y: float32[4] = @g(%x) return %y }
func @g(%x: float32[4]) opsets(onnx=17) { %r: float32[4] = onnx.Relu(%x) as "host work" return %r }
""")
    plan = tt.decompose(tt.infer_targets(module))
    assert plan.sites() == {"first": "gpu", "host work": "cpu", "last": "gpu"}
    assert tt.decompose(plan.module).module == plan.module
    roles = {one.name: one.attr("is-host-function") for one in tt.split_host_device(module)}
    assert [bool(role) for name, role in roles.items() if name != "main"] == [True, False, False]


def test_a_partitioned_module_with_inferred_targets_is_partitioned_the_same():
    tree = "[gpu=probe,npu=onnxruntime,cpu=numpy](host=@cpu)"
    plain = module_of(DEEP.replace(" [@gpu]", ""), tree)
    inferred = tt.infer_targets(plain)
    one, other = tt.decompose(plain, tree), tt.decompose(inferred, tree)
    assert [(r.site, r.ops) for r in one.subgraphs] == [(r.site, r.ops) for r in other.subgraphs]


@given(st.integers(2, 12), st.integers(0, 10**6))
def test_the_contexts_of_random_call_graphs_are_those_of_all_paths(size, seed):
    """Against walking every path without a circle, from every function that is fixed."""
    rng = random.Random(seed)
    calls = {
        str(k): tuple(
            CallSite(str(rng.randrange(size)), rng.choice([None, None, "host", "device"]))
            for _ in range(rng.randint(0, 3))
        )
        for k in range(size)
    }
    fixed = {str(k): (rng.choice(["host", "device"]),) for k in range(rng.randint(1, 2))}
    reached = {(name, context) for name, given_ in fixed.items() for context in given_}
    for _ in range(2 * size * size):
        reached |= {
            (call.callee, call.context or context)
            for name, context in reached
            for call in calls[name]
            if call.callee not in fixed
        }
    found = call_contexts(calls, fixed)
    assert {(name, context) for name, met in found.items() for context in met} == reached


@pytest.mark.parametrize("name", ["inference"])
def test_docstrings(name):
    failed, tried = doctest.testmod(importlib.import_module(f"tvmtarget.partition.host_device.{name}"))
    assert tried
    assert not failed


# TIR


CUDA = "cuda(arch=sm_80,host=llvm)"


@pytest.fixture
def tir():
    pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
    import tir_modules

    return tir_modules


def targets_of(module):
    return {
        var.name_hint: (function.attrs["target"].kind.name, function.attrs["target"].host is not None)
        for var, function in module.functions.items()
    }


def theirs(module):
    import tvm

    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")
    return tvm.tirx.transform.BindTarget(target)(module)


def test_tir_functions_get_the_target_of_their_callers_where_tvm_fails(tir):
    import tvm

    bound = tt.bind_targets(tir.Deep, CUDA)
    assert targets_of(bound) == {"main": ("cuda", True), "f": ("llvm", False), "g": ("llvm", False)}
    tvm.tirx.transform.SplitHostDevice()(bound)
    assert targets_of(theirs(tir.Deep))["g"] == ("cuda", False)
    with pytest.raises(Exception, match="Device kernel may only contain a successful return"):
        tvm.tirx.transform.SplitHostDevice()(theirs(tir.Deep))


def test_tir_functions_of_both_sides_are_copied_and_called_right_at_depth_three(tir):
    bound = tt.bind_targets(tir.Both, CUDA)
    assert targets_of(bound) == {
        "main": ("cuda", True),
        "check": ("llvm", True),
        "f": ("llvm", False),
        "g": ("cuda", False),
        "g_host": ("llvm", False),
        "h": ("cuda", False),
        "h_host": ("llvm", False),
        "unused": ("cuda", False),
    }
    text = bound.script()
    assert [text.count(f"Module.{name}(") for name in ("f", "g", "g_host", "h", "h_host")] == [1, 1, 1, 2, 1]
    import tvm

    again = tt.bind_targets(bound, CUDA)
    tvm.ir.assert_structural_equal(again, bound)


@pytest.mark.parametrize("name", ["Both", "Circle"])
def test_tvm_builds_what_is_bound_at_depth_and_does_not_build_what_it_binds_itself(tir, name):
    import tvm

    module, target = getattr(tir, name), tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")
    built = tvm.tirx.build(tt.bind_targets(module, CUDA), target=target)
    source = built.imports[0].inspect_source()
    device = {"Both": ("g", "h"), "Circle": ("even", "odd")}[name]
    assert all(f'extern "C" __device__ void {function}(' in source for function in device)
    assert "main_kernel" in source
    assert "_host" not in source
    with pytest.raises(Exception, match=r"LLVM module verification failed|Unresolved call"):
        tvm.tirx.build(module, target=target)
    if name == "Both":
        values = tvm.runtime.tensor(np.arange(16, dtype="float32"))
        built["check"](values)  # on the host: check -> f -> g_host -> h_host
        np.testing.assert_array_equal(values.numpy(), 2 * np.arange(16))


def test_tir_is_bound_to_one_device_not_to_a_system(tir):
    with pytest.raises(TargetError, match="TIR is bound to one device and its host, not to 'composite"):
        tt.bind_targets(tir.Deep, TREE)
