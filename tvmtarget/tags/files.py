"""Read tag files: TOML files with one row for each tag; `docs/tags.md` describes the format.

A file of a namespace (`nvidia.toml`, `nvidia.geforce.toml`) has short names; a project's file (`tvmtarget.toml`, or
`[tool.tvmtarget]` of `pyproject.toml`) has full ones, such as `[tag."acme/box"]`. Problems of a row are stored in it,
so that the other rows of its file still work. The target fields of a row are checked when its tree is built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tvmtarget.errors import FileError, TargetFileError, TvmTargetError, did_you_mean
from tvmtarget.target.problems import shown
from tvmtarget.untrusted import parse_toml, read_text

__all__ = [
    "CONFIDENCES",
    "METADATA",
    "NAME_PATTERN",
    "SCHEMA",
    "TagFile",
    "TagInfo",
    "TagRow",
    "is_project_file",
    "location",
    "locations",
    "namespace_of",
    "parse_tables",
    "read_tag_file",
]

SCHEMA = 1

CONFIDENCES = ("measured", "vendor", "derived", "assumed")
_SEGMENT = r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?"
NAME_PATTERN = rf"{_SEGMENT}(?:/{_SEGMENT}){{0,3}}"

# Aliases may have any spelling that does not conflict with parts, `tag:part`, and overrides, `tag(...)`.
_ALIAS = r"[^\s:()\[\]]+"

# A line of TOML that begins a table or a value, with its keys: "quoted", 'quoted' or bare, separated by dots.
_KEY = r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*"""
_KEYS = rf"\s*(?P<header>\[{{1,2}})?(?P<keys>{_KEY}(?:\.{_KEY})*)(?(header)\]|=)"

# Metadata keys of a row, which are no fields of its target, with their types.
METADATA: dict[str, type] = {
    "doc": str,
    "source": list,
    "confidence": str,
    "abstract": bool,
    "aliases": list,
    "base": str,
    "tvm": str,
    "deprecated": str,
    "same-as": str,
    "override": bool,
}
_TYPES: dict[type, str] = {str: "text", bool: "true or false", list: "a list of texts"}


class TagInfo(NamedTuple):
    """Metadata of a tag.

    Attributes:
        name: The full name.
        doc: A description for people.
        sources: Citations of the sources of its facts.
        confidence: One of `CONFIDENCES`, or empty.
        aliases: Other full names.
        is_abstract: Whether the tag is only a base of others or a partial configuration.
        file: The file that defines it.
        tvm: The path of the part that corresponds to TVM's flat tag of this name; empty for the whole tree, None if TVM
            has no such tag.
        family: The tag of the family that this one is a size of.
        deprecated: The tag to use instead, with an optional explanation after ':'; empty if not deprecated.
        overrides: Whether the tag may replace one of a lower layer.
        same_as: Another tag of the same board, for example with another user space; empty if there is none.
    """

    name: str
    doc: str
    sources: tuple[str, ...]
    confidence: str
    aliases: tuple[str, ...]
    is_abstract: bool
    file: Path
    tvm: str | None = None
    family: str | None = None
    deprecated: str = ""
    overrides: bool = False
    same_as: str = ""


class TagRow(NamedTuple):
    """A tag as its file states it: a target in flat JSON, or a base and the differences from it by path."""

    info: TagInfo
    base: str | None
    flat: Mapping[str, object]
    problems: tuple[str, ...] = ()


class TagFile(NamedTuple):
    """The rows of a file by name and alias, and the problems of the file as a whole."""

    rows: Mapping[str, TagRow]
    problems: tuple[str, ...]


def is_project_file(path: Path) -> bool:
    """Whether a file is a project's, which has full names of any namespace.

    Args:
        path: The path of a tag file.

    Returns:
        True for `tvmtarget.toml` and `pyproject.toml`.
    """
    return path.name in ("tvmtarget.toml", "pyproject.toml")


def namespace_of(path: Path) -> str:
    """Return the namespace of the tags in a file.

    Args:
        path: The path of a tag file.

    Returns:
        `nvidia` for `nvidia.toml` and `nvidia.geforce.toml`.
    """
    return path.name.partition(".")[0]


def location(info: TagInfo) -> str:
    """Describe where a tag is defined, for messages.

    Args:
        info: The metadata of the tag.

    Returns:
        The quoted file, and the line where the row begins if it can be found.
    """
    return locations(info.file)(info)


def locations(path: Path) -> Callable[[TagInfo], str]:
    """Return a function that describes where tags of one file are defined, as `location` does.

    Args:
        path: The file, which is searched once for the lines of all its rows.

    Returns:
        A function of the metadata of a tag of that file.
    """
    # TOML parsers do not report lines, so the file is searched for the headers of rows; only messages pay for this.
    lines: dict[tuple[str, ...], int] = {}
    for number, keys in _keys_by_line(path):
        for path_of_keys in (keys[:2], keys[:4]):
            lines.setdefault(path_of_keys, number)

    def describe(info: TagInfo) -> str:
        namespace, _, short = info.name.partition("/")
        paths: set[tuple[str, ...]] = {("tag", short), ("tag", info.name)}
        if info.family is not None:
            family = info.family.removeprefix(f"{namespace}/")
            size = info.name.removeprefix(f"{info.family}.")
            paths = {("family", family, "sizes", size), ("family", info.family, "sizes", size)}
        found = min((lines[keys] for keys in paths if keys in lines), default=0)
        return f"{str(path)!r}" + (f", line {found}" if found else "")

    return describe


def _keys_by_line(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the numbers of the lines that begin with a key, and the key preceded by those of its table."""
    try:
        lines = read_text(path, most="target-bytes").splitlines()
    except FileError:
        return
    table: tuple[str, ...] = ()
    for number, line in enumerate(lines, 1):
        found = re.match(_KEYS, line)
        if found is None:
            continue
        keys = tuple(double or single or bare for double, single, bare in re.findall(_KEY, found["keys"]))
        if found["header"]:
            table = keys = keys[2:] if keys[:2] == ("tool", "tvmtarget") else keys
            yield number, keys
        else:
            yield number, (*table, *keys)


def read_tag_file(path: Path, namespace: str | None) -> TagFile:
    """Read a tag file.

    Args:
        path: The file.
        namespace: The namespace of its short names; None for a file with full names.

    Returns:
        The rows and the problems, each with the name of the file.
    """
    try:
        data = _tables_of(path)
    except TvmTargetError as error:
        return TagFile({}, error.problems)
    schema = data.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        stated = "no schema; begin it with" if schema is None else f"schema {schema!r}; this version reads"
        problem = f"has {stated} schema = {SCHEMA}"
        return TagFile({}, (f"tag file {str(path)!r} {problem}",))
    return parse_tables(data, path, namespace)


def _tables_of(path: Path) -> dict[str, Any]:
    """Return the tables of a file; those of `pyproject.toml` are in `[tool.tvmtarget]`."""
    label = f"tag file {str(path)!r}"
    text = read_text(path, "tag file", most="target-bytes", error=TargetFileError)
    data = parse_toml(text, label, error=TargetFileError)
    if path.name != "pyproject.toml":
        return data
    for key in ("tool", "tvmtarget"):
        data = data.get(key, {})
        if not isinstance(data, dict):
            raise TargetFileError(f"{label} cannot be read: {key!r} is a table, not {shown(data)}", path=str(path))
    return {"schema": SCHEMA} | data


def parse_tables(data: Mapping[str, object], path: Path, namespace: str | None) -> TagFile:
    """Read rows from the tables of a file.

    Args:
        data: The parsed TOML.
        path: The file, for messages.
        namespace: The namespace of its short names; None for a file with full names.

    Returns:
        The rows and the problems.
    """
    if namespace is not None and not re.fullmatch(_SEGMENT, namespace):
        problem = f"the name of tag file {str(path)!r} is not a namespace; use lower-case letters, digits, '-' and '_'"
        return TagFile({}, (f"{problem}, as in acme.toml",))
    file = _File(path, data, namespace)
    rows = dict(file.rows())
    # Which definition is meant is unknown, so each of the tags has the problem.
    twice = dict(file.defined_twice)
    rows = {name: row._replace(problems=(*row.problems, *twice.get(row.info.name, ()))) for name, row in rows.items()}
    return TagFile(rows, tuple(f"{problem}, in tag file {str(path)!r}" for problem in file.problems))


class _File:
    """Reader of one file, which collects problems of the file and of its rows."""

    def __init__(self, path: Path, data: Mapping[str, object], namespace: str | None) -> None:
        self.path = path
        self.prefix = f"{namespace}/" if namespace else ""
        # A project's file has commands too (`tags/commands.py`); here they are only checked.
        # Shipped tags are not read from files.
        from tvmtarget.tags.commands import COMMAND_SECTIONS, TAG_SECTIONS, command_rows

        sections = ("schema", *TAG_SECTIONS, *(COMMAND_SECTIONS if namespace is None else ()))
        self.problems = [
            f"unknown section {name!r}{did_you_mean(name, sections)}" for name in data if name not in sections
        ]
        if namespace is None:
            self.problems += [one for one in command_rows(data, path, path.parent) if isinstance(one, str)]
        self.defined_twice: dict[str, list[str]] = {}
        self.sources = self._tables(data, "source")
        self.tags = self._tables(data, "tag")
        self.families = self._tables(data, "family")
        self.problems += [
            f"source {key!r} needs a text 'cite', not {source.get('cite')!r}"
            for key, source in self.sources.items()
            if not isinstance(source.get("cite"), str)
        ]

    def rows(self) -> Iterator[tuple[str, TagRow]]:
        """Yield rows by name and alias; only the first of a name that is defined twice."""
        found: dict[str, str] = {}
        for short, table, family in self._all():
            if "/" not in f"{self.prefix}{short}":
                valid = short if re.fullmatch(NAME_PATTERN, f"acme/{short}") else "my-board"
                example = f'[tag."acme/{valid}"]'
                self.problems.append(f"{short!r} is not a full name of a tag; add the vendor, as in {example}")
                continue
            row = self._row(short, table, family)
            for known in (row.info.name, *row.info.aliases):
                if known in found:
                    first, second = (f"at tag {name!r}" for name in (found[known], row.info.name))
                    problem = f"{known!r} is defined twice, {first}" + (f" and {second}" if second != first else "")
                    for name in dict.fromkeys([found[known], row.info.name]):
                        self.defined_twice.setdefault(name, []).append(f"{problem}, in tag file {str(self.path)!r}")
                    continue
                found[known] = row.info.name
                yield known, row

    def _all(self) -> Iterator[tuple[str, dict[str, Any], str | None]]:
        yield from ((short, table, None) for short, table in self.tags.items())
        for family, table in self.families.items():
            base = self.tags.get(family)
            if base is None:
                self.problems.append(f"family {family!r} has no tag; define [tag.{family}], the base of its sizes")
            elif set(table) != {"sizes"}:
                keys = ", ".join(sorted(table))
                self.problems.append(f"family {family!r} holds 'sizes' and nothing else, not {keys}")
            else:
                yield from self._sizes(family, base, table)

    def _sizes(self, family: str, base: dict[str, Any], table: Mapping[str, object]) -> Iterator[Any]:
        """Yield the sizes of a family, with the tag of the family as base and its source and confidence."""
        for size, changes in self._tables(table, "sizes").items():
            inherited: dict[str, Any] = {key: base[key] for key in ("source", "confidence") if key in base}
            # A size is usually one line of overrides, so it gets a description and its sources from the family.
            doc = f"{base.get('doc', '')} ({size})".strip()
            row = {"doc": doc, **inherited, **changes, "base": f"{self.prefix}{family}"}
            yield f"{family}.{size}", row, f"{self.prefix}{family}"

    def _tables(self, data: Mapping[str, object], section: str) -> dict[str, dict[str, Any]]:
        tables = data.get(section, {})
        if not isinstance(tables, dict):
            self.problems.append(f"{section!r} holds tables, not {tables!r}")
            return {}
        self.problems += [
            f"{section} {name!r} is a table, not {t!r}" for name, t in tables.items() if type(t) is not dict
        ]
        return {name: table for name, table in tables.items() if isinstance(table, dict)}

    def _problems(self, name: str, table: Mapping[str, Any]) -> Iterator[str]:
        short = name.removeprefix(self.prefix)
        if not re.fullmatch(NAME_PATTERN, name):
            yield f"{short!r} is not a valid name of a tag; use lower-case letters, digits, '-', '_' and '.'"
        for key in sorted({"kind", "tag"} & table.keys()) if "base" in table else ():
            yield f"{key!r} conflicts with 'base', which determines the target; leave one of them out"
        for field, type_ in METADATA.items():
            value = table.get(field, type_())
            if not _is(type_, value):
                yield f"{field!r} is {_TYPES[type_]}, not {value!r}"
            elif field == "source":
                unknown = [key for key in value if key not in self.sources]
                yield from (f"unknown source {key!r}{did_you_mean(key, self.sources)}" for key in unknown)
            elif field == "aliases":
                wrong = [alias for alias in value if not re.fullmatch(_ALIAS, alias)]
                yield from (f"{alias!r} is not a valid alias; use no spaces, ':' or brackets" for alias in wrong)
            elif field == "confidence" and value not in ("", *CONFIDENCES):
                yield f"unknown confidence {value!r}{did_you_mean(value, CONFIDENCES)}"

    def _row(self, short: str, table: Mapping[str, Any], family: str | None) -> TagRow:
        """Make a row; invalid metadata is replaced by its default, and its problem is stored."""
        name = f"{self.prefix}{short}"
        problems = tuple(
            f"{problem}, at tag {name!r}, in tag file {str(self.path)!r}" for problem in self._problems(name, table)
        )
        metadata: dict[str, Any] = {
            field: table.get(field) for field, type_ in METADATA.items() if _is(type_, table.get(field))
        }
        cites = (self.sources.get(key, {}).get("cite") for key in metadata.get("source", ()))
        info = TagInfo(
            name=name,
            doc=metadata.get("doc", ""),
            sources=tuple(cite for cite in cites if isinstance(cite, str)),
            confidence=metadata.get("confidence", ""),
            aliases=tuple(f"{self.prefix}{alias}" for alias in metadata.get("aliases", ())),
            is_abstract=metadata.get("abstract", False),
            file=self.path,
            tvm=metadata.get("tvm"),
            family=family,
            deprecated=metadata.get("deprecated", ""),
            overrides=metadata.get("override", False),
            same_as=metadata.get("same-as", ""),
        )
        flat = {key: value for key, value in table.items() if key not in METADATA}
        return TagRow(info, metadata.get("base"), flat, problems)


def _is(type_: type, value: Any) -> bool:  # noqa: ANN401 - any TOML value
    is_of_texts = type_ is not list or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    return isinstance(value, type_) and is_of_texts
