"""Options of the command line: what can't be meant is refused before anything is opened."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from imagestore.cli.main import cli
from imagestore.cli.serve import group, mode, proxy
from imagestore.cli.unit import SERVICE, SOCKET
from imagestore.errors import InvalidInputError
from imagestore.server.settings import ProxyContent


@pytest.mark.parametrize(("text", "expected"), [("0660", 0o660), ("600", 0o600), ("0000", 0)])
def test_modes_are_octal(text: str, expected: int) -> None:
    assert mode(text) == expected


@pytest.mark.parametrize("text", ["", "0o660", "u+rw", "8", "06600", "1777", "²00"])
def test_other_modes_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        mode(text)


def test_groups_have_names_and_numbers() -> None:
    assert (group("0"), group("root"), group(str(os.getgid()))) == (0, 0, os.getgid())
    for text in ("no such group", "", "-1", "a\0b"):
        with pytest.raises(click.BadParameter):
            group(text)


def test_content_proxies_have_a_name() -> None:
    assert proxy("unix:///a/b") == ProxyContent("containerd", "/a/b")
    assert proxy("two=unix:///a=b") == ProxyContent("two", "/a=b")
    assert proxy("/a=b/c") == ProxyContent("containerd", "/a=b/c")
    with pytest.raises(InvalidInputError):
        proxy("two=tcp://127.0.0.1:1")


@pytest.mark.parametrize(
    "options",
    [
        ["--listen", "tcp://0.0.0.0:1"],
        ["--listen", "/run/x", "--metrics-listen", "0.0.0.0:9090"],
        ["--listen", "/run/x", "--socket-mode", "9999"],
        ["--listen", "/run/x", "--max-concurrent-pulls", "0"],
        ["--listen", "/run/x", "--drain-timeout", "soon"],
    ],
)
def test_what_cannot_be_meant_opens_nothing(options: list[str], tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert CliRunner().invoke(cli, ["--root", str(root), "serve", *options]).exit_code != 0
    assert not root.exists()


def unit(name: str, *options: str, before: tuple[str, ...] = (), status: int = 0) -> list[str]:
    done = CliRunner().invoke(cli, [*before, "serve", *options, "--print-unit", name])
    assert done.exit_code == status, done.output
    return done.output.splitlines()


def test_units_are_part_of_the_package() -> None:
    service, socket = unit(SERVICE), unit(SOCKET)
    command = f"{sys.executable} -m imagestore serve --root /var/lib/imagestore --log-format json"
    assert f"ExecStart={command}" in service
    assert {"StateDirectory=imagestore", "TimeoutStopSec=45s", f"Also={SOCKET}"} <= set(service)
    assert "ListenStream=/run/imagestore/imagestore.sock" in socket
    assert not any(line.startswith(("ReadWritePaths", "SupplementaryGroups")) for line in service)


def test_the_folder_of_units_shuts_nobody_out_whom_the_socket_lets_in() -> None:
    """Each time it starts the service gives the folder its mode again, whatever the socket unit made."""
    socket = unit(SOCKET, "--socket-group", "1234")
    assert {"SocketGroup=1234", "DirectoryMode=0711"} <= set(socket)
    assert "RuntimeDirectoryMode=0711" in unit(SERVICE)


@pytest.mark.parametrize("folder", ["venv/bin", "a folder/50%/bin"])
def test_a_unit_starts_the_command_that_prints_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """systemd's search path has no virtual environments."""
    (tmp_path / folder).mkdir(parents=True)
    command = tmp_path / folder / "imagestore"
    command.touch(0o755)
    monkeypatch.chdir(command.parent)
    monkeypatch.setattr(sys, "argv", ["./imagestore", "serve"])
    shown = f'"{command}"'.replace("%", "%%") if " " in folder else str(command)
    assert any(line.startswith(f"ExecStart={shown} serve --root ") for line in unit(SERVICE))
    monkeypatch.setattr(sys, "executable", "/opt/a$b/python")
    monkeypatch.setattr(sys, "argv", ["./other"])
    assert "no command with a $" in unit(SERVICE, status=2)[-1]


def test_a_service_gets_the_options_that_it_is_printed_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/opt")
    monkeypatch.setenv("IMAGESTORE_CONFIG", "etc/config.toml")
    options = ["--listen", "unix:///srv/a/b.sock", "--listen", "/run/imagestore/c.sock", "--socket-mode", "600"]
    options += ["--proxy-content", "p=unix:///srv/$x/d.sock", "--socket-group", "root", "--drain-timeout", "1.5m"]
    options += ["--gc-interval", "0", "--max-connections", "7", "--tracing", "--log-format", "text"]
    lines = unit(SERVICE, *options, before=("--debug", "--root", "/da ta/100%"))
    command = next(line for line in lines if line.startswith("ExecStart="))
    assert command.partition(" -m imagestore ")[2] == (
        '--debug serve --root "/da ta/100%%" --config /opt/etc/config.toml --listen unix:///srv/a/b.sock '
        '--listen /run/imagestore/c.sock --proxy-content "p=unix:///srv/$$x/d.sock" --socket-mode 0600 '
        "--socket-group 0 --max-connections 7 --drain-timeout 90s --gc-interval 0s --tracing --log-format text"
    )
    # What surrounds it lets it do so: it may write there, has the group, and isn't killed before its time.
    assert 'ReadWritePaths="/da ta/100%%" /srv/a "/srv/$x"' in lines
    assert {"SupplementaryGroups=0", "TimeoutStopSec=105s"} <= set(lines)
    assert not any(line.startswith(("StateDirectory", "Also", "# Without")) for line in lines)


def test_systemd_makes_its_folders_for_a_service_that_writes_below_them() -> None:
    lines = unit(SERVICE, "--listen", "/run/imagestore/a/b.sock", "--root", "/var/lib/imagestore/second")
    assert "StateDirectory=imagestore" in lines
    assert not any(line.startswith("ReadWritePaths") for line in lines)


def test_a_socket_unit_gets_sockets_and_their_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGESTORE_CONFIG", "/etc/other.toml")
    lines = unit(SOCKET, "--listen", "/srv/50%.sock", "--listen", "/srv/b.sock", "--socket-mode", "0600")
    assert {"ListenStream=/srv/50%%.sock", "ListenStream=/srv/b.sock", "SocketMode=0600"} <= set(lines)
    assert "ListenStream=/run/imagestore/imagestore.sock" not in lines
    assert "--tracing has its place in imagestore.service" in unit(SOCKET, "--tracing", status=2)[-1]
    assert "--root has its place" in unit(SOCKET, before=("--root", "/srv/x"), status=2)[-1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--root", "/tmp/store"), "/tmp/store: the unit gives the server a /tmp of its own"),
        (("--listen", "/var/tmp/x.sock"), "/var/tmp/x.sock: the unit gives"),
        (("--listen", "/srv/../tmp/x.sock"), "/tmp/x.sock: the unit gives"),
        (("--config", "/etc/a\nb"), "a unit file can't hold this"),
        (("--metrics-listen", "0.0.0.0:1"), ""),
    ],
)
def test_what_a_unit_can_not_have_is_refused(options: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(cli, ["serve", *options, "--print-unit", SERVICE])
    assert done.exit_code != 0
    assert "[Unit]" not in done.output
    assert words in done.output


@pytest.mark.parametrize(
    "options",
    [
        ("--listen", "unix:///a/s", "--proxy-content", "/a/s"),
        ("--proxy-content", "one=unix:///a/s", "--proxy-content", "two=unix:///a/s"),
    ],
)
def test_content_proxies_share_no_socket(options: tuple[str, ...], tmp_path: Path) -> None:
    found = CliRunner().invoke(cli, ["--root", str(tmp_path), "serve", *options])
    assert found.exit_code == 2
    assert "socket /a/s: a content proxy needs a socket of its own" in found.output


@pytest.mark.parametrize("name", ["", "one="])
def test_content_proxies_share_no_name(name: str) -> None:
    options = ("--proxy-content", f"{name}unix:///a/s", "--proxy-content", f"{name}unix:///a/t")
    found = CliRunner().invoke(cli, ["serve", *options, "--print-unit", SERVICE])
    assert found.exit_code == 2
    assert f"content proxy '{name.rstrip('=') or 'containerd'}': each needs a name of its own" in found.output
