"""Pipeline stages: the dynamic program against all partitions into stages, and the predicted throughput of plans."""

import time
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import light

import tvmtarget as tt
from tvmtarget.errors import TargetError
from tvmtarget.ir.function import Call, Constant, Function, Value
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.dataflow import NO_PRODUCER
from tvmtarget.partition.placement import throughput_balancing
from tvmtarget.partition.placement.throughput_balancing import (
    MAX_POSITIONS,
    AtomSequence,
    PassedValue,
    _contracted,
    _runs,
    balance_stages,
)

MACHINES = 3


@st.composite
def lines(draw):
    count, machines = draw(st.integers(1, 7)), draw(st.integers(1, MACHINES))
    numbers = st.integers(0, 50)
    values = []
    for producer in range(NO_PRODUCER, count):
        readers = draw(st.sets(st.integers(producer + 1, count - 1))) if producer + 1 < count else set()
        is_live_out = producer != NO_PRODUCER and draw(st.booleans())
        if readers or is_live_out:
            values.append(PassedValue(producer, tuple(sorted(readers)), is_live_out, draw(numbers)))
    cells = st.lists(st.lists(numbers, min_size=machines, max_size=machines), min_size=count, max_size=count)
    allowed = st.lists(
        st.lists(st.integers(0, 5).map(bool), min_size=machines, max_size=machines), min_size=count, max_size=count
    )
    return AtomSequence(
        costs=np.array(draw(cells), dtype=np.int64),
        allowed=np.array(draw(allowed), dtype=np.bool_),
        launches=tuple(draw(st.lists(numbers, min_size=machines, max_size=machines))),
        values=tuple(values),
        home=draw(st.one_of(st.none(), st.integers(0, machines - 1))),
    )


def load(line, stages, machine):
    """Add up what one machine is busy with, from the definition."""
    own = {place for place, stage in enumerate(stages) if stage == machine}
    total = sum(int(line.costs[place, machine]) for place in own) + (line.launches[machine] if own else 0)
    is_home = machine == line.home
    for value in line.values:
        is_here = is_home if value.producer == NO_PRODUCER else value.producer in own
        reads, others = own & set(value.readers), set(value.readers) - own
        if not is_here and (reads or (is_home and value.is_live_out)):
            total += value.cost * (bool(reads) + (is_home and value.is_live_out))
        if is_here and others:
            total += value.cost
        if is_here and value.is_live_out and not is_home:
            total += value.cost
    return total


def groupings(kinds, most):
    """Yield the numbers of machines of all stages: equal machines in a row, at most so many, may share one."""
    if not kinds:
        yield ()
    for number in range(1, min(most, len(kinds)) + 1):
        if len(set(kinds[:number])) == 1:
            yield from ((number, *rest) for rest in groupings(kinds[number:], most))


def busiest_of(line, stages, replicas):
    return max(-(-load(line, stages, machine) // number) for machine, number in enumerate(replicas) if number)


def all_stages(line, most):
    """Yield every division of the line into consecutive stages that is allowed, and what the busiest machine does."""
    count = len(line.costs)
    for numbers in groupings(line.kinds(), most):
        firsts = [sum(numbers[:stage]) for stage in range(len(numbers))]
        replicas = [dict(zip(firsts, numbers, strict=True)).get(machine, 0) for machine in range(sum(numbers))]
        for cuts in combinations_with_replacement(range(count + 1), len(numbers) - 1):
            stages = [firsts[sum(cut <= place for cut in cuts)] for place in range(count)]
            if all(line.allowed[place, machine] for place, machine in enumerate(stages)):
                yield stages, busiest_of(line, stages, replicas)


def with_equal_machines(line, like):
    """Return the line with the columns of other machines in place of some."""
    return replace(
        line,
        costs=line.costs[:, like],
        allowed=line.allowed[:, like],
        launches=tuple(line.launches[machine] for machine in like),
    )


@given(line=lines(), like=st.lists(st.integers(0, 1), min_size=1, max_size=4), most=st.integers(1, 3))
def test_no_partition_into_stages_is_better(line, like, most):
    if most > 1:
        like = [min(machine, line.costs.shape[1] - 1) for machine in like]
        line = with_equal_machines(line, like)
        line = replace(line, home=None if line.home is None else min(line.home, len(like) - 1))
    found = balance_stages(line, most)
    every = list(all_stages(line, most))
    if not every:
        assert found is None
        return
    assert found.load == min(total for _, total in every)
    assert found.load == busiest_of(line, found.machines, found.replicas)
    assert sum(found.replicas) == line.costs.shape[1]


def chain(count, cost=10, value=3, machines=2):
    values = [PassedValue(place, (place + 1,), False, value) for place in range(count - 1)]
    return AtomSequence(
        costs=np.full((count, machines), cost, dtype=np.int64),
        allowed=np.ones((count, machines), dtype=np.bool_),
        launches=(0,) * machines,
        values=(PassedValue(NO_PRODUCER, (0,), False, value), *values, PassedValue(count - 1, (), True, value)),
        home=None,
    )


def test_a_long_line_is_cut_at_its_cheapest_places():
    line = chain(6 * MAX_POSITIONS)
    cheap = {place for place in range(len(line.costs)) if place % 6 == 2}
    values = tuple(replace(v, cost=1 if v.producer in cheap else 10**6) for v in line.values)
    line = replace(line, values=values)
    runs = _runs(line)
    assert len(runs) <= MAX_POSITIONS + 2
    assert {begin - 1 for begin in runs[1:-1]} <= cheap
    stages = balance_stages(_contracted(line, runs))
    assert stages.load == pytest.approx(10 * len(line.costs) / 2, rel=2e-2, abs=2e6)
    assert sorted(set(stages.machines)) == [0, 1]


def test_no_assignment_of_a_small_program_loads_the_busiest_machine_less():
    from benchmarks._clusters import busiest, cluster_case

    case = cluster_case(1, 4, 2)
    assert busiest(case.plan()) == case.least_busy()


def test_no_assignment_loads_machines_that_take_turns_less():
    from benchmarks._clusters import busiest, cluster_case

    case = cluster_case(3, 2, 3, are_equal=True)
    assert len({stage.takes_turns for stage in case.plan().throughput.stages}) == 2
    assert busiest(case.plan()) == case.least_busy()


def chain_of(kinds, sizes):
    """Return a program of operators one after the other; sizes are those of its input and their results."""
    values = [Value(f"v{place}", TensorType("float32", (size,))) for place, size in enumerate(sizes)]
    calls = [
        Call(f"onnx.{kind}", (f"v{place}",), (values[place + 1],), source=f"n{place}")
        for place, kind in enumerate(kinds)
    ]
    return tt.IRModule((Function("main", (values[0],), tuple(calls), (values[-1].name,), opsets=(("", 17),)),))


def chain_costs(kinds, times, sites, links):
    """Return costs; `times` are those of the operators by site."""
    ops = [
        {"match": {"op": kind}, "site": site, "time": time}
        for site, row in times.items()
        for kind, time in zip(kinds, row, strict=True)
    ]
    links = [{"src": src, "dst": dst, "latency": latency, "bandwidth": rate} for src, dst, latency, rate in links]
    return {"schema": "tvmtarget.cost/1", "unit": "us", "sites": sites, "ops": ops, "links": links}


def test_a_machine_may_have_stages_that_are_not_consecutive():
    """Two machines, each fast at one of two operators that alternate."""
    stated = chain_costs(("Relu", "Exp"), {"a/cpu": (10, 500), "b/cpu": (500, 10)}, {}, [("a/cpu", "b/cpu", 1, 1e9)])
    tree = "[a=[cpu=numpy](host=@cpu),b=[cpu=numpy](host=@cpu)](host=@a/cpu,runtime=processes)"
    plan = tt.decompose(chain_of(("Relu", "Exp", "Relu", "Exp"), [4] * 5), tree, stated, objective="throughput")
    assert [plan.site_of(f"n{place}") for place in range(4)] == ["a/cpu", "b/cpu", "a/cpu", "b/cpu"]


def test_machines_are_balanced_with_what_passes_the_boundaries_of_their_leaves():
    kinds, sites = ("Softplus", "Sigmoid", "Softsign", "Tanh"), ("b/cpu", "a/cpu", "a/cpu", "b/cpu")
    stated = chain_costs(
        kinds,
        {"a/cpu": (264, 212, 194, 102), "b/cpu": (70, 772, 193, 73)},
        {"a/cpu": {"launch": 5, "boundary_bw": 1e9}, "b/cpu": {"launch": 0, "boundary_bw": 1e9}},
        [("a/cpu", "b/cpu", 15, 1e9)],
    )
    tree = "[a=[cpu=numpy](host=@cpu),b=[cpu=numpy](host=@cpu)](host=@a/cpu,runtime=processes)"
    module = chain_of(kinds, (16388, 256, 16385, 1026, 1027))
    where = {f"n{place}": f"@{site}" for place, site in enumerate(sites)}
    plans = [tt.decompose(module, tree, stated, where=rules, objective="throughput") for rules in ({}, where)]
    assert plans[0].throughput.interval <= plans[1].throughput.interval


def test_leaves_of_machines_are_chosen_together_with_the_machines():
    kinds, sites = ("Softplus", "Neg", "Exp", "Tanh"), ("a/dev", "a/dev", "b/cpu", "b/cpu")
    stated = chain_costs(
        kinds,
        {
            "a/cpu": (152, 552, 43, 164),
            "a/dev": (128, 57, 164, 148),
            "b/cpu": (140, 176, 45, 128),
            "b/dev": (111, 336, 416, 96),
        },
        {"a/cpu": {"launch": 20}, "a/dev": {"launch": 0}, "b/cpu": {"launch": 0}, "b/dev": {"launch": 5}},
        [("a/cpu", "b/cpu", 11, 1e9), ("a/dev", "a/cpu", 6, 2e10), ("b/dev", "b/cpu", 2, 5e9)],
    )
    machine = tt.Target.parse("[dev=onnxruntime,cpu=numpy](host=@cpu)").replace(
        memory=(tt.Memory(name="vram", of=("dev",)),)
    )
    tree = tt.Target.parse("[a=[cpu=numpy](host=@cpu),b=[cpu=numpy](host=@cpu)](host=@a/cpu,runtime=processes)")
    tree = tree.replace(targets=tuple(machine.replace(name=child.name) for child in tree.targets))
    module = chain_of(kinds, (1028, 256, 1025, 16386, 16387))
    where = {f"n{place}": f"@{site}" for place, site in enumerate(sites)}
    plans = [tt.decompose(module, tree, stated, where=rules, objective="throughput") for rules in ({}, where)]
    assert plans[0].throughput.interval <= plans[1].throughput.interval


def with_weights(module, nbytes):
    """Return a program whose operations also read a constant of so many bytes each, if any."""
    main = module.main
    weights = tuple(
        Constant(f"w{place}", TensorType("float32", (size // 4,)), np.full(size // 4, place, dtype=np.float32))
        for place, size in enumerate(nbytes)
    )
    body = tuple(
        replace(call, inputs=(*call.inputs, *([weight.name] if weight.data.size else [])))
        for call, weight in zip(main.body, weights, strict=True)
    )
    constants = tuple(weight for weight in weights if weight.data.size)
    return tt.IRModule((main.replace(body=body, constants=constants),))


def within_memories(kinds, sizes, weights, times, machines, links):
    """Return the machine of each operation, on three machines `a`, `b` and `c` with launch times and capacities."""
    sites = {f"{name}/cpu": {"launch": launch, "capacity": size} for name, (launch, size) in machines.items()}
    stated = chain_costs(
        kinds,
        {f"{name}/cpu": row for name, row in times.items()},
        sites,
        [(f"{src}/cpu", f"{dst}/cpu", latency, rate) for src, dst, latency, rate in links],
    )
    tree = f"[{','.join(f'{name}=[cpu=numpy](host=@cpu)' for name in machines)}](host=@a/cpu,runtime=processes)"
    module = with_weights(chain_of(kinds, sizes), weights)
    plan = tt.decompose(module, tree, stated, objective="throughput")
    return "".join(plan.site_of(f"n{place}")[0] for place in range(len(kinds)))


def test_machines_are_balanced_within_the_memories_of_their_leaves():
    """The machines that would be busy evenly do not hold all weights."""
    unit = 2**18
    found = within_memories(
        kinds=("Max", "Add", "Mul", "Sub", "Softplus"),
        sizes=(1029, 256, 1025, 16386, 1027, 16388),
        weights=[units * unit for units in (2, 2, 5, 6, 0)],
        times={"a": (104, 588, 512, 672, 195), "b": (181, 540, 128, 91, 33), "c": (608, 284, 20, 48, 220)},
        machines={"a": (20, 11 * unit), "b": (0, 8 * unit), "c": (5, 11 * unit)},
        links=[("a", "b", 14, 1e9), ("a", "c", 18, 1e9), ("b", "c", 19, 1e10)],
    )
    assert found == "accbb"


def test_assignments_that_do_not_fit_do_not_hide_those_that_do(monkeypatch):
    """The best ones by load alone are more than get their calls counted, and none of them fits."""
    monkeypatch.setattr(throughput_balancing, "MAX_FORMED", 4)
    unit = 2**20
    found = within_memories(
        kinds=("Sigmoid", "Sub", "Mul", "Min", "Max"),
        sizes=(16389, 16384, 1025, 258, 65539, 65540),
        weights=[units * unit for units in (0, 2, 1, 1, 6)],
        times={"a": (177, 288, 33, 364, 340), "b": (224, 101, 93, 157, 252), "c": (189, 176, 117, 149, 27)},
        machines={"a": (0, 8 * unit), "b": (20, 6 * unit), "c": (5, 7 * unit)},
        links=[("a", "b", 11, 1e9), ("a", "c", 2, 1e9), ("b", "c", 5, 1e9)],
    )
    assert found == "ababc"


NODE = "[ort=onnxruntime,cpu=numpy](host=@cpu,count={})"
LINKS = [("n.0", "n.1"), ("n.0", "n.2"), ("n.1", "n.2")]


def costs(links=LINKS, **machines):
    sites = {
        "onnxruntime": {"launch": 20, "flops": {"float32": 1e11}, "mem_bw": 2e10, "roofline": 0.5},
        "numpy": {"launch": 1, "flops": {"float32": 1e10}, "mem_bw": 2e10, "roofline": 0.5},
    }
    return {
        "schema": "tvmtarget.cost/1",
        "unit": "us",
        "sites": sites | machines,
        "links": [{"src": src, "dst": dst, "latency": 20, "bandwidth": 1e9} for src, dst in links],
    }


def cluster(count=3, home="n.0/cpu"):
    return tt.Target.parse(f"[n={NODE.format(count)}](host=@{home})")


@pytest.fixture(scope="module")
def squeezenet():
    return tt.IRModule.from_onnx(light("squeezenet"))


def test_throughput_uses_all_machines_where_latency_uses_one(squeezenet):
    near, fast = (tt.decompose(squeezenet, cluster(), costs(), objective=o) for o in ("latency", "throughput"))
    assert {subgraph.site for subgraph in near.subgraphs} == {"n.0/ort"}
    assert {subgraph.site for subgraph in fast.subgraphs} == {"n.0/ort", "n.1/ort", "n.2/ort"}
    assert near.throughput.latency == near.prediction.total <= fast.throughput.latency
    assert fast.throughput.inputs_per_second > 2.5 * near.throughput.inputs_per_second
    assert "in a stream" in fast.summary()
    data = fast.to_json()["machines"]
    assert data["stages"][data["slowest"]]["busy"] == max(stage["busy"] for stage in data["stages"].values())
    assert data["throughput"] == pytest.approx(1e6 / data["stages"][data["slowest"]]["busy"], rel=0.01)


def test_the_throughput_adds_up_to_the_prediction(squeezenet):
    """What machines run and transfer, each transfer at both ends, is what the plan takes in all."""
    plan = tt.decompose(squeezenet, cluster(), costs(), objective="throughput")
    run = sum(stage.run for stage in plan.throughput.stages)
    transfers = sum(stage.transfers for stage in plan.throughput.stages)
    assert run + transfers // 2 == plan.prediction.total


def test_the_throughput_counts_what_passes_boundaries_and_functions_measured_as_a_whole(squeezenet):
    passing = {"launch": 20, "flops": {"float32": 1e11}, "mem_bw": 2e10, "boundary_bw": 1e9}
    given = costs(LINKS[:1], **{"n.0/ort": passing, "n.1/ort": passing | {"boundary_bw": 2e9}})
    plan = tt.decompose(squeezenet, cluster(2), given, objective="throughput")
    assert plan.prediction.boundary
    measured = [{"match": {"structure": task.structure}, "site": "n/ort", "time": 700} for task in plan.tasks()[:1]]
    again = tt.decompose(squeezenet, cluster(2), given | {"regions": measured}, where=required_sites(plan))
    for one in (plan, again):
        run = sum(stage.run for stage in one.throughput.stages)
        transfers = sum(stage.transfers for stage in one.throughput.stages)
        assert run + transfers // 2 == pytest.approx(one.prediction.total, abs=len(one.subgraphs))
    assert again.prediction.total != plan.prediction.total


def required_sites(plan):
    return {op: f"@{site}" for op, site in plan.sites().items()}


def test_the_latency_counts_a_transfer_at_a_receiver_that_was_busy():
    """A result arrives while its receiver computes, which the transfer occupies afterwards, as in a stream."""
    x, there, here = (Value(name, TensorType("float32", (4,))) for name in ("x", "there", "here"))
    calls = (Call("onnx.Exp", ("x",), (there,), source="there"), Call("onnx.Relu", ("x",), (here,), source="here"))
    main = Function("main", (x,), calls, ("there", "here"), opsets=(("", 17),))
    stated = {
        "schema": "tvmtarget.cost/1",
        "sites": {"numpy": {"launch": 0}},
        "ops": [{"match": {"op": op}, "site": "numpy", "time": time} for op, time in (("Exp", 20), ("Relu", 100))],
        "links": [{"src": "a/cpu", "dst": "b/cpu", "latency": 10, "bandwidth": 1e18}],
    }
    tree = "[b=[cpu=numpy](host=@cpu),a=[cpu=numpy](host=@cpu)](host=@a/cpu,runtime=processes)"
    plan = tt.decompose(tt.IRModule((main,)), tree, stated, where={"there": "@b", "here": "@a"})
    # `a` sends x and computes; `b` has sent its result by then, which `a` receives.
    assert plan.throughput.latency / 10**6 == pytest.approx(10 + 100 + 10)
    assert plan.prediction.total / 10**6 == pytest.approx(10 + 20 + 100 + 10)


def test_the_choice_of_the_home_replica_does_not_matter(squeezenet):
    plans = [tt.decompose(squeezenet, cluster(home=f"n.{n}/cpu"), costs(), objective="throughput") for n in range(3)]
    assert len({plan.throughput.slowest.busy for plan in plans}) == 1
    assert len({tuple(sorted(stage.busy for stage in plan.throughput.stages)) for plan in plans}) == 1


def test_the_faster_machine_does_more(squeezenet):
    fast = {"launch": 20, "flops": {"float32": 4e11}, "mem_bw": 8e10, "roofline": 0.5}
    plan = tt.decompose(squeezenet, cluster(), costs(**{"n.2/ort": fast}), objective="throughput")
    even = tt.decompose(squeezenet, cluster(), costs(), objective="throughput")
    assert plan.throughput.inputs_per_second > 1.5 * even.throughput.inputs_per_second


def test_requirements_come_first(squeezenet):
    plan = tt.decompose(squeezenet, cluster(), costs(), where={"op:Softmax": "@n.1/cpu"}, objective="throughput")
    assert {plan.site_of(call.source) for call in squeezenet.main.body if call.kind == "Softmax"} == {"n.1/cpu"}


def test_unknown_links_are_avoided(squeezenet):
    plan = tt.decompose(squeezenet, cluster(), costs(links=()), objective="throughput")
    assert plan.throughput.unknown == 0
    assert {subgraph.site for subgraph in plan.subgraphs} == {"n.0/ort"}


def test_an_objective_is_kept_in_a_saved_plan(tmp_path, squeezenet):
    plan = tt.decompose(squeezenet, cluster(2), costs(LINKS[:1]), objective="throughput")
    plan.save(tmp_path / "plan.tt")
    again = tt.Plan.load(tmp_path / "plan.tt")
    assert again.options.objective == "throughput"
    assert again.throughput == plan.throughput


@pytest.mark.parametrize(
    ("objective", "costs", "problem"),
    [("speed", "roofline", "is latency or throughput, not"), ("throughput", None, "needs costs")],
)
def test_invalid_objectives_are_errors(squeezenet, objective, costs, problem):
    with pytest.raises(TargetError, match=problem):
        tt.decompose(squeezenet, cluster(), costs, objective=objective)


def test_the_summary_of_tens_of_thousands_of_copies_takes_time_in_proportion():
    count, type_ = 20_000, TensorType("float32", (256,))
    body = tuple(Call("onnx.Relu", ("x",), (Value(f"v{n}", type_),), source=f"n{n}") for n in range(count))
    results = tuple(f"v{n}" for n in range(count))
    main = Function("main", (Value("x", type_),), body, results, opsets=(("", 18),))
    tree = tt.Target.parse("[n1=[npu=onnxruntime,c=numpy](host=@c),c=numpy](host=@c)")
    inner = tree.targets[0].replace(memory=(tt.Memory(name="sram", of=("npu",)),))
    tree = tree.replace(targets=(inner, tree.targets[1]))
    costs = {
        "schema": "tvmtarget.cost/1",
        "sites": {"n1/npu": {"launch": 1}, "n1/c": {"launch": 1}, "c": {"launch": 1}},
        "ops": [
            {"match": {"op": "Relu"}, "site": "n1/npu", "time": 1},
            {"match": {"op": "Relu"}, "site": "n1/c", "time": 500},
            {"match": {"op": "Relu"}, "site": "c", "time": 500},
        ],
        "links": [
            {"src": "c", "dst": "n1/c", "latency": 1, "bandwidth": 1e9},
            {"src": "n1/c", "dst": "n1/npu", "latency": 1, "bandwidth": 1e9},
        ],
    }
    plan = tt.decompose(tt.IRModule((main,)), tree, costs)
    assert plan.site_of("n0") == "n1/npu"
    begin = time.process_time()
    plan.summary()
    # With a search through all copies for each of them it takes 8 s.
    assert time.process_time() - begin < 4
