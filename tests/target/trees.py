"""Hypothesis strategies: random trees of targets, of every shape that the constructor accepts."""

from hypothesis import strategies as st

from tvmtarget import Executor, Link, Memory, Runtime, Target
from tvmtarget.errors import TargetError

names = st.sampled_from(["a", "b", "gpu", "cpu", "node0", "x.y", "n-1", "日本", "é"])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
plain_lists = st.lists(texts.filter(bool), max_size=3)

# Names that x86 and Arm both have, and that do not need each other.
features = st.dictionaries(st.sampled_from(["aes", "sm4"]), st.sampled_from("+-"), max_size=3)


def _attributes(kind):
    common = {"model": texts, "libs": plain_lists, "device": st.sampled_from(["mali", "arm_cpu"])}
    own = {
        "llvm": {
            "num-cores": st.integers(1, 2**53 - 1),
            "fast-math": st.booleans(),
            "mcpu": st.sampled_from(["cortex-a57", "skylake-avx512"]),
            "mattr": features.map(lambda signs: [sign + name for name, sign in signs.items()]),
        },
        "cuda": {"arch": st.sampled_from(["sm_53", "sm_90a"]), "thread_warp_size": st.sampled_from([32, 64])},
    }
    return st.fixed_dictionaries({}, optional=common | own.get(kind, {}))


executors = st.one_of(
    st.none(),
    st.builds(Executor, st.just("graph"), st.fixed_dictionaries({}, optional={"link-params": st.booleans()})),
    st.builds(Executor, st.just("aot"), st.fixed_dictionaries({}, optional={"unpacked-api": st.booleans()})),
)
runtimes = st.one_of(
    st.none(),
    st.builds(Runtime, st.sampled_from(["python", "vm", "cpp"]).filter(lambda kind: kind != "vm")),
    st.builds(Runtime, st.just("crt"), st.fixed_dictionaries({}, optional={"system-lib": st.booleans()})),
)
rest = {
    "count": st.one_of(st.just(1), st.integers(2, 4)),
    "executor": executors,
    "runtime": runtimes,
    "keys": st.one_of(st.none(), st.lists(st.sampled_from(["cpu", "gpu", "mali"]), max_size=3)),
    "tag": st.one_of(st.none(), st.just("some/tag")),
}


@st.composite
def leaves(draw):
    kind = draw(st.sampled_from(["llvm", "c", "cuda", "numpy", "onnxruntime"]))
    host = draw(st.sampled_from([None, None, None, Target("llvm"), Target("c"), "@a", "@cpu", "@node0/cpu", "@nobody"]))
    fields = {field: draw(values) for field, values in rest.items()}
    return Target(kind, draw(_attributes(kind)), host=host, **fields)


@st.composite
def systems(draw, children):
    slots = draw(st.lists(names, unique=True, max_size=3))
    targets = [draw(children).replace(name=slot) for slot in slots]
    ends = [*slots, "host"]
    host = draw(st.sampled_from([None, None, Target("llvm"), *(f"@{slot}" for slot in slots), "@a/b"]))
    links = []
    for _ in range(draw(st.integers(0, 2)) if slots else 0):
        src, dst = draw(st.lists(st.sampled_from(ends), min_size=2, max_size=2, unique=True))
        links.append(Link(src=src, dst=dst, coherent=draw(st.booleans())))
    memory = [
        Memory(
            name=name, bytes=draw(st.integers(0, 2**40)), of=tuple(draw(st.lists(st.sampled_from(ends), max_size=2)))
        )
        for name in draw(st.lists(st.sampled_from(["dram", "hbm"]), unique=True, max_size=2))
    ]
    fields = {field: draw(values) for field, values in rest.items()}
    attrs = draw(_attributes("composite"))
    return Target("composite", attrs, targets=targets, host=host, links=links, memory=memory, **fields)


trees = st.recursive(leaves(), systems, max_leaves=6)


@st.composite
def consistent(draw):
    """Draw a tree that resolves: one without references, executors and runtimes, else without hosts."""
    tree = draw(trees)
    for simpler in (lambda host: host, lambda host: None if isinstance(host, str) else host, lambda _: None):
        if _resolves(tree):
            break
        tree = _simplified(tree, simpler)
    return tree


def _resolves(tree):
    try:
        tree.resolve()
    except TargetError:
        return False
    return True


def _simplified(tree, host):
    if tree.kind == "composite" and not tree.targets:
        return Target("llvm", name=tree.name)
    children = tuple(_simplified(child, host) for child in tree.targets)
    nothing = {"links": (), "memory": (), "executor": None, "runtime": None}
    return tree.replace(host=host(tree.host), targets=children, **nothing)
