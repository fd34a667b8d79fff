"""`--costs`, `--objective`, `--same-site`, `--apart` and `--log` of explain, compile and run."""

import json

import pytest
from models import DIGITS

import tvmtarget as tt
from tvmtarget.advice import PLACEMENT, whole_workload
from tvmtarget.tuning.records import Candidate

pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")

NPZ = DIGITS.with_suffix(".npz")
BOTH = "[ort=onnxruntime,cpu=numpy]"
COSTS = {"schema": "tvmtarget.cost/1", "ops": [{"match": {"op": "Conv"}, "site": "cpu", "time": 3, "from": "log"}]}


@pytest.fixture
def costs(tmp_path):
    path = tmp_path / "board.json"
    path.write_text(json.dumps(COSTS))
    return path


def sites(regions):
    return {op: region["site"] for region in regions for op in region["ops"]}


def test_run_and_compile_choose_sites_by_costs_as_explain_does(cli, costs, tmp_path):
    code, out, _ = cli("explain", DIGITS, "-t", BOTH, "--costs", costs, "--json")
    planned = sites(json.loads(out)["regions"])
    assert (code, planned["conv1"]) == (0, "cpu")
    code, out, err = cli("run", DIGITS, "-t", BOTH, "--costs", costs, "-i", NPZ, "--check", "--json")
    assert (code, sites(json.loads(out)["regions"])) == (0, planned), err
    program = tmp_path / "p.tta"
    code, _, err = cli("compile", DIGITS, "-t", BOTH, "--costs", costs, "-o", program)
    assert code == 0, err
    code, out, _ = cli("run", program, "-i", NPZ, "--json")
    assert sites(json.loads(out)["regions"]) == planned


def test_operations_share_a_site_or_do_not_as_they_are_asked(cli):
    rules = ("--where", "conv1=@cpu")
    code, out, err = cli("run", DIGITS, "-t", BOTH, *rules, "--same-site", "conv1,fc1", "-i", NPZ, "--json")
    assert code == 0, err
    found = sites(json.loads(out)["regions"])
    assert (found["fc1"], found["conv2"]) == ("cpu", "ort")
    code, out, _ = cli("explain", DIGITS, "-t", BOTH, "--apart", "conv1,fc1", "--json")
    found = sites(json.loads(out)["regions"])
    assert found["conv1"] != found["fc1"]


def test_costs_are_measured_where_they_are_asked_for_and_can_be_kept(cli, tmp_path):
    kept = tmp_path / "here.json"
    code, _, err = cli("explain", DIGITS, "-t", BOTH, "--costs", "measured", "--size", "batch=1", "--save-costs", kept)
    assert code == 0, err
    assert [line.split(":")[0] for line in err.splitlines() if line.startswith("@")] == ["@ort", "@cpu"]
    code, out, _ = cli("explain", DIGITS, "-t", BOTH, "--costs", kept, "--json")
    assert set(sites(json.loads(out)["regions"]).values()) == {"ort"}
    assert json.loads(out)["predicted"]["unknown"] == []


def test_explain_shows_the_placement_in_a_log(cli, tmp_path):
    log = tmp_path / "log.jsonl"
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), BOTH)
    everything = Candidate(format=PLACEMENT, body={"sites": [["cpu", len(plan.program.body)]]})
    with tt.TuningLog(str(log)) as opened:
        opened.pin(whole_workload(plan, "graph"), plan.layout.root, everything, "for a test")
    code, out, _ = cli("explain", DIGITS, "-t", BOTH, "--log", log, "--json")
    assert code == 0
    assert "pin" in {match["tier"] for match in json.loads(out)["known"]}
    assert set(sites(json.loads(out)["regions"]).values()) == {"cpu"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--objective", "latencyy"], "--objective is latency or throughput, not 'latencyy'; did you mean 'latency'?"),
        (["--objective", "throughput"], "--objective throughput is about time, so it needs --costs"),
        (["--same-site", "conv1"], "--same-site 'conv1' is not NAME,NAME,..."),
        (["--same-site", "conv1,,fc1"], "--same-site 'conv1,,fc1' is not NAME,NAME,..."),
        (["--same-site", "conv1,fc9"], "no op 'fc9' in the model"),
        (["--apart", "conv1,fc9"], "(in --apart 'conv1,fc9')"),
        (["--costs", "none.json"], "(in --costs 'none.json')"),
        (["--costs", "roofline", "--size", "batch"], "--size 'batch' is not NAME=NUMBER, such as 'batch=1'"),
        (["--size", "batch=1"], "--size is for costs; it needs --costs"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "run"])
def test_mistakes_name_the_option(cli, command, words, said):
    inputs = ["-i", NPZ] if command == "run" else []
    code, _, err = cli(command, DIGITS, "-t", BOTH, *inputs, *words)
    assert code == 1
    assert said in err
    assert err.startswith("error: ")


def test_there_are_no_costs_to_keep_without_costs(cli, tmp_path):
    code, _, err = cli("explain", DIGITS, "-t", BOTH, "--save-costs", tmp_path / "x.json")
    assert (code, "--save-costs has nothing to write; it needs --costs" in err) == (1, True)
