"""Quantities as people read them."""

import pytest

from tvmtarget.human_units import bytes_text, counted, rate_text, seconds_text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "subgraph", "0 subgraphs"),
        (1, "subgraph", "1 subgraph"),
        (2, "subgraph", "2 subgraphs"),
        (2, "copy", "2 copies"),
        (2, "relay", "2 relays"),
        (2, "branch", "2 branches"),
        (2, "box", "2 boxes"),
        (2, "lifted constant", "2 lifted constants"),
    ],
)
def test_nouns_follow_the_number(number, noun, text):
    assert counted(number, noun) == text


def test_an_irregular_plural_is_given():
    assert counted(1, "index", "indices") == "1 index"
    assert counted(2, "index", "indices") == "2 indices"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (123456, "121 KiB"),
        (1024**2 - 1, "1 MiB"),
        (1000 * 1024**2, "1000 MiB"),
        (32 * 1024**3, "32 GiB"),
        (2199023255552, "2 TiB"),
        (-3 * 1024**2, "-3 MiB"),
        (1000 * 1024**6, "1000 EiB"),
        (2 * 1024**7, "2,361,183,241,434,822,606,848 bytes"),
    ],
)
def test_bytes_are_in_binary_units(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0, "0 B/s"), (80, "80 B/s"), (999.6, "1 kB/s"), (1.25e6, "1.25 MB/s"), (450e9, "450 GB/s"), (4.8e12, "4.8 TB/s")],
)
def test_rates_are_in_decimal_units(rate, text):
    assert rate_text(rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (4e-12, "4 ps"),
        (35e-9, "35 ns"),
        (110e-6, "110 us"),
        (0.9999e-3, "1 ms"),
        (0.0025, "2.5 ms"),
        (1, "1 s"),
        (90.04, "90 s"),
        (123456, "123456 s"),
        (-2e-6, "-2 us"),
        (float("inf"), "inf s"),
    ],
)
def test_durations_are_in_the_unit_that_fits(seconds, text):
    assert seconds_text(seconds) == text
