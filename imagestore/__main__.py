"""``python -m imagestore``, and the installed command."""

from __future__ import annotations

import _thread
import gc
import importlib
import os
import sys
import types
from typing import Any, Final

# A command makes some ten thousand objects and ends; looking for circles among them earlier is in vain.
_COLLECT_AFTER: Final = 100_000
# The standard library's dataclasses loads it, and a parser's tables with it, to look into undocumented classes only.
_RARELY_USED: Final = ("inspect",)
_LOADING: Final = _thread.allocate_lock()
# The packages of the extra "cli".
_NEEDED: Final = frozenset({"click", "platformdirs", "rich", "tomli_w"})


def main() -> int:
    """Run the command line, or say what to install for it."""
    from imagestore.cli import quick

    try:
        status = quick.run(sys.argv[1:])
        if status is not None:
            return status
        from imagestore.cli.main import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write("imagestore: the command line needs more packages: pip install 'imagestore[cli]'\n")
        return 1
    return run()


class _Postponed(types.ModuleType):
    """A module that is loaded when something in it is used; its importers can't tell."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        with _LOADING:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            module = importlib.import_module(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, name)


def command() -> None:
    """The installed command: runs, and ends the process at once."""
    gc.set_threshold(_COLLECT_AFTER)
    for name in _RARELY_USED:
        sys.modules.setdefault(name, _Postponed(name))
    status = main()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            status = status or 1
    # Everything is closed; taking down a hundred modules one by one would double the time of a short command.
    os._exit(status)


if __name__ == "__main__":
    command()
