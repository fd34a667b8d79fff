"""`tvmtarget detect` and `--target native`: what they print, and their exit codes."""

import json
from pathlib import Path

import pytest
from models import DIGITS, EXAMPLES

from tvmtarget import Target
from tvmtarget.target.detection.machine import Machine

MACHINES = Path(__file__).parents[1] / "target" / "machines"
C5 = MACHINES / "composed-aws-c5-2xlarge.json"
PI = MACHINES / "composed-raspberry-pi-4.json"


def test_detect_prints_a_text_that_parses_to_the_same_target(cli):
    code, out, err = cli("detect")
    assert (code, err) == (0, "")
    assert Target.parse(out.strip()) == Target.detect()


def test_detect_prints_json(cli):
    code, out, _ = cli("detect", "--json", "--machine", C5)
    assert code == 0
    assert Target.from_json(json.loads(out))["mcpu"] == "skylake-avx512"


def test_a_capture_is_read_back_to_the_same_machine(cli, tmp_path):
    file = tmp_path / "machine.json"
    code, here, _ = cli("detect", "--capture", file)
    assert code == 0
    assert Machine.from_json(file.read_text()) == Machine.capture()
    assert cli("detect", "--machine", file) == (0, here, "")


def test_the_name_of_the_board_is_printed_after_the_target(cli):
    code, out, err = cli("detect", "--machine", PI)
    assert code == 0
    assert out.startswith("llvm(")
    assert err == "board: Raspberry Pi 4 Model B Rev 1.4\n"


def test_why_not_is_exit_code_zero_for_yes_only(cli):
    code, out, _ = cli("detect", "--machine", C5, "--why-not", "aws/c5.2xlarge")
    assert code == 0
    assert out.startswith("YES this machine is aws/c5.2xlarge\n")
    code, out, _ = cli("detect", "--machine", C5, "--why-not", "aws/c5.4xlarge")
    assert code == 1
    assert "NO num-cores 4 < 8" in out
    code, out, _ = cli("detect", "--machine", C5, "--why-not", "opencl", "--json")
    answer = json.loads(out)
    assert code == 1
    assert (answer["truth"], answer["parts"][0]["truth"]) == ("UNKNOWN", "UNKNOWN")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--machine", "/nowhere.json"], "no captured machine '/nowhere.json'"),
        (["--machine", DIGITS], "is not UTF-8 text: byte"),
        (["--machine", __file__], "the text of a captured machine is not JSON"),
        (["--capture", "/nowhere/file.json"], "capture file '/nowhere/file.json' cannot be written: No such file"),
        (["--why-not", "aws/c55"], "unknown tag 'aws/c55'"),
        (["--why-not", "nowhere.json"], "no target file 'nowhere.json'"),
        (["--why-not", "llvm(num-cores=many)"], "'num-cores' of kind 'llvm' is a whole number, not 'many'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_one(cli, words, text):
    code, out, err = cli("detect", *words)
    assert (code, out) == (1, "")
    assert text in err
    assert "argument" not in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1


def test_wrong_usage_is_exit_code_two(cli):
    assert cli("detect", "--no-such-option")[0] == 2


def test_native_is_this_machine_in_every_command(cli, tmp_path):
    code, out, _ = cli("show", "native", "--json")
    assert code == 0
    assert Target.from_json(json.loads(out)) == Target.detect()
    code, out, _ = cli("explain", DIGITS, "--target", "native")
    assert code == 0
    program = tmp_path / "digits.tta"
    assert cli("compile", DIGITS, "--target", "native", "-o", program)[0] == 0
    assert b"native" not in program.read_bytes()


def test_a_program_runs_on_what_was_detected(cli):
    pytest.importorskip("tvm")
    code, out, err = cli("run", DIGITS, "--input", EXAMPLES / "digits.npz", "--target", "native", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["accuracy"] > 0.97
