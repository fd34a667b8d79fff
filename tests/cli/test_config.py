"""`--config`: configuration files of tvmc, which the command line overrides, and the same in Python."""

import json
from pathlib import Path

import pytest

import tvmtarget as tt
from tvmtarget.cli.main import main
from tvmtarget.errors import TvmTargetError

DIGITS = Path(__file__).parents[2] / "examples" / "digits.onnx"

# The files of TVM at v0.18.0: configs/test/compile_config_test.json without passes, and its own test of the reader.
BOARD = {
    "targets": [{"kind": "cmsis-nn", "from_device": "1"}, {"kind": "c", "mcpu": "cortex-m55"}],
    "executor": {"kind": "aot", "unpacked-api": "1"},
    "runtime": {"kind": "crt"},
}
TREE = "composite[cmsis-nn(from_device=1),c(mcpu=cortex-m55)](executor=aot(unpacked-api=true),runtime=crt)"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Keep configuration files where `--config` finds them by name."""
    monkeypatch.setenv("TVM_CONFIGS_JSON_DIR", str(tmp_path))
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "m55.json").write_text(json.dumps(BOARD))
    return tmp_path


def shown(capsys, *words):
    assert main(["show", *map(str, words), "--text"]) == 0, capsys.readouterr().err
    return tt.Target.parse(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["m55", "m55.json", "boards/m55", "{folder}/boards/m55", "{folder}/boards/m55.json"])
def test_a_configuration_is_found_by_name_and_by_path(capsys, folder, name):
    name = name.format(folder=folder)
    assert shown(capsys, "--config", name) == tt.Target.parse(TREE)
    assert tt.read_configuration(name) == tt.Target.parse(TREE)


def test_the_command_line_overrides_a_configuration(capsys, folder):
    flags = ["--executor", "graph", "--runtime", "python", "--target-c-mcpu=cortex-m33"]
    assert shown(capsys, "--config", "m55", *flags) == tt.Target.parse(
        "composite[cmsis-nn(from_device=1),c(mcpu=cortex-m33)](executor=graph,runtime=python)"
    )
    assert shown(capsys, "c", "--config", "m55") == tt.Target.parse("c(executor=aot(unpacked-api=true),runtime=crt)")


def test_a_configuration_may_hold_options_of_the_command(folder):
    output, other = folder / "a.tvmt", folder / "b.tvmt"
    (folder / "digits.json").write_text(json.dumps({"targets": [{"kind": "numpy"}], "output": str(output)}))
    assert main(["compile", str(DIGITS), "--config", "digits"]) == 0
    assert main(["compile", str(DIGITS), "--config", "digits", "-o", str(other)]) == 0
    assert output.exists()
    assert other.exists()


def test_the_default_configuration_is_that_of_tvm(capsys):
    assert shown(capsys, "--config", "default") == tt.Target.parse("llvm")


@pytest.mark.parametrize(
    ("targets", "text"),
    [
        ([{"kind": "llvm"}], "llvm"),
        ([{"kind": "llvm", "mattr": "+avx2,+fma"}], "llvm(+avx2,+fma)"),
        ([{"kind": "cuda"}, {"kind": "llvm", "mcpu": "skylake"}], "cuda(host=llvm(mcpu=skylake))"),
        ([{"kind": "ethos-u -accelerator_config=ethos-u55-256"}, {"kind": "c"}], "ethos-u"),
        (["llvm -mcpu=skylake"], "llvm(mcpu=skylake)"),
        ([{"tag": "aws/c5"}], "aws/c5"),
        ([{"kind": "cuda", "host": {"kind": "llvm"}}], "cuda(host=llvm)"),
    ],
)
def test_targets_are_a_list_as_on_the_command_line(targets, text):
    text = "composite[ethos-u(accelerator_config=ethos-u55-256),c]" if text == "ethos-u" else text
    assert tt.read_configuration({"targets": targets}) == tt.Target.parse(text)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({}, "the configuration has no 'targets'"),
        ({"targets": []}, r"'targets' is a list of targets, not \[\]"),
        ({"targets": "llvm"}, "'targets' is a list of targets, not 'llvm'"),
        ({"targets": [5]}, r"a target is a text or an object, not 5 \(at 'targets\[0\]'\)"),
        ({"targets": [{"kind": "llvm"}, {"kind": "llvm"}]}, "'llvm' is given twice"),
        ({"targets": [{"kind": "llvm", "mcp": "x"}]}, "kind 'llvm' has no attribute 'mcp'; did you mean 'mcpu'"),
        ({"targets": [{"kind": "llvm -mcpu=skylake", "mcpu": "skylake"}]}, "'mcpu' is given twice, in the kind"),
        ({"targets": [{"kind": "llvm"}], "executor": {"kind": "woof"}}, "unknown executor kind 'woof'"),
        ({"targets": [{"kind": "llvm"}], "output": "x"}, "'output' of a configuration is an option of a command"),
    ],
)
def test_invalid_configurations_are_errors(data, problem):
    with pytest.raises(TvmTargetError, match=problem):
        tt.read_configuration(data)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"targets": [{"kind": "c"}], "pass-config": {"tir.disable_vectorize": "1"}}', "pass-config: tir.disable_vec"),
        ('{"targets": [{"kind": "c"}], "tuning-records": "x"}', "'tuning-records' of configuration"),
        (
            '{"targets": [{"kind": "c"}], "trial": "2"}',
            "'trial' of configuration 'bad' is not an option of this command",
        ),
        ("[]", "is an object, not []"),
        ("{", "bad.json"),
    ],
)
def test_an_option_of_another_command_is_an_error_that_names_it(capsys, folder, text, problem):
    (folder / "bad.json").write_text(text)
    assert main(["show", "--config", "bad"]) == 1
    assert problem in capsys.readouterr().err


def test_an_unknown_name_is_an_error_with_the_places(capsys, folder):
    assert main(["show", "--config", "nope"]) == 1
    problem = f"unknown configuration 'nope'; known: default, m55; it is neither a file nor in {folder}"
    assert problem in capsys.readouterr().err


def test_options_that_may_be_repeated_are_lists_or_texts(capsys, folder):
    for value in (["num-cores=3", "+avx2"], "num-cores=3"):
        (folder / "edits.json").write_text(json.dumps({"targets": ["llvm"], "set": value}))
        assert shown(capsys, "llvm", "--config", "edits")["num-cores"] == 3


def test_all_problems_of_a_configuration_are_reported(capsys, folder):
    (folder / "bad.json").write_text(json.dumps({"target": "llvm", "executr": "vm", "json": [True]}))
    assert main(["show", "llvm", "--config", "bad"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: 'target' of configuration 'bad' is not an option of this command; did you mean 'targets' or 'text'?",
        "error: 'executr' of configuration 'bad' is not an option of this command; did you mean 'executor'?",
        "error: 'json' of configuration 'bad' is one value, not [True]",
    ]
