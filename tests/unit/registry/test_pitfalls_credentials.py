"""Known pitfalls of registry clients about credentials: where they may go, who may ask, who may read them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import httpx
import pytest

from imagestore import CancelToken, Reference, errors
from imagestore.registry.credentials.lookup import CredentialResolver, UserEnvironment
from imagestore.testing import (
    BasicAuth,
    FaultRule,
    TokenAuth,
    build_image,
    foreign_layer,
)
from imagestore.testing.faults import (
    ExpireToken,
    ForeignRealm,
    Redirect,
    Refuse,
    Reset,
)
from tests.unit.registry.pitfall_bench import LOGIN, PASSWORD, REFERENCE, Bench, Logins, fault


@pytest.mark.parametrize("allowed", [False, True], ids=["CVE-2020-15157", "GHSA-qvqc-4c52-x6qp"])
def test_hosts_that_an_image_names_get_no_credentials(tmp_path: Path, allowed: bool) -> None:
    image = build_image(layers=[foreign_layer("base", ("https://collector.example/v2/team/app/blobs/x",))])
    settings = 'foreign_layer_hosts = ["collector.example"]' if allowed else ""
    with Bench(tmp_path, {REFERENCE: image}, auth=LOGIN, settings=settings) as bench:
        with pytest.raises(errors.ImageStoreError):
            bench.pull()
        bench.registry.ledger.assert_credentials_only_at("registry.example")
        assert ("collector.example" in bench.hosts_asked) is allowed


@pytest.mark.parametrize(
    "host",
    [
        pytest.param("storage.example", id="CVE-2018-18074"),
        pytest.param("registry.example:8443", id="GHSA-vh4v-2xq2-g5cg"),
        pytest.param("sub.registry.example", id="CVE-2026-50151"),
    ],
)
@pytest.mark.parametrize("hops", [1, 3])
def test_credentials_do_not_follow_a_redirect(tmp_path: Path, host: str, hops: int) -> None:
    redirect = fault(Redirect(to_host=host, hops=hops), kind="blob")
    with Bench(tmp_path, auth=LOGIN, faults=[redirect]) as bench:
        bench.pull()
        assert host in bench.hosts_asked
        bench.registry.ledger.assert_credentials_only_at("registry.example")


@pytest.mark.parametrize("location", ["https://storage.example/x", "https://registry.example:8443/x"])
def test_configured_headers_do_not_follow_a_redirect(tmp_path: Path, location: str) -> None:
    """GHSA-whvf-jp7m-59f3, GHSA-h3wm-jjqf-8jm2: whatever was configured for a registry is for that registry."""
    folder = tmp_path / "certs" / "registry.example"
    folder.mkdir(parents=True)
    (folder / "hosts.toml").write_text('[host."https://registry.example".header]\nX-Token = "CANARY"\n')
    seen: list[tuple[str, str]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.netloc.decode(), request.headers.get("X-Token", "")))
        return httpx.Response(307, headers={"Location": location}) if len(seen) == 1 else httpx.Response(404)

    with Bench(tmp_path, transport=httpx.MockTransport(handle)) as bench, pytest.raises(errors.RegistryError):
        bench.client.tags(Reference.parse(REFERENCE), cancel=CancelToken(60))
    assert dict(seen) == {"registry.example": "CANARY", location.split("/")[2]: ""}


@pytest.mark.parametrize(
    ("realm", "scheme"),
    [
        pytest.param("collector.example", "http", id="GHSA-xf85-363p-868w-plain-http"),
        pytest.param("169.254.169.254", "https", id="CVE-2026-33540-link-local"),
        pytest.param("10.0.0.5", "https", id="CVE-2026-48978-private"),
        pytest.param("127.0.0.1", "https", id="GHSA-28r5-37g7-p6mp-loopback"),
        pytest.param("0x7f000001", "https", id="go-containerregistry-2440-number"),
        pytest.param("alice@collector.example", "https", id="GHSA-9m43-p3cx-w8j5-userinfo"),
        pytest.param("localhost", "https", id="GHSA-x2f5-332j-9xwq-localhost"),
    ],
)
def test_a_realm_where_no_registry_has_business_is_refused(tmp_path: Path, realm: str, scheme: str) -> None:
    with Bench(tmp_path, auth=LOGIN, faults=[fault(ForeignRealm(realm, scheme))]) as bench:
        with pytest.raises(errors.AuthenticationError):
            bench.pull()
        assert bench.hosts_asked == {"registry.example"}


def test_a_realm_of_another_domain_gets_no_password_in_strict_mode(tmp_path: Path) -> None:
    """CVE-2026-33540: the distribution proxy demands the same registrable domain; so does strict mode."""
    settings = 'realm_trust = "strict"'
    with Bench(tmp_path, auth=LOGIN, faults=[fault(ForeignRealm())], settings=settings) as bench:
        with pytest.raises(errors.AuthenticationError, match="were not sent"):
            bench.pull()
        assert bench.hosts_asked == {"registry.example"}


def test_a_realm_of_another_domain_is_named_in_the_log_by_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """go-containerregistry#2193."""
    with Bench(tmp_path, auth=LOGIN, faults=[fault(ForeignRealm())]) as bench, pytest.raises(errors.ImageStoreError):
        bench.pull()
    assert "credentials go to token service https://collector.example" in caplog.text


def test_two_registries_with_one_token_service_do_not_share_tokens(tmp_path: Path) -> None:
    """The tokens of registry A at registry B: seen in a Python client."""
    auth = {
        host: TokenAuth(
            users={"alice": PASSWORD}, realm_host="auth.example", realm_path=f"/{host}/token", service="both"
        )
        for host in ("a.example", "b.example")
    }
    images = {"a.example/app:1": build_image(seed="a"), "b.example/app:1": build_image(seed="b")}
    logins = Logins(frozenset({"a.example", "b.example"}))
    with Bench(tmp_path, images, auth=auth, credentials=logins) as bench:
        for reference in images:
            bench.pull(reference)
        ledger = bench.registry.ledger
        for host in auth:
            # Nothing is known there yet, whatever the token service gave for the other registry.
            assert ledger.select(host=host)[0].credential == ""
            assert [entry.path for entry in ledger.select(kind="token")].count(f"/{host}/token") == 1


def docker_logins(folder: Path, document: dict[str, object], *, path: str = "") -> CredentialResolver:
    (folder / "config.json").write_text(json.dumps(document))
    environment = {"DOCKER_CONFIG": str(folder), "PATH": path}
    return CredentialResolver.standard(user=UserEnvironment(environment, str(folder), 1000, False))


def test_a_missing_helper_is_an_error_and_no_other_registry_is_tried(tmp_path: Path) -> None:
    """CVE-2021-41092."""
    credentials = docker_logins(tmp_path, {"credHelpers": {"registry.example": "missing"}})
    with Bench(tmp_path, auth=LOGIN, credentials=credentials) as bench:
        with pytest.raises(errors.ConfigError, match="missing"):
            bench.pull()
        assert bench.hosts_asked == {"registry.example"}
        bench.registry.ledger.assert_no_credential_at("registry.example")


def test_netrc_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2024-47081."""
    (tmp_path / ".netrc").write_text(f"machine registry.example login alice password {PASSWORD}\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    auth = BasicAuth({"alice": PASSWORD})
    with Bench(tmp_path, auth=auth, credentials=docker_logins(tmp_path, {})) as bench:
        with pytest.raises(errors.AuthenticationError):
            bench.pull()
        bench.registry.ledger.assert_no_credential_at("registry.example")


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([fault(Refuse(403))], id="GHSA-5jhf-2qmf-m8c5-refused"),
        pytest.param(
            [fault(Redirect(), kind="blob"), fault(Reset(at=9), kind="blob")], id="containerd-5453-signed-url"
        ),
        pytest.param([fault(ExpireToken())], id="GHSA-5jhf-2qmf-m8c5-token"),
    ],
)
def test_no_secret_is_in_logs_or_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, faults: list[FaultRule]
) -> None:
    caplog.set_level(logging.DEBUG, "imagestore")
    with Bench(tmp_path, auth=LOGIN, faults=faults) as bench, pytest.raises(errors.ImageStoreError) as caught:
        bench.pull()
    said = f"{caplog.text} {caught.value} {caught.value.hint} {caught.value!r}"
    assert caplog.records
    for secret in (PASSWORD, "tape-token", "signature"):
        assert secret not in said


@pytest.mark.parametrize("helper", ["../evil", "/bin/evil", "a/b", "", "a\nb"])
def test_a_helper_is_a_plain_name_and_found_in_absolute_folders_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helper: str
) -> None:
    """Hijacked helper programs."""
    program = tmp_path / "docker-credential-evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    credentials = docker_logins(tmp_path, {"credHelpers": {"registry.example": helper or "evil"}}, path=".:")
    with Bench(tmp_path, auth=LOGIN, credentials=credentials) as bench, pytest.raises(errors.ConfigError):
        bench.pull()
    assert not (tmp_path / "ran").exists()
