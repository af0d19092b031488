"""Logins for pushing and fetching: what the product's client answers to a registry's 401 (``registry/auth``).

The oras package reads one file of credentials, treats every challenge as a token service's, keeps the first token
whatever its scope, and waits between tries. So it gets a session that answers challenges itself, and no logins of its
own.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from typing import TYPE_CHECKING

import httpx
import requests.auth
from oras.auth import AuthenticationException

from imagestore.errors import AccessDeniedError, ImageStoreError, ProtocolError
from imagestore.registry import CredentialResolver
from imagestore.registry.auth.authenticate import RegistryAuthenticator
from imagestore.registry.endpoints import default_endpoint
from imagestore.registry.transport import urls
from imagestore.registry.transport.http import HttpSender
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from oras.client import OrasClient


class _StopError(AuthenticationException):  # type: ignore[misc]
    """Ends all tries of oras, which makes another one after any other error."""

    def __init__(self, reason: ImageStoreError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Login(requests.auth.AuthBase):
    """What a session sends to one registry for one repository; a context manager, with the requests inside it.

    Args:
        target: ``host[:port]/repository:tag``.
        is_plain_http: for a registry without TLS.
    """

    def __init__(self, target: str, *, is_plain_http: bool) -> None:
        host, _, path = target.partition("/")
        self._target = target
        self._repository = path.partition("@")[0].partition(":")[0]
        self._origin = urls.origin_of(f"{'http' if is_plain_http else 'https'}://{host}/")
        self._stack = contextlib.ExitStack()
        sender = HttpSender()
        self._stack.callback(sender.close)
        bound = sender.bound(self._origin, default_endpoint(host).connection)
        self._authenticator = RegistryAuthenticator(bound, CredentialResolver.standard())
        self._cancel = CancelToken()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, traceback: object) -> None:
        self._stack.close()
        if isinstance(problem, _StopError):
            raise problem.reason from None

    def put_into(self, client: OrasClient) -> None:
        """Let this answer all challenges that the client gets."""
        client.session.auth = self
        self._stack.callback(client.session.close)
        client.auth = _NoLogin()

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Send the credential that is known already, to the registry's own address only."""
        if self._is_home(request.url):
            header = self._authenticator.authorization(self._origin, self._repository)
            if header:
                request.headers["Authorization"] = header
            request.register_hook("response", self._answered)
        return request

    def _is_home(self, address: str | None) -> bool:
        try:
            return urls.origin_of(address or "") == self._origin
        except ProtocolError:  # with a user in it, say
            return False

    def _answered(self, response: requests.Response, **settings: Any) -> requests.Response:
        try:
            while response.status_code == 401 and self._is_home(response.url):
                fields = httpx.Headers(list(response.headers.items()))
                header = self._authenticator.respond(self._origin, self._repository, fields, cancel=self._cancel)
                response = _again(response, header, settings)
            if response.status_code == 403 and self._is_home(response.url):
                text = f"artifact {self._target}: the registry forbids access with this login"
                raise AccessDeniedError(text, host=self._target.partition("/")[0], status=403)
        except ImageStoreError as problem:
            response.close()
            raise _StopError(problem) from problem
        return response


def _again(response: requests.Response, header: str, settings: Mapping[str, Any]) -> requests.Response:
    response.close()
    # Not a copy: where the answer is a redirect on the same host, the next request is made from this one.
    request = response.request
    request.headers["Authorization"] = header
    again: requests.Response = response.connection.send(request, **settings)
    again.history.append(response)
    return again


class _NoLogin:
    """The place of oras' own logins."""

    def load_configs(self, *_: object, **__: object) -> None:
        """Read nothing."""

    def authenticate_request(self, response: requests.Response, *_: object, **__: object) -> tuple[object, bool]:
        """Another host that answers 401 or 403 (a storage, say) gets no login."""
        response.close()
        host, status = urllib.parse.urlsplit(response.url).hostname or "", response.status_code
        text = f"{host}: answered {status} to a request for the registry's content"
        raise _StopError(AccessDeniedError(text, host=host, status=status))
