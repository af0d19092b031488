"""Layers become a tree by the rules of OCI's layer.md: whiteouts, links, metadata, sparse files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from imagestore import CancelToken, Digest, ImageStore, UnpackLimits, platforms
from imagestore.errors import (
    AlreadyExistsError,
    DocumentError,
    IntegrityError,
    OperationCancelledError,
    PreconditionError,
    UnsupportedError,
)
from imagestore.events import Event, LayerUnpacked, LayerUnpacking
from imagestore.oci import media_types
from imagestore.testing import Layer, RegistryServer, build_image
from imagestore.testing.builders.bodies import BytesBody
from imagestore.testing.builders.layers import layer_from_tar
from tests.unit.store.unpack.making import (
    IS_ROOTLESS,
    REFERENCE,
    archive,
    entry,
    folder,
    hard_link,
    link,
    listed,
    made,
    stored,
    unpacked,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="owners and devices need root")


def test_upper_layers_replace_what_lower_ones_have(tmp_path: Path) -> None:
    lower = made(folder("etc"), entry("etc/a", data=b"1"), entry("etc/b", data=b"1"), folder("var"), entry("var/x"))
    upper = made(entry("etc/a", data=b"2"), entry("var", data=b"a file now"), folder("etc/b"))
    report = unpacked(tmp_path, lower, upper)
    assert listed(tmp_path / "root") == {"etc": "folder", "etc/a": "2", "etc/b": "folder", "var": "a file now"}
    assert (report.entries, report.path) == (8, str(tmp_path / "root"))


def test_whiteouts_hide_what_lower_layers_have_and_nothing_of_their_own(tmp_path: Path) -> None:
    lower = made(folder("a"), entry("a/gone"), entry("a/stays", data=b"1"), folder("b"), folder("b/c"), entry("b/c/d"))
    upper = made(entry("a/new", data=b"2"), entry("a/.wh.gone"), entry("a/.wh.new"), entry(".wh.b"), entry(".wh.none"))
    unpacked(tmp_path, lower, upper)
    assert listed(tmp_path / "root") == {"a": "folder", "a/stays": "1", "a/new": "2"}


@pytest.mark.parametrize("is_first", [True, False])
def test_an_opaque_folder_hides_all_that_lower_layers_have_in_it(tmp_path: Path, is_first: bool) -> None:
    lower = made(folder("a"), entry("a/gone"), folder("a/inner"), entry("a/inner/gone"), entry("other", data=b"1"))
    new = [entry("a/inner/new", data=b"2"), entry("a/kept", data=b"2")]
    opaque = [entry("a/.wh..wh..opq")]
    unpacked(tmp_path, lower, made(*(opaque + new if is_first else new + opaque)))
    assert listed(tmp_path / "root") == {
        "a": "folder",
        "a/inner": "folder",
        "a/inner/new": "2",
        "a/kept": "2",
        "other": "1",
    }


def test_names_that_aufs_kept_for_itself_are_left_out(tmp_path: Path) -> None:
    unpacked(tmp_path, made(folder(".wh..wh.plnk"), entry(".wh..wh.plnk/1.2"), entry("a", data=b"1")))
    assert listed(tmp_path / "root") == {"a": "1"}


@pytest.mark.parametrize(
    "name", [".wh..wh.plnk/1.2", "./.wh..wh.plnk//1.2", "/.wh..wh.plnk/1.2", "b/../.wh..wh.plnk/1.2"]
)
@pytest.mark.parametrize("target", [".wh..wh.plnk/1.2", "/.wh..wh.plnk/./1.2", "c/../.wh..wh.plnk/1.2"])
def test_hard_links_to_what_aufs_kept_are_one_file(tmp_path: Path, name: str, target: str) -> None:
    lower = made(folder("bin"), entry("bin/a", data=b"old"))
    upper = made(entry(name, data=b"new", mode=0o751, mtime=7), hard_link("bin/a", target), hard_link("b", target))
    unpacked(tmp_path, lower, upper)
    assert listed(tmp_path / "root") == {"b": "new", "bin": "folder", "bin/a": "new"}
    found = [os.stat(tmp_path / "root" / each) for each in ("b", "bin/a")]
    assert found[0] == found[1]
    assert (found[0].st_mode & 0o777, found[0].st_mtime, found[0].st_nlink) == (0o751, 7, 2)


def test_what_aufs_kept_may_be_another_name_of_a_file_before_it(tmp_path: Path) -> None:
    kept = ".wh..wh.plnk/1.2"
    unpacked(tmp_path, made(entry("a", data=b"1"), hard_link(kept, "a"), hard_link("b", kept)))
    assert listed(tmp_path / "root") == {"a": "1", "b": "1"}


def test_what_aufs_kept_is_there_for_its_own_layer_only(tmp_path: Path) -> None:
    kept = ".wh..wh.plnk/1.2"
    with pytest.raises(DocumentError, match=r"hard link 'a' to .*, which isn't there"):
        unpacked(tmp_path, made(entry(kept, data=b"1")), made(hard_link("a", kept)))


def test_files_below_a_link_to_a_folder_are_where_it_leads(tmp_path: Path) -> None:
    lower = made(
        folder("usr/lib"), link("lib", "usr/lib"), link("absolute", "/usr/./lib"), link("usr/up", "../usr/lib")
    )
    upper = made(entry("lib/a", data=b"1"), entry("absolute/b", data=b"2"), entry("usr/up/c", data=b"3"))
    unpacked(tmp_path, lower, upper)
    found = listed(tmp_path / "root")
    assert (found["usr/lib/a"], found["usr/lib/b"], found["usr/lib/c"]) == ("1", "2", "3")


def test_names_lead_where_they_lead_when_their_entry_comes(tmp_path: Path) -> None:
    """A link that is exchanged between two files of one folder, by a link, a folder and a file's whiteout."""
    unpacked(
        tmp_path,
        made(
            *(folder("a"), folder("b"), link("way", "a"), entry("way/1", data=b"1")),
            *(link("way", "b"), entry("way/2", data=b"2"), entry("way/2", data=b"two")),
            *(folder("way"), entry("way/3", data=b"3"), link("b", "way"), entry("b/4", data=b"4")),
        ),
        made(entry("b/5", data=b"5"), entry(".wh.b"), entry("b/6", data=b"6"), entry("b/7", data=b"7")),
    )
    found = {name: text for name, text in listed(tmp_path / "root").items() if text != "folder"}
    assert found == {"a/1": "1", "way/3": "3", "way/4": "4", "way/5": "5", "b/6": "6", "b/7": "7"}


def test_more_folders_in_turns_than_stay_open(tmp_path: Path) -> None:
    entries = [entry(f"{turn % 3}/{number}/{turn}", data=b"1") for turn in range(6) for number in range(70)]
    unpacked(tmp_path, made(*entries))
    assert sum(text == "1" for text in listed(tmp_path / "root").values()) == len(entries)


@needs_root
def test_files_have_their_group_in_folders_that_pass_on_theirs(tmp_path: Path) -> None:
    """A set-group-id folder gives its group to what is made in it, also when it becomes one between two files."""
    layer = made(
        *(folder("d"), link("l", "d"), entry("d/a"), entry("d/b", gid=5)),
        *(folder("d", mode=0o2755, gid=7), entry("d/c"), entry("d/d", gid=7), entry("l/e"), entry("d/f", uid=3)),
        *(folder("l/", gid=8), entry("d/g"), entry("l/h")),
    )
    unpacked(tmp_path, layer)
    owners = {each.name: (each.stat().st_uid, each.stat().st_gid) for each in (tmp_path / "root/d").iterdir()}
    assert owners == {"a": (0, 0), "b": (0, 5), "c": (0, 0), "d": (0, 7), "e": (0, 0), "f": (3, 0), "g": (0, 0)}
    assert (tmp_path / "root/l/h").stat().st_gid == 0


def test_hard_links_are_one_file(tmp_path: Path) -> None:
    unpacked(tmp_path, made(folder("d"), entry("d/a", data=b"1"), hard_link("b", "d/a"), hard_link("c", "/d/./a")))
    root = tmp_path / "root"
    assert len({os.stat(root / name).st_ino for name in ("d/a", "b", "c")}) == 1


def test_modes_and_times_are_those_of_the_layer_folders_too(tmp_path: Path) -> None:
    pax = {"mtime": "1600000000.123456789"}
    layer = made(
        folder("d", mode=0o1777, mtime=1_500_000_000),
        entry("d/a", mode=0o4755, pax_headers=pax, data=b"1"),
        link("d/l", "a"),
        folder("closed", mode=0o500),
        entry("closed/b", data=b"2"),
    )
    unpacked(tmp_path, layer, made(entry("d/later", data=b"2")))
    root = tmp_path / "root"
    assert stat.S_IMODE(os.stat(root / "d/a").st_mode) == 0o4755
    assert os.stat(root / "d/a").st_mtime_ns == 1_600_000_000_123_456_789
    assert os.lstat(root / "d/l").st_mtime == 1_600_000_000
    assert (stat.S_IMODE(os.stat(root / "d").st_mode), os.stat(root / "d").st_mtime) == (0o1777, 1_500_000_000)
    assert stat.S_IMODE(os.stat(root / "closed").st_mode) == 0o500
    assert stat.S_IMODE(os.stat(root).st_mode) == 0o755


def test_the_entry_of_the_root_is_the_folder_itself(tmp_path: Path) -> None:
    unpacked(tmp_path, made(folder("./", mode=0o711), entry("./a", data=b"1")))
    assert stat.S_IMODE(os.stat(tmp_path / "root").st_mode) == 0o711
    assert listed(tmp_path / "root") == {"a": "1"}


@needs_root
def test_owners_devices_and_attributes_are_made_by_root(tmp_path: Path) -> None:
    attributes = {"SCHILY.xattr.user.text": "ä", "SCHILY.xattr.security.capability": "\x01\0\0\x02\0\x04" + "\0" * 14}
    layer = made(
        entry("a", uid=1000, gid=70000, mode=0o2755, data=b"1", pax_headers=attributes),
        entry("null", tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666),
        entry("fifo", tarfile.FIFOTYPE, mode=0o622, uid=5),
        link("l", "a"),
    )
    report = unpacked(tmp_path, layer)
    root = tmp_path / "root"
    status = os.stat(root / "a")
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1000, 70000, 0o2755)
    assert os.stat(root / "null").st_rdev == os.makedev(1, 3)
    assert stat.S_IMODE(os.stat(root / "fifo").st_mode) == 0o622
    if not report.left_out:
        assert os.getxattr(root / "a", "user.text") == "ä".encode()
        assert os.getxattr(root / "a", "security.capability")[:1] == b"\x01"


def test_without_root_devices_are_left_out_and_reported(tmp_path: Path) -> None:
    device = entry("dev/null", tarfile.CHRTYPE, devmajor=1, devminor=3)
    report = unpacked(tmp_path, made(device, entry("a", uid=1234, data=b"1")), rootless=True)
    assert listed(tmp_path / "root") == {"a": "1", "dev": "folder"}
    assert report.left_out == ("dev/null: a device, which only root can make",)
    assert os.stat(tmp_path / "root/a").st_uid == os.geteuid()


DEVICE = entry("dev/x", tarfile.CHRTYPE, devmajor=1, devminor=3)


@pytest.mark.parametrize(
    "layers",
    [
        [made(DEVICE, hard_link("dev/y", "dev/x"))],
        [made(folder("dev"), DEVICE, hard_link("dev/y", "./dev/x"))],
        [made(folder("dev"), DEVICE), made(hard_link("dev/y", "/dev/x"))],
        [made(folder("dev"), entry("dev/y", data=b"1")), made(DEVICE), made(hard_link("dev/y", "dev/x"))],
        [made(folder("dev"), link("devices", "dev"), DEVICE, hard_link("devices/y", "devices/x"))],
        [made(link("devices", "dev"), DEVICE, hard_link("dev/y", "devices/x"))],
    ],
    ids=["no folder", "one layer", "two layers", "in the place of a file", "through a link", "link to no folder"],
)
def test_other_names_of_what_was_left_out_are_left_out(tmp_path: Path, layers: list[Layer]) -> None:
    report = unpacked(tmp_path, *layers, rootless=True)
    assert not {"dev/x", "dev/y"} & listed(tmp_path / "root").keys()
    assert [each.endswith("y: a device, which only root can make") for each in report.left_out] == [False, True]


def test_a_name_of_a_name_of_what_was_left_out_is_left_out(tmp_path: Path) -> None:
    upper = made(hard_link("z", "dev/y"), entry("file", data=b"1"))
    report = unpacked(tmp_path, made(DEVICE, hard_link("dev/y", "dev/x")), upper, rootless=True)
    assert report.left_out_count == 3
    assert listed(tmp_path / "root") == {"dev": "folder", "file": "1"}


def test_what_came_in_the_place_of_a_device_counts(tmp_path: Path) -> None:
    lower = made(folder("dev"), DEVICE)
    unpacked(tmp_path, lower, made(entry("dev/x", data=b"1"), hard_link("dev/y", "dev/x")), rootless=True)
    assert listed(tmp_path / "root") == {"dev": "folder", "dev/x": "1", "dev/y": "1"}


def test_a_link_to_a_device_that_was_hidden_is_refused(tmp_path: Path) -> None:
    lower = made(folder("dev"), DEVICE)
    with pytest.raises(DocumentError, match="hard link 'dev/y' to 'dev/x', which isn't there"):
        unpacked(tmp_path, lower, made(entry("dev/.wh.x")), made(hard_link("dev/y", "dev/x")), rootless=True)


def test_root_or_rootless_is_said_and_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PreconditionError, match="only root") as refused:
        unpacked(tmp_path, made(entry("a")), rootless=False)
    assert "--rootless" in refused.value.hint


def test_holes_of_sparse_files_stay_holes(tmp_path: Path) -> None:
    path = tmp_path / "sparse.tar"
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.seek(64 << 20)
        file.write(b"end")
    subprocess.run(["tar", "--sparse", "-cf", path, "-C", tmp_path, "big"], check=True)
    unpacked(tmp_path, layer_from_tar(path.read_bytes()))
    found = tmp_path / "root" / "big"
    assert (found.stat().st_size, found.stat().st_blocks * 512 < 1 << 20) == ((64 << 20) + 3, True)
    assert found.read_bytes() == big.read_bytes()


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_names_are_as_long_and_odd_as_formats_allow(tmp_path: Path, form: int) -> None:
    name = "d/" + "n" * 90 if form == tarfile.USTAR_FORMAT else "d/" + "n" * 200 + "/" + "ü" * 100
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        info, data = entry(name, data=b"1")
        tar.addfile(info, io.BytesIO(data))
    unpacked(tmp_path, layer_from_tar(buffer.getvalue()))
    assert listed(tmp_path / "root")[name] == "1"


def test_names_that_are_no_text_are_bytes_on_disk(tmp_path: Path) -> None:
    unpacked(tmp_path, made(entry("a\udcff", data=b"1")))
    assert os.listdir(os.fsencode(tmp_path / "root")) == [b"a\xff"]


def test_progress_reports_bytes_and_layers(tmp_path: Path) -> None:
    events: list[Event] = []
    layer = made(entry("a", data=os.urandom(3 << 20)))
    unpacked(tmp_path, layer, observer=events.append)
    read = [each.read for each in events if isinstance(each, LayerUnpacking)]
    assert read == sorted(read)
    assert read[-1] == layer.body.size
    assert [each.entries for each in events if isinstance(each, LayerUnpacked)] == [1]


def test_what_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    token = CancelToken()

    def cancel(event: Event) -> None:
        token.cancel()

    with pytest.raises(OperationCancelledError):
        unpacked(tmp_path, made(entry("a", data=os.urandom(4 << 20))), observer=cancel, cancel=token)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["store"]


def test_a_folder_with_something_in_it_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/mine").touch()
    with pytest.raises(AlreadyExistsError):
        unpacked(tmp_path, made(entry("a")))
    assert listed(tmp_path / "root") == {"mine": ""}


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    unpacked(tmp_path, made(entry("a", data=b"1")))
    assert listed(tmp_path / "root") == {"a": "1"}


@pytest.mark.parametrize("limits", [UnpackLimits(size=10), UnpackLimits(entries=2), UnpackLimits(depth=2)])
def test_what_is_over_a_limit_is_refused(tmp_path: Path, limits: UnpackLimits) -> None:
    layer = made(folder("a"), folder("a/b"), entry("a/b/c", data=b"12345678901"))
    with pytest.raises(DocumentError, match="the limit of this unpacking"):
        unpacked(tmp_path, layer, limits=limits)
    assert not (tmp_path / "root").exists()


def test_a_diff_id_that_does_not_hold_leaves_nothing(tmp_path: Path) -> None:
    layer = made(entry("a", data=b"1"))
    config = {"rootfs": {"type": "layers", "diff_ids": ["sha256:" + "0" * 64]}}
    with stored(tmp_path, layer, config=config) as store, pytest.raises(IntegrityError, match="unpacks to"):
        store.unpack(REFERENCE, tmp_path / "root", rootless=IS_ROOTLESS)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"no tar at all" * 100,
        archive([entry("a", data=b"1" * 600)])[:700],
        archive([entry("a", data=b"1")])[:1024] + b"\1" * 512,
        archive([entry("a", data=b"1")])[:1024] + b"\1" * 100,
    ],
    ids=["text", "cut off in data", "damaged second header", "piece of a header"],
)
def test_what_is_no_whole_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(DocumentError):
        unpacked(tmp_path, layer_from_tar(data))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["store"]


def test_layers_without_entries_are_nothing(tmp_path: Path) -> None:
    report = unpacked(tmp_path, made(), layer_from_tar(b""), layer_from_tar(bytes(10240)))
    assert (report.entries, listed(tmp_path / "root")) == (0, {})


DOUBTFUL = [media_types.DOCKER_LAYER, media_types.DOCKER_FOREIGN_TAR]


def typed(data: bytes, packed: bytes, media_type: str) -> Layer:
    return Layer(BytesBody(packed), Digest.of(packed), Digest.of(data), "none", media_type=media_type)


@pytest.mark.parametrize("media_type", DOUBTFUL)
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_bytes_below_dockers_type_of_plain_tars(
    tmp_path: Path, pack: Callable[[bytes], bytes], media_type: str
) -> None:
    data = archive([entry("a", data=b"1")])
    unpacked(tmp_path, typed(data, pack(data), media_type), made(entry("b", data=b"2")))
    assert listed(tmp_path / "root") == {"a": "1", "b": "2"}


@pytest.mark.parametrize("media_type", DOUBTFUL)
def test_a_plain_tar_below_it_has_its_digest_for_diff_id(tmp_path: Path, media_type: str) -> None:
    data, other = archive([entry("a", data=b"1")]), archive([entry("b", data=b"2")])
    with (
        RegistryServer({REFERENCE: build_image("linux/amd64", layers=[typed(other, data, media_type)])}) as server,
        ImageStore(tmp_path / "store", host=platforms.parse("linux/amd64")) as store,
    ):
        with pytest.raises(DocumentError, match=r"the diff id is .* but layer 0 is the plain tar"):
            store.pull(server.server.reference(REFERENCE))
        assert list(store.list()) == []
        assert list(store.content.walk()) == []


def test_layers_of_windows_are_refused(tmp_path: Path) -> None:
    image = build_image("windows(10.0.20348.1)/amd64")
    with RegistryServer({REFERENCE: image}) as server, ImageStore(tmp_path / "store") as store:
        reference = server.server.reference(REFERENCE)
        store.pull(reference, platform=platforms.parse("windows(10.0.20348)/amd64"))
        with pytest.raises(UnsupportedError, match="Windows"):
            store.unpack(reference, tmp_path / "root")
