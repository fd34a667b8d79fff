"""The executor `graph` on the runtime `cpp`: a folder with the driver program, which C++ interprets.

The interpreter is the header `cpp/graph.hpp`. Leaves are shared libraries of TVM, called by TVM's runtime. This process
calls the same interpreter, in a library that is compiled at the first use and kept in the compile cache.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tvmtarget.backends.tvm.backend import BACKEND
from tvmtarget.backends.tvm.compiled_module import (
    LIBRARY,
    CompiledModule,
    host_value,
    import_tvm,
    reject_forks,
    required_library,
    run_time_reason,
)
from tvmtarget.compile_cache import CompileCache
from tvmtarget.errors import RunError, TvmTargetError, raise_all
from tvmtarget.executors.driver_program import Signature
from tvmtarget.executors.memory_devices import CPU, device_of, memory_devices
from tvmtarget.executors.protocol import CompiledSystem, Leaf, Record, System, check_folder_name
from tvmtarget.files import atomic_write, tar_archive, temporary_folder, write_folder
from tvmtarget.target.tree import Target
from tvmtarget.toolchains.compilers import toolchain_for
from tvmtarget.toolchains.platforms import general, is_this_machine, triple_of

__all__ = ["GraphCppSystem", "graph_cpp_reasons", "header_flags", "library_flags"]

HEADERS = Path(__file__).parent / "cpp"
# Element types that `graph.hpp` knows.
_DTYPES = frozenset(
    f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64) if f"{kind}{bits}" != "float8"
) | {"bool"}
_MANIFEST = "manifest.json"
_SOURCES = ("graph_module.cc", "graph.hpp")
_FORMAT = 1  # of the manifest


def header_flags() -> list[str]:
    """Return compiler options that find `graph.hpp` and the headers of TVM's runtime.

    Returns:
        Command-line options of gcc and clang.
    """
    from tvm_ffi import libinfo

    folders = [libinfo.find_include_path(), libinfo.find_dlpack_include_path()]
    return ["-std=c++17", f"-I{HEADERS}", *(option for folder in folders for option in ("-isystem", str(folder)))]


def library_flags() -> list[str]:
    """Return linker options that find the libraries of TVM's runtime.

    Returns:
        Command-line options of gcc and clang; programs find the libraries again when they run.
    """
    from tvm_ffi import libinfo

    folders = [Path(import_tvm().__file__).parent / "lib", Path(libinfo.find_libtvm_ffi()).parent]
    paths = [option for folder in folders for option in (f"-L{folder}", f"-Wl,-rpath,{folder}")]
    return [*paths, "-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi"]


def graph_cpp_reasons(system: System) -> Iterator[str]:
    """List why C++ cannot interpret a system.

    Args:
        system: the system.

    Yields:
        A sentence for each reason, with the path of the leaf or driver.
    """
    for leaf in system.leaves.values():
        request = leaf.request
        place = f"@{request.site or '.'} cannot be built: executor 'graph' on runtime 'cpp'"
        if leaf.backend is not BACKEND or request.target.kind not in BACKEND.kinds:
            kinds = " and ".join(BACKEND.kinds)
            yield f"{place} runs code of TVM for {kinds}, not of {leaf.backend.name} for {request.target.kind}"
        elif request.is_relax and request.is_trusted and BACKEND.is_code(request):
            yield f"{place} calls functions of Relax, and {request.name!r} is TIR code"
        elif not is_this_machine(triple := triple_of(request.target)):
            yield f"{place} links code for this machine, not for {general(triple)!r}; executor=aot does"
    for signature in _signatures(system):
        if signature.dtype is not None and signature.dtype not in _DTYPES:
            yield (
                f"@{system.path or '.'} cannot be built: executor 'graph' on runtime 'cpp' has no element type "
                f"{signature.dtype!r}, which {signature.name!r} has"
            )


def _signatures(system: System) -> Iterator[Signature]:
    """Yield the values of which the interpreter knows the element type."""
    yield from system.program.inputs
    for driver in system.program.drivers.values():
        for step in driver.walk():
            yield from step.control.empty if step.control is not None else ()


class GraphCppSystem(CompiledSystem):
    """A folder that C++ interprets, and that this process runs by the same interpreter.

    Args:
        system: the system.

    Raises:
        BackendError: the shared library of a leaf cannot be linked, or the interpreter does not compile.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._files = _files(system)
        self._module = _InterpretedModule(self._files, len(system.program.outputs), system.cache)

    def run(self, inputs: Sequence[Any], record: Record | None = None) -> list[Any]:
        """Run once.

        Args:
            inputs: the inputs of the program, in order.
            record: not called, as the interpreter reports no calls.

        Returns:
            The results, in order.

        Raises:
            RunError: this machine cannot run a leaf function, or one failed; the message names it.
        """
        raise_all(RunError, self._system.cannot_run)
        try:
            return list(self._module.run(list(map(host_value, inputs))))
        except TvmTargetError:
            raise
        except Exception as error:
            raise RunError(run_time_reason(error)) from error

    def export(self, path: Path) -> None:
        """Write a folder, or a tar archive if the name ends with `.tar`, that `graph.hpp` opens.

        Args:
            path: the folder or the archive; a folder may exist, and keeps its other files.

        Raises:
            ArtifactError: the name is that of another file, such as `NAME.so`.
        """
        files = {**self._files, "graph.hpp": (HEADERS / "graph.hpp").read_bytes()}
        if path.suffix == ".tar":
            with atomic_write(path) as file:
                file.write(tar_archive(files))
        else:
            check_folder_name(path, "a folder or NAME.tar")
            write_folder(path, files, last=[_MANIFEST])


def _files(system: System) -> dict[str, bytes]:
    """Return the files of an exported program by name."""
    devices = {name: device_of(leaf) for name, leaf in system.leaves.items()}
    files, leaves, constants = dict[str, bytes](), dict[str, Any](), dict[str, str]()
    for number, (name, leaf) in enumerate(sorted(system.leaves.items())):
        file = f"leaves/{number}.so"
        files[file] = _library(leaf)
        never_empty = leaf.compiled.never_empty if isinstance(leaf.compiled, CompiledModule) else ()
        leaves[name] = {
            "file": file,
            "site": leaf.request.site,
            "device": devices[name] or CPU,
            "results": len(leaf.request.outputs),
            "never_empty": sorted(never_empty),
        }
    for number, (name, array) in enumerate(sorted(system.constants.items())):
        constants[name] = f"constants/{number}.npy"
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(array).reshape(array.shape))
        files[constants[name]] = buffer.getvalue()
    manifest = {
        "format": _FORMAT,
        "leaves": leaves,
        "constants": constants,
        "memories": memory_devices(system.program, devices),
    }
    return {
        _MANIFEST: json.dumps(manifest, indent=1, sort_keys=True).encode(),
        "program.json": system.program.write(),
        **files,
    }


def _library(leaf: Leaf) -> bytes:
    """Return the shared library of a leaf function."""
    known = LIBRARY in leaf.request.native
    return required_library(leaf.request.native if known else leaf.compiled.native_files(), leaf.request.site)


class _InterpretedModule(CompiledModule):
    """A program in the interpreter, which serves one thread at a time."""

    def __init__(self, files: Mapping[str, bytes], results: int, cache: CompileCache | None) -> None:
        super().__init__(None, frozenset(), results)
        self._lock = threading.Lock()
        with temporary_folder() as folder:
            write_folder(folder, files, last=[_MANIFEST])
            self._main = _interpreter(cache)["open_program"](str(folder))

    def _call(self, tvm: Any, given: Sequence[Any]) -> Any:  # noqa: ANN401
        reject_forks()
        with self._lock:
            results = self._main(*given)
        return results[0] if self._results == 1 else results


# The module that serves all programs of this process, compiled or read from the first cache that is given.
_opened: list[Any] = []
_opening = threading.Lock()


def _interpreter(cache: CompileCache | None = None) -> Any:  # noqa: ANN401
    """Open the interpreter as a module of TVM; compile it unless the compile cache has it."""
    tvm = import_tvm()
    with _opening:
        if not _opened:
            with temporary_folder() as folder:
                library = folder / "graph.so"
                library.write_bytes(_compiled_interpreter(cache))
                _opened.append(tvm.runtime.load_module(str(library)))
        return _opened[0]


def _compiled_interpreter(cache: CompileCache | None) -> bytes:
    compiler = toolchain_for(Target("llvm"), "cxx")
    # Kernels are in libraries of their own: optimizing what calls them further takes seconds, and gains nothing.
    options = ["-O1", "-shared", "-fPIC", *header_flags()]
    sources: dict[str, bytes | str] = {name: (HEADERS / name).read_bytes() for name in _SOURCES}
    # Of TVM's headers, whose folders the options name, and its libraries.
    sources["versions"] = f"{version('apache-tvm')} {version('apache-tvm-ffi')}"
    facts = {"function": "interpreter of programs in C++", "target": "llvm", "backend": compiler.version()}
    return compiler.build(sources, options, library_flags(), cache, **facts)
