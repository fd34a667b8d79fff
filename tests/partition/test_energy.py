"""Costs as energy: sites are chosen by joules, and what is about time is refused."""

import json
from itertools import product

import pytest
from models import DIGITS, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.cli.main import main
from tvmtarget.errors import TargetError
from tvmtarget.partition.costs.cost_file import load_costs, write_costs

BOARD = tt.Target.parse("[npu=onnxruntime,cpu=numpy](host=@cpu)").replace(memory=(tt.Memory(name="sram", of=("npu",)),))
ENERGY = {
    "schema": "tvmtarget.cost/1",
    "unit": "nJ",
    "sites": {
        "npu": {"launch": 500, "flops": {"float32": 2e12}, "mem_bw": 5e10},
        "cpu": {"launch": 10, "flops": {"float32": 1e10}, "mem_bw": 1e10},
    },
    "links": [{"src": "cpu", "dst": "npu", "latency": 200, "bandwidth": 1e9}],
}


BARE = {"schema": "tvmtarget.cost/1", "unit": "J"}


def energy(**changes):
    return ENERGY | changes


def chain(*kinds):
    names = [f"v{index}" for index in range(len(kinds) + 1)]
    nodes = [helper.make_node(kind, [a], [b], name=b) for kind, a, b in zip(kinds, names[:-1], names[1:], strict=True)]
    return tt.IRModule.from_onnx(small(*nodes, inputs=names[:1], outputs=names[-1:], shape=(1000,)))


@pytest.mark.parametrize(("unit", "factor"), [("nJ", 1e-3), ("uJ", 1.0), ("mJ", 1e3), ("J", 1e6)])
def test_energies_of_a_file_are_in_its_unit(unit, factor):
    costs = load_costs(energy(unit=unit))
    assert costs.unit == "uJ"
    assert costs.sites["npu"].launch == pytest.approx(500 * factor)
    assert costs.links[0].latency == pytest.approx(200 * factor)
    assert costs.sites["npu"].mem_bw == 5e10


def test_an_unknown_unit_is_refused_with_all_units():
    with pytest.raises(TargetError, match=r"costs: unit: it should be one of ns, us, ms, s, nJ, uJ, mJ, J, not 'Wh'"):
        load_costs(energy(unit="Wh"))


def test_costs_in_energy_are_read_back_as_they_were_written():
    costs = load_costs(energy(default={"launch": 3, "roofline": 0.5}))
    written = json.loads(json.dumps(write_costs(costs)))
    assert written["unit"] == "uJ"
    assert load_costs(written) == costs
    assert load_costs(write_costs(load_costs(ENERGY))) == load_costs(ENERGY)


def test_energy_of_computing_and_of_moving_add_up():
    plan = tt.decompose(chain("Relu"), BOARD, energy())
    # 1000 elements: 1000 operations at 1e10 a joule, and 8000 bytes at 1e10 a joule.
    time = next(estimate for site, estimate in plan.explain("v1").times if site == "cpu")
    assert time.time == round((1000 / 1e10 + 8000 / 1e10) * 1e12)
    assert str(time) == "0.9 uJ (1000 flops and 8000 bytes)"


def test_sites_are_chosen_by_energy_as_the_best_of_all_assignments():
    module = chain("Relu", "Exp", "Tanh", "Abs")
    ops = [
        {"match": {"op": kind}, "site": site, "time": time}
        for kind, site, time in [("Relu", "cpu", 2000), ("Exp", "npu", 100), ("Exp", "cpu", 9000), ("Tanh", "npu", 5)]
    ]
    plan = tt.decompose(module, BOARD, energy(ops=ops))
    names = [call.source for call in module.main.body]
    totals = []
    for sites in product(("npu", "cpu"), repeat=len(names)):
        fixed = tt.decompose(
            module, BOARD, energy(ops=ops), where=dict(zip(names, map("@{}".format, sites), strict=True))
        )
        totals.append(fixed.prediction.total)
    assert plan.prediction.total == min(totals) < max(totals)
    assert plan.prediction.lower_bound == plan.prediction.total


def test_a_plan_by_energy_says_so():
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), BOARD, energy(symbolic_hints={"batch": 1}))
    summary, explained = plan.summary(), str(plan.explain("conv1"))
    assert "predicted: " in summary
    assert " uJ (ops " in summary
    assert " us" not in summary + explained
    assert "the program takes least energy with it there, by the costs of operations, calls and copies" in explained
    assert plan.to_json()["predicted"]["unit"] == "uJ"
    assert set(plan.explain("conv1").to_json()["times"]["cpu"]) == {"uJ", "why"}
    assert " uJ" in str(plan.sensitivity("conv1"))
    assert "uJ" in plan.sensitivity("conv1").to_json()


def test_times_of_the_target_and_of_code_generators_are_no_energies():
    fast = "[a=onnxruntime(peak-gflops-float32=1000),b=llvm](host=@b)"
    link = tt.Link(src="a", dst="b", latency_ns=10, bandwidth_Bps=10**9)
    target = tt.Target.parse(fast).replace(memory=(tt.Memory(name="m", of=("a",), bandwidth_Bps=10**9),), links=(link,))
    module = chain("Relu", "Tanh")
    plan = tt.decompose(module, target, BARE)
    assert any("the bytes per joule of @a are not known" in one for one in plan.prediction.unknown)
    assert "what a call on @a (onnxruntime) takes: 0 uJ assumed" in "\n".join(plan.prediction.assumed)
    split = tt.decompose(module, target, BARE, where={"v1": "@b", "v2": "@a"})
    assert any("no link says what that takes" in one for one in split.prediction.unknown)


def test_throughput_by_energy_is_refused():
    wanted = "objective 'throughput' is about time, but the costs are energies .*; use objective 'latency', .* 'us'"
    with pytest.raises(TargetError, match=wanted):
        tt.decompose(chain("Relu"), BOARD, energy(), objective="throughput")


def test_tuning_by_energy_is_refused(tmp_path):
    with pytest.raises(
        TargetError, match=r"costs are energies .*, but tuning measures time; pass costs in a unit of time"
    ):
        tt.tune(chain("Relu"), BOARD, costs=energy(), log=tmp_path / "log.db")


def test_machines_of_a_cluster_are_not_timed_by_energy():
    plan = tt.decompose(chain("Relu"), "[ort=onnxruntime,n0=llvm,n1=llvm](runtime=dask)", BARE)
    assert plan.throughput is None


def test_the_command_line_reads_energies(tmp_path, capsys):
    path = tmp_path / "energy.json"
    path.write_text(json.dumps(ENERGY))
    board = tmp_path / "board.json"
    board.write_text(json.dumps(BOARD.to_json()))
    arguments = [str(DIGITS), "-t", str(board), "--costs", str(path), "--assume-dim", "batch=1"]
    assert main(["explain", *arguments, "--save-costs", str(tmp_path / "saved.json")]) == 0
    assert " uJ" in capsys.readouterr().out
    assert load_costs(tmp_path / "saved.json").unit == "uJ"
    assert main(["explain", *arguments, "--objective", "throughput"]) == 1
    assert "objective 'throughput' is about time" in capsys.readouterr().err


def test_added_measurements_count_in_the_unit_of_the_costs():
    plan = tt.decompose(chain("Relu"), BOARD, energy())
    more = plan.with_costs([tt.OpCost("npu", op="Relu", time=0.001), tt.OpCost("cpu", op="Relu", time=500.0)])
    assert more.options.costs.unit == "uJ"
    assert more.sites() == {"v1": "npu"}
