"""`where` rules: words that name children, and rules that change nothing."""

import pytest
from models import DIGITS

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, UnknownNameError

MODULE = tt.IRModule.from_onnx(DIGITS)
BOARD = "[ort=onnxruntime,cpu=llvm]"
RACK = "[node0=[ort=onnxruntime,cpu=numpy](host=@cpu),node1=[ort=onnxruntime,cpu=numpy](host=@cpu)](host=@node0/cpu)"


def site(rule, board=BOARD, **options):
    return tt.decompose(MODULE, board, where={"fc1": rule}, **options).site_of("fc1")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("cpu", "cpu"),
        ("ort", "ort"),
        ("@cpu", "cpu"),
        ("llvm", "cpu"),
        ("onnxruntime", "ort"),
        ("!ort", "cpu"),
        ("!cpu", "ort"),
        ("cpu|ort", "cpu"),
        ("ort|cpu", "ort"),
        ("cpu?", "cpu"),
        ("!(ort)", "cpu"),
        ("(cpu|llvm)&!ort", "cpu"),
        ("cpu(count>=1)", "ort"),  # a key with conditions, which both have
    ],
)
def test_a_bare_word_that_names_a_child_means_that_child(rule, expected):
    assert site(rule) == expected


def test_the_name_of_a_child_comes_before_kinds_and_keys():
    assert site("cuda", "[ort=onnxruntime,cuda=numpy](host=@cuda)") == "cuda"
    assert site("numpy", "[a=numpy,numpy=onnxruntime](host=@a)") == "numpy"
    assert site("numpy", "[onnxruntime,numpy](host=@numpy)") == "numpy"  # a kind, as the child has no name of its own
    assert site("llvm", "[ort=onnxruntime,llvm,big=llvm(num-cores=64)](host=@llvm)") == "llvm"


def test_a_name_that_several_nodes_have_means_any_of_them():
    assert site("cpu", RACK) == "node0/cpu"
    assert site("cpu&!@node0", RACK) == "node1/cpu"
    assert site("!cpu", RACK) == "node0/ort"
    with pytest.raises(InfeasibleError, match=r"drop or change one of: .*cpu \(required by where 'fc1'\)"):
        tt.decompose(MODULE.constrain("fc1", "ort"), RACK, where={"fc1": "cpu"})
    plan = tt.decompose(MODULE, RACK, "roofline", where={"fc1": "cpu", "conv*": "@node1"})
    assert plan.site_of("fc1").endswith("/cpu")


def test_the_name_nearest_to_the_root_counts():
    board = "[rack=[cpu=onnxruntime,x=numpy](host=@x),cpu=numpy](host=@cpu)"
    assert site("cpu", board) == "cpu"
    assert site("x", board) == "rack/x"
    assert site("rack", board) == "rack/cpu"


def test_names_of_replicas_are_names():
    board = "[npu=onnxruntime(count=2),cpu=numpy](host=@cpu)"
    assert site("npu.1", board) == "npu.1"
    assert site("!npu", board) == "cpu"


def test_names_of_children_may_be_any_word():
    board = "[my-npu2=numpy,ort=onnxruntime](host=@my-npu2)"
    assert site("my-npu2", board) == "my-npu2"


def test_constraints_of_a_module_name_children_too():
    assert tt.decompose(MODULE.constrain("fc1", "cpu"), BOARD).site_of("fc1") == "cpu"
    text = """func @main(%x: float32[4]) -> (float32[4]) opsets(onnx=17) {
      %a: float32[4] = @part(%x)
      return %a
    }
    func @part(%x: float32[4]) -> (float32[4]) opsets(onnx=17) [cpu] {
      %a: float32[4] = onnx.Relu(%x) as r
      return %a
    }"""
    assert tt.decompose(tt.IRModule.parse(text), BOARD).site_of("r") == "cpu"
    assert tt.decompose(tt.IRModule.parse(text.replace("[cpu]", "[node1]")), RACK).site_of("r") == "node1/ort"


def test_a_function_that_is_constrained_to_a_system_by_name_is_divided_in_it():
    plan = tt.decompose(MODULE, RACK, where={"*": "node1"})
    assert {path.partition("/")[0] for path in plan.sites().values()} == {"node1"}
    again = tt.decompose(plan.module, plan.topology.root)
    assert again.module == plan.module


def test_a_word_that_is_no_name_kind_or_key_is_rejected():
    with pytest.raises(UnknownNameError, match=r"no target kind, key or child 'ot'; did you mean 'ort'.*where 'fc1'"):
        site("ot")


def test_hosts_of_a_description_name_children():
    board = "[a=onnxruntime(host=@cpu),cpu=numpy](host=@cpu)"
    assert site("onnxruntime(host=cpu)", board) == "a"


def effects(where, board=BOARD, module=MODULE, **options):
    """Return the counts of each rule: effective, overridden, met, released."""
    plan = tt.decompose(module, board, where=where, **options)
    return plan, [(rule.effective, rule.overridden, rule.met, rule.released) for rule in plan.rules()]


def test_a_rule_that_excludes_a_site_has_an_effect():
    plan, counted = effects({"fc1": "cpu"})
    assert counted == [(1, 0, 0, 0)]
    assert "changes nothing" not in plan.summary()
    assert "  where 'fc1', @cpu: excludes @ort" in str(plan.explain("fc1")).splitlines()
    assert plan.explain("fc1").to_json()["rules"] == ["where 'fc1', @cpu: excludes @ort"]
    assert plan.explain("fc2").rules == ()


def test_a_rule_is_judged_apart_from_what_other_options_require():
    """`apart` moves `fc2` to `@cpu`, which meets the rule, but the rule is why it is not on `@np`."""
    board = "[ort=onnxruntime,cpu=llvm,np=numpy]"
    assert effects({"fc2": "!@np"}, board, apart=[["fc1", "fc2"]])[1] == [(1, 0, 0, 0)]


def test_a_rule_that_every_possible_site_meets_changes_nothing():
    plan, counted = effects({"fc1": "cpu(count>=1)"})
    assert counted == [(0, 0, 1, 0)]
    line = "  where 'fc1', cpu(count>=1), changes nothing: every site that can take the op meets it (1 op)"
    assert line in plan.summary().splitlines()
    assert "changes nothing, as every site that can take it meets it" in str(plan.explain("fc1"))
    assert plan.to_json()["rules"] == [
        {
            "rule": "where 'fc1'",
            "constraint": "cpu(count>=1)",
            "ops": 1,
            "effective": 0,
            "overridden": 0,
            "met": 1,
            "released": 0,
        }
    ]


def test_a_rule_that_another_overrides_says_by_which():
    plan, counted = effects({"fc1": "ort", "fc*": "cpu"})
    assert counted == [(0, 1, 0, 0), (2, 0, 0, 0)]
    assert "where 'fc1', @ort, changes nothing: a later rule overrides it (1 op)" in plan.summary()
    assert "where 'fc1', @ort: overridden by where 'fc*'" in plan.explain("fc1").rules
    _, counted = effects({"fc*": "cpu", "fc1": "ort"})
    assert counted == [(1, 1, 0, 0), (1, 0, 0, 0)]


def test_a_rule_that_a_module_already_states_changes_nothing():
    _, counted = effects({"fc1": "cpu|ort"}, module=MODULE.constrain("fc1", "@cpu"))
    assert counted == [(0, 0, 1, 0)]


def test_a_preference_that_is_not_kept_is_reported_and_so_is_one_that_is():
    module = MODULE.constrain("fc1", "@cpu")
    plan, counted = effects({"fc1": "ort?"}, module=module)
    assert counted == [(0, 0, 0, 1)]
    assert "the preference is not kept (1 op)" in plan.summary()
    assert "not kept, as no site that meets it can take it" in str(plan.explain("fc1"))
    _, counted = effects({"fc1": "cpu?", "fc2": "(cpu|ort)?"})
    assert counted == [(1, 0, 0, 0), (0, 0, 1, 0)]


def test_an_ordered_choice_that_orders_sites_has_an_effect():
    plan, counted = effects({"fc1": "cpu|ort"})
    assert counted == [(1, 0, 0, 0)]
    assert "orders the sites that can take it" in str(plan.explain("fc1"))


def test_a_site_that_does_not_support_an_operation_is_not_excluded_by_a_rule():
    text = """func @main(%x: float32[4,3,3]) opsets(onnx=17) {
      %b: float32[4] = onnx.Det(%x) as det
      return %b
    }"""
    _, counted = effects({"det": "@cpu"}, "[npu=llvm,cpu=numpy](host=@cpu)", tt.IRModule.parse(text))
    assert counted == [(0, 0, 1, 0)]


def test_rules_for_nested_bodies_are_counted(tmp_path):
    plan = tt.decompose(MODULE, BOARD, where={"*": "cpu", "fc1": "!ort"})
    plan.save(tmp_path / "a.plan")
    assert tt.Plan.load(tmp_path / "a.plan").rules() == plan.rules()
    assert sum(rule.ops for rule in plan.rules()) == len(MODULE.main.body) + 1
