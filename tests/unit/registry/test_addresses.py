"""Addresses, URLs and proxies: who may be connected to, and through whom."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import ConfigError, ProtocolError
from imagestore.registry.transport import urls
from imagestore.registry.transport.addresses import (
    Origin,
    PeerMemory,
    is_address_in_disguise,
    is_loopback_name,
    is_public,
    parse,
)
from imagestore.registry.transport.proxy import ProxyRules


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0",
        "0.1.2.3",
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.0.2.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "64:ff9b:1::1",
        "100::1",
        "2001:db8::1",
        "2002:a00:1::1",
        "2001:0:a00:1::",
        # Teredo names two: a public server of a private client, and the other way round.
        "2001:0:101:101::f5ff:fffe",
        "2001:0:a00:1::fefe:fefe",
        "2001:1::1",
        "2001:20::1",
        "3fff::1",
        # Reserved, and yet global by Python's tables.
        "4000::1",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_addresses_that_are_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "text",
    ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1", "2001:200::1", "::ffff:1.1.1.1", "64:ff9b::101:101"],
)
def test_addresses_that_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@given(st.ip_addresses(v=4))
def test_an_embedded_address_is_judged_as_itself(address: ipaddress.IPv4Address) -> None:
    mapped = ipaddress.IPv6Address(f"::ffff:{address}")
    assert is_public(mapped) == is_public(address)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST", True),
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("[::ffff:7f08:808]", True),
        ("::ffff:10.0.0.1", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("10.0.0.1", False),
        ("127.1", False),
        ("2130706433", False),
    ],
)
def test_only_literal_loopback_counts_as_this_machine(host: str, expected: bool) -> None:
    assert is_loopback_name(host) is expected


@pytest.mark.parametrize(
    ("host", "is_private"),
    [("1.1.1.1", False), ("93.184.216.34", False), ("10.0.0.1", True), ("127.0.0.1", True), ("localhost", True)],
)
def test_a_registry_whose_host_is_an_address_is_judged_by_it(host: str, is_private: bool) -> None:
    """Or a public one that is named by its address could send us to our neighbours."""
    assert PeerMemory().is_private(Origin("https", host, 443)) is is_private


@pytest.mark.parametrize("host", ["3com.example", "1.example", "127.0.0.1.example", "0x7f.example", "r1", "1a"])
def test_a_name_that_only_begins_with_a_number_is_no_address_in_disguise(host: str) -> None:
    assert not is_address_in_disguise(host)


def test_one_public_answer_is_enough_to_distrust() -> None:
    memory, home = PeerMemory(), Origin("https", "registry.example", 443)
    assert not memory.is_private(home)
    memory.note(home, "10.0.0.1")
    assert memory.is_private(home)
    memory.note(home, "no address")
    memory.note(home, "1.1.1.1")
    assert not memory.is_private(home)
    memory.note(home, "10.0.0.1")
    assert not memory.is_private(home)


@given(st.text("0127.:x[]", max_size=12) | st.ip_addresses().map(str))
def test_parse_agrees_with_the_standard_library(host: str) -> None:
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        expected = ipaddress.ip_address(bare)
    except ValueError:
        assert parse(host) is None
        assert not is_loopback_name(host)
    else:
        assert parse(host) == expected


@given(st.lists(st.integers(-1, 300).map(str) | st.sampled_from(["00", "01", ""]), min_size=2, max_size=4))
def test_plain_loopback_addresses_are_those_of_the_library(octets: list[str]) -> None:
    host = ".".join(["127", *octets])
    try:
        expected = ipaddress.ip_address(host).is_loopback
    except ValueError:
        expected = False
    assert is_loopback_name(host) == expected


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Registry.Example/v2/", "https://registry.example"),
        ("https://registry.example:443", "https://registry.example"),
        ("https://registry.example.:443", "https://registry.example"),
        ("http://registry.example:443", "http://registry.example:443"),
        ("http://[::1]:80/x?y", "http://[::1]"),
    ],
)
def test_origins_are_compared_without_case_and_default_port(url: str, origin: str) -> None:
    assert str(urls.origin_of(url)) == origin


@pytest.mark.parametrize(
    "url",
    [
        "",
        "registry.example",
        "//x",
        "ftp://x",
        "https://",
        "https://a b",
        "https://a\n",
        "https://x:0",
        "https://x:y",
        "https://-x",
        "https://u@x",
        "https://[fe80::1%25eth0]/",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ProtocolError):
        urls.origin_of(url)


@given(st.text(max_size=80))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    for url in (text, f"https://{text}"):
        try:
            origin = urls.origin_of(url)
        except ProtocolError:
            continue
        assert urls.origin_of(f"{origin}/") == origin


@given(st.text(max_size=80))
def test_a_shown_url_is_printable_and_has_no_query(text: str) -> None:
    shown = urls.shown(f"https://user:pass@host/{text}")
    assert shown.isascii()
    assert "?" not in shown
    assert not shown.startswith("https://user")


RULES = ProxyRules("http://plain.example:1", "http://tls.example:2", "")


@pytest.mark.parametrize(
    ("no_proxy", "origin", "is_direct"),
    [
        ("", "https://registry.example", False),
        ("registry.example", "https://registry.example", True),
        ("REGISTRY.example", "https://registry.example", True),
        ("registry.example", "https://sub.registry.example", True),
        (".registry.example", "https://sub.registry.example", True),
        (".registry.example", "https://registry.example", False),
        ("*.registry.example", "https://sub.registry.example", True),
        ("registry.example", "https://myregistry.example", False),
        ("registry.example:5000", "https://registry.example:5000", True),
        ("registry.example:5000", "https://registry.example", False),
        ("other, registry.example ", "https://registry.example", True),
        ("*", "https://registry.example", True),
        ("10.0.0.0/8", "https://10.200.3.4", True),
        ("10.0.0.0/8", "https://11.0.0.1", False),
        ("10.0.0.0/8", "https://registry.example", False),
        ("fd00::/8", "https://[fd12::1]", True),
        ("10.0.0.1", "https://10.0.0.1:5000", True),
        ("10.0.0.1:5000", "https://10.0.0.1:5000", True),
        ("::ffff", "https://registry.example", False),
        # A bare IPv6 address has colons and no port, and not every text behind a colon is one.
        ("fd12::1", "https://[fd12::1]", True),
        ("fd12::1", "https://[fd12::1]:5000", True),
        ("[fd12::1]:5000", "https://[fd12::1]:5000", True),
        ("[fd12::1]:5000", "https://[fd12::1]", False),
        ("registry.example:", "https://registry.example", False),
        ("registry.example:port", "https://registry.example", False),
        ("registry.example:5000x", "https://registry.example:5000", False),
        ("300.0.0.0/8", "https://10.0.0.1", False),
        ("0.0.0.0/0", "https://fd.example", False),
        ("", "https://localhost:5000", True),
        ("", "http://127.0.0.1:5000", True),
        ("", "http://[::1]:5000", True),
    ],
)
def test_no_proxy_as_gos_tools_read_it(no_proxy: str, origin: str, is_direct: bool) -> None:
    rules = ProxyRules(RULES.http, RULES.https, no_proxy)
    assert (rules.proxy_for(urls.origin_of(origin)) == "") is is_direct


def test_each_scheme_has_its_proxy() -> None:
    assert RULES.proxy_for(urls.origin_of("http://registry.example")) == "http://plain.example:1"
    assert RULES.proxy_for(urls.origin_of("https://registry.example")) == "http://tls.example:2"


@pytest.mark.parametrize(
    ("environment", "rules"),
    [
        ({}, ProxyRules()),
        ({"HTTPS_PROXY": "proxy.example:3128"}, ProxyRules(https="http://proxy.example:3128")),
        ({"https_proxy": "http://a", "HTTPS_PROXY": "http://b"}, ProxyRules(https="http://b")),
        ({"http_proxy": "socks5://a:1", "no_proxy": "x"}, ProxyRules("socks5://a:1", "", "x")),
        ({"HTTP_PROXY": "http://attacker", "REQUEST_METHOD": "GET"}, ProxyRules()),
    ],
)
def test_proxy_variables(environment: dict[str, str], rules: ProxyRules) -> None:
    assert ProxyRules.from_environment(environment) == rules


@pytest.mark.parametrize(
    "value",
    [
        *("ftp://user:secret@proxy", "http://", "http://user:secret@:80", "http://[::1", "http://x:y"),
        *("http://user:secret@pröxy.example:3128", "http://user:secret@pr\udcffxy.example"),
    ],
)
def test_a_broken_proxy_variable_is_named_and_not_shown(value: str) -> None:
    with pytest.raises(ConfigError, match="HTTPS_PROXY") as raised:
        ProxyRules.from_environment({"HTTPS_PROXY": value})
    assert "secret" not in str(raised.value)


def test_parse_takes_only_literals() -> None:
    assert parse("registry.example") is None
    assert parse("fe80::1%eth0") is None
    assert parse("[::1]") == ipaddress.ip_address("::1")
