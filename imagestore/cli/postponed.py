"""Modules of the standard library that short commands load and hardly use; here they are loaded when used.

Only the installed command does this, to its own process. Each has a stand-in in ``sys.modules`` that becomes the module
when somebody asks for something of it. Our own modules get from typing's what means nothing at run time; everybody else
gets the real one. Everybody gets from inspect's what laying out a help text takes.
"""

import sys
import types
from _thread import RLock

from imagestore.late import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Base:
    """What Protocol and Generic are at run time to whoever doesn't ask isinstance(): a base without anything."""

    __slots__ = ()

    def __class_getitem__(cls, _parameters: object) -> "type[_Base]":
        return cls


_RARELY_USED = (
    # By dataclasses: to look into undocumented classes, and to copy values into dictionaries. By click, for help texts.
    "inspect",
    "copy",
    # By urllib.parse, for addresses in brackets.
    "ipaddress",
    # By pathlib, for the paths of another system, and for patterns (Python 3.12's needs one at once).
    "ntpath",
    "fnmatch",
    # By socket, to send files.
    "selectors",
    # By shutil, for archives; help is as wide as shutil says.
    "bz2",
    "lzma",
    "zlib",
    # By nearly every module of ours, for what only type checkers read.
    "typing",
)
#: What typing's stand-in has for modules of this package.
_TYPING: "dict[str, Any]" = {
    "TYPE_CHECKING": False,
    **dict.fromkeys(("Any", "ClassVar", "Final", "NoReturn", "TypeAlias"), object),
    **dict.fromkeys(("Generic", "Protocol"), _Base),
    "TypeVar": lambda *_arguments, **_named: object,
    "cast": lambda _kind, value: value,
}


def _cleandoc(doc: str) -> str:
    """As ``inspect.cleandoc``: without the margin of all lines but the first, and without empty lines around."""
    first, *rest = doc.expandtabs().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
    lines = [first.lstrip(), *(line[margin:] for line in rest)]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        del lines[0]
    return "\n".join(lines)


#: What inspect's has for everybody. The module loads the parser, the tokenizer and the disassembler of Python.
_INSPECT: "dict[str, Any]" = {
    "cleandoc": _cleandoc,
    "isfunction": lambda value: isinstance(value, types.FunctionType),
}
_OURS = "imagestore."
#: What the import system asks of a module whatever is imported from it.
_ASKED_ANYWAY = frozenset({"__path__", "__spec__"})
_LOADING = RLock()


class _Postponed(types.ModuleType):
    def __getattr__(self, name: str) -> "Any":
        if name in _ASKED_ANYWAY:
            raise AttributeError(name)
        if self.__name__ == "inspect" and name in _INSPECT and sys.modules.get("inspect") is self:
            return _INSPECT[name]
        if self.__name__ == "typing" and name in _TYPING:
            asking = sys._getframe(1).f_globals.get("__name__", "")
            if asking.startswith(_OURS) and sys.modules.get("typing") is self:
                return _TYPING[name]
        with _LOADING:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            module = load(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, name)


def postpone() -> None:
    """From now on these modules wait until they are used; those that are loaded already stay."""
    for name in _RARELY_USED:
        if name not in sys.modules:
            sys.modules[name] = _Postponed(name)
