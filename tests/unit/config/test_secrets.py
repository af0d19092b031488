"""No finding, and no refusal, repeats what may be a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagestore import config
from imagestore.config.hosts import read_hosts
from imagestore.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

REGISTRY = 'plugins."io.containerd.cri.v1.images".registry'
OURS = 'plugins."io.imagestore.registry.v1"'


def told(folder: Path, text: str) -> str:
    """Everything that a check of this text says."""
    file = folder / "config.toml"
    file.write_text(f"version = 3\n{text}\n")
    return "\n".join(f"{finding} ({finding.hint})" for finding in config.check(file).findings)


TYPES = [
    (f'[{REGISTRY}.configs."r.example"]\nauth = "u:hunter2"', "expected a table, got a text"),
    (f'[{REGISTRY}.configs."r.example"]\nauth = [{{ password = "hunter2" }}]', "expected a table, got a list"),
    (f'[{REGISTRY}.configs."r.example"]\nAuth = "u:hunter2"', "expected a table, got a text"),
    (f'[{REGISTRY}.configs."r.example".auth]\npassword = 99887766', "expected a text, got an integer"),
    (f'[{REGISTRY}.configs."r.example".auth]\nusername = ["hunter2"]', "expected a text, got a list"),
    (f'[{REGISTRY}.configs."r.example".auth]\nidentitytoken = {{ a = "hunter2" }}', "expected a text, got a table"),
    (f'[{REGISTRY}.configs]\n"r.example" = "u:hunter2"', "expected a table, got a text"),
    (f'[{REGISTRY}]\nconfigs = "u:hunter2"', "expected a table, got a text"),
    (f'[{REGISTRY}]\nauths = ["u:hunter2"]', "expected a table, got a list"),
    (f'[{REGISTRY}]\nheaders = "X: hunter2"', "expected a table, got a text"),
    (f'[{REGISTRY}.auths]\n"r.example" = "u:hunter2"', "expected a table, got a text"),
    (f'[{REGISTRY}.auths."r.example"]\nauth = 99887766', "expected a text, got an integer"),
    (f'[{OURS}]\nmirror_credentials = {{ "m.example" = "u:hunter2" }}', "expected a host, got a text"),
    (f'[{OURS}]\nmirror_credentials = {{ "m.example" = ["u:hunter2"] }}', "got a list"),
]


@pytest.mark.parametrize(("text", "says"), TYPES)
def test_of_a_member_that_may_be_secret_only_the_kind_is_told(tmp_path: Path, text: str, says: str) -> None:
    found = told(tmp_path, text)
    assert says in found
    assert "hunter2" not in found
    assert "99887766" not in found


LOGINS = [
    f'[{REGISTRY}.mirrors."https://u:hunter2@docker.io"]\nendpoint = ["ftp://x"]\nrewrite = 1\n',
    f'[{REGISTRY}.mirrors."u:hunter2@docker.io"]\nendpoint = 7\n',
    f'[{REGISTRY}.mirrors."https://u:12345/hunter2@docker.io"]\n',
    f'[{REGISTRY}.mirrors."docker.io"]\nendpoint = "https:/u:hunter2@m.example"\n',
    f'[{REGISTRY}.mirrors."docker.io"]\nendpoint = ["https:/u:hunter2@m.example", "https//u:hunter2@m.example"]\n',
    f'[{REGISTRY}.mirrors."docker.io"]\nendpoint = ["https:/u:hunter2@m.example", 1]\n',
    f'[{REGISTRY}]\nmirrors = ["https://u:hunter2@m.example"]\n',
    f'[{REGISTRY}.configs."https://u:hunter2@m.example".tls]\nca = 1\ninsecure_skip_verify = "--token=hunter2"\n',
    f'[{REGISTRY}.configs."u:hunter2@m.example".tls]\nkey_file = "x"\nca_file = 9\n',
    f'["https://u:hunter2@m.example"]\na = 9{"9" * 30}\n',
    f'["https://u:hunter2@m.example"]\na = 9{"9" * 300}\n',
    '["https://u:hunter2@m.example"]\n["https://u:hunter2@m.example"]\n',
    'plugins = ["--token", "hunter2"]\n',
    'imports = [{ password = "hunter2" }]\n',
    '[plugins."io.containerd.cri.v1.images"]\npinned_images = { sandbox = ["https://u:hunter2@m.example"] }\n',
    f'[{OURS}]\nforeign_layer_hosts = ["https://u:hunter2@m.example"]\n',
    f'[{OURS}]\ntrusted_realms = {{ "u:hunter2@m.example" = ["u:hunter2@m.example"] }}\n',
]


@pytest.mark.parametrize("text", LOGINS)
def test_logins_in_addresses_are_hidden_in_keys_and_in_values(tmp_path: Path, text: str) -> None:
    found = told(tmp_path, text)
    assert found
    assert "hunter2" not in found
    assert "12345" not in found


def test_the_host_that_was_meant_is_found_behind_a_login(tmp_path: Path) -> None:
    found = told(tmp_path, f'[{REGISTRY}.mirrors."https://u:hunter2@ghcr.io/v2"]')
    assert f'write {REGISTRY}.mirrors."ghcr.io"' in found


@pytest.mark.parametrize(
    "text",
    [
        '[host."https:/u:hunter2@m.example"]\n',
        '[host."u:hunter2@m.example"]\nca = 1\n',
        '[host."u:hunter2@m.example"]\n[host."u:hunter2@m.example"]\n',
        'server = ["https:/u:hunter2@m.example"]\n',
        'client = [{ password = "hunter2" }]\n',
        'capabilities = ["https:/u:hunter2@m.example"]\n',
        '[header]\nA = [{ a = "hunter2" }]\n',
    ],
)
def test_a_hosts_file_is_refused_without_its_secrets(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.example").mkdir()
    (tmp_path / "a.example/hosts.toml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_hosts("a.example", [str(tmp_path)])
    assert "hunter2" not in f"{refused.value}{refused.value.hint}"
