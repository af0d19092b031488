"""Names of a package that are imported when they are first used (PEP 562).

A package gives its names to type checkers, jedi and documentation below ``if TYPE_CHECKING``, lists them in
``__all__``, and says here in which module each one is. So a program that needs one loads that module and no other.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def deferred(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its name.
        homes: each name with its module; a module that is a name itself has its own path.
    """

    def _get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(home)
        return module if home == f"{package}.{name}" else getattr(module, name)

    return _get, lambda: sorted(homes)
