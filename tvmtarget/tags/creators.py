"""TVM's former functions that create a target from the name of a model, based on tags.

TVM had them in `python/tvm/target/target.py` until v0.23; their tables are `tags/micro.toml`, `stm32.toml`, `arm.toml`,
`riscv.toml`, `qcom.toml` and `generic.toml` here. `options` are words of TVM's command line, a text or a list. The
model "unknown" means none, as in TVM. `docs/creators.md` lists the differences from TVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean
from tvmtarget.tags.registry import default_registry
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target

__all__ = [
    "adreno",
    "arm_cpu",
    "bifrost",
    "cuda",
    "hexagon",
    "intel_graphics",
    "mali",
    "micro",
    "rasp",
    "riscv_cpu",
    "rocm",
    "stm32",
    "vta",
]

HVX_LENGTHS = (0, 64, 128)
UNKNOWN = "unknown"

Options: TypeAlias = str | Sequence[str] | None  # TVM's creators have None for no options


def micro(
    model: str = UNKNOWN, options: Options = "", executor: Executor | str | Mapping[str, object] | None = None
) -> Target:
    """Create the target of a microcontroller, for generated C.

    Args:
        model: The name of a tag in `tags/micro.toml`.
        options: Words of TVM's command line that override the tag.
        executor: The executor of a whole configuration. It runs on the runtime `crt`, for `graph` with `system-lib`,
            as the RFC of `CompilationConfig` defines this function. By default the target states neither.

    Returns:
        A `c` target; `CompilationConfig.from_target` returns its flat view.

    Raises:
        UnknownNameError: There is no such model or executor; the message suggests the nearest names.
        TargetError: The executor does not run on `crt`, or `options` state another executor or runtime.

    >>> print(micro("stm32f746xx"))
    c(march=armv7e-m,mcpu=cortex-m7,model=stm32f746xx)
    >>> print(micro("stm32f746xx", executor="graph"))
    c(march=armv7e-m,mcpu=cortex-m7,model=stm32f746xx,executor=graph,runtime=crt(system-lib=true))
    """
    target = _with(_of_model("micro", model), options)
    if executor is None:
        return target
    chosen = Executor.from_json(executor)
    runtime = Runtime("crt", {"system-lib": True} if chosen.kind == "graph" else None)
    for role, stated, given in (("executor", target.executor, chosen), ("runtime", target.runtime, runtime)):
        # `-runtime=c` in `options` states the kind alone, which the options of the configuration complete.
        if stated is not None and stated != given and stated != type(given)(given.kind):
            raise TargetError(f"two {role}s are given: {str(stated)!r} in options, and {str(given)!r}; leave one out")
    whole = target.replace(executor=chosen, runtime=runtime)
    whole.resolve()
    return whole


def stm32(series: str = UNKNOWN, options: Options = "") -> Target:
    """Create the target of a series of STM32 microcontrollers.

    Args:
        series: The series, such as `F4xx` or, as TVM spells it, `stm32F4xx`.
        options: Words of TVM's command line that override the tag.

    Returns:
        A `c` target.

    Raises:
        UnknownNameError: There is no such series; the message suggests the nearest names.
    """
    return _with(_of_model("stm32", series.removeprefix("stm32") or series), options)


def arm_cpu(model: str = UNKNOWN, options: Options = "") -> Target:
    """Create the CPU target of a board or phone with Arm cores.

    Args:
        model: The name of a tag in `tags/arm.toml`; any Arm CPU by default.
        options: Words of TVM's command line that override the tag.

    Returns:
        The `llvm` target that TVM's flat target of the name corresponds to.

    Raises:
        UnknownNameError: There is no such model; the message suggests the nearest names.

    >>> arm_cpu("rasp4b64")["mcpu"]
    'cortex-a72'
    """
    if model == UNKNOWN:
        return _with(Target("llvm", {"device": "arm_cpu"}, keys=["arm_cpu", "cpu"]), options)
    return _with(_of_model("arm", model), options)


def rasp(options: Options = "") -> Target:
    """Create the CPU target of a Raspberry Pi 3 with 32-bit user space.

    Args:
        options: Words of TVM's command line that override the tag.

    Returns:
        An `llvm` target.
    """
    return arm_cpu("rasp3b", options)


def riscv_cpu(model: str = "sifive-u54", options: Options = "") -> Target:
    """Create the target of a RISC-V CPU.

    Args:
        model: The name of a CPU or a board in `tags/riscv.toml`.
        options: Words of TVM's command line that override the tag.

    Returns:
        An `llvm` target.

    Raises:
        UnknownNameError: There is no such model; the message suggests the nearest names.
    """
    return _with(_of_model("riscv", model), options)


def mali(model: str | None = None, options: Options = "") -> Target:
    """Create the target of an Arm Mali GPU.

    Args:
        model: The name of the model, for tuning logs.
        options: Words of TVM's command line that override the tag.

    Returns:
        An `opencl` target.
    """
    return _generic("mali", model, options)


def bifrost(model: str | None = None, options: Options = "") -> Target:
    """Create the target of an Arm Mali GPU of the Bifrost family.

    Args:
        model: The name of the model, for tuning logs.
        options: Words of TVM's command line that override the tag.

    Returns:
        An `opencl` target.
    """
    return _generic("bifrost", model, options)


def adreno(model: str | None = None, options: Options = "") -> Target:
    """Create the target of a Qualcomm Adreno GPU.

    Args:
        model: The name of the model, for tuning logs.
        options: Words of TVM's command line that override the tag.

    Returns:
        An `opencl` target.
    """
    return _generic("adreno", model, options)


def intel_graphics(model: str | None = None, options: Options = "") -> Target:
    """Create the target of an Intel GPU.

    Args:
        model: The name of the model, for tuning logs.
        options: Words of TVM's command line that override the tag.

    Returns:
        An `opencl` target.
    """
    return _generic("intel-graphics", model, options)


def vta(model: str | None = None, options: Options = "") -> Target:
    """Create the target of a VTA accelerator.

    Args:
        model: The name of the board: `pynq`, `ultra96`, `de10nano`, `sim`, ...
        options: Words of TVM's command line that override the tag.

    Returns:
        An `ext_dev` target.
    """
    return _generic("vta", model, options)


def cuda(model: str | None = None, arch: str | None = None, options: Options = "") -> Target:
    """Create the target of an NVIDIA GPU.

    Args:
        model: The name of a tag `nvidia/<model>`; any text if `arch` is given.
        arch: The compute capability, such as `sm_86`; it overrides that of the tag.
        options: Words of TVM's command line that override the tag.

    Returns:
        A `cuda` target.

    Raises:
        UnknownNameError: There is no such model, and no `arch` is given.

    >>> print(cuda("some-card", arch="sm_86"))
    cuda(arch=sm_86,model=some-card)
    """
    facts = {"arch": arch} if arch else {}
    model = None if model == UNKNOWN else model
    # An `arch` is enough for a card without a tag; TVM accepted any model too.
    if model is None or (arch and f"nvidia/{model}" not in default_registry()):
        target = Target("cuda", {"model": model} if model else {})
    else:
        target = _of_kind("cuda", "nvidia", model)
    return _with(target.override(facts), options)


def rocm(model: str | None = None, options: Options = "") -> Target:
    """Create the target of an AMD GPU.

    Args:
        model: The name of a tag `amd/<model>`; any GPU by default.
        options: Words of TVM's command line that override the tag.

    Returns:
        A `rocm` target.

    Raises:
        UnknownNameError: There is no such model; the message suggests the nearest names.
    """
    return _with(Target("rocm") if model is None or model == UNKNOWN else _of_kind("rocm", "amd", model), options)


def hexagon(
    cpu_ver: str = "v68",
    *,
    hvx: int = 128,
    use_qfloat: bool = True,
    use_ieee_fp: bool = False,
    num_cores: int = 4,
    vtcm_capacity: int | None = None,
    llvm_options: Options = "",
) -> Target:
    """Create the target of a Qualcomm Hexagon DSP.

    Args:
        cpu_ver: The version, such as `v68` or `hexagonv68`.
        hvx: The length of vectors in bytes: 0 (none), 64 or 128.
        use_qfloat: Whether vectors have Qualcomm's floating-point format; for v68 and later.
        use_ieee_fp: Whether vectors have IEEE floating point; for v68 and later.
        num_cores: The number of hardware threads to use.
        vtcm_capacity: The size of the vector memory (VTCM) in bytes; that of the tag by default.
        llvm_options: Options of LLVM; `=` is stored as `@`, as TVM does.

    Returns:
        A `hexagon` target.

    Raises:
        UnknownNameError: There is no such version; the message suggests the nearest names.
        TargetError: `hvx` is none of the possible lengths.
    """
    tags = default_registry()
    versions = [name.removeprefix("qcom/hexagon-") for name in tags if name.startswith("qcom/hexagon-")]
    version = cpu_ver[cpu_ver.index("v") :].lower() if "v" in cpu_ver else cpu_ver
    if version not in versions:
        raise UnknownNameError(f"unknown Hexagon version {cpu_ver!r}{did_you_mean(cpu_ver, versions)}")
    if hvx not in HVX_LENGTHS:
        raise TargetError(f"'hvx' is one of {', '.join(map(str, HVX_LENGTHS))}, not {hvx!r}")
    features = [f"+hvx{version}", f"+hvx-length{hvx}b"] if hvx else ["-hvx"]
    # Older versions have no floating point in vectors, so their targets do not state these features.
    if int(version[1:3]) >= 68:
        features += ["+hvx-qfloat" if use_qfloat else "-hvx-qfloat", "+hvx-ieee-fp" if use_ieee_fp else "-hvx-ieee-fp"]
    tag = tags[f"qcom/hexagon-{version}"]
    facts = {**tag.attrs, "mattr": features, "num-cores": num_cores}
    words, tag_options = _words(llvm_options).replace("=", "@").split(), tag.attrs.get("llvm-options", ())
    if words and isinstance(tag_options, tuple):
        facts["llvm-options"] = [*words, *tag_options]
    if vtcm_capacity is not None:
        facts["vtcm-capacity"] = vtcm_capacity
    return Target("hexagon", facts)


def _of_model(namespace: str, model: str) -> Target:
    """Return the tag of a model, or the part of it that corresponds to TVM's flat target."""
    models = _models(namespace)
    if model not in models:
        raise UnknownNameError(f"unknown model {model!r} of {namespace!r}{did_you_mean(model, models)}")
    tags = default_registry()
    name = f"{namespace}/{model}"
    part = (tags.info(name).tvm or "").removeprefix(":")
    return tags[name].part(part) if part else tags[name]


def _of_kind(kind: str, namespace: str, model: str) -> Target:
    """Return the first part of a tag that has a kind."""
    tags = default_registry()
    name = f"{namespace}/{model}"
    parts = [path for path, node in tags[name].walk() if node.kind == kind] if name in tags else []
    if not parts:
        known = [tag.removeprefix(f"{namespace}/") for tag in tags if tag.startswith(f"{namespace}/")]
        tail = did_you_mean(model, known) or ("; give its arch" if kind == "cuda" else "")
        raise UnknownNameError(f"unknown model {model!r} of {namespace!r}{tail}")
    return tags[name].part(parts[0]) if parts[0] else tags[name]


def _models(namespace: str) -> list[str]:
    """List the models and aliases of a namespace; only those that TVM had as tags, if there are any."""
    tags = default_registry()
    names = [name for name in tags if name.startswith(f"{namespace}/")]
    flat = [name for name in names if tags.info(name).tvm is not None] or names
    return [alias.removeprefix(f"{namespace}/") for name in flat for alias in (name, *tags.info(name).aliases)]


def _generic(device: str, model: str | None, options: Options) -> Target:
    target = default_registry()[f"generic/{device}"]
    return _with(target.override({"model": model}) if model not in (None, "", UNKNOWN) else target, options)


def _with(target: Target, options: Options) -> Target:
    """Merge options of TVM's command line into a target."""
    words = _words(options)
    return target.merge(Target.parse(f"{target.kind} {words}")) if words else target


def _words(options: Options) -> str:
    words = [options] if isinstance(options, str) else [] if options is None else options
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise TargetError(f"'options' are words of TVM's command line, a text or a list, not {shown(options)}")
    return " ".join(words)
