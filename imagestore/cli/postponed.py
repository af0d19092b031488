"""Modules of the standard library that short commands load and hardly use; here they are loaded when used.

Only the installed command does this, to its own process. Each has a stand-in in ``sys.modules`` that becomes the module
when somebody asks for something of it. What it has itself until then is little: for our own modules typing's names that
mean nothing at run time, and of some modules what their halves in C have; for everybody what other libraries ask of
modules that they import and hardly use.
"""

import os
import sys
import types
import urllib
from _thread import RLock, _local, allocate_lock, get_ident

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
    # By pathlib too (of those that short commands load), for patterns.
    "re",
    # For addresses of files, by pathlib.
    "urllib.parse",
    # By socket, to send files.
    "selectors",
    # By uuid, to see which system has which functions.
    "platform",
    # By ours, for what is rare or what their halves in C have.
    "datetime",
    "math",
    "bisect",
    "enum",
    "queue",
    "signal",
    "socket",
    "sqlite3",
    "threading",
    "weakref",
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


def _quote_from_bytes(*arguments: "Any", **named: "Any") -> str:
    return _whole("urllib.parse").quote_from_bytes(*arguments, **named)  # type: ignore[no-any-return]


#: What stand-ins have for everybody. Inspect loads the parser, the tokenizer and the disassembler of Python.
_SPARED: "dict[str, dict[str, Any]]" = {
    "inspect": {"cleandoc": _cleandoc, "isfunction": lambda value: isinstance(value, types.FunctionType)},
    "urllib.parse": {"quote_from_bytes": _quote_from_bytes},
    # The end of the interpreter asks for it, to wait for threads: there were none.
    "threading": {"_shutdown": lambda: None},
    "platform": {"system": lambda: os.uname().sysname} if hasattr(os, "uname") else {},
}
_OURS = "imagestore."
#: What stand-ins have for our own modules.
_OWN: "dict[str, dict[str, Any]]" = {
    "threading": {"Lock": allocate_lock, "RLock": RLock, "local": _local, "get_ident": get_ident},
    "typing": _TYPING,
}
#: Modules of which some of ours get what a smaller one has (in C, but for one), and which those are: what the standard
#: library puts around it (numbers with names, sockets as files, dates in databases) they don't use.
_HALVES = {
    "bisect": ("_bisect", _OURS),
    "enum": ("imagestore.cli.enums", _OURS),
    "queue": ("_queue", _OURS),
    "signal": ("_signal", "imagestore.cli."),
    "socket": ("_socket", "imagestore.registry.transport."),
    "sqlite3": ("_sqlite3", _OURS),
    "weakref": ("_weakref", _OURS),
}
#: What the import system asks of a module whatever is imported from it; of a package only to import a module in it.
_ASKED_ANYWAY = frozenset({"__path__", "__spec__"})
_OF_PACKAGES = frozenset({("re", "__path__"), ("sqlite3", "__path__")})
_CHANGING = RLock()
#: What gRPC loads for programs with an event loop, which the commands that ask a server have none of.
_OF_LOOPS = ("asyncio", "grpc.aio")


class _Postponed(types.ModuleType):
    def __getattr__(self, name: str) -> "Any":
        if name in _ASKED_ANYWAY and (self.__name__, name) not in _OF_PACKAGES:
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            found = _spared(self.__name__, name, _asking())
            if found is not None:
                return found
        module = _whole(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, name)


def _whole(name: str) -> "Any":
    """The module itself, from now on in its stand-in's place."""
    with _CHANGING:
        if isinstance(sys.modules.get(name), _Postponed):
            del sys.modules[name]
    # Not while holding that: it may import others, and wait for who imports them.
    return load(name)


def _asking() -> str:
    """The module whose code asks a stand-in; empty where the interpreter does, at its end."""
    try:
        name = sys._getframe(2).f_globals.get("__name__", "")
    except ValueError:
        return ""
    return name if isinstance(name, str) else ""


def _spared(module: str, name: str, asking: str) -> "Any":
    """What the stand-in itself has of that name for the module that asks; None if nothing."""
    if module in _OWN and asking.startswith(_OURS):
        return _OWN[module].get(name)
    half, whom = _HALVES.get(module, ("", ""))
    if half and asking.startswith(whom):
        return getattr(load(half), name, None)
    return _SPARED.get(module, {}).get(name)


def postpone() -> None:
    """From now on these modules wait until they are used; those that are loaded already stay."""
    for name in _RARELY_USED:
        if name not in sys.modules:
            sys.modules[name] = stand_in = _Postponed(name)
            if name == "urllib.parse":
                urllib.parse = stand_in  # type: ignore[attr-defined]


def postpone_loops() -> None:
    """Before gRPC is loaded for blocking calls: in the process of a command, event loops wait until they are used."""
    if any(isinstance(sys.modules.get(name), _Postponed) for name in _RARELY_USED):
        for name in _OF_LOOPS:
            sys.modules.setdefault(name, _Postponed(name))
