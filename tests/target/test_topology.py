"""Topologies: hosts, sites that get work, and memory domains."""

import pytest
from blocks import answered

from tvmtarget import Target
from tvmtarget.errors import UnknownNameError
from tvmtarget.target.topology import Topology

GOLDEN = "target/layouts.golden"


def topology(text):
    return Topology(Target.parse(text).resolve())


def sites(found, path=""):
    yield path
    for option in found.options(path):
        yield from sites(found, option.path)


def test_sites_hosts_and_memories(golden):
    def answer(text):
        found = topology(text)
        reached = list(sites(found))
        standing_in = {found[path].host for path in reached} - set(reached)
        worked = {site.path for site in found.leaves()}
        for path in (*reached, *sorted(standing_in)):
            site = found[path]
            mark = "*" if path in worked else " "
            yield f"  {mark} @{path or '.'} {site.target.kind}, driven by @{site.host or '.'}, in {site.domain}"

    golden(GOLDEN, answered(GOLDEN, answer))


def test_the_memory_of_a_composite_is_that_of_its_host():
    found = topology("[n=[gpu=cuda,cpu=llvm](host=@cpu),gpu=cuda,top=llvm](host=@top)")
    assert found.home("") == found.home("top") == ":cpu"
    assert found.home("n") == found.home("n/cpu") == "n:cpu"
    assert found.home("n/gpu") == "n:cuda"


def test_paths_are_spelled_in_one_way():
    found = topology("[n=[gpu=cuda(count=2),cpu=llvm]]")
    assert found.canonical("n/llvm") == "n/cpu"
    assert found.canonical("n/cuda") == "n/gpu"
    assert found.canonical("n/gpu.1") == "n/gpu.1"
    assert found.canonical("n/gpu.1/host") == "n/cpu"
    assert found.canonical("") == ""
    with pytest.raises(UnknownNameError, match="no node 'n/npu'"):
        found.canonical("n/npu")


def test_only_sites_are_in_a_topology():
    found = topology("[gpu=cuda(count=2),cpu=llvm]")
    assert "gpu.1" in found
    assert "gpu" not in found  # it has two replicas
    assert "" in found


@pytest.mark.parametrize("count", [100, 2000])
def test_many_replicas_are_sites(count):
    found = topology(f"[gpu=cuda(count={count}),cpu=llvm]")
    assert len(list(found.leaves())) == count + 1
    assert {site.domain for site in found.leaves()} == {":cuda", ":cpu"}
