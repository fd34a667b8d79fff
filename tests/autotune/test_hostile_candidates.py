"""What candidates do to the process that measures them: each gets its status, and the next one is measured."""

from dataclasses import replace
from pathlib import Path

import pytest
from processes import processes, wait

import tvmtarget as tt
from tvmtarget.autotune.search.measuring import Worker
from tvmtarget.autotune.search.process import Limits
from tvmtarget.backends.protocol import CompileRequest

HERE = Path(__file__).parent


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Return a worker whose code generator is hostile: a package that is installed for the measuring process alone."""
    installed = tmp_path / "hostile-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 0\n")
    (installed / "entry_points.txt").write_text("[tvmtarget.backends]\nhostile = hostile:BACKEND\n")
    root = HERE.parents[1]
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, (root, HERE, tmp_path))))
    with Worker("hostile", CompileRequest("main", b"", "", tt.Target("llvm")), Limits(memory=1 << 29)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("deed", "status"),
    [
        pytest.param("hang in build", "build_timeout", marks=pytest.mark.slow),
        ("hang in run", "run_timeout"),
        pytest.param("hang deaf to alarms in run", "run_timeout", marks=pytest.mark.slow),
        pytest.param("crash in build", "build_error", marks=pytest.mark.slow),
        ("crash in run", "run_error"),
        pytest.param("abort in run", "run_error", marks=pytest.mark.slow),
        pytest.param("leave in build", "build_error", marks=pytest.mark.slow),
        pytest.param("close the pipe in run", "run_error", marks=pytest.mark.slow),
        pytest.param("eat memory in build", "over_limit", marks=pytest.mark.slow),
        ("eat memory in run", "over_limit"),
        ("fail in build", "build_error"),
        ("fail in run", "run_error"),
        ("be wrong in run", "wrong_output"),
        ("talk in run", "ok"),
    ],
)
def test_a_candidate_gets_the_status_of_what_it_did_and_the_next_is_measured(worker, deed, status):
    (space,) = worker.spaces()
    limits = worker._limits
    if status.endswith("timeout"):
        worker._limits = replace(limits, build=2, run=2)
    outcome = worker.measure(space.kernel.key, deed)
    worker._limits = limits
    assert outcome.status == status
    assert "\n" not in outcome.why
    assert worker.measure(space.kernel.key, "nothing in run").status == "ok"


def test_what_a_candidate_started_ends_with_the_worker(worker):
    (space,) = worker.spaces()
    before = set(processes("left-by-hostile"))
    assert worker.measure(space.kernel.key, "leave a child in run").status == "ok"
    wait(lambda: set(processes("left-by-hostile")) - before)
    worker.close()
    wait(lambda: not set(processes("left-by-hostile")) - before)
