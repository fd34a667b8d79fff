"""`tvmtarget tune`, and `--log` of compile and run."""

import json

import numpy as np
import pytest
from models import DIGITS, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.backends.protocol import backends
from tvmtarget.building import backend_choice
from tvmtarget.errors import TargetError

pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")


@pytest.fixture
def model(tmp_path):
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    path = tmp_path / "matmul.onnx"
    path.write_bytes(
        small(helper.make_node("MatMul", ["x", "w"], ["y"]), shape=(48, 64), w=weights).SerializeToString()
    )
    np.savez(tmp_path / "x.npz", x=np.ones((48, 64), "float32"))
    return path


def test_a_matmul_is_tuned_and_run_from_the_log(cli, model):
    log = model.with_name("log.db")
    code, out, err = cli("tune", model, "-t", "llvm", "--log", log, "--trials", 3, "--level", "kernel")
    assert code == 0, err
    assert out.startswith("3 candidates measured, 0 known, in ")
    assert "kernel matmul[48,64]" in out
    assert "trial 2: kernel matmul[48,64] ok; so far " in err
    code, out, err = cli("run", model, "-t", "llvm", "-i", model.with_name("x.npz"), "--log", log, "--check")
    assert code == 0, err
    assert "\ntuned: kernel matmul[48,64]: exact" in out
    assert "\nnot tuned, as the log has no record: the settings\n" in out
    code, out, err = cli("compile", model, "-t", "llvm", "-o", model.with_name("p.tta"), "--log", log)
    assert code == 0, err
    assert "tuned: kernel matmul[48,64]: exact" in err


def test_explain_lists_the_records_of_a_model(cli, tmp_path):
    log, tree = tmp_path / "log.db", "[ort=onnxruntime,cpu=llvm](host=@cpu)"
    assert cli("tune", DIGITS, "-t", tree, "--log", log, "--level", "placement", "--trials", 2)[0] == 0
    code, out, err = cli("explain", DIGITS, "-t", tree, "--log", log, "--where", "op:Gemm=@cpu")
    assert code == 0, err
    tiers = [line.split("-> ")[1].split(":")[0] for line in out.splitlines() if "-> " in line]
    assert tiers == ["EXACT", "DEFAULT", "DEFAULT", "DEFAULT"]  # placement, settings, kernels of two products
    known = json.loads(cli("explain", DIGITS, "-t", tree, "--log", log, "--json")[1])["known"]
    assert [match["tier"] for match in known][:2] == ["exact", "default"]
    code, _, err = cli("explain", DIGITS, "-t", tree, "--log", tmp_path / "none.db")
    assert (code, err) == (1, f"error: there is no log '{tmp_path / 'none.db'}'\n")


def test_tune_prints_json(cli, tmp_path):
    log = tmp_path / "log.db"
    code, out, _ = cli("tune", DIGITS, "-t", "onnxruntime", "--log", log, "--level", "executor", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["statuses"] == {"ok": found["measured"]}
    assert found["log"] == str(log)


def test_a_target_that_cannot_be_built_is_an_error_and_not_an_empty_result(cli, tmp_path):
    log = tmp_path / "x.db"
    for words, problem in {
        ("-t", "c"): "give the inputs static shapes, by tt.specialize or --dim NAME=N",
        ("-t", "llvm(libs=cblas)"): "attribute 'libs' ([\"cblas\"]) of @. would be ignored",
        ("-t", "[a=numpy,b=onnxruntime]", "--same-site", "conv1,convX"): "'convX'",
    }.items():
        code, out, err = cli("tune", DIGITS, *words, "--log", log)
        assert (code, out) == (1, "")
        assert problem in err
    assert not log.exists()


def test_tune_measures_a_model_of_given_sizes(cli, tmp_path):
    words = ("-t", "onnxruntime", "--level", "executor", "-n", 1, "--log", tmp_path / "x.db", "--json")
    code, out, err = cli("tune", DIGITS, "--dim", "batch=2", *words)
    assert code == 0, err
    assert set(json.loads(out)["statuses"]) == {"ok"}


def test_tune_has_the_options_of_build(tmp_path):
    log = tt.TuningLog("memory:")
    config = tt.CompilationConfig("llvm", ["onnxruntime", "llvm"])
    result = tt.tune(
        str(DIGITS),
        config,
        executor="graph",
        runtime="python",
        params={},
        entry="main",
        options={"same_site": [["conv1", "conv2"]]},
        log=log,
        levels=["placement"],
        trials=2,
    )
    assert result.measured
    with pytest.raises(TargetError, match="unknown option 'same_sites' of decompose; did you mean 'same_site'"):
        tt.tune(DIGITS, config, options={"same_sites": []}, log=log)
    with pytest.raises(TargetError, match="'executor', 'same_site' cannot be given with it"):
        tt.tune(tt.decompose(DIGITS, "numpy"), executor="aot", options={"same_site": [["a", "b"]]}, log=log)


def test_tune_accepts_allow_interpreter(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(backend_choice, "backends", lambda kind: () if kind == "llvm" else backends(kind))
    words = "tune", DIGITS, "-t", "[a=llvm,b=onnxruntime]", "--log", tmp_path / "x.db", "--level", "placement"
    code, out, err = cli(*words, "--trials", 2, "--allow-interpreter", "--json")
    assert code == 0, err
    assert json.loads(out)["statuses"]["ok"] >= 2


def test_errors_are_one_line_each(cli, tmp_path):
    log = tmp_path / "x.db"
    for options, problem in (
        (["--level", "kernle"], "unknown --level 'kernle'; did you mean 'kernel'?"),
        (["--space", "metaschedul"], "unknown --space 'metaschedul'; did you mean 'metaschedule'?"),
        (["--insecure"], "--insecure needs --workers"),
        (
            ["--space", "own", "--level", "placement"],
            "--space own needs --level kernel; other levels measure no kernels",
        ),
        (
            ["--costs", "roofline", "--level", "kernel"],
            "--costs needs --level placement; kernels and settings are measured without costs",
        ),
        (
            ["--costs", "roofline", "--objective", "throughput"],
            "--objective throughput is not what tuning measures, which is latency; omit it",
        ),
    ):
        code, _, err = cli("tune", DIGITS, "-t", "llvm", "--log", log, *options)
        assert (code, err) == (2, f"error: {problem}\n")
    none = str(tmp_path / "none.json")
    code, _, err = cli("tune", DIGITS, "-t", "llvm", "--log", log, "--costs", none)
    problem = f"no cost file {none!r} (in --costs {none!r})"
    assert (code, err) == (1, f"error: {problem}\n")
    assert not log.exists()


def test_the_placement_by_costs_is_measured_second(cli, tmp_path):
    costs, log = tmp_path / "costs.json", tmp_path / "log.db"
    slow = {"launch": 1, "flops": {"float32": 1e6}, "mem_bw": 1e6}
    fast = {"launch": 1, "flops": {"float32": 1e12}, "mem_bw": 1e12}
    costs.write_text(json.dumps({"schema": "tvmtarget.cost/1", "sites": {"ort": slow, "np": fast}}))
    tree = "[ort=onnxruntime,np=numpy](host=@np)"
    words = ["tune", DIGITS, "-t", tree, "--log", log, "--level", "placement", "--trials", 2, "--costs", costs]
    code, _, err = cli(*words)
    assert code == 0, err
    with tt.TuningLog(log) as opened:
        trials = [json.loads(record.text) for record in opened if record.type == "trial"]
    sites = [[site for site, _ in trial["cand"]["body"]["sites"]] for trial in trials if trial["m"]["kind"] == "search"]
    assert sites == [["ort"], ["np"]]
