"""Records of tuning logs from strangers: candidates are data from closed lists, at every door."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import small
from onnx import helper

import tvmtarget as tt
from tvmtarget.artifact import read_files, write_files
from tvmtarget.autotune.log.importers.metaschedule import RECORDS, WORKLOADS, import_metaschedule
from tvmtarget.autotune.log.match import Policy
from tvmtarget.autotune.log.records import Candidate, Measurement
from tvmtarget.backends.protocol import CompileRequest, backend_named
from tvmtarget.building.tuned_schedules import (
    PLACEMENT,
    SETTINGS,
    kernel_target,
    kernel_workload,
    lookup_kernel,
    program_workload,
)
from tvmtarget.errors import ArtifactError
from tvmtarget.ir.traces import TRACE_FORMAT, trace_problem

tvm = pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")

from tvmtarget.autotune.search.metaschedule import LogDatabase  # noqa: E402
from tvmtarget.backends.tvm.traces import (  # noqa: E402
    TILES_FORMAT,
    applied,
    propose,
)

CPU = tt.Target.parse("llvm(num-cores=2)")
LOOPS = [["GetSBlock", [], ["matmul", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]]


def model():
    weights = np.random.default_rng(0).standard_normal((16, 16)).astype("float32")
    return small(helper.make_node("MatMul", ["x", "w"], ["y"]), shape=(8, 16), w=weights)


@pytest.fixture(scope="module")
def workshop():
    return backend_named("tvm").tuning_context(CompileRequest("main", model().SerializeToString(), "", CPU))


@pytest.fixture(scope="module")
def kernel(workshop):
    (space,) = workshop.spaces.values()
    return space.kernel


@pytest.fixture
def code(tmp_path):
    """Return LLVM IR that leaves a mark where it runs: a `memset` of its own, which calls `system`."""
    command = f"touch {tmp_path}/mark"
    text = f"{command}\\00"
    size = len(command) + 1
    return f"""
@text = private constant [{size} x i8] c"{text}"
declare i32 @system(i8*)
define i8* @memset(i8* %p, i32 %c, i64 %n) {{
  %r = call i32 @system(i8* getelementptr ([{size} x i8], [{size} x i8]* @text, i64 0, i64 0))
  ret i8* %p
}}
"""


def hostile(code):
    """Return traces that hold code, files or texts for a compiler, by what they do."""
    quoted = f'"{code}"'  # as TVM reads it: without the quotes, and nothing unescaped
    annotated = {
        "code for a loop": ["Annotate", ["l1", quoted], ["pragma_import_llvm"], []],
        "code for a loop as it is": ["Annotate", ["l1", code], ["pragma_import_llvm"], []],
        "code for a block": ["Annotate", ["b0", quoted], ["pragma_import_llvm"], []],
        "C code": ["Annotate", ["l1", quoted], ["pragma_import_c"], []],
        "another pragma": ["Annotate", ["l1", 1], ["pragma_debug_skip_subgraph"], []],
        "code for a key that is known": ["Annotate", ["l1", quoted], ["pragma_unroll_explicit"], []],
        "code in a list": ["Annotate", ["l1", [quoted]], ["software_pipeline_stage"], []],
        "code in a map": ["Annotate", ["l1", {"pragma_import_llvm": quoted}], ["pragma_unroll_explicit"], []],
        "an attribute of functions": ["Annotate", ["b0", quoted], ["global_symbol"], []],
        "a rule": ["Annotate", ["b0", quoted], ["schedule_rule"], []],
        "a tensor intrinsic": ["Tensorize", ["b0"], ["system", True], []],
        "a scope": ["SetScope", ["b0"], [0, code], []],
        "a thread": ["Bind", ["l1"], [code], []],
        "an index map": ["TransformLayout", ["b0"], [0, 1, quoted, None, True], []],
        "a layout of a block": ["TransformBlockLayout", ["b0"], [quoted], []],
        "a cache by an index map": ["ReindexCacheRead", ["b0", quoted], [0, "global"], ["b9"]],
        "hidden accesses": ["UnsafeHideBufferAccess", ["b0"], ["read", [0]], []],
        "another type": ["UnsafeSetDType", ["b0"], [0, "int8"], []],
        "other accesses": ["AnnotateBufferAccess", ["b0"], [0, "read", quoted], []],
        "a number beyond 2**31": ["Split", ["l1", "None", 2**31], [True, False], ["l8", "l9"]],
        "a number beyond 2**63": ["Split", ["l1", "None", 2**63], [True, False], ["l8", "l9"]],
        "no number": ["Split", ["l1", "None", True], [True, False], ["l8", "l9"]],
        "a pragma with a long loop": ["Annotate", ["l1", 2**30], ["pragma_auto_unroll_max_step"], []],
        "something unknown": ["RunThis", [], [code], []],
    }
    found = {name: [[*LOOPS, one], []] for name, one in annotated.items()}
    found["a decision of code"] = [[*LOOPS, ["SamplePerfectTile", ["l1"], [2, 64], ["v4", "v5"]]], [[2, [1, code]]]]
    found["a decision out of bounds"] = [[*LOOPS, ["SampleCategorical", [], [[0], [1.0]], ["v4"]]], [[2, 1]]]
    found["after the postprocessors"] = [[*LOOPS, ["EnterPostproc", [], [], []], annotated["code for a loop"]], []]
    return found


NAMES = sorted(hostile(""))


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_that_holds_more_than_choices_is_refused_with_the_place(name, code, workshop, kernel, tmp_path):
    """By the check itself, where it is applied, and by a build whose log has nothing else."""
    trace = json.dumps(hostile(code)[name])
    assert trace_problem(trace).startswith(("instruction ", "decision "))
    with pytest.raises(ValueError, match=r"the trace does not fit: (instruction|decision) "):
        applied(workshop._functions[kernel.key][0], trace)
    log = tt.TuningLog("memory:")
    log.add(kernel_workload(kernel), kernel_target(CPU), Candidate(format=TRACE_FORMAT, body=trace), ran(1))
    match = lookup_kernel(log, kernel, CPU, Policy())
    assert match.candidate is None
    assert "may not be applied" in match.explain()
    assert not (tmp_path / "mark").exists()


def ran(cost):
    return Measurement(status="ok", costs=[cost])


def test_a_build_by_a_log_of_a_stranger_runs_no_code_of_it(code, kernel, tmp_path):
    log = tt.TuningLog("memory:")
    for trace in hostile(code).values():
        log.add(
            kernel_workload(kernel), kernel_target(CPU), Candidate(format=TRACE_FORMAT, body=json.dumps(trace)), ran(1)
        )
        log.pin(
            kernel_workload(kernel), kernel_target(CPU), Candidate(format=TRACE_FORMAT, body=json.dumps(trace)), "best"
        )
    exe = tt.build(tt.IRModule.from_onnx(model()), CPU, log=log)
    x = np.ones((8, 16), "float32")
    np.testing.assert_allclose(exe(x), tt.build(tt.IRModule.from_onnx(model()), "numpy")(x), rtol=1e-4)
    (applied_,) = (one for one in exe.tuned if one.level == "kernel")
    assert not applied_.is_used
    result = tt.tune(tt.IRModule.from_onnx(model()), CPU, log=log, trials=2, levels=["kernel"], space="metaschedule")
    assert result.measured >= 1
    assert not (tmp_path / "mark").exists()


def test_a_database_of_a_stranger_is_not_imported(code, workshop, kernel, tmp_path):
    """Each record is rejected with its line and the instruction; TVM's own tools are served none either."""
    program = workshop.program(kernel.key)
    (tmp_path / WORKLOADS).write_text(json.dumps([program["hash"], program["b64"]]))
    target = {"kind": "llvm", "num-cores": 2}
    lines = [json.dumps([0, [trace, [1e-9], target, []]]) for trace in hostile(code).values()]
    (tmp_path / RECORDS).write_text("\n".join(lines))
    log = tt.TuningLog("memory:")
    outcome = import_metaschedule(log, tmp_path, targets=[CPU])
    assert [line.number for line in outcome.rejected] == list(range(1, len(lines) + 1))
    assert all("its trace may not be applied: " in line.problem for line in outcome.rejected)
    for trace in hostile(code).values():
        log.add(
            kernel_workload(kernel), kernel_target(CPU), Candidate(format=TRACE_FORMAT, body=json.dumps(trace)), ran(1)
        )
    module = tvm.IRModule({"main": workshop._functions[kernel.key][0].with_attr("global_symbol", "main")})
    assert LogDatabase(log, CPU).query_schedule(module, CPU.to_tvm().load(), "main") is None


def test_schedules_of_an_artifact_pass_the_same_door(code, kernel, tmp_path):
    good, bad = tmp_path / "good.tta", tmp_path / "bad.tta"
    log = tt.TuningLog("memory:")
    trace = json.dumps([[*LOOPS, ["Split", ["l1", "None", 4], [True, False], ["l4", "l5"]]], []])
    log.pin(kernel_workload(kernel), kernel_target(CPU), Candidate(format=TRACE_FORMAT, body=trace), "for a test")
    tt.build(tt.IRModule.from_onnx(model()), CPU, log=log).save(good)
    for trace in hostile(code).values():
        manifest, files = read_files(good)
        (tuned,) = (one for leaf in manifest["leaves"] for one in leaf["tuned"])
        tuned["body"] = json.dumps(trace)
        facts = {name: value for name, value in manifest.items() if name not in ("format", "schema", "files")}
        write_files(bad, files, **facts)
        message = r"bad\.tta.*the schedule of kernel matmul\[8,16\] .*may not be applied"
        with pytest.raises(ArtifactError, match=message):
            tt.load(bad)
    assert not (tmp_path / "mark").exists()


def test_what_metaschedule_proposes_is_legal(workshop, kernel):
    for target in (CPU, "llvm(num-cores=2,mcpu=cascadelake)"):
        traces = propose(workshop._functions[kernel.key][0], tt.Target.parse(str(target)).to_tvm().load(), [], 4, 0)
        assert traces
        assert [trace_problem(trace) for trace in traces] == [None] * len(traces)


@pytest.mark.parametrize(
    "change",
    [
        {"lanes": 0}, {"lanes": -4}, {"vectors": 0}, {"rows": 0}, {"unroll": 0}, {"unroll": 16}, {"order": 2},
        {"tasks": -1}, {"tasks": 2**40}, {"axis": 7}, {"inner": 0}, {"row_axis": 2**40},
    ],
)  # fmt: skip
def test_register_blocks_are_numbers_within_bounds(workshop, kernel, change):
    (space,) = workshop.spaces.values()
    (block,) = space.default
    assert workshop.is_legal(kernel.key, [block])
    assert not workshop.is_legal(kernel.key, [block | change])
    log = tt.TuningLog("memory:")
    log.pin(
        kernel_workload(kernel),
        kernel_target(CPU),
        Candidate(format=TILES_FORMAT, body={"blocks": [block | change]}),
        "x",
    )
    (applied_,) = (one for one in tt.build(model(), CPU, log=log).tuned if one.level == "kernel")
    assert not applied_.is_used


TREE = tt.Target.parse("[a=onnxruntime,b=numpy](host=@b)")


@pytest.mark.parametrize(
    ("level", "format_", "body"),
    [
        ("executor", SETTINGS, {"set": [["a", "intra-op-threads", 10**6]]}),
        ("executor", SETTINGS, {"set": [["a", "intra-op-threads", True]]}),
        ("executor", SETTINGS, {"set": [["a", "optimization-level", "1"]]}),
        ("executor", SETTINGS, {"set": [["b", "mcpu", "x"]]}),
        ("executor", SETTINGS, {"set": [["c", "intra-op-threads", 1]]}),
        ("graph", PLACEMENT, {"sites": [["a", 2**50]]}),
        ("graph", PLACEMENT, {"sites": [["a", 2], ["b", -1]]}),
        ("graph", PLACEMENT, {"sites": [["a", "1"]]}),
        ("graph", PLACEMENT, {"sites": [["../a", 1]]}),
    ],
)
def test_placements_and_settings_are_choices_that_a_tuner_has(level, format_, body):
    pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")
    plan, log = tt.decompose(tt.IRModule.from_onnx(model()), TREE), tt.TuningLog("memory:")
    log.pin(program_workload(plan, level), plan.topology.root, Candidate(format=format_, body=body), "mine")
    (applied_,) = (one for one in tt.build(model(), TREE, log=log).tuned if one.level == level)
    assert not applied_.is_used


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.sampled_from(["b0", "Annotate", "Split"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=12,
)


@given(JSON)
def test_any_data_is_a_trace_or_is_refused(data):
    for trace in (data, [[*LOOPS, data], []], [LOOPS, [data]], [LOOPS, data]):
        assert isinstance(trace_problem(trace), str | None)
