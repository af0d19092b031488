"""The effective configuration, written out."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from imagestore import config
from imagestore.platforms import Platform

FIXTURES = Path(__file__).parents[3] / "fixtures/configs"
LINUX = Platform("linux", "amd64")
WINDOWS = Platform("windows", "amd64", os_version="10.0.20348")

SECRETS = """
version = 2
[plugins."io.containerd.grpc.v1.cri".registry.configs."r.example".auth]
  username = "user"
  password = "hunter2"
  auth = ""
  identitytoken = "hunter3"
[plugins."io.containerd.grpc.v1.cri".registry.auths."https://r.example"]
  password = "hunter4"
[plugins."io.containerd.grpc.v1.cri".registry.headers]
  X-Meta-Token = ["hunter5"]
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
  endpoint = ["https://m.example"]
"""


@pytest.mark.parametrize("path", sorted(FIXTURES.rglob("*.toml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("host", [LINUX, WINDOWS], ids=["linux", "windows"])
def test_a_dump_loads_to_the_same_handlers(path: Path, host: Platform) -> None:
    loaded = config.load(path, host=host)
    again = config.loads(config.dumps(loaded), host=host)
    assert again.default_handler == loaded.default_handler
    # What is dumped has at least version 3, whose built-in handlers are always there.
    assert set(again.handlers) == set(loaded.handlers) | set(config.loads("version = 3", host=host).handlers)
    assert again.settings == loaded.settings
    for name in loaded.handlers:
        assert again.handler_platform(name).platform == loaded.handler_platform(name).platform
        assert (again.handler(name).options, again.handler(name).snapshotter) == (
            loaded.handler(name).options,
            loaded.handler(name).snapshotter,
        )


@pytest.mark.parametrize("host", [LINUX, WINDOWS])
def test_the_built_in_default_can_be_dumped(host: Platform) -> None:
    text = config.dumps(config.default(host))
    assert text.startswith("# Effective configuration of built-in defaults\n")
    again, built_in = config.loads(text, host=host).handler(""), config.default(host).handler("")
    assert (again.name, again.options, again.isolation) == (built_in.name, built_in.options, built_in.isolation)


def test_the_first_line_names_the_files_without_control_characters() -> None:
    text = config.dumps(config.loads("version = 3", filename="a\n[b]\x1b.toml", host=LINUX))
    assert text.splitlines()[0] == "# Effective configuration of a\\n[b]\\x1b.toml"


def test_registry_secrets_are_redacted_and_nothing_else() -> None:
    text = config.dumps(config.loads(SECRETS, host=LINUX))
    assert "hunter" not in text
    registry = tomllib.loads(text)["plugins"]["io.containerd.cri.v1.images"]["registry"]
    assert registry["configs"]["r.example"]["auth"] == {
        "username": "user",
        "password": "<redacted>",
        "auth": "",
        "identitytoken": "<redacted>",
    }
    assert registry["headers"] == {"X-Meta-Token": ["<redacted>"]}
    assert registry["mirrors"] == {"docker.io": {"endpoint": ["https://m.example"]}}


def test_logins_in_addresses_are_redacted() -> None:
    text = """
[plugins."io.containerd.cri.v1.images".registry]
password = "hunter1"
[plugins."io.containerd.cri.v1.images".registry.mirrors."docker.io"]
endpoint = ["https://user:hunter2@m.example/path", "https://m.example?token=hunter3"]
"""
    dumped = config.dumps(config.loads(f"version = 3\n{text}", host=LINUX))
    assert "hunter" not in dumped
    assert "https://***@m.example/path" in dumped


def test_dumping_leaves_the_configuration_as_it_is() -> None:
    loaded = config.loads(SECRETS, host=LINUX)
    assert config.dumps(loaded) == config.dumps(loaded)


UNKNOWN_SECRETS = [
    'password = "hunter2"',
    'dbPassword = "hunter2"',
    "password = 12345678",
    'Passwd = ["hunter2"]',
    'auth_token = "hunter2"',
    'clientsecret = "hunter2"',
    'client-secret = { a = "hunter2", b = ["hunter2"] }',
    'secrets = [{ x = "hunter2" }]',
    'auth = "hunter2"',
    'auth = { user = "u", password = "hunter2" }',
    'basic_auth = "hunter2"',
    'registryAuth = "hunter2"',
    'key = "hunter2"',
    'api_key = "hunter2"',
    'apiKey = "hunter2"',
    'ApiKey = "hunter2"',
    'AWS_SECRET_ACCESS_KEY = "hunter2"',
    'credentials = "hunter2"',
    'Authorization = "hunter2"',
    'headers = { X = "hunter2" }',
    'env = ["TOKEN=hunter2", "A=b"]',
    'args = ["--password=hunter2"]',
    'address = "https://user:hunter2@m.example"',
    'deep = { deeper = [{ token = "hunter2" }] }',
    'password = { value = "hunter2" }',
    'identitytoken = { value = ["hunter2"] }',
    'auth = { pw = "hunter2" }',
    'auth = { pw = { deeper = "hunter2" } }',
    'Auth = { pw = "hunter2" }',
    'auth = [{ pw = "hunter2" }]',
    'auths = { "a.example" = { pw = "hunter2" } }',
    'auths = { "a.example" = "u:hunter2" }',
    'db_pw = "hunter2"',
    'args = ["--token", "hunter2"]',
    'args = ["-token", "hunter2"]',
    'args = ["--no-auth", "--token", "hunter2"]',
    'args = ["--token", ["hunter2"]]',
    'args = ["run", "--token=hunter2", "--x=y"]',
    'args = ["--env=TOKEN=hunter2"]',
    'args = ["-H", "X-Token: hunter2"]',
    'args = ["--header", "X: hunter2"]',
    'args = "run --token hunter2 --x"',
    'args = "run --token=hunter2 --x"',
    'args = ["-passin", "pass:hunter2"]',
    "env = 'TOKEN=\"hunter2\"'",
    'env = [{ name = "TOKEN", value = "hunter2" }]',
    'address = "https:/user:hunter2@m.example"',
    'address = "https:///user:hunter2@m.example"',
    'address = "https//user:hunter2@m.example"',
    'address = "https:user:hunter2@m.example"',
    'address = "//user:hunter2@m.example"',
    'address = "user:hunter2@m.example"',
    'address = "hunter2@m.example"',
    'address = "https://user:hunter2@m.example/a@sha256:0123"',
    'address = "https://user:hunter2/x@m.example"',
    'address = "https://hunter2:@m.example"',
    'address = "m.example/a?token=hunter2"',
    'address = "https://m.example/#hunter2"',
    'proxy = "HTTPS_PROXY=user:hunter2@m.example"',
    '"https://user:hunter2@m.example" = 1',
    '"user:hunter2@m.example" = { a = 1 }',
    'password = { "user:hunter2@m.example" = "a" }',
    'x = "Bearer hunter2"',
    """x = '{"auths":{"a.example":{"auth":"hunter2"}}}'""",
    'x = "-----BEGIN EC PRIVATE KEY-----\\nhunter2"',
]
PLACES = [
    "plugins.'io.example.v1.mine'",
    "plugins.'io.containerd.cri.v1.images'",
    "plugins.'io.containerd.cri.v1.images'.registry.configs.'r.example'",
    "plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.h.options",
    "proxy_plugins.mine",
    "stream_processors.mine",
    "mine.table",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("line", UNKNOWN_SECRETS)
def test_members_that_are_not_known_are_redacted_wherever_they_are(line: str, place: str) -> None:
    text = config.dumps(config.loads(f"version = 3\n[{place}]\n{line}\n", host=LINUX))
    assert "hunter2" not in text
    assert "12345678" not in text
    assert "<redacted>" in text or "***" in text


OPEN = """
version = 3
[grpc]
tcp_tls_key = "/etc/tcp.key"
[plugins."io.containerd.cri.v1.images".image_decryption]
key_model = "node"
[plugins."io.containerd.cri.v1.images".pinned_images]
token = "pause:1"
sandbox = "a.example/secret:1@sha256:0123"
[plugins."io.containerd.cri.v1.images".registry.configs."secret.example".tls]
key_file = "/etc/client.key"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.secret-key]
runtime_type = "t"
options = { NoNewKeyring = true, ConfigPath = "/run/user@1000/c" }
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.headers]
runtime_type = "t"
[plugins."io.imagestore.registry.v1"]
mirror_credentials = { "token.example" = "docker.io" }
trusted_realms = { "auth.example" = ["token.example"] }
[proxy_plugins.key]
type = "snapshot"
address = "unix:///run/a@b.sock"
[timeouts]
"io.containerd.token" = "5s"
"""


def test_what_is_known_is_dumped_as_it_is() -> None:
    loaded = config.loads(OPEN, host=LINUX)
    text = config.dumps(loaded)
    assert "<redacted>" not in text
    assert "***" not in text
    again = config.loads(text, host=LINUX)
    assert (list(again.handlers), again.settings) == (list(loaded.handlers), loaded.settings)


REGISTRY_SECRETS = [
    'mirrors."docker.io"]\nendpoint = ["https:/u:hunter2@m.example"]',
    'mirrors."https://u:hunter2@docker.io"]\nendpoint = ["https://m.example"]',
    'configs."u:hunter2@m.example".tls]\nca_file = "/a"',
    'configs."a.example".auth]\npw = "hunter2"',
    'configs."a.example"]\nauth = "u:hunter2"',
    'configs."a.example"]\nauth = [{ a = "hunter2" }]',
    'configs]\n"a.example" = "u:hunter2"',
    'auths]\n"a.example" = "u:hunter2"',
    'auths."https://u:hunter2@a.example"]\npw = "hunter2"',
    'headers."X-Token"]\na = "hunter2"',
]


@pytest.mark.parametrize("table", REGISTRY_SECRETS)
def test_tables_of_registries_are_dumped_without_secrets(table: str) -> None:
    loaded = config.loads(f'version = 3\n[plugins."io.containerd.cri.v1.images".registry.{table}\n', host=LINUX)
    assert "hunter2" not in config.dumps(loaded)


def test_keys_that_differ_only_in_what_is_hidden_are_both_dumped() -> None:
    text = 'version = 3\n[plugins.x]\n"https://u:a@m.example" = 1\n"https://u:b@m.example" = 2\n'
    dumped = config.effective(config.loads(text, host=LINUX))["plugins"]
    assert dumped == {"x": {"https://***@m.example": "<redacted>", "https://***@m.example (2)": "<redacted>"}}
