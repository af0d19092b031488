"""Names of packages that are looked up when first used, so that importing a package costs next to nothing."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any


def load(module: str) -> "Any":
    """Import a module by its full name.

    The standard library's importlib does the same, and takes a millisecond to be imported itself.
    """
    __import__(module)
    return sys.modules[module]


def names(package: str, homes: "Mapping[str, str]", modules: "Collection[str]" = ()) -> "Callable[[str], Any]":
    """A package's ``__getattr__``.

    Args:
        package: its full name.
        homes: public name to the module below it that has it.
        modules: modules below it that are public names themselves.

    Raises:
        AttributeError: by what is returned: no such name.
    """

    def __getattr__(name: str) -> "Any":  # noqa: N807 - it becomes that function
        if name in homes:
            return getattr(load(f"{package}.{homes[name]}"), name)
        if name in modules:
            return load(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__
