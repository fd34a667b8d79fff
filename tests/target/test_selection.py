"""Selection of targets by a constraint, and the kinds of targets on the public face."""

import pytest

import tvmtarget as tt
from tvmtarget.errors import Problem, TargetError, TextError, UnknownNameError

BOARD = tt.Target.parse(
    "[gpu=cuda(arch=sm_80),soc=[npu=onnxruntime,cpu=llvm(+neon,mtriple=aarch64-linux-gnu)]](executor=vm)"
)


def selected(targets, constraint, **options):
    return [one.kind for one in tt.select(targets, constraint, **options)]


@pytest.mark.parametrize("name", [5, None, [], b"cpu"])
def test_a_name_that_is_no_text_is_an_error_and_not_an_unknown_one(name):
    with pytest.raises(TargetError, match="the name of a child is a text, not "):
        tt.Target.parse("[cpu=llvm]").child(name)
    with pytest.raises(TargetError, match="the name of a kind is a text, not "):
        tt.find_kind(name)


def test_a_kind_of_an_unknown_role_is_an_error():
    with pytest.raises(UnknownNameError, match="unknown role 'executer'; did you mean 'executor'"):
        tt.find_kind("aot", "executer")


def test_nodes_of_a_tree_are_selected_at_every_level_parents_first():
    assert selected(BOARD, "llvm|cuda") == ["cuda", "llvm"]
    assert selected(BOARD, "composite") == ["composite", "composite"]
    assert selected(BOARD, "[onnxruntime,llvm]") == ["composite"]
    assert selected(BOARD, "@soc") == ["composite", "onnxruntime", "llvm"]
    assert selected(BOARD, "rocm") == []


def test_a_constraint_with_a_negation_selects_leaves():
    assert selected(BOARD, "!cuda") == ["onnxruntime", "llvm"]


def test_a_selected_node_is_a_part_with_its_host_and_executor():
    (gpu,) = tt.select("nvidia/jetson-nano(executor=vm)", "gpu")
    assert gpu == tt.Target.parse("nvidia/jetson-nano(executor=vm)").part("gpu")
    assert gpu.tag is None or gpu.tag.endswith(":gpu")
    assert (gpu.host.kind, gpu.executor) == ("llvm", tt.Executor("vm"))


def test_the_root_that_satisfies_a_constraint_is_the_tree_itself():
    tree = tt.Target.parse("cuda(arch=sm_80)")
    assert tt.select(tree, "cuda") == (tree,)
    assert tt.select(tree, "cuda")[0] is tree


def test_targets_of_a_list_are_selected_whole():
    trees = [BOARD, "aws/c5", {"kind": "cuda", "arch": "sm_53"}, tt.CompilationConfig(targets=["cuda", "llvm"])]
    assert selected(trees, "cuda(arch>=sm_53)") == ["composite", "cuda"]
    assert tt.select(iter(trees), "cuda(arch>=sm_53)")[0] is BOARD
    assert tt.select([], "cuda") == ()


def test_values_that_are_not_stated_count_as_no():
    assert selected("[a=cuda,b=cuda(arch=sm_80)]", "cuda(arch>=sm_53)") == ["cuda"]


def test_a_measured_gpu_has_the_features_of_its_architecture():
    assert selected("cuda(arch=sm_90)", "cuda(arch>=sm_90a)") == []
    assert selected("cuda(arch=sm_90)", "cuda(arch>=sm_90a)", measured=True) == ["cuda"]


def test_a_target_selects_those_with_at_least_its_values():
    assert selected(["llvm(num-cores=2)", "llvm(num-cores=8)"], tt.Target("llvm", {"num-cores": 4})) == ["llvm"]


def test_errors_name_the_argument_or_the_elements():
    with pytest.raises(TextError):
        tt.select(BOARD, "((")
    with pytest.raises(TargetError, match=r"not 5 \(argument 'targets'\)"):
        tt.select(5, "cuda")
    with pytest.raises(UnknownNameError) as caught:
        tt.select(["lvm", "llvm", "cudaa"], "cuda")
    assert [problem.loc for problem in caught.value.problems if isinstance(problem, Problem)] == [
        (0, "kind"),
        (2, "kind"),
    ]


def test_kinds_are_listed_by_role():
    assert [kind.name for kind in tt.kinds("runtime")] == ["cpp", "crt", "dask", "processes", "python"]
    assert tt.find_kind("cuda") in tt.kinds()
    assert tt.find_kind("cudaa") is None
    assert all(isinstance(kind, tt.Kind) for kind in tt.kinds())
    with pytest.raises(UnknownNameError, match="unknown role 'executors'; did you mean 'executor'"):
        tt.kinds("executors")


def test_patterns_of_tvm_are_on_the_public_face():
    from tvmtarget.support.tvm_patterns import from_tvm_patterns

    assert tt.from_tvm_patterns is from_tvm_patterns


def test_a_configuration_is_selected_from_as_its_tree():
    config = tt.CompilationConfig("llvm", ["cuda(arch=sm_80)", "llvm"])
    assert tt.select(config, "cuda") == (config.as_target().part("cuda"),)
