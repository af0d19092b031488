"""What a registry says when it refuses: whose login was used is told, and what it was sent is never repeated."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from imagestore import Credential, Descriptor, Digest, Reference, Secret
from imagestore.errors import AccessDeniedError, AuthenticationError, ReferenceNotFoundError, RegistryError
from imagestore.events import Noticed
from imagestore.oci.media_types import OCI_LAYER_GZIP
from imagestore.registry.auth.token_service import basic_header
from imagestore.registry.endpoints import Endpoint
from imagestore.registry.errors_body import redact, secrets_in
from imagestore.registry.transport.urls import escape, origin_of

MakeBench = Callable[..., Any]
REFERENCE = Reference.parse("registry.example/team/app:1")
PASSWORD = "CANARY pass:word"
BASIC = basic_header(Credential("alice", Secret(PASSWORD)))
PAIR = base64.b64decode(BASIC.removeprefix("Basic ")).decode()


class Configured:
    """The registry with a configured header."""

    def __call__(self, host: str) -> tuple[Endpoint, ...]:
        base = f"https://{host}/v2"
        return (Endpoint(base, origin_of(base), host, is_upstream=True, headers=(("X-Team", "CANARY-header"),)),)


def resolve(bench: Any) -> None:
    bench.client.resolve(REFERENCE, cancel=bench.cancel)


def open_blob(bench: Any) -> None:
    bench.client.blob(REFERENCE, Descriptor(OCI_LAYER_GZIP, Digest.of(b"x"), 1), cancel=bench.cancel)


def refused(
    make_bench: MakeBench,
    authenticator: Any,
    answer: Callable[[httpx.Request], httpx.Response],
    ask: Callable[[Any], None] = resolve,
) -> Any:
    bench = make_bench(answer, endpoints=Configured(), authenticators=lambda _: authenticator)
    with pytest.raises(RegistryError) as caught:
        ask(bench)
    return caught.value, bench


@pytest.mark.parametrize("status", [400, 403, 404, 401, 429, 500])
@pytest.mark.parametrize("header", [BASIC, "Bearer CANARY-token"])
@pytest.mark.parametrize("ask", [resolve, open_blob])
def test_a_registry_that_quotes_what_it_was_sent_puts_no_secret_into_messages(
    make_bench: MakeBench,
    authenticator: Any,
    caplog: pytest.LogCaptureFixture,
    status: int,
    header: str,
    ask: Callable[[Any], None],
) -> None:
    def echo(request: httpx.Request) -> httpx.Response:
        sent = request.headers.get("Authorization")
        if sent is None:
            return httpx.Response(status, text="denied")
        words = [sent, sent.partition(" ")[2], request.headers["X-Team"]]
        words += [PAIR, PASSWORD, PASSWORD.upper()] if sent == BASIC else []
        fields = {"Warning": f'299 - "you sent {sent}"', "Retry-After": "1"}
        body = {"errors": [{"code": word, "message": f"denied: {word}!"} for word in words]}
        return httpx.Response(status, json=body, headers=fields)

    authenticator.known = header
    with caplog.at_level("DEBUG"):
        error, bench = refused(make_bench, authenticator, echo, ask)
    said = [event.message for event in bench.events if isinstance(event, Noticed)]
    assert said
    everything = "\n".join([str(error), error.hint, caplog.text, *map(str, bench.events)])
    assert "CANARY" not in everything
    assert header.partition(" ")[2] not in everything
    assert "denied" in everything or status == 401


@pytest.mark.parametrize("header", ["Bearer registry.example", "Bearer off"])
def test_ordinary_words_are_shown_as_they_are(make_bench: MakeBench, authenticator: Any, header: str) -> None:
    """A secret that is an ordinary word, or part of a name, would be given away by hiding it there."""
    authenticator.known = header
    error, _ = refused(make_bench, authenticator, lambda _: httpx.Response(403, text="Basic authentication is off"))
    assert str(error) == "registry.example/team/app:1: registry.example answered 403: Basic authentication is off"
    assert error.said == "Basic authentication is off"


@pytest.mark.parametrize(
    ("status", "kind"), [(401, AuthenticationError), (403, AccessDeniedError), (404, ReferenceNotFoundError)]
)
@pytest.mark.parametrize("ask", [resolve, open_blob])
def test_a_refusal_names_the_login(
    make_bench: MakeBench, authenticator: Any, status: int, kind: type[RegistryError], ask: Callable[[Any], None]
) -> None:
    authenticator.account = "file /x, member auths['h']"
    authenticator.answers = ["Bearer useless"] * 2
    challenge = {"WWW-Authenticate": 'Bearer realm="https://auth.registry.example/token"'}
    error, _ = refused(make_bench, authenticator, lambda _: httpx.Response(status, headers=challenge), ask)
    assert isinstance(error, kind)
    assert "file /x, member auths['h']" in error.hint
    assert "needs a login" not in error.hint


def test_where_storage_refuses_no_login_is_blamed(make_bench: MakeBench, authenticator: Any) -> None:
    """The registry's login was good enough to be sent on, and storage never saw it."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "registry.example":
            return httpx.Response(307, headers={"Location": "https://storage.example/blob"})
        return httpx.Response(403)

    authenticator.account = "file /x, member auths['h']"
    error, _ = refused(make_bench, authenticator, answer, open_blob)
    assert error.hint.startswith("registry.example leads there, without its login: storage")


@pytest.mark.parametrize("status", [400, 500])
def test_a_failure_that_is_no_refusal_blames_no_login(make_bench: MakeBench, authenticator: Any, status: int) -> None:
    authenticator.account = "file /x, member auths['h']"
    error, _ = refused(make_bench, authenticator, lambda _: httpx.Response(status), open_blob)
    assert "file /x" not in error.hint


def test_without_a_login_the_hint_is_to_log_in(make_bench: MakeBench, authenticator: Any) -> None:
    error, _ = refused(make_bench, authenticator, lambda _: httpx.Response(403))
    assert "needs a login at registry.example" in error.hint


@pytest.mark.parametrize(
    "signed",
    [
        "https://storage.example/blob?X-Signature=CANARY/mac==",
        "https://storage.example/blob?a=1&sig=CANARY%2Fmac%3D%3D",
    ],
)
def test_a_signature_that_ends_in_padding_is_secret_as_a_whole(signed: str) -> None:
    secrets = secrets_in((), signed=signed)
    assert redact("you sent CANARY/mac== here", secrets) == "you sent (hidden) here"


def test_a_secret_is_hidden_also_where_its_odd_characters_were_escaped() -> None:
    secrets = secrets_in((("X-Team", "CANARY\x7f\x1btail"),))
    assert redact(escape("you sent CANARY\x7f\x1btail"), secrets) == "you sent (hidden)"
