"""Declared limits of a strategy hold for operators, for matches of patterns, and however they are declared."""

import itertools
import random

import networkx as nx
import pytest
from onnx import parser

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError
from tvmtarget.support.decorators import from_op_table
from tvmtarget.support.strategy import Rule, Strategy

BOARD = "[npu=limited-npu,cpu=numpy](host=@cpu)"

# Of each limit: what is declared, a program that breaks it, the code of the refusal, and one that keeps it.
ADD = """func @main(%x: {type}, %y: {type}) opsets(onnx={opset}) {{
  %a: {type} = onnx.Add(%x, {second}) as "add"
  %b: {type} = onnx.Relu(%a) as "relu"
  return %b
}}"""
FLOAT, INT, OPEN = "float32[4,4]", "int8[4,4]", "float32[...]"


def program(type_=FLOAT, opset=17, second="%y"):
    return ADD.format(type=type_, opset=opset, second=second)


SPLIT = """func @main(%x: float32[4,4]) opsets(onnx=17) {
  %b: float32[4,4] = onnx.Relu(%x) as "add"
  %p: float32[4,2], %q: float32[4,2] = onnx.Split(%b) {axis=1} as "relu"
  return %p, %q
}"""

LIMITS = {
    "dtypes": ({"dtypes": {"int8"}}, program(), "DTYPE", program(INT)),
    "opsets": ({"opsets": range(13, 17)}, program(), "RULE", program(opset=16)),
    "unsupported": ({"unsupported": {"Add": "it adds nothing"}}, program(), "RULE", None),
    "supports_unknown_ranks": ({"supports_unknown_ranks": False}, program(OPEN), "SHAPE_DYNAMIC", program()),
    "rule dtypes": ({"rules": {"Add": Rule(dtypes=frozenset({"int8"}))}}, program(), "DTYPE", program(INT)),
    "rule typed": ({"rules": {"Add": Rule(dtypes=frozenset({"int8"}), typed=1)}}, program(), "DTYPE", program(INT)),
    "rule max_rank": ({"rules": {"Add": Rule(max_rank=1)}}, program(), "RANK", program("float32[4]")),
    "rule max_rank, unknown": ({"rules": {"Add": Rule(max_rank=4)}}, program(OPEN), "RANK", program()),
    "rule opsets": ({"rules": {"Add": Rule(opsets=range(13, 17))}}, program(), "RULE", program(opset=16)),
    "rule constants": ({"rules": {"Add": Rule(constants=(1,))}}, program(), "NEED_CONST", None),
    "rule checks": ({"rules": {"Add": Rule(checks=(lambda op: tt.reject("RULE", "no"),))}}, program(), "RULE", None),
    "max_inputs": ({"max_inputs": 1}, program(), "MAX_INPUTS", program(second="%x")),
}
PATTERNS = {"fused": "relu(add(x, y))"}


def verdict(module, op="add"):
    plan = tt.decompose(module, BOARD)
    return dict(plan.explain(op).verdicts)["npu"]


def declare(form, tables):
    """Declare limits by the decorator's options, by attributes of the class below it, or of a subclass."""
    if form == "options":
        ops = {name: tables.pop(name) for name in ("ops", "patterns") if name in tables}
        return tt.strategy("limited-npu", **tables)(type("Limited", (), ops))
    bases = (Strategy,) if form == "subclass" else ()
    return tt.strategy("limited-npu")(type("Limited", bases, dict(tables)))


@pytest.mark.parametrize("form", ["options", "attributes", "subclass"])
@pytest.mark.parametrize(
    "taken", [{"ops": frozenset({"Add", "Relu"})}, {"patterns": PATTERNS}], ids=["ops", "patterns"]
)
@pytest.mark.parametrize("limit", LIMITS)
def test_every_limit_holds_for_operators_and_patterns_in_every_form(limit, taken, form):
    tables, broken, code, kept = LIMITS[limit]
    declare(form, {**tables, **taken})
    assert verdict(tt.IRModule.parse(broken)).startswith(f"no, {code}: ")
    if kept is not None:
        assert verdict(tt.IRModule.parse(kept)).startswith("yes")


@pytest.mark.parametrize(
    ("row", "broken", "code", "kept"),
    [
        ({"dtypes": "int8"}, program(), "DTYPE", program(INT)),
        ({"max_rank": "1"}, program(), "RANK", program("float32[4]")),
        ({"opsets": "13-16"}, program(), "RULE", program(opset=16)),
        ({"constants": "1"}, program(), "NEED_CONST", None),
    ],
)
@pytest.mark.parametrize("has_patterns", [False, True])
def test_the_limits_of_a_table_hold_for_operators_and_patterns(row, broken, code, kept, has_patterns):
    rows = [{"op": "Add", **row}, {"op": "Relu"}]
    taken = {"patterns": PATTERNS, "ops": None} if has_patterns else {}
    tt.strategy("limited-npu")(type("Limited", (from_op_table(rows),), taken))
    assert verdict(tt.IRModule.parse(broken)).startswith(f"no, {code}: ")
    if kept is not None:
        assert verdict(tt.IRModule.parse(kept)).startswith("yes")


@pytest.mark.parametrize("has_patterns", [False, True])
@pytest.mark.parametrize(
    ("limits", "broken", "code"),
    [
        ({"dtypes": {"int8"}}, program(), "DTYPE"),
        ({"dtypes": {"int8"}, "typed": 1}, program(), "DTYPE"),
        ({"max_rank": 1}, program(), "RANK"),
        ({"opsets": range(13, 17)}, program(), "RULE"),
        ({"constants": (1,)}, program(), "NEED_CONST"),
    ],
)
def test_the_limits_of_an_operator_that_is_added_hold_in_patterns_too(limits, broken, code, has_patterns):
    add = tt.Strategy.op("Add", **limits)(lambda self, op: None)
    tt.strategy("limited-npu")(
        type("Limited", (), {"patterns": PATTERNS if has_patterns else {}, "ops": {"Relu"}, "check_add": add})
    )
    assert verdict(tt.IRModule.parse(broken)).startswith(f"no, {code}: ")


@pytest.mark.parametrize("limits", [{"attrs": {"axis": (0,)}}, {"results": 1}])
@pytest.mark.parametrize(
    "taken", [{"ops": {"Relu"}}, {"patterns": {"fused": "split(relu(x))"}}], ids=["ops", "patterns"]
)
def test_attributes_and_results_are_limited(limits, taken):
    split = tt.Strategy.op("Split", **limits)(lambda self, op: None)
    tt.strategy("limited-npu")(type("Limited", (), taken | {"check_split": split}))
    assert verdict(tt.IRModule.parse(SPLIT), "relu").startswith("no, ")


def test_a_match_larger_than_a_function_is_rejected():
    for caps, code in [({"max_ops": 1}, "MAX_SIZE"), ({"max_inputs": 1}, "MAX_INPUTS")]:
        tt.strategy("limited-npu", **caps)(type("Limited", (), {"patterns": PATTERNS}))
        assert verdict(tt.IRModule.parse(program())).startswith(f"no, {code}: ")


def test_an_operation_with_more_outputs_than_a_function_is_rejected():
    for taken in ({"ops": {"Relu", "Split"}}, {"patterns": {"fused": "split(relu(x))"}}):
        tt.strategy("limited-npu", max_outputs=1)(type("Limited", (), taken))
        assert verdict(tt.IRModule.parse(SPLIT), "relu").startswith("no, MAX_OUTPUTS: ")


def test_a_group_that_must_be_one_function_keeps_the_limits():
    tt.strategy("limited-npu", max_ops=1)(type("Limited", (), {"ops": {"Add", "Relu"}}))
    plan = tt.decompose(tt.IRModule.parse(program()), BOARD, atomic=[["add", "relu"]])
    assert plan.sites() == {"add": "cpu", "relu": "cpu"}


def test_a_check_sees_which_operands_are_one_value():
    @tt.strategy("limited-npu")
    class Npu:
        ops = {"Relu"}

        @tt.Strategy.op("Add")
        def check_add(self, op):
            return tt.reject("RULE", "both operands are one value") if op.operand(0) == op.operand(1) else None

    text = """func @main(%x: float32[4], %y: float32[4]) opsets(onnx=17) {{
      %a: float32[4] = onnx.Add({}) as "first"
      %b: float32[4] = onnx.Add({}) as "second"
      return %a, %b
    }}"""
    for one, other in itertools.permutations(["%x, %y", "%x, %x"]):
        sites = tt.decompose(tt.IRModule.parse(text.format(one, other)), BOARD).sites()
        assert sites == {"first": "npu" if "y" in one else "cpu", "second": "npu" if "y" in other else "cpu"}


def test_the_example_of_the_documentation_rejects_another_type():
    module = tt.IRModule.from_onnx("examples/digits.onnx")

    @tt.strategy("limited-npu", dtypes={"int8"}, subgraphs="connected")
    class Npu:
        patterns = {"conv_relu": "relu(conv(x, w, ...))", "matmul": "matmul(a, b)"}

        def matmul(self, match):
            return None

    plan = tt.decompose(module, BOARD)
    assert set(plan.sites().values()) == {"cpu"}
    assert "@npu: no, DTYPE: of 'conv1', it does not support float32; cast to int8" in str(plan.explain("conv1"))


def random_limited_program(rng, size):
    """Return the text of a program whose operations read one to five values, some of them twice."""
    values, lines = ["%x", "%y"], []
    for number in range(size):
        reads = [rng.choice(values[-8:]) for _ in range(rng.randint(1, 5))]
        if rng.random() < 0.2:
            lines.append(f'%p{number}: {FLOAT}, %q{number}: {FLOAT} = onnx.Split({reads[0]}) {{axis=1}} as "s{number}"')
            reads = [f"%p{number}", f"%q{number}"]
        op = rng.choice(["Sum", "Max"])
        lines.append(f'%v{number}: {FLOAT} = onnx.{op}({", ".join(reads)}) as "o{number}"')
        values.append(f"%v{number}")
    results = rng.sample(values[2:], min(size, rng.randint(1, 3)))
    signature = f"func @main(%x: {FLOAT}, %y: {FLOAT}) opsets(onnx=17)"
    return f"{signature} {{\n" + "\n".join(lines) + f"\nreturn {', '.join(results)}\n}}"


@pytest.mark.parametrize("seed", range(60))
def test_every_function_of_a_random_program_keeps_all_limits(seed):
    rng = random.Random(seed)
    caps = {name: rng.randint(1, 5) for name in ("max_ops", "max_inputs", "max_outputs") if rng.random() < 0.6}
    shape, most = rng.choice(["connected", "superstep", "single"]), rng.randint(1, 9)

    def check_subgraph(self, ops):
        return tt.reject("RULE", "too many") if len(ops) > most else None

    checks = {"check_subgraph": check_subgraph} if rng.random() < 0.4 else {}
    tt.strategy("limited-npu", subgraphs=shape, **caps)(type("Limited", (), {"ops": {"Sum", "Split"}} | checks))
    module = tt.IRModule.parse(random_limited_program(rng, rng.randint(2, 30)))
    names = [call.source for call in module.main.body]
    atomic = [names[:2]] if rng.random() < 0.4 else []
    before = [] if atomic else rng.sample(names, rng.randint(0, 1))
    plan = tt.decompose(module, BOARD, atomic=atomic, boundary_before=before)
    for subgraph in (one for one in plan.subgraphs if one.site == "npu"):
        function = plan.module[subgraph.function]
        sizes = (len(function.body), len(function.params), len(function.results))
        assert all(
            size <= caps.get(name, size)
            for size, name in zip(sizes, ("max_ops", "max_inputs", "max_outputs"), strict=True)
        )
        assert len(function.body) <= (most if checks else len(function.body))
        assert shape != "single" or len(function.body) == 1
        if shape == "connected":
            graph = nx.Graph()
            for number, call in enumerate(function.body):
                graph.add_edges_from((number, output.name) for output in call.outputs)
                graph.add_edges_from((number, name) for name in call.inputs)
            inputs = {param.name for param in function.params}
            assert nx.is_connected(graph.subgraph(set(graph) - inputs))


def test_operands_that_do_not_broadcast_are_named_before_the_values_that_have_no_type_then():
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[2,3] x, float[n,4] y) => (float[a,b] z) { s = Add(x, y) z = MatMul(s, s) }""")
    with pytest.raises(
        InfeasibleError, match=r"operands of Add are float32\[2,3\] and float32\[n,4\], which do not broad"
    ):
        tt.decompose(tt.IRModule.from_onnx(proto), "llvm")
