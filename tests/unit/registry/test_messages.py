"""What is put on the wire for a request, and what never is."""

from __future__ import annotations

import pytest

from imagestore.errors import ProtocolError
from imagestore.registry.transport.messages import make_request, redirected

URL = "https://registry.example/v2/"
SECRET = (("Authorization", "Bearer CANARY"),)


@pytest.mark.parametrize(
    ("method", "url", "fields"),
    [
        ("GET /other HTTP/1.1\r\nX:", URL, ()),
        ("", URL, ()),
        ("GET", "https://registry.example/v2/ HTTP/1.1\r\nX: y\r\n\r\n", ()),
        ("GET", "https://registry.example/v2/a b", ()),
        ("GET", "https://user:CANARY@registry.example/v2/", ()),
        ("GET", "https://127.0.0.999/v2/", ()),
        ("GET", URL, (("X", "a\r\nY: b"),)),
        ("GET", URL, (("X: a\r\nY", "b"),)),
        ("GET", URL, (("X", " padded"),)),
        ("GET", URL, (("X", "ä"),)),
        ("GET", URL, (("", "x"),)),
    ],
)
def test_a_request_that_would_say_something_else_is_not_made(
    method: str, url: str, fields: tuple[tuple[str, str], ...]
) -> None:
    with pytest.raises(ProtocolError) as raised:
        make_request(method, url, (*SECRET, *fields))
    assert "CANARY" not in f"{raised.value}{raised.value.__cause__}"


@pytest.mark.parametrize(
    ("method", "body", "length"), [("POST", b"a=b", "3"), ("POST", None, "0"), ("POST", b"", "0"), ("GET", None, None)]
)
def test_a_body_has_its_length(method: str, body: bytes | None, length: str | None) -> None:
    assert make_request(method, URL, body=body).headers.get("Content-Length") == length


def test_every_request_asks_for_bytes_as_they_are_unless_it_says_otherwise() -> None:
    plain, other = make_request("GET", URL), make_request("GET", URL, [("user-agent", "other")])
    assert plain.headers["Accept-Encoding"] == "identity"
    assert plain.headers["User-Agent"].startswith("imagestore/")
    assert other.headers.get_list("User-Agent") == ["other"]


def test_a_signed_address_is_asked_as_it_was_given() -> None:
    target = "/b/%41%7e(c)*!$&,;=:@[1]'?sig=a%2Fb%2f+c=&x='[q]'&y=%zz"
    assert make_request("GET", f"https://storage.example{target}").url.raw_path == target.encode()


def test_a_moved_request_names_the_host_it_goes_to_and_takes_along_what_it_may() -> None:
    asked = make_request("GET", URL, [*SECRET, ("Accept", "x"), ("Range", "bytes=1-")])
    there = redirected(asked, "https://storage.example:8443/x", only={"accept", "range"})
    assert there.headers.get_list("Host") == ["storage.example:8443"]
    assert (there.headers["Accept"], there.headers["Range"]) == ("x", "bytes=1-")
    assert "Authorization" not in there.headers
    assert redirected(asked, URL).headers["Authorization"] == "Bearer CANARY"
