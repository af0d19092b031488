"""How compressions are told from each other, and what a compressed archive may take on the disk."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from imagestore import CancelToken
from imagestore.errors import DocumentError, OperationCancelledError, StoreFullError
from imagestore.store.archive.compressions import compression_of, plain
from imagestore.util.cancel import never_cancelled
from tests.support.node import Node
from tests.unit.store.archive.imports import KATA, image, refused
from tests.unit.store.archive.making import header, layout_files, member, tar_of, write

decoded = partial(plain, check=never_cancelled)

SKIPPED = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"


def zstd_of(data: bytes) -> bytes:
    """A frame of zstd (RFC 8878) with its size, blocks as they are."""
    blocks = [data[at : at + 100_000] for at in range(0, len(data), 100_000)]
    heads = [(len(each) << 3 | (number == len(blocks) - 1)).to_bytes(3, "little") for number, each in enumerate(blocks)]
    body = b"".join(head + each for head, each in zip(heads, blocks, strict=True))
    return b"\x28\xb5\x2f\xfd\xa0" + len(data).to_bytes(4, "little") + body


def windowed(log: int, data: bytes = b"abc") -> bytes:
    """A frame of zstd as a program writes it of a stream, with a window of so many bits."""
    return b"\x28\xb5\x2f\xfd" + bytes([0, log - 10 << 3]) + (len(data) << 3 | 1).to_bytes(3, "little") + data


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("log", [10, 27, 28, 29])
def test_windows_of_up_to_512_mib_are_read_however_the_bytes_come(log: int, size: int) -> None:
    stream = windowed(20) + SKIPPED + windowed(log) + windowed(log, b"defg") + windowed(12)
    pieces = iter([stream[at : at + size] for at in range(0, len(stream), size)])
    assert b"".join(decoded(pieces, what="test")) == b"abcabcdefgabc"


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("zstd", windowed(30)),
        ("zstd", windowed(31)),
        ("zstd", windowed(10) + windowed(41)),
        ("zstd", b"\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little")),
        ("xz", lzma.compress(b"abc", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 256 << 20}])),
    ],
)
def test_a_larger_window_is_refused_as_that(kind: str, data: bytes) -> None:
    with pytest.raises(DocumentError, match=f"has {kind} data with a window of ") as refused:
        list(decoded(iter([data]), what="test"))
    assert "smaller window" in refused.value.hint


def test_a_caller_may_allow_less() -> None:
    assert list(decoded(iter([windowed(20)]), what="test", window_bytes=1 << 20)) == [b"abc"]
    with pytest.raises(DocumentError, match="window of 1048576 bytes"):
        list(decoded(iter([windowed(20)]), what="test", window_bytes=(1 << 20) - 1))


def test_one_stream_at_a_time_has_a_large_window() -> None:
    calls = []

    def _check() -> None:
        calls.append(1)
        if len(calls) > 3:  # it was called while the stream waited
            raise OperationCancelledError("enough")

    first = decoded(iter([windowed(28, b"abcdefghi")[:-1], b"i"]), what="first")
    assert next(first) == b"abcdefgh"
    assert list(decoded(iter([windowed(27)]), what="usual")) == [b"abc"]
    with pytest.raises(OperationCancelledError, match="enough"):
        list(plain(iter([windowed(28)]), what="second", check=_check))
    first.close()
    assert list(decoded(iter([windowed(28)]), what="third")) == [b"abc"]


def test_a_frame_of_zstd_that_is_to_be_skipped_is_skipped(here: Node, tmp_path: Path) -> None:
    data = SKIPPED + zstd_of(tar_of(layout_files({"a:1": image()}))) + SKIPPED
    assert here.store.import_images(write(tmp_path / "a.bin", data), options=KATA).images


def test_a_file_whose_name_begins_like_bzip2_is_not_taken_for_it(here: Node, tmp_path: Path) -> None:
    whole = member("BZh91.txt", b"text") + tar_of(layout_files({"a:1": image()}))
    assert compression_of(whole) == ""
    assert here.store.import_images(write(tmp_path / "a.tar", whole), options=KATA).images


def test_what_a_header_promises_is_refused_before_a_byte_of_it_is_written(
    here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = len(tar_of({"a": b""})) + (1 << 20)
    promise = gzip.compress(header(b"a", 10 * room) + os.urandom(room // 2))
    monkeypatch.setattr(here.store.content, "free_bytes", lambda: 2 * room)
    # There is less than the limit in it, and a reader that wrote first would find it cut off.
    refused(here, write(tmp_path / "a.tar.gz", promise), KATA, StoreFullError, f"longer than {room} bytes")


def test_zeros_in_a_compressed_archive_take_no_room(
    here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what a few bytes of gzip give most of."""
    written: list[str] = []
    monkeypatch.setattr("imagestore.store.archive.spool.reach", written.append)
    whole = member("zeros", bytes(50 << 20)) + tar_of(layout_files({"a:1": image()}))
    archive = write(tmp_path / "a.tar.gz", gzip.compress(whole, 1))
    assert here.store.import_images(archive, options=KATA).images
    assert 0 < len(written) < 5, "pieces of a mebibyte"


def test_a_cancellation_ends_an_import_of_what_is_nothing_without_its_compression(
    here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write(tmp_path / "a.tar.gz", gzip.compress(b"", mtime=0) * 100_000)
    token, check, number = CancelToken(), CancelToken.check, itertools.count(1)

    def _check(this: CancelToken) -> None:
        if next(number) == 100:
            token.cancel()
        check(this)

    monkeypatch.setattr(CancelToken, "check", _check)
    with pytest.raises(OperationCancelledError):
        here.store.import_images(archive, options=KATA, cancel=token)
    assert next(number) < 200


@pytest.mark.parametrize(
    "compress",
    [
        partial(gzip.compress, compresslevel=1),
        partial(bz2.compress, compresslevel=1),
        partial(lzma.compress, preset=0),
        zstd_of,
    ],
    ids=["gzip", "bzip2", "xz", "zstd"],
)
def test_members_of_all_sizes_in_a_row_are_one_stream(compress: Callable[[bytes], bytes]) -> None:
    """A decoder gets more at a time the longer a member is, and again little behind its end."""
    large, small = os.urandom(3 << 19), [bytes([number % 256]) * (number % 5 + 1) for number in range(2000)]
    parts = [large, *small, bytes(3 << 20), large[:100_000], *small[:7], large]
    stream = b"".join(map(compress, parts)) + bytes(100)
    for size in (1 << 20, 1000, 2_000_003):
        pieces = (stream[start : start + size] for start in range(0, len(stream), size))
        found = list(decoded(pieces, what="test"))
        assert b"".join(found) == b"".join(parts)
        assert max(map(len, found)) <= 1 << 20
