"""The page on attributes matches the tables, and the attributes that it says change the result do so."""

import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from models import small
from onnx import helper

import tvmtarget as tt
from tvmtarget import plugins
from tvmtarget.backends.protocol import backend_named
from tvmtarget.building.backend_choice import choose_backends
from tvmtarget.building.compile_plan import codegen_target, compile_request
from tvmtarget.building.honoured_attributes import driver_honours, effect_of, honoured_attributes
from tvmtarget.cli.main import _VARIABLES
from tvmtarget.target.kinds import kind_names, kind_of
from tvmtarget.untrusted import LIMITS

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.write_attributes import ENVIRONMENT, page

ROOT = Path(__file__).parents[2]


def test_the_page_is_generated_from_the_tables(golden):
    golden("../docs/attributes.md", page())


def test_every_attribute_of_a_kind_is_on_the_page():
    text = page()
    missing = [
        (kind, row.name)
        for role in ("target", "executor", "runtime")
        for kind in kind_names(role)
        if kind != "probe"
        for row in kind_of(kind, role).attributes
        if f"`{row.name}`" not in text
    ]
    assert missing == []


def test_every_environment_variable_that_the_library_reads_is_on_the_page():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tvmtarget").rglob("*.py")]
    read = {name for text in sources for name in re.findall(r"environ\b[^\n]*?[\"']([A-Z][A-Z_]{3,})[\"']", text)}
    assert read - set(ENVIRONMENT) == set()
    limits = {one.variable for one in LIMITS.values()}
    assert {name for name in ENVIRONMENT if name.startswith("TVMTARGET_")} == {*_VARIABLES} | limits


def normalised(shape=(64, 64)):
    """Return a function with sums, divisions and chains, of which each option of LLVM changes the code."""
    nodes = [("Relu", "x", "h"), ("Mul", "h h", "i"), ("ReduceSum", "i", "s"), ("Sqrt", "s", "t"), ("Div", "x t", "u")]
    nodes += [("Add", "u u", "v"), ("Sub", "v x", "w"), ("Neg", "w", "n"), ("Max", "n x", "y")]
    model = small(*(helper.make_node(op, inputs.split(), [output]) for op, inputs, output in nodes), shape=shape)
    return tt.IRModule.from_onnx(model)


def code(module, target):
    plan = tt.decompose(module, target)
    (subgraph,) = plan.subgraphs
    backend, _ = choose_backends(plan, allow_interpreter=False)[subgraph.site]
    return backend.compile(compile_request(plan, subgraph, codegen_target(plan.topology, subgraph.site))).native_files()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mcpu", "x86-64-v2"),
        ("mattr", ("+avx2",)),
        ("opt-level", 0),
        ("fast-math", True),
        ("fast-math-nsz", True),
        ("fast-math-arcp", True),
        ("vector-width", 128),
        ("cl-opt", ("-disable-lsr:bool=true",)),
    ],
)
def test_attributes_that_llvm_honours_change_the_code(name, value):
    pytest.importorskip("tvm")
    base = {"mtriple": "x86_64-linux-gnu", **({"mcpu": "x86-64-v3"} if name != "mattr" else {})}
    row = kind_of("llvm").attribute(name)
    shapes = [(64, 64), (1, 4096), (8, 64)]
    assert any(
        code(normalised(shape), tt.Target("llvm", base))
        != code(normalised(shape), tt.Target("llvm", base | {name: value}))
        for shape in shapes
    )
    assert effect_of(row, honoured_attributes(backend_named("tvm"), "llvm")) == "changes the result"


def test_modifiers_of_a_cpu_reach_llvm_as_features():
    pytest.importorskip("tvm")
    haswell = {"mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}
    without = code(normalised(), tt.Target("llvm", haswell | {"mattr": ("-avx",)}))
    assert code(normalised(), tt.Target("llvm", haswell | {"mcpu": "haswell+noavx"})) == without
    assert code(normalised(), tt.Target("llvm", haswell | {"mattr": ("+noavx",)})) == without
    assert code(normalised(), tt.Target("llvm", haswell)) != without


@pytest.mark.parametrize("attrs", [{"num-cores": 3}, {"model": "x"}, {"clock-mhz": 1000}, {"l2-cache-bytes": 4096}])
def test_descriptive_attributes_change_no_code(attrs):
    pytest.importorskip("tvm")
    (name,) = attrs
    row = kind_of("llvm").attribute(name)
    assert effect_of(row, honoured_attributes(backend_named("tvm"), "llvm")) == "descriptive"
    assert code(normalised(), "llvm") == code(normalised(), tt.Target("llvm", attrs))


def test_attributes_that_onnxruntime_honours_reach_its_session():
    exe = tt.build(normalised(), "onnxruntime(intra-op-threads=3,optimization-level=1)")
    (leaf,) = exe.code.values()
    options = leaf.compiled._session.get_session_options()  # type: ignore[attr-defined]
    assert options.intra_op_num_threads == 3
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC


@pytest.mark.parametrize(("target", "spins"), [("onnxruntime", "0"), ("onnxruntime(intra-op-spinning=true)", "1")])
def test_idle_threads_of_onnxruntime_busy_wait_only_if_the_target_says_so(target, spins):
    (leaf,) = tt.build(normalised(), target).code.values()
    options = leaf.compiled._session.get_session_options()  # type: ignore[attr-defined]
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == spins


@pytest.mark.parametrize("role", ["executor", "runtime"])
def test_executors_and_runtimes_honour_attributes_of_their_kinds(role):
    for kind in set(plugins.names(f"tvmtarget.{role}s")) & set(kind_names(role)):
        assert driver_honours(role, kind) <= {row.name for row in kind_of(kind, role).attributes}


def test_descriptive_attributes_change_no_result():
    x = np.ones((64, 64), "float32")
    plain = tt.build(normalised(), "llvm")(x)
    np.testing.assert_array_equal(tt.build(normalised(), "llvm(num-cores=2,model=y)")(x), plain)
