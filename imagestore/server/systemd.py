"""Messages to the service manager (sd_notify(3)): a datagram to the socket that ``NOTIFY_SOCKET`` names.

A message that can't be delivered is dropped: the work doesn't depend on it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
# systemd ignores messages above 4096 bytes, and READY=1 is in the same one; a character has six at most.
_LONGEST_STATUS: Final = 600


class Notifier:
    """Reports the server's state to the service manager that the environment names, if there is one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # An abstract name begins with a zero byte, written as @ in the variable.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = _watchdog(environment)

    def ready(self, status: str) -> None:
        """Start or reload is complete; the status is one line for people."""
        self._send("READY=1", _status(status))

    def status(self, text: str) -> None:
        """One line for people, while the server runs."""
        self._send(_status(text), seconds=0.0)

    def reloading(self) -> None:
        """A reload begins; by the time stamp the manager tells the READY=1 that follows from an older one."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """The server drains: new connections are no longer accepted."""
        self._send("STOPPING=1", _status("draining"))

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1", seconds=0.0)

    def _send(self, *lines: str, seconds: float = 1.0) -> None:
        """Send to a manager that may be busy; calls that are under way wait so long too."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(seconds)
            sender.sendto("\n".join(lines).encode("utf-8", "backslashreplace"), self._address)


def _status(text: str) -> str:
    return "STATUS=" + text[:_LONGEST_STATUS].replace("\n", " ")


def _watchdog(environment: Mapping[str, str]) -> float | None:
    """Seconds between two signs of life, half of what the manager allows; None when it doesn't watch us."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    allowed = environment.get("WATCHDOG_USEC", "")
    if _NUMBER.fullmatch(allowed) is None or int(allowed) == 0:
        return None
    return int(allowed) / 2_000_000
