"""Binding blocks: which of TVM's bindings a function has, and how they stand in (dataflow) blocks.

A program of ours has no blocks. Where TVM's stand as they would be made anew (all that is pure and stands together is
one dataflow block, whose outputs are what is read outside of it), nothing is kept of them; else the attribute
`tvm.blocks` of the function says how they stood, a letter for each binding: `o` if its variable is an output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvmtarget.ir.function import Call, Function

__all__ = [
    "BLOCKS",
    "INLINE",
    "RESULT",
    "Binding",
    "BindingBlock",
    "bindings_of",
    "blocks_of",
    "canonical_blocks",
    "is_fit",
    "is_inline",
]

BLOCKS = "tvm.blocks"
INLINE = "tvm.inline"  # of a call whose value is no binding, but what the function returns
RESULT = "tvm.result"  # how a function returns several results: `tuple` at once, or `tuple NAME` by a last binding


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding that a call becomes: what it defines and reads, by name, and whether a dataflow block may hold it."""

    defines: str
    reads: tuple[str, ...]
    is_pure: bool


@dataclass(frozen=True, slots=True)
class BindingBlock:
    """A block: whether it is one of dataflow, and of each binding whether its variable is seen outside."""

    is_dataflow: bool
    outputs: tuple[bool, ...]

    def __str__(self) -> str:
        return f"{'dataflow' if self.is_dataflow else 'plain'} {''.join('o' if out else '.' for out in self.outputs)}"

    @classmethod
    def parse(cls, text: str) -> BindingBlock:
        """Read what `str` gave."""
        kind, _, letters = text.partition(" ")
        return cls(kind == "dataflow", tuple(letter == "o" for letter in letters))


def bindings_of(function: Function) -> Iterator[Binding]:
    """Yield the bindings that the calls of a function become, in order."""
    for call in function.body:
        if is_inline(function, call):
            continue
        is_pure = not call.has_effect and call.op != "relax.If"
        if len(call.outputs) == 1:
            yield Binding(call.outputs[0].name, call.uses(), is_pure)
            continue
        whole = tuple_name(call)
        yield Binding(whole, call.uses(), is_pure)
        yield from (Binding(output.name, (whole,), True) for output in call.outputs if output.name)
    form = str(function.attr(RESULT) or "")
    if form.startswith("tuple ") or (not form and len(function.results) != 1):
        yield Binding("", function.results, True)


def is_inline(function: Function, call: Call) -> bool:
    """Whether the value of a call is no binding, but what the function returns, and nothing else reads it."""
    if not call.attr(INLINE) or function.results != (call.outputs[0].name,):
        return False
    return not any(call.outputs[0].name in other.uses() for other in function.body)


def tuple_name(call: Call) -> str:
    """Return a name, which no value has, for the tuple of the results of a call."""
    return f"\0{call.source}\0{','.join(output.name for output in call.outputs)}"


def canonical_blocks(function: Function, *, is_branch: bool = False) -> tuple[BindingBlock, ...]:
    """Return the blocks that a function gets where nothing else is known; a branch is one without dataflow."""
    bindings = list(bindings_of(function))
    if is_branch:
        return (BindingBlock(False, (True,) * len(bindings)),) if bindings else ()
    groups: list[list[int]] = []
    for index, binding in enumerate(bindings):
        if groups and bindings[groups[-1][0]].is_pure == binding.is_pure:
            groups[-1].append(index)
        else:
            groups.append([index])
    return tuple(_block(function, bindings, group) for group in groups)


def _block(function: Function, bindings: Sequence[Binding], group: Sequence[int]) -> BindingBlock:
    first, last = group[0], group[-1]
    if not bindings[first].is_pure:
        return BindingBlock(False, (True,) * len(group))
    outside = _read_outside(function, bindings, first, last)
    return BindingBlock(True, tuple(bindings[index].defines in outside for index in group))


def _read_outside(function: Function, bindings: Sequence[Binding], first: int, last: int) -> frozenset[str]:
    others = (name for index, one in enumerate(bindings) if not first <= index <= last for name in one.reads)
    inline = (name for call in function.body if is_inline(function, call) for name in call.uses())
    captured = (name for call in function.body for _, region in call.regions for name in region.captures())
    is_bound = bool(bindings) and bindings[-1].defines == ""
    return frozenset(others).union(inline, captured, ("",) if is_bound else function.results)


def blocks_of(function: Function, *, is_branch: bool = False) -> tuple[BindingBlock, ...]:
    """Return how the bindings of a function stand: as they stood in TVM where that still fits, else as new."""
    kept = function.attr(BLOCKS)
    if isinstance(kept, tuple):
        blocks = tuple(BindingBlock.parse(str(text)) for text in kept)
        if is_fit(function, blocks):
            return blocks
    return canonical_blocks(function, is_branch=is_branch)


def is_fit(function: Function, blocks: Sequence[BindingBlock]) -> bool:
    """Whether blocks can hold the bindings of a function."""
    bindings = list(bindings_of(function))
    if sum(len(block.outputs) for block in blocks) != len(bindings):
        return False
    first = 0
    for block in blocks:
        last = first + len(block.outputs) - 1
        if block.is_dataflow:
            inside = bindings[first : last + 1]
            hidden = {one.defines for one, is_output in zip(inside, block.outputs, strict=True) if not is_output}
            if not all(one.is_pure for one in inside) or hidden & _read_outside(function, bindings, first, last):
                return False
        first = last + 1
    return True
