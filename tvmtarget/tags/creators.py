"""TVM's historic functions that made a target of a model's name, reading tags.

TVM had them in `python/tvm/target/target.py` until v0.23; their tables are `tags/micro.toml`, `stm32.toml`, `arm.toml`,
`riscv.toml`, `qcom.toml` and `generic.toml` here. `options` are words of TVM's command line, a text or a list, which
override the tag. The model "unknown" is TVM's word for none. What differs from TVM is in `docs/creators.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean
from tvmtarget.tags.registry import default_registry
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

Options: TypeAlias = str | Sequence[str]


def micro(model: str = UNKNOWN, options: Options = "") -> Target:
    """Return the CPU of a microcontroller, by generated C.

    >>> print(micro("stm32f746xx"))
    c(march=armv7e-m,mcpu=cortex-m7,model=stm32f746xx)
    """
    return _with(_of_model("micro", model), options)


def stm32(series: str = UNKNOWN, options: Options = "") -> Target:
    """Return the CPU of a series of STM32 microcontrollers: `F4xx` or, as TVM spells it, `stm32F4xx`."""
    return _with(_of_model("stm32", series.removeprefix("stm32") or series), options)


def arm_cpu(model: str = UNKNOWN, options: Options = "") -> Target:
    """Return the CPU of a board or phone with Arm cores, as TVM's flat target of that name has it; any, without one.

    >>> arm_cpu("rasp4b64")["mcpu"]
    'cortex-a72'
    """
    if model == UNKNOWN:
        return _with(Target("llvm", {"device": "arm_cpu"}, keys=["arm_cpu", "cpu"]), options)
    return _with(_of_model("arm", model), options)


def rasp(options: Options = "") -> Target:
    """Return the CPU of a Raspberry Pi 3 with 32-bit user space."""
    return arm_cpu("rasp3b", options)


def riscv_cpu(model: str = "sifive-u54", options: Options = "") -> Target:
    """Return a RISC-V CPU, or that of a board."""
    return _with(_of_model("riscv", model), options)


def mali(model: str | None = None, options: Options = "") -> Target:
    """Return an Arm Mali GPU, by OpenCL."""
    return _generic("mali", model, options)


def bifrost(model: str | None = None, options: Options = "") -> Target:
    """Return an Arm Mali GPU of the Bifrost family, by OpenCL."""
    return _generic("bifrost", model, options)


def adreno(model: str | None = None, options: Options = "") -> Target:
    """Return a Qualcomm Adreno GPU, by OpenCL."""
    return _generic("adreno", model, options)


def intel_graphics(model: str | None = None, options: Options = "") -> Target:
    """Return an Intel GPU, by OpenCL."""
    return _generic("intel-graphics", model, options)


def vta(model: str | None = None, options: Options = "") -> Target:
    """Return a VTA accelerator: `pynq`, `ultra96`, `de10nano`, `sim`, ..."""
    return _generic("vta", model, options)


def cuda(model: str | None = None, arch: str | None = None, options: Options = "") -> Target:
    """Return an NVIDIA GPU: a tag `nvidia/<model>`, or any model of an `arch`.

    >>> print(cuda("some-card", arch="sm_86"))
    cuda(arch=sm_86,model=some-card)
    """
    facts = {"arch": arch} if arch else {}
    model = None if model == UNKNOWN else model
    if model is None or (arch and f"nvidia/{model}" not in default_registry()):
        target = Target("cuda", {"model": model} if model else {})
    else:
        target = _of_kind("cuda", "nvidia", model)
    return _with(target.override(facts), options)


def rocm(model: str | None = None, options: Options = "") -> Target:
    """Return an AMD GPU: a tag `amd/<model>`, or any."""
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
    """Return a Qualcomm Hexagon by its version: `v68`, `hexagonv68`.

    `hvx` is the length of vectors in bytes (0 for none), for v68 and later with floats of either kind; `llvm_options`
    are words, in which `=` is written `@`.
    """
    tags = default_registry()
    versions = [name.removeprefix("qcom/hexagon-") for name in tags if name.startswith("qcom/hexagon-")]
    version = cpu_ver[cpu_ver.index("v") :].lower() if "v" in cpu_ver else cpu_ver
    if version not in versions:
        raise UnknownNameError(f"unknown Hexagon version {cpu_ver!r}{did_you_mean(cpu_ver, versions)}")
    if hvx not in HVX_LENGTHS:
        raise TargetError(f"'hvx' is one of {', '.join(map(str, HVX_LENGTHS))}, not {hvx!r}")
    features = [f"+hvx{version}", f"+hvx-length{hvx}b"] if hvx else ["-hvx"]
    if int(version[1:3]) >= 68:
        features += ["+hvx-qfloat" if use_qfloat else "-hvx-qfloat", "+hvx-ieee-fp" if use_ieee_fp else "-hvx-ieee-fp"]
    tag = tags[f"qcom/hexagon-{version}"]
    facts = {**tag.attrs, "mattr": features, "num-cores": num_cores}
    words, own = _words(llvm_options).replace("=", "@").split(), tag.attrs.get("llvm-options", ())
    if words and isinstance(own, tuple):
        facts["llvm-options"] = [*words, *own]
    if vtcm_capacity is not None:
        facts["vtcm-capacity"] = vtcm_capacity
    return Target("hexagon", facts)


def _of_model(namespace: str, model: str) -> Target:
    """Return what TVM made of a model's name: a tag, or the part of it that stands for TVM's flat target."""
    models = _models(namespace)
    if model not in models:
        raise UnknownNameError(f"unknown model {model!r} of {namespace!r}{did_you_mean(model, models)}")
    tags = default_registry()
    name = f"{namespace}/{model}"
    part = (tags.info(name).tvm or "").removeprefix(":")
    return tags[name].part(part) if part else tags[name]


def _of_kind(kind: str, namespace: str, model: str) -> Target:
    """Return the first part of a tag that is of a kind."""
    tags = default_registry()
    name = f"{namespace}/{model}"
    parts = [path for path, node in tags[name].walk() if node.kind == kind] if name in tags else []
    if not parts:
        known = [tag.removeprefix(f"{namespace}/") for tag in tags if tag.startswith(f"{namespace}/")]
        tail = did_you_mean(model, known) or ("; give its arch" if kind == "cuda" else "")
        raise UnknownNameError(f"unknown model {model!r} of {namespace!r}{tail}")
    return tags[name].part(parts[0]) if parts[0] else tags[name]


def _models(namespace: str) -> list[str]:
    """List the models of a namespace, aliases too; where TVM had some of them as tags, only these."""
    tags = default_registry()
    names = [name for name in tags if name.startswith(f"{namespace}/")]
    flat = [name for name in names if tags.info(name).tvm is not None] or names
    return [alias.removeprefix(f"{namespace}/") for name in flat for alias in (name, *tags.info(name).aliases)]


def _generic(device: str, model: str | None, options: Options) -> Target:
    target = default_registry()[f"generic/{device}"]
    return _with(target.override({"model": model}) if model not in (None, "", UNKNOWN) else target, options)


def _with(target: Target, options: Options) -> Target:
    """Lay text on TVM's command line over a target."""
    words = _words(options)
    return target.merge(Target.parse(f"{target.kind} {words}")) if words else target


def _words(options: Options) -> str:
    return options if isinstance(options, str) else " ".join(options)
