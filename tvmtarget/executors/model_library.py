"""Model Library Format, version 7: a C project as the archive that tools for microTVM read.

Source: apache/tvm at v0.18.0, python/tvm/micro/model_library_format.py (the writer) and the layout that its tests check
(tests/python/micro/test_micro_model_library_format.py). What belongs to Relay there is left out; the report of this
library is beside `metadata.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from tvmtarget.backends.c.project import CProject
from tvmtarget.executors.protocol import System
from tvmtarget.version import __version__

__all__ = ["VERSION", "model_library"]

VERSION = 7
_CPU = 1  # DLPack's device type
# Archives of equal programs are equal: the time of the export is left out.
_DATETIME = "1970-01-01 00:00:00Z"


def model_library(project: CProject, system: System) -> dict[str, bytes]:
    """Return the files of a C project in the layout of a model library.

    Args:
        project: the project.
        system: the system that it was made of.

    Returns:
        File contents by path in the archive.
    """
    name = project.name
    files: dict[str, bytes] = {"metadata.json": _json(_metadata(project, system))}
    for path, data in project.files().items():
        file = PurePosixPath(path)
        if file.stem.startswith("tvmtarget_"):
            files[f"runtime/{file.name}"] = data
        elif file.suffix in (".c", ".h", ".o"):
            folder = {".c": "src", ".h": "include", ".o": "lib"}[file.suffix]
            files[f"codegen/host/{folder}/{file.name}"] = data
        elif file.suffix == ".bin":
            files[f"parameters/{name}.params"] = data
        elif file.name == "report.json":
            files["report.json"] = data
    return files


def _metadata(project: CProject, system: System) -> dict[str, Any]:
    report, memory = project.report(), project.memory
    tensors = project.function.tensors
    inputs, outputs = (
        {
            name: {"size": tensors[value].nbytes, "dtype": tensors[value].dtype}
            for name, value in zip(names, values, strict=True)
        }
        for names, values in ((project.inputs, project.function.inputs), (project.outputs, project.function.outputs))
    )
    operators: dict[str, int] = {}
    for call in report["kernels"]:
        operators[call["kernel"]] = max(operators.get(call["kernel"], 0), call["workspace"])
    main = {
        "device": _CPU,
        "workspace_size_bytes": sum(memory.sizes.values()),
        "constants_size_bytes": project.constant_bytes,
        "io_size_bytes": 0
        if project.io_in_workspace
        else sum(tensors[value].nbytes for value in (*project.function.inputs, *project.function.outputs)),
        "inputs": inputs,
        "outputs": outputs,
    }
    module = {
        "model_name": project.name,
        "export_datetime": _DATETIME,
        "memory": {
            "functions": {
                "main": [main],
                "operator_functions": [
                    {
                        "function_name": kernel,
                        "workspace": [{"device": _CPU, "workspace_size_bytes": nbytes}],
                    }
                    for kernel, nbytes in operators.items()
                ],
            },
            "sram": {row["memory"]: row["bytes"] for row in report["workspace"]},
        },
        "target": [system.host.to_json()],
        "executors": ["aot"],
        "style": "full-model",
        "external_dependencies": [
            {
                "short_name": "tvmtarget",
                "version": __version__,
            }
        ],
    }
    return {"modules": {project.name: module}, "version": VERSION}


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, sort_keys=True) + "\n").encode()
