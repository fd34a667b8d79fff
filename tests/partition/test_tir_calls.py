# ruff: noqa: N803, N805, N806
"""REQUIREMENTS G1: TIR functions that call TIR functions are the same functions after any hand-over."""

import numpy as np
import pytest

import tvmtarget as tt
from tvmtarget.errors import ModelError
from tvmtarget.ir.function import callees_of, code_callees
from tvmtarget.ir.relax.code import with_calls
from tvmtarget.ir.rewrite import clone, remove_dead_functions, rename
from tvmtarget.ir.structure import difference

tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")

import tir_modules  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.script import ir as I  # noqa: E402, N812
from tvm.script import tirx as T  # noqa: E402, N812


@I.ir_module
class Doubling:
    """main doubles and adds one, element by element, through two levels of private functions."""

    @T.prim_func(private=True)
    def one_more(data: T.handle("float32"), i: T.int32):
        A = T.decl_buffer((16,), "float32", data=data)
        A[i] = A[i] + T.float32(1)

    @T.prim_func(private=True)
    def twice(data: T.handle("float32"), i: T.int32):
        A = T.decl_buffer((16,), "float32", data=data)
        A[i] = A[i] * T.float32(2)
        Doubling.one_more(data, i)

    @T.prim_func(private=True)
    def unused(data: T.handle("float32"), i: T.int32):
        Doubling.one_more(data, i)

    @T.prim_func
    def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
        for i in range(16):
            B[i] = A[i]
            Doubling.twice(B.data, i)


A = np.arange(16, dtype="float32")


def run(module, name="main"):
    built = tvm.compile(module, target="llvm")
    b = tvm.runtime.tensor(np.zeros(16, "float32"))
    built[name](tvm.runtime.tensor(A), b)
    return b.numpy()


@pytest.mark.parametrize("name", ["Deep", "Both", "Circle", "Scale"])
@pytest.mark.parametrize("form", ["object", "text", "json", "file"])
def test_calls_between_tir_functions_survive_every_form(name, form, tmp_path):
    module = getattr(tir_modules, name)
    ours = tt.IRModule.from_tvm(module)
    if form == "text":
        ours = tt.IRModule.parse(str(ours))
    if form == "json":
        ours = tt.IRModule.from_json(ours.to_json())
    if form == "file":
        ours.save(tmp_path / "module.tt")
        ours = tt.IRModule.load(tmp_path / "module.tt")
    tvm.ir.assert_structural_equal(ours.to_tvm(), module)


def test_a_module_with_calls_at_depth_is_compiled_and_runs_after_the_round_trip():
    ours = tt.IRModule.from_tvm(Doubling)
    assert {f.name for f in ours} == {"main", "twice", "one_more", "unused"}  # dead private functions stay
    assert callees_of(ours.main) == {"twice"}
    np.testing.assert_array_equal(run(ours.to_tvm()), 2 * A + 1)


def test_functions_that_change_their_names_are_called_by_the_new_ones():
    ours = rename(tt.IRModule.from_tvm(Doubling), "twice", "zweimal")
    assert code_callees(ours.main) == {"twice": "zweimal"}
    assert tt.IRModule.parse(str(ours)) == ours
    written = ours.to_tvm()
    assert {var.name_hint for var in written.functions} == {"main", "zweimal", "one_more", "unused"}
    np.testing.assert_array_equal(run(written), 2 * A + 1)
    again = tt.IRModule.from_tvm(written)
    assert code_callees(again.main) == {"zweimal": "zweimal"}


def test_another_entry_is_called_by_its_own_name_in_tvm():
    ours = tt.IRModule.from_tvm(Doubling).with_entry("twice")
    assert "main_1" in ours
    np.testing.assert_array_equal(run(ours.to_tvm()), 2 * A + 1)


def test_functions_that_code_calls_are_not_dead():
    kept = remove_dead_functions(tt.IRModule.from_tvm(Doubling))
    assert {f.name for f in kept} == {"main", "twice", "one_more"}


def test_the_structure_of_code_is_that_of_all_it_calls():
    ours = tt.IRModule.from_tvm(Doubling)
    renamed = rename(ours, "one_more", "plus_one")
    assert renamed.structural_hash() == ours.structural_hash()
    assert difference(renamed, ours) is None
    other = ours.with_function(clone(ours, "unused", "one_more_").by_name["one_more_"].replace(name="one_more"))
    assert other.structural_hash() != ours.structural_hash()
    circle = tt.IRModule.from_tvm(tir_modules.Circle)
    assert circle.structural_hash() == tt.IRModule.parse(str(circle)).structural_hash()


def test_a_callee_that_is_not_in_the_module_is_named():
    ours = tt.IRModule.from_tvm(Doubling)
    without = ours.replace(functions=tuple(f for f in ours if f.name != "twice"))
    for method in (without.verify, without.to_tvm):
        with pytest.raises(ModelError, match=r"code calls 'twice', which is not in the module.*function 'main'"):
            method()


@I.ir_module
class Blocks:
    """A function that Relax calls, as TVM's own lowering writes them: in blocks; it calls private ones."""

    @T.prim_func(private=True, s_tir=True)
    def one_more(data: T.handle("float32"), i: T.int32):
        B = T.decl_buffer((16,), "float32", data=data)
        B[i] = B[i] + T.float32(1)

    @T.prim_func(private=True, s_tir=True)
    def twice(data: T.handle("float32"), i: T.int32):
        B = T.decl_buffer((16,), "float32", data=data)
        B[i] = B[i] * T.float32(2)
        Blocks.one_more(data, i)

    @T.prim_func(private=True, s_tir=True)
    def doubling(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
        T.func_attr({"op_pattern": 8})  # opaque, as TVM does not look into what it calls
        for i in range(16):
            with T.sblock("double"):
                vi = T.axis.spatial(16, i)
                T.reads(A[vi])
                T.writes(B[vi])
                B[vi] = A[vi]
                Blocks.twice(B.data, vi)


def relax_module():
    """Two `call_tir` of a function that calls private ones."""
    builder = relax.BlockBuilder(Blocks)
    variable = next(var for var in Blocks.functions if var.name_hint == "doubling")  # type: ignore[attr-defined]
    x = relax.Var("x", relax.TensorType((16,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.call_tir(variable, (x,), relax.TensorType((16,), "float32")), "first")
            second = builder.emit(relax.call_tir(variable, (first,), relax.TensorType((16,), "float32")), "second")
            result = builder.emit_output(relax.op.tanh(second))
        builder.emit_func_output(result)
    return builder.get()


EXPECTED = np.tanh(2 * (2 * A + 1) + 1)


def test_code_that_relax_calls_takes_its_callees_along():
    module = relax_module()
    plan = tt.decompose(module, "llvm")
    np.testing.assert_allclose(tt.build(plan).run({"x": A})["gv"], EXPECTED, rtol=1e-6)
    tvm.ir.assert_structural_equal(tt.IRModule.from_tvm(module).to_tvm(), module)


def test_code_that_two_targets_run_is_copied_with_its_callees():
    plan = tt.decompose(
        relax_module(), "[a=llvm,b=llvm(mcpu=skylake)](host=@a)", where={"first": "@a", "second": "@b", "gv": "@b"}
    )
    written = plan.to_tvm()
    names = {var.name_hint for var in written.functions}
    assert {"doubling", "doubling_1", "twice", "twice_1", "one_more", "one_more_1"} <= names
    for suffix in ("", "_1"):
        kinds = {name: written[name + suffix].attrs["target"].attrs.get("mcpu") for name in ("doubling", "twice")}
        assert len(set(map(str, kinds.values()))) == 1
    assert code_callees(tt.IRModule.from_tvm(written)["twice_1"]) == {"one_more_1": "one_more_1"}
    np.testing.assert_allclose(tt.build(plan).run({"x": A})["gv"], EXPECTED, rtol=1e-6)


def test_what_split_host_device_writes_calls_and_launches_functions_of_the_module():
    both = tt.IRModule.from_tvm(tir_modules.Both).map(
        lambda f: f.replace(constraint=tt.Constraint.parse("@gpu")) if f.name in ("main", "check") else f
    )
    split = tt.split_host_device(both, "[gpu=cuda(arch=sm_80),cpu=llvm](host=@cpu)")
    assert code_callees(split.main)["main_kernel"] == "main_kernel"  # by symbol
    assert code_callees(split["main_kernel"]) == {"g": "g"}
    assert code_callees(split["check"]) == {"f": "f"}
    assert code_callees(split["f"]) == {"g_host": "g_host"}
    back = split.to_tvm()
    variables, called = set(back.functions), []
    for function in back.functions.values():
        with_calls(function, lambda variable, _: called.append(variable))
    assert called
    assert variables.issuperset(called)
    tvm.ir.assert_structural_equal(tt.IRModule.from_tvm(back).to_tvm(), back)


PAIR = "llvm(mcpu=x86-64-v2,host=llvm)"
GPU = "[gpu=cuda(arch=sm_80),cpu=llvm](host=@cpu)"


@pytest.mark.parametrize(
    ("tree", "constraints", "sites"),
    [
        (PAIR, {}, {"."}),
        (GPU, {}, {"gpu"}),
        (GPU, {"doubling": "@gpu"}, {"gpu"}),
        (GPU, {"doubling": "@cpu"}, {"cpu", "gpu"}),
        (GPU, {"first": "@gpu", "second": "@cpu"}, {"cpu", "gpu"}),
    ],
)
def test_operations_beside_code_are_split_too(tree, constraints, sites):
    module = tt.IRModule.from_tvm(relax_module())
    for name, constraint in constraints.items():
        module = module.constrain(name, constraint)
    split = tt.split_host_device(module, tree)
    leaves = [f for f in split if f.attr("role") == "leaf"]
    assert {f.constraint.path or "." for f in leaves} == sites
    device = [f for f in leaves if (f.constraint.path or ".") != "cpu"]
    assert {f.attr("calling-convention") for f in device} == {"device-kernel-launch"}
    assert split["twice"].attr("calling-convention") is None or constraints == {"doubling": "@gpu"}
    for again in (split, tt.IRModule.parse(str(split)), tt.IRModule.from_json(split.to_json())):
        assert tt.split_host_device(again) == split


def test_a_split_program_of_operations_and_code_runs():
    split = tt.split_host_device(tt.IRModule.from_tvm(relax_module()), PAIR)
    np.testing.assert_allclose(tt.build(split, PAIR).run({"x": A})["gv"], EXPECTED, rtol=1e-6)


@pytest.mark.parametrize("old", ["f", "it's"])
def test_a_function_that_is_an_operand_of_an_operation_is_renamed_there(old):
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    s = relax.Var("s", relax.ShapeType([n]))
    with builder.function(old, [s], private=True):
        builder.emit_func_output(builder.emit(relax.op.full(relax.ShapeExpr([n]), relax.const(1.0), "float32")))
    callee = next(iter(builder.get().functions))
    m = tvm.tirx.Var("m", "int64")
    y = relax.Var("y", relax.TensorType([m], "float32"))
    with builder.function("main", [y]):
        builder.emit_func_output(builder.emit(callee(relax.ShapeExpr([m]))))
    ours = tt.IRModule.from_tvm(builder.get())
    assert callees_of(ours.main) == {old}
    renamed = rename(ours, old, "other 'name'")
    assert callees_of(renamed.main) == {"other 'name'"}
    assert remove_dead_functions(renamed) == renamed
    assert rename(renamed, "other 'name'", old) == ours
    exe = tt.build(rename(ours, old, "other"), "llvm")
    assert exe(np.zeros(3, "float32")).tolist() == [1, 1, 1]


def test_recursive_functions_are_split():
    split = tt.split_host_device(tt.IRModule.from_tvm(tir_modules.Circle), GPU)
    assert {"main", "main_kernel", "even", "odd"} <= {function.name for function in split}
