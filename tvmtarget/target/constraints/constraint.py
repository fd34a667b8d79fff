"""Constraints: the one thing ever written on a function, a call or a `where` rule.

    cuda                       a kind, then a key                 @rack/node0     a node of the tree, or below it
    llvm(num-cores>=4,+avx2)   attributes with operators          !gpu            anything but
    cuda|llvm                  an ordered choice                  gpu?  gpu?10    preferred, not required
    gpu&@rack                  both                               !(cuda|llvm)    a group
    [gpu=cuda,llvm](executor=aot)      a system: children, each given to another child of it; host, executor, runtime

The grammar is that of targets with operators (`grammar.py`). A condition speaks of leaves: a composite can
meet it if one leaf below can. An attribute that a target does not state makes the answer unknown, which
counts as no unless the caller asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeAlias

from pydantic import Field

from tvmtarget.errors import TargetError, TextError, raise_all
from tvmtarget.target.constraints import from_target
from tvmtarget.target.constraints import json as constraint_json
from tvmtarget.target.constraints import text as constraint_text
from tvmtarget.target.constraints.conditions import Condition
from tvmtarget.target.constraints.contradictions import contradictions
from tvmtarget.target.constraints.node_context import NodeContext, known_words
from tvmtarget.target.constraints.reasons import Reason, Truth
from tvmtarget.target.constraints.satisfaction import meets
from tvmtarget.target.node import Node
from tvmtarget.target.problems import shown
from tvmtarget.target.target_node import TargetNode
from tvmtarget.target.text.grammar import MAX_DEPTH, is_word
from tvmtarget.target.tree_paths import covers

__all__ = ["Condition", "Constraint", "Reason", "Truth", "covers", "known_words"]

_Part: TypeAlias = Literal["host", "executor", "runtime"]


class Constraint(Node):
    """What a program asks of the target it runs on; read by `Constraint.parse`.

    One of `word` (a kind or key, with conditions, children and what drives it), `path` (a node), `any_of` (an
    ordered choice) and `all_of` (a conjunction) is set; `is_negated` turns it round; a `weight` makes it a
    preference that never excludes anything. `children` are pairs of a name, or None, and a constraint.
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
        """Refuse what has no meaning; all problems at once."""
        problems: list[str] = []
        if sum((self.word is not None, self.path is not None, bool(self.any_of), bool(self.all_of))) != 1:
            problems.append("a constraint is one of a word, a path, a choice and a conjunction")
        if self.word is None and (self.conditions or self.children or any(part for _, part in self.parts())):
            problems.append("conditions and children belong to a kind or a key")
        problems += [
            f"{shown(text)} is no {what}; use names, with '/' between them in a path"
            for what, text in (
                ("word", self.word),
                ("path", self.path or None),
                *(("name", n) for n, _ in self.children),
            )
            if text is not None and not is_word(text)
        ]
        problems += contradictions(self.conditions)
        names = [name for name, _ in self.children if name is not None]
        twice = sorted({name for name in names if names.count(name) > 1})
        problems += [f"two children are called {shown(name)}" for name in twice]
        problems += self._misplaced_preferences()
        problems += [f"a constraint is nested deeper than {MAX_DEPTH} levels"] if self.depth > MAX_DEPTH else []
        raise_all(TargetError, problems)

    def _misplaced_preferences(self) -> Iterator[str]:
        if any(option.weight is not None for option in self.any_of):
            yield "a preference cannot be one option of a choice; prefer the choice: (a|b)?"
        if any(one.weight is not None for one in self.all_of):
            yield "a preference cannot be one part of a conjunction; prefer all of it: (a&b)?"
        if any(
            one.weight is not None for one in (*(child for _, child in self.children), *dict(self.parts()).values())
        ):
            yield "a preference cannot be a part of a system; prefer the system: [a,b]?"

    @classmethod
    def parse(cls, text: str | Constraint | TargetNode) -> Constraint:
        """Read a text; `TextError` shows the column, unknown kinds and attributes come with the nearest names.

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
    def of(cls, target: TargetNode) -> Constraint:
        """Return "at least this target": what it states, compared as the class of each attribute says.

        Attributes that must be equal are, instructions are a superset, capacities and counts at least as large;
        models, notes and what changes speed only are left out, and so are names, but of children, and links.

        >>> from tvmtarget import Target
        >>> print(Constraint.of(Target.parse("[gpu=cuda(arch=sm_80,count=2),llvm(num-cores=8)]")))
        composite[gpu=cuda(arch>=sm_80,count>=2),llvm(num-cores>=8)]
        """
        return from_target.constraint_of(cls, NodeContext(target))

    @classmethod
    def at(cls, path: str) -> Constraint:
        """Return the constraint that names one node; the root's path is empty."""
        return cls(path=path)

    @classmethod
    def at_any(cls, paths: Iterable[str]) -> Constraint:
        """Return the constraint that is met by any of some nodes, none of them preferred; `a|b` is an ordered choice.

        >>> str(Constraint.at_any(["gpu"])), str(Constraint.at_any(["a", "b"]))
        ('@gpu', '!(!@a&!@b)')
        """
        nodes = tuple(map(cls.at, paths))
        return nodes[0] if len(nodes) == 1 else cls(all_of=tuple(~node for node in nodes), is_negated=True)

    @classmethod
    def from_json(cls, data: object) -> Constraint:
        """Read an object with 'kind', 'path', 'any', 'all' or 'not', and 'prefer' for a weight; or a text.

        >>> str(Constraint.from_json({"kind": "llvm", "num-cores": {"ge": 4}, "mattr": {"has": ["avx2"]}}))
        'llvm(+avx2,num-cores>=4)'
        """
        try:
            return constraint_json.read(cls, data)
        except RecursionError:
            raise TargetError("a constraint is not nested so deep") from None

    def to_json(self) -> dict[str, object]:
        """Return the object; `Constraint.from_json` reads it back to an equal constraint."""
        return constraint_json.write(self)

    def __str__(self) -> str:
        return constraint_text.write(self)

    def __repr__(self) -> str:
        return f"Constraint.parse({str(self)!r})"

    @property
    def is_required(self) -> bool:
        """Whether it excludes targets, or only prefers some."""
        return self.weight is None

    def parts(self) -> Iterator[tuple[_Part, Constraint]]:
        """Yield what is asked of the host, the executor and the runtime."""
        if self.host is not None:
            yield "host", self.host
        if self.executor is not None:
            yield "executor", self.executor
        if self.runtime is not None:
            yield "runtime", self.runtime

    @property
    def depth(self) -> int:
        """Levels of the constraint, 1 for one that is made of no others."""
        return 1 + max((one.depth for one in self.nested()), default=0)

    def nested(self) -> Iterator[Constraint]:
        """Yield the constraints on nodes that this one is made of."""
        yield from self.any_of
        yield from self.all_of
        yield from (child for _, child in self.children)
        if self.host is not None:
            yield self.host

    def map_nested(self, change: Callable[[Constraint], Constraint]) -> Constraint:
        """Return it with every constraint of `nested` changed."""
        return self.replace(
            any_of=tuple(map(change, self.any_of)),
            all_of=tuple(map(change, self.all_of)),
            children=tuple((name, change(child)) for name, child in self.children),
            host=None if self.host is None else change(self.host),
        )

    def paths(self) -> Iterator[str]:
        """Yield every `@path` in it."""
        if self.path is not None:
            yield self.path
        for one in self.nested():
            yield from one.paths()

    def words(self) -> Iterator[str]:
        """Yield every kind and key in it."""
        if self.word is not None:
            yield self.word
        for one in self.nested():
            yield from one.words()

    def check(self, target: TargetNode, path: str = "", root: TargetNode | None = None) -> Reason:
        """Say whether one node meets this, with the reasons; a preference is answered as if it were required.

        `path` says where the node stands; with the `root` of its tree, what it inherits counts too. A node
        without a path is a root itself.
        """
        return meets(
            self,
            NodeContext(target, path) if root is None else NodeContext(root).below(path) or NodeContext(target, path),
        )

    def rank(self, target: TargetNode, path: str = "") -> int:
        """Score a leaf: a preference its weight, an ordered choice one less for each option passed over."""
        if self.weight is not None:
            return self.weight if self.check(target, path) else 0
        if self.is_negated:
            return 0
        if self.all_of:
            return sum(one.rank(target, path) for one in self.all_of)
        return next((-passed for passed, option in enumerate(self.any_of) if option.check(target, path)), 0)

    # Algebra

    def __and__(self, other: Constraint) -> Constraint:
        """Return the constraint that asks for both; equal parts are kept once."""
        if not isinstance(other, Constraint):
            return NotImplemented
        ones = [one for both in (self, other) for one in (both.all_of if _is_bare(both, both.all_of) else (both,))]
        kept = tuple(dict.fromkeys(ones))
        return kept[0] if len(kept) == 1 else Constraint(all_of=kept)

    def __or__(self, other: Constraint) -> Constraint:
        """Return the ordered choice between the two; equal options are kept once."""
        if not isinstance(other, Constraint):
            return NotImplemented
        ones = [one for both in (self, other) for one in (both.any_of if _is_bare(both, both.any_of) else (both,))]
        kept = tuple(dict.fromkeys(ones))
        return kept[0] if len(kept) == 1 else Constraint(any_of=kept)

    def __invert__(self) -> Constraint:
        """Return the constraint that this one is not met."""
        return self.replace(is_negated=not self.is_negated)


def _is_bare(constraint: Constraint, parts: tuple[Constraint, ...]) -> bool:
    return bool(parts) and not constraint.is_negated and constraint.weight is None
