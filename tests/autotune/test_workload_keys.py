"""Keys of workloads: what of a function they depend on, and a second implementation of all keys of a log."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from logs import MATMUL, ZNVER4, known, trial
from models import DIGITS, light, small
from onnx import TensorProto, helper, numpy_helper

from tvmtarget import Constraint, IRModule
from tvmtarget.autotune.log.keys import shapeless, workload_of
from tvmtarget.autotune.log.records import Alias, Pin, Retraction, Workload
from tvmtarget.errors import ModelError
from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.target.identity import canonical

HERE = Path(__file__).parent
NODE = helper.make_node


def function(*nodes, **options):
    return IRModule.from_onnx(small(*nodes, **options)).main


def reshape(*shape):
    return function(NODE("Reshape", ["x", "s"], ["y"]), s=np.array(shape, "int64"))


def branch():
    def body(value):
        constant = NODE("Constant", [], ["c"], value=numpy_helper.from_array(np.float32(value)))
        add = NODE("Add", ["x", "c"], ["r"])
        return helper.make_graph([constant, add], "b", [], [helper.make_tensor_value_info("r", 1, None)])

    return function(
        NODE("ReduceMax", ["x"], ["m"], keepdims=0),
        NODE("Greater", ["m", "zero"], ["is_positive"]),
        NODE("If", ["is_positive"], ["y"], then_branch=body(1), else_branch=body(2)),
        zero=np.float32(0),
    )


FUNCTIONS = {
    "relu": lambda: function(NODE("Relu", ["x"], ["y"])),
    "a product and a sum": lambda: function(
        NODE("MatMul", ["x", "w"], ["m"]), NODE("Add", ["m", "b"], ["y"]),
        w=np.ones((3, 4), "float32"), b=np.ones(4, "float32"),
    ),
    "symbols": lambda: function(NODE("Relu", ["x"], ["y"]), shape=("batch", 3)),
    "attributes": lambda: function(NODE("LeakyRelu", ["x"], ["y"], alpha=0.1)),
    "sizes that are constants": lambda: reshape(3, 2),
    "a branch": branch,
    "digits": lambda: IRModule.from_onnx(DIGITS).main,
}  # fmt: skip


def keys(workload):
    """Return what the keys of a workload are made of, and the keys."""
    whole = {**workload.body, "level": workload.level}
    family = whole | {"shapes": [len(shape) for shape in workload.shapes]}
    return [f"  {canonical(whole)}", f"  {workload.key}", f"  {canonical(family)}", f"  {workload.family}"]


def lines(name):
    workload, structure = workload_of(FUNCTIONS[name]()), shapeless(FUNCTIONS[name](), {})[0]
    return [f"  {canonical(structure)}", f"  {workload.body['structure']}", *keys(workload)]


KERNEL = {"structure": f"tvmscript:{'0' * 32}", "shapes": [["s0", 3], [3, 4]], "constants": [1]}
OTHERS = {
    "digits at level graph": lambda: workload_of(IRModule.from_onnx(DIGITS).main, "graph"),
    "digits at level executor": lambda: workload_of(IRModule.from_onnx(DIGITS).main, "executor"),
    "a tensor function of TVM": lambda: Workload.of(KERNEL),
}


def test_p4_keys_stay_what_they_are(golden):
    """A line that changes orphans tuning logs."""
    records = [
        *known(ZNVER4),
        one := trial(1, requires={"kind": "llvm", "mattr": {"has": ["avx2"]}}),
        Pin(level="graph", workload=MATMUL.key, target=ZNVER4.digest, candidate=one.candidate, why="\u00e9", ts=1),
        Retraction(of=one.digest, why="x"),
        Alias(kind="inst", old="GetBlock", new="GetSBlock"),
    ]
    cut = [(f"  {record.text[: record.text.rindex(',')]}}}", f"  {record.digest}") for record in records]
    blocks = [f"> {name}\n" + "\n".join(lines(name)) for name in FUNCTIONS]
    blocks += [f"> {name}\n" + "\n".join(keys(make())) for name, make in OTHERS.items()]
    candidate = canonical({"format": one.candidate.format, "body": one.candidate.body})
    blocks.append(f"> a candidate\n  {candidate}\n  {one.candidate.key}")
    blocks += [f"> a {record.type}\n" + "\n".join(pair) for record, pair in zip(records, cut, strict=True)]
    golden("autotune/keys.golden", "\n".join(blocks) + "\n")


def test_p4_another_language_computes_the_same_keys():
    node = shutil.which("node")
    if node is None:
        pytest.skip("node.js is not installed")
    command = [node, "../target/digest.mjs", "keys.golden"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"{3 * len(FUNCTIONS) + 2 * len(OTHERS) + 8} digests agree\n", 0)


def renamed(function, outer=()):
    """Return a function in which every value and the function itself has another name."""
    own = {name: f"renamed.{name}" for name in (*function.types, *(call for call in outer))}

    def value(one):
        return Value(own.get(one.name, one.name), one.type, "another memory")

    def call(one):
        return Call(
            one.op,
            tuple(own.get(name, name) for name in one.inputs),
            tuple(map(value, one.outputs)),
            one.attrs,
            tuple((name, renamed(region, own)) for name, region in one.regions),
            Constraint.parse("cuda"),
            f"another {one.source}",
        )

    constants = tuple(type(one)(own[one.name], one.type, one.data) for one in reversed(function.constants))
    return function.replace(
        name="another", params=tuple(map(value, function.params)), body=tuple(map(call, function.body)),
        results=tuple(own.get(name, name) for name in function.results), constants=constants,
        constraint=Constraint.parse("llvm"),
        attrs=(*function.attrs, ("global_symbol", "f"), ("tir.is_scheduled", True)),
    )  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_names_places_and_marks_do_not_change_a_key(name):
    function = FUNCTIONS[name]()
    assert workload_of(renamed(function)).text == workload_of(function).text


def test_weights_do_not_change_a_key_and_sizes_do():
    def product(weight):
        return function(NODE("MatMul", ["x", "w"], ["y"]), w=weight)

    one, other = product(np.ones((3, 4), "float32")), product(np.zeros((3, 4), "float32"))
    assert workload_of(one).key == workload_of(other).key
    wider = workload_of(product(np.ones((3, 8), "float32")))
    assert (wider.key == workload_of(one).key, wider.family == workload_of(one).family) == (False, True)
    assert workload_of(reshape(3, 2)).key != workload_of(reshape(6, 1)).key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (function(NODE("Relu", ["x"], ["y"])), function(NODE("Abs", ["x"], ["y"]))),
        (function(NODE("Relu", ["x"], ["y"])), function(NODE("Relu", ["x"], ["y"]), opset=14)),
        (function(NODE("LeakyRelu", ["x"], ["y"], alpha=0.1)), function(NODE("LeakyRelu", ["x"], ["y"], alpha=0.2))),
        (function(NODE("Sub", ["x", "c"], ["y"]), c=np.float32([1])),
         function(NODE("Sub", ["c", "x"], ["y"]), c=np.float32([1]))),
        (function(NODE("Softmax", ["x"], ["y"], axis=0)), function(NODE("Softmax", ["x"], ["y"], axis=1))),
    ],
)  # fmt: skip
def test_what_is_computed_changes_the_family(one, other):
    assert workload_of(one).family != workload_of(other).family


def test_a_function_that_calls_another_one_is_known_by_both():
    inner = function(NODE("Relu", ["x"], ["y"])).replace(name="inner")
    call = Call("@inner", ("x",), (Value("y", inner.params[0].type),))
    outer = Function("main", inner.params, (call,), ("y",))
    keys = [
        workload_of(outer, "graph", callees={"inner": callee}).key
        for callee in (inner, renamed(inner), function(NODE("Abs", ["x"], ["y"])))
    ]
    assert keys[0] == keys[1] != keys[2]
    with pytest.raises(ModelError, match="calls '@inner', which is not given"):
        workload_of(outer)
    with pytest.raises(ModelError, match="function 'inner' calls itself"):
        workload_of(outer, callees={"inner": outer})


def test_a_large_model_has_a_key_that_fits_a_line():
    text = workload_of(IRModule.from_onnx(light("resnet50")).main, "graph").text
    assert len(text) < 20_000


def test_functions_of_other_element_types_differ():
    def cast(to):
        model = small(NODE("Cast", ["x"], ["y"], to=to))
        model.graph.output[0].type.tensor_type.elem_type = to
        return workload_of(IRModule.from_onnx(onnx.shape_inference.infer_shapes(model)).main).key

    assert cast(TensorProto.FLOAT16) != cast(TensorProto.INT8)
