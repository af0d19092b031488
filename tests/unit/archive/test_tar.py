"""Reading tar headers: what is found, and what is refused."""

from __future__ import annotations

import io
import tarfile

import pytest

from imagestore.archive.tar import MAX_EXTENSION_BYTES, TarTable, clean, scan
from imagestore.cancel import CancelToken
from imagestore.errors import DocumentError, OperationCancelledError
from tests.unit.archive.making import BLOCK, END, header, member, pax, tar_of


def scanned(data: bytes) -> TarTable:
    return scan(lambda offset, size: data[offset : offset + size], len(data), "archive test.tar", CancelToken())


def contents(data: bytes) -> dict[str, bytes]:
    return {name: data[span.offset : span.offset + span.size] for name, span in scanned(data).files.items()}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_files_of_every_common_format_are_found(form: int) -> None:
    files = {"a": b"", "b/c": b"x" * 513, "d" * 90 + "/" + "e" * 80: b"long", "f" * 300: b"longer", "ü": b"pax"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in files.items():
            if form == tarfile.USTAR_FORMAT and len(name) > 250:
                continue
            info = tarfile.TarInfo(f"./{name}")
            info.size, info.mtime = len(data), 1.5 if form == tarfile.PAX_FORMAT else 0
            archive.addfile(info, io.BytesIO(data))
        folder = tarfile.TarInfo("b")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    found = contents(out.getvalue())
    assert found == {name: data for name, data in files.items() if name in found}
    assert len(found) >= 4


def test_symbolic_links_are_only_noted() -> None:
    table = scanned(member("x/layer.tar", b"", b"2", b"../y/layer.tar") + END)
    assert table.links == {"x/layer.tar": "../y/layer.tar"}
    assert table.files == {}


def test_an_extended_header_gives_name_and_size() -> None:
    data = pax(path="long/name", size="3") + header(b"short", 0) + b"abc".ljust(BLOCK, b"\0") + END
    assert contents(data) == {"long/name": b"abc"}


def test_a_size_in_base_256_is_read() -> None:
    data = header(b"a", b"\x80" + (3).to_bytes(11)) + b"abc".ljust(BLOCK, b"\0") + END
    assert contents(data) == {"a": b"abc"}


def test_a_hard_link_is_another_name_of_a_file_before_it() -> None:
    data = member("b/x", b"12") + member("a", b"", b"1", b"./b/x") + member("c", b"", b"1", b"a") + END
    assert contents(data) == {"b/x": b"12", "a": b"12", "c": b"12"}


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"not a tar archive".ljust(BLOCK, b"."), "is no tar archive"),
        (tar_of({"a": b"1"})[:100], "cut off at byte 100"),
        (header(b"a", 2000) + bytes(100), "is cut off: a member of 2000 bytes"),
        (header(b"a", 8**11 - 1) + END, "is cut off: a member of 8589934591 bytes"),
        (header(b"a", b"\x80" + b"\xff" * 11) + END, "is cut off"),
        (header(b"a", b"\xff" * 12) + END, "a number that can't be read"),
        (header(b"a", b"-0000000007\0") + END, "a number that can't be read"),
        (header(b"a", b"1_0\0") + END, "a number that can't be read"),
        (member("../a", b"1") + END, "a name that leaves the archive"),
        (member("/etc/passwd", b"1") + END, "a name that leaves the archive"),
        (member("a/../../b", b"1") + END, "a name that leaves the archive"),
        (member("a//b", b"1") + END, "a name that leaves the archive"),
        (member("a\\b", b"1") + END, "a name that leaves the archive"),
        (member("", b"1") + END, "a name that leaves the archive"),
        (pax(path="../a") + member("a", b"1") + END, "a name that leaves the archive"),
        (member("a", b"1") + member("./a", b"2") + END, "'a' occurs twice"),
        (member("a", b"1") + member("a", b"", b"2", b"b") + END, "'a' occurs twice"),
        (member("a", b"", b"1", b"b") + END, "is a hard link to 'b', which is no file before it"),
        (member("a", b"", b"1", b"../b") + END, "is a hard link to"),
        (member("a", b"", b"1", b"b") + member("b", b"1") + END, "is a hard link to"),
        (member("b", b"1") + member("a", b"1", b"1", b"b") + END, "is a hard link to"),
        (member("b", b"1") + member("b", b"", b"1", b"b") + END, "'b' occurs twice"),
        (member("a", b"", b"3") + END, "is a character device"),
        (member("a", b"", b"4") + END, "is a block device"),
        (member("a", b"", b"6") + END, "is a FIFO"),
        (member("a", b"", b"S") + END, "is a sparse file"),
        (pax(**{"GNU.sparse.major": "1"}) + member("a", b"1") + END, "has a sparse file"),
        (member("a", b"", b"Q") + END, "of the unknown type 'Q'"),
        (header(b"x", MAX_EXTENSION_BYTES + 1, b"x") + bytes(2**17), "extended header of 65537 bytes"),
        (header(b"x", MAX_EXTENSION_BYTES + 1, b"L") + bytes(2**17), "extended header of 65537 bytes"),
        (member("x", b"9 path=a\n", b"x") + END, "before the member it belongs to"),
        (member("x", b"99 path=a\n", b"x") + member("a", b"") + END, "extended header that can't be read"),
        (member("x", b"0 path=a\n", b"x") + member("a", b"") + END, "extended header that can't be read"),
        (pax(size="1e3") + member("a", b"1") + END, "a size that can't be read"),
        (pax(size="-1") + member("a", b"1") + END, "a size that can't be read"),
        (member("x", b"9 path=a\n", b"g") + member("b", b"1") + END, "a global header that sets path"),
        (pax(path="a") + member("x", b"b\0", b"L") + member("c", b"1") + END, "two values for path"),
        (header(b"\xff\xfe", 0) + END, "is not UTF-8"),
        (header(b"a/", 512) + bytes(512) + END, "is a folder with contents"),
        (tar_of({"a": b"1"})[:-BLOCK] + member("b", b"2"), "goes on after its end"),
    ],
)
def test_what_readers_could_be_fooled_by_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(DocumentError, match=r"archive test\.tar: ") as caught:
        scanned(data)
    assert fault in str(caught.value)


@pytest.mark.parametrize("place", [0, 99, 130, 156, 345, 511])
def test_a_header_with_one_wrong_byte_is_refused(place: int) -> None:
    """A name, a size or a type that the checksum doesn't bear out was damaged, or was meant for other readers."""
    data = bytearray(tar_of({"a": b"1"}))
    data[place] ^= 1
    with pytest.raises(DocumentError, match="the header at byte 0 has a wrong checksum"):
        scanned(bytes(data))


def test_too_many_members_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagestore.archive.tar.MAX_MEMBERS", 2)
    with pytest.raises(DocumentError, match="more than 2 members"):
        scanned(tar_of({"a": b"", "b": b"", "c": b""}))


def test_names_and_targets_of_links_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred kilobytes of gzip could fill the memory with them otherwise."""
    monkeypatch.setattr("imagestore.archive.tar.MAX_NAMES_BYTES", 1000)
    links = b"".join(pax(linkpath="t" * 400) + member(f"l{number}", b"", b"2") for number in range(3))
    with pytest.raises(DocumentError, match="more than 1000 bytes of names"):
        scanned(links + END)


def test_a_cancelled_scan_ends() -> None:
    token = CancelToken()
    token.cancel()
    data = tar_of({"a": b""})
    with pytest.raises(OperationCancelledError):
        scan(lambda offset, size: data[offset : offset + size], len(data), "x", token)


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [("a/b", "a/b"), ("./a", "a"), ("a/", "a"), (".", "."), ("./", "."), ("..", ""), ("a/..", ""), ("x" * 1025, "")],
)
def test_names_are_cleaned_or_refused(name: str, cleaned: str) -> None:
    assert clean(name) == cleaned
