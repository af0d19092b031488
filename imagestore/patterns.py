"""Regular expressions, compiled when first used: a tenth of a command's start would go into those it never needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import re

    pattern = re.compile


class _Pattern:
    """What ``re.compile`` gives, as soon as anything is asked of it; afterwards as quick as that."""

    def __init__(self, text: str | bytes, flags: int = 0) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        import re

        compiled = re.compile(self._text, self._flags)
        for each in ("fullmatch", "match", "search", "finditer", "findall", "sub", "subn", "split", "pattern", "flags"):
            setattr(self, each, getattr(compiled, each))
        return getattr(compiled, name)


if not TYPE_CHECKING:

    def pattern(text, flags=0):
        """As ``re.compile``."""
        return _Pattern(text, flags)
