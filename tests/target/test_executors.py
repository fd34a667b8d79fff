"""Executors and runtimes: the cases of TVM's own tests of them, as a table.

`tests/python/relay/test_executor.py`, `test_runtime.py` and `tests/cpp/relay/backend/{executor,runtime}_test.cc` at
v0.9.0; where TVM checked less (values of options), so does no row here.
"""

import pickle

import pytest

from tvmtarget import Executor, Runtime, Target, TvmTargetError
from tvmtarget.errors import TargetError, UnknownNameError
from tvmtarget.target.kinds import kind_names, kind_of


def test_kinds_of_executors_and_runtimes_are_listed():
    assert kind_names("executor") == ("aot", "graph", "vm")
    assert kind_names("runtime") == ("cpp", "crt", "dask", "processes", "python")


@pytest.mark.parametrize(
    ("role", "kind", "options"),
    [
        (
            "executor",
            "aot",
            "constant-byte-alignment interface-api link-params unpacked-api workspace-byte-alignment workspace-io",
        ),
        ("executor", "graph", "link-params"),
        ("executor", "vm", ""),
        ("runtime", "crt", "system-lib"),
        ("runtime", "cpp", "system-lib"),
    ],
)
def test_the_options_of_each_are_listed(role, kind, options):
    assert " ".join(sorted(row.name for row in kind_of(kind, role).attributes)) == options


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Executor("woof"), "unknown executor kind 'woof'"),
        (lambda: Runtime("woof"), "unknown runtime kind 'woof'"),
        (lambda: Executor("crt"), "unknown executor kind 'crt'"),
        (lambda: Executor("graph", {"woof": "bark"}), "kind 'graph' has no attribute 'woof'"),
        (lambda: Runtime("crt", {"woof": "bark"}), "kind 'crt' has no attribute 'woof'"),
        (lambda: Executor("aot", {"interface-api": True}), "attribute 'interface-api' of kind 'aot' is text, not True"),
        (lambda: Runtime("crt", {"system-lib": "woof"}), "attribute 'system-lib' of kind 'crt' is true or false, not"),
    ],
)
def test_undefined_kinds_and_options_are_rejected(make, message):
    with pytest.raises((TargetError, UnknownNameError)) as error:
        make()
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("configured", "name", "value"),
    [
        (Executor("aot", {"interface-api": "c"}), "interface-api", "c"),
        (Executor("aot"), "interface-api", "packed"),
        (Executor("aot"), "link-params", True),
        (Executor("graph"), "link-params", False),
        (Executor("aot", {"unpacked_api": 1}), "unpacked-api", True),
        (Runtime("crt", {"system-lib": True}), "system-lib", True),
        (Runtime("crt"), "system-lib", False),
        (Runtime("cpp"), "system-lib", False),
    ],
)
def test_an_option_has_its_value_or_its_default(configured, name, value):
    assert name in configured
    assert configured[name] == value


def test_an_option_without_value_and_default_is_missing():
    assert "workspace-byte-alignment" not in Executor("aot")
    assert Executor("aot")["workspace-byte-alignment"] is None
    assert "woof" not in Executor("aot")
    with pytest.raises(UnknownNameError):
        Executor("aot")["woof"]


def test_equality_is_of_kind_and_options():
    assert Executor("aot", {"interface-api": "c"}) == Executor("aot", {"interface_api": "c"})
    assert Executor("aot", {"interface-api": "c"}) != Executor("aot")
    assert Executor("aot") != Executor("graph")
    assert Runtime("crt", {"system-lib": True}) != Runtime("crt", {"system-lib": False})
    assert Runtime("cpp") != Executor("graph")
    assert hash(Executor("aot", {"unpacked-api": True})) == hash(Executor("aot", {"unpacked_api": "1"}))
    assert pickle.loads(pickle.dumps(Runtime("crt", {"system-lib": True}))) == Runtime("crt", {"system-lib": True})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aot(unpacked-api=true)", Executor("aot", {"unpacked-api": True})),
        (" graph(link_params=1) ", Executor("graph", {"link-params": True})),
        ('{"kind": "aot", "unpacked-api": true}', Executor("aot", {"unpacked-api": True})),
        ('dask(address="a b",workers=x+y)', Runtime("dask", {"address": "a b", "workers": ["x", "y"]})),
    ],
)
def test_texts_of_executors_and_runtimes_are_read(text, expected):
    for read in (type(expected), type(expected).from_json, type(expected).model_validate):
        assert read(text) == expected
    assert type(expected).from_json(str(expected)) == expected
    role = type(expected).role
    assert getattr(Target.from_json({"kind": "c", role: text}), role) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("aot(x=1)", "kind 'aot' has no attribute 'x'"),
        ("aot(unpacked-api=true", "expected"),
        ("aot(unpacked-api>=1)", "a target states values with '='"),
        ("aot[llvm](unpacked-api=true)", "kind 'aot' has no attribute 'targets'"),
        ('{"kind": "aot"', "the text"),
    ],
)
def test_wrong_texts_of_executors_are_refused(text, message):
    with pytest.raises(TvmTargetError, match=message):
        Executor.from_json(text)
