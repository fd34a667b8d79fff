"""Options of `decompose` and of tuning logs in explain, compile and run; reports on a plan."""

import inspect
import json

import pytest
from models import DIGITS

import tvmtarget as tt
from tvmtarget.autotune.log.records import Candidate
from tvmtarget.building.tuned_schedules import PLACEMENT, program_workload
from tvmtarget.cli.plans import PlanOptions
from tvmtarget.errors import TargetError
from tvmtarget.partition.options import OptionValues, PartitionOptions

pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")

NPZ = DIGITS.with_suffix(".npz")
BOTH = "[ort=onnxruntime,cpu=numpy]"
TWO = "[a=onnxruntime(intra-op-threads=1),b=onnxruntime(intra-op-threads=1,optimization-level=1)]"
COSTS = {
    "schema": "tvmtarget.cost/1",
    "ops": [
        {"match": {"op": "Conv"}, "site": "cpu", "time": 3, "from": "log"},
        {"match": {"op": "Conv"}, "site": "ort", "time": 300, "from": "log"},
    ],
}


@pytest.fixture
def costs(tmp_path):
    path = tmp_path / "board.json"
    path.write_text(json.dumps(COSTS))
    return path


def sites(subgraphs):
    return {op: subgraph["site"] for subgraph in subgraphs for op in subgraph["ops"]}


def test_run_and_compile_choose_sites_by_costs_as_explain_does(cli, costs, tmp_path):
    code, out, _ = cli("explain", DIGITS, "-t", BOTH, "--costs", costs, "--json")
    planned = sites(json.loads(out)["subgraphs"])
    assert (code, planned["conv1"]) == (0, "cpu")
    code, out, err = cli("run", DIGITS, "-t", BOTH, "--costs", costs, "-i", NPZ, "--check", "--json")
    assert (code, sites(json.loads(out)["subgraphs"])) == (0, planned), err
    program = tmp_path / "p.tta"
    code, _, err = cli("compile", DIGITS, "-t", BOTH, "--costs", costs, "-o", program)
    assert code == 0, err
    code, out, _ = cli("run", program, "-i", NPZ, "--json")
    assert sites(json.loads(out)["subgraphs"]) == planned


def test_same_site_and_apart_constrain_operations(cli):
    rules = ("--where", "conv1=@cpu")
    code, out, err = cli("run", DIGITS, "-t", BOTH, *rules, "--same-site", "conv1,fc1", "-i", NPZ, "--json")
    assert code == 0, err
    found = sites(json.loads(out)["subgraphs"])
    assert (found["fc1"], found["conv2"]) == ("cpu", "ort")
    code, out, _ = cli("explain", DIGITS, "-t", BOTH, "--apart", "conv1,fc1", "--json")
    found = sites(json.loads(out)["subgraphs"])
    assert found["conv1"] != found["fc1"]


def test_costs_are_measured_on_request_and_can_be_saved(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("tvmtarget.autotune.search.rates.SECONDS", 0.02)  # noise does not matter here
    kept = tmp_path / "here.json"
    words = ("--costs", "measured", "--assume-dim", "batch=1", "--save-costs", kept)
    code, _, err = cli("explain", DIGITS, "-t", TWO, *words)
    assert code == 0, err
    assert [line.split(":")[0] for line in err.splitlines() if line.startswith("@")] == ["@a", "@b"]
    code, out, _ = cli("explain", DIGITS, "-t", TWO, "--costs", kept, "--json")
    assert code == 0
    assert json.loads(out)["predicted"]["unknown"] == []


def test_explain_shows_the_placement_in_a_log(cli, tmp_path):
    log = tmp_path / "log.db"
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), BOTH)
    everything = Candidate(format=PLACEMENT, body={"sites": [["cpu", len(plan.program.body)]]})
    with tt.TuningLog(str(log)) as opened:
        opened.pin(program_workload(plan, "graph"), plan.topology.root, everything, "for a test")
    code, out, _ = cli("explain", DIGITS, "-t", BOTH, "--log", log, "--json")
    assert code == 0
    assert "pin" in {match["tier"] for match in json.loads(out)["known"]}
    assert set(sites(json.loads(out)["subgraphs"]).values()) == {"cpu"}


def test_all_options_of_decompose_are_options_of_the_command_line_and_known_to_type_checkers():
    fields = set(PartitionOptions.model_fields)
    assert fields <= set(inspect.signature(PlanOptions).parameters)
    assert fields == {"costs", *OptionValues.__annotations__}
    with pytest.raises(TargetError, match=r"unknown option 'atomics'; did you mean 'atomic'\?"):
        tt.decompose(DIGITS, BOTH, atomics=[["fc1", "relu4"]])  # type: ignore[call-arg]


def test_boundaries_limits_and_constants_shape_the_functions(cli):
    rules = ("--where", "relu1=@cpu", "--boundary-after", "pool", "--max-subgraphs", "ort=2", "--constants", "lift")
    code, out, err = cli("explain", DIGITS, "-t", BOTH, *rules, "--json")
    assert code == 0, err
    subgraphs = json.loads(out)["subgraphs"]
    assert [(subgraph["site"], len(subgraph["ops"])) for subgraph in subgraphs] == [("cpu", 2), ("ort", 3), ("ort", 6)]
    code, out, err = cli("run", DIGITS, "-t", BOTH, *rules, "-i", NPZ, "--check", "--json")
    assert code == 0, err
    ran = json.loads(out)["subgraphs"]
    assert [subgraph["ops"] for subgraph in ran] == [subgraph["ops"] for subgraph in subgraphs]
    assert "conv2.weight" in ran[1]["inputs"]
    code, out, _ = cli("explain", DIGITS, "-t", BOTH, "--boundary-before", "conv2", "--atomic", "relu1,conv1", "--json")
    assert [subgraph["ops"][:2] for subgraph in json.loads(out)["subgraphs"]] == [
        ["conv1", "relu1"],
        ["conv2", "relu2"],
    ]


@pytest.fixture
def fast(tmp_path):
    """Return a file of costs by which every operation is faster on the first site; copies have no cost."""
    kinds = sorted({call.kind for call in tt.IRModule.from_onnx(DIGITS).main.body})
    times = [(kind, *fact) for kind in kinds for fact in (("ort", 2), ("cpu", 5))]
    ops = [{"match": {"op": kind}, "site": site, "time": time, "from": "log"} for kind, site, time in times]
    path = tmp_path / "fast.json"
    path.write_text(json.dumps({"schema": "tvmtarget.cost/1", "ops": ops}))
    return path


def test_reports_are_those_of_the_plan(cli, fast, tmp_path):
    common, kept = ("explain", DIGITS, "-t", BOTH, "--costs", fast), tmp_path / "a.plan"
    assert cli(*common, "--where", "fc1=@cpu", "--save", kept)[0] == 0
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), BOTH, fast)
    expected = {
        ("--alternatives",): plan.alternatives(),
        ("--sensitivity", "fc1"): plan.sensitivity("fc1"),
        ("--diff", str(kept)): tt.Plan.load(kept).diff(plan),
    }
    for words, found in expected.items():
        listed = found if isinstance(found, tuple) else (found,)
        assert cli(*common, *words) == (int("--diff" in words), "\n".join(map(str, listed)) + "\n", "")
        data = json.loads(cli(*common, *words, "--json")[1])
        assert data == ([one.to_json() for one in found] if isinstance(found, tuple) else found.to_json())  # type: ignore[attr-defined]


def test_a_plan_to_compare_with_must_exist(cli):
    code, out, err = cli("explain", DIGITS, "-t", BOTH, "--diff", "nope")
    assert (code, out, err) == (1, "", "error: no plan 'nope'; write one with Plan.save, or explain --save\n")


def test_a_saved_plan_is_reported_and_compared_unchanged(cli, tmp_path):
    before, after = tmp_path / "before.plan", tmp_path / "after.plan"
    assert cli("explain", DIGITS, "-t", BOTH, "--where", "fc1=@cpu", "--save", before)[0] == 0
    assert cli("explain", DIGITS, "-t", BOTH, "--save", after)[0] == 0
    assert (
        json.loads(cli("explain", before, "--op", "fc1", "--json")[1]) == tt.Plan.load(before).explain("fc1").to_json()
    )
    assert cli("explain", after, "--diff", before) == (1, "fc1: @cpu -> @ort\nsubgraphs: 3 -> 1\n", "")
    assert cli("explain", before, "--diff", before) == (0, "no difference\n", "")
    for words in (["-t", BOTH], ["--where", "fc1=@ort"], ["--max-subgraphs", "ort=1"], ["--set", "cpu/num-cores=8"]):
        code, _, err = cli("explain", before, *words)
        assert (code, err) == (
            2,
            f"error: {str(before)!r} is a plan, which has its own target and constraints; omit --target, its edits and "
            "the options of partitioning\n",
        )
    code, _, err = cli("explain", DIGITS)
    assert (code, err) == (
        2,
        f"error: {str(DIGITS)!r} is not a saved plan, so it needs --target, such as --target llvm\n",
    )
    code, _, err = cli("tune", before, "-t", BOTH, "--log", tmp_path / "log.db")
    assert (code, err.count("\n")) == (2, 1)
    assert "tvmtarget compile compiles it" in err
    absent = tmp_path / "absent.plan"
    assert cli("explain", absent) == (1, "", f"error: no model or plan {str(absent)!r}\n")


def test_a_saved_plan_is_compiled_unchanged(cli, tmp_path):
    kept, program = tmp_path / "kept.plan", tmp_path / "p.tta"
    assert cli("explain", DIGITS, "-t", BOTH, "--where", "fc1=@cpu", "--save", kept)[0] == 0
    code, _, err = cli("compile", kept, "-o", program, "--self-test")
    assert code == 0, err
    report = json.loads(cli("run", program, "--input", NPZ, "--json")[1])
    assert sites(report["subgraphs"]) == tt.Plan.load(kept).sites()
    assert cli("run", program, "--self-test")[0] == 0
    code, _, err = cli("compile", kept, "-o", program, "--log", tmp_path / "absent.db")
    assert (code, "absent.db" in err) == (1, True)
    for words in (["-t", BOTH], ["--where", "fc1=@ort"], ["--dim", "batch=1"], ["--set", "cpu/num-cores=8"]):
        code, _, err = cli("compile", kept, "-o", program, *words)
        assert (code, "has its own target and constraints; omit --target" in err) == (2, True)
    assert cli("compile", DIGITS, "-o", program)[::2] == (
        2,
        f"error: {str(DIGITS)!r} is not a saved plan, so it needs --target, such as --target llvm\n",
    )


def test_one_report_is_printed_at_a_time(cli):
    code, _, err = cli("explain", DIGITS, "-t", BOTH, "--blockers", "--op", "fc1")
    assert (code, err) == (2, "error: --op and --blockers are 2 reports; request one at a time\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--objective", "latencyy"], "unknown --objective 'latencyy'; did you mean 'latency'?"),
        (["--objective", "throughput"], "--objective throughput needs --costs"),
        (["--max-replicas", "2"], "max_replicas is 2, but replicas do not lower the latency of one input"),
        (["--max-replicas", "0"], "max_replicas is a number, 1 or more, not 0"),
        (["--same-site", "conv1"], "--same-site 'conv1' is not NAME,NAME,..."),
        (["--same-site", "conv1,,fc1"], "--same-site 'conv1,,fc1' is not NAME,NAME,..."),
        (["--same-site", "conv1,fc9"], "no op 'fc9' in the model"),
        (["--apart", "conv1,fc9"], "did you mean 'fc2' or 'fc1'? (in apart)"),
        (["--atomic", "conv1,fc9"], "no op 'fc9' in the model"),
        (["--atomic", "conv1,fc1"], "ops 'conv1', 'fc1' are required to be atomic, but 'relu1', 'conv2',"),
        (["--boundary-before", "fc8", "--boundary-after", "fc9"], "(in boundary_before)\nerror: no op 'fc9'"),
        (["--max-subgraphs", "ort"], "--max-subgraphs 'ort' is not NAME=N, such as 'npu=4'"),
        (["--max-subgraphs", "ort=-1"], "--max-subgraphs 'ort=-1' is not NAME=N"),
        (["--max-subgraphs", "npu=1"], "no site of the target is or has 'npu'; did you mean 'cpu'?"),
        (["--max-subgraphs", "other=1"], "no site of the target is or has 'other'; known: cpu, "),
        (["--constants", "lifted"], "unknown --constants 'lifted'; did you mean 'lift'?"),
        (["--constants", "x"], "unknown --constants 'x'; known: bind, lift, share"),
        (["--near"], "--near needs --log"),
        (["--log", "none.db"], "there is no log 'none.db'"),
        (["--costs", "none.json"], "(in --costs 'none.json')"),
        (["--costs", "roofline", "--assume-dim", "batch"], "--assume-dim 'batch' is not NAME=N, such as 'batch=1'"),
        (["--assume-dim", "batch=1"], "--assume-dim has no effect without costs; add --costs, or fix"),
        (["--dim", "batch=1,batch=2"], "--dim 'batch' is both 1 and 2; give one number"),
        (["--dim", "batch=1,"], "--dim '' is not NAME=N, such as 'batch=1'"),
        (["--dim", f"batch={'9' * 5000}"], "--dim 'batch=999"),
        (["--dim", "batch=٣"], "--dim 'batch=٣' is not NAME=N"),
        (["--dim", f"batch={2**63}"], "dimension 'batch' cannot be 9223372036854775808"),
        (["--dim", "btch=1"], "the inputs have no symbolic dimension 'btch'; there is 'batch'"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "run"])
def test_errors_name_the_option(cli, command, words, message):
    inputs = ["-i", NPZ] if command == "run" else []
    code, _, err = cli(command, DIGITS, "-t", BOTH, *inputs, *words)
    assert code == (2 if message.startswith(("--", "unknown --")) else 1)
    assert message in err
    assert err.startswith("error: ")


def test_costs_are_saved_only_if_some_are_given(cli, tmp_path):
    code, _, err = cli("explain", DIGITS, "-t", BOTH, "--save-costs", tmp_path / "x.json")
    assert (code, "--save-costs needs --costs" in err) == (2, True)


def test_a_value_for_an_unknown_dimension_is_an_error(cli):
    code, _, err = cli("explain", DIGITS, "-t", BOTH, "--costs", "roofline", "--assume-dim", "btch=1")
    assert code == 1
    assert "--assume-dim btch=1: the model has no symbolic dimension 'btch'; did you mean 'batch'?" in err


def test_the_first_line_warns_if_a_prediction_is_mostly_unknown(cli):
    _, out, _ = cli("explain", DIGITS, "-t", BOTH, "--costs", "roofline")
    assert out.splitlines()[0].endswith("; prediction mostly unknown (11 of 11 times)")
    _, out, _ = cli("explain", DIGITS, "-t", BOTH, "--costs", "roofline", "--json")
    assert json.loads(out)["predicted"]["warning"] == "prediction mostly unknown (11 of 11 times)"


@pytest.mark.parametrize("report", ["--op", "--sensitivity"])
def test_an_empty_name_is_no_operation(cli, report):
    code, out, err = cli("explain", DIGITS, "-t", BOTH, "--costs", "roofline", report, "")
    assert (code, out) == (1, "")
    assert "no op '' in the model" in err


def test_a_mistyped_option_is_named_for_models_and_programs(cli, tmp_path):
    assert cli("compile", DIGITS, "-t", "numpy", "-o", tmp_path / "a.tta")[0] == 0
    for words in (
        ("run", tmp_path / "a.tta", "-i", NPZ, "--chekc"),
        ("run", DIGITS, "-i", NPZ, "-t", "numpy", "--chekc"),
        ("run", DIGITS, "-t", "numpy", "--imput"),
        ("explain", DIGITS, "-t", "numpy", "--blocker"),
    ):
        code, _, err = cli(*words)
        assert (code, f"no such option {words[-1]}; did you mean '--" in err) == (2, True)
    code, _, err = cli("run", DIGITS, "-t", "numpy", "--inputs", NPZ)
    assert (code, "--inputs is an option of tvmc that is not supported; write --input FILE" in err) == (2, True)
