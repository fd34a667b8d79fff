"""Tag files: TOML, read into rows; `docs/tags.md` describes the format.

A file of a namespace (`nvidia.toml`, `nvidia.geforce.toml`) has short names; a project's own file
(`tvmtarget.toml`, or `[tool.tvmtarget]` of `pyproject.toml`) has whole ones, such as `[tag."acme/box"]`. What is
wrong with a row is kept with it, so that the others of its file still work; what the target fields of a row say is
checked when its tree is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvmtarget.errors import FileError, TargetFileError, TvmTargetError, did_you_mean
from tvmtarget.target.problems import shown
from tvmtarget.untrusted import parse_toml, read_text

__all__ = [
    "CONFIDENCES",
    "NAME",
    "NOTES",
    "SCHEMA",
    "TagFile",
    "TagInfo",
    "TagRow",
    "at",
    "is_project_file",
    "namespace_of",
    "read_file",
    "rows_of",
]

SCHEMA = 1

_SECTIONS = ("schema", "source", "tag", "family")
CONFIDENCES = ("measured", "vendor", "derived", "assumed")
_SEGMENT = r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?"
NAME = rf"{_SEGMENT}(?:/{_SEGMENT}){{0,3}}"

# Historic spellings may be anything that can be told from a part, `tag:part`, and from overrides, `tag(...)`.
_ALIAS = r"[^\s:()\[\]]+"

# A line of TOML that begins a table or a value, and the keys in it: "quoted", 'quoted' or bare, with dots between.
_KEY = r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*"""
_KEYS = rf"\s*(?P<header>\[{{1,2}})?(?P<keys>{_KEY}(?:\.{_KEY})*)(?(header)\]|=)"

# What a row says besides its target, and of which type it is.
NOTES: dict[str, type] = {
    "doc": str,
    "source": list,
    "confidence": str,
    "abstract": bool,
    "aliases": list,
    "base": str,
    "tvm": str,
    "deprecated": str,
    "override": bool,
}
_TYPES: dict[type, str] = {str: "text", bool: "true or false", list: "a list of texts"}


@dataclass(frozen=True, slots=True)
class TagInfo:
    """What a file says about a tag besides its tree.

    `tvm` is the path of the part that stands for TVM's flat tag of this name ("" for the tree itself), `family`
    the tag that this is a size of, `deprecated` what to use instead, `overrides` whether it may stand for a tag
    of a lower layer.
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


@dataclass(frozen=True, slots=True)
class TagRow:
    """A tag as it is written: a target in flat JSON, or a base and what differs from it, by path."""

    info: TagInfo
    base: str | None
    flat: Mapping[str, object]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TagFile:
    """The rows of a file by name and alias, and what is wrong with the file as a whole."""

    rows: Mapping[str, TagRow]
    problems: tuple[str, ...]


def is_project_file(path: Path) -> bool:
    """Whether the names in a file are whole ones: those of a project may be of any namespace."""
    return path.name in ("tvmtarget.toml", "pyproject.toml")


def namespace_of(path: Path) -> str:
    """Return what the names of a file begin with: `nvidia` for `nvidia.toml` and `nvidia.geforce.toml`."""
    return path.name.partition(".")[0]


def at(info: TagInfo) -> str:
    """Return the file of a tag, with the line where its row begins if that is found."""
    namespace, _, short = info.name.partition("/")
    paths: set[tuple[str, ...]] = {("tag", short), ("tag", info.name)}
    if info.family is not None:
        family = info.family.removeprefix(f"{namespace}/")
        size = info.name.removeprefix(f"{info.family}.")
        paths = {("family", family, "sizes", size), ("family", info.family, "sizes", size)}
    found = next((number for number, keys in _keys_by_line(info.file) if keys[:4] in paths or keys[:2] in paths), None)
    return f"{str(info.file)!r}" + (f", line {found}" if found else "")


def _keys_by_line(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the lines of a TOML file that begin with a key, and that key with those of the table it is in."""
    try:
        lines = read_text(path, most="target-bytes").splitlines()
    except FileError:
        return
    table: tuple[str, ...] = ()
    for number, line in enumerate(lines, 1):
        found = re.match(_KEYS, line)
        if found is None:
            continue
        keys = tuple(one or other or bare for one, other, bare in re.findall(_KEY, found["keys"]))
        if found["header"]:
            table = keys = keys[2:] if keys[:2] == ("tool", "tvmtarget") else keys
            yield number, keys
        else:
            yield number, (*table, *keys)


def read_file(path: Path, namespace: str | None) -> TagFile:
    """Read a file; its names are short, or, without a namespace, whole. What is wrong comes with the file's name."""
    try:
        data = _tables_of(path)
    except TvmTargetError as error:
        return TagFile({}, error.problems)
    schema = data.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        problem = f"has schema {schema!r}; this version reads schema = {SCHEMA}"
        return TagFile({}, (f"tag file {str(path)!r} {problem}",))
    return rows_of(data, path, namespace)


def _tables_of(path: Path) -> dict[str, Any]:
    """Return what a file says to us, for which `pyproject.toml` has a place of its own; editors' BOMs are skipped."""
    place = f"tag file {str(path)!r}"
    text = read_text(path, "tag file", most="target-bytes", error=TargetFileError)
    data = parse_toml(text, place, error=TargetFileError)
    if path.name != "pyproject.toml":
        return data
    for key in ("tool", "tvmtarget"):
        data = data.get(key, {})
        if not isinstance(data, dict):
            raise TargetFileError(f"{place} cannot be read: {key!r} is a table, not {shown(data)}", path=str(path))
    return {"schema": SCHEMA} | data


def rows_of(data: Mapping[str, object], path: Path, namespace: str | None) -> TagFile:
    """Read the tables of a file."""
    if namespace is not None and not re.fullmatch(_SEGMENT, namespace):
        problem = f"the name of tag file {str(path)!r} is no namespace; use lower-case letters, digits, '-' and '_'"
        return TagFile({}, (f"{problem}, as in acme.toml",))
    file = _File(path, data, namespace)
    rows = dict(file.rows())
    twice = dict(file.defined_twice)
    rows = {name: replace(row, problems=(*row.problems, *twice.get(row.info.name, ()))) for name, row in rows.items()}
    return TagFile(rows, tuple(f"{problem}, in tag file {str(path)!r}" for problem in file.problems))


class _File:
    """One file while it is read; `problems` grows on the way."""

    def __init__(self, path: Path, data: Mapping[str, object], namespace: str | None) -> None:
        self.path = path
        self.prefix = f"{namespace}/" if namespace else ""
        self.problems = [
            f"unknown section {name!r}{did_you_mean(name, _SECTIONS)}" for name in data if name not in _SECTIONS
        ]
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
        """Yield rows by name and alias; of a name that is defined twice, the first."""
        found: dict[str, str] = {}
        for short, table, family in self._all():
            if "/" not in f"{self.prefix}{short}":
                whole = f'[tag."acme/{short}"]'
                self.problems.append(f"{short!r} is no whole name for a tag; write the vendor too, as in {whole}")
                continue
            row = self._row(short, table, family)
            for known in (row.info.name, *row.info.aliases):
                if known in found:
                    one, other = (f"at tag {name!r}" for name in (found[known], row.info.name))
                    problem = f"{known!r} is defined twice, {one}" + (f" and {other}" if other != one else "")
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
                self.problems.append(f"family {family!r} has no tag; define [tag.{family}], which its sizes build on")
            elif set(table) != {"sizes"}:
                keys = ", ".join(sorted(table))
                self.problems.append(f"family {family!r} holds 'sizes' and nothing else, not {keys}")
            else:
                yield from self._sizes(family, base, table)

    def _sizes(self, family: str, base: dict[str, Any], table: Mapping[str, object]) -> Iterator[Any]:
        """Yield the tags of a family: each has the family's tag as its base, and the notes of that."""
        for size, changes in self._tables(table, "sizes").items():
            notes: dict[str, Any] = {key: base[key] for key in ("source", "confidence") if key in base}
            doc = f"{base.get('doc', '')} ({size})".strip()
            row = {"doc": doc, **notes, **changes, "base": f"{self.prefix}{family}"}
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
        if not re.fullmatch(NAME, name):
            yield f"{short!r} is no name for a tag; use lower-case letters, digits, '-', '_' and '.'"
        for key in sorted({"kind", "tag"} & table.keys()) if "base" in table else ():
            yield f"{key!r} stands beside 'base', which says what it is; leave one of them out"
        for note, type_ in NOTES.items():
            value = table.get(note, type_())
            if not _is(type_, value):
                yield f"{note!r} is {_TYPES[type_]}, not {value!r}"
            elif note == "source":
                unknown = [key for key in value if key not in self.sources]
                yield from (f"unknown source {key!r}{did_you_mean(key, self.sources)}" for key in unknown)
            elif note == "aliases":
                wrong = [alias for alias in value if not re.fullmatch(_ALIAS, alias)]
                yield from (f"{alias!r} is no alias; it has no spaces, ':' or brackets" for alias in wrong)
            elif note == "confidence" and value not in ("", *CONFIDENCES):
                yield f"unknown confidence {value!r}{did_you_mean(value, CONFIDENCES)}"

    def _row(self, short: str, table: Mapping[str, Any], family: str | None) -> TagRow:
        """Make a row; of notes that are wrong, only the problem is kept."""
        name = f"{self.prefix}{short}"
        problems = tuple(
            f"{problem}, at tag {name!r}, in tag file {str(self.path)!r}" for problem in self._problems(name, table)
        )
        notes: dict[str, Any] = {note: table.get(note) for note, type_ in NOTES.items() if _is(type_, table.get(note))}
        cites = (self.sources.get(key, {}).get("cite") for key in notes.get("source", ()))
        info = TagInfo(
            name=name,
            doc=notes.get("doc", ""),
            sources=tuple(cite for cite in cites if isinstance(cite, str)),
            confidence=notes.get("confidence", ""),
            aliases=tuple(self._whole(alias) for alias in notes.get("aliases", ())),
            is_abstract=notes.get("abstract", False),
            file=self.path,
            tvm=notes.get("tvm"),
            family=family,
            deprecated=notes.get("deprecated", ""),
            overrides=notes.get("override", False),
        )
        flat = {key: value for key, value in table.items() if key not in NOTES}
        return TagRow(info, notes.get("base"), flat, problems)

    def _whole(self, alias: str) -> str:
        return f"{self.prefix}{alias}"


def _is(type_: type, value: Any) -> bool:  # noqa: ANN401 - whatever a file holds
    is_of_texts = type_ is not list or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    return isinstance(value, type_) and is_of_texts
