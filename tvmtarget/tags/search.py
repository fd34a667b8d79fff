"""Search for tags by words: names without their vendor, short forms, parts of names, and words of descriptions.

Words and names are compared by their runs of letters and of digits, so that `rpi4` finds `raspberry-pi/4b`, and
`c5.4xlarge` does not find `c5.24xlarge`. A tag is found if it matches all words; the levels of a match, best first:

1. the words together are the name or an alias of the tag; then, its last part (`jetson nano` is `nvidia/jetson-nano`);
2. each is a part of the name; then, a part up to a change between letters and digits (`c5` in `c5n`);
3. each is a word of the description, or of what the tag and those that it is based on state: models, counts, tags,
   names of devices;
4. each begins a part of the name; then, a word of the description;
5. each occurs anywhere. Such tags are listed only if there is no better one.

A number of devices, as in `8x h100`, is sought in the counts that tags state and in their descriptions, not in names;
without such a tag, those of the device are listed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from tvmtarget.errors import TargetError
from tvmtarget.tags.files import TagInfo
from tvmtarget.tags.registry import Registry, default_registry
from tvmtarget.target.argument_types import check_arguments
from tvmtarget.target.problems import shown

__all__ = ["closest_tags", "same_boards", "search_tags"]

# Short forms of names: of Linux (`bcm2711-rpi-4-b.dts`), of Buildroot and Yocto (`raspberrypi4`), of TVM (`rasp4b`),
# and of the makers of Banana Pi (`BPI-F3`) and Orange Pi (`OPi 5`).
_SHORT_FORMS = {
    "rpi": "raspberry pi",
    "rasp": "raspberry pi",
    "raspi": "raspberry pi",
    "raspberrypi": "raspberry pi",
    "bpi": "bananapi",
    "opi": "orangepi",
    "gpus": "gpu",
}

# Descriptions spell numbers of devices, as in "eight H100".
_NUMERALS = {"2": "two", "3": "three", "4": "four", "6": "six", "8": "eight", "16": "sixteen"}

# Fields of rows that words can name.
_STATED = frozenset({"model", "mcpu", "arch", "count", "tag"})

_CONFIGURATIONS = "config"

_EXACT, _LAST_PART, _PART, _RUN, _WORD, _PREFIX, _PREFIX_OF_WORD, _ANYWHERE, _NOT = range(9)

# Numbers of devices as people write them: `8x h100`, `8xh100`, `h100 x8`; but `4xlarge` is a size of EC2.
_TIMES = re.compile(r"([0-9]{1,3})x|x([0-9]{1,3})")
_TIMES_NAME = re.compile(r"([0-9]{1,3}x)([^\W\d_]+[0-9].*)")

_RUNS = re.compile(r"[^\W\d_]+|\d+")
_PARTS = re.compile(r"[^\W_]+")


@check_arguments
def search_tags(
    words: str | Iterable[str], *, registry: Registry | None = None, among: Iterable[str] | None = None
) -> tuple[str, ...]:
    """Find tags by words of their names and descriptions.

    Args:
        words: Words in any order, or a text of words; without words, all tags match, in the order of `among`.
        registry: The registry of tags; by default that of this process, which `Target.parse` uses.
        among: Names of the tags to search; by default all that the registry lists, and the configurations `config/*`.

    Returns:
        The names of the tags that match all words, best first.

    Raises:
        TargetError: A word has no letters or digits.

    >>> search_tags("jetson nano")[0], search_tags(["rpi5"])[0]
    ('nvidia/jetson-nano', 'raspberry-pi/5')
    """
    query = _read_words(words)
    registry = default_registry() if registry is None else registry
    searched = _searched(registry) if among is None else among
    if not query:
        return tuple(searched)
    whole = _whole(query)
    # The words in their order, as they are spelled and with short forms written out.
    phrase = [_spaced(run for word in query for run in word.spellings[at]) for at in (0, 1)]
    stated: dict[str, Mapping[str, str]] = {}
    found: list[tuple[_Rank, str]] = []
    for name in searched:
        info = registry.info(name)
        level = _level_of_name(whole, info)
        levels: list[int] = []
        names = " ".join((name, *info.aliases)).lower()
        facts = _stated(registry, name, stated)
        described = f"{info.doc} {info.same_as} {' '.join(facts.values())}".lower()
        # Most tags lack a word, which is found without splitting their texts.
        if level == _NOT and all(word.may_occur(names, described) for word in query):
            counts = {value for path, value in facts.items() if path.rpartition("/")[2] == "count"}
            levels = _levels(query, names, described, counts)
            level = max(levels)
        if level < _NOT:
            is_phrase = any(form in _spaced(_RUNS.findall(names)) for form in phrase)
            found.append((_Rank(level, not is_phrase, sum(levels), *_order(name)), name))
    best = min((rank.level for rank, _ in found), default=_NOT)
    return tuple(name for rank, name in sorted(found) if rank.level < _ANYWHERE or best == _ANYWHERE)


def closest_tags(registry: Registry, words: str | Iterable[str], *, limit: int = 3) -> tuple[str, ...]:
    """Find the tags whose names resemble words that match none.

    Args:
        registry: The registry of tags.
        words: As for `search_tags`.
        limit: The maximum number of tags.

    Returns:
        The names, most similar first.
    """
    by_key: dict[str, str] = {}
    for name in _searched(registry):
        for key in (_compact(name.partition("/")[2]), _compact(name)):
            by_key.setdefault(key, name)
    near = (
        key
        for text in _whole(_read_words(words))
        for key in difflib.get_close_matches(text, by_key, n=limit, cutoff=0.6)
    )
    return tuple(dict.fromkeys(by_key[key] for key in near))[:limit]


def same_boards(registry: Registry, names: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Find other names of the boards and chips of tags.

    Args:
        registry: The registry of tags.
        names: Names of tags.

    Returns:
        For each tag those that state to be the same board (`same-as` in their files), and its aliases that are not
        only another spelling of its name.
    """
    groups: dict[str, list[str]] = {}
    for name, board in registry.boards().items():
        groups.setdefault(board, [board]).append(name)
    return {name: tuple(_same_boards(registry.info(name), groups)) for name in names}


def _same_boards(info: TagInfo, groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    last = _compact(info.name.rpartition("/")[2])
    yield from (name for name in groups.get(info.same_as or info.name, ()) if name != info.name)
    yield from (alias for alias in info.aliases if _compact(alias.rpartition("/")[2]) != last)


def _searched(registry: Registry) -> list[str]:
    return sorted([*registry, *registry.abstract(_CONFIGURATIONS)])


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a query in lower case, and its spellings as runs of letters and digits.

    The first spelling is the user's, the second one has short forms written out, and others spell a number.
    `is_count` says that the word can only be a number of devices, as in `8x`.
    """

    text: str
    spellings: tuple[tuple[str, ...], ...]
    is_count: bool = False

    def may_occur(self, names: str, described: str) -> bool:
        """Whether all runs of a spelling occur somewhere: a necessary condition for a match, but for counts."""
        return self.is_count or any(all(run in names or run in described for run in runs) for runs in self.spellings)

    def level(self, parts: str, runs: str, words: str, names: str, described: str, counts: Set[str]) -> int:
        """Return how well the word matches a tag, by its names as parts and as runs, and its description as runs."""
        if self.is_count:
            numbers = (number for (number,) in self.spellings[2:])
            is_stated = any(one in counts or (one.isalpha() and _spaced([one]) in words) for one in numbers)
            return _WORD if is_stated else _ANYWHERE
        if _spaced(_PARTS.findall(self.text)) in parts:
            return _PART
        whole = [_spaced(spelling) for spelling in self.spellings]
        if any(spelling in runs for spelling in whole):
            return _RUN
        if any(spelling in words for spelling in whole):
            return _WORD
        begins = [spelling[:-1] for spelling in whole]
        if any(spelling in runs for spelling in begins):
            return _PREFIX
        if any(spelling in words for spelling in begins):
            return _PREFIX_OF_WORD
        return _ANYWHERE if self.text in names or self.text in described else _NOT


@dataclass(frozen=True, slots=True, order=True)
class _Rank:
    """Order of a tag among those found.

    The level of its worst word decides, then whether its name has the words in their order, the sum of the levels, the
    length of its name, and the name.
    """

    level: int
    is_scattered: bool
    total: int
    length: int
    name: tuple[tuple[bool, int, str], ...]


def _level_of_name(whole: Sequence[str], info: TagInfo) -> int:
    """Return whether all words together are a name of a tag, or the last part of one."""
    names = (info.name, *info.aliases)
    if any(_compact(name) in whole for name in names):
        return _EXACT
    return _LAST_PART if any(_compact(name.rpartition("/")[2]) in whole for name in names) else _NOT


def _levels(query: Sequence[_Word], names: str, described: str, counts: Set[str]) -> list[int]:
    parts, runs, words = (
        _spaced(_PARTS.findall(names)),
        _spaced(_RUNS.findall(names)),
        _spaced(_RUNS.findall(described)),
    )
    return [word.level(parts, runs, words, names, described, counts) for word in query]


def _order(name: str) -> tuple[int, tuple[tuple[bool, int, str], ...]]:
    """Return the sort key of names that match equally well: shorter ones first, and numbers by their values."""
    runs = _RUNS.findall(name)
    return len(runs), tuple((run.isdecimal(), int(run) if run.isdecimal() else 0, run) for run in runs)


def _read_words(words: str | Iterable[str]) -> tuple[_Word, ...]:
    given = [word.lower().replace("\u00d7", "x") for word in (words.split() if isinstance(words, str) else words)]
    lowered = [part for word in given for part in (_split(_TIMES_NAME.fullmatch(word)) or (word,))]
    read: list[_Word] = []
    for at, text in enumerate(lowered):
        if text == "x" and at and lowered[at - 1].isdecimal():
            continue  # `8 x h100`
        runs = tuple(_RUNS.findall(text))
        if not runs:
            raise TargetError(f"a word to search for has letters or digits, not {shown(text)}")
        long = tuple(" ".join(_SHORT_FORMS.get(run, run) for run in runs).split())
        is_count = bool(lowered[1:] and _TIMES.fullmatch(text)) or (
            text.isdecimal() and lowered[at + 1 : at + 2] == ["x"]
        )
        (times,) = _split(_TIMES.fullmatch(text) if is_count else None) or (text,)
        counts = [
            (number,) for number in (times, _NUMERALS.get(times)) if number is not None and (is_count or number != text)
        ]
        read.append(_Word(text, (runs, long, *counts), is_count))
    return tuple(read)


def _split(match: re.Match[str] | None) -> tuple[str, ...]:
    """Return the groups that took part in a match."""
    return () if match is None else tuple(group for group in match.groups() if group is not None)


def _whole(query: Sequence[_Word]) -> tuple[str, ...]:
    """Return a query as one name, as it is spelled and with its short forms written out."""
    return tuple(dict.fromkeys("".join(run for word in query for run in word.spellings[at]) for at in (0, 1)))


def _stated(registry: Registry, name: str, known: dict[str, Mapping[str, str]]) -> Mapping[str, str]:
    """Collect what the rows of a tag and of its bases state, and the descriptions of the bases, by path."""
    if name not in known:
        known[name] = {}  # bases that form a cycle end here; the tags are reported where they are built
        row = registry.find_row(name)
        if row is not None:
            below: dict[str, str] = {}
            if row.base is not None:
                base = row.base.partition(":")[0]
                info = registry.find_info(base)
                below = {**_stated(registry, base, known), f"base {base}": f"{base} {info.doc if info else ''}"}
            known[name] = {**below, **dict(_facts(row.flat, ""))}
    return known[name]


def _facts(flat: Mapping[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in flat.items():
        if key.rpartition("/")[2] in _STATED and isinstance(value, str | int):
            yield prefix + key, str(value)
        elif key == "targets" and isinstance(value, list | tuple):
            for child in value:
                if isinstance(child, Mapping):
                    name = child.get("name", child.get("kind", ""))
                    yield f"{prefix}{name}", str(name)
                    yield from _facts(child, f"{prefix}{name}/")


def _compact(name: str) -> str:
    return "".join(_PARTS.findall(name.lower()))


def _spaced(items: Iterable[str]) -> str:
    """Join items so that a space is before and after each of them."""
    return f" {' '.join(items)} "
