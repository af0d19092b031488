"""Options of the command line: what can't be meant is refused before anything is opened."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

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


@pytest.mark.parametrize("unit", ["imagestore.service", "imagestore.socket"])
def test_units_are_part_of_the_package(unit: str) -> None:
    done = CliRunner().invoke(cli, ["serve", "--print-unit", unit])
    assert done.exit_code == 0
    assert done.output.startswith("#")


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
