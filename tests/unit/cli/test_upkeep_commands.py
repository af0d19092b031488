"""The operator's commands: pins, leases, reasons, space, checks, backups, eviction."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagestore import Digest, ImageStore
from imagestore.cli.exit_codes import ExitStatus
from imagestore.errors import StoreError, StoreFullError
from imagestore.metadata.leases import Leases
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.testing import RegistryServer
from tests.support.commands import Commands
from tests.support.node import CONFIG, HYPERV, PYTHON, python_image


class Line(Commands):
    """Runs commands on a store with one image for one handler."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str], server: RegistryServer) -> None:
        self.root = folder / "store"
        self._config = folder / "config.toml"
        self._config.write_text(CONFIG)
        super().__init__(capture, "--root", str(self.root), "--config", str(self._config))
        self.python = server.server.reference(PYTHON)
        self("pull", self.python, "--runtime-handler", HYPERV)

    def add_to_config(self, text: str) -> None:
        self._config.write_text(f"{CONFIG}\n{text}")

    def layer(self) -> tuple[str, Path]:
        """Digest and file of the image's last layer."""
        shown = self.json("inspecti", self.python, "--runtime-handler", HYPERV)["layers"][-1]
        return shown["digest"], Path(shown["path"])


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with RegistryServer({PYTHON: python_image()}) as server:
        yield Line(tmp_path, capsys, server)


def test_a_pinned_image_survives_eviction_and_an_unpinned_one_does_not(line: Line) -> None:
    assert line("pin", line.python, "--runtime-handler", HYPERV) == f"pinned {line.python} ({HYPERV})\n"
    assert line.json("gc", "--unused-for", "0")["evicted"] == []
    assert line.json("images")["images"][0]["pinned"] is True
    assert line.json("unpin", line.python)["images"] == [
        {"reference": line.python, "runtimeHandler": HYPERV, "pinned": False}
    ]
    assert f"would remove {line.python} ({HYPERV}): unused for 0.0 days" in line("gc", "-n", "--unused-for", "0s")
    planned = line.json("gc", "-n", "--keep-last", "0")
    done = line.json("gc", "--keep-last", "0", "--runtime-handler", HYPERV)
    assert done["evicted"][0]["reason"] == "not among the newest 0"
    assert done["bytesFreed"] == planned["bytesFreed"] > 0
    assert done["keptBlobs"] == 0
    line("pin", line.python, status=3)


def test_an_image_gets_a_reference_and_loses_one(line: Line) -> None:
    image_id = line.json("images")["images"][0]["id"]
    assert line("tag", line.python, "mirror.example/python") == f"mirror.example/python:latest ({HYPERV}): {image_id}\n"
    (tagged,) = line.json("tag", image_id, "mirror.example/python:3", "--all-handlers")["images"]
    assert (tagged["reference"], tagged["runtimeHandler"]) == ("mirror.example/python:3", HYPERV)
    assert len(line.json("images")["images"]) == 3
    assert line("untag", line.python, "nothing:1", status=3) == f"untagged {line.python} ({HYPERV})\n"
    gone = line.json("untag", "mirror.example/python", "--runtime-handler", HYPERV)["removed"]
    assert gone == [{"reference": "mirror.example/python:latest", "runtimeHandler": HYPERV}]
    line("untag", "mirror.example/python:3", status=2)
    assert "imagestore rmi" in line.error
    line("tag", "mirror.example/python:3", f"a@{image_id}", status=2)
    for command in (["tag", "a", "b"], ["untag", "a"]):
        line(*command, "--runtime-handler", HYPERV, "--all-handlers", status=2)
    assert [each["reference"] for each in line.json("images")["images"]] == ["mirror.example/python:3"]


def test_watermarks_remove_nothing_from_a_disk_with_space(line: Line) -> None:
    assert line.json("gc", "--high", "100")["evicted"] == []
    assert len(line.json("gc", "-n", "--high", "0")["evicted"]) == 1


def test_a_plan_says_what_would_be_left_after_it(line: Line) -> None:
    rules = ("--keep-last", "0")
    planned = line("gc", "-n", *rules)
    assert "of 1 removed image would be freed\n" in planned
    assert "; 0 blobs would be kept\n" in planned
    assert line.json("gc", "-n", *rules)["keptBlobs"] == 0
    assert "; 0 blobs would be kept\n" not in line("gc", "-n")
    done = line("gc", *rules)
    assert "; 0 blobs kept\n" in done


@pytest.mark.parametrize("more", [(), ("--keep-last", "3")])
def test_a_low_watermark_alone_names_the_option_it_goes_with(line: Line, more: tuple[str, ...]) -> None:
    line("gc", "--low", "5", *more, status=2)
    assert "--low goes with --high" in line.error


@pytest.mark.parametrize(
    "arguments",
    [
        ("--runtime-handler", "x"),
        ("--high", "5", "--low", "6"),
        ("--unused-for", "soon"),
        ("--keep-last", "-1"),
    ],
)
def test_rules_that_make_no_sense_are_usage_errors(line: Line, arguments: tuple[str, ...]) -> None:
    line("gc", *arguments, status=2)
    assert "Traceback" not in line.error


def test_eviction_for_an_unknown_handler_is_refused(line: Line) -> None:
    line("gc", "--keep-last", "0", "--runtime-handler", "mistyped", status=9)
    assert "known handlers" in line.error
    assert len(line.json("gc", "--keep-last", "0", "--runtime-handler", HYPERV)["evicted"]) == 1


def test_why_shows_the_chain_and_says_when_nothing_keeps_a_blob(line: Line) -> None:
    digest, _ = line.layer()
    assert line("why", digest).startswith(f"image {line.python} ({HYPERV}) -> sha256:")
    (chain,) = line.json("why", digest)["keptBy"]
    assert (chain["kind"], chain["runtimeHandler"], chain["chain"][-1]) == ("image", HYPERV, digest)
    line("rmi", line.python)
    assert "the next 'imagestore gc' frees it" in line("why", digest)
    line("gc")
    assert line("why", digest, status=3) == f"{digest}: nothing keeps it\n"


def test_why_explains_every_record_of_an_image(line: Line) -> None:
    (shown,) = line.json("images")["images"]
    manifest = shown["manifest"]["digest"]
    chain = f"image {line.python} ({HYPERV}) -> {manifest}"
    for name in (line.python, shown["id"].removeprefix("sha256:")[:12]):
        assert line("why", name) == f"{line.python} ({HYPERV}): manifest {manifest}\n  {chain}\n"
    (explained,) = line.json("why", line.python)["images"]
    assert (explained["reference"], explained["runtimeHandler"]) == (line.python, HYPERV)
    assert [kept["chain"] for kept in explained["keptBy"]] == [[manifest]]


def test_why_takes_a_short_name_with_a_tag_for_a_name(line: Line) -> None:
    line("why", "python:3", status=3)
    assert "'python:3' is no digest, and no image in the store" in line.error


@pytest.mark.parametrize("name", ["nonsense", "sha256:0x"])
def test_why_says_what_it_takes_when_a_name_means_nothing(line: Line, name: str) -> None:
    assert line("why", name, status=3) == ""
    assert line.error.startswith(f"imagestore: '{name}' is no digest, and no image in the store")


def test_df_shows_each_image_and_the_sum(line: Line) -> None:
    (image,) = line.json("df")["images"]
    assert image["uniqueBytes"] == image["bytes"] == line.json("df")["keptBytes"]
    out = line("df")
    # Like every time that is shown, with its zone.
    assert re.search(rf"python +3 +{HYPERV} .* {re.escape(image['lastUsedAt'][:16])}Z\n", out)
    assert "disk free" in out


def test_df_of_a_disk_that_counts_no_blocks_calls_it_neither_full_nor_empty(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(line.root)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*real[:2], 0, 0, 0, *real[5:])))
    assert re.search(r"^disk free +not counted$", line("df"), re.MULTILINE)


def test_leases_are_made_listed_renewed_and_deleted(line: Line) -> None:
    digest, _ = line.layer()
    made = line.json("leases", "create", "mine", "--content", digest, "--expires", "2h", "--flat", "--label", "a=b")
    assert made["labels"] == {"a": "b", "containerd.io/gc.flat": "true"}
    assert (made["id"], made["flat"], made["content"], made["images"]) == ("mine", True, [digest], [])
    assert line.json("leases", "renew", "mine", "--expires", "0")["expiresAt"] is None
    assert re.search(r"^mine +.* never +1 +yes$", line("leases", "list"), re.MULTILINE)
    line("rmi", line.python, "--gc")
    assert line.json("gc")["keptBlobs"] == 1
    line("leases", "delete", "mine")
    assert line.json("gc")["keptBlobs"] == 0
    assert line("leases", "create").startswith("user-")
    assert "create [OPTIONS] [ID]" in line("leases", "create", "--help")


def test_leases_deleted_before_a_failure_are_printed(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line("leases", "create", "one")
    line("leases", "create", "two")
    delete = Leases.delete

    def full(self: Leases, lease_id: str, **given: bool) -> bool:
        if lease_id == "two":
            raise StoreFullError("no space")
        return delete(self, lease_id, **given)

    monkeypatch.setattr(Leases, "delete", full)
    assert line.json("leases", "delete", "one", "two", status=ExitStatus.STORE) == {"deleted": ["one"]}


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("create", ""), 2),
        (("delete", "gone"), 3),
        (("renew", "gone"), 3),
        (("create", "--content", "x"), 2),
        (("create", "--label", "x"), 2),
        (("create", "--expires", "x"), 2),
        (("create", "--expires", "999999999w"), 2),
    ],
)
def test_wrong_lease_commands_have_their_status(line: Line, arguments: tuple[str, ...], status: int) -> None:
    line("leases", *arguments, status=status)
    assert line.json("leases", "list")["leases"] == []


def test_a_lease_beyond_every_calendar_is_listed(line: Line) -> None:
    metadata = SqliteMetadataStore(line.root / "metadata.db")
    metadata.leases.create("far", lifetime_seconds=1e15)
    metadata.close()
    assert re.search(r"^far +.* 9999-12-31T23:59:59.000Z +0$", line("leases", "list"), re.MULTILINE)
    assert line.json("leases", "list")["leases"][0]["expiresAt"] == "9999-12-31T23:59:59.000Z"


def test_names_before_one_that_fails_are_printed(line: Line) -> None:
    assert line("pin", line.python, "nothing", "--runtime-handler", HYPERV, status=3) == (
        f"pinned {line.python} ({HYPERV})\n"
    )
    # An empty name is refused when its turn comes.
    assert line("rmi", "--force", line.python, "", status=2) == f"removed {line.python} ({HYPERV})\n"
    assert line.json("images")["images"] == []


@pytest.mark.parametrize(
    "words",
    ["pin {python}", "unpin {python}", "export {tmp}/a.tar {python}", "inspecti {python}", "rmi {python}", "images"],
)
def test_an_unknown_handler_is_an_error_of_every_command(line: Line, tmp_path: Path, words: str) -> None:
    arguments = words.format(python=line.python, tmp=tmp_path).split()
    line(*arguments, "--runtime-handler", "nope", status=9)
    assert "'nope'" in line.error
    assert "pull it first" not in line.error


@pytest.mark.parametrize("name", ["python@sha256:abc", "Bad!!", ""])
@pytest.mark.parametrize(
    "words",
    ["inspecti", "pin", "unpin", "rmi", "rmi --gc", "export a.tar", "why", "images", "images -o json", "tag {} new:1"],
)
def test_a_name_that_can_mean_no_image_is_wrong_usage(line: Line, words: str, name: str) -> None:
    """Whether it is there isn't the question: a pull wouldn't bring it either."""
    arguments = [name if word == "{}" else word for word in words.split()]
    line(*arguments, *([] if name in arguments else [name]), status=2)
    assert "pull it first" not in line.error


def test_nothing_goes_for_a_line_that_can_not_be_read(line: Line) -> None:
    assert line("rmi", "--gc", line.python, "Bad!!", status=2) == ""
    assert line("images", "-q") != ""


@pytest.mark.parametrize(
    ("words", "member", "told", "status"),
    [
        (("pin", "PYTHON", "nothing"), "images", {"PYTHON", "further.example/a:1"}, 3),
        (("untag", "further.example/a:1", "nothing"), "removed", {"further.example/a:1"}, 3),
        (("rmi", "PYTHON", ""), "removed", {"PYTHON"}, 2),
        (("rmi", "--gc", "PYTHON", "ffff"), "removed", {"PYTHON"}, 2),
        (("pull", "--runtime-handler", HYPERV, "PYTHON", "127.0.0.1:1/nothing:1"), "images", {"PYTHON"}, 6),
    ],
    ids=("pin", "untag", "rmi", "rmi --gc", "pull"),
)
def test_json_tells_what_was_done_before_a_name_that_fails(
    line: Line, words: tuple[str, ...], member: str, told: set[str], status: int
) -> None:
    line("tag", line.python, "further.example/a:1")
    add_twins(line)
    shown = line.json(*(line.python if word == "PYTHON" else word for word in words), status=status)
    assert {each["reference"] for each in shown[member]} == {line.python if name == "PYTHON" else name for name in told}


def add_twins(line: Line) -> None:
    """Two images whose ids begin alike, so that a removal by that beginning fails when its turn comes."""
    with contextlib.closing(SqliteMetadataStore(line.root / "metadata.db")) as metadata:
        (record,) = metadata.images.find(reference=line.python)
        for end in "01":
            image_id = Digest("sha256", "f" * 63 + end)
            metadata.images.put(replace(record, reference=f"twin.example/{end}:1", image_id=image_id), {})


def test_images_before_a_name_that_fails_are_printed_with_gc_too(line: Line) -> None:
    told = f"removed {line.python} ({HYPERV})\nfreed 0B\n"
    add_twins(line)
    assert line("rmi", "--gc", line.python, "ffff", status=2) == told
    assert "fits 2 images" in line.error
    line("rmi", "twin.example/0:1", "twin.example/1:1")
    assert len(line.json("gc")["blobs"]) > 0


@pytest.mark.parametrize("output", ["text", "json"])
def test_evicted_images_are_printed_if_the_collection_fails(
    line: Line, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise StoreError("the disk is broken")

    monkeypatch.setattr(ImageStore, "collect_garbage", fails)
    if output == "json":
        told = line.json("gc", "--keep-last", "0", status=8)
        assert [each["reference"] for each in told["evicted"]] == [line.python]
        assert (told["dryRun"], told["blobs"], told["failures"]) == (False, None, None)
    else:
        assert line("gc", "--keep-last", "0", status=8).startswith(f"removed {line.python}")
    assert line("gc", status=8) == ""


def test_an_image_that_the_configuration_pins_is_shown_so(line: Line) -> None:
    line.add_to_config(f'[plugins."io.containerd.cri.v1.images".pinned_images]\nsandbox = "{line.python}"\n')
    line("tag", line.python, "other.example/a:1")
    pinned = {each["reference"]: each["pinned"] for each in line.json("images")["images"]}
    assert pinned == {line.python: True, "other.example/a:1": False}
    assert {each["reference"]: each["pinned"] for each in line.json("df")["images"]} == pinned
    assert line.json("inspecti", line.python, "--runtime-handler", HYPERV)["pinned"] is True
    assert "   config" in next(each for each in line("df").splitlines() if "library/python" in each)
    line("pin", "other.example/a:1")
    shown = {each["reference"]: each["pinned"] for each in line.json("unpin", line.python)["images"]}
    assert shown == pinned
    assert f"{line.python}: the configuration pins it still" in line.error
    assert "a:1: the configuration" not in line.error


def test_a_rebuild_is_printed_before_the_check_that_follows(line: Line) -> None:
    (line.root / "metadata.db").write_bytes(b"garbage" * 1000)

    def interrupt_the_check() -> None:
        # Not the rebuild, however long that takes on a busy machine: only the check listens to signals.
        until = time.monotonic() + 60
        while "cancelled" not in str(signal.getsignal(signal.SIGINT)) and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    killer = threading.Thread(target=interrupt_the_check)
    killer.start()
    # At this rate it never ends.
    assert f"restored {line.python} ({HYPERV})" in line("check", "--rebuild", "--rate", "1e-9", status=130)
    killer.join()


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "fast"])
def test_a_rate_of_hashing_that_is_none_is_refused(line: Line, rate: str) -> None:
    line("check", "--rate", rate, status=2)


def test_check_finds_and_repair_fixes_a_damaged_layer(line: Line) -> None:
    assert "0 blobs" not in line("check")
    digest, path = line.layer()
    good = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert f"blob damaged: {digest}" in line("check", status=7)
    assert line.json("check", "--rate", "1000", status=7)["faults"][0]["kind"] == "blob damaged"
    assert f"fetched and verified {digest}" in line("repair", "--progress", "none")
    assert path.read_bytes() == good
    assert line.json("repair", "--progress", "none")["fetched"] == []
    assert line.json("check", "--resume")["faults"] == []


@pytest.mark.parametrize("which", ["config", "layer"])
def test_content_that_the_disk_can_not_read_is_no_damage(
    line: Line, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """A rebuild reads no layer and not every config; the check behind it does."""
    shown, (_, layer) = line.json("inspecti", line.python, "--runtime-handler", HYPERV), line.layer()
    digest = shown["id"] if which == "config" else shown["layers"][-1]["digest"]
    (line.root / "metadata.db").write_bytes(b"garbage" * 1000)
    real = os.open

    def opened(path: Any, *arguments: Any, **named: Any) -> int:
        if str(path).endswith(digest.partition(":")[2]):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        out = line("check", "--rebuild", status=8)
        assert f"blob unreadable: {digest}: the disk can't read it: Input/output error" in out
        assert "damaged:" not in out
        line("export", str(line.root.parent / "a.tar"), line.python, "--runtime-handler", HYPERV, status=8)
        if which == "config":
            layer.chmod(0o644)
            layer.write_bytes(b"other")
            line("check", status=7)


def test_a_damaged_database_has_a_hint_that_works(line: Line) -> None:
    (line.root / "metadata.db").write_bytes(b"garbage" * 1000)
    line("images", status=8)
    assert "check --rebuild" in line.error
    assert f"restored {line.python} ({HYPERV})" in line("check", "--rebuild")
    assert line.json("images")["images"][0]["reference"] == line.python
    assert line.json("check", "--rebuild")["rebuild"]["wasWhole"] is True


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_rebuild_tells_what_has_no_name_and_what_it_keeps(line: Line, output: str) -> None:
    with contextlib.closing(SqliteMetadataStore(line.root / "metadata.db")) as metadata:
        (record,) = metadata.images.find()
        metadata.images.remove([(record.reference, record.handler)])
        metadata.keep_copy(at_once=True)
        metadata.images.put(record, {})
    (line.root / "metadata.db").write_bytes(b"garbage" * 1000)
    (copy,) = [each for each in (line.root / "copies").iterdir() if "-2" in each.name]
    if output == "json":
        rebuild = line.json("check", "--rebuild")["rebuild"]
        assert (rebuild["copy"], rebuild["restored"]) == (str(copy), [])
        assert rebuild["unnamed"] == [str(record.target.digest)]
        name = rebuild["foundLease"]
    else:
        said = line("check", "--rebuild")
        assert f"records restored from: {copy}" in said
        assert f"without a name: {record.target.digest}" in said
        found = re.search(r"^lease (found-[0-9a-f]+) keeps all content for a day$", said, re.MULTILINE)
        assert found is not None
        name = found[1]
    (lease,) = line.json("leases", "list")["leases"]
    assert lease["id"] == name
    assert str(record.image_id) in lease["content"]


def test_a_backup_holds_the_records(line: Line, tmp_path: Path) -> None:
    file = tmp_path / "backup.db"
    assert str(file) in line("backup", str(file))
    with contextlib.closing(SqliteMetadataStore(file)) as backup:
        (record,) = backup.images.find()
    assert record.reference == line.python
    line("backup", str(file), status=1)
    assert "expected a new file" in line.error
    assert Digest.parse(str(record.image_id)) == record.image_id


def test_what_can_not_be_deleted_is_named_after_all_else_is_freed(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    digest, path = line.layer()
    unlink = os.unlink

    def refused(name: str, *, dir_fd: int | None = None) -> None:
        if name == path.name:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(name, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refused)
        told = line("rmi", line.python, "--gc", status=8)
        assert told.startswith(f"removed {line.python} ({HYPERV})\nfreed ")
        assert f"{path}: can't delete: Operation not permitted" in line.error
        line("pull", line.python, "--runtime-handler", HYPERV)
        told = line("gc", "--keep-last", "0", status=8)
        assert f"removed {line.python}" in told
        assert f"not freed {digest}: {path}: can't delete" in told
        assert f"imagestore: {path}: can't delete" in line.error
        shown = line.json("gc", status=8)
        assert (shown["blobs"], shown["keptBlobs"], shown["bytesFreed"]) == ([], 1, 0)
        assert [each["subject"] for each in shown["failures"]] == [digest]
    shown = line.json("gc")
    assert (shown["blobs"], shown["failures"]) == ([digest], [])
