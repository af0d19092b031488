"""Integers as the kubelet and the runtimes have them: 64 bits, division cut towards zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidResourcesError

if TYPE_CHECKING:
    from imagestore.resources.quantity import Quantity

INT64: Final = range(-(2**63), 2**63)
UINT64: Final = range(2**64)
UINT16: Final = range(2**16)


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
    """The value, if its field can hold it.

    Args:
        value: to be stored.
        kind: INT64, UINT64 or UINT16.
        what: names the field in the error.

    Raises:
        InvalidResourcesError: it doesn't fit. Kubernetes lets it wrap.
    """
    if value not in kind:
        raise InvalidResourcesError(f"{what}: {_shown(value)} does not fit {kind.start}..{kind.stop - 1}")
    return value


def byte_count(quantity: Quantity, what: str) -> int:
    """A quantity in whole bytes, rounded up, within 64 bits.

    Raises:
        InvalidResourcesError: it doesn't fit 64 bits.
    """
    return fitting(quantity.value(), INT64, what)


def milli_cpu(quantity: Quantity, what: str) -> int:
    """A quantity in thousandths of a CPU, rounded up, within 64 bits.

    Raises:
        InvalidResourcesError: it doesn't fit 64 bits.
    """
    return fitting(quantity.milli_value(), INT64, what)


def _shown(value: int) -> str:
    return str(value) if value.bit_length() < 256 else f"a number of {value.bit_length()} bits"
