"""Promise 14: what a log says is what one gets. Loops of C, compiled and measured here, by interleaved ratios."""

import ctypes
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from logs import HERE

from tvmtarget import Target, TuningLog
from tvmtarget.autotune.log.records import Baseline, Candidate, Measurement, Workload

ROOT = Path(__file__).parents[2]
SIZE = 192
MATMUL = Workload.of({"op": "matmul", "shapes": [[SIZE] * 3], "dtype": "float32"})
TARGET = Target.parse("llvm(mcpu=znver4,mtriple=x86_64-linux-gnu,num-cores=2)")
ORDERS = ("jki", "ijk", "ikj")  # the first one is the default


def compiled(folder, order):
    """Return a product of matrices with its loops in one order."""
    loops = "".join(f"for (int {name} = 0; {name} < {SIZE}; {name}++) " for name in order)
    source = folder / f"{order}.c"
    source.write_text(
        "void run(const float *a, const float *b, float *restrict c) { "
        f"for (int x = 0; x < {SIZE * SIZE}; x++) c[x] = 0; "
        f"{loops} c[i * {SIZE} + j] += a[i * {SIZE} + k] * b[k * {SIZE} + j]; }}"
    )
    library = source.with_suffix(".so")
    flags = ["-O3", "-fno-loop-interchange", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", library, source], check=True)
    return ctypes.CDLL(str(library)).run


def seconds(run, arrays):
    """Return the time of the processor, which other processes on a busy machine do not take."""
    begin = time.process_time()
    run(*(array.ctypes.data_as(ctypes.c_void_p) for array in arrays))
    return time.process_time() - begin


def by_turns(runs, arrays, turns=7):
    """Return the times of several programs, each measured once in every turn."""
    times = [[seconds(run, arrays) for run in runs] for _ in range(turns)]
    return list(zip(*times, strict=True))


@pytest.mark.slow
def test_p14_what_was_measured_is_found_in_a_new_process_and_is_as_fast_as_the_log_says(tmp_path, record_property):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    path, rng = tmp_path / "log.db", np.random.default_rng(0)
    arrays = [rng.random((SIZE, SIZE), dtype=np.float32) for _ in range(3)]
    runs = [compiled(tmp_path, order) for order in ORDERS]
    times = by_turns(runs, arrays)
    with TuningLog(str(path)) as log:
        for order, run, costs in zip(ORDERS, runs, times, strict=True):
            seconds(run, arrays)
            assert np.allclose(arrays[2], arrays[0] @ arrays[1], rtol=1e-3)
            picoseconds, beside = ([round(cost * 1e12) for cost in some] for some in (costs, times[0]))
            measured = Measurement(status="ok", kind="confirm", costs=picoseconds, baseline=Baseline(costs=beside))
            log.add(MATMUL, TARGET, Candidate(format="order/1", body=order), measured, env=HERE)
    text = "llvm -mcpu=znver4 -mtriple=x86_64-conda-linux-gnu -num-cores=2 -opt-level=1"
    command = [sys.executable, "-m", "tvmtarget.cli.main", "log", "lookup", path, MATMUL.key]
    done = subprocess.run([*command, "--target", text, "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert (found["tier"], found["candidate"]["body"]) == ("equal", "ikj"), done.stderr
    default, chosen = by_turns([runs[0], compiled(tmp_path, found["candidate"]["body"])], arrays)
    ratio = median(one / other for one, other in zip(default, chosen, strict=True))
    record_property("times as fast as the default", round(ratio, 2))
    assert ratio > 2
