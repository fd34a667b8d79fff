"""Output: control characters in names are escaped, and files are written completely or not at all."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tvmtarget.cli.main import _Printable
from tvmtarget.cli.options import print_json
from tvmtarget.untrusted import printable

ROOT = Path(__file__).parents[2]
CLEAR = "\x1b[2J\x1b]0;owned\x07"
DIGITS, NPZ = "examples/digits.onnx", "examples/digits.npz"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("\x1b[2Jx", "\\u001b[2Jx"),
        ("a\rb\x08\x7f", "a\\u000db\\u0008\\u007f"),
        ("\x9b31m", "\\u009b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("größe 日本 🙂", "größe 日本 🙂"),
    ],
)
def test_control_characters_are_escaped(text, expected):
    assert printable(text) == expected


def test_json_has_texts_for_numbers_that_are_not_finite(capsys):
    print_json({"ratios": [float("inf"), -float("inf"), float("nan"), 0.5], "größe": "NaN"})
    assert '"größe": "NaN"' in (printed := capsys.readouterr().out)
    assert json.loads(printed, parse_constant=pytest.fail)["ratios"] == ["Infinity", "-Infinity", "NaN", 0.5]


def test_a_terminal_gets_colours_and_no_other_escape_sequence():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    _Printable(stream).write(f"\x1b[1mbold\x1b[0m {CLEAR}")
    assert stream.getvalue() == "\x1b[1mbold\x1b[0m \\u001b[2J\\u001b]0;owned\\u0007"


def command(*argv, cwd=ROOT):
    argv = [sys.executable, "-m", "tvmtarget", *map(str, argv)]
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Return a model whose names have control sequences in them."""
    model = onnx.load(ROOT / DIGITS)
    model.doc_string = CLEAR
    for node in model.graph.node:
        node.name = f"{node.name}{CLEAR}"
    path = tmp_path_factory.mktemp("hostile") / "m.onnx"
    onnx.save(model, path)
    return path


def test_no_command_prints_control_sequences_of_a_model(hostile):
    target = ("--target", "[ort=onnxruntime,cpu=numpy]")
    for argv in (
        ("explain", hostile, *target),
        ("explain", hostile, *target, "--json"),
        ("explain", hostile, *target, "--op", f"fc1{CLEAR}"),
        ("explain", hostile, *target, "--op", f"nothing{CLEAR}"),
        ("run", hostile, "--input", NPZ, *target, "--json"),
    ):
        done = command(*argv)
        assert "\x1b" not in done.stdout + done.stderr
        assert "\x07" not in done.stdout + done.stderr
        if "--json" in argv:
            json.loads(done.stdout)


def test_a_name_of_a_million_letters_is_shortened_in_errors(tmp_path):
    model = onnx.load(ROOT / DIGITS)
    model.graph.node[0].op_type = "X" * 10**6
    onnx.save(model, tmp_path / "m.onnx")
    done = command("explain", tmp_path / "m.onnx", "--target", "llvm")
    assert done.returncode == 1
    assert len(done.stderr) < 10_000


def test_an_output_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "out.npz"
    path.write_bytes(b"what was there")
    done = command("run", DIGITS, "--input", NPZ, "--target", "numpy", "--output", path)
    assert done.returncode == 0
    assert np.load(path)["logits"].shape == (450, 10)
    assert [one.name for one in tmp_path.iterdir()] == ["out.npz"]


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ("show llvm >&-", 0, ""),
        ("show llvm <&- >&- 2>&-", 0, ""),
        ("show nope >&-", 1, "error: unknown kind 'nope'"),
        ("log stats - <&-", 0, ""),
    ],
)
def test_standard_streams_may_be_closed(words, code, error):
    line = f"exec '{sys.executable}' -m tvmtarget.cli.main {words}"
    found = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr[: len(error) or None]) == (code, error)
