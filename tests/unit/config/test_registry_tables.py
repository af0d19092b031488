"""Keys and names in the older tables of registries that nobody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagestore import config
from imagestore.config import Severity
from imagestore.config.hosts import reader_for

if TYPE_CHECKING:
    from pathlib import Path

REGISTRY = 'plugins."io.containerd.cri.v1.images".registry'
VERSIONS = [
    ("", "plugins.cri.registry"),
    ("version = 2", 'plugins."io.containerd.grpc.v1.cri".registry'),
    ("version = 3", REGISTRY),
]
HUB = 'write REGISTRY.configs."registry-1.docker.io".tls'
TABLES = [
    ('mirrors."a.example"]\nendpoints = ["https://m.example"]', 3, "endpoints", "did you mean endpoint?"),
    ('mirrors."a.example"]\nrewrite = { "^a" = "b" }', 3, "rewrite", "remove it"),
    ('mirrors."a.example"]\ninsecure_skip_verify = true', 3, "insecure_skip_verify", "write it as REGISTRY.configs."),
    ('mirrors."a.example".tls]\ninsecure_skip_verify = true', 2, "tls", "write it as REGISTRY.configs."),
    ('configs."a.example"]\ninsecure_skip_verify = true', 3, "insecure_skip_verify", "write it as REGISTRY.configs."),
    ('configs."a.example"]\nusername = "u"', 3, "username", "write it as REGISTRY.configs."),
    ('configs."a.example".tls]\ninsecure_skip_verfy = true', 3, "insecure_skip_verfy", "did you mean insecure_skip_v"),
    ('configs."a.example".tls]\ncafile = "/x"', 3, "cafile", "did you mean ca_file?"),
    ('configs."a.example".tls]\ninsecure_skip_verify = "true"', 3, "insecure_skip_verify", ""),
    ('configs."a.example"]\ntls = true', 3, "tls", ""),
    ('mirrors]\n"a.example" = ["https://m.example"]', 3, '"a.example"', ""),
    (
        'mirrors."https://ghcr.io"]\nendpoint = ["https://m.example"]',
        2,
        '"https://ghcr.io"',
        'write REGISTRY.mirrors."g',
    ),
    ('mirrors."registry-1.docker.io"]', 2, '"registry-1.docker.io"', 'write REGISTRY.mirrors."docker.io"'),
    ('mirrors."docker.io/library"]', 2, '"docker.io/library"', 'write REGISTRY.mirrors."docker.io"'),
    ('configs."https://m.example:5000".tls]', 2, '"https://m.example:5000"', 'write REGISTRY.configs."m.example:5000"'),
    (
        'configs."https://registry-1.docker.io".tls]',
        2,
        '"https://registry-1.docker.io"',
        'write REGISTRY.configs."registry-1.d',
    ),
    ('configs."https://docker.io".tls]', 2, '"https://docker.io"', 'write REGISTRY.configs."registry-1.docker.io"'),
    ('configs."Docker.io".tls]', 2, '"Docker.io"', 'write REGISTRY.configs."registry-1.docker.io"'),
    ('configs."https://index.docker.io/v1/"]', 2, 'v1/"', 'write REGISTRY.configs."registry-1.docker.io"'),
    ('configs."docker.io".tls]\ninsecure_skip_verify = true', 2, '"docker.io".tls', HUB),
    ('configs."index.docker.io"]\ntls = { insecure_skip_verify = true }', 3, '"index.docker.io".tls', HUB),
    ('configs."hub.docker.com".TLS]\ninsecure_skip_verify = true', 2, '"hub.docker.com".TLS', HUB),
    ("configs.tls]\ninsecure_skip_verify = true", 2, "configs.tls", 'write REGISTRY.configs."<host>".tls, with'),
    ("configs.TLS]\nca_file = '/gone'", 2, "configs.TLS", 'write REGISTRY.configs."<host>".tls, with'),
    ("configs.tls]", 2, "configs.tls", 'write REGISTRY.configs."<host>".tls, with'),
    (
        "configs]\ninsecure_skip_verify = true",
        3,
        "skip_verify",
        'write REGISTRY.configs."<host>".tls.insecure_skip_verify',
    ),
    ("configs.auth]\npassword = 'hunter2'", 2, "configs.auth", "log in with"),
    ("configs]\nauth = 'hunter2'", 3, "configs.auth", "log in with"),
    ("configs]\npassword = 'hunter2'", 3, "configs.password", "log in with"),
    (
        'mirrors]\nendpoint = ["https://m.example"]',
        3,
        "mirrors.endpoint",
        'write REGISTRY.mirrors."<host>".endpoint, with',
    ),
    ("mirrors.tls]\ninsecure_skip_verify = true", 2, "mirrors.tls", 'write REGISTRY.configs."<host>".tls, with'),
    ('configs]\nendpoint = ["https://m.example"]', 3, "endpoint", 'write REGISTRY.mirrors."<host>".endpoint, with'),
    ('configs."*".tls]', 2, '"*"', "write the host"),
]


@pytest.mark.parametrize(("table", "line", "key", "hint"), TABLES)
@pytest.mark.parametrize(("head", "registry"), VERSIONS)
def test_what_the_older_tables_say_in_vain_is_told_as_it_stands(
    tmp_path: Path, head: str, registry: str, table: str, line: int, key: str, hint: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"{head}\n[{registry}.{table}\n")
    (found,) = config.check(file).findings
    assert (found.severity, found.location.line) == (Severity.WARNING, line)
    assert found.key.startswith(registry)
    assert found.key.endswith(key)
    assert found.hint.startswith(hint.replace("REGISTRY", registry))
    assert "hunter2" not in found.text


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('ca_file = "/gone.pem"', "No such file or directory"),
        ('key_file = "/k"', "expected the certificate's cert_file"),
    ],
)
def test_files_of_certificates_that_can_not_be_used_are_told(tmp_path: Path, table: str, says: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'version = 3\n[{REGISTRY}.configs."a.example".tls]\n{table}\n')
    (found,) = config.check(file).findings
    assert found.location.line == 3
    assert f"{says}" in found.text
    assert found.text.endswith("; pulls from a.example are refused")


@pytest.mark.parametrize(("head", "registry"), VERSIONS)
def test_what_is_right_is_left_in_peace_in_any_case(tmp_path: Path, head: str, registry: str) -> None:
    file = tmp_path / "config.toml"
    mirrors = f'[{registry}.mirrors."a.example"]\nEndpoint = ["https://m.example"]\n[{registry}.mirrors."*"]\n'
    file.write_text(f'{head}\n{mirrors}[{registry}.configs."m.example".TLS]\nInsecure_Skip_Verify = true\n')
    assert config.check(file).findings == ()
    (mirror,) = reader_for(config.load(file))("a.example").mirrors
    assert (mirror.base, mirror.connection.skip_verify) == ("https://m.example/v2", True)


def test_a_missing_host_is_said_to_be_missing(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"version = 3\n[{REGISTRY}.configs.tls]\ninsecure_skip_verify = true\n")
    (found,) = config.check(file).findings
    assert found.text == "the host is missing between configs and tls, so this has no effect"


@pytest.mark.parametrize("member", ["username = 'hunter2'", "auth = 'hunter2'", "auth = { username = 'hunter2' }"])
def test_a_login_without_its_address_is_told(tmp_path: Path, member: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"version = 3\n[{REGISTRY}.auths]\n{member}\n")
    found = config.check(file).findings
    assert any(each.text.startswith("the host is missing between auths and ") for each in found)
    assert "hunter2" not in "".join(each.text for each in found)


@pytest.mark.parametrize("table", ['configs.tls.tls]\nca_file = "/dev/null"', 'mirrors.tls]\nendpoint = ["m.example"]'])
def test_a_host_may_be_called_as_a_member_is(tmp_path: Path, table: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"version = 3\n[{REGISTRY}.{table}\n")
    assert not [each for each in config.check(file).findings if "missing" in each.text]


SKIP = "insecure_skip_verify = true\n"
RIGHT = [
    f'[{REGISTRY}.configs."registry-1.docker.io".tls]\n{SKIP}',
    f'[{REGISTRY}.mirrors."a.example"]\nendpoint = ["https://docker.io"]\n[{REGISTRY}.configs."docker.io".tls]\n{SKIP}',
    f'[{REGISTRY}.configs."docker.io"]\n',
]


@pytest.mark.parametrize("tables", RIGHT)
def test_certificates_of_what_is_dialled_are_left_in_peace(tmp_path: Path, tables: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"version = 3\n{tables}")
    assert config.check(file).findings == ()


def test_of_two_tables_for_docker_hub_the_unread_one_is_to_go(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    tables = "".join(f'[{REGISTRY}.configs."{host}".tls]\n{SKIP}' for host in ("docker.io", "registry-1.docker.io"))
    file.write_text(f"version = 3\n{tables}")
    (found,) = config.check(file).findings
    assert (found.location.line, found.hint[:10]) == (2, "remove it:")


@pytest.mark.parametrize(("host", "is_used"), [("docker.io", True), ("index.docker.io", False)])
def test_what_is_said_of_docker_hubs_certificates_is_what_a_pull_does(tmp_path: Path, host: str, is_used: bool) -> None:
    file = tmp_path / "config.toml"
    mirror = f'[{REGISTRY}.mirrors."a.example"]\n'
    file.write_text(f'version = 3\n{mirror}[{REGISTRY}.configs."{host}".tls]\n{SKIP}')
    (found,) = config.check(file).findings
    assert ("only pulls by this store" in found.text) is is_used
    assert reader_for(config.load(file))("docker.io").server.connection.skip_verify is is_used


def test_a_login_for_docker_hub_is_only_said_not_to_be_read(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'version = 3\n[{REGISTRY}.configs."docker.io".auth]\nusername = "u"\n')
    (found,) = config.check(file).findings
    assert "isn't read" in found.text


def test_beside_config_path_certificates_of_docker_hub_are_told_once(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    table = f'[{REGISTRY}.configs."docker.io"]\ntls = {{ insecure_skip_verify = true }}\n'
    file.write_text(f'version = 3\n[{REGISTRY}]\nconfig_path = "{tmp_path}"\n{table}')
    (found,) = config.check(file).findings
    assert (found.location.line, "config_path" in found.text) == (5, True)
