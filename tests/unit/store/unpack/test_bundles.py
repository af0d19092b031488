"""A bundle's configuration, whatever an image has in the place of its accounts; and what both commands say."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from imagestore import ImageStore, platforms
from imagestore.cli.main import main
from imagestore.errors import DocumentError
from imagestore.store.unpack.bundle import BundleOptions
from imagestore.testing import RegistryServer, build_image
from tests.unit.store.unpack.making import IS_ROOTLESS, REFERENCE, entry, folder, link, made, stored

Entry = tuple[tarfile.TarInfo, bytes]


def bundled(path: Path, *entries: Entry, user: str = "") -> dict[str, Any]:
    """The user that a bundle of an image with these files starts as."""
    settings = {"Entrypoint": ["/bin/app"], "User": user}
    with stored(path, made(*entries), config={"config": settings}) as store:
        store.unpack(REFERENCE, path / "bundle", bundle=BundleOptions(), is_rootless=IS_ROOTLESS)
    found: dict[str, Any] = json.loads((path / "bundle/config.json").read_text())["process"]["user"]
    return found


def test_a_bundle_is_closed_until_it_is_whole_and_its_root_has_the_images_mode(tmp_path: Path) -> None:
    bundled(tmp_path, folder("./", mode=0o711))
    assert stat.S_IMODE((tmp_path / "bundle").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "bundle/rootfs").stat().st_mode) == 0o711


@pytest.mark.parametrize(
    "accounts",
    [
        folder("etc/passwd"),
        entry("etc/passwd", tarfile.FIFOTYPE),
        link("etc/passwd", "/etc/none"),
        link("etc", "passwd"),
        entry("etc"),
        entry("etc/passwd", data=b"app:x:" + b"9" * 5000 + b":1::/:\napp:x:4294967295:1::/:\napp:x:1\n"),
    ],
    ids=["folder", "FIFO", "link to nothing", "link as etc", "etc as a file", "no numbers"],
)
def test_accounts_that_can_not_be_read_are_none(tmp_path: Path, accounts: Entry) -> None:
    assert bundled(tmp_path, accounts, user="12:34") == {"uid": 12, "gid": 34}


@pytest.mark.skipif(os.geteuid() != 0, reason="devices need root")
def test_a_device_in_the_place_of_accounts_is_not_opened(tmp_path: Path) -> None:
    """To open some devices does something; this one would say that there is no driver."""
    device = entry("etc/passwd", tarfile.CHRTYPE, devmajor=4000, devminor=1)
    assert bundled(tmp_path, device, user="7") == {"uid": 7, "gid": 0}


@pytest.mark.parametrize("user", ["app", "4294967295", "9" * 5000, "٣", "0:none", "0:4294967296"])
def test_users_that_are_none_are_refused(tmp_path: Path, user: str) -> None:
    with pytest.raises(DocumentError, match=r"which its|whom its"):
        bundled(tmp_path, entry("a"), user=user)
    assert not (tmp_path / "bundle").exists()


def test_commands_say_why_windows_is_refused_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = build_image("windows(10.0.20348.1)/amd64")
    with RegistryServer({REFERENCE: image}) as server, ImageStore(tmp_path / "store") as store:
        reference = server.server.reference(REFERENCE)
        store.pull(reference, platform=platforms.parse("windows(10.0.20348)/amd64"))
    for command in ("unpack", "bundle"):
        assert main(["--root", str(tmp_path / "store"), command, reference, str(tmp_path / "root")]) != 0
        said = capsys.readouterr().err
        assert "layers of Windows are unpacked by Windows itself" in said
        assert "pull it for a runtime handler with a Linux guest, or export it" in said
    assert not (tmp_path / "root").exists()


def test_names_that_a_terminal_would_act_on_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = entry("evil\x1b[31m\udcff", tarfile.CHRTYPE, devmajor=1, devminor=3)
    with stored(tmp_path, made(device)) as store:
        words = ["--root", str(store.root), "unpack", REFERENCE, str(tmp_path / "root"), "--rootless"]
        assert main([*words, "--output", "json"]) == 0
    printed = capsys.readouterr()
    assert "left out: evil\\x1b[31m\\udcff: a device" in printed.err
    assert json.loads(printed.out)["leftOutCount"] == 1


def test_a_pods_variables_are_expanded_and_missing_ones_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)2"},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    container = {"name": "app", "image": "x", "command": ["run", "$(B)"], "args": ["$$(A)", "$(C)"], "env": variables}
    container["envFrom"] = [{"configMapRef": {"name": "m"}}]
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]}}
    (tmp_path / "pod.json").write_text(json.dumps(pod))
    with stored(tmp_path, made(entry("a"))) as store:
        words = ["--root", str(store.root), "bundle", REFERENCE, str(tmp_path / "bundle"), "--rootless"]
        assert main([*words, "--pod", str(tmp_path / "pod.json")]) == 0
    process = json.loads((tmp_path / "bundle/config.json").read_text())["process"]
    assert process["args"] == ["run", "12", "$(A)", "$(C)"]
    assert process["env"][1:] == ["A=1", "B=12"]
    said = capsys.readouterr().err
    assert "the variable SECRET, whose value isn't in the pod" in said
    assert "the variables of envFrom" in said
