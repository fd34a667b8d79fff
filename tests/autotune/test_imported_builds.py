"""What TVM's own MetaSchedule measured serves a build, and goes out to TVM and comes back as it was."""

import base64
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from logs import ran
from models import small
from onnx import helper
from typer.testing import CliRunner

import tvmtarget as tt
from tvmtarget.autotune.log.importers.metaschedule import RECORDS, WORKLOADS, export_metaschedule, import_metaschedule
from tvmtarget.autotune.log.records import Candidate, Trial
from tvmtarget.cli.main import app
from tvmtarget.errors import LogError

tvm = pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")

from tvm.relax.frontend.onnx import from_onnx  # noqa: E402
from tvm.s_tir import meta_schedule as ms  # noqa: E402

from tvmtarget.backends.tvm.traces import TRACE_FORMAT, check_trace  # noqa: E402

ROOT = Path(__file__).parents[2]
CPU = tt.Target.parse("llvm(num-cores=2,l2-cache-bytes=1048576)")
SPELLED = tt.Target.parse(
    '{"kind": "llvm", "num-cores": 2, "l2-cache-bytes": 1048576, "opt-level": 2, "tag": "my/box"}'
)
ROWS, COLUMNS = 64, 96


def largest():
    """Return a model that takes the largest of each row, for which the default schedule has no register block."""
    return small(helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=0), shape=(ROWS, COLUMNS))


def product():
    weights = np.random.default_rng(0).standard_normal((32, 32)).astype("float32")
    return small(helper.make_node("MatMul", ["x", "w"], ["y"]), shape=(32, 32), w=weights)


def tasks(model):
    """Return the programs that MetaSchedule would tune of a model."""
    module = tvm.relax.get_pipeline("zero")(from_onnx(model))
    return [task.dispatched[0] for task in ms.relax_integration.extract_tasks(module, CPU.to_tvm().load())]


def split(program, factor):
    """Return a schedule of a program of which the outermost loop is split."""
    schedule = tvm.s_tir.Schedule(program)
    (block,) = [name for name in ("matmul", "x_red") if name in program.script()]
    loops = schedule.get_loops(schedule.get_sblock(block))
    schedule.split(loops[0], [None, factor])
    return schedule


def database(folder, programs, target=CPU, factors=(8,)):
    """Have TVM write a database in which a smaller factor is recorded as faster."""
    folder.mkdir()
    written = ms.database.JSONDatabase(work_dir=str(folder))
    for program in programs:
        for factor in factors:
            trace = split(program, factor).trace
            workload = written.commit_workload(program)
            arguments = ms.arg_info.ArgInfo.from_prim_func(program["main"])
            record = ms.database.TuningRecord(trace, workload, [1e-6 * factor], target.to_tvm().load(), arguments)
            written.commit_tuning_record(record)
    return folder


def kernel_of(model, target, log, **options):
    (kernel,) = [one for one in tt.build(model, target, log=log, **options).tuned if one.level == "kernel"]
    return kernel


def test_records_of_metaschedule_are_those_of_the_kernels_of_a_build(tmp_path):
    """Weights are constants of a build's kernel and arguments of MetaSchedule's program; the trace is the same."""
    model = tt.IRModule.from_onnx(product())
    (program,) = tasks(product())
    named = tvm.IRModule({"main": program["main"].with_attr({"global_symbol": "other", "op_pattern": 4})})
    folder = database(tmp_path / "db", [program, named], factors=(4, 8))
    log = tt.TuningLog(tmp_path / "log.db")
    import_metaschedule(log, folder, targets=[CPU])
    assert [workload.payload["name"] for workload in log.workloads()] == ["matmul"]
    for target, tier in ((CPU, "exact"), (SPELLED, "equal")):
        kernel = kernel_of(model, target, log)
        assert (kernel.tier, kernel.format, kernel.is_used) == (tier, TRACE_FORMAT, True)
        assert '"None",4]' in kernel.body
    x = np.random.default_rng(1).standard_normal(model.main.params[0].type.shape).astype("float32")  # type: ignore[attr-defined]
    np.testing.assert_allclose(tt.build(model, CPU, log=log)(x), tt.build(model, CPU)(x), rtol=1e-4, atol=1e-4)
    assert not kernel_of(model, CPU.override({"mcpu": "nehalem"}), log).is_used


def test_an_import_takes_what_tvm_leaves_out_from_the_named_targets(tmp_path):
    folder = database(tmp_path / "db", tasks(largest()))
    model, log, path = tt.IRModule.from_onnx(largest()), tt.TuningLog("memory:"), tmp_path / "log.db"
    import_metaschedule(log, folder)
    assert kernel_of(model, CPU, log).tier == "default"
    command = ["log", "import", str(path), str(folder), "--target", str(CPU)]
    assert "4 records new, 0 lines rejected" in CliRunner().invoke(app, command).output
    assert kernel_of(model, CPU, path).tier == "exact"
    same, system = CPU.override({"l2-cache-bytes": 2 * 1048576}), tt.Target.parse("[a=llvm,b=cuda](host=@a)")
    with pytest.raises(LogError, match=r"TVM writes .* the same way; name one of them"):
        import_metaschedule(log, folder, targets=[CPU, same])
    with pytest.raises(LogError, match="measure on one device; name a leaf of"):
        import_metaschedule(log, folder, targets=[system])


def trials(log):
    return {record.digest for record in log if isinstance(record, Trial)}


def test_what_goes_out_to_tvm_and_is_written_by_it_comes_back_as_it_was(tmp_path):
    """Of records that came from TVM all is as it was; what else a record of ours says, TVM cannot hold."""
    log = tt.TuningLog("memory:")
    import_metaschedule(log, database(tmp_path / "db", [*tasks(largest()), *tasks(product())]), targets=[CPU])
    (folder,) = export_metaschedule(log, tmp_path / "out").values()
    assert import_metaschedule(log, folder, targets=[CPU]).added == 0
    read, again = ms.database.JSONDatabase(work_dir=str(folder)), tmp_path / "again"
    again.mkdir()
    written = ms.database.JSONDatabase(work_dir=str(again))
    for record in read.get_all_tuning_records():
        written.commit_workload(record.workload.mod)
        written.commit_tuning_record(record)
    back = tt.TuningLog("memory:")
    import_metaschedule(back, again, targets=[CPU])
    assert trials(back) == trials(log)
    assert len(trials(back)) == 2


def test_p8_a_record_that_does_not_fit_a_kernel_is_reported_and_the_next_best_is_built(tmp_path):
    model, log = tt.IRModule.from_onnx(largest()), tt.TuningLog("memory:")
    import_metaschedule(log, database(tmp_path / "db", tasks(largest())), targets=[CPU])
    (good,) = [record for record in log if isinstance(record, Trial)]
    body = good.candidate.body
    wrong = [
        Candidate(format="another/1", body=body),
        Candidate(format="tvmtarget.cpu-tiles/1", body={"blocks": "none"}),
        Candidate(format=TRACE_FORMAT, body=body.replace('"x_red"', '"y_red"')),  # type: ignore[attr-defined]
        Candidate(format=TRACE_FORMAT, body=body.replace('"None",8]', '"None",0]')),  # type: ignore[attr-defined]
        Candidate(format=TRACE_FORMAT, body="[" * 100_000),
    ]
    for at, candidate in enumerate(wrong, 1):
        log.append(good.replace(candidate=candidate, measured=ran(at)))
    kernel = kernel_of(model, CPU, log)
    assert (kernel.record, kernel.is_used, kernel.calls) == (good.digest, True, 1)
    log.retract(good.digest, "so that nothing fits")
    kernel = kernel_of(model, CPU, log)
    assert (kernel.tier, kernel.is_used, kernel.calls) == ("exact", False, 1)
    assert "the trace does not fit" in kernel.note


def test_a_program_that_ends_tvm_costs_itself_alone(tmp_path):
    """TVM reads damaged programs for good or ends the process; what it cannot read is known by its bytes."""
    folder = database(tmp_path / "db", [*tasks(largest()), *tasks(product())])
    lines, rng = (folder / WORKLOADS).read_text().splitlines(), random.Random(1)
    name, encoded = json.loads(lines[0])
    program = base64.b64decode(encoded)
    damaged = []
    for _ in range(12):
        bytes_ = bytearray(program)
        digits = [at for at, byte in enumerate(program) if chr(byte).isdigit()]
        bytes_[rng.choice(digits)] = ord(rng.choice("0123456789"))
        damaged.append(json.dumps([name, base64.b64encode(bytes_).decode()]))
    (folder / WORKLOADS).write_text("\n".join([*damaged, *lines]))
    records = [json.loads(line) for line in (folder / RECORDS).read_text().splitlines()]
    moved = [json.dumps([at + len(damaged), rest]) for at, rest in records]
    (folder / RECORDS).write_text("\n".join(moved))
    log = tt.TuningLog("memory:")
    assert import_metaschedule(log, folder, targets=[CPU]).rejected == ()
    assert kernel_of(tt.IRModule.from_onnx(product()), CPU, log).is_used


@pytest.mark.parametrize(
    "trace",
    [
        "",
        "[]",
        "[[],{}]",
        "[[[]],[]]",
        '[[["GetSBlock",[],["C",null],["b0"]]],[]]',
        '[[["Split",["l0",0,4],[1,0],["l1","l2"]]],[]]',
        '[[["SamplePerfectTile",["l0"],[2,64],["v1","v2"]]],[[0,[0,4]]]]',
        '[[["SamplePerfectTile",["l0"],[2,64],["v1","v2"]]],[[1,[4,4]]]]',
        '[[["SamplePerfectTile",["l0"],[2,64],["v1","v2"]]],[[0,[2147483648,4]]]]',
        '[[["SampleCategorical",[],[[0,16],[0.5,null]],["v1"]]],[[0,1]]]',
        '[[["SampleCategorical",[],[[0,16],[0.5,0.5]],["v1"]]],[[0,true]]]',
    ],
)
def test_what_would_end_tvm_is_no_trace(trace):
    with pytest.raises(ValueError, match="the trace does not fit: "):
        check_trace(trace)


TUNE = """
import sys
import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.relax.frontend.onnx import from_onnx
import onnx
from tvmtarget import Target
from tvmtarget.backends.tvm.traces import _register_intrinsics

_register_intrinsics(())  # TVM would register those of all devices, for 11 s

@tvm.ir.utils.derived_object
class Builder(ms.builder.PyBuilder):  # TVM's own would do so in each of its processes
    def build(self, inputs):
        from tvm.s_tir.meta_schedule.builder.local_builder import default_build, default_export
        results = []
        for one in inputs:
            try:
                results.append(ms.builder.BuilderResult(default_export(default_build(one.mod, one.target, None)), None))
            except Exception as error:
                results.append(ms.builder.BuilderResult(None, repr(error)))
        return results

model, folder, target = sys.argv[1:]
module = tvm.relax.get_pipeline("zero")(from_onnx(onnx.load(model)))
options = {"strategy": "replay-trace", "cost_model": "random", "builder": Builder(), "seed": 1}
ms.relax_integration.tune_relax(module, {}, Target.parse(target).to_tvm().load(), folder, 8, **options)
"""


@pytest.mark.slow
def test_p14_what_tvm_itself_tuned_is_imported_and_serves_a_build(tmp_path, record_property):
    """How much faster that is, by turns, is up to the few candidates that TVM measured on a busy machine."""
    import onnx

    model = small(helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=0), shape=(512, 768))
    onnx.save(model, tmp_path / "model.onnx")
    target, folder = "llvm(num-cores=1)", tmp_path / "db"
    command = [sys.executable, "-c", TUNE, str(tmp_path / "model.onnx"), str(folder), target]
    folder.mkdir()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert (folder / RECORDS).exists(), done.stderr[-2000:]
    command = ["log", "import", str(tmp_path / "log.db"), str(folder), "--target", target]
    assert CliRunner().invoke(app, command).exit_code == 0
    module = tt.IRModule.from_onnx(model)
    exe, plain = tt.build(module, target, log=tmp_path / "log.db"), tt.build(module, target)
    assert [(one.tier, one.is_used) for one in exe.tuned if one.level == "kernel"] == [("exact", True)]
    x = np.random.default_rng(1).standard_normal((512, 768)).astype("float32")
    np.testing.assert_array_equal(exe(x), plain(x))

    def taken(program):
        begin = time.process_time()
        for _ in range(100):
            program(x)
        return time.process_time() - begin

    ratio = median(taken(plain) / taken(exe) for _ in range(9))
    record_property("times as fast as the default", round(ratio, 2))
