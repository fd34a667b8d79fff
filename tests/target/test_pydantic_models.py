"""Targets are pydantic models: what pydantic promises of models holds for them, alone and inside other models."""

import copy
import json
import pickle

import jsonschema_rs
import pytest
from hypothesis import given, settings
from pydantic import BaseModel, TypeAdapter, ValidationError
from trees import trees

import tvmtarget as tt
from tvmtarget.errors import TargetError
from tvmtarget.target.attributes import Attributes
from tvmtarget.target.node import JsonNode

BROKEN = "half\ud800"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: tt.Target("llvm", memory=[{"name": BROKEN}]), "'name' of a memory"),
        (lambda: tt.Memory(name="a", of=("é", BROKEN)), "'of' of a memory"),
        (lambda: tt.Link(src=BROKEN, dst="b"), "'src' of a link"),
        (lambda: tt.Target("llvm", tag=BROKEN), "'tag'"),
    ],
)
def test_texts_without_utf8_are_refused_since_their_target_would_have_no_digest(make, problem):
    with pytest.raises(TargetError, match=f"{problem} has half of a surrogate pair in it"):
        make()


def test_links_print_their_fields_in_order():
    assert repr(tt.Link(dst="b", src="a")).startswith("Link(src='a', dst='b', bandwidth_Bps=None")


def test_a_target_has_no_subclasses_which_readers_would_not_return():
    with pytest.raises(TypeError, match="class 'Board' cannot derive from Target, since every reader returns a Target"):
        type("Board", (tt.Target,), {})


class Deployment(BaseModel):
    """A model as a program around this library has it."""

    target: tt.Target
    others: list[tt.Target] = []
    by_name: dict[str, tt.Target] = {}
    executor: tt.Executor | None = None
    runtime: tt.Runtime | None = None
    constraint: tt.Constraint | None = None
    config: tt.CompilationConfig | None = None
    device: tt.VirtualDevice | None = None
    links: tuple[tt.Link, ...] = ()
    memory: tuple[tt.Memory, ...] = ()
    attributes: Attributes = Attributes()


NODES = [
    tt.Executor("aot", {"unpacked-api": True}),
    tt.Runtime("crt"),
    tt.Link(src="a", dst="b", latency_ns=5),
    tt.Memory(name="sram", bytes=4, of=("a", "b")),
    *map(tt.Constraint.parse, ["cuda(arch>=sm_80)", "@npu", "a|b", "!gpu", "gpu?10", "[gpu=cuda,llvm](executor=aot)"]),
    tt.CompilationConfig.from_target("[gpu=cuda(arch=sm_80),cpu=llvm]"),
    tt.VirtualDevice.parse("cuda:3:global"),
    tt.VirtualDevice(target="cuda -arch=sm_80", virtual_device_id=1),
    Attributes({"num-cores": 4, "libs": ("cblas",), "fast-math": True}),
]


def is_same(one, other):
    """Whether two nodes are equal and print equal texts."""
    return one == other and str(one) == str(other) and hash(one) == hash(other)


def check_laws(node):
    assert node.model_copy() == node.model_copy(deep=True) == node
    check_values(node)


def check_values(node):
    cls, adapter = type(node), TypeAdapter(type(node))
    assert is_same(cls.model_validate(node.model_dump()), node)
    assert is_same(cls.model_validate(node.model_dump(mode="json")), node)
    assert is_same(cls.model_validate_json(node.model_dump_json()), node)
    assert is_same(adapter.validate_python(adapter.dump_python(node)), node)
    assert is_same(adapter.validate_json(adapter.dump_json(node)), node)
    assert is_same(adapter.validate_python(node, strict=True), node)
    assert is_same(pickle.loads(pickle.dumps(node)), node)
    assert is_same(copy.copy(node), node)
    assert is_same(copy.deepcopy(node), node)
    assert json.loads(node.model_dump_json()) == node.to_json() == node.model_dump()


@settings(deadline=None)
@given(trees)
def test_targets_keep_the_laws_of_models(tree):
    check_laws(tree)
    whole = Deployment(target=tree, others=[tree, tree.to_json()], by_name={"é": str(tree)})
    assert Deployment.model_validate_json(whole.model_dump_json()) == whole
    assert Deployment.model_validate(whole.model_dump()) == whole
    assert pickle.loads(pickle.dumps(whole)) == whole


@pytest.mark.parametrize("node", NODES, ids=str)
def test_other_nodes_keep_the_laws_of_models(node):
    (check_values if isinstance(node, Attributes) else check_laws)(node)


@pytest.mark.parametrize("node", NODES, ids=str)
def test_every_node_matches_its_own_schema(node):
    jsonschema_rs.validate(type(node).model_json_schema(), node.to_json())


def test_the_schema_of_a_model_with_targets_accepts_what_the_model_writes():
    whole = Deployment(
        target="nvidia/jetson-nano",
        others=["aws/c5", {"kind": "cuda", "arch": "sm_80", "host": {"kind": "llvm"}}],
        executor="aot",
        runtime={"kind": "crt"},
        constraint="gpu?",
        config="cuda",
        device="cuda:0",
        links=[{"src": "a", "dst": "b"}],
        memory=[{"name": "m", "of": ["a"]}],
        attributes={"num-cores": 4, "libs": ["cblas"]},
    )
    data = json.loads(whole.model_dump_json())
    for mode in ("validation", "serialization"):
        schema = Deployment.model_json_schema(mode=mode)
        jsonschema_rs.meta.validate(schema)
        jsonschema_rs.validate(schema, data)
    template = "#/components/schemas/{model}"
    assert template.format(model="Target") in json.dumps(Deployment.model_json_schema(ref_template=template))


def test_errors_in_another_model_have_the_place_of_each_problem():
    data = {
        "target": {
            "kind": "composite",
            "targets": [{"kind": "cuda", "archh": "x", "host": {"kind": "llvm", "num_cores": 0}}, {"kind": 5}],
        },
        "others": ["llvm", {"tag": "arm/rasp4b", "cpu/cores": 4}],
        "executor": {"kind": "aot", "unpacked-api": "perhaps"},
        "runtime": 5,
        "constraint": "((",
    }
    with pytest.raises(ValidationError) as caught:
        Deployment.model_validate(data)
    assert [problem["loc"] for problem in caught.value.errors()] == [
        ("target", "targets", 0, "host", "num_cores"),
        ("target", "targets", 0, "archh"),
        ("target", "targets", 1, "kind"),
        ("others", 1, "cpu/cores"),
        ("executor", "unpacked-api"),
        ("runtime",),
        ("constraint",),
    ]


@pytest.mark.parametrize("cls", [*dict.fromkeys(map(type, NODES)), tt.Target])
@pytest.mark.parametrize("value", [None, 5, [], {"": ""}, "((", b"x", object()])
def test_alone_errors_are_those_of_the_library(cls, value):
    for validate in (cls.model_validate, cls.model_validate_strings):
        for options in ({}, {"strict": True}, {"context": {}}, {"from_attributes": True}):
            with pytest.raises(tt.TvmTargetError) as caught:
                validate(value, **options)
            assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("text", ["{", "", '{"kind": "cuda", "kind": "llvm"}', b"\xff", '{"kind": NaN}'])
def test_json_that_does_not_parse_is_a_text_error(text):
    with pytest.raises(tt.TvmTargetError):
        tt.Target.model_validate_json(text)


def test_copies_with_changes_are_checked():
    target = tt.Target("cuda", {"arch": "sm_80"})
    assert target.digest != target.model_copy(update={"count": 2}).digest
    for copied in (target.model_copy, target.copy):
        with pytest.raises(tt.TvmTargetError):
            copied(update={"count": 0})
    with pytest.raises(tt.TvmTargetError):
        tt.Target.model_construct(kind="cudaa")


def test_keys_can_be_left_out_of_a_dump():
    target = tt.Target("cuda", {"arch": "sm_80"})
    assert target.model_dump(exclude={"arch"}) == {"kind": "cuda"}
    assert target.model_dump(include={"arch"}) == {"arch": "sm_80"}


def test_every_reader_of_a_model_is_covered_here():
    def below(cls):
        return {cls} | {one for sub in cls.__subclasses__() for one in below(sub)}

    public = {cls for cls in below(JsonNode) if cls.__name__ in tt.__all__}
    assert public | {Attributes} == {type(node) for node in NODES} | {tt.Target}
