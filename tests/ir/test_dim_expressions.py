"""Arithmetic of symbolic dimensions."""

import random

import pytest

from tvmtarget.ir.dim_expressions import (
    add_dims,
    divide_dims,
    least_dim,
    min_dims,
    multiply_dims,
    size_of,
    subtract_dims,
    symbols_of,
)

COMPUTE = {
    add_dims: lambda a, b: a + b,
    subtract_dims: lambda a, b: a - b,
    multiply_dims: lambda a, b: a * b,
    divide_dims: lambda a, b: a // b,
    min_dims: min,
}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (add_dims("s", "p"), "p + s"),
        (subtract_dims("past + sequence", "sequence"), "past"),
        (divide_dims(multiply_dims("b", multiply_dims(12, "s")), "4*b"), "3*s"),
        (divide_dims("b*s", 12), "((b*s)//12)"),
        (min_dims("s", add_dims("p", "s")), "s"),
        (min_dims("s", 512), "min(512, s)"),
        (add_dims("batch:0", 1), None),
        (divide_dims("s", "p"), None),
        (subtract_dims("s", "s"), 0),
    ],
)
def test_equal_sizes_have_one_text(found, text):
    assert found == text


def test_expressions_have_the_values_of_what_they_are_computed_from():
    random.seed(0)
    for _ in range(300):
        sizes = {name: random.randint(1, 9) for name in "abc"}

        def value(dim, sizes=sizes):
            return dim if isinstance(dim, int) else eval(dim, {"min": min}, sizes)

        dim = random.choice("abc")
        for _ in range(random.randrange(6)):
            compute = random.choice(list(COMPUTE))
            other = random.choice(["a", "b", "c", 1, 2, 3, 5, dim])
            found = compute(dim, other)
            if found is None:
                continue
            assert value(found) == COMPUTE[compute](value(dim), value(other)), (compute, dim, other)
            assert add_dims(found, 0) == found
            assert size_of(found, sizes) == value(found)
            dim = found


@pytest.mark.parametrize(
    ("dim", "sizes", "size"),
    [
        (4, {}, 4),
        (None, {}, None),
        ("n", {"n": 0}, 0),
        ("n + m", {"n": 2}, None),
        ("n + m", {"n + m": 7}, 7),
        ("((h - 3)//2) + 1", {"h": 2}, 0),
        ("min(512, s)", {"s": 600}, 512),
        ("batch:0", {"batch:0": 3}, 3),
        ("batch:0", {}, None),
    ],
)
def test_a_size_follows_from_others(dim, sizes, size):
    assert size_of(dim, sizes) == size


@pytest.mark.parametrize(
    ("dim", "empty", "filled"),
    [
        ("s", 0, 1),
        ("p + 2*s + 1", 1, 4),
        ("((h - 3)//2) + 1", 1, 1),
        ("s - 1", -1, 0),
        ("s - p", None, None),
        (None, None, None),
        (4, 4, 4),
    ],
)
def test_a_size_has_a_lower_bound(dim, empty, filled):
    assert (least_dim(dim, 0), least_dim(dim, 1)) == (empty, filled)


def test_a_name_that_is_no_expression_is_a_symbol():
    assert symbols_of("batch:0") == {"batch:0"}
    assert symbols_of("min(512, past + s)") == {"past", "s"}


def test_a_text_that_asks_for_exponentially_many_products_is_a_name():
    text = "*".join(f"(a{number} + b{number})" for number in range(30))
    assert add_dims(text, 1) is None
    assert symbols_of(text) == {text}
