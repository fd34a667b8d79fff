"""The minimal real tasks: tune, log, look up in a new process, build, and be faster by ratios measured by turns.

T1: a product of matrices in generated C. T3: which of two leaves runs what, and with how many threads, in chunks of
which size, two C kernels run. T2 is in `test_metaschedule.py`. All by time of the processor, so that what else the
machine does is in neither side of a ratio.
"""

import ctypes
import itertools
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from models import small
from onnx import helper

import tvmtarget as tt
from tvmtarget import Target, TuningLog
from tvmtarget.autotune.log.match import Policy
from tvmtarget.autotune.log.records import Baseline, Candidate, Measurement, Workload

SIZE = 128
MATMUL = Workload.of({"op": "matmul", "shapes": [[SIZE] * 3], "dtype": "float32"})
DEFAULT = {"mr": 1, "nr": 1, "unroll": 1}
SPACE = {"mr": (1, 2, 4, 8), "nr": (1, 8, 16, 32, 64), "unroll": (1, 2, 4)}

SOURCE = """
void run(const float *a, const float *b, float *c) {
  for (int i = 0; i < SIZE; i += MR) for (int j = 0; j < SIZE; j += NR) {
    float sums[MR][NR] = {{0}};
    _Pragma("GCC unroll UNROLL")
    for (int k = 0; k < SIZE; k++)
      for (int y = 0; y < MR; y++)
        for (int x = 0; x < NR; x++) sums[y][x] += a[(i + y) * SIZE + k] * b[k * SIZE + j + x];
    for (int y = 0; y < MR; y++) for (int x = 0; x < NR; x++) c[(i + y) * SIZE + j + x] = sums[y][x];
  }
}
"""


def compiled(folder, body):
    """Return the product with the sizes of its register block."""
    name = "-".join(f"{knob}{value}" for knob, value in sorted(body.items()))
    text = SOURCE.replace("UNROLL", str(body["unroll"]))
    source, library = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(text)
    defines = [f"-DSIZE={SIZE}", f"-DMR={body['mr']}", f"-DNR={body['nr']}"]
    subprocess.run(["gcc", "-O3", "-march=native", "-shared", "-fPIC", *defines, "-o", library, source], check=True)
    return ctypes.CDLL(str(library)).run


def seconds(run, arrays):
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
    begin = time.process_time()
    for _ in range(4):
        run(*pointers)
    return (time.process_time() - begin) / 4


def by_turns(runs, arrays, turns=9):
    """Return the seconds of several programs, each measured once in every turn."""
    return list(zip(*[[seconds(run, arrays) for run in runs] for _ in range(turns)], strict=True))


def tuned_c(folder, url, target):
    """Measure the default and twelve random candidates, check them, and confirm the best by turns with the default."""
    rng, drawing = np.random.default_rng(0), random.Random(0)
    arrays = [rng.random((SIZE, SIZE), dtype=np.float32) for _ in range(3)]
    bodies = [DEFAULT, *({knob: drawing.choice(values) for knob, values in SPACE.items()} for _ in range(12))]
    expected, found = arrays[0] @ arrays[1], []
    with TuningLog(url) as log:
        for body in bodies:
            run = compiled(folder, body)
            cost = min(seconds(run, arrays) for _ in range(3))
            assert np.allclose(arrays[2], expected, rtol=1e-3)
            found.append((cost, body))
            measured = Measurement(status="ok", costs=(round(cost * 1e12),))
            log.add(MATMUL, target, Candidate(format="c-matmul/1", body=body), measured, requires="llvm(+avx2)")
        best = min(found, key=lambda pair: pair[0])[1]
        default, chosen = by_turns([compiled(folder, body) for body in (DEFAULT, best)], arrays)
        costs, baseline = ([round(cost * 1e12) for cost in some] for some in (chosen, default))
        measured = Measurement(status="ok", kind="confirm", costs=costs, baseline=Baseline(costs=baseline))
        log.add(MATMUL, target, Candidate(format="c-matmul/1", body=best), measured, requires="llvm(+avx2)")
    return arrays


def looked_up(url, target):
    """Return what a new process finds in a log."""
    command = [sys.executable, "-m", "tvmtarget.cli.main", "log", "lookup", url, MATMUL.key, "--target", target]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_t1_generated_c_is_tuned_found_in_a_new_process_and_three_times_as_fast_as_its_default(
    tmp_path, record_property
):
    if shutil.which("gcc") is None or "avx2" not in Target.detect().features:
        pytest.skip("wants gcc and AVX2")
    local, target = str(tmp_path / "local.db"), Target.parse("llvm(mcpu=znver4,mtriple=x86_64-linux-gnu,num-cores=2)")
    arrays = tuned_c(tmp_path, local, target)
    url = str(tmp_path / "log.db")
    with TuningLog(url) as log, TuningLog(local) as known:
        log.merge(known)
    found = looked_up(url, str(target))
    assert found["tier"] == "exact"
    default, chosen = by_turns([compiled(tmp_path, body) for body in (DEFAULT, found["candidate"]["body"])], arrays)
    assert np.allclose(arrays[2], arrays[0] @ arrays[1], rtol=1e-3)
    delivered = median(one / other for one, other in zip(default, chosen, strict=True))
    record_property("times as fast as the default", delivered)
    assert delivered >= 3
    with TuningLog(url) as log:
        promised = 1 / log.lookup(MATMUL, target).ratio
        assert 0.5 < promised / delivered < 2
        more = log.lookup(MATMUL, Target.parse("llvm(mcpu=znver4,mtriple=x86_64-linux-gnu,num-cores=4)"))
        assert (more.tier, "num-cores 2 -> 4" in more.explain()) == ("near", True)
        nehalem = Target.parse("llvm(mcpu=nehalem,mtriple=x86_64-linux-gnu,num-cores=2)")
        older = log.lookup(MATMUL, nehalem, policy=Policy(max_distance=100))
        assert older.tier == "default"
        assert "avx2" in older.explain()
    spelled = "llvm -mcpu=znver4 -mtriple=x86_64-conda-linux-gnu -num-cores=2 -opt-level=1"
    assert looked_up(url, spelled)["tier"] == "equal"
    with TuningLog("memory:") as empty:
        assert empty.lookup(MATMUL, target).tier == "default"


PLACED = """
import json, sys, time
import numpy as np
import onnx
import tvmtarget as tt

module = tt.IRModule.from_onnx(onnx.load(sys.argv[1]))
x = np.random.default_rng(1).standard_normal((256, 256)).astype("float32")
plain, exe = tt.build(module, sys.argv[3]), tt.build(module, sys.argv[3], log=sys.argv[2])


def seconds(run):
    begin = time.process_time()
    run(x)
    return time.process_time() - begin


turns = [[seconds(run) for run in (plain, exe)] for _ in range(9)]
sites = [sorted({subgraph["site"] for subgraph in one.report()["subgraphs"]}) for one in (plain, exe)]
tiers = [applied.tier for applied in exe.tuned if applied.level == "graph"]
error = float(np.abs(exe(x) - plain(x)).max())
ratio = float(np.median([before / after for before, after in turns[1:]]))
print(json.dumps({"sites": sites, "tiers": tiers, "error": error, "ratio": ratio}))
"""


@pytest.mark.slow
def test_t3_the_faster_of_two_leaves_is_found_logged_for_the_composite_and_placed_in_a_new_process(
    tmp_path, monkeypatch, record_property
):
    pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
    if "avx2" not in Target.detect().features:
        pytest.skip("wants AVX2 beside SSE2")
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    weights = np.random.default_rng(0).standard_normal((256, 256)).astype("float32") / 16
    names = ["x", "a", "b", "c", "y"]
    nodes = [helper.make_node("MatMul", [one, "w"], [other]) for one, other in itertools.pairwise(names)]
    model = small(*nodes, shape=(256, 256), w=weights)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    # The first leaf is preferred, and has the same processor without its wide vectors.
    target = "composite[old=llvm(mcpu=x86-64,num-cores=1),new=llvm(mcpu=haswell,num-cores=1)]"
    url = str(tmp_path / "log.db")
    tt.tune(tt.IRModule.from_onnx(model), target, log=url, levels=["placement"])
    command = [sys.executable, "-c", PLACED, tmp_path / "m.onnx", url, target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    record_property("times as fast as by preference", found["ratio"])
    assert (found["sites"], found["tiers"]) == ([["old"], ["new"]], ["exact"])
    assert found["error"] < 1e-2
    assert found["ratio"] >= 1.3


def test_t3_threads_and_chunks_of_two_c_kernels_are_tuned_and_set_in_a_new_process(tmp_path, record_property):
    if shutil.which("gcc") is None:
        pytest.skip("wants gcc")
    url, script = str(tmp_path / "log.db"), Path(__file__).parent / "rows_in_c.py"
    found = {}
    for what in ("tune", "build"):
        command = [sys.executable, str(script), what, url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found |= json.loads(done.stdout)
    (settings,) = found["tuned"]
    chosen = {name: value for _, name, value in settings["body"]["set"]}
    record_property("times as fast as a row at a time", found["ratio"])
    assert settings["tier"] == "exact"
    assert chosen["chunk"] > 1
    assert found["statuses"]["wrong_output"] >= 1
    assert all("left-out=100000 of @." in reason for reason in found["not tuned"])
    assert "left-out" not in chosen
    assert found["is_right"]
    assert found["ratio"] >= 1.5
