"""Which addresses upstream itself named, and as what: a token service's, or a place where content lies.

An answer from outside ``/v2/`` is content only when a registry redirected a request for content there. An address that
a challenge named stays a token service, whatever its path is.
"""

from __future__ import annotations

import re
import threading
import urllib.parse
from typing import TYPE_CHECKING, Final

from imagestore.testing.engine.targets import read_target

if TYPE_CHECKING:
    from imagestore.testing.engine.exchange import Fields, Request

_REALM: Final = re.compile(r'(?i)\brealm="?([^"\s,]+)')
_CONTENT: Final = frozenset({"manifest", "blob"})


class Addresses:
    """Collects addresses out of answers, before the client can ask there."""

    def __init__(self) -> None:
        self._realms: set[tuple[str, str]] = set()
        self._stores: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._realms) + len(self._stores)

    def note(self, request: Request, fields: Fields) -> None:
        """Take the addresses out of an answer's head."""
        with self._lock:
            for challenge in fields.get_all("WWW-Authenticate"):
                self._realms |= {_place(request, one) for one in _REALM.findall(challenge) if "/" in one}
            for location in fields.get_all("Location"):
                here = (request.host, request.path)
                if here in self._realms:
                    self._realms.add(_place(request, location))
                elif here in self._stores or read_target(request.path).kind in _CONTENT:
                    self._stores.add(_place(request, location))

    def is_realm(self, request: Request) -> bool:
        """Whether a challenge named this address."""
        with self._lock:
            return (request.host, request.path) in self._realms

    def is_content(self, request: Request, status: int) -> bool:
        """Whether an answer is a manifest, a blob, or a storage host's copy of one: it may go to disk as it is."""
        if status not in (200, 206) or self.is_realm(request):
            return False
        if request.path.startswith("/v2/") and read_target(request.path).kind in _CONTENT:
            return True
        with self._lock:
            return (request.host, request.path) in self._stores


def _place(request: Request, address: str) -> tuple[str, str]:
    base = f"{request.scheme}://{request.host}{request.path}"
    try:
        parts = urllib.parse.urlsplit(urllib.parse.urljoin(base, address))
    except ValueError:
        return ("", "")
    host = parts.netloc.rpartition("@")[2].lower()
    default = ":443" if parts.scheme == "https" else ":80"
    return host.removesuffix(default), parts.path or "/"
