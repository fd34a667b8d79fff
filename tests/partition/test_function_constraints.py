"""REQUIREMENTS CALL: functions are constrained by name; a constraint is read where it is set."""

import pytest

import tvmtarget as tt
from tvmtarget.cli.main import main
from tvmtarget.errors import ArgumentError, ModelError, TvmTargetError, UnknownNameError
from tvmtarget.ir.builder import FunctionBuilder

TREE = "[npu=onnxruntime,cpu=numpy](host=@cpu)"
TEXT = """
func @main(%x: float32[4]) opsets(onnx=17) {
  %a: float32[4] = onnx.Relu(%x) as relu
  %b: float32[4] = @features(%a) as first
  %c: float32[4] = @features(%b) as second
  return %c
}
func @features(%x: float32[4]) opsets(onnx=17) {
  %a: float32[4] = onnx.Tanh(%x) as tanh
  %b: float32[4] = onnx.Neg(%a) as neg
  return %b
}
"""
CLASH = TEXT.replace("as relu", "as features")


def test_a_function_is_constrained_by_its_name():
    module = tt.IRModule.parse(TEXT).constrain("features", "@cpu")
    assert str(module["features"].constraint) == "@cpu"
    assert module.constrain("function:features", "@cpu") == module
    assert tt.IRModule.parse(str(module)) == module
    sites = tt.decompose(module, TREE).sites()
    assert sites["relu"] == "npu"
    assert {site for op, site in sites.items() if op != "relu"} == {"cpu"}
    assert set(tt.decompose(tt.IRModule.parse(TEXT).constrain("main", "@cpu"), TREE).sites().values()) == {"cpu"}


def test_a_call_is_constrained_by_its_source_as_before():
    module = tt.IRModule.parse(TEXT).constrain("relu", "@cpu").constrain("tanh", "@cpu", function="features")
    assert str(module.main.body[0].constraint) == "@cpu"
    assert str(module["features"].body[0].constraint) == "@cpu"


def test_a_name_of_a_function_and_of_an_op_is_refused_with_what_to_write():
    module = tt.IRModule.parse(CLASH)
    with pytest.raises(ModelError, match=r"'features' is a function and an op.*'function:features'.*function='main'"):
        module.constrain("features", "@cpu")
    assert str(module.constrain("function:features", "@cpu")["features"].constraint) == "@cpu"
    assert str(module.constrain("features", "@cpu", function="main").main.body[0].constraint) == "@cpu"
    with pytest.raises(ModelError, match=r"where 'features' is a function and an op; write 'function:features'"):
        tt.decompose(module, TREE, where={"features": "@cpu"})


def test_unknown_names_come_with_the_nearest_functions_and_ops():
    module = tt.IRModule.parse(TEXT)
    with pytest.raises(UnknownNameError, match=r"no function or op 'feature'; did you mean 'features'"):
        module.constrain("feature", "@cpu")
    with pytest.raises(UnknownNameError, match=r"no function 'feature'.*'features'"):
        module.constrain("function:feature", "@cpu")
    with pytest.raises(UnknownNameError, match="where 'function:feature' matches no op"):
        tt.decompose(module, TREE, where={"function:feature": "@cpu"})
    with pytest.raises(ArgumentError, match=r"name of IRModule\.constrain is a text, not 7"):
        module.constrain(7, "@cpu")


@pytest.mark.parametrize("key", ["features", "function:features", "function:feat*"])
def test_where_speaks_of_functions(key):
    plan = tt.decompose(tt.IRModule.parse(TEXT), TREE, where={key: "@cpu"})
    assert plan.sites()["relu"] == "npu"
    assert {site for op, site in plan.sites().items() if op != "relu"} == {"cpu"}
    assert set(tt.decompose(tt.IRModule.parse(TEXT), TREE, where={"main": "@cpu"}).sites().values()) == {"cpu"}


def test_globs_of_operations_are_not_globs_of_functions():
    sites = tt.decompose(tt.IRModule.parse(TEXT), TREE, where={"re*": "@cpu", "f*": "@cpu"} | {}).sites()
    assert sites["relu"] == "cpu"


def test_the_last_rule_counts_for_functions_too():
    plan = tt.decompose(tt.IRModule.parse(TEXT), TREE, where={"features": "@cpu", "tanh": "@npu"})
    assert plan.sites()["tanh"] == "npu"
    assert {plan.sites()[op] for op in plan.sites() if op.startswith("neg")} == {"cpu"}


def test_the_command_line_speaks_of_functions(tmp_path, capsys):
    tt.IRModule.parse(TEXT).save_onnx(tmp_path / "model.onnx")
    options = ["explain", str(tmp_path / "model.onnx"), "--target", TREE]
    assert main([*options, "--where", "function:main=@cpu", "--json"]) == 0
    assert '"npu"' not in capsys.readouterr().out
    assert main([*options, "--where", "main=@cpu", "--json"]) == 0
    assert '"npu"' not in capsys.readouterr().out


@pytest.mark.parametrize(
    "make",
    [
        lambda wanted: tt.IRModule.parse(TEXT).main.replace(constraint=wanted).constraint,
        lambda wanted: tt.Function("f", (), (), (), constraint=wanted).constraint,
        lambda wanted: tt.Call("onnx.Relu", (), (), constraint=wanted).constraint,
        lambda wanted: tt.IRModule.parse(TEXT).constrain("main", wanted).main.constraint,
        lambda wanted: tt.decompose(tt.IRModule.parse(TEXT), TREE, where={"main": wanted}).options.where["main"],
    ],
)
def test_a_constraint_is_read_where_it_is_set(make):
    assert make("numpy") == tt.Constraint.parse("numpy")
    assert make(tt.Target.parse("numpy")) == tt.Constraint.of(tt.Target.parse("numpy"))
    for wrong in ("nump y", "", 7, "numpy(num-coresx=3)"):
        with pytest.raises(TvmTargetError):
            make(wrong)


def test_what_is_wrong_with_a_constraint_says_where():
    with pytest.raises(TvmTargetError, match=r"constraint of function 'main'"):
        tt.IRModule.parse(TEXT).main.replace(constraint="a b")
    with pytest.raises(TvmTargetError, match=r"constraint of op 'relu'"):
        tt.Call("onnx.Relu", (), (), constraint="a b", source="relu")


def test_text_json_and_the_builder_read_constraints_at_once():
    with pytest.raises(TvmTargetError):
        tt.IRModule.parse(TEXT.replace("opsets(onnx=17) {", "opsets(onnx=17) [nump y] {"))
    data = tt.IRModule.parse(TEXT).to_json()
    data["functions"][0]["constraint"] = "nump y"
    with pytest.raises(TvmTargetError):
        tt.IRModule.from_json(data)
    with pytest.raises(TvmTargetError):
        FunctionBuilder("main").call("onnx.Relu", constraint="nump y")
