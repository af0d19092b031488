"""Requests to one endpoint: authentication, redirects and retries.

A request is sent with the authorization that is known so far. A 401 is answered once for each distinct challenge, never
in a loop, since a token service may issue a useless token. A refusal without a challenge (403, 404; after a login any
other 4xx too) may be a matter of authorization: see ``_look_again``. Redirects are followed here and not in the HTTP
library, so that no secret made for the registry leaves it (next_request()). Transient failures are retried.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.errors import (
    AuthenticationError,
    ConfigError,
    InvalidInputError,
    RateLimitedError,
    RegistryError,
    RegistryUnavailableError,
)
from imagestore.events import Noticed, Waiting
from imagestore.registry.errors_body import failure, hide_secrets, redact, secrets_in, warning_texts
from imagestore.registry.retry import (
    TRANSIENT_STATUSES,
    backoff_seconds,
    is_refusal,
    is_transient,
    limited_seconds,
    parse_retry_after,
)
from imagestore.registry.transport import urls
from imagestore.registry.transport.messages import PATIENT, REDIRECTS, make_request, next_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import httpx

    from imagestore.events import Observer
    from imagestore.registry.auth.access import Access
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.limits import Slot
    from imagestore.registry.operation import Operation
    from imagestore.registry.policy import TransferPolicy
    from imagestore.registry.retry import HostPauses, Timing
    from imagestore.registry.transport.messages import Response
    from imagestore.util.cancel import CancelToken

T = TypeVar("T")

_log = logging.getLogger(__name__)

# Two challenges are normal: for a token, then perhaps for one with another scope.
_MAX_CHALLENGES: Final = 3
# Three steps: forget the remembered authorization, use the one of another thread, ask /v2/ for a challenge.
_MAX_LOOKS: Final = 3
# Status codes of storage hosts for an expired signed URL; the registry gives a new URL.
_STALE_STATUSES: Final = frozenset({400, 401, 403, 410})


@dataclass(frozen=True, slots=True)
class Content:
    """The body of a request: ``pieces`` gives its bytes, and is called for each try.

    ``content_range`` is the range of the bytes in an upload, ``first-last``; empty for the whole.
    """

    media_type: str
    size: int
    pieces: Callable[[], Iterable[bytes]]
    content_range: str = ""

    @property
    def headers(self) -> Iterator[tuple[str, str]]:
        """The header fields that describe the body."""
        yield "Content-Type", self.media_type
        yield "Content-Length", str(self.size)
        if self.content_range:
            yield "Content-Range", self.content_range


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a repository, or to the registry itself.

    Attributes:
        method: GET, HEAD or DELETE; in an upload also POST, PATCH or PUT.
        repository: a reference's path; empty for requests to the registry itself.
        path: below the repository, for example ``blobs/sha256:…``.
        what: names the thing in errors.
        query: encoded, without ``?``.
        accept: media types for the Accept field; none for blobs.
        range_header: value of the Range field, or empty.
        url: absolute, instead of the endpoint's own. At another origin it gets no login and none of the endpoint's
            headers.
    """

    method: str
    repository: str
    path: str
    what: str
    query: str = ""
    accept: tuple[str, ...] = ()
    range_header: str = ""
    url: str = ""
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class ClientContext:
    """The policy, clocks, pauses and observer that all sessions of a client share."""

    policy: TransferPolicy
    timing: Timing
    pauses: HostPauses
    observer: Observer

    def wait(self, host: str, seconds: float, reason: str, cancel: CancelToken) -> None:
        """Report the reason to the observer, then sleep."""
        self.observer(Waiting(host, seconds, reason))
        self.timing.sleep(cancel, seconds)


@dataclass(frozen=True, slots=True)
class Session:
    """One endpoint on behalf of one operation.

    The last endpoint (no other host is asked after it) is given more tries and longer waits.
    """

    endpoint: Endpoint
    access: Access
    shared: ClientContext
    operation: Operation
    cancel: CancelToken
    is_last: bool = True
    is_tried_once: bool = False

    def call(self, call: Call, use: Callable[[Response], T], slot: Slot | None = None) -> T:
        """Send the request, retry transient failures, and return what ``use`` makes of the answer.

        ``use`` checks the answer and reads or keeps it; if reading fails, the whole call is retried. A ``slot`` at the
        host is released for other transfers while this call waits for its next try.

        Raises:
            RegistryError: refused, unreachable, or no sensible protocol.
        """
        policy = self.shared.policy
        attempts = 1 if self.is_tried_once else policy.attempts if self.is_last else policy.mirror_attempts
        attempt = 0
        while True:
            attempt += 1
            self._wait_for_pauses()
            try:
                response, secrets = self._exchange(call)
                if not self._may_pass(call, response, attempt):
                    try:
                        return use(response)
                    except RegistryError as raised:
                        self._comment(call, raised, secrets)
                        raise
                asked = parse_retry_after(response.headers.get("Retry-After", ""), self.shared.timing.now())
                error = failure(response, what=call.what, retry_after=asked)
                self._comment(call, error, secrets)
            except RegistryError as raised:
                if not is_transient(raised):
                    raise
                error, asked = raised, None
                if isinstance(raised, RateLimitedError | RegistryUnavailableError):
                    # A token service has its own limits.
                    asked = raised.retry_after
            with slot.lent(cancel=self.cancel) if slot is not None else nullcontext():
                if attempt >= attempts or not self.will_wait(error, attempt, asked):
                    raise error
                self._wait_for_pauses()

    def _wait_for_pauses(self) -> None:
        shared, host = self.shared, self.endpoint.host
        shared.pauses.wait(host, self._longest_wait(), cancel=self.cancel, observer=shared.observer)

    def _comment(self, call: Call, error: RegistryError, secrets: tuple[str, ...]) -> None:
        """Hide the secrets that were sent. Add a hint: whose login was refused, or which host redirected."""
        hide_secrets(error, secrets)
        if error.status not in {401, 403, 404}:
            return
        here = self.endpoint.host
        if error.host != here:
            error.hint = (
                f"{here} leads there, and no login is sent to a host that another one names; put "
                f"{error.host} into the reference, or into the hosts.toml of {here}"
                if error.status == 401
                else f"{here} leads there, without its login: storage that refuses the address it was given, or "
                f"has lost the content, is for the operator of {here} to repair"
            )
            return
        account = self.access.authenticator.provenance(self.endpoint.origin, call.repository)
        remark = self.operation.login_remark(self.endpoint.origin, call.repository)
        if account:
            error.hint = f"it does not exist, or the credentials from {account} don't allow this"
        elif remark:
            error.hint = f"it does not exist, or it is not public; {remark}"

    def _longest_wait(self) -> float:
        """Longest wait for this host, in seconds."""
        policy, remaining = self.shared.policy, self.cancel.remaining_seconds()
        longest = policy.longest_wait_seconds if self.is_last else policy.mirror_wait_seconds
        return longest if remaining is None else min(remaining, longest)

    def _may_pass(self, call: Call, response: Response, attempt: int) -> bool:
        """Whether a later try may get another answer than this failure."""
        if response.status in TRANSIENT_STATUSES:
            return True
        # Only once, and only for GET: a storage host refuses HEAD at a URL that is signed for GET every time.
        is_stale = response.status in _STALE_STATUSES and call.method == "GET" and attempt == 1
        return is_stale and urls.origin_of(response.url) != self.endpoint.origin

    def will_wait(self, error: RegistryError, attempt: int, retry_after: float | None) -> bool:
        """Wait after a failed try (counted from 1), or note the wait for the next request; False: don't retry."""
        policy, pauses, host = self.shared.policy, self.shared.pauses, self.endpoint.host
        is_limit_without_time = retry_after is None and isinstance(error, RateLimitedError)
        wait_for = limited_seconds if is_limit_without_time else backoff_seconds
        seconds = wait_for(policy, attempt, self.shared.timing.random())
        if retry_after is not None:
            # At least as long as the host asked for, plus jitter, so that clients don't retry at the same moment.
            seconds = retry_after + min(seconds, 1.0)
        if seconds >= self._longest_wait():
            if retry_after is not None and not self.endpoint.is_upstream:
                # Other hosts are used until then: an earlier request may prolong the limit.
                pauses.pause(host, min(seconds, policy.longest_wait_seconds), str(error))
            return False
        if not self.operation.take_retry():
            return False
        _log.debug("%s: try %d failed, next in %.1f s: %s", host, attempt, seconds, error)
        if retry_after is not None:
            pauses.pause(host, seconds, str(error))
        else:
            self.shared.wait(host, seconds, str(error), self.cancel)
        return True

    def _exchange(self, call: Call) -> tuple[Response, tuple[str, ...]]:
        """Send a request, answer challenges, follow redirects; the response, and the secrets that were sent."""
        endpoint, is_home = self.endpoint, self._is_home(call)
        authorization = self.access.authenticator.authorization(endpoint.origin, call.repository) if is_home else ""
        answered: set[tuple[str, ...]] = set()
        looks = 0
        fields = endpoint.headers if is_home else ()
        while True:
            if authorization:
                # An error may still quote an earlier authorization.
                fields = (*fields, ("Authorization", authorization))
            secrets = secrets_in(fields) if fields else ()
            request = self._request(call, authorization)
            response = self._follow(request, secrets, call.content)
            if response.status >= 400 and (response.url != str(request.url) or not is_home):
                # Storage services quote parts of a signed URL in their errors.
                secrets = secrets_in(fields, signed=response.url)
            if not is_refusal(request, response, had_login=bool(authorization or looks)):
                return response, secrets
            if not is_home or urls.origin_of(response.url) != endpoint.origin:
                return response, secrets
            challenge = tuple(response.headers.get_list("WWW-Authenticate")) if response.status == 401 else ()
            if challenge and challenge not in answered and len(answered) < _MAX_CHALLENGES:
                answered.add(challenge)
                response.close()
                authorization = self._respond(call, response.headers)
                continue
            looks += 1
            try:
                again = self._look_again(call, authorization, response) if looks <= _MAX_LOOKS else None
            except BaseException:
                response.close()
                raise
            if again is None:
                # The caller checks the response: one to HEAD has no error text, so it sends GET for that.
                return response, secrets
            response.close()
            authorization = again

    def _is_home(self, call: Call) -> bool:
        """Whether a call goes to the endpoint itself, and not to a place that it named for an upload."""
        return not call.url or urls.origin_of(call.url) == self.endpoint.origin

    def _respond(self, call: Call, headers: httpx.Headers) -> str:
        origin, repository = self.endpoint.origin, call.repository
        header = self.access.authenticator.respond(origin, repository, headers, cancel=self.cancel)
        self.operation.note_tried(origin, repository, header)
        return header

    def _look_again(self, call: Call, sent: str, response: Response) -> str | None:
        """The authorization to send after a refusal without a challenge; None if there is no other one to try.

        - If the request carried an authorization remembered from earlier, that is forgotten, and the request is sent
          as the first one of a new process would be.
        - If it carried none and a login is stored, ``/v2/`` is asked for a challenge.
        - An authorization that this operation has just obtained is not requested again. One that another request of
          this operation has obtained is used.
        """
        origin, repository, authenticator = self.endpoint.origin, call.repository, self.access.authenticator
        with self.operation.login_lock:
            newer = authenticator.authorization(origin, repository)
            has_tried = self.operation.has_tried(origin, repository, sent)
            if newer != sent and (newer or has_tried):
                # Another request of this operation has obtained a new authorization, or forgotten the old one.
                return newer
            if has_tried:
                return None
            self.operation.note_tried(origin, repository, sent)
            if sent:
                authenticator.forget(origin, repository, sent)
                return authenticator.authorization(origin, repository)
            headers = self._challenge_of_host(call) if response.status != 400 else None
            if headers is None:
                return None
            try:
                return self._respond(call, headers)
            except AuthenticationError as error:
                without_login = f"without a login {self.endpoint.host} answered {response.status}"
                error.hint = f"{error.hint}; {without_login}" if error.hint else without_login
                raise

    def _challenge_of_host(self, call: Call) -> httpx.Headers | None:
        """The challenge of ``/v2/``; None without one, and without a stored login that could answer it."""
        endpoint = self.endpoint
        try:
            account = self.access.authenticator.stored_login(endpoint.origin, call.repository, cancel=self.cancel)
        except (ConfigError, InvalidInputError) as error:
            remark = f"could not check whether a login is stored: {error}"
            self.operation.remark_on_login(endpoint.origin, call.repository, remark)
            return None
        if not account:
            return None
        try:
            with self._follow(make_request("GET", f"{endpoint.base}/", endpoint.headers), ()) as response:
                is_home = urls.origin_of(response.url) == endpoint.origin
                if response.status == 401 and is_home and response.headers.get("WWW-Authenticate", ""):
                    return response.headers
        except RegistryError:
            # Report the earlier refusal, not this failure.
            return None
        remark = f"{endpoint.host} asked for no login, so the one stored in {account} was not sent"
        self.operation.remark_on_login(endpoint.origin, call.repository, remark)
        return None

    def _request(self, call: Call, authorization: str) -> httpx.Request:
        headers = list(self.endpoint.headers) if self._is_home(call) else []
        if call.accept:
            headers.append(("Accept", ", ".join(call.accept)))
        if call.range_header:
            headers.append(("Range", call.range_header))
        if call.content is not None:
            headers.extend(call.content.headers)
        if authorization:
            headers = [(name, value) for name, value in headers if name.lower() != "authorization"]
            headers.append(("Authorization", authorization))
        url = call.url or self.endpoint.url(call.repository, call.path, call.query)
        return make_request(call.method, url, tuple(headers), call.content.pieces() if call.content else None)

    def _follow(self, request: httpx.Request, secrets: tuple[str, ...], content: Content | None = None) -> Response:
        """The response after all redirects. Warnings in any response are passed to the observer."""
        home, body = self.endpoint.origin, content.pieces if content is not None else None
        seen = {str(request.url)}
        while True:
            request.extensions[PATIENT] = request.method not in {"GET", "HEAD"}
            response = self.access.sender.send(request, cancel=self.cancel)
            is_named = len(seen) > 1 or urls.origin_of(str(request.url)) != home
            signed = str(request.url) if is_named else ""
            texts = warning_texts(response.headers)
            hidden = sorted({*secrets, *secrets_in((), signed=signed)}, key=len, reverse=True) if texts else ()
            for text in texts:
                message = f"{self.endpoint.host} says: {redact(text, hidden)}"
                if self.operation.is_new(message):
                    self.shared.observer(Noticed(message))
            if response.status not in REDIRECTS:
                return response
            with response:
                request = next_request(request, response, home, seen, self.shared.policy.redirects, body)
