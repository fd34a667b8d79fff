"""Configuration files of tvmc: targets, executor and runtime of a build, and options of a command, in JSON.

The form is that of TVM (`python/tvm/driver/tvmc/config_options.py` and `configs/` at v0.18.0):

    {"targets": [{"kind": "cmsis-nn"}, {"kind": "c", "mcpu": "cortex-m55"}],
     "executor": {"kind": "aot", "unpacked-api": true}, "runtime": {"kind": "crt"}, "output": "board.tvmt"}
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.tags.discovery import user_folder
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import parse_json, read_text

__all__ = ["configuration_of", "read_configuration", "split_configuration"]

# What TVM ships as `configs/host/default.json`.
_SHIPPED: Mapping[str, Mapping[str, object]] = {"default": {"targets": [{"kind": "llvm"}]}}

_OF_THE_TARGET = ("targets", "executor", "runtime")


def read_configuration(source: str | Path | Mapping[str, object]) -> Target:
    """Return the target of a configuration, with its executor and runtime, as `--config` reads it.

    Args:
        source: a file, the name of one in `$TVM_CONFIGS_JSON_DIR` or beside the user's tags, or what it holds.

    Raises:
        UnknownNameError: there is no such file.
        TargetError: the configuration has no targets, or holds options of commands, which are arguments in Python.

    >>> print(read_configuration({"targets": [{"kind": "llvm", "mcpu": "skylake"}], "executor": {"kind": "vm"}}))
    llvm(mcpu=skylake,executor=vm)
    """
    data = source if isinstance(source, Mapping) else configuration_of(source)
    target, executor, runtime, options = split_configuration(data)
    raise_all(
        TargetError, [f"{name!r} of a configuration is an option of a command; pass it as argument" for name in options]
    )
    if target is None:
        raise TargetError("the configuration has no 'targets'")
    return target.replace(executor=executor or target.executor, runtime=runtime or target.runtime)


def split_configuration(
    data: Mapping[str, object],
) -> tuple[Target | None, Executor | None, Runtime | None, dict[str, object]]:
    """Return the target, executor and runtime of a configuration, None where it has none, and its other options."""
    targets, executor, runtime = (data.get(name) for name in _OF_THE_TARGET)
    return (
        None if "targets" not in data else Target.from_list(targets),
        None if "executor" not in data else Executor.from_json(executor),
        None if "runtime" not in data else Runtime.from_json(runtime),
        {name: value for name, value in data.items() if name not in _OF_THE_TARGET},
    )


def configuration_of(source: str | Path, environ: Mapping[str, str] = os.environ) -> Mapping[str, object]:
    """Return what a configuration file holds, by its path or name, with or without `.json`."""
    name = str(source).strip()
    path = next((path for path in (Path(name), Path(f"{name}.json")) if path.is_file()), None)
    found = [path] if path is not None else sorted(_named(name.removesuffix(".json"), environ))
    if len(found) > 1:
        raise UnknownNameError(f"configuration {name!r} is ambiguous: {', '.join(map(str, found))}")
    if not found:
        shipped = _SHIPPED.get(name.removesuffix(".json"))
        if shipped is None:
            places = ", ".join(map(str, _folders(environ)))
            raise UnknownNameError(
                f"unknown configuration {name!r}{did_you_mean(name, _SHIPPED)}; it is neither a file nor in {places}"
            )
        return shipped
    data = parse_json(read_text(found[0], "configuration"), f"configuration {str(found[0])!r}")
    if not isinstance(data, dict):
        raise TargetError(f"configuration {str(found[0])!r} is an object, not {shown(data)}")
    return data


def _named(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files of a name in the first folder that has one, at any depth."""
    for folder in _folders(environ):
        found = [path for path in folder.rglob("*.json") if name in (path.stem, str(path.relative_to(folder))[:-5])]
        if found:
            yield from found
            return


def _folders(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("TVM_CONFIGS_JSON_DIR"):
        yield Path(environ["TVM_CONFIGS_JSON_DIR"])
    yield user_folder(environ).parent / "configs"
