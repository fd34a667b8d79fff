"""Any argument gives a value or an error of this library, and large trees take time in proportion to their size."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmtarget import Constraint, Executor, Target
from tvmtarget.errors import TvmTargetError
from tvmtarget.target.configuration import CompilationConfig
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.topology import Topology
from tvmtarget.target.virtual_device import VirtualDevice

BOARD = Target.parse("[gpu=cuda(arch=sm_53,count=2),cpu=llvm(+neon,num-cores=4)](host=@cpu)")
WORDS = ["llvm", "cuda", "composite", "c", "zz", "aot", "crt", "@cpu", "demo/node", "x/y", "gpu", "é", "\ud800", ""]
NAMES = ["kind", "name", "tag", "host", "targets", "count", "links", "memory", "executor", "runtime", "keys", "+", "~"]
PATHS = ["cpu", "cpu/mcpu", "cpu/+", "gpu.1", "host", "executor/unpacked-api", "/", "cpu/", "target_host", "mattr", "x"]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.just(b"x")
values = st.recursive(
    scalars | st.sampled_from([BOARD, Executor("aot"), object(), ...]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES + PATHS), inner, max_size=4),
    max_leaves=6,
)
grammar = st.lists(st.sampled_from([*WORDS, *NAMES, *"()[]{},=|&!?@~+-:/'\"<>. \n"]), max_size=10).map("".join)

ENTRIES = {
    "parse": Target.parse,
    "from_json": Target.from_json,
    "from_toml": Target.from_toml,
    "from_cli": Target.from_cli,
    "from_tvm": Target.from_tvm,
    "override": BOARD.override,
    "merge": BOARD.merge,
    "diff": BOARD.diff,
    "part": BOARD.part,
    "at": BOARD.at,
    "unset": BOARD.unset,
    "origin": BOARD.origin,
    "item": BOARD.__getitem__,
    "satisfies": BOARD.satisfies,
    "tuning_key": BOARD.tuning_key,
    "to_tvm": BOARD.to_tvm,
    "host": lambda value: Target("cuda", host=value),
    "targets": lambda value: Target("composite", targets=value),
    "attributes": lambda value: Target("llvm", value),
    "executor": Executor.from_json,
    "constraint": Constraint.parse,
    "constraint of JSON": Constraint.from_json,
    "configuration": CompilationConfig.from_target,
    "device": lambda value: VirtualDevice(target=value),
}

SEEDS = [
    ("from_json", {"kind": "composite", "target_host": float("nan")}),
    ("from_json", {"targets": [{"kind": "\ud800llvm"}]}),
    ("from_tvm", {"kind": "composite", "devices": [{"kind": {}}, {"kind": {}}]}),
    ("merge", 5),
    ("diff", {"kind": "zz", "links": 5}),
    ("from_toml", b"x"),
    ("from_toml", "a=" + "[" * 3000),
    ("tuning_key", []),
    ("part", 5),
    ("unset", None),
    ("origin", 5),
    ("configuration", None),
    ("device", {"link-params": 1}),
]


def is_answered(call, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = call(*arguments)
        except TvmTargetError as error:
            return bool(str(error))
    return not isinstance(made, Target) or made.digest.startswith("tt1:")


@pytest.mark.parametrize(("entry", "value"), SEEDS)
def test_former_tracebacks_are_errors_of_this_library(entry, value):
    assert is_answered(ENTRIES[entry], value)


@given(st.sampled_from(sorted(ENTRIES)), values | grammar)
def test_no_value_and_no_text_gives_an_error_of_another_type(entry, value):
    assert is_answered(ENTRIES[entry], value)


def test_an_unknown_field_is_reported_by_replace():
    with pytest.raises(TvmTargetError, match="a target has no field 'hosts'; did you mean 'host'"):
        BOARD.replace(hosts="c")


def test_the_message_of_a_tree_that_is_too_deep_is_short():
    with pytest.raises(TvmTargetError, match="deeper than 64 levels") as caught:
        Target.parse("[composite=" * 64 + "llvm" + "]" * 64)
    assert len(str(caught.value)) < 140


def test_a_constraint_that_is_too_deep_is_rejected():
    deep = "llvm"
    for _ in range(64):
        deep = {"any": [deep, "cuda"]}
    with pytest.raises(TvmTargetError, match="a constraint is nested deeper than 64 levels"):
        Constraint.from_json(deep)


def test_two_thousand_hosts_links_and_replicas_are_walked_once():
    """Quadratic algorithms took minutes."""
    names = [f"a{number}" for number in range(2_000)]
    tree = Target.from_json(
        {
            "targets": [
                *({"kind": "cuda", "name": name, "host": "@cpu"} for name in names),
                {"kind": "llvm", "name": "cpu"},
            ],
            "links": [{"src": name, "dst": "cpu"} for name in names],
        }
    ).resolve()
    assert len(list(Topology(tree).leaves())) == 2_001
    assert len(Constraint.of(tree).children) == 2_001
    replicas = Target.parse("[gpu=cuda(count=8192),cpu=llvm](host=@cpu)").resolve()
    assert len(list(Topology(replicas).leaves())) == 8_193


def test_a_host_that_contradicts_a_written_one_is_no_silent_override_of_a_configuration():
    with pytest.raises(TvmTargetError, match="the tree has the host 'c', and the configuration is given 'llvm'"):
        CompilationConfig.from_target("cuda(host=c)", "llvm")


@pytest.mark.parametrize(
    "use",
    [
        lambda number: Target.parse(f"[a=llvm(count=3)](host=@a.{number})").resolve(),
        lambda number: BOARD.at(f"gpu.{number}"),
        lambda number: VirtualDevice.parse(f"cuda:{number}"),
    ],
)
def test_a_number_with_more_digits_than_python_reads_is_rejected(use):
    with pytest.raises(TvmTargetError, match="999"):
        use("9" * 5000)


def test_a_name_with_more_digits_than_python_reads_has_no_order():
    long = Target("cuda", {"arch": f"sm_{'9' * 5000}", "unchecked": "arch"})
    assert long.satisfies("cuda(arch>=sm_80)").truth is Truth.UNKNOWN
    with pytest.raises(TvmTargetError, match="has no order, so arch>= has no meaning"):
        Target.parse("cuda").satisfies(f"cuda(arch>=sm_{'9' * 5000})")
