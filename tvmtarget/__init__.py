"""tvmtarget: one recursive value for what a program runs on, and programs split over it.

    import tvmtarget as tt

    target = tt.Target.parse("composite[ort=onnxruntime,cpu=llvm]")
    module = tt.IRModule.from_onnx("model.onnx")
    exe = tt.build(module, target)
    outputs = exe.run({"input": x})

Names load at first use, so that reading a target needs neither numpy nor onnx.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tvmtarget.errors import TvmTargetError
from tvmtarget.tags.registry import Registry, default_registry
from tvmtarget.target.constraint import Constraint
from tvmtarget.target.node import Executor, Link, Memory, Runtime
from tvmtarget.target.tree import Target, bind_default_tags

if TYPE_CHECKING:
    from tvmtarget.building import Executable, build, load
    from tvmtarget.ir.module import Function, IRModule
    from tvmtarget.partition.decompose import decompose
    from tvmtarget.partition.plan import Plan
    from tvmtarget.partition.strategy import Strategy, reject

__all__ = [
    "Constraint",
    "Executable",
    "Executor",
    "Function",
    "IRModule",
    "Link",
    "Memory",
    "Plan",
    "Registry",
    "Runtime",
    "Strategy",
    "Target",
    "TvmTargetError",
    "__version__",
    "build",
    "decompose",
    "load",
    "reject",
    "tags",
]

__version__ = "0.1.0"

_LAZY = {
    "Executable": "tvmtarget.building",
    "build": "tvmtarget.building",
    "load": "tvmtarget.building",
    "Function": "tvmtarget.ir.module",
    "IRModule": "tvmtarget.ir.module",
    "decompose": "tvmtarget.partition.decompose",
    "Plan": "tvmtarget.partition.plan",
    "Strategy": "tvmtarget.partition.strategy",
    "reject": "tvmtarget.partition.strategy",
}

bind_default_tags(default_registry())


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'tvmtarget' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
