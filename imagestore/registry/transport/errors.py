"""Translates the exceptions of transports, which are httpx's, into errors of this package."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

import httpx

from imagestore.errors import ProtocolError, RegistryUnavailableError
from imagestore.registry.transport import tls, urls
from imagestore.registry.transport.proxy import PROXY_LOGIN, PROXY_VARIABLES

if TYPE_CHECKING:
    from imagestore.registry.transport.network import Exchange

#: All that a transport may raise for a failed exchange; a given one also what it got from the system.
FAULTS: Final = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError)
_MAX_SHOWN: Final = 200


def translated(
    error: Exception, exchange: Exchange, *, host: str, when: str, proxy: str
) -> RegistryUnavailableError | ProtocolError:
    """One of FAULTS as this package's error; raise it from the TLS failure (``tls.failure_in``) or from the fault."""
    failure = tls.failure_in(error)
    if exchange.is_reaching_proxy:
        what = "no connection" if failure is None else "no TLS connection"
        reason = _reason(error) if failure is None else tls.describe(failure)
        if exchange.is_in_handshake and tls.is_hang_up(error):
            reason = "it closed the connection during the TLS handshake"
        if isinstance(error, httpx.ConnectTimeout):
            reason = "not within the time allowed"
        message = f"{host}: {what} through proxy {urls.shown(proxy)}, which can't be reached: {reason}"
        return RegistryUnavailableError(message, host=host, hint=PROXY_VARIABLES)
    if failure is not None:
        message = f"{host}: no TLS connection: {tls.describe(failure)}"
        return RegistryUnavailableError(message, host=host, hint=tls.hint(failure))
    if exchange.is_in_handshake and tls.is_hang_up(error):
        message = f"{host}: the server closed the connection during the TLS handshake"
        return RegistryUnavailableError(message, host=host, hint=tls.HANG_UP_HINT)
    match error:
        case httpx.LocalProtocolError() | httpx.UnsupportedProtocol() | httpx.InvalidURL():
            # Its text may quote a header, and with it a token.
            return ProtocolError(f"{host}: the request can't be sent as it is", host=host)
        case httpx.RemoteProtocolError() if exchange.is_reading_head and not proxy:
            return ProtocolError(f"{host}: invalid HTTP response: {_reason(error)}", host=host)
        case httpx.ConnectTimeout():
            what = "no connection within the time allowed"
        case httpx.TimeoutException():
            what = f"no answer within the time allowed {when} ({_reason(error)})"
        case httpx.ProxyError():
            reason = _reason(error)
            hint = PROXY_LOGIN if reason.startswith("407") else PROXY_VARIABLES
            return RegistryUnavailableError(f"{host}: the proxy refused: {reason}", host=host, hint=hint)
        case httpx.ConnectError():
            what = f"no connection: {_reason(error)}"
        case _:
            what = f"the connection broke {when}: {_reason(error)}"
    return RegistryUnavailableError(f"{host}: {what}", host=host)


def _reason(error: Exception) -> str:
    """Why, in the system's words where it has some; printable and bounded."""
    inner = next((cause for cause in tls.causes(error) if isinstance(cause, OSError) and cause.strerror), None)
    text = str(error) if inner is None else inner.strerror
    if isinstance(inner, socket.gaierror):
        text = f"name resolution failed: {text}"
    text = text or type(error).__name__
    return text[:_MAX_SHOWN].encode("unicode_escape").decode("ascii")
