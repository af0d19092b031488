"""Content in a bucket, and a bucket behind mirrors: Ceph's gateway, filled, read, redirected to, damaged and killed."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import httpx
import obstore
import pytest

from imagestore import BucketContentStore, BucketSettings, CancelToken, Digest, ImageStore
from imagestore.content import Bucket
from imagestore.errors import (
    AlreadyExistsError,
    ConfigError,
    ContentNotFoundError,
    ContentUnavailableError,
    DigestMismatchError,
    OperationCancelledError,
    PreconditionError,
    SizeMismatchError,
    StoreError,
    StoreFullError,
)
from imagestore.events import BlobStarted
from imagestore.oci import Verifier
from imagestore.testing import Registry, RegistryServer, build_image, synthetic_layer
from imagestore.testing.contracts import ContentContract
from tests.support.ceph import SECRET_KEY, Ceph
from tests.support.mirror import RunningMirror, mirror_table, running_mirror
from tests.support.patience import until
from tests.unit.mirror.test_proofs import CONFIG as SECRET_CONFIG
from tests.unit.mirror.test_proofs import LAYER as SECRET_LAYER
from tests.unit.mirror.test_proofs import fetch, leaks, registries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imagestore import ContentStore
    from imagestore.events import Event

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("bucket_keys")]

IMAGE: Final = build_image(
    "linux/amd64", layers=[synthetic_layer("small", 1 << 20), synthetic_layer("large", 20 << 20)]
)
NAME: Final = "registry.example/app:1"
BLOBS: Final = [IMAGE.manifests[0].config, *IMAGE.manifests[0].layers]


def table(settings: BucketSettings, upstream: RegistryServer, *, members: str = "", more: str = "") -> str:
    """A mirror's configuration with a bucket."""
    bucket = f'{{url = "{settings.url}", endpoint = "{settings.endpoint}"{more}}}'
    return mirror_table({upstream.address: members}, bucket=bucket)


def pull(mirror: RunningMirror, upstream: RegistryServer, *, follow: bool = False) -> list[int]:
    """Ask for all blobs; the statuses."""
    mirror.get(f"/v2/app/manifests/1?ns={upstream.address}")
    statuses = []
    for blob in BLOBS:
        url = f"{mirror.url}/v2/app/blobs/{blob.digest}?ns={upstream.address}"
        answer = httpx.get(url, timeout=60)
        statuses.append(answer.status_code)
        if follow and answer.status_code == 307:
            answer = httpx.get(answer.headers["Location"], timeout=60)
        assert answer.status_code == 307 or Digest.of(answer.content) == blob.digest
    return statuses


def wait_until_there(settings: BucketSettings) -> None:
    bucket = Bucket(settings)
    until(lambda: all(bucket.size(blob.digest) == blob.size for blob in BLOBS), "the blobs are in the bucket")


def test_a_blob_appears_whole_or_not_at_all(settings: BucketSettings) -> None:
    bucket, cancel = Bucket(settings), CancelToken()
    bucket.check()
    for data in (b"small", os.urandom(20 << 20)):
        digest = Digest.of(data)
        assert bucket.size(digest) is None
        with pytest.raises(ContentNotFoundError):
            bucket.open(digest, len(data), offset=0, cancel=cancel)
        with pytest.raises(DigestMismatchError):
            bucket.put(digest, len(data), io.BytesIO(data[:-1] + b"?"), cancel=cancel)
        with pytest.raises(SizeMismatchError):
            bucket.put(digest, len(data), io.BytesIO(data[:-1]), cancel=cancel)
        cancelled = CancelToken()
        cancelled.cancel("enough")
        with pytest.raises(OperationCancelledError):
            bucket.put(digest, len(data), io.BytesIO(data), cancel=cancelled)
        assert bucket.size(digest) is None
        bucket.put(digest, len(data), io.BytesIO(data), cancel=cancel)
        assert bucket.size(digest) == len(data)
        for offset in (0, 3):
            buffer, read = memoryview(bytearray(1 << 16)), bytearray()
            with bucket.open(digest, len(data), offset=offset, cancel=cancel) as reader:
                while count := reader.readinto(buffer):
                    read += buffer[:count]
            assert bytes(read) == data[offset:]
        with pytest.raises(SizeMismatchError):
            bucket.open(digest, len(data) + 1, offset=0, cancel=cancel)
        assert httpx.get(bucket.signed(digest, 60)).content == data


def test_what_is_wrong_is_one_line(settings: BucketSettings, gateway: Ceph, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("wrong\n")
    wrong = BucketSettings(settings.url, endpoint=settings.endpoint, secret_key_file=str(tmp_path / "key"))
    with pytest.raises(ConfigError, match="refuses the credentials") as caught:
        Bucket(wrong).check()
    assert "\n" not in str(caught.value)
    assert SECRET_KEY not in str(caught.value)
    with pytest.raises(PreconditionError, match="refuses the credentials"):
        Bucket(wrong).size(Digest.of(b"x"))
    with pytest.raises(ConfigError, match="no such bucket"):
        Bucket(BucketSettings("s3://not-made", endpoint=gateway.endpoint)).check()
    with pytest.raises(ConfigError, match="can't be read"):
        Bucket(BucketSettings(settings.url, access_key_file=str(tmp_path / "none")))
    with pytest.raises(TypeError, match="pickled"):
        Bucket(settings).__reduce__()


def test_a_forked_child_is_refused(settings: BucketSettings) -> None:
    program = (
        "import os, sys\n"
        "from imagestore import Digest\n"
        "from imagestore.config.model import BucketSettings\n"
        "from imagestore.content.bucket import Bucket\n"
        "from imagestore.errors import StoreError\n"
        f"bucket = Bucket(BucketSettings({settings.url!r}, endpoint={settings.endpoint!r}))\n"
        "bucket.size(Digest.of(b'x'))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try:\n"
        "        bucket.size(Digest.of(b'x'))\n"
        "    except StoreError:\n"
        "        os._exit(7)\n"
        "    os._exit(1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 7


def test_an_empty_disk_is_filled_from_the_bucket(settings: BucketSettings, tmp_path: Path) -> None:
    with RegistryServer({NAME: IMAGE}) as upstream:
        with running_mirror(tmp_path / "one", table(settings, upstream)) as mirror:
            assert pull(mirror, upstream) == [200, 200, 200]
            wait_until_there(settings)
        before = upstream.ledger.count(kind="blob", method="GET")
        with running_mirror(tmp_path / "two", table(settings, upstream)) as mirror:
            assert pull(mirror, upstream) == [200, 200, 200]
            numbers = dict(mirror.mirror.counters.by_upstream())[upstream.address]
            assert numbers["bucket_read_bytes"] == sum(blob.size for blob in BLOBS)
        assert upstream.ledger.count(kind="blob", method="GET") == before


def test_clients_are_sent_to_the_bucket(settings: BucketSettings, tmp_path: Path) -> None:
    with (
        RegistryServer({NAME: IMAGE}) as upstream,
        running_mirror(tmp_path, table(settings, upstream, more=", redirect = true")) as mirror,
    ):
        assert pull(mirror, upstream) == [200, 200, 200]
        wait_until_there(settings)
        until(lambda: pull(mirror, upstream, follow=True) == [307, 307, 307], "clients are sent to the bucket")


@pytest.mark.parametrize("more", ["", ", redirect = true"])
def test_objects_that_expired_are_uploaded_again(
    settings: BucketSettings, gateway: Ceph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """With the blobs on the disk, evicted, and with an empty disk; nobody is sent to what is gone."""
    # As if a minute had passed.
    monkeypatch.setattr("imagestore.mirror.seen_objects.SEEN_SECONDS", 0.0)
    store, bucket = gateway.store(settings), Bucket(settings)

    def expire() -> None:
        wait_until_there(settings)
        obstore.delete(store, [f"blobs/sha256/{blob.digest.encoded}" for blob in BLOBS])
        assert [bucket.size(blob.digest) for blob in BLOBS] == [None] * 3

    with RegistryServer({NAME: IMAGE}) as upstream:
        text = table(settings, upstream, more=more)
        with running_mirror(tmp_path / "one", text) as mirror:
            assert pull(mirror, upstream) == [200, 200, 200]
            expire()
            assert pull(mirror, upstream) == [200, 200, 200]
            if more:
                wait_until_there(settings)
                until(lambda: pull(mirror, upstream, follow=True) == [307, 307, 307], "clients are sent there again")
                expire()
            with mirror.workers.lend() as lent:
                assert all(lent.content.delete(blob.digest) for blob in BLOBS)
            assert pull(mirror, upstream) == [200, 200, 200]
            expire()
        with running_mirror(tmp_path / "two", text) as mirror:
            assert pull(mirror, upstream) == [200, 200, 200]
            wait_until_there(settings)


@pytest.mark.parametrize("more", ["", ", redirect = true"])
def test_what_the_bucket_has_is_given_to_no_other_repository(
    settings: BucketSettings, tmp_path: Path, more: str
) -> None:
    """Not by a replica that lacks it on its disk, whatever way it is asked."""
    bucket = f'{{url = "{settings.url}", endpoint = "{settings.endpoint}"{more}}}'
    with registries() as (one, two):
        text = mirror_table({one.address: "", two.address: ""}, bucket=bucket)
        with running_mirror(tmp_path / "one", text) as mirror:
            fetch(mirror, one)
            found = Bucket(settings)
            until(lambda: all(found.size(each.digest) for each in (SECRET_LAYER, SECRET_CONFIG)), "it is in the bucket")
        with running_mirror(tmp_path / "two", text) as mirror:
            assert leaks(mirror, two) == []
            assert leaks(mirror, one) == []
            before = one.ledger.count(kind="blob", method="GET", digest=SECRET_LAYER.digest)
            path = f"/v2/secret/blobs/{SECRET_LAYER.digest}?ns={one.address}"
            assert mirror.get(f"/v2/secret/manifests/1?ns={one.address}").status_code == 200
            assert Digest.of(mirror.get(path).content) == SECRET_LAYER.digest
            # By the bucket, after one HEAD.
            assert one.ledger.count(kind="blob", method="GET", digest=SECRET_LAYER.digest) == before
            assert leaks(mirror, two) == []


def test_something_else_in_the_bucket_is_not_served(settings: BucketSettings, gateway: Ceph, tmp_path: Path) -> None:
    large = BLOBS[-1]
    store = gateway.store(settings)
    obstore.put(store, f"blobs/sha256/{large.digest.encoded}", b"\0" * large.size)
    with RegistryServer({NAME: IMAGE}) as upstream, running_mirror(tmp_path, table(settings, upstream)) as mirror:
        mirror.get(f"/v2/app/manifests/1?ns={upstream.address}")
        mirror.serve_whole(f"/v2/app/blobs/{large.digest}?ns={upstream.address}", large.digest)


def test_a_gateway_that_is_away_is_no_failure(settings: BucketSettings, gateway: Ceph, tmp_path: Path) -> None:
    with RegistryServer({NAME: IMAGE}) as upstream:
        text = table(settings, upstream, more=", redirect = true")
        gateway.kill_gateway()
        try:
            with running_mirror(tmp_path, text) as mirror:
                assert pull(mirror, upstream) == [200, 200, 200]
        finally:
            gateway.start_gateway()
        with pytest.raises((StoreError, ContentNotFoundError)):
            Bucket(settings).open(Digest.of(b"x"), 1, offset=0, cancel=CancelToken())


class TestBucketContent(ContentContract):
    @pytest.fixture
    def content(self, settings: BucketSettings, tmp_path: Path) -> ContentStore:
        return BucketContentStore(settings, tmp_path)


@contextlib.contextmanager
def opened(folder: Path, settings: BucketSettings, registry: Registry) -> Iterator[ImageStore]:
    content = BucketContentStore(settings, folder / "ingests")
    with ImageStore(folder / "store", content=content, transport=registry.transport) as store:
        yield store


def test_a_store_whose_content_is_in_a_bucket(settings: BucketSettings, tmp_path: Path) -> None:
    with opened(tmp_path, settings, Registry({NAME: IMAGE})) as store:
        image = store.pull(NAME, platform="linux/amd64")
        assert image.id == IMAGE.manifests[0].config.digest
        assert not store.check().faults
    with opened(tmp_path, settings, Registry({})) as store:
        assert store.get(NAME).id == image.id
        store.export_images([NAME], tmp_path / "out.tar")
        store.unpack(NAME, tmp_path / "tree")
        assert list((tmp_path / "tree").iterdir())
        store.remove(NAME)
        assert len(store.collect_garbage().digests) == len(BLOBS) + 1
        assert list(store.content.walk()) == []
        store.import_images(tmp_path / "out.tar")
        assert store.get(NAME).id == image.id
    with tarfile.open(tmp_path / "out.tar") as archive:
        assert f"blobs/sha256/{image.id.encoded}" in archive.getnames()


def test_what_is_damaged_in_the_bucket_is_found_and_put_right(
    settings: BucketSettings, gateway: Ceph, tmp_path: Path
) -> None:
    large = BLOBS[-1]
    with opened(tmp_path, settings, Registry({NAME: IMAGE})) as store:
        store.pull(NAME, platform="linux/amd64")
        obstore.put(gateway.store(settings), f"blobs/sha256/{large.digest.encoded}", b"\0" * large.size)
        found = store.check()
        assert found.damaged == {large.digest}
        store.repair(found)
        assert not store.check().faults
        with store.content.open(large.digest) as file:
            assert Digest.of(file.read()) == large.digest
            file.seek(-10, os.SEEK_END)
            assert len(file.read()) == 10


def test_a_prefix_belongs_to_one_store(settings: BucketSettings, tmp_path: Path) -> None:
    for _ in range(2):
        BucketContentStore(settings, tmp_path / "one")
    with pytest.raises(PreconditionError, match="another store"):
        BucketContentStore(settings, tmp_path / "two")
    with (
        RegistryServer({NAME: IMAGE}) as upstream,
        pytest.raises(ConfigError, match="a store's content"),
        running_mirror(tmp_path / "mirror", table(settings, upstream)),
    ):
        pass
    mirrors = replace(settings, url=f"{settings.url}/mirror")
    data = b"a mirror's"
    Bucket(mirrors).put(Digest.of(data), len(data), io.BytesIO(data), cancel=CancelToken())
    with pytest.raises(PreconditionError, match="no store owns"):
        BucketContentStore(mirrors, tmp_path / "three")


def test_a_bucket_that_fails_loses_no_ingest(settings: BucketSettings, gateway: Ceph, tmp_path: Path) -> None:
    content, data = BucketContentStore(settings, tmp_path), os.urandom(20 << 20)
    digest = Digest.of(data)
    with content.writer("r", expected=digest, total=len(data), cancel=CancelToken()) as writer:
        writer.write(data)
        gateway.kill_gateway()
        try:
            with pytest.raises(StoreError):
                writer.commit(digest, len(data))
        finally:
            gateway.start_gateway()
    assert not content.exists(digest)
    with content.writer("r", expected=digest, total=len(data), cancel=CancelToken()) as writer:
        assert writer.offset == len(data)
        writer.commit(digest, len(data))
    assert content.delete_damaged(digest)
    assert content.status("r") is None


def test_a_full_bucket_says_so(settings: BucketSettings, gateway: Ceph, tmp_path: Path) -> None:
    content, data = BucketContentStore(settings, tmp_path), os.urandom(1 << 20)
    bucket = settings.url.removeprefix("s3://").partition("/")[0]
    gateway.limit(bucket, max_bytes=4096)
    digest = Digest.of(data)
    with content.writer("r", expected=digest, total=len(data), cancel=CancelToken()) as writer:
        writer.write(data)
        with pytest.raises(StoreFullError, match="quota"):
            writer.commit(digest, len(data))
    status = content.status("r")
    assert status is not None
    assert status.offset == len(data)


def test_killed_writers_leave_nothing_wrong(settings: BucketSettings, tmp_path: Path) -> None:
    """Whenever it dies: the blob is whole or isn't there, and the next one brings it."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from imagestore import BucketContentStore, BucketSettings, CancelToken, Digest\n"
        f"settings = BucketSettings({settings.url!r}, endpoint={settings.endpoint!r})\n"
        f"content = BucketContentStore(settings, Path({os.fspath(tmp_path)!r}))\n"
        "data = sys.argv[1].encode() * (4 << 20)\n"
        "digest = Digest.of(data)\n"
        "print('ready', flush=True)\n"
        "with content.writer('r', expected=digest, total=len(data), cancel=CancelToken()) as writer:\n"
        "    writer.write(data[writer.offset:])\n"
        "    writer.commit(digest, len(data))\n"
    )
    content = BucketContentStore(settings, tmp_path)
    for number in range(6):
        text = f"kill {number}"
        digest = Digest.of(text.encode() * (4 << 20))
        process = subprocess.Popen([sys.executable, "-c", program, text], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.04 * number)
        process.kill()
        process.communicate()
        assert not content.exists(digest) or content.delete_damaged(digest)
        if not content.exists(digest):
            subprocess.run([sys.executable, "-c", program, text], check=True, timeout=60, stdout=subprocess.PIPE)
        assert content.delete_damaged(digest)
        # Killed just before the end, it leaves its ingest to the next one.
        with pytest.raises(AlreadyExistsError):
            content.writer("r", expected=digest, total=1, cancel=CancelToken())
        assert content.status("r") is None


def test_a_pull_that_the_bucket_failed_is_resumed(settings: BucketSettings, gateway: Ceph, tmp_path: Path) -> None:
    registry, large = Registry({NAME: IMAGE}), BLOBS[-1]
    is_down = False

    def kill(event: Event) -> None:
        nonlocal is_down
        if isinstance(event, BlobStarted) and event.descriptor.digest == large.digest and not is_down:
            is_down = True
            gateway.kill_gateway()

    with opened(tmp_path, settings, registry) as store:
        try:
            with pytest.raises(ContentUnavailableError):
                store.pull(NAME, platform="linux/amd64", observer=kill)
        finally:
            gateway.start_gateway()
        store.pull(NAME, platform="linux/amd64")
        assert not store.check().faults
        assert list(store.content.statuses()) == []
    assert registry.ledger.count(method="GET", digest=large.digest) == 1


def test_a_bucket_that_is_gone_is_not_an_empty_one(settings: BucketSettings, gateway: Ceph, tmp_path: Path) -> None:
    with opened(tmp_path, settings, Registry({NAME: IMAGE})) as store:
        store.pull(NAME, platform="linux/amd64")
        gateway.drop_bucket(settings)
        with store.content.deleter() as deleter:
            deleted = deleter.delete_some([str(blob.digest) for blob in BLOBS], lambda: False)
        assert deleted.sizes == {}
        assert set(deleted.failures) == {str(blob.digest) for blob in BLOBS}
        with pytest.raises(ContentUnavailableError, match="no such bucket"):
            list(store.content.walk())
        with store.content.writer("r", expected=Digest.of(b"x"), total=1, cancel=CancelToken()) as writer:
            writer.write(b"x")
            with pytest.raises(ContentUnavailableError, match="no such bucket"):
                writer.commit()


def test_what_was_repaired_in_between_is_not_deleted(
    settings: BucketSettings, gateway: Ceph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, data = BucketContentStore(settings, tmp_path), os.urandom(1 << 20)
    digest = Digest.of(data)
    raw, key = gateway.store(settings), f"blobs/sha256/{digest.encoded}"
    obstore.put(raw, key, bytes(len(data)))

    class Repairing(Verifier):
        def finish(self) -> None:
            obstore.put(raw, key, data)
            super().finish()

    with monkeypatch.context() as patch:
        patch.setattr("imagestore.content.staged.Verifier", Repairing)
        content.delete_damaged(digest)
    assert content.delete_damaged(digest)
    obstore.put(raw, key, bytes(len(data)))
    assert not content.delete_damaged(digest)
    assert not content.exists(digest)


@pytest.mark.parametrize(
    "endpoint", ["nonsense", "http://", "http://[::1", "http://a b", "http://user:secret@host", "http://h:0", "ftp://h"]
)
def test_endpoints_that_are_none(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="endpoint") as caught:
        Bucket(BucketSettings("s3://bucket", endpoint=endpoint))
    assert "secret" not in str(caught.value)


def test_a_wrong_variable_of_the_environment(settings: BucketSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "banana")
    with pytest.raises(ConfigError, match="settings") as caught:
        Bucket(settings)
    assert "\n" not in str(caught.value)
