"""Decisions in modules that TVM hands over, or that go to TVM and come back, are kept or refused (G1)."""

import random
from collections import Counter

import numpy as np
import pytest
from effort import examples

tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")
pytest.importorskip("tvmtarget_sample.backend", reason="pip install ./tests/plugin")

import tvm_ffi  # noqa: E402
from relax_modules import BRANCHES, EVERYTHING, SIX, by_tvm, random_module, register_codegen, run  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.relax.dpl import is_op, wildcard  # noqa: E402

import tvmtarget as tt  # noqa: E402
from tvmtarget.errors import BackendError, InfeasibleError, ModelError, TargetError  # noqa: E402
from tvmtarget.target.topology import Topology  # noqa: E402

NPU = "[npu=probe(lanes=8),cpu=llvm](host=@cpu)"
CPUS = "[a=llvm,b=llvm(mcpu=skylake),c=llvm(mcpu=cascadelake)](host=@a)"
SKYLAKE = {"kind": "llvm", "mcpu": "skylake"}


def with_target(target):
    """Return a module whose TIR function is for a target."""
    module = EVERYTHING.clone()  # type: ignore[attr-defined]
    code = module["add_one"].with_attr("target", tvm.target.Target(target))
    module.update_func(module.get_global_var("add_one"), code)
    return module


@pytest.mark.parametrize(
    ("target", "site"),
    [
        ("llvm", "@a"),
        (SKYLAKE, "@b"),
        ({"kind": "llvm", "mcpu": "cascadelake"}, "@c"),
        ({"kind": "llvm", "mcpu": "haswell"}, "!(!@b&!@c)"),  # both can run it, and neither is more like it
        ({**SKYLAKE, "host": "llvm"}, "@b"),
    ],
)
def test_a_target_means_the_node_that_satisfies_it_and_is_most_like_it(target, site):
    module = with_target(target)
    assert str(tt.IRModule.from_tvm(module, CPUS)["add_one"].constraint) == site
    for given in (module, tt.IRModule.from_tvm(module), tt.IRModule.from_tvm(module, CPUS)):
        assert f"@{tt.decompose(given, CPUS).site_of('lv3')}" in site


@pytest.mark.parametrize(
    ("target", "tree", "reason"),
    [
        ({"kind": "cuda", "arch": "sm_80"}, CPUS, r"function 'add_one': no leaf of the tree satisfies 'cuda.*@a: cuda"),
        ({"kind": "cuda", "arch": "sm_90"}, "[cpu=llvm,gpu=cuda(arch=sm_80)](host=@cpu)", r"@gpu: arch>=sm_90"),
        (SKYLAKE, "llvm(mcpu=haswell)", r"function 'add_one'.*@\.: mcpu>=skylake"),
    ],
)
def test_a_target_that_no_node_satisfies_is_refused_with_reasons(target, tree, reason):
    for refusing in (tt.IRModule.from_tvm, tt.decompose):
        with pytest.raises(TargetError, match=reason):
            refusing(with_target(target), tree)


ONNX = """func @main(%x: float32[2]) -> (float32[2]) opsets(onnx=17) attrs {{target={}}} {{
  %y: float32[2] = onnx.Relu(%x) as r
  return %y
}}"""


@pytest.mark.parametrize(
    ("target", "tree", "site"),
    [
        ('"cuda"', "[cpu=llvm,gpu=cuda(arch=sm_80)](host=@cpu)", "gpu"),
        ('"cuda -arch=sm_80 -host=llvm"', "[cpu=llvm,gpu=cuda(arch=sm_80),new=cuda(arch=sm_90)](host=@cpu)", "gpu"),
        ('"llvm -mcpu=skylake"', "[plain=llvm,sky=llvm(mcpu=skylake)]", "sky"),
        ('"{\\"kind\\": \\"llvm\\", \\"mcpu\\": \\"skylake\\"}"', "[plain=llvm,sky=llvm(mcpu=skylake)]", "sky"),
        ('"llvm"', "[ort=onnxruntime,cpu=llvm]", "cpu"),
    ],
)
def test_a_target_of_a_function_of_ours_is_honoured(target, tree, site):
    module = tt.IRModule.parse(ONNX.format(target))
    forms = (module, tt.IRModule.parse(str(module)), tt.IRModule.from_json(module.to_json()))
    for form in forms:
        plan = tt.decompose(form, tree)
        assert plan.sites() == {"r": site}
        assert plan.explain("r").reason == f"it must meet @{site} (required by function 'main')"
        assert tt.decompose(plan.module).module == plan.module


def test_of_nodes_that_are_equally_like_a_target_costs_choose():
    ops = [{"match": {"op": "Relu"}, "site": site, "time": time} for site, time in (("a", 9), ("b", 1))]
    costs = {"schema": "tvmtarget.cost/1", "ops": ops}
    assert tt.decompose(tt.IRModule.parse(ONNX.format('"llvm"')), "[a=llvm,b=llvm]", costs).sites() == {"r": "b"}


def test_a_target_of_a_function_of_ours_is_refused_where_nothing_satisfies_it():
    with pytest.raises(TargetError, match=r"target of function 'main': no leaf .* 'rocm': @ort: rocm: this is onnxrun"):
        tt.decompose(tt.IRModule.parse(ONNX.format('"rocm"')), "[ort=onnxruntime,cpu=llvm]")
    with pytest.raises(TargetError, match=r"target of function 'main': unknown kind 'cudda'"):
        tt.decompose(tt.IRModule.parse(ONNX.format('"cudda"')), "[ort=onnxruntime,cpu=llvm]")
    both = tt.IRModule.parse(ONNX.format('"llvm"')).constrain("r", "@ort")
    with pytest.raises(InfeasibleError, match="required by op 'r'"):
        tt.decompose(both, "[ort=onnxruntime,cpu=llvm]")


def test_a_function_with_a_target_may_call_one_with_another():
    module = with_target({"kind": "cuda", "arch": "sm_80"})
    main = module["main"].with_attr("target", tvm.target.Target("llvm"))
    module.update_func(module.get_global_var("main"), main)
    plan = tt.decompose(module, "[cpu=llvm,gpu=cuda(arch=sm_80)](host=@cpu)")
    assert {op for op, site in plan.sites().items() if site == "gpu"} == {"lv3"}


PATTERNS = [
    ("probe.relu", is_op("relax.nn.relu")(wildcard())),
    ("probe.add", is_op("relax.add")(wildcard(), wildcard())),
]
WAYS = {
    "composites": (relax.transform.FuseOpsByPattern(PATTERNS),),
    "annotated": (relax.transform.FuseOpsByPattern(PATTERNS, annotate_codegen=True),),
    "lifted": (relax.transform.FuseOpsByPattern(PATTERNS, bind_constants=False, annotate_codegen=True),),
    "merged": (relax.transform.FuseOpsByPattern(PATTERNS), relax.transform.MergeCompositeFunctions()),
}


def layers(rows=2):
    """Relu, tanh, add of a constant, and a tuple of what two operations of one match give."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 4), "float32"))
    weights = relax.const(np.arange(8, dtype="float32").reshape(2, 4) if rows == 2 else np.ones((1, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.nn.relu(x))
            second = builder.emit(relax.op.add(first, weights))
            third = builder.emit(relax.op.tanh(second))
            result = builder.emit_output(relax.Tuple([builder.emit(relax.op.nn.relu(third)), second]))
        builder.emit_func_output(result)
    return builder.get()


def forms(module, tree):
    """Return a module in all forms of ours."""
    ours = tt.IRModule.from_tvm(module)
    yield module
    yield ours
    yield tt.IRModule.from_tvm(module, tree)
    yield tt.IRModule.parse(str(ours), ours.constants())
    yield tt.IRModule.from_json(ours.to_json(), ours.constants())


@pytest.mark.parametrize("rows", [2, tvm.tirx.Var("n", "int64")], ids=["static", "symbolic"])
@pytest.mark.parametrize("way", WAYS)
def test_what_tvm_partitioned_stays_with_its_code_generator(way, rows):
    module = layers(rows)
    theirs = tvm.transform.Sequential(WAYS[way])(module)
    tvm.ir.assert_structural_equal(tt.IRModule.from_tvm(theirs, NPU).to_tvm(), theirs)
    plans = [tt.decompose(form, NPU, where={"op:relax.tanh": "@cpu"}) for form in forms(theirs, NPU)]
    for plan in plans:
        assert sorted(kinds(plan, "npu")) == ["relax.add", "relax.nn.relu", "relax.nn.relu"]
        assert plan.codegen_options() == {"probe": {"lanes": 8}}
        matches = [match[0] for function in plan.functions("npu") for match in function.attr("matches")]
        assert sorted(matches) == ["add", "relu", "relu"]
    written = plans[0].to_tvm()
    relax.analysis.well_formed(written)
    seen = register_codegen("probe")
    executable = tvm.compile(relax.transform.RunCodegen(plans[0].codegen_options())(written), target="llvm")
    assert all(options == {"lanes": 8} for _, options in seen)
    x = np.random.default_rng(0).normal(size=(2, 4)).astype("float32")
    for one, other in zip(run(executable, x), by_tvm(module, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tree", [NPU, "probe", "[cpu=llvm,soc=[npu=probe(lanes=8),cpu=llvm](host=@cpu)](host=@cpu)"])
def test_matches_of_tvm_stay_when_a_plan_is_divided_again(way, tree):
    theirs = tvm.transform.Sequential(WAYS[way])(layers())
    plan = tt.decompose(theirs, tree)
    module = plan.module
    assert any(function.attr("matches") for function in module)
    held = module.constants()
    read = (tt.IRModule.parse(str(module), held), tt.IRModule.from_json(module.to_json(), held))
    for form in (module, *read):
        again = tt.decompose(form)
        assert again.sites() == plan.sites()
        assert str(again.module) == str(module)


def kinds(plan, site):
    """List the operators of what runs on a site."""
    return [call.op for call in plan.program.body if plan.site_of(call.source) == site]


@pytest.mark.parametrize("way", WAYS)
def test_a_tree_without_the_code_generator_is_refused_by_name(way):
    theirs = tvm.transform.Sequential(WAYS[way])(layers())
    reported = r"is for code generator 'probe', and no node of the target is of that kind; it has @npu \(numpy\), @cpu"
    for refusing in (tt.IRModule.from_tvm, tt.decompose, tt.build):
        with pytest.raises(TargetError, match=reported):
            refusing(theirs, "[npu=numpy,cpu=llvm](host=@cpu)")


def test_a_code_generator_of_which_nothing_is_known_keeps_what_tvm_gave_it():
    """TVM's kinds have no operator support here; the functions that its patterns made are theirs nevertheless."""
    patterns = [("cutlass.relu_add", is_op("relax.add")(is_op("relax.nn.relu")(wildcard()), wildcard()))]
    theirs = relax.transform.FuseOpsByPattern(patterns, annotate_codegen=True)(layers())
    plan = tt.decompose(theirs, "[gpu=cutlass,cpu=llvm](host=@cpu)")
    assert sorted(kinds(plan, "gpu")) == ["relax.add", "relax.nn.relu"]
    again = tt.decompose(plan.to_tvm(), "[gpu=cutlass,cpu=llvm](host=@cpu)")
    assert sorted(kinds(again, "gpu")) == ["relax.add", "relax.nn.relu"]


def test_two_nodes_of_the_code_generator_are_a_choice():
    theirs = tvm.transform.Sequential(WAYS["annotated"])(SIX)
    tree = "[one=probe(lanes=8),two=probe(lanes=2),cpu=llvm](host=@cpu)"
    module = tt.IRModule.from_tvm(theirs, tree)
    assert {str(one.constraint) for one in module if one.name != "main"} == {"!(!@one&!@two)"}
    plan = tt.decompose(module, tree, where={"op:relax.nn.relu": "@two", "op:relax.tanh": "@cpu"})
    assert {plan.site_of(call.source) for call in plan.program.body if call.op == "relax.nn.relu"} == {"two"}


TREES = [
    NPU,
    "[big=llvm(num-cores=4),little=llvm(num-cores=2)](host=@big)",
    "[a=llvm,b=llvm](host=@b)",
    "[a=probe(lanes=4),b=probe(lanes=4),cpu=llvm](host=@cpu)",
    "[cpu=llvm,soc=[npu=probe,cpu=llvm(num-cores=2)](host=@cpu)](host=@cpu)",
    "[n0=[npu=probe,cpu=llvm](host=@cpu),n1=[npu=probe,cpu=llvm](host=@cpu)](host=@n0/cpu)",
    "[npu=probe,cpu=llvm,gpu=cuda(arch=sm_80)](host=@cpu)",
]


def planned(module, tree, rng):
    """Return a plan with every operation on a random leaf, where that takes it."""
    leaves = [leaf.path for leaf in Topology(tt.Target.parse(tree).resolve()).leaves()]
    names = [call.source for call in tt.decompose(module, "llvm").program.body]
    return tt.decompose(module, tree, where={name: f"@{rng.choice(leaves)}?" for name in names})


def sites(plan):
    """Return the sites of operations, but of copies that writing makes anew."""
    return {op: site for op, site in plan.sites().items() if "copy" not in op}


def check_law(module, tree, rng):
    """DESIGN, section 5: from_tvm(plan.to_tvm()) keeps sites, options and constraints of all operations.

    Names of operations are those of the first call of a function; TVM has no words for those of further calls.
    """
    plan = planned(module, tree, rng)
    calls = Counter(one.function for one in plan.subgraphs)
    unnamed = {op for one in plan.subgraphs if calls[one.function] > 1 for op in one.ops}
    written = plan.to_tvm()
    relax.analysis.well_formed(written)
    ours = tt.IRModule.from_tvm(written)
    back = tt.IRModule.from_tvm(written, tree)
    read = tt.IRModule.parse(str(back), back.constants())
    for form in (ours, back, read, tt.IRModule.from_json(back.to_json(), back.constants())):
        tvm.ir.assert_structural_equal(form.to_tvm(), written)
        again = tt.decompose(form, tree)
        named = {op: site for op, site in sites(plan).items() if op not in unnamed}
        assert named.items() <= sites(again).items()
        assert Counter(sites(again).values()) == Counter(sites(plan).values())
        assert again.codegen_options() == plan.codegen_options()
        requested = {
            call.source: items for call, items in zip(again.program.body, again.program.requirements, strict=True)
        }
        for op, site in named.items():
            if op not in {one.op for one in plan.outlined.driven}:
                assert any(item.constraint.path == site and item.constraint.is_required for item in requested[op]), op
        relax.analysis.well_formed(again.to_tvm())


@pytest.mark.parametrize("seed", range(21))
def test_plans_keep_sites_options_and_constraints_through_tvm(seed):
    rng = random.Random(seed)
    module = [SIX, BRANCHES, EVERYTHING][seed // 5 % 3] if seed % 5 == 0 else random_module(rng.randint(1, 16), seed)
    check_law(module, TREES[seed % len(TREES)], rng)


@pytest.mark.slow
def test_many_plans_keep_sites_options_and_constraints_through_tvm():
    for seed in range(100, 100 + examples(15, 100)):
        rng = random.Random(seed)
        check_law(random_module(rng.randint(1, 24), seed), TREES[seed % len(TREES)], rng)


def test_constraints_of_a_module_that_nothing_divided_go_through_tvm():
    ours = tt.IRModule.from_tvm(SIX).constrain("lv2", "llvm(num-cores>=2)").constrain("lv4", "npu?")
    written = ours.to_tvm()
    assert {
        call.source: str(call.constraint) for call in tt.IRModule.from_tvm(written).main.body if call.constraint
    } == {
        "lv2": "llvm(num-cores>=2)",
        "lv4": "npu?1",
    }
    tvm.ir.assert_structural_equal(tt.IRModule.from_tvm(written).to_tvm(), written)
    assert "tvmtarget" not in tt.IRModule.from_tvm(SIX).to_tvm().script()


def test_a_constraint_of_a_binding_that_a_pass_removed_is_refused_with_the_place():
    written = tt.IRModule.from_tvm(SIX).constrain("lv2", "npu?").to_tvm()
    fused = relax.transform.FuseOpsByPattern([("probe.tanh", is_op("relax.tanh")(wildcard()))])(written)
    with pytest.raises(
        ModelError, match=r"function 'main' has the constraint 'npu.1' for binding 'lv2', which it does not have"
    ):
        tt.IRModule.from_tvm(fused)
    broken = SIX.clone()
    main = broken["main"].with_attr("tvmtarget.constraints", "{")
    broken.update_func(broken.get_global_var("main"), main)
    with pytest.raises(ModelError, match=r"function 'main': its attributes 'tvmtarget..' cannot be read"):
        tt.IRModule.from_tvm(broken)


def test_passes_of_tvm_leave_operations_on_the_site_that_all_of_a_function_are_on():
    legal = relax.transform.LegalizeOps()(tt.decompose(SIX, NPU, where={"*": "@cpu"}).to_tvm())
    again = tt.decompose(legal, NPU)
    assert {call.op for call in again.program.body} == {"@tir_tanh", "@relu", "@add"}
    assert {str(item.constraint) for items in again.program.requirements for item in items} == {"@cpu"}


def test_what_a_pass_of_tvm_takes_from_a_code_generator_is_refused():
    plan = tt.decompose(SIX, NPU, where={"op:relax.tanh": "@cpu"})
    legal = relax.transform.LegalizeOps()(plan.to_tvm())
    with pytest.raises(
        InfeasibleError, match=r"@npu: NO_RULE: function 'relu' is code.*required by function 'npu_relu_"
    ):
        tt.decompose(legal, NPU)


@pytest.mark.parametrize("rows", [2, tvm.tirx.Var("n", "int64")], ids=["static", "symbolic"])
@pytest.mark.parametrize("way", WAYS)
def test_what_tvm_partitioned_is_built_with_its_external_code_generator(way, rows, tmp_path):
    module = layers(rows)
    seen = register_codegen("probe")
    executable = tt.build(tvm.transform.Sequential(WAYS[way])(module), NPU, where={"op:relax.tanh": "@cpu"})
    assert seen
    assert all(options == {"lanes": 8} for _, options in seen)
    x = np.random.default_rng(0).normal(size=(2, 4)).astype("float32")
    executable.save(tmp_path / "program.tta")
    # Without trust, each function is compiled by a process of its own, for a second.
    for form in (executable, tt.load(tmp_path / "program.tta", trust=not isinstance(rows, int))):
        for one, other in zip(form.run({"x": x}).values(), by_tvm(module, x), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_code_generator_that_is_not_installed_is_named_by_build():
    patterns = [("cutlass.relu", is_op("relax.nn.relu")(wildcard()))]
    theirs = relax.transform.FuseOpsByPattern(patterns, annotate_codegen=True)(layers())
    with pytest.raises(BackendError, match="@gpu cannot be compiled: no backend for kind 'cutlass' is installed"):
        tt.build(theirs, "[gpu=cutlass,cpu=llvm](host=@cpu)", where={"op:relax.tanh": "@cpu", "op:relax.add": "@cpu"})


def test_an_external_code_generator_that_fails_is_named_with_function_and_site():
    def fails(*_):
        raise ValueError("no such instruction")

    tvm_ffi.register_global_func("relax.ext.probe", fails, override=True)
    try:
        theirs = tvm.transform.Sequential(WAYS["annotated"])(layers())
        with pytest.raises(
            BackendError, match=r"relax.ext.probe cannot take function 'npu_\w+' of @npu: .*no such inst"
        ):
            tt.build(theirs, NPU, where={"op:relax.tanh": "@cpu"})
    finally:
        register_codegen("probe")
