"""Names in options: which operations they mean, and what lies between the operations of a group."""

import random
from fnmatch import fnmatchcase

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_graph

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, UnknownNameError
from tvmtarget.partition.flat_program import normalise
from tvmtarget.partition.placement.colocation import colocation_of, with_atomic_groups
from tvmtarget.partition.placement.where_rules import names_of

TARGET = tt.Target.parse("[a=numpy,b=numpy]")


def program_of(size, seed):
    return normalise(tt.IRModule.from_onnx(random_graph(size, seed)), TARGET, {})


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 50), data=st.data())
def test_a_name_means_the_operations_that_it_equals_or_matches_as_a_glob(seed, data):
    program = program_of(12, seed)
    own = sorted({name for call in program.body for name in names_of(call)})
    name = data.draw(st.sampled_from(own) | st.text("no:Add0123456789*?[]!.", max_size=6))
    meant = [
        index
        for index, call in enumerate(program.body)
        if any(name == one or fnmatchcase(one, name) for one in names_of(call))
    ]
    if meant:
        assert program.ops_named(name) == meant
    else:
        with pytest.raises(UnknownNameError):
            program.ops_named(name)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**4), count=st.integers(2, 4))
def test_a_group_is_rejected_exactly_if_an_operation_lies_on_a_path_between_two_of_it(seed, count):
    program = program_of(14, seed)
    group = random.Random(seed).sample(range(len(program.body)), count)
    graph = networkx.DiGraph((first, then) for then in range(len(program.body)) for first in program.predecessors(then))
    graph.add_nodes_from(range(len(program.body)))
    below = set().union(*(networkx.descendants(graph, one) for one in group))
    above = set().union(*(networkx.ancestors(graph, one) for one in group))
    between = sorted((below & above) - set(group))
    names = [program.body[one].source for one in group]
    if not between:
        with_atomic_groups(program, (tuple(names),), (), ())
        return
    listed = ", ".join(repr(program.body[one].source) for one in between[:4])
    verb = "lies" if len(between) == 1 else "lie" if len(between) <= 4 else f"and {len(between) - 4} more lie"
    with pytest.raises(InfeasibleError) as error:
        with_atomic_groups(program, (tuple(names),), (), ())
    assert f"but {listed} {verb} between" in str(error.value)


def test_an_operation_is_in_the_group_of_all_that_it_shares_a_site_with():
    program = program_of(12, 3)
    names = [call.source for call in program.body]
    colocation = colocation_of(program, (names[:2], names[1:4], names[6:8]), (names[4:6],))
    assert [colocation.group_of(index) for index in (0, 3, 4, 7)] == [(0, 1, 2, 3), (0, 1, 2, 3), (4,), (6, 7)]
