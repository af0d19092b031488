"""The small parts of recording: what looks like a secret, placeholders, queries, addresses, upstreams."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from imagestore.errors import InvalidInputError
from imagestore.testing.recording.placeholders import Numbering
from imagestore.testing.recording.redaction import Redactor, SeenSecrets
from imagestore.testing.recording.secret_guard import SecretLeakError, SecretSearch, check_text
from imagestore.testing.recording.upstream import port_map, upstream_map

if TYPE_CHECKING:
    from collections.abc import Iterator


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"x {JWT} y", "a JSON web token"),
        (f"token%3D{JWT}", "a JSON web token"),
        (f"identity.{JWT}", "a JSON web token"),
        ("-----BEGIN RSA PRIVATE KEY-----", "a private key"),
        ("AKIAIOSFODNN7EXAMPLE", "an access key"),
        ("ghp_" + "a1" * 18, "a personal access token"),
        ("Authorization: Bearer abcdefghijklmnopqrstuv", "a bearer credential"),
        ("Basic YWxpY2U6aHVudGVyMg==", "a basic credential"),
        ("https://alice:hunter2@example/", "user information in an address"),
        ("https://:hunter2@example/", "user information in an address"),
    ],
)
def test_what_looks_like_a_secret_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SecretLeakError, match=reason):
        check_text(text.encode(), "the tape")


@pytest.mark.parametrize(
    "text",
    [
        'Bearer realm="https://auth.example/token",service="x"',
        'Basic realm="registry.example"',
        "Bearer tape-token-1",
        "authorization = Basic tape-basic-12",
        "sha256:" + "0123456789abcdef" * 4,
        "basic credentials are wrong",
        "https://registry.example:5000/v2/",
        "eyJhbGci.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJl",
    ],
)
def test_ordinary_text_is_no_secret(text: str) -> None:
    check_text(text.encode(), "the tape")


@pytest.mark.parametrize("text", [b"a" * 300_000, b"eyJ" * 100_000, b"a://" + b":" * 300_000])
def test_the_look_for_secrets_takes_no_quadratic_time(text: bytes) -> None:
    started = time.thread_time()
    check_text(text, "x")
    assert time.thread_time() - started < 20


def test_a_secret_over_the_border_of_two_pieces_is_found() -> None:
    class Pieces:
        size = 0

        def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
            yield from (b"....sec", b"ret-val", b"ue....")

    assert SecretSearch({"secret-value": ""}).find_in_body(Pieces()) == "a secret of 12 characters"


# -- the small parts -----------------------------------------------------------------------------------------------


def test_a_value_has_one_placeholder_everywhere() -> None:
    redactor = Redactor(SeenSecrets())
    first = redactor.authorization("Bearer abc-secret")
    assert redactor.authorization("Bearer abc-secret") == first
    assert redactor.authorization("Bearer other-secret") != first
    assert redactor.authorization("") == ""


def test_numbers_are_given_in_order_of_appearance_per_kind() -> None:
    secrets = SeenSecrets()
    marks = [secrets.placeholder("token", name) for name in ("x", "y")] + [secrets.placeholder("cookie", "z")]
    number = Numbering()
    assert number(f"{marks[1]} {marks[0]} {marks[2]} {marks[1]}") == (
        "tape-token-1 tape-token-2 tape-cookie-1 tape-token-1"
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ""),
        ("scope=repository%3Aa%3Apull&service=x&n=5", "scope=repository%3Aa%3Apull&service=x&n=5"),
        ("sig=a%20b&flag", "sig=tape-signed-1&tape-signed-2"),
        ("client_id=me", "client_id=tape-client-1"),
        ("c2VjcmV0LTEyMzQ==", "tape-signed-1"),
        ("account=alice&password=pw", "account=tape-user-1&password=tape-password-1"),
        ("empty=", "empty="),
    ],
)
def test_queries_keep_plain_parameters_only(query: str, expected: str) -> None:
    assert Numbering()(Redactor(SeenSecrets()).query(query)) == expected


def test_addresses_lose_user_information_and_fragment() -> None:
    assert Redactor(SeenSecrets()).address("//u:p@host/x#secret") == "//host/x"
    assert Redactor(SeenSecrets()).address("/v2/x?n=1") == "/v2/x?n=1"


def test_ordinary_words_are_not_searched_for_unless_named() -> None:
    secrets = SeenSecrets(("abc", "long-enough"))
    secrets.placeholder("user", "repository-name")
    secrets.placeholder("signed", "short-value")
    secrets.placeholder("token", "tape-token-7")
    assert {"long-enough", "abc"} <= secrets.values().keys(), "what the user named is searched for however short"
    assert not {"repository-name", "short-value", "tape-token-7"} & secrets.values().keys()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "=http://x",
        "host=ftp://x",
        "host=",
        "host=http://x:99999",
        "host=http://x:y",
        "host=http://",
        "h=http://[",
    ],
)
def test_an_upstream_needs_host_and_address(text: str) -> None:
    with pytest.raises(InvalidInputError, match="upstream"):
        upstream_map([text])


def test_a_wrong_upstream_is_reported_without_its_login() -> None:
    with pytest.raises(InvalidInputError, match=r"host=http://\*\*\*@127\.0\.0\.1:99999'"):
        upstream_map(["host=http://ann:word@127.0.0.1:99999"])


@pytest.mark.parametrize("text", ["", "host", "=1", "host=x", "host=70000", "host=\u0661"])
def test_a_port_is_a_number(text: str) -> None:
    with pytest.raises(InvalidInputError, match="port"):
        port_map([text])
