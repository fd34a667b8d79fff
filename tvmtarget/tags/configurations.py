"""Read configuration files of tvmc: JSON with targets, executor and runtime of a build, and options of a command.

The format is that of TVM (`python/tvm/driver/tvmc/config_options.py` and `configs/` at v0.18.0):

    {"targets": [{"kind": "cmsis-nn"}, {"kind": "c", "mcpu": "cortex-m55"}],
     "executor": {"kind": "aot", "unpacked-api": true}, "runtime": {"kind": "crt"}, "output": "board.tvmt"}
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.files import has_file
from tvmtarget.tags.discovery import user_folder
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import parse_json, read_text

__all__ = ["load_configuration", "read_configuration", "split_configuration"]

# The content of `configs/host/default.json`, which TVM ships.
_SHIPPED: Mapping[str, Mapping[str, object]] = {"default": {"targets": [{"kind": "llvm"}]}}

_OF_THE_TARGET = ("targets", "executor", "runtime")


def read_configuration(source: str | Path | Mapping[str, object]) -> Target:
    """Read the target of a configuration, as `--config` does.

    Args:
        source: A file, the name of one in `$TVM_CONFIGS_JSON_DIR` or in `configs` beside the user's tags, or the
            content of a file.

    Returns:
        The target with its executor and runtime.

    Raises:
        UnknownNameError: There is no such file.
        TargetError: The configuration has no targets, or contains options of commands, which are arguments in Python.

    >>> print(read_configuration({"targets": [{"kind": "llvm", "mcpu": "skylake"}], "executor": {"kind": "vm"}}))
    llvm(mcpu=skylake,executor=vm)
    """
    data = source if isinstance(source, Mapping) else load_configuration(source)
    target, executor, runtime, options = split_configuration(data)
    raise_all(
        TargetError,
        [f"{name!r} of a configuration is an option of a command; pass it as an argument" for name in options],
    )
    if target is None:
        raise TargetError("the configuration has no 'targets'")
    return target.replace(executor=executor or target.executor, runtime=runtime or target.runtime)


def split_configuration(
    data: Mapping[str, object],
) -> tuple[Target | None, Executor | None, Runtime | None, dict[str, object]]:
    """Split a configuration into its parts.

    Args:
        data: The content of a configuration file.

    Returns:
        The target, the executor and the runtime, None for absent ones, and the options of commands.
    """
    targets, executor, runtime = (data.get(name) for name in _OF_THE_TARGET)
    return (
        None if "targets" not in data else Target.from_list(targets),
        None if "executor" not in data else Executor.from_json(executor),
        None if "runtime" not in data else Runtime.from_json(runtime),
        {name: value for name, value in data.items() if name not in _OF_THE_TARGET},
    )


def load_configuration(source: str | Path, environ: Mapping[str, str] = os.environ) -> Mapping[str, object]:
    """Load a configuration file.

    Args:
        source: The path or the name of the file, with or without `.json`.
        environ: The environment variables, which determine the folders of names.

    Returns:
        The content of the file.

    Raises:
        UnknownNameError: No file or several files have the name.
        TargetError: The file is not a JSON object.
    """
    name = str(source).strip()
    path = next((path for path in (Path(name), Path(f"{name}.json")) if has_file(path) and path.is_file()), None)
    found = [path] if path is not None else sorted(_named(name.removesuffix(".json"), environ))
    if len(found) > 1:
        raise UnknownNameError(f"configuration {name!r} is ambiguous: {', '.join(map(str, found))}")
    if not found:
        # Last, so that a user's file of the same name has priority.
        shipped = _SHIPPED.get(name.removesuffix(".json"))
        if shipped is None:
            folders = list(_folders(environ))
            known = [*_SHIPPED, *(path.stem for folder in folders for path in folder.rglob("*.json"))]
            raise UnknownNameError(
                f"unknown configuration {name!r}{did_you_mean(name, known)}; it is neither a file nor in "
                + ", ".join(map(str, folders))
            )
        return shipped
    data = parse_json(read_text(found[0], "configuration"), f"configuration {str(found[0])!r}")
    if not isinstance(data, dict):
        raise TargetError(f"configuration {str(found[0])!r} is an object, not {shown(data)}")
    return data


def _named(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files with a name in the first folder that has one, at any depth."""
    for folder in _folders(environ):
        found = [path for path in folder.rglob("*.json") if name in (path.stem, str(path.relative_to(folder))[:-5])]
        if found:
            yield from found
            return


def _folders(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("TVM_CONFIGS_JSON_DIR"):
        yield Path(environ["TVM_CONFIGS_JSON_DIR"])
    yield user_folder(environ).parent / "configs"
