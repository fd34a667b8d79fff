"""The public surface: what the package offers, and what importing it and reading a target costs."""

import subprocess
import sys

import pytest
from models import DIGITS

import tvmtarget

HEAVY = ("numpy", "networkx", "onnx", "tvm", "onnxruntime", "archspec", "typer", "rich", "ml_dtypes")

# The kinds of other packages may import what they like, so the sample plugin of the tests is not found here.
ALONE = f"""
import os, sys
listed = os.listdir
os.listdir = lambda folder: [name for name in listed(folder) if "tvmtarget_sample" not in name]

def heavy():
    return [name for name in {HEAVY!r} if name in sys.modules]
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", ALONE + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", tvmtarget.__all__)
def test_every_public_name_is_there_and_documented(name):
    value = getattr(tvmtarget, name)
    assert name == "__version__" or value.__doc__
    assert name in dir(tvmtarget)


def test_there_is_nothing_else():
    with pytest.raises(AttributeError, match="module 'tvmtarget' has no attribute 'Targett'"):
        _ = tvmtarget.Targett


@pytest.mark.parametrize(
    "code",
    [
        "import tvmtarget",
        "import tvmtarget; tvmtarget.Target.parse('nvidia/jetson-nano:cuda').resolve().digest",
        "import tvmtarget; tvmtarget.Constraint.parse('llvm(num-cores>=4)|@cpu')",
        "from tvmtarget.tags.registry import default_registry; list(default_registry())",
        "from tvmtarget import Target; from tvmtarget.target.topology import Topology; Topology(Target('cuda'))",
    ],
)
def test_reading_a_target_needs_nothing_heavy(code):
    assert run(f"{code}\nprint(heavy())") == "[]\n"


LATE = ("importlib.metadata", "tvmtarget.target.text.grammar", "tvmtarget.target.cpu.isa", "zipfile", "difflib")


def test_a_tag_needs_neither_validators_nor_parsers_nor_the_metadata_of_packages():
    code = f"import tvmtarget as tt; tt.Target.parse('aws/c5')\nprint([one for one in {LATE!r} if one in sys.modules])"
    complete = "print(tt.Target.__pydantic_complete__, tt.Executor.__pydantic_complete__)"
    assert run(f"{code}\n{complete}") == "[]\nFalse False\n"


def test_importing_the_package_imports_none_of_it():
    listed = run("import tvmtarget\nprint(sorted(name for name in sys.modules if name.startswith('tvmtarget')))")
    assert listed == "['tvmtarget', 'tvmtarget.version']\n"


def test_a_program_is_one_short_line_in_a_notebook():
    module = tvmtarget.IRModule.from_onnx(DIGITS)
    plan = tvmtarget.decompose(module, "numpy")
    assert repr(module) == "<IRModule: @main>"
    assert repr(plan) == "<Plan: 11 ops in 1 subgraph on 1 site of numpy>"
    assert repr(tvmtarget.build(plan)) == (
        "<Executable 'default': (input: float32[batch,1,8,8]) -> (logits: float32[batch,10])>"
    )
    assert all(len(repr(one)) < 600 for one in (module.main, *module.main.body, *module.main.constants))
