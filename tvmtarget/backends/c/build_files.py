"""Build files of C projects, for Make and CMake, and the options of compilers for speed."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["BUILD_FILES", "GCC_OPTIONS", "cmake_lists", "makefile"]

BUILD_FILES = ("Makefile", "CMakeLists.txt")

# Options for speed of GCC 12. Only so it unrolls the loops of register tiles and of windows, and leaves their sums in
# registers; -O3 keeps those in memory (squeezenet takes twice as long). benchmarks/README.md has the figures. It makes
# vectors of comparisons of floats, as in exp, only where nobody reads the flags of exceptions.
GCC_OPTIONS = (
    "-O2",
    "-fvect-cost-model=dynamic",
    "-fpeel-loops",
    "-funroll-loops",
    "-fno-tree-pre",
    "-fno-trapping-math",
    "--param=max-completely-peeled-insns=2000",
    "--param=max-completely-peel-times=32",
)


def makefile(prefix: str, files: Collection[str]) -> str:
    """Return a Makefile that builds a static library.

    Args:
        prefix: the name of the library, without `lib`.
        files: paths of the files of the project; sources of C and given objects are part of the library.

    Returns:
        The text.
    """
    sources = " ".join(name for name in files if name.endswith(".c"))
    objects = " ".join(name for name in files if name.endswith(".o"))
    return "\n".join(
        [
            f"# Builds lib{prefix}.a: make CC=aarch64-linux-gnu-gcc AR=aarch64-linux-gnu-ar",
            "# For speed, with GCC: make CFLAGS='" + " ".join(GCC_OPTIONS) + "'",
            "CFLAGS ?= -O2",
            "override CFLAGS += -std=c99 -ffp-contract=off -Wall -Wextra -pedantic -Iinclude -Isrc",
            f"SOURCES := {sources}",
            "BUILT := $(SOURCES:.c=.o)",
            f"GIVEN := {objects}".rstrip(),
            f"lib{prefix}.a: $(BUILT) $(GIVEN)",
            "\trm -f $@",
            "\t$(AR) rcs $@ $^",
            "clean:",
            f"\trm -f $(BUILT) lib{prefix}.a",
            ".PHONY: clean",
            "",
        ]
    )


def cmake_lists(prefix: str, files: Collection[str], *, uses_math: bool) -> str:
    """Return a CMakeLists.txt that builds a static library.

    Args:
        prefix: the name of the library, without `lib`.
        files: paths of the files of the project; sources of C and given objects are part of the library.
        uses_math: whether a source includes math.h.

    Returns:
        The text.
    """
    sources = "\n  ".join(name for name in files if name.endswith((".c", ".o")))
    return "\n".join(
        [
            "cmake_minimum_required(VERSION 3.13)",
            f"project({prefix} C)",
            f"add_library({prefix} STATIC\n  {sources})",
            f"target_include_directories({prefix} PUBLIC include PRIVATE src)",
            f"set_target_properties({prefix} PROPERTIES C_STANDARD 99 POSITION_INDEPENDENT_CODE ON)",
            f"target_compile_options({prefix} PRIVATE",
            "  $<$<C_COMPILER_ID:GNU,Clang,AppleClang>:-ffp-contract=off>)",
            f"target_link_libraries({prefix} PUBLIC m)" if uses_math else "",
            "",
        ]
    )
