"""Constraints on targets, as functions, calls and `where` rules state them.

    cuda                       a kind, then a key                 @rack/node0     a node of the tree, or below it
    llvm(num-cores>=4,+avx2)   attributes with operators          !gpu            negation
    cuda|llvm                  an ordered choice                  gpu?  gpu?10    preferred, not required
    gpu&@rack                  a conjunction                      !(cuda|llvm)    a group
    [gpu=cuda,llvm](executor=aot)      a system with different children for each; host, executor and runtime

The grammar is that of targets with operators (`target/text/grammar.py`). A tree meets a constraint if one of its nodes
does (`satisfaction.py`). An attribute that a target does not state makes the answer unknown, which counts as no unless
the caller chooses otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeAlias

from pydantic import Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from tvmtarget.errors import Problem, TargetError, TextError, raise_all
from tvmtarget.target.argument_types import check_arguments
from tvmtarget.target.constraints import from_target
from tvmtarget.target.constraints import json as constraint_json
from tvmtarget.target.constraints import text as constraint_text
from tvmtarget.target.constraints.conditions import Condition
from tvmtarget.target.constraints.contradictions import contradictions
from tvmtarget.target.constraints.node_context import NodeContext, known_words
from tvmtarget.target.constraints.reasons import Reason, Truth
from tvmtarget.target.constraints.satisfaction import meets
from tvmtarget.target.node import JsonNode
from tvmtarget.target.problems import shown
from tvmtarget.target.target_node import TargetNode
from tvmtarget.target.text.words import MAX_DEPTH, is_word
from tvmtarget.target.tree_paths import covers

__all__ = ["Condition", "Constraint", "Reason", "Truth", "covers", "known_words"]

_Part: TypeAlias = Literal["host", "executor", "runtime"]


class Constraint(JsonNode):
    """Requirement or preference on the target of a program; `Constraint.parse` reads one from text.

    Exactly one of `word` (a kind or key, with conditions, children, host, executor and runtime), `path` (a node),
    `any_of` (an ordered choice) and `all_of` (a conjunction) is set. `is_negated` inverts the constraint; a `weight`
    makes it a preference, which never excludes a target. `children` are pairs of a name, or None, and a constraint.
    """

    word: str | None = None
    conditions: tuple[Condition, ...] = ()
    children: tuple[tuple[str | None, Constraint], ...] = ()
    host: Constraint | None = None
    executor: Constraint | None = None
    runtime: Constraint | None = None
    path: str | None = None
    any_of: tuple[Constraint, ...] = ()
    all_of: tuple[Constraint, ...] = ()
    is_negated: bool = False
    weight: int | None = Field(default=None, ge=0)

    def model_post_init(self, _context: object) -> None:
        """Reject constraints without a meaning, and report all problems at once."""
        problems: list[str] = []
        if sum((self.word is not None, self.path is not None, bool(self.any_of), bool(self.all_of))) != 1:
            problems.append("a constraint is one of a word, a path, a choice and a conjunction")
        if self.word is None and (self.conditions or self.children or any(part for _, part in self.parts())):
            problems.append("conditions and children belong to a kind or a key")
        problems += [
            Problem(f"{shown(text)} is no {what}; use names, with '/' between them in a path", loc)
            for what, text, loc in (
                ("word", self.word, ("kind",)),
                ("path", self.path or None, ("path",)),
                *(("name", name, ("targets", at, "name")) for at, (name, _) in enumerate(self.children)),
            )
            if text is not None and not is_word(text)
        ]
        # A constraint that no target can meet is a mistake of its author: better found here than as "no target".
        problems += contradictions(self.conditions)
        names = Counter(name for name, _ in self.children if name is not None)
        twice = sorted(name for name, uses in names.items() if uses > 1)
        problems += [f"two children are called {shown(name)}" for name in twice]
        problems += self._misplaced_preferences()
        problems += [f"a constraint is nested deeper than {MAX_DEPTH} levels"] if self.depth > MAX_DEPTH else []
        raise_all(TargetError, problems)

    def _misplaced_preferences(self) -> Iterator[str]:
        if any(option.weight is not None for option in self.any_of):
            yield "a preference cannot be one option of a choice; prefer the choice: (a|b)?"
        if any(part.weight is not None for part in self.all_of):
            yield "a preference cannot be one part of a conjunction; prefer all of it: (a&b)?"
        parts = (*(child for _, child in self.children), *dict(self.parts()).values())
        if any(part.weight is not None for part in parts):
            yield "a preference cannot be a part of a system; prefer the system: [a,b]?"

    @classmethod
    def parse(cls, text: str | Constraint | TargetNode) -> Constraint:
        """Read a constraint.

        Args:
            text: A text in the grammar above. A constraint is returned as it is, a target is converted (`of`).

        Returns:
            The constraint.

        Raises:
            TextError: The text does not follow the grammar; the message shows the column.
            TargetError: An attribute or value is unknown (the message suggests the nearest names), or the constraint
                contradicts itself.

        >>> from tvmtarget import Target
        >>> Constraint.parse("llvm(num-cores>=4)").check(Target("llvm", {"num-cores": 8})).truth.name
        'YES'
        """
        if isinstance(text, Constraint):
            return text
        if isinstance(text, TargetNode):
            return cls.of(text)
        if not isinstance(text, str):
            raise TextError(f"a constraint is a text such as 'cuda' or '@cpu', not {shown(text)}")
        if not text.strip():
            raise TextError("expected a constraint, but the text is empty; write a kind, a key or @path")
        return constraint_text.read(cls, text)

    @classmethod
    @check_arguments
    def of(cls, target: TargetNode) -> Constraint:
        """Convert a target to the constraint "at least this target".

        Hard attributes must be equal, instruction sets a superset, capacities and counts at least as large. Models,
        notes, attributes that affect speed only, links and names other than those of children are omitted.

        Args:
            target: The root of a tree.

        Returns:
            The constraint, which the target itself satisfies.

        >>> from tvmtarget import Target
        >>> print(Constraint.of(Target.parse("[gpu=cuda(arch=sm_80,count=2),llvm(num-cores=8)]")))
        composite[gpu=cuda(arch>=sm_80,count>=2),llvm(num-cores>=8)]
        """
        return from_target.constraint_of(cls, NodeContext(target))

    @classmethod
    def at(cls, path: str) -> Constraint:
        """Make a constraint that names one node.

        Args:
            path: The path of the node; empty for the root.

        Returns:
            The constraint `@path`.
        """
        return cls(path=path)

    @classmethod
    @check_arguments
    def at_any(cls, paths: Iterable[str]) -> Constraint:
        """Make a constraint that any of several nodes meets, without the order of `a|b`.

        Args:
            paths: The paths of the nodes.

        Returns:
            The constraint, a negated conjunction of negations where there are several paths.

        >>> str(Constraint.at_any(["gpu"])), str(Constraint.at_any(["a", "b"]))
        ('@gpu', '!(!@a&!@b)')
        """
        # By De Morgan's law, as an ordered choice would rank the nodes.
        nodes = tuple(map(cls.at, paths))
        return nodes[0] if len(nodes) == 1 else cls(all_of=tuple(~node for node in nodes), is_negated=True)

    @classmethod
    def from_json(cls, data: object) -> Constraint:
        """Read a constraint from JSON data.

        Args:
            data: An object with 'kind', 'path', 'any', 'all' or 'not', and 'prefer' for a weight; or what
                `parse` reads.

        Returns:
            The constraint.

        Raises:
            TargetError: The data is no constraint, or is nested too deeply.

        >>> str(Constraint.from_json({"kind": "llvm", "num-cores": {"ge": 4}, "mattr": {"has": ["avx2"]}}))
        'llvm(+avx2,num-cores>=4)'
        """
        if isinstance(data, Constraint | TargetNode):
            return cls.parse(data)
        try:
            return constraint_json.read(cls, data)
        except RecursionError:
            raise TargetError("the constraint is nested too deeply") from None

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        itself = core_schema.definition_reference_schema(cls._schema_ref)
        (nested,) = handler(core_schema.tuple_positional_schema([itself]))["prefixItems"]
        several = {"type": "array", "items": nested, "minItems": 1}
        heads: dict[str, object] = {"path": {"type": "string"}, "any": several, "all": several, "not": nested}
        weight = {"prefer": {"type": "integer", "minimum": 0}}
        forms: list[dict[str, object]] = [
            {"type": "object", "properties": {head: form} | weight, "required": [head], "additionalProperties": False}
            for head, form in heads.items()
        ]
        parts = dict.fromkeys(("host", "executor", "runtime"), nested)
        word = {"kind": {"type": "string"}, "targets": several | {"minItems": 0}, **parts, **weight}
        described = {
            "type": "object",
            "properties": word,
            "anyOf": [{"required": [one]} for one in ("kind", "targets")],
        }
        return {"title": "Constraint", "anyOf": [{"type": "string"}, *forms, described]}

    def to_json(self) -> dict[str, object]:
        """Convert the constraint to JSON data.

        Returns:
            An object from which `Constraint.from_json` makes an equal constraint.
        """
        return constraint_json.write(self)

    def __str__(self) -> str:
        return constraint_text.write(self)

    def __repr__(self) -> str:
        return f"Constraint.parse({str(self)!r})"

    @property
    def is_required(self) -> bool:
        """Whether the constraint is a requirement and not a preference."""
        return self.weight is None

    def parts(self) -> Iterator[tuple[_Part, Constraint]]:
        """List the constraints on the host, the executor and the runtime.

        Yields:
            Pairs of the role and its constraint, for those that are set.
        """
        if self.host is not None:
            yield "host", self.host
        if self.executor is not None:
            yield "executor", self.executor
        if self.runtime is not None:
            yield "runtime", self.runtime

    @property
    def depth(self) -> int:
        """Levels of nesting; 1 without nested constraints."""
        return 1 + max((nested.depth for nested in self.nested()), default=0)

    def nested(self) -> Iterator[Constraint]:
        """List the constraints on nodes directly inside this one.

        Yields:
            Options, parts of a conjunction, children and the host, in this order.
        """
        yield from self.any_of
        yield from self.all_of
        yield from (child for _, child in self.children)
        if self.host is not None:
            yield self.host

    def map_nested(self, change: Callable[[Constraint], Constraint]) -> Constraint:
        """Replace the constraints directly inside this one.

        Args:
            change: The function that maps a constraint to its replacement.

        Returns:
            The constraint with every one of `nested` replaced.
        """
        return self.replace(
            any_of=tuple(map(change, self.any_of)),
            all_of=tuple(map(change, self.all_of)),
            children=tuple((name, change(child)) for name, child in self.children),
            host=None if self.host is None else change(self.host),
        )

    def paths(self) -> Iterator[str]:
        """Collect the paths of the constraint and of all nested ones.

        Yields:
            Paths without `@`, repeated where they occur repeatedly.
        """
        if self.path is not None:
            yield self.path
        for nested in self.nested():
            yield from nested.paths()

    def words(self) -> Iterator[str]:
        """Collect the kinds and keys of the constraint and of all nested ones.

        Yields:
            Words, repeated where they occur repeatedly.
        """
        if self.word is not None:
            yield self.word
        for nested in self.nested():
            yield from nested.words()

    @check_arguments
    def check(self, target: TargetNode, path: str = "", root: TargetNode | None = None) -> Reason:
        """Decide whether one node meets the constraint.

        A preference is checked as if it were required.

        Args:
            target: The node.
            path: Its path in its tree; empty for a root.
            root: The root of its tree, for attributes that the node inherits.

        Returns:
            The answer with its reasons.
        """
        context = NodeContext(root).below(path) if root is not None else None
        return meets(self, context or NodeContext(target, path))

    def rank(self, target: TargetNode, path: str = "") -> int:
        """Score a leaf by the preferences that it meets.

        Args:
            target: The leaf.
            path: Its path in its tree.

        Returns:
            The weight of a preference that is met; for an ordered choice the negated index of the first option that is
            met; for a conjunction the sum of its parts.
        """
        if self.weight is not None:
            return self.weight if self.check(target, path) else 0
        # A negation excludes targets but does not order those that are left.
        if self.is_negated:
            return 0
        if self.all_of:
            return sum(part.rank(target, path) for part in self.all_of)
        return next((-index for index, option in enumerate(self.any_of) if option.check(target, path)), 0)

    def __and__(self, other: Constraint) -> Constraint:
        """Return the conjunction of both; equal parts occur once."""
        if not isinstance(other, Constraint):
            return NotImplemented
        parts = tuple(dict.fromkeys((*_operands(self, self.all_of), *_operands(other, other.all_of))))
        return parts[0] if len(parts) == 1 else Constraint(all_of=parts)

    def __or__(self, other: Constraint) -> Constraint:
        """Return the ordered choice between both; equal options occur once."""
        if not isinstance(other, Constraint):
            return NotImplemented
        options = tuple(dict.fromkeys((*_operands(self, self.any_of), *_operands(other, other.any_of))))
        return options[0] if len(options) == 1 else Constraint(any_of=options)

    def __invert__(self) -> Constraint:
        """Return the negation."""
        return self.replace(is_negated=not self.is_negated)


def _operands(constraint: Constraint, parts: tuple[Constraint, ...]) -> tuple[Constraint, ...]:
    """Return the parts that a conjunction or choice adds to a larger one: its own, or itself as a whole."""
    return parts if parts and not constraint.is_negated and constraint.weight is None else (constraint,)
