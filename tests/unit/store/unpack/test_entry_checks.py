"""Entries that can't be end in an error that names layer and entry; odd ones that can be are as umoci has them."""

from __future__ import annotations

import errno
import os
import stat
import struct
import tarfile
from pathlib import Path

import pytest

from imagestore import UnpackLimits
from imagestore.errors import DocumentError, PreconditionError
from imagestore.testing.builders.layers import layer_from_tar
from tests.unit.store.unpack.making import (
    archive,
    entry,
    folder,
    hard_link,
    link,
    listed,
    made,
    unpacked,
    with_numbers,
    with_records,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="owners and devices need root")
needs_xattrs = pytest.mark.skipif(not hasattr(os, "getxattr"), reason="Python has extended attributes on Linux only")
A = archive([entry("a", data=b"1")])
CAPABILITY = {"SCHILY.xattr.security.capability": "\x01\0\0\x02\0\x04" + "\0" * 14}
_MAP = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": "a", "GNU.sparse.numblocks": "1"}


def sparse(size: str, pieces: str) -> bytes:
    """A sparse file (GNU's form 0.1) with six bytes in the archive."""
    records = _MAP | {"GNU.sparse.size": size, "GNU.sparse.map": pieces}
    return with_records(records, archive([entry("GNUSparseFile.0/a", data=b"abcdef")]))


def with_xattr(name: str, value: str = "1") -> bytes:
    return archive([entry("a", pax_headers={f"SCHILY.xattr.{name}": value})])


REFUSED = {
    "uid behind the last": with_numbers("a", uid=2**32 - 1),
    "huge uid": with_numbers("a", uid=2**40),
    "negative uid": with_numbers("a", uid=-1),
    "negative gid": with_numbers("a", gid=-5),
    "negative size": with_numbers("a", size=-600),
    "huge size": with_numbers("a", size=2**80),
    "huge time": with_numbers("a", mtime=2**80),
    "huge device": with_numbers("a", tarfile.CHRTYPE, devmajor=2**33, devminor=3),
    "no device of Linux": with_numbers("a", tarfile.BLKTYPE, devmajor=4096, devminor=3),
    "negative device": with_numbers("a", tarfile.CHRTYPE, devmajor=1, devminor=-1),
    **{
        f"{name}={value[:12]}": with_records({name: value}, A)
        for name, values in {
            "mtime": ("nan", "inf", "-inf", "1e999999999", "1e999990", "9" * 400, "1_0", " 5", ".5", "٣"),
            "atime": ("nan", "1e999999999"),
            "size": ("nan", "-1", "9" * 30, "9" * 5000, "1_0"),
            "uid": ("nan", "-1", "9" * 30, "root", "4294967295"),
            "gid": ("0x10",),
        }.items()
        for value in values
    },
    "NUL in a name": with_records({"path": "a\0b"}, A),
    "NUL in a link": with_records({"linkpath": "a\0b"}, archive([link("a", "x")])),
    "NUL in a hard link": with_records({"linkpath": "a\0b"}, archive([hard_link("a", "x")])),
    "NUL in an attribute": with_xattr("user.a\0b"),
    "attribute without a name": with_xattr(""),
    "long attribute": with_xattr("user." + "a" * 300),
    "big attribute": with_xattr("user.a", "x" * 70000),
    "long name": archive([entry("a" * 300)]),
    "long link": archive([link("a", "x" * 5000)]),
    "link to nothing": archive([link("a", "")]),
    "sparse pieces over each other": sparse("100", "0,3,1,3"),
    "sparse pieces in no order": sparse("100", "50,3,0,3"),
    "sparse piece behind the end": sparse("4", "0,6"),
    "sparse piece before the beginning": sparse("100", "-5,6"),
    "sparse piece of negative size": sparse("100", "5,-6"),
    "sparse map of more than there is": sparse("9000", "0,6000"),
    "sparse file under an evil name": with_records(_MAP | {"GNU.sparse.name": "a\0b", "GNU.sparse.size": "6"}, A),
    "hard link to a folder": archive([folder("d"), hard_link("a", "d")]),
    "hard link to a later entry": archive([hard_link("a", "b"), entry("b")]),
    "hard link to a folder's file in its place": archive([folder("a"), entry("a/f"), hard_link("a", "a/f")]),
    "socket": archive([entry("a", b"s")]),
}


@pytest.mark.parametrize("layer", REFUSED.values(), ids=REFUSED.keys())
def test_what_no_file_can_be_is_refused_by_layer_and_entry(tmp_path: Path, layer: bytes) -> None:
    made_layer = layer_from_tar(layer)
    with pytest.raises(DocumentError, match=r"(entry|hard link) 'a") as refused:
        unpacked(tmp_path, made_layer)
    assert str(refused.value).startswith(f"layer {made_layer.digest}: ")
    assert len(str(refused.value)) < 700
    assert sorted(each.name for each in tmp_path.iterdir()) == ["store"]


@pytest.mark.parametrize("pieces", ["x,6", "99999999999999999999,6"])
def test_maps_that_are_no_numbers_are_refused(tmp_path: Path, pieces: str) -> None:
    with pytest.raises(DocumentError):
        unpacked(tmp_path, layer_from_tar(sparse("100", pieces)))


def test_a_file_larger_than_the_limit_is_refused_though_it_is_all_holes(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="limit"):
        unpacked(tmp_path, layer_from_tar(sparse("9" * 18, "0,6")))


def test_holes_are_where_the_map_says(tmp_path: Path) -> None:
    unpacked(tmp_path, layer_from_tar(sparse("20", "2,3,10,3")))
    assert (tmp_path / "root/a").read_bytes() == b"\0\0abc" + bytes(5) + b"def" + bytes(7)


def test_times_that_no_file_system_has_become_the_nearest(tmp_path: Path) -> None:
    unpacked(tmp_path, layer_from_tar(with_numbers("a", mtime=-5)), layer_from_tar(with_numbers("b", mtime=2**62)))
    assert os.stat(tmp_path / "root/a").st_mtime == -5
    assert os.stat(tmp_path / "root/b").st_mtime >= 2**31 - 1


def test_records_for_all_entries_do_not_count(tmp_path: Path) -> None:
    """As containerd and Docker have it."""
    records = {"path": "evil", "mtime": "5", "SCHILY.xattr.user.a": "1", "uid": "nan"}
    unpacked(tmp_path, layer_from_tar(with_records(records, A, kind=tarfile.XGLTYPE)))
    assert listed(tmp_path / "root") == {"a": "1"}
    assert os.stat(tmp_path / "root/a").st_mtime == 1_600_000_000


def test_one_block_of_zeros_hides_no_entries(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="damaged"):
        unpacked(tmp_path, layer_from_tar(A[:1024] + bytes(512) + archive([entry("b")])))


def test_what_follows_the_end_is_nothing(tmp_path: Path) -> None:
    unpacked(tmp_path, layer_from_tar(A + archive([entry("b")])), layer_from_tar(A + b"garbage" * 1000))
    assert listed(tmp_path / "root") == {"a": "1"}


def test_padding_without_end_ends_at_a_limit(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="unpacks to more than"):
        unpacked(tmp_path, layer_from_tar(A + bytes(32 << 20)), limits=UnpackLimits(size=1 << 20, entries=100))


def test_folders_that_only_names_imply_count(tmp_path: Path) -> None:
    entries = [entry(f"{number}/" + "d/" * 100 + "f") for number in range(10)]
    with pytest.raises(DocumentError, match="more than 500 entries"):
        unpacked(tmp_path, made(*entries), limits=UnpackLimits(entries=500))


def test_links_lead_no_deeper_than_names_may(tmp_path: Path) -> None:
    deep = "d/" * 400 + "d"
    entries = [link("one", deep), entry("one/x"), link("two", f"one/{deep}"), entry("two/x")]
    with pytest.raises(DocumentError, match="512 folders in each other"):
        unpacked(tmp_path, made(*entries))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["store"]


def test_whiteouts_spare_what_their_layer_brought_by_another_name(tmp_path: Path) -> None:
    lower = made(folder("usr/lib"), link("lib", "usr/lib"), entry("usr/lib/gone"))
    upper = made(entry("lib/new", data=b"1"), entry("usr/lib/.wh..wh..opq"), entry("usr/lib/.wh.new"))
    unpacked(tmp_path, lower, upper)
    assert listed(tmp_path / "root" / "usr") == {"lib": "folder", "lib/new": "1"}


@pytest.mark.parametrize(
    "hiding", [entry("d/.wh..wh..opq"), entry("d/.wh.x"), entry("none/.wh.x"), entry(".wh.none/x")]
)
def test_whiteouts_below_what_is_no_folder_hide_nothing(tmp_path: Path, hiding: tuple[tarfile.TarInfo, bytes]) -> None:
    unpacked(tmp_path, made(entry("d", data=b"1")), made(hiding))
    assert listed(tmp_path / "root")["d"] == "1"


def test_an_opaque_root_hides_all_layers_below(tmp_path: Path) -> None:
    lower = made(folder("a"), entry("a/b"), entry("c"))
    unpacked(tmp_path, lower, made(entry("n", data=b"1"), entry(".wh..wh..opq"), entry("m", data=b"2")))
    assert listed(tmp_path / "root") == {"n": "1", "m": "2"}


def test_a_name_of_full_length_can_be_hidden(tmp_path: Path) -> None:
    name = "a" * 255
    unpacked(tmp_path, made(entry(name)), made(entry(f".wh.{name}")))
    assert listed(tmp_path / "root") == {}


def test_names_differ_by_their_case_and_not_by_their_slashes(tmp_path: Path) -> None:
    names = ["./a", "a", "/a/", "A", "d//b", "d/./b", "d/../d/b"]
    unpacked(tmp_path, made(*(entry(name, data=name.encode()) for name in names)))
    assert listed(tmp_path / "root") == {"a": "/a/", "A": "A", "d": "folder", "d/b": "d/../d/b"}


def test_a_folder_that_was_removed_keeps_nothing_of_its_metadata(tmp_path: Path) -> None:
    lower = made(folder("a", mode=0o700, mtime=5), folder("a/b", mode=0o700, mtime=5))
    unpacked(tmp_path, lower, made(entry(".wh.a")), made(entry("a/b/new")))
    for name in ("a", "a/b"):
        status = os.stat(tmp_path / "root" / name)
        assert (stat.S_IMODE(status.st_mode), status.st_mtime > 5) == (0o755, True)


def test_a_folder_by_two_names_is_as_the_last_entry_says(tmp_path: Path) -> None:
    names = [
        folder("usr/lib"),
        link("lib", "usr/lib"),
        folder("usr/lib/x", mtime=1),
        folder("lib/x", mtime=2, mode=0o750),
    ]
    unpacked(tmp_path, made(*names))
    status = os.stat(tmp_path / "root/usr/lib/x")
    assert (status.st_mtime, stat.S_IMODE(status.st_mode)) == (2, 0o750)


def test_closed_folders_get_their_files_and_their_modes(tmp_path: Path) -> None:
    unpacked(tmp_path, made(folder("d", mode=0), folder("d/e", mode=0), entry("d/e/f", data=b"1")))
    assert stat.S_IMODE(os.stat(tmp_path / "root/d").st_mode) == 0
    (tmp_path / "root/d").chmod(0o700)
    assert stat.S_IMODE(os.stat(tmp_path / "root/d/e").st_mode) == 0


def test_implied_folders_do_not_depend_on_the_mask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        unpacked(tmp_path, made(entry("a/b/c")))
    finally:
        os.umask(before)
    for name in ("root", "root/a", "root/a/b"):
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o755


def test_no_other_user_enters_before_all_is_done(tmp_path: Path) -> None:
    modes: set[int] = set()

    def look(event: object) -> None:
        modes.update(stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir() if each.name != "store")

    unpacked(tmp_path, made(folder("./", mode=0o777), entry("a")), made(folder(".", mode=0o711)), observer=look)
    assert modes == {0o700}
    assert stat.S_IMODE(os.stat(tmp_path / "root").st_mode) == 0o711


def test_a_root_without_an_entry_is_the_same_each_time(tmp_path: Path) -> None:
    unpacked(tmp_path, made(entry("a")))
    status = os.stat(tmp_path / "root")
    assert (stat.S_IMODE(status.st_mode), status.st_mtime) == (0o755, 0)


@needs_root
@needs_xattrs
def test_a_second_name_changes_neither_owner_nor_capabilities(tmp_path: Path) -> None:
    first = entry("a", data=b"1", mode=0o4755, uid=5, pax_headers=CAPABILITY)
    second = hard_link("b", "a")
    second[0].mode, second[0].uid = 0o600, 9
    unpacked(tmp_path, made(first, second))
    status = os.stat(tmp_path / "root/b")
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_nlink) == (0o4755, 5, 2)
    assert os.getxattr(tmp_path / "root/b", "security.capability")[:1] == b"\x01"


@needs_root
@needs_xattrs
def test_attributes_of_links_and_devices_are_set_or_reported(tmp_path: Path) -> None:
    given = {"SCHILY.xattr.trusted.a": "1", "SCHILY.xattr.user.a": "2"}
    a_link, fifo = link("l", "x"), entry("f", tarfile.FIFOTYPE, pax_headers=given)
    a_link[0].pax_headers = given
    report = unpacked(tmp_path, made(folder("d"), a_link, fifo))
    for name in ("l", "f"):
        path = tmp_path / "root" / name
        assert os.getxattr(path, "trusted.a", follow_symlinks=False) == b"1"
        assert os.listxattr(path, follow_symlinks=False) == ["trusted.a"]
    assert sorted(report.left_out) == ["f: the extended attribute user.a", "l: the extended attribute user.a"]


@needs_root
@needs_xattrs
@pytest.mark.parametrize("name", ["trusted.overlay.opaque", "trusted.overlay.redirect", "security.selinux", "nonsense"])
def test_attributes_of_the_host_are_left_out_and_reported(tmp_path: Path, name: str) -> None:
    report = unpacked(tmp_path, made(folder("d", pax_headers={f"SCHILY.xattr.{name}": "/evil"})))
    assert os.listxattr(tmp_path / "root/d") == []
    assert report.left_out == (f"d: the extended attribute {name}",)


@needs_root
@needs_xattrs
def test_an_entry_of_a_folder_replaces_its_attributes(tmp_path: Path) -> None:
    unpacked(tmp_path, made(folder("d", pax_headers={"SCHILY.xattr.trusted.a": "1"})), made(folder("d")))
    assert os.listxattr(tmp_path / "root/d") == []


@pytest.mark.parametrize("name", ["user.a", "security.capability"])
def test_where_python_has_no_extended_attributes_they_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """macOS."""
    for call in ("getxattr", "listxattr", "removexattr", "setxattr"):
        monkeypatch.delattr(os, call, raising=False)
    report = unpacked(tmp_path, made(entry("a", data=b"1", pax_headers={f"SCHILY.xattr.{name}": "1"})))
    assert listed(tmp_path / "root") == {"a": "1"}
    assert report.left_out == (f"a: the extended attribute {name}",)


DEFAULT_ACL = "system.posix_acl_default"


@pytest.fixture
def acl(tmp_path: Path) -> bytes:
    """An access list as the kernel has it (acl(5)): version 2, then tag, permissions and id of each line."""
    if not hasattr(os, "setxattr"):
        pytest.skip("Python has extended attributes on Linux only")
    everybody = 2**32 - 1
    lines = [(0x01, 7, everybody), (0x02, 7, 1234), (0x04, 5, everybody), (0x10, 7, everybody), (0x20, 5, everybody)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *each) for each in lines)
    (tmp_path / "probe").mkdir()
    try:
        os.setxattr(tmp_path / "probe", DEFAULT_ACL, packed)
    except OSError as error:
        pytest.skip(f"no access lists here: {error}")
    return packed


@needs_root
def test_files_inherit_no_access_lists_from_the_layer(tmp_path: Path, acl: bytes) -> None:
    info, _ = folder("d")
    records = {f"SCHILY.xattr.{DEFAULT_ACL}": acl.decode("utf-8", "surrogateescape")}
    rest = archive([entry("d/a"), entry("d/i/a"), folder("d/f"), folder("e"), entry("d/b")])
    lower = layer_from_tar(with_records(records, info.tobuf(tarfile.USTAR_FORMAT) + rest))
    unpacked(tmp_path, lower, made(entry("d/c"), entry("d/j/a"), entry("d/.wh.b"), entry("d/.wh..wh..opq")))
    found = {str(each.relative_to(tmp_path / "root")): os.listxattr(each) for each in (tmp_path / "root").rglob("*")}
    assert {name: xattrs for name, xattrs in found.items() if xattrs} == {"d": [DEFAULT_ACL]}
    assert sorted(found) == ["d", "d/c", "d/j", "d/j/a", "e"]
    assert os.getxattr(tmp_path / "root/d", DEFAULT_ACL) == acl


@needs_root
def test_files_inherit_no_access_lists_from_the_place(tmp_path: Path, acl: bytes) -> None:
    os.setxattr(tmp_path, DEFAULT_ACL, acl)
    unpacked(tmp_path, made(folder("d"), entry("d/a"), entry("i/a")))
    for name in ("root", "root/d", "root/d/a", "root/i", "root/i/a"):
        assert os.listxattr(tmp_path / name) == [], name


def test_names_are_only_written_as_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "iso8859-1")
    with pytest.raises(PreconditionError, match="iso8859-1") as refused:
        unpacked(tmp_path, made(entry("a")))
    assert "PYTHONUTF8" in refused.value.hint


def test_errors_of_the_system_name_the_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "symlink", lambda *_, **__: refuse())
    with pytest.raises(PreconditionError, match=r"root: entry 'd/a': can't be written: No space left"):
        unpacked(tmp_path, made(link("d/a", "x")))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["store"]


@needs_root
def test_owners_that_a_user_namespace_does_not_have_have_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(PreconditionError, match="entry 'a': the system refuses an owner") as refused:
        unpacked(tmp_path, made(entry("a", uid=1000)), rootless=False)
    assert "--rootless" in refused.value.hint
