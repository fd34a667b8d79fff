"""What the reader leaves out for plain input would have changed nothing."""

import warnings

from hypothesis import given
from hypothesis import strategies as st
from trees import trees

from tvmtarget import Target
from tvmtarget.errors import TvmTargetError
from tvmtarget.target.kinds import find_kind, kind_names
from tvmtarget.target.loader import _checked, _plain_fields
from tvmtarget.target.node import JsonNode
from tvmtarget.target.text.words import RESERVED
from tvmtarget.target.tvm.legacy import BuildSettings

HISTORIC = ["devices", "+", "~", "-executor", "-runtime", "target_host", "system-lib", "link-params", "target", "a/b"]
values = st.sampled_from([None, 1, "c", "c++", "llvm", "@cpu", True, [], ["a"], ("a",), {"kind": "llvm"}, 1.5])


@st.composite
def objects(draw):
    kind = draw(st.sampled_from(kind_names()))
    names = [row.name for row in find_kind(kind).attributes]
    keys = st.sampled_from([*names, *(name.replace("_", "-") for name in names), *RESERVED, *HISTORIC, 7])
    return {"kind": kind} | draw(st.dictionaries(keys, values, max_size=4))


@given(objects())
def test_an_object_that_is_read_as_it_is_needs_no_conversion(data):
    if _plain_fields(data) is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            settings = BuildSettings()
            assert settings.modern(_checked(data, 1)) == data
            assert settings.settle(Target("llvm")) == Target("llvm")


@given(trees)
def test_pydantic_accepts_the_values_of_every_node_unchanged(tree):
    for node in [Target.from_json(tree.to_json()), *(child for _, child in tree.walk())]:
        fields = {info.alias or name: getattr(node, name) for name, info in Target.model_fields.items()}
        checked = object.__new__(Target)
        JsonNode.__init__(checked, **fields)
        assert vars(checked) == vars(node)
        assert checked.model_fields_set == node.model_fields_set


@given(objects())
def test_problems_do_not_depend_on_the_type_of_the_mapping(data):
    class Mapped(dict):
        """A mapping that is no `dict`, which is read with all conversions."""

    results: list[object] = []
    for source in (data, Mapped(data)):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            try:
                tree = Target.from_json(source)
                results.append((tree.to_json(), dict(tree.origins())))
            except TvmTargetError as error:
                results.append((type(error), error.problems, [getattr(one, "loc", ()) for one in error.problems]))
    assert results[0] == results[1]


@given(st.lists(objects(), max_size=4))
def test_children_of_wide_trees_are_read_like_those_of_small_ones(children):
    def outcome(before):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Every child comes twice, since the second one shares what was read for the first.
            rows = [child | {"name": f"n{at}"} for at, child in enumerate([*children, *children])]
            try:
                tree = Target.from_json({"kind": "composite", "targets": [*before, *rows]})
            except TvmTargetError as error:
                places = [getattr(line, "loc", ("", 0))[1] - len(before) for line in error.problems]
                return [str(line) for line in error.problems], places
            return [(child.to_json(), dict(child.origins())) for child in tree.targets[len(before) :]]

    assert outcome([]) == outcome([{"kind": "llvm", "name": f"before{at}"} for at in range(100)])
