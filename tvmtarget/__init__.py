"""tvmtarget: describe deployment targets as recursive values, and partition programs over them.

    import tvmtarget as tt

    target = tt.Target.parse("composite[ort=onnxruntime,cpu=llvm]")
    module = tt.IRModule.from_onnx("model.onnx")
    exe = tt.build(module, target)
    outputs = exe.run({"input": x})

Names are imported at first use, so that parsing a target imports neither numpy nor onnx.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tvmtarget.version import __version__

if TYPE_CHECKING:
    from tvmtarget.autotune.log.match import Match
    from tvmtarget.autotune.log.tuning_log import TuningLog
    from tvmtarget.autotune.search.auto_placement import place
    from tvmtarget.autotune.search.tuning import tune
    from tvmtarget.building.compile_plan import build
    from tvmtarget.building.executable import Executable, load
    from tvmtarget.errors import TvmTargetError
    from tvmtarget.ir.buckets import with_buckets
    from tvmtarget.ir.builder import FunctionBuilder
    from tvmtarget.ir.function import Call, Constant, Function, Value
    from tvmtarget.ir.module import IRModule
    from tvmtarget.ir.specialize import specialize
    from tvmtarget.partition.costs.costs import Costs, OpCost
    from tvmtarget.partition.host_device.inference import infer_targets
    from tvmtarget.partition.host_device.splitting import split_host_device
    from tvmtarget.partition.host_device.tir import bind_targets
    from tvmtarget.partition.plan import Plan, decompose
    from tvmtarget.support.decorators import strategy
    from tvmtarget.support.strategy import Strategy, reject
    from tvmtarget.support.tvm_patterns import from_tvm_patterns
    from tvmtarget.tags.configurations import read_configuration
    from tvmtarget.tags.registry import Registry
    from tvmtarget.tags.search import search_tags
    from tvmtarget.target.configuration import CompilationConfig
    from tvmtarget.target.constraints.constraint import Constraint
    from tvmtarget.target.kinds import Kind, find_kind, kinds
    from tvmtarget.target.node import Executor, Link, Memory, Runtime
    from tvmtarget.target.selection import select
    from tvmtarget.target.tree import Target
    from tvmtarget.target.virtual_device import VirtualDevice

__all__ = [
    "Call",
    "CompilationConfig",
    "Constant",
    "Constraint",
    "Costs",
    "Executable",
    "Executor",
    "Function",
    "FunctionBuilder",
    "IRModule",
    "Kind",
    "Link",
    "Match",
    "Memory",
    "OpCost",
    "Plan",
    "Registry",
    "Runtime",
    "Strategy",
    "Target",
    "TuningLog",
    "TvmTargetError",
    "Value",
    "VirtualDevice",
    "__version__",
    "bind_targets",
    "build",
    "decompose",
    "find_kind",
    "from_tvm_patterns",
    "infer_targets",
    "inspect",
    "kinds",
    "load",
    "place",
    "read_configuration",
    "reject",
    "search_tags",
    "select",
    "specialize",
    "split_host_device",
    "strategy",
    "tune",
    "with_buckets",
]

_HOMES = {
    "tvmtarget.building.compile_plan": ("build",),
    "tvmtarget.errors": ("TvmTargetError",),
    "tvmtarget.building.executable": ("Executable", "load"),
    "tvmtarget.building.saved_program": ("inspect",),
    "tvmtarget.ir.buckets": ("with_buckets",),
    "tvmtarget.ir.builder": ("FunctionBuilder",),
    "tvmtarget.ir.function": ("Call", "Constant", "Function", "Value"),
    "tvmtarget.ir.module": ("IRModule",),
    "tvmtarget.ir.specialize": ("specialize",),
    "tvmtarget.partition.costs.costs": ("Costs", "OpCost"),
    "tvmtarget.partition.host_device.inference": ("infer_targets",),
    "tvmtarget.partition.host_device.splitting": ("split_host_device",),
    "tvmtarget.partition.host_device.tir": ("bind_targets",),
    "tvmtarget.partition.plan": ("Plan", "decompose"),
    "tvmtarget.support.decorators": ("strategy",),
    "tvmtarget.support.strategy": ("Strategy", "reject"),
    "tvmtarget.support.tvm_patterns": ("from_tvm_patterns",),
    "tvmtarget.tags.configurations": ("read_configuration",),
    "tvmtarget.tags.registry": ("Registry",),
    "tvmtarget.tags.search": ("search_tags",),
    "tvmtarget.target.configuration": ("CompilationConfig",),
    "tvmtarget.target.constraints.constraint": ("Constraint",),
    "tvmtarget.target.kinds": ("Kind", "find_kind", "kinds"),
    "tvmtarget.target.selection": ("select",),
    "tvmtarget.target.node": ("Executor", "Link", "Memory", "Runtime"),
    "tvmtarget.target.tree": ("Target",),
    "tvmtarget.target.virtual_device": ("VirtualDevice",),
    "tvmtarget.autotune.search.auto_placement": ("place",),
    "tvmtarget.autotune.search.tuning": ("tune",),
    "tvmtarget.autotune.log.tuning_log": ("TuningLog",),
    "tvmtarget.autotune.log.match": ("Match",),
}
_LAZY = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'tvmtarget' has no attribute {name!r}")
    # Nearly all objects that an import makes stay, so that collections during it take 8 % of the time for nothing.
    from tvmtarget.garbage_collection import without_garbage_collection

    with without_garbage_collection():
        value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
