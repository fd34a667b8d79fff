"""Plans are freed as soon as nothing needs them."""

import gc
from weakref import ref

import pytest

import tvmtarget as tt
from benchmarks._graphs import FAMILIES, SITES, costs_of, module_of, tree_of


@pytest.mark.parametrize("has_costs", [False, True])
def test_a_plan_is_in_no_reference_cycle(has_costs):
    module, tree = module_of(FAMILIES["random"](300)), tree_of(4)
    costs = costs_of(SITES) if has_costs else None
    first = tt.decompose(module, tree, costs)
    plan = tt.decompose(module, tree, costs, since=first)
    gc.disable()
    try:
        found = [ref(first.feasibility), ref(plan.feasibility), ref(plan.program)]
        del first, plan
        assert [one() for one in found] == [None, None, None]
    finally:
        gc.enable()
