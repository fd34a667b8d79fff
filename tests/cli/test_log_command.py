"""`tvmtarget log`: the output and exit code of every command."""

import io
import json
import sqlite3
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "autotune"))

from logs import MATMUL, ZNVER4, known, trial
from test_importers import CUDA, LLVM, TRACE, autotvm_line, database

from tvmtarget import TuningLog
from tvmtarget.autotune.log.records import Workload

TARGET = str(ZNVER4)


SYSTEM = f"[cpu={TARGET}](host=@cpu)"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.db"
    with TuningLog(str(path)) as opened:
        opened.extend([*known(ZNVER4), trial(1, 1000), trial(2, 900)])
    return path


def lines_of(log):
    with TuningLog(str(log)) as opened:
        return list(opened.lines())


def test_stats_count(cli, log):
    code, out, _ = cli("log", "stats", log)
    assert (code, out.splitlines()[1:]) == (
        0,
        [
            "lines: 1 env, 1 target, 2 trial, 1 workload",
            "trials: 2 ok",
            "names: 2 candidates, 0 retracted, 1 target, 1 workload",
            "bad lines: 0",
        ],
    )
    assert json.loads(cli("log", "stats", log, "--json")[1])["trials"] == {"ok": 2}


@pytest.mark.parametrize("workload", [MATMUL.key, "w1:", json.dumps(MATMUL.body)])
def test_lookup_explains(cli, log, workload):
    code, out, _ = cli("log", "lookup", log, workload, "-t", TARGET)
    assert code == 0
    assert out.startswith(
        f"kernel matmul[128,128,128] on {TARGET} -> EXACT: {trial(2, 900).digest} on {TARGET}, 900 ps"
    )
    data = json.loads(cli("log", "lookup", log, workload, "-t", TARGET, "--json")[1])
    assert (data["tier"], data["candidate"]["body"]) == ("exact", {"mb": 2})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["lookup", "{log}", "w1:ff", "-t", "llvm"],
            "error: no workload of the log with a key that starts with 'w1:ff'",
        ),
        (["lookup", "{log}", "w1:", "-t", "cuda", "--require", "near", "--top", "2"], "a match of tier 'near' is"),
        (["stats", "sqlite:none"], "error: there is no log 'sqlite:none'"),
        (["export", "{log}", "new.db"], "error: lines go to a file such as NAME.jsonl, not to 'new.db'"),
        (["lookup", "{log}", "{{", "-t", "llvm"], "is not the body of a workload"),
        (["lookup", "{log}", "w1:", "-t", "llvmm"], "error: unknown kind 'llvmm'; did you mean 'llvm'"),
        (["lookup", "{log}", "w1:", "-t", "cuda", "--require", "near"], "error: a match of tier 'near' is required:"),
        (["stats", "none.jsonl"], "error: there is no log 'none.jsonl'"),
        (["retract", "{log}", "d1:zz", "--why", "x"], "error: no line of"),
        (["import", "{log}", "none.log"], "error: no file 'none.log'"),
        (["import", "{log}", "{log}"], "is a log of this library, of which `tvmtarget log merge` adds the records"),
        (["export", "{log}", "/no/such/place.jsonl"], "error: '/no/such/place.jsonl' cannot be written"),
    ],
)
def test_each_error_is_one_line(cli, log, words, message):
    code, _, err = cli("log", *(word.format(log=log) for word in words))
    assert code == 1
    assert message in err


@pytest.mark.parametrize("words", [["log", "merge", "memory:"], ["tune", "x.onnx", "-t", "llvm", "--log", "memory:"]])
def test_no_command_writes_to_a_log_that_ends_with_it(cli, log, words):
    code, _, err = cli(*words, *([log] if "merge" in words else []))
    assert (code, err.startswith("error: 'memory:' ends with this command")) == (2, True)


def test_merge_export_and_diff(cli, log, tmp_path):
    other, out = tmp_path / "other.db", tmp_path / "out.jsonl.gz"
    TuningLog(str(other)).extend([*known(ZNVER4), trial(3, 100)])
    assert cli("log", "merge", tmp_path / "new.db", log, other)[1] == "6 new lines\n"
    assert cli("log", "export", tmp_path / "new.db", out)[1] == f"6 lines written to {out}\n"
    code, _, err = cli("log", "export", tmp_path / "new.db", tmp_path / "none.jsonl", "--target-family", "hexagon")
    assert (code, "may be carried over to 'hexagon'" in err, (tmp_path / "none.jsonl").exists()) == (1, True, False)
    code, printed, _ = cli("log", "export", tmp_path / "new.db", out, "--target-family", SYSTEM)
    assert (code, printed) == (0, f"6 lines written to {out}\n")
    cli("log", "export", tmp_path / "new.db", out)
    assert cli("log", "diff", out, tmp_path / "new.db") == (0, "0 lines only in the first, 0 only in the second\n", "")
    code, printed, _ = cli("log", "diff", log, other)
    assert code == 1
    assert printed.splitlines()[1].endswith(f"{trial(2, 900).digest} -> {trial(3, 100).digest}, 0.111 of the cost")
    code, printed, _ = cli("log", "diff", log, other, "--json")
    data = json.loads(printed)
    assert (code, len(data["only_left"]), data["only_right"]) == (1, 2, [trial(3, 100).digest])
    assert data["changed"][0]["right"] == trial(3, 100).digest


def test_import_prints_rejected_lines(cli, log, tmp_path):
    (tmp_path / "a.log").write_text(f"{autotvm_line()}\n[]\n")
    records = [[0, [TRACE, [0.001], LLVM, []]], [0, [TRACE, [0.001], CUDA, []]]]
    folder = database(tmp_path / "db", [b"p"], records)
    code, out, err = cli("log", "import", tmp_path / "new.db", tmp_path / "a.log", folder)
    assert (code, out.count("records new")) == (0, 2)
    assert f"warning: {tmp_path / 'a.log'}: line 2 (byte {len(autotvm_line()) + 1}): a record of AutoTVM" in err
    assert cli("log", "import", tmp_path / "new.db", tmp_path / "a.log", "--strict")[0] == 1
    out = cli("log", "export", tmp_path / "new.db", tmp_path / "tvm", "--format", "metaschedule")[1]
    assert len(out.splitlines()) == len(list((tmp_path / "tvm").iterdir())) == 2


def test_merge_and_export_warn_about_the_lines_that_they_skip(cli, log, tmp_path):
    lines = tmp_path / "lines.jsonl"
    TuningLog(str(log)).export(lines)
    with lines.open("a") as file:
        file.write("{bad\n")
    for words in (["merge", tmp_path / "new.db", lines], ["export", lines, tmp_path / "out.jsonl"]):
        code, out, err = cli("log", *words)
        assert (code, out[:2]) == (0, "5 ")
        assert err.startswith(f"warning: {lines}: line 6 (byte ")


def test_repair_accepts_the_url_of_a_database(cli, tmp_path):
    path = tmp_path / "log"
    with TuningLog(f"sqlite:{path}") as log:
        log.extend([*known(ZNVER4), trial(1)])
    path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:])
    code, out, _ = cli("log", "repair", f"sqlite:{path}")
    assert (code, "rebuilt with 4 recovered lines" in out) == (0, True)
    assert cli("log", "verify", f"sqlite:{path}")[:2] == (0, "no problems found\n")


def test_verify_and_repair(cli, log):
    assert cli("log", "verify", log) == (0, "no problems found\n", "")
    with sqlite3.connect(log) as connection:
        connection.execute("UPDATE kept SET said = replace(said, '\"mb\":2', '\"mb\":3')")
    connection.close()
    code, out, _ = cli("log", "verify", log)
    assert (code, "record 5: " in out, "it was changed or cut" in out) == (1, True, True)
    code, printed, _ = cli("log", "verify", log, "--json")
    assert (code, json.loads(printed)) == (1, {"url": str(log), "problems": out.splitlines()})
    assert cli("log", "repair", log)[1] == "1 line moved\n"
    assert cli("log", "verify", log)[0] == 0
    log.write_bytes(b"PK")
    assert cli("log", "verify", log)[0] == 2


def test_a_file_of_lines_is_verified_and_its_whole_lines_are_exported(cli, log, tmp_path):
    lines = tmp_path / "lines.jsonl"
    assert cli("log", "export", log, lines)[0] == 0
    assert cli("log", "verify", lines)[0] == 0
    with lines.open("a") as file:
        file.write('{"t":"tri')
    code, out, _ = cli("log", "verify", lines)
    assert (code, "line 6" in out, "cut short" in out) == (1, True, True)
    code, _, err = cli("log", "repair", lines)
    assert (code, "`tvmtarget log export` writes its whole lines to a new file" in err) == (1, True)
    code, _, err = cli("log", "retract", lines, trial(2, 900).digest, "--why", "x")
    assert (code, "is a file of lines, which is only read" in err) == (1, True)
    assert cli("log", "export", lines, tmp_path / "whole.jsonl")[0] == 0
    assert cli("log", "verify", tmp_path / "whole.jsonl")[0] == 0
    lines.write_bytes(b"PK")
    assert cli("log", "verify", lines)[0] == 2


def test_retract_and_compact(cli, log):
    code, out, _ = cli("log", "retract", log, trial(2, 900).digest[:12], "--why", "measured wrongly")
    assert (code, out) == (0, f"{trial(2, 900).digest} retracted\n")
    assert "1 ns" in cli("log", "lookup", log, "w1:", "-t", TARGET)[1]
    assert cli("log", "compact", log, "--best", "1")[1].splitlines()[-1] == "1 trial removed"


def test_lookup_lists_the_best(cli, log):
    code, out, _ = cli("log", "lookup", log, "w1:", "-t", TARGET, "--top", "5")
    assert (code, [line.split(", ")[1] for line in out.splitlines() if "EXACT" in line]) == (0, ["900 ps", "1 ns"])
    data = json.loads(cli("log", "lookup", log, "w1:", "-t", TARGET, "--top", "1", "--json")[1])
    assert [match["candidate"]["body"] for match in data] == [{"mb": 2}]
    assert cli("log", "lookup", log, "w1:", "-t", "cuda", "--top", "1")[1] == "no record\n"


@pytest.mark.parametrize(
    "candidate", [trial(1, 1000).digest[:12], json.dumps({"format": "knobs/1", "body": {"mb": 1}})]
)
def test_a_candidate_is_pinned(cli, log, candidate):
    words = ["w1:", "-t", TARGET, "--candidate", candidate, "--why", "the other one is not stable"]
    code, out, err = cli("log", "pin", log, *words)
    assert (code, out.endswith(" pinned\n")) == (0, True), err
    assert "-> PIN: " in cli("log", "lookup", log, "w1:", "-t", TARGET)[1]


@pytest.mark.parametrize("candidate", ["d1:ff", "d", "{", "{}", '{"format": "x", "body": 1.5}'])
def test_an_invalid_candidate_is_not_pinned(cli, log, candidate):
    before = lines_of(log)
    code, _, err = cli("log", "pin", log, "w1:", "-t", TARGET, "--candidate", candidate, "--why", "x")
    assert (code, err[:7]) == (1, "error: "), err
    assert lines_of(log) == before


def test_a_candidate_of_a_format_that_no_build_reads_is_not_pinned(cli, log):
    workload = Workload.of(MATMUL.body, "graph")
    TuningLog(str(log)).extend([workload])
    candidate = json.dumps({"format": "tvmtarget.settings/1", "body": {}})
    code, _, err = cli("log", "pin", log, workload.key, "-t", TARGET, "--candidate", candidate, "--why", "x")
    expected = "level 'graph' is of format 'tvmtarget.placement/1', not 'tvmtarget.settings/1'"
    assert (code, expected in err) == (1, True), err


def test_lines_are_read_from_and_written_to_pipes(cli, log, tmp_path, monkeypatch):
    lines = cli("log", "export", log, "-")[1]
    assert lines.splitlines() == list(TuningLog(str(log)).lines())
    assert len(cli("log", "export", log, "-", "--best", "1")[1].splitlines()) == 4
    for words in (["merge", tmp_path / "new.db", "-"], ["verify", "-"], ["diff", "-", log]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        assert cli("log", *words)[0] == 0
    assert not TuningLog(str(tmp_path / "new.db")).diff(TuningLog(str(log)))
    for piped, answer in ((lines, (0, "-\n", "")), ("no log", (1, "", "error: '-' is not a tuning log: line 1"))):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped.encode())))
        code, out, err = cli("log", "stats", "-")
        assert (code, out[:2], err[: len(answer[2])]) == answer


def test_a_kernel_is_looked_up_and_pinned_on_the_only_leaf_of_a_system(cli, log):
    assert "-> EXACT" in cli("log", "lookup", log, "w1:", "-t", SYSTEM)[1]
    assert cli("log", "lookup", log, "w1:", "-t", "aws/c5")[0] == 0
    words = "--candidate", trial(1, 1000).digest, "--why", "stable"
    assert cli("log", "pin", log, "w1:", "-t", SYSTEM, *words)[0] == 0
    for target in (TARGET, SYSTEM):
        assert "-> PIN: " in cli("log", "lookup", log, "w1:", "-t", target)[1]


def test_a_kernel_is_not_pinned_on_a_system_of_several_leaves(cli, log):
    before = lines_of(log)
    for words in (["lookup", log, "w1:"], ["pin", log, "w1:", "--candidate", trial(1, 1000).digest, "--why", "x"]):
        code, _, err = cli("log", *words, "-t", "nvidia/jetson-nano")
        assert (code, "name one: nvidia/jetson-nano:gpu or nvidia/jetson-nano:cpu" in err) == (1, True), err
    assert lines_of(log) == before


def test_an_export_for_tvm_without_records_gives_the_reason(cli, log, tmp_path):
    code, out, err = cli("log", "export", log, tmp_path / "tvm", "--format", "metaschedule")
    assert (code, out, (tmp_path / "tvm").exists()) == (1, "", False)
    assert err.splitlines() == [
        "error: no record of the log can be written for MetaSchedule",
        "error: 2 trials: MetaSchedule replays candidates of format 'tvm.ms.trace/1', not 'knobs/1'",
    ]
    TuningLog(str(tmp_path / "empty.db")).append(known(ZNVER4)[0])
    assert cli("log", "export", tmp_path / "empty.db", tmp_path / "tvm", "--format", "metaschedule")[0] == 1


def test_an_export_for_tvm_counts_the_trials_that_it_skips(cli, log, tmp_path):
    folder = database(tmp_path / "db", [b"p"], [[0, [TRACE, [0.001], LLVM, []]]])
    assert cli("log", "import", log, folder)[0] == 0
    code, out, err = cli("log", "export", log, tmp_path / "tvm", "--format", "metaschedule")
    assert (code, len(out.splitlines())) == (0, 1)
    assert err == "not exported: 2 trials: MetaSchedule replays candidates of format 'tvm.ms.trace/1', not 'knobs/1'\n"


def test_an_import_fails_if_every_line_is_rejected(cli, tmp_path):
    (tmp_path / "a.log").write_text("[]\n")
    code, _, err = cli("log", "import", tmp_path / "new.db", tmp_path / "a.log")
    assert (code, err.splitlines()[-1]) == (1, "error: nothing was imported: every line was rejected")
    (tmp_path / "a.log").write_text("[]\n" * 9)
    assert (
        f"warning: {tmp_path / 'a.log'}: 4 more lines rejected\n"
        in cli("log", "import", tmp_path / "b.db", tmp_path / "a.log")[2]
    )


def test_an_import_of_a_log_of_this_library_names_merge(cli, log, tmp_path):
    cli("log", "export", log, tmp_path / "lines.jsonl")
    for source in (log, tmp_path / "lines.jsonl"):
        assert "of which `tvmtarget log merge` adds the records" in cli("log", "import", tmp_path / "new.db", source)[2]


def test_an_import_of_a_missing_file_creates_no_log(cli, tmp_path):
    code, _, err = cli("log", "import", tmp_path / "new.db", tmp_path / "absent.json")
    assert (code, err) == (1, f"error: no file '{tmp_path / 'absent.json'}'\n")
    assert not (tmp_path / "new.db").exists()


def test_an_unknown_tier_is_misuse(cli, log):
    code, _, err = cli("log", "lookup", log, "w1:", "-t", "cuda", "--require", "nearer")
    assert (code, "error: unknown --require 'nearer'; did you mean" in err) == (2, True)


@pytest.mark.parametrize("words", [["--strict"], ["--max-distance", "1"]])
def test_the_list_of_records_takes_no_policy(cli, log, words):
    code, _, err = cli("log", "lookup", log, MATMUL.key, "-t", "llvm", "--top", "2", *words)
    assert (code, err) == (2, f"error: --top lists all records of this target; omit {words[0]}\n")


def test_a_line_is_not_retracted_or_pinned_without_a_reason(cli, log):
    before = lines_of(log)
    digest = trial(2, 900).digest
    for words in (
        ["retract", log, digest],
        ["pin", log, MATMUL.key, "-t", TARGET, "--candidate", digest],
    ):
        code, _, err = cli("log", *words, "--why", " ")
        assert (code, err) == (1, "error: the reason (why, --why) is empty; write one for readers of the log\n")
    assert lines_of(log) == before


def test_a_database_for_tvm_is_a_folder(cli, log, tmp_path):
    code, _, err = cli("log", "export", log, "-", "--format", "metaschedule")
    assert (code, err) == (2, "error: '-' needs --format lines; --format metaschedule writes folders\n")
