"""What the tests of tuning logs are made of: a workload, targets, trials."""

from tvmtarget import Target
from tvmtarget.target.identity import identity_of
from tvmtarget.tuning.records import Candidate, Environment, Measurement, TargetRecord, Trial, Workload

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
