"""Linux' names of CPU flags, as archspec lists them, in LLVM's words.

x86: `arch/x86/include/asm/cpufeatures.h`; Arm: `Documentation/arch/arm64/elf_hwcaps.rst`, which says which field of
which register a flag reads. What is in neither table has no name in LLVM, for no instruction depends on it.
"""

X86 = {
    "abm": "lzcnt",
    "bmi1": "bmi",
    "lahf_lm": "sahf",
    "pclmulqdq": "pclmul",
    "rdrand": "rdrnd",
    "sha_ni": "sha",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "amx_tile": "amx-tile",
    "avx512_bf16": "avx512bf16",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_vp2intersect": "avx512vp2intersect",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx_vnni": "avxvnni",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
}

AARCH64 = {
    "asimd": "neon",
    "asimddp": "dotprod",
    "asimdfhm": "fp16fml",
    "asimdhp": "fullfp16",
    "asimdrdm": "rdm",
    "atomics": "lse",
    "crc32": "crc",
    "dcpodp": "ccdp",
    "dcpop": "ccpp",
    "fcma": "complxnum",
    "flagm2": "altnzcv",
    "fp": "fp-armv8",
    "fphp": "fullfp16",
    "frint": "fptoint",
    "ilrcpc": "rcpc-immo",
    "jscvt": "jsconv",
    "lrcpc": "rcpc",
    "paca": "pauth",
    "pacg": "pauth",
    "pmull": "aes",
    "rng": "rand",
    "sha1": "sha2",
    "sha512": "sha3",
    "sm3": "sm4",
    "sveaes": "sve-aes",
    "svebitperm": "sve-bitperm",
    "svepmull": "sve-aes",
    "svesha3": "sve-sha3",
    "svesm4": "sve-sm4",
    "uscat": "lse2",
}


def in_llvm(family, flags, known):
    """Return LLVM's names of flags, as far as it has names for them."""
    table = X86 if family == "x86" else AARCH64
    return {name for flag in flags if (name := table.get(flag, flag)) in known}
