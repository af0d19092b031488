"""A bounded memory in front of the record files, as the kubelet has one. What falls out is read from its file again."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V")


class RecentlyUsed(Generic[V]):
    """Values by key; the longest unused fall out.

    Args:
        capacity: how many are kept.
        show_usage: hears of the use in percent after each change.
    """

    def __init__(self, capacity: int, show_usage: Callable[[float], None]) -> None:
        self._capacity = capacity
        self._show_usage = show_usage
        self._values: collections.OrderedDict[str, V] = collections.OrderedDict()

    def get(self, key: str) -> V | None:
        """The value, now the most recently used; None when it isn't kept."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: str, value: V) -> None:
        """Keep a value."""
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > self._capacity:
            self._values.popitem(last=False)
        self._show()

    def drop(self, key: str) -> None:
        """Keep no value."""
        self._values.pop(key, None)
        self._show()

    def _show(self) -> None:
        self._show_usage(100 * len(self._values) // self._capacity)
