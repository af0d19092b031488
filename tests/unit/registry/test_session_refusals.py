"""Refusals without a challenge: what is remembered is looked up again, and a stored login is asked for at ``/v2/``."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
import pytest

from imagestore import CancelToken, Credential, Descriptor, Digest, Reference, Secret
from imagestore.errors import AccessDeniedError, AuthenticationError, ConfigError, ReferenceNotFoundError, RegistryError
from imagestore.oci.media_types import OCI_INDEX, OCI_LAYER_GZIP, OCI_MANIFEST
from imagestore.registry.auth.token_service import basic_header
from imagestore.registry.client_factory import connect
from imagestore.registry.credentials.model import FoundCredential, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.registry.client import RegistryClient

NAME = Reference.parse("registry.example/team/app:1")
MANIFEST = json.dumps({"schemaVersion": 2, "mediaType": OCI_MANIFEST}).encode()
DOCUMENT = Descriptor(OCI_MANIFEST, Digest.of(MANIFEST), len(MANIFEST))
LAYER = Descriptor(OCI_LAYER_GZIP, Digest.of(b"layer"), 5)
PLACE = "file /x, member auths['registry.example']"


@dataclass
class Logins:
    """A place for one login, which may change; counts how often it was looked into."""

    password: str = ""
    identity_token: str = ""
    lookups: int = 0
    failure: ConfigError | None = None

    def lookup(self, target: Target, *, cancel: CancelToken) -> FoundCredential | None:
        self.lookups += 1
        if self.failure is not None:
            raise self.failure
        if self.identity_token:
            return FoundCredential(Credential(identity_token=Secret(self.identity_token)), PLACE)
        return FoundCredential(Credential("u", Secret(self.password)), PLACE) if self.password else None


@dataclass
class Registry:
    """Gives its content to one login, by Basic or with a token, and refuses others as it is told.

    Attributes:
        password: of the login that counts.
        kind: how it asks for a login.
        status: for requests whose authorization isn't the right one.
        to_strangers: for requests without any; 401 has a challenge.
        challenges: where a request without any is challenged: everywhere, at /v2/ only, or nowhere.
        is_granted: the login may read.
        hidden: only paths with this in them need a login.
    """

    password: str = "right"
    kind: str = "Basic"
    status: int = 403
    to_strangers: int = 401
    ping_challenges: bool = True
    is_granted: bool = True
    hidden: str = "/"
    seen: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        sent = request.headers.get("Authorization", "")
        path = request.url.path
        if path == "/token":
            return httpx.Response(200, json={"token": self.token(self.who(request)), "expires_in": 3600})
        if path.endswith("/v2/"):
            return httpx.Response(401, headers=self.challenge) if self.ping_challenges else httpx.Response(200)
        if self.hidden in path and sent != self.good:
            if sent:
                return httpx.Response(self.status, json={"errors": [{"code": "DENIED"}]})
            headers = self.challenge if self.to_strangers == 401 else {}
            return httpx.Response(self.to_strangers, headers=headers, json={"errors": [{"code": "NAME_UNKNOWN"}]})
        if path.endswith("/tags/list"):
            return httpx.Response(200, json={"tags": ["1"]})
        if "/referrers/" in path:
            return httpx.Response(
                200,
                json={"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []},
                headers={"Content-Type": OCI_INDEX},
            )
        if "/blobs/" in path:
            return httpx.Response(200, content=b"layer")
        if path.endswith("/missing"):
            return httpx.Response(404, json={"errors": [{"code": "MANIFEST_UNKNOWN"}]})
        digest = {"Content-Type": OCI_MANIFEST, "Docker-Content-Digest": str(DOCUMENT.digest)}
        return httpx.Response(200, content=MANIFEST, headers=digest)

    @staticmethod
    def who(request: httpx.Request) -> str:
        sent = request.headers.get("Authorization", "")
        return base64.b64decode(sent.removeprefix("Basic ")).decode() if sent else "nobody"

    def token(self, who: str) -> str:
        return base64.urlsafe_b64encode(f"{who} {self.is_granted}".encode()).decode()

    @property
    def good(self) -> str:
        if self.kind == "Basic":
            return basic_header(Credential("u", Secret(self.password)))
        return f"Bearer {base64.urlsafe_b64encode(f'u:{self.password} True'.encode()).decode()}"

    @property
    def challenge(self) -> dict[str, str]:
        realm = (
            'Basic realm="r"' if self.kind == "Basic" else 'Bearer realm="https://registry.example/token",service="s"'
        )
        return {"WWW-Authenticate": realm}

    def client(self, logins: Logins) -> RegistryClient:
        return connect(credentials=logins, transport=httpx.MockTransport(self))


def resolve(client: RegistryClient, name: Reference = NAME) -> None:
    client.resolve(name, cancel=CancelToken())


def whole(client: RegistryClient) -> None:
    client.resolve_whole(NAME, cancel=CancelToken())


def document(client: RegistryClient) -> None:
    client.document(NAME, DOCUMENT, cancel=CancelToken())


def blob(client: RegistryClient) -> None:
    client.blob(NAME, LAYER, cancel=CancelToken()).close()


def tags(client: RegistryClient) -> None:
    assert client.tags(NAME, cancel=CancelToken()) == ("1",)


def referrers(client: RegistryClient) -> None:
    assert not client.referrers(NAME, DOCUMENT.digest, cancel=CancelToken()).is_from_tag


every_request = pytest.mark.parametrize("ask", [resolve, whole, document, blob, tags, referrers])
both_kinds = pytest.mark.parametrize("kind", ["Basic", "Bearer"])


class TestRemembered:
    """What a client remembers of a login is not the last word."""

    @every_request
    @both_kinds
    @pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 407, 410, 418, 451])
    def test_a_login_that_was_renewed_is_looked_up_again(
        self, ask: Callable[[RegistryClient], None], kind: str, status: int
    ) -> None:
        registry, logins = Registry(kind=kind, status=status), Logins("right")
        with registry.client(logins) as client:
            ask(client)
            logins.password = registry.password = "renewed"
            ask(client)

    @both_kinds
    @pytest.mark.parametrize("status", [403, 404])
    @pytest.mark.parametrize("before", ["", "wrong"])
    def test_a_login_that_was_stored_after_a_refusal_is_found(self, kind: str, status: int, before: str) -> None:
        registry, logins = Registry(kind=kind, status=status), Logins(before)
        with registry.client(logins) as client:
            with pytest.raises(RegistryError):
                resolve(client)
            logins.password = "right"
            resolve(client)

    @pytest.mark.parametrize("status", [403, 404])
    def test_a_remembered_token_is_not_the_last_word(self, status: int) -> None:
        registry = Registry(kind="Bearer", status=status, is_granted=False)
        with registry.client(Logins("right")) as client:
            with pytest.raises(RegistryError):
                resolve(client)
            registry.is_granted = True
            resolve(client)

    @both_kinds
    def test_one_that_strangers_are_refused_without_a_challenge_too(self, kind: str) -> None:
        registry, logins = Registry(kind=kind, status=410, to_strangers=404), Logins("right")
        with registry.client(logins) as client:
            resolve(client)
            logins.password = registry.password = "renewed"
            registry.to_strangers = 410
            resolve(client)

    @pytest.mark.parametrize(("method", "status"), [("GET", 416), ("GET", 429), ("HEAD", 405)])
    def test_a_status_that_no_login_changes_needs_no_new_login(self, method: str, status: int) -> None:
        registry, logins = Registry(), Logins("right")

        def refuse(request: httpx.Request) -> httpx.Response:
            answer = registry(request)
            return httpx.Response(status) if is_refusing and request.method == method else answer

        is_refusing = False
        with connect(credentials=logins, transport=httpx.MockTransport(refuse)) as client:
            resolve(client)
            is_refusing, logins.lookups = True, 0
            with contextlib.suppress(RegistryError):
                client.resolve(NAME, known=[DOCUMENT], cancel=CancelToken(deadline_seconds=1))
        assert logins.lookups == 0

    @both_kinds
    @pytest.mark.parametrize(
        ("status", "error"), [(403, AccessDeniedError), (404, ReferenceNotFoundError), (451, RegistryError)]
    )
    def test_a_login_that_is_the_same_ends_with_what_the_registry_said(
        self, kind: str, status: int, error: type[RegistryError]
    ) -> None:
        registry, logins = Registry(kind=kind, status=status), Logins("right")
        with registry.client(logins) as client:
            resolve(client)
            registry.password, logins.lookups = "other", 0
            registry.seen.clear()
            with pytest.raises(error, match="DENIED") as raised:
                resolve(client)
        assert (PLACE in raised.value.hint) is (status in {403, 404})
        assert len(registry.seen) <= 6
        assert logins.lookups == 1

    def test_one_operation_looks_once_for_all_its_refused_requests(self) -> None:
        registry, logins = Registry(), Logins("right")
        missing, operation = Reference.parse("registry.example/team/app:missing"), CancelToken()
        with registry.client(logins) as client:
            resolve(client)
            logins.lookups = 0
            for _ in range(5):
                with pytest.raises(ReferenceNotFoundError):
                    client.resolve(missing, cancel=operation)
        assert logins.lookups == 1

    def test_a_logout_ends_the_use_of_the_login(self) -> None:
        registry, logins = Registry(), Logins("right")
        with registry.client(logins) as client:
            resolve(client)
            registry.password, logins.password = "other", ""
            with pytest.raises(AuthenticationError, match="none were found"):
                resolve(client)
            registry.seen.clear()
            with pytest.raises(AuthenticationError, match="none were found"):
                resolve(client)
        assert not any("Authorization" in request.headers for request in registry.seen)


class TestHidden:
    """What a stranger may not see isn't there for them, and only ``/v2/`` asks for a login."""

    @every_request
    @both_kinds
    @pytest.mark.parametrize("status", [403, 404])
    def test_the_stored_login_is_asked_for(self, ask: Callable[[RegistryClient], None], kind: str, status: int) -> None:
        registry = Registry(kind=kind, to_strangers=status)
        with registry.client(Logins("right")) as client:
            ask(client)

    @pytest.mark.parametrize("hidden", ["/manifests/", "/blobs/", "/tags/"])
    def test_only_some_requests_need_it(self, hidden: str) -> None:
        registry = Registry(to_strangers=404, hidden=hidden)
        with registry.client(Logins("right")) as client:
            for ask in (resolve, document, blob, tags):
                ask(client)

    def test_after_the_first_request_it_is_sent_unasked(self) -> None:
        registry = Registry(to_strangers=404)
        with registry.client(Logins("right")) as client:
            resolve(client)
            registry.seen.clear()
            tags(client)
        assert [request.url.path for request in registry.seen] == ["/v2/team/app/tags/list"]

    def test_the_host_is_asked_once_for_an_operation(self) -> None:
        registry = Registry(to_strangers=404, ping_challenges=False)
        with registry.client(Logins("right")) as client:
            operation = CancelToken()
            for _ in range(3):
                with pytest.raises(ReferenceNotFoundError):
                    client.resolve(NAME, cancel=operation)
        assert [request.url.path for request in registry.seen].count("/v2/") == 1

    @pytest.mark.parametrize("ask", [resolve, whole, document, blob, tags])
    @pytest.mark.parametrize("status", [403, 404])
    def test_where_nothing_challenges_the_login_stays_here(
        self, ask: Callable[[RegistryClient], None], status: int
    ) -> None:
        registry = Registry(to_strangers=status, ping_challenges=False)
        with registry.client(Logins("right")) as client, pytest.raises(RegistryError) as raised:
            ask(client)
        assert not any("Authorization" in request.headers for request in registry.seen)
        assert f"asked for no login, so the one stored in {PLACE} was not sent" in raised.value.hint
        assert "needs a login" not in raised.value.hint

    def test_without_a_login_the_host_is_not_asked(self) -> None:
        registry = Registry(to_strangers=404)
        with registry.client(Logins()) as client, pytest.raises(ReferenceNotFoundError) as raised:
            resolve(client)
        assert "/v2/" not in [request.url.path for request in registry.seen]
        assert "needs a login at registry.example" in raised.value.hint

    def test_a_login_that_does_not_allow_it_is_named(self) -> None:
        registry = Registry(to_strangers=404, status=404)
        with registry.client(Logins("other")) as client, pytest.raises(ReferenceNotFoundError) as raised:
            resolve(client)
        assert f"the credentials from {PLACE} don't allow this" in raised.value.hint

    def test_a_login_that_the_token_service_refuses_is_reported_with_what_came_before(self) -> None:
        registry = Registry(kind="Bearer", to_strangers=404)

        answers: list[httpx.Response] = []

        def refuse_tokens(request: httpx.Request) -> httpx.Response:
            said = httpx.Response(401) if request.url.path == "/token" else registry(request)
            stream = httpx.ByteStream(said.content)
            answers.append(httpx.Response(said.status_code, headers=said.headers, stream=stream))
            return answers[-1]

        client = connect(credentials=Logins("right"), transport=httpx.MockTransport(refuse_tokens))
        with client, pytest.raises(AuthenticationError, match="refuses the credentials") as raised:
            resolve(client)
        assert raised.value.hint.endswith("without a login registry.example answered 404")
        assert all(answer.is_closed for answer in answers)

    def test_places_that_can_not_be_read_leave_the_registry_s_answer(self) -> None:
        logins = Logins(failure=ConfigError("/x: line 1: expected JSON"))
        with Registry(to_strangers=404).client(logins) as client, pytest.raises(ReferenceNotFoundError) as raised:
            resolve(client)
        assert "/x: line 1: expected JSON" in raised.value.hint

    def test_a_host_that_breaks_off_leaves_the_registry_s_answer(self) -> None:
        registry = Registry(to_strangers=404)

        def break_off(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/v2/":
                raise httpx.ConnectError("gone")
            return registry(request)

        client = connect(credentials=Logins("right"), transport=httpx.MockTransport(break_off))
        with client, pytest.raises(ReferenceNotFoundError):
            resolve(client)

    def test_a_challenge_of_another_host_is_no_reason_to_send_it(self) -> None:
        registry = Registry(to_strangers=404)

        def elsewhere(request: httpx.Request) -> httpx.Response:
            if request.url.host == "other.example":
                return httpx.Response(401, headers=registry.challenge)
            if request.url.path == "/v2/":
                return httpx.Response(307, headers={"Location": "https://other.example/v2/"})
            return registry(request)

        client = connect(credentials=Logins("right"), transport=httpx.MockTransport(elsewhere))
        with client, pytest.raises(ReferenceNotFoundError) as raised:
            resolve(client)
        assert "was not sent" in raised.value.hint


class TestSideBySide:
    """Layers of one pull are refused at the same moment; all of them get what one of them finds."""

    @both_kinds
    @pytest.mark.parametrize("status", [403, 404])
    @pytest.mark.parametrize("before", ["", "stale"])
    def test_requests_refused_at_the_same_moment_all_go_on(self, kind: str, status: int, before: str) -> None:
        registry, logins, count = Registry(kind=kind, status=status, to_strangers=status), Logins("right"), 4
        together = threading.Barrier(count)

        def all_at_once(request: httpx.Request) -> httpx.Response:
            answer = registry(request)
            if "/blobs/" in request.url.path and answer.status_code == status and not together.broken:
                with contextlib.suppress(threading.BrokenBarrierError):
                    together.wait(timeout=2)
                together.abort()
            return answer

        with connect(credentials=logins, transport=httpx.MockTransport(all_at_once)) as client:
            if before:
                registry.hidden = "/manifests/"
                resolve(client)
                registry.hidden = "/"
                logins.password = registry.password = "renewed"
            cancel = CancelToken()
            with ThreadPoolExecutor(count) as pool:
                got = [pool.submit(client.blob, NAME, LAYER, cancel=cancel) for _ in range(count)]
                for each in got:
                    each.result().close()
