"""Convert RISC-V instruction set strings, such as `rv64gcv_zba_zbb`, to LLVM's features and back.

The grammar is that of the RISC-V unprivileged manual, chapter "ISA Extension Naming Conventions": the width, a base
(i, e, or g for imafd_zicsr_zifencei), single letters, then longer names after '_'; a name that begins with z, s or x
needs no '_' before the first one. Version numbers (`2p1`) are ignored.
"""

from __future__ import annotations

import re

__all__ = ["expand_isa", "is_isa_string", "isa_string"]

_ISA = re.compile(r"rv(32|64)([ieg][a-z0-9_]*)")
_VERSION = re.compile(r"(?<=[a-z])[0-9]+p[0-9]+")
_LETTERS = "iemafdqlcbkjtpvnh"  # in the canonical order of the manual
_GENERAL = ("i", "m", "a", "f", "d", "zicsr", "zifencei")
_LONG_ORDER = ("z", "s", "x")


def is_isa_string(word: str) -> bool:
    """Whether a word has the form of an instruction set string.

    Args:
        word: A word in any case.

    Returns:
        True for instruction sets; False for profiles such as `rva23u64`, which are features.

    >>> is_isa_string("rv64gcv_zba"), is_isa_string("rva23u64")
    (True, False)
    """
    return _ISA.fullmatch(word.lower()) is not None


def expand_isa(word: str) -> tuple[str, ...]:
    """Convert an instruction set string to LLVM's features.

    Args:
        word: The string, in any case.

    Returns:
        The features, sorted, with `32bit` or `64bit`.

    Raises:
        ValueError: The string is malformed or names an unknown extension; the message continues a sentence whose
            subject is the attribute.

    >>> expand_isa("rv32imc_zba")
    ('32bit', 'c', 'i', 'm', 'zba')
    """
    found = _ISA.fullmatch(_VERSION.sub("", word.lower()))
    if found is None:
        raise ValueError(f"is an instruction set such as 'rv64gc', not {word!r}")
    bits, rest = found.groups()
    single, *long = re.split(r"_|(?=z|(?<!_)s[a-z]|(?<!_)x)", rest, maxsplit=1)
    names = [name for part in long for name in part.split("_") if name]
    wrong = [letter for letter in single if letter not in f"{_LETTERS}g"]
    if wrong or not all(name[0] in _LONG_ORDER or name in _LETTERS for name in names):
        unknown = wrong[0] if wrong else next(n for n in names if n[0] not in _LONG_ORDER and n not in _LETTERS)
        raise ValueError(f"names extension {unknown!r} in {word!r}, which RISC-V does not have; write rv64imac_zba_zbb")
    letters = [name for letter in single for name in (_GENERAL if letter == "g" else (letter,))]
    return tuple(sorted({f"{bits}bit", *letters, *names}))


def isa_string(bits: int, names: frozenset[str]) -> str:
    """Format features as an instruction set string: letters, then z, s and x extensions by name.

    Args:
        bits: The width of registers, 32 or 64.
        names: LLVM's features; those that are no extensions are ignored.

    Returns:
        The string.

    >>> isa_string(64, frozenset({"64bit", "i", "v", "zbb", "m", "zba"}))
    'rv64imv_zba_zbb'
    """
    letters = "".join(sorted((name for name in names if len(name) == 1), key=_letter_order))
    long = sorted((name for name in names if name[:1] in _LONG_ORDER and len(name) > 1), key=_long_order)
    return f"rv{bits}{'_'.join([letters, *long])}"


def _letter_order(letter: str) -> tuple[int, str]:
    """Sort key of a letter; letters that the manual does not define yet come last."""
    return (_LETTERS.index(letter) if letter in _LETTERS else len(_LETTERS)), letter


def _long_order(name: str) -> tuple[int, int, str]:
    """Sort key of a long name; the letter after z orders z extensions, as the manual says."""
    return _LONG_ORDER.index(name[0]), _letter_order(name[1])[0] if name[0] == "z" else 0, name
