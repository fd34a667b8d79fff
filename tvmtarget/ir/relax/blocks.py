"""Binding blocks of Relax: the bindings that calls become, and their grouping into (dataflow) blocks.

The IR has no blocks. Blocks in canonical form (consecutive pure bindings are one dataflow block, whose outputs are the
variables read outside) are not recorded. Other blocks are recorded in the attribute `tvm.blocks` of the function, with
a letter for each binding: `o` if its variable is an output.
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
    "are_valid",
    "bindings_of",
    "blocks_of",
    "canonical_blocks",
    "is_inline",
]

BLOCKS = "tvm.blocks"
INLINE = "tvm.inline"  # attribute of a call whose value is returned without a binding
RESULT = "tvm.result"  # form of several results: `tuple`, or `tuple NAME` if the last binding NAME builds the tuple


@dataclass(frozen=True, slots=True)
class Binding:
    """A Relax binding.

    Attributes:
        defines: name of its variable.
        reads: names of the values that it reads.
        is_pure: whether a dataflow block may hold it.
    """

    defines: str
    reads: tuple[str, ...]
    is_pure: bool


@dataclass(frozen=True, slots=True)
class BindingBlock:
    """A Relax block.

    Attributes:
        is_dataflow: whether it is a DataflowBlock.
        outputs: for each binding, whether its variable is visible outside of the block.
    """

    is_dataflow: bool
    outputs: tuple[bool, ...]

    def __str__(self) -> str:
        return f"{'dataflow' if self.is_dataflow else 'plain'} {''.join('o' if out else '.' for out in self.outputs)}"

    @classmethod
    def parse(cls, text: str) -> BindingBlock:
        """Parse the text form.

        Args:
            text: result of `str`, such as "dataflow ..o".

        Returns:
            The block.
        """
        kind, _, letters = text.partition(" ")
        return cls(kind == "dataflow", tuple(letter == "o" for letter in letters))


def bindings_of(function: Function) -> Iterator[Binding]:
    """Yield the bindings that the calls of a function become.

    Args:
        function: the function.

    Yields:
        Bindings in order: one for a call, one for each result of a call with several, and one for a returned tuple.
    """
    for call in function.body:
        if is_inline(function, call):
            continue
        is_pure = not call.has_effect and call.op != "relax.If"
        if len(call.outputs) == 1:
            yield Binding(call.outputs[0].name, call.uses(), is_pure)
            continue
        packed = tuple_name(call)
        yield Binding(packed, call.uses(), is_pure)
        yield from (Binding(output.name, (packed,), True) for output in call.outputs if output.name)
    form = str(function.attr(RESULT) or "")
    if form.startswith("tuple ") or (not form and len(function.results) != 1):
        yield Binding("", function.results, True)


def is_inline(function: Function, call: Call) -> bool:
    """Return whether the value of a call is returned without a binding.

    Args:
        function: function that holds the call.
        call: the call.

    Returns:
        True if the call is marked so, and nothing but the function's result reads its value.
    """
    if not call.attr(INLINE) or function.results != (call.outputs[0].name,):
        return False
    return not any(call.outputs[0].name in other.uses() for other in function.body)


def tuple_name(call: Call) -> str:
    """Return a name, which no value has, for the tuple of the results of a call.

    Args:
        call: a call with several results.

    Returns:
        The name.
    """
    return f"\0{call.source}\0{','.join(output.name for output in call.outputs)}"


def canonical_blocks(function: Function, *, is_branch: bool = False) -> tuple[BindingBlock, ...]:
    """Group the bindings of a function into blocks in canonical form.

    Args:
        function: the function.
        is_branch: whether it is a branch, which has one block without dataflow.

    Returns:
        The blocks in order.
    """
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
    # The last binding builds the returned tuple, so that only its own variable is read by the function.
    is_bound = bool(bindings) and bindings[-1].defines == ""
    return frozenset(others).union(inline, captured, ("",) if is_bound else function.results)


def blocks_of(function: Function, *, is_branch: bool = False) -> tuple[BindingBlock, ...]:
    """Return the blocks of a function as recorded, or canonical ones if the record is not valid.

    Args:
        function: the function.
        is_branch: whether it is a branch.

    Returns:
        The blocks in order.
    """
    recorded = function.attr(BLOCKS)
    if isinstance(recorded, tuple):
        blocks = tuple(BindingBlock.parse(str(text)) for text in recorded)
        if are_valid(function, blocks):
            return blocks
    return canonical_blocks(function, is_branch=is_branch)


def are_valid(function: Function, blocks: Sequence[BindingBlock]) -> bool:
    """Return whether blocks can hold the bindings of a function.

    Args:
        function: the function.
        blocks: the blocks in order.

    Returns:
        True if the number of bindings fits, dataflow blocks are pure, and hidden variables are not read outside.
    """
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
