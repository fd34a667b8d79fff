"""What an operation is apart from names, as text: the same in every program and process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from tvmtarget.ir.function import Attribute, Call, Constant
from tvmtarget.ir.types import MapType, OptionalType, SequenceType, SparseType, TensorType, Type

__all__ = ["OpFingerprint", "fingerprint_of", "written"]


@dataclass(frozen=True, slots=True)
class OpFingerprint:
    """An operation without names, as digits, and its symbolic dimensions in the order in which its types have them."""

    text: str
    dims: tuple[str, ...] = ()


def fingerprint_of(call: Call, types: Mapping[str, Type], is_read: Callable[[str], bool]) -> OpFingerprint:
    """Tell operator, attributes, types, and which results are read; nested bodies are left out."""
    dims: list[str] = []
    told = (
        call.op,
        call.has_effect,
        tuple(_plain(call.attrs)),
        tuple(written(types.get(name), dims) for name in call.inputs),
        tuple((written(types.get(output.name), dims), is_read(output.name)) for output in call.outputs),
    )
    return OpFingerprint(sha256(repr(told).encode("utf-8", "surrogateescape")).hexdigest()[:16], tuple(dims))


def written(type_: Type, dims: list[str]) -> str:
    """Return a type as text in which symbolic dimensions are left out; they are added to `dims`."""
    match type_:
        case TensorType(dtype, shape) if shape is not None:
            dims += (dim for dim in shape if isinstance(dim, str))
            return f"{dtype}[{','.join('$' if isinstance(dim, str) else str(dim) for dim in shape)}]"
        case SequenceType(element):
            return f"sequence({written(element, dims)})"
        case OptionalType(element):
            return f"optional({written(element, dims)})"
        case MapType(key, value):
            return f"map({key},{written(value, dims)})"
        case SparseType(tensor):
            return f"sparse({written(tensor, dims)})"
        case _:
            return str(type_)


def _plain(attrs: Sequence[tuple[str, Attribute]]) -> Iterator[Hashable]:
    """Yield attributes, tensors by what they hold."""
    for name, value in attrs:
        items = value if isinstance(value, tuple) else (value,)
        plain = tuple((str(item.type), item.digest) if isinstance(item, Constant) else item for item in items)
        yield name, type(value).__name__, plain
