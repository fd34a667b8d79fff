"""Logs of AutoTVM and MetaSchedule: every line becomes a record or is rejected with a reason, once and for all."""

import base64
import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tvmtarget import Target, TuningLog
from tvmtarget.autotune.log.importers.autotvm import import_autotvm
from tvmtarget.autotune.log.importers.metaschedule import RECORDS, WORKLOADS, export_metaschedule, import_metaschedule
from tvmtarget.autotune.log.records import Alias, Candidate, Measurement, Retraction, Trial, Workload
from tvmtarget.errors import LogError

ROOT = Path(__file__).parents[2]


def autotvm_line(target="cuda -model=1080ti", size=56, cost=0.001, error=0, **changes):
    task = ["conv2d_nchw.cuda", [["TENSOR", [1, 64, size, size], "float32"], [1, 1], None, "float32"], {}]
    line = {
        "input": [target, *task],
        "config": {"index": size, "code_hash": None, "entity": [["tile_f", "sp", [-1, 4, 8]], ["unroll", "ot", 512]]},
        "result": [[cost, cost * 1.1], error, 1.9, 1563000000.5],
        "version": 0.2,
        "tvm_version": "0.6.dev",
    }
    return json.dumps(line | changes)


def trials(log):
    return [record for record in log if isinstance(record, Trial)]


def test_records_of_autotvm_are_found_under_the_target_of_today(tmp_path):
    path = tmp_path / "cuda.log"
    path.write_text("\n".join(["# a comment", autotvm_line(), autotvm_line(size=28), autotvm_line(error=4), ""]))
    log = TuningLog("memory:")
    assert str(import_autotvm(log, path)) == "3 lines read, 7 records new, 0 lines rejected"
    assert str(import_autotvm(log, path)) == "3 lines read, 0 records new, 0 lines rejected"
    workload = next(record for record in log if isinstance(record, Workload))
    match = log.lookup(workload, Target.parse("cuda(model=1080ti)"))
    assert (match.tier, match.record.measured.costs) == ("exact", (1_000_000_000, 1_100_000_000))
    assert json.loads(match.candidate.body)["entity"][0] == ["tile_f", "sp", [-1, 4, 8]]
    assert log.lookup(workload, Target.parse("cuda(model=v100)")).tier == "near"
    assert log.lookup(workload, Target.parse("opencl")).tier == "default"
    assert sorted(trial.measured.status for trial in trials(log)) == ["ok", "ok", "run_error"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("opencl -model=rk3399 -device=mali", "opencl -device=mali -model=rk3399"),
        ("llvm -device=arm_cpu -model=rk3399 -target=aarch64-linux-gnu",
         "llvm -keys=arm_cpu,cpu -device=arm_cpu -model=rk3399 -mtriple=aarch64-linux-gnu"),
        ("llvm -mcpu=core-avx2", "llvm -keys=cpu -link-params=0 -mcpu=core-avx2"),
        ("cuda -model=v100", "cuda -keys=cuda,gpu -max_num_threads=1024 -model=v100 -thread_warp_size=32"),
    ],
)  # fmt: skip
def test_two_spellings_of_one_target_are_one_key(tmp_path, one, other):
    path = tmp_path / "a.log"
    path.write_text(f"{autotvm_line(one)}\n{autotvm_line(other, cost=0.5)}\n")
    log = TuningLog("memory:")
    import_autotvm(log, path)
    workload = next(record for record in log if isinstance(record, Workload))
    (match,) = log.top_k(workload, Target.from_tvm(other), 5)
    assert len(trials(log)) == 2
    assert match.record.measured.cost in (10**9, 5 * 10**11)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[]", "a record of AutoTVM is an object, not []"),
        ("{", "not JSON"),
        (autotvm_line(version=0.1), "has version 0.2, not 0.1"),
        (autotvm_line(error=17), "the number of an error is 0 to 8, not 17"),
        (autotvm_line(cost=1e9), "a measurement without an error has costs"),
        (autotvm_line(result=[["a"], 0, 1, 1]), "costs are a list of seconds, not ['a']"),
        (autotvm_line(result=[]), "'result' of a record of AutoTVM is a list of 4, not []"),
        (autotvm_line(config=[]), "and an object in 'config'"),
        (autotvm_line(target="cuda -ball=1"), "kind 'cuda' has no attribute 'ball'"),
        (autotvm_line(result=[[1e7], 0, 1, 1]), "is at most"),
        ("[" * 5000, "the JSON is nested too deeply"),
        (autotvm_line(target='{"kind":'), "expected JSON"),
        (autotvm_line(target='{"kind": "composite", "devices": [{"kind": "llvm"}, {"kind": "c"}]}'), "on one device"),
        (autotvm_line(cost=0.0), "costs are seconds, and more than none, not [0.0"),
        (autotvm_line(config={"entity": "x" * 2**19, "index": "é" * 2**18}), "has at most 1048576"),
        (autotvm_line(config={"entity": '"' * 300_000}), "its trial has more than 1048576 bytes"),
    ],
)
def test_a_line_of_autotvm_that_says_nothing_is_rejected_with_its_place(tmp_path, line, reason):
    path = tmp_path / "a.log"
    path.write_text(f"{autotvm_line()}\n{line}\n{autotvm_line(size=7)}")
    log = TuningLog("memory:")
    outcome = import_autotvm(log, path)
    (rejected,) = outcome.rejected
    assert (rejected.number, rejected.offset, outcome.read) == (2, len(autotvm_line()) + 1, 3)
    assert reason in rejected.problem
    assert len(trials(log)) == 2


@pytest.mark.parametrize("name", ["a.log", "a.log.gz"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
def test_a_file_is_unpacked_if_it_is_packed_whatever_its_name(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(f"{autotvm_line()}\r\n".encode()))
    assert import_autotvm(TuningLog("memory:"), tmp_path / name).added == 4


def test_p13_mutated_lines_of_autotvm_are_accepted_or_rejected_and_nothing_else(tmp_path):
    rng = random.Random(3)
    whole = autotvm_line().encode()
    lines = []
    for _ in range(400):
        line = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            line[rng.randrange(len(line))] = rng.choice(b'{}[]",:0123456789.-eabc \x00\xff')
        lines.append(bytes(line).replace(b"\n", b""))
    path = tmp_path / "a.log"
    path.write_bytes(b"\n".join(lines))
    log = TuningLog("memory:")
    outcome = import_autotvm(log, path)
    assert outcome.read == 400
    assert import_autotvm(log, path).added == 0
    assert 0 < len(trials(log)) <= 400 - len(outcome.rejected) < 400


TRACE = [[["GetBlock", [], ["C", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2"]]], [[0, [4, 32]]]]
LLVM = {"kind": "llvm", "keys": ["cpu"], "tag": "", "mcpu": "znver4", "num-cores": 4}
CUDA = {"kind": "cuda", "keys": ["cuda", "gpu"], "tag": "", "arch": "sm_80", "thread_warp_size": 32}
ARGS = [["TENSOR", "float32", [8, 8]]]


def database(folder, programs, records):
    """Write the two files of MetaSchedule."""
    folder.mkdir()
    encoded = [[str(at), base64.b64encode(program).decode()] for at, program in enumerate(programs)]
    (folder / WORKLOADS).write_text("".join(f"{json.dumps(one)}\n" for one in encoded))
    (folder / RECORDS).write_text("".join(f"{json.dumps(one)}\n" for one in records))
    return folder


def test_p6_positions_of_metaschedule_end_with_their_file(tmp_path):
    """Two databases in which position 0 is another program are four workloads once they are records."""
    log = TuningLog("memory:")
    for name in ("one", "two"):
        programs = [f"{name} {at}".encode() for at in range(2)]
        records = [[at, [TRACE, [0.001 * (at + 1)], LLVM, ARGS]] for at in range(2)]
        import_metaschedule(log, database(tmp_path / name, programs, records))
    workloads = [record for record in log if isinstance(record, Workload)]
    assert len(workloads) == 4
    costs = [log.lookup(workload, Target.from_tvm(LLVM)).record.measured.cost for workload in workloads]
    assert sorted(costs) == [10**9, 10**9, 2 * 10**9, 2 * 10**9]


def test_a_database_of_metaschedule_is_imported_once_and_what_failed_is_no_candidate(tmp_path):
    records = [
        [0, [TRACE, [0.002], LLVM, ARGS]],
        [0, [TRACE, [1e10], LLVM, ARGS]],
        [0, [TRACE, None, CUDA, ARGS]],
        [7, [TRACE, [0.002], LLVM, ARGS]],
        [0, [TRACE, [0.002], {"kind": "crystal", "ball": 1.5}, ARGS]],
        [0, "nonsense"],
        *([0, [trace, [0.001], LLVM, ARGS]] for trace in (None, [], [[], [], []], [[["Split"]], []], [[], [3]])),
        [0, [TRACE, [0.0], LLVM, ARGS]],
        [1, [TRACE, [0.1], LLVM, ARGS]],
    ]
    folder = database(tmp_path / "db", [b"a program"], records)
    with (folder / WORKLOADS).open("a") as file:
        file.write('["\\ud800","YQ=="]\n')
    log = TuningLog("memory:")
    outcome = import_metaschedule(log, folder)
    assert [line.number for line in outcome.rejected] == [2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert outcome.rejected[1].problem == "there is no workload 7; the other file has 2"
    assert outcome.rejected[-1].problem == "workload 1: its workload was rejected"
    assert import_metaschedule(log, folder).added == 0
    assert sorted(trial.measured.status for trial in trials(log)) == ["infra_error", "infra_error", "ok"]
    with pytest.raises(LogError, match="no file "):
        import_metaschedule(log, tmp_path / "none")


def test_an_export_has_only_what_tvm_can_read_and_the_names_that_a_log_knows(tmp_path):
    """Others' candidates, targets that no TVM has, damaged fields and chains of names do not hold it up."""
    log = TuningLog("memory:")
    import_metaschedule(log, database(tmp_path / "db", [b"a program"], [[0, [TRACE, [0.002], LLVM, ARGS]]]))
    target, body = Target.from_tvm(LLVM), json.dumps([[["GetLoops", ["b0"], [], ["l1"]]], []])
    (workload,) = log.workloads()
    ran = Measurement(status="ok", costs=[10])
    for number in range(30):
        log.add(workload, target, Candidate(format="knobs/1", body={"mb": number}), ran)
    log.add(workload, target, Candidate(format="tvm.ms.trace/1", body="[3]"), ran)
    log.add(workload, Target.parse("onnxruntime"), Candidate(format="knobs/1", body=1), ran)
    log.add(Workload.of({"op": "x"}, payload={"format": "tvm.ir.json"}), target, Candidate(format="k", body=1), ran)
    odd = Trial(
        **{
            **trials(log)[0].model_dump(by_alias=True),
            "src": {"rest": "]]"},
            "cand": {"format": "tvm.ms.trace/1", "body": body},
        }
    )
    names = [("GetLoops", "GetRings"), ("GetSBlock", "GetTBlock"), ("GetTBlock", "GetSBlock"), ("GetLoops", "No")]
    aliases = [Alias(kind="inst", old=old, new=new) for old, new in names]
    log.extend([odd, *aliases, Retraction(of=aliases[-1].digest, why="no such thing")])
    (folder,) = export_metaschedule(log, tmp_path / "out", best=2).values()
    written = [json.loads(line) for line in (folder / RECORDS).read_text().splitlines()]
    instructions = sorted([one[0] for one in record[1][0][0]] for record in written)
    assert instructions == [["GetRings"], ["GetTBlock", "GetRings"]]
    assert [record[1][2]["kind"] for record in written] == ["llvm", "llvm"]
    (tmp_path / "file").touch()
    with pytest.raises(LogError, match="cannot be made: Not a directory"):
        export_metaschedule(log, tmp_path / "file")


def test_an_export_has_a_database_for_each_device_with_names_of_today(tmp_path):
    records = [
        [0, [TRACE, [0.002], LLVM, ARGS]],
        [0, [[[["GetSBlock", [], ["B", "main"], ["b0"]]], []], [0.001], LLVM | {"opt-level": 2}, ARGS]],
        [0, [TRACE, [0.000001], CUDA, ARGS]],
    ]
    log = TuningLog("memory:")
    import_metaschedule(log, database(tmp_path / "db", [b"a program"], records))
    folders = export_metaschedule(log, tmp_path / "out")
    assert sorted(folders) == sorted({Target.from_tvm(LLVM).tuning_key(), Target.from_tvm(CUDA).tuning_key()})
    for key, cost, name in ((LLVM, 0.001, "B"), (CUDA, 0.000001, "C")):
        folder = folders[Target.from_tvm(key).tuning_key()]
        (line,) = (folder / RECORDS).read_text().splitlines()
        at, (trace, costs, target, args) = json.loads(line)
        assert (at, costs, target["kind"], args) == (0, [cost], key["kind"], ARGS)
        assert trace[0][0][:3] == ["GetSBlock", [], [name, "main"]]
    log.append(Alias(kind="inst", old="GetLoops", new="ListLoops"))
    folder = export_metaschedule(log, tmp_path / "later")[Target.from_tvm(CUDA).tuning_key()]
    assert [one[0] for one in json.loads((folder / RECORDS).read_text())[1][0][0]] == ["GetSBlock", "ListLoops"]
    again = TuningLog("memory:")
    import_metaschedule(again, folders[Target.from_tvm(CUDA).tuning_key()])
    (trial,) = trials(again)
    assert trial.measured.cost == 10**6


TVM = """
import sys, json
import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms
from tvmtarget import Target, TuningLog
from tvmtarget.autotune.log.importers.metaschedule import *
from tvmtarget.autotune.log.records import Workload
folder = sys.argv[1]

def program(name, mark):
    A, B = (te.placeholder((64, 64), name=name) for name in "AB")
    k = te.reduce_axis((0, 64), name="k")
    C = te.compute((64, 64), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    f = te.create_prim_func([A, B, C]).with_attr("global_symbol", name)
    return tvm.IRModule({"main": f.with_attr("op_pattern", 4) if mark else f})

database = ms.database.JSONDatabase(folder + "/database_workload.json", folder + "/database_tuning_record.json")
measured = (("main", 0.002, {"kind": "llvm", "mcpu": "znver4"}), ("other", 0.000001, {"kind": "cuda", "arch": "sm_80"}))
for name, cost, target in measured:
    module = program(name, name == "other")
    schedule = tvm.s_tir.Schedule(module)
    loops = schedule.get_loops(schedule.get_sblock("C"))
    schedule.split(loops[0], [None, 8 if name == "main" else 16])
    workload = database.commit_workload(module)
    arguments = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    target = tvm.target.Target(target)
    database.commit_tuning_record(ms.database.TuningRecord(schedule.trace, workload, [cost], target, arguments))
log = TuningLog("memory:")
import_metaschedule(log, folder)
print(len({record.key for record in log if isinstance(record, Workload)}))
folders = export_metaschedule(log, folder + "/out")
for target, (_, _, device) in zip(("llvm(mcpu=znver4)", "cuda(arch=sm_80)"), measured):
    place = str(folders[Target.parse(target).tuning_key()])
    exported = ms.database.JSONDatabase(place + "/database_workload.json", place + "/database_tuning_record.json")
    (record,) = exported.get_all_tuning_records()
    print(record.target.kind.name, float(record.run_secs[0]), "8" in str(record.trace))
    found = exported.query_tuning_record(program("main", False), tvm.target.Target(device), "main")
    print("found", found.target.kind.name, float(found.run_secs[0]))
"""


@pytest.mark.slow
def test_tvm_reads_the_export_and_marks_on_a_program_do_not_part_its_records(tmp_path):
    pytest.importorskip("tvm")
    done = subprocess.run([sys.executable, "-c", TVM, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "1\nllvm 0.002 True\nfound llvm 0.002\ncuda 1e-06 False\nfound cuda 1e-06\n", done.stderr[
        -2000:
    ]


WITHOUT_TVM = """
import sys
sys.modules["tvm"] = None
import importlib.util
importlib.util.find_spec = lambda name, find=importlib.util.find_spec: None if name == "tvm" else find(name)
from tvmtarget import TuningLog
from tvmtarget.autotune.log.importers.metaschedule import *
log = TuningLog("memory:")
print(import_metaschedule(log, sys.argv[1]))
print(import_metaschedule(log, sys.argv[1]))
print(len(export_metaschedule(log, sys.argv[1] + "/out")))
"""


def test_a_database_is_taken_in_and_given_out_where_tvm_is_not_installed(tmp_path):
    folder = database(tmp_path / "db", [b"one", b"two"], [[at, [TRACE, [0.002], LLVM, ARGS]] for at in (0, 1, 2)])
    command = [sys.executable, "-c", WITHOUT_TVM, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "5 lines read, 6 records new, 1 line rejected",
        "5 lines read, 0 records new, 1 line rejected",
        "1",
    ], done.stderr[-2000:]


def test_p13_mutated_databases_of_metaschedule_are_accepted_or_rejected_and_nothing_else(tmp_path):
    rng = random.Random(5)
    records = [f"{json.dumps([0, [TRACE, [0.001 * at], LLVM, ARGS]])}".encode() for at in range(1, 200)]
    for at, line in enumerate(records):
        changed = bytearray(line)
        changed[rng.randrange(len(line))] = rng.choice(b'{}[]",:0123456789.-eabc \x00\xff')
        records[at] = bytes(changed)
    folder = database(tmp_path / "db", [b"a program"], [])
    (folder / RECORDS).write_bytes(b"\n".join(records))
    log = TuningLog("memory:")
    outcome = import_metaschedule(log, folder)
    assert outcome.read == 200
    assert len(trials(log)) == 199 - len(outcome.rejected) > 0
    lines = (folder / RECORDS).read_bytes()
    assert all(lines[line.offset - 1 : line.offset] in (b"\n", b"") and line.problem for line in outcome.rejected)
    assert import_metaschedule(log, folder).added == 0
