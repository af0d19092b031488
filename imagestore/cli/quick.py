"""The plainest spellings of the commands most used, understood without loading a library of options.

That library takes longer than listing a thousand images. What is understood here means exactly what it means there (a
law in the tests); everything else (help, errors, rare options, other commands) is left to it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.cli.app import App

#: Spelling to name, in front of the command.
_GLOBAL: Final = {"--root": "root", "--config": "config_path", "--endpoint": "endpoint"}
#: Variables that stand for options; those that only the library reads hand the whole line to it.
_ROOT, _CONFIG = "IMAGESTORE_ROOT", "IMAGESTORE_CONFIG"
_UNREAD: Final = ("IMAGESTORE_SOURCES", "_IMAGESTORE_COMPLETE")
_OUTPUT: Final = ("table", "json")
#: What a server is not told: options of a local store.
_LOCAL: Final = frozenset({"root", "config_path", "platform", "collect"})


class _Grammar:
    """What a command takes.

    Args:
        values: options with a value, spelling to name.
        flags: options without, spelling to name.
        choices: values that are possible, by name; others take any.
        repeated: names that may be given more than once.
        exclusive: pairs of names that exclude each other.
        least, most: how many arguments.
    """

    def __init__(
        self,
        values: dict[str, str],
        flags: dict[str, str],
        *,
        choices: dict[str, tuple[str, ...]],
        repeated: tuple[str, ...] = (),
        exclusive: tuple[tuple[str, str], ...] = (),
        least: int,
        most: int,
    ) -> None:
        self.values = values
        self.flags = flags
        self.choices = choices
        self.repeated = repeated
        self.exclusive = exclusive
        self.least = least
        self.most = most


_HANDLER: Final = {"--runtime-handler": "runtime_handler"}
_OUTPUTS: Final = {"--output": "output", "-o": "output"}
_COMMANDS: Final = {
    "pull": _Grammar(
        {"--runtime-handler": "handlers", "--platform": "platform", "--progress": "progress", **_OUTPUTS},
        {},
        choices={"progress": ("auto", "bar", "plain", "json", "none"), "output": _OUTPUT},
        repeated=("handlers",),
        exclusive=(("handlers", "platform"),),
        least=1,
        most=100,
    ),
    "images": _Grammar(
        {**_HANDLER, **_OUTPUTS},
        {"-q": "quiet", "--quiet": "quiet", "--no-trunc": "no_trunc"},
        choices={"output": _OUTPUT},
        least=0,
        most=1,
    ),
    "rmi": _Grammar(
        {**_HANDLER, **_OUTPUTS},
        {"--gc": "collect", "--all-handlers": "all_handlers"},
        choices={"output": _OUTPUT},
        exclusive=(("all_handlers", "runtime_handler"),),
        least=1,
        most=100,
    ),
}


class Line:
    """A command line that was understood.

    Attributes:
        command: its name.
        root: the store's folder, or None.
        config_path: the configuration, or None.
        endpoint: the CRI server to ask instead, or None.
        arguments: of the command.
        values: of the options that were given, by name, in order.
        flags: names of those that were given.
    """

    def __init__(self, command: str) -> None:
        self.command = command
        self.root: str | None = None
        self.config_path: str | None = None
        self.endpoint: str | None = None
        self.arguments: list[str] = []
        self.values: dict[str, tuple[str, ...]] = {}
        self.flags: set[str] = set()

    def value(self, name: str) -> str | None:
        """Value of an option that may be given once."""
        return self.values[name][0] if name in self.values else None

    def work(self) -> list[tuple[str, str]]:
        """What to pull: references and runtime handlers."""
        return [(each, handler) for each in self.arguments for handler in self.values.get("handlers", ("",))]


def understand(words: Sequence[str]) -> Line | None:
    """Read a command line; None when it is for the library."""
    if any(os.environ.get(name) for name in _UNREAD):
        return None
    position, places = 0, dict[str, str]()
    while position < len(words) and words[position].startswith("-"):
        found = _value(words, position, _GLOBAL)
        if found is None or found[0] in places:
            return None
        places[found[0]], position = found[1], found[2]
    line = Line(words[position] if position < len(words) else "")
    grammar = _COMMANDS.get(line.command)
    if grammar is None or not _read(line, words[position + 1 :], grammar):
        return None
    line.endpoint = places.get("endpoint")
    if line.endpoint and not _can_be_asked(line, places):
        return None
    line.root = places.get("root") or os.environ.get(_ROOT) or None
    line.config_path = places.get("config_path") or os.environ.get(_CONFIG) or None
    return None if line.root is not None and os.path.isfile(line.root) else line


def run(words: Sequence[str]) -> int | None:
    """Run a command line; None, with nothing done, when it is for the library."""
    line = understand(words)
    if line is None:
        return None
    from pathlib import Path

    from imagestore.cli import frame
    from imagestore.cli.app import App

    app = App(Path(line.root) if line.root else None, Path(line.config_path) if line.config_path else None)
    if line.endpoint:
        from imagestore.cli.remote.connect import RemoteOptions

        app.remote = RemoteOptions(line.endpoint)

    def work() -> int:
        try:
            if app.remote is None:
                _do(app, line)
            else:
                _ask(app, line)
        finally:
            app.close()
        return 0

    return frame.run(work)


def _do(app: App, line: Line) -> None:
    """On a local store."""
    from imagestore.cli import actions

    output, handler, flags = line.value("output") or "table", line.value("runtime_handler"), line.flags
    if line.command == "pull":
        platform, progress = line.value("platform"), line.value("progress") or "auto"
        actions.pull(app, line.work(), platform=platform, deadline_seconds=None, progress=progress, output=output)
    elif line.command == "images":
        name, is_quiet, has_whole_ids = next(iter(line.arguments), None), "quiet" in flags, "no_trunc" in flags
        actions.show_images(app, name, handler, is_quiet=is_quiet, has_whole_ids=has_whole_ids, output=output)
    else:
        is_everywhere, frees = "all_handlers" in flags, "collect" in flags
        actions.remove(app, line.arguments, handler, is_everywhere=is_everywhere, frees=frees, output=output)


def _ask(app: App, line: Line) -> None:
    """At a CRI server."""
    service = app.service
    from imagestore.cli.remote import images

    output, handler, flags = line.value("output") or "table", line.value("runtime_handler"), line.flags
    if line.command == "pull":
        images.pull(service, line.work(), auth=None, deadline_seconds=None, output=output)
    elif line.command == "images":
        name, is_quiet, has_whole_ids = next(iter(line.arguments), None), "quiet" in flags, "no_trunc" in flags
        images.show_list(service, name, handler, is_quiet=is_quiet, has_whole_ids=has_whole_ids, output=output)
    else:
        images.remove(service, line.arguments, handler, is_everywhere="all_handlers" in flags, output=output)


def _read(line: Line, words: Sequence[str], grammar: _Grammar) -> bool:
    """Fill in arguments and options of a command; False when they aren't surely right."""
    position = 0
    while position < len(words):
        word = words[position]
        if word in grammar.flags:
            line.flags.add(grammar.flags[word])
            position += 1
        elif not word.startswith("-"):
            line.arguments.append(word)
            position += 1
        else:
            found = _value(words, position, grammar.values)
            if found is None:
                return False
            name, value, position = found
            is_again = name in line.values and name not in grammar.repeated
            if is_again or value not in grammar.choices.get(name, (value,)):
                return False
            line.values[name] = (*line.values.get(name, ()), value)
    given = line.flags | set(line.values)
    if any(given.issuperset(pair) for pair in grammar.exclusive) or "" in line.arguments:
        return False
    return grammar.least <= len(line.arguments) <= grammar.most


def _value(words: Sequence[str], position: int, table: dict[str, str]) -> tuple[str, str, int] | None:
    """Name and value of an option, and where the next word is; None when it isn't surely one with a value."""
    spelling, mark, value = words[position].partition("=")
    following = position + 1
    if not mark and following < len(words):
        value, following = words[following], following + 1
    elif not spelling.startswith("--"):
        return None
    if spelling not in table or not value or value.startswith("-"):
        return None
    return table[spelling], value, following


def _can_be_asked(line: Line, places: dict[str, str]) -> bool:
    """Whether a CRI server can do what the line says, with its endpoint as it is given."""
    is_local = not _LOCAL.isdisjoint({*places, *line.values, *line.flags})
    return line.endpoint != "crictl" and not is_local and line.value("progress") in (None, "auto", "none")
