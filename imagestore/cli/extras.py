"""Packages that only an extra brings: one that is missing is named, with what to install."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from imagestore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def needed(extra: str, *, what: str) -> Iterator[None]:
    """For a block of imports.

    Args:
        extra: its name in ``pip install 'imagestore[…]'``.
        what: what asks for it, for the message.

    Raises:
        ConfigError: a package isn't installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "imagestore").partition(".")[0] == "imagestore":
            raise  # a fault of ours, which no installation fixes
        raise ConfigError(
            f"{what}: expected the package {error.name}, it is not installed",
            hint=f"pip install 'imagestore[{extra}]'",
        ) from error
