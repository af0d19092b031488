"""What is put on the wire for a request, and what never is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagestore.registry.exchange import Request
from imagestore.registry.transport.faults import UnsendableError
from imagestore.registry.transport.message import Head, Outgoing, outgoing


def made(method: str = "GET", body: bytes | None = None, url: str = "https://registry.example/v2/") -> Outgoing:
    request = Request(method, url, (("Authorization", "Bearer CANARY"),), body)
    return outgoing(request, user_agent="us", connect_seconds=1, idle_seconds=1)


@pytest.mark.parametrize(
    "change",
    [
        {"target": b"/v2/ HTTP/1.1\r\nX: y\r\n\r\n"},
        {"target": b"/v2/a b"},
        {"target": b""},
        {"method": "GET /other HTTP/1.1\r\nX:"},
        {"method": ""},
        {"fields": ((b"X", b"a\r\nY: b"),)},
        {"fields": ((b"X: a\r\nY", b"b"),)},
        {"fields": ((b"X", b" padded"),)},
    ],
)
def test_a_request_that_would_say_something_else_is_not_sent(change: dict[str, object]) -> None:
    assert made().head().startswith(b"GET /v2/ HTTP/1.1\r\nHost: registry.example\r\n")
    with pytest.raises(UnsendableError):
        replace(made(), **change).head()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [("POST", b"a=b", b"3"), ("POST", None, b"0"), ("POST", b"", b"0"), ("GET", None, None)],
)
def test_a_body_has_its_length(method: str, body: bytes | None, length: bytes | None) -> None:
    assert dict(made(method, body).fields).get(b"Content-Length") == length


def test_what_is_shown_of_a_message_has_no_secret() -> None:
    sent = made("POST", b"password=CANARY", "https://registry.example/v2/?token=CANARY")
    came = Head(b"1.1", 307, ((b"Location", b"https://storage.example/?signature=CANARY"),))
    assert "CANARY" not in f"{sent!r} {came!r}"
