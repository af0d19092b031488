"""All sockets that a server listens at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.errors import ServerError
from imagestore.server.sockets import SocketFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc

    from imagestore.server.sockets import SocketRights


class Listeners:
    """Opens, names and closes the sockets of one server.

    Args:
        paths: sockets to make.
        rights: who may connect to them.
    """

    def __init__(self, paths: Sequence[str], rights: SocketRights) -> None:
        self._paths = paths
        self._rights = rights
        self._files: list[SocketFile] = []
        #: Where clients find us.
        self.names: list[str] = []
        #: What the server's sockets are bound to, as its connections have it.
        self.bound: list[str] = []

    def open(self, server: grpc.aio.Server) -> None:
        """Listen.

        Args:
            server: not started yet.

        Raises:
            ServerError: one of the sockets can't be used.
        """
        for path in self._paths:
            file = SocketFile(path, self._rights)
            self._files.append(file)
            file.bind(lambda temporary: _listen(server, temporary))
            self.names.append(f"unix://{path}")
            self.bound.append(file.bound)

    def withdraw(self) -> None:
        """Take the sockets away, so that clients see at once that no server listens."""
        for file in self._files:
            file.withdraw()

    def close(self) -> None:
        """Close everything."""
        for file in self._files:
            file.close()


def _listen(server: grpc.aio.Server, path: str) -> None:
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise ServerError(f"socket {path}: gRPC can't listen there: {error}") from error
