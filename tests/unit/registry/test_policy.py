"""The plugin table ``io.imagestore.registry.v1``: read, checked, and obeyed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imagestore import CancelToken, Credential, ImageStore, Secret, TransferPolicy, config, platforms
from imagestore.config import RegistrySettings, Severity
from imagestore.config.hosts import read_hosts
from imagestore.config.known import REGISTRY_PLUGIN_SECTION
from imagestore.errors import AuthenticationError, ConfigError, ReferenceNotFoundError
from imagestore.registry.client_factory import connect
from imagestore.registry.credentials.model import FoundCredential, Target
from imagestore.registry.policy import RealmTrust, auth_policy, transfer_policy
from imagestore.testing import Registry, TokenAuth, build_image

HOST = platforms.parse("linux/amd64")
TABLE = 'version = 3\n[plugins."io.imagestore.registry.v1"]\n'


def read(text: str) -> RegistrySettings:
    return config.loads(TABLE + text, filename="config.toml", host=HOST).settings.registry


def test_without_the_table_nothing_is_allowed_and_the_defaults_hold() -> None:
    settings = config.default(HOST).settings.registry
    assert settings == RegistrySettings()
    assert transfer_policy(settings) == TransferPolicy()
    assert auth_policy(settings).credential_hosts == {}


def test_every_key_reaches_its_policy() -> None:
    settings = read(
        """
        foreign_layer_hosts = ["mcr.microsoft.com", "layers.example:8443"]
        realm_trust = "strict"
        bytes_per_second = 1000
        parallel_ranges = 4
        connections_per_host = 9
        mirror_credentials = { "mirror.example:5000" = "docker.io" }
        trusted_realms = { "docker.io" = ["auth.example"], "a.example" = ["b.example", "[2001:db8::1]"] }
        """
    )
    transfer, auth = transfer_policy(settings), auth_policy(settings)
    assert transfer.foreign_hosts == {"mcr.microsoft.com", "layers.example:8443"}
    assert (transfer.bytes_per_second, transfer.parallel_ranges, transfer.connections_per_host) == (1000, 4, 9)
    assert auth.realm_trust is RealmTrust.STRICT
    assert auth.credential_hosts == {"mirror.example:5000": "docker.io"}
    assert auth.trusted_realms == {
        ("registry-1.docker.io", "auth.example"),
        ("a.example", "b.example"),
        ("a.example", "2001:db8::1"),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('mirror_credentials = { "https://m.example" = "docker.io" }', "expected a host"),
        ('mirror_credentials = { "m.example" = "Docker.io" }', "expected a host"),
        ('mirror_credentials = { "m.example" = 1 }', "may see"),
        ('foreign_layer_hosts = ["*.example"]', "expected a host"),
        ('foreign_layer_hosts = ["a.example\\n"]', "expected a host"),
        ('foreign_layer_hosts = "a.example"', "expected a list of texts"),
        ('trusted_realms = { "a.example" = "b.example" }', "expected a list of hosts"),
        ('trusted_realms = { "a.example:5000" = ["b.example"] }', "expected a host"),
        ('realm_trust = "never"', "expected 'warn' or 'strict'"),
        ("bytes_per_second = 0", "expected a number above 0"),
        ("parallel_ranges = 17", "expected a number from 1 to 16"),
        ("connections_per_host = -1", "expected a number from 1 to 64"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert said in str(caught.value).replace('"', "'")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (TABLE + "mirror_credential = {}", "did you mean mirror_credentials?"),
        ('version = 3\n[plugins."io.imagestore.registri.v1"]\nrealm_trust = "strict"', "io.imagestore.registry.v1"),
    ],
)
def test_a_slip_in_a_name_is_reported(tmp_path: Path, text: str, hint: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    (finding,) = config.check(path, host=HOST).findings
    assert finding.severity is Severity.WARNING
    assert hint in finding.hint


REFERENCE = "registry.example/team/app:1"


class Logins:
    """Credentials of one registry."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.asked: list[str] = []

    def lookup(self, target: Target, *, cancel: CancelToken) -> FoundCredential | None:
        self.asked.append(target.host)
        return FoundCredential(Credential("alice", Secret("s3cret")), "a test") if target.host == self.host else None


def pull_through_mirror(tmp_path: Path, more: str) -> tuple[Registry, Logins, Any]:
    """A store whose registry.example is served by mirror.example only, which wants the password of alice."""
    folder = tmp_path / "certs" / "registry.example"
    folder.mkdir(parents=True)
    (folder / "hosts.toml").write_text('server = "https://mirror.example"\n[host."https://mirror.example"]\n')
    text = f'{TABLE}{more}\n[plugins."io.containerd.cri.v1.images".registry]\nconfig_path = "{tmp_path}/certs"\n'
    settings = config.loads(text, filename="config.toml", host=HOST)
    auth = TokenAuth(users={"alice": "s3cret"}, allow_anonymous=False)
    registry = Registry({"mirror.example/team/app:1": build_image()}, auth=auth)
    logins = Logins("registry.example")
    client = connect(config=settings, credentials=logins, transport=registry.transport)
    return registry, logins, ImageStore(tmp_path / "store", config=settings, host=HOST, registry=client)


def test_a_mirror_is_not_shown_the_registrys_credentials(tmp_path: Path) -> None:
    registry, logins, store = pull_through_mirror(tmp_path, "")
    with store, pytest.raises(AuthenticationError):
        store.pull(REFERENCE)
    assert set(logins.asked) == {"mirror.example"}
    assert not [entry for entry in registry.ledger.entries if entry.credential.startswith("basic")]


def test_a_mirror_that_is_named_is_shown_them(tmp_path: Path) -> None:
    named = 'mirror_credentials = { "mirror.example" = "registry.example" }'
    _, logins, store = pull_through_mirror(tmp_path, named)
    with store:
        store.pull(REFERENCE)
    assert set(logins.asked) == {"registry.example"}


def test_the_real_authenticator_names_the_login_that_does_not_allow_it(tmp_path: Path) -> None:
    named = 'mirror_credentials = { "mirror.example" = "registry.example" }'
    _, _, store = pull_through_mirror(tmp_path, named)
    with store, pytest.raises(ReferenceNotFoundError) as caught:
        store.pull("registry.example/team/other:1")
    assert "the credentials from a test don't allow this" in caught.value.hint


def test_the_store_gives_its_configuration_to_the_client(tmp_path: Path) -> None:
    settings = config.loads(f"{TABLE}connections_per_host = 2\n", filename="config.toml", host=HOST)
    with ImageStore(tmp_path, config=settings, host=HOST) as store:
        assert store.registry.policy.connections_per_host == 2
    with ImageStore(tmp_path, config=settings, host=HOST, transfer=TransferPolicy(attempts=1)) as store:
        assert store.registry.policy == TransferPolicy(attempts=1)


def test_the_documents_examples_load(tmp_path: Path) -> None:
    docs = Path(__file__).parents[3] / "docs"
    text = (docs / "reference/registry.md").read_text()
    table = text.partition('```toml title="config.toml"\n')[2].partition("```")[0]
    page = (docs / "run-a-node/registries.md").read_text()
    hosts = page.partition('registry.example/hosts.toml"\n')[2].partition("```")[0]
    loaded = config.loads(table, filename="config.toml", host=HOST)
    assert loaded.findings == ()
    assert transfer_policy(loaded.settings.registry).parallel_ranges == 4
    keys = text.partition("| key | default | meaning |\n")[2].partition("\n\n")[0]
    documented = {line.split("`")[1] for line in keys.splitlines() if line.startswith("| `")}
    assert documented == set(REGISTRY_PLUGIN_SECTION)
    folder = tmp_path / "registry.example"
    folder.mkdir()
    (folder / "hosts.toml").write_text(hosts)
    found = read_hosts("registry.example", [str(tmp_path)])
    assert found.remarks == ()
    assert [mirror.base for mirror in found.mirrors] == ["https://mirror.example/v2"]
