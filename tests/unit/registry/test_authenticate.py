"""The whole answer to a 401, against a simulated registry and its token service that keep a ledger of what they saw."""

from __future__ import annotations

import base64
import datetime
import email.utils
import json
import logging
import threading

import pytest
from httpx import Headers

from imagestore import CancelToken, Credential, CredentialLookup, Secret
from imagestore.errors import (
    AuthenticationError,
    ProtocolError,
    RateLimitedError,
    RegistryError,
    RegistryUnavailableError,
)
from imagestore.registry.auth.authenticate import MAX_ANSWERS, RegistryAuthenticator
from imagestore.registry.auth.tokens import MAX_REPLY_BYTES
from imagestore.registry.credentials.lookup import CredentialResolver
from imagestore.registry.credentials.model import Anonymous
from imagestore.registry.transport.addresses import Origin
from tests.unit.registry.token_server import (
    ALICE,
    IDENTITY,
    ORIGIN,
    PASSWORD,
    SECRETS,
    Asked,
    FakeResponse,
    TokenServer,
    answer,
    bearer,
    given,
)


def test_anonymous_token_by_get() -> None:
    server = TokenServer()
    authenticator = RegistryAuthenticator(server, Anonymous())
    assert authenticator.authorization(ORIGIN, "a/b") == ""
    assert answer(authenticator) == "Bearer CANARY-1"
    [asked] = server.asked
    assert (asked.method, asked.authorization, asked.form) == ("GET", "", {})
    assert asked.query == {"service": ["svc"], "scope": ["repository:a/b:pull"], "client_id": ["imagestore"]}


def test_a_token_is_sent_unasked_until_it_is_due_and_then_renewed() -> None:
    now = [0.0]
    server = TokenServer()
    authenticator = RegistryAuthenticator(server, Anonymous(), clock=lambda: now[0])
    answer(authenticator)
    assert authenticator.authorization(ORIGIN, "a/b") == "Bearer CANARY-1"
    assert authenticator.authorization(ORIGIN, "a/c") == ""
    now[0] = 240.0
    assert authenticator.authorization(ORIGIN, "a/b") == ""
    assert answer(authenticator) == "Bearer CANARY-2"


def test_password_goes_as_basic_by_get_first() -> None:
    server = TokenServer()
    answer(RegistryAuthenticator(server, given(ALICE)))
    [asked] = server.asked
    assert asked.method == "GET"
    assert asked.query["account"] == ["alice"]
    assert base64.b64decode(asked.authorization.removeprefix("Basic ")).decode() == f"alice:{PASSWORD}"
    assert PASSWORD not in asked.url


@pytest.mark.parametrize("status", [404, 405])
def test_a_service_without_get_is_asked_by_post(status: int) -> None:
    server = TokenServer(lambda asked: FakeResponse(status) if asked.method == "GET" else server.grant(asked))
    assert answer(RegistryAuthenticator(server, given(ALICE))) == "Bearer CANARY-2"
    asked = server.asked[-1]
    assert asked.form == {
        "grant_type": "password",
        "username": "alice",
        "password": PASSWORD,
        "client_id": "imagestore",
        "service": "svc",
        "scope": "repository:a/b:pull",
    }
    assert asked.authorization == ""


def test_a_password_that_both_forms_have_shown_is_not_shown_again() -> None:
    server = TokenServer(lambda asked: FakeResponse(404 if asked.method == "GET" else 401))
    with pytest.raises(AuthenticationError):
        answer(RegistryAuthenticator(server, given(ALICE)))
    assert [asked.method for asked in server.asked] == ["GET", "POST"]


def test_a_wrong_password_is_tried_once_and_its_source_named() -> None:
    server = TokenServer(lambda _: FakeResponse(401, b'{"errors":[{"code":"UNAUTHORIZED","message":"CANARY"}]}'))
    with pytest.raises(AuthenticationError) as caught:
        answer(RegistryAuthenticator(server, given(ALICE)))
    assert len(server.asked) == 1
    assert "refuses the credentials from file /x, member auths['h'] with status 401 (unauthorized)" in str(caught.value)
    assert "--anonymous" in caught.value.hint


def test_an_identity_token_goes_to_the_service_by_post_only() -> None:
    server = TokenServer(lambda _: FakeResponse(404))
    with pytest.raises(AuthenticationError):
        answer(RegistryAuthenticator(server, given(IDENTITY)))
    [asked] = server.asked
    assert (asked.method, asked.form["grant_type"], asked.form["refresh_token"], asked.authorization) == (
        "POST",
        "refresh_token",
        "CANARY-identity",
        "",
    )


def test_a_ready_token_goes_to_the_registry_as_it_is() -> None:
    server = TokenServer()
    credential = Credential(registry_token=Secret("CANARY-ready"))
    authenticator = RegistryAuthenticator(server, given(credential))
    assert answer(authenticator) == "Bearer CANARY-ready"
    assert authenticator.authorization(ORIGIN, "a/b") == "Bearer CANARY-ready"
    assert server.asked == []
    with pytest.raises(AuthenticationError, match="file /x"):
        authenticator.respond(ORIGIN, "a/b", bearer(), cancel=CancelToken())


def test_basic_is_sent_only_after_its_challenge_and_then_unasked() -> None:
    authenticator = RegistryAuthenticator(TokenServer(), given(ALICE))
    basic = Headers((("WWW-Authenticate", 'Basic realm="x"'),))
    assert authenticator.authorization(ORIGIN, "a/b") == ""
    header = answer(authenticator, basic)
    assert header.startswith("Basic ")
    assert authenticator.authorization(ORIGIN, "a/b") == header
    assert authenticator.authorization(Origin("https", "other.example", 443), "a/b") == ""
    with pytest.raises(AuthenticationError, match=r"from file /x.* were refused"):
        authenticator.respond(ORIGIN, "a/b", basic, cancel=CancelToken())


@pytest.mark.parametrize(
    ("lookup", "hint"),
    [(CredentialResolver(()), "run 'imagestore login registry.example'"), (Anonymous(), "try without --anonymous")],
)
def test_basic_without_credentials_says_what_to_do(lookup: CredentialLookup, hint: str) -> None:
    with pytest.raises(AuthenticationError, match="needs credentials") as caught:
        answer(RegistryAuthenticator(TokenServer(), lookup), Headers((("WWW-Authenticate", "Basic realm=x"),)))
    assert hint in caught.value.hint


def test_basic_with_only_an_identity_token_is_an_error() -> None:
    with pytest.raises(AuthenticationError, match="only a token"):
        answer(RegistryAuthenticator(TokenServer(), given(IDENTITY)), Headers((("WWW-Authenticate", "Basic realm=x"),)))


def test_a_failing_realm_is_no_reason_to_switch_to_basic() -> None:
    both = Headers((("WWW-Authenticate", 'Basic realm="b", Bearer realm="http://10.0.0.1/t"'),))
    server = TokenServer()
    with pytest.raises(AuthenticationError, match="refused"):
        answer(RegistryAuthenticator(server, given(ALICE)), both)
    assert server.asked == []


def test_bearer_without_realm_gives_way_to_basic() -> None:
    both = Headers((("WWW-Authenticate", "Bearer service=s, Basic realm=b"),))
    assert answer(RegistryAuthenticator(TokenServer(), given(ALICE)), both).startswith("Basic ")


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ((), "no challenge"),
        (("NTLM", "Negotiate abc=="), "ntlm, negotiate"),
        (("Bearer service=s",), "bearer"),
        (('Bearer realm="a',), "position"),
        (('Bearer realm="https://auth.example/",scope="a\\"b"',), "scope"),
        (('Bearer realm="nonsense"',), "token service address"),
    ],
)
def test_unusable_challenges_are_typed_errors(fields: tuple[str, ...], part: str) -> None:
    headers = Headers(tuple(("WWW-Authenticate", value) for value in fields))
    with pytest.raises(AuthenticationError) as caught:
        answer(RegistryAuthenticator(TokenServer(), Anonymous()), headers)
    assert part in str(caught.value)


def test_a_registry_refusing_its_fresh_token_is_no_loop() -> None:
    server = TokenServer()
    authenticator = RegistryAuthenticator(server, given(ALICE))
    answer(authenticator)
    refusal = bearer(more=',error="insufficient_scope"')
    with pytest.raises(AuthenticationError, match=r"the credentials from file /x.*don't allow this"):
        authenticator.respond(ORIGIN, "a/b", refusal, cancel=CancelToken())
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("lookup", "hint"),
    [(CredentialResolver(()), "run 'imagestore login registry.example'"), (Anonymous(), "try without --anonymous")],
)
def test_anonymous_refusal_hints_at_login(lookup: CredentialLookup, hint: str) -> None:
    authenticator = RegistryAuthenticator(TokenServer(), lookup)
    answer(authenticator)
    with pytest.raises(AuthenticationError, match="does not exist, or needs credentials") as caught:
        authenticator.respond(ORIGIN, "a/b", bearer(), cancel=CancelToken())
    assert hint in caught.value.hint


def test_another_scope_is_asked_for_once() -> None:
    server = TokenServer()
    authenticator = RegistryAuthenticator(server, Anonymous())
    answer(authenticator)
    wider = bearer("repository:a/b:pull repository:a/c:pull", more=',error="insufficient_scope"')
    assert authenticator.respond(ORIGIN, "a/b", wider, cancel=CancelToken()) == "Bearer CANARY-2"
    assert server.asked[1].query["scope"] == ["repository:a/b:pull", "repository:a/c:pull"]
    with pytest.raises(AuthenticationError):
        authenticator.respond(ORIGIN, "a/b", wider, cancel=CancelToken())


def test_ever_new_scopes_come_to_an_end() -> None:
    server = TokenServer()
    authenticator = RegistryAuthenticator(server, Anonymous())
    authenticator.authorization(ORIGIN, "a/b")
    for number in range(MAX_ANSWERS):
        authenticator.respond(ORIGIN, "a/b", bearer(f"repository:x{number}:pull"), cancel=CancelToken())
    with pytest.raises(AuthenticationError, match="end to challenges"):
        authenticator.respond(ORIGIN, "a/b", bearer("repository:last:pull"), cancel=CancelToken())
    assert len(server.asked) == MAX_ANSWERS


def test_a_refused_remembered_token_is_renewed_in_mid_pull() -> None:
    server = TokenServer()
    authenticator = RegistryAuthenticator(server, Anonymous())
    answer(authenticator)
    expired = bearer(more=',error="invalid_token"')
    assert answer(authenticator, expired) == "Bearer CANARY-2"
    assert authenticator.authorization(ORIGIN, "a/b") == "Bearer CANARY-2"


def test_parallel_layers_cause_one_exchange() -> None:
    gate = threading.Event()

    def slow(asked: Asked) -> FakeResponse:
        gate.wait(60)
        return server.grant(asked)

    server = TokenServer(slow)
    authenticator = RegistryAuthenticator(server, Anonymous())
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(answer(authenticator))) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(60)
    assert (got, len(server.asked)) == (["Bearer CANARY-1"] * 8, 1)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, RateLimitedError),
        (503, RegistryUnavailableError),
        (500, RegistryUnavailableError),
        (408, RegistryUnavailableError),
        (403, AuthenticationError),
        (418, AuthenticationError),
    ],
)
def test_statuses_of_a_service(status: int, kind: type[Exception]) -> None:
    server = TokenServer(lambda _: FakeResponse(status, b"<html>CANARY</html>", Headers((("Retry-After", "7"),))))
    with pytest.raises(kind) as caught:
        answer(RegistryAuthenticator(server, Anonymous()))
    assert "CANARY" not in str(caught.value)
    if isinstance(caught.value, RateLimitedError | RegistryUnavailableError):
        assert caught.value.retry_after == 7.0
        assert "7 s" in caught.value.hint


@pytest.mark.parametrize(
    "body", [b"[]", b"7", b"null", b'"denied"', b'{"errors": []}', b'{"errors": {"a": 1}}', b'{"errors": [7]}', b"\xff"]
)
def test_a_refusal_in_any_shape_is_a_typed_error(body: bytes) -> None:
    server = TokenServer(lambda _: FakeResponse(403, body))
    with pytest.raises(AuthenticationError, match=r"with status 403$"):
        answer(RegistryAuthenticator(server, given(ALICE)))


@pytest.mark.parametrize("status", [429, 503])
def test_a_service_s_date_is_read_too(status: int) -> None:
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    fields = Headers((("Retry-After", email.utils.format_datetime(moment, usegmt=True)),))
    with pytest.raises(RegistryError) as caught:
        answer(RegistryAuthenticator(TokenServer(lambda _: FakeResponse(status, b"", fields)), Anonymous()))
    assert isinstance(caught.value, RateLimitedError | RegistryUnavailableError)
    assert 3000 < (caught.value.retry_after or 0) <= 3600


def test_where_the_credentials_came_from_is_remembered() -> None:
    for credential, provenance in ((ALICE, "file /x, member auths['h']"), (None, "")):
        lookup = given(credential) if credential is not None else Anonymous()
        authenticator = RegistryAuthenticator(TokenServer(), lookup)
        assert authenticator.provenance(ORIGIN, "a/b") == ""
        answer(authenticator)
        assert authenticator.provenance(ORIGIN, "a/b") == provenance
        assert authenticator.provenance(ORIGIN, "other") == ""


def test_a_service_s_answer_is_bounded() -> None:
    server = TokenServer(lambda _: FakeResponse(200, b" " * (MAX_REPLY_BYTES + 1)))
    with pytest.raises(ProtocolError):
        answer(RegistryAuthenticator(server, Anonymous()))


def test_a_service_that_echoes_secrets_gives_none_away(caplog: pytest.LogCaptureFixture) -> None:
    def echo(asked: Asked) -> FakeResponse:
        said = [asked.authorization, *asked.form.values()]
        return FakeResponse(401, json.dumps({"error": PASSWORD, "errors": [{"code": said, "message": said}]}).encode())

    shown: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for credential in (ALICE, IDENTITY, Credential(registry_token=Secret("CANARY-ready"))):
            for handler in (echo, None):
                authenticator = RegistryAuthenticator(TokenServer(handler), given(credential))
                for headers in (bearer(), Headers((("WWW-Authenticate", "Basic realm=x"),))):
                    for _ in range(2):
                        try:
                            answer(authenticator, headers)
                            authenticator.respond(ORIGIN, "a/b", headers, cancel=CancelToken())
                        except AuthenticationError as error:
                            shown += [str(error), repr(error), error.hint, repr(error.__cause__)]
                shown += [repr(authenticator), repr(vars(authenticator)), repr(vars(authenticator._threads))]
            shown += [repr(credential), str(credential), repr(given(credential))]
    everything = "\n".join([*shown, caplog.text])
    assert len(shown) > 20
    assert [secret for secret in (*SECRETS, "CANARY") if secret in everything] == []


@pytest.mark.parametrize(
    "said", [{"errors": [{"code": PASSWORD}]}, {"error": PASSWORD}, {"errors": [], "error": PASSWORD}]
)
def test_a_secret_in_the_place_of_an_error_s_code_is_not_repeated(said: object) -> None:
    server = TokenServer(lambda _: FakeResponse(401, json.dumps(said).encode()))
    with pytest.raises(AuthenticationError, match=r"with status 401$") as caught:
        answer(RegistryAuthenticator(server, given(ALICE)))
    assert PASSWORD.casefold() not in f"{caught.value!r} {caught.value.hint}".casefold()
