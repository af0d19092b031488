"""All places a server listens at: sockets it makes, and sockets it was given."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import TYPE_CHECKING

from imagestore.errors import ServerError
from imagestore.server.relay import Relay
from imagestore.server.sockets import SocketFile

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    import grpc

    from imagestore.server.sockets import SocketRights


class Listeners:
    """Opens, names and closes the places of one server.

    Args:
        paths: sockets to make.
        rights: who may connect to them.
        passed: listening sockets we were started with; closed by close().
        most: connections at one time at each of those.
    """

    def __init__(self, paths: Sequence[str], rights: SocketRights, passed: Sequence[socket.socket], most: int) -> None:
        self._paths = paths
        self._rights = rights
        self._passed = passed
        self._most = most
        self._files: list[SocketFile] = []
        self._relays: list[Relay] = []
        self._private_folder: str | None = None
        #: Where clients find us.
        self.names: list[str] = []
        #: What the server's sockets are bound to, as its connections have it.
        self.bound: list[str] = []

    def open(self, server: grpc.aio.Server) -> None:
        """Listen.

        Args:
            server: not started yet.

        Raises:
            ServerError: one of the places can't be used.
        """
        for path in self._paths:
            file = SocketFile(path, self._rights)
            self._files.append(file)
            file.bind(lambda temporary: _listen(server, temporary))
            self.names.append(f"unix://{path}")
            self.bound.append(file.bound)
        if self._passed:
            # Only we can open it, whatever the rights of the given sockets are.
            self._private_folder = tempfile.mkdtemp(prefix="imagestore-")
            inner = os.path.join(self._private_folder, "s")
            _listen(server, inner)
            self.bound.append(inner)
            for passed in self._passed:
                self._relays.append(Relay(passed, inner, self._most))
                name = passed.getsockname()
                self.names.append(f"unix://{name}" if isinstance(name, str) else repr(name))

    def start(self) -> None:
        """Accept at the sockets we were given; the server accepts at its own."""
        for relay in self._relays:
            relay.start()

    async def stop_accepting(self) -> None:
        """Take our sockets away; leave those we were given to our successor."""
        for relay in self._relays:
            await relay.stop_accepting()
        for file in self._files:
            file.withdraw()

    async def close(self) -> None:
        """Close everything."""
        for relay in self._relays:
            await relay.close()
        for passed in self._passed:
            passed.close()
        for file in self._files:
            file.close()
        if self._private_folder is not None:
            shutil.rmtree(self._private_folder, ignore_errors=True)


def _listen(server: grpc.aio.Server, path: str) -> None:
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise ServerError(f"socket {path}: gRPC can't listen there: {error}") from error
