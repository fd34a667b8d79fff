"""Triples: all spellings of a platform are equal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmtarget.errors import TargetError
from tvmtarget.target.cpu.triples import Triple, looks_like_triple

# Text, normal form, key, bits, float ABI.
TRIPLES = [
    ("arm64-apple-macos", "aarch64-apple-macos", "aarch64-macos", 64, None),
    ("arm64-apple-macosx11.0", "aarch64-apple-macos11.0", "aarch64-macos11.0", 64, None),
    ("aarch64-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-linux-gnu", 64, None),
    ("aarch64-none-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-linux-gnu", 64, None),
    ("arm64-linux-android", "aarch64-unknown-linux-android", "aarch64-linux-android", 64, None),
    ("aarch64-arm-none-eabi", "aarch64-arm-none-eabi", "aarch64-eabi", 64, None),
    ("aarch64_be-linux-gnu", "aarch64_be-unknown-linux-gnu", "aarch64_be-linux-gnu", 64, None),
    ("x86_64-pc-linux-gnu", "x86_64-pc-linux-gnu", "x86_64-linux-gnu", 64, None),
    ("x86_64-conda-linux-gnu", "x86_64-conda-linux-gnu", "x86_64-linux-gnu", 64, None),
    ("x86-64-linux-gnu", "x86_64-unknown-linux-gnu", "x86_64-linux-gnu", 64, None),
    ("amd64--linux-gnu", "x86_64-unknown-linux-gnu", "x86_64-linux-gnu", 64, None),
    ("x86_64-linux-gnux32", "x86_64-unknown-linux-gnux32", "x86_64-linux-gnux32", 32, None),
    ("x86_64-apple-darwin20.1", "x86_64-apple-darwin20.1", "x86_64-darwin20.1", 64, None),
    ("x86_64-pc-windows-msvc", "x86_64-pc-windows-msvc", "x86_64-windows-msvc", 64, None),
    ("i486-pc-linux-gnu", "i486-pc-linux-gnu", "i486-linux-gnu", 32, None),
    ("i686-w64-mingw32", "i686-w64-windows-gnu", "i686-windows-gnu", 32, None),
    ("armv7l-linux-gnueabihf", "armv7-unknown-linux-gnueabihf", "armv7-linux-gnueabihf", 32, "hard"),
    ("armv8l-linux-gnueabihf", "armv8a-unknown-linux-gnueabihf", "armv8a-linux-gnueabihf", 32, "hard"),
    ("armv7a-arm-none-eabi", "armv7a-arm-none-eabi", "armv7a-eabi", 32, "soft"),
    ("arm-none-eabi", "arm-unknown-none-eabi", "arm-eabi", 32, "soft"),
    ("arm-linux-androideabi", "arm-unknown-linux-androideabi", "arm-linux-androideabi", 32, "soft"),
    ("thumbv7em-none-eabihf", "thumbv7em-unknown-none-eabihf", "thumbv7em-eabihf", 32, "hard"),
    ("thumbv8m.main-none-eabi", "thumbv8m.main-unknown-none-eabi", "thumbv8m.main-eabi", 32, "soft"),
    ("riscv64-unknown-linux-gnu", "riscv64-unknown-linux-gnu", "riscv64-linux-gnu", 64, None),
    ("riscv64-unknown-elf", "riscv64-unknown-unknown-elf", "riscv64-elf", 64, None),
    ("hexagon", "hexagon-unknown-unknown", "hexagon", 32, None),
    ("wasm32-unknown-unknown", "wasm32-unknown-unknown", "wasm32", 32, None),
    ("nvptx64-nvidia-cuda", "nvptx64-nvidia-cuda", "nvptx64-nvidia-cuda", 64, None),
    ("amdgcn-amd-amdhsa-hcc", "amdgcn-amd-amdhsa-hcc", "amdgcn-amd-amdhsa-hcc", 64, None),
]


@pytest.mark.parametrize(("text", "normal", "key", "bits", "float_abi"), TRIPLES)
def test_a_triple_is_read_as_llvm_reads_it(text, normal, key, bits, float_abi):
    triple = Triple.parse(text)
    assert str(triple) == normal
    assert Triple.parse(normal) == triple
    assert (triple.bits, triple.float_abi) == (bits, float_abi)
    assert looks_like_triple(text) == ("-" in text and text != "wasm32-unknown-unknown")


def test_a_key_has_no_vendor_unless_the_machine_has_one_system_only():
    assert {Triple.parse(text).key for text in ("x86_64-pc-linux-gnu", "x86_64-linux-gnu", "amd64-w64-linux-gnu")} == {
        "x86_64-linux-gnu"
    }
    assert Triple.parse("arm64-apple-macos").key == "aarch64-macos"


@pytest.mark.parametrize(
    ("text", "endian"),
    [("aarch64-linux-gnu", "little"), ("aarch64_be-linux-gnu", "big"), ("armebv7a-none-eabi", "big")],
)
def test_the_architecture_determines_the_byte_order(text, endian):
    assert Triple.parse(text).endian == endian


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "aarch46-linux-gnu",
            "architecture 'aarch46' of triple 'aarch46-linux-gnu' is unknown; "
            "did you mean 'aarch64' or 'aarch64_be' or 'aarch64_32'?",
        ),
        ("aarch64-linx-gnu", "triple 'aarch64-linx-gnu' has an unknown component 'linx'; did you mean 'linux'?"),
        (
            "x86_64-pc-linus-gnu",
            "triple 'x86_64-pc-linus-gnu' has an unknown component 'linus'; did you mean 'linux' or 'gnusf'?",
        ),
        (
            "aarch64-linux-darwin20.1",
            "triple 'aarch64-linux-darwin20.1' has an unknown component 'darwin20.1'; did you mean 'darwin'?",
        ),
        (
            "arm-a-b-c-d-e",
            "triple 'arm-a-b-c-d-e' has 6 components; write at most arch-vendor-os-environment",
        ),
        ("", "architecture '' is unknown"),
    ],
)
def test_an_invalid_triple_comes_with_the_nearest_names(text, message):
    with pytest.raises(TargetError) as raised:
        Triple.parse(text)
    assert str(raised.value) == message


pieces = st.sampled_from(
    ["aarch64", "thumbv7em", "x86-64", "i686", "apple", "pc", "none", "unknown", "linux", "darwin20.1", "gnu", "eabihf"]
)


@given(st.one_of(st.text(max_size=20), st.lists(pieces, min_size=1, max_size=5).map("-".join)))
def test_a_text_is_a_triple_equal_to_its_normal_form_or_is_rejected(text):
    try:
        triple = Triple.parse(text)
    except TargetError:
        return
    assert Triple.parse(str(triple)) == triple
    assert Triple.parse(triple.key).key == triple.key


@pytest.mark.parametrize(
    "word",
    ["x86-64", "x86-64-v3", "cortex-a72", "skylake-avx512", "hexagon", "arm_cpu", "arm-foo", "llvm", "sm_90", ""],
)
def test_names_of_cpus_kinds_and_keys_do_not_look_like_triples(word):
    assert not looks_like_triple(word)
