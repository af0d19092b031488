"""Credentials of a CRI request."""

from __future__ import annotations

import base64

import pytest

from imagestore import CancelToken, Credential, Reference, Secret
from imagestore.errors import InvalidInputError
from imagestore.registry.credentials.cri import AuthConfig, explicit_source
from imagestore.registry.credentials.lookup import CredentialResolver
from imagestore.registry.credentials.model import Target
from imagestore.registry.credentials.sources import Outcome

PAIR = Secret(base64.b64encode(b"bob:CANARY\0").decode())


def found(config: AuthConfig, host: str = "registry.example", registry: str = "registry.example") -> Credential | None:
    source = explicit_source(config, registry)
    if source is None:
        return None
    findings = source.find(Target(host), is_shadowed=False, cancel=CancelToken())
    return findings.found.credential if findings.found is not None else None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (AuthConfig(username="alice", password=Secret("p"), identity_token=Secret("i")), ("alice", "p", "", "")),
        (AuthConfig(identity_token=Secret("i"), auth=PAIR), ("", "", "i", "")),
        (AuthConfig(auth=PAIR, registry_token=Secret("r")), ("bob", "CANARY", "", "")),
        (AuthConfig(registry_token=Secret("r")), ("", "", "", "r")),
    ],
)
def test_the_first_member_counts(config: AuthConfig, expected: tuple[str, str, str, str]) -> None:
    got = found(config)
    assert got is not None
    secrets = (got.password.reveal(), got.identity_token.reveal(), got.registry_token.reveal())
    assert (got.username, *secrets) == expected


@pytest.mark.parametrize(
    "config", [AuthConfig(), AuthConfig(server_address="registry.example"), AuthConfig(username="a")]
)
def test_a_message_without_a_secret_gives_no_credentials(config: AuthConfig) -> None:
    assert explicit_source(config, "registry.example") is None


@pytest.mark.parametrize(
    ("address", "host", "is_given"),
    [
        ("", "registry.example", True),
        ("", "mirror.example", False),
        ("registry.example", "registry.example", True),
        ("https://Registry.example/v2/", "registry.example", True),
        ("https://registry.example:443", "registry.example", True),
        ("registry.example:5000", "registry.example", False),
        ("other.example", "registry.example", False),
        ("other.example", "other.example", True),
        ("https://index.docker.io/v1/", "docker.io", True),
    ],
)
def test_credentials_stay_with_their_server(address: str, host: str, is_given: bool) -> None:
    config = AuthConfig(address, "alice", Secret("p"))
    assert (found(config, host) is not None) is is_given


@pytest.mark.parametrize(
    "config",
    [
        AuthConfig(auth=Secret("CANARY!")),
        AuthConfig(auth=Secret(base64.b64encode(b"CANARY").decode())),
        AuthConfig(registry_token=Secret("CANARY\n")),
        AuthConfig(username="a:b", password=Secret("CANARY")),
    ],
)
def test_broken_members_are_the_caller_s_fault_where_they_are_asked_for_and_not_quoted(config: AuthConfig) -> None:
    source = explicit_source(config, "registry.example")
    assert source is not None
    lookup, cancel = CredentialResolver([source]), CancelToken()
    assert lookup.lookup(Target("mirror.example"), cancel=cancel) is None
    with pytest.raises(InvalidInputError, match="CRI AuthConfig") as caught:
        lookup.lookup(Target("registry.example"), cancel=cancel)
    explanation = lookup.explain(Reference.parse("registry.example/x:1"), cancel=cancel)
    assert [step.outcome for step in explanation.steps] == [Outcome.FAILED]
    assert "CANARY" not in f"{caught.value!r} {config!r} {explanation!r}"


def test_broken_members_have_different_fingerprints() -> None:
    configs = [AuthConfig(auth=Secret("a!")), AuthConfig(auth=Secret("b!")), AuthConfig(username="a:b", password=PAIR)]
    sources = [explicit_source(config, "registry.example") for config in configs]
    assert len({source.fingerprint(b"key") for source in sources if source is not None}) == 3


def test_the_same_secret_for_two_registries_has_two_fingerprints() -> None:
    config = AuthConfig(registry_token=Secret("r"))
    sources = [explicit_source(config, host) for host in ("registry.example", "other.example", "Registry.example")]
    one, other, again = (source.fingerprint(b"key") for source in sources if source is not None)
    assert one == again != other


def test_credentials_that_an_earlier_place_has_are_not_taken_from_here() -> None:
    source = explicit_source(AuthConfig(registry_token=Secret("r")), "registry.example")
    assert source is not None
    findings = source.find(Target("registry.example"), is_shadowed=True, cancel=CancelToken())
    assert findings.found is None
    assert [step.outcome for step in findings.steps] == [Outcome.SHADOWED]
