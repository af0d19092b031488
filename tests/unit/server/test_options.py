"""Options of the command line: what can't be meant is refused before anything is opened."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from imagestore.cli.config import KUBELET_SOCKET
from imagestore.cli.main import cli
from imagestore.cli.serve import group, mode, proxy
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


UNITS = Path(__file__).parents[3] / "docs" / "systemd"
UNIT = UNITS / "imagestore.service"


def test_the_unit_starts_the_server_with_options_that_there_are() -> None:
    (line,) = [each for each in UNIT.read_text().splitlines() if each.startswith("ExecStart=")]
    program, command, *options = line.removeprefix("ExecStart=").split()
    assert (program, command) == ("/usr/local/bin/imagestore", "serve")
    with cli.make_context("imagestore", ["serve", "--help"], resilient_parsing=True) as outer:
        serve = cli.get_command(outer, "serve")
        assert serve is not None
        with serve.make_context("serve", options, parent=outer) as inner:
            assert inner.params["listen"] == ("unix:///run/imagestore/imagestore.sock",)
            assert str(inner.params["root"]) == "/var/lib/imagestore"
            assert inner.params["log_format"] == "json"


def test_the_drop_in_for_a_kubelet_starts_what_the_page_and_the_check_name() -> None:
    lines = (UNITS / "imagestore-kubelet.conf").read_text().splitlines()
    first, line = [each.removeprefix("ExecStart=") for each in lines if each.startswith("ExecStart=")]
    assert first == "", "else systemd would have two commands"
    program, command, *options = line.split()
    assert (program, command) == ("/usr/local/bin/imagestore", "serve")
    with cli.make_context("imagestore", ["serve", "--help"], resilient_parsing=True) as outer:
        serve = cli.get_command(outer, "serve")
        assert serve is not None
        with serve.make_context("serve", options, parent=outer) as inner:
            assert inner.params["kubelet"] == (KUBELET_SOCKET,)
            assert inner.params["publish_address"] == "unix:///run/containerd/containerd.sock"
            assert str(inner.params["root"]) == "/var/lib/imagestore"


def test_the_unit_for_a_containerd_has_options_that_there_are() -> None:
    unit = UNITS / "imagestore-containerd.service"
    (line,) = [each for each in unit.read_text().splitlines() if each.startswith("ExecStart=")]
    program, command, *options = line.removeprefix("ExecStart=").split()
    assert (program, command) == ("/usr/local/bin/imagestore", "serve")
    with cli.make_context("imagestore", ["serve", "--help"], resilient_parsing=True) as outer:
        serve = cli.get_command(outer, "serve")
        assert serve is not None
        with serve.make_context("serve", options, parent=outer) as inner:
            assert inner.params["proxy_content"] == ("unix:///run/imagestore-containerd/content.sock",)


def test_the_unit_waits_longer_than_the_drain_and_lets_clients_reach_the_socket() -> None:
    lines = dict(line.partition("=")[::2] for line in UNIT.read_text().splitlines() if "=" in line)
    with cli.make_context("imagestore", ["serve"], resilient_parsing=True) as outer:
        serve = cli.get_command(outer, "serve")
        assert serve is not None
        with serve.make_context("serve", ["--listen", "/s"], parent=outer) as inner:
            assert float(lines["TimeoutStopSec"].removesuffix("s")) > inner.params["drain_timeout"]
    assert (lines["Type"], lines["RuntimeDirectoryMode"]) == ("notify", "0711")
    assert (lines["StateDirectory"], lines["RuntimeDirectory"]) == ("imagestore", "imagestore")


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
    found = CliRunner().invoke(cli, ["serve", *options])
    assert found.exit_code == 2
    assert f"content proxy '{name.rstrip('=') or 'containerd'}': each needs a name of its own" in found.output
