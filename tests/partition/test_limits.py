"""Splitting to keep limits: few parts, against the fewest possible of small graphs, and chains that stay whole."""

import random
from statistics import mean

import numpy as np
import pytest

from tvmtarget.partition.subgraphs.limits import Limiter, Limits
from tvmtarget.partition.values import Values


def limiter_of(successors, given=()):
    """Return a limiter of atoms that pass a value each to their successors; `given`: who reads values from outside."""
    count = len(successors)
    readers = [*successors, *given]
    values = Values(
        producer=np.array([*range(count), *(-1 for _ in given)]),
        start=np.cumsum([0, *map(len, readers)]),
        readers=np.array([one for ones in readers for one in ones], dtype=np.int64),
        is_live_out=np.array([not ones for ones in successors] + [False for _ in given]),
        type_ids=np.zeros(len(readers), dtype=np.int64),
        nbytes=np.ones(len(readers), dtype=np.int64),
        numbers=np.arange(len(readers)),
    )
    return Limiter(successors, [(atom,) for atom in range(count)], values)


def is_within(part, successors, given, limits):
    inside = set(part)
    read = {maker for maker, ones in enumerate(successors) if maker not in inside and inside & set(ones)}
    inputs = len(read) + sum(bool(inside & set(ones)) for ones in given)
    outputs = sum(not successors[atom] or bool(set(successors[atom]) - inside) for atom in part)
    sizes = ((len(part), limits.max_ops), (inputs, limits.max_inputs), (outputs, limits.max_outputs))
    return len(part) == 1 or all(most is None or size <= most for size, most in sizes)


def fewest(successors, given, limits):
    """Return the fewest parts that a graph can be run in, by trying all beginnings of it."""
    count = len(successors)
    before = [sum(1 << maker for maker, ones in enumerate(successors) if atom in ones) for atom in range(count)]
    beginnings = [
        done
        for done in range(1 << count)
        if all(not done >> atom & 1 or not before[atom] & ~done for atom in range(count))
    ]
    best = {0: 0}
    for done in sorted(beginnings, key=int.bit_count):
        for more in beginnings:
            part = [atom for atom in range(count) if (more & ~done) >> atom & 1]
            if more != done and not done & ~more and is_within(part, successors, given, limits):
                best[more] = min(best.get(more, count), best[done] + 1)
    return best[(1 << count) - 1]


def test_parts_are_nearly_as_few_as_can_be():
    """On random graphs of up to eight atoms: 3 % more than the fewest on average, and never more than twice as many."""
    ratios = []
    for seed in range(80):
        rng = random.Random(seed)
        count = rng.randint(4, 8)
        successors = [
            sorted(rng.sample(range(atom + 1, count), min(count - atom - 1, rng.randint(0, 2))))
            for atom in range(count)
        ]
        given = [sorted(rng.sample(range(count), rng.randint(1, 3))) for _ in range(rng.randint(0, 5))]
        caps = (rng.choice([None, 3, 4]), rng.choice([None, 1, 2, 3]), rng.choice([None, 1, 2]))
        limits = Limits("superstep", *caps)
        parts = list(limiter_of(successors, given).split(list(range(count)), limits))
        assert sorted(atom for part in parts for atom in part) == list(range(count))
        assert all(is_within(part, successors, given, limits) for part in parts)
        place = {atom: number for number, part in enumerate(parts) for atom in part}
        assert all(place[atom] <= place[target] for atom, targets in enumerate(successors) for target in targets)
        ratios.append(len(parts) / fewest(successors, given, limits))
    assert mean(ratios) <= 1.05
    assert max(ratios) <= 2


@pytest.mark.parametrize("length", [1, 5, 40])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_chain_of_one_input_is_not_cut_because_others_have_theirs(length, shuffled):
    """Eight chains in parallel, each of one input and one result, under a limit of two: pairs of whole chains."""
    names = list(range(8 * length))
    if shuffled:
        random.Random(1).shuffle(names)
    successors = [[] for _ in names]
    for chain in range(8):
        for step in range(length - 1):
            successors[names[chain * length + step]].append(names[chain * length + step + 1])
    given = [[names[chain * length]] for chain in range(8)]
    parts = list(limiter_of(successors, given).split(sorted(names), Limits("superstep", None, 2, 2)))
    assert [len(part) for part in parts] == [2 * length] * 4


def test_what_reads_the_same_values_is_together():
    """Sixteen atoms, four that read each of four values from outside, under a limit of one: a part for each value."""
    given = [list(range(number, 16, 4)) for number in range(4)]
    parts = list(limiter_of([[] for _ in range(16)], given).split(list(range(16)), Limits("superstep", None, 1)))
    assert sorted(parts) == given
