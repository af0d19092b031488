"""Kubernetes' grammar of quantities: spellings, canonical text, rounding, bounds, arithmetic."""

from __future__ import annotations

import pytest

from imagestore.errors import InvalidQuantityError
from imagestore.resources.quantity import MAXIMUM_BINARY, ZERO, Format, Quantity, from_json, parse

SI, BINARY, EXPONENT = Format.DECIMAL_SI, Format.BINARY_SI, Format.DECIMAL_EXPONENT

# text, mantissa, power of ten, format
READ = [
    ("0", 0, 0, SI),
    ("0n", 0, 0, SI),
    ("0m", 0, 0, SI),
    ("0Ki", 0, 0, BINARY),
    ("0k", 0, 0, SI),
    ("0Ei", 0, 0, BINARY),
    ("0e9", 0, 0, EXPONENT),
    ("-0", 0, 0, SI),
    ("+0", 0, 0, SI),
    ("00", 0, 0, SI),
    ("0.000", 0, 0, SI),
    ("1", 1, 0, SI),
    ("+1", 1, 0, SI),
    ("-1", -1, 0, SI),
    ("007", 7, 0, SI),
    ("1.", 1, 0, SI),
    ("1.G", 1, 9, SI),
    ("1Ki", 1024, 0, BINARY),
    ("7Mi", 7 * 2**20, 0, BINARY),
    ("6Gi", 6 * 2**30, 0, BINARY),
    ("5Ti", 5 * 2**40, 0, BINARY),
    ("4Pi", 4 * 2**50, 0, BINARY),
    ("3Ei", 3 * 2**60, 0, BINARY),
    ("100Ti", 100 * 2**40, 0, BINARY),
    ("5n", 5, -9, SI),
    ("4u", 4, -6, SI),
    ("3m", 3, -3, SI),
    ("8k", 8, 3, SI),
    ("7M", 7, 6, SI),
    ("6G", 6, 9, SI),
    ("40T", 4, 13, SI),
    ("2P", 2, 15, SI),
    ("1E", 1, 18, SI),
    ("12E", 12, 18, SI),
    ("1E-3", 1, -3, EXPONENT),
    ("1e3", 1, 3, EXPONENT),
    ("1E6", 1, 6, EXPONENT),
    ("1.3E+6", 13, 5, EXPONENT),
    ("1e14", 1, 14, EXPONENT),
    ("1.7E18", 17, 17, EXPONENT),
    ("1e007", 1, 7, EXPONENT),
    ("0.5e-2", 5, -3, EXPONENT),
    ("100.035k", 100035, 0, SI),
    ("0.0005k", 5, -1, SI),
    ("0.00500", 5, -3, SI),
    (".001", 1, -3, SI),
    (".0001k", 1, -1, SI),
    ("1.01E", 101, 16, SI),
    ("300.2T", 3002, 11, SI),
    ("100.035Ki", 10243584, -2, BINARY),
    ("0.5Mi", 2**19, 0, BINARY),
    ("0.05Gi", 536870912, -1, BINARY),
    ("0.025Ti", 274877906944, -1, BINARY),
    ("1.5Ki", 1536, 0, BINARY),
    ("-1.5Gi", -3 * 2**29, 0, BINARY),
    # finer than a billionth: away from zero
    ("3.001n", 4, -9, SI),
    ("1.1E-9", 2, -9, EXPONENT),
    ("0.0000000001", 1, -9, SI),
    ("-0.0000000001", -1, -9, SI),
    ("0.5e-9", 1, -9, EXPONENT),
    ("0.9n", 1, -9, SI),
    ("0.00000012345", 124, -9, SI),
    ("-0.00000012354", -124, -9, SI),
    ("1e-1000000", 1, -9, EXPONENT),
    ("-1e-1000000", -1, -9, EXPONENT),
    # a binary quantity below 1 is a decimal one
    ("0.000000000001Ki", 2, -9, SI),
    ("-0.0001Ki", -1024, -4, SI),
    # binary quantities end at the largest 64-bit integer, decimal ones don't
    ("8Ei", MAXIMUM_BINARY, 0, BINARY),
    ("-9Ei", -MAXIMUM_BINARY, 0, BINARY),
    ("7.9Ei", 9108079886394091110 * 10 + 4, -1, BINARY),
    ("9223372036854775807Ki", MAXIMUM_BINARY, 0, BINARY),
    ("9223372036854775808", 2**63, 0, SI),
    ("1000E", 1, 21, SI),
    # no digits at all
    ("+", 0, 0, SI),
    ("-", 0, 0, SI),
    (".", 0, 0, SI),
    ("-.", 0, 0, SI),
    ("m", 0, 0, SI),
    ("E", 0, 0, SI),
    (".Ki", 0, 0, BINARY),
    ("Ki", 0, 0, BINARY),
    ("Ti", 0, 0, BINARY),
    ("e3", 0, 0, EXPONENT),
    ("E-9", 0, 0, EXPONENT),
]

REFUSED = [
    "",
    "1e",
    "1E+",
    "1i",
    "1.1.M",
    "1+1.0M",
    "0.1mi",
    "0.1am",
    "aoeu",
    ".5i",
    " 1",
    "1 ",
    "- 3.01i",
    "-3.01i",
    "2K",
    "1 Mi",
    "1_000",
    "0x10",
    "1g",
    "1gi",
    "1ki",
    "1mi",
    "1KI",
    "1Mib",
    "1MB",
    "--1",
    "+-1",
    "1e1.5",
    "1e5Mi",
    "1Mie5",
    "1ee5",
    "1mm",
    "1e+-5",
    "0-5",
    "e",
    "i",
    "Pi",
    "Ei",
    "+Pi",
    ".Ei",
    "e-10",
    ".e-10",
    "\u0661",
    "\uff11",
    "1\n",
    "\n1",
    "1\x00",
    "inf",
    "nan",
    "1,5",
    "\u221e",
    "1e2147483648",
    "1e-2147483649",
    "1e4294967296",
    "1e99999999999999999999",
    "1" * 1025,
]

CANONICAL = [
    ("0", "0"),
    ("0Ki", "0"),
    ("0e3", "0"),
    ("1.5", "1500m"),
    ("1.5Gi", "1536Mi"),
    ("1000M", "1G"),
    ("1000", "1k"),
    ("100m", "100m"),
    ("1.441", "1441m"),
    ("0.5m", "500u"),
    ("10n", "10n"),
    (".001Ki", "1024m"),
    ("1.0000000001", "1000000001n"),
    ("1024Ki", "1Mi"),
    ("1024", "1024"),
    ("1023Ki", "1023Ki"),
    ("1025Mi", "1025Mi"),
    ("0.5Ki", "512"),
    ("1Ki", "1Ki"),
    ("-1Ki", "-1Ki"),
    ("0.999Ki", "1022976m"),
    ("100.035Ki", "102435840m"),
    ("-9.5Gi", "-9728Mi"),
    ("-9.5000000001Gi", "-10200547328107374183n"),
    ("8Ei", "9223372036854775807"),
    ("-20Ei", "-9223372036854775807"),
    ("4Ei", "4Ei"),
    ("1e3", "1e3"),
    ("1e4", "10e3"),
    ("1e5", "100e3"),
    ("1e-1", "100e-3"),
    ("12e0", "12"),
    ("1e100", "10e99"),
    ("1E", "1E"),
    ("100E", "100E"),
    ("1000E", "1e21"),
    ("18446744073709551616", "18446744073709551616"),
    ("0.1", "100m"),
    ("+1", "1"),
    ("-5", "-5"),
    ("1.E", "1E"),
    ("1e2147480000", "100e2147479998"),
]


@pytest.mark.parametrize(("text", "mantissa", "exponent", "format_"), READ, ids=[row[0] for row in READ])
def test_a_quantity_is_read_exactly(text: str, mantissa: int, exponent: int, format_: Format) -> None:
    found = parse(text)
    assert (found, found.format) == (Quantity(mantissa, exponent), format_)


@pytest.mark.parametrize("text", REFUSED, ids=[ascii(text)[:20] for text in REFUSED])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuantityError) as caught:
        parse(text)
    assert caught.value.text == text


@pytest.mark.parametrize(("text", "canonical"), CANONICAL, ids=[row[0] for row in CANONICAL])
def test_the_canonical_text_has_the_largest_suffix_that_loses_nothing(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "value", "milli"),
    [
        ("0", 0, 0),
        ("1", 1, 1000),
        ("0.5m", 1, 1),
        ("1.0000001", 2, 1001),
        ("-1.5", -2, -1500),
        ("-0.1m", -1, -1),
        ("1Ki", 1024, 1024000),
        ("12E", 12 * 10**18, 12 * 10**21),
        ("2k", 2000, 2000000),
        ("1n", 1, 1),
        ("999999999n", 1, 1000),
    ],
)
def test_values_are_rounded_away_from_zero(text: str, value: int, milli: int) -> None:
    assert (parse(text).value(), parse(text).milli_value()) == (value, milli)


@pytest.mark.parametrize(("scale", "text"), [(-9, "1001001001n"), (-6, "1001002u"), (-3, "1002m"), (0, "2"), (3, "1k")])
def test_rounding_up_to_a_scale_leaves_nothing_finer(scale: int, text: str) -> None:
    assert str(parse("1.001001001").round_up(scale)) == text


@pytest.mark.parametrize(
    ("left", "right", "total", "difference"),
    [
        ("1", "1m", "1001m", "999m"),
        ("1Gi", "1Mi", "1025Mi", "1023Mi"),
        ("0", "1Gi", "1Gi", "-1Gi"),
        ("1Gi", "0", "1Gi", "1Gi"),
        ("100m", "0", "100m", "100m"),
        ("1M", "1Mi", "2048576", "-48576"),
        ("1Mi", "1M", "2048576", "48576"),
        ("1e3", "1k", "2e3", "0"),
        ("0", "0Ki", "0", "0"),
        ("4Ei", "4Ei", "8Ei", "0"),
        ("9223372036854775807", "1", "9223372036854775808", "9223372036854775806"),
    ],
)
def test_sums_and_differences_keep_the_format_unless_the_first_is_zero(
    left: str, right: str, total: str, difference: str
) -> None:
    assert (str(parse(left) + parse(right)), str(parse(left) - parse(right))) == (total, difference)


def test_a_zero_sum_takes_the_format_of_what_is_added() -> None:
    assert (parse("0") + parse("0Ki")).format is BINARY
    assert (parse("1") - parse("1") + parse("1e3")).format is EXPONENT


def test_multiples_are_exact() -> None:
    assert str(parse("1.5Gi") * 3) == "4608Mi"
    assert 2**70 * parse("1n") == Quantity(2**70, -9)


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("0", "0Ki", 0),
        ("100m", "50m", 1),
        ("50m", "100m", -1),
        ("10000T", "100Gi", 1),
        ("-1", "1", -1),
        ("-2", "-1", -1),
        ("1e3", "1k", 0),
        ("1e2147480000", "9Ei", 1),
        ("-1e2147480000", "-9Ei", -1),
        ("99", "100", -1),
        ("1000000001n", "1", 1),
    ],
)
def test_quantities_compare_as_numbers(left: str, right: str, result: int) -> None:
    first, second = parse(left), parse(right)
    assert (first.compare(second), second.compare(first)) == (result, -result)
    assert (first < second, first <= second, first > second, first >= second, first == second) == (
        result < 0,
        result <= 0,
        result > 0,
        result >= 0,
        result == 0,
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "0"),
        (5, "5"),
        (2.5, "2500m"),
        (1e3, "1k"),
        (1e22, "10e21"),
        (" 1Gi\n", "1Gi"),
        ("\u00a01\u3000", "1"),
        (-3, "-3"),
    ],
)
def test_json_has_quantities_as_text_numbers_or_null(value: str | int | float | None, text: str) -> None:
    assert str(from_json(value)) == text


@pytest.mark.parametrize(
    "value",
    [True, False, "", " ", "1 Gi", "\x1c1", float("nan"), float("inf"), pytest.param(10**5000, id="5001 digits")],
)
def test_json_that_is_no_quantity_is_refused(value: str | float) -> None:
    with pytest.raises(InvalidQuantityError):
        from_json(value)


@pytest.mark.parametrize(
    ("number", "power", "text"),
    [
        (2**69, 0, "512Ei"),
        (2**70, 0, "1180591620717411303424"),
        (-(2**70), 0, "-1180591620717411303424"),
        (3 * 2**80, 0, str(3 * 2**80)),
        (1, 70, "10e69"),
        (1, 72, "1e72"),
    ],
)
def test_beyond_the_largest_binary_suffix_a_quantity_is_decimal(number: int, power: int, text: str) -> None:
    assert str(Quantity(number, power, BINARY)) == text


def test_what_is_too_large_to_be_computed_with_is_an_error_not_a_long_wait() -> None:
    huge = parse("1e2147480000")
    for attempt in (huge.value, huge.milli_value, lambda: huge + parse("1"), lambda: Quantity(10**3000)):
        with pytest.raises(InvalidQuantityError, match="more than 2000 digits"):
            attempt()
    assert huge + ZERO == huge


def test_numbers_are_compared_exactly_however_many_digits_they_have() -> None:
    assert parse("9007199254740992") < parse("9007199254740992.5") < parse("9007199254740993")
    assert parse("9007199254740992.5").compare(parse("9007199254740992.50")) == 0
