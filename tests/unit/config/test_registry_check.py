"""What `config check` finds about registries: each finding fits what a pull would do, and none stops a load."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from imagestore import config
from imagestore.config import Severity
from imagestore.config.hosts import reader_for
from imagestore.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.config import Finding

REGISTRY = 'plugins."io.containerd.cri.v1.images".registry'


def check(folder: Path, text: str) -> list[Finding]:
    """The findings of a file with these tables, of which "REGISTRY" stands for the registry's."""
    file = folder / "config.toml"
    file.write_text("version = 3\n" + text.replace("REGISTRY", REGISTRY))
    report = config.check(file)
    assert report.config is not None
    return list(report.findings)


def shown(findings: list[Finding]) -> list[tuple[int | None, str, str]]:
    return [(found.location.line, found.key.removeprefix(f"{REGISTRY}."), found.text) for found in findings]


@pytest.mark.parametrize(
    ("table", "place", "host", "whose"),
    [
        ('mirrors."a.example"]\nendpoint = ["https://u:word@m.example"]', "endpoint", "a.example", "a.example"),
        ('mirrors."a.example"]\nendpoint = "https://m.example"', "endpoint", "a.example", "a.example"),
        ('mirrors."*"]\nendpoint = ["ftp://m.example"]', "endpoint", "b.example", "hosts without a folder or table"),
        ('configs."a.example".tls]\nca_file = 3', "tls.ca_file", "a.example", "a.example"),
    ],
)
def test_what_a_pull_would_be_refused_for_is_an_error(
    tmp_path: Path, table: str, place: str, host: str, whose: str
) -> None:
    (found,) = check(tmp_path, f"[REGISTRY.{table}\n")
    assert found.severity is Severity.ERROR
    assert found.location.line == 3
    assert found.key.endswith(place)
    assert f"; pulls from {whose}" in found.text
    assert "word" not in found.text
    with pytest.raises(ConfigError) as refused:
        reader_for(config.load(tmp_path / "config.toml"))(host)
    assert found.text.partition("; pulls from")[0] in str(refused.value)


def test_a_fault_that_several_hosts_come_to_is_told_once(tmp_path: Path) -> None:
    found = check(
        tmp_path,
        '[REGISTRY.mirrors."*"]\nendpoint = ["ftp://m.example"]\n[REGISTRY.configs."a.example".tls]\nca_file = "/a"\n',
    )
    assert [each.location.line for each in found] == [3]


def test_tables_that_can_be_used_have_no_findings(tmp_path: Path) -> None:
    text = '[REGISTRY.mirrors."a.example"]\nendpoint = ["http://m.example"]\n'
    assert check(tmp_path, text + '[REGISTRY.configs."m.example".tls]\ninsecure_skip_verify = true\n') == []


def test_logins_and_headers_that_are_not_used_are_told_without_their_values(tmp_path: Path) -> None:
    found = check(
        tmp_path,
        '[REGISTRY.configs."a.example".auth]\npassword = "word"\n'
        '[REGISTRY.auths."https://b.example"]\npassword = "word"\n'
        '[REGISTRY.headers]\nX-Token = ["word"]\n',
    )
    assert shown(found) == [
        (2, 'configs."a.example".auth', "isn't read: a login doesn't belong into a file that many read"),
        (4, 'auths."https://b.example"', "isn't read: a login doesn't belong into a file that many read"),
        (6, "headers", "isn't sent, since every registry would get it"),
    ]
    assert all(each.severity is Severity.WARNING and each.hint for each in found)
    assert "word" not in str([(str(each), each.hint) for each in found])


def test_tables_beside_config_path_are_told_as_containerd_refuses_them(tmp_path: Path) -> None:
    """containerd 1.6: "`mirrors` cannot be set when `config_path` is provided", and so of `configs.tls`."""
    (tmp_path / "certs.d").mkdir()
    found = check(
        tmp_path,
        f'[REGISTRY]\nconfig_path = "{tmp_path}/certs.d"\n'
        '[REGISTRY.mirrors."a.example"]\nendpoint = ["ftp://m.example"]\n'
        '[REGISTRY.configs."a.example".tls]\nca_file = "/a"\n'
        '[REGISTRY.configs."b.example".other]\nx = 1\n',
    )
    text = "isn't used where config_path is set, and containerd refuses to have both"
    assert shown(found) == [
        (4, 'mirrors."a.example"', text),
        (6, 'configs."a.example".tls', text),
        (8, 'configs."b.example".other', "is not a known key; it is kept and not used"),
    ]


def test_every_folder_of_config_path_is_looked_over(tmp_path: Path) -> None:
    for name in ("first/a.example", "second/_default", "second/b.example", "second/good.example"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "second" / "README").write_text("no folder")
    (tmp_path / "second/_default/hosts.toml").write_text('\nserver = "ftp://x"\n')
    (tmp_path / "first/a.example/x.cert").touch()
    (tmp_path / "second/b.example/hosts.toml").write_text('servr = "https://b.example"\n')
    (tmp_path / "second/good.example/hosts.toml").write_text('server = "https://b.example"\n')
    found = check(tmp_path, f'[REGISTRY]\nconfig_path = "{tmp_path}/first:{tmp_path}/second:{tmp_path}/absent"\n')
    assert [each.severity for each in found] == [Severity.ERROR] * 2 + [Severity.WARNING] * 2
    refused = (
        "expected an http or https URL with a host; pulls from hosts without a folder or table of their own are refused"
    )
    absent = f"'{tmp_path}/absent' is no folder: what is meant to be in it has no effect"
    assert [str(each).removeprefix(f"{tmp_path}/") for each in found] == [
        "first/a.example: has x.cert but no x.key; pulls from a.example are refused",
        f"second/_default/hosts.toml:2: server: {refused}",
        f"config.toml:3: {REGISTRY}.config_path: {absent}",
        "second/b.example/hosts.toml:1: servr: is not known, and has no effect",
    ]


def test_default_folders_that_are_closed_are_passed_over_as_by_a_pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagestore.config.hosts.DEFAULT_FOLDERS", (f"{tmp_path}/closed",))
    listed = os.listdir

    def closed(path: str) -> list[str]:
        if path.endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "listdir", closed)
    assert check(tmp_path, "") == []
    (found,) = check(tmp_path, '[REGISTRY]\nconfig_path = "/other/closed"\n')
    assert "Permission denied; what is in it wasn't checked" in found.text


def test_a_folder_that_can_not_be_looked_into_is_told(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (found,) = check(tmp_path, f'[REGISTRY]\nconfig_path = "{tmp_path}/loop"\n')
    assert "can't be looked into: Too many levels of symbolic links" in str(found)


@pytest.mark.parametrize(
    ("broken", "before", "host", "is_refused"),
    [
        ("second/a.example", "first/a.example", "a.example", False),
        ("second/a.example", "first/_default", "a.example", False),
        ("first/a.example:5000", "first/a.example_5000_", "a.example:5000", False),
        ("first/a.example_5000_", "first/a.example:5000", "a.example:5000", True),
        ("first/lost+found", "first/..data", "a.example", False),
        ("first/old", "first/a.example", "a.example", False),
    ],
)
def test_what_is_said_of_folders_is_what_a_pull_meets(
    tmp_path: Path, broken: str, before: str, host: str, is_refused: bool
) -> None:
    for name in (broken, before):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / broken / "hosts.toml").write_text('server = "ftp://x"\n')
    (tmp_path / "first/loop").symlink_to("loop")
    found = check(tmp_path, f'[REGISTRY]\nconfig_path = "{tmp_path}/first:{tmp_path}/first:{tmp_path}/second"\n')
    refused = [each.text.partition("; pulls from ")[2] for each in found if "; pulls from " in each.text]
    assert refused == [f"{host} are refused"] * is_refused
    reader = reader_for(config.load(tmp_path / "config.toml"))
    if is_refused:
        with pytest.raises(ConfigError):
            reader(host)
    else:
        reader(host)


def test_the_default_folders_are_looked_over_where_pulls_look_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagestore.config.hosts.DEFAULT_FOLDERS", (str(tmp_path / "certs.d"),))
    (tmp_path / "certs.d/a.example").mkdir(parents=True)
    (tmp_path / "certs.d/a.example/hosts.toml").write_text("server = 5\n")
    (found,) = check(tmp_path, "")
    assert "pulls from a.example are refused" in found.text
    assert check(tmp_path, '[REGISTRY.mirrors."b.example"]\n') == []


def test_a_pipe_in_place_of_a_hosts_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "a.example").mkdir()
    os.mkfifo(tmp_path / "a.example/hosts.toml")
    (found,) = check(tmp_path, f'[REGISTRY]\nconfig_path = "{tmp_path}"\n')
    assert "expected a regular file, found a FIFO; pulls from a.example are refused" in found.text


def test_a_folder_with_a_nul_in_its_name_is_told(tmp_path: Path) -> None:
    (found,) = check(tmp_path, '[REGISTRY]\nconfig_path = "/a\\u0000b"\n')
    assert "can't be looked into: is no folder's name" in found.text


def test_a_faultless_load_reads_no_folder(tmp_path: Path) -> None:
    """Loading must not depend on the folders of hosts nobody asks for."""
    (tmp_path / "a.example").mkdir()
    (tmp_path / "a.example/hosts.toml").write_text('server = "ftp://x"\n')
    file = tmp_path / "config.toml"
    file.write_text(f'version = 3\n[{REGISTRY}]\nconfig_path = "{tmp_path}"\n')
    assert config.load(file).findings == ()
