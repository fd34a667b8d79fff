"""Operations that must share a site, or must not."""

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import DIGITS, random_graph

import tvmtarget as tt
from benchmarks._small import small as drawn
from tvmtarget.errors import InfeasibleError, TargetError, TvmTargetError, UnknownNameError
from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.types import TensorType
from tvmtarget.partition import pipeline
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost

FLAT = "[a=numpy,b=onnxruntime,c=llvm]"
DEEP = "[x=[a=numpy,b=onnxruntime](host=@a),y=[c=llvm,d=numpy](host=@d)](host=@x/a)"


@settings(max_examples=40, deadline=None)
@given(size=st.integers(4, 30), seed=st.integers(0, 10**6), target=st.sampled_from([FLAT, DEEP]), by_cost=st.booleans())
def test_colocation_is_satisfied_or_rejected(size, seed, target, by_cost):
    module = tt.IRModule.from_onnx(random_graph(size, seed))
    rng = random.Random(seed)
    names = [call.source for call in module.main.body]
    same, apart = rng.sample(names, 2), rng.sample(names, 2)
    leaves = [path for path, node in tt.Target.parse(target).walk() if not node.is_composite]
    where = {name: f"@{rng.choice(leaves)}?" for name in names if rng.random() < 0.5}
    costs = "roofline" if by_cost else None
    try:
        plan = tt.decompose(module, target, costs, where=where, same_site=[same], apart=[apart])
    except InfeasibleError as error:
        problem = str(error)
    else:
        problem = ""
        sites = plan.sites()
        assert sites[same[0]] == sites[same[1]]
        assert sites[apart[0]] != sites[apart[1]]
    assert not problem or set(same) == set(apart), problem


MEANT = {"@a": "a", "@b": "b", "!@a": "bc", "!@a&!@b": "c", "onnxruntime": "ac", "numpy": "b"}


@settings(max_examples=40, deadline=None)
@given(size=st.integers(3, 5), seed=st.integers(0, 10**6))
def test_colocation_is_rejected_only_if_no_assignment_satisfies_it(size, seed):
    module = tt.IRModule.from_onnx(random_graph(size, seed, outputs=size))
    rng = random.Random(seed)
    names = [call.source for call in module.main.body]
    where = {name: rng.choice(list(MEANT)) for name in names if rng.random() < 0.4}
    same = [rng.sample(names, 2) for _ in range(rng.randint(0, 2))]
    apart = [rng.sample(names, rng.randint(2, 3)) for _ in range(rng.randint(1, 3))]

    def is_kept(sites):
        return (
            all(sites[name] in MEANT[options] for name, options in where.items())
            and all(sites[a] == sites[b] for a, b in same)
            and all(len({sites[name] for name in group}) == len(group) for group in apart)
        )

    choices = (dict(zip(names, choice, strict=True)) for choice in product("abc", repeat=len(names)))
    is_possible = any(map(is_kept, choices))
    try:
        plan = tt.decompose(
            module, "[a=onnxruntime,b=numpy,c=onnxruntime](host=@b)", where=where, same_site=same, apart=apart
        )
    except InfeasibleError:
        assert not is_possible
    else:
        assert is_kept(plan.sites())


@pytest.mark.parametrize("seed", range(2))
def test_colocation_by_cost_is_as_fast_as_the_best_assignment_that_satisfies_it(seed, tmp_path):
    case = drawn(seed, 5, 2, "devices")
    names = [call.source for call in case.module.main.body]
    rng = random.Random(seed)
    same, apart = rng.sample(names, 3), rng.sample(names, 2)
    apart = apart if not set(apart) <= set(same) else []
    plan = tt.decompose(case.module, case.tree, case.costs, same_site=[same], apart=[apart])
    leaves = [leaf.path for leaf in plan.topology.leaves()]
    choices = (dict(zip(names, choice, strict=True)) for choice in product(sorted(leaves), repeat=len(names)))
    kept = (
        sites
        for sites in choices
        if len({sites[name] for name in same}) == 1 and len({sites[name] for name in apart}) == len(apart)
    )
    free = tt.decompose(case.module, case.tree, case.costs)
    totals = [free.with_sites([sites[name] for name in names]).prediction.total for sites in kept]
    assert plan.prediction.total <= 1.01 * min(totals)
    plan.save(tmp_path / "a.plan")
    assert tt.Plan.load(tmp_path / "a.plan").to_json() == plan.to_json()


def test_the_bound_of_a_plan_is_that_of_all_choices_that_keep_its_requests(tmp_path):
    """What is pinned because a plan is read again is one way of many."""
    module = tt.IRModule.from_onnx(random_graph(12, 3))
    costs = {
        "schema": "tvmtarget.cost/1",
        "sites": {"a": {"launch": 1}, "b": {"launch": 1}},
        "ops": [
            {"match": {"op": op}, "site": site, "time": time}
            for op, times in {"Add": (1, 90), "Mul": (90, 1), "Sub": (5, 4), "Tanh": (30, 1)}.items()
            for site, time in zip("ab", times, strict=True)
        ],
    }
    costs["ops"] += [
        {"match": {"op": op}, "site": s, "time": 7} for op in ("Relu", "Abs", "Neg", "Sigmoid") for s in "ab"
    ]
    names = [call.source for call in module.main.body]
    free = tt.decompose(module, "[a=numpy,b=onnxruntime]", costs)
    bound = tt.decompose(module, "[a=numpy,b=onnxruntime]", costs, same_site=[names])
    assert free.prediction.lower_bound < bound.prediction.lower_bound == bound.prediction.total
    free.save(tmp_path / "a.plan")
    assert tt.Plan.load(tmp_path / "a.plan").summary() == free.summary()
    assert free.with_sites(list(bound.sites().values())).prediction.lower_bound == free.prediction.lower_bound


def test_another_plan_does_not_keep_the_sites_that_a_request_moved_operations_to():
    """`apart` pins both operations in the first plan; by other costs, or given sites, they may be elsewhere."""
    text = """func @main(%x: float32[4]) opsets(onnx=20) {
  %a: float32[4] = onnx.Relu(%x) as "n0"
  %b: float32[4] = onnx.Tanh(%a) as "n1"
  return %b
}"""
    module, target, options = tt.IRModule.parse(text), "[a=numpy,b=onnxruntime]", {"apart": [["n0", "n1"]]}
    times = {("Relu", "a"): 90, ("Relu", "b"): 1, ("Tanh", "a"): 1, ("Tanh", "b"): 90}
    costs = {
        "schema": "tvmtarget.cost/1",
        "sites": {"a": {"launch": 1}, "b": {"launch": 1}},
        "ops": [{"match": {"op": op}, "site": site, "time": time} for (op, site), time in times.items()],
    }
    plan = tt.decompose(module, target, **options)
    assert plan.sites() == {"n0": "a", "n1": "b"}
    again, anew = plan.with_costs(costs), tt.decompose(module, target, costs, **options)
    assert again.sites() == {"n0": "b", "n1": "a"}
    assert (str(again.module), again.prediction) == (str(anew.module), anew.prediction)
    assert plan.with_sites(["b", "a"]).sites() == again.sites()


def test_names_and_globs_are_those_of_where(tmp_path):
    module = tt.IRModule.from_onnx(DIGITS)
    where = {"conv1": "@a", "conv2": "@b?", "conv3": "@c?"}
    plan = tt.decompose(module, FLAT, where=where, same_site=[["conv[12]", "fc1"]], apart=[["op:Gemm"]])
    sites = plan.sites()
    assert (sites["conv1"], sites["conv2"], sites["fc1"], sites["conv3"]) == ("a", "a", "a", "c")
    assert sites["fc1"] != sites["fc2"]
    plan.save(tmp_path / "a.plan")
    loaded = tt.Plan.load(tmp_path / "a.plan")
    assert (loaded.options.same_site, loaded.options.apart) == (plan.options.same_site, plan.options.apart)
    assert loaded.module == plan.module
    with pytest.raises(UnknownNameError, match="no op 'fc3'"):
        tt.decompose(module, FLAT, apart=[["fc3", "fc1"]])


def test_which_of_two_operations_moves_does_not_depend_on_how_they_are_listed():
    head, tail = "func @main(%x: float32[2]) opsets(onnx=17) {", "return %a, %b }"
    calls = ["%a: float32[2] = onnx.Relu(%x) as a", "%b: float32[2] = onnx.Exp(%x) as b"]
    modules = [tt.IRModule.parse("\n".join([head, *listed, tail])) for listed in (calls, calls[::-1])]
    sites, others = (tt.decompose(module, FLAT, apart=[["a", "b"]]).sites() for module in modules)
    assert sites == others


@pytest.mark.parametrize("times", [None, {"a": 90.0, "b": 90.0, "c": 1.0}])
def test_groups_are_on_sites_that_one_of_them_prefers_at_any_cost(times):
    text = """func @main(%x: float32[4]) opsets(onnx=20) {
  %a: float32[4] = onnx.Relu(%x) as "n0"
  %b: float32[4] = onnx.Tanh(%a) as "n1"
  %c: float32[4] = onnx.Exp(%b) as "n2"
  return %c
}"""
    costs = times and Costs(
        sites={site: SiteCost(launch=1.0) for site in times},
        ops=tuple(OpCost(site, op=op, time=time) for site, time in times.items() for op in ("Relu", "Tanh", "Exp")),
    )
    module, target = tt.IRModule.parse(text), "[c=numpy,a=numpy,b=onnxruntime]"
    options = {"where": {"n1": "@a?", "n2": "@b?"}, "same_site": [["n0", "n1", "n2"]]}
    plan = tt.decompose(module, target, costs, **options)
    assert set(plan.sites().values()) in ({"a"}, {"b"})
    # The bound is that of plans that keep all preferences, as this one cannot.
    assert plan.prediction is None or plan.prediction.lower_bound is None


def test_empty_groups_require_nothing():
    module = tt.IRModule.from_onnx(DIGITS)
    assert not tt.decompose(module, FLAT, same_site=[[]], apart=[[]]).diff(tt.decompose(module, FLAT))


def test_contradictions_are_reported():
    module = tt.IRModule.from_onnx(DIGITS)
    with pytest.raises(InfeasibleError, match=r"ops 'fc1', 'fc2' must share a site, and no leaf supports all of them"):
        tt.decompose(module, FLAT, where={"fc1": "@a", "fc2": "@b"}, same_site=[["op:Gemm"]])
    with pytest.raises(InfeasibleError, match="'fc1' and 'fc2' must be apart"):
        tt.decompose(module, "numpy", apart=[["op:Gemm"]])
    with pytest.raises(InfeasibleError, match="'fc1' and 'fc2' are required to share a site and to be apart"):
        tt.decompose(module, FLAT, same_site=[["op:Gemm"]], apart=[["fc1", "fc2"]])
    with pytest.raises(TargetError, match=r"same_site is groups of names of ops.*, so that 'fc1' is none"):
        tt.decompose(module, FLAT, same_site=["fc1", "fc2"])
    with pytest.raises(InfeasibleError, match="must be apart"):
        tt.decompose(module, FLAT, where={"op:Gemm": "@a"}, apart=[["op:Gemm"]])


@settings(max_examples=30, deadline=None)
@given(size=st.integers(4, 30), seed=st.integers(0, 10**6), target=st.sampled_from([FLAT, DEEP]), by_cost=st.booleans())
def test_atomic_groups_and_boundaries_are_kept_or_rejected(size, seed, target, by_cost):
    """A group is in one function; a boundary keeps an operation from what it reads, or from what reads it."""
    module = tt.IRModule.from_onnx(random_graph(size, seed))
    rng = random.Random(seed)
    names = [call.source for call in module.main.body]
    leaves = [path for path, node in tt.Target.parse(target).walk() if not node.is_composite]
    where = {name: f"@{rng.choice(leaves)}?" for name in names if rng.random() < 0.4}
    options = {"atomic": [rng.sample(names, 2)], "boundary_before": rng.sample(names, 2), "boundary_after": [names[0]]}
    try:
        plan = tt.decompose(module, target, "roofline" if by_cost else None, where=where, **options)
    except InfeasibleError as error:
        assert "are required to be atomic, but" in str(error)  # noqa: PT017 - any other error is a fault
        return
    owner = {op: subgraph.call for subgraph in plan.subgraphs for op in subgraph.ops}
    assert len({owner[op] for op in options["atomic"][0]}) == 1
    body = plan.program.body
    for index, call in enumerate(body):
        for before in plan.program.predecessors(index):
            first = body[before].source
            if call.source in options["boundary_before"] or first in options["boundary_after"]:
                assert owner[first] != owner[call.source]
    assert tt.decompose(plan.module).module == plan.module


def test_one_call_of_a_system_runs_the_functions_on_both_sides_of_a_boundary():
    """Two calls would take the value out of the memory of the leaf, and back."""
    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(module, DEEP, where={"*": "@x/b"}, boundary_after=["pool"])
    assert len(plan.module.main.body) == 1
    assert [subgraph.site for subgraph in plan.subgraphs] == ["x/b", "x/b"]


@settings(max_examples=20, deadline=None)
@given(size=st.integers(4, 30), seed=st.integers(0, 10**6), most=st.integers(0, 3), by_cost=st.booleans())
def test_a_site_gets_at_most_its_number_of_calls(size, seed, most, by_cost):
    module = tt.IRModule.from_onnx(random_graph(size, seed))
    rng = random.Random(seed)
    where = {call.source: f"@{rng.choice('abc')}?" for call in module.main.body}
    plan = tt.decompose(
        module, FLAT, "roofline" if by_cost else None, where=where, max_subgraphs={"b": most, "llvm": 1}
    )
    counts = {site: [subgraph.site for subgraph in plan.subgraphs].count(site) for site in "bc"}
    assert counts["b"] <= most
    assert counts["c"] <= 1


@pytest.mark.parametrize("target", ["[b=numpy,h=numpy]", "[s=[b=numpy,c=numpy](host=@c),h=numpy](host=@h)"])
def test_a_site_with_one_call_runs_what_another_order_of_calls_brings_together(target):
    """One call of @h between two of @b would be cheaper than one of @b between two of @h."""
    text = """func @main(%x: float32[4]) opsets(onnx=20) {
  %a: float32[4] = onnx.Relu(%x) as "n0"
  %b: float32[4] = onnx.Tanh(%a) as "n1"
  %c: float32[4] = onnx.Exp(%x) as "n2"
  %d: float32[4] = onnx.Neg(%c) as "n3"
  return %b, %d
}"""
    here = "b" if target.startswith("[b") else "s/b"
    times = {"Relu": (1.0, 99.0), "Neg": (1.0, 99.0), "Tanh": (99.0, 1.0), "Exp": (99.0, 1.0)}
    costs = Costs(
        sites={here: SiteCost(launch=1.0), "h": SiteCost(launch=5.0)},
        links=() if here == "b" else (LinkCost("s", "h", 1.0, 1e9),),
        ops=tuple(
            OpCost(site, op=op, time=time) for op in times for site, time in zip((here, "h"), times[op], strict=True)
        ),
    )
    plan = tt.decompose(tt.IRModule.parse(text), target, costs, max_subgraphs={here: 1})
    assert [(one.site, set(one.ops)) for one in plan.subgraphs] == [
        ("h", {"n2"}),
        (here, {"n0", "n3"}),
        ("h", {"n1"}),
    ]


@pytest.mark.parametrize("boundaries", [(), ("n1",)])
def test_calls_of_a_system_do_not_divide_the_calls_of_its_leaves(boundaries: tuple[str, ...]):
    """What a call of a system costs depends on the leaves that it runs."""
    text = """func @main(%x: float32[4]) opsets(onnx=20) {
  %a: float32[4] = onnx.Relu(%x) as "n0"
  %b: float32[4] = onnx.Tanh(%a) as "n1"
  %c: float32[4] = onnx.Min(%x, %a) as "n2"
  %d: float32[4] = onnx.Neg(%b) as "n3"
  return %c, %d
}"""
    times = {"Relu": (9.0, 80.0, 90.0), "Tanh": (9.0, 40.0, 20.0), "Min": (9.0, 99.0, 90.0), "Neg": (9.0, 80.0, 80.0)}
    sites = {"s/a": SiteCost(launch=10.0), "s/c": SiteCost(launch=30.0), "h": SiteCost(launch=1.0)}
    costs = Costs(
        sites=sites,
        links=(LinkCost("s", "h", 1.0, 1e9),),
        ops=tuple(OpCost(site, op=op, time=time) for op in times for site, time in zip(sites, times[op], strict=True)),
    )
    target = "[s=[a=numpy,c=numpy](host=@c),h=numpy](host=@h)"
    plan = tt.decompose(tt.IRModule.parse(text), target, costs, apart=[["n0", "n1", "n2"]], boundary_before=boundaries)
    assert [one.site for one in plan.subgraphs].count("s/a") == 1
    assert plan.prediction.total == plan.prediction.lower_bound


def test_the_smallest_subgraphs_are_given_up_first():
    """What TFLite calls the N largest delegates, and what ends in dozens of engines without it."""
    module = tt.IRModule.from_onnx(DIGITS)
    where = {"relu1": "@a", "pool": "@a"}
    plan = tt.decompose(module, "[b=onnxruntime,a=numpy]", where=where, max_subgraphs={"b": 1})
    assert [(subgraph.site, len(subgraph.ops)) for subgraph in plan.subgraphs] == [("a", 5), ("b", 6)]
    assert plan.explain("conv1").reason == "it must meet !@b (required by max_subgraphs)"
    with pytest.raises(InfeasibleError, match=r"'b' gets 3 subgraphs, more than 1, .* op 'conv1'"):
        tt.decompose(module, "[b=onnxruntime,a=numpy]", where={"op:Conv": "@b", **where}, max_subgraphs={"b": 1})
    with pytest.raises(UnknownNameError, match="no site of the target is or has 'bb'"):
        tt.decompose(module, "[b=onnxruntime,a=numpy]", max_subgraphs={"bb": 1})


@pytest.mark.parametrize("where", [{}, {"a": "@n?", "b": "@h?"}])
@pytest.mark.parametrize("times", [None, {"n": 1.0, "h": 9.0}])
def test_groups_leave_sites_with_too_many_subgraphs_together(where, times):
    text = """func @main(%x: float32[4]) opsets(onnx=20) {
  %a: float32[4] = onnx.Relu(%x) as "a"
  %b: float32[4] = onnx.Tanh(%a) as "b"
  return %b
}"""
    module = tt.IRModule.parse(text)
    costs = times and Costs(
        ops=tuple(OpCost(leaf, op=op, time=times[leaf]) for leaf in times for op in ("Relu", "Tanh"))
    )
    target, options = "[n=onnxruntime,h=numpy](host=@h)", {"where": where, "same_site": [["a", "b"]]}
    assert set(tt.decompose(module, target, costs, **options, max_subgraphs={"n": 0}).sites().values()) == {"h"}


def test_a_preference_that_an_atomic_group_cannot_follow_favours_no_system_around_it():
    text = """func @main(%x: float32[4]) opsets(onnx=20) {
  %a: float32[4] = onnx.Relu(%x) as "a"
  %b: float32[4] = onnx.Tanh(%a) as "b"
  return %b
}"""
    times = {"s/n": 1.0, "s/h": 9.0, "h": 5.0}
    ops = tuple(OpCost(leaf, op=op, time=times[leaf]) for leaf in times for op in ("Relu", "Tanh"))
    costs = Costs(ops=ops, links=(LinkCost("s", "h", 1.0, 1e9),))
    target, where = "[s=[n=onnxruntime,h=numpy](host=@h),h=numpy](host=@h)", {"a": "@s/n?", "b": "!@s/n"}
    plan = tt.decompose(tt.IRModule.parse(text), target, costs, where=where, atomic=[["a", "b"]])
    assert plan.sites() == {"a": "h", "b": "h"}


def test_groups_and_limits_are_in_the_file_of_a_plan(tmp_path):
    module = tt.IRModule.from_onnx(DIGITS)
    options = {"atomic": [["fc1", "relu4"]], "boundary_before": ["conv2"], "boundary_after": ["pool"]}
    plan = tt.decompose(module, FLAT, **options, max_subgraphs={"b": 0})
    assert [subgraph.ops[0] for subgraph in plan.subgraphs] == ["conv1", "conv2", "conv3"]
    assert dict(plan.explain("conv2").neighbours) == {"relu1": "BOUNDARY, it is required between them"}
    plan.save(tmp_path / "a.plan")
    loaded = tt.Plan.load(tmp_path / "a.plan")
    assert (loaded.module, loaded.to_json()) == (plan.module, plan.to_json())
    assert [loaded.options.atomic, loaded.options.max_subgraphs] == [(("fc1", "relu4"),), {"b": 0}]
    assert not plan.diff(plan.replay(module))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"atomic": [["conv1", "conv2"]]},
            "'conv1', 'conv2' are required to be atomic, but 'relu1' lies between; add it",
        ),
        (
            {"atomic": [["fc1", "relu4"]], "boundary_before": ["relu4"]},
            "a boundary is required between 'fc1' and 'r",
        ),
        ({"atomic": [["fc1", "relu4"]], "where": {"fc1": "@a", "relu4": "@b"}}, "drop or change one of: @a .*, @b "),
        ({"atomic": [["fc1", "fc9"]]}, "no op 'fc9'"),
        ({"atomic": [["fc1", "fc1"]]}, r"atomic is groups .*, and \['fc1', 'fc1'\] names one op"),
        ({"boundary_after": ["fc9"]}, "no op 'fc9'"),
        ({"boundary_after": "fc1"}, "boundary_after is names of ops, such as .*, so that 'fc1' is none"),
        ({"same_site": [[1]]}, "same_site is groups of names of ops, such as .*, so that 1 is none"),
        (
            {"boundary_after": {"fc1": "@a"}},
            "boundary_after is names of ops, such as .*, so that {'fc1': '@a'} is none",
        ),
        ({"apart": 5}, "apart is groups of names of ops, such as .*, not 5"),
        ({"max_subgraphs": {"a": -1}}, "max_subgraphs of 'a' is a number, 0 or more, not -1"),
        ({"max_subgraphs": 3}, "max_subgraphs is numbers by site, such as {'npu': 4}, not 3"),
        ({"where": "@a"}, "where is constraints by name, such as .*, not '@a'"),
        ({"where": {"fc1": 3, "fc2": ""}}, r"not 3 \(in where 'fc1'\)\n.* the text is empty; .* \(in where 'fc2'\)"),
        ({"where": {1: "@a"}}, "where names ops by name, glob or 'op:KIND', not by 1"),
    ],
)
def test_invalid_options_are_reported(options, problem):
    with pytest.raises(TvmTargetError, match=problem):
        tt.decompose(tt.IRModule.from_onnx(DIGITS), FLAT, **options)


def test_atomic_groups_in_a_cycle_are_rejected():
    """Facts: pairwise convex parts need not have an acyclic quotient, {1,4} and {2,3} with 1->2, 3->4."""
    body = """%a: float32[4] = onnx.Relu(%x) as n1 %b: float32[4] = onnx.Tanh(%a) as n2
      %c: float32[4] = onnx.Tanh(%x) as n3 %d: float32[4] = onnx.Relu(%c) as n4"""
    module = tt.IRModule.parse(f"func @main(%x: float32[4]) opsets(onnx=17) {{ {body} return %b, %d }}")
    with pytest.raises(InfeasibleError, match=r"the atomic groups .* wait for each other; make one of them"):
        tt.decompose(module, FLAT, atomic=[["n1", "n4"], ["n2", "n3"]])
    one = tt.decompose(module, FLAT, atomic=[["n1", "n4", "n2", "n3"]], where={"n3": "@b"})
    assert set(one.sites().values()) == {"b"}


def test_unsatisfiable_colocation_names_the_conflicting_constraints():
    module = tt.IRModule.from_onnx(DIGITS)
    where = {"conv1": "@a", "fc1": "@b", "conv2": "@c"}
    guilty = r"drop or change one of: @a \(required by where 'conv1'\), @b \(required by where 'fc1'\)$"
    with pytest.raises(InfeasibleError, match=guilty):
        tt.decompose(module, FLAT, where=where, same_site=[["conv1", "fc1", "relu1"]])
    guilty = r"drop or change one of: @a \(required by where 'conv1'\), @a \(required by where 'fc1'\)$"
    with pytest.raises(InfeasibleError, match=guilty):
        tt.decompose(module, FLAT, where={**where, "fc1": "@a"}, apart=[["conv1", "fc1"]])
    with pytest.raises(
        InfeasibleError,
        match=r"'conv1', 'conv2', 'conv3' and 'fc1' must be apart, and no choice of leaves keeps them so$",
    ):
        tt.decompose(module, FLAT, apart=[["conv*", "fc1"]])


@settings(max_examples=40, deadline=None)
@given(size=st.integers(6, 20), seed=st.integers(0, 10**6), target=st.sampled_from([FLAT, DEEP]))
def test_foreseeing_all_rounds_gives_the_plan_of_going_round_by_round(size, seed, target):
    module, rng = tt.IRModule.from_onnx(random_graph(size, seed)), random.Random(seed)
    names = [call.source for call in module.main.body]
    drawn = rng.sample(names, 6)
    leaves = [path for path, node in tt.Target.parse(target).walk() if not node.is_composite]
    options = {
        "where": {name: f"@{rng.choice(leaves)}?" for name in names if rng.random() < 0.5},
        "apart": [drawn[:2], drawn[2:4], rng.sample(names, 2)],
        "same_site": [drawn[4:]],
        # Operations that stay together move together, so that rounds are not foreseen.
        "atomic": [names[at : at + 2] for at in range(0, size - 1, 4)] if rng.random() < 0.5 else [],
    }

    def outcome():
        try:
            return tt.decompose(module, target, **options).to_json()
        except InfeasibleError as error:
            return error.problems

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "foreseen_pins", lambda *_: None)
        expected = outcome()
    assert outcome() == expected


def test_many_pairs_that_preferences_keep_on_one_site_are_separated_in_few_plans(monkeypatch):
    kinds, rng, type_ = ("Relu", "Exp", "Neg", "Abs"), random.Random(1), TensorType("float32", (4096,))
    body = tuple(
        Call(
            f"onnx.{rng.choice(kinds)}",
            (f"v{index - 20}" if index >= 20 else "x",),
            (Value(f"v{index}", type_),),
            source=f"n{index}",
        )
        for index in range(600)
    )
    main = Function(
        "main", (Value("x", type_),), body, tuple(f"v{index}" for index in range(580, 600)), opsets=(("", 18),)
    )
    drawn = rng.sample([call.source for call in body], 300)
    times = [OpCost(site=site, op=kind, time=rng.uniform(5, 50)) for site in ("gpu", "npu", "cpu") for kind in kinds]
    costs = Costs(
        sites={site: SiteCost(launch=5) for site in ("gpu", "npu", "cpu")},
        ops=tuple(times),
        links=tuple(LinkCost(src="cpu", dst=site, latency=5, bandwidth=1e10) for site in ("gpu", "npu")),
    )
    made = []

    def counted(*arguments, **options):
        made.append(1)
        return best(*arguments, **options)

    best = pipeline.best_candidate
    monkeypatch.setattr(pipeline, "best_candidate", counted)
    plan = tt.decompose(
        tt.IRModule((main,)),
        "[gpu=onnxruntime,npu=llvm,cpu=numpy](host=@cpu)",
        costs,
        same_site=[drawn[at : at + 2] for at in range(0, 100, 2)],
        apart=[drawn[at : at + 2] for at in range(100, 200, 2)],
        where={name: rng.choice(("@gpu?", "@npu?", "@cpu?")) for name in drawn[50:150]},
    )
    assert all(
        plan.site_of(one) == plan.site_of(other) for one, other in zip(drawn[:100:2], drawn[1:100:2], strict=True)
    )
    assert all(
        plan.site_of(one) != plan.site_of(other) for one, other in zip(drawn[100:200:2], drawn[101:200:2], strict=True)
    )
    assert len(made) <= 6


@pytest.mark.parametrize("costs", [None, "roofline"])
@pytest.mark.parametrize("options", [{"apart": [["n1", "n2"]]}, {"same_site": [["n1", "n3"]], "apart": [["n3", "n2"]]}])
def test_an_atomic_group_moves_as_a_whole_to_a_site_that_takes_all_of_it(costs, options):
    type_ = TensorType("float32", (4,))
    body = tuple(
        Call("onnx.Relu", (f"v{index - 1}" if index else "x",), (Value(f"v{index}", type_),), source=f"n{index}")
        for index in range(4)
    )
    main = Function("main", (Value("x", type_),), body, ("v3",), opsets=(("", 18),))
    where = {"n0": "!@b", "n2": "@a"}
    plan = tt.decompose(tt.IRModule((main,)), FLAT, costs, where=where, atomic=[["n0", "n1"]], **options)
    assert [plan.site_of(name) for name in ("n0", "n1", "n2")] == ["c", "c", "a"]


def test_operations_of_an_atomic_group_that_must_be_apart_are_named():
    text = (
        r"ops 'conv1' and 'relu1' are required to share a site, as 'atomic' keeps them in one function, and to be apart"
    )
    with pytest.raises(InfeasibleError, match=text):
        tt.decompose(tt.IRModule.from_onnx(DIGITS), FLAT, atomic=[["conv1", "relu1"]], apart=[["conv1", "relu1"]])
