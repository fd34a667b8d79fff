"""Whole programs are built and run in a process of their own: what they do to it costs the candidate, not the tuner."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from models import DIGITS, small
from onnx import helper
from processes import is_gone, processes, wait

import tvmtarget as tt
from tvmtarget.autotune.log.records import Trial
from tvmtarget.autotune.search.candidate_plans import plans_by_leaf
from tvmtarget.autotune.search.device import LockError, holding
from tvmtarget.autotune.search.process import Limits, LostError
from tvmtarget.autotune.search.programs import ProgramRun, Programs, Variant
from tvmtarget.autotune.search.worker_protocol import failed
from tvmtarget.building.compile_plan import build_plan
from tvmtarget.building.tuned_schedules import TunedChoices, sites_of
from tvmtarget.errors import RunError

pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")

HERE = Path(__file__).parent
TREE = tt.Target.parse("composite[cpu=numpy,ort=onnxruntime(optimization-level=99,intra-op-threads=1)]")


def digits():
    return tt.IRModule.from_onnx(DIGITS)


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Install a hostile code generator, for the processes that are started; return what says what it does."""
    installed = tmp_path / "hostile_leaf-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile-leaf\nVersion: 0\n")
    (installed / "entry_points.txt").write_text("[tvmtarget.backends]\na-hostile-leaf = hostile_leaf:BACKEND\n")
    root = HERE.parents[1]
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, (root, HERE, tmp_path))))
    return lambda deed: monkeypatch.setenv("HOSTILE_LEAF", deed)


@pytest.mark.parametrize(
    ("deed", "status"),
    [
        pytest.param("hang in build", "build_timeout", marks=pytest.mark.slow),
        ("hang in run", "run_timeout"),
        pytest.param("hang deaf to alarms in run", "run_timeout", marks=pytest.mark.slow),
        pytest.param("crash in build", "build_error", marks=pytest.mark.slow),
        ("crash in run", "run_error"),
        pytest.param("abort in run", "run_error", marks=pytest.mark.slow),
        pytest.param("close the pipe in run", "run_error", marks=pytest.mark.slow),
        pytest.param("eat memory in run", "over_limit", marks=pytest.mark.slow),
        pytest.param("fail in run", "run_error", marks=pytest.mark.slow),
        ("be wrong in run", "wrong_output"),
    ],
)
def test_a_placement_gets_the_status_of_what_it_did_and_the_tuner_goes_on(hostile, deed, status):
    hostile(deed)
    log = tt.TuningLog("memory:")
    limits = Limits(memory=2 << 30)
    if status.endswith("timeout"):
        limits = replace(limits, open=8 if status == "build_timeout" else limits.open, run=3)
    result = tt.tune(digits(), TREE, log=log, levels=["placement"], trials=2, limits=limits)
    ends = [record.measured.status for record in log if isinstance(record, Trial)]
    assert (ends[0], set(ends) - {"ok"}) == ("ok", {status})
    assert any("a placement on ort" in reason for reason in result.left_out)
    assert {subgraph["site"] for subgraph in tt.build(digits(), TREE, log=log).report()["subgraphs"]} == {"cpu"}
    assert result.speedup > 0


def test_programs_are_what_a_build_makes_of_the_same_sites():
    plan = tt.decompose(digits(), TREE)
    with Programs(plan, tt.TuningLog("memory:")) as programs:
        for other in plans_by_leaf(plan):
            ran = programs.measure(Variant(other), Variant())
            assert ran.status == "ok"
            assert set(ran.functions) == {subgraph.function for subgraph in plan.with_sites(sites_of(other)).subgraphs}


def test_a_lost_process_says_what_it_was_doing():
    assert str(LostError("compare", "crash")) == "the process crashed while candidates were compared"


def test_placements_that_were_not_compared_by_turns_are_not_built(monkeypatch):
    lost = ProgramRun("run_timeout", why="the process exceeded its time limit while a candidate ran")
    monkeypatch.setattr(Programs, "compare", lambda *_: lost)
    target = "[far=numpy,near=onnxruntime](host=@far)"
    with tt.TuningLog("memory:") as log:
        result = tt.tune(DIGITS, target, log=log, levels=["placement"], trials=3)
        built = tt.build(DIGITS, target, log=log)
    assert result.measured > 1
    assert f"the {result.measured} fastest placements could not be compared: {lost.why}" in result.left_out
    assert set(built.plan.sites().values()) == {"far"}


def test_placements_that_cannot_be_compared_at_once_are_compared_in_pairs(monkeypatch):
    def compare(_, variants, rounds):
        if len(variants) > 2:
            return ProgramRun("over_limit", why="not enough memory")
        return ProgramRun("ok", costs=((10**9,) * rounds, (10**8,) * rounds)[: len(variants)])

    monkeypatch.setattr(Programs, "compare", compare)
    target = "[far=numpy,near=onnxruntime,also=numpy](host=@far)"
    with tt.TuningLog("memory:") as log:
        result = tt.tune(DIGITS, target, log=log, levels=["placement"], trials=4)
        built = tt.build(DIGITS, target, log=log)
    assert result.measured > 2
    assert set(built.plan.sites().values()) != {"far"}
    assert any("could not be compared: not enough memory" in reason for reason in result.left_out)


def test_programs_may_be_compared_as_long_as_the_turns_of_the_default_take_and_more(monkeypatch):
    limits = []
    answer = {"status": "ok", "costs": [[10**11]] * 2}
    monkeypatch.setattr(Programs, "_request", lambda *given: limits.append(given[-1]) or answer)
    programs = Programs(tt.decompose(DIGITS, "numpy"), None)
    programs.measure(Variant(), Variant())
    programs.compare([Variant()] * 6, 9)
    assert limits[0] == Limits().open
    assert limits[1] > 2 * 6 * 27 * 2 * 0.1  # each of 27 turns is the faster of two runs of 0.1 s


@pytest.mark.parametrize(("pid", "status"), [(17, "ok"), (None, "over_limit")])
def test_a_process_without_memory_is_started_again_unless_it_is_new(monkeypatch, pid, status):
    answers = [{"status": "over_limit", "why": "MemoryError"}, {"status": "ok", "costs": [[1], [1]]}]
    ended = []
    monkeypatch.setattr(Programs, "_request", lambda *_: answers.pop(0))
    monkeypatch.setattr(Programs, "pid", pid)
    monkeypatch.setattr(Programs, "close", lambda self: ended.append(self))
    programs = Programs(tt.decompose(DIGITS, "numpy"), None)
    assert programs.measure(Variant(), Variant()).status == status
    assert len(ended) == (status == "ok")


def test_a_build_by_a_log_takes_the_functions_of_earlier_ones_of_which_the_log_says_the_same():
    plan = tt.decompose(digits(), TREE, where={"op:Gemm": "@ort"})
    log = tt.TuningLog("memory:")
    first = build_plan(plan, TunedChoices(log))
    again = build_plan(plan, TunedChoices(log), since=[first])
    plain = build_plan(plan, since=[first])
    for name, leaf in first._leaves.items():
        assert again._leaves[name].compiled is leaf.compiled
        assert plain._leaves[name].compiled is not leaf.compiled


@pytest.mark.parametrize("seconds", [0, pytest.param(6, marks=pytest.mark.slow)])
def test_a_run_of_some_seconds_ends_in_time_whatever_is_going_on_then(hostile, seconds):
    """What hangs would take as long as a program may take to be built and run, were it not ended."""
    hostile("hang in run")
    log = tt.TuningLog("memory:")
    result = tt.tune(digits(), TREE, log=log, levels=["executor", "placement"], seconds=seconds)
    assert result.seconds < Limits().open / 2
    assert {record.measured.status for record in log if isinstance(record, Trial)} <= {"ok", "cancelled"}


SCRIPT = """
import tvmtarget as tt
from tvmtarget import plugins
from tvmtarget.backends import protocol
from tvmtarget.backends.protocol import backend_named
import sys

@tt.strategy("mine", attributes={"speed": 1})
class Mine:
    ops = {"Abs"}

class Backend(protocol.Backend):
    name, kinds = "mine", ("mine",)
    version = lambda self: "1"
    settings = lambda self, target: {"speed": (1, 2)}
    compile = lambda self, request: backend_named("numpy").compile(request)

plugins.register("tvmtarget.backends", "mine", Backend())
GUARD
    result = tt.tune(tt.IRModule.from_onnx(sys.argv[1]), "mine", log="memory:", levels=["executor"])
    print(result.statuses, result.left_out)
"""


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        ('if __name__ == "__main__":', "'ok': "),
        pytest.param("if True:", "the main module tunes while it is imported", marks=pytest.mark.slow),
    ],
)
def test_plugins_that_a_script_registers_are_known_in_measuring_processes(tmp_path, guard, expected):
    (tmp_path / "model.onnx").write_bytes(small(helper.make_node("Abs", ["x"], ["y"])).SerializeToString())
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("GUARD", guard))
    command = [sys.executable, str(script), str(tmp_path / "model.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


TUNE = """
import sys
import tvmtarget as tt

tt.tune(tt.IRModule.from_onnx(sys.argv[1]), sys.argv[2], log=sys.argv[3], levels=["placement"])
"""


def test_a_program_that_hangs_ends_with_the_tuner_that_is_killed(hostile, tmp_path):
    hostile("hang deaf to alarms in run")
    log = tmp_path / "log.db"
    command = [sys.executable, "-c", TUNE, str(DIGITS), str(TREE), str(log)]
    process = subprocess.Popen(command)
    wait(lambda: log.exists() and any(isinstance(record, Trial) for record in tt.TuningLog(log)))  # the next one hangs
    started = processes(parent=process.pid)
    process.kill()
    process.wait()
    assert started
    wait(lambda: all(map(is_gone, started)))
    with tt.TuningLog(str(log)) as opened:
        assert not opened.verify()
        assert [record.measured.status for record in opened if isinstance(record, Trial)] == ["ok"]


def test_a_device_that_cannot_be_locked_is_no_failure_of_what_is_measured(tmp_path):
    problem = r"cannot be locked by .*: Is a directory; remove it, or set TMPDIR"
    with pytest.raises(LockError, match=problem) as caught, holding(tmp_path):
        pass
    assert failed("run_error", caught.value)["status"] == "failed"
    assert failed("run_error", RunError("it failed"))["status"] == "run_error"
