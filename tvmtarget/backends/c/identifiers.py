"""Names of a model as identifiers of C and C++: keywords and reserved names are avoided."""

from __future__ import annotations

import re

__all__ = ["c_identifier"]

# ISO/IEC 9899:2024 6.4.1 and ISO/IEC 14882:2020 5.11, as headers are also compiled as C++, and macros that GCC defines
# without -std=c99.
_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl const
constexpr const_cast continue decltype default delete do double dynamic_cast else enum explicit export extern false
float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
protected public register reinterpret_cast restrict return short signed sizeof static static_assert static_cast
struct switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void
volatile wchar_t while xor xor_eq char8_t co_await co_return co_yield concept consteval constinit requires typeof
typeof_unqual _Alignas _Alignof _Atomic _BitInt _Bool _Complex _Decimal128 _Decimal32 _Decimal64 _Float128 _Float16
_Float32 _Float32x _Float64 _Float64x _Generic _Imaginary _Noreturn _Pragma _Static_assert _Thread_local errno i386
linux math_errhandling mips sparc unix HUGE_VAL HUGE_VALF HUGE_VALL INFINITY NAN NULL BUFSIZ EOF I complex imaginary
stderr stdin stdout SEEK_CUR SEEK_END SEEK_SET
"""
_KEYWORDS = frozenset(_WORDS.split())
# Macros: limits of integers in stdint.h, constants of math.h, and those of our own headers. Types of fields, which a
# field of C++ cannot be named by. And names that C reserves for compilers, such as `__LINE__`.
_RESERVED = re.compile(
    r"[A-Z0-9_]+_(MIN|MAX)|(FP|MATH|TVMGEN|TVMTARGET)_\w+|M_(E|LN|LOG|PI|SQRT|[12]_)\w*|u?int\d+_t|size_t|__.*|\d.*|"
)


def c_identifier(name: str) -> str:
    """Return a name as an identifier of C and C++.

    Args:
        name: any text.

    Returns:
        The text with `_` for each character that identifiers have not, and before digits, keywords and reserved names.
    """
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{text}" if _RESERVED.fullmatch(text) or text in _KEYWORDS else text
