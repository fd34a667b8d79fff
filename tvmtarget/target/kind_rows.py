"""The rows of the kinds this library knows by itself (entry point `builtin` of `tvmtarget.kinds`)."""

from __future__ import annotations

from tvmtarget.target.kinds import Attribute, AttributeClass, AttributeType, Kind

__all__ = ["KINDS"]


def _row(
    name: str,
    type_: AttributeType,
    class_: AttributeClass,
    default: bool | int | str | tuple[int, ...] | None = None,
    *,
    doc: str,
    since: str = "v0.9",
) -> Attribute:
    return Attribute(name=name, type=type_, class_=class_, default=default, doc=doc, since=since)


# Every TVM target kind has these (macro TVM_REGISTER_TARGET_KIND); keys, tag and host are fields of the node.
_BASE = (
    _row("device", "str", "model", doc="device name, added to the keys (arm_cpu, mali, ...)"),
    _row("model", "str", "model", doc="name of the chip or board, for tuning logs"),
    _row("libs", "list[str]", "hard", doc="libraries the code generator may call (cblas, cudnn, ...)"),
)

_LLVM = (
    _row("mcpu", "str", "isa", doc="CPU name as LLVM spells it"),
    _row("mtriple", "str", "hard", doc="LLVM target triple; absent means this machine's"),
    _row("mattr", "features", "isa", doc="CPU features added or removed: +avx2, -sse4a"),
    _row("mfloat-abi", "str", "hard", doc="float ABI: soft or hard"),
    _row("mabi", "str", "hard", doc="ABI name, for RISC-V: ilp32, lp64d, ..."),
    _row("num-cores", "int", "scale", doc="physical cores, not hardware threads"),
    _row("vector-width", "int", "soft", doc="vector width in bits to prefer", since="main"),
    _row("opt-level", "int", "soft", doc="LLVM optimisation level, 0 to 3"),
    _row("fast-math", "bool", "hard", doc="allow all of LLVM's fast-math rewrites"),
    _row("fast-math-nnan", "bool", "hard", doc="assume no NaN"),
    _row("fast-math-ninf", "bool", "hard", doc="assume no infinities"),
    _row("fast-math-nsz", "bool", "hard", doc="ignore the sign of zero"),
    _row("fast-math-arcp", "bool", "hard", doc="allow reciprocals"),
    _row("fast-math-contract", "bool", "hard", doc="allow fused multiply-add"),
    _row("fast-math-reassoc", "bool", "hard", doc="allow reassociation"),
    _row("cl-opt", "list[str]", "hard", doc="LLVM command-line options", since="v0.19"),
    _row("jit", "str", "none", doc="LLVM JIT engine: mcjit or orcjit", since="v0.19"),
)

_C = (
    _row("mcpu", "str", "isa", doc="CPU name as the C compiler spells it"),
    _row("march", "str", "isa", doc="architecture name, such as armv7e-m"),
    _row("workspace-byte-alignment", "int", "hard", doc="alignment of workspaces in bytes"),
    _row("constants-byte-alignment", "int", "hard", doc="alignment of constants in bytes"),
)

_CUDA = (
    _row("mcpu", "str", "isa", doc="unused by CUDA C++, read by NVPTX"),
    _row("arch", "str", "isa", doc="compute capability: sm_53, sm_90a, ..."),
    _row("max_shared_memory_per_block", "int", "capacity", doc="bytes of shared memory a block may use"),
    _row("max_threads_per_block", "int", "capacity", doc="threads a block may have"),
    _row("thread_warp_size", "int", "hard", 32, doc="threads of a warp"),
    _row("registers_per_block", "int", "capacity", doc="32-bit registers a block may use"),
    _row("l2_cache_size_bytes", "int", "scale", doc="bytes of L2 cache", since="v0.12"),
    _row("max_num_threads", "int", "capacity", 1024, doc="threads a block may have, as TVM's schedules read it"),
)

_ONNXRUNTIME = (
    _row(
        "intra-op-threads", "int", "soft", 0, doc="threads inside one operator; 0 lets onnxruntime choose", since="tt1"
    ),
    _row(
        "optimization-level",
        "int",
        "soft",
        99,
        doc="graph optimisation: 0 none, 1 basic, 2 extended, 99 all",
        since="tt1",
    ),
)

_AOT = (
    _row("link-params", "bool", "hard", True, doc="put parameters into the generated code"),
    _row("unpacked-api", "bool", "hard", False, doc="call operators with plain C arguments"),
    _row("interface-api", "str", "hard", doc="entry point's interface: packed or c"),
    _row("workspace-byte-alignment", "int", "hard", doc="alignment of workspaces in bytes"),
    _row("constant-byte-alignment", "int", "hard", doc="alignment of constants in bytes"),
)

KINDS: tuple[Kind, ...] = (
    Kind(name="llvm", keys=("cpu",), can_host=True, attributes=_BASE + _LLVM, doc="a CPU, by LLVM"),
    Kind(name="c", keys=("cpu",), can_host=True, attributes=_BASE + _C, doc="a CPU, by generated C"),
    Kind(name="cuda", device="cuda", keys=("cuda", "gpu"), attributes=_BASE + _CUDA, doc="an NVIDIA GPU"),
    Kind(name="numpy", keys=("cpu",), can_host=True, attributes=_BASE, doc="this machine, by the ONNX reference"),
    Kind(
        name="onnxruntime",
        keys=("cpu",),
        is_external=True,
        attributes=_BASE + _ONNXRUNTIME,
        doc="external code generator: ONNX Runtime on the CPU",
    ),
    Kind(name="composite", attributes=_BASE, doc="a system of several targets"),
    Kind(
        name="graph",
        role="executor",
        attributes=(_row("link-params", "bool", "hard", False, doc="put parameters into the generated code"),),
        doc="interpret a graph of calls (the default)",
    ),
    Kind(name="aot", role="executor", attributes=_AOT, doc="generated driver code, ahead of time"),
    Kind(name="vm", role="executor", doc="bytecode with control flow and dynamic shapes"),
    Kind(name="python", role="runtime", doc="this Python process (the default)"),
    Kind(
        name="cpp",
        role="runtime",
        attributes=(_row("system-lib", "bool", "hard", doc="register functions statically"),),
        doc="TVM's C++ runtime",
    ),
    Kind(
        name="crt",
        role="runtime",
        attributes=(_row("system-lib", "bool", "hard", doc="register functions statically"),),
        doc="bare C runtime for microcontrollers",
    ),
)
