"""Durations are read and printed as in Go; the command line has days besides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import InvalidInputError
from imagestore.util.durations import Duration

SECOND = 10**9


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (-1, "-1ns"),
        (1100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (405_000_000, "405ms"),
        (SECOND, "1s"),
        (3_300_000_000, "3.3s"),
        (60 * SECOND, "1m0s"),
        (90 * SECOND, "1m30s"),
        (105_457_000_000, "1m45.457s"),
        (3600 * SECOND, "1h0m0s"),
        (4 * 60 * SECOND + 5 * SECOND + SECOND // 1000, "4m5.001s"),
        (5 * 3600 * SECOND + 6 * 60 * SECOND + 7_001 * SECOND // 1000, "5h6m7.001s"),
        (2**63 - 1, "2562047h47m16.854775807s"),
        (-(2**63), "-2562047h47m16.854775808s"),
    ],
)
def test_durations_print_as_in_go(nanoseconds: int, text: str) -> None:
    assert str(Duration(nanoseconds)) == text
    assert Duration.parse(text) == Duration(nanoseconds)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("+5s", 5),
        ("-5s", -5),
        ("2m", 120),
        ("1h15m30.918s", 4530.918),
        (".5m", 30),
        ("1.h", 3600),
        ("10us", 0.00001),
        ("10\u00b5s", 0.00001),
        ("10\u03bcs", 0.00001),
        ("1ms1s", 1.001),
        ("0.3333333333333333333h", 1200),
        ("0.100000000000000000000h", 360),
        ("0.830103483285477580700h", 2988.372539827),
    ],
)
def test_durations_read_as_in_go(text: str, seconds: float) -> None:
    assert Duration.parse(text) == Duration.of_seconds(seconds)


@pytest.mark.parametrize(
    "text", ["", "3", "-", "s", ".", "-.s", "1d", "1 s", "1s ", "\u0661s", "--1s", "1e3s", "1" * 99 + "h"]
)
def test_what_go_refuses_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        Duration.parse(text)


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_what_is_printed_reads_back(nanoseconds: int) -> None:
    assert Duration.parse(str(Duration(nanoseconds))).nanoseconds == nanoseconds


@given(st.text(max_size=30))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        Duration.parse(text)
    except InvalidInputError:
        return
    assert text


@pytest.mark.parametrize(
    ("nanoseconds", "text"), [(1_999_999, "1ms"), (-1_999_999, "-1ms"), (999, "0s"), (1_234_567_890, "1.234s")]
)
def test_events_show_milliseconds(nanoseconds: int, text: str) -> None:
    assert str(Duration(nanoseconds).truncated_to_milliseconds()) == text


@pytest.mark.parametrize(("text", "seconds"), [("7d", 604_800), ("1w", 604_800), ("1d12h", 129_600), ("1.5d", 129_600)])
def test_days_are_units_where_they_are_asked_for(text: str, seconds: float) -> None:
    assert Duration.parse(text, has_days=True).seconds == seconds
    with pytest.raises(InvalidInputError):
        Duration.parse(text)
