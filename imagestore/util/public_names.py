"""Names of a package that are imported when they are first used (PEP 562).

A package imports its names below ``if TYPE_CHECKING`` for type checkers, jedi and documentation, and lists them in
``__all__``. Here it states the module of each name, so that a program loads only the modules of the names it uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def deferred(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package; ``homes`` has the module of each name, or its own if it is one."""

    def _get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(home)
        return module if home == f"{package}.{name}" else getattr(module, name)

    return _get, lambda: sorted(homes)
