"""What `config check` says about certs.d: names that no reference leads to, and certificates that can't be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trustme

from imagestore import config
from imagestore.config import Severity

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.config import Finding

REGISTRY = 'plugins."io.containerd.cri.v1.images".registry'


def check(folder: Path, path: str = "") -> list[Finding]:
    """The findings of a file with this config_path; by default certs.d in the folder."""
    file = folder / "config.toml"
    file.write_text(f'version = 3\n[{REGISTRY}]\nconfig_path = "{path or folder / "certs.d"}"\n')
    return list(config.check(file).findings)


@pytest.fixture(scope="module")
def pair() -> tuple[bytes, bytes]:
    """A client certificate and its key."""
    issued = trustme.CA().issue_cert("client.example")
    return issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes()


def certified(folder: Path, pair: tuple[bytes, bytes], text: str) -> list[Finding]:
    """The findings of certs.d with one folder, which holds a right pair, and this hosts.toml."""
    place = folder / "certs.d/a.example"
    place.mkdir(parents=True)
    (place / "client.cert").write_bytes(pair[0])
    (place / "client.key").write_bytes(pair[1])
    (place / "hosts.toml").write_text(text)
    return check(folder)


@pytest.mark.parametrize(
    ("client", "says"),
    [
        ('["client.cert", "client.key"]', "client.cert: can't be used"),
        ('"client.cert"', "client.cert: can't be used"),
        ('[["client.key", "client.cert"]]', "with key"),
        ('[["client.cert", "gone.key"]]', "gone.key: No such file or directory"),
        ('[["client.cert", "."]]', "Is a directory"),
    ],
)
def test_client_certificates_that_a_pull_would_be_refused_for_are_told(
    tmp_path: Path, pair: tuple[bytes, bytes], client: str, says: str
) -> None:
    found = certified(tmp_path, pair, f'[host."https://m.example"]\nclient = {client}\n')
    assert found
    for each in found:
        assert (each.location.file.rpartition("/")[2], each.location.line) == ("hosts.toml", 2)
        assert each.text.endswith("; pulls from a.example are refused")
        assert bool(each.hint) is not ("[[" in client)
    assert says in found[0].text


@pytest.mark.parametrize(
    "text",
    [
        '[host."https://m.example"]\nclient = [["client.cert", "client.key"]]\n',
        '[host."http://m.example"]\nclient = ["client.cert", "client.key"]\nca = "gone.pem"\n',
    ],
)
def test_a_right_pair_and_files_that_are_not_used_over_plain_http_are_left_in_peace(
    tmp_path: Path, pair: tuple[bytes, bytes], text: str
) -> None:
    assert certified(tmp_path, pair, text) == []


def test_authorities_that_are_not_there_are_told(tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    (found,) = certified(tmp_path, pair, 'ca = ["client.cert", "gone.pem"]\n')
    assert found.location.line == 1
    assert "gone.pem: not a readable PEM file of certificates: No such file or directory" in found.text


UNREACHED = [
    ("registry-1.docker.io", "docker.io"),
    ("index.docker.io", "docker.io"),
    ("hub.docker.com", "docker.io"),
    ("docker", "docker.io"),
    ("localhost__32000", "localhost_32000_"),
    ("localhost_32000", "localhost_32000_"),
    ("a.example_5000", "a.example_5000_"),
    ("a.example__5000_", "a.example_5000_"),
    ("a.example_5000__", "a.example_5000_"),
    ("A.Example", "a.example"),
    ("A.Example_5000_", "a.example_5000_"),
    ("https:__a.example", "a.example"),
    ("https_a.example", "a.example"),
    ("a.example.", "a.example"),
    ("default", "_default"),
    ("_default_", "_default"),
    ("*", "_default"),
    ("myregistry", ""),
    ("a.example:0", ""),
]


@pytest.mark.parametrize(("name", "meant"), UNREACHED)
def test_a_folder_that_no_reference_leads_to_is_told_with_the_name_that_was_meant(
    tmp_path: Path, name: str, meant: str
) -> None:
    (tmp_path / "certs.d" / name).mkdir(parents=True)
    (found,) = check(tmp_path)
    assert (found.severity, found.location.file) == (Severity.WARNING, f"{tmp_path}/certs.d/{name}")
    assert name in found.text
    assert found.hint.startswith(f"rename it to {meant}" if meant else "name it by the registry")


@pytest.mark.parametrize(
    "name",
    ["docker.io", "localhost", "localhost_32000_", "a.example:5000", "[::1]_5000_", "_default", "..data", "lost+found"],
)
def test_a_folder_that_references_lead_to_is_left_in_peace(tmp_path: Path, name: str) -> None:
    (tmp_path / "certs.d" / name).mkdir(parents=True)
    (tmp_path / "certs.d/README").touch()
    (tmp_path / "certs.d/notes.txt").touch()
    assert check(tmp_path) == []


@pytest.mark.parametrize("path", ["hosts.toml", "a.example.toml", "docker.io", "a.example/library/hosts.toml"])
def test_a_file_that_no_reference_leads_to_is_told(tmp_path: Path, path: str) -> None:
    (tmp_path / "certs.d" / path).parent.mkdir(parents=True)
    (tmp_path / "certs.d" / path).write_text('server = "https://a.example"\n')
    (found,) = check(tmp_path)
    assert found.location.file == f"{tmp_path}/certs.d/{path}"
    assert "isn't read" in found.text


def test_a_folder_behind_another_one_is_told_unless_both_are_the_same(tmp_path: Path) -> None:
    for name in ("first/_default", "first/a.example", "second/a.example"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "third").symlink_to("first")
    (found,) = check(tmp_path, ":".join(f"{tmp_path}/{root}" for root in ("first", "second", "third")))
    assert found.location.file == f"{tmp_path}/second/a.example"
    assert f"{tmp_path}/first/a.example comes before it" in found.text


@pytest.mark.parametrize("path", ["absent", "file", "absent,certs.d", "~/certs.d"])
def test_a_config_path_that_is_no_folder_is_told(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    (found,) = check(tmp_path, path if path[0] == "~" else str(tmp_path / path))
    assert (found.location.line, found.severity) == (3, Severity.WARNING)
    assert f"{path}' is no folder" in found.text


def test_of_containerds_own_default_folders_one_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = (f"{tmp_path}/one", f"{tmp_path}/other")
    monkeypatch.setattr("imagestore.config.hosts.DEFAULT_FOLDERS", both)
    assert [each.severity for each in check(tmp_path, ":".join(both))] == [Severity.NOTE] * 2
    (tmp_path / "one").mkdir()
    assert check(tmp_path, ":".join(both)) == []


OTHER_NAMES = [
    *("host.toml", "hosts.tml", "hosts.yaml", "Hosts.toml", "HOSTS.TOML", "hosts", "hosts.conf", "hosts.toml.txt"),
    *("hosts.json", "hosts.yml", "host.tml", "hots.toml", "a.example.toml", "config.toml", "hosts-toml", ".hosts.toml"),
    *("hosts.toml.j2", "hosts.toml.tmpl", "hosts.tom"),
]


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_file_of_hosts_under_another_name_is_told(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "certs.d/a.example"
    folder.mkdir(parents=True)
    (folder / name).write_text('[host."https://m.example"]\n')
    (found,) = check(tmp_path)
    assert (found.severity, found.location.file) == (Severity.WARNING, f"{folder}/{name}")
    assert "isn't read" in found.text
    assert "hosts.toml" in found.hint
    # Beside the file itself nothing is lost.
    (folder / "hosts.toml").write_text('[host."https://m.example"]\n')
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["hosts.toml.bak", "hosts.toml~", "hosts.toml.disabled", "hosts.crt", "README.md", "a"]
)
def test_files_that_are_no_hosts_files_are_left_in_peace(tmp_path: Path, name: str, pair: tuple[bytes, bytes]) -> None:
    folder = tmp_path / "certs.d/a.example"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(pair[0])
    assert check(tmp_path) == []


def test_a_link_to_no_file_of_hosts_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "certs.d/a.example"
    folder.mkdir(parents=True)
    (folder / "hosts.toml").symlink_to("gone.toml")
    (found,) = check(tmp_path)
    assert found.location.file == f"{folder}/hosts.toml"
    assert "leads nowhere" in found.text
