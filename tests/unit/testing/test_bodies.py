"""Bodies: any part of any kind, and a synthetic stream that never changes."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from imagestore.errors import InvalidInputError
from imagestore.testing.builders.bodies import (
    PIECE_BYTES,
    BytesBody,
    FileBody,
    FlippedBody,
    PaddedBody,
    SyntheticBody,
    digest_of,
    read_all,
)

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.testing.builders.bodies import Body, SyntheticForm


@pytest.mark.parametrize(
    ("seed", "size", "form", "digest"),
    [
        ("a", 0, "raw", "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ("a", 1000, "raw", "sha256:e4aa616046fb0273d8ad8f1af9fd1b2cf32803d6a51f2185412d4949b3c45bee"),
        ("a", PIECE_BYTES + 5, "raw", "sha256:f0adba03ef0d11102547fa1601db702ca2361cfe457dca07fe5dc6b55f388b94"),
        ("a", 1536, "tar", "sha256:306da2f084e6e7956f6142b3a9add573b7d5ce237011256e99399e922f0a578e"),
        ("a", 10240, "tar", "sha256:2d21ae44be4e6ba5ba2499febb243e716918ec2b6556855f188809941295f02f"),
    ],
)
def test_synthetic_stream_is_part_of_the_format_and_never_changes(
    seed: str, size: int, form: SyntheticForm, digest: str
) -> None:
    assert str(digest_of(SyntheticBody(seed, size, form))) == digest


def test_synthetic_tar_is_an_archive_with_one_file() -> None:
    body = SyntheticBody("tar", 3 * 512 + 4096, "tar")
    with tarfile.open(fileobj=io.BytesIO(read_all(body, 1 << 20))) as archive:
        assert [(one.name, one.size) for one in archive.getmembers()] == [("synthetic.bin", 4096)]


@pytest.mark.parametrize(("size", "form"), [(-1, "raw"), (1535, "tar"), (1024, "tar"), (1537, "tar")])
def test_synthetic_size_must_fit_the_form(size: int, form: SyntheticForm) -> None:
    with pytest.raises(InvalidInputError, match="synthetic body 'x'"):
        SyntheticBody("x", size, form)


@pytest.fixture
def bodies(tmp_path: Path) -> list[Body]:
    data = bytes(range(256)) * 20
    (tmp_path / "file").write_bytes(data)
    return [
        BytesBody(data),
        FileBody(str(tmp_path / "file"), len(data)),
        SyntheticBody("s", 5000),
        SyntheticBody("s", 3 * PIECE_BYTES - 1),
        SyntheticBody("s", 512 * 9, "tar"),
        FlippedBody(BytesBody(data), 100),
        PaddedBody(BytesBody(data), len(data) + 200_000),
    ]


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, None), (0, 0), (0, 1), (1, 3), (99, 102), (511, 514), (4000, None), (4096, 4700), (4999, 5000), (5000, None)],
)
def test_a_part_is_the_same_bytes_as_in_the_whole(bodies: list[Body], start: int, stop: int | None) -> None:
    for body in bodies:
        whole = read_all(body, 1 << 30)
        assert len(whole) == body.size
        assert b"".join(body.chunks(start, stop)) == whole[start:stop]


def test_parts_over_piece_borders_of_a_long_stream_agree() -> None:
    body = SyntheticBody("s", 3 * PIECE_BYTES)
    whole = read_all(body, 1 << 30)
    for start in (PIECE_BYTES - 3, PIECE_BYTES, 2 * PIECE_BYTES - 1):
        assert b"".join(body.chunks(start, start + PIECE_BYTES + 7)) == whole[start : start + PIECE_BYTES + 7]


def test_pieces_are_bounded(bodies: list[Body]) -> None:
    assert max(len(piece) for body in bodies for piece in body.chunks()) <= PIECE_BYTES


def test_a_body_above_the_limit_is_not_read_into_memory() -> None:
    with pytest.raises(InvalidInputError, match="at most 10"):
        read_all(SyntheticBody("s", 11), 10)
