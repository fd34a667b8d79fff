"""Strategies that a program declares while it runs: the decorator, tables of operators."""

import doctest

import pytest
from models import DIGITS

import tvmtarget as tt
from tvmtarget.errors import ModelError, TargetError
from tvmtarget.support import decorators
from tvmtarget.support.decorators import from_op_table
from tvmtarget.support.strategy import FoundMatch


def test_a_declared_strategy_brings_its_kind_with_it():
    @tt.strategy("declared-npu", dtypes={"float32"})
    class Declared:
        """An engine for convolutions."""

        ops = frozenset({"Conv", "Relu"})

    board = "[npu=declared-npu,cpu=numpy](host=@cpu)"
    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), board)
    assert {op for op, site in plan.sites().items() if site == "npu"} == {
        "conv1", "relu1", "conv2", "relu2", "conv3", "relu3", "relu4",
    }  # fmt: skip
    assert issubclass(Declared, tt.Strategy)
    assert tt.Target.parse("declared-npu").keys == ("declared-npu",)

    @tt.strategy("declared-npu")
    class Again(tt.Strategy):
        ops = frozenset({"Gemm"})

    plan = tt.decompose(tt.IRModule.from_onnx(DIGITS), board)
    assert {op for op, site in plan.sites().items() if site == "npu"} == {"fc1", "fc2"}


def test_what_is_declared_wrongly_is_reported():
    with pytest.raises(TargetError, match="no option 'subgraph' of strategies; did you mean 'subgraphs'"):
        tt.strategy("declared-other", subgraph="single")
    with pytest.raises(TargetError, match="'llvm' is registered already, by tvmtarget "):
        tt.strategy("llvm")(type("Mine", (), {}))


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"ops": "Relu"}, "ops is 'Relu'; it should be a set of texts"),
        ({"ops": {"Relu", "conv", "mine.conv"}}, "no operator 'conv'; did you mean 'Conv'"),
        ({"dtypes": {"flot32"}}, "no element type 'flot32'; did you mean 'float32'"),
        ({"subgraphs": "one"}, "subgraphs is 'one'; it should be 'superstep' or 'connected' or 'single'"),
        ({"max_ops": 0}, "max_ops is 0; it should be a number from 1"),
        ({"patterns": ["relu(x)"]}, "patterns is .*; it should be a mapping of names to patterns"),
        ({"patterns": {"act": "relu("}}, "pattern 'act': expected an operator"),
        ({"rules": {"Relu": None}}, "rules has None for 'Relu'; it should be a `Rule` by operator"),
        ({"unsupported": {"Relu": 3}}, "unsupported has 3 for 'Relu'; it should be a reason by operator"),
        ({"unsupported": ["Relu"]}, r"unsupported is \['Relu'\]; it should be a mapping of operators to reasons"),
        ({"opsets": (13, 17)}, r"opsets is \(13, 17\); it should be a range, such as range\(7, 18\), or None"),
        ({"patterns": {"relu": 3}}, r"patterns has 3 for 'relu'; it should be a pattern by name, such as 'relu\("),
        ({"ops": {1}}, "ops has 1; it should be text"),
        ({"max_ops": True}, "max_ops is True; it should be a number from 1, or None for any"),
        ({"patterns": {"check": "relu(x)"}}, "no pattern can be called 'check'"),
        ({"dtype": {"float32"}}, "'dtype' has no effect; did you mean 'dtypes'"),
        (
            {"patterns": {"act_relu": "relu(x)"}, "act_rleu": lambda self, match: None},
            "'act_rleu' has no effect; did you mean 'act_relu'?",
        ),
    ],
)
def test_wrong_tables_of_a_strategy_are_reported_where_it_is_declared(tables, problem):
    with pytest.raises(TargetError, match=f"strategy 'declared-wrong': {problem}"):
        tt.strategy("declared-wrong")(type("Wrong", (), tables))


def test_a_class_that_nothing_can_be_made_of_is_reported():
    with pytest.raises(TargetError, match=r"strategy 'declared-wrong' cannot be made of class 'Wrong': ZeroDivisionE"):
        tt.strategy("declared-wrong")(type("Wrong", (), {"__init__": lambda self: 1 / 0}))


@pytest.mark.parametrize(
    "body",
    [
        {"ops": ["Conv"], "check_op": lambda self, op: False},
        {"patterns": {"act": "conv(...)"}, "act": lambda self, match: False},
    ],
)
def test_answers_that_are_none_are_reported(body):
    tt.strategy("declared-answer")(type("Answering", (), body))
    with pytest.raises(
        TargetError, match=r"strategy 'Answering' answers False about .*; it should be None, or why not"
    ):
        tt.decompose(tt.IRModule.from_onnx(DIGITS), "[npu=declared-answer,cpu=numpy](host=@cpu)")


def test_a_table_of_operators_is_a_strategy(tmp_path):
    path = tmp_path / "ops.csv"
    path.write_text("op,dtypes,constants,max_rank,opsets\nConv,float32 int8,1 2,4,\nGemm,,,2,7-17\n")
    tt.strategy("declared-table")(from_op_table(path))
    model = tt.IRModule.from_onnx(DIGITS)
    sites = tt.decompose(model, "[npu=declared-table,cpu=numpy](host=@cpu)").sites()
    assert sorted(op for op, site in sites.items() if site == "npu") == ["conv1", "conv2", "conv3", "fc1", "fc2"]
    tt.strategy("declared-table")(from_op_table([{"op": "Conv", "max_rank": "3"}]))
    plan = tt.decompose(model, "[npu=declared-table,cpu=numpy](host=@cpu)")
    assert "@npu: no, RANK: it supports Conv of at most 3 dimensions, not 4" in str(plan.explain("conv1"))


def test_wrong_tables_are_reported_row_by_row(tmp_path):
    rows = [{"op": "Conv", "dtypes": "float23"}, {"op": ""}, {"op": "Add", "rank": "3"}, {"op": "Mul", "max_rank": "x"}]
    with pytest.raises(TargetError) as caught:
        from_op_table(rows)
    assert str(caught.value).splitlines() == [
        "op table, row 1: no element type 'float23'; did you mean 'float32' or 'float64' or 'float16'?",
        "op table, row 2: 'op' is empty",
        "op table, row 3: no column 'rank'; did you mean 'max_rank'?",
        "op table, row 4: 'x' should be a whole number, 0 or more",
    ]
    with pytest.raises(TargetError, match="no op table"):
        from_op_table(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TargetError, match="is not UTF-8 text"):
        from_op_table(tmp_path / "binary.csv")


def test_the_examples_of_declaring():
    failed, tried = doctest.testmod(decorators)
    assert tried
    assert not failed


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"op": "Conv"}, {"op": "Conv"}], "row 2: there is a row of 'Conv' already"),
        ([{"op": "Conv", "opsets": "9-7"}], "row 1: opsets '9-7' are none"),
        ([{"op": "Conv", "opsets": "9-"}], "row 1: '' should be a whole number"),
    ],
)
def test_empty_rows_are_rejected(rows, problem):
    with pytest.raises(TargetError, match=problem):
        from_op_table(rows)
    assert from_op_table([{"op": "Conv", "max_rank": 4}]).rules["Conv"].max_rank == 4


def relu_chain():
    return tt.IRModule.parse("""func @main(%x: float32[2,n]) opsets(onnx=17) {
      %a: float32[2,n] = onnx.Relu(%x) as a
      %b: float32[2,n] = onnx.Add(%a, %a) as b
      return %b }""")


def test_operators_are_added_to_a_strategy_with_limits_and_a_check():
    """Operators, element types and ranks are conditions beside the patterns."""

    @tt.strategy("declared-adder")
    class Adder:
        patterns = {"relu": "relu(x)"}

        def relu(self, match):
            return tt.reject("SHAPE_DYNAMIC", dims=match.dynamic_dims) if match.is_dynamic else None

        @tt.Strategy.op("Add", "Mul", dtypes={"float16"}, max_rank=4)
        def check_elementwise(self, op):
            return tt.reject("RULE", "one value twice") if op.operand(0) == op.operand(1) else None

    board = "[npu=declared-adder,cpu=numpy](host=@cpu)"
    plan = tt.decompose(relu_chain(), board)
    assert dict(plan.explain("a").verdicts)["npu"] == "no, SHAPE_DYNAMIC: dimensions n are not known"
    assert dict(plan.explain("b").verdicts)["npu"] == "no, DTYPE: it does not support Add on float32; cast to float16"

    @tt.strategy("declared-adder")
    class Both(Adder):
        @tt.Strategy.op("Add")
        def check_add(self, op):
            return None

    assert tt.decompose(relu_chain(), board).site_of("b") == "npu"
    with pytest.raises(TargetError, match="no element type 'flot16'; did you mean 'float16'"):
        tt.Strategy.op("Add", dtypes={"flot16"})


def test_checks_read_the_options_that_the_target_carries():
    """Issue: options of a code generator come with the Target, never from global state."""

    @tt.strategy("declared-tiled", attributes={"max_rank": 1, "mode": "fast"})
    class Tiled:
        ops = frozenset({"Relu"})
        patterns = {"add": "add(x, y)"}

        def check_op(self, op):
            rank = len(op.inputs[0].shape)
            return tt.reject("RANK", f"{rank} dimensions") if rank > self.target["max-rank"] else None  # type: ignore[attr-defined]

        def add(self, match):
            return tt.reject("RULE", "slow") if self.target["mode"] == "slow" else None  # type: ignore[attr-defined]

    def sites(text):
        return tt.decompose(relu_chain(), text).sites()

    assert sites("[npu=declared-tiled,cpu=numpy](host=@cpu)") == {"a": "cpu", "b": "npu"}
    assert sites("[npu=declared-tiled(max-rank=2),cpu=numpy](host=@cpu)") == {"a": "npu", "b": "npu"}
    two = "[n1=declared-tiled(mode=slow),n2=declared-tiled(max-rank=2),cpu=numpy](host=@cpu)"
    assert sites(two) == {"a": "n2", "b": "cpu"}
    with pytest.raises(TargetError, match="attribute 'x' of a kind is a number, a text, true or false, not"):
        tt.strategy("declared-odd", attributes={"x": 1.5})(type("Odd", (), {}))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"check_op": lambda self, op: op.nothing}, "fails on Relu at 'a': AttributeError: 'Op' object has no attri"),
        ({"check_op": lambda self, op: False}, "answers False about Relu at 'a'; it should be None, or why not"),
        ({"check_op": lambda self, op: self.check(op)}, "fails on Relu at 'a': RecursionError"),
        ({"check_subgraph": lambda self, ops: 1 / 0}, "fails on a subgraph of 2 ops at 'a': ZeroDivisionError"),
        (
            {"check_subgraph": lambda self, ops: True},
            "answers True about a subgraph of 2 ops at 'a'; it should be None",
        ),
        ({"patterns": {"r": "relu(x)"}, "r": lambda self, m: m.w}, "fails on a match of 'r' at 'a': AttributeError"),
        (
            {"check_op": lambda self, op: tt.reject("TOO_LONG")},
            "'Faulty' fails on Relu at 'a': no rejection code 'TOO_LONG'; there are: ATTR",
        ),
        ({"find_matches": lambda self, module: None}, "'Faulty' fails on finding matches: TypeError: 'NoneType'"),
        (
            {"find_matches": lambda self, module: [FoundMatch("far", (0, 2)), (0, 1)]},
            r"(?s)'Faulty' finds FoundMatch\(pattern='far', calls=\(0, 2\).* 0 to 1, each once.*finds \(0, 1\), which",
        ),
        ({"find_matches": lambda self, module: [FoundMatch("none", ())]}, "which is no match"),
    ],
)
def test_a_wrong_check_is_reported_with_its_strategy(body, problem):
    tt.strategy("declared-faulty")(type("Faulty", (), {"ops": {"Relu", "Add"}} | body))
    with pytest.raises(TargetError, match=problem):
        tt.decompose(relu_chain(), "[npu=declared-faulty,cpu=numpy](host=@cpu)")


def test_a_strategy_that_changes_its_answer_is_reported():
    answers = iter(range(1000))

    def check_op(_self, _op):
        return tt.reject("SHAPE", "an odd question") if next(answers) % 2 else None

    tt.strategy("declared-moody")(type("Moody", (), {"ops": {"Relu", "Tanh"}, "check_op": check_op}))
    with pytest.raises(ModelError, match=r"SHAPE: an odd question \(a strategy must give the same answer"):
        tt.decompose(tt.IRModule.from_onnx(DIGITS), "[npu=declared-moody,cpu=numpy](host=@cpu)")
