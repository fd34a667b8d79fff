"""Kernels are tuned into a log, and a new process builds the program from it: the loop from end to end."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from models import small
from onnx import helper

import tvmtarget as tt
from tvmtarget.autotune.log.match import Policy
from tvmtarget.autotune.log.records import Measurement, Trial
from tvmtarget.autotune.search.candidates import BlockSearch
from tvmtarget.autotune.search.kernels import KernelTuner
from tvmtarget.autotune.search.measuring import Worker
from tvmtarget.autotune.search.process import Limits
from tvmtarget.autotune.search.result import Budget
from tvmtarget.backends.protocol import CompileRequest
from tvmtarget.building.tuned_schedules import kernel_target

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")

NATIVE = tt.Target.parse("llvm(num-cores=2)")


def convolution(seed=0):
    weights = np.random.default_rng(seed).standard_normal((64, 24, 3, 3)).astype("float32")
    nodes = helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4), helper.make_node("Relu", ["c"], ["y"])
    return small(*nodes, shape=(1, 24, 19, 19), w=weights)


def kernel_trials(log):
    return [record for record in log if isinstance(record, Trial) and record.level == "kernel"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Return the URL of a log in which a convolution was tuned, and the result."""
    url = str(tmp_path_factory.mktemp("tuned") / "log.db")
    module = tt.IRModule.from_onnx(convolution())
    return url, tt.tune(module, NATIVE, log=url, trials=5, levels=["kernel"])


BUILD = """
import json, sys, time
import numpy as np
import tvmtarget as tt

module = tt.IRModule.from_onnx(sys.argv[1])
x = np.load(sys.argv[2])
plain = tt.build(module, sys.argv[4])
exe = tt.build(module, sys.argv[4], log=sys.argv[3])
error = float(np.abs(exe(x) - plain(x)).max())


def seconds(run):
    begin = time.process_time()
    for _ in range(20):
        run(x)
    return time.process_time() - begin


turns = [[seconds(run) for run in (plain, exe)] for _ in range(9)]
ratio = float(np.median([before / after for before, after in turns]))
print(json.dumps({"tuned": exe.report()["tuned"], "error": error, "ratio": ratio}))
"""


def built_elsewhere(model, shape, target, url, folder):
    """Return the kernel that a new process builds of a model by a log, and how many times as fast that makes it."""
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    np.save(folder / "x.npy", np.random.default_rng(1).standard_normal(shape).astype("float32"))
    arguments = [str(folder / "m.onnx"), str(folder / "x.npy"), url, str(target)]
    done = subprocess.run([sys.executable, "-c", BUILD, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["error"] < 1e-3
    (kernel,) = [applied for applied in found["tuned"] if applied["level"] == "kernel"]
    return kernel, found["ratio"]


def test_what_was_tuned_is_found_built_and_right_in_a_new_process(tuned, tmp_path):
    url, result = tuned
    kernel, _ = built_elsewhere(convolution(), (1, 24, 19, 19), NATIVE, url, tmp_path)
    assert kernel["tier"] == "exact"
    assert result.measured == 5


@pytest.mark.slow
def test_a_kernel_with_a_poor_default_is_faster_in_a_new_process_as_the_log_says(
    tmp_path, monkeypatch, record_property
):
    """On one thread, by time of the processor: what other processes do is in neither.

    Traces of TVM are faster than what the static model makes of means of short rows.
    """
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    rows = small(helper.make_node("ReduceMean", ["x"], ["y"], axes=[1]), shape=(32_000, 7))
    target, url = NATIVE.override({"num-cores": 1}), str(tmp_path / "log.db")
    result = tt.tune(tt.IRModule.from_onnx(rows), target, log=url, trials=8, levels=["kernel"])
    (finding,) = result.findings
    assert finding.is_confirmed
    kernel, ratio = built_elsewhere(rows, (32_000, 7), target, url, tmp_path)
    record_property("times as fast", ratio)
    record_property("times as fast by the log", 1 / kernel["ratio"])
    assert (kernel["tier"], kernel["format"]) == ("exact", "tvm.ms.trace/1")
    assert ratio > 1


def test_another_spelling_of_the_target_is_equal_and_another_instruction_set_is_not_used(tuned):
    url, _ = tuned
    module = tt.IRModule.from_onnx(convolution())
    spelled = tt.Target.parse('{"kind": "llvm", "num-cores": 2, "opt-level": 2, "tag": "my/box"}')
    assert [applied.tier for applied in tt.build(module, spelled, log=url).tuned if applied.level == "kernel"] == [
        "equal"
    ]
    older = tt.build(module, "llvm(num-cores=2,mcpu=nehalem)", log=url)
    assert [applied.tier for applied in older.tuned if applied.level == "kernel"] == ["default"]


def test_a_near_device_is_used_only_if_the_policy_allows_it_and_reports_its_distance(tuned):
    url, _ = tuned
    module = tt.IRModule.from_onnx(convolution())
    more = tt.Target.parse("llvm(num-cores=4)")
    exe = tt.build(module, more, log=url, policy=Policy())
    assert [applied.tier for applied in exe.tuned if applied.level == "kernel"] == ["near"]
    with tt.TuningLog(url) as log:
        workload = next(found for found in log.workloads() if found.level == "kernel")
        assert "num-cores 2 -> 4" in log.lookup(workload, kernel_target(more)).explain()


def test_the_weights_do_not_matter(tuned):
    url, _ = tuned
    exe = tt.build(tt.IRModule.from_onnx(convolution(seed=7)), NATIVE, log=url)
    assert [applied.tier for applied in exe.tuned if applied.level == "kernel"] == ["exact"]


def test_a_saved_program_keeps_its_schedules(tuned, tmp_path):
    url, _ = tuned
    exe = tt.build(tt.IRModule.from_onnx(convolution()), NATIVE, log=url)
    exe.save(tmp_path / "p.tta")
    loaded = tt.load(tmp_path / "p.tta")
    assert loaded.tuned == exe.tuned
    x = np.ones((1, 24, 19, 19), "float32")
    np.testing.assert_allclose(loaded(x), exe(x), rtol=1e-4, atol=1e-4)


def test_a_build_by_the_log_repeats_no_function_of_which_the_log_says_what_it_said(tuned):
    url, _ = tuned
    module, log = tt.IRModule.from_onnx(convolution()), tt.TuningLog("memory:")
    with tt.TuningLog(url) as known:
        log.merge(known)
    exe = tt.build(module, NATIVE, log=log)
    again = tt.build(module, NATIVE, log=log, since=exe)
    (leaf,), (same,) = exe._leaves.values(), again._leaves.values()
    assert same.compiled is leaf.compiled
    assert again.tuned == exe.tuned
    workload = next(found for found in log.workloads() if found.level == "kernel")
    used = [applied.body for applied in exe.tuned if applied.level == "kernel"]
    other = next(trial.candidate for trial in kernel_trials(log) if trial.candidate.body not in used)
    log.pin(workload, kernel_target(NATIVE), other, "another one")
    (changed,) = tt.build(module, NATIVE, log=log, since=exe)._leaves.values()
    assert changed.compiled is not leaf.compiled


def test_tuning_again_measures_no_candidate_twice(tuned):
    url, _ = tuned
    with tt.TuningLog(url) as log:
        known = [trial.candidate.key for trial in kernel_trials(log) if trial.measured.kind == "search"]
        again = tt.tune(tt.IRModule.from_onnx(convolution()), NATIVE, log=log, trials=1, levels=["kernel"])
        every = [trial.candidate.key for trial in kernel_trials(log) if trial.measured.kind == "search"]
    assert again.reused == len(known)
    assert len(every) == len(set(every)) == len(known) + 1


@pytest.mark.parametrize("body", ["text", {"blocks": [{"lanes": "x"}]}])
def test_records_that_are_no_candidates_are_left_alone(tuned, body):
    url, _ = tuned
    log = tt.TuningLog("memory:")
    with tt.TuningLog(url) as known:
        log.merge(known)
    workload = next(found for found in log.workloads() if found.level == "kernel")
    good = kernel_trials(log)[0]
    beside = good.measured.baseline.replace(costs=(10**12,))
    ran = Measurement(status="ok", kind="confirm", costs=[1], baseline=beside)
    log.add(workload, kernel_target(NATIVE), good.candidate.replace(body=body), ran)
    (kernel,) = [
        applied
        for applied in tt.build(tt.IRModule.from_onnx(convolution()), NATIVE, log=log).tuned
        if applied.level == "kernel"
    ]
    assert kernel.is_used or "its body is not that of a candidate" in kernel.note
    assert kernel.body != body
    plan = tt.decompose(tt.IRModule.from_onnx(convolution()), NATIVE)
    tuner = KernelTuner([plan], log, Budget(0, None), seed=0, limits=Limits(), progress=None)
    tuner.run()
    assert all(finding.best > 1 for finding in tuner.findings())


def test_every_ratio_in_the_log_has_its_baseline_and_confirmed_ones_the_default_beside_them(tuned):
    url, _ = tuned
    with tt.TuningLog(url) as log:
        trials = kernel_trials(log)
    confirmed = [trial for trial in trials if trial.measured.kind == "confirm"]
    assert all(trial.measured.status == "ok" for trial in trials)
    assert all(len(trial.measured.costs) == len(trial.measured.baseline.costs) == 7 for trial in confirmed)


def test_a_schedule_that_does_not_fit_is_refused_with_the_reason_and_the_default_is_built(tuned):
    module = tt.IRModule.from_onnx(convolution())
    log = tt.TuningLog("memory:")
    with tt.TuningLog(tuned[0]) as known:
        workload = next(found for found in known.workloads() if found.level == "kernel")
        candidate = kernel_trials(known)[0].candidate
    blocks = [{**candidate.body["blocks"][0], "lanes": 7}]
    log.pin(workload, kernel_target(NATIVE), candidate.replace(body={"blocks": blocks}), "a mistake")
    exe = tt.build(module, NATIVE, log=log)
    (kernel,) = [applied for applied in exe.tuned if applied.level == "kernel"]
    assert (kernel.tier, kernel.is_used) == ("pin", False)
    assert "register block 0" in kernel.note


def test_a_better_default_of_later_is_not_held_back_by_what_was_measured_beside_the_old_one(tuned):
    """The build takes the default of today, and tuning measures it and tries the best of then again."""
    log = tt.TuningLog("memory:")
    with tt.TuningLog(tuned[0]) as known:
        for record in known:
            old = record
            if isinstance(record, Trial) and record.level == "kernel" and record.measured.kind == "search":
                beside = record.measured.baseline.replace(identity="s1:of-then", costs=(10**12,))
                old = record.replace(measured=record.measured.replace(baseline=beside))
            if not (isinstance(record, Trial) and record.measured.kind == "confirm"):
                log.append(old)
    module = tt.IRModule.from_onnx(convolution())
    (kernel,) = [applied for applied in tt.build(module, NATIVE, log=log).tuned if applied.level == "kernel"]
    assert (kernel.tier, kernel.is_used) == ("default", False)
    then = {trial.candidate.key for trial in kernel_trials(log)}
    again = tt.tune(module, NATIVE, log=log, trials=2, levels=["kernel"], seed=1)
    assert (again.measured, again.reused) == (2, 0)
    new = [trial for trial in kernel_trials(log) if trial.measured.baseline.identity != "s1:of-then"]
    assert {trial.candidate.key for trial in new if trial.measured.kind == "search"} <= then
    (kernel,) = [applied for applied in tt.build(module, NATIVE, log=log).tuned if applied.level == "kernel"]
    assert kernel.tier == "exact"


@pytest.fixture(scope="module")
def worker():
    with Worker("tvm", CompileRequest("main", convolution().SerializeToString(), "", NATIVE)) as opened:
        yield opened


def test_a_candidate_that_takes_too_long_is_a_timeout_and_the_worker_goes_on(worker):
    (space,) = worker.spaces()
    worker._limits = Limits(build=0)
    assert worker.measure(space.kernel.key, space.default).status == "build_timeout"
    worker._limits = Limits()
    assert worker.measure(space.kernel.key, space.default).status == "ok"


@pytest.mark.parametrize(
    ("number", "status"),
    [
        # Not SIGSEGV, for which TVM has a handler that looks around first, while another thread goes on.
        pytest.param(signal.SIGBUS, "build_error", id="crash"),
        pytest.param(signal.SIGKILL, "ok", id="from outside", marks=pytest.mark.slow),
    ],
)
def test_a_crash_counts_against_the_candidate_and_a_kill_from_outside_does_not(worker, number, status):
    (space,) = worker.spaces()
    pid = worker.pid
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)  # until then it may still read the request
    pipe, unread = worker._process.stdin.fileno(), bytearray(4)

    def end():
        while not any(unread):  # until it has the request
            time.sleep(0.01)
            fcntl.ioctl(pipe, termios.FIONREAD, unread)
        os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=end)
    thread.start()
    assert worker.measure(space.kernel.key, space.default).status == status
    thread.join()


def test_kernels_of_open_sizes_are_tuned():
    weights = np.random.default_rng(0).standard_normal((64, 96)).astype("float32")
    model = small(helper.make_node("MatMul", ["x", "w"], ["y"]), shape=("n", 64), w=weights)
    with Worker("tvm", CompileRequest("main", model.SerializeToString(), "", NATIVE)) as opened:
        (space,) = opened.spaces()
        assert space.kernel.body["shapes"] == [["s0", 64], [64, 96], ["s0", 96]]
        assert opened.measure(space.kernel.key, space.default).status == "ok"


def test_the_same_seed_searches_the_same_way(worker):
    (space,) = worker.spaces()

    def proposals(seed):
        search = BlockSearch(space, seed, lambda candidates: worker.legal(space.kernel.key, candidates))
        search.report(tuple(space.default), 1000)
        found = []
        for cost in range(900, 890, -1):
            found.append(search.propose())
            search.report(found[-1], cost)
        return found

    assert proposals(1) == proposals(1) != proposals(2)
    assert len({str(choices) for choices in proposals(1)}) == 10


def test_without_trials_and_seconds_tuning_ends_by_itself(monkeypatch):
    monkeypatch.setattr("tvmtarget.autotune.search.kernels.USUAL_TRIALS", 3)
    result = tt.tune(tt.IRModule.from_onnx(convolution()), NATIVE, log="memory:", levels=["kernel"])
    assert result.measured == 3
