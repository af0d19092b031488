"""Reading tar headers: what is found, and what is refused."""

from __future__ import annotations

import io
import tarfile

import pytest

from imagestore import CancelToken
from imagestore.errors import DocumentError, OperationCancelledError
from imagestore.store.archive.tar import Span, TarTable, clean, scan
from imagestore.store.unpack.limits import HEADER_BYTES
from tests.unit.store.archive.making import BLOCK, END, header, member, pax, tar_of


def scanned(data: bytes) -> TarTable:
    return scan(lambda offset, size: data[offset : offset + size], "archive test.tar", CancelToken())


def contents(data: bytes) -> dict[str, bytes]:
    return {name: unfolded(data, span) for name, span in scanned(data).files.items()}


def unfolded(data: bytes, span: Span, start: int = 0, most: int = 700) -> bytes:
    """A file's bytes from a place on, read in small parts."""
    parts = span.parts(start, most)
    return b"".join(bytes(size) if place is None else data[place : place + size] for place, size in parts)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_files_of_every_common_format_are_found(form: int) -> None:
    files = {
        "a": b"",
        "b/c": b"x" * 513,
        "d" * 90 + "/" + "e" * 80: b"long",
        "f/" * 150 + "g": b"longer",
        "ü": b"pax",
    }
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


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (member("x", b"9 path=a\n", b"g") + member("b", b"1"), {"b": b"1"}),
        (pax(path="a") + member("x", b"b\0", b"L") + member("c", b"1"), {"b": b"1"}),
        (member("a/", b"1"), {"a": b"1"}),
        (header(b"a/", 512, b"\0") + member("b", b"2"), {"b": b"2"}),
        (member("a", b"1") + header(b"b", 512, b"1", b"a"), {"a": b"1", "b": b"1"}),
    ],
    ids=[
        "a global header",
        "a long name and a path",
        "a file with a slash",
        "an old folder",
        "a hard link with a size",
    ],
)
def test_what_is_odd_is_read_as_go_reads_it(data: bytes, expected: dict[str, bytes]) -> None:
    assert contents(data + END) == expected


def test_a_prefix_stands_before_the_name() -> None:
    data = header(b"name", 1, prefix=b"folder/inner") + b"1".ljust(BLOCK, b"\0")
    assert contents(data + END) == {"folder/inner/name": b"1"}


def test_a_record_without_a_value_leaves_the_headers_field() -> None:
    for records in (b"8 path=\n", b"9 path=x\n8 path=\n", b"8 size=\n", b"20 GNU.sparse.name=\n"):
        table = scanned(member("x", records, b"x") + member("a", b"1") + END)
        assert {name: span.size for name, span in table.files.items()} == {"a": 1}


@pytest.mark.parametrize("kind", ["x", "g", "L"])
def test_a_header_before_no_member_ends_the_archive(kind: str) -> None:
    data = member("a", b"1") + member(kind, b"9 path=b\n" if kind != "g" else b"", kind.encode())
    assert list(scanned(data + END).files) == list(scanned(data).files) == ["a"]


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
        (tar_of({"a": b"1"})[:100], "damaged tar header before byte 100: it is cut off"),
        (header(b"a", 2000) + bytes(100), "is cut off: a member of 2000 bytes"),
        (header(b"a", 8**11 - 1) + END, "is cut off: a member of 8589934591 bytes"),
        (header(b"a", b"\x80" + b"\xff" * 11) + END, "whose size is 309485009821345068724781055"),
        (header(b"a", b"\x80" + (2**63 - 1).to_bytes(11)) + END, "is cut off"),
        (header(b"a", b"\xff" * 12) + END, "whose size is -1"),
        (header(b"a", b"-0000000007\0") + END, "is no number"),
        (header(b"a", b"1_0\0") + END, "is no number"),
        (member("../a", b"1") + END, "a name that leaves the archive"),
        (member("/../etc/passwd", b"1") + END, "a name that leaves the archive"),
        (member("a/../../b", b"1") + END, "a name that leaves the archive"),
        (member("..\\b", b"1") + END, "a name that leaves the archive"),
        (member("a/..", b"1") + END, "a name that leaves the archive"),
        (member("", b"1") + END, "a name that leaves the archive"),
        (pax(path="../a") + member("a", b"1") + END, "a name that leaves the archive"),
        (member("a", b"1") + member("./a", b"2") + END, "'a' occurs twice, with different contents"),
        (member("a", b"1") + member("a", b"", b"2", b"b") + END, "'a' occurs twice"),
        (member("a", b"1") + member("a", b"", b"6") + END, "'a' occurs twice"),
        (member("a", b"", b"S") + END, "'a' with a map of a sparse file that can't be"),
        (
            pax(**{"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}) + member("a", b"1") + END,
            "'a' with a map of a sparse file that can't be",
        ),
        (header(b"x", HEADER_BYTES + 1, b"x") + bytes(2**21), "headers take more than 1048576 bytes"),
        (header(b"x", HEADER_BYTES + 1, b"L") + bytes(2**21), "headers take more than 1048576 bytes"),
        (member("x", b"99 path=a\n", b"x") + member("a", b"") + END, "no record of an extended header"),
        (member("x", b"0 path=a\n", b"x") + member("a", b"") + END, "no record of an extended header"),
        (pax(size="1e3") + member("a", b"1") + END, "whose size is '1e3'"),
        (pax(size="-1") + member("a", b"1") + END, "whose size is '-1'"),
        (tar_of({"a": b"1"})[:-BLOCK] + member("b", b"2"), "it is behind a block of zeros"),
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
    with pytest.raises(DocumentError, match="damaged tar header before byte 512: its checksum is wrong"):
        scanned(bytes(data))


def test_too_many_members_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagestore.store.archive.tar.MAX_MEMBERS", 2)
    with pytest.raises(DocumentError, match="more than 2 members"):
        scanned(tar_of({"a": b"", "b": b"", "c": b""}))


def test_names_and_targets_of_links_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred kilobytes of gzip could fill the memory with them otherwise."""
    monkeypatch.setattr("imagestore.store.archive.tar.MAX_NAMES_BYTES", 1000)
    links = b"".join(pax(linkpath="t" * 400) + member(f"l{number}", b"", b"2") for number in range(3))
    with pytest.raises(DocumentError, match="more than 1000 bytes of names"):
        scanned(links + END)


def test_a_cancelled_scan_ends() -> None:
    token = CancelToken()
    token.cancel()
    data = tar_of({"a": b""})
    with pytest.raises(OperationCancelledError):
        scan(lambda offset, size: data[offset : offset + size], "x", token)


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        *(("a/b", "a/b"), ("./a", "a"), ("a/", "a"), (".", "."), ("./", "."), ("a//b", "a/b"), ("a/./b", "a/b")),
        *(("a/../b", "b"), ("a/..", "."), ("a\\b", "a\\b"), ("x" * 1025, "x" * 1025)),
        *(("..", ""), ("a/../../b", ""), ("/a", ""), ("\\a", ""), ("..\\a", ""), ("a\\..\\..\\b", ""), ("a\0b", "")),
    ],
)
def test_names_are_cleaned_or_refused(name: str, cleaned: str) -> None:
    assert clean(name) == cleaned


@pytest.mark.parametrize(
    ("data", "others"),
    [
        (member("a", b"", b"3") + END, {"a": "a character device"}),
        (member("a", b"", b"4") + END, {"a": "a block device"}),
        (member("a", b"", b"6") + END, {"a": "a FIFO"}),
        (member("a", b"12", b"Q") + END, {"a": "of the unknown type 'Q'"}),
        (member("a", b"", b"1", b"b") + END, {"a": "a hard link to 'b', which is no file before it"}),
        (member("a", b"", b"1", b"../b") + END, {"a": "a hard link to '../b', which is no file before it"}),
    ],
)
def test_what_can_not_be_read_is_only_noted(data: bytes, others: dict[str, str]) -> None:
    table = scanned(member("file", b"1") + data)
    assert (list(table.files), table.others) == (["file"], others)


@pytest.mark.parametrize(
    "data",
    [
        member("a", b"1" * 600) + member("b", b"2") + member("./a", b"1" * 600),
        member("a", b"1") + member("a", b"", b"1", b"a"),
        member("a", b"", b"2", b"b") + member("a", b"", b"2", b"b"),
        member("a", b"", b"6") + member("a", b"", b"6"),
    ],
    ids=["file", "hard link", "symbolic link", "FIFO"],
)
def test_a_member_may_occur_twice_when_it_is_the_same(data: bytes) -> None:
    scanned(data + END)


def sparse_content() -> bytes:
    """Two pieces, holes before, between and behind them."""
    return bytes(1024) + b"a" * 512 + bytes(2048) + b"b" * 1024 + bytes(512)


PIECES = [(1024, 512), (3584, 1024)]


def gnu_sparse(name: str, data: bytes, pieces: list[tuple[int, int]], *, in_header: int = 4) -> bytes:
    """As GNU tar's own format has it: the map in the header, and in blocks behind it."""
    spans = [*pieces, (len(data), 0)]
    stored = b"".join(data[at : at + size] for at, size in pieces)
    head = bytearray(header(name.encode(), len(stored), b"S"))
    head[257:265] = b"ustar  \0"
    head[345:500] = bytes(155)
    first, rest = spans[:in_header], spans[in_header:]
    for number, (at, size) in enumerate(first):
        head[386 + 24 * number : 410 + 24 * number] = b"%011o\0%011o\0" % (at, size)
    head[482] = bool(rest)
    head[483:495] = b"%011o\0" % len(data)
    blocks = b""
    while rest:
        taken, rest = rest[:21], rest[21:]
        blocks += (
            b"".join(b"%011o\0%011o\0" % span for span in taken).ljust(504, b"\0") + bytes([bool(rest)]) + bytes(7)
        )
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + blocks + stored


def pax_sparse(form: str, name: str, data: bytes, pieces: list[tuple[int, int]]) -> bytes:
    """As GNU tar writes it into extended headers."""
    stored = b"".join(data[at : at + size] for at, size in pieces)
    key = "GNU.sparse."
    if form == "0.0":
        records = [(f"{key}size", str(len(data))), (f"{key}numblocks", str(len(pieces)))]
        for at, size in pieces:
            records += [(f"{key}offset", str(at)), (f"{key}numbytes", str(size))]
        return records_of(records) + member(name, stored)
    if form == "0.1":
        listed = ",".join(f"{at},{size}" for at, size in pieces)
        records = [(f"{key}size", str(len(data))), (f"{key}numblocks", str(len(pieces)))]
        records += [(f"{key}map", listed), (f"{key}name", name)]
        return records_of(records) + member("GNUSparseFile.0/x", stored)
    lines = "".join(f"{number}\n" for number in (len(pieces), *(each for piece in pieces for each in piece))).encode()
    front = lines + bytes(-len(lines) % BLOCK)
    records = [(f"{key}major", "1"), (f"{key}minor", "0"), (f"{key}name", name), (f"{key}realsize", str(len(data)))]
    return records_of(records) + member("GNUSparseFile.0/x", front + stored)


def records_of(records: list[tuple[str, str]]) -> bytes:
    """An extended header that may have a keyword several times."""
    data = b"".join(pax(**{key: value})[BLOCK:].rstrip(b"\0") for key, value in records)
    return member("PaxHeaders/x", data, b"x")


MANY = [(at, 512) for at in range(0, 100 * 1024, 1024)]
MANY_CONTENT = b"".join(b"%d" % (at % 7) * 512 + bytes(512) for at, _ in MANY)
SPARSE = {
    "GNU": gnu_sparse("hole", sparse_content(), PIECES),
    "GNU, long map": gnu_sparse("hole", MANY_CONTENT, MANY),
    "GNU, only a hole": gnu_sparse("hole", bytes(8192), []),
    **{f"PAX {form}": pax_sparse(form, "hole", sparse_content(), PIECES) for form in ("0.0", "0.1", "1.0")},
    **{f"PAX {form}, long map": pax_sparse(form, "hole", MANY_CONTENT, MANY) for form in ("0.0", "0.1", "1.0")},
}


@pytest.mark.parametrize("form", SPARSE)
def test_sparse_files_are_read_as_the_standard_library_reads_them(form: str) -> None:
    data = SPARSE[form] + member("behind", b"it") + END
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        file = archive.extractfile("hole")
        assert file is not None
        expected = file.read()
    assert contents(data) == {"hole": expected, "behind": b"it"}
    span = scanned(data).files["hole"]
    assert all(unfolded(data, span, start) == expected[start:] for start in range(0, len(expected), 333))


@pytest.mark.parametrize("form", [form for form in SPARSE if "only" not in form])
def test_sparse_files_with_a_damaged_map_are_never_read_as_something_else(form: str) -> None:
    data = SPARSE[form] + member("behind", b"it") + END
    good = contents(data)
    # Digits of the map's numbers, one after the other; of a long map some. Runs of one digit are content.
    digits = [place for place in range(149, len(data)) if data[place : place + 1] in (b"1", b"2", b"4")]
    places = [place for place in digits if data[place - 2 : place + 3] != data[place : place + 1] * 5]
    for place in places[:: max(1, len(places) // 200)]:
        changed = bytearray(data)
        changed[place] ^= 8
        if changed[:BLOCK] != data[:BLOCK]:
            changed[148:156] = b" " * 8
            changed[148:156] = b"%06o\0 " % sum(changed[:BLOCK])
        try:
            found = contents(bytes(changed))
        except DocumentError:
            continue
        assert all(len(content) <= len(data) * 1000 for content in found.values())
    assert good["behind"] == b"it"


def test_pieces_of_sparse_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagestore.store.archive.tar.MAX_PIECES", 150)
    with pytest.raises(DocumentError, match="more than 150 pieces of sparse files"):
        scanned(SPARSE["GNU, long map"] + SPARSE["PAX 1.0, long map"].replace(b"=hole", b"=role") + END)
