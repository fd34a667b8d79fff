"""Compiled programs run as planned, and compute the same as the unpartitioned model."""

import platform
import random
import re
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from effort import examples
from models import DIGITS, EXAMPLES, LIGHT, beginning, inputs_of, light, random_graph, small
from onnx import TensorProto, helper

import tvmtarget as tt
from tvmtarget.artifact import read_files, write_files
from tvmtarget.autotune.log.match import Policy
from tvmtarget.backends.machine import interpreter_mismatch, is_any_x86
from tvmtarget.backends.protocol import backend_named, backends
from tvmtarget.building import backend_choice
from tvmtarget.building.backend_choice import choose_backend
from tvmtarget.errors import ArtifactError, BackendError, MissingExtraError, ModelError, RunError, TargetError
from tvmtarget.executors.protocol import CallEvent, CopyEvent
from tvmtarget.target.topology import Topology

FLAT = "composite[a=onnxruntime,b=llvm]"
# Code for this machine alone is compiled in two thirds of the time of code for any of its architecture.
NATIVE = f"llvm(mcpu={tt.Target.detect().attrs['mcpu']})"
DEEP = f"[x=[a=onnxruntime,b={NATIVE}],y=[c={NATIVE},d=onnxruntime]](host=@x/b)"


def reference(model, inputs):
    """Run a whole model by onnxruntime."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))


def digits():
    with np.load(EXAMPLES / "digits.npz") as stored:
        return stored["input"], stored["labels"]


def heavy_ops_on(module, cheap, heavy):
    """Alternate sites by position, but keep what is slow without schedules on the fast site."""
    slow = {"Conv", "Gemm", "LRN", "MaxPool", "AveragePool"}
    return {
        call.source: f"@{heavy}" if call.kind in slow else f"@{cheap[position % len(cheap)]}"
        for position, call in enumerate(module.main.body)
    }


def assert_same(actual, expected, rtol=1e-3):
    assert list(actual) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=rtol, atol=1e-3 * max(1e-3, np.abs(array).max()))


def test_the_main_example_runs_by_two_code_generators():
    x, labels = digits()
    exe = tt.build(tt.IRModule.from_onnx(DIGITS), FLAT, where={"op:Gemm": "@b"})
    scores = exe(x)
    assert (scores.argmax(1) == labels).mean() > 0.97
    assert exe.report()["backends"] == ["onnxruntime", "tvm"]
    assert_same({"logits": scores}, reference(onnx.load(DIGITS), {"input": x}))


# These take most of a minute: many small subgraphs by TVM, or large weights. What two of them have, others have too.
SLOW = {"bvlc_alexnet", "densenet121", "inception_v2", "vgg19", "zfnet512"}
SMALL = {"inception_v1", "squeezenet"}
NETWORKS = [name for name in LIGHT if name not in {"densenet121", "inception_v1", "inception_v2"} or examples(0, 1)]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NETWORKS])
def test_light_models_over_two_and_three_sites_equal_onnxruntime(name):
    """Depth three, and with small networks depth two; operations without heavy loops run by TVM."""
    model = light(name)
    module, inputs = tt.IRModule.from_onnx(model), inputs_of(model)
    expected = reference(model, inputs)
    trees = [(DEEP, ("x/b", "y/d"), "x/a"), *[(FLAT, ("b", "a"), "a")] * bool(name in SMALL or examples(0, 1))]
    for target, cheap, heavy in trees:
        assert_same(tt.build(module, target, where=heavy_ops_on(module, cheap, heavy)).run(inputs), expected)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), [("squeezenet", "llvm"), ("shufflenet", NATIVE), ("inception_v1", NATIVE)])
def test_light_models_by_tvm_alone_equal_onnxruntime(name, target):
    model = beginning(light(name), 40) if name == "inception_v1" else light(name)  # three blocks of nine
    inputs = inputs_of(model)
    assert_same(tt.build(tt.IRModule.from_onnx(model), target).run(inputs), reference(model, inputs))


@pytest.mark.parametrize("name", ["squeezenet", "inception_v1", "shufflenet"])
def test_the_trace_equals_the_plan(name, probe_log):
    """Every call of a function in the plan's order, every op in one of them; every copy, with its bytes."""
    target = "[x=[a=probe,b=probe,h=numpy](host=@h),y=[z=[c=probe,h=numpy](host=@h)](host=@z/h)](host=@x/h)"
    model = light(name)
    module, inputs = tt.IRModule.from_onnx(model), inputs_of(model)
    rng = random.Random(0)
    where = {call.source: f"@{rng.choice(('x/a', 'x/b', 'y/z/c'))}" for call in module.main.body}
    plan = tt.decompose(module, target, where=where)
    exe = tt.build(plan)
    probe_log.clear()
    results = exe.run(inputs)
    ops = [entry[1:] for entry in probe_log if entry[0] == "op"]
    copies = [entry[1:] for entry in probe_log if entry[0] == "copy"]
    calls = Counter()
    for subgraph in plan.subgraphs:
        body = plan.module[subgraph.function].body
        assert [entry for entry, _ in zip(ops, body, strict=False)] == [
            (call.source, subgraph.site, calls[subgraph.function]) for call in body
        ]
        del ops[: len(body)]
        calls[subgraph.function] += 1
    assert not ops
    assert sorted(op for subgraph in plan.subgraphs for op in subgraph.ops) == sorted(where)
    assert all(where[op] == f"@{subgraph.site}" for subgraph in plan.subgraphs for op in subgraph.ops)
    probed = [copy for copy in plan.copies if copy.dst.endswith("ext_dev")]  # a copy is made by where it arrives
    assert sorted(copies) == sorted((copy.src, copy.dst, copy.nbytes) for copy in probed)
    assert_same(results, reference(model, inputs))


@pytest.mark.parametrize(
    "changes",
    [
        {"runtime": "processes"},
        {"executor": "aot"},
        {"target": "numpy"},
        {"target_host": "numpy"},
        {"where": {"fc1": "@b"}},
        {"params": {"input": np.zeros((1, 1, 8, 8), "float32")}},
    ],
)
def test_a_plan_is_not_built_with_arguments_that_change_it(changes):
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), "[a=onnxruntime,b=numpy](host=@b)")
    with pytest.raises(TargetError, match=f"so '{next(iter(changes))}' cannot be given with it"):
        tt.build(plan, **changes)
    assert tt.build(plan, "[a=onnxruntime,b=numpy](host=@b)").target == plan.topology.root


def test_events_record_every_call_and_copy():
    model = random_graph(30, 1)
    module = tt.IRModule.from_onnx(model)
    target = "[x=[a=numpy](host=@a),y=[b=onnxruntime,c=numpy](host=@c)](host=@x/a)"
    rng = random.Random(2)
    plan = tt.decompose(module, target, where={c.source: f"@{rng.choice(('x/a', 'y/b'))}" for c in module.main.body})
    events = tt.build(plan).profile(inputs_of(model))
    assert [event.function for event in events if isinstance(event, CallEvent)] == [r.function for r in plan.subgraphs]
    moved = [(event.src, event.dst, event.nbytes) for event in events if isinstance(event, CopyEvent)]
    assert sorted(moved) == sorted((copy.src, copy.dst, copy.nbytes) for copy in plan.copies)


def test_a_saved_program_is_the_same_program(tmp_path):
    x, _ = digits()
    exe = tt.build(tt.IRModule.from_onnx(DIGITS), "demo/rack", where={"op:Gemm": "@node1/cpu"})
    exe.save(tmp_path / "a.tta")
    for trust in (False, True):
        loaded = tt.load(tmp_path / "a.tta", trust=trust)
        np.testing.assert_allclose(loaded(x), exe(x), rtol=1e-4, atol=1e-4)
        assert loaded.report() == exe.report()
        assert loaded.target == exe.target


def test_saving_twice_gives_the_same_bytes(tmp_path):
    exe = tt.build(tt.IRModule.from_onnx(DIGITS), "[a=numpy,b=onnxruntime]")
    for name in ("a", "b"):
        exe.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_program_without_operations_runs():
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    model = helper.make_model(helper.make_graph([], "empty", [info], [info]), ir_version=8)
    module = tt.IRModule.from_onnx(model)
    for target in ("numpy", "[a=numpy,b=onnxruntime]", "llvm"):
        np.testing.assert_array_equal(tt.build(module, target)(np.ones(2, "float32")), np.ones(2))


@pytest.mark.parametrize("kind", ["numpy", "onnxruntime", "llvm"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)])
def test_scalars_and_empty_tensors_run(kind, shape):
    model = small(helper.make_node("Relu", ["x"], ["y"], name="naïve → 漢字"), shape=shape)
    module = tt.IRModule.from_onnx(model)
    x = np.full(shape, -1, "float32")
    np.testing.assert_array_equal(tt.build(module, f"[a={kind}]")(x), np.maximum(x, 0))


def test_symbolic_dimensions_accept_any_consistent_size():
    model = small(helper.make_node("Add", ["x", "z"], ["y"], name="add"), inputs=("x", "z"), shape=("batch-size", 3))
    for kind in ("numpy", "onnxruntime", "llvm"):
        exe = tt.build(tt.IRModule.from_onnx(model), kind)
        for size in (1, 5):
            array = np.ones((size, 3), "float32")
            np.testing.assert_array_equal(exe(array, array), 2 * array)
        with pytest.raises(RunError, match="input 'z' has 2 for 'batch-size', but input 'x' has 1"):
            exe(np.ones((1, 3), "float32"), np.ones((2, 3), "float32"))
        with pytest.raises(RunError, match=r"inputs by name are passed to run, as in exe\.run"):
            exe({"x": array, "z": array})


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({}, "input 'input' is missing; it is float32[batch,1,8,8]"),
        (
            {"input": np.zeros((1, 1, 8, 8))},
            "input 'input' is float64, not float32; convert it with .astype('float32')",
        ),
        ({"input": np.zeros((1, 8, 8), "float32")}, "input 'input' has shape (1, 8, 8), not (batch, 1, 8, 8)"),
        ({"input": np.zeros((1, 1, 8, 9), "float32")}, "input 'input' has shape (1, 1, 8, 9), not (batch, 1, 8, 8)"),
        ({"image": np.zeros(1)}, "no input 'image' in the program; it takes 'input'"),
        ({"input": "text"}, "input 'input' is"),
    ],
)
def test_inputs_of_another_name_type_or_shape_are_errors(inputs, text):
    exe = tt.build(tt.IRModule.from_onnx(DIGITS), "onnxruntime")
    with pytest.raises(RunError) as caught:
        exe.run(inputs)
    assert text in str(caught.value)


def test_params_become_constants():
    model = small(helper.make_node("Add", ["x", "w"], ["y"], name="add"), inputs=("x", "w"))
    exe = tt.build(tt.IRModule.from_onnx(model), "numpy", params={"w": np.ones((2, 3), "float32")})
    assert exe.inputs == ("x",)
    np.testing.assert_array_equal(exe(np.ones((2, 3), "float32")), 2 * np.ones((2, 3)))
    with pytest.raises(ModelError, match=r"'w' is bound to float64\[2,3\], not float32\[2,3\]"):
        tt.build(tt.IRModule.from_onnx(model), "numpy", params={"w": np.ones((2, 3))})


def test_an_executor_inside_the_tree_is_not_ignored():
    with pytest.raises(BackendError, match="@soc/a cannot be built: executor 'vm' runs code of TVM"):
        tt.build(tt.IRModule.from_onnx(DIGITS), "[soc=[a=numpy](executor=vm),b=numpy]")


@pytest.mark.parametrize("executor", ["graph", "vm"])
def test_the_executor_that_ignores_an_attribute_of_a_host_is_named(executor):
    with pytest.raises(BackendError, match=f"the {executor} executor, which runs the drivers of this host, does not"):
        tt.build(tt.IRModule.from_onnx(DIGITS), f"[a=numpy](host=c(march=armv7-a),executor={executor})")


@pytest.mark.parametrize(
    "target",
    [
        "[a=numpy,idle=[b=llvm](host=@b,executor=aot(unpacked-api=true),runtime=crt(system-lib=true))]",
        "[a=numpy,idle=[x=[b=numpy](executor=vm)](executor=graph(link-params=true))]",
        "[a=numpy,idle=opencl]",
        "[a=numpy,idle=c(workspace-byte-alignment=8)](host=@a)",
        "[a=numpy,idle=[b=numpy,c=numpy](runtime=processes)]",
    ],
)
def test_sites_without_operations_do_not_stop_a_build(target):
    x = digits()[0][:4]
    exe = tt.build(tt.IRModule.from_onnx(DIGITS), target)
    assert set(exe.backends.values()) == {"numpy"}
    assert exe(x).shape == (4, 10)


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("[a=numpy](executor=graph(link-params=true))", "executor attribute 'link-params' (true) of @. would be"),
        ("[s=[a=numpy](executor=graph(link-params=true))]", "remove it (--unset s/executor/link-params)"),
        ("llvm(libs=cblas)", "attribute 'libs' ([\"cblas\"]) of @. would be ignored: tvm does not honour it"),
        ("[s=[a=llvm(jit=orcjit)]]", "attribute 'jit' (orcjit) of @s/a would be ignored"),
        ("[a=onnxruntime](host=llvm(libs=cblas))", "attribute 'libs' ([\"cblas\"]) of @host would be ignored"),
        ("[a=onnxruntime,b=llvm(jit=mcjit)](host=@b)", "attribute 'jit' (mcjit) of @b would be ignored"),
        ("[a=onnxruntime](host=c(constants-byte-alignment=16))", "attribute 'constants-byte-alignment' (16) of @host"),
        ("onnxruntime(host=c(mcpu=cortex-m7))", "attribute 'mcpu' (cortex-m7) of @host would be ignored: the graph"),
        ("onnxruntime(target_device_type=2)", "attribute 'target_device_type' (2) of @. would be ignored: onnxruntime"),
        ("numpy(from_device=1)", "attribute 'from_device' (1) of @. would be ignored: numpy does not"),
        ("[a=numpy](libs=cudnn)", "attribute 'libs' ([\"cudnn\"]) of @. would be ignored: a composite does not"),
    ],
)
def test_an_attribute_that_nothing_honours_is_an_error_with_its_path(target, problem):
    with pytest.raises(BackendError) as caught:
        tt.build(tt.IRModule.from_onnx(DIGITS), target, allow_interpreter=True)
    assert problem in str(caught.value)


def test_default_values_and_descriptive_attributes_are_accepted():
    target = "[a=llvm(num-cores=4,clock-mhz=2000,model=mine,device=mine)](executor=graph(link-params=false))"
    assert tt.build(tt.IRModule.from_onnx(DIGITS), target).report()["backends"] == ["tvm"]


def test_arguments_that_would_be_ignored_are_errors():
    module = tt.IRModule.from_onnx(DIGITS)
    with pytest.raises(TargetError, match=r"policy .* needs a tuning log"):
        tt.build(module, "numpy", policy=Policy())
    with pytest.raises(TargetError, match="settings are given for 'b', which is not a leaf with operations;"):
        tt.build(module, "[a=onnxruntime,b=numpy]", settings={"b": {}})
    with pytest.raises(TargetError, match=r"kind 'numpy' has no attribute 'host'; .* \(in settings of ''\)"):
        tt.build(module, "numpy", settings={"": {"host": "llvm"}})
    config = tt.CompilationConfig("llvm", ["llvm", "cuda"], fallback_device="cuda")
    with pytest.raises(TargetError, match="fallback_device 'cuda' of the configuration would be ignored"):
        tt.build(module, config)


def test_a_pass_context_that_a_build_would_replace_is_an_error():
    tvm = pytest.importorskip("tvm")
    with (
        tvm.transform.PassContext(disabled_pass=["FuseOps"]),
        pytest.raises(BackendError, match=r"disabled_pass .*FuseOps.* of the PassContext around would be ignored"),
    ):
        tt.build(tt.IRModule.from_onnx(DIGITS), "llvm")
    with tvm.transform.PassContext(opt_level=3):
        assert tt.build(tt.IRModule.from_onnx(DIGITS), "llvm").report()["backends"] == ["tvm"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="is about code for x86-64")
def test_code_of_aot_that_any_x86_runs_is_noted_once_with_the_target_that_uses_this_cpu():
    pytest.importorskip("tvm")
    module = tt.specialize(tt.IRModule.from_onnx(DIGITS), {"batch": 1})
    aot = "executor=aot,runtime=crt(system-lib=true)"
    (note,) = tt.build(module, f"[a=llvm,b=llvm](host=@a,{aot})", where={"fc*": "@b"}).notes
    assert note.startswith("@a, @b: llvm without mcpu ")
    assert note.endswith("write 'llvm -mcpu=x86-64-v3', or build for Target.detect() ('native' on the command line)")
    assert tt.build(module, f"llvm(mcpu=x86-64-v3,{aot})").notes == ()
    assert tt.build(module, "llvm").notes == ()


@pytest.mark.parametrize("target", ["onnxruntime", "c", "llvm -mtriple=aarch64-linux-gnu", "llvm -mcpu=x86-64"])
def test_leaves_that_state_their_instructions_or_are_other_machines_are_not_any_x86(target):
    assert not is_any_x86(tt.Target.parse(target))


def test_a_device_without_a_code_generator_is_an_error():
    topology = Topology(tt.Target.parse("[gpu=opencl,cpu=llvm]").resolve())
    with pytest.raises(BackendError, match="@gpu cannot be compiled: no backend for kind 'opencl' is installed"):
        choose_backend(topology, "gpu", allow_interpreter=False)


def test_a_flat_configuration_is_accepted_as_a_target():
    """REQUIREMENTS M0: accepted wherever a Target is; the module remembers it."""
    config = tt.CompilationConfig("llvm", ["onnxruntime", "llvm"])
    module = tt.IRModule.from_onnx(DIGITS)
    x = digits()[0][:5]
    np.testing.assert_array_equal(tt.build(module, config)(x), tt.build(module.with_configuration(config))(x))
    assert module.with_configuration(config).configuration.host_target == tt.Target("llvm")


def test_two_hosts_are_an_error():
    with pytest.raises(TargetError, match="two hosts are given"):
        tt.build(tt.IRModule.from_onnx(DIGITS), "[a=numpy](host=llvm)", target_host="c")


def test_code_for_another_machine_compiles_but_does_not_run(tmp_path):
    exe = tt.build(tt.IRModule.from_onnx(DIGITS), "arm/rasp4b64")
    exe.save(tmp_path / "pi.tta")
    with pytest.raises(RunError, match="@cpu cannot run on this machine: mtriple aarch64-linux-gnu: it is "):
        exe(digits()[0])


ON_C = ("[a=onnxruntime,b=c]", {"op:Gemm": "@b"})


@pytest.fixture
def no_code_for_c(monkeypatch):
    """Hide the code generator of kind c."""
    monkeypatch.setattr(backend_choice, "backends", lambda kind: () if kind == "c" else backends(kind))


def four_digits():
    """Return the model of digits for batches of four, as kind c supports static shapes only."""
    return tt.specialize(tt.IRModule.from_onnx(DIGITS), {"batch": 4})


@pytest.mark.usefixtures("no_code_for_c")
def test_a_leaf_without_a_code_generator_is_an_error_unless_it_may_be_interpreted(tmp_path):
    target, where = ON_C
    with pytest.raises(
        BackendError, match=r"^@b cannot be compiled: no backend for kind 'c' .* allow_interpreter=True"
    ):
        tt.build(four_digits(), target, where=where)
    exe = tt.build(four_digits(), target, where=where, allow_interpreter=True)
    assert exe.notes == ("@b (c) is interpreted by numpy: no backend for kind 'c' is installed",)
    assert exe.report()["backends"] == ["numpy", "onnxruntime"]
    exe.save(tmp_path / "digits.tta")
    x = digits()[0][:4]
    np.testing.assert_array_equal(tt.load(tmp_path / "digits.tta")(x), exe(x))


@pytest.mark.usefixtures("no_code_for_c")
def test_a_saved_program_is_interpreted_only_if_its_build_allowed_that(tmp_path):
    target, where = ON_C
    exe = tt.build(four_digits(), target, where=where, allow_interpreter=True)
    exe.save(tmp_path / "digits.tta")
    manifest, files = read_files(tmp_path / "digits.tta")
    facts = {name: value for name, value in manifest.items() if name not in ("format", "schema", "files")}
    write_files(tmp_path / "forged.tta", files, **{**facts, "allow_interpreter": False})
    with pytest.raises(ArtifactError, match="interprets @b, but was not built with allow_interpreter"):
        tt.load(tmp_path / "forged.tta")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("micro/stm32f746xx", "mcpu cortex-m7: that is arm"),
        ("c(march=armv7e-m)", "that is arm"),
        ("c(mcpu=future-chip,unchecked=mcpu)", "its features are not known"),
        ("[x=[soc=c(mcpu=cortex-m4)]]", "@x/soc cannot be compiled"),
        ("c(device=arm_cpu)", "this is no Arm CPU"),
    ],
)
@pytest.mark.usefixtures("no_code_for_c")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the targets are foreign to x86")
def test_a_leaf_that_describes_another_machine_is_never_interpreted(target, reason):
    for allowed in (False, True):
        with pytest.raises(BackendError, match=f"{reason}(?s:.*)(install a code generator|build for this machine)"):
            tt.build(four_digits(), target, allow_interpreter=allowed)


def test_kinds_of_other_hardware_are_never_interpreted():
    reasons = {
        "ethos-u(accelerator-config=ethos-u55-256)": "kind 'ethos-u' runs on an Arm Ethos-U NPU",
        "mrvl": "kind 'mrvl' runs on a Marvell MLIP accelerator",
        "opencl": "it is a device of type 'opencl', not a CPU",
        "hexagon": "it is a device of type 'hexagon', not a CPU",
    }
    assert {text: interpreter_mismatch(tt.Target.parse(text)) for text in reasons} == reasons


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the targets are foreign to x86")
def test_without_tvm_an_llvm_leaf_is_interpreted_only_for_this_machine(monkeypatch):
    def missing(_):
        raise MissingExtraError("apache-tvm", "tvm")

    monkeypatch.setattr(type(backend_named("tvm")), "version", missing)
    module, x = tt.IRModule.from_onnx(DIGITS), digits()[0][:4]
    with pytest.raises(BackendError, match=r"'apache-tvm' is not installed; .*tvmtarget\[tvm\].*--allow-interpreter"):
        tt.build(module, "llvm")
    np.testing.assert_allclose(
        tt.build(module, "llvm", allow_interpreter=True)(x), tt.build(module, "numpy")(x), rtol=1e-5
    )
    for target in ("llvm(mcpu=cortex-a72)", "llvm(mtriple=aarch64-linux-gnu)", "llvm(mfloat-abi=hard)"):
        with pytest.raises(BackendError, match="describes another machine"):
            tt.build(module, target, allow_interpreter=True)


def test_progress_is_reported():
    steps = []
    exe = tt.build(tt.IRModule.from_onnx(DIGITS), FLAT, progress=lambda *step: steps.append(step))
    (name,) = exe.backends
    assert steps == [(f"compile {name} for @a", 0, 1), ("compiled", 1, 1)]


def test_a_program_is_accepted_in_every_form():
    x = np.load(EXAMPLES / "digits.npz")["input"][:4]
    expected = tt.build(tt.IRModule.from_onnx(DIGITS), "onnxruntime")(x)
    for program in (DIGITS, str(DIGITS), DIGITS.read_bytes(), onnx.load(DIGITS)):
        np.testing.assert_array_equal(tt.build(program, "onnxruntime")(x), expected)
        assert len(tt.decompose(program, "onnxruntime").subgraphs) == 1
    with pytest.raises(ModelError, match=r"int is not a tvm\.IRModule"):
        tt.build(3, "onnxruntime")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the texts are those of x86")
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("onnxruntime(host=llvm(mtriple=aarch64-linux-gnu))", "mtriple aarch64-linux-gnu: it is x86_64-linux-gnu"),
        ("[a=onnxruntime,b=llvm(mcpu=cortex-a72)](host=@b)", "mcpu cortex-a72: that is aarch64, and this is x86"),
        ("[s=[a=numpy](host=c(model=stm32f746xx))]", "model 'stm32f746xx' names another machine"),
        ("numpy(host=hexagon)", "it is a device of type 'hexagon', not a CPU"),
    ],
)
def test_a_program_whose_host_is_another_machine_does_not_run_here(target, message):
    exe = tt.build(DIGITS, target)
    with pytest.raises(RunError, match=f"its host is another machine: {re.escape(message)}"):
        exe(digits()[0])


def test_flat_json_is_accepted_as_a_target():
    x, _ = digits()
    exe = tt.build(DIGITS, {"kind": "composite", "targets": [{"kind": "onnxruntime"}, {"kind": "llvm"}]})
    assert exe.target == tt.Target.parse("[onnxruntime,llvm](executor=graph,runtime=python)").resolve()
    np.testing.assert_array_equal(exe(x), tt.build(DIGITS, "[onnxruntime,llvm]")(x))
