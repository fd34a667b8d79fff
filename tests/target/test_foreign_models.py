"""Targets in the models of other programs: request bodies, settings, unions, defaults, and what pydantic does there."""

import copy
import json
import pickle
from typing import Annotated, Literal

import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, Tag, TypeAdapter, ValidationError
from trees import trees

import tvmtarget as tt
from tvmtarget.target.attributes import Attributes

GPU = tt.Target("cuda", {"arch": "sm_80"})
BAD = {"kind": "composite", "targets": [{"kind": "llvm"}, {"kind": "cuda", "host": {"kind": "llvm", "num-cores": 0}}]}
BAD_LOC = ("targets", 1, "host", "num-cores")


class Job(BaseModel):
    name: str
    target: tt.Target = Field(
        default_factory=lambda: tt.Target.parse("nvidia/jetson-nano"), description="where it runs"
    )
    fallback: tt.Target | None = None
    either: tt.Target | int | None = None
    config: tt.CompilationConfig | None = None


class Places(BaseModel):
    target: tt.Target | None = None
    constraint: tt.Constraint | None = None
    config: tt.CompilationConfig | None = None
    device: tt.VirtualDevice | None = None
    attributes: Attributes | None = None


def places(caught):
    return [error["loc"] for error in caught.value.errors()]


@settings(deadline=None, max_examples=examples(60, 500), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(trees, max_size=3))
@pytest.mark.slow
def test_lists_of_targets_make_round_trips(targets):
    adapter = TypeAdapter(list[tt.Target])
    assert adapter.validate_json(adapter.dump_json(targets)) == targets
    assert adapter.validate_python(adapter.dump_python(targets)) == targets
    assert adapter.validate_python([str(one) for one in targets]) == targets
    assert [one.digest for one in adapter.validate_json(adapter.dump_json(targets))] == [one.digest for one in targets]


@settings(deadline=None, max_examples=examples(60, 500), suppress_health_check=[HealthCheck.too_slow])
@given(trees, trees)
@pytest.mark.slow
def test_models_with_targets_make_round_trips(one, other):
    job = Job(name="x", target=one, fallback=other, either=one)
    assert Job.model_validate_json(job.model_dump_json()) == job
    assert Job.model_validate(job.model_dump()) == job
    assert Job.model_validate(job.model_dump(mode="json")) == job
    assert pickle.loads(pickle.dumps(job)) == copy.deepcopy(job) == job.model_copy(deep=True) == job
    assert job.model_copy(update={"target": other}).target == other
    assert job.target.model_copy(deep=True) == one
    assert Job.model_validate(job) == job
    assert (
        json.loads(job.model_dump_json(exclude_unset=True, exclude_none=True, by_alias=True))["target"] == one.to_json()
    )


SYSTEM = {"kind": "composite"}


@pytest.mark.parametrize(
    ("field", "value", "locs"),
    [
        ("target", {"kind": "cuda", "arch": "80"}, [("arch",)]),
        ("target", {"kind": "llvm", "mtriple": "x"}, [("mtriple",)]),
        ("target", {"kind": "cuda", "name": "a/b"}, [("name",)]),
        ("target", {"kind": "llvm -mcpu=x"}, [("kind",)]),
        ("target", {"kind": "cuda", "host": "@a b"}, [("host",)]),
        ("target", {"tag": "no/such"}, [("tag",)]),
        ("target", {"tag": "nvidia/jetson-nano:zz"}, [("tag",)]),
        ("target", {"tag": "nvidia/jetson-nano", "~": ["gpu/arch", "zz"]}, [("~", 1)]),
        ("target", {"kind": "llvm", "schema": 7}, [("schema",)]),
        ("target", {"kind": "llvm", "a/b": 1}, [("a/b",)]),
        ("target", {"kind": "cuda", "+": ["a"]}, [("+",)]),
        ("target", {"kind": "new-kind", "a": 1.5, "b": {}}, [("a",), ("b",)]),
        ("target", {"kind": "cuda", "executor": {"kind": 5}}, [("executor", "kind")]),
        ("target", SYSTEM | {"targets": ["cuda", "llvm", "cuda"]}, [("targets", 2)]),
        ("target", SYSTEM | {"devices": ["llvm", {"kind": "cuda", "x": 1}]}, [("devices", 1, "x")]),
        ("target", SYSTEM | {"targets": ["cuda"], "links": [{"src": "cuda", "dst": "z"}]}, [("links", 0, "dst")]),
        ("target", SYSTEM | {"targets": ["cuda"], "memory": [{"name": "m", "of": ["z"]}]}, [("memory", 0, "of", 0)]),
        ("target", SYSTEM | {"targets": ["cuda"], "memory": [{"name": "m"}] * 2}, [("memory", 1, "name")]),
        ("constraint", {"kind": "cuda", "arhc": 1}, [("arhc",)]),
        ("constraint", {"all": ["gpu", {"any": [{"kind": "a b"}, "llvm"]}]}, [("all", 1, "any", 0, "kind")]),
        ("constraint", {"not": {"kind": "llvm", "host": {"kind": ""}}}, [("not", "host", "kind")]),
        ("constraint", {"kind": "composite", "targets": ["gpu", {"kind": "llvm", "x": 1}]}, [("targets", 1, "x")]),
        (
            "config",
            {"targets": ["cuda", {"kind": "llvm", "x": 1}], "executor": "z", "fallback_device": "z"},
            [("targets", 1, "x"), ("executor",), ("fallback_device",)],
        ),
        ("config", {"targets": ["cuda"], "target_host": {"kind": "llvm", "x": 1}}, [("target_host", "x")]),
        ("config", {"targets": ["cuda"], "losses": 5}, [("losses",)]),
        ("config", {"targets": ["cuda"], "losses": "abc"}, [("losses",)]),
        ("device", {"device_type": "z", "target": {"kind": "cuda", "x": 1}}, [("target", "x"), ("device_type",)]),
        ("device", {"memory_scope": "a b"}, [("memory_scope",)]),
        ("attributes", {"a": 1.5, "b": "\ud800", "c-d": 1, "c_d": 1}, [("a",), ("b",), ("c_d",)]),
        ("attributes", 5, [()]),
    ],
    ids=str,
)
def test_each_problem_has_the_place_of_what_is_wrong(field, value, locs):
    with pytest.raises(ValidationError) as caught:
        Places.model_validate({field: value})
    assert places(caught) == [(field, *loc) for loc in locs]


def test_a_union_names_the_class_that_a_value_is_not():
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(tt.Target | int).validate_python("cudaa")
    assert places(caught)[0] == ("function-wrap[Target()]",)


def test_a_list_has_the_place_of_each_problem():
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(list[tt.Target]).validate_python(["llvm", BAD, "cudaa", 5])
    assert places(caught) == [(1, *BAD_LOC), (2,), (3,)]


@pytest.mark.parametrize(
    ("hint", "value", "loc"),
    [
        (dict[str, tt.Target], {"a": "llvm", "b": BAD}, ("b", *BAD_LOC)),
        (tuple[tt.Target, ...], ["llvm", BAD], (1, *BAD_LOC)),
        (tuple[int, tt.Target], [1, BAD], (1, *BAD_LOC)),
        (set[tt.Target], ["llvm", BAD], (1, *BAD_LOC)),
        (frozenset[tt.Target], [BAD], (0, *BAD_LOC)),
        (tt.Target | None, BAD, BAD_LOC),
        (Annotated[tt.Target, Field(description="x")], BAD, BAD_LOC),
        (RootModel[tt.Target], BAD, BAD_LOC),
        (list[dict[str, tt.Target]], [{"a": BAD}], (0, "a", *BAD_LOC)),
    ],
    ids=str,
)
def test_containers_have_the_place_of_a_problem(hint, value, loc):
    adapter = TypeAdapter(hint)
    for validate in (adapter.validate_python, lambda one: adapter.validate_json(json.dumps(one))):
        with pytest.raises(ValidationError) as caught:
            validate(value)
        assert places(caught) == [loc]


def test_sets_of_targets_hold_equal_targets_once():
    read = TypeAdapter(frozenset[tt.Target]).validate_json('["llvm", {"kind": "llvm"}, "cuda"]')
    assert read == {tt.Target("llvm"), tt.Target("cuda")}


def test_a_default_is_made_by_a_factory():
    assert Job(name="x").target == tt.Target.parse("nvidia/jetson-nano")
    assert Job(name="x").model_dump()["target"]["tag"] == "nvidia/jetson-nano"
    assert Job(name="x").model_dump(exclude_defaults=True) == {"name": "x"}
    assert Job.model_json_schema()["properties"]["target"]["description"] == "where it runs"


def test_a_default_is_validated_if_the_model_wants_that():
    class Validated(BaseModel):
        model_config = ConfigDict(validate_default=True)
        target: tt.Target = "cuda(arch=sm_80)"

    assert Validated().target == GPU


def test_assignments_are_validated_if_the_model_wants_that():
    class Checked(BaseModel):
        model_config = ConfigDict(validate_assignment=True)
        target: tt.Target

    checked = Checked(target="llvm")
    checked.target = "cuda(arch=sm_80)"
    assert checked.target == GPU
    with pytest.raises(ValidationError) as caught:
        checked.target = BAD
    assert places(caught) == [("target", *BAD_LOC)]


def test_strict_models_read_targets():
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True, frozen=True)
        target: tt.Target
        executor: tt.Executor

    strict = Strict(target=GPU, executor=tt.Executor("aot"))
    assert Strict.model_validate_json(strict.model_dump_json()) == strict
    assert Strict.model_validate({"target": {"kind": "cuda", "arch": "sm_80"}, "executor": "aot"}) == strict
    assert hash(strict) == hash(Strict.model_validate(strict.model_dump()))


def test_the_members_of_a_union_are_told_apart():
    adapter = TypeAdapter(tt.Executor | tt.Runtime | tt.Target)
    assert adapter.validate_python("aot") == tt.Executor("aot")
    assert adapter.validate_python("crt") == tt.Runtime("crt")
    assert adapter.validate_python({"kind": "cuda"}) == tt.Target("cuda")
    assert adapter.validate_python(tt.Runtime("crt")) == tt.Runtime("crt")
    assert TypeAdapter(int | tt.Target).validate_json("5") == 5
    assert TypeAdapter(tt.Target | str).validate_python("no such target (") == "no such target ("
    assert TypeAdapter(str | tt.Target).validate_python(GPU) is GPU


class Local(BaseModel):
    place: Literal["local"] = "local"
    target: tt.Target


class Remote(BaseModel):
    place: Literal["remote"] = "remote"
    target: tt.Target
    url: str


def kind_of_value(value):
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "gpu" if kind == "cuda" else "other"


def test_discriminated_unions_choose_models_and_targets():
    adapter = TypeAdapter(list[Annotated[Local | Remote, Field(discriminator="place")]])
    data = [{"place": "local", "target": "llvm"}, {"place": "remote", "target": {"kind": "cuda"}, "url": "x"}]
    read = adapter.validate_python(data)
    assert [type(one) for one in read] == [Local, Remote]
    assert adapter.validate_json(adapter.dump_json(read)) == read
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python([{"place": "remote", "target": BAD, "url": "x"}])
    assert places(caught) == [(0, "remote", "target", *BAD_LOC)]
    by_kind = TypeAdapter(
        Annotated[Annotated[tt.Target, Tag("gpu")] | Annotated[tt.Executor, Tag("other")], Discriminator(kind_of_value)]
    )
    assert by_kind.validate_python({"kind": "cuda"}) == tt.Target("cuda")
    assert by_kind.validate_python({"kind": "aot"}) == tt.Executor("aot")


@pytest.mark.parametrize("cls", [tt.Target, tt.Executor, tt.Runtime, tt.Constraint])
def test_json_is_read_from_all_types_of_bytes(cls):
    value = {tt.Executor: "aot", tt.Runtime: "crt"}.get(cls, "cuda")
    expected = cls.model_validate(value)
    for text in (json.dumps(value), json.dumps({"kind": value})):
        for data in (
            text,
            text.encode(),
            bytearray(text, "ascii"),
            f" \\n{text}\\t".replace("\\n", "\n").replace("\\t", "\t"),
        ):
            assert cls.model_validate_json(data) == expected
            assert TypeAdapter(cls).validate_json(data) == expected


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b'{"kind": "cuda"', b'{"kind": 1e999}', b"[" * 10_000, b"null", b"NaN"]
)
def test_json_that_is_wrong_is_an_error_of_the_right_class(data):
    with pytest.raises(tt.TvmTargetError):
        tt.Target.model_validate_json(data)
    with pytest.raises(ValidationError):
        TypeAdapter(tt.Target).validate_json(data)
    with pytest.raises(ValidationError):
        Job.model_validate_json(b'{"name": "x", "target": ' + data + b"}")


BOARD = tt.Target.parse("[gpu=cuda(arch=sm_80,host=llvm(num-cores=4)),cpu=llvm(num-cores=8)](executor=vm)")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"exclude": {"target": {"targets"}}}, {"kind": "composite", "executor": {"kind": "vm"}}),
        ({"include": {"target": {"kind"}}}, {"kind": "composite"}),
        ({"include": {"target": {"executor": {"kind"}}}}, {"executor": {"kind": "vm"}}),
        ({"include": {"target": {"targets": {0: {"arch"}}}}}, {"targets": [{"arch": "sm_80"}]}),
        ({"include": {"target": {"targets": {-1: {"name": ...}}}}}, {"targets": [{"name": "cpu"}]}),
        (
            {
                "include": {"target": {"targets"}},
                "exclude": {"target": {"targets": {"__all__": {"kind"}, 0: {"host"}}}},
            },
            {"targets": [{"name": "gpu", "arch": "sm_80"}, {"name": "cpu", "num-cores": 8}]},
        ),
        (
            {"include": {"target": {"targets": {0: {"host": True}}}}, "exclude": {"target": {"targets": {1: True}}}},
            {"targets": [{"host": {"kind": "llvm", "num-cores": 4}}]},
        ),
    ],
)
def test_parts_of_nested_nodes_can_be_left_out_of_a_dump(options, expected):
    job = Job(name="x", target=BOARD)
    assert job.model_dump(**options)["target"] == expected
    assert json.loads(job.model_dump_json(**options))["target"] == expected
    alone = {name: choice["target"] for name, choice in options.items()}
    assert job.target.model_dump(**alone) == expected


def test_targets_below_a_model_are_copied_with_checks():
    job = Job(name="x", target=GPU)
    assert job.model_copy().target is GPU
    assert job.target.model_copy(update={"count": 2}).count == 2
    with pytest.raises(tt.TvmTargetError):
        job.target.model_copy(update={"targets": ("cuda", "cuda")})


def test_a_target_can_be_part_of_a_generic_or_subclassed_model():
    from typing import Generic, TypeVar

    T = TypeVar("T")

    class Box(BaseModel, Generic[T]):
        value: T

    assert Box[tt.Target](value="cuda(arch=sm_80)").value == GPU
    assert Box[tt.Target].model_validate_json('{"value": {"kind": "cuda", "arch": "sm_80"}}').value == GPU

    class Wide(Job):
        more: list[tt.Target] = []

    with pytest.raises(ValidationError) as caught:
        Wide(name="x", more=["llvm", BAD])
    assert places(caught) == [("more", 1, *BAD_LOC)]


def test_dataclasses_and_typed_dicts_of_pydantic_hold_targets():
    from dataclasses import dataclass

    from typing_extensions import TypedDict

    @dataclass
    class Plain:
        target: tt.Target

    class Dict(TypedDict):
        target: tt.Target

    assert TypeAdapter(Plain).validate_python({"target": "cuda(arch=sm_80)"}).target == GPU
    assert TypeAdapter(Dict).validate_python({"target": "cuda(arch=sm_80)"})["target"] == GPU


def test_calls_with_validated_arguments_read_targets():
    from pydantic import validate_call

    @validate_call
    def compile_for(target: tt.Target, executor: tt.Executor = "graph"):
        return target

    assert compile_for("cuda(arch=sm_80)") == GPU
    with pytest.raises(ValidationError) as caught:
        compile_for(BAD)
    assert places(caught) == [(0, *BAD_LOC)]


# Web services


def test_a_web_service_reads_and_returns_targets():
    fastapi = pytest.importorskip("fastapi")
    testclient = pytest.importorskip("fastapi.testclient")
    app = fastapi.FastAPI()

    @app.post("/job")
    def job(job: Job) -> Job:
        return job

    @app.post("/target")
    def target(target: tt.Target) -> tt.Target:
        return target

    @app.post("/targets")
    def targets(targets: list[tt.Target]) -> dict[str, tt.Target]:
        return {one.digest: one for one in targets}

    client = testclient.TestClient(app)
    board = tt.Target.parse("nvidia/jetson-nano")
    body = {"name": "x", "target": board.to_json(), "fallback": "llvm -num-cores=4", "config": {"targets": ["cuda"]}}
    answer = client.post("/job", json=body)
    assert answer.status_code == 200, answer.text
    read = Job.model_validate(answer.json())
    assert (read.target, read.fallback) == (board, tt.Target("llvm", {"num-cores": 4}))
    assert tt.Target.from_json(client.post("/target", json=board.to_json()).json()) == board
    assert tt.Target.from_json(client.post("/target", json="cuda(arch=sm_80)").json()) == GPU
    assert client.post("/targets", json=["llvm", "cuda(arch=sm_80)"]).json()[GPU.digest] == GPU.to_json()
    wrong = client.post("/job", json={"name": "x", "target": BAD})
    assert wrong.status_code == 422
    assert [error["loc"] for error in wrong.json()["detail"]] == [["body", "target", *BAD_LOC]]
    assert client.post("/target", json=BAD).json()["detail"][0]["loc"] == ["body", *BAD_LOC]
    schema = client.get("/openapi.json").json()
    assert "Target" in json.dumps(list(schema["components"]["schemas"]))


def test_settings_of_a_program_are_read_from_the_environment(monkeypatch):
    pydantic_settings = pytest.importorskip("pydantic_settings")

    class Settings(pydantic_settings.BaseSettings):  # type: ignore[name-defined]
        model_config = pydantic_settings.SettingsConfigDict(env_prefix="APP_", env_nested_delimiter="__")
        target: tt.Target = tt.Target("llvm")
        text: Annotated[tt.Target, pydantic_settings.NoDecode] = tt.Target("llvm")
        others: list[tt.Target] = []
        executor: tt.Executor | None = None

    assert Settings().target == tt.Target("llvm")
    monkeypatch.setenv("APP_TARGET", '{"kind": "cuda", "arch": "sm_80"}')
    monkeypatch.setenv("APP_OTHERS", '["llvm", {"kind": "cuda"}]')
    monkeypatch.setenv("APP_EXECUTOR", '{"kind": "aot", "unpacked-api": true}')
    read = Settings()
    assert (read.target, read.others) == (GPU, [tt.Target("llvm"), tt.Target("cuda")])
    assert read.executor == tt.Executor("aot", {"unpacked-api": True})
    for text in ("cuda(arch=sm_80)", "cuda -arch=sm_80", '{"kind": "cuda", "arch": "sm_80"}'):
        monkeypatch.setenv("APP_TEXT", text)
        assert Settings().text == GPU, text
    # A program that decodes values as JSON first takes a text in quotes.
    monkeypatch.setenv("APP_TARGET", '"cuda(arch=sm_80)"')
    assert Settings().target == GPU
    monkeypatch.setenv("APP_TARGET", json.dumps(BAD))
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert places(caught) == [("target", *BAD_LOC)]
