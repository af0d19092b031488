"""Archives that an import refuses: whatever somebody made of one, nothing of it stays."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imagestore import CancelToken, Digest, ImportOptions
from imagestore.errors import (
    ContentNotFoundError,
    DigestMismatchError,
    DocumentError,
    ImageNotFoundError,
    ImageStoreError,
    InvalidDigestError,
    InvalidInputError,
    SizeMismatchError,
    StoreFullError,
    UnknownRuntimeHandlerError,
)
from imagestore.oci import layout
from imagestore.store.archive import source
from imagestore.testing import Entry, Image, build_image, build_index, layer
from tests.support.node import Node, python_image
from tests.unit.store.archive.imports import KATA, image, refused
from tests.unit.store.archive.making import END, layout_files, member, tar_of, write


def changed(name: str, data: bytes) -> dict[str, bytes]:
    return {**layout_files({"a:1": image()}), name: data}


def index_of(**members: object) -> dict[str, bytes]:
    """The layout with members of the index.json entry changed."""
    files = layout_files({"a:1": image()})
    index = json.loads(files[layout.INDEX])
    index["manifests"][0].update(members)
    return {**files, layout.INDEX: json.dumps(index).encode()}


def nested(levels: int) -> Image:
    return build_index([Entry(nested(levels - 1))] if levels else [])


KATA_LAYER = image().manifests[0].layers[0]
KATA_CONFIG = image().manifests[0].config
KATA_MANIFEST = image().manifests[0].descriptor


def short_of(digest: Digest) -> dict[str, bytes]:
    files = layout_files({"a:1": image()})
    place = layout.blob_name(digest)
    return {**files, place: files[place][:-1]}


HOSTILE: dict[str, tuple[dict[str, bytes] | bytes, type[ImageStoreError], str]] = {
    "nothing": (b"", DocumentError, "is empty"),
    "no archive": (b"hello" * 300, DocumentError, "is no tar archive"),
    "another archive": (tar_of({"a": b"1"}), DocumentError, "is no image archive"),
    "cut off": (tar_of(layout_files({"a:1": python_image()}))[:-3000], DocumentError, "is cut off"),
    "zstd": (b"\x28\xb5\x2f\xfd" + b"\xff" * 600, DocumentError, "damaged zstd data"),
    "xz": (b"\xfd7zXZ\x00" + bytes(600), DocumentError, "damaged xz data"),
    "gzip cut off": (gzip.compress(bytes(5000))[:-9], DocumentError, "gzip data that is cut off"),
    "gzip damaged": (b"\x1f\x8b\x08" + b"\xff" * 600, DocumentError, "damaged gzip data"),
    "gzip with a tail": (gzip.compress(tar_of({"a": b""})) + b"tail", DocumentError, "damaged gzip data"),
    "zeros without end": (bytes(1 << 20), DocumentError, "is no image archive"),
    "gzip that is long behind its end": (
        gzip.compress(tar_of({"a": b""}) + bytes(65 << 20), 1),
        DocumentError,
        "goes on for more than 67108864 bytes behind its end",
    ),
    "a link in a layout": (
        member(layout.blob_name(KATA_LAYER.digest), b"", b"2", b"/etc/passwd")
        + tar_of(layout_files({"a:1": image()}, without=[KATA_LAYER.digest])),
        DocumentError,
        "is a symbolic link",
    ),
    "zip": (b"PK\x03\x04" + bytes(600), DocumentError, "is no tar archive"),
    "a manifest": (b'{"schemaVersion": 2}' + b" " * 600, DocumentError, "is no tar archive"),
    "a file system": (tar_of({"etc/passwd": b"", "bin/sh": b""}), DocumentError, "it is a file system"),
    "a layout one folder down": (
        tar_of({f"image/{name}": data for name, data in layout_files({"a:1": image()}).items()}),
        DocumentError,
        "it has an OCI layout in its folder 'image'",
    ),
    "saved before 1.10": (
        tar_of({"repositories": b"{}", f"{'a' * 64}/json": b"{}", f"{'a' * 64}/layer.tar": b""}),
        DocumentError,
        "has neither 'oci-layout' nor 'manifest.json'",
    ),
    "a link in the place of index.json": (
        member(layout.INDEX, b"", b"2", b"other.json")
        + tar_of({key: value for key, value in layout_files({"a:1": image()}).items() if key != layout.INDEX}),
        DocumentError,
        "'index.json' is a symbolic link",
    ),
    "a link in the place of oci-layout": (
        member(layout.MARK, b"", b"2", b"/etc/passwd") + END,
        DocumentError,
        "'oci-layout' is a symbolic link",
    ),
    "a device in the place of a blob": (
        member(layout.blob_name(KATA_LAYER.digest), b"", b"3")
        + tar_of(layout_files({"a:1": image()}, without=[KATA_LAYER.digest])),
        DocumentError,
        "is a character device",
    ),
    "a name that leaves": (
        member("../../x", b"1") + tar_of(layout_files({"a:1": image()})),
        DocumentError,
        "a name that leaves the archive",
    ),
    "index.json twice": (
        tar_of(layout_files({"a:1": image()}))[: -len(END)] + member(layout.INDEX, b"{}") + END,
        DocumentError,
        "'index.json' occurs twice, with different contents",
    ),
    "layout of another version": (
        changed(layout.MARK, b'{"imageLayoutVersion": "2.0.0"}'),
        DocumentError,
        "layout version '2.0.0'",
    ),
    "layout mark too long": (changed(layout.MARK, b" " * 5000), DocumentError, "more than the 4096 allowed"),
    "index.json too long": (changed(layout.INDEX, b" " * 16_777_217), DocumentError, "than the 16777216 allowed"),
    "index.json too deep": (changed(layout.INDEX, b"[" * 100_000), DocumentError, "nested deeper"),
    "index.json no JSON": (changed(layout.INDEX, b"{"), DocumentError, "is not JSON"),
    "index.json with layers": (
        changed(layout.INDEX, b'{"schemaVersion": 2, "manifests": [], "layers": []}'),
        DocumentError,
        "$.layers",
    ),
    "index.json empty": (
        changed(layout.INDEX, b'{"schemaVersion": 2, "manifests": []}'),
        ImageNotFoundError,
        "holds no",
    ),
    "index.json missing": (
        {key: value for key, value in layout_files({"a:1": image()}).items() if key != layout.INDEX},
        DocumentError,
        "has no file 'index.json'",
    ),
    "a name that is none": (index_of(annotations={layout.NAME_KEY: "A B"}), InvalidInputError, "position"),
    "a digest with a path": (index_of(digest="sha256:../../../etc/passwd"), DocumentError, "$.manifests[0].digest"),
    "a digest that can't be verified": (
        index_of(digest="md5:d41d8cd98f00b204e9800998ecf8427e"),
        InvalidDigestError,
        "this algorithm can't be verified",
    ),
    "target missing": (index_of(digest=str(Digest.of(b"x"))), ContentNotFoundError, "is needed, but missing"),
    "target of another size": (index_of(size=1), SizeMismatchError, "expected 1 bytes"),
    "index called a manifest": (
        index_of(mediaType="application/vnd.oci.image.manifest.v1+json"),
        DocumentError,
        "'application/vnd.oci.image.manifest.v1+json', but its own media type is 'application/vnd.oci.image.index.v1+",
    ),
    "manifest with other bytes": (
        changed(layout.blob_name(KATA_MANIFEST.digest), b" " * KATA_MANIFEST.size),
        DigestMismatchError,
        "expected digest",
    ),
    "config cut short": (short_of(KATA_CONFIG.digest), SizeMismatchError, "truncated at"),
    "layer cut short": (short_of(KATA_LAYER.digest), SizeMismatchError, "truncated at"),
    "layer missing": (
        layout_files({"a:1": image()}, without=[KATA_LAYER.digest]),
        ContentNotFoundError,
        f"layer {KATA_LAYER.digest}: is needed, but missing",
    ),
    "layer with other bytes": (
        changed(layout.blob_name(KATA_LAYER.digest), bytes(KATA_LAYER.size)),
        DigestMismatchError,
        "expected digest",
    ),
    "a layer of 8 EiB": (
        layout_files(
            {
                "a:1": build_image(
                    "linux/amd64",
                    members={
                        "layers": [
                            {"mediaType": KATA_LAYER.media_type, "digest": str(Digest.of(b"")), "size": 2**63 - 1}
                        ]
                    },
                    layers=[layer("x")],
                )
            }
        ),
        ContentNotFoundError,
        "is needed, but missing",
    ),
    "indexes in indexes": (
        layout_files({"a:1": nested(5)}),
        DocumentError,
        "nest deeper",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives_are_refused_and_leave_nothing(here: Node, tmp_path: Path, case: str) -> None:
    data, kind, words = HOSTILE[case]
    refused(here, write(tmp_path / "a.tar", data), KATA, kind, words)


def test_links_and_special_files_in_a_folder_are_refused(here: Node, tmp_path: Path) -> None:
    files = layout_files({"a:1": image()})
    folder = write(tmp_path / "layout", files)
    secret = tmp_path / "secret"
    place = folder / layout.blob_name(KATA_LAYER.digest)
    secret.write_bytes(place.read_bytes())
    place.unlink()
    place.symlink_to(secret)
    refused(here, folder, KATA, DocumentError, "is a symbolic link")
    place.unlink()
    os.mkfifo(place)
    refused(here, folder, KATA, DocumentError, "is no plain file, expected a file")
    place.unlink()
    (folder / "blobs" / "sha256").rename(tmp_path / "elsewhere")
    (folder / "blobs" / "sha256").symlink_to(tmp_path / "elsewhere")
    refused(here, folder, KATA, DocumentError, "is a symbolic link")


def test_what_can_not_be_opened_is_named(here: Node, tmp_path: Path) -> None:
    refused(here, tmp_path / "none.tar", KATA, InvalidInputError, "none.tar: can't be read: No such file")


def test_an_unknown_handler_is_refused(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", layout_files({"a:1": image()}))
    refused(here, archive, ImportOptions(("nonsense",)), UnknownRuntimeHandlerError, "nonsense")


FILES = {"index.json": b"i" * 3000, "blobs/sha256/x": b"x" * 3000}


@pytest.mark.parametrize("name", ["a.tar", "folder"])
def test_an_archive_that_became_shorter_after_the_look_is_refused(tmp_path: Path, name: str) -> None:
    """Who waits for the bytes that were there would wait for ever."""
    path = write(tmp_path / name, FILES)
    with source.opened(str(path), scratch=tmp_path, limit_bytes=0, cancel=CancelToken()) as archive:
        file, length = (path / "blobs/sha256/x", 1000) if path.is_dir() else (path, 512 + 3072 + 512 + 1000)
        os.truncate(file, length)
        pieces = archive.chunks("blobs/sha256/x")
        assert next(pieces) == b"x" * 1000
        with pytest.raises(SizeMismatchError, match="blobs/sha256/x"):
            next(pieces)


@pytest.mark.parametrize(
    ("put", "error"),
    [
        (lambda place, secret: place.symlink_to(secret), InvalidInputError),
        (lambda place, _: os.mkfifo(place), DocumentError),
    ],
    ids=["link", "pipe"],
)
def test_a_file_that_became_something_else_after_the_look_is_not_read(
    tmp_path: Path, put: Callable[[Path, Path], None], error: type[ImageStoreError]
) -> None:
    """A link would bring a file from outside the folder into the store; a pipe would make wait for ever."""
    folder, secret = write(tmp_path / "folder", FILES), tmp_path / "secret"
    secret.write_bytes(b"s" * 3000)
    with source.opened(str(folder), scratch=tmp_path, limit_bytes=0, cancel=CancelToken()) as archive:
        place = folder / "blobs/sha256/x"
        place.unlink()
        put(place, secret)
        with pytest.raises(error, match="blobs/sha256/x"):
            b"".join(archive.chunks("blobs/sha256/x"))


def test_each_of_many_folders_is_read_though_others_take_their_place_and_none_stays_open(tmp_path: Path) -> None:
    """Some are kept open, the others are gone to step by step; of neither sort a link is followed."""
    files = {f"blobs/{number}/x": b"%d" % number for number in range(12)}
    folder = write(tmp_path / "folder", files)
    write(tmp_path / "other", dict.fromkeys(files, b"secret"))
    is_open = len(os.listdir("/proc/self/fd"))
    with source.opened(str(folder), scratch=tmp_path, limit_bytes=0, cancel=CancelToken()) as archive:
        assert {name: b"".join(archive.chunks(name)) for name in archive.sizes()} == files
        (folder / "blobs").rename(tmp_path / "away")
        (folder / "blobs").symlink_to(tmp_path / "other" / "blobs")
        found = {}
        for name in files:
            with contextlib.suppress(InvalidInputError):
                found[name] = b"".join(archive.chunks(name))
        assert 0 < len(found) < len(files)
        assert found.items() <= files.items()
    assert len(os.listdir("/proc/self/fd")) == is_open


def test_a_folder_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else their names could fill the memory; links count too."""
    folder = write(tmp_path / "folder", FILES)
    monkeypatch.setattr("imagestore.store.archive.tar.MAX_MEMBERS", 2)
    with source.opened(str(folder), scratch=tmp_path, limit_bytes=0, cancel=CancelToken()) as archive:
        assert archive.sizes().keys() == FILES.keys()
    (folder / "blobs" / "link").symlink_to("nowhere")
    with (
        pytest.raises(DocumentError, match="more than 2 files"),
        source.opened(str(folder), scratch=tmp_path, limit_bytes=0, cancel=CancelToken()),
    ):
        pass


def test_what_has_no_room_is_refused_before_anything_is_stored(
    here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write(tmp_path / "a.tar", layout_files({"a:1": image()}))
    monkeypatch.setattr(here.store.content, "free_bytes", lambda: 10)
    refused(here, archive, KATA, StoreFullError, "bytes more, but")
