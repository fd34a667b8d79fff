"""Every function that takes a target reads all forms of one, and its errors name the argument."""

from pathlib import Path

import pytest

import tvmtarget as tt
from tvmtarget.errors import Problem, TargetError, TextError, TvmTargetError, UnknownNameError
from tvmtarget.ir.embedding import embed
from tvmtarget.target.tree import as_target

CPU = {"kind": "llvm", "num-cores": 4}
MODULE = tt.IRModule.parse("func @main(%x: float32[4]) opsets(onnx=17) { %y: float32[4] = onnx.Relu(%x) return %y }")


def live(config):
    """Return a target of the installed TVM."""
    tvm = pytest.importorskip("tvm", reason="needs the extra 'tvm'")
    return tvm.target.Target(config)


# Forms of the leaf `llvm(num-cores=4)`; those of TVM also state the triple of the machine.
FORMS = {
    "text": lambda: "llvm(num-cores=4)",
    "command line": lambda: "llvm -num-cores=4",
    "flat JSON": lambda: CPU,
    "JSON text": lambda: '{"kind": "llvm", "num-cores": 4}',
    "target": lambda: tt.Target("llvm", {"num-cores": 4}),
    "list": lambda: [CPU],
    "list of a target": lambda: (tt.Target("llvm", {"num-cores": 4}),),
    "configuration": lambda: tt.CompilationConfig(targets=["llvm(num-cores=4)"]),
    "target of TVM": lambda: live(CPU),
    "list of a target of TVM": lambda: [live(CPU)],
}


def cores(value):
    """Return what a result says about the number of cores."""
    if isinstance(value, tt.Target):
        return value["num-cores"]
    root = value.topology.root if isinstance(value, tt.Plan) else value.target
    return root["num-cores"]


TAKERS = {
    "Target.parse": tt.Target.parse,
    "Target.model_validate": tt.Target.model_validate,
    "Target.from_list": lambda form: tt.Target.from_list([form] if not isinstance(form, list | tuple) else form),
    "merge": tt.Target("llvm").merge,
    "host": lambda form: tt.Target("cuda", host=form).host,
    "child": lambda form: tt.Target("composite", targets=[form]).at("llvm"),
    "nested in JSON": lambda form: tt.Target.from_json({"kind": "cuda", "host": form}).host,
    "with_tags": lambda form: tt.Registry().with_tags({"my/cpu": form})["my/cpu"],
    "CompilationConfig": lambda form: tt.CompilationConfig(targets=[form]).targets[0],
    "CompilationConfig.from_target": lambda form: tt.CompilationConfig.from_target(form).targets[0],
    "target_host of a configuration": lambda form: tt.CompilationConfig(form, ["cuda"]).target_host,
    "VirtualDevice": lambda form: tt.VirtualDevice(target=form),
    "Strategy.at": lambda form: tt.Strategy().at(form),
    "IRModule.with_target": MODULE.with_target,
    "infer_targets": lambda form: tt.infer_targets(MODULE, form),
    "split_host_device": lambda form: tt.split_host_device(MODULE, form),
    "embed": lambda form: embed(MODULE, form, ""),
    "decompose": lambda form: tt.decompose(MODULE, form),
    "build": lambda form: tt.build(MODULE, form, allow_interpreter=True),
}
# A list is no value for one target below another.
NO_LISTS = {"host", "child", "nested in JSON", "CompilationConfig", "target_host of a configuration"}


CASES = [(taker, form) for taker in TAKERS for form in FORMS if not (form.startswith("list") and taker in NO_LISTS)]


@pytest.mark.parametrize(("taker", "form"), CASES)
def test_all_forms_of_a_target_are_accepted(taker, form):
    assert cores(TAKERS[taker](FORMS[form]())) == 4


def test_logs_and_tuning_read_all_forms_of_a_target(tmp_path):
    plan = tt.decompose(MODULE, "llvm(num-cores=4)")
    with tt.TuningLog(tmp_path / "log.db") as log:
        found = [log.lookup(plan.functions()[0], form()) for name, form in FORMS.items() if "TVM" not in name]
        assert {match.target for match in found} == {tt.Target("llvm", {"num-cores": 4})}
        tuned = [
            tt.tune(plan, form(), log=log, trials=1, levels=["placement"])
            for form in (FORMS["list"], FORMS["flat JSON"])
        ]
    assert all(tuned)


def test_tir_is_bound_to_all_forms_of_a_target():
    tvm = pytest.importorskip("tvm", reason="needs the extra 'tvm'")
    from tvm.script import tirx

    @tirx.prim_func(private=True)
    def nothing():
        tirx.evaluate(0)

    module = tvm.IRModule({"nothing": nothing})
    forms = [
        "cuda(host=llvm,arch=sm_80)",
        {"kind": "cuda", "arch": "sm_80", "host": "llvm"},
        ["cuda -arch=sm_80", "llvm"],
    ]
    bound = [str(tt.bind_targets(module, form)["nothing"].attrs["target"]) for form in forms]
    assert len(set(bound)) == 1


def test_a_list_with_a_host_is_the_devices_that_it_drives():
    composite = tt.Target.parse("[cuda,llvm](host=@llvm)")
    with_hosts = [tt.Target("cuda", host="llvm"), {"kind": "llvm", "host": "llvm"}]
    assert tt.Target.parse(with_hosts) == composite
    assert tt.Target.from_list(["cuda", "llvm"], "@llvm") == composite
    assert tt.Target.from_list(["cuda", tt.Target("llvm")], host={"kind": "llvm"}) == composite
    assert tt.Target.from_list(["cuda"], "llvm") == tt.Target("cuda", host="llvm")
    named = [tt.Target("cuda", name="a"), tt.Target("cuda", name="b")]
    assert tt.Target.from_list(named, "llvm") == tt.Target.parse("[a=cuda,b=cuda](host=llvm)")
    built = tt.build(MODULE, ["onnxruntime", "llvm"], "llvm")
    assert built.target == tt.Target.parse("[onnxruntime,llvm](host=@llvm)").resolve()


def test_a_list_without_a_host_is_that_of_tvmc():
    assert tt.Target.parse(["cuda(arch=sm_80)", "llvm"]) == tt.Target.parse("cuda(arch=sm_80,host=llvm)")
    assert tt.Target.parse(["nvidia/jetson-nano"]) == tt.Target.parse("nvidia/jetson-nano")
    assert tt.Target.parse(["cmsis-nn", tt.Target("c")]) == tt.Target.parse("cmsis-nn, c")


def test_hosts_of_a_list_that_differ_are_an_error():
    with pytest.raises(TargetError, match="two hosts are given for 'cuda'"):
        tt.Target.from_list([tt.Target("cuda", host="llvm(num-cores=2)"), "llvm"], "llvm")
    with pytest.raises(TargetError, match="two hosts are given"):
        tt.build(MODULE, tt.Target("cuda", host="llvm(num-cores=2)"), "llvm")


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda wrong: tt.build(MODULE, wrong), "target"),
        (lambda wrong: tt.build(MODULE, "cuda", wrong), "target_host"),
        (lambda wrong: tt.decompose(MODULE, wrong), "target"),
        (lambda wrong: tt.tune(MODULE, wrong, log="/nowhere/log.db", trials=1), "target"),
        (lambda wrong: tt.split_host_device(MODULE, wrong), "target"),
        (lambda wrong: tt.infer_targets(MODULE, wrong), "target"),
        (MODULE.with_target, "target"),
        (lambda wrong: embed(MODULE, wrong, "cpu"), "target"),
        (lambda wrong: tt.VirtualDevice(target=wrong), "target"),
        (lambda wrong: tt.CompilationConfig(wrong, ["cuda"]), "target_host"),
        (lambda wrong: tt.CompilationConfig.from_target(wrong), "target"),
        (tt.Target("llvm").merge, "other"),
        (tt.Target("llvm").diff, "other"),
        (tt.Target("llvm").why_not, "wanted"),
        (tt.Strategy().at, "target"),
    ],
)
def test_errors_name_the_argument(call, argument):
    for wrong in (5, {"kind": 5}, "lvm", ["lvm"], "[cuda", object(), [], {"kind": "llvm", "num-cores": "many"}):
        with pytest.raises(TvmTargetError) as caught:
            call(wrong)
        assert f" (argument {argument!r})" in str(caught.value)


def test_errors_keep_their_class_their_place_and_their_column():
    with pytest.raises(UnknownNameError, match=r"^unknown kind 'lvm'; did you mean 'llvm'\? \(argument 'target'\)$"):
        as_target("lvm")
    with pytest.raises(TextError) as caught:
        as_target("[cuda")
    assert (caught.value.column, caught.value.text) == (5, "[cuda")
    with pytest.raises(TargetError) as caught:
        as_target({"kind": "composite", "targets": [{"kind": "cuda", "archh": 1}, {"kind": 5}]})
    places = [problem.loc for problem in caught.value.problems if isinstance(problem, Problem)]
    assert places == [("targets", 0, "archh"), ("targets", 1, "kind")]


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (Path("board.json"), "read the file first: Target.parse(path.read_text())"),
        (tt.Executor("aot"), "pass it as executor="),
        (tt.Runtime("crt"), "pass it as runtime="),
        (
            tt.Constraint.parse("gpu"),
            "tvmtarget.select(trees, constraint) returns the targets that satisfy a constraint",
        ),
        (tt.VirtualDevice.parse("cuda:3"), "pass its target: device.target"),
    ],
)
def test_what_is_mistaken_for_a_target_is_named_with_the_fix(value, fix):
    for call in (
        tt.Target.parse,
        as_target,
        lambda one: tt.Target.parse([one]),
        lambda one: tt.Target("cuda", host=one),
    ):
        with pytest.raises(TargetError) as caught:
            call(value)
        assert fix in str(caught.value)


@pytest.mark.parametrize("form", FORMS)
def test_the_constructor_of_targets_names_parse_for_whole_targets(form):
    with pytest.raises(TargetError, match=r"is a whole target, not the name of a kind; read it with Target\.parse"):
        tt.Target(FORMS[form]())


@pytest.mark.parametrize("text", ["nvidia/jetson-nano", "cuda, llvm", "cuda -arch=sm_80", "[cuda]", "gpu=cuda"])
def test_the_constructor_of_targets_names_parse_for_texts(text):
    for attrs in (None, {"num-cores": 4}):
        with pytest.raises(TargetError, match=r"read it with Target\.parse"):
            tt.Target(text, attrs)
