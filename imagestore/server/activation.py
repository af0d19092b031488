"""Sockets that the service manager opened for us (sd_listen_fds(3)).

``LISTEN_FDS`` says how many there are from descriptor 3 on; they are meant for us only when ``LISTEN_PID`` is our own
process id. The variables are taken away, so that programs we start don't take the sockets for theirs.
"""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING, Final

from imagestore.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

FIRST_DESCRIPTOR: Final = 3
_MOST: Final = 64
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


def passed_sockets(environment: MutableMapping[str, str]) -> list[socket.socket]:
    """The listening sockets we were started with; the caller closes them.

    Args:
        environment: the process's; the variables of the protocol are removed from it.

    Raises:
        ServerError: one of them is no listening unix socket.
    """
    count, process = environment.pop("LISTEN_FDS", ""), environment.pop("LISTEN_PID", "")
    environment.pop("LISTEN_FDNAMES", None)
    if process != str(os.getpid()) or _NUMBER.fullmatch(count) is None:
        return []
    if int(count) > _MOST:
        raise ServerError(f"LISTEN_FDS: expected at most {_MOST} sockets, got {count}")
    return [_adopt(FIRST_DESCRIPTOR + index) for index in range(int(count))]


def _adopt(descriptor: int) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        passed = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ServerError(f"descriptor {descriptor} from LISTEN_FDS: is no socket: {error.strerror}") from error
    is_stream = passed.family == socket.AF_UNIX and passed.type == socket.SOCK_STREAM
    if not is_stream or not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        passed.close()
        raise ServerError(
            f"descriptor {descriptor} from LISTEN_FDS: expected a listening unix stream socket",
            hint="in the socket unit use ListenStream= with a path and Accept=no",
        )
    passed.setblocking(False)
    return passed
