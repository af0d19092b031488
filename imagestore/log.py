"""Loggers that load the logging package only where somebody may listen.

Loading it takes a twentieth of a short command. While nobody in the process has done it, nobody can have asked for
anything below a warning.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import logging

#: As in the logging package.
DEBUG: Final = 10


class _Logger:
    def __init__(self, name: str) -> None:
        self._name = name

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the standard logger's name
        return "logging" in sys.modules and bool(self._real.isEnabledFor(level))

    def debug(self, message: str, *arguments: object, **more: Any) -> None:
        if "logging" in sys.modules:
            # Whoever looks where a line came from sees the caller.
            self._real.debug(message, *arguments, stacklevel=2, **more)

    def info(self, message: str, *arguments: object, **more: Any) -> None:
        if "logging" in sys.modules:
            self._real.info(message, *arguments, stacklevel=2, **more)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._real, name)

    @property
    def _real(self) -> Any:
        import logging

        return logging.getLogger(self._name)


if TYPE_CHECKING:

    def get_logger(name: str) -> logging.Logger:
        """As ``logging.getLogger``."""

else:

    def get_logger(name):
        """As ``logging.getLogger``."""
        return _Logger(name)
