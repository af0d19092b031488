"""Typed members and runtime endpoints of configuration files; an error names the path of the member."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from imagestore.errors import ConfigError, InvalidInputError
from imagestore.oci import Reference
from imagestore.util.durations import Duration
from imagestore.util.endpoint import Endpoint, split_scheme
from imagestore.util.logins import without_login
from imagestore.util.members import Members, kind_of
from imagestore.util.quantity import Quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self


T = TypeVar("T", int, Duration)
V = TypeVar("V")


class ConfigMembers(Members):
    """One object of a configuration; an empty text counts as not given.

    Args:
        values: the object.
        path: its path, as the file has it.
        spelling: paths of members as the file has them, where it spells their last names otherwise.

    All methods raise ConfigError with the member's path.
    """

    __slots__ = ("spelling",)

    def __init__(self, values: object, path: str = "", spelling: Mapping[str, str] | None = None) -> None:
        super().__init__(values, path, lambda place, text: ConfigError(f"{place}: {text}"))
        self.spelling = spelling or {}

    def at(self, name: str) -> str:
        """The path of a member as the file has it."""
        path = super().at(name)
        return self.spelling.get(path, path)

    def _inner(self, values: object, path: str) -> Self:
        return type(self)(values, path, self.spelling)

    def long_integer(self, name: str) -> int | None:
        """A whole number of 64 bits, or a Kubernetes quantity as text."""
        if not isinstance(self.values.get(name), str):
            return self.integer(name, 64)
        found = self._parsed(name, Quantity.parse)
        return None if found is None else found.value()

    def duration(self, name: str) -> Duration | None:
        """A duration in Go's form."""
        value = self.values.get(name)
        if not isinstance(value, str | None):
            self.refuse(name, f"expected a duration such as 2m, got {kind_of(value)}")
        return self._parsed(name, Duration.parse)

    def endpoint(self, name: str, text: str) -> str:
        """The runtime endpoint that a member gives; see endpoint_url()."""
        try:
            endpoint_url(text)
        except ConfigError as error:
            raise ConfigError(f"{self.at(name)}: {error}" if name in self else str(error), hint=error.hint) from error
        return text

    def reference(self, name: str) -> str:
        """An image's name."""
        self._parsed(name, Reference.parse)
        return self.text(name)

    def _parsed(self, name: str, parse: Callable[[str], V]) -> V | None:
        text = self.text(name)
        try:
            return parse(text) if text else None
        except InvalidInputError as error:
            raise ConfigError(f"{self.at(name)}: {error}", hint=error.hint) from error


def or_default(value: T | None, default: T, *, is_zero_default: bool = False) -> T:
    """The value; the default if it is missing, or if it is zero and ``is_zero_default``."""
    return default if value is None or (is_zero_default and value in (0, Duration(0))) else value


def positive(timeout: Duration, what: str) -> Duration:
    """The time limit; ConfigError if it isn't above zero."""
    if timeout.nanoseconds <= 0:
        raise ConfigError(f"{what}: expected more than zero, found {timeout}")
    return timeout


def endpoint_url(text: str) -> str:
    """A runtime endpoint with its scheme, checked as the kubelet does.

    A bare path is deprecated and means ``unix://``; ``npipe://`` is for Windows; ``tcp://`` is accepted although no
    client dials it.

    Raises:
        ConfigError: it has blanks, no address, or an unknown scheme.
    """
    shown = repr(without_login(text)[:200])
    if not text or any(character.isspace() or not character.isprintable() for character in text):
        raise ConfigError(f"endpoint {shown}: expected for example {'unix:///run/containerd/containerd.sock'!r}")
    scheme, address = split_scheme(text)
    if scheme not in ("", "unix", "tcp", "npipe"):
        raise ConfigError(f'endpoint {shown}: protocol "{scheme}" not supported', hint="use unix://")
    # Two slashes: an address that has lost its scheme.
    is_path = address.startswith("/") and not text.startswith("//")
    if not address or (scheme in ("", "unix") and not is_path):
        raise ConfigError(f"endpoint {shown}: expected an absolute path{f' after {scheme}://' if scheme else ''}")
    return f"{scheme or 'unix'}://{address}"


def socket_path(text: str) -> str:
    """Path of the unix socket of an endpoint; ConfigError if it is no socket, or longer than the system allows."""
    url = endpoint_url(text)
    if not url.startswith("unix://"):
        raise ConfigError(f"endpoint {without_login(url)[:200]!r}: only support unix socket endpoint")
    try:
        return Endpoint.parse(url).path
    except InvalidInputError as error:
        raise ConfigError(str(error), hint=error.hint) from error
