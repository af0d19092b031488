"""The command line against a CRI server: the output of a local store, by handler, and never by surprise."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from imagestore import ImageStore
from imagestore.cli import remote
from imagestore.cli.exit_codes import ExitStatus
from imagestore.cri.client import CriImageService
from imagestore.cri.model import ImageSpec, ServedImage
from imagestore.errors import UnsupportedError
from imagestore.testing import BasicAuth
from tests.support.commands import Commands
from tests.support.cri_server import CriServer, cri_server
from tests.support.node import HYPERV, PROCESS, PYTHON, node


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CriServer]:
    with node(tmp_path / "store") as here, cri_server(here.store) as running:
        yield running


@pytest.fixture
def line(server: CriServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    for name in ("CONTAINER_RUNTIME_ENDPOINT", "IMAGE_SERVICE_ENDPOINT", "CRI_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    return Commands(capsys, "--endpoint", server.endpoint)


@pytest.fixture
def local(server: CriServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Commands:
    """On the server's store itself."""
    return Commands(capsys, "--root", str(tmp_path / "store"))


#: Ctrl-C arrives inside gRPC, between the beginning of a call and that of the thread that drives it.
INTERRUPTED = """
import os, signal, sys
import grpc._channel as channel
begin = channel._run_channel_spin_thread
def interrupted(state):
    channel._run_channel_spin_thread = begin
    os.kill(os.getpid(), signal.SIGINT)
    begin(state)
channel._run_channel_spin_thread = interrupted
from imagestore.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "words",
    [
        ("images",),
        ("inspecti", PYTHON),
        ("rmi", PYTHON),
        ("info",),
        ("pull", PYTHON),
        ("fsinfo",),
        ("node", "gc", "--high", "100"),
    ],
)
def test_an_interrupt_ends_a_command_that_asks_wherever_it_comes(
    line: Commands, words: tuple[str, ...], tmp_path: Path
) -> None:
    environment = {**os.environ, "IMAGESTORE_ROOT": str(tmp_path / "agent")}
    command = [sys.executable, "-c", INTERRUPTED, *line.options, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    # What the server answered before the call was ended is told, also that an image isn't there.
    assert done.returncode in (0, 3, 130)
    assert ("interrupted" in done.stderr) == (done.returncode == 130)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["images", "images -q", "inspecti", "rmi"])
@pytest.mark.parametrize("name", ["UPPER", "user:hunter2@h.example/a", "a@sha256:abc", "x "])
def test_a_name_that_can_mean_no_image_is_sent_to_no_server(line: Commands, words: str, name: str) -> None:
    line(*words.split(), name, status=2)
    assert "hunter2" not in line.error


def test_pull_list_inspect_and_remove_by_handler(line: Commands) -> None:
    assert (
        line("pull", PYTHON, "--runtime-handler", PROCESS, "--runtime-handler", HYPERV)
        .splitlines()[0]
        .startswith(f"{PYTHON} ({PROCESS}): sha256:")
    )
    listed = {each["runtimeHandler"]: each for each in line.json("images")["images"]}
    assert listed.keys() == {PROCESS, HYPERV}
    assert line.json("images", "--runtime-handler", HYPERV)["images"] == [listed[HYPERV]]
    assert line.json("images", PYTHON)["images"] == [listed[HYPERV], listed[PROCESS]]
    assert line.json("images", listed[HYPERV]["id"][:15])["images"] == [listed[HYPERV]]
    assert line("images", "-q").split() == [listed[HYPERV]["id"], listed[PROCESS]["id"]]
    table = line("images").splitlines()
    assert table[0].split() == ["IMAGE", "TAG", "RUNTIME", "HANDLER", "PLATFORM", "IMAGE", "ID", "SIZE"]
    assert table[1].split()[:3] == ["registry.example/library/python", "3", HYPERV]
    shown = line.json("inspecti", PYTHON, "--runtime-handler", HYPERV)
    assert shown["platform"]["os.version"] == "10.0.17763.4851"
    assert shown["config"]["Cmd"] == ["/bin/true"]
    whole = line("inspecti", PYTHON, "--runtime-handler", HYPERV)
    assert "windows(10.0.17763.4851)/amd64" in whole
    told = [shown["updatedAt"], *(each["digest"] for each in (shown["target"], shown["manifest"], *shown["layers"]))]
    assert [each for each in told if each not in whole] == []
    assert line("rmi", PYTHON, "--runtime-handler", HYPERV) == f"removed {PYTHON} ({HYPERV})\n"
    assert line.json("rmi", PYTHON)["removed"] == [{"reference": PYTHON, "runtimeHandler": PROCESS}]
    assert line("rmi", PYTHON) == ""
    assert "nothing removed" in line.error


def test_the_json_has_the_members_of_a_local_store(line: Commands, local: Commands) -> None:
    line("pull", PYTHON)
    for command in (("images",), ("inspecti", line.json("images")["images"][0]["id"])):
        remote_shape, local_shape = line.json(*command), local.json(*command)
        if command[0] == "images":
            (remote_shape,), (local_shape,) = remote_shape["images"], local_shape["images"]
        assert remote_shape.keys() - {"info"} == local_shape.keys()
        known = {
            key: value for key, value in remote_shape.items() if value is not None and key not in ("info", "layers")
        }
        assert known == {key: local_shape[key] for key in known}
    assert line.json("fsinfo").keys() == local.json("fsinfo").keys()
    assert (
        line.json("fsinfo")["imageFilesystems"][0]["usedBytes"]
        == local.json("fsinfo")["imageFilesystems"][0]["usedBytes"]
    )


def test_json_that_is_asked_for_is_json_also_when_only_ids_are_wanted(line: Commands) -> None:
    line("pull", PYTHON)
    assert line.json("images", "-q") == line.json("images")


def test_removal_everywhere_takes_every_handlers_image(line: Commands) -> None:
    line("pull", PYTHON, "--runtime-handler", PROCESS, "--runtime-handler", "kata")
    assert line("rmi", PYTHON, "--all-handlers").splitlines() == [
        f"removed {PYTHON} (kata)",
        f"removed {PYTHON} ({PROCESS})",
    ]


@pytest.mark.parametrize("kind", ["target", "manifest", "index alone", "manifest alone", "tag and index"])
def test_digests_mean_what_they_mean_in_a_local_store(line: Commands, local: Commands, kind: str) -> None:
    line("pull", PYTHON, "--runtime-handler", PROCESS, "--runtime-handler", HYPERV)
    first = local.json("images")["images"][0]
    name = {
        "target": PYTHON.removesuffix(":3") + f"@{first['target']['digest']}",
        "manifest": PYTHON.removesuffix(":3") + f"@{first['manifest']['digest']}",
        "index alone": first["target"]["digest"],
        "manifest alone": first["manifest"]["digest"],
        "tag and index": f"{PYTHON}@{first['target']['digest']}",
    }[kind]
    listed = [each["id"] for each in local.json("images", name)["images"]]
    assert [each["id"] for each in line.json("images", name)["images"]] == listed
    assert line.json("inspecti", name)["reference"] == PYTHON
    gone = line.json("rmi", name)["removed"]
    assert {each["runtimeHandler"] for each in gone} == ({HYPERV} if "manifest" in kind else {PROCESS, HYPERV})
    assert line.error == ""
    assert len(listed) == len(gone)
    assert line.json("images", name)["images"] == []


@pytest.mark.parametrize("words", [("images",), ("rmi", PYTHON), ("rmi", "-o", "json", PYTHON)])
def test_an_empty_handler_is_not_every_handler(line: Commands, words: tuple[str, ...]) -> None:
    """In a local store it is the default one; an unset variable of a script must not remove what others have."""
    line("pull", PYTHON, "--runtime-handler", PROCESS, "--runtime-handler", HYPERV)
    before = line.json("images")
    line(*words, "--runtime-handler", "", status=ExitStatus.USAGE)
    assert "an empty --runtime-handler" in line.error
    assert line.json("images") == before
    assert line.json("inspecti", PYTHON, "--runtime-handler", "")["runtimeHandler"] == PROCESS


def test_a_digest_everywhere_takes_every_handlers_image(line: Commands) -> None:
    line("pull", PYTHON, "--runtime-handler", PROCESS, "--runtime-handler", HYPERV)
    index = line.json("inspecti", PYTHON)["target"]["digest"]
    assert len(line.json("rmi", index, "--all-handlers")["removed"]) == 2
    assert line("images", "-q") == ""


def test_a_name_given_twice_counts_once(line: Commands) -> None:
    line("pull", PYTHON, "--runtime-handler", PROCESS, "--runtime-handler", "kata")
    assert line("rmi", PYTHON, PYTHON) == f"removed {PYTHON} ({PROCESS})\n"


def test_what_was_done_before_a_failure_is_printed(line: Commands) -> None:
    pulled = line("pull", PYTHON, "registry.example/none:1", "-o", "json", status=ExitStatus.NOT_FOUND)
    assert [each["reference"] for each in json.loads(pulled)["images"]] == [PYTHON]
    assert line("rmi", PYTHON, "", status=ExitStatus.USAGE) == f"removed {PYTHON} ({PROCESS})\n"
    line("pull", PYTHON)
    removed = json.loads(line("rmi", PYTHON, "", "-o", "json", status=ExitStatus.USAGE))["removed"]
    assert removed == [{"reference": PYTHON, "runtimeHandler": PROCESS}]


def test_a_second_tag_is_shown_where_it_is_asked_for(line: Commands, local: Commands) -> None:
    line("pull", PYTHON)
    local("tag", PYTHON, "registry.example/other:4")
    target = line.json("inspecti", PYTHON)["target"]["digest"]
    assert line("images", "-q") == local("images", "-q")
    for name in ("registry.example/other:4", f"registry.example/other@{target}"):
        assert line.json("inspecti", name)["reference"] == "registry.example/other:4"
        assert [each["reference"] for each in line.json("images", name)["images"]] == ["registry.example/other:4"]


def test_what_cri_does_not_tell_is_null(line: Commands) -> None:
    line("pull", PYTHON)
    (listed,) = line.json("images")["images"]
    assert (listed["labels"], listed["warnings"]) == (None, None)
    shown = line.json("inspecti", PYTHON)
    assert (shown["labels"], shown["warnings"]) == (None, [])


def test_the_server_shows_itself(line: Commands) -> None:
    assert line("version").splitlines()[1].startswith("imagestore 0.")
    assert line.json("version")["runtimeApiVersion"] == "v1"
    assert line.json("info")["runtimeHandlers"] == ["", "kata", HYPERV, PROCESS]
    assert "(default)" in line("info")
    assert "images" in line("fsinfo")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("images", "--runtime-handler", "gvisor"), ExitStatus.CONFIG, "'gvisor' is not configured"),
        (("inspecti", "none:1"), ExitStatus.NOT_FOUND, "'none:1' is not on unix:///"),
        (("inspecti", "none"), ExitStatus.NOT_FOUND, "means docker.io/library/none:latest"),
        (("pull", "registry.example/none:1"), ExitStatus.NOT_FOUND, "404"),
        (("pull", PYTHON, "--deadline", "0"), ExitStatus.DEADLINE, "did not finish"),
        (("pull", PYTHON, "--platform", "linux/amd64"), ExitStatus.USAGE, "--platform is for a local store"),
        (("pull", PYTHON, "--anonymous"), ExitStatus.USAGE, "--anonymous is for a local store"),
        (("pull", PYTHON, "--progress", "json"), ExitStatus.USAGE, "CRI doesn't report a pull's progress"),
        (("rmi", ""), ExitStatus.USAGE, "an empty name means no image"),
        (("rmi", PYTHON, "--gc"), ExitStatus.USAGE, "--gc is for a local store"),
        (("df",), ExitStatus.USAGE, "works on a local store"),
        (("gc",), ExitStatus.USAGE, "works on a local store"),
        (("config", "check"), ExitStatus.USAGE, "'config' works on a local store"),
    ],
)
def test_what_fails_has_the_status_of_a_local_store(
    line: Commands, arguments: tuple[str, ...], status: int, message: str
) -> None:
    line(*arguments, status=status)
    assert message in line.error


def test_a_login_from_standard_input_goes_before_the_servers_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"auths": {"registry.example": {"auth": "YWxpY2U6cmlnaHQ="}}}')
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "config.json"))
    guard = BasicAuth({"alice": "right"})
    with node(tmp_path / "store", auth=guard) as here, cri_server(here.store) as server:
        line = Commands(capsys, "--endpoint", server.endpoint)
        # The server has a login of its own; it counts only where the call brings none.
        line("pull", PYTHON)
        for given, status in (("alice:wrong", ExitStatus.ACCESS), ("alice:right", ExitStatus.OK)):
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
            line("pull", PYTHON, "--creds-stdin", status=status)
            assert "wrong" not in line.error


def test_crictls_settings_are_used_when_asked_for(
    line: Commands, server: CriServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "crictl.yaml"
    config.write_text(f"runtime-endpoint: {server.endpoint}\ntimeout: 20\n")
    line.options = ["--endpoint", "crictl", "--crictl-config", str(config)]
    assert line.json("version")["runtimeName"] == "imagestore"
    config.write_text(f"image-endpoint: {server.endpoint}\n")
    assert line.json("images") == {"images": []}
    config.write_text("timeout: 20\n")
    line("images", status=ExitStatus.CONFIG)
    assert "expected an endpoint in crictl's settings" in line.error
    monkeypatch.setenv("CONTAINER_RUNTIME_ENDPOINT", server.endpoint)
    line.options += ["--image-endpoint", server.endpoint]
    assert line.json("images") == {"images": []}


class BlindService(CriImageService):
    """Hears of no runtime handler in any answer, as from a server that doesn't know them."""

    def list(self, spec: ImageSpec | None = None) -> Sequence[ServedImage]:
        return [replace(each, spec=ImageSpec("")) for each in super().list()]

    def status(self, spec: ImageSpec) -> ServedImage | None:
        found = super().status(spec)
        return replace(found, spec=ImageSpec("")) if found is not None else None


def test_server_without_handlers_loses_no_image_that_is_meant_for_one(
    server: CriServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with BlindService(server.endpoint) as service:
        remote.pull(service, [(PYTHON, HYPERV)], auth=None, deadline_seconds=None, output="text")
        captured = capsys.readouterr()
        assert captured.out.startswith(f"{PYTHON} (-): sha256:")
        assert f"'{HYPERV}' was ignored" in captured.err
        index = service.list()[0].repo_digests[0]
        for name in (PYTHON, index, index.partition("@")[2], service.list()[0].id[:11]):
            with pytest.raises(UnsupportedError, match="nothing was removed"):
                remote.remove(service, [name], HYPERV, is_everywhere=False, output="text")
        assert len(service.list()) == 1
        remote.remove(service, [PYTHON], None, is_everywhere=False, output="text")
        assert capsys.readouterr().out == f"removed {PYTHON} (-)\n"
        assert service.list() == []


class WillingService(BlindService):
    """Takes any beginning of an id, and any filter of a list for none, as containerd 1.6 does."""

    def list(self, spec: ImageSpec | None = None) -> Sequence[ServedImage]:
        return super().list()

    def status(self, spec: ImageSpec) -> ServedImage | None:
        return super().status(self._whole(spec))

    def remove(self, spec: ImageSpec) -> None:
        super().remove(self._whole(spec))

    def _whole(self, spec: ImageSpec) -> ImageSpec:
        found = [each.id for each in self.list() if each.id.startswith(f"sha256:{spec.image}")]
        return ImageSpec(found[0] if found else spec.image)


def test_names_that_only_the_server_understands_are_resolved_by_it(
    server: CriServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with WillingService(server.endpoint) as service:
        remote.pull(service, [(PYTHON, "")], auth=None, deadline_seconds=None, output="text")
        (image,) = service.list()
        short = image.id[7:10]
        with pytest.raises(UnsupportedError, match="nothing was removed"):
            remote.remove(service, [short], HYPERV, is_everywhere=False, output="text")
        capsys.readouterr()
        for name, ids in ((short, image.id + "\n"), ("nothing:1", ""), ("", image.id + "\n")):
            remote.show_list(service, name, None, is_quiet=True, has_whole_ids=False, output="text")
            assert capsys.readouterr().out == ids
        remote.remove(service, [short], None, is_everywhere=False, output="text")
        assert capsys.readouterr().out == f"removed {PYTHON} (-)\n"
        assert service.list() == []


def test_only_the_option_endpoint_leaves_the_local_store(
    line: Commands, server: CriServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTAINER_RUNTIME_ENDPOINT", server.endpoint)
    line("pull", PYTHON)
    ImageStore(tmp_path / "other").close()
    line.options = ["--root", str(tmp_path / "other")]
    assert line.json("images") == {"images": []}
    assert line.json("version")["runtimeName"] is None
    line("info", status=ExitStatus.USAGE)
    assert "name it with --endpoint" in line.error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--image-endpoint", "/x"), "--image-endpoint needs --endpoint"),
        (("--crictl-config", "/x"), "--crictl-config needs --endpoint"),
        (("--endpoint", "/x", "--crictl-config", "/x"), "needs '--endpoint crictl'"),
        (("--endpoint", "/x", "--root", "/y"), "--root is for a local store"),
        (("--endpoint", "/x", "--config", "/y"), "--config is for a local store"),
        (("--endpoint", "tcp://x:1"), "over tcp has no authentication"),
    ],
)
def test_options_that_contradict_each_other_are_refused(line: Commands, options: tuple[str, ...], message: str) -> None:
    line.options = list(options)
    line("images", status=ExitStatus.USAGE)
    assert message in line.error


def test_an_absent_server_has_its_own_status(line: Commands, tmp_path: Path) -> None:
    line.options = ["--endpoint", str(tmp_path / "none.sock")]
    line("images", status=ExitStatus.UNAVAILABLE)
    assert "is the server running" in line.error
