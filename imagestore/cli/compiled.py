"""Modules of this package are found by their compiled files alone: half of what the import system spends on each.

Only the installed command does this, to its own process, where a hundred modules are loaded to run for milliseconds.
It tells apart what the import system tells apart: a compiled file counts if it is this Python's and names its source's
place, time and size. Whatever is unusual (no such file, a stale one, one checked by its hash) is left to the import
system.
"""

import _imp
import marshal
import os
import sys
from _frozen_importlib_external import MAGIC_NUMBER, PathFinder, SourceFileLoader, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

_OURS = "imagestore."
_ENDING = f".{sys.implementation.cache_tag}.pyc"
# PEP 552: the magic number, flags (none: checked by time and size), then the source's time and size.
_CHECKED_BY_TIME = MAGIC_NUMBER + bytes(4)
_HEADER = 16
_CODE = type((lambda: None).__code__)
#: A file that doesn't fit, in bytes, is left to the import system; ours have some ten thousand.
_BUFFER_BYTES = 1 << 17
#: What files are read into, again and again: fresh memory costs more than reading. One for each thread that
#: imports at the same time.
_spare: list[bytearray] = []


class _Loader(SourceFileLoader):
    """As the import system's, with the code that was read already."""

    code: "CodeType | None" = None

    def get_code(self, fullname: str) -> "CodeType | None":
        code, self.code = self.code, None
        # Loaded again, it may be another file by now.
        return super().get_code(fullname) if code is None else code


class Finder:
    """An entry of ``sys.meta_path`` (PEP 451)."""

    #: Until it is seen that compiled files here are of another kind; to look at each would cost time for nothing.
    is_useful = True

    @classmethod
    def find_spec(
        cls, name: str, path: "Sequence[str] | None" = None, _target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The module's specification, or None where the import system must look."""
        if not path or not cls.is_useful or not name.startswith(_OURS):
            return None
        last = name.rpartition(".")[2]
        try:
            return _spec(name, path[0], last) or _spec(name, f"{path[0]}/{last}", "__init__", is_package=True)
        except _OtherKindError:
            cls.is_useful = False
            return None


class _OtherKindError(Exception):
    """A compiled file of another Python, or one checked by its hash."""


def _spec(name: str, folder: str, stem: str, *, is_package: bool = False) -> "ModuleSpec | None":
    source, compiled = f"{folder}/{stem}.py", f"{folder}/__pycache__/{stem}{_ENDING}"
    code = _code(source, compiled)
    if code is None:
        return None
    loader = _Loader(name, source)
    loader.code = code
    spec = spec_from_file_location(
        name, source, loader=loader, submodule_search_locations=[folder] if is_package else None
    )
    if spec is not None:
        spec.cached = compiled  # else it is worked out from the source's
    return spec


def _code(source: str, compiled: str) -> "CodeType | None":
    """What a module's compiled file holds, if it is that of its source as it is now."""
    try:
        buffer = _spare.pop()
    except IndexError:
        buffer = bytearray(_BUFFER_BYTES)
    try:
        now = os.stat(source)
        file = os.open(compiled, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.readv(file, (buffer,))
        finally:
            os.close(file)
        data = memoryview(buffer)[:size]
        of = (int(now.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little") + (now.st_size & 0xFFFFFFFF).to_bytes(4, "little")
        if data[:_HEADER] != _CHECKED_BY_TIME + of:
            if data[: len(_CHECKED_BY_TIME)] != _CHECKED_BY_TIME:
                raise _OtherKindError
            return None
        code = marshal.loads(data[_HEADER:])  # noqa: S302 - as safe as the module itself
    except (OSError, ValueError, EOFError, TypeError, SystemError):  # not there, or not whole
        return None
    finally:
        _spare.append(buffer)
    if not isinstance(code, _CODE):
        return None
    # Where it was compiled is in it: the tree may have been moved since.
    _imp._fix_co_filename(code, source)  # type: ignore[attr-defined]
    return code


def find() -> None:
    """From now on this package's modules are found so, unless compiled files are kept elsewhere or in another form."""
    # Extensions of the same name would come first, and aren't looked for.
    is_plain = isinstance(getattr(__spec__, "loader", None), SourceFileLoader)
    if is_plain and not sys.flags.optimize and sys.pycache_prefix is None:
        # Behind what others put there to watch imports.
        sys.meta_path.insert(sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0, Finder)
