"""Which token services a registry may name (CVE-2026-33540, CVE-2026-48978, GHSA-28r5-37g7-p6mp and kin)."""

from __future__ import annotations

import logging

import pytest

from imagestore.errors import AuthenticationError
from imagestore.registry.auth.authenticate import RegistryAuthenticator
from imagestore.registry.auth.realm import Realm, check_address, is_same_party
from imagestore.registry.transport.addresses import Origin
from imagestore.registry.transport.urls import origin_of
from tests.unit.registry.token_server import ALICE, TokenServer, answer, bearer, given


@pytest.mark.parametrize(
    ("text", "origin", "url"),
    [
        ("https://auth.example/token", Origin("https", "auth.example", 443), "https://auth.example/token?a=b"),
        ("https://AUTH.example:443/T", Origin("https", "auth.example", 443), "https://auth.example/T?a=b"),
        ("https://auth.example", Origin("https", "auth.example", 443), "https://auth.example/?a=b"),
        ("https://h.example/t?x=1", Origin("https", "h.example", 443), "https://h.example/t?x=1&a=b"),
        ("http://[::1]:5001/t", Origin("http", "::1", 5001), "http://[::1]:5001/t?a=b"),
    ],
)
def test_realms_keep_their_query(text: str, origin: Origin, url: str) -> None:
    realm = Realm.parse(text)
    assert (realm.origin, realm.url("a=b")) == (origin, url)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "auth.example/token",
        "//auth.example/token",
        "ftp://auth.example/",
        "file:///etc/passwd",
        "https://user:CANARY@auth.example/",
        "https://auth.example@evil.example/",
        "https://auth.example/#CANARY",
        "https://auth.example:0/",
        "https://auth.example:65536/",
        "https://auth.example:port/",
        "https://auth.example\\@evil.example/",
        "https://auth.example/a b",
        "https://auth.example/\r\nX: y",
        "https://%61uth.example/",
        "https://[::1/",
        "https://[fe80::1%25eth0]/",
        "https:///token",
        "https://auth.example/" + "a" * 3000,
    ],
)
def test_odd_realms_are_refused(text: str) -> None:
    with pytest.raises(AuthenticationError) as caught:
        Realm.parse(text)
    assert "CANARY" not in str(caught.value)


def test_a_realm_never_shows_its_query() -> None:
    assert repr(Realm.parse("https://auth.example/t?key=CANARY")) == "Realm(https://auth.example/t)"


ALLOWED = [
    ("https://registry.example", "https://auth.example/t"),
    ("https://registry.example", "https://registry.example:8443/t"),
    ("https://registry.example", "https://other.test/t"),
    ("https://registry.example", "https://93.184.216.34/t"),
    ("https://10.0.0.5:5000", "https://10.0.0.5/t"),
    ("http://registry.internal:5000", "http://registry.internal:5001/t"),
    ("http://registry.internal:5000", "https://auth.example/t"),
    ("http://127.0.0.1:5000", "http://localhost:5001/t"),
    ("http://localhost:5000", "http://[::1]:5001/t"),
    ("https://localhost:5000", "https://127.0.0.1:5001/t"),
]
REFUSED = [
    ("https://registry.example", "http://registry.example/t"),
    ("https://registry.example", "http://auth.example/t"),
    ("https://registry.example", "http://127.0.0.1/t"),
    ("https://localhost:5000", "http://127.0.0.1:5001/t"),
    ("http://registry.internal:5000", "http://other.internal/t"),
    ("http://registry.internal:5000", "http://127.0.0.1/t"),
    ("https://registry.example", "https://127.0.0.1/t"),
    ("https://registry.example", "https://127.1/t"),
    ("https://registry.example", "https://2130706433/t"),
    ("https://registry.example", "https://0x7f000001/t"),
    ("https://registry.example", "https://0177.0.0.1/t"),
    ("https://registry.example", "https://localhost/t"),
    ("https://registry.example", "https://a.localhost/t"),
    ("https://registry.example", "https://10.0.0.1/t"),
    ("https://registry.example", "https://192.168.1.1/t"),
    ("https://registry.example", "https://169.254.169.254/latest/meta-data"),
    ("https://registry.example", "https://100.64.0.1/t"),
    ("https://registry.example", "https://0.0.0.0/t"),
    ("https://registry.example", "https://[::1]/t"),
    ("https://registry.example", "https://[::]/t"),
    ("https://registry.example", "https://[::ffff:127.0.0.1]/t"),
    ("https://registry.example", "https://[64:ff9b::7f00:1]/t"),
    ("https://registry.example", "https://[fe80::1]/t"),
    ("https://registry.example", "https://[fd00::1]/t"),
    ("https://10.0.0.5:5000", "https://10.0.0.6/t"),
    # A registry on this machine may be a tunnel to any other: it has no more leave to send us elsewhere.
    ("http://127.0.0.1:5000", "http://auth.example/t"),
    ("http://127.0.0.1:5000", "http://169.254.169.254/latest/meta-data"),
    ("http://localhost:5000", "https://169.254.169.254/latest/meta-data"),
    ("https://localhost:5000", "https://10.0.0.1/t"),
]


@pytest.mark.parametrize(("registry", "realm"), ALLOWED)
def test_allowed_addresses(registry: str, realm: str) -> None:
    check_address(Realm.parse(realm), origin_of(registry))


@pytest.mark.parametrize(("registry", "realm"), REFUSED)
def test_refused_addresses(registry: str, realm: str) -> None:
    with pytest.raises(AuthenticationError, match="refused") as caught:
        check_address(Realm.parse(realm), origin_of(registry))
    assert caught.value.hint


def test_a_configured_pair_may_be_private_but_never_weakens_https() -> None:
    registry, pairs = origin_of("https://registry.example"), frozenset({("registry.example", "10.0.0.1")})
    check_address(Realm.parse("https://10.0.0.1/t"), registry, pairs)
    with pytest.raises(AuthenticationError):
        check_address(Realm.parse("http://10.0.0.1/t"), registry, pairs)


@pytest.mark.parametrize(
    ("registry", "realm", "expected"),
    [
        ("https://registry.example.com", "https://registry.example.com", True),
        ("https://registry.example.com", "https://registry.example.com:5001", True),
        ("https://registry-1.docker.io", "https://auth.docker.io", True),
        ("https://registry.gitlab.com", "https://gitlab.com", True),
        ("https://registry", "https://registry", True),
        ("https://10.0.0.1", "https://10.0.0.1", True),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000", True),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5001", False),
        ("http://localhost:5000", "http://localhost", False),
        ("http://[::1]:5000", "http://127.0.0.1:5000", False),
        ("http://localhost:5000", "http://127.0.0.1:5000", False),
        ("https://registry.example.com", "https://auth.example.com", False),
        ("https://registry.example.com", "https://example.com", False),
        ("https://team.jfrog.io", "https://other.jfrog.io", False),
        ("https://registry.me.uk", "https://other.me.uk", False),
        ("https://a.azurecr.io", "https://b.azurecr.io", False),
        ("https://registry.example.com", "https://auth.example.net", False),
        ("https://docker.io.evil.example", "https://auth.docker.io", False),
        ("https://10.0.0.1", "https://11.0.0.1", False),
    ],
)
def test_same_party_is_judged_by_host_and_on_loopback_by_port(registry: str, realm: str, expected: bool) -> None:
    found = is_same_party(Realm.parse(f"{realm}/t"), origin_of(registry))
    assert found is expected


def test_a_configured_pair_is_one_party() -> None:
    registry, realm = origin_of("http://127.0.0.1:5000"), Realm.parse("http://127.0.0.1:5001/t")
    assert is_same_party(realm, registry, frozenset({("127.0.0.1", "127.0.0.1")}))


def test_a_password_for_a_token_service_over_plain_http_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    for host in ("registry.internal", "127.0.0.1"):
        with caplog.at_level(logging.WARNING):
            authenticator = RegistryAuthenticator(TokenServer(), given(ALICE, host))
            answer(authenticator, bearer(realm=f"http://{host}/token"), origin=Origin("http", host, 80))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("password goes to http://registry.internal without encryption")
