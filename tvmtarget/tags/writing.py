"""Adding a tag to a file, so that either the whole new file is there or the old one is as it was."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from tvmtarget.errors import TargetError, raise_all
from tvmtarget.files import replacing
from tvmtarget.tags.files import SCHEMA, is_project_file, namespace_of, read_file, rows_of
from tvmtarget.tags.registry import Registry
from tvmtarget.target.tree import Target

__all__ = ["add_tag"]

_TABLE = re.compile(r"^(\[+)(source|tag)\b", re.MULTILINE)


def add_tag(path: Path, name: str, tree: Target, *, doc: str, source: str, confidence: str, registry: Registry) -> None:
    """Append a tag of a tree to a file; a name that is taken, or a file that is wrong, is a `TargetError`."""
    import tomllib

    import tomli_w

    namespace = None if is_project_file(path) else namespace_of(path)
    if namespace is not None and not name.startswith(f"{namespace}/"):
        raise TargetError(f"{str(path)!r} holds tags of {namespace!r}, and {name!r} is none; write {namespace}/...")
    if registry.info_anyway(name) is not None:
        raise TargetError(f"tag {name!r} is there already")
    if path.exists():
        raise_all(TargetError, read_file(path, namespace).problems)
    key = f"added-{name.replace('/', '-')}"
    row = {"doc": doc or name, "source": [key], "confidence": confidence, **tree.replace(tag=None).to_json()}
    cite = {"cite": source, "retrieved": datetime.date.today()}
    tables = tomli_w.dumps({"source": {key: cite}, "tag": {name.removeprefix(f"{namespace}/"): row}})
    raise_all(TargetError, rows_of({"schema": SCHEMA, **tomllib.loads(tables)}, path, namespace).problems)
    if path.name == "pyproject.toml":
        tables = _TABLE.sub(r"\1tool.tvmtarget.\2", tables)
    text = path.read_text(encoding="utf-8") if path.exists() else f"schema = {SCHEMA}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(f"{text.rstrip()}\n\n{tables}".lstrip().encode())
