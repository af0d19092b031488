"""Connections that the HTTP library gave up, though they stand exactly between two messages (``direct.py``).

The library asks its network for a new connection; it gets one of these if there is one for the same host, scheme and
port, and can't tell the difference. What the peer closed, wrote to, or kept idle for too long is not used again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import httpcore

from imagestore.registry.transport.network import Stream

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from imagestore.registry.transport.network import Network

_MOST_PARKED: Final = 16


class Parking(httpcore.NetworkBackend):
    """A network for the connections of one scheme, which keeps those that are given back.

    Args:
        network: makes new ones.
        keep_alive_seconds: how long an idle one is kept.
        is_secure: whether the library asks for TLS on every connection.
    """

    def __init__(self, network: Network, keep_alive_seconds: float, *, is_secure: bool) -> None:
        self._network = network
        self._keep_alive_seconds = keep_alive_seconds
        self._is_secure = is_secure
        self._lock = threading.Lock()
        self._parked: deque[tuple[tuple[str, int], Stream, float]] = deque()
        self._is_closed = False

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """See Network; a parked connection goes first."""
        parked = self._take((host, port))
        if parked is not None:
            return _AlreadySecure(parked) if self._is_secure else parked
        fresh = self._network.connect_tcp(host, port, timeout, local_address, socket_options)
        fresh.on_give_up = lambda stream: self._park((host, port), stream)
        return fresh

    def close(self) -> None:
        """Close what is parked; what is given back later is closed too."""
        with self._lock:
            self._is_closed = True
            parked, self._parked = self._parked, deque()
        for _, stream, _ in parked:
            stream.drop()

    def _take(self, place: tuple[str, int]) -> Stream | None:
        while True:
            with self._lock:
                found = next((each for each in reversed(self._parked) if each[0] == place), None)
                if found is None:
                    return None
                self._parked.remove(found)
            _, stream, parked_at = found
            # Readable before anything was asked: the peer closed it, or sends what nobody asked for.
            is_stale = time.monotonic() - parked_at > self._keep_alive_seconds or stream.get_extra_info("is_readable")
            if not is_stale:
                stream.is_between_messages = False
                return stream
            stream.drop()

    def _park(self, place: tuple[str, int], stream: Stream) -> None:
        surplus: Stream | None = stream
        with self._lock:
            if not self._is_closed:
                self._parked.append((place, stream, time.monotonic()))
                surplus = self._parked.popleft()[1] if len(self._parked) > _MOST_PARKED else None
        if surplus is not None:
            surplus.drop()


class _AlreadySecure(httpcore.NetworkStream):
    """A parked TLS connection on its way back: the library's handshake with it is a formality."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        # One pool has one context, and the host name is the one it was parked under.
        return self._stream

    def close(self) -> None:
        self._stream.drop()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
