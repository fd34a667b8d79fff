"""Tuples of Relax that are read as a whole and by their fields, on several sites."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")

from relax_modules import by_tvm, run  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.relax.dpl import is_op, wildcard  # noqa: E402
from tvm.script import ir as I  # noqa: E402, N812
from tvm.script import relax as R  # noqa: E402, N812

import tvmtarget as tt  # noqa: E402
from tvmtarget.errors import UnknownNameError  # noqa: E402

CORES = "[big=llvm(num-cores=4),little=llvm(num-cores=2)](host=@big)"
DEEP = "[a=[big=llvm,little=llvm](host=@big),b=llvm](host=@a/big)"


def module_of(body):
    """Return a module whose function gives what `body` makes of a builder and a tensor."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(body(builder, x))
        builder.emit_func_output(result)
    return builder.get()


def halves(emit, x):
    return emit(relax.op.split(x, 2, axis=1))


def whole_and_field(b, x):
    t = halves(b.emit, x)
    return relax.Tuple([t, b.emit(relax.op.nn.relu(b.emit(t[0])))])


def whole_twice(b, x):
    t = halves(b.emit, x)
    return relax.Tuple([t, b.emit(relax.op.tanh(b.emit(t[1]))), t])


def fields_swapped(b, x):
    t = halves(b.emit, x)
    return relax.Tuple([b.emit(t[1]), b.emit(t[0])])


def field_and_input(b, x):
    t = halves(b.emit, x)
    return relax.Tuple([x, b.emit(t[0]), x])


def unused_field(b, x):
    t = halves(b.emit, x)
    return b.emit(relax.op.nn.relu(b.emit(t[1])))


def field_taken_twice(b, x):
    t = halves(b.emit, x)
    one = b.emit(t[0])
    relu = b.emit(relax.op.nn.relu(one))
    return b.emit(relax.op.add(relu, b.emit(t[0])))


def nested(b, x):
    t = halves(b.emit, x)
    u = b.emit(relax.Tuple([t, b.emit(relax.op.tanh(x))]))
    inner = b.emit(u[0])
    relu = b.emit(relax.op.nn.relu(b.emit(inner[1])))
    return relax.Tuple([u, relu])


def repacked(b, x):
    t = halves(b.emit, x)
    u = b.emit(relax.Tuple([b.emit(t[1]), b.emit(t[0])]))
    return b.emit(relax.op.concat(u, axis=1))


def handed_on(b, x):
    t = halves(b.emit, x)
    joined = b.emit(relax.op.concat(t, axis=0))
    return relax.Tuple([joined, b.emit(relax.op.nn.relu(b.emit(t[0])))])


def made_and_read(b, x):
    u = b.emit(relax.Tuple([x, b.emit(relax.op.nn.relu(x))]))
    added = b.emit(relax.op.add(b.emit(u[0]), b.emit(u[1])))
    return relax.Tuple([u, added])


def alias(b, x):
    t = halves(b.emit, x)
    again = b.emit(t)
    return relax.Tuple([again, b.emit(relax.op.nn.relu(b.emit(again[0])))])


def only_returned(b, x):
    return halves(b.emit, b.emit(relax.op.nn.relu(x)))


def returned_and_read(b, x):
    t = halves(b.emit, x)
    b.emit(relax.op.nn.relu(b.emit(t[0])))
    return t


def values_returned_twice(b, x):
    relu = b.emit(relax.op.nn.relu(x))
    return relax.Tuple([relu, relu])


def one_of_one(b, x):
    u = b.emit(relax.Tuple([b.emit(relax.op.nn.relu(x))]))
    return relax.Tuple([u, b.emit(relax.op.tanh(b.emit(u[0])))])


# No operations where tuples are taken apart.
ALIASES = ("relax.Tuple", "relax.TupleGetItem", "relax.value")
SHAPES = [
    whole_and_field,
    whole_twice,
    fields_swapped,
    field_and_input,
    unused_field,
    field_taken_twice,
    nested,
    repacked,
    handed_on,
    made_and_read,
    alias,
    only_returned,
    returned_and_read,
    values_returned_twice,
    one_of_one,
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_tuples_are_divided_and_compute_the_same(shape):
    module = module_of(shape)
    x = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    wanted = by_tvm(module, x)
    ops = {call.op for call in tt.IRModule.from_tvm(module).main.body}
    where = {f"op:{op}": "little" for op in ("relax.nn.relu", "relax.tanh") if op in ops}
    written = tt.decompose(module, CORES, where=where).to_tvm()
    relax.analysis.well_formed(written)
    found = run(tvm.compile(written), x, devices=[tvm.cpu(0), tvm.cpu(1)])
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("target", [CORES, DEEP], ids=["flat", "deep"])
def test_what_touches_a_tuple_may_be_on_any_site(shape, target):
    module = module_of(shape)
    ops = dict.fromkeys(call.op for call in tt.IRModule.from_tvm(module).main.body if call.op not in ALIASES)
    for number in range(len(ops)):
        where = {f"op:{op}": "little?" for place, op in enumerate(ops) if place % (number + 1)}
        plan = tt.decompose(module, target, where=where)
        relax.analysis.well_formed(plan.to_tvm())
        assert tt.decompose(plan.module, plan.topology.root).module == plan.module


def test_a_field_that_a_rule_names_keeps_its_name():
    module = module_of(whole_and_field)
    name = next(c.source for c in tt.IRModule.from_tvm(module).main.body if c.op == "relax.TupleGetItem")
    plan = tt.decompose(module, CORES, where={name: "@little"})
    assert plan.site_of(name) == "little"
    with pytest.raises(UnknownNameError, match="no op"):
        tt.decompose(module, CORES).explain(name)


@I.ir_module
class _GivesTuples:
    @R.function
    def main(flag: R.Tensor((), "bool"), x: R.Tensor((4, 6), "float32")):  # noqa: N805
        if flag:
            a = R.split(x, 2, axis=1)
            t = a
        else:
            b = R.tanh(x)
            c = R.split(b, 2, axis=1)
            t = c
        one = t[0]
        relu = R.nn.relu(one)
        return (t, relu)


GIVES_TUPLES = _GivesTuples


def test_branches_that_give_tuples_are_read_as_a_whole_and_by_field():
    plan = tt.decompose(GIVES_TUPLES, CORES, where={"op:relax.nn.relu": "little"})
    assert plan.site_of("relu") == "little"
    written = plan.to_tvm()
    relax.analysis.well_formed(written)
    executable = tvm.compile(written)
    given = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    for value in (True, False):
        found = run(executable, np.array(value), given, devices=[tvm.cpu(0), tvm.cpu(1)])
        for one, other in zip(found, by_tvm(GIVES_TUPLES, np.array(value), given), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


def tvm_count(module, patterns):
    """Return how many functions TVM's own partitioner gives to a code generator."""
    module = relax.transform.FuseOpsByPattern(patterns)(module)
    module = relax.transform.MergeCompositeFunctions()(module)
    return sum("Codegen" in (function.attrs or {}) for function in module.functions.values())


def test_a_tuple_between_two_composites_costs_no_more_functions_than_in_tvm():
    @tt.strategy("packing-npu")
    class Packing:
        patterns = {"split": "split(relu(x))", "concat": "relu(concat(...))"}

    def body(b, x):
        t = halves(b.emit, b.emit(relax.op.nn.relu(x)))
        u = b.emit(relax.Tuple([b.emit(t[1]), b.emit(t[0])]))
        return b.emit(relax.op.nn.relu(b.emit(relax.op.concat(u, axis=1))))

    module = module_of(body)
    patterns = [
        ("npu.concat", is_op("relax.nn.relu")(is_op("relax.concat")(wildcard()))),
        ("npu.split", is_op("relax.split")(is_op("relax.nn.relu")(wildcard()))),
    ]
    plan = tt.decompose(module, "[npu=packing-npu,cpu=llvm](host=@cpu)")
    assert [subgraph.site for subgraph in plan.subgraphs].count("npu") == 1 <= tvm_count(module, patterns)


def nested_results(b, x):
    t = halves(b.emit, x)
    return relax.Tuple([t, relax.Tuple([x, relax.Tuple([b.emit(relax.op.tanh(x))])])])


def one_in_another(b, x):
    return relax.Tuple([halves(b.emit, x)])


def all_fields(b, x):
    return halves(b.emit, x)


def with_nothing(b, x):
    return relax.Tuple([x, relax.Tuple([])])


def with_a_shape(b, x):
    return relax.Tuple([b.emit(relax.op.shape_of(x)), relax.Tuple([x])])


def everything(b, x):
    """Return all of the results above: for runtimes that take seconds to start."""
    return relax.Tuple([body(b, x) for body in (nested_results, one_in_another, with_nothing, with_a_shape)])


def plain(value):
    """Return arrays as lists of numbers."""
    return value.tolist() if isinstance(value, np.ndarray) else [plain(item) for item in value]


RESULTS = {
    nested_results: lambda x: [np.split(x, 2, 1), [x, [np.tanh(x)]]],
    one_in_another: lambda x: [np.split(x, 2, 1)],
    all_fields: lambda x: np.split(x, 2, 1),
    with_nothing: lambda x: [x, []],
    with_a_shape: lambda x: [np.array([4, 6]), [x]],
}
ALL = (
    everything,
    lambda x: [RESULTS[body](x) for body in (nested_results, one_in_another, with_nothing, with_a_shape)],
)


@pytest.mark.parametrize(
    ("tree", "body", "result"),
    [
        *((tree, *row) for tree in ("llvm", CORES) for row in RESULTS.items()),
        *(("[n0=llvm,n1=llvm](runtime=processes)", *row) for row in (ALL, (all_fields, RESULTS[all_fields]))),
    ],
)
def test_a_result_that_is_a_tuple_is_a_list_of_its_fields(body, result, tree, tmp_path):
    exe = tt.build(module_of(body), tree)
    x = np.zeros((4, 6), "float32")
    (found,) = exe.run({"x": x}).values()
    assert plain(found) == plain(result(x))
    exe.save(tmp_path / "program.tta")
    (again,) = tt.load(tmp_path / "program.tta", trust=True).run({"x": x}).values()
    assert plain(again) == plain(found)


@pytest.mark.parametrize("given", [tuple, list])
def test_an_input_that_is_a_tuple_is_taken_as_one(given):
    builder = relax.BlockBuilder()
    tensor = relax.TensorType((2,), "float32")
    pair = relax.Var("pair", relax.TupleType([tensor, relax.TupleType([tensor])]))
    with builder.function("main", [pair]):
        inner = builder.emit(relax.TupleGetItem(builder.emit(relax.TupleGetItem(pair, 1)), 0))
        builder.emit_func_output(builder.emit(relax.op.add(builder.emit(relax.TupleGetItem(pair, 0)), inner)))
    one, two = np.array([1, 2], "float32"), np.array([3, 4], "float32")
    for tree in ("llvm", CORES):
        (found,) = tt.build(builder.get(), tree).run({"pair": given([one, given([two])])}).values()
        np.testing.assert_array_equal(found, one + two)
