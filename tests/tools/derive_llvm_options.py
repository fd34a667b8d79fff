"""Derive `tvmtarget/backends/tvm/data/llvm_options.json`: the options of LLVM that TVM can set, by their type.

Run as `python tests/tools/derive_llvm_options.py LIBRARY`, where LIBRARY is a shared library of the LLVM version that
the wheel of TVM brings, such as `/usr/lib/x86_64-linux-gnu/libLLVM.so.22.1` of Debian's `libllvm22`; it needs the extra
`tvm`. TVM's own LLVM exports no symbols, and TVM casts an option to the type that a target states
(`LLVMTargetInfo::SetOptionValue`). The type of an option is in the name of its class's virtual table.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections import defaultdict
from pathlib import Path

import tvm

from tvmtarget.backends.tvm.llvm_options import DATA, unknown_options

# Classes `llvm::cl::opt` that hold their value themselves (`Lb0`): TVM would overwrite the address of another's value.
TYPES = {
    "_ZTVN4llvm2cl3optIbLb0ENS0_6parserIbEEEE": "bool",
    "_ZTVN4llvm2cl3optIiLb0ENS0_6parserIiEEEE": "int",
    "_ZTVN4llvm2cl3optIjLb0ENS0_6parserIjEEEE": "uint",
    "_ZTVN4llvm2cl3optINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEELb0ENS0_6parserIS7_EEEE": "string",
}
REGISTERED = "_ZN4llvm2cl20getRegisteredOptionsERNS0_10SubCommandE"
TOP_LEVEL = "_ZN4llvm2cl10SubCommand11getTopLevelEv"


class _Symbol(ctypes.Structure):
    """`Dl_info` of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def options_of(library: str) -> dict[str, list[str]]:
    """Return the names of a library's options by their type, from `DenseMap<StringRef, Option *>` of LLVM 22."""
    llvm, process = ctypes.CDLL(library), ctypes.CDLL(None)
    process.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Symbol)]
    top_level = ctypes.CFUNCTYPE(ctypes.c_void_p)((TOP_LEVEL, llvm))
    registered = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)((REGISTERED, llvm))
    buckets, _, sizes = (ctypes.c_uint64 * 3).from_address(registered(top_level()))
    found: dict[str, list[str]] = defaultdict(list)
    for index in range(sizes & 0xFFFFFFFF):
        name, length, option = (ctypes.c_uint64 * 3).from_address(buckets + 24 * index)
        if name in (0, 2**64 - 1, 2**64 - 2):  # empty and erased
            continue
        symbol = _Symbol()
        process.dladdr(ctypes.c_uint64.from_address(option).value, ctypes.byref(symbol))
        if type_ := TYPES.get((symbol.name or b"").decode()):
            found[type_].append(ctypes.string_at(name, length).decode())
    return found


def main() -> None:
    """Write the options of LLVM that TVM's LLVM has, too."""
    found = options_of(sys.argv[1])
    absent = unknown_options(tvm, {name for names in found.values() for name in names})
    rows = {type_: " ".join(sorted({*names} - absent)) for type_, names in sorted(found.items())}
    data = {"llvm": int(tvm.target.codegen.llvm_version_major()), **rows}
    Path(DATA).write_text(json.dumps(data, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
