"""Answers of many devices as sets of bits, against the comparison of each pair; and that they grow linearly."""

from hypothesis import given, settings
from hypothesis import strategies as st
from trees import trees

from tvmtarget import Constraint, Target
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.detection.why_not import _Answers, _compare, _leaves, _merge_identical

many = settings(max_examples=100, deadline=None)


@st.composite
def devices(draw):
    kind = draw(st.sampled_from(["cuda", "cuda", "llvm", "c", "opencl", "vulkan", "hexagon"]))
    cpu = {
        "num-cores": st.integers(1, 3),
        "mcpu": st.sampled_from(["haswell", "skylake-avx512"]),
        "vector-width": st.sampled_from([128, 512]),
        "mtriple": st.sampled_from(["x86_64-linux-gnu", "aarch64-linux-gnu"]),
    }
    gpu = {
        "arch": st.sampled_from(["sm_53", "sm_80", "sm_90a"]),
        "max_threads_per_block": st.sampled_from([512, 1024, 2048]),
        "registers_per_block": st.sampled_from([32768, 65536]),
        "thread_warp_size": st.sampled_from([32, 64]),
        "l2_cache_size_bytes": st.integers(1, 3),
    }
    vulkan = {name: st.sampled_from([1, 2]) for name in ("supported_subgroup_operations", "vulkan_api_version")}
    vulkan |= {name: st.booleans() for name in ("supports_int8", "supports_float16")}
    opencl = {"max_threads_per_block": st.integers(1, 3)}
    own = {"cuda": gpu, "llvm": cpu, "c": {"mcpu": cpu["mcpu"]}, "opencl": opencl, "vulkan": vulkan}
    attrs = draw(st.fixed_dictionaries({}, optional=own.get(kind, {}) | {"model": st.sampled_from(["a", "b"])}))
    memory = draw(st.sampled_from([None, None, 1 << 20, 7 << 20, 8 << 20]))
    rows = [] if memory is None else [{"name": "ram", "bytes": memory}]
    return Target(kind, attrs, count=draw(st.integers(1, 2)), memory=rows)


machines = st.lists(devices(), min_size=1, max_size=5).map(
    lambda nodes: Target("composite", targets=[node.replace(name=f"d{at}") for at, node in enumerate(nodes)])
)


@many
@given(st.one_of(machines, trees), st.one_of(machines, trees))
def test_sets_of_answers_are_those_of_the_pairs(machine, required):
    available = _merge_identical(_leaves(machine, count=machine.count))
    answers = _Answers(available)
    for leaf in _leaves(required, count=required.count):
        pairs = [_compare(have, leaf) for have in available]
        for truth in (Truth.YES, Truth.UNKNOWN):
            assert answers.at_least(leaf, truth) == sum(1 << at for at, one in enumerate(pairs) if one.truth >= truth)
        same = [at for at, have in enumerate(available) if have.node.device == leaf.node.device]
        assert answers.same_device(leaf) == sum(1 << at for at in same)
        if same:
            assert answers.best(leaf) == max((pairs[at] for at in same), key=_likeness)


def _likeness(answer):
    return answer.truth, -sum(part.truth is Truth.NO for part in answer.parts)


def _wide(number, mcpu="skylake-avx512"):
    children = [{"name": f"d{at}", "kind": "llvm", "mcpu": mcpu, "num-cores": at} for at in range(1, number)]
    return Target.from_json({"targets": children})


def test_a_machine_of_2000_different_devices_is_explained():
    machine = _wide(2000)
    assert machine.why_not(machine)
    answer = machine.why_not(_wide(2001))
    assert [part.text for part in answer.parts if part.truth is Truth.NO] == ["d2000: llvm"]
    assert machine.why_not(_wide(2000, mcpu="znver4")).truth is Truth.NO


def test_a_machine_of_2000_gpus_with_different_attributes_is_explained():
    def machine(number):
        children = [
            {"name": f"d{at}", "kind": "vulkan", "supports_int8": at % 2 == 0, "supports_float16": at % 3 == 0}
            | {
                "max_num_threads": 256 << at % 4,
                "supported_subgroup_operations": at % 64,
                "thread_warp_size": 16 << at % 3,
            }
            | {"max_push_constants_size": at}
            for at in range(1, number)
        ]
        return Target.from_json({"targets": children})

    gpus = machine(2000)
    assert gpus.why_not(gpus)
    answer = gpus.why_not(machine(2001))
    assert [part.text for part in answer.parts if part.truth is Truth.NO] == ["d2000: vulkan"]


def test_2000_children_satisfy_a_system_of_2000():
    machine = _wide(2000)
    assert machine.satisfies(machine)
    assert not machine.satisfies(Constraint.of(_wide(2001)))
    assert machine.satisfies("[llvm(num-cores>=1999),llvm(num-cores>=1998)]")
