"""Where a redirect leads, and which headers go along.

Blobs are usually served by a storage host under a signed URL. ``Authorization`` and every configured header are dropped
as soon as scheme, host or port differ from the registry's, and are not restored when a later hop returns
(CVE-2026-50151, GHSA-vh4v-2xq2-g5cg; storage services also refuse a signed request with a second authorization).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.errors import ProtocolError
from imagestore.registry.transport import urls
from imagestore.registry.transport.messages import redirected

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from imagestore.registry.transport.addresses import Origin
    from imagestore.registry.transport.messages import Response

_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
# The header fields that another host gets.
_KEPT_ELSEWHERE: Final = frozenset({"accept", "range"})


def follow(request: httpx.Request, send: Callable[[httpx.Request], Response], *, home: Origin, most: int) -> Response:
    """Send a GET or HEAD and follow at most so many redirects; ``home`` is the origin whose secrets it may carry.

    Raises:
        ProtocolError: a redirect can't be followed, or there are too many.
    """
    seen = {str(request.url)}
    while True:
        response = send(request)
        if response.status not in _STATUSES:
            return response
        with response:
            request = _next_request(request, response, home)
        if str(request.url) in seen or len(seen) > most:
            host = urls.host_port(home)
            message = f"{host}: redirects in a circle or more than {most} times"
            raise ProtocolError(message, host=host, status=response.status)
        seen.add(str(request.url))


def _next_request(request: httpx.Request, response: Response, home: Origin) -> httpx.Request:
    here = urls.origin_of(str(request.url))
    host, status = urls.host_port(here), response.status
    location = response.headers.get("Location", "").strip()
    if request.method not in {"GET", "HEAD"}:
        raise ProtocolError(f"{host}: a {request.method} is not redirected", host=host, status=status)
    if not location:
        raise ProtocolError(f"{host}: answered {status} without a Location to go to", host=host, status=status)
    try:
        target = urls.join(str(request.url), location)
        there = urls.origin_of(target)
    except ProtocolError as error:
        raise ProtocolError(f"{host}: redirects to an unusable address: {error}", host=host, status=status) from error
    if here.scheme == "https" and there.scheme != "https":
        message = f"{host}: redirects from https to {urls.shown(target)}, which is not encrypted"
        raise ProtocolError(message, host=host, status=status)
    return redirected(request, target, only=None if there == home == here else _KEPT_ELSEWHERE)
