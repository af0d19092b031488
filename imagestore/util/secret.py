"""A secret that cannot print itself."""

from __future__ import annotations

from typing import Final

REDACTED: Final = "<redacted>"


class Secret:
    """Wraps a password or token; only reveal() gives it out.

    >>> Secret("hunter2")
    Secret(<redacted>)
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The secret itself, for the one place that sends it."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return f"Secret({REDACTED})"

    __str__ = __repr__

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a Secret is not pickled")
