"""The command line: the printed reports, and one line with exit code 1 for bad input."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import DIGITS, EXAMPLES, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.cli.main import main
from tvmtarget.errors import MissingExtraError

NPZ = EXAMPLES / "digits.npz"
MAIN_JOB = ["run", DIGITS, "--input", NPZ, "--target", "composite[ort=onnxruntime,cpu=llvm]", "--where", "op:Gemm=@cpu"]


def test_the_main_job_prints_what_ran_where(cli):
    code, out, err = cli(*MAIN_JOB, "--check", "--json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["notes"] == []
    assert report["accuracy"] > 0.97
    assert report["max_abs_error"] < 1e-4
    assert report["backends"] == ["onnxruntime", "tvm"]
    assert report["copies"] == []
    assert [(subgraph["site"], subgraph["inputs"], subgraph["outputs"]) for subgraph in report["subgraphs"]] == [
        ("ort", ["input"], ["flatten"]),
        ("cpu", ["flatten"], ["fc1"]),
        ("ort", ["fc1"], ["relu4"]),
        ("cpu", ["relu4"], ["logits"]),
    ]
    assert report["subgraphs"][1]["ops"] == ["fc1"]


def test_run_prints_text_for_people(cli):
    code, out, _ = cli(*MAIN_JOB, "--check")
    assert code == 0
    assert "@cpu by tvm: 1 op in cpu_gemm_" in out
    assert "accuracy: 99.56 %" in out


def test_check_fails_above_the_tolerance_after_printing_the_report(cli):
    job = [word.replace("llvm", "llvm(mcpu=x86-64)") if isinstance(word, str) else word for word in MAIN_JOB]
    code, out, err = cli(*job, "--check", "--rtol", "0", "--atol", "0", "--json")
    (output,) = json.loads(out)["check"]["outputs"]
    assert code == 1
    assert output["different"] > 0
    assert (output["name"], output["elements"], output["agrees"]) == ("logits", 4500, False)
    assert err.startswith(f"error: differs from the unpartitioned model: logits: {output['different']} of 4500 values")
    assert cli(*MAIN_JOB, "--check", "--rtol", "0", "--atol", "0.01")[0] == 0
    code, _, err = cli(*MAIN_JOB, "--atol", "1")
    assert (code, err) == (2, "error: --rtol and --atol need --check or --self-test\n")


def test_check_reports_nan_and_infinities(cli, tmp_path):
    model = small(helper.make_node("Log", ["x"], ["y"], name="log"))
    onnx.save(model, tmp_path / "log.onnx")
    np.savez(tmp_path / "x.npz", x=np.array([[-1, -2, 0], [-3, -4, -5]], "float32"))
    words = "run", tmp_path / "log.onnx", "-i", tmp_path / "x.npz", "-t", "numpy", "--check"
    code, out, _ = cli(*words)
    assert code == 0
    assert "compared y: 0 of 6 values differ; 5 NaN expected; 1 infinity expected" in out
    assert "largest difference from the unpartitioned model, run by onnxruntime: none" in out
    found = json.loads(cli(*words, "--json")[1])
    assert (found["max_abs_error"], found["check"]["outputs"][0]["nans"]) == (None, 5)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["compile", DIGITS, "-t", "llvm"], "missing option '--output' / '-o'; see `tvmtarget compile --help`"),
        (["diff", "llvm"], "missing argument 'right'; see `tvmtarget diff --help`"),
        (["explain", DIGITS, "--draw", "svg"], "'svg' is not one of 'dot', 'mermaid'; see `tvmtarget explain --help`"),
        (["run", DIGITS, "--verbose"], "no such option --verbose; see `tvmtarget run --help`"),
        (["run", DIGITS, "--chekc"], "no such option --chekc; did you mean '--check'?"),
        (["bench"], "no such command 'bench'; see `tvmtarget --help`"),
        (["log", "show"], "no such command 'show'; see `tvmtarget log --help`"),
    ],
)
def test_words_that_no_command_has_are_one_line_that_names_the_help(cli, words, problem):
    code, out, err = cli(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    # Older versions of typer write names of arguments in capitals.
    assert err.replace("'RIGHT'", "'right'").endswith(f"{problem}\n")


def test_a_variable_that_is_nearly_one_of_ours_is_a_warning(cli, monkeypatch):
    for name in ("TVMTARGET_MAX_TEXT_BYTE", "TVMTARGET_OF_A_PLUGIN"):
        monkeypatch.setenv(name, "1")
    code, _, err = cli("kinds", "numpy")
    assert code == 0
    assert err.startswith(
        "warning: the environment variable TVMTARGET_MAX_TEXT_BYTE is not read; did you mean 'TVMTARGET_MAX_TEXT_"
    )
    assert "PLUGIN" not in err


def test_help_begins_with_the_target_and_fills_its_lines(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = cli("explain", "--help")
    options = [line.split()[1] for line in out.splitlines() if line.startswith("│ --")]
    assert (code, options[:2]) == (0, ["--target", "--op"])
    assert "With --log and without --costs, the placement that was measured fastest is used, as a build uses" in out


def test_ctrl_c_ends_a_command_with_one_line(cli, monkeypatch):
    def interrupted(_facts):
        raise KeyboardInterrupt

    monkeypatch.setattr(tt.Target, "detect", interrupted)
    assert cli("detect") == (130, "", "error: interrupted\n")


def test_a_library_that_swallows_ctrl_c_is_interrupted_again(cli, monkeypatch):
    monkeypatch.setattr("tvmtarget.cli.graceful_shutdown._REPEAT", 0.05)

    def swallows(_facts):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        threading.Event().wait(60)

    monkeypatch.setattr(tt.Target, "detect", swallows)
    assert cli("detect") == (130, "", "error: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


LOADING = """
import signal, sys
from tvmtarget.__main__ import run

class Interrupting:
    def find_spec(self, name, *_):
        if name == "tvmtarget.cli.main":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
run()
"""


def test_an_interrupt_while_the_command_line_is_loaded_prints_no_traceback():
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_that_a_library_turns_into_another_error_is_no_error_of_it(cli, monkeypatch):
    monkeypatch.setattr("tvmtarget.cli.graceful_shutdown._REPEAT", 0.01)

    def fails(_facts):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as interrupt:
            time.sleep(0.1)  # what handles the exception is not interrupted again
            raise MissingExtraError("onnxruntime", "onnxruntime") from interrupt

    monkeypatch.setattr(tt.Target, "detect", fails)
    assert cli("detect") == (130, "", "error: interrupted\n")


def test_an_export_that_is_refused_leaves_an_earlier_program_as_it_was(cli, tmp_path):
    program = tmp_path / "program.tta"
    program.write_text("an earlier program")
    code, _, err = cli("compile", DIGITS, "--target", "numpy", "-o", program, "--export", tmp_path / "project")
    assert (code, "exports shared libraries only" in err) == (1, True), err
    assert program.read_text() == "an earlier program"
    assert not (tmp_path / "project").exists()


def test_run_reads_a_program_that_compile_wrote(cli, tmp_path):
    code, out, _ = cli("compile", DIGITS, "--target", "demo/rack", "-o", tmp_path / "digits.tta")
    assert code == 0
    assert "1 function by onnxruntime" in out
    code, out, _ = cli("run", tmp_path / "digits.tta", "--input", NPZ, "--json", "--output", tmp_path / "out.npz")
    assert code == 0
    assert json.loads(out)["accuracy"] > 0.97
    with np.load(tmp_path / "out.npz") as stored:
        assert stored["logits"].shape == (450, 10)


def test_copies_are_reported_with_their_bytes(cli):
    code, out, _ = cli("run", DIGITS, "-i", NPZ, "-t", "demo/rack", "--where", "op:Gemm=@node1/ort", "--json")
    copies = json.loads(out)["copies"]
    assert code == 0
    assert [copy["bytes"] for copy in copies] == [450 * 256 * 4, 450 * 64 * 4, 450 * 64 * 4, 450 * 10 * 4]


def test_a_profile_has_the_times_of_a_run_and_of_its_calls_and_copies(cli):
    words = "run", DIGITS, "-i", NPZ, "-t", "demo/rack", "--where", "op:Gemm=@node1/ort", "--profile", 3
    code, out, _ = cli(*words)
    assert code == 0
    assert "a run takes " in out
    assert "s, the median of 3\n  @node0/ort conv1/ort_conv_" in out
    assert "\n  copy flatten from node0:cpu to node1:cpu: " in out
    found = json.loads(cli(*words, "--json")[1])["profile"]
    assert [("call" in part, part["seconds"] > 0) for part in found["parts"]] == [(True, True), (False, True)] * 4


def test_transfers_between_processes_are_reported(cli):
    words = "run", DIGITS, "-i", NPZ, "-t", "demo/rack", "--where", "op:Gemm=@node1/ort"
    code, out, _ = cli(*words, "--runtime", "processes", "--json")
    assert code == 0
    assert [copy["value"] for copy in json.loads(out)["copies"]] == [
        copy["value"] for copy in json.loads(cli(*words, "--json")[1])["copies"]
    ]
    assert "4 copies" in cli(*words, "--runtime", "processes")[1]


def test_explain_uses_given_costs(cli, tmp_path):
    known = (("cpu", 3), ("ort", 30))
    times = [{"match": {"op": "Conv"}, "site": site, "time": us, "from": "log"} for site, us in known]
    board = {"schema": "tvmtarget.cost/1", "ops": times}
    path = tmp_path / "board.json"
    path.write_text(json.dumps(board))
    target = "[ort=onnxruntime,cpu=numpy]"
    code, out, _ = cli("explain", DIGITS, "--target", target, "--costs", path, "--op", "conv1")
    assert code == 0
    assert "conv1 (Conv) runs on @cpu: the program is fastest with it there" in out
    assert "@cpu: yes (chosen); 3 us (stated, log)" in out
    code, out, _ = cli("explain", DIGITS, "--target", target, "--costs", path, "--json")
    assert json.loads(out)["predicted"]["ops"] == 9.0
    path.write_text(json.dumps(board | {"units": "us"}))
    code, _, err = cli("explain", DIGITS, "--target", target, "--costs", path)
    assert (code, "no field 'units'; did you mean 'unit'" in err) == (1, True)


def test_explain_gives_the_reason(cli):
    code, out, _ = cli("explain", DIGITS, "--target", "[ort=onnxruntime,cpu=llvm]", "--where", "op:Gemm=@cpu")
    assert code == 0
    assert out.startswith("11 ops in 4 subgraphs on 2 sites")
    code, out, _ = cli("explain", DIGITS, "--target", "nvidia/jetson-nano", "--op", "conv1")
    assert code == 0
    assert out.startswith("conv1 (Conv) runs on @gpu: the first site, in order of preference, that can take it")


def test_show_draws_the_tree(cli):
    code, out, _ = cli("show", "nvidia/jetson-nano")
    assert code == 0
    assert "arch=sm_53" in out
    code, out, _ = cli("show", "nvidia/jetson-nano:cuda", "--json")
    assert json.loads(out)["arch"] == "sm_53"
    assert "memory dram: size unknown" in cli("show", "rockchip/rk3588")[1]


def test_kinds_are_listed_with_their_attributes(cli):
    code, out, _ = cli("kinds")
    assert code == 0
    assert {"llvm", "cuda", "sdaccel", "aot", "crt"} <= {line.split()[0] for line in out.splitlines()}
    out = cli("kinds", "--classes")[1]
    assert "\n  scale     num-cores, threads-per-core" in out[out.index("\nllvm ") :]
    code, out, _ = cli("kinds", "cuda", "--classes")
    assert "thread_warp_size" in out
    assert "isa" in out
    assert json.loads(cli("kinds", "aot", "--json")[1])["role"] == "executor"
    code, _, err = cli("kinds", "cudda")
    assert (code, err) == (1, "error: unknown kind 'cudda'; did you mean 'cuda' or 'cudnn'?\n")


def test_tags_are_listed_and_searched(cli):
    code, out, _ = cli("tags")
    assert code == 0
    assert {"aws/c5", "aws/c5.large", "arm/rasp4b", "nvidia/a100"} <= {line.split()[0] for line in out.splitlines()}
    code, out, _ = cli("tags", "jetson-nano", "--json")
    assert [tag["tag"] for tag in json.loads(out)] == ["nvidia/jetson-nano", "nvidia/jetson-nano-4gb"]
    assert cli("tags", "nothing-like-it")[0] == 1


def test_tags_are_found_by_constraint_or_tag(cli):
    code, out, _ = cli("tags", "--satisfying", "cuda(arch>=sm_80)", "a100", "--json")
    found = {tag["tag"] for tag in json.loads(out)}
    assert code == 0
    assert "nvidia/a100" in found
    assert not any("jetson-nano" in tag for tag in found)
    assert cli("tags", "--satisfying", "nvidia/jetson-nano", "jetson-nano")[0] == 0
    code, _, err = cli("tags", "--satisfying", "trn(num-cores>=1000000)")
    assert (code, err) == (1, "no tag satisfies 'trn(num-cores>=1000000)'; `tvmtarget tags` lists all\n")
    code, _, err = cli("tags", "--satisfying", "gpux")
    assert (code, err) == (1, "error: no target kind or key 'gpux'; did you mean 'gpu' or 'webgpu'?\n")


BAD = "composite[ort=onnxruntime,cpu=llvm]"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["explain", "none.onnx", "-t", "llvm"], "error: no model file 'none.onnx'"),
        (["explain", NPZ, "-t", "llvm"], "is not an ONNX model"),
        (["explain", EXAMPLES, "-t", "llvm"], "cannot be read: it is a directory"),
        (["explain", DIGITS, "-t", "nvidia/jetson-nanoo"], "unknown tag 'nvidia/jetson-nanoo'; did you mean"),
        (["explain", DIGITS, "-t", "llvmm"], "unknown kind 'llvmm'; did you mean 'llvm'?"),
        (["explain", DIGITS, "-t", "llvm(mcpux=1)"], "kind 'llvm' has no attribute 'mcpux'; did you mean 'mcpu'?"),
        (["explain", DIGITS, "-t", "llvm("], "but the text ended, at column 6 of 'llvm('"),
        (["explain", DIGITS, "-t", ""], "expected a target, but the text is empty"),
        (["explain", DIGITS, "-t", "nvidia/jetson-nano:npu"], "no node 'npu'"),
        (["explain", DIGITS, "-t", BAD, "--op", "conv9"], "no op 'conv9' in the model; did you mean"),
        (["explain", DIGITS, "-t", BAD, "--where", "op:Gem=@cpu"], "where 'op:Gem' matches no op"),
        (["explain", DIGITS, "-t", BAD, "--where", "fc1=@cpx"], "no node 'cpx'"),
        (["explain", DIGITS, "-t", BAD, "--where", "fc1"], "--where 'fc1' is not NAME=CONSTRAINT"),
        (["explain", DIGITS, "-t", BAD, "--where", "fc1=llvm(mcp=4)"], "has no attribute 'mcp'; did you mean 'mcpu'?"),
        (["explain", DIGITS, "-t", BAD, "--where", "fc1=cuda"], "op 'fc1' (Gemm) fits no site of the target"),
        (["run", DIGITS, "-i", "none.npz", "-t", "llvm"], "no input file 'none.npz'"),
        (["run", DIGITS, "-i", DIGITS, "-t", "llvm"], "is damaged, or not a zip file"),
        (["run", DIGITS, "-i", NPZ], "--target is missing"),
        (["run", "gone.tta", "-i", NPZ], "no model or program 'gone.tta'"),
        (["run", DIGITS, "-i", NPZ, "-t", "nvidia/jetson-nano"], "@gpu cannot run on this machine"),
        (["run", DIGITS, "-i", NPZ, "-t", "numpy", "--trust"], "--trust needs a compiled program"),
        (["run", DIGITS, "-i", NPZ, "-t", "numpy", "--insecure"], "--insecure needs --scheduler"),
        (["kinds", "cuda", "--schema"], "--schema describes all kinds; omit 'cuda'"),
        (["kinds", "--schema", "--classes"], "--schema describes all kinds; omit --classes"),
        (["run", DIGITS, "-i", NPZ, "-t", "c", "--dim", "b=1"], "no symbolic dimension 'b'; there is 'batch'"),
        (["compile", DIGITS, "-t", "numpy", "-o", "/nowhere/x"], "there is no directory '/nowhere'"),
        (["run", DIGITS, "-i", NPZ, "-t", "numpy", "-o", "/nowhere/x"], "there is no directory '/nowhere'"),
        (["show", "llvm(num-cores=many)"], "attribute 'num-cores' of kind 'llvm' is a whole number, not 'many'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_one_or_two_for_misused_options(cli, words, text):
    code, out, err = cli(*words)
    assert code == (2 if text.startswith("--") else 1)
    assert out == ""
    assert text in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [["inspect"], ["show", "--config"], ["explain"], ["explain", DIGITS, "-t", "llvm", "--diff"]]
)
def test_a_file_name_that_is_too_long_is_named(cli, words):
    code, out, err = cli(*words, "x" * 300)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "x" * 300 in err


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"input": np.zeros((2, 1, 8, 8))}, "input 'input' is float64, not float32"),
        ({"input": np.zeros((2, 8, 8), "float32")}, "input 'input' has shape (2, 8, 8), not (batch, 1, 8, 8)"),
        ({"image": np.zeros((2, 1, 8, 8), "float32")}, "no input 'image'"),
    ],
)
def test_inputs_of_another_type_shape_or_name_are_errors(cli, tmp_path, arrays, text):
    np.savez(tmp_path / "in.npz", **arrays)
    code, _, err = cli("run", DIGITS, "-i", tmp_path / "in.npz", "-t", "onnxruntime")
    assert code == 1
    assert text in err
    assert "Traceback" not in err


def test_an_op_that_no_site_supports_is_one_line(cli, tmp_path):
    model = small(helper.make_node("Fancy", ["x"], ["y"], name="fancy", domain="my.domain"))
    model.opset_import.append(helper.make_opsetid("my.domain", 1))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    code, _, err = cli("explain", tmp_path / "m.onnx", "-t", BAD)
    assert code == 1
    assert err.startswith("error: op 'fancy' (Fancy) fits no site of the target: @ort: NO_RULE")
    assert len(err.splitlines()) == 1


def test_a_damaged_program_is_an_error(cli, tmp_path):
    path = tmp_path / "a.tta"
    tt.build(tt.IRModule.from_onnx(DIGITS), "numpy").save(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    code, _, err = cli("run", path, "-i", NPZ)
    assert code == 1
    assert "is damaged" in err
    path.write_bytes(data[: len(data) // 3])
    code, _, err = cli("run", path, "-i", NPZ)
    assert code == 1
    assert "is damaged, or not a zip file" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_one_line(cli):
    code, _, err = cli("run", DIGITS, "-i", NPZ, "-t", "numpy", "--output", "/dev/full")
    assert code == 1
    assert err == "error: output file '/dev/full' cannot be written: No space left on device\n"
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "tvmtarget.cli.main", "tags"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (OSError(24, "Too many open files", "/tmp/x"), "error: /tmp/x: Too many open files\n"),
        (MemoryError("cannot allocate 9 TiB"), "error: out of memory: cannot allocate 9 TiB\n"),
    ],
)
def test_a_lack_of_resources_is_one_line(raised, line, monkeypatch, capfd):
    def fail(*_, **_options):
        raise raised

    monkeypatch.setattr("tvmtarget.cli.main.app", fail)
    with open(os.devnull, "w") as null:
        monkeypatch.setattr("sys.stdout", null)
        assert main(["tags"]) == 1
    assert capfd.readouterr().err == line


def test_wrong_usage_is_exit_code_two(cli):
    assert cli("explain")[0] == 2
    assert cli("no-such-command")[0] == 2


def test_help_and_version(cli):
    assert cli("--version") == (0, f"tvmtarget {tt.__version__}\n", "")
    assert "compile" in cli("--help")[1]


def test_it_is_installed_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "tvmtarget.cli.main", "tags"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "nvidia/a100" in done.stdout


def test_explain_prints_other_reports_on_the_plan(cli, tmp_path):
    common = ("explain", DIGITS, "--target", "[ort=onnxruntime,cpu=numpy](host=@cpu)", "--where", "fc1=@cpu")
    code, out, _ = cli(*common, "--what-if", "op:Gemm=ort")
    assert (code, out) == (1, "")
    code, out, _ = cli(*common, "--what-if", "fc2=ort")
    assert (code, out) == (0, "no difference\n")
    code, out, _ = cli(*common, "--blockers", "--json")
    assert (code, json.loads(out)) == (0, [])
    code, out, _ = cli(*common, "--draw", "mermaid")
    assert code == 0
    assert out.startswith("flowchart TD\n")
    code, out, _ = cli(*common, "--draw", "dot", "--save", tmp_path / "a.plan", "--mark", tmp_path / "a.onnx")
    assert code == 0
    assert out.startswith("digraph plan {\n")
    assert tt.Plan.load(tmp_path / "a.plan").site_of("fc1") == "cpu"
    assert onnx.load(tmp_path / "a.onnx").graph.node[0].metadata_props[0].value == "@ort"
    code, _, err = cli(*common, "--what-if", "Gemm")
    assert (code, err) == (2, "error: --what-if 'Gemm' is not NAME=CONSTRAINT, such as 'op:Gemm=@cpu'\n")
    for flag in ("--what-if", "--where"):
        code, _, err = cli(*common, flag, "fc2=ort", flag, "fc2=cpu")
        assert (code, err) == (2, f"error: {flag} 'fc2' is both 'ort' and 'cpu'; give one constraint\n")
    code, _, err = cli(*common, "--mark", tmp_path / "absent" / "a.onnx")
    assert code == 1
    assert "cannot be written: there is no directory" in err


def test_texts_are_written_without_pickles(cli, tmp_path):
    node = helper.make_node("StringConcat", ["x", "x"], ["y"], name="twice")
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.STRING, [2]) for name in "xy"]
    graph = helper.make_graph([node], "texts", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    np.savez(tmp_path / "in.npz", x=np.array(["a", "bc"]))
    words = ("run", tmp_path / "m.onnx", "-i", tmp_path / "in.npz", "-t", "onnxruntime", "--check")
    code, out, _ = cli(*words, "-o", tmp_path / "out.npz")
    assert code == 0
    assert "compared y: 0 of 2 values differ" in out
    with np.load(tmp_path / "out.npz") as stored:
        assert stored["y"].tolist() == ["aa", "bcbc"]


def test_labels_are_numbers_of_classes(cli, tmp_path):
    words = "run", DIGITS, "-i", tmp_path / "x.npz", "-t", "numpy"
    image = np.zeros((1, 1, 8, 8), "float32")
    np.savez(tmp_path / "x.npz", input=image, labels=np.array(["3"]))
    assert cli(*words)[::2] == (1, "error: labels are <U1; expected the numbers of the classes, from 0\n")
    np.savez(tmp_path / "x.npz", input=image[:0], labels=np.zeros(0, "int64"))
    code, out, _ = cli(*words, "--json")
    assert (code, json.loads(out)["accuracy"], "NaN" in out) == (0, None, False)
    assert "accuracy" not in cli(*words)[1]
