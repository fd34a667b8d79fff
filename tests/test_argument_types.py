"""Public functions report arguments of other types than they take: the argument, what is expected, and the value."""

import ast
import builtins
import copy
import inspect
import pickle
import sys
import typing
from pathlib import Path

import numpy as np
import pytest

import tvmtarget as tt
from tvmtarget.autotune.search.process import Limits
from tvmtarget.errors import ArgumentError
from tvmtarget.target.argument_types import check_arguments

MODULE = tt.IRModule.parse("func @main(%x: float32[n]) opsets(onnx=17) { %y = onnx.Relu(%x) return %y }")
PLAN = tt.decompose(MODULE, "numpy")
LOG = tt.TuningLog("memory:")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tt.build(MODULE, "numpy", settings=5), "settings of build is a mapping of mappings or None, not 5"),
        (lambda: tt.build(MODULE, "numpy", params=5), "params of build is a mapping or None, not 5"),
        (lambda: tt.build(MODULE, "numpy", progress=5), "progress of build is a function or None, not 5"),
        (lambda: tt.build(MODULE, "numpy", since=PLAN), "since of build is an Executable or None, not .*"),
        (lambda: tt.build(MODULE, "numpy", log=5), "log of build is a TuningLog, a text, a path or None, not 5"),
        (lambda: tt.build(MODULE, "numpy", policy=5), "policy of build is a Policy or None, not 5"),
        (lambda: tt.tune(MODULE, "numpy", log=True), "log of tune is a TuningLog, a text or a path, not True"),
        (lambda: tt.tune(MODULE, "numpy", log=LOG, limits=5), "limits of tune is a Limits, not 5"),
        (lambda: tt.tune(MODULE, "numpy", log=LOG, levels=[1]), r"levels\[0\] of tune is a text, not 1"),
        (lambda: tt.tune(MODULE, "numpy", log=LOG, seed=True), "seed of tune is a whole number, not True"),
        (lambda: tt.load("x.tta", trust="no"), "trust of load is True or False, not 'no'"),
        (lambda: MODULE.save(None), "path of IRModule.save is a text or a path, not None"),
        (lambda: tt.IRModule("main"), "functions of IRModule is a sequence of Functions, not 'main'"),
        (lambda: tt.IRModule.parse("", trust="no"), "trust of IRModule.parse is True or False, not 'no'"),
        (lambda: PLAN.explain([]), r"op of Plan.explain is a text, not \[\]"),
        (lambda: PLAN.site_of(5), r"op of Plan.site_of is a text, not 5"),
        (lambda: PLAN.with_sites("numpy"), "sites of Plan.with_sites is a sequence of texts, not 'numpy'"),
        (lambda: tt.TuningLog(5), "url of TuningLog is a text or a path, not 5"),
        (lambda: tt.TuningLog("memory:", layers=[5]), r"layers\[0\] of TuningLog is a text or a path, not 5"),
        (lambda: LOG.export(None), "path of TuningLog.export is a text or a path, not None"),
        (lambda: tt.specialize(MODULE, {"n": "2"}), r"dims\['n'\] of specialize is a whole number, not '2'"),
        (lambda: tt.with_buckets(MODULE, [{"n": 2}, 3]), r"buckets\[1\] of with_buckets is a mapping of .*, not 3"),
        (lambda: tt.search_tags([1]), r"words\[0\] of search_tags is a text, not 1"),
        (lambda: tt.Target.parse("c", tags=["acme/box"]), r"tags are a mapping of names to targets, not .*"),
        (lambda: tt.Target.from_json({"kind": "c"}, tags=5), "tags are a mapping of names to targets, not 5"),
        (lambda: tt.Constraint.at_any(5), "paths of Constraint.at_any is an iterable of texts, not 5"),
        (lambda: tt.reject("SHAPE_DYNAMIC", 5), "message of reject is a text, not 5"),
        (lambda: tt.reject("SHAPE_DYNAMIC", dims="n"), "dims of reject is an iterable, not 'n'"),
        (lambda: Limits(build=-1), "build of Limits is a whole number that is not negative, not -1"),
    ],
)
def test_an_argument_of_another_type_is_named_with_its_value_and_what_is_expected(call, message):
    with pytest.raises(ArgumentError, match=f"^{message}$"):
        call()


def test_all_wrong_arguments_are_reported_at_once():
    with pytest.raises(ArgumentError) as caught:
        tt.build(MODULE, "numpy", mod_name=1, jobs="2")
    assert caught.value.problems == (
        "mod_name of build is a text, not 1",
        "jobs of build is a whole number or None, not '2'",
    )


def test_numbers_of_numpy_and_paths_are_accepted(tmp_path):
    assert LOG.top_k(MODULE.main, "llvm", np.int64(2)) == []
    MODULE.save(tmp_path / "m.irm")
    assert tt.build(MODULE, "numpy", allow_interpreter=np.bool_(True)).name == "default"


def test_a_callback_of_a_run_is_a_function():
    with pytest.raises(ArgumentError, match=r"record of Executable\.run is a function or None, not 5"):
        tt.build(MODULE, "numpy").run({"x": np.zeros(1, "float32")}, record=5)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (tt.build(MODULE, "numpy"), r"write it with exe\.save\(path\), and read it with tvmtarget\.load\(path\)"),
        (LOG, r"a tuning log is not copied or pickled; open it again: TuningLog\('memory:'\)"),
    ],
)
def test_what_holds_files_and_code_is_not_pickled_and_the_error_has_the_fix(copied, value, fix):
    with pytest.raises(ArgumentError, match=fix):
        copied(value)


def test_a_plan_is_its_own_copy_and_its_pickling_error_has_the_fix():
    assert copy.copy(PLAN) is PLAN
    assert copy.deepcopy([PLAN])[0] is PLAN
    with pytest.raises(ArgumentError, match=r"write it with plan\.save\(path\), and read it with Plan\.load\(path\)"):
        pickle.dumps(PLAN)


def checked_functions():
    """Yield the public functions and methods whose arguments are checked."""
    for name in tt.__all__:
        value = getattr(tt, name)
        own = list(vars(value).values()) if inspect.isclass(value) else [value]
        for one in own:
            function = getattr(one, "__func__", one)
            if getattr(getattr(function, "__code__", None), "co_name", "") == "checked":
                yield inspect.unwrap(function)


def test_every_name_in_an_annotation_is_known_or_that_of_a_class():
    """A class that is imported for type checkers only is recognised by its name, which an alias would not be."""
    functions = list(checked_functions())
    assert len(functions) > 50
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("tvmtarget.")]
    classes = {name for module in modules for name, value in list(vars(module).items()) if isinstance(value, type)}
    for function in functions:
        for annotation in (one for name, one in function.__annotations__.items() if name != "return"):
            names = {node.id for node in ast.walk(ast.parse(str(annotation))) if isinstance(node, ast.Name)}
            unknown = names - function.__globals__.keys() - vars(builtins).keys()
            # Names of other packages, as in `onnx.ModelProto`, are not read.
            assert unknown - classes <= {"onnx", "tvm", "networkx", "Self"}, function


@check_arguments
def example(
    one: typing.Literal["a", "b"] = "a", *rest: "int", later: "Path | list[int] | None" = None, free: "object" = None
) -> "None":
    """Take arguments of several forms."""


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("a", 1, 2), {"later": Path(), "free": ...}, ""),
        (("a",), {"later": [1]}, ""),
        (("a", 1, "x"), {}, "rest of example is a whole number, not 'x'"),
        ((), {"later": ["x"]}, r"later\[0\] of example is a whole number, not 'x'"),
        ((), {"later": "x"}, "later of example is a path, a sequence of whole numbers or None, not 'x'"),
    ],
)
def test_annotations_of_every_form_are_read(args, kwargs, message):
    if not message:
        example(*args, **kwargs)
        return
    with pytest.raises(ArgumentError, match=f"^{message}$"):
        example(*args, **kwargs)
