"""Keys and names in the older tables of registries that nobody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagestore import config
from imagestore.config.findings import Severity
from imagestore.config.hosts import reader_for

if TYPE_CHECKING:
    from pathlib import Path

REGISTRY = 'plugins."io.containerd.cri.v1.images".registry'
VERSIONS = [
    ("", "plugins.cri.registry"),
    ("version = 2", 'plugins."io.containerd.grpc.v1.cri".registry'),
    ("version = 3", REGISTRY),
]
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
    ('configs."*".tls]', 2, '"*"', "write the host"),
]


@pytest.mark.parametrize(("table", "line", "key", "mend"), TABLES)
@pytest.mark.parametrize(("head", "registry"), VERSIONS)
def test_what_the_older_tables_say_in_vain_is_told_as_it_stands(
    tmp_path: Path, head: str, registry: str, table: str, line: int, key: str, mend: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"{head}\n[{registry}.{table}\n")
    (found,) = config.check(file).findings
    assert (found.severity, found.location.line) == (Severity.WARNING, line)
    assert found.key.startswith(registry)
    assert found.key.endswith(key)
    assert found.mend.startswith(mend.replace("REGISTRY", registry))


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
