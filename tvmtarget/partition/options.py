"""The options of a decomposition: one model behind `decompose`, the command line, plan files and the documentation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypedDict, cast, get_args

from pydantic import BeforeValidator, Field
from pydantic_core import CoreSchema, core_schema

from tvmtarget.errors import TargetError, TvmTargetError, did_you_mean, raise_all
from tvmtarget.partition.costs.cost_file import load_costs, write_costs
from tvmtarget.partition.costs.costs import Costs
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.node import Node
from tvmtarget.target.problems import shown

if TYPE_CHECKING:
    from tvmtarget.target.tree import Target

__all__ = [
    "CONSTANTS",
    "OBJECTIVES",
    "Constants",
    "Objective",
    "OpGroups",
    "OptionValues",
    "PartitionOptions",
    "is_group",
]

Objective: TypeAlias = Literal["latency", "throughput"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

Constants: TypeAlias = Literal["bind", "lift", "share"]
CONSTANTS: tuple[Constants, ...] = get_args(Constants)

# Groups of operations, each named as in `where`: by name, glob or `op:KIND`.
OpGroups: TypeAlias = tuple[tuple[str, ...], ...]


class _Instance:
    """Marks a class whose instances are valid as they are.

    Pydantic's own `InstanceOf` also builds the schema of the class, which takes longer than a whole small plan.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type, _handler: object) -> CoreSchema:
        return core_schema.is_instance_schema(source)


def _where(rules: object) -> dict[str, Constraint]:
    if rules is not None and not isinstance(rules, Mapping):
        raise TargetError(f"where is constraints by name, such as {{'op:TopK': '@cpu'}}, not {shown(rules)}")
    for key in rules or {}:
        if not isinstance(key, str):
            raise TargetError(f"where names ops by name, glob or 'op:KIND', not by {shown(key)}")
    found: dict[str, Constraint] = {}
    problems: dict[str, type[TvmTargetError]] = {}
    for key, value in (rules or {}).items():
        try:
            found[key] = Constraint.parse(value)
        except TvmTargetError as error:
            problems |= {f"{problem} (in where {key!r})": type(error) for problem in error.problems}
    for kind in problems.values():
        raise kind(*problems)
    return found


def _costs(costs: Any) -> Costs | None:  # noqa: ANN401 - load_costs reads many forms
    return None if costs is None else load_costs(costs)


def _one_of(name: str, words: tuple[object, ...], *, may_be_none: bool = False) -> BeforeValidator:
    def check(value: object) -> object:
        is_word = value in words and isinstance(value, type(words[0]))  # 0 equals False
        if not is_word and not (may_be_none and value is None):
            raise TargetError(f"{name} is {' or '.join(map(str, words))}, not {value!r}")
        return value

    return BeforeValidator(check)


def _op_names(name: str, wanted: str = "names of ops, such as ['q', 'k']") -> BeforeValidator:
    def check(names: object) -> tuple[str, ...]:
        if isinstance(names, str | Mapping) or not isinstance(names, Iterable):
            raise TargetError(f"{name} is {wanted}, so that {shown(names)} is none")
        listed = tuple(names)
        odd = [f"{name} is {wanted}, so that {shown(one)} is none" for one in listed if not isinstance(one, str)]
        raise_all(TargetError, odd)
        return listed

    return BeforeValidator(check)


def is_group(names: Collection[str]) -> bool:
    """Return whether names can be those of several operations.

    Args:
        names: names as in `where`.

    Returns:
        True for several names, and for a glob or `op:KIND`, which these letters make of a name.
    """
    return len(set(names)) > 1 or any(letter in name for name in names for letter in "*?[:")


def _op_groups(name: str) -> BeforeValidator:
    wanted = "groups of names of ops, such as [['q', 'k']]"
    check_names = _op_names(name, wanted).func

    def check(groups: object) -> OpGroups:
        if isinstance(groups, str | Mapping) or not isinstance(groups, Iterable):
            raise TargetError(f"{name} is {wanted}, not {shown(groups)}")
        listed = tuple(check_names(group) for group in groups)  # type: ignore[call-arg]
        # An empty group requires nothing, and says so.
        alone = [group for group in listed if group and not is_group(group)]
        raise_all(TargetError, [f"{name} is {wanted}, and {list(group)} names one op" for group in alone])
        return listed

    return BeforeValidator(check)


def _counts(numbers: object) -> dict[str, int]:
    if numbers is not None and not isinstance(numbers, Mapping):
        raise TargetError(f"max_subgraphs is numbers by site, such as {{'npu': 4}}, not {shown(numbers)}")
    for site, number in (numbers or {}).items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise TargetError(f"max_subgraphs of {site!r} is a number, 0 or more, not {shown(number)}")
    return dict(numbers or {})


def _replicas(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise TargetError(f"max_replicas is a number, 1 or more, not {shown(number)}")
    return number


class PartitionOptions(Node):
    """What a decomposition is required to do, beside the module and the target.

    Every field is an argument of `decompose`, an option of the command line (`same_site` is `--same-site`), and a key
    of a plan file (`max_subgraphs` is `max_regions` there). Validation turns lists into tuples and texts into
    constraints.
    """

    where: Annotated[Mapping[str, Annotated[Constraint, _Instance]], BeforeValidator(_where)] = Field(
        default_factory=dict,
        description="Constraints by name or glob of operations (`decoder.*`), by operator (`op:TopK`), or by function, "
        "for all operations in it (`features`, or `function:features`); the last matching rule applies.",
    )
    costs: Annotated[Annotated[Costs, _Instance] | None, BeforeValidator(_costs)] = Field(
        default=None,
        description="Times of operations and copies: data, a JSON file, or `roofline`, the target's own facts. Sites "
        "are then chosen by time among those that constraints allow; without costs the first of them is chosen.",
    )
    objective: Annotated[Objective, _one_of("objective", OBJECTIVES)] = Field(
        default="latency",
        description="What costs minimise: `latency`, the time of one input, or `throughput`, the work of the busiest "
        "machine of a cluster for each of many inputs.",
    )
    max_replicas: Annotated[int, BeforeValidator(_replicas)] = Field(
        default=1,
        description="The most machines of a cluster that run the same operations, each for some of the inputs, if the "
        "objective is `throughput`: equal machines that would be idle otherwise.",
    )
    same_site: Annotated[OpGroups, _op_groups("same_site")] = Field(
        default=(), description="Groups of operations that share a leaf, named as in `where`."
    )
    apart: Annotated[OpGroups, _op_groups("apart")] = Field(
        default=(), description="Groups of operations of which no two share a leaf."
    )
    atomic: Annotated[OpGroups, _op_groups("atomic")] = Field(
        default=(), description="Groups of operations that are in one function."
    )
    boundary_before: Annotated[tuple[str, ...], _op_names("boundary_before")] = Field(
        default=(), description="Operations that are never in one function with what they read."
    )
    boundary_after: Annotated[tuple[str, ...], _op_names("boundary_after")] = Field(
        default=(), description="Operations that are never in one function with what reads them."
    )
    max_subgraphs: Annotated[Mapping[str, int], BeforeValidator(_counts)] = Field(
        default_factory=dict,
        description="The most subgraphs of a site (a path, kind or key); the smallest ones move elsewhere.",
    )
    fold_constants: Annotated[bool, _one_of("fold_constants", (True, False))] = Field(
        default=True,
        description="Whether operations whose results are known before the program runs become constants; those that "
        "another option names stay.",
    )
    constants: Annotated[Constants | None, _one_of("constants", CONSTANTS, may_be_none=True)] = Field(
        default=None,
        description="Weights: `bind` makes them parts of functions, `lift` makes them parameters, `share` lifts those "
        "that let one function serve several subgraphs; unless given, as each code generator declares.",
    )

    def model_post_init(self, _context: object) -> None:
        """Check what concerns several options.

        Raises:
            TargetError: for objective 'throughput' without costs of time, or replicas without that objective.
        """
        if self.objective == "throughput" and self.costs is None:
            raise TargetError("objective 'throughput' is about time, so it needs costs; pass some, such as 'roofline'")
        if self.objective == "throughput" and self.costs is not None and self.costs.is_energy:
            raise TargetError(
                "objective 'throughput' is about time, but the costs are energies (unit 'uJ'); use objective "
                "'latency', or costs in a unit of time, such as 'us'"
            )
        if self.max_replicas > 1 and self.objective != "throughput":
            raise TargetError(
                f"max_replicas is {self.max_replicas}, but replicas do not lower the latency of one input; use them "
                "with objective 'throughput'"
            )

    @classmethod
    def of(cls, **values: object) -> PartitionOptions:
        """Return the options that keyword arguments give.

        Args:
            **values: fields by name, in any form that they are read from.

        Returns:
            The options.

        Raises:
            TargetError: for an unknown name or a value that is not valid.
        """
        unknown = [name for name in values if name not in cls.model_fields]
        raise_all(TargetError, [f"unknown option {name!r}{did_you_mean(name, cls.model_fields)}" for name in unknown])
        return cls(**cast("dict[str, Any]", values))

    @property
    def named_ops(self) -> tuple[str, ...]:
        """Names of operations in all options but `where`."""
        groups = (*self.same_site, *self.apart, *self.atomic, self.boundary_before, self.boundary_after)
        return tuple(name for group in groups for name in group)

    def to_file(self) -> dict[str, Any]:
        """Return the options as they stand in a plan file, format tvmtarget.plan/1.

        Returns:
            JSON data; `max_subgraphs` has its key of that format, `max_regions`.
        """
        lists = ("same_site", "apart", "atomic")
        return {
            "where": {key: rule.to_json() for key, rule in self.where.items()},
            "costs": None if self.costs is None else write_costs(self.costs),
            "objective": self.objective,
            "max_replicas": self.max_replicas,
            **{name: [list(names) for names in getattr(self, name)] for name in lists},
            "boundary_before": list(self.boundary_before),
            "boundary_after": list(self.boundary_after),
            "max_regions": dict(self.max_subgraphs),
            "fold_constants": self.fold_constants,
            "constants": self.constants,
        }

    @classmethod
    def from_file(cls, data: Mapping[str, Any]) -> PartitionOptions:
        """Read the options of a plan file.

        Args:
            data: what `to_file` returned; options that an earlier version did not have may be absent.

        Returns:
            The options.

        Raises:
            TvmTargetError, KeyError: where `data` is no such thing, or has options that this version does not know.
        """
        names = {"max_regions" if name == "max_subgraphs" else name: name for name in cls.model_fields}
        unknown = [key for key in data if key not in names]
        raise_all(TargetError, [f"unknown option {key!r}{did_you_mean(key, names)}" for key in unknown])
        rules = {key: Constraint.from_json(rule) for key, rule in data["where"].items()}
        return cls(**{names[key]: value for key, value in data.items()} | {"where": rules})


class OptionValues(TypedDict, total=False):
    """The keyword arguments of `decompose`, for type checkers: what `PartitionOptions` reads of each but `costs`."""

    where: Mapping[str, Constraint | str | Target] | None
    objective: Objective
    max_replicas: int
    same_site: Iterable[Iterable[str]]
    apart: Iterable[Iterable[str]]
    atomic: Iterable[Iterable[str]]
    boundary_before: Iterable[str]
    boundary_after: Iterable[str]
    max_subgraphs: Mapping[str, int] | None
    fold_constants: bool
    constants: Constants | None
