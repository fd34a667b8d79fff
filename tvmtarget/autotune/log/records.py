"""The records of a tuning log: frozen values, one JSON object per line, identified by the digest of their content.

    target      a target, by its digest `tt1:`               alias    a name that was changed elsewhere
    workload    what was tuned, by its key `w1:`             pin      a candidate that a user fixed
    env         where it was measured, by its key `e1:`      retract  a line that is no longer valid
    trial       a candidate and its cost

A line is canonical JSON (RFC 8785 with ASCII keys): whole numbers only, so costs are in picoseconds, bytes or
microjoules, and no null, which means the same as an absent field. The last field `d` is the digest of all others: it
is identity and checksum, and makes writing a line twice harmless. Unknown fields are kept; a line of an unknown type or
of a newer version is kept unparsed.
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
    "PROGRAM_FORMATS",
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

# Statuses that are properties of the candidate; the other two are failures of the machine, and are tried again.
FAILURES: frozenset[Status] = frozenset(
    {"wrong_output", "build_error", "build_timeout", "run_error", "run_timeout", "over_limit", "rejected"}
)

# The format of candidates for whole programs by level: placements and settings. Those of kernels are their code
# generators'.
PROGRAM_FORMATS: Mapping[Level, str] = {"graph": "tvmtarget.placement/1", "executor": "tvmtarget.settings/1"}

# Names of the baselines that a build uses if the log has nothing better.
DEFAULTS = frozenset({"default", "preference"})

TIE = 3  # percent within which costs count as equal, so that the choice does not flip with noise

MAX_INT = 2**53 - 1  # whole numbers that JSON readers with floating-point numbers keep exactly
_MAX_DEPTH = 64
_PPB = 10**9

Amount: TypeAlias = Annotated[int, Field(ge=0, le=MAX_INT)]

_Costs: TypeAlias = Annotated[tuple[Amount, ...], Field(strict=False)]
_Object: TypeAlias = dict[str, object]


class _Part(Node):
    """A part of a line, which keeps unknown fields."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)


class Candidate(_Part):
    """What was tried: a format with its version, and a body that only users of the format interpret.

    Attributes:
        format: the name and version of the format, such as `tvmtarget.settings/1`.
        body: an object of whole numbers and words; anything with floating-point numbers is one text.
    """

    format: Annotated[str, Field(min_length=1)]
    body: object

    def model_post_init(self, _context: object) -> None:
        """Reject a body that a line cannot hold.

        Raises:
            TargetError: the body is None.
        """
        if self.body is None:
            raise TargetError("the body of a candidate is not null, which is the same as nothing; use an empty object")

    @cached_property
    def key(self) -> str:
        """`c1:` and a digest; equal candidates have equal keys."""
        return key_of("c1", {"format": self.format, "body": self.body})

    def __hash__(self) -> int:
        return hash(self.key)


class Baseline(_Part):
    """What a cost is compared with, measured in the same minutes.

    Attributes:
        name: what the baseline is; see `DEFAULTS`.
        costs: the cost of each repeat.
        identity: a digest of the code or the choices that the default stood for, different from that of later ones.
    """

    name: str = "default"
    costs: _Costs = Field(min_length=1)
    identity: Annotated[str, Field(min_length=1)] | None = None

    @property
    def default(self) -> str | None:
        """The identity of the default that this is, empty if unknown; None if it is no default."""
        return default_of(self.name, self.identity)


class Measurement(_Part):
    """The cost of a candidate, or how it failed.

    Attributes:
        status: how the trial ended.
        kind: `search` for a single look, `confirm` for repeated comparison by turns, or `estimate`.
        unit: picoseconds, bytes or microjoules; only times rank candidates.
        costs: the cost of each repeat, in `unit`.
        baseline: what the cost is compared with.
    """

    status: Status
    kind: Literal["search", "confirm", "estimate"] = "search"
    unit: Literal["ps", "B", "uJ"] = "ps"
    costs: _Costs = ()
    baseline: Baseline | None = None

    def model_post_init(self, _context: object) -> None:
        """Reject a successful measurement without a cost.

        Raises:
            TargetError: the status is `ok` and there are no costs.
        """
        if self.status == "ok" and not self.costs:
            raise TargetError("a measurement that is ok has at least one cost in 'costs'")

    @property
    def cost(self) -> int | None:
        """The median of the costs, the lower one of two; None if the candidate did not run."""
        return median_low(self.costs) if self.status == "ok" else None

    @property
    def ratio_ppb(self) -> int | None:
        """The cost over that of the baseline, in billionths; None if one of them is unknown."""
        return None if self.cost is None or self.baseline is None else _ratio(self.cost, self.baseline.costs)

    @property
    def rank(self) -> tuple[int, int] | None:
        """The rank among the candidates of one target, the least first; None without a time."""
        baseline = () if self.baseline is None else self.baseline.costs
        return rank_of(self.status, self.kind, self.unit, self.costs, baseline)


def digest_of(content: str) -> str:
    """Return the digest of a line.

    Args:
        content: the canonical JSON of the line without its digest.

    Returns:
        `d1:` and 32 hexadecimal digits.
    """
    return f"d1:{hashlib.sha256(content.encode()).hexdigest()[:32]}"


def default_of(name: str, identity: str | None) -> str | None:
    """Return the identity of the default that a baseline is.

    Args:
        name: the name of the baseline.
        identity: its identity.

    Returns:
        The identity, empty if unknown; None if the baseline is no default.
    """
    return (identity or "") if name in DEFAULTS else None


def rank_of(status: str, kind: str, unit: str, costs: Sequence[int], baseline: Sequence[int]) -> tuple[int, int] | None:
    """Return the rank of a measurement.

    Confirmed comes before searched before estimated; compared with a baseline before not compared; then the least cost.
    Bytes and energies are no times, by which candidates are ranked.

    Args:
        status: how the trial ended.
        kind: the kind of the measurement.
        unit: the unit of the costs.
        costs: the cost of each repeat.
        baseline: the costs of the baseline, empty if there is none.

    Returns:
        Trust and score; None if the candidate did not run, or its time was not measured.
    """
    if status != "ok" or unit != "ps":
        return None
    cost, trust = median_low(costs), 2 * ("confirm", "search", "estimate").index(kind)
    ratio = _ratio(cost, baseline) if baseline else None
    return (trust, ratio) if ratio is not None else (trust + 1, cost)


def _ratio(cost: int, baseline: Sequence[int]) -> int | None:
    divisor = median_low(baseline)
    return cost * _PPB // divisor if divisor else None


class Record(_Part):
    """One line of a log."""

    type: ClassVar[str]
    version: ClassVar[int] = 1

    @cached_property
    def text(self) -> str:
        """The canonical spelling of the line, without its line end."""
        return f'{self._content[:-1]},"d":"{self.digest}"}}'

    @cached_property
    def digest(self) -> str:
        """`d1:` and a digest of the content of the line."""
        return digest_of(self._content)

    @cached_property
    def _content(self) -> str:
        flat = self.model_dump(by_alias=True, exclude_none=True)
        check_json(flat, 0)
        return canonical(flat | {"t": self.type, "v": self.version})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


class TargetRecord(Record):
    """A target: its digest, the identity that the digest is computed from, and its origin."""

    type = "target"

    key: str
    body: _Object
    meta: _Object | None = None

    def model_post_init(self, _context: object) -> None:
        """Reject a key that is not that of the body."""
        _check_key(self.key, f"tt1:{hashlib.sha256(canonical(self.body).encode()).hexdigest()}", "target")


class Workload(Record):
    """What is tuned: a body in which `shapes` is the only part that differs within a family.

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
        """Reject keys that are not those of the body."""
        whole = {**self.body, "level": self.level}
        check_json(whole, 0)
        _check_key(self.key, key_of("w1", whole), "workload")
        _check_key(self.family, key_of("wf1", whole | _ranks(self.body)), "family of a workload")

    @classmethod
    def of(cls, body: Mapping[str, object], level: Level = "kernel", payload: _Object | None = None) -> Workload:
        """Return the workload of a body.

        Args:
            body: names, numbers and lists; the sizes are in `shapes`, a list of lists.
            level: `kernel` for a kernel, `graph` or `executor` for a whole program.
            payload: data that does not identify the workload, such as a program.

        Returns:
            The workload with its keys.
        """
        whole = {**body, "level": level}
        check_json(whole, 0)
        family = key_of("wf1", whole | _ranks(body))
        return cls(key=key_of("w1", whole), level=level, family=family, body=dict(body), payload=payload)

    @property
    def shapes(self) -> tuple[tuple[object, ...], ...]:
        """The sizes, one tuple for each tensor."""
        return tuple(tuple(shape) for shape in _shapes(self.body))


class Environment(Record):
    """Where something was measured: versions of the software, the system, the machine."""

    type = "env"

    key: str
    body: _Object

    def model_post_init(self, _context: object) -> None:
        """Reject a key that is not that of the body."""
        check_json(self.body, 0)
        _check_key(self.key, key_of("e1", self.body), "environment")

    @classmethod
    def of(cls, body: Mapping[str, object]) -> Environment:
        """Return the environment of a body.

        Args:
            body: values by their names.

        Returns:
            The environment with its key.
        """
        check_json(dict(body), 0)
        return cls(key=key_of("e1", body), body=dict(body))


class Trial(Record):
    """A candidate for a workload on a target, and its cost.

    Attributes:
        requires: a constraint on targets on which the candidate is legal. Without it, these are the targets with at
            least the instructions and capacities of the target that it was measured on.
        search: how the candidate was found.
        src: the record of another tool that the trial was imported from.
        ts: when it was measured, in seconds since 1970.
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
        """The constraint in `requires`; an error of the grammar if it cannot be parsed."""
        return None if self.requires is None else Constraint.from_json(self.requires)


class Pin(Record):
    """A candidate that is used for a workload on a target in spite of measurements; the latest pin wins."""

    type = "pin"

    level: Level
    workload: str
    target: str
    candidate: Candidate = Field(alias="cand")
    why: str
    ts: Amount = 0


class Retraction(Record):
    """The digest of a line that is no longer valid, and the reason."""

    type = "retract"

    of: str
    why: str
    by: str | None = None


class Alias(Record):
    """The new name of an attribute, a tag, or an instruction of a trace."""

    type = "alias"

    kind: Literal["attr", "tag", "inst"]
    old: str
    new: str


class Foreign(Record):
    """A line that this version cannot interpret, kept byte for byte."""

    type = ""

    line: str

    def model_post_init(self, _context: object) -> None:
        """Reject text with several lines.

        Raises:
            TargetError: there is a line end.
        """
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


def _check_key(key: str, computed: str, what: str) -> None:
    if key != computed:
        raise TargetError(f"the key of this {what} is {computed!r}, not {shown(key)}")


def _shapes(body: Mapping[str, object]) -> list[list[object]]:
    shapes = body.get("shapes", [])
    if not isinstance(shapes, list | tuple) or not all(isinstance(shape, list | tuple) for shape in shapes):
        raise TargetError(f"'shapes' of a workload is a list of lists of sizes, not {shown(shapes)}")
    return [list(shape) for shape in shapes]


def _ranks(body: Mapping[str, object]) -> dict[str, object]:
    return {"shapes": [len(shape) for shape in _shapes(body)]} if "shapes" in body else {}


def check_json(value: object, depth: int) -> None:
    """Check that a value has exactly one spelling as JSON.

    Args:
        value: the value.
        depth: how deep it is nested already.

    Raises:
        TargetError: it holds floats, null, large numbers, names that are not ASCII, or other types.
    """
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
