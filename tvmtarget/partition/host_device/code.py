"""Opaque TIR functions of a module split into host functions and kernels, by TVM's own passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import CODE, Call, Function, Opaque, Value
from tvmtarget.ir.types import DTYPES, TensorType, Type
from tvmtarget.partition.host_device.attributes import as_device, as_host
from tvmtarget.partition.host_device.tir import split_tir, the_tvm
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.layout import Layout, Site

__all__ = ["function_of", "prim_of", "split_code"]

TVM = "tvm"  # the kind of opaque code that is TVM's JSON
_KERNEL_LAUNCH = 2  # TVM's kDeviceKernelLaunch


def prim_of(function: Function) -> Any:  # noqa: ANN401 - TVM ships no types
    """Return the PrimFunc that an opaque function consists of; `ModelError` if it is something else."""
    tvm, code = the_tvm(), function.code
    if code is None or code.kind != TVM:
        raise ModelError(f"function {function.name!r} is no TIR that TVM wrote, so that it cannot be split")
    try:
        prim = tvm.ir.load_json(code.data.decode())
    except Exception as error:  # whatever TVM raises for a text that is none of its own
        raise ModelError(f"the code of function {function.name!r} is not TVM's JSON") from error
    if not isinstance(prim, tvm.tirx.PrimFunc):
        raise ModelError(f"function {function.name!r} is a {type(prim).__name__}, which TVM does not split")
    return prim


def function_of(name: str, prim: Any, constraint: Constraint | None = None) -> Function:  # noqa: ANN401
    """Return an opaque function for a PrimFunc; it writes through its parameters, and so has an effect."""
    params = tuple(Value(str(param.name), _type(param.ty)) for param in prim.params)
    code = Opaque(TVM, str(the_tvm().ir.save_json(prim)).encode())
    names = tuple(param.name for param in params)
    call = Call(CODE, names, (), (("code", code),), source=name, has_effect=True)
    return Function(name, params, (call,), (), constraint=constraint)


def split_code(functions: Sequence[Function], layout: Layout) -> tuple[Function, ...]:
    """Split opaque TIR functions on devices; those of one device in one go, as they may call each other.

    The host function keeps name and signature, and launches its kernels by name.
    """
    by_site: dict[str, dict[str, Function]] = {}
    for function in functions:
        path = function.constraint.path if function.constraint is not None else None
        by_site.setdefault(path or "", {})[function.name] = function
    return tuple(
        made for path, ones in sorted(by_site.items()) for made in _split(ones, layout, layout[layout.canonical(path)])
    )


def _split(functions: dict[str, Function], layout: Layout, site: Site) -> list[Function]:
    tvm = the_tvm()
    prims = {tvm.ir.GlobalVar(name): prim_of(function) for name, function in functions.items()}
    module = tvm.IRModule(prims)
    alone = site.target.replace(
        name=None, count=1, host=layout[site.host].target.replace(name=None, host=None, count=1)
    )
    made: list[Function] = []
    split = split_tir(module, alone)
    for var in sorted(split.functions.keys(), key=lambda var: str(var.name_hint)):
        name, prim = str(var.name_hint), split[var]
        old = functions.get(name)
        if int(prim.attrs.get("calling_conv", 0)) == _KERNEL_LAUNCH:
            made.append(as_device(function_of(name, prim, Constraint.at(site.path))))
        elif old is None:
            made.append(as_host(function_of(name, prim), site.host, site.path))
        else:
            code = Opaque(TVM, str(tvm.ir.save_json(prim)).encode())
            (call,) = old.body
            kept = tuple((key, code if key == "code" else value) for key, value in call.attrs)
            made.append(as_host(old.replace(body=(replace(call, attrs=kept),)), site.host, site.path))
    return made


def _type(type_: Any) -> Type:  # noqa: ANN401
    """Return the type of a parameter as far as it has one here: buffers of known shape and scalars."""
    dtype = str(getattr(type_, "dtype", ""))
    if dtype not in DTYPES:
        return None
    shape = [getattr(dim, "value", None) for dim in getattr(type_, "shape", ())]
    return TensorType(dtype, tuple(None if dim is None else int(dim) for dim in shape))
