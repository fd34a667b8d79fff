"""What the tests of tuning logs are made of: a workload, targets, trials."""

import gc
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tvmtarget import Target, TuningLog
from tvmtarget.autotune.log.records import Candidate, Environment, Measurement, TargetRecord, Trial, Workload
from tvmtarget.target.identity import identity_of

MATMUL = Workload.of({"op": "matmul", "shapes": [[128, 128, 128]], "dtype": "float32"})
HERE = Environment.of({"tool": "tests", "apache-tvm": "0.27.0"})
ZNVER4 = Target.parse("llvm(mcpu=znver4,mtriple=x86_64-linux-gnu,num-cores=16)")


def ran(*costs, baseline=None, kind="search", status="ok"):
    beside = {"baseline": {"costs": [baseline]}} if baseline else {}
    return Measurement(status=status, kind=kind, costs=costs, **beside)


def knobs(**body):
    return Candidate(format="knobs/1", body=body)


def trial(number, cost=1000, *, target=ZNVER4, workload=MATMUL, **fields):
    """Return a trial of candidate `number`; `fields` are those of a trial."""
    fields = {"measured": ran(cost, baseline=10_000), "candidate": knobs(mb=number), "env": HERE.key} | fields
    return Trial(level=workload.level, workload=workload.key, target=target.digest, ts=1_700_000_000, **fields)


def known(*targets, workloads=(MATMUL,)):
    """Return the lines that trials refer to."""
    return [*(TargetRecord(key=target.digest, body=identity_of(target)) for target in targets), *workloads, HERE]


def write_file(path, records):
    """Write a file of lines, as an export does."""
    path.write_text("".join(f"{record.text}\n" for record in records))


def with_mounted(mount, code, path):
    """Run code on a path after a mount, which a process may do in a name space of its own if the system allows it."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("name spaces of users are not allowed here")
    root = Path(__file__).parents[2]
    command = [unshare, "-rm", "sh", "-c", f'{mount} && exec "$PYTHON" -c "$CODE" "$LOG"']
    env = os.environ | {"PYTHONPATH": str(root), "PYTHON": sys.executable, "CODE": code, "LOG": str(path)}
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=env, check=False)
    if "mount:" in done.stderr:
        pytest.skip("nothing may be mounted here")
    return done


def forked(work):
    """Run something in a process of its own, and return that process, which ends with 1 if it raises.

    Garbage of this process is not collected there: sessions of onnxruntime would wait for threads that are only here.
    """
    gc.disable()
    child = os.fork()
    if not child:
        gc.freeze()
    gc.enable()
    if child:
        return child
    try:
        work()
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)
    os._exit(0)


class Writer:
    """A process that appends trials of candidates from `first` on, and reports each one that is acknowledged."""

    def __init__(self, path, first, count):
        reading, writing = os.pipe()

        def append_and_tell():
            log = TuningLog(str(path))
            for at in range(first, first + count):
                log.append(trial(at, at + 1))
                os.write(writing, f"{at}\n".encode())

        self.process = forked(append_and_tell)
        os.close(writing)
        self._acknowledged = os.fdopen(reading)

    def next(self):
        return int(self._acknowledged.readline())

    def end(self, kill=False):
        """Wait for the process, or kill it; return what it reported besides `next`."""
        if kill:
            os.kill(self.process, signal.SIGKILL)
        reported = [int(line) for line in self._acknowledged.read().splitlines(keepends=True) if line[-1] == "\n"]
        os.waitpid(self.process, 0)
        self._acknowledged.close()
        return reported


def numbers(log):
    """Return the candidates in a log, sorted."""
    return sorted(record.candidate.body["mb"] for record in log if record.type == "trial")
