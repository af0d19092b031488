"""The types of option values, and the options that several commands have."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from imagestore.cli import completion
from imagestore.cli.app import App
from imagestore.errors import InvalidInputError
from imagestore.util.root_folder import is_database, is_foreign_address

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.registry.credentials.model import Credential, CredentialLookup


F = TypeVar("F", bound="Callable[..., Any]")


class GivenPath(click.Path):
    """A path that isn't empty: an unset variable of a script must not mean the current folder.

    ``~/`` is the user's home: shells leave it in ``--root=~/x`` and in quoted variables, and a unit's file is no shell.
    Whether it can be read is checked when it is read, for an error of ours.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(readable=False, **given)

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Paths between colons, as click does, without empty ones."""
        return [each for each in super().split_envvar_value(rv) if each]

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Refuse an empty text, and read the rest as click does."""
        if not os.fspath(value):
            self.fail("expected a path, it is empty", param, ctx)
        if isinstance(value, str) and (value == "~" or value.startswith("~/")):
            value = os.path.expanduser(value)
            if value.startswith("~"):
                self.fail(f"'{value}': this user has no home", param, ctx)
        return super().convert(value, param, ctx)


class StoreRoot(GivenPath):
    """A store's folder, or the address of a shared one, which stays a text."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Refuse the addresses of other databases."""
        if isinstance(value, str) and is_foreign_address(value):
            self.fail("expected a folder or postgresql://USER@HOST/DATABASE, it is another kind of address", param, ctx)
        is_address = isinstance(value, str) and is_database(value)
        return value if is_address else super().convert(value, param, ctx)


class OutputFormat(click.Choice[str]):
    """``table``, ``json``, and further formats of one command; for a file name the error explains redirection."""

    def __init__(self, *more: str) -> None:
        super().__init__(["table", "json", *more])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read it as click does, with a hint."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            hint = "It is the format; to write to a file, redirect the output: > FILE"
            raise click.BadParameter(f"{error.message} {hint}", ctx, param) from error


def all_of(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options and arguments as one decorator, in the order of their help."""

    def _decorate(function: F) -> F:
        for each in reversed(decorators):
            function = each(function)
        return function

    return _decorate


def refuse_together(**given: Any) -> None:
    """Refuse options that exclude each other.

    Args:
        given: values by the options' names, with ``_`` for ``-``; None, False and empty tuples weren't given.

    Raises:
        click.UsageError: more than one was given.
    """
    if sum(value not in (None, False, ()) for value in given.values()) > 1:
        *names, last = (f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"{', '.join(names)} and {last} exclude each other")


#: ``--output table|json``; arrives as ``output``.
output_option = click.option(
    "-o",
    "--output",
    type=OutputFormat(),
    default="table",
    show_default=True,
    help="Output format; json is stable for programs.",
)

#: ``--html FILE``; arrives as ``html``.
html_option = click.option(
    "--html",
    type=GivenPath(dir_okay=False, path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Write one page that needs no network to FILE; - writes it to standard output.",
)

#: ``--host P``; arrives as ``host``, None for this machine.
host_option = click.option(
    "--host", metavar="P", help="Pretend to be a node of this platform, e.g. 'windows(10.0.20348)/amd64'."
)


def handler_option(help_text: str) -> Callable[[F], F]:
    """``--runtime-handler H``; arrives as ``runtime_handler``, None where it isn't given."""
    return click.option("--runtime-handler", metavar="H", shell_complete=completion.handlers, help=help_text)


def handlers_option(help_text: str) -> Callable[[F], F]:
    """``--runtime-handler H``, may be repeated; arrives as ``handlers``."""
    return click.option(
        "--runtime-handler",
        "handlers",
        metavar="H",
        multiple=True,
        shell_complete=completion.handlers,
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


_RATE: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,3}))? ?([kmgt]?i?b?)(?:/s)?", re.IGNORECASE | re.ASCII)
_POWERS: Final = "kmgt"


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


def _rate(text: str) -> int:
    rate = parse_rate(text)
    if not rate:
        raise click.BadParameter(f"{text!r}: expected bytes per second above zero, for example 10MiB or 10MiB/s")
    return rate


#: ``--limit-rate``; arrives as ``limit_rate``, bytes per second.
limit_rate_option = click.option(
    "--limit-rate",
    type=_rate,
    metavar="RATE",
    help="Receive no more than this for the pull altogether, for example 10MiB/s.",
)


_LONGEST_DAYS: Final = 36525


def seconds(text: str) -> float:
    """Read a duration.

    Raises:
        click.BadParameter: it can't be read, or is negative or longer than a hundred years.

    >>> seconds("1.5h")
    5400.0
    """
    from imagestore.util.durations import Duration

    try:
        found = Duration.parse(text, has_days=True)
    except InvalidInputError as error:
        raise click.BadParameter(str(error)) from error
    if not 0 <= found.seconds <= _LONGEST_DAYS * 86400:
        raise click.BadParameter(f"{text!r}: expected 0 to {_LONGEST_DAYS}d (a hundred years)")
    return found.seconds


def duration_option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """A duration; arrives as seconds, None where it isn't given and has no default."""
    return click.option(*names, type=seconds, metavar="DURATION", **settings)


def _without_tls(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value:
        return
    app = ctx.ensure_object(App)
    if app.remote is not None:
        raise click.UsageError("--plain-http is for a local store; a CRI server has its own hosts.toml")
    app.plain_http = True


#: ``--plain-http``, which the application gets.
plain_http_option = click.option(
    "--plain-http",
    is_flag=True,
    expose_value=False,
    callback=_without_tls,
    help="Ask the registry without TLS, and send it logins so; an address in hosts.toml is used as it is.",
)
#: ``--creds-stdin`` and ``--anonymous``, see lookup(); and ``--plain-http``.
access_options = all_of(
    click.option(
        "--creds-stdin",
        is_flag=True,
        help="Read USER:PASSWORD for the image's registry from standard input instead of using a stored login.",
    ),
    click.option("--anonymous", is_flag=True, help="Use no stored login."),
    plain_http_option,
)


def lookup(host: str, *, creds_stdin: bool, anonymous: bool, has_others: bool = False) -> CredentialLookup | None:
    """The credentials that the access options mean; None means the stored logins.

    Args:
        host: the registry that credentials from standard input are for.
        creds_stdin: read them.
        anonymous: use none.
        has_others: other registries are asked too, with the stored logins.

    Raises:
        InvalidInputError: standard input has no ``user:password``.
    """
    refuse_together(creds_stdin=creds_stdin, anonymous=anonymous)
    if not creds_stdin and not anonymous:
        return None
    from imagestore.registry.credentials.lookup import CredentialResolver
    from imagestore.registry.credentials.model import Anonymous, FoundCredential
    from imagestore.registry.credentials.sources import ExplicitSource

    if anonymous:
        return Anonymous()
    given = ExplicitSource(FoundCredential(read_stdin(), "standard input"), host)
    return CredentialResolver.standard(given) if has_others else CredentialResolver([given])


_MAX_BYTES: Final = 64 * 1024


def read_line(what: str) -> str:
    """What standard input has, without one line end.

    Raises:
        InvalidInputError: it is too long, or no UTF-8; the error repeats nothing of it.
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
