"""Adding a tag to a file, so that either the whole new file is there or the old one is as it was."""

from __future__ import annotations

import datetime
import re
from itertools import count
from pathlib import Path

from tvmtarget.errors import FileError, TargetError, TargetFileError, raise_all
from tvmtarget.files import atomic_write
from tvmtarget.tags.files import NAME, NOTES, SCHEMA, TagFile, is_project_file, namespace_of, read_file, rows_of
from tvmtarget.tags.layers import Given
from tvmtarget.tags.registry import Registry
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import parse_toml, read_text

__all__ = ["add_tag"]

_TABLE = re.compile(r"^(\[+)(source|tag)\b", re.MULTILINE)


def add_tag(
    path: Path | str, name: str, tree: Target, *, doc: str, source: str, confidence: str, registry: Registry
) -> None:
    """Append a tag of a tree to a file, if the reader of tag files makes the same tree of it.

    Args:
        path: a project's own file, or the file of a namespace; it is made where it is not there.
        name: the whole name, by the rule of tag files.
        tree: what the name stands for.
        doc: what it is, for people; the name unless given.
        source: where the facts are from.
        confidence: one of `files.CONFIDENCES`.
        registry: where names are looked up that are taken already.

    Raises:
        TargetError: the name is no name or is taken, the file is wrong, or what is written would not be read back.
    """
    import tomli_w

    path = Path(path)
    if "/" in name and not re.fullmatch(NAME, name):
        rule = "use lower-case letters, digits, '-', '_' and '.', with the vendor first, as in acme/my-board"
        raise TargetError(f"{shown(name)} is no name for a tag; {rule}")
    namespace = None if is_project_file(path) else namespace_of(path)
    if namespace is not None and not name.startswith(f"{namespace}/"):
        raise TargetError(f"{str(path)!r} holds tags of {namespace!r}, and {name!r} is none; write {namespace}/...")
    if registry.info_anyway(name) is not None:
        raise TargetError(f"tag {name!r} is there already")
    if path.exists():
        raise_all(TargetError, read_file(path, namespace).problems)
    text = f"schema = {SCHEMA}\n"
    if path.exists():
        text = read_text(path, "tag file", most="target-bytes", error=TargetFileError)
    key = _free_key(f"added-{name.replace('/', '-')}", text)
    flat = tree.replace(tag=None).to_json()
    notes = sorted(flat.keys() & NOTES.keys())
    if notes:
        raise TargetError(f"attribute {notes[0]!r} cannot be written in a tag, where that is a note on the tag itself")
    row = {"doc": doc or name, "source": [key], "confidence": confidence, **flat}
    cite = {"cite": source, "retrieved": datetime.date.today()}
    short = name.removeprefix(f"{namespace}/")
    try:
        tables = tomli_w.dumps({"source": {key: cite}, "tag": {short: row}})
        tables.encode()
    except (ValueError, TypeError) as error:
        raise TargetError(f"tag {name!r} cannot be written as TOML: {error}") from error
    if path.name == "pyproject.toml":
        tables = _TABLE.sub(r"\1tool.tvmtarget.\2", tables)
    whole = f"{text.rstrip()}\n\n{tables}".lstrip()
    try:
        data = parse_toml(whole, "it")
    except FileError as error:
        raise TargetError(f"tag file {str(path)!r} has no place for more tables: {error}") from error
    if path.name == "pyproject.toml":
        data = {"schema": SCHEMA, **data["tool"]["tvmtarget"]}
    _check_read_back(rows_of(data, path, namespace), name, tree, registry)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(whole.encode())


def _free_key(wanted: str, text: str) -> str:
    """Return a key for a source that does not stand in a file yet."""
    return next(key for number in count() if (key := f"{wanted}-{number}" if number else wanted) not in text)


def _check_read_back(file: TagFile, name: str, tree: Target, registry: Registry) -> None:
    raise_all(TargetError, file.problems)
    raise_all(TargetError, file.rows[name].problems)
    read = Registry(*registry.layers, Given("written", {name: file.rows[name]})).tree(name)
    if read != tree or read.to_json() != tree.replace(tag=name).to_json():
        raise TargetError(f"tag {name!r} would be read as {shown(str(read))}, not as {shown(str(tree))}")
