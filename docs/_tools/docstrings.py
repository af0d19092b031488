"""Docstrings as the API pages need them: examples as code, and one line for each parameter."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, Final

import griffe

#: Sphinx' roles, which become plain code.
_ROLE: Final = re.compile(r":(?:class|exc|func|meth|mod):`~?(?:imagestore\.)?(?P<name>[^`]+)`")
#: ``first, second: what both are``.
_SEVERAL: Final = re.compile(
    r"^(?P<indent> {4})(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)+): (?P<text>.*(?:\n {5,}.*)*)", re.MULTILINE
)
#: An example and what it prints, up to an empty line.
_EXAMPLE: Final = re.compile(r"^ *>>> .*(?:\n.+)*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites docstrings when they are loaded, and says which names a package's stub lists."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Take the names of each face, which are read when they are used, as exported."""
        waiting = [pkg]
        while waiting:
            module = waiting.pop()
            waiting += [each for each in module.modules.values() if not each.is_alias]
            if module.is_init_module and Path(str(module.filepath)).with_suffix(".pyi").exists():
                module.exports = importlib.import_module(module.path).__all__

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object that has one."""
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)


def rewritten(text: str) -> str:
    """A docstring that Markdown and the parser of sections take as it is meant.

    >>> rewritten("Adds.\\n\\n    >>> 1 + 1\\n    2")
    'Adds.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    text = _ROLE.sub(r"`\g<name>`", text).replace("``", "`")
    text = _SEVERAL.sub(_one_line_each, text)
    return _EXAMPLE.sub(lambda match: f"```pycon\n{_dedented(match[0])}\n```", text)


def _one_line_each(match: re.Match[str]) -> str:
    return "\n".join(f"{match['indent']}{name}: {match['text']}" for name in match["names"].split(", "))


def _dedented(text: str) -> str:
    indent = len(text) - len(text.lstrip(" "))
    return "\n".join(line[indent:] for line in text.splitlines())
