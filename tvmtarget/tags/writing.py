"""Append a tag to a tag file, atomically."""

from __future__ import annotations

import datetime
import re
from itertools import count
from pathlib import Path

from tvmtarget.errors import FileError, TargetError, TargetFileError, raise_all
from tvmtarget.files import atomic_write, locked_folder
from tvmtarget.tags.files import (
    METADATA,
    NAME_PATTERN,
    SCHEMA,
    TagFile,
    is_project_file,
    namespace_of,
    parse_tables,
    read_tag_file,
)
from tvmtarget.tags.layers import CodeLayer
from tvmtarget.tags.registry import Registry
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import parse_toml, read_text

__all__ = ["add_tag"]

_TABLE = re.compile(r"^(\[+)(source|tag)\b", re.MULTILINE)


def add_tag(
    path: Path | str, name: str, tree: Target, *, doc: str, source: str, confidence: str, registry: Registry
) -> None:
    """Append a tag to a file, after a check that the new file reads back as the same tree.

    Args:
        path: A project's file, or the file of a namespace; it is created if it does not exist.
        name: The full name of the tag.
        tree: The tree of the tag.
        doc: A description for people; the name if empty.
        source: A citation of the source of its facts.
        confidence: One of `files.CONFIDENCES`.
        registry: The registry that determines which names are in use.

    Raises:
        TargetError: The name is invalid or in use, the file is no tag file or has problems, or the tag would not read
            back.
    """
    import tomli_w

    path = Path(path)
    if name and not re.fullmatch(NAME_PATTERN, name if "/" in name else f"acme/{name}"):
        rule = "use lower-case letters, digits, '-', '_' and '.', with the vendor first, as in acme/my-board"
        raise TargetError(f"{shown(name)} is not a valid name of a tag; {rule}")
    if path.suffix != ".toml" or path.is_dir():
        raise TargetError(f"{str(path)!r} is no tag file; write tvmtarget.toml, or NAMESPACE.toml for one vendor")
    namespace = None if is_project_file(path) else namespace_of(path)
    if namespace is not None and not name.startswith(f"{namespace}/"):
        raise TargetError(f"{str(path)!r} holds tags of {namespace!r}, not {name!r}; use a name {namespace}/...")
    if registry.find_info(name) is not None:
        raise TargetError(f"tag {name!r} exists already")
    # Another process may add a tag at the same time; the file itself is replaced, so its folder is locked.
    existing = next(folder for folder in path.absolute().parents if folder.is_dir())
    with locked_folder(existing):
        if path.exists():
            raise_all(TargetError, read_tag_file(path, namespace).problems)
        text = f"schema = {SCHEMA}\n"
        if path.exists():
            text = read_text(path, "tag file", most="target-bytes", error=TargetFileError)
        base = f"added-{name.replace('/', '-')}"
        key = next(key for number in count() if (key := f"{base}-{number}" if number else base) not in text)
        flat = tree.replace(tag=None).to_json()
        reserved = sorted(flat.keys() & METADATA.keys())
        if reserved:
            raise TargetError(f"attribute {reserved[0]!r} cannot be written in a tag, where it is metadata of the tag")
        row = {"doc": doc or name, "source": [key], "confidence": confidence, **flat}
        if tree.kind == "composite" and not tree.targets:
            row["abstract"] = True  # a partial configuration is merged into targets, and is none itself
        cite = {"cite": source, "retrieved": datetime.date.today()}
        short = name.removeprefix(f"{namespace}/")
        try:
            tables = tomli_w.dumps({"source": {key: cite}, "tag": {short: row}})
            tables.encode()
        except (ValueError, TypeError) as error:
            raise TargetError(f"tag {name!r} cannot be written as TOML: {error}") from error
        if path.name == "pyproject.toml":
            tables = _TABLE.sub(r"\1tool.tvmtarget.\2", tables)
        # Text is appended, and not the parsed data written, so that comments and order of the file remain.
        content = f"{text.rstrip()}\n\n{tables}".lstrip()
        try:
            data = parse_toml(content, "it")
        except FileError as error:
            raise TargetError(f"tag file {str(path)!r} cannot hold more tables: {error}") from error
        if path.name == "pyproject.toml":
            data = {"schema": SCHEMA, **data["tool"]["tvmtarget"]}
        _check_read_back(parse_tables(data, path, namespace), name, tree, registry)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(content.encode())


def _check_read_back(file: TagFile, name: str, tree: Target, registry: Registry) -> None:
    raise_all(TargetError, file.problems)
    raise_all(TargetError, file.rows[name].problems)
    read = Registry(*registry.layers, CodeLayer("written", {name: file.rows[name]})).tree(name)
    if read != tree or read.to_json() != tree.replace(tag=name).to_json():
        raise TargetError(f"tag {name!r} would be read as {shown(str(read))}, not as {shown(str(tree))}")
