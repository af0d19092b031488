"""Redirects: what is followed, and what stays with the registry (pitfall rows 2, 3, 7, 21)."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from imagestore import Descriptor, Digest, Reference
from imagestore.config import ConnectionSettings
from imagestore.errors import AccessDeniedError, AuthenticationError, ProtocolError, RegistryUnavailableError
from imagestore.events import Noticed
from imagestore.oci.media_types import OCI_INDEX
from imagestore.registry import errors_body, session
from imagestore.registry.endpoints import Endpoint
from imagestore.registry.errors_body import secrets_in
from imagestore.registry.transport.urls import join, origin_of
from tests.support.streams import drain

REFERENCE = Reference.parse("registry.example/team/app:1")
CONTENT = b"layer bytes"
LAYER = Descriptor("application/vnd.oci.image.layer.v1.tar+gzip", Digest.of(CONTENT), len(CONTENT))
FIRST = f"https://registry.example/v2/team/app/blobs/{LAYER.digest}"
STORAGE = "https://storage.example/bucket/blob?X-Signature=very-secret"
MakeBench = Callable[..., Any]


class OneEndpoint:
    """The registry with a configured header."""

    def __init__(self, scheme: str = "https") -> None:
        self._scheme = scheme

    def __call__(self, host: str) -> tuple[Endpoint, ...]:
        base = f"{self._scheme}://{host}/v2"
        return (
            Endpoint(
                base, origin_of(base), host, is_upstream=True, headers=(("X-Team", "secret-team"), ("Cookie", "a=b"))
            ),
        )


class Web:
    """Answers by URL, and a ledger of every request."""

    def __init__(self) -> None:
        self.answers: dict[str, list[httpx.Response | Callable[[httpx.Request], httpx.Response]]] = {}
        self.ledger: list[httpx.Request] = []

    def on(self, url: str, *answers: httpx.Response) -> Web:
        self.answers[url] = list(answers)
        return self

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.ledger.append(request)
        answers = self.answers[str(request.url)]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return answer if isinstance(answer, httpx.Response) else answer(request)

    def hosts(self) -> list[str]:
        return [request.url.host for request in self.ledger]


def to(location: str, status: int = 307) -> httpx.Response:
    return httpx.Response(status, headers={b"Location": location.encode("latin-1")})


GOOD = httpx.Response(200, content=CONTENT)


@pytest.fixture
def bench(make_bench: MakeBench, authenticator: Any) -> Callable[[Web], Any]:
    authenticator.known = "Bearer registry-token"
    return lambda web: make_bench(web, endpoints=OneEndpoint(), authenticators=lambda endpoint: authenticator)


def read(bench: Any, offset: int = 0) -> bytes:
    with bench.client.blob(REFERENCE, LAYER, offset=offset, cancel=bench.cancel) as stream:
        return drain(stream)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_every_kind_of_redirect_is_followed(bench: Any, status: int) -> None:
    web = Web().on(FIRST, to(STORAGE, status)).on(STORAGE, GOOD)
    assert read(bench(web)) == CONTENT
    assert [request.method for request in web.ledger] == ["GET", "GET"]


@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://storage.example/blob",
        "https://registry.example:8443/blob",
        "https://registry.example.evil.example/blob",
        "https://sub.registry.example/blob",
    ],
)
def test_nothing_made_for_the_registry_goes_to_another_origin(bench: Any, elsewhere: str) -> None:
    web = Web().on(FIRST, to(elsewhere)).on(elsewhere, GOOD)
    read(bench(web), offset=0)
    first, second = web.ledger
    assert first.headers["Authorization"] == "Bearer registry-token"
    assert first.headers["X-Team"] == "secret-team"
    for name in ("Authorization", "Cookie", "X-Team"):
        assert name not in second.headers


def test_a_redirect_within_the_origin_keeps_the_authorization(bench: Any) -> None:
    web = Web().on(FIRST, to("/elsewhere")).on("https://registry.example/elsewhere", GOOD)
    read(bench(web))
    assert web.ledger[1].headers["Authorization"] == "Bearer registry-token"


def test_secrets_are_not_put_back_when_a_redirect_returns(bench: Any) -> None:
    back = "https://registry.example/back"
    web = Web().on(FIRST, to(STORAGE)).on(STORAGE, to(back)).on(back, GOOD)
    read(bench(web))
    assert "Authorization" not in web.ledger[2].headers
    assert "X-Team" not in web.ledger[2].headers


def test_range_goes_along(bench: Any) -> None:
    partial = httpx.Response(
        206, headers={"Content-Range": f"bytes 3-{len(CONTENT) - 1}/{len(CONTENT)}"}, content=CONTENT[3:]
    )
    web = Web().on(FIRST, to(STORAGE)).on(STORAGE, partial)
    assert read(bench(web), offset=3) == CONTENT[3:]
    assert web.ledger[1].headers["Range"] == "bytes=3-"
    assert web.ledger[1].headers["Accept-Encoding"] == "identity"


def hops(count: int) -> Web:
    web = Web().on(FIRST, to("https://h1.example/"))
    for number in range(1, count):
        web.on(f"https://h{number}.example/", to(f"https://h{number + 1}.example/"))
    return web.on(f"https://h{count}.example/", GOOD)


def test_five_hops_are_followed_and_the_sixth_is_not(bench: Any) -> None:
    assert read(bench(hops(5))) == CONTENT
    with pytest.raises(ProtocolError, match="more than 5 times"):
        read(bench(hops(6)))


def test_a_circle_is_refused(bench: Any) -> None:
    web = Web().on(FIRST, to(STORAGE)).on(STORAGE, to(FIRST))
    with pytest.raises(ProtocolError, match="circle"):
        read(bench(web))
    assert len(web.ledger) == 2


@pytest.mark.parametrize(
    "location",
    [
        "http://registry.example/plain",
        "http://storage.example/plain",
        "ftp://storage.example/x",
        "file:///etc/hosts",
        "https://user:pass@storage.example/x",
        "https://",
        "https://[::1/x",
        "https://storage.example:99999/x",
        "https://storage.example:0/x",
        "https://stor age.example/x",
        "https://storage.exämple/x",
        "https://storage.example\\@evil.example/x",
        "https://%65vil.example/x",
        "//",
        "",
        "https://storage.example/" + "x" * 9000,
    ],
)
def test_an_unsafe_target_is_refused_and_never_asked(bench: Any, location: str) -> None:
    web = Web().on(FIRST, to(location))
    with pytest.raises(ProtocolError, match=r"^registry\.example: ") as raised:
        read(bench(web))
    assert "pass" not in str(raised.value)
    assert raised.value.host == "registry.example"
    assert len(web.ledger) == 1


def test_a_redirect_that_leads_nowhere_is_said_to_be_one(bench: Any) -> None:
    with pytest.raises(ProtocolError, match="answered 307 without a Location to go to"):
        read(bench(Web().on(FIRST, httpx.Response(307))))


@pytest.mark.parametrize("elsewhere", ["http://storage.example/blob", "https://storage.example/blob"])
def test_a_registry_without_encryption_has_none_to_lose_by_a_redirect(make_bench: MakeBench, elsewhere: str) -> None:
    web = Web().on(FIRST.replace("https", "http", 1), to(elsewhere)).on(elsewhere, GOOD)
    assert read(make_bench(web, endpoints=OneEndpoint("http"))) == CONTENT


def test_relative_targets_are_resolved_and_fragments_dropped(bench: Any) -> None:
    web = Web().on(FIRST, to("../../x?y=1#part")).on("https://registry.example/v2/team/x?y=1", GOOD)
    assert read(bench(web)) == CONTENT


@pytest.mark.parametrize("status", [400, 401, 403])
def test_an_expired_signature_gets_a_new_one_from_the_registry(bench: Any, status: int) -> None:
    fresh = STORAGE + "-2"
    web = Web().on(FIRST, to(STORAGE), to(fresh)).on(STORAGE, httpx.Response(status)).on(fresh, GOOD)
    assert read(bench(web)) == CONTENT
    assert web.hosts() == ["registry.example", "storage.example"] * 2


def test_a_signature_that_is_refused_again_is_no_matter_of_time(bench: Any) -> None:
    web = Web().on(FIRST, to(STORAGE)).on(STORAGE, httpx.Response(403))
    with pytest.raises(AccessDeniedError):
        read(bench(web))
    assert web.hosts() == ["registry.example", "storage.example"] * 2


def test_a_signature_that_does_not_hold_for_head_costs_one_get(bench: Any) -> None:
    def by_method(request: httpx.Request) -> httpx.Response:
        if request.url.host == "registry.example":
            return to("https://storage.example/manifest")
        if request.method == "HEAD":
            return httpx.Response(403)
        return httpx.Response(200, headers={"Content-Type": OCI_INDEX}, content=b"{}")

    web = Web()
    web.answers.update(
        {
            "https://registry.example/v2/team/app/manifests/1": [by_method],
            "https://storage.example/manifest": [by_method],
        }
    )
    made = bench(web)
    known = [Descriptor(OCI_INDEX, Digest.of(b"other"), 5)]
    assert made.client.resolve(REFERENCE, known=known, cancel=made.cancel).digest == Digest.of(b"{}")
    assert [request.method for request in web.ledger] == ["HEAD", "HEAD", "GET", "GET"]


def test_another_origins_challenge_is_not_answered(bench: Any, authenticator: Any) -> None:
    challenge = httpx.Response(401, headers={"WWW-Authenticate": 'Basic realm="give me"'})
    web = Web().on(FIRST, to(STORAGE)).on(STORAGE, challenge)
    with pytest.raises(AuthenticationError) as raised:
        read(bench(web))
    assert authenticator.asked == []
    assert "very-secret" not in str(raised.value)


def test_a_signed_url_is_not_shown_when_storage_fails(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    web = Web().on(FIRST, to(STORAGE)).on(STORAGE, httpx.Response(500))
    with pytest.raises(RegistryUnavailableError, match=r"storage\.example answered 500") as raised:
        read(bench(web))
    assert "very-secret" not in str(raised.value) + caplog.text


def test_what_storage_quotes_of_a_signed_url_is_not_shown(bench: Any) -> None:
    signed = "https://storage.example/bucket/blob?X-Signature=very%2Bsecret&X-Credential=me&ns=x"
    said = (
        "<Error><Code>SignatureDoesNotMatch</Code><Signature>very+secret</Signature> X-Signature=very%2Bsecret</Error>"
    )
    web = Web().on(FIRST, to(signed)).on(signed, httpx.Response(403, text=said))
    with pytest.raises(AccessDeniedError, match="SignatureDoesNotMatch") as raised:
        read(bench(web))
    assert raised.value.hint.startswith("registry.example leads there, without its login: storage")
    assert "secret" not in f"{raised.value} {raised.value.said} {raised.value.hint}"


def test_what_storage_quotes_of_a_signed_url_in_a_warning_is_not_passed_on(bench: Any) -> None:
    warning = {"Warning": '299 - "X-Signature=very-secret will expire soon"'}
    opened = bench(Web().on(FIRST, to(STORAGE)).on(STORAGE, httpx.Response(200, headers=warning, content=CONTENT)))
    assert read(opened) == CONTENT
    assert opened.events == [Noticed("registry.example says: X-Signature=(hidden) will expire soon")]


def test_many_warnings_at_a_signed_address_cost_no_search_for_each_value(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of texts, a thousand values of a query: an expression for each pair would take seconds an answer."""
    signed = "https://storage.example/blob?" + "&".join(f"k=v-{number:06}%2B" for number in range(500))
    warnings = [("Warning", f'299 - "{number}"') for number in range(200)]
    warnings.append(("Warning", '299 - "V-000499+ is old"'))
    answer = httpx.Response(200, headers=warnings, content=CONTENT)
    opened = bench(Web().on(FIRST, to(signed)).on(signed, answer))
    made = Mock(wraps=secrets_in)
    monkeypatch.setattr(session, "secrets_in", made)
    searches = Mock(wraps=re.escape)
    monkeypatch.setattr(errors_body, "re", SimpleNamespace(sub=re.sub, escape=searches, IGNORECASE=re.IGNORECASE))
    assert read(opened) == CONTENT
    assert len(opened.events) == 100
    assert made.call_count <= 4
    assert [call.args[0] for call in searches.call_args_list] == ["v-000499+"]


def test_a_client_certificate_and_skipped_checks_stay_with_their_host() -> None:
    from imagestore.registry.transport.tls import settings_for

    settings = ConnectionSettings(ca_files=("ca.pem",), client_pairs=(("c.pem", "k.pem"),), skip_verify=True)
    home = origin_of("https://registry.example")
    assert settings_for(home, home=home, settings=settings) == settings
    assert settings_for(origin_of("https://registry.example:8443"), home=home, settings=settings) == (
        ConnectionSettings(ca_files=("ca.pem",), skip_verify=True)
    )
    assert settings_for(origin_of("https://storage.example"), home=home, settings=settings) == (
        ConnectionSettings(ca_files=("ca.pem",))
    )


class TestChallenges:
    """401 from the registry itself."""

    @pytest.fixture
    def web(self) -> Web:
        return Web()

    @staticmethod
    def refused(challenge: str) -> httpx.Response:
        return httpx.Response(401, headers={"WWW-Authenticate": challenge}, json={"errors": [{"code": "UNAUTHORIZED"}]})

    def test_a_challenge_is_answered_once_and_the_answer_sent(self, bench: Any, web: Web, authenticator: Any) -> None:
        authenticator.answers = ["Bearer new"]
        web.on(FIRST, self.refused("Bearer a"), GOOD)
        assert read(bench(web)) == CONTENT
        assert web.ledger[1].headers["Authorization"] == "Bearer new"
        assert authenticator.asked == [("https://registry.example", "team/app", ("Bearer a",))]

    def test_the_same_challenge_again_is_final(self, bench: Any, web: Web, authenticator: Any) -> None:
        authenticator.answers = ["Bearer new", "Bearer newer"]
        web.on(FIRST, self.refused("Bearer a"))
        with pytest.raises(AuthenticationError, match="401: UNAUTHORIZED"):
            read(bench(web))
        assert len(web.ledger) == 2

    def test_another_challenge_is_answered_but_not_for_ever(self, bench: Any, web: Web, authenticator: Any) -> None:
        authenticator.answers = [f"Bearer {number}" for number in range(10)]
        web.on(FIRST, *(self.refused(f"Bearer scope={number}") for number in range(10)))
        with pytest.raises(AuthenticationError):
            read(bench(web))
        assert len(web.ledger) == 4


@pytest.mark.parametrize(
    ("location", "asked"),
    [
        ("https://storage.example/b?f=a b", "f=a%20b"),
        ('https://storage.example/b?f="a|b"{}', "f=%22a%7Cb%22%7B%7D"),
        ("https://storage.example/b?f=\u00e9%20", "f=%E9%20"),
        ("https://storage.example/b?f=\u20ac", "f=%E2%82%AC"),
    ],
)
def test_what_a_server_forgets_to_encode_is_encoded(location: str, asked: str) -> None:
    joined = join(FIRST, location)
    assert (joined, str(origin_of(joined))) == (f"https://storage.example/b?{asked}", "https://storage.example")


@pytest.mark.parametrize(
    "location", ["https://ev il.example/b", "https://storage.example\\@evil.example/b", "https://{x}/b"]
)
def test_a_host_is_never_encoded(location: str) -> None:
    with pytest.raises(ProtocolError):
        origin_of(join(FIRST, location))
