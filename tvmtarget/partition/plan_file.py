"""Plan files: a saved module that holds the options and the decided sites of a plan as an attribute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tvmtarget.errors import ArtifactError, TvmTargetError
from tvmtarget.files import has_file
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.decomposition import Request
from tvmtarget.partition.options import PartitionOptions
from tvmtarget.target.trusted_attributes import reject_trusted
from tvmtarget.untrusted import parse_json

__all__ = ["read_plan", "write_plan"]

# The attribute of a saved module that makes it a plan, and the version of what it holds.
_PLAN = "tvmtarget.plan"
_SCHEMA = "tvmtarget.plan/1"


def write_plan(path: str | Path, request: Request, sites: Mapping[str, str]) -> None:
    """Write a plan file.

    Args:
        path: the file to write.
        request: what was decomposed.
        sites: the path of the leaf of every operation, by operation name.
    """
    data = {"schema": _SCHEMA, **request.options.to_file(), "sites": dict(sites)}
    request.module.with_target(request.target).with_attrs(**{_PLAN: json.dumps(data)}).save(path)


def read_plan(path: str | Path, *, trust: bool = False, trust_target: bool = False) -> tuple[Request, dict[str, str]]:
    """Read what `write_plan` wrote.

    Args:
        path: the plan file.
        trust: as in `IRModule.load`.
        trust_target: whether the target may have attributes that only the user may state, as with `trust`.

    Returns:
        The request, and the path of the leaf of every operation, by operation name.

    Raises:
        ArtifactError: if there is no such file, or it is damaged or holds no plan.
    """
    if not has_file(Path(path)):
        raise ArtifactError(f"no plan {str(path)!r}; write one with Plan.save, or explain --save")
    module = IRModule.load(path, trust=trust)
    attrs = dict(module.attrs)
    text = attrs.pop(_PLAN, None)
    if text is None or module.target is None:
        raise ArtifactError(f"{str(path)!r} is a saved module without a plan; write one with Plan.save")
    if not trust and not trust_target:
        reject_trusted(module.target, f"the plan in {str(path)!r}")
    try:
        data = parse_json(text, "it")
        schema = data.pop("schema")
        if schema != _SCHEMA:
            raise ValueError(f"it is {schema!r}; this version reads {_SCHEMA!r}")
        sites = data.pop("sites")
        options = PartitionOptions.from_file(data)
        sites = {str(op): str(site) for op, site in sites.items()}
    except (TvmTargetError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        problem = f"it has no key {error}" if isinstance(error, KeyError) else error
        raise ArtifactError(f"{str(path)!r} holds no plan that can be read: {problem}") from error
    return Request(replace(module, attrs=attrs), module.target, options), sites
