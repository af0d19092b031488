"""A bundle's configuration, whatever an image has in the place of its accounts; and what both commands say."""

from __future__ import annotations

import errno
import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from imagestore import ImageStore, platforms
from imagestore.cli.main import main
from imagestore.errors import DocumentError, InvalidInputError
from imagestore.store.unpack.bundle import BundleOptions
from imagestore.store.unpack.tree import Tree
from imagestore.testing import RegistryServer, build_image
from tests.unit.store.unpack.making import IS_ROOTLESS, REFERENCE, entry, folder, link, made, stored

Entry = tuple[tarfile.TarInfo, bytes]


def bundled(path: Path, *entries: Entry, user: str = "") -> dict[str, Any]:
    """The user that a bundle of an image with these files starts as."""
    settings = {"Entrypoint": ["/bin/app"], "User": user}
    with stored(path, made(*entries), config={"config": settings}) as store:
        store.unpack(REFERENCE, path / "bundle", bundle=BundleOptions(), rootless=IS_ROOTLESS)
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
    with pytest.raises(DocumentError, match=r"which its|the ids are"):
        bundled(tmp_path, entry("a"), user=user)
    assert not (tmp_path / "bundle").exists()


#: Lines of accounts as they are found, and whom "app" is by them, as moby/sys/user reads them.
LINES = {
    "seven members": ("app:x:1000:1001:App:/home:/bin/sh", 1001),
    "six members": ("app:x:1000:1001:App:/home", 1001),
    "four members": ("app:x:1000:1001", 1001),
    "nine members": ("app:x:1000:1001:::::", 1001),
    "no group": ("app:x:1000", 0),
    "an empty group": ("app:x:1000::::", 0),
    "no password": ("app::1000:1001", 1001),
    "blanks around the line": ("\u3000\t app:x:1000:1001 \x85", 1001),
    "a carriage return": ("app:x:1000:1001:::\r", 1001),
    "a carriage return behind the group": ("app:x:1000:1001\r", 1001),
    "zeros and a sign": ("app:x:+001000:0001001", 1001),
    "what ends a line elsewhere": ("app:x:1000:1001:\x0b\x0c\x1c\x1d\x1e\x85\u2028x:0:0", 1001),
    "bytes that are no text": ("app:x:1000:1001:\udcff\udcfe", 1001),
    "a second line": ("app:x:1000:1001\napp:x:0:0", 1001),
    "a line before it without an id": ("app\napp:x\napp:x:\napp:x:y:0\napp:x:-1:0\n#app:x:0:0\napp:x:1000:1001", 1001),
    "odd lines around it": ("+::::::\n# x\n\n:\n::::\n" + "x" * 70000 + "\napp:x:1000:1001\n-::", 1001),
}


@pytest.mark.parametrize("user", ["app", "1000", "+1000", "001000"])
@pytest.mark.parametrize("kind", LINES)
def test_short_and_odd_lines_of_accounts_are_read_as_by_the_peers(tmp_path: Path, kind: str, user: str) -> None:
    lines, group = LINES[kind]
    accounts = entry("etc/passwd", data=lines.encode("utf-8", "surrogateescape"))
    assert bundled(tmp_path, accounts, user=user) == {"uid": 1000, "gid": group}


@pytest.mark.parametrize(
    "line", ["app", "app:x", "app:x:", "app:x:y:5", "app:x: 1:5", "app:x:4294967295:5", "app:x:-1:5"]
)
def test_nobody_becomes_root_because_a_line_has_no_user_id(tmp_path: Path, line: str) -> None:
    with pytest.raises(DocumentError, match="'app', which its /etc/passwd has no id for"):
        bundled(tmp_path, entry("etc/passwd", data=line.encode()), user="app")


@pytest.mark.parametrize("group", ["y", "-1", "4294967295", " 5", "9" * 5000, "0x0"])
@pytest.mark.parametrize("user", ["app", "7"])
def test_nobody_gets_roots_group_because_his_own_can_not_be_read(tmp_path: Path, user: str, group: str) -> None:
    accounts = entry("etc/passwd", data=f"app:x:7:{group}:::".encode())
    with pytest.raises(DocumentError, match="whose group"):
        bundled(tmp_path, accounts, user=user)
    assert bundled(tmp_path / "other", accounts, user=f"{user}:5") == {"uid": 7, "gid": 5}


def test_a_number_is_never_a_name(tmp_path: Path) -> None:
    accounts = entry("etc/passwd", data=b"1000:x:0:0:::\napp:x:1000:1001:::\n")
    groups = entry("etc/group", data=b"50:x:0:\nstaff:x:050:\n")
    assert bundled(tmp_path, accounts, groups, user="1000:50") == {"uid": 1000, "gid": 50}


#: Lines of groups, and which "app" is in beside his own.
GROUPS = {
    "four members": ("more:x:77:app", [77]),
    "more members": ("more:x:77:app:x", [77]),
    "several users": ("more:x:77:x,app,,y", [77]),
    "nobody": ("more:x:77:\nmore:x:78", []),
    "another one's": ("more:x:77:apple, app,app ,APP", []),
    "blanks behind the line": ("more:x:77:x,app \t", [77]),
    "no id": ("more:x::app\nmore:x:y:app\nmore::app\nmore:x:-0x1:app\nmore:x:4294967295:app", []),
    "root's group": ("root:x:0:app", [0]),
    "a comment": ("#more:x:77:app", []),
    "twice": ("more:x:77:app\nmore:x:77:app\nown:x:1001:app", [77]),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_further_groups_are_those_that_name_the_user_and_have_an_id(tmp_path: Path, kind: str) -> None:
    lines, further = GROUPS[kind]
    accounts = entry("etc/passwd", data=b"app:x:1000:1001:::"), entry("etc/group", data=lines.encode())
    found = bundled(tmp_path, *accounts, user="app")
    assert found.get("additionalGids", [1001]) == sorted({1001, *further})


def test_an_account_without_a_name_is_in_no_group(tmp_path: Path) -> None:
    """The list of a group without users has one empty name."""
    accounts = entry("etc/passwd", data=b":x:1000:1001:::"), entry("etc/group", data=b"root:x:0:\nwheel:x:10:\n")
    assert bundled(tmp_path, *accounts, user="1000") == {"uid": 1000, "gid": 1001}


@pytest.mark.parametrize(("group", "gid"), [("wheel", 10), ("10", 10), ("+10", 10), ("11", 11)])
def test_a_group_of_the_images_choice_may_have_a_short_line(tmp_path: Path, group: str, gid: int) -> None:
    groups = entry("etc/group", data=b" wheel:x:10")
    assert bundled(tmp_path, groups, user=f"7:{group}:ignored") == {"uid": 7, "gid": gid}


@pytest.mark.parametrize("line", ["wheel", "wheel:x", "wheel:x:", "wheel:x:y", "wheel:10"])
def test_a_group_without_an_id_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(DocumentError, match="'wheel', which its /etc/group has no id for"):
        bundled(tmp_path, entry("etc/group", data=line.encode()), user="7:wheel")


@pytest.mark.parametrize("user", ["", "0", "root", ":"])
def test_root_has_his_further_groups_whether_he_is_named_or_not(tmp_path: Path, user: str) -> None:
    accounts = entry("etc/passwd", data=b"root:x:0:0:::"), entry("etc/group", data=b"root:x:0:root\nwheel:x:10:root\n")
    assert bundled(tmp_path, *accounts, user=user) == {"uid": 0, "gid": 0, "additionalGids": [0, 10]}


def test_a_link_to_more_than_a_name_can_have_is_told(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="etc/passwd that can't be read: File name too long"):
        bundled(tmp_path, link("etc/passwd", "x" * 300), user="app")


def test_accounts_that_may_not_be_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root, an image's folder may be closed to its owner."""

    def refuse(*_: object) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "passwd")

    monkeypatch.setattr(Tree, "read", refuse)
    with pytest.raises(DocumentError, match="/etc/passwd that can't be read: Permission denied"):
        bundled(tmp_path, entry("a"), user="app")
    assert not (tmp_path / "bundle").exists()


#: Settings that no process can have, and what is said of them.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "relative folder": ({"WorkingDir": "app"}, "starts in 'app'; expected an absolute path"),
    "folder of dots": ({"WorkingDir": "../../proc/self/fd/7"}, "expected an absolute path"),
    "folder with NUL": ({"WorkingDir": "/a\0b"}, r"NUL character in process\.cwd"),
    "entry point with NUL": ({"Entrypoint": ["/a\0b"]}, r"NUL character in process\.args\[0\]"),
    "argument with NUL": ({"Cmd": ["x", "\0"]}, r"NUL character in process\.args\[2\]"),
    "variable with NUL": ({"Env": ["A=1", "B=\0"]}, r"NUL character in process\.env\[2\]"),
    "variable's name with NUL": ({"Env": ["A\0=1"]}, r"NUL character in process\.env\[1\]"),
    "variable without a name": ({"Env": ["=1"]}, "variable without a name"),
    "null as variable": ({"Env": [None]}, "variable without a name"),
    "no entry point": ({"Entrypoint": [None]}, "neither entry point nor command"),
    "user with NUL": ({"User": "app\0"}, "no id for"),
    "group with NUL": ({"User": "0:0\0"}, "no id for"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_process_can_have_is_refused(tmp_path: Path, kind: str) -> None:
    given, text = REFUSED[kind]
    with (
        stored(tmp_path, made(entry("a")), config={"config": {"Entrypoint": ["/app"], **given}}) as store,
        pytest.raises(DocumentError, match=text),
    ):
        store.unpack(REFERENCE, tmp_path / "bundle", bundle=BundleOptions(), rootless=IS_ROOTLESS)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    "options",
    [
        BundleOptions(cwd="app"),
        BundleOptions(cwd="/a\0"),
        BundleOptions(command=("\0",)),
        BundleOptions(args=("\0",)),
        BundleOptions(env={"A": "\0"}),
        BundleOptions(env={"": "x"}),
        BundleOptions(name="a\0"),
        BundleOptions(cgroups_path="/a\0"),
        BundleOptions(linux_resources={"unified": {"cpu.max\0": "1"}}),
    ],
)
def test_options_that_no_process_can_have_are_refused(tmp_path: Path, options: BundleOptions) -> None:
    with (
        stored(tmp_path, made(entry("a")), config={"config": {"Entrypoint": ["/app"]}}) as store,
        pytest.raises((DocumentError, InvalidInputError)),
    ):
        store.unpack(REFERENCE, tmp_path / "bundle", bundle=options, rootless=IS_ROOTLESS)
    assert not (tmp_path / "bundle").exists()


def test_a_relative_folder_of_the_image_counts_only_where_no_other_is_given(tmp_path: Path) -> None:
    with stored(tmp_path, made(entry("a")), config={"config": {"Cmd": ["/a"], "WorkingDir": "app"}}) as store:
        options = BundleOptions(cwd="/srv")
        store.unpack(REFERENCE, tmp_path / "bundle", bundle=options, rootless=IS_ROOTLESS)
    assert json.loads((tmp_path / "bundle/config.json").read_text())["process"]["cwd"] == "/srv"


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


def bundle_of(path: Path, pod: object, *words: str) -> int:
    """The exit status of making a bundle by a pod."""
    (path / "pod.json").write_text(json.dumps(pod))
    with stored(path, made(entry("a")), config={"config": {"Entrypoint": ["/bin/app"]}}) as store:
        given = ["--root", str(store.root), "bundle", REFERENCE, str(path / "bundle"), "--rootless", *words]
        return main([*given, "--pod", str(path / "pod.json")])


def pod_of(**members: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "app", "image": "x", **members}]}}


MALFORMED: dict[str, dict[str, Any]] = {
    "command: expected a list": {"command": "sh"},
    "command[1]: expected a text": {"command": ["sh", 1]},
    "args: expected a list": {"args": {"a": "b"}},
    "args[0]: expected a text": {"args": [["a"]]},
    "workingDir: expected a text": {"workingDir": 5},
    "working directory 'a': expected an absolute path": {"workingDir": "a"},
    "env: expected a list": {"env": {"A": "1"}},
    "env: expected a list, got a text": {"env": ""},
    "env[0]: expected an object": {"env": ["A=1"]},
    "env[0].name: expected a text": {"env": [{"name": 1}]},
    "env[0].name: '' is no variable's name": {"env": [{"value": "1"}]},
    "env[1].name: 'A=B' is no variable's name": {"env": [{"name": "A"}, {"name": "A=B"}]},
    "env[0].value: expected a text, got an integer": {"env": [{"name": "A", "value": 1}]},
    "env[0].value: expected a text, got true or false": {"env": [{"name": "A", "value": False}]},
    "env[0].valueFrom: expected an object": {"env": [{"name": "A", "valueFrom": "x"}]},
    "envFrom: expected a list": {"envFrom": "x"},
    "name: '../x': expected at most 63": {"name": "../x"},
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_process_in_a_pod_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    assert bundle_of(tmp_path, pod_of(**MALFORMED[fault])) == 2
    said = capsys.readouterr().err
    assert fault in said
    assert len(said.splitlines()) <= 2
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("kind", ["List", "PodList"])
def test_null_members_are_missing_and_a_list_of_one_pod_is_the_pod(tmp_path: Path, kind: str) -> None:
    variables = [{"name": "A", "value": None, "valueFrom": None}, {"name": "B", "value": "$(A)2", "valueFrom": {}}]
    pod = pod_of(command=None, args=[], workingDir=None, env=variables, envFrom=None)
    if kind == "PodList":
        del pod["kind"]
    assert bundle_of(tmp_path, {"apiVersion": "v1", "kind": kind, "items": [pod]}) == 0
    process = json.loads((tmp_path / "bundle/config.json").read_text())["process"]
    assert (process["args"], process["env"][1:], process["cwd"]) == (["/bin/app"], ["A=", "B=2"], "/")


def test_a_file_of_several_pods_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle_of(tmp_path, {"kind": "List", "items": [pod_of(), pod_of()]}) == 2
    assert "expected one pod, found 2" in capsys.readouterr().err


VOLUMES: dict[str, dict[str, str] | None] = {
    "/data/inner": {},
    "/data": {},
    "empty/../link": None,
    "/file": {},
    "/none": {},
    "/run/": {},
}


def test_volumes_of_the_image_are_empty_mounts_and_what_they_hide_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layer = made(folder("data"), entry("data/x"), folder("empty"), link("link", "data"), entry("file"), folder("run"))
    with stored(tmp_path, layer, config={"config": {"Cmd": ["/x"], "Volumes": VOLUMES}}) as store:
        words = ["--root", str(store.root), "bundle", REFERENCE, "--rootless", "-o", "json", "--progress", "none"]
        assert main([*words, str(tmp_path / "with")]) == 0
        printed = capsys.readouterr()
        assert main([*words, str(tmp_path / "without"), "--no-volumes"]) == 0
        quiet = capsys.readouterr()
    hidden = ["/data", "/file", "/link"]
    assert json.loads(printed.out)["hiddenVolumes"] == hidden
    assert [each in line for each, line in zip(hidden, printed.err.splitlines(), strict=True)] == [True] * 3
    mounts = {name: json.loads((tmp_path / name / "config.json").read_text())["mounts"] for name in ("with", "without")}
    assert [each["destination"] for each in mounts["with"] if each not in mounts["without"]] == [
        *("/data", "/data/inner", "/file", "/link", "/none")
    ]
    assert mounts["with"][-1]["type"] == "tmpfs"
    assert (quiet.err, json.loads(quiet.out)["hiddenVolumes"]) == ("", [])


def test_a_volume_in_the_place_of_the_root_is_refused(tmp_path: Path) -> None:
    with (
        stored(tmp_path, made(entry("a")), config={"config": {"Cmd": ["/x"], "Volumes": {"/a/..": {}}}}) as store,
        pytest.raises(DocumentError, match="a volume in the place of its root") as refused,
    ):
        store.unpack(REFERENCE, tmp_path / "bundle", bundle=BundleOptions(), rootless=IS_ROOTLESS)
    assert "--no-volumes" in refused.value.hint
