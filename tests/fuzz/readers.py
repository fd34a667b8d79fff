"""Every reader of files and texts of others, with small inputs that the library itself writes, to be changed at random.

    python tests/fuzz/readers.py NAME [--seconds 60] [--seed 1]

The law: a reader returns, or raises a `TvmTargetError`, in bounded time and memory. What breaks it is kept in
`tests/fuzz/crashes/NAME/`, and is read again by every run of the tests. With atheris installed, coverage guides the
changes of the command above; without, inputs are changed at random.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
import resource
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import onnx

try:
    import atheris
except ImportError:
    atheris = None

import tvmtarget as tt
from tvmtarget.artifact import MODULE, PROGRAM, write_files
from tvmtarget.autotune.log.importers.autotvm import import_autotvm
from tvmtarget.autotune.log.importers.metaschedule import RECORDS, WORKLOADS, import_metaschedule
from tvmtarget.autotune.log.records import Candidate, Environment, Measurement, TargetRecord, Trial, Workload
from tvmtarget.errors import TvmTargetError
from tvmtarget.partition.costs.cost_file import load_costs
from tvmtarget.support.decorators import from_op_table
from tvmtarget.tags.registry import Registry
from tvmtarget.target.detection.machine import Machine

ROOT = Path(__file__).parents[2]
CRASHES = Path(__file__).with_name("crashes")
MAX_SECONDS = 5.0  # of processor time, for one input
MAX_MEGABYTES = 500  # above what was there before

TOKENS = [
    b"", b"null", b"NaN", b"1e999", b"-1", b"0", b"true", b"9" * 400, str(2**31).encode(), str(2**63).encode(), b"[",
    b"]",
    b"{", b"}", b'"', b"\\u0000", b"\\ud800", b"\x00", b"\xff", b"\n", b",", b"=", b"(", b"@", b"..", b"../x",
    b"\x1b[31m", "é😀".encode(), b"[" * 300, b'{"a":' * 300,
]  # fmt: skip


class Reader(NamedTuple):
    """A reader: bytes that it reads, and a function that reads bytes; files are made in the folder it is given."""

    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], object]


def changed(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """Return bytes with some of them changed."""
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((1, 1, 2, 8, 64)))
        match chance.randrange(7):
            case 0:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
            case 1:
                data = data[:at] + data[end:]
            case 2:
                data = data[:at] + data[at:end] * chance.choice((2, 3, 50)) + data[end:]
            case 3:
                data = data[:at] + chance.choice(TOKENS) + data[end:]
            case 4:
                other = chance.choice(others)
                begin = chance.randrange(len(other) + 1)
                data = data[:at] + other[begin : begin + chance.choice((4, 32, 256))] + data[end:]
            case 5:
                data = data[:at] if chance.random() < 0.2 else data[:at] + chance.choice(TOKENS) + data[at:]
            case _:
                data = (
                    data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :] if at < len(data) else b""
                )
    return data


def text(data: bytes) -> str:
    """Return bytes as text; what is no UTF-8 becomes half of a surrogate pair, as on a command line."""
    return data.decode("utf-8", "surrogateescape")


# Seeds


@cache
def module() -> tt.IRModule:
    """Return a small program with a constant and a body in a body."""
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node
    body = onnx.helper.make_graph([node("Neg", ["y"], ["n"])], "body", [], [info("n", onnx.TensorProto.FLOAT, [4])])
    graph = onnx.helper.make_graph(
        [node("Add", ["x", "w"], ["y"], name="add"), node("If", ["c"], ["z"], then_branch=body, else_branch=body)],
        "small",
        [info("x", onnx.TensorProto.FLOAT, [4]), info("c", onnx.TensorProto.BOOL, [])],
        [info("z", onnx.TensorProto.FLOAT, [4])],
        [onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [4], [1, 2, 3, 4])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return tt.IRModule.from_onnx(model).with_target(tt.Target.parse("[a=numpy,b=llvm]"))


@cache
def folder() -> Path:
    """Return a folder with a saved program, module, plan and log."""
    path = Path(tempfile.mkdtemp(prefix="fuzz-"))
    tt.build(module(), "numpy").save(path / "program.tta")
    module().save(path / "module.tvmm")
    tt.decompose(module(), "[a=numpy,b=llvm]").save(path / "plan.tvmp")
    with tt.TuningLog(path / "log.db") as log:
        log.extend(records())
        log.export(path / "log.jsonl")
    return path


def records() -> list[object]:
    """Return records of each sort that tuning writes."""
    from tvmtarget.target.identity import identity_of

    target = tt.Target.parse("llvm(mcpu=znver4,num-cores=16)")
    workload = Workload.of({"op": "matmul", "shapes": [[128, 128, 128]], "dtype": "float32"})
    environment = Environment.of({"tool": "tests"})
    measured = Measurement(status="ok", kind="search", costs=(1000,), baseline={"costs": [10_000]})
    trial = Trial(
        level=workload.level, workload=workload.key, target=target.digest, ts=1_700_000_000, measured=measured,
        candidate=Candidate(format="knobs/1", body={"mb": 1}), env=environment.key,
    )  # fmt: skip
    return [TargetRecord(key=target.digest, body=identity_of(target)), workload, environment, trial]


def autotvm_line() -> bytes:
    """Return a record as AutoTVM writes it."""
    task = ["conv2d_nchw.cuda", [["TENSOR", [1, 64, 56, 56], "float32"], [1, 1], None, "float32"], {}]
    line = {
        "input": ["cuda -model=1080ti", *task],
        "config": {"index": 1, "code_hash": None, "entity": [["tile_f", "sp", [-1, 4, 8]]]},
        "result": [[0.001], 0, 1.9, 1563000000.5],
        "version": 0.2,
        "tvm_version": "0.6.dev",
    }
    return json.dumps(line).encode() + b"\n"


TARGETS = [
    b"llvm(mcpu=znver4,num-cores=16,+avx2)", b"[gpu=cuda(arch=sm_53),cpu=llvm](host=@cpu)", b"arm/rasp4b",
    b"cmsis-nn, c",
    b"llvm -mcpu=cortex-a72 -mattr=+neon,+crc", b"cuda -model=unknown -keys=cuda,gpu",
    b'{"kind": "composite", "targets": [{"kind": "llvm", "name": "a", "count": 2}, {"tag": "nvidia/jetson-nano"}]}',
    b'kind = "cuda"\narch = "sm_53"\n[host]\nkind = "llvm"\n', b'[[targets]]\nkind = "llvm"\nname = "x"\n',
]  # fmt: skip
CONSTRAINTS = [b"(@a|@b)?2", b"!cuda&gpu(arch>=sm_53)", b"llvm(num-cores>=4,+avx2)", b'[gpu=cuda,cpu=llvm(mcpu="x")]']
TAGS = b"""schema = 1
[source.own]
cite = "us"
[tag.box]
doc = "a box"
source = ["own"]
confidence = "assumed"
kind = "llvm"
num-cores = 4
aliases = ["crate"]
[family.box.sizes.large]
num-cores = 8
"""
COSTS = {
    "schema": "tvmtarget.cost/1", "unit": "us", "default": {"roofline": 0.5, "launch": 1},
    "sites": {"npu": {"launch": 5, "flops": {"float32": 1e9}, "mem_bw": 1e9, "from": "us"}},
    "links": [{"src": "a", "dst": "b", "latency": 1, "bandwidth": 1e9}],
    "ops": [{"match": {"op": "Conv", "shape": [1, 3]}, "site": "npu", "time": 3}],
}  # fmt: skip


def member_seeds(name: str) -> Callable[[], list[bytes]]:
    """Return a function that returns what a saved file holds, as JSON of texts, one byte for each letter."""

    def seeds() -> list[bytes]:
        with zipfile.ZipFile(folder() / name) as archive:
            files = {info.filename: archive.read(info).decode("latin-1") for info in archive.infolist()}
        return [f"{member}\n{data}".encode("latin-1") for member, data in files.items()]

    return seeds


# Readers


def with_member(name: str, form: str, load: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """Return a function that reads a saved file in which one member is changed, and all digests are right."""

    def read(data: bytes, where: Path) -> object:
        member, _, content = data.partition(b"\n")
        with zipfile.ZipFile(folder() / name) as archive:
            files = {info.filename: archive.read(info) for info in archive.infolist()}
        files[text(member).replace("\0", "")[:200] or "x"] = content
        try:
            facts = json.loads(files.pop("manifest.json"))
        except (ValueError, RecursionError):
            facts = None
        facts = facts if isinstance(facts, dict) else {}
        facts = {str(key): value for key, value in facts.items() if key not in ("format", "schema", "files")}
        path = where / name
        try:
            write_files(path, files, form=form, **facts)
        except (TypeError, ValueError, RecursionError):  # no file can hold this
            return None
        return load(path)

    return read


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """Return a function that writes bytes to a file of a name and reads that."""

    def read_bytes(data: bytes, where: Path) -> object:
        (where / name).write_bytes(data)
        return read(where / name)

    return read_bytes


def read_tags(path: Path) -> None:
    """Read all tags of a folder."""
    registry = Registry(path.parent)
    registry.problems()
    for name in [*registry]:
        if name.startswith("acme/"):
            registry[name]


def read_log(path: Path) -> None:
    """Read, verify and query a log."""
    with tt.TuningLog(path) as log:
        log.verify()
        for record in log:
            str(record)
        for workload in log.workloads():
            log.lookup(workload, tt.Target.parse("llvm"))


def read_metaschedule(data: bytes, where: Path) -> None:
    """Import a database of MetaSchedule: the lines of one file, an empty line, and those of the other."""
    workloads, _, lines = data.partition(b"\n\n")
    (where / WORKLOADS).write_bytes(workloads + b"\n")
    (where / RECORDS).write_bytes(lines)
    import_metaschedule(tt.TuningLog("memory:"), where)


READERS: dict[str, Reader] = {
    "target": Reader(lambda: TARGETS, lambda data, _: tt.Target.parse(text(data))),
    "target-toml": Reader(lambda: TARGETS[-2:], lambda data, _: tt.Target.from_toml(text(data))),
    "constraint": Reader(lambda: CONSTRAINTS, lambda data, _: tt.Constraint.parse(text(data))),
    "tags": Reader(lambda: [TAGS], in_file("acme.toml", read_tags)),
    "costs": Reader(lambda: [json.dumps(COSTS).encode()], in_file("costs.json", load_costs)),
    "op-table": Reader(
        lambda: [b"op,dtypes,constants,max_rank,opsets\nConv,float32,1,4,7-17\n"], in_file("t.csv", from_op_table)
    ),
    "machine": Reader(
        lambda: [
            min((ROOT / "tests/target/machines").glob("*.json"), key=lambda path: path.stat().st_size).read_bytes()
        ],
        lambda data, _: tt.Target.detect(Machine.from_json(text(data))),
    ),
    "module-text": Reader(
        lambda: [str(module()).encode()], lambda data, _: tt.IRModule.parse(text(data), module().constants())
    ),
    "module-json": Reader(
        lambda: [json.dumps(module().to_json()).encode()],
        lambda data, _: tt.IRModule.from_json(text(data), module().constants()),
    ),
    "module-file": Reader(lambda: [(folder() / "module.tvmm").read_bytes()], in_file("m.tvmm", tt.IRModule.load)),
    "module-members": Reader(member_seeds("module.tvmm"), with_member("module.tvmm", MODULE, tt.IRModule.load)),
    "onnx": Reader(lambda: [module().to_onnx().SerializeToString()], lambda data, _: tt.IRModule.from_onnx(data)),
    "program": Reader(lambda: [(folder() / "program.tta").read_bytes()], in_file("p.tta", tt.load)),
    "program-members": Reader(member_seeds("program.tta"), with_member("program.tta", PROGRAM, tt.load)),
    "plan-members": Reader(member_seeds("plan.tvmp"), with_member("plan.tvmp", MODULE, tt.Plan.load)),
    "log-jsonl": Reader(lambda: [(folder() / "log.jsonl").read_bytes()], in_file("l.jsonl", read_log)),
    "log-gz": Reader(
        lambda: [gzip.compress((folder() / "log.jsonl").read_bytes(), mtime=0)], in_file("l.jsonl.gz", read_log)
    ),
    "log-db": Reader(lambda: [(folder() / "log.db").read_bytes()], in_file("l.db", read_log)),
    "autotvm": Reader(
        lambda: [autotvm_line()], in_file("a.log", lambda path: import_autotvm(tt.TuningLog("memory:"), path))
    ),
    "metaschedule": Reader(
        lambda: [b'["1", "e30="]\n\n[0, [[[], []], [0.1], {"kind": "llvm"}, []]]\n'], read_metaschedule
    ),
}


def problem_of(reader: Reader, data: bytes) -> str | None:
    """Return how an input breaks the law, or None."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with tempfile.TemporaryDirectory() as where, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            reader.read(data, Path(where))
        except TvmTargetError as error:
            str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error!s:.200}"
    seconds = time.process_time() - began
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    if seconds > MAX_SECONDS:
        return f"it takes {seconds:.1f} s"
    return f"it takes {megabytes} MB" if megabytes > MAX_MEGABYTES else None


def corpus(name: str) -> list[bytes]:
    """Return the inputs that a reader begins with: its seeds, and what once broke the law."""
    return [*READERS[name].seeds(), *(path.read_bytes() for path in sorted((CRASHES / name).glob("*.bin")))]


def failures(name: str, *, seconds: float, seed: int, most: int = 10**9) -> Iterator[tuple[Path, str]]:
    """Yield inputs that break the law, each with the file where it is kept, until the time or number is spent."""
    reader, known, chance = READERS[name], corpus(name), random.Random(f"{name} {seed}")
    reader.read(known[0], Path(tempfile.mkdtemp()))  # imports are not counted
    end = time.monotonic() + seconds
    for _ in range(most):
        if time.monotonic() > end:
            return
        data = changed(chance.choice(known), known, chance)
        problem = problem_of(reader, data)
        if problem is not None:
            path = CRASHES / name / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            yield path, problem


def main() -> int:
    """Fuzz one reader."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(READERS))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if atheris is not None:
        reader = READERS[given.name]

        def one(data: bytes) -> None:
            problem = problem_of(reader, data)
            if problem is not None:
                raise AssertionError(problem)

        with tempfile.TemporaryDirectory() as seeds:
            for at, data in enumerate(corpus(given.name)):
                (Path(seeds) / str(at)).write_bytes(data)
            atheris.Setup([sys.argv[0], seeds, f"-max_total_time={given.seconds:.0f}", f"-seed={given.seed}"], one)
            atheris.instrument_all()
            atheris.Fuzz()
        return 0
    found = 0
    for path, problem in failures(given.name, seconds=given.seconds, seed=given.seed):
        found += 1
        print(f"{path}: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
