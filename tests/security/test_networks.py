"""Which scheduler a program talks to is said by its user: not by artifacts, plans, modules or the working folder."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from clusters_of_machines import TREE, built, model

import tvmtarget as tt
from tvmtarget.errors import ArtifactError, RunError, TargetError
from tvmtarget.executors.driver_program import Signature
from tvmtarget.executors.signatures import check_outputs
from tvmtarget.tags.registry import Registry

pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")
pytest.importorskip("distributed", reason="pip install tvmtarget[dask]")


@pytest.fixture
def stranger():
    """Return the address of somebody who listens, and what came there."""
    import socket

    calls = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            calls.append(connection)

    threading.Thread(target=serve, daemon=True).start()
    yield f"tcp://127.0.0.1:{listener.getsockname()[1]}", calls
    listener.close()


def evil(address):
    return f"{TREE}(runtime=dask(address={address}))"


def test_an_artifact_does_not_choose_the_scheduler(stranger, tmp_path, cli):
    address, calls = stranger
    exe, inputs = built(f"{TREE}(runtime=dask(address={address},insecure=true))")
    exe.save(tmp_path / "a.tta")
    loaded = tt.load(tmp_path / "a.tta")
    for run in (loaded.run, lambda inputs: list(loaded.stream([inputs]))):
        with pytest.raises(RunError, match=rf"a\.tta.* names a Dask scheduler, '{address}'.*--scheduler {address}"):
            run(inputs)
    np.savez(tmp_path / "x.npz", **inputs)
    code, _, error = cli("run", tmp_path / "a.tta", "-i", tmp_path / "x.npz")
    assert (code, error.count("\n")) == (1, 1)
    code, _, error = cli("run", tmp_path / "a.tta", "-i", tmp_path / "x.npz", "--scheduler", address)
    assert (code, "reached without TLS" in error, "--insecure" in error) == (1, True, True)
    assert calls == []


def test_a_scheduler_is_connected_to_by_tls_or_what_is_allowed_explicitly(stranger, monkeypatch):
    monkeypatch.setenv("TVMTARGET_MAX_SILENCE_SECONDS", "1")
    address, calls = stranger
    exe, inputs = built(evil(address))
    with pytest.raises(RunError, match=r"reached without TLS.*dask\(insecure=true\)"):
        exe.run(inputs)
    exe, inputs = built(evil(address.replace("tcp", "tls")))
    with pytest.raises(RunError, match=r"TLS cannot be used .*distributed\.comm\.tls|no Dask scheduler answers"):
        exe.run(inputs)
    with pytest.raises(RunError, match="reached without TLS"):
        tt.tune(tt.IRModule.from_onnx(model()), "llvm", log="memory:", workers=address, levels=["kernel"])
    assert calls == []


def test_a_program_of_an_artifact_runs_on_the_scheduler_that_its_user_names(tmp_path):
    import distributed

    exe, inputs = built(f"{TREE}(runtime=dask)")
    exe.save(tmp_path / "a.tta")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        exe = tt.load(tmp_path / "a.tta", scheduler=cluster.scheduler_address, insecure=True)
        np.testing.assert_array_equal(exe.run(inputs)["y"], -np.abs(inputs["x"]))
        exe.close()


def test_the_scheduler_of_the_user_comes_before_that_of_a_trusted_file(stranger, tmp_path, monkeypatch):
    monkeypatch.setenv("TVMTARGET_MAX_SILENCE_SECONDS", "1")
    address, calls = stranger
    exe, inputs = built(f"{TREE}(runtime=dask(address={address},insecure=true))")
    exe.save(tmp_path / "a.tta")
    with pytest.raises(RunError, match=r"'tcp://127\.0\.0\.1:1'"):
        tt.load(tmp_path / "a.tta", trust=True, scheduler="tcp://127.0.0.1:1", insecure=True).run(inputs)
    assert calls == []


@pytest.mark.parametrize("trust", [True, False])
def test_a_scheduler_that_would_be_ignored_is_an_error(tmp_path, trust):
    for runtime, options, problem in (
        ("python", {"scheduler": "tls://host:1"}, "does not run on a Dask cluster"),
        ("dask", {"insecure": True}, "insecure .* has no effect without a scheduler"),
    ):
        built(f"{TREE}(runtime={runtime})")[0].save(tmp_path / "a.tta")
        with pytest.raises(ArtifactError, match=problem):
            tt.load(tmp_path / "a.tta", trust=trust, **options)
    with pytest.raises(TargetError, match=r"insecure .* has no effect without workers"):
        tt.tune(tt.IRModule.from_onnx(model()), "llvm", log="memory:", insecure=True)


@pytest.mark.parametrize(
    "text", ['runtime.kind = "dask"\nruntime.address = "{}"', 'runtime = {{kind = "dask", address = "{}"}}']
)
def test_a_tag_of_the_working_folder_names_no_scheduler(text, tmp_path, stranger):
    address, calls = stranger
    runtime = text.format(address)
    lines = f"[tag.'acme/own']\nkind = 'llvm'\n{runtime}\n"
    lines += f"[tag.'aws/c5']\nbase = 'arm/rasp4b'\noverride = true\n{runtime}\n"
    (tmp_path / "tvmtarget.toml").write_text(f"schema = 1\n{lines}")
    tags = Registry.discover(tmp_path, {})
    for name in ("acme/own", "aws/c5"):
        with pytest.raises(TargetError, match=rf"tag '{name}' names a Dask scheduler, '{address}'.*tvmtarget\.toml"):
            tags[name]
    assert calls == []
    home = tmp_path / "home" / "tags"
    home.mkdir(parents=True)
    (home / "mine.toml").write_text(f"schema = 1\n[tag.own]\nkind = 'llvm'\n{runtime}\n")
    assert Registry.discover(None, {"TVMTARGET_PATH": str(home)})["mine/own"].runtime["address"] == address


def test_a_saved_plan_and_a_program_name_no_scheduler(tmp_path, stranger):
    address, calls = stranger
    module = tt.IRModule.from_onnx(model())
    tt.decompose(module, evil(address)).save(tmp_path / "p")
    with pytest.raises(TargetError, match=r"the plan in .*p' names a Dask scheduler"):
        tt.Plan.load(tmp_path / "p")
    assert tt.Plan.load(tmp_path / "p", trust=True).request.target.runtime["address"] == address
    held = module.with_target(evil(address))
    held.save(tmp_path / "m")
    for program in (tt.IRModule.parse(str(held), held.constants()), tt.IRModule.load(tmp_path / "m")):
        with pytest.raises(TargetError, match=r"the target in the program names a Dask scheduler"):
            tt.build(program)
    assert calls == []


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ('onnxruntime(provider=x,provider-library="/tmp/x.so")', "a library of an execution provider"),
        ('onnxruntime(provider=x,provider-options="a=b")', "options of an execution provider"),
        ('openvino(cache-dir="/tmp/x")', "a folder of compiled functions"),
        ('llvm(cl-opt="-info-output-file:string=x")', "options of LLVM"),
    ],
)
def test_plans_and_tags_of_others_name_nothing_that_loads_or_writes_files(target, what, tmp_path):
    tt.decompose(tt.IRModule.from_onnx(model()), target).save(tmp_path / "p")
    with pytest.raises(TargetError, match=rf"the plan in .*p' names {what}"):
        tt.Plan.load(tmp_path / "p")
    assert tt.Plan.load(tmp_path / "p", trust=True).request.target == tt.Target.parse(target)
    flat = tt.Target.parse(target).to_json()
    lines = [f"{name} = {json.dumps(value)}" for name, value in flat.items()]
    (tmp_path / "tvmtarget.toml").write_text("\n".join(["schema = 1", "[tag.'acme/own']", *lines, ""]))
    with pytest.raises(TargetError, match=rf"tag 'acme/own' names {what}"):
        Registry.discover(tmp_path, {})["acme/own"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (np.zeros(3, "float64"), "is float64, not float32"),
        (np.zeros((3, 1), "float32"), r"has shape \(3, 1\), not \(3\)"),
        (np.zeros(4, "float32"), r"has shape \(4,\), not \(3\)"),
        ([0.0, 0.0, 0.0], "is of type list"),
        (type("Evil", (np.ndarray,), {})(3, "float32"), "is of type Evil"),
        (Path("x"), "is of type"),
    ],
)
def test_results_of_other_machines_are_what_the_program_says(value, problem):
    signature = Signature(name="y", dtype="float32", shape=(3,))
    check_outputs([signature], [np.zeros(3, "float32")])
    check_outputs([Signature(name="z", dtype="float32", shape=("n", 4, "n"))], [np.zeros((2, 4, 3), "float32")])
    with pytest.raises(RunError, match=f"result 'y' {problem}"):
        check_outputs([signature], [value])
    with pytest.raises(RunError, match="2 results came back, and the program has 1"):
        check_outputs([signature], [value, value])
