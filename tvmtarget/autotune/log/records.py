"""The lines of a tuning log: frozen values, one JSON object each, known by the digest of what they say.

    target      a target, by its digest `tt1:`               alias    a name that was changed elsewhere
    workload    what was tuned, by its key `w1:`             pin      a choice that people made
    env         where it was measured, by its key `e1:`      retract  a line that no longer counts
    trial       a candidate and what it cost

A line is canonical JSON (RFC 8785 with ASCII keys): whole numbers only, so costs are in picoseconds, bytes or
microjoules, and no null, which is the same as nothing. `d` stands last and is the digest of all the rest: identity,
checksum, and why writing a line twice changes nothing. Fields that this version does not know are kept; a line of an
unknown type or of a newer version is kept as it is, unread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import median_low
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, Field

from tvmtarget.errors import TargetError
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.identity import canonical
from tvmtarget.target.keys import View, key_of
from tvmtarget.target.node import Node
from tvmtarget.target.problems import shown

__all__ = [
    "DEFAULTS",
    "FAILURES",
    "MAX_INT",
    "TIE",
    "Alias",
    "Amount",
    "Baseline",
    "Candidate",
    "Environment",
    "Foreign",
    "Level",
    "Measurement",
    "Pin",
    "Record",
    "Retraction",
    "Status",
    "TargetRecord",
    "Trial",
    "Workload",
    "check_json",
    "default_of",
    "digest_of",
    "rank_of",
]

Level: TypeAlias = View
Status: TypeAlias = Literal[
    "ok",
    "wrong_output",
    "build_error",
    "build_timeout",
    "run_error",
    "run_timeout",
    "over_limit",
    "rejected",
    "infra_error",
    "cancelled",
]

# What says something about the candidate; the other two say something about the machine, and are tried again.
FAILURES: frozenset[Status] = frozenset(
    {"wrong_output", "build_error", "build_timeout", "run_error", "run_timeout", "over_limit", "rejected"}
)

# What baselines are called that are used where a log knows nothing better.
DEFAULTS = frozenset({"default", "preference"})

TIE = 3  # percent within which costs count as equal, so that the oldest stays

MAX_INT = 2**53 - 1  # whole numbers that every JSON reader keeps
_MAX_DEPTH = 64
_PPB = 10**9

Amount: TypeAlias = Annotated[int, Field(ge=0, le=MAX_INT)]

_Costs: TypeAlias = Annotated[tuple[Amount, ...], Field(strict=False)]
_Object: TypeAlias = dict[str, object]


class _Part(Node):
    """A part of a line; what it does not know it keeps."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)


class Candidate(_Part):
    """What was tried: a format with its version, and a body that only those who know the format read.

    Knobs are an object of whole numbers and words; anything with floats in it is one text.
    """

    format: Annotated[str, Field(min_length=1)]
    body: object

    def model_post_init(self, _context: object) -> None:
        """Refuse what a line does not keep."""
        if self.body is None:
            raise TargetError("the body of a candidate is not null, which is the same as nothing; use an empty object")

    @cached_property
    def key(self) -> str:
        """`c1:` and a digest: equal candidates have equal keys."""
        return key_of("c1", {"format": self.format, "body": self.body})

    def __hash__(self) -> int:
        return hash(self.key)


class Baseline(_Part):
    """What a cost is compared with, measured in the same minutes.

    `identity` tells one default from a later one: a digest of the code or the choices that it stood for that day.
    """

    name: str = "default"
    costs: _Costs = Field(min_length=1)
    identity: Annotated[str, Field(min_length=1)] | None = None

    @property
    def default(self) -> str | None:
        """The identity of the default that this is, empty where it is not told; None if it is no default."""
        return default_of(self.name, self.identity)


class Measurement(_Part):
    """What a candidate cost: each repeat, in `unit`; and what the baseline cost beside it.

    `kind` says how it was had: one look while searching, confirmed by repeated comparison, or estimated.
    """

    status: Status
    kind: Literal["search", "confirm", "estimate"] = "search"
    unit: Literal["ps", "B", "uJ"] = "ps"
    costs: _Costs = ()
    baseline: Baseline | None = None

    def model_post_init(self, _context: object) -> None:
        """Refuse what is measured without a cost."""
        if self.status == "ok" and not self.costs:
            raise TargetError("a measurement that is ok has at least one cost in 'costs'")

    @property
    def cost(self) -> int | None:
        """The median of the costs, the lower one of two; None where nothing ran."""
        return median_low(self.costs) if self.status == "ok" else None

    @property
    def ratio_ppb(self) -> int | None:
        """The cost over that of the baseline, in billionths; None where one of them is not known."""
        return None if self.cost is None or self.baseline is None else _ratio(self.cost, self.baseline.costs)

    @property
    def rank(self) -> tuple[int, int] | None:
        """How good it is among those of one device, the least first; None for what never ran."""
        return rank_of(self.status, self.kind, self.costs, () if self.baseline is None else self.baseline.costs)


def digest_of(said: str) -> str:
    """Return the digest of all that a line says, the line without its end."""
    return f"d1:{hashlib.sha256(said.encode()).hexdigest()[:32]}"


def default_of(name: str, identity: str | None) -> str | None:
    """Return the identity of a default by the parts of a baseline, empty if it is not told; None if it is another."""
    return (identity or "") if name in DEFAULTS else None


def rank_of(status: str, kind: str, costs: Sequence[int], baseline: Sequence[int]) -> tuple[int, int] | None:
    """Return the rank of a measurement by its parts.

    Confirmed before seen once before estimated; compared with a baseline before bare; then by what it cost.
    """
    if status != "ok":
        return None
    cost, trust = median_low(costs), 2 * ("confirm", "search", "estimate").index(kind)
    ratio = _ratio(cost, baseline) if baseline else None
    return (trust, ratio) if ratio is not None else (trust + 1, cost)


def _ratio(cost: int, baseline: Sequence[int]) -> int | None:
    beside = median_low(baseline)
    return cost * _PPB // beside if beside else None


class Record(_Part):
    """One line of a log."""

    type: ClassVar[str]
    version: ClassVar[int] = 1

    @cached_property
    def text(self) -> str:
        """The line in its one spelling, without the end of the line."""
        said = self._said
        return f'{said[:-1]},"d":"{self.digest}"}}'

    @cached_property
    def digest(self) -> str:
        """`d1:` and a digest of all that the line says."""
        return digest_of(self._said)

    @cached_property
    def _said(self) -> str:
        flat = self.model_dump(by_alias=True, exclude_none=True)
        check_json(flat, 0)
        return canonical(flat | {"t": self.type, "v": self.version})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


class TargetRecord(Record):
    """A target: its digest, the identity that the digest is made of, and where it came from."""

    type = "target"

    key: str
    body: _Object
    meta: _Object | None = None

    def model_post_init(self, _context: object) -> None:
        """Refuse a key that is not the body's."""
        _check_key(self.key, f"tt1:{hashlib.sha256(canonical(self.body).encode()).hexdigest()}", "target")


class Workload(Record):
    """What is tuned: a body whose `shapes` are the only part that a family leaves open.

    >>> Workload.of({"op": "matmul", "shapes": [[128, 128, 128]], "dtype": "float32"}).key
    'w1:60f0f9d955ea43984095950f9038e3e0'
    """

    type = "workload"

    key: str
    level: Level
    family: str
    body: _Object
    payload: _Object | None = None

    def model_post_init(self, _context: object) -> None:
        """Refuse keys that are not the body's."""
        whole = {**self.body, "level": self.level}
        check_json(whole, 0)
        _check_key(self.key, key_of("w1", whole), "workload")
        _check_key(self.family, key_of("wf1", whole | _ranks(self.body)), "family of a workload")

    @classmethod
    def of(cls, body: Mapping[str, object], level: Level = "kernel", payload: _Object | None = None) -> Workload:
        """Return the workload of a body: names, numbers and lists, its sizes in `shapes`, a list of lists."""
        whole = {**body, "level": level}
        check_json(whole, 0)
        family = key_of("wf1", whole | _ranks(body))
        return cls(key=key_of("w1", whole), level=level, family=family, body=dict(body), payload=payload)

    @property
    def shapes(self) -> tuple[tuple[object, ...], ...]:
        """The sizes, one list for each tensor."""
        return tuple(tuple(shape) for shape in _shapes(self.body))


class Environment(Record):
    """Where something was measured: versions of what built it, the system, the machine."""

    type = "env"

    key: str
    body: _Object

    def model_post_init(self, _context: object) -> None:
        """Refuse a key that is not the body's."""
        check_json(self.body, 0)
        _check_key(self.key, key_of("e1", self.body), "environment")

    @classmethod
    def of(cls, body: Mapping[str, object]) -> Environment:
        """Return the environment that a body describes."""
        check_json(dict(body), 0)
        return cls(key=key_of("e1", body), body=dict(body))


class Trial(Record):
    """A candidate for a workload on a target, and what it cost there.

    `requires` is a constraint on targets where the candidate is legal; without it, those with at least the
    instructions and capacities of the target that it was measured on.
    """

    type = "trial"

    level: Level
    workload: str
    target: str
    env: str | None = None
    candidate: Candidate = Field(alias="cand")
    requires: _Object | None = None
    measured: Measurement = Field(alias="m")
    search: _Object | None = None
    src: object = None
    ts: Amount | None = None

    @property
    def needs(self) -> Constraint | None:
        """The constraint in `requires`; an error of the grammar where it cannot be read."""
        return None if self.requires is None else Constraint.from_json(self.requires)


class Pin(Record):
    """A candidate that is taken for a workload on a target whatever was measured; the latest counts."""

    type = "pin"

    level: Level
    workload: str
    target: str
    candidate: Candidate = Field(alias="cand")
    why: str
    ts: Amount = 0


class Retraction(Record):
    """A line that no longer counts, by its digest, and why."""

    type = "retract"

    of: str
    why: str
    by: str | None = None


class Alias(Record):
    """A name that has another one today: of an attribute, a tag, or an instruction of a trace."""

    type = "alias"

    kind: Literal["attr", "tag", "inst"]
    old: str
    new: str


class Foreign(Record):
    """A line that this version cannot read, kept byte for byte."""

    type = ""

    line: str

    def model_post_init(self, _context: object) -> None:
        """Refuse what would be several lines."""
        if "\n" in self.line:
            raise TargetError(f"a line has no line ends in it, unlike {shown(self.line)}")

    @cached_property
    def text(self) -> str:
        """The line as it was read."""
        return self.line

    @cached_property
    def digest(self) -> str:
        """`d0:` and a digest of the line's bytes."""
        return f"d0:{hashlib.sha256(self.line.encode()).hexdigest()[:32]}"


def _check_key(given: str, computed: str, what: str) -> None:
    if given != computed:
        raise TargetError(f"the key of this {what} is {computed!r}, not {shown(given)}")


def _shapes(body: Mapping[str, object]) -> list[list[object]]:
    shapes = body.get("shapes", [])
    if not isinstance(shapes, list | tuple) or not all(isinstance(shape, list | tuple) for shape in shapes):
        raise TargetError(f"'shapes' of a workload is a list of lists of sizes, not {shown(shapes)}")
    return [list(shape) for shape in shapes]


def _ranks(body: Mapping[str, object]) -> dict[str, object]:
    return {"shapes": [len(shape) for shape in _shapes(body)]} if "shapes" in body else {}


def check_json(value: object, depth: int) -> None:
    """Refuse what has not one spelling as JSON: floats, null, large numbers, names that are not ASCII, other types."""
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise TargetError(f"a record holds text without halves of surrogate pairs, not {shown(value)}")
    elif isinstance(value, int):
        if abs(value) > MAX_INT:
            raise TargetError(f"a record holds whole numbers below 2**53, not {shown(value)}")
    elif not isinstance(value, dict | list | tuple):
        raise TargetError(
            f"a record holds whole numbers, words, lists and objects, not {shown(value)}; put it in a text"
        )
    elif depth > _MAX_DEPTH:
        raise TargetError(f"a record is at most {_MAX_DEPTH} levels deep")
    else:
        if isinstance(value, dict):
            for name in value:
                if not isinstance(name, str) or not name.isascii():
                    raise TargetError(f"names in a record are ASCII, not {shown(name)}")
        for item in value.values() if isinstance(value, dict) else value:
            check_json(item, depth + 1)
