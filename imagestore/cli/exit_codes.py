"""Exit statuses: one table from error categories, and one line on standard error for each failure."""

from __future__ import annotations

import contextlib
import enum
import json
import sys
from typing import TYPE_CHECKING, Final

import imagestore.errors as errors
from imagestore.cli.render import printable
from imagestore.errors import Category, ConfigError
from imagestore.util.distribution import install_hint
from imagestore.util.logins import without_logins

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class ExitStatus(enum.IntEnum):
    """What the process's exit status means; ``imagestore --help`` lists them."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    NO_MATCH = 4
    ACCESS = 5
    UNAVAILABLE = 6
    INTEGRITY = 7
    STORE = 8
    CONFIG = 9
    DEADLINE = 124
    INTERRUPTED = 130


MEANINGS: Final = {
    ExitStatus.OK: "success",
    ExitStatus.FAILURE: "any other failure",
    ExitStatus.USAGE: "wrong usage, or an unreadable reference, digest or platform",
    ExitStatus.NOT_FOUND: "no such image, repository, tag or content",
    ExitStatus.NO_MATCH: "the image has no manifest for the wanted platform",
    ExitStatus.ACCESS: "login needed, access denied, or refused by an image verifier",
    ExitStatus.UNAVAILABLE: "the registry or runtime can't be reached, answers wrongly, or limits requests",
    ExitStatus.INTEGRITY: "content is damaged or breaks the image format",
    ExitStatus.STORE: "the store is full, read-only, busy, damaged, unreadable or not there",
    ExitStatus.CONFIG: "the configuration is wrong, or the runtime handler unknown",
    ExitStatus.DEADLINE: "the deadline passed",
    ExitStatus.INTERRUPTED: "interrupted",
}

#: Names of what wasn't tried that are shown.
_MOST_UNTRIED: Final = 20

# The first class that fits decides, so the narrower ones come first.
_BY_CLASS: Final[tuple[tuple[type[errors.ImageStoreError], ExitStatus], ...]] = (
    (errors.NoMatchingManifestError, ExitStatus.NO_MATCH),
    (errors.ConfigError, ExitStatus.CONFIG),
    (errors.StoreError, ExitStatus.STORE),
    (errors.ContentUnreadableError, ExitStatus.STORE),
    (errors.DocumentError, ExitStatus.INTEGRITY),
    (errors.ProtocolError, ExitStatus.UNAVAILABLE),
)
_BY_CATEGORY: Final = {
    Category.INVALID_ARGUMENT: ExitStatus.USAGE,
    Category.OUT_OF_RANGE: ExitStatus.USAGE,
    Category.NOT_FOUND: ExitStatus.NOT_FOUND,
    Category.UNAVAILABLE: ExitStatus.UNAVAILABLE,
    Category.RESOURCE_EXHAUSTED: ExitStatus.UNAVAILABLE,
    Category.PERMISSION_DENIED: ExitStatus.ACCESS,
    Category.UNAUTHENTICATED: ExitStatus.ACCESS,
    Category.DATA_LOSS: ExitStatus.INTEGRITY,
    Category.CANCELLED: ExitStatus.INTERRUPTED,
    Category.DEADLINE_EXCEEDED: ExitStatus.DEADLINE,
}


def exit_status(error: errors.ImageStoreError) -> ExitStatus:
    """The exit status of an error."""
    for kind, status in _BY_CLASS:
        if isinstance(error, kind):
            return status
    return _BY_CATEGORY.get(error.category, ExitStatus.FAILURE)


def say(line: str) -> None:
    """Write a line to standard error; if that fails, the exit status remains."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr)


def note(text: str) -> None:
    """Write a line to standard error with the program's name in front."""
    say(f"imagestore: {printable(without_logins(text))}")


def warn(subject: str, warnings: Iterable[str]) -> None:
    """Write warnings about an object to standard error; its name may be empty."""
    for warning in warnings:
        note(f"warning: {subject}: {warning}" if subject else f"warning: {warning}")


def say_untried(work: Iterable[tuple[str, str]]) -> None:
    """Name the references and runtime handlers that weren't tried because of a failure."""
    untried = [f"{reference} for {handler}" if handler else reference for reference, handler in work]
    if untried:
        more = f" and {len(untried) - _MOST_UNTRIED} more" if len(untried) > _MOST_UNTRIED else ""
        note(f"not tried after the failure below: {', '.join(untried[:_MOST_UNTRIED])}{more}")


def report(error: errors.ImageStoreError, *, is_json: bool = False) -> ExitStatus:
    """Say why a command failed, as fail() does; return the exit status."""
    return fail(str(error), exit_status(error), category=error.category, hint=error.hint, is_json=is_json)


def fail(
    message: str,
    status: ExitStatus,
    *,
    category: Category = Category.INTERNAL,
    hint: str = "",
    is_json: bool = False,
) -> ExitStatus:
    """Write one line (and the hint on a second) to standard error, or a JSON object in one line; return the status."""
    shown, advice = (printable(without_logins(text)) for text in (message, hint))
    if is_json:
        code = category.value.replace(" ", "_")
        say(json.dumps({"code": code, "message": shown, "hint": advice, "status": status.value}))
        return status
    say(f"imagestore: {shown}")
    if advice:
        say(f"  hint: {advice}")
    return status


@contextlib.contextmanager
def needed(extra: str, *, what: str) -> Iterator[None]:
    """Turn a failed import of the block into an error that says what to install.

    Args:
        extra: of this distribution.
        what: the option or command that needs it.

    Raises:
        ConfigError: a package isn't installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "imagestore").partition(".")[0] == "imagestore":
            raise  # a bug of ours, which no installation fixes
        raise ConfigError(
            f"{what}: expected the package {error.name}, it is not installed",
            hint=install_hint(extra),
        ) from error
