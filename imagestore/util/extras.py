"""Which extra brings a package, told with the failed import of a public name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Of packages that are imported with a public name; others are needed by calls, which say so themselves.
EXTRAS: Final = {
    "aiohttp": "mirror",
    "google": "cri",
    "grpc": "cri",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
}


def hinting(attribute: Callable[[str], object]) -> Callable[[str], object]:
    """The ``__getattr__`` of a face, whose ModuleNotFoundError has a note that says what to install."""

    def __getattr__(name: str) -> object:  # noqa: N807 - a module's
        """A public name, imported when it is used."""
        try:
            return attribute(name)
        except ModuleNotFoundError as error:
            extra = EXTRAS.get((error.name or "").partition(".")[0])
            if extra is not None:
                from imagestore.util.distribution import install_hint

                error.add_note(f"hint: {install_hint(extra)}")
            raise

    return __getattr__
