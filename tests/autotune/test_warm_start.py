"""What a log has from elsewhere is measured first: imports, near devices, former defaults, equivalent workloads."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from models import small
from onnx import helper

import tvmtarget as tt
from tvmtarget.autotune.log.importers.metaschedule import export_metaschedule, import_metaschedule
from tvmtarget.autotune.log.records import Baseline, Candidate, Measurement, Trial, Workload
from tvmtarget.autotune.search.candidates import BlockSearch
from tvmtarget.autotune.search.kernel import TunedKernel
from tvmtarget.autotune.search.measuring import Worker
from tvmtarget.autotune.search.warm_start import MAX_HINTS, warm_start
from tvmtarget.backends.protocol import CompileRequest
from tvmtarget.building.tuned_schedules import kernel_target, kernel_workload

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")

from tvmtarget.backends.tvm.traces import TILES_FORMAT, TRACE_FORMAT

CPU = tt.Target.parse("llvm(num-cores=2,l2-cache-bytes=1048576)")
NEAR, NEARER = CPU.override({"num-cores": 8}), CPU.override({"num-cores": 4})
EQUAL = CPU.override({"opt-level": 2})


def product():
    weights = np.random.default_rng(0).standard_normal((32, 32)).astype("float32")
    return small(helper.make_node("MatMul", ["x", "w"], ["y"]), shape=(32, 32), w=weights)


def rows():
    """Return a model whose kernel has no register block: the largest of each row."""
    return small(helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=0), shape=(256, 512), opset=13)


@pytest.fixture(scope="module")
def worker():
    with Worker("tvm", CompileRequest("main", product().SerializeToString(), "", CPU)) as opened:
        yield opened, opened.spaces()[0]


@pytest.fixture
def kernel(worker):
    """Return the kernel of a product of which nothing is known."""
    opened, space = worker
    search = BlockSearch(space, 0, partial(opened.legal, space.kernel.key))
    return TunedKernel("", kernel_target(CPU), opened, space, kernel_workload(space.kernel), 1, search)


@pytest.fixture(scope="module")
def tiles(worker):
    """Return candidates that are legal and not the default."""
    opened, space = worker
    search = BlockSearch(space, 1, partial(opened.legal, space.kernel.key))
    found = []
    for _ in range(MAX_HINTS + 2):
        found.append(search.propose())
        search.report(found[-1], None)
    return [
        Candidate(format=TILES_FORMAT, body={"blocks": list(map(dict, one))}) for one in found if one != space.default
    ]


def seen(log, kernel, target, candidate, cost, beside=None, **options):
    """Write that a candidate was measured; `beside` is the identity of a default that took 1000 ps."""
    baseline = None if beside is None else Baseline(costs=[1000], identity=beside)
    measured = Measurement(status="ok", costs=[cost], baseline=baseline)
    return log.add(kernel.workload, kernel_target(target), candidate, measured, **options)


def hints(log, kernel, space="auto"):
    warm_start(log, kernel, space)
    return [kernel.candidate(choices).key for choices in kernel.hints]


def keys(candidates):
    return [candidate.key for candidate in candidates]


def test_hints_are_the_best_of_this_device_then_of_the_nearest_one(kernel, tiles):
    log, today = tt.TuningLog("memory:"), kernel.space.kernel.default
    for target, at, cost in ((NEAR, 0, 1), (NEARER, 1, 20), (NEARER, 2, 10), (EQUAL, 3, 200), (CPU, 4, 100)):
        seen(log, kernel, target, tiles[at], cost, beside=None if target in (EQUAL, CPU) else today)
    assert hints(log, kernel) == keys([tiles[4], tiles[3], tiles[2], tiles[1], tiles[0]])
    assert kernel.default == 0


def test_at_most_so_many_are_tried_in_all_runs_together_so_that_the_search_has_its_share(kernel, tiles):
    log, today = tt.TuningLog("memory:"), kernel.space.kernel.default
    for at, candidate in enumerate(tiles, 1):
        seen(log, kernel, NEAR, candidate, 50 * at, beside=today)
    first = hints(log, kernel)
    assert first == keys(tiles[:MAX_HINTS])
    for candidate in tiles[:3]:
        seen(log, kernel, CPU, candidate, 5, beside=today, search={"tuner": "log"})
    kernel.search = BlockSearch(kernel.space, 0, partial(kernel.worker.legal, kernel.space.kernel.key))
    assert hints(log, kernel) == first[3:]


@pytest.mark.parametrize("target", [CPU, EQUAL])
def test_what_was_measured_beside_the_default_of_today_on_an_equal_target_is_known_in_any_layer(
    kernel, tiles, target, tmp_path
):
    with tt.TuningLog(tmp_path / "site.db") as site:
        seen(site, kernel, target, tiles[0], 500, beside=kernel.space.kernel.default)
        seen(site, kernel, target, tiles[1], 10, beside="s1:of-then")
    log = tt.TuningLog("memory:", layers=[tmp_path / "site.db"])
    assert warm_start(log, kernel, "auto") == 1
    assert kernel.search.best() == [(kernel.read(tiles[0]), 500_000_000)]
    assert keys(map(kernel.candidate, kernel.hints)) == keys(tiles[1:2])


def test_what_is_not_legal_here_was_retracted_failed_or_is_no_candidate_is_no_hint(kernel, tiles):
    log, today = tt.TuningLog("memory:"), kernel.space.kernel.default
    seen(log, kernel, NEAR, tiles[0], 1, beside=today, requires="llvm(num-cores>=8)")
    log.retract(seen(log, kernel, NEAR, tiles[1], 1, beside=today).digest, "for a test")
    seen(log, kernel, NEAR, tiles[2].replace(body={"blocks": "none"}), 1, beside=today)
    seen(log, kernel, NEAR, tiles[3].replace(format="another/1"), 1, beside=today)
    log.add(kernel.workload, kernel_target(CPU), tiles[4], Measurement(status="wrong_output"))
    seen(log, kernel, NEAR, tiles[4], 1, beside=today)
    seen(log, kernel, CPU.override({"mcpu": "znver4"}), tiles[5], 1, beside=today)
    assert hints(log, kernel) == []
    log.pin(kernel.workload, kernel_target(CPU), tiles[6], "somebody knows")
    assert hints(log, kernel) == keys(tiles[6:7])


def test_traces_for_the_program_without_weights_serve_the_kernel_with_them_where_traces_are_wanted(kernel, tiles):
    log, made = tt.TuningLog("memory:"), kernel.space.kernel
    free = replace(kernel, workload=Workload.of(made.equivalents[TRACE_FORMAT]))
    traces = [Candidate(format=TRACE_FORMAT, body=f"[[],[{at}]]") for at in range(2)]
    for target, candidate, cost in ((CPU, traces[0], 1), (NEAR, traces[1], 1), (CPU, tiles[0], 1)):
        seen(log, free, target, candidate, cost)
    seen(log, kernel, CPU, tiles[1], 5)
    assert hints(log, kernel) == keys([tiles[1], traces[0], traces[1]])
    assert hints(log, kernel, "metaschedule") == keys(traces)
    assert hints(log, kernel, "own") == keys(tiles[1:2])


def test_a_hint_that_does_not_fit_costs_no_trial(kernel, tiles):
    log = tt.TuningLog("memory:")
    wrong = tiles[0].replace(body={"blocks": [{**tiles[0].body["blocks"][0], "lanes": 7}]})
    seen(log, kernel, NEAR, wrong, 1)
    seen(log, kernel, NEAR, tiles[1], 2)
    assert hints(log, kernel) == keys([wrong, tiles[1]])
    assert kernel.candidate(kernel.propose()).key == tiles[1].key


def trials(log):
    found = [record for record in log if isinstance(record, Trial) and record.src is None]
    return [trial for trial in found if trial.measured.kind == "search"]


@pytest.mark.parametrize("measured", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_an_imported_trace_is_measured_right_after_the_default_and_confirmed_if_it_is_best(measured, tmp_path):
    there, here = tt.TuningLog("memory:"), tt.TuningLog("memory:")
    with Worker("tvm", CompileRequest("main", rows().SerializeToString(), "", CPU)) as opened:
        (space,) = opened.spaces()
        workload = kernel_workload(replace(space.kernel, program=opened.program(space.kernel.key)))
        for cost, trace in enumerate(opened.propose(space.kernel.key, [], 3, 0), 1):
            ran = Measurement(status="ok", costs=[cost])
            there.add(workload, kernel_target(CPU), Candidate(format=TRACE_FORMAT, body=trace), ran)
    (folder,) = export_metaschedule(there, tmp_path / "ms", best=3).values()
    assert import_metaschedule(here, folder, targets=[CPU]).rejected == ()
    imported = [record.candidate.key for record in here if isinstance(record, Trial)]
    module = tt.IRModule.from_onnx(rows())
    result = tt.tune(module, CPU, log=here, trials=measured, levels=["kernel"])
    default, *others = trials(here)
    tried = min(measured - 1, len(imported))
    assert [trial.candidate.key for trial in others[:tried]] == imported[:tried]
    assert [trial.search["tuner"] for trial in others] == ["log"] * tried + ["metaschedule"] * (len(others) - tried)
    assert (result.measured, result.reused, result.hinted) == (measured, 0, tried)
    assert f"{measured} candidates measured, {tried} of them on a hint of the log, 0 known" in str(result)
    faster = {trial.candidate.key for trial in others if trial.measured.ratio_ppb < 0.98e9}
    confirmed = {one.candidate.key for one in here if isinstance(one, Trial) and one.measured.kind == "confirm"}
    assert confirmed <= faster | {default.candidate.key}
    if faster:
        best = min(others, key=lambda trial: trial.measured.ratio_ppb)
        assert best.candidate.key in confirmed
    if others[tried:]:
        again = tt.tune(module, CPU, log=here, trials=1, levels=["kernel"])
        assert (again.measured, again.reused, again.hinted) == (1, measured, 0)
        assert len({trial.candidate.key for trial in trials(here)}) == measured + 1
