"""``--creds-stdin`` and ``--anonymous``: credentials for one run of a command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from imagestore.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.registry.credentials.model import Credential, CredentialLookup

F = TypeVar("F", bound="Callable[..., Any]")
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


def lookup(host: str, *, creds_stdin: bool, anonymous: bool) -> CredentialLookup | None:
    """What the options ask for; None means the stored logins.

    Args:
        host: the registry that credentials from standard input are for.
        creds_stdin: read them.
        anonymous: use none.

    Raises:
        InvalidInputError: standard input has no ``user:password``.
    """
    if creds_stdin and anonymous:
        raise click.UsageError("--creds-stdin and --anonymous exclude each other")
    if not creds_stdin and not anonymous:
        return None
    from imagestore.registry.credentials.lookup import CredentialResolver
    from imagestore.registry.credentials.model import Anonymous, Explicit, Found

    if anonymous:
        return Anonymous()
    return CredentialResolver([Explicit(Found(read_stdin(), "standard input"), host)])


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
