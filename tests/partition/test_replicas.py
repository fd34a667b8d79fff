"""Replicas of machines: idle machines run stages of others by turns, if nothing makes a difference between them."""

from dataclasses import replace

import pytest
from models import DIGITS

import tvmtarget as tt

LINK = {"latency": 4, "bandwidth": 1e10}
MACHINE = "[ort=onnxruntime,cpu=numpy](host=@cpu{})"


def cluster(count=4, runtime="processes"):
    return f"[n={MACHINE.format(f',count={count}')}](runtime={runtime})"


def costs(count=4, rates=(), links=(), regions=()):
    """Return equal costs of all machines; `rates` by leaf and `links` by pairs of machines make a difference."""
    machines = [":cpu", *(f"n.{number}" for number in range(count))]
    sites = {
        "onnxruntime": {"launch": 20, "flops": {"float32": 1e11}, "mem_bw": 2e10, "roofline": 0.5},
        "numpy": {"launch": 2, "flops": {"float32": 4e9}, "mem_bw": 1e10, "roofline": 0.5},
    }
    return {
        "schema": "tvmtarget.cost/1",
        "unit": "us",
        "sites": sites | {site: sites["onnxruntime"] | rate for site, rate in rates},
        "links": [
            {"src": src, "dst": dst} | (LINK | {"latency": 5} if (src, dst) in links else LINK)
            for at, src in enumerate(machines)
            for dst in machines[at + 1 :]
        ],
        "symbolic_hints": {"batch": 256},
        "regions": [*regions],
    }


@pytest.fixture(scope="module")
def digits():
    return tt.IRModule.from_onnx(DIGITS)


def decompose(module, most=4, given=None, **options):
    return tt.decompose(module, cluster(), given or costs(), objective="throughput", max_replicas=most, **options)


def replicas(plan):
    """Return the machines that take turns, and those that run operations alone."""
    return sorted({stage.takes_turns or (stage.machine,) for stage in plan.throughput.stages if stage.run})


def test_equal_machines_run_the_whole_program_by_turns(digits):
    plans = [decompose(digits, most) for most in (1, 2, 4)]
    rates = [plan.throughput.inputs_per_second for plan in plans]
    assert rates == sorted(rates)
    # All four have the same work, where stages of a pipeline are as uneven as the operations.
    assert rates[2] == pytest.approx(4 * 1e6 / 8425, rel=0.01)
    assert replicas(plans[2]) == [("n.0", "n.1", "n.2", "n.3")]
    assert max(map(len, replicas(plans[1]))) == 2
    assert all(len(group) == 1 for group in replicas(plans[0]))
    assert "for one of 4 inputs" in plans[2].summary()
    assert plans[2].to_json()["machines"]["stages"]["n.3"]["replicas"] == ["n.0", "n.1", "n.2", "n.3"]


def test_a_replica_has_no_program_of_its_own(digits):
    plan = decompose(digits)
    assert {*plan.programs()} == {"n.0", "host"}


def test_a_saved_plan_has_the_same_replicas(digits, tmp_path):
    plan = decompose(digits)
    plan.save(tmp_path / "digits.plan")
    again = tt.Plan.load(tmp_path / "digits.plan")
    assert again.throughput == plan.throughput
    assert again.module.structural_hash() == plan.module.structural_hash()


def test_a_plan_since_another_has_the_same_replicas(digits):
    relu = next(at for at, call in enumerate(digits.main.body) if call.kind == "Relu")
    body = [replace(call, op="onnx.Tanh") if at == relu else call for at, call in enumerate(digits.main.body)]
    edited = digits.replace(functions=(digits.main.replace(body=tuple(body)),))
    anew, since = decompose(edited), decompose(edited, since=decompose(digits))
    assert since.throughput == anew.throughput
    assert since.module == anew.module


@pytest.mark.parametrize(
    ("given", "options"),
    [
        pytest.param(costs(rates=[("n.3/ort", {"launch": 21})]), {}, id="time of a call"),
        pytest.param(costs(rates=[("n.3/ort", {"boundary_bw": 1e9})]), {}, id="passing of values"),
        pytest.param(costs(links=[(":cpu", "n.3")]), {}, id="time of a transfer"),
        pytest.param(None, {"max_subgraphs": {"n.3": 1}}, id="limit"),
        pytest.param(None, {"where": {"*": "@n.0|@n.1|@n.2"}}, id="constraint"),
    ],
)
def test_a_machine_that_differs_is_no_replica(digits, given, options):
    turns = [group for group in replicas(decompose(digits, given=given, **options)) if "n.3" in group]
    assert turns in ([], [("n.3",)])


@pytest.mark.parametrize(("last", "groups"), [(8000, [("n.0", "n.1")]), (16000, [("n.0",), ("n.1",)])])
def test_a_machine_that_was_measured_to_differ_is_no_replica(digits, last, groups):
    (task,) = tt.decompose(digits, cluster(2), where={"*": "onnxruntime"}).tasks()
    measured = [
        {"match": {"structure": task.structure}, "site": site, "time": time}
        for site, time in (("n.0/ort", 8000), ("n.1/ort", last))
    ]
    plan = tt.decompose(
        digits,
        cluster(2),
        costs(2, regions=measured),
        objective="throughput",
        max_replicas=2,
        where={"*": "onnxruntime"},
    )
    assert replicas(plan) == groups


def test_a_constraint_on_one_machine_is_kept(digits):
    plan = decompose(digits, where={"fc1": "@n.1", "op:Conv": "@n.0|@n.2"})
    assert plan.site_of("fc1").startswith("n.1/")
    assert ("n.1",) in replicas(plan)
    assert not any("n.1" in group for group in replicas(plan) if len(group) > 1)


def test_the_machine_of_inputs_and_results_is_no_replica(digits):
    target = cluster().replace("](runtime", "](host=@n.0/cpu,runtime")
    given = costs()
    given["links"] = [link for link in given["links"] if link["src"] != ":cpu"]
    plan = tt.decompose(digits, target, given, objective="throughput", max_replicas=4)
    assert plan.throughput.inputs_per_second > decompose(digits, 1).throughput.inputs_per_second
    assert not any("n.0" in group for group in replicas(plan) if len(group) > 1)


def test_machines_of_different_names_may_be_equal(digits):
    children = ",".join(f"{name}={MACHINE.format('')}" for name in "abc")
    plan = tt.decompose(
        digits,
        f"[{children}](runtime=processes)",
        costs() | {"links": [{"src": ":cpu", "dst": name} | LINK for name in "abc"]},
        objective="throughput",
        max_replicas=3,
    )
    assert replicas(plan) == [("a", "b", "c")]
