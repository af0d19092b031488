"""Laws of the reader of layers: what it reads, ``tarfile`` and GNU tar read as well; damage never passes."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from imagestore.errors import DocumentError
from imagestore.store.unpack.entry import MOST_ID
from tests.unit.store.archive.making import BLOCK, END, header, member, pax
from tests.unit.store.unpack.making import archive, entry, folder, link, with_numbers, with_records
from tests.unit.store.unpack.reading import ours, theirs

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
KINDS = [
    *(tarfile.REGTYPE, tarfile.CONTTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE),
    *(tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE),
]
#: Bytes of a name, most of them text, without NUL and slash.
_PARTS = st.one_of(
    st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=60),
    st.binary(min_size=1, max_size=40).map(lambda raw: raw.translate(None, b"\0/").decode("utf-8", "surrogateescape")),
    st.integers(1, 250).map(lambda size: "n" * size),
).filter(bool)
NAMES = st.lists(_PARTS, min_size=1, max_size=5).map("/".join)
ATTRIBUTES = st.dictionaries(
    st.sampled_from(["SCHILY.xattr.user.a", "SCHILY.xattr.security.capability", "comment"]), st.text(max_size=50)
)


@st.composite
def made_entries(draw: st.DrawFn) -> tuple[tarfile.TarInfo, bytes]:
    kind = draw(st.sampled_from(KINDS))
    has_data = kind in (tarfile.REGTYPE, tarfile.CONTTYPE)
    time = st.integers(-(2**31), 2**33) | st.floats(0, 2**32, allow_nan=False).map(lambda number: round(number, 3))
    return entry(
        draw(NAMES),
        kind,
        draw(st.binary(max_size=1500)) if has_data else b"",
        linkname=draw(NAMES) if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else "",
        mode=draw(st.integers(0, 0o7777)),
        uid=draw(st.integers(0, MOST_ID)),
        gid=draw(st.integers(0, MOST_ID)),
        mtime=draw(time),
        devmajor=draw(st.integers(0, 4095)),
        devminor=draw(st.integers(0, 2**20 - 1)),
        pax_headers=draw(ATTRIBUTES),
    )


@given(st.lists(made_entries(), max_size=5), st.sampled_from(FORMATS), st.integers(1, 3000))
def test_tarfile_reads_the_same(made: list[tuple[tarfile.TarInfo, bytes]], form: int, piece: int) -> None:
    buffer = io.BytesIO()
    try:
        with tarfile.open(fileobj=buffer, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
            for info, data in made:
                tar.addfile(info, io.BytesIO(data))
    except ValueError:  # USTAR can't have it
        assume(False)
    assert ours(buffer.getvalue(), piece=piece) == theirs(buffer.getvalue())


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "uid": st.integers(0, MOST_ID),
            "gid": st.integers(0, MOST_ID),
            "mtime": st.integers(-(2**31), 2**33),
        },
    )
)
def test_numbers_in_base_256_are_those_of_tarfile(numbers: dict[str, int]) -> None:
    data = with_numbers("a", tarfile.REGTYPE, **numbers)
    assert ours(data) == theirs(data)


@given(st.data())
def test_of_odd_numbers_only_those_are_read_that_tarfile_reads(data: st.DataObject) -> None:
    place, size = data.draw(st.sampled_from([(100, 8), (108, 8), (116, 8), (136, 12)]))
    characters = st.sampled_from([b"0", b"7", b"8", b" ", b"\0", b"-", b"+", b"_", b"o", b"\x80", b"\xff", b"x"])
    raw = b"".join(data.draw(st.lists(characters, min_size=size, max_size=size)))
    block = bytearray(header(b"a", 0))
    block[place : place + size] = raw
    changed = with_checksum(bytes(block)) + END
    try:
        found = ours(changed)
    except DocumentError:
        return
    assert found == theirs(changed)


def with_checksum(block: bytes) -> bytes:
    blank = block[:148] + b" " * 8 + block[156:]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


def mixed() -> bytes:
    """An archive with something of each form."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, data in (entry("g" * 150 + "/" + "h" * 150, data=b"1" * 700), link("l", "t" * 300)):
            tar.addfile(info, io.BytesIO(data))
    attributes = {"SCHILY.xattr.user.a": "ü", "mtime": "12.5"}
    rest = [folder("d"), entry("d/ü" + "n" * 120, data=b"2" * 600, pax_headers=attributes), entry("e", data=b"3")]
    return buffer.getvalue()[: _end(buffer.getvalue())] + archive(rest)


def _end(data: bytes) -> int:
    """Where the zeros at the end of an archive begin."""
    return -(-len(data.rstrip(b"\0")) // BLOCK) * BLOCK


MIXED = mixed()
WHOLE = ours(MIXED)


def test_the_mixed_archive_is_read_as_tarfile_reads_it() -> None:
    assert theirs(MIXED) == WHOLE
    assert [each.kind for each in WHOLE] == [b"0", b"2", b"5", b"0", b"0"]


@given(st.integers(0, _end(MIXED)))
def test_what_is_cut_off_is_refused_unless_whole_entries_remain(size: int) -> None:
    try:
        found = ours(MIXED[:size])
    except DocumentError:
        assert size % BLOCK or size < _end(MIXED)
    else:
        assert found == WHOLE[: len(found)]
        assert (len(found) == len(WHOLE)) == (size >= len(MIXED.rstrip(b"\0")))


@given(st.integers(0, _end(MIXED) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_changes_what_it_stands_for(place: int, change: int) -> None:
    changed = bytearray(MIXED)
    changed[place] ^= change
    try:
        found = ours(bytes(changed))
    except DocumentError:
        return
    # A header has a checksum; names, records and data have none.
    assert len(found) == len(WHOLE)
    assert sum(one != other for one, other in zip(found, WHOLE, strict=True)) <= 1


@pytest.mark.parametrize("place", [place for place in range(BLOCK) if not 148 <= place < 156])
def test_a_changed_byte_of_a_header_is_refused(place: int) -> None:
    data = bytearray(member("abc", b"1") + END)
    data[place] ^= 0xFF
    with pytest.raises(DocumentError, match="checksum is wrong"):
        ours(bytes(data))


@given(st.lists(st.binary(max_size=BLOCK), max_size=6), st.sampled_from([b"x", b"g", b"L", b"K", b"S", b"0"]))
def test_headers_before_nonsense_end_in_an_error_or_an_entry(blocks: list[bytes], kind: bytes) -> None:
    body = b"".join(block.ljust(BLOCK, b"\0") for block in blocks)
    data = header(b"a", len(body), kind) + body + member("b", b"1") + END
    try:
        found = ours(data)
    except DocumentError as error:
        assert str(error).startswith("test: ")
    else:
        assert found


SPARSE = {
    "old GNU": ("--format=oldgnu",),
    "GNU": ("--format=gnu",),
    "PAX 0.0": ("--format=posix", "--sparse-version=0.0"),
    "PAX 0.1": ("--format=posix", "--sparse-version=0.1"),
    "PAX 1.0": ("--format=posix", "--sparse-version=1.0"),
}


@pytest.mark.parametrize("options", SPARSE.values(), ids=SPARSE.keys())
@pytest.mark.parametrize("pieces", [0, 1, 3, 4, 5, 24, 26, 70, 200])
def test_sparse_files_of_gnu_tar_are_what_they_were(tmp_path: Path, options: tuple[str, ...], pieces: int) -> None:
    random = Random(pieces)
    name = "s" * 120
    with (tmp_path / name).open("wb") as file:
        for _ in range(pieces):
            file.seek(random.randrange(1, 6) * 4096, os.SEEK_CUR)
            file.write(random.randbytes(random.choice((100, 4096, 5000))))
        file.truncate(file.tell() + 4096 * (pieces % 3) + pieces)
    (tmp_path / "next").write_bytes(b"2")
    command = ["tar", *options, "--sparse", "--hole-detection=raw", "-cf", "-", "-C", str(tmp_path), name, "next"]
    data = subprocess.run(command, check=True, capture_output=True).stdout
    found = ours(data)
    # tarfile takes the name that GNU tar makes up for form 0.1, when it is long enough for a record of its own.
    assert [each._replace(name="") for each in found] == [each._replace(name="") for each in theirs(data)]
    assert [(each.name, each.data) for each in found] == [(name, (tmp_path / name).read_bytes()), ("next", b"2")]


@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_archives_of_gnu_tar_are_read_as_tarfile_reads_them(tmp_path: Path, form: str) -> None:
    tree = tmp_path / "tree"
    long = tree / ("d" * 60) / ("e" * 20)
    long.mkdir(parents=True)
    (long / "file").write_bytes(b"1" * 5000)
    os.link(long / "file", tree / "again")
    (tree / "link").symlink_to("../" * 20 + "x")
    if form != "v7":
        os.mkfifo(tree / "fifo")
    if form in ("oldgnu", "gnu", "posix"):
        (tree / ("ü" * 120)).write_bytes(b"2")
    data = subprocess.run(
        ["tar", f"--format={form}", "-cf", "-", "-C", tree, "."], check=True, capture_output=True
    ).stdout
    found = ours(data)
    assert found == theirs(data)
    assert len(found) >= 5


def test_a_prefix_stands_before_the_name() -> None:
    block = header(b"name", 0, prefix=b"folder/inner")
    assert [each.name for each in ours(block + END)] == [each.name for each in theirs(block + END)]
    assert [each.name for each in ours(block + END)] == ["folder/inner/name"]


def test_times_in_the_place_of_the_prefix_are_no_name() -> None:
    """GNU's incremental archives have them there; ``tarfile`` takes them for a folder."""
    block = bytearray(header(b"a", 0))
    block[257:265] = b"ustar  \0"
    block[345:369] = b"13374720000\0" * 2
    assert [each.name for each in ours(with_checksum(bytes(block)) + END)] == ["a"]


def test_a_number_that_readers_read_differently_is_refused() -> None:
    """Go skips NULs in front of digits, ``tarfile`` takes the field for 0."""
    block = bytearray(header(b"a", 0))
    block[108:116] = b"\0\0\0" + b"1750\0"
    with pytest.raises(DocumentError, match="is no number"):
        ours(with_checksum(bytes(block)) + END)


def test_bytes_of_a_checksum_may_be_signed() -> None:
    block = header("ü".encode(), 0)
    signed = sum(block) - sum(block[148:156]) + 8 * 32 - 2 * 256
    assert [each.name for each in ours(block[:148] + b"%06o\0 " % signed + block[156:] + END)] == ["ü"]


@pytest.mark.parametrize("form", [b"%06o\0 ", b"%07o\0", b"%08o", b"%6o \0", b" %06o\0", b"%07o "])
def test_checksums_are_written_in_many_ways(form: bytes) -> None:
    block = header(b"a", 0)
    total = sum(block) - sum(block[148:156]) + 8 * 32
    assert [each.name for each in ours(block[:148] + form % total + block[156:] + END)] == ["a"]


def test_the_last_of_two_extended_headers_counts_and_a_long_name_before_both() -> None:
    two = pax(path="one", uid="7") + pax(path="two") + member("a", b"1") + END
    assert [(each.name, each.uid) for each in ours(two)] == [("two", 0)]
    long = member("././@LongLink", b"three\0", b"L") + two
    assert [each.name for each in ours(long)] == ["three"]


def test_a_record_without_a_value_leaves_what_the_header_says() -> None:
    data = pax(path="", linkpath="") + member("a", b"", b"2", b"target") + END
    assert [(each.name, each.link) for each in ours(data)] == [("a", "target")]


def test_an_old_folder_is_recognized_by_its_whole_name() -> None:
    assert [each.kind for each in ours(member("d/", b"", b"\0") + END)] == [b"5"]
    assert [each.kind for each in ours(pax(path="d/") + member("d", b"", b"\0") + END)] == [b"5"]
    assert [each.kind for each in ours(pax(path="d/f") + member("d/", b"", b"\0") + END)] == [b"0"]


def test_records_of_solaris_count() -> None:
    data = with_records({"path": "long"}, member("a", b"1") + END, kind=tarfile.SOLARIS_XHDTYPE)
    assert [each.name for each in ours(data)] == ["long"]


@pytest.mark.parametrize("end", [b"", END, bytes(100)])
@pytest.mark.parametrize("kind", ["x", "g", "L"])
def test_a_header_before_no_entry_ends_the_archive(kind: str, end: bytes) -> None:
    """git archive writes a global one of an empty tree."""
    last = member(kind, b"9 path=a\n", kind.encode())
    assert ours(last + end) == []
    assert [each.name for each in ours(member("a", b"1") + last + end)] == ["a"]


@pytest.mark.parametrize("keyword", ["path", "linkpath", "size", "uid", "gid", "mtime", "atime", "ctime"])
@pytest.mark.parametrize("earlier", ["", "77"])
def test_a_record_without_a_value_leaves_the_headers_field(keyword: str, earlier: str) -> None:
    following = archive([entry("a", data=b"xyz", uid=3, gid=4, mtime=7)])
    records = [(keyword, ""), ("comment", "x")]
    assert ours(with_records([(keyword, earlier), *records], following)) == ours(following)


def test_an_attribute_may_be_empty() -> None:
    assert ours(with_records({"SCHILY.xattr.user.a": ""}, archive([entry("a")])))[0].xattrs == {"user.a": b""}


@pytest.mark.parametrize(
    "records", [b"5 a=b\n", b"06 a=b\n", b"6 a=b ", b"6 =ab\n", b"6 a-b\n", b"60 a=b\n", b"6a=bcd\n", b"\0" * 9]
)
def test_records_that_can_not_be_read_are_refused(records: bytes) -> None:
    with pytest.raises(DocumentError, match="no record of an extended header"):
        ours(header(b"x", len(records), b"x") + records.ljust(BLOCK, b"\0") + member("a", b"1") + END)


def test_a_sparse_map_of_what_is_no_file_is_refused() -> None:
    data = with_records({"GNU.sparse.map": "0,1", "GNU.sparse.size": "9"}, archive([folder("a")]))
    with pytest.raises(DocumentError, match="entry 'a' with a map of a sparse file"):
        ours(data)
