"""Options that many commands have: handlers, progress, host, rates, durations, credentials (``app`` has --output)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from imagestore.cli import complete
from imagestore.cli.app import GivenPath
from imagestore.errors import InvalidInputError
from imagestore.util.durations import Duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.registry.credentials.model import Credential, CredentialLookup


F = TypeVar("F", bound="Callable[..., Any]")


def all_of(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Options and arguments that several commands have, in the order of their help."""

    def _decorate(function: Any) -> Any:
        for each in reversed(decorators):
            function = each(function)
        return function

    return _decorate


def handler_option(help_text: str) -> Callable[[F], F]:
    """``--runtime-handler H``; arrives as ``runtime_handler``, None where it isn't given."""
    return click.option("--runtime-handler", metavar="H", shell_complete=complete.handlers, help=help_text)


def html_option(function: F) -> F:
    """``--html FILE``; arrives as ``html``."""
    option = click.option(
        "--html",
        type=GivenPath(dir_okay=False, path_type=Path, allow_dash=True),
        metavar="FILE",
        help="Write one page that needs no network to FILE; - writes it to standard output.",
    )
    return option(function)


def handlers_option(help_text: str) -> Callable[[F], F]:
    """``--runtime-handler H``, as often as wanted; arrives as ``handlers``."""
    return click.option(
        "--runtime-handler",
        "handlers",
        metavar="H",
        multiple=True,
        shell_complete=complete.handlers,
        help=help_text,
    )


def progress_option(
    help_text: str = "What to show on standard error; auto draws bars on a terminal and prints lines elsewhere.",
) -> Callable[[F], F]:
    """``--progress``; arrives as ``progress``, a style of ``progress.observer()``."""
    return click.option(
        "--progress",
        type=click.Choice(["auto", "bar", "plain", "json", "none"]),
        default="auto",
        show_default=True,
        help=help_text,
    )


def host_option(function: F) -> F:
    """``--host P``; arrives as ``host``, None for this machine."""
    option = click.option(
        "--host", metavar="P", help="Pretend to be a node of this platform, e.g. 'windows(10.0.20348)/amd64'."
    )
    return option(function)


_RATE: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,3}))? ?([kmgt]?i?b?)(?:/s)?", re.IGNORECASE | re.ASCII)
_POWERS: Final = "kmgt"


def _read(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    rate = parse_rate(value)
    if not rate:
        raise click.BadParameter(f"{value!r}: expected bytes per second above zero, for example 10MiB or 10MiB/s")
    return rate


def parse_rate(text: str) -> int | None:
    """Bytes per second; None when the text is no rate. KiB is 1024 bytes, kB (or k) 1000.

    >>> parse_rate("10MiB/s"), parse_rate("1.5MB"), parse_rate("500"), parse_rate("fast")
    (10485760, 1500000, 500, None)
    """
    found = _RATE.fullmatch(text.strip())
    if found is None:
        return None
    unit = found[3].lower().removesuffix("b")
    if unit == "i":
        return None
    factor = (1024 if unit.endswith("i") else 1000) ** (_POWERS.index(unit[0]) + 1) if unit else 1
    thousandths = int(found[1]) * 1000 + int((found[2] or "").ljust(3, "0"))
    return thousandths * factor // 1000


def limit_rate_option(function: F) -> F:
    """``--limit-rate``; arrives as ``limit_rate``."""
    option = click.option(
        "--limit-rate",
        callback=_read,
        metavar="RATE",
        help="Receive no more than this for the pull altogether, for example 10MiB/s.",
    )
    return option(function)


_LONGEST_DAYS: Final = 36525
_LONGEST: Final = Duration.parse(f"{_LONGEST_DAYS}d", has_days=True)


def seconds(text: str) -> float:
    """Read a duration.

    Raises:
        click.BadParameter: it can't be read, or is negative or longer than a hundred years.

    >>> seconds("1.5h")
    5400.0
    """
    try:
        found = Duration.parse(text, has_days=True)
    except InvalidInputError as error:
        raise click.BadParameter(str(error)) from error
    if not Duration() <= found <= _LONGEST:
        raise click.BadParameter(f"{text!r}: expected 0 to {_LONGEST_DAYS}d (a hundred years)")
    return found.seconds


def duration_option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """An option that takes a duration and arrives as seconds; None where it has no default and isn't given."""
    return click.option(*names, type=seconds, metavar="DURATION", **settings)


_MAX_BYTES: Final = 64 * 1024


def access_options(function: F) -> F:
    """The two options; arrive as ``creds_stdin`` and ``anonymous``."""
    for option in (
        click.option("--anonymous", is_flag=True, help="Use no stored login."),
        click.option(
            "--creds-stdin",
            is_flag=True,
            help="Read USER:PASSWORD for the image's registry from standard input instead of using a stored login.",
        ),
    ):
        function = option(function)
    return function


def lookup(host: str, *, creds_stdin: bool, anonymous: bool, has_others: bool = False) -> CredentialLookup | None:
    """What the options ask for; None means the stored logins.

    Args:
        host: the registry that credentials from standard input are for.
        creds_stdin: read them.
        anonymous: use none.
        has_others: other registries are asked too, with the stored logins.

    Raises:
        InvalidInputError: standard input has no ``user:password``.
    """
    if creds_stdin and anonymous:
        raise click.UsageError("--creds-stdin and --anonymous exclude each other")
    if not creds_stdin and not anonymous:
        return None
    from imagestore.registry.credentials.lookup import CredentialResolver
    from imagestore.registry.credentials.model import Anonymous, FoundCredential
    from imagestore.registry.credentials.sources import ExplicitSource

    if anonymous:
        return Anonymous()
    given = ExplicitSource(FoundCredential(read_stdin(), "standard input"), host)
    return CredentialResolver.standard(given) if has_others else CredentialResolver([given])


def read_line(what: str) -> str:
    """What standard input has, without one line end.

    Raises:
        InvalidInputError: it is too long, or no UTF-8; nothing of it is repeated.
    """
    raw = sys.stdin.buffer.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise InvalidInputError(f"{what}: expected at most {_MAX_BYTES} bytes on standard input")
    try:
        return raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InvalidInputError(f"{what}: expected UTF-8 on standard input") from None


def read_stdin() -> Credential:
    """The credentials on standard input.

    Raises:
        InvalidInputError: it has no ``user:password``, is too long, or no UTF-8.
    """
    from imagestore.registry.credentials.model import Credential, checked
    from imagestore.util.secret import Secret

    username, colon, password = read_line("credentials").partition(":")
    if not colon or not username or not password:
        raise InvalidInputError("credentials on standard input: expected one line USER:PASSWORD")
    return checked(Credential(username, Secret(password)), "credentials on standard input")
