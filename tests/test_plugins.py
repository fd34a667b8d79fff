"""Broken plugins affect only the programs that need them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tvmtarget import plugins

ROOT = Path(__file__).parents[1]

COMMANDS = [
    ["tags", "jetson"],
    ["kinds", "cuda"],
    ["show", "nvidia/jetson-nano"],
    ["diff", "arm/rasp4b", "arm/rasp4b"],
    ["check", "nvidia/jetson-nano", "--satisfies", "gpu"],
    ["explain", "examples/digits.onnx", "--target", "[a=numpy,b=llvm]"],
    ["run", "examples/digits.onnx", "--input", "examples/digits.npz", "--target", "numpy"],
]


def command(tmp_path, points, argv, *, name="broken", module=""):
    """Run a command where a package with these entry points is installed."""
    folder = tmp_path / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_bytes(points)
    (tmp_path / "broken_module.py").write_text(module)
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r})\nfrom tvmtarget.cli.main import main; sys.exit(main({argv!r}))"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


RAISES = "raise RuntimeError('no luck')"
AGAIN = """
from tvmtarget.target.kinds import Kind
KINDS = (Kind(name="llvm"), Kind(name="mine"), Kind(name="cuda"))
"""

BROKEN = {
    "kinds of a wrong type": (b"[tvmtarget.kinds]\nbroken = math:pi\n", "should be a tuple of tvmtarget.Kind"),
    "kinds that do not load": (b"[tvmtarget.kinds]\nbroken = nothing_of_that_name:KINDS\n", "does not load"),
    "kinds that raise": (b"[tvmtarget.kinds]\nbroken = broken_module:KINDS\n", "does not load: no luck"),
    "our kind again": (
        b"[tvmtarget.kinds]\nbroken = broken_module:KINDS\n",
        "target kind 'llvm' and 1 more are registered twice; the second time by broken (broken_module:KINDS)",
    ),
    "a backend that does not load": (b"[tvmtarget.backends]\nbroken = nothing_of_that_name:B\n", "does not load"),
    "a backend of a wrong type": (b"[tvmtarget.backends]\nbroken = math:pi\n", "which does not derive from"),
    "entry points that are no text": (b"[tvmtarget.kinds]\nbr\xff = a:b\n", "metadata of an installed package"),
    "entry points of no form": (b"tvmtarget.kinds = broken\n", ""),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_package_stops_no_command(tmp_path, broken):
    points, problem = BROKEN[broken]
    argv = COMMANDS[-1] if "backend" in broken else COMMANDS[1]
    done = command(tmp_path, points, argv, module=AGAIN if "again" in broken else RAISES)
    assert done.returncode == 0, done.stderr
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: argv[0])
@pytest.mark.parametrize("broken", BROKEN)
def test_no_broken_package_stops_any_command(tmp_path, broken, argv):
    done = command(tmp_path, BROKEN[broken][0], argv, module=RAISES)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_strategy_that_two_packages_register_is_an_error_naming_both_for_its_kind_alone(tmp_path):
    points = b"[tvmtarget.strategies]\nllvm = math:pi\n"
    explain = ["explain", "examples/digits.onnx", "--target"]
    done = command(tmp_path, points, [*explain, "numpy"])
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "again").mkdir()
    done = command(tmp_path / "again", points, [*explain, "llvm"])
    assert done.returncode == 1
    assert "tvmtarget.strategies 'llvm' is registered twice: by tvmtarget (" in done.stderr
    assert "and by broken (math:pi)" in done.stderr


def test_the_owner_of_a_registered_object_is_the_module_that_defines_it(monkeypatch):
    monkeypatch.setattr(plugins, "_registered", {})
    monkeypatch.setattr(plugins, "_owners", {})
    npu = type("Npu", (), {"__module__": "npu_package.strategies", "kinds": ("npu",)})
    plugins.register("tvmtarget.strategies", "npu", npu)
    plugins.register("tvmtarget.backends", "npu-compiler", npu())
    plugins.register("tvmtarget.kinds", "npu", (), owner="npu_package.kinds")
    plugins.register("tvmtarget.kinds", "dsp", ())
    assert plugins.registered_in({"npu"}) == ("npu_package.kinds", "npu_package.strategies")
    assert plugins.registered_in({"dsp"}) == ("__main__",)
