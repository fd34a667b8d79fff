"""`PartitionOptions`: one model behind `decompose`, the command line, plan files and the documentation."""

import json
from pathlib import Path

import pytest

import tvmtarget as tt
from tvmtarget.errors import TargetError
from tvmtarget.partition.options import PartitionOptions

PAGE = Path(__file__).parents[2] / "docs" / "plans.md"
EVERY = {
    "where": {"fc1": "@cpu", "op:Conv": "gpu?"},
    "costs": "roofline",
    "objective": "throughput",
    "max_replicas": 2,
    "same_site": [["q", "k"]],
    "apart": [["a", "b"], ["c", "d"]],
    "atomic": [["x", "y"]],
    "boundary_before": ["m"],
    "boundary_after": ["n"],
    "max_subgraphs": {"npu": 4},
    "fold_constants": False,
    "constants": "share",
}


def test_a_plan_file_keeps_every_option():
    options = PartitionOptions.of(**EVERY)
    assert set(EVERY) == set(PartitionOptions.model_fields)
    assert PartitionOptions.from_file(json.loads(json.dumps(options.to_file()))) == options


def test_keys_of_a_plan_file_are_those_of_its_format():
    keys = set(PartitionOptions.of(**EVERY).to_file())
    assert keys == set(EVERY) - {"max_subgraphs"} | {"max_regions"}


def test_options_that_an_earlier_file_lacks_have_their_defaults():
    assert PartitionOptions.from_file({"where": {}, "costs": None}) == PartitionOptions()


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"objectiv": "latency"}, "unknown option 'objectiv'; did you mean 'objective'?"),
        ({"objective": "speed"}, "objective is latency or throughput, not 'speed'"),
        ({"objective": "throughput"}, "needs costs"),
        ({"max_replicas": 0}, "max_replicas is a number, 1 or more, not 0"),
        ({"max_replicas": True}, "max_replicas is a number, 1 or more, not True"),
        ({"max_replicas": 2}, "max_replicas is 2, but replicas do not lower the latency"),
        (
            {"max_replicas": 2, "objective": "throughput", "costs": "roofline"},
            "max_replicas is 2, but runtime 'python' runs one machine at a time",
        ),
        ({"same_site": "qk"}, "same_site is groups of names"),
        ({"max_subgraphs": {"npu": -1}}, "max_subgraphs of 'npu' is a number, 0 or more, not -1"),
        ({"fold_constants": "no"}, "fold_constants is True or False, not 'no'"),
        ({"fold_constants": 0}, "fold_constants is True or False, not 0"),
        ({"objective": None}, "objective is latency or throughput, not None"),
        ({"constants": "keep"}, "constants is bind or lift or share, not 'keep'"),
    ],
)
def test_wrong_options_are_refused_with_what_would_be_right(values, problem):
    with pytest.raises(TargetError, match=problem.replace("?", r"\?")):
        tt.decompose("examples/digits.onnx", "numpy", **values)


def test_the_page_on_plans_lists_every_option(request):
    rows = [f"| `{name}` | {field.description} |" for name, field in PartitionOptions.model_fields.items()]
    table = "\n".join(("| option | meaning |", "|---|---|", *rows))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- options -->\n")
    expected = f"{before}<!-- options -->\n{table}\n<!-- /options -->{rest.partition('<!-- /options -->')[2]}"
    if request.config.getoption("--rewrite-goldens"):
        PAGE.write_text(expected, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == expected
