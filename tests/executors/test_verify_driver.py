"""Driver programs from files: what could not run is rejected, with its place, when the file is read."""

import io
import json
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

import tvmtarget as tt
from tvmtarget.errors import ArtifactError

DIGITS = Path("examples/digits.onnx")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the bytes of a saved program with drivers within drivers."""
    path = tmp_path_factory.mktemp("saved") / "digits.tta"
    target = "[node0=composite[ort=onnxruntime,cpu=numpy],node1=composite[ort=onnxruntime,cpu=numpy]]"
    tt.build(tt.IRModule.from_onnx(DIGITS), target, where={"op:Gemm": "@node1/cpu"}).save(path)
    return path.read_bytes()


def changed(whole, path, change):
    """Write the program anew, with a changed driver program and the digests of that."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    program = json.loads(members["program.json"])
    change(program)
    members["program.json"] = json.dumps(program).encode()
    manifest = json.loads(members.pop("manifest.json"))
    manifest["files"]["program.json"] = sha256(members["program.json"]).hexdigest()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, data in members.items():
            archive.writestr(name, data)


def steps(program, kind=lambda step: True):
    return [step for step in program["drivers"]["main"]["steps"] if kind(step)]


def call(program):
    return steps(program, lambda step: step["call"])[0]


def multiply(program):
    for at in range(28):
        inner = {"call": f"d{at + 1}" if at < 27 else "main", "inputs": ["x"], "outputs": ["y"]}
        body = [inner, inner | {"inputs": ["y"], "outputs": ["z"]}]
        if at == 27:
            body = []
        program["drivers"][f"d{at}"] = {"path": "", "params": ["x"], "results": ["z" if body else "x"], "steps": body}
    program["entry"] = "d0"


CHANGES = {
    "an entry that is not there": (lambda p: p.update(entry="none"), "no function is its entry, 'none'"),
    "inputs of another number": (lambda p: p["inputs"].append(p["inputs"][0]), "parameters and results, and the"),
    "a call of nothing": (lambda p: call(p).update(call="none"), "calls 'none', which is no function"),
    "a call with too many": (lambda p: call(p)["inputs"].append(call(p)["inputs"][0]), "values and results, which has"),
    "a value that nobody defines": (lambda p: call(p).update(inputs=["none"]), "reads 'none', which is not defined"),
    "a value defined twice": (
        lambda p: call(p).update(outputs=[p["drivers"]["main"]["params"][0]]),
        "again|not defined",
    ),
    "a result that nobody defines": (lambda p: p["drivers"]["main"].update(results=["none"]), "returns 'none'"),
    "a value freed before": (lambda p: call(p).update(free=call(p)["outputs"]), "not defined"),
    "nothing at all": (lambda p: call(p).update(call=None), "is not one of a call, control flow"),
    "a transfer to nobody": (
        lambda p: call(p).update(call=None, order=0),
        "one is to be another machine|a transfer with values",
    ),
    "a constant that is not there": (lambda p: p["drivers"]["main"].update(constants=["none"]), "the constant 'none'"),
    "drivers that call themselves": (
        lambda p: call(p).update(call="main"),
        "driver 'main' calls itself",
    ),
    "calls that multiply": (multiply, "operations, more than the limit of 1,000,000"),
    "a body of other parameters": (
        lambda p: call(p).update(
            call=None,
            control={"kind": "loop", "op": "Loop", "bodies": [{"params": [], "results": [], "steps": []}]},
        ),
        "has a body of 0 parameters|operands",
    ),
    "steps that are no list": (lambda p: p["drivers"]["main"].update(steps=3), "is damaged at drivers.main.steps"),
    "numbers for names": (lambda p: call(p).update(inputs=[3]), "is damaged at drivers.main.steps"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_programs_that_could_not_run_are_rejected_when_they_are_read(tmp_path, whole, what):
    change, problem = CHANGES[what]
    changed(whole, tmp_path / "x.tta", change)
    with pytest.raises(ArtifactError, match=problem):
        tt.load(tmp_path / "x.tta")


def test_an_unchanged_program_is_read(tmp_path, whole):
    changed(whole, tmp_path / "x.tta", lambda program: None)
    assert tt.load(tmp_path / "x.tta").outputs == ("logits",)
