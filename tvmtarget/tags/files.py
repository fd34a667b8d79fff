"""Tag files: TOML, one or more for a namespace, read into rows; `docs/tags.md` describes the format.

Everything wrong with a file is told in one `TargetError`, with the tag and the file. What the target fields of
a row say is checked when its tree is built.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmtarget.errors import TargetError, did_you_mean, raise_all

__all__ = ["TagInfo", "TagRow", "namespace_of", "read_file"]

SCHEMA = 1

_SECTIONS = ("schema", "source", "tag", "family")
_CONFIDENCES = ("measured", "vendor", "derived", "assumed")
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")

# What a row says besides its target, and of which type it is.
_NOTES: dict[str, type] = {
    "doc": str,
    "source": list,
    "confidence": str,
    "abstract": bool,
    "aliases": list,
    "base": str,
    "tvm": str,
}
_TYPES: dict[type, str] = {str: "text", bool: "true or false", list: "a list of texts"}


@dataclass(frozen=True, slots=True)
class TagInfo:
    """What a file says about a tag besides its tree."""

    name: str
    doc: str
    sources: tuple[str, ...]
    confidence: str
    aliases: tuple[str, ...]
    is_abstract: bool
    file: Path


@dataclass(frozen=True, slots=True)
class TagRow:
    """A tag as it is written: a target in flat JSON, or a base and what differs from it, by path."""

    info: TagInfo
    base: str | None
    flat: Mapping[str, object]


def namespace_of(path: Path) -> str:
    """Return what the names of a file begin with: `nvidia` for `nvidia.toml` and `nvidia.geforce.toml`."""
    return path.name.partition(".")[0]


def read_file(path: Path) -> dict[str, TagRow]:
    """Return the rows of a file by full name: tags, aliases, and the sizes of families."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise TargetError(f"tag file {str(path)!r} cannot be read: {error}") from error
    if data.get("schema") != SCHEMA:
        problem = f"has schema {data.get('schema')!r}; this version reads schema = {SCHEMA}"
        raise TargetError(f"tag file {str(path)!r} {problem}")
    file = _File(path, data)
    rows = file.rows()
    raise_all(TargetError, [f"{problem}, in tag file {str(path)!r}" for problem in file.problems])
    return rows


class _File:
    """One file while it is read; `problems` grows on the way."""

    def __init__(self, path: Path, data: Mapping[str, object]) -> None:
        self.path = path
        self.namespace = namespace_of(path)
        self.problems = [
            f"unknown section {name!r}{did_you_mean(name, _SECTIONS)}" for name in data if name not in _SECTIONS
        ]
        self.sources = self._tables(data, "source")
        self.tags = self._tables(data, "tag")
        self.families = self._tables(data, "family")
        self.problems += [
            f"source {key!r} needs a text 'cite', not {source.get('cite')!r}"
            for key, source in self.sources.items()
            if not isinstance(source.get("cite"), str)
        ]

    def rows(self) -> dict[str, TagRow]:
        """Return rows by name and alias; of those that cannot be read, only the problems are kept."""
        found: dict[str, TagRow] = {}
        for short, table in (*self.tags.items(), *self._sizes()):
            name = f"{self.namespace}/{short}"
            problems = [*self._problems(short, table)]
            self.problems += [f"{problem}, at tag {name!r}" for problem in problems]
            if problems:
                continue
            row = self._row(name, table)
            for known in (name, *row.info.aliases):
                if known in found:
                    first = found[known].info.name
                    self.problems.append(f"{known!r} is defined twice, at tag {first!r} and at tag {name!r}")
                found.setdefault(known, row)
        return found

    def _tables(self, data: Mapping[str, object], section: str) -> dict[str, dict[str, Any]]:
        tables = data.get(section, {})
        if not isinstance(tables, dict):
            self.problems.append(f"{section!r} holds tables, not {tables!r}")
            return {}
        self.problems += [
            f"{section} {name!r} is a table, not {t!r}" for name, t in tables.items() if type(t) is not dict
        ]
        return {name: table for name, table in tables.items() if isinstance(table, dict)}

    def _sizes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the tags of the families: each has the family's tag as its base, and the notes of that."""
        for family, table in self.families.items():
            base = self.tags.get(family)
            if base is None:
                self.problems.append(f"family {family!r} has no tag; define [tag.{family}], which its sizes build on")
                continue
            if set(table) != {"sizes"}:
                self.problems.append(
                    f"family {family!r} holds 'sizes' and nothing else, not {', '.join(sorted(table))}"
                )
            for size, changes in self._tables(table, "sizes").items():
                notes: dict[str, Any] = {key: base[key] for key in ("source", "confidence") if key in base}
                doc = f"{base.get('doc', '')} ({size})".strip()
                yield f"{family}.{size}", {"doc": doc, **notes, **changes, "base": f"{self.namespace}/{family}"}

    def _problems(self, short: str, table: Mapping[str, Any]) -> Iterator[str]:
        if not _NAME.fullmatch(short):
            yield f"{short!r} is no name for a tag; use lower-case letters, digits, '-', '_' and '.'"
        for key in sorted({"kind", "tag"} & table.keys()) if "base" in table else ():
            yield f"{key!r} stands beside 'base', which says what it is; leave one of them out"
        for note, type_ in _NOTES.items():
            value = table.get(note, type_())
            if not _is(type_, value):
                yield f"{note!r} is {_TYPES[type_]}, not {value!r}"
            elif note == "source":
                unknown = [key for key in value if key not in self.sources]
                yield from (f"unknown source {key!r}{did_you_mean(key, self.sources)}" for key in unknown)
            elif note == "confidence" and value not in ("", *_CONFIDENCES):
                yield f"unknown confidence {value!r}{did_you_mean(value, _CONFIDENCES)}"

    def _row(self, name: str, table: Mapping[str, Any]) -> TagRow:
        """Make the row of a table that has no problems."""
        info = TagInfo(
            name=name,
            doc=table.get("doc", ""),
            sources=tuple(self.sources[key]["cite"] for key in table.get("source", ())),
            confidence=table.get("confidence", ""),
            aliases=tuple(f"{self.namespace}/{alias}" for alias in table.get("aliases", ())),
            is_abstract=table.get("abstract", False),
            file=self.path,
        )
        flat = {key: value for key, value in table.items() if key not in _NOTES}
        return TagRow(info, table.get("base"), flat)


def _is(type_: type, value: Any) -> bool:  # noqa: ANN401 - whatever a file holds
    is_of_texts = type_ is not list or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    return isinstance(value, type_) and is_of_texts
