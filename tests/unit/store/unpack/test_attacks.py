"""Nothing outside of the folder is touched, whatever a layer says and whoever changes the tree meanwhile."""

from __future__ import annotations

import gzip
import os
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from imagestore import Digest, UnpackLimits
from imagestore.errors import DocumentError, ImageStoreError
from imagestore.oci import media_types
from imagestore.store.unpack.tree import Tree
from imagestore.testing import Layer
from imagestore.testing.builders.bodies import BytesBody
from imagestore.testing.builders.layers import layer_from_tar
from tests.unit.store.unpack.making import archive, entry, folder, hard_link, link, listed, made, unpacked

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def outside(path: Path) -> Path:
    """A folder beside the tree that a layer would like to change."""
    victim = path / "victim"
    victim.mkdir()
    (victim / "file").write_text("untouched")
    os.utime(victim / "file", (1, 1))
    return victim


def is_untouched(victim: Path) -> bool:
    status = os.stat(victim / "file")
    return os.listdir(victim) == ["file"] and (victim / "file").read_text() == "untouched" and status.st_mtime == 1


@pytest.mark.parametrize("name", ["../victim/file", "/../victim/file", "a/../../victim/file", "a/b/../../../victim/x"])
def test_paths_that_lead_out_end_at_the_root(tmp_path: Path, name: str) -> None:
    victim = outside(tmp_path)
    unpacked(tmp_path, made(entry(name, data=b"evil")))
    assert is_untouched(victim)
    assert "evil" in listed(tmp_path / "root").values()


@pytest.mark.parametrize("target", ["{victim}", "../victim", "../../../../../../../../{victim}", "a/../../victim"])
@pytest.mark.parametrize("is_one_layer", [True, False])
def test_files_below_a_link_that_leads_out_stay_inside(tmp_path: Path, target: str, is_one_layer: bool) -> None:
    victim = outside(tmp_path)
    first = [folder("a"), link("way", target.format(victim=victim))]
    then = [entry("way/file", data=b"evil"), entry("way/.wh.file"), folder("way", mode=0o777)]
    unpacked(tmp_path, *([made(*first, *then)] if is_one_layer else [made(*first), made(*then)]))
    assert is_untouched(victim)


@pytest.mark.parametrize("name", [".wh..", ".wh...", "a/.wh..", "a/.wh...", ".wh."])
def test_whiteouts_that_name_no_file_are_refused(tmp_path: Path, name: str) -> None:
    victim = outside(tmp_path)
    with pytest.raises(DocumentError, match="names nothing"):
        unpacked(tmp_path, made(folder("a"), entry(name)))
    assert is_untouched(victim)


def test_whiteouts_through_a_link_hide_nothing_outside(tmp_path: Path) -> None:
    victim = outside(tmp_path)
    unpacked(tmp_path, made(link("way", str(victim))), made(entry("way/.wh.file"), entry("way/.wh..wh..opq")))
    assert is_untouched(victim)


@pytest.mark.parametrize("target", ["../victim/file", "/../victim/file", "way/file", "{victim}/file"])
def test_hard_links_name_files_of_the_tree_only(tmp_path: Path, target: str) -> None:
    victim = outside(tmp_path)
    with pytest.raises(ImageStoreError, match="which isn't there"):
        unpacked(tmp_path, made(link("way", str(victim)), hard_link("mine", target.format(victim=victim))))
    assert is_untouched(victim)
    assert os.stat(victim / "file").st_nlink == 1


def test_a_hard_link_to_a_link_is_the_link_and_not_what_it_means(tmp_path: Path) -> None:
    victim = outside(tmp_path)
    unpacked(tmp_path, made(link("a", f"{victim}/file"), hard_link("b", "a"), entry("b", data=b"evil")))
    assert is_untouched(victim)
    assert listed(tmp_path / "root")["b"] == "evil"


def test_a_file_over_a_link_replaces_the_link(tmp_path: Path) -> None:
    victim = outside(tmp_path)
    unpacked(tmp_path, made(link("a", f"{victim}/file")), made(entry("a", data=b"evil", mode=0o777)))
    assert is_untouched(victim)
    assert listed(tmp_path / "root") == {"a": "evil"}


@pytest.mark.parametrize(
    "entries",
    [
        [link("a", "b"), link("b", "a"), entry("a/c")],
        [link("a", "a/a/a"), entry("a/c")],
        [entry("a"), entry("a/b")],
        [entry("/")],
        [link(".", "x")],
        [hard_link("a", "a")],
        [hard_link("a", "/")],
        [entry("a", b"Z")],
    ],
    ids=["circle", "growing link", "below a file", "root as file", "root as link", "itself", "root", "unknown type"],
)
def test_what_can_not_be_is_refused_and_leaves_nothing(
    tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    with pytest.raises(DocumentError):
        unpacked(tmp_path, made(*entries))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["store"]


def _header(kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_headers_that_would_fill_the_memory_are_refused(tmp_path: Path, kind: bytes) -> None:
    data = _header(kind, 4 << 30) + bytes(64 << 20)
    with pytest.raises(DocumentError, match="headers take more than"):
        unpacked(tmp_path, layer_from_tar(data))


def test_a_chain_of_headers_is_bounded(tmp_path: Path) -> None:
    record = b"30 comment=aaaaaaaaaaaaaaaaaa\n".ljust(512, b"\0")
    data = (_header(tarfile.XHDTYPE, 30) + record) * 20000
    with pytest.raises(DocumentError):
        unpacked(tmp_path, layer_from_tar(data))


@pytest.mark.parametrize("records", [b"9999999999999999999 a=b\n", b"11 size=-1\n", b"18 mtime=infinity\n", b"x y=z\n"])
def test_odd_records_break_nothing(tmp_path: Path, records: bytes) -> None:
    data = _header(tarfile.XHDTYPE, len(records)) + records.ljust(512, b"\0") + archive([entry("a", data=b"1")])
    try:
        unpacked(tmp_path, layer_from_tar(data))
    except ImageStoreError:
        assert not (tmp_path / "root").exists()
    else:
        assert listed(tmp_path / "root") == {"a": "1"}


def test_a_folder_that_is_exchanged_for_a_link_leads_nowhere(tmp_path: Path) -> None:
    """Somebody with access to the tree exchanges a folder and a link to the outside, as fast as they can."""
    victim = outside(tmp_path)
    (tmp_path / "tree").mkdir()
    opened = os.open(tmp_path / "tree", os.O_RDONLY)
    tree = Tree(opened, what="test")
    os.close(opened)
    is_over = threading.Event()

    def exchange() -> None:
        place, aside, evil = tmp_path / "tree/a", tmp_path / "aside", tmp_path / "evil"
        evil.symlink_to(victim)
        while not is_over.is_set():
            for source, target in ((place, aside), (evil, place), (place, evil), (aside, place)):
                try:
                    source.rename(target)
                except OSError:
                    continue

    attacker = threading.Thread(target=exchange)
    attacker.start()
    try:
        for number in range(1000):
            parts = ("a", f"{number % 7}", "file")
            try:
                descriptor = tree.make_file(tree.reached(parts[:-1]), parts[-1])
                os.write(descriptor, b"evil")
                os.close(descriptor)
                tree.remove(parts[: 1 + number % 2])
            except (OSError, DocumentError):
                continue
    finally:
        is_over.set()
        attacker.join()
        tree.close()
    assert is_untouched(victim)


def test_a_bomb_ends_at_the_limit_of_bytes(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="limit"):
        unpacked(tmp_path, made(entry("zeros", data=bytes(64 << 20))), limits=UnpackLimits(size=1 << 20))
    assert not (tmp_path / "root").exists()


def compressed(tar: bytes, body: bytes, media_type: str = media_types.OCI_LAYER_GZIP) -> Layer:
    return Layer(BytesBody(body), Digest.of(body), Digest.of(tar), media_type=media_type)


TAR = archive([entry("a", data=b"1" * 5000)])


@pytest.mark.parametrize(
    "layer",
    [
        compressed(TAR, gzip.compress(TAR[:700]) + gzip.compress(b"") + gzip.compress(TAR[700:])),
        compressed(TAR, zstd.compress(TAR[:700]) + zstd.compress(TAR[700:]), media_types.OCI_LAYER_ZSTD),
        compressed(TAR, gzip.compress(TAR) + bytes(100)),
    ],
    ids=["gzip members", "zstd frames", "zeros behind gzip"],
)
def test_pieces_that_are_compressed_each_are_one_layer(tmp_path: Path, layer: Layer) -> None:
    unpacked(tmp_path, layer)
    assert listed(tmp_path / "root") == {"a": "1" * 5000}


@pytest.mark.parametrize(
    "body",
    [gzip.compress(TAR, mtime=0)[:-9], gzip.compress(TAR, mtime=0) + b"garbage", zstd.compress(TAR)[:-5]],
    ids=["cut off gzip", "garbage behind gzip", "cut off zstd"],
)
def test_damaged_compression_is_refused_and_leaves_nothing(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(DocumentError):
        unpacked(tmp_path, compressed(TAR, body))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["store"]


@pytest.mark.parametrize("is_padding", [True, False])
def test_a_few_compressed_bytes_never_become_gigabytes(tmp_path: Path, is_padding: bool) -> None:
    """A gigabyte of zeros in 32 KiB of zstd: behind the last entry, or as a file."""
    zeros = zstd.compress(bytes(64 << 20)) * 16
    header = b"" if is_padding else _header(tarfile.REGTYPE, 1 << 30)
    layer = compressed(TAR, zstd.compress(header) + zeros, media_types.OCI_LAYER_ZSTD)
    assert layer.body.size < 1 << 17
    with pytest.raises(DocumentError, match="limit of this unpacking"):
        unpacked(tmp_path, layer, limits=UnpackLimits(size=1 << 20, entries=1000))
