"""What benchmarks rest on: work that is ended in time, rows that are kept, and what partitioners make of a graph."""

import json
import random
from itertools import repeat

import pytest

from benchmarks.__main__ import main
from benchmarks._apart import Caps, Ended, apart
from benchmarks._decompose_tables import page
from benchmarks._graphs import FAMILIES
from benchmarks._partitioners import OURS, PARTITIONERS
from benchmarks._results import Results, growth, markdown
from benchmarks.decompose import sizes_of
from benchmarks.graphs import cases


@pytest.mark.parametrize(
    ("work", "arguments", "expected"),
    [
        (sum, ([1, 2],), 3),
        (sum, (repeat(1),), Ended("> 0 s", is_capped=True)),
        (list, (repeat(None),), Ended("> 0.2 GB", is_capped=True)),
        (int, ("x",), Ended("failed: invalid literal for int() with base 10: 'x'")),
    ],
)
def test_work_in_a_process_of_its_own_is_ended_when_it_takes_too_much(work, arguments, expected):
    seconds = 20 if work is list else 0
    assert apart(work, *arguments, caps=Caps(seconds, 0.2)) == expected


def test_rows_are_kept_in_a_file_as_they_come(tmp_path):
    path = tmp_path / "rows.jsonl"
    Results(path, ("name",)).add({"name": "a", "seconds": 1})
    again = Results(path, ("name",))
    assert again.get("a")["seconds"] == 1
    assert again.get("b") is None
    assert Results(path, ("other",)).rows == {}
    assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == ["a"]


def test_growth_is_by_doubling():
    assert growth(1.0, 8.0, 8) == pytest.approx(2)
    assert growth(1.0, 100.0, 10) == pytest.approx(4)


def test_tables_say_what_was_too_much_and_what_was_not_tried_after_that():
    made = {
        "wall": 1.0,
        "peak": 50.0,
        "more": 1.0,
        "subgraphs": 3,
        "values": 9,
        "nbytes": 10**6,
        "load": 0.1,
        "cap": 60,
    }
    rows = [
        {"family": "chain", "size": size, "partitioner": name, "outcome": outcome, "seconds": seconds, **made}
        for name, size, outcome, seconds in [
            (OURS, 1000, "", 0.01),
            (OURS, 4000, "", 0.04),
            (OURS, 10000, "", 0.1),
            ("tvm", 1000, "", 0.1),
            ("tvm", 4000, "> 60 s", 0),
            ("tvm", 10000, "> 60 s", 0),
        ]
    ]
    text = page(rows, [])
    assert "| chain | tvmtarget | 0.01 | 0.04 | 0.1 | x2.00 |" in text
    assert "| chain | tvm | 0.1 (10x) | > 60 s | - |  |" in text
    assert "tvm takes, as multiples of tvmtarget at 4,000 operations: chain > 1,500." in text
    assert markdown(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | --: |\n| x | 1 |"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("graphs 1", "'1' is not a whole number of at least 2"),
        ("requests --scale nan", "'nan' is not a number above 0"),
        ("requests --scale 2", "2 is more than 1"),
        ("oracle trees 0", "only the first seed can be 0"),
        ("oracle 1 2 3", "'1 2 3' are not at most 2 numbers"),
        ("memory_plan --csv /nowhere", "'/nowhere' is no folder with files *.csv"),
        ("executors leaf --models separable", "no model separable; choose from bvlc_alexnet"),
        ("quantized zz", "no case has a name with 'zz'"),
        ("tvm_schedule --mcpu zz", "error: mcpu 'zz' of kind 'llvm' is not a chip"),
    ],
)
def test_arguments_that_a_benchmark_cannot_work_with_are_errors(monkeypatch, capsys, words, problem):
    monkeypatch.setattr("sys.argv", ["benchmarks", *words.split()])
    monkeypatch.setenv("TVM_NUM_THREADS", "1")  # which some set, and which is restored
    monkeypatch.setenv("TVM_BIND_THREADS", "0")
    with pytest.raises(SystemExit) as ended:
        main()
    assert problem in f"{capsys.readouterr().err}{ended.value}"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [name for name in PARTITIONERS if name.startswith(OURS)] + ["onnxruntime"])
def test_no_partitioner_has_fewer_subgraphs_or_passes_fewer_bytes_in_as_many(family, name):
    if name == "onnxruntime":
        pytest.importorskip("onnxruntime")
    graph, rng = FAMILIES[family](300), random.Random(1)
    taken = [rng.random() < 0.7 for _ in graph]
    found, ours = (PARTITIONERS[one](graph, taken)()() for one in (name, OURS))
    assert ours.subgraphs <= found.subgraphs
    if name != "tvmtarget-whole" and ours.subgraphs == found.subgraphs:  # the whole counts calls of the host as well
        sizes = sizes_of(graph)
        assert sum(sizes[value] for value in ours.crossing) <= sum(sizes[value] for value in found.crossing)


@pytest.mark.parametrize("size", [2, 30, 300])
def test_our_graph_algorithms_find_what_networkx_finds(size):
    for case in cases(size):
        assert case.agree(case.ours(), case.peer(case.graph())), case.name
