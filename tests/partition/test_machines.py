"""Machines of a target, and the program of each of them: steps in the driver's order, sends and receives that match."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import DIGITS, random_graph, small
from onnx import TensorProto, helper

import tvmtarget as tt
from tvmtarget.errors import BackendError, InfeasibleError, ModelError
from tvmtarget.ir.function import RECV, SEND
from tvmtarget.partition.machines.machine import Machines
from tvmtarget.partition.machines.verify import verify_programs
from tvmtarget.target.topology import Topology

NODE = "[a=onnxruntime,b=llvm](host=@b)"
TWO = f"[n0={NODE},n1={NODE}]"
THREE = f"[n={NODE[:-1]},count=3)](host=@n.0/b)"


@pytest.mark.parametrize(
    ("text", "machines", "home"),
    [
        ("llvm", {"": ("",)}, ""),
        ("cuda", {"": ("",)}, ""),
        ("[gpu=cuda,cpu=llvm]", {"cpu": ("gpu", "cpu")}, "cpu"),
        ("[n0=llvm,n1=llvm]", {"n0": ("n0", "n1")}, "n0"),
        ('[n0=llvm,n1=llvm](links=[{"src":"n0","dst":"n1"}])', {"n0": ("n0",), "n1": ("n1",)}, "n0"),
        ('[n0=llvm,n1=llvm](links=[{"src":"n0","dst":"n1","coherent":true}])', {"n0": ("n0", "n1")}, "n0"),
        ("[n0=llvm,n1=llvm](runtime=processes)", {"n0": ("n0",), "n1": ("n1",)}, "n0"),
        ("[ort=onnxruntime,n0=llvm,n1=llvm](runtime=dask)", {"n0": ("ort", "n0"), "n1": ("n1",)}, "n0"),
        (TWO, {"n0": ("n0",), "n1": ("n1",), "host": ()}, "host"),
        (THREE, {"n.0": ("n.0",), "n.1": ("n.1",), "n.2": ("n.2",)}, "n.0"),
        ("[n0=[a=cuda],n1=[b=llvm]]", {"n0": ("n0",), "n1": ("n1",)}, "n0"),
        ("[n=aws/c5(count=2)]", {"n.0": ("n.0",), "n.1": ("n.1",), "host": ()}, "host"),
        ("aws/p4d-cluster", {"node.0": ("node.0",), "node.1": ("node.1",)}, "node.0"),
    ],
)
def test_machines_are_what_shares_neither_memory_nor_driver(text, machines, home):
    found = Machines(Topology(tt.Target.parse(text).resolve()))
    assert {machine.path: machine.sites for machine in found} == machines
    assert found.home == home


def plan_of(seed, size=30, target=THREE):
    """Return a plan of a random graph whose operations are anywhere."""
    rng = random.Random(seed)
    module = tt.IRModule.from_onnx(random_graph(size, seed))
    sites = [leaf.path for leaf in Topology(tt.Target.parse(target).resolve()).leaves()]
    return tt.decompose(module, target, where={call.source: f"@{rng.choice(sites)}" for call in module.main.body})


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), target=st.sampled_from([TWO, THREE]))
def test_programs_of_any_plan_do_its_steps_once_in_order_and_cannot_hang(seed, target):
    """Run with sends that wait for their receives: the programs end, each with all its steps done."""
    plan = plan_of(seed, target=target)
    programs = plan.programs()
    done = dict.fromkeys(programs, 0)
    bodies = {machine: program.main.body for machine, program in programs.items()}

    def next_of(machine):
        return bodies[machine][done[machine]] if done[machine] < len(bodies[machine]) else None

    moved = True
    while moved:
        moved = False
        for machine in programs:
            step = next_of(machine)
            if step is not None and step.op not in (SEND, RECV):
                done[machine] += 1
                moved = True
            elif step is not None and step.op == SEND:
                other = next_of(step.attr("to"))
                if other is not None and other.op == RECV and other.attr("from") == machine:
                    assert other.attr("order") == step.attr("order")
                    done[machine] += 1
                    done[step.attr("to")] += 1
                    moved = True
    assert done == {machine: len(body) for machine, body in bodies.items()}


def test_only_the_machine_at_home_has_inputs_and_results():
    plan = plan_of(3)
    programs = plan.programs()
    assert [value.name for value in programs["n.0"].main.params] == ["x"]
    assert programs["n.0"].main.results == plan.module.main.results
    assert all(not programs[name].main.params and not programs[name].main.results for name in ("n.1", "n.2"))
    assert all(tt.IRModule.parse(str(program)).main.body for program in [programs["n.1"]])


def test_what_runs_on_one_machine_is_its_program():
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), "[a=onnxruntime,b=llvm]", where={"op:Gemm": "@b"})
    assert plan.programs() == {"b": plan.module}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[n0=[a=onnxruntime,b=numpy],n1=numpy](runtime=processes)", "but @n0, @n1 are one, as they share"),
        ("[n0=[a=numpy,b=numpy](host=@a,runtime=dask),n1=numpy]", "'dask' of @n0 runs machines, which are children"),
    ],
)
def test_a_distributed_runtime_without_machines_is_an_error(text, problem):
    with pytest.raises(BackendError, match=problem):
        tt.build(tt.IRModule.from_onnx(DIGITS), text)


def test_replicas_of_a_machine_share_what_is_compiled():
    nodes = [helper.make_node("Abs", ["x"], ["z"], name="one"), helper.make_node("Abs", ["z"], ["y"], name="two")]
    module = tt.IRModule.from_onnx(small(*nodes))
    exe = tt.build(module, "[n=[a=numpy](host=@a,count=2)](host=@n.0/a)", where={"one": "@n.0", "two": "@n.1"})
    assert len(exe._leaves) == 2
    assert len({id(leaf.compiled) for leaf in exe._leaves.values()}) == 1


def choosing():
    """Return a program with a branch: `relu` or `neg`."""

    def body(name, op):
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 3))
        return helper.make_graph([helper.make_node(op, ["x"], [name], name=op.lower())], name, [], [result])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"], name="compare"),
        helper.make_node(
            "If", ["c"], ["y"], name="choose", then_branch=body("a", "Relu"), else_branch=body("b", "Neg")
        ),
    ]
    return tt.IRModule.from_onnx(small(*nodes, zero=np.float32(0)))


def test_control_flow_on_several_machines_is_named_in_the_error():
    with pytest.raises(ModelError, match=r"op 'choose' has bodies on several machines: the driver on @host runs it, "):
        tt.decompose(choosing(), TWO, where={"relu": "@n1/a", "neg": "@n0/b"}).programs()
    assert list(tt.decompose(choosing(), TWO, where={"choose": "@n1"}).programs()) == ["n0", "n1", "host"]


def test_control_flow_that_no_machine_can_run_alone_is_an_error_under_a_distributed_runtime():
    tree = "[n0=[a=numpy,b=llvm](host=@a),n1=[a=numpy](host=@a)](host=@n0/a,runtime={})"
    where = {"relu": "@n0", "neg": "@n1"}
    with pytest.raises(InfeasibleError) as caught:
        tt.decompose(choosing(), tree.format("processes"), where=where)
    assert "one machine has to run all of it, and nothing on @n0 can take 'neg' of 'else_branch'" in str(caught.value)
    assert "drop or change one of: @n1 (required by where 'neg'), @n0 (required by where 'relu')" in str(caught.value)
    assert tt.decompose(choosing(), tree.format("python"), where=where).site_of("neg") == "n1/a"


def test_a_branch_is_partitioned_over_the_sites_of_the_machine_that_drives_the_cluster():
    tree = "[a=numpy,b=onnxruntime,n1=[a=numpy](host=@a)](host=@a,runtime=processes)"
    plan = tt.decompose(choosing(), tree, where={"relu": "numpy", "neg": "onnxruntime"})
    assert (plan.site_of("relu"), plan.site_of("neg")) == ("a", "b")
    assert [*plan.programs()] == ["a", "n1"]


@pytest.mark.parametrize("requested", ["@n0", "@n1", "@n0|@n1"])
@pytest.mark.parametrize(("relu", "neg"), [("n0", "n1"), ("n1", "n0"), ("n1", "n1")])
def test_costs_do_not_spread_control_flow_over_distributed_machines(requested, relu, neg):
    """Otherwise every iteration would need all machines."""
    fast = {"Relu": relu, "Neg": neg}
    ops = [
        {"match": {"op": op}, "site": f"{node}/a", "time": 1 if fast.get(op, "n0") == node else 1000}
        for op in ("Relu", "Neg", "ReduceSum", "Greater")
        for node in ("n0", "n1")
    ]
    costs = {"schema": "tvmtarget.cost/1", "links": [{"src": "n0", "dst": "n1", "latency": 1, "bandwidth": 1e9}]}
    tree = "[n0=[a=numpy](host=@a),n1=[a=numpy](host=@a)](host=@n0/a,runtime={})"
    apart = tt.decompose(choosing(), tree.format("processes"), {**costs, "ops": ops}, where={"choose": requested})
    assert {apart.site_of("relu"), apart.site_of("neg")} in ({"n0/a"}, {"n1/a"})
    assert set(apart.programs()) == {"n0", "n1"}
    near = tt.decompose(choosing(), tree.format("python"), {**costs, "ops": ops})
    assert (near.site_of("relu"), near.site_of("neg")) == (f"{relu}/a", f"{neg}/a")


def test_the_throughput_of_a_branch_counts_the_part_of_each_machine():
    """Half of a turn each: a call of 4 us here, one of 8 us and two transfers of 10 us there."""
    ops = [{"match": {"op": op}, "site": "numpy", "time": 0} for op in ("ReduceSum", "Greater", "Relu", "Neg")]
    costs = {
        "schema": "tvmtarget.cost/1",
        "sites": {"n0/a": {"launch": 4}, "n1/a": {"launch": 8}},
        "links": [{"src": "n0", "dst": "n1", "latency": 10, "bandwidth": 1e18}],
        "ops": ops,
    }
    tree = "[n0=[a=numpy](host=@a),n1=[a=numpy](host=@a)](host=@n0/a)"
    plan = tt.decompose(choosing(), tree, costs, where={"sum": "@n0", "relu": "@n0", "neg": "@n1"})
    busy = {stage.machine: (stage.run / 10**6, round(stage.transfers / 10**6)) for stage in plan.throughput.stages}
    assert busy == {"n0": (4 + 2, 10), "n1": (4, 10)}
    assert plan.throughput.latency == plan.prediction.total


def changed(programs, machine, body):
    main = programs[machine].main.replace(body=tuple(body))
    return programs | {machine: programs[machine].replace(functions=(main, *programs[machine].functions[1:]))}


def broken_programs():
    """Yield programs with one fault each, and a part of the error that names it."""
    programs = plan_of(5).programs()
    body = programs["n.1"].main.body
    sends = [place for place, call in enumerate(body) if call.op == SEND]
    first, second = next((a, b) for a, b in pairwise(sends) if b == a + 1)
    swapped = list(body)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    yield changed(programs, "n.1", swapped), "not in the driver's order"
    yield changed(programs, "n.1", body[: sends[0]] + body[sends[0] + 1 :]), "has 0 sends and 1 receives"
    sent = body[sends[0]]
    wrong = dict(sent.attrs) | {"to": "n.1"}
    lost = sent.__class__(SEND, sent.inputs, (), tuple(wrong.items()), source=sent.source, has_effect=True)
    yield changed(programs, "n.1", [*body[: sends[0]], lost, *body[sends[0] + 1 :]]), "is sent by 'n.1' to 'n.1'"
    last = max(place for place, call in enumerate(body) if call.callee)
    outputs = {value.name for value in body[last].outputs}
    rest = [call for call in body if call is not body[last] and not outputs & set(call.inputs)]
    yield changed(programs, "n.1", rest), "of the driver is in 0 programs"


@pytest.mark.parametrize("number", range(4))
def test_verification_finds_programs_that_do_not_fit(number):
    plan = plan_of(5)
    programs, problem = list(broken_programs())[number]
    with pytest.raises(ModelError) as caught:
        verify_programs(plan.module, Machines(plan.topology), programs)
    assert problem in str(caught.value)
