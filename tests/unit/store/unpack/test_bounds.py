"""What a layer costs is bounded: memory by numbers, work by its size; and a cancellation ends it at once."""

from __future__ import annotations

import functools
import gzip
import itertools
import os
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from imagestore import CancelToken, Digest, UnpackLimits
from imagestore.errors import DocumentError, OperationCancelledError
from imagestore.events import Event, LayerUnpacking
from imagestore.oci import media_types
from imagestore.store.unpack.apply import LayerApplier
from imagestore.store.unpack.layer import LayerStream
from imagestore.store.unpack.path_table import PathTable
from imagestore.store.unpack.reader import entries
from imagestore.testing import Layer
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
    with_records,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Entry = tuple[tarfile.TarInfo, bytes]
#: Entries of a layer, and bytes that may be kept of all of them together: to keep their names would take more.
MANY, MOST_KEPT = 1500, 100_000


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of paths that go to a file soon."""
    small = functools.partial(PathTable, most_in_memory=20)
    monkeypatch.setattr("imagestore.store.unpack.brought.PathTable", small)
    monkeypatch.setattr("imagestore.store.unpack.tree.PathTable", small)


def kept(path: Path, monkeypatch: pytest.MonkeyPatch, layers: list[Layer], *, rootless: bool) -> int:
    """What an unpacking keeps in memory when it comes to the last entry, which is the only link."""
    found: list[int] = []

    def _look(*_: object, **__: object) -> None:
        snapshot = tracemalloc.take_snapshot()
        found.append(
            sum(each.size for each in snapshot.statistics("filename") if is_of_entries(each.traceback[0].filename))
        )

    with stored(path, *layers) as store, monkeypatch.context() as patch:
        patch.setattr(os, "symlink", _look)
        patch.setattr(LayerApplier, "_set_on_name", lambda *_, **__: None)
        tracemalloc.start()
        try:
            store.unpack(REFERENCE, path / "root", rootless=rootless)
        finally:
            tracemalloc.stop()
    return found[0]


def is_of_entries(file: str) -> bool:
    """Whether a module reads or unpacks entries; ``layer`` has the bytes of the layer, which come in pieces."""
    return "/store/unpack/" in file and not file.endswith("layer.py")


def name_of(number: int) -> str:
    return f"{number:0>90}"


def with_label(number: int) -> bytes:
    """A folder with an attribute of 60,000 bytes, which is left out: no file system has to take it."""
    info, _ = folder(f"d{number}")
    return with_records({"SCHILY.xattr.security.selinux": "x" * 60_000}, info.tobuf(tarfile.USTAR_FORMAT))


LAST = link("last", "x")
#: By what there is much of: the layers.
KINDS: dict[str, Callable[[], list[Layer]]] = {
    "attributes of folders": lambda: [
        layer_from_tar(b"".join(with_label(number) for number in range(30)) + archive([LAST]))
    ],
    "folders": lambda: [made(*(folder(name_of(number)) for number in range(MANY)), LAST)],
    "folders that are implied": lambda: [made(*(entry(f"{name_of(number)}/x") for number in range(MANY)), LAST)],
    "files of an upper layer": lambda: [
        made(folder("d")),
        made(*(entry(f"d/{name_of(number)}") for number in range(MANY)), LAST),
    ],
    "whiteouts": lambda: [
        made(folder("d")),
        made(*(entry(f"d/.wh.{name_of(number)}") for number in range(MANY)), LAST),
    ],
    "opaque folders": lambda: [
        made(*(folder(name_of(number)) for number in range(MANY))),
        made(*(entry(f"{name_of(number)}/.wh..wh..opq") for number in range(MANY)), LAST),
    ],
    "hard links": lambda: [made(entry("a"), *(hard_link(name_of(number), "a") for number in range(MANY)), LAST)],
}


@pytest.mark.usefixtures("small_tables")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_kept_of_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    assert kept(tmp_path, monkeypatch, KINDS[kind](), rootless=IS_ROOTLESS) < MOST_KEPT


@pytest.mark.usefixtures("small_tables")
def test_nothing_is_kept_of_folders_that_shut_out_their_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = made(*(folder(name_of(number), mode=0o555) for number in range(MANY)), LAST)
    assert kept(tmp_path, monkeypatch, [layer], rootless=True) < MOST_KEPT


def test_pieces_of_two_bytes_take_no_more_memory_than_large_ones(tmp_path: Path) -> None:
    pieces = (b"ab" for _ in range(1 << 19))
    tracemalloc.start()
    try:
        with LayerStream(pieces, "sha256", what="test", cancel=CancelToken()) as stream:
            stream.finish()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def records(count: int) -> bytes:
    """An extended header of so many records, which say nothing of a file."""
    return with_records({f"{number:x}": "" for number in range(count)}, archive([entry("a")]))


def test_records_that_say_nothing_are_not_kept(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with LayerStream(iter([records(10_000)]), "sha256", what="test", cancel=CancelToken()) as stream:
            found = next(entries(stream, what="test"))
            kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert found.records == {}
    assert kept < 1 << 20


REFUSED: dict[str, tuple[UnpackLimits, bytes, str]] = {
    "attributes": (
        UnpackLimits(xattr_bytes=100_000),
        with_label(1) + with_label(2) + archive([]),
        "more than 100000 bytes of extended attributes",
    ),
    "headers": (UnpackLimits(header_bytes=50_000), with_label(1) + archive([]), "headers take more than 50000 bytes"),
    "headers by default": (
        UnpackLimits(),
        with_records({"comment": "x" * (1 << 20)}, archive([entry("a")])),
        "headers take more than 1048576 bytes",
    ),
    "names of attributes": (
        UnpackLimits(),
        with_records({f"SCHILY.xattr.user.{number:0>200}": "" for number in range(400)}, archive([entry("a")])),
        "attributes whose names take more than 65536 bytes together",
    ),
    "name": (UnpackLimits(), archive([entry("a/" * 2047 + "bc")]), "a name that is longer than 4095 bytes"),
    "path by links": (
        UnpackLimits(),
        archive([link("a", "/".join(["d" * 250] * 12)), entry(f"a/{'/'.join(['e' * 250] * 12)}/f")]),
        "a folder whose path is longer than 4095 bytes",
    ),
    "links that lead up and down": (
        UnpackLimits(),
        archive(
            [
                folder("d"),
                link("x3", "d"),
                *(link(f"x{n}", "d/../" * 800 + f"x{n + 1}") for n in (2, 1, 0)),
                entry("x0/f"),
            ]
        ),
        "through too many links",
    ),
}


@pytest.mark.parametrize(("limits", "layer", "refusal"), REFUSED.values(), ids=REFUSED.keys())
def test_what_passes_a_bound_is_refused(tmp_path: Path, limits: UnpackLimits, layer: bytes, refusal: str) -> None:
    with pytest.raises(DocumentError, match=refusal):
        unpacked(tmp_path, layer_from_tar(layer), limits=limits)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["store"]


def steps(path: Path, layers: list[Layer]) -> int:
    """How many calls an unpacking takes, of functions and of the system."""
    path.mkdir()
    with stored(path, *layers) as store:
        count = 0

        def _count(_: FrameType, event: str, __: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(_count)
        try:
            store.unpack(REFERENCE, path / "root", rootless=IS_ROOTLESS)
        finally:
            sys.setprofile(None)
    return count


def below(*names: str, count: int) -> Layer:
    return made(*(entry(f"{name}/low{number}") for name in names for number in range(count)))


#: By what a layer does again and again, with so many files of its own: the entries.
HIDING: dict[str, Callable[[int], list[Entry]]] = {
    "one opaque folder": lambda n: [
        *(entry(f"a/b/{number}") for number in range(n)),
        *(entry("a/b/.wh..wh..opq") for _ in range(n)),
    ],
    "opaque between files": lambda n: [
        each for number in range(n) for each in (entry(f"a/b/{number}"), entry("a/.wh..wh..opq"))
    ],
    "opaque root and folder": lambda n: [
        each
        for number in range(n)
        for each in (entry(f"{number}/x"), entry(f"{number}/.wh..wh..opq"), entry(".wh..wh..opq"))
    ],
    "from the innermost, again and again": lambda n: [
        each
        for number in range(n)
        for each in (entry("d/" * (10 - number % 10) + f"{number}"), entry("d/" * (10 - number % 10) + ".wh..wh..opq"))
    ],
    "whiteouts of its own folder": lambda n: [
        each for number in range(n) for each in (entry(f"a/b/{number}"), entry("a/.wh.b"), entry(".wh.a"))
    ],
    "whiteouts of its own files": lambda n: [
        each for number in range(n) for each in (entry(f"a/b/{number}"), entry(f"a/b/.wh.{number}"))
    ],
    "whiteouts of files below": lambda n: [entry(f"a/b/.wh.low{number}") for number in range(n)],
    "whiteouts of nothing": lambda n: [entry(f"a/b/.wh.none{number}") for number in range(n)],
}


@pytest.mark.parametrize("kind", HIDING)
def test_whiteouts_take_as_long_as_the_layer_is(tmp_path: Path, kind: str) -> None:
    few, many = (
        steps(tmp_path / str(count), [below("a/b", count=count), made(*HIDING[kind](count))]) for count in (30, 120)
    )
    assert many / few < 5  # for four times as much


@pytest.mark.usefixtures("small_tables")
@pytest.mark.parametrize("is_first", [True, False])
def test_opaque_folders_spare_what_their_layer_brought_however_much_it_is(tmp_path: Path, is_first: bool) -> None:
    lower = below("a", "a/b", "a/b/c", "other", count=50)
    new = [entry(f"{name}/new{number}", data=b"1") for name in ("a", "a/b", "a/b/c", "d/e") for number in range(50)]
    opaque = [entry("a/b/c/.wh..wh..opq"), entry("a/.wh..wh..opq"), entry("a/.wh..wh..opq"), entry(".wh.other")]
    unpacked(tmp_path, lower, made(*(opaque + new if is_first else new + opaque)))
    files = {name for name, text in listed(tmp_path / "root").items() if text != "folder"}
    assert files == {info.name for info, _ in new}


def test_a_folder_that_is_opaque_twice_keeps_what_came_between(tmp_path: Path) -> None:
    opaque = entry("a/.wh..wh..opq")
    upper = made(entry("a/one"), opaque, entry("a/two"), opaque, entry("a/b/three"), entry("a/b/.wh..wh..opq"), opaque)
    unpacked(tmp_path, below("a", "a/b", count=2), upper, made(entry("a/.wh.one")))
    assert listed(tmp_path / "root") == {"a": "folder", "a/two": "", "a/b": "folder", "a/b/three": ""}


def cancelled_by(monkeypatch: pytest.MonkeyPatch, name: str, at: int) -> tuple[CancelToken, list[str]]:
    """A token that the ``at``-th call of the system of this name cancels, and the calls of it afterwards."""
    token, since, number = CancelToken(), list[str](), itertools.count(1)
    call = getattr(os, name)

    def _call(*args: object, **given: object) -> object:
        if token.is_cancelled:
            since.append(str(args[0]))
        elif next(number) == at:
            token.cancel()
        return call(*args, **given)

    monkeypatch.setattr(os, name, _call)
    return token, since


def test_a_cancellation_ends_a_long_removal_and_the_next_unpacking_ends_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagestore.util.partial._PATIENCE_SECONDS", 0)
    with stored(tmp_path, below("a", count=200), made(entry(".wh.a"))) as store:
        with monkeypatch.context() as patch:
            token, removed = cancelled_by(patch, "unlink", 20)
            with pytest.raises(OperationCancelledError) as ended:
                store.unpack(REFERENCE, tmp_path / "root", rootless=IS_ROOTLESS, cancel=token)
        assert len(removed) < 10
        (rest,) = (each for each in tmp_path.iterdir() if each.name != "store")
        assert f"remove {rest}, which has what is left" in ended.value.hint
        os.utime(rest, (1, 1))
        store.unpack(REFERENCE, tmp_path / "root", rootless=IS_ROOTLESS)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["root", "store"]


@pytest.mark.parametrize(
    ("call", "layer"),
    [
        ("mkdir", lambda: made(*(folder(f"d{number}") for number in range(200)))),
        ("symlink", lambda: made(*(link(f"l{number}", "x") for number in range(200)))),
        ("lseek", lambda: layer_from_tar(sparse(200))),
    ],
    ids=["folders", "links", "pieces of a sparse file"],
)
def test_a_cancellation_ends_any_work_within_a_piece_of_the_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, layer: Callable[[], Layer]
) -> None:
    with stored(tmp_path, layer()) as store:
        token, calls = cancelled_by(monkeypatch, call, 20)
        with pytest.raises(OperationCancelledError):
            store.unpack(REFERENCE, tmp_path / "root", rootless=IS_ROOTLESS, cancel=token)
    assert len(calls) < 3


def sparse(pieces: int) -> bytes:
    """A sparse file (GNU's form 0.1) whose pieces have one byte each."""
    places = ",".join(f"{10 * number},1" for number in range(pieces))
    records = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": "9999", "GNU.sparse.map": places}
    return with_records(records, archive([entry("a", data=b"x" * pieces)]))


@pytest.mark.parametrize("empty", [gzip.compress(b"", mtime=0), zstd.compress(b"")], ids=["gzip", "zstd"])
def test_a_cancellation_ends_reading_what_is_nothing_without_its_compression(tmp_path: Path, empty: bytes) -> None:
    body = (gzip.compress if empty.startswith(b"") else zstd.compress)(archive([entry("a")])[:512])
    body += empty * (3 * 1024 * 1024 // len(empty))
    token, events = CancelToken(), []

    def _cancel(event: Event) -> None:
        events.append(event)
        token.cancel()

    layer = Layer(BytesBody(body), Digest.of(body), Digest.of(b""), media_type=media_types.OCI_LAYER_GZIP)
    with pytest.raises(OperationCancelledError):
        unpacked(tmp_path, layer, observer=_cancel, cancel=token)
    assert [type(each) for each in events] == [LayerUnpacking]


CHANGES: dict[str, list[Entry]] = {
    "file": [entry("d/new")],
    "link": [link("d/new", "x")],
    "hard link": [hard_link("d/new", "d/old")],
    "FIFO": [entry("d/new", tarfile.FIFOTYPE)],
    "folder": [folder("d/new")],
    "implied folder": [entry("d/new/deep/x")],
    "whiteout": [entry("d/.wh.old")],
    "whiteout of a folder": [entry("d/.wh.inner")],
    "opaque": [entry("d/.wh..wh..opq")],
    "opaque above": [folder("d", mtime=5), entry("d/new"), entry(".wh..wh..opq")],
    "file for a folder": [entry("d/inner"), entry("d/after")],
    "link for a file": [link("d/old", "x"), entry("d/after")],
    "in turns": [entry("d/one"), entry("e/one"), entry("d/two"), entry("e/two")],
    "by a link": [link("way", "d"), entry("way/one"), entry("d/two"), entry("way/three")],
    "more than stay open": [entry(f"d/{number}/x") for number in range(100)],
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("is_one_layer", [True, False])
def test_folders_have_their_times_whatever_is_done_in_them_later(
    tmp_path: Path, changes: list[Entry], is_one_layer: bool
) -> None:
    first = [folder("d", mtime=5), entry("d/old"), folder("d/inner", mtime=6), entry("d/inner/x"), folder("e", mtime=7)]
    unpacked(tmp_path, *([made(*first, *changes)] if is_one_layer else [made(*first), made(*changes)]))
    root = tmp_path / "root"
    found = {each: os.stat(root / each).st_mtime for each in ("d", "d/inner", "e") if (root / each).is_dir()}
    assert found["d"] == 5
    assert found.items() <= {"d": 5, "d/inner": 6, "e": 7}.items()


@pytest.mark.usefixtures("small_tables")
def test_a_folder_made_anew_is_not_closed_as_the_one_before(tmp_path: Path) -> None:
    closed = [folder(f"c{number}", mode=0o500) for number in range(40)]
    again = [entry(f".wh.c{number}") for number in range(0, 40, 2)]
    implied = [entry(f"c{number}/x") for number in range(0, 40, 4)]
    explicit = [folder(f"c{number}", mode=0o700) for number in range(2, 40, 4)]
    unpacked(tmp_path, made(*closed), made(*again), made(*implied, *explicit), rootless=True)
    modes = {number: os.stat(tmp_path / f"root/c{number}").st_mode & 0o777 for number in range(40)}
    assert modes == {n: 0o500 if n % 2 else 0o755 if n % 4 == 0 else 0o700 for n in range(40)}
