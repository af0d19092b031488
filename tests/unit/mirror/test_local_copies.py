"""Copies of what a store has elsewhere: each made once, read along, verified, and deleted for newer ones."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest

from imagestore import Descriptor, Digest, ImageStore, config, platforms
from imagestore.errors import (
    ContentNotFoundError,
    DigestMismatchError,
    IntegrityError,
    StoreBusyError,
    StoreError,
    StoreFullError,
)
from imagestore.mirror.fill import HELD_BACK_BYTES, RestartedError
from imagestore.mirror.local_copies import LocalCopies
from imagestore.oci.media_types import OCTETS
from imagestore.util.cancel import CancelToken
from tests.support.patience import until_in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from imagestore.content import ContentStore
    from imagestore.mirror.blobs import BlobSource

pytestmark = pytest.mark.anyio
#: Long enough for any machine; a test that needs it fails.
PATIENCE_SECONDS: Final = 60.0
SIZE: Final = 1 << 20


def blob(seed: str, size: int = SIZE) -> tuple[Descriptor, bytes]:
    data = (seed.encode() * size)[:size]
    return Descriptor(OCTETS, Digest.of(data), size), data


class Remote:
    """Content elsewhere, as a ContentStore gives it; what was opened is counted, and may be slow, cut or wrong."""

    def __init__(self, store: ImageStore) -> None:
        self.store = store
        self.opened: list[Digest] = []
        #: Makes the file that is read instead of the store's.
        self.change: Callable[[io.BytesIO], io.BytesIO] = lambda file: file
        self.is_damaged_thrown_away = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store.content, name)

    def open(self, digest: Digest) -> io.BytesIO:
        self.opened.append(digest)
        with self.store.content.open(digest) as file:
            return self.change(io.BytesIO(file.read()))

    def delete_damaged(self, _: Digest) -> bool:
        self.is_damaged_thrown_away = True
        return False


class Gated(io.BytesIO):
    """Gives half of itself, and the rest when the gate opens."""

    def __init__(self, data: bytes, gate: threading.Event) -> None:
        super().__init__(data)
        self._gate = gate
        self._half = len(data) // 2

    def readinto(self, buffer: Any) -> int:
        if self.tell() < self._half:
            return super().readinto(memoryview(buffer)[: self._half - self.tell()])
        assert self._gate.wait(PATIENCE_SECONDS)
        return super().readinto(buffer)


class Broken(io.BytesIO):
    """Breaks off in the middle."""

    def readinto(self, buffer: Any) -> int:
        if self.tell() >= len(self.getvalue()) // 2:
            raise StoreError("the bucket went away")
        return super().readinto(memoryview(buffer)[: 64 * 1024])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    host = platforms.parse("linux/amd64")
    with ImageStore(tmp_path / "root", config=config.loads("version = 3", host=host), host=host) as store:
        yield store


@pytest.fixture
def remote(store: ImageStore) -> Remote:
    return Remote(store)


def put(store: ImageStore, seed: str, size: int = SIZE) -> tuple[Descriptor, bytes]:
    descriptor, data = blob(seed, size)
    with store.content.writer(seed, expected=descriptor.digest, total=size, cancel=CancelToken()) as writer:
        writer.write(data)
        writer.commit(descriptor.digest, size)
    return descriptor, data


@contextlib.asynccontextmanager
async def copies(folder: Path, remote: Remote, quota: int = 10 * SIZE) -> AsyncIterator[LocalCopies]:
    @contextlib.contextmanager
    def lend() -> Iterator[ContentStore]:
        yield remote

    made = LocalCopies(folder, quota, lend, asyncio.get_running_loop())
    try:
        yield made
    finally:
        await asyncio.to_thread(made.close)


async def read(source: BlobSource | None, size: int = SIZE) -> bytes:
    """As send_blob() does."""
    assert source is not None
    data = b""
    with contextlib.closing(source):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await source.begun()
            while len(data) < size:
                end = await source.available(len(data), size)
                data += os.pread(source.file.fileno(), end - len(data), len(data))
    return data


def files(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir() if each.name != "lock"}


def name(descriptor: Descriptor) -> str:
    return str(descriptor.digest).replace(":", "-")


async def test_a_copy_is_made_once_and_sent_from_here(tmp_path: Path, store: ImageStore, remote: Remote) -> None:
    descriptor, data = put(store, "a")
    async with copies(tmp_path / "copies", remote) as made:
        sources = [made.open(store, descriptor) for _ in range(5)]
        assert await asyncio.gather(*(read(source) for source in sources)) == [data] * 5
        assert await read(made.open(store, descriptor)) == data
        assert remote.opened == [descriptor.digest]
        assert made.used_bytes == SIZE
    # It is there after a new start, though the store has lost it.
    store.content.delete(descriptor.digest)
    async with copies(tmp_path / "copies", remote) as made:
        assert made.has(store, descriptor)
        assert await read(made.open(store, descriptor)) == data
        assert remote.opened == [descriptor.digest]


async def test_clients_read_along_but_for_the_last_bytes(tmp_path: Path, store: ImageStore, remote: Remote) -> None:
    descriptor, data = put(store, "a")
    gate = threading.Event()
    remote.change = lambda file: Gated(file.getvalue(), gate)
    async with copies(tmp_path / "copies", remote) as made, asyncio.timeout(PATIENCE_SECONDS):
        early = made.open(store, descriptor)
        assert early is not None
        await early.begun()
        end = 0
        while end < SIZE // 2:
            end = await early.available(end, SIZE)
        assert end == SIZE // 2
        assert os.pread(early.file.fileno(), end, 0) == data[:end]
        # A range that ends here has to wait, too: the whole isn't verified.
        held = asyncio.ensure_future(early.available(end - HELD_BACK_BYTES, end))
        late = asyncio.ensure_future(read(made.open(store, descriptor)))
        await asyncio.sleep(0)
        assert not held.done()
        gate.set()
        assert await held == end
        assert await late == data
        early.close()
    assert remote.opened == [descriptor.digest]


async def test_a_source_that_breaks_off_is_resumed(tmp_path: Path, store: ImageStore, remote: Remote) -> None:
    descriptor, data = put(store, "a")
    remote.change = lambda file: file if len(remote.opened) > 1 else Broken(file.getvalue())
    async with copies(tmp_path / "copies", remote) as made:
        assert await read(made.open(store, descriptor)) == data
    assert len(remote.opened) == 2


async def test_a_source_that_stays_away_fails_its_readers_and_no_later_one(
    tmp_path: Path, store: ImageStore, remote: Remote
) -> None:
    descriptor, data = put(store, "a")
    remote.change = lambda file: Broken(file.getvalue())
    async with copies(tmp_path / "copies", remote) as made:
        with pytest.raises(StoreError, match="went away"):
            await read(made.open(store, descriptor))
        assert files(tmp_path / "copies") == set()
        remote.change = lambda file: file
        assert await read(made.open(store, descriptor)) == data


async def test_what_comes_damaged_once_is_copied_again(tmp_path: Path, store: ImageStore, remote: Remote) -> None:
    descriptor, data = put(store, "a")
    remote.change = lambda file: file if len(remote.opened) > 1 else io.BytesIO(b"?" + data[1:])
    async with copies(tmp_path / "copies", remote) as made:
        try:
            found = await read(made.open(store, descriptor))
        except RestartedError:  # it had read the damaged bytes
            found = await read(made.open(store, descriptor))
        assert found == data
    assert not remote.is_damaged_thrown_away


async def test_what_is_damaged_is_never_whole_and_thrown_away(
    tmp_path: Path, store: ImageStore, remote: Remote
) -> None:
    descriptor, data = put(store, "a")
    remote.change = lambda file: io.BytesIO(b"?" + data[1:])
    async with copies(tmp_path / "copies", remote) as made:
        with pytest.raises((DigestMismatchError, RestartedError)):
            await read(made.open(store, descriptor))
        with pytest.raises((DigestMismatchError, RestartedError)):
            await read(made.open(store, descriptor))
        assert remote.is_damaged_thrown_away
        assert made.used_bytes == 0
    assert files(tmp_path / "copies") == set()


async def test_the_least_recently_sent_goes_and_its_readers_read_on(
    tmp_path: Path, store: ImageStore, remote: Remote
) -> None:
    (a, data), (b, _), (c, _) = (put(store, seed) for seed in "abc")
    async with copies(tmp_path / "copies", remote, quota=2 * SIZE) as made:
        await read(made.open(store, a))
        await read(made.open(store, b))
        reader = made.open(store, b)
        await read(made.open(store, a))
        await read(made.open(store, c))
        assert files(tmp_path / "copies") == {name(a), name(c)}
        assert made.used_bytes == 2 * SIZE
        assert await read(reader) == blob("b")[1]
        assert await read(made.open(store, a)) == data
        assert remote.opened == [a.digest, b.digest, c.digest]
    # The order outlasts the process.
    os.utime(tmp_path / "copies" / name(a), (1, 1))
    async with copies(tmp_path / "copies", remote, quota=SIZE) as made:
        assert files(tmp_path / "copies") == {name(c)}


async def test_what_is_larger_than_the_quota_is_sent_all_the_same(
    tmp_path: Path, store: ImageStore, remote: Remote
) -> None:
    small, _ = put(store, "a", 1000)
    large, data = put(store, "b")
    async with copies(tmp_path / "copies", remote, quota=SIZE - 1) as made:
        await read(made.open(store, small), 1000)
        assert await read(made.open(store, large)) == data
        # And makes no room that it couldn't use.
        assert made.used_bytes == 1000
    assert files(tmp_path / "copies") == {name(small)}


async def test_a_copy_makes_room_for_what_came_of_it(tmp_path: Path, store: ImageStore, remote: Remote) -> None:
    before = [put(store, seed, SIZE // 4)[0] for seed in "abcd"]
    large, data = put(store, "large")
    remote.change = lambda file: Broken(file.getvalue()) if len(file.getvalue()) == SIZE else file
    async with copies(tmp_path / "copies", remote, quota=SIZE) as made:
        for each in before:
            await read(made.open(store, each), SIZE // 4)
        with pytest.raises(StoreError, match="went away"):
            await read(made.open(store, large))
        # Half of it came.
        assert files(tmp_path / "copies") == {name(each) for each in before[2:]}
        remote.change = lambda file: file
        assert await read(made.open(store, large)) == data
        assert files(tmp_path / "copies") == {name(large)}
        assert made.used_bytes == SIZE


async def test_a_copy_of_which_nothing_comes_makes_no_room(tmp_path: Path, store: ImageStore, remote: Remote) -> None:
    before = [put(store, seed, SIZE // 4)[0] for seed in "abcd"]
    large, _ = put(store, "large")
    async with copies(tmp_path / "copies", remote, quota=SIZE) as made:
        for each in before:
            await read(made.open(store, each), SIZE // 4)
        store.content.delete(large.digest)
        with pytest.raises(ContentNotFoundError):
            made.open(store, large)
        remote.change = lambda _: io.BytesIO(b"?" * 100)
        put(store, "large")
        with pytest.raises((IntegrityError, RestartedError)):
            await read(made.open(store, large))
        left = {name(each) for each in before[1:]}
        await until_in_loop(lambda: files(tmp_path / "copies") == left, "the copy is given up")


async def test_what_a_killed_process_left_is_removed(tmp_path: Path, store: ImageStore, remote: Remote) -> None:
    descriptor, data = put(store, "a")
    folder = tmp_path / "copies"
    folder.mkdir()
    (folder / f"{name(descriptor)}.0123456789abcdef.part").write_bytes(data[:1000])
    (folder / "of somebody else").write_bytes(b"")
    async with copies(folder, remote) as made:
        assert files(folder) == {"of somebody else"}
        assert await read(made.open(store, descriptor)) == data
        with pytest.raises(StoreBusyError, match="another process"):
            LocalCopies(folder, SIZE, contextlib.nullcontext, asyncio.get_running_loop())  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["cut", "deleted"])
async def test_a_copy_that_the_disk_lost_is_made_again(
    tmp_path: Path, store: ImageStore, remote: Remote, damage: str
) -> None:
    descriptor, data = put(store, "a")
    async with copies(tmp_path / "copies", remote) as made:
        await read(made.open(store, descriptor))
        path = tmp_path / "copies" / name(descriptor)
        os.truncate(path, 10) if damage == "cut" else path.unlink()
        assert await read(made.open(store, descriptor)) == data
    assert len(remote.opened) == 2


async def test_what_the_store_lacks_or_has_in_another_size(tmp_path: Path, store: ImageStore, remote: Remote) -> None:
    descriptor, _ = put(store, "a")
    missing, _ = blob("b")
    wrong = Descriptor(OCTETS, descriptor.digest, 7)
    async with copies(tmp_path / "copies", remote) as made:
        with pytest.raises(ContentNotFoundError):
            made.open(store, missing)
        for _ in range(2):
            assert made.open(store, wrong) is None
            assert (made.has(store, wrong), made.has(store, missing), made.has(store, descriptor)) == (
                False,
                False,
                True,
            )
            await read(made.open(store, descriptor))


async def test_what_goes_before_its_first_byte_is_not_begun(tmp_path: Path, store: ImageStore, remote: Remote) -> None:
    descriptor, _ = put(store, "a")

    def gone(_: io.BytesIO) -> io.BytesIO:
        raise ContentNotFoundError("collected a moment ago")

    remote.change = gone
    async with copies(tmp_path / "copies", remote) as made:
        source = made.open(store, descriptor)
        assert source is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(ContentNotFoundError):
                await source.begun()
        source.close()


async def test_what_was_just_fetched_is_not_asked_for_again(tmp_path: Path, store: ImageStore, remote: Remote) -> None:
    descriptor, data = put(store, "a")
    other, wrong = put(store, "b")
    async with copies(tmp_path / "copies", remote) as made:
        with store.content.open(descriptor.digest) as file:
            file.read(1000)
            made.keep(descriptor, file)
            made.keep(descriptor, file)
        assert await read(made.open(store, descriptor)) == data
        assert remote.opened == []
        # A file that has something else is none to copy.
        with store.content.open(descriptor.digest) as file:
            made.keep(other, file)
        try:
            found = await read(made.open(store, other))
        except RestartedError:
            found = await read(made.open(store, other))
        assert found == wrong
        assert remote.opened == [other.digest]


async def test_documents_are_copied_when_they_are_read(tmp_path: Path, store: ImageStore, remote: Remote) -> None:
    descriptor, data = put(store, "a", 1000)
    async with copies(tmp_path / "copies", remote) as made:
        assert made.read(store, descriptor.digest, limit_bytes=1000) == data
        store.content.delete(descriptor.digest)
        assert made.read(store, descriptor.digest, limit_bytes=1000) == data
        (tmp_path / "copies" / name(descriptor)).write_bytes(b"?" * 1000)
        with pytest.raises(ContentNotFoundError):
            made.read(store, descriptor.digest, limit_bytes=1000)
        put(store, "a", 1000)
        assert made.read(store, descriptor.digest, limit_bytes=1000) == data
        assert await read(made.open(store, descriptor), 1000) == data
        with pytest.raises(IntegrityError):
            made.read(store, put(store, "b", 1000)[0].digest, limit_bytes=999)


async def test_a_full_disk_is_named(tmp_path: Path, store: ImageStore, remote: Remote) -> None:
    descriptor, _ = put(store, "a")

    def full(_: io.BytesIO) -> io.BytesIO:
        raise OSError(28, "No space left on device")

    remote.change = full
    async with copies(tmp_path / "copies", remote) as made:
        with pytest.raises(StoreFullError, match="no space is left") as caught:
            await read(made.open(store, descriptor))
        assert "local_quota" in (caught.value.hint or "")


async def test_the_end_ends_copies_that_grow(tmp_path: Path, store: ImageStore, remote: Remote) -> None:
    descriptor, _ = put(store, "a")
    gate = threading.Event()
    remote.change = lambda file: Gated(file.getvalue(), gate)
    async with copies(tmp_path / "copies", remote) as made:
        source = made.open(store, descriptor)
        assert source is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            await source.begun()
        closing = asyncio.ensure_future(asyncio.to_thread(made.close))
        gate.set()
        await closing
        with pytest.raises(StoreError, match="can't be copied now"):
            made.open(store, put(store, "b")[0])
        source.close()
