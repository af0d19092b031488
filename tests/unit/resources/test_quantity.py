"""Kubernetes' grammar of quantities: spellings, canonical text, rounding, bounds, arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest

from imagestore import Digest
from imagestore.errors import InvalidQuantityError
from imagestore.util.quantity import ZERO, Format, Quantity, from_json
from tests.support import vectors

SI, BINARY, EXPONENT = Format.DECIMAL_SI, Format.BINARY_SI, Format.DECIMAL_EXPONENT

# text, mantissa, power of ten, format
READ = [
    (*row[:3], Format[row[3]]) for row in vectors.rows("quantities", "read", "text", "mantissa", "exponent", "format")
]

REFUSED = vectors.table("quantities", "refuse")

CANONICAL = vectors.rows("quantities", "canonical", "text", "canonical")


@pytest.mark.parametrize(("text", "mantissa", "exponent", "format_"), READ, ids=[row[0] for row in READ])
def test_a_quantity_is_read_exactly(text: str, mantissa: int, exponent: int, format_: Format) -> None:
    found = Quantity.parse(text)
    assert (found, found.format) == (Quantity(mantissa, exponent), format_)


@pytest.mark.parametrize("text", REFUSED, ids=[ascii(text)[:20] for text in REFUSED])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuantityError) as caught:
        Quantity.parse(text)
    assert caught.value.text == text


@pytest.mark.parametrize(("text", "canonical"), CANONICAL, ids=[row[0] for row in CANONICAL])
def test_the_canonical_text_has_the_largest_suffix_that_loses_nothing(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "value", "milli"),
    vectors.rows("quantities", "values", "text", "value", "milli"),
)
def test_values_are_rounded_away_from_zero(text: str, value: int, milli: int) -> None:
    assert (Quantity.parse(text).value(), Quantity.parse(text).milli_value()) == (value, milli)


@pytest.mark.parametrize(("scale", "text"), [(-9, "1001001001n"), (-6, "1001002u"), (-3, "1002m"), (0, "2"), (3, "1k")])
def test_rounding_up_to_a_scale_leaves_nothing_finer(scale: int, text: str) -> None:
    assert str(Quantity.parse("1.001001001").round_up(scale)) == text


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
    first, second = Quantity.parse(left), Quantity.parse(right)
    assert (str(first + second), str(first - second)) == (total, difference)


def test_a_zero_sum_takes_the_format_of_what_is_added() -> None:
    assert (Quantity.parse("0") + Quantity.parse("0Ki")).format is BINARY
    assert (Quantity.parse("1") - Quantity.parse("1") + Quantity.parse("1e3")).format is EXPONENT


def test_multiples_are_exact() -> None:
    assert str(Quantity.parse("1.5Gi") * 3) == "4608Mi"
    assert 2**70 * Quantity.parse("1n") == Quantity(2**70, -9)


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
    first, second = Quantity.parse(left), Quantity.parse(right)
    assert (first.compare(second), second.compare(first)) == (result, -result)
    assert (first < second, first <= second, first > second, first >= second, first == second) == (
        result < 0,
        result <= 0,
        result > 0,
        result >= 0,
        result == 0,
    )


@pytest.mark.parametrize("other", ["1", None, 2.5, Digest.of(b"")])
@pytest.mark.parametrize(
    "operation",
    [operator.lt, operator.le, operator.gt, operator.ge, operator.add, operator.sub, operator.mul],
)
def test_quantities_take_no_other_values(operation: Callable[[object, object], object], other: object) -> None:
    for left, right in ((Quantity.parse("1"), other), (other, Quantity.parse("1"))):
        with pytest.raises(TypeError):
            operation(left, right)
    assert Quantity.parse("1") != other


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
    huge = Quantity.parse("1e2147480000")
    for attempt in (huge.value, huge.milli_value, lambda: huge + Quantity.parse("1"), lambda: Quantity(10**3000)):
        with pytest.raises(InvalidQuantityError, match="more than 2000 digits"):
            attempt()
    assert huge + ZERO == huge


def test_numbers_are_compared_exactly_however_many_digits_they_have() -> None:
    lower, middle, upper = map(Quantity.parse, ("9007199254740992", "9007199254740992.5", "9007199254740993"))
    assert lower < middle < upper
    assert Quantity.parse("9007199254740992.5").compare(Quantity.parse("9007199254740992.50")) == 0
