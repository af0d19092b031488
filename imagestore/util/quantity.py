"""Kubernetes quantities: exact decimal numbers with a suffix, as ``resource.Quantity`` of its API machinery reads them.

    quantity = [sign] number suffix            sign = "+" | "-"
    number   = digits | digits "." digits | digits "." | "." digits
    suffix   = "" | n | u | m | k | M | G | T | P | E
             | Ki | Mi | Gi | Ti | Pi | Ei
             | ("e" | "E") [sign] digits

A bare ``E`` is the suffix 10^18, ``E`` before digits an exponent. What is finer than 1e-9 is rounded away from zero to
1e-9 while reading; a binary quantity above 2^63-1 is capped there, a decimal one is not. Text without any digit counts
as zero where Kubernetes' quick path takes it, so ``+``, ``.``, ``m`` and ``Ti`` are 0 while ``Pi`` is refused.

The canonical text has an integer with the largest suffix that loses nothing: ``1.5`` is ``1500m``, ``1.5Gi`` is
``1536Mi``; a multiple of 1024 Ei, for which there is no suffix, is written in decimal. Three deliberate differences:
our text is always canonical, where Kubernetes repeats some spellings until the first arithmetic (``1.441``); what is
too large for the suffix E gets an exponent, where it writes the digits alone (``1000E`` is ``1e21``, there ``1``); and
exponents outside 32 bits are refused, where it lets them wrap.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass, field
from typing import Final

from imagestore.errors import InvalidQuantityError, InvalidResourcesError
from imagestore.util.text import cut


class Format(enum.Enum):
    """Which family of suffixes a quantity was written with, and is printed with."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


#: Powers of ten for ``scaled`` and ``round_up``.
NANO: Final = -9
MILLI: Final = -3

INT64: Final = range(-(2**63), 2**63)
UINT64: Final = range(2**64)
UINT16: Final = range(2**16)

MAXIMUM_BINARY: Final = 2**63 - 1
#: Longest text read; far above what any schema allows, far below what costs anything.
MAXIMUM_TEXT: Final = 1024
#: Digits an integer may need anywhere; beyond that a quantity is compared and printed, but not computed with.
MAXIMUM_DIGITS: Final = 2000
_MAXIMUM_BITS: Final = int(MAXIMUM_DIGITS * 3.3219281)
_MOST_SHOWN: Final = 100
_EXPONENTS: Final = range(-(2**31) + MAXIMUM_TEXT, 2**31 - MAXIMUM_TEXT)

_GRAMMAR: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?:(?P<decimal>[numkMGTPE]?)|(?P<binary>[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]+))"
)
_DECIMAL: Final = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_SUFFIX: Final = ("", *_BINARY)
# Go's strings.TrimSpace, which also knows the blanks of Unicode; Python's strip() takes four more.
_GO_BLANKS: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class Quantity:
    """``mantissa * 10**exponent``, exactly; equal when the numbers are, whatever the format.

    Attributes:
        mantissa: without trailing zeros (they go into the exponent).
        exponent: power of ten; 0 for zero.
        format: how it is printed.
        written: the original text, for messages; empty if it was computed.

    Raises:
        InvalidQuantityError: the mantissa has more than MAXIMUM_DIGITS digits.

    >>> str(Quantity.parse("1.5Gi")), Quantity.parse("0.5").milli_value()
    ('1536Mi', 500)
    >>> Quantity.parse("1000M") == Quantity.parse("1G")
    True
    """

    mantissa: int
    exponent: int = 0
    format: Format = field(default=Format.DECIMAL_SI, compare=False)
    written: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        mantissa, exponent = self.mantissa, self.exponent
        if mantissa.bit_length() > _MAXIMUM_BITS:
            raise InvalidQuantityError("", f"needs more than {MAXIMUM_DIGITS} digits")
        if mantissa == 0:
            exponent = 0
        while mantissa and mantissa % 10 == 0:
            mantissa //= 10
            exponent += 1
        object.__setattr__(self, "mantissa", mantissa)
        object.__setattr__(self, "exponent", exponent)

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Read a quantity.

        Raises:
            InvalidQuantityError: it breaks the grammar, is longer than MAXIMUM_TEXT, or its exponent needs more than
                32 bits.

        >>> Quantity.parse("100m").milli_value(), Quantity.parse("1Ki").value(), str(Quantity.parse("0.5e3"))
        (100, 1024, '500')
        >>> Quantity.parse("1 Mi")
        Traceback (most recent call last):
        ...
        imagestore.errors.InvalidQuantityError: quantity '1 Mi': expected a number with a suffix such as m, k, Mi or e3
        """
        if len(text) > MAXIMUM_TEXT:
            raise InvalidQuantityError(text, f"{len(text)} characters, more than the {MAXIMUM_TEXT} that are read")
        found = _GRAMMAR.fullmatch(text)
        if found is None or not text:
            raise InvalidQuantityError(
                text,
                "expected a number with a suffix such as m, k, Mi or e3",
                hint="suffixes are n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent; upper and lower case differ",
            )
        whole, fraction = found["whole"], found["fraction"] or ""
        mantissa = int(found["sign"] + "0" + whole + fraction)
        if found["binary"]:
            power = _BINARY[found["binary"]]
            _refuse_without_digits(text, whole + fraction, is_slow=power >= _BINARY["Pi"])
            return _binary(mantissa * 2**power, -len(fraction))
        format_ = Format.DECIMAL_SI if found["exponent"] is None else Format.DECIMAL_EXPONENT
        exponent = _DECIMAL[found["decimal"] or ""] if found["exponent"] is None else int(found["exponent"])
        if exponent not in _EXPONENTS:
            raise InvalidQuantityError(text, "expected an exponent of at most 32 bits")
        _refuse_without_digits(text, whole + fraction, is_slow=exponent < NANO)
        return cls(mantissa, exponent - len(fraction), format_).round_up(NANO)

    @property
    def is_zero(self) -> bool:
        """Whether the number is 0."""
        return self.mantissa == 0

    @property
    def as_written(self) -> str:
        """The original text, shortened; the canonical text if it was computed."""
        return cut(self.written, _MOST_SHOWN) or str(self)

    @property
    def sign(self) -> int:
        """-1, 0 or 1."""
        return (self.mantissa > 0) - (self.mantissa < 0)

    def value(self) -> int:
        """As an integer, see scaled()."""
        return self.scaled(0)

    def milli_value(self) -> int:
        """In thousandths, see scaled()."""
        return self.scaled(MILLI)

    def scaled(self, scale: int) -> int:
        """In units of ``10**scale``, rounded away from zero; exact, also outside 64 bits.

        Raises:
            InvalidQuantityError: it has more than MAXIMUM_DIGITS digits.

        >>> Quantity.parse("1.5").scaled(0), Quantity.parse("-1.5").scaled(0), Quantity.parse("2k").scaled(3)
        (2, -2, 2)
        """
        shift = self.exponent - scale
        if shift >= 0:
            return self.mantissa * self._power(shift)
        return self.sign * _ceiling(abs(self.mantissa), -shift)

    def round_up(self, scale: int) -> Quantity:
        """The same number with nothing finer than ``10**scale``, rounded away from zero.

        >>> str(Quantity.parse("1.0001").round_up(MILLI))
        '1001m'
        """
        return self if self.exponent >= scale else Quantity(self.scaled(scale), scale, self.format)

    def __add__(self, other: Quantity) -> Quantity:
        """The sum, in this format; in the other's when this is zero, as Kubernetes has it."""
        if not isinstance(other, Quantity):
            return NotImplemented
        format_ = other.format if self.is_zero else self.format
        if self.is_zero or other.is_zero:
            left = other if self.is_zero else self
            return Quantity(left.mantissa, left.exponent, format_)
        low = min(self.exponent, other.exponent)
        total = self.mantissa * self._power(self.exponent - low) + other.mantissa * other._power(other.exponent - low)
        return Quantity(total, low, format_)

    def __neg__(self) -> Quantity:
        return Quantity(-self.mantissa, self.exponent, self.format)

    def __sub__(self, other: Quantity) -> Quantity:
        """The difference, in this format; in the other's when this is zero."""
        if not isinstance(other, Quantity):
            return NotImplemented
        return self + -other

    def __mul__(self, factor: int) -> Quantity:
        """The multiple, in this format."""
        if not isinstance(factor, int):
            return NotImplemented
        return Quantity(self.mantissa * factor, self.exponent, self.format)

    __rmul__ = __mul__

    def __lt__(self, other: Quantity) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self.compare(other) < 0

    def compare(self, other: Quantity) -> int:
        """-1, 0 or 1 if this number is smaller, equal or larger; also for numbers too large to add."""
        if self.sign != other.sign or self.is_zero:
            return (self.sign > other.sign) - (self.sign < other.sign)
        magnitude = self._digits() + self.exponent - other._digits() - other.exponent
        if magnitude:
            return self.sign if magnitude > 0 else -self.sign
        # The same order of magnitude, so the exponents differ by no more than the digits do.
        low = min(self.exponent, other.exponent)
        left = self.mantissa * _ten_to(self.exponent - low)
        right = other.mantissa * _ten_to(other.exponent - low)
        return (left > right) - (left < right)

    def __str__(self) -> str:
        """The canonical text."""
        if self.is_zero:
            return "0"
        if self.format is Format.BINARY_SI and self.exponent >= 0:
            thousand = Quantity(1024)
            if not -thousand < self < thousand:
                return self._binary_text() or self._decimal_text()
        return self._decimal_text()

    def _binary_text(self) -> str:
        """Empty where the suffix would be beyond Ei."""
        value, times = self.value(), 0
        while value % 1024 == 0 and times <= len(_BINARY):
            value //= 1024
            times += 1
        return f"{value}{_BINARY_SUFFIX[times]}" if times < len(_BINARY_SUFFIX) else ""

    def _decimal_text(self) -> str:
        exponent = self.exponent - self.exponent % 3
        mantissa = self.mantissa * _ten_to(self.exponent - exponent)
        suffix = None if self.format is Format.DECIMAL_EXPONENT else _DECIMAL_SUFFIX.get(exponent)
        if suffix is None:
            # Beyond E no suffix is left, whatever the format.
            suffix = f"e{exponent}" if exponent else ""
        return f"{mantissa}{suffix}"

    def _digits(self) -> int:
        return len(str(abs(self.mantissa)))

    def _power(self, exponent: int) -> int:
        if exponent > MAXIMUM_DIGITS:
            raise InvalidQuantityError(str(self), f"needs more than {MAXIMUM_DIGITS} digits")
        return _ten_to(exponent)


ZERO: Final = Quantity(0)


def _ceiling(mantissa: int, down: int) -> int:
    """A natural number divided by ``10**down``, rounded up."""
    if down > MAXIMUM_DIGITS:
        return 1 if mantissa else 0
    return -(-mantissa // _ten_to(down))


def _ten_to(exponent: int) -> int:
    power: int = 10**exponent
    return power


def from_json(value: str | int | float | None) -> Quantity:
    """Read a quantity where a JSON document has it: a string (blanks around it are dropped), a number, or null for 0.

    Raises:
        InvalidQuantityError: it breaks the grammar, or is a boolean.

    >>> from_json(" 1Gi ") == from_json(2**30), str(from_json(0.5))
    (True, '500m')
    """
    if value is None:
        return ZERO
    if isinstance(value, bool):
        raise InvalidQuantityError(str(value).lower(), "expected text or a number, found a boolean")
    if isinstance(value, int) and value.bit_length() > _MAXIMUM_BITS:
        raise InvalidQuantityError("", f"needs more than {MAXIMUM_DIGITS} digits")
    return Quantity.parse(value.strip(_GO_BLANKS) if isinstance(value, str) else str(value))


def quotient(dividend: int, divisor: int) -> int:
    """Division cut towards zero, as Go divides; Python's ``//`` cuts downwards.

    >>> quotient(-7, 2), quotient(7, 2)
    (-3, 3)
    """
    result = abs(dividend) // abs(divisor)
    return result if (dividend < 0) == (divisor < 0) else -result


def clamp(value: int, low: int, high: int) -> int:
    """The nearest number within low and high."""
    return max(low, min(value, high))


def fitting(value: int, kind: range, what: str) -> int:
    """The value; InvalidResourcesError if it is outside its field's range, where Kubernetes lets it wrap.

    ``kind`` is INT64, UINT64 or UINT16; ``what`` names the field in the error.
    """
    if value not in kind:
        raise InvalidResourcesError(f"{what}: {_shown(value)} does not fit {kind.start}..{kind.stop - 1}")
    return value


def byte_count(quantity: Quantity, what: str) -> int:
    """A quantity in whole bytes, rounded up; InvalidResourcesError if it doesn't fit 64 bits."""
    return fitting(quantity.value(), INT64, what)


def milli_cpu(quantity: Quantity, what: str) -> int:
    """A quantity in thousandths of a CPU, rounded up; InvalidResourcesError if it doesn't fit 64 bits."""
    return fitting(quantity.milli_value(), INT64, what)


def _shown(value: int) -> str:
    return str(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"


def _binary(mantissa: int, exponent: int) -> Quantity:
    rounded = Quantity(mantissa, exponent, Format.BINARY_SI).round_up(NANO)
    if rounded.mantissa and -Quantity(1) < rounded < Quantity(1):
        return Quantity(rounded.mantissa, rounded.exponent, Format.DECIMAL_SI)
    limit = Quantity(MAXIMUM_BINARY, 0, Format.BINARY_SI)
    return max(-limit, min(rounded, limit))


def _refuse_without_digits(text: str, digits: str, *, is_slow: bool) -> None:
    # Kubernetes reads missing digits as 0 on its 64-bit path only; its big-number path finds no number there.
    if is_slow and not digits:
        raise InvalidQuantityError(text, "expected digits before the suffix")
