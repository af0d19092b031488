"""Error documents: whatever a registry sends with a refusal, the message stays one bounded, printable line."""

from __future__ import annotations

import json

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imagestore.errors import ImageStoreError, ProtocolError, RegistryError, RegistryUnavailableError
from imagestore.registry.errors_body import failure
from imagestore.registry.transport.messages import Response
from tests.unit.registry.wire import Body


def refuse(body: bytes, *, status: int = 400, content_type: str = "application/json", url: str = "") -> RegistryError:
    asked = httpx.Request("GET", url or "https://registry.example/v2/x?token=hunter2")
    pieces = Body(body[:100], body[100:])
    answer = httpx.Response(status, headers={"Content-Type": content_type}, stream=pieces, request=asked)
    return failure(Response(answer), what="thing")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", ""),
        (b"null", "null"),
        (b"[]", "[]"),
        (b"plain words\n", "plain words"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        ({"errors": [{"code": "DENIED", "message": "no", "detail": {"a": 1}}]}, "DENIED: no"),
        ({"errors": [{"code": "A"}, {"message": "b"}, {}, "x", {"code": 7}]}, "A; b"),
        ({"errors": []}, ""),
        ({"errors": None, "message": "hello"}, "hello"),
        ({"details": "gone"}, "gone"),
        ({"error": "invalid_token"}, "invalid_token"),
        ({"other": 1}, ""),
        (b"[" * 100_000, "[" * 2045 + "..."),
    ],
)
def test_what_is_said_is_found_in_every_form(body: object, said: str) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert str(refuse(raw)) == "thing: registry.example answered 400" + (f": {said}" if said else "")


def test_a_proxy_that_wants_a_login_is_named() -> None:
    error = refuse(b"Access denied", status=407, content_type="text/plain", url="http://registry.example/v2/")
    assert str(error) == "thing: the proxy on the way to registry.example answered 407: Access denied"
    assert "HTTP_PROXY" in error.hint


def test_a_page_for_browsers_does_not_hide_the_status() -> None:
    assert str(refuse(b"<html>long page</html>", content_type="text/html")) == "thing: registry.example answered 400"


@pytest.mark.parametrize(
    ("page", "is_tls"),
    [
        (
            b"<h1>400 Bad Request</h1>\n<center>The plain HTTP request was sent to HTTPS port</center>",
            True,
        ),
        (b'<a href="https://www.example/">Bad Request</a>', False),
    ],
)
def test_a_page_that_wants_tls_is_understood_though_it_is_not_shown(page: bytes, is_tls: bool) -> None:
    error = refuse(page, content_type="text/html", url="http://localhost:5000/v2/")
    assert str(error) == "thing: localhost:5000 answered 400"
    assert ('server = "https://localhost:5000"' in error.hint) is is_tls
    assert refuse(page, content_type="text/html").hint == ""


@pytest.mark.parametrize("words", ["No required SSL certificate was sent", "The SSL certificate error"])
def test_a_page_that_wants_a_client_certificate_is_understood(words: str) -> None:
    page = f"<center><h1>400 Bad Request</h1></center><center>{words}</center>".encode()
    assert "name it as 'client'" in refuse(page, content_type="text/html").hint
    assert refuse(page, content_type="text/html", url="http://localhost:5000/v2/").hint == ""


def test_a_body_that_breaks_still_gives_the_status() -> None:
    asked = httpx.Request("GET", "https://registry.example/")
    answer = httpx.Response(403, stream=Body(RegistryUnavailableError("broke")), request=asked)
    assert failure(Response(answer), what="thing").status == 403


@given(st.binary(max_size=300), st.sampled_from(["application/json", "text/plain", ""]))
@example("an unassigned character \u058b and a hard space\u00a0".encode(), "application/json")
def test_any_body_gives_a_bounded_printable_line(body: bytes, content_type: str) -> None:
    message = str(refuse(body, content_type=content_type))
    assert message.isprintable()
    assert len(message) < 10_000
    assert "hunter2" not in message


@given(st.integers(300, 599))
def test_every_status_has_an_error_with_its_number(status: int) -> None:
    error = refuse(b"", status=status)
    assert isinstance(error, ImageStoreError)
    assert (error.status, error.host) == (status, "registry.example")


def test_plain_http_to_a_tls_port_is_explained() -> None:
    error = refuse(
        b"Client sent an HTTP request to an HTTPS server.\n", content_type="text/plain", url="http://localhost:5000/v2/"
    )
    assert isinstance(error, ProtocolError)
    assert 'server = "https://localhost:5000"' in error.hint
