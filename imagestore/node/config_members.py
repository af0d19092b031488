"""Typed members and runtime endpoints of configuration files; an error names the path of the member."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from imagestore.errors import ConfigError, InvalidInputError
from imagestore.oci import Reference
from imagestore.util.durations import Duration
from imagestore.util.endpoint import Endpoint, split_scheme
from imagestore.util.logins import without_login
from imagestore.util.quantity import Quantity

if TYPE_CHECKING:
    from collections.abc import Mapping


T = TypeVar("T", int, Duration)


class Members:
    """One object of a configuration; None counts as empty. Every method raises ConfigError with the member's path.

    Args:
        value: the object.
        path: its path.
        spelling: paths of members as the file has them, where it spells them otherwise.
    """

    def __init__(self, value: object, path: str, spelling: Mapping[str, str] | None = None) -> None:
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"{path}: expected an object, found {_shown(value)}")
        self._value: Mapping[str, object] = value or {}
        self.path = path
        self.spelling = spelling or {}

    def __contains__(self, name: str) -> bool:
        return self._value.get(name) is not None

    def below(self, name: str) -> Members:
        """A member that is an object; empty if it is missing."""
        return Members(self._value.get(name), self._path_of(name), self.spelling)

    def text(self, name: str) -> str | None:
        """A text; an empty one counts as not given."""
        found = self._value.get(name)
        if found is not None and not isinstance(found, str):
            raise self._wrong(name, "a text")
        return found or None

    def is_text(self, name: str) -> bool:
        """Whether a member is a text."""
        return isinstance(self._value.get(name), str)

    def integer(self, name: str) -> int | None:
        """A whole number of 32 bits."""
        return self._integer(name, 31)

    def long_integer(self, name: str) -> int | None:
        """A whole number of 64 bits, or a Kubernetes quantity as text; an empty text counts as not given."""
        found = self._value.get(name)
        if found == "":
            return None
        if isinstance(found, str):
            try:
                return Quantity.parse(found).value()
            except InvalidInputError as error:
                raise ConfigError(f"{self.at(name)}: {error}") from error
        return self._integer(name, 63)

    def boolean(self, name: str) -> bool | None:
        """True or false."""
        found = self._value.get(name)
        if found is not None and not isinstance(found, bool):
            raise self._wrong(name, "true or false")
        return found

    def duration(self, name: str) -> Duration | None:
        """A duration in Go's form; an empty text counts as not given."""
        text = self._value.get(name)
        if text is None or text == "":
            return None
        if not isinstance(text, str):
            raise self._wrong(name, "a duration such as 2m")
        try:
            return Duration.parse(text)
        except InvalidInputError as error:
            raise ConfigError(f"{self.at(name)}: {error}", hint=error.hint) from error

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        found = self._value.get(name)
        if found is None:
            return ()
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise self._wrong(name, "a list of texts")
        return tuple(found)

    def mapping(self, name: str) -> Mapping[str, object]:
        """A member that is an object, undecoded; empty if it is missing."""
        return self.below(name)._value

    def _integer(self, name: str, bits: int) -> int | None:
        found = self._value.get(name)
        if found is not None and (type(found) is not int or not -(2**bits) <= found < 2**bits):
            raise self._wrong(name, "a whole number")
        return found

    def _wrong(self, name: str, expected: str) -> ConfigError:
        return ConfigError(f"{self.at(name)}: expected {expected}, found {_shown(self._value.get(name))}")

    def at(self, name: str) -> str:
        """The path of a member as the file has it, for errors."""
        path = self._path_of(name)
        return self.spelling.get(path, path)

    def endpoint(self, name: str, text: str) -> str:
        """The runtime endpoint that a member gives; see endpoint_url()."""
        try:
            endpoint_url(text)
        except ConfigError as error:
            raise ConfigError(f"{self.at(name)}: {error}" if name in self else str(error), hint=error.hint) from error
        return text

    def reference(self, name: str) -> str | None:
        """An image's name; an empty text counts as not given."""
        text = self.text(name)
        try:
            if text is not None:
                Reference.parse(text)
        except InvalidInputError as error:
            raise ConfigError(f"{self.at(name)}: {error}", hint=error.hint) from error
        return text

    def _path_of(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def or_default(value: T | None, default: T, *, is_zero_default: bool = False) -> T:
    """The value; the default if it is missing, or if it is zero and ``is_zero_default``."""
    return default if value is None or (is_zero_default and value in (0, Duration(0))) else value


def positive(timeout: Duration, what: str) -> Duration:
    """The time limit; ConfigError if it isn't above zero."""
    if timeout.nanoseconds <= 0:
        raise ConfigError(f"{what}: expected more than zero, found {timeout}")
    return timeout


def _shown(value: object) -> str:
    return f"{type(value).__name__} {without_login(str(value))[:50]!r}"


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
