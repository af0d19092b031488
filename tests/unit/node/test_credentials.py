"""Which credentials a pull tries, and in which order."""

from __future__ import annotations

import base64
import hashlib
import json
import time

import pytest

from imagestore import CancelToken, Credential, Secret
from imagestore.errors import ConfigError
from imagestore.node.credential_matching import is_docker_hub, matches, matching, normalized_key
from imagestore.node.credentials import (
    DOCKER_CFG,
    DOCKER_CONFIG_JSON,
    ChainedKeyring,
    EntriesKeyring,
    NodeKeyring,
    PullSecret,
    SecretSource,
    credential_hash,
    parse_entries,
    with_secrets,
)
from imagestore.registry import AuthConfig, FoundCredential, Target


@pytest.mark.parametrize(
    ("key", "repository", "fits"),
    [
        ("*.kubernetes.io", "prefix.kubernetes.io", True),
        ("*.kubernetes.io", "kubernetes.io", False),
        ("*.kubernetes.io", "a.b.kubernetes.io", False),
        ("prefix.*.io", "prefix.kubernetes.io", True),
        ("*-good.kubernetes.io", "prefix-good.kubernetes.io", True),
        ("*.kubernetes.io/path", "prefix.kubernetes.io/path", True),
        ("*.kubernetes.io/path", "prefix.kubernetes.io/path/below", True),
        ("*.kubernetes.io/pat", "prefix.kubernetes.io/path", True),
        ("*.kubernetes.io/path", "prefix.kubernetes.io/other", False),
        ("*.kubernetes.io/path/more", "prefix.kubernetes.io/path", False),
        ("*.kubernetes.io:1111/path", "prefix.kubernetes.io/path", False),
        ("*.kubernetes.io:1111/path", "prefix.kubernetes.io:1111/path", True),
        ("kubernetes.io", "kubernetes.io:443", False),
        ("*.*.*.kubernetes.io", "a.b.c.kubernetes.io", True),
        ("*kubernetes.io", "a.kubernetes.io", False),
        ("foo.b?r.example", "foo.bar.example", False),  # a question mark begins a query
        ("foo.[a-c]ar.example", "foo.bar.example", True),
        ("foo.[^a-c]ar.example", "foo.bar.example", False),
        ("foo.[.example", "foo.bar.example", False),
        ("foo.[].example", "foo.bar.example", False),
        ("foo.[a-]ar.example", "foo.aar.example", False),
        ("foo.[c-a]ar.example", "foo.bar.example", False),
        ("foo.*[a-z0]*.example", "foo.1b2.example", True),
        ("f*o*o.example", "foo.example", True),
        ("f*o*o*o.example", "foo.example", False),
        ("a*bc*c.example", "abcbc.example", True),
        ("a*a.example", "a.example", False),
        ("registry.example", "registry.example/team/app", True),
    ],
)
def test_keys_match_part_by_part(key: str, repository: str, fits: bool) -> None:
    assert matches(key, repository) is fits


@pytest.mark.parametrize("key", ["*a" * 200 + "*b.example", "[" + "a-" * 200 + ".example"])
def test_no_key_takes_long_to_be_compared(key: str) -> None:
    began = time.thread_time()
    assert not matches(key, "a" * 250 + ".example/app")
    assert time.thread_time() - began < 10


@pytest.mark.parametrize(
    ("key", "normal"),
    [
        ("https://index.docker.io/v1/", "index.docker.io"),
        ("https://registry.example/v2/", "registry.example"),
        ("http://registry.example", "registry.example"),
        ("registry.example/", "registry.example"),
        ("registry.example/v1/team", "registry.example/team"),
        ("registry.example/v1", "registry.example/v1"),
        ("registry.example:5000/team", "registry.example:5000/team"),
        ("regi stry", None),
        ("registry.example:port", None),
        ("registry.example/%zz", None),
    ],
)
def test_keys_lose_scheme_and_version(key: str, normal: str | None) -> None:
    assert normalized_key(key) == normal


def test_longer_keys_come_first_and_all_that_match_count() -> None:
    keys = ["registry.example", "registry.example/team", "registry.example/team/app", "*.example", "other.example"]
    assert matching(keys, "registry.example/team/app") == [
        "registry.example/team/app",
        "registry.example/team",
        "registry.example",
        "*.example",
    ]


@pytest.mark.parametrize(
    ("repository", "is_hub"),
    [
        ("docker.io/library/busybox", True),
        ("index.docker.io/library/busybox", True),
        ("busybox", True),
        ("user/repo", True),
        ("registry.example/app", False),
        ("localhost:5000/app", False),
        ("/app", False),
    ],
)
def test_docker_hubs_entry_counts_for_docker_hub(repository: str, is_hub: bool) -> None:
    assert is_docker_hub(repository) is is_hub
    assert matching(["index.docker.io", "other.example"], repository) == (["index.docker.io"] if is_hub else [])


def encoded(text: str, *, padded: bool = True) -> str:
    value = base64.b64encode(text.encode()).decode()
    return value if padded else value.rstrip("=")


@pytest.mark.parametrize(
    ("entry", "username", "password"),
    [
        ({"username": "u", "password": "p"}, "u", "p"),
        ({"auth": encoded("u:p")}, "u", "p"),
        ({"auth": encoded("user:p:q", padded=False)}, "user", "p:q"),
        ({"auth": encoded("a:b") + "\n", "username": "u", "password": "p"}, "a", "b"),
        ({}, "", ""),
    ],
)
def test_auth_beats_user_and_password(entry: dict[str, str], username: str, password: str) -> None:
    data = json.dumps({"auths": {"registry.example": entry}}).encode()
    auth = parse_entries(data, "secret", is_legacy=False)["registry.example"]
    assert (auth.username, auth.password.reveal()) == (username, password)


@pytest.mark.parametrize(
    "entry", [{"Auth": encoded("u:p")}, {"Username": "u", "PASSWORD": "p"}], ids=["auth", "user and password"]
)
def test_members_count_in_any_case(entry: dict[str, str]) -> None:
    data = json.dumps({"Auths": {"registry.example": entry}}).encode()
    auth = parse_entries(data, "secret", is_legacy=False)["registry.example"]
    assert (auth.username, auth.password.reveal()) == ("u", "p")


@pytest.mark.parametrize(
    ("data", "is_legacy"),
    [
        (b"hunter2", False),
        (b"[]", False),
        (b'{"auths": []}', False),
        (b'{"auths": {"x": "hunter2"}}', False),
        (b'{"auths": {"x": {"username": 1}}}', False),
        (b'{"auths": {"x": {"auth": "hunter2"}}}', False),
        (b'{"auths": {"x": {"auth": "aHVudGVyMg=="}}}', False),
        (b'{"x": {"auth": "!"}}', True),
        (b"[" * 100_000, True),
        (b" " * (1024 * 1024 + 1), True),
    ],
)
def test_broken_secrets_are_errors_without_their_content(data: bytes, is_legacy: bool) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_entries(data, "secret a/b", is_legacy=is_legacy)
    assert str(caught.value).startswith("secret a/b")
    assert "hunter2" not in str(caught.value)


def test_the_hash_is_that_of_the_credentials_json() -> None:
    auth = AuthConfig(username="u<", password=Secret("p"), server_address="registry.example")
    text = '{"username":"u\\u003c","password":"p","serveraddress":"registry.example"}'
    assert credential_hash(auth) == hashlib.sha256(text.encode()).hexdigest()


class Lookup:
    def lookup(self, target: Target, *, cancel: CancelToken) -> FoundCredential | None:
        if target.host != "registry.example":
            return None
        return FoundCredential(Credential("node", Secret("n")), "here")


def test_secrets_come_before_the_nodes_own() -> None:
    entries = {"registry.example": {"username": "pod", "password": "p"}}
    secrets = (
        PullSecret(
            "ns", "one", "1", DOCKER_CONFIG_JSON, {".dockerconfigjson": json.dumps({"auths": entries}).encode()}
        ),
        PullSecret("ns", "two", "2", DOCKER_CFG, {".dockercfg": json.dumps(entries).encode()}),
        PullSecret("ns", "other", "3", "Opaque", {".dockercfg": b"no json"}),
        PullSecret("ns", "empty", "4", DOCKER_CFG, {}),
    )
    found = with_secrets(secrets, NodeKeyring(Lookup())).lookup("registry.example/app")
    assert [(each.auth.username, each.source) for each in found] == [
        ("pod", SecretSource("ns", "one", "1")),
        ("pod", SecretSource("ns", "two", "2")),
        ("node", None),
    ]
    assert "no json" not in repr(secrets)


def test_the_nodes_logins_are_looked_up_by_host_and_path() -> None:
    asked: list[Target] = []

    class Noted(Lookup):
        def lookup(self, target: Target, *, cancel: CancelToken) -> FoundCredential | None:
            asked.append(target)
            return FoundCredential(Credential("node", Secret("n")), "here")

    (found,) = NodeKeyring(Noted()).lookup("registry.example:5000/team/app")
    assert asked == [Target("registry.example:5000", "team/app")]
    assert (found.auth.server_address, found.auth.username) == ("registry.example:5000", "node")


def test_without_secrets_the_nodes_keyring_is_asked() -> None:
    node = ChainedKeyring(EntriesKeyring([("other.example", AuthConfig("", "x"), None)]), NodeKeyring(Lookup()))
    assert [each.auth.username for each in with_secrets((), node).lookup("registry.example/a")] == ["node"]
    assert [each.auth.username for each in node.lookup("other.example/a")] == ["x"]
    assert list(node.lookup("third.example/a")) == []
