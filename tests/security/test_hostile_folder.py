"""Nothing of the current folder is imported: neither by the command nor by the processes that it starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from models import small
from onnx import helper

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")

# Modules of the standard library, of dependencies, of optional ones that are not installed, and what `site` looks for.
NAMES = (
    *("json", "secrets", "socket", "pickle", "signal", "tempfile", "random", "selectors", "multiprocessing"),
    *("onnx", "numpy", "tvm", "onnxruntime", "pydantic", "ml_dtypes", "torch", "cupy", "distributed", "psutil"),
    *("sitecustomize", "usercustomize", "tvmtarget"),
)
COMMAND = Path(sys.executable).with_name("tvmtarget")


@pytest.fixture
def folder(tmp_path):
    """Return a folder whose modules leave a mark when they are imported, with a model and its inputs."""
    marks = tmp_path / "marks"
    marks.mkdir()
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in NAMES:
        (hostile / f"{name}.py").write_text(f"open({str(marks / name)!r}, 'w').close()\nraise ImportError({name!r})\n")
    (hostile / "evil.pth").write_text(f"import sys; open({str(marks / 'pth')!r}, 'w')\n")
    weights = np.random.default_rng(0).standard_normal((16, 16)).astype("float32")
    model = small(helper.make_node("MatMul", ["x", "w"], ["y"]), shape=(8, 16), w=weights)
    (hostile / "m.onnx").write_bytes(model.SerializeToString())
    np.savez(hostile / "x.npz", x=np.ones((8, 16), "float32"))
    return hostile


def run(folder, *words):
    """Run a command in the folder; return its output once nothing of the folder was imported."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert sorted(path.name for path in (folder.parent / "marks").iterdir()) == []
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tuning_imports_nothing_of_the_current_folder(folder):
    """Kernels are measured in one kind of process, placements and settings in another."""
    tree = "[ort=onnxruntime,cpu=llvm](host=@cpu)"
    run(folder, COMMAND, "tune", "m.onnx", "-t", tree, "--log", "a.db", "--trials", "4")


def test_an_import_of_metaschedule_imports_nothing_of_the_current_folder(folder):
    (folder / "database_workload.json").write_text('["123", "e30="]\n')
    (folder / "database_tuning_record.json").write_text("")
    run(folder, COMMAND, "log", "import", "a.db", ".")


@pytest.mark.parametrize("runtime", ["processes", "dask"])
def test_machines_of_a_cluster_import_nothing_of_the_current_folder(folder, runtime):
    if runtime == "dask":
        pytest.importorskip("distributed", reason="pip install tvmtarget[dask]")
    machine = "[a=onnxruntime,b=numpy](host=@b)"
    tree = f"[n0={machine},n1={machine}](runtime={runtime})"
    out = run(folder, COMMAND, "run", "m.onnx", "-t", tree, "-i", "x.npz", "--json")
    assert json.loads(out)


def test_the_module_run_as_a_command_takes_its_imports_from_elsewhere(folder):
    """Python itself imports some of its library before any of ours, unless it runs with -P."""
    for name in ("json", "socket", "signal", "random", "tvmtarget", "selectors"):
        (folder / f"{name}.py").unlink()
    run(folder, sys.executable, "-m", "tvmtarget", "kinds", "llvm")
    run(folder, sys.executable, "-P", "-m", "tvmtarget", "show", "llvm")
