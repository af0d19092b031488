"""Typed reading of configuration objects: a member of the wrong type is an error that names its path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.cri import endpoint as sockets
from imagestore.errors import ConfigError, InvalidInputError
from imagestore.util.durations import Duration

if TYPE_CHECKING:
    from collections.abc import Mapping


_INT32 = 2**31


class Members:
    """One object of a configuration.

    Args:
        value: decoded; None counts as empty.
        path: of the object, for errors.

    Raises:
        ConfigError: it is no object.
    """

    def __init__(self, value: object, path: str) -> None:
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"{path}: expected an object, found {_shown(value)}")
        self._value: Mapping[str, object] = value or {}
        self.path = path

    def __contains__(self, name: str) -> bool:
        return self._value.get(name) is not None

    def below(self, name: str) -> Members:
        """An object inside; empty when it isn't there."""
        return Members(self._value.get(name), self._at(name))

    def text(self, name: str) -> str | None:
        """A text; an empty one counts as not given."""
        found = self._value.get(name)
        if found is None or found == "":
            return None
        if not isinstance(found, str):
            raise ConfigError(f"{self._at(name)}: expected a text, found {_shown(found)}")
        return found

    def integer(self, name: str) -> int | None:
        """A whole number of 32 bits."""
        found = self._value.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not -_INT32 <= found < _INT32:
            raise ConfigError(f"{self._at(name)}: expected a whole number, found {_shown(found)}")
        return found

    def long_integer(self, name: str) -> int | None:
        """A whole number of 64 bits, or a Kubernetes quantity as text."""
        found = self._value.get(name)
        if isinstance(found, str) and found:
            from imagestore.resources.quantity import parse

            try:
                return parse(found).value()
            except InvalidInputError as error:
                raise ConfigError(f"{self._at(name)}: {error}") from error
        if found is None or found == "":
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not -(2**63) <= found < 2**63:
            raise ConfigError(f"{self._at(name)}: expected a whole number, found {_shown(found)}")
        return found

    def boolean(self, name: str) -> bool | None:
        """True or false."""
        found = self._value.get(name)
        if found is not None and not isinstance(found, bool):
            raise ConfigError(f"{self._at(name)}: expected true or false, found {_shown(found)}")
        return found

    def duration(self, name: str) -> Duration | None:
        """A duration in Go's form."""
        text = self._value.get(name)
        if text is None or text == "":
            return None
        if not isinstance(text, str):
            raise ConfigError(f"{self._at(name)}: expected a duration such as 2m, found {_shown(text)}")
        try:
            return Duration.parse(text)
        except InvalidInputError as error:
            raise ConfigError(f"{self._at(name)}: {error}", hint=error.hint) from error

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        found = self._value.get(name)
        if found is None:
            return ()
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise ConfigError(f"{self._at(name)}: expected a list of texts, found {_shown(found)}")
        return tuple(found)

    def mapping(self, name: str) -> Mapping[str, object]:
        """An object inside, as it is."""
        return self.below(name)._value

    def _at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def positive(timeout: Duration, what: str) -> Duration:
    """A time limit under which something can come to its end.

    Raises:
        ConfigError: it is zero or negative.
    """
    if timeout.nanoseconds <= 0:
        raise ConfigError(f"{what}: expected more than zero, found {timeout}")
    return timeout


def _shown(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:50]!r}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A parsed endpoint.

    Attributes:
        scheme: ``unix``, ``tcp`` or ``npipe``.
        address: path of the socket, host and port, or the pipe.
    """

    scheme: str
    address: str

    @property
    def url(self) -> str:
        """With its scheme."""
        return f"{self.scheme}://{self.address}"

    def socket_path(self) -> str:
        """Path of the unix socket to dial.

        Raises:
            ConfigError: it is none, or longer than the system allows.
        """
        if self.scheme != "unix":
            raise ConfigError(f"endpoint {self.url[:200]!r}: only support unix socket endpoint")
        try:
            return sockets.Endpoint.parse(self.url).path
        except InvalidInputError as error:
            raise ConfigError(str(error), hint=error.hint) from error


def parse_endpoint(text: str) -> Endpoint:
    """Read an endpoint.

    Raises:
        ConfigError: it has blanks, no address, or an unknown scheme.
    """
    shown = repr(text[:200])
    if not text or any(character.isspace() or not character.isprintable() for character in text):
        raise ConfigError(f"endpoint {shown}: expected for example {'unix:///run/containerd/containerd.sock'!r}")
    scheme, address = sockets.split_scheme(text)
    if scheme not in ("", "unix", "tcp", "npipe"):
        raise ConfigError(f'endpoint {shown}: protocol "{scheme}" not supported', hint="use unix://")
    if not address or (scheme in ("", "unix") and not address.startswith("/")):
        raise ConfigError(f"endpoint {shown}: expected an absolute path{f' behind {scheme}://' if scheme else ''}")
    return Endpoint(scheme or "unix", address)
