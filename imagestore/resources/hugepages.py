"""Huge pages: page sizes as Kubernetes names them (``hugepages-2Mi``) and as control groups do (``2MB``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidQuantityError, InvalidResourcesError
from imagestore.resources.messages import HugepageLimit
from imagestore.resources.pod import HUGE_PAGES_PREFIX
from imagestore.util.quantity import MAXIMUM_BINARY, UINT64, ZERO, Quantity, byte_count, fitting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LARGEST: Final = Quantity(MAXIMUM_BINARY)
_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB")


def page_bytes(resource_name: str) -> int:
    """The page size of a resource ``hugepages-<size>``, in bytes.

    Raises:
        InvalidResourcesError: it is another resource.
        InvalidQuantityError: the size is no quantity.

    >>> page_bytes("hugepages-2Mi")
    2097152
    """
    if not resource_name.startswith(HUGE_PAGES_PREFIX):
        raise InvalidResourcesError(f"resource {resource_name!r}: expected {HUGE_PAGES_PREFIX}<size>")
    return byte_count(Quantity.parse(resource_name.removeprefix(HUGE_PAGES_PREFIX)), f"page size of {resource_name!r}")


def page_size_text(size: int) -> str:
    """The name of a page size in control groups.

    Raises:
        InvalidResourcesError: it isn't a whole number from 1 to 1024 of one unit.

    >>> page_size_text(2 * 2**20), page_size_text(2**30), page_size_text(65536)
    ('2MB', '1GB', '64KB')
    """
    if size <= 0:
        raise InvalidResourcesError(f"huge page size {size}: expected more than zero")
    value, unit = size, 0
    while value % 1024 == 0 and unit < len(_UNITS) - 1:
        value //= 1024
        unit += 1
    if value > 1024 and unit < len(_UNITS) - 1:
        raise InvalidResourcesError(f"huge page size {size}: expected a whole number of KB, MB or GB")
    return f"{value}{_UNITS[unit]}"


def expected(resource_name: str, amount: Quantity) -> str:
    """What the API server expects instead of a non-negative amount of ``hugepages-<size>``; empty if it accepts it.

    >>> from imagestore.util.quantity import Quantity
    >>> expected("hugepages-2Mi", Quantity.parse("3Mi")), expected("hugepages-2Mi", Quantity.parse("4Mi"))
    ('a multiple of the page size, such as 4Mi', '')
    """
    try:
        size = Quantity.parse(resource_name.removeprefix(HUGE_PAGES_PREFIX))
    except InvalidQuantityError:
        size = ZERO
    if size.exponent < 0 or not ZERO < size <= _LARGEST:
        return "a page size in its name that is a whole number of bytes above 0, such as 2Mi"
    if amount > _LARGEST:
        return f"at most {MAXIMUM_BINARY}"
    pages = -(-amount.value() // size.value())
    if amount.value() == pages * size.value():
        return ""
    return f"a multiple of the page size, such as {size * pages}"


def limits(node_sizes: Sequence[str], *levels: Mapping[str, Quantity]) -> tuple[HugepageLimit, ...]:
    """One limit for each page size of the node: that of the last level that names the size, or 0.

    Sizes that the node lacks, or that can't be read, are dropped, as in the kubelet.

    Args:
        node_sizes: by their names in control groups.
        levels: limits of the pod, then of the container.

    Raises:
        InvalidResourcesError: a limit doesn't fit 64 bits, or is negative.
    """
    wanted: dict[str, int] = {}
    for level in levels:
        for name, amount in level.items():
            size = _readable_size(name)
            if size:
                wanted[size] = fitting(byte_count(amount, f"limit {name}"), UINT64, f"limit {name}")
    return tuple(HugepageLimit(size, wanted.get(size, 0)) for size in node_sizes)


def totals_by_size(requests: Mapping[str, Quantity]) -> dict[int, int]:
    """Bytes requested of each page size in bytes; spellings of one size add up.

    Raises:
        InvalidQuantityError: a page size is no quantity.
    """
    found: dict[int, int] = {}
    for name, amount in requests.items():
        if name.startswith(HUGE_PAGES_PREFIX):
            size = page_bytes(name)
            found[size] = found.get(size, 0) + byte_count(amount, f"request {name}")
    return found


def by_name(by_size: Mapping[int, int]) -> dict[str, int]:
    """Bytes by the name of the page size in control groups; sizes without a name are dropped, as in the kubelet.

    >>> by_name({2 * 2**20: 7, 3_000_000: 8})
    {'2MB': 7}
    """
    return {name: amount for size, amount in by_size.items() if (name := _name_of(size))}


def _readable_size(resource_name: str) -> str:
    if not resource_name.startswith(HUGE_PAGES_PREFIX):
        return ""
    try:
        return _name_of(page_bytes(resource_name))
    except (InvalidQuantityError, InvalidResourcesError):
        return ""


def _name_of(size: int) -> str:
    try:
        return page_size_text(size)
    except InvalidResourcesError:
        return ""
