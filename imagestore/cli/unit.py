"""``imagestore serve --print-unit``: the systemd units of the package, for the command and the options at hand.

The service is shut in: it sees no /tmp but its own, and writes only where the unit says. So what the options name is
put into the unit in all the places that it concerns, and what can't work there is refused.
"""

from __future__ import annotations

import importlib.resources
import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from imagestore.cli.failure import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Self

SERVICE: Final = "imagestore.service"
SOCKET: Final = "imagestore.socket"
#: Those that systemd makes for the service, by the unit's StateDirectory and RuntimeDirectory.
_ROOT: Final = "/var/lib/imagestore"
_RUNTIME: Final = "/run/imagestore"
#: The unit's PrivateTmp puts others in their place.
_HIDDEN: Final = ("/tmp", "/var/tmp")  # noqa: S108 - nothing is made there
#: How much longer than the server's drain the service manager waits.
_MARGIN_SECONDS: Final = 15
_PLAIN: Final = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
#: What is said of the other unit, which is not for a server with sockets of its own.
_OF_SOCKET: Final = ("# Without the socket unit", f"Also={SOCKET}")


@dataclass(frozen=True, slots=True)
class Places:
    """What the options name on disk.

    Attributes:
        root: the store's folder, or None.
        config: the configuration file, or None.
        sources: folders to adopt content from.
        listen: paths of sockets.
        proxies: paths of sockets for containerds.
    """

    root: str | None
    config: str | None
    sources: tuple[str, ...]
    listen: tuple[str, ...]
    proxies: tuple[str, ...]

    @classmethod
    def of(
        cls,
        root: Path | None,
        config: Path | None,
        sources: Iterable[Path],
        listen: Iterable[str],
        proxies: Iterable[str],
    ) -> Self:
        """With absolute paths: a service begins in another folder."""
        return cls(
            None if root is None else os.path.abspath(root),
            None if config is None else os.path.abspath(config),
            tuple(os.path.abspath(source) for source in sources),
            tuple(map(os.path.normpath, listen)),
            tuple(map(os.path.normpath, proxies)),
        )

    @property
    def written(self) -> tuple[str, ...]:
        """Folders that the server writes to."""
        sockets = [os.path.dirname(path) for path in (*self.listen, *self.proxies)]
        return tuple(dict.fromkeys([self.root or _ROOT, *sockets]))

    def check(self) -> None:
        """Refuse what the service would not see.

        Raises:
            UsageError: names it.
        """
        named = (self.root, self.config, *self.sources, *self.listen, *self.proxies)
        for path in (each for each in named if each is not None):
            if _is_below(path, _HIDDEN):
                raise click.UsageError(f"{path}: the unit gives the server a /tmp of its own, where this is not")


def text(name: str, context: click.Context, places: Places) -> str:
    """A unit file, with the options of this call.

    Args:
        name: SERVICE or SOCKET.
        context: has the options of ``serve``, and above it the global ones.
        places: that they name.

    Raises:
        UsageError: an option can't be put into this unit.
    """
    places.check()
    template = (importlib.resources.files("imagestore.server") / "units" / name).read_text("utf-8").splitlines()
    lines = _socket(template, context, places) if name == SOCKET else _service(template, context, places)
    return "".join(f"{line}\n" for line in lines)


def _service(template: Sequence[str], context: click.Context, places: Places) -> Iterator[str]:
    needs_state = any(_is_below(path, [_ROOT]) for path in places.written)
    dropped = (*(() if needs_state else ("StateDirectory",)), *(_OF_SOCKET if places.listen else ()))
    written = [_quoted(path) for path in places.written if not _is_below(path, (_ROOT, _RUNTIME))]
    drain, group = context.params["drain_timeout"], context.params["socket_group"]
    replaced = {
        "ExecStart": " ".join(_words(context, places)),
        "TimeoutStopSec": _seconds(drain + _MARGIN_SECONDS),
    }
    added = {
        "CapabilityBoundingSet": "" if group is None else f"SupplementaryGroups={group}",
        "ProtectSystem": f"ReadWritePaths={' '.join(written)}" if written else "",
    }
    for line in template:
        if line.startswith(dropped):
            continue
        key = line.partition("=")[0]
        yield f"{key}={replaced[key]}" if key in replaced else line
        if added.get(key):
            yield added[key]


def _socket(template: Sequence[str], context: click.Context, places: Places) -> Iterator[str]:
    taken = {"listen", "socket_mode", "socket_group", "print_unit"}
    for option in (*_given(context), *_given(context.parent)):
        if option.name not in taken:
            raise click.UsageError(f"{option.opts[0]} has its place in {SERVICE}, not in {SOCKET}")
    group = context.params["socket_group"]
    replaced = {
        "ListenStream": [_escaped(path) for path in places.listen],
        "SocketMode": [_octal(context.params["socket_mode"])],
        "SocketGroup": [] if group is None else [str(group)],
    }
    for line in template:
        key = line.partition("=")[0]
        for value in replaced.get(key) or [line.partition("=")[2]]:
            yield f"{key}={value}" if "=" in line else line


def _words(context: click.Context, places: Places) -> Iterator[str]:
    """The command line of the service."""
    yield from map(_quoted, _command())
    for source in places.sources:
        yield from ("--source", _argument(source))
    if context.find_root().params.get("debug"):
        yield "--debug"
    yield from ("serve", "--root", _argument(places.root or _ROOT))
    if places.config is not None:
        yield from ("--config", _argument(places.config))
    if not any(option.name == "log_format" for option in _given(context)):
        yield from ("--log-format", "json")
    for option in _given(context):
        if option.name in _PLACED:
            continue
        value = context.params[option.name or ""]
        for each in value if option.multiple else (value,):
            yield option.opts[0]
            if not option.is_flag:
                yield _argument(_WRITERS.get(option.name or "", str)(each))


def _command() -> tuple[str, ...]:
    """The command that runs now, as a service manager finds it: systemd's search path has no virtual environments."""
    script = os.path.abspath(sys.argv[0])
    is_installed = os.path.basename(script) == "imagestore" and os.path.isfile(script) and os.access(script, os.X_OK)
    command = (script,) if is_installed else (sys.executable, "-m", "imagestore")
    if "$" in command[0]:
        raise click.UsageError(f"{command[0]}: systemd starts no command with a $ in its path")
    if _is_below(command[0], _HIDDEN):
        say(f"imagestore: {command[0]}: the unit gives the server a /tmp of its own; install it at another place")
    return command


def _given(context: click.Context | None) -> Iterator[click.Option]:
    """The options that a command was given, in the order of its help."""
    if context is None:
        return
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        if isinstance(each, click.Option) and source is click.core.ParameterSource.COMMANDLINE:
            yield each


def _octal(mode: int) -> str:
    return f"{mode:04o}"


def _seconds(duration: float) -> str:
    return f"{duration:.3f}".rstrip("0").rstrip(".") + "s"


#: What the command line has at a place of its own.
_PLACED: Final = {"root", "config_path", "print_unit"}
#: How options are written whose values aren't the words that were given.
_WRITERS: Final[dict[str, Callable[[Any], str]]] = {
    "socket_mode": _octal,
    "drain_timeout": _seconds,
    "gc_interval": _seconds,
}


def _argument(word: str) -> str:
    """A word of a command, in which systemd would put variables."""
    return _quoted(word).replace("$", "$$")


def _quoted(word: str) -> str:
    """A word as units have it."""
    escaped = _escaped(word)
    if _PLAIN.fullmatch(escaped):
        return escaped
    inner = escaped.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inner}"'


def _escaped(value: str) -> str:
    """A value without what systemd would put other things in place of.

    Raises:
        UsageError: no unit can hold it.
    """
    if not value.isprintable():
        raise click.UsageError(f"{value!r}: a unit file can't hold this")
    return value.replace("%", "%%")


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
