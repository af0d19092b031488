"""Endpoints of gRPC services on a machine: ``unix:///absolute/path``, or (deprecated) the bare path.

Rules (kubelet): ``unix://`` is prepended to a bare path. ``tcp`` is recognized, but no client dials it, since CRI
and containerd have neither encryption nor authentication there. Every other scheme is an error.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError, PreconditionError, ServiceUnavailableError
from imagestore.util.logins import without_login

if TYPE_CHECKING:
    from typing import Self

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://)?(.*)", re.DOTALL)
#: sockaddr_un has room for 108 bytes with the final zero (Linux, unix(7); 104 elsewhere).
LONGEST_PATH_BYTES: Final = 107
_HINT: Final = "write unix:///absolute/path, for example unix:///run/containerd/containerd.sock"


def split_scheme(text: str) -> tuple[str, str]:
    """The scheme in lower case (empty if there is none), and the rest.

    >>> split_scheme("unix:///run/x.sock"), split_scheme("/run/x.sock")
    (('unix', '/run/x.sock'), ('', '/run/x.sock'))
    """
    found = _SCHEME.fullmatch(text)
    return (found[1].lower(), found[2]) if found else ("", text)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a gRPC server listens on this machine.

    Attributes:
        path: of the socket, absolute.
    """

    path: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an endpoint.

        Raises:
            InvalidInputError: it is no endpoint of a unix socket.

        >>> Endpoint.parse("/run/crio/crio.sock").text
        'unix:///run/crio/crio.sock'
        """
        scheme, path = split_scheme(text.strip())
        shown = without_login(text)
        if scheme == "tcp":
            raise InvalidInputError(
                f"endpoint {shown!r}: expected a unix socket; a service over tcp has no authentication",
                hint=_HINT,
            )
        if scheme not in ("", "unix"):
            raise InvalidInputError(f"endpoint {shown!r}: expected the scheme unix, got {scheme!r}", hint=_HINT)
        # Two slashes: an address that has lost its scheme.
        if not path.startswith("/") or text.startswith("//") or path.endswith("/"):
            raise InvalidInputError(f"endpoint {shown!r}: expected the absolute path of a socket", hint=_HINT)
        if any(character < " " or character == "\x7f" for character in path):
            raise InvalidInputError(f"endpoint {shown!r}: a path has no control characters", hint=_HINT)
        try:
            length = len(path.encode("utf-8"))
        except UnicodeEncodeError:
            raise InvalidInputError(f"endpoint {shown!r}: expected a path in UTF-8, as gRPC does", hint=_HINT) from None
        if length > LONGEST_PATH_BYTES:
            raise InvalidInputError(
                f"endpoint {shown!r}: expected a path of at most {LONGEST_PATH_BYTES} bytes, it has {length}",
                hint="the system's limit for sockets; link a shorter path to it",
            )
        return cls(path)

    @property
    def text(self) -> str:
        """With its scheme, as other clients expect it."""
        return f"unix://{self.path}"

    def check_socket(self) -> None:
        """See whether a server of root's or of this user can be there; it isn't called.

        Raises:
            ServiceUnavailableError: there is nothing, or this user can't reach it.
            InvalidInputError: it is no socket.
            PreconditionError: the socket belongs to another user.
        """
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise ServiceUnavailableError(
                f"endpoint {self.text}: expected a socket: {error.strerror}",
                hint="is the server running, and may this user open its socket?",
            ) from error
        if not stat.S_ISSOCK(found.st_mode):
            raise InvalidInputError(
                f"endpoint {self.text}: expected a socket, it is {_kind(found.st_mode)}", hint=_HINT
            )
        user = os.geteuid()
        if found.st_uid not in (0, user):
            raise PreconditionError(
                f"endpoint {self.text}: expected a socket of root or of user {user}, user {found.st_uid} owns it",
                hint="its owner can read and answer what is sent there; name the socket of the real server",
            )


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a regular file" if stat.S_ISREG(mode) else "a device or a pipe"
