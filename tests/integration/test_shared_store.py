"""A store that machines share: records in PostgreSQL, content in a bucket of Ceph's gateway."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import obstore
import psycopg
import pytest

import imagestore
from imagestore import BucketSettings, CancelToken, Digest
from imagestore.errors import (
    ConfigError,
    ContentUnavailableError,
    ImageNotFoundError,
    ImageStoreError,
    InvalidInputError,
    PreconditionError,
    StoreCorruptError,
    StoreError,
    StoreMissingError,
    UnsupportedError,
)
from imagestore.events import BlobStarted
from imagestore.metadata.postgres.connection import LimitedConnection
from imagestore.testing import RegistryServer, build_image, synthetic_layer
from tests.support.commands import Commands

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imagestore import ImageStore
    from imagestore.events import Event
    from tests.support.postgres import Postgres
    from tests.support.shared_place import SharedPlace

pytestmark = pytest.mark.integration

IMAGE: Final = build_image("linux/amd64", layers=[synthetic_layer("small", 1 << 20), synthetic_layer("large", 9 << 20)])
OTHER: Final = build_image("linux/amd64", layers=[synthetic_layer("small", 1 << 20), synthetic_layer("own", 5120)])
NAME: Final = "registry.example/app:1"
OTHER_NAME: Final = "registry.example/other:1"
CONTENT: Final = 4


@pytest.fixture
def upstream() -> Iterator[RegistryServer]:
    with RegistryServer({NAME: IMAGE, OTHER_NAME: OTHER}) as server:
        yield server


@pytest.fixture
def name(upstream: RegistryServer) -> str:
    return f"{upstream.address}/app:1"


def fetched(upstream: RegistryServer) -> int:
    return upstream.ledger.count(kind="blob", method="GET")


class TestMachines:
    def test_an_unchanged_pull_takes_few_round_trips(
        self, shared_place: SharedPlace, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with shared_place.open("one") as one:
            pulled = one.pull(name)
            trips, wait = [], LimitedConnection.wait

            def counted(db: LimitedConnection, *arguments: Any, **named: Any) -> object:
                trips.append(db)
                return wait(db, *arguments, **named)

            monkeypatch.setattr(LimitedConnection, "wait", counted)
            assert one.pull(name).id == pulled.id
        assert len(trips) <= 16

    def test_what_one_brings_all_have(self, shared_place: SharedPlace, upstream: RegistryServer, name: str) -> None:
        with shared_place.open("one") as one, shared_place.open("two") as two:
            pulled = one.pull(name)
            assert [image.reference for image in two.list()] == [name]
            blobs = fetched(upstream)
            assert two.pull(name).id == pulled.id
            assert two.pull(name.replace("app", "other")).reference.endswith("other:1")
            # The layer that both images have is here already.
            assert fetched(upstream) == blobs + 2
            assert len(shared_place.objects()) == CONTENT + 3
            two.remove(name)
            with pytest.raises(ImageNotFoundError):
                one.get(name)
            report = one.collect_garbage()
            assert len(report.digests) == 3
            assert len(shared_place.objects()) == CONTENT
            assert [image.reference for image in one.list()] == [name.replace("app", "other")]
            assert two.check().faults == ()

    def test_several_that_pull_at_once_fetch_once(
        self, shared_place: SharedPlace, upstream: RegistryServer, name: str
    ) -> None:
        stores = [shared_place.open(machine) for machine in ("one", "two", "three")]
        try:
            with ThreadPoolExecutor(6) as threads:
                images = list(threads.map(lambda store: store.pull(name), stores * 2))
        finally:
            for store in stores:
                store.close()
        assert len({image.id for image in images}) == 1
        assert fetched(upstream) == 3
        assert len(shared_place.objects()) == CONTENT

    def test_scopes_share_content_and_nothing_else(self, shared_place: SharedPlace, name: str) -> None:
        with shared_place.open(scope="ci") as one, shared_place.open(scope="zone-a/mirror") as two:
            one.pull(name)
            assert list(two.list()) == []
            two.pull(name)
            one.remove(name)
            assert one.collect_garbage().digests == ()
            (chain, *_) = one.why(two.get(name).manifest.digest)
            assert "zone-a/mirror" in str(chain)
            assert two.check().faults == ()
            two.remove(name)
            assert len(one.collect_garbage().digests) == CONTENT
        assert shared_place.objects() == []

    def test_an_archive_goes_out_and_in(self, shared_place: SharedPlace, name: str, tmp_path: Path) -> None:
        with shared_place.open() as store:
            image = store.pull(name)
            store.export_images([name], str(tmp_path / "app.tar"))
            store.remove(name)
            store.collect_garbage()
            assert shared_place.objects() == []
            (imported,) = store.import_images(str(tmp_path / "app.tar")).images
            assert imported.id == image.id
            assert store.unpack(name, tmp_path / "rootfs").entries
            with pytest.raises(UnsupportedError):
                _ = imported.layer_paths

    def test_a_cancelled_pull_leaves_nothing(self, shared_place: SharedPlace, name: str) -> None:
        token = CancelToken()

        def cancel(event: Event) -> None:
            if isinstance(event, BlobStarted) and event.descriptor.size > 1 << 20:
                token.cancel("enough")

        with shared_place.open() as store:
            with pytest.raises(ImageStoreError):
                store.pull(name, cancel=token, observer=cancel)
            assert list(store.metadata.leases.find()) == []
            store.pull(name)
            assert store.check().faults == ()

    def test_sweeps_and_pulls_at_the_same_time(self, shared_place: SharedPlace, name: str) -> None:
        """What is pulled while others remove and collect is whole in the end."""
        ended = threading.Event()

        def disturb(machine: ImageStore) -> None:
            while not ended.is_set():
                _remove(machine, name)
                machine.collect_garbage()

        with shared_place.open("one") as one, shared_place.open("two") as two, ThreadPoolExecutor(1) as threads:
            disturbing = threads.submit(disturb, two)
            try:
                for _ in range(15):
                    image = one.pull(name)
                    assert image.platform.os == "linux"
            finally:
                ended.set()
            disturbing.result()
            one.pull(name)
            assert one.check().faults == ()
            assert {key.split("/")[2] for key in shared_place.objects()} == {
                info.digest.encoded for info in one.content.walk()
            }


def _remove(store: ImageStore, name: str) -> None:
    try:
        store.remove(name)
    except ImageNotFoundError:
        return


class TestOpening:
    def test_what_can_not_be_opened_says_why(self, shared_place: SharedPlace, monkeypatch: pytest.MonkeyPatch) -> None:
        url, content = shared_place.url, shared_place.content
        base, _, database = url.rpartition("/")
        cases: list[tuple[str, str | None, str, type[Exception], str]] = [
            (url, None, "", InvalidInputError, "bucket"),
            (url, "file:///x", "", InvalidInputError, "s3://BUCKET"),
            (url, content, "no scope!", InvalidInputError, "scope"),
            (f"{base}/none", content, "", ConfigError, "none"),
            (url.replace("imagestore@", "nobody@"), content, "", PreconditionError, "nobody"),
            ("postgresql://[", content, "", ConfigError, "address"),
            (f"{url}?sslmode=sometimes", content, "", ConfigError, "sslmode"),
            (f"{url}?connect_timeout=soon", content, "", ConfigError, "connect_timeout"),
            ("postgresql://127.0.0.1:1/x?connect_timeout=2", content, "", ContentUnavailableError, "127.0.0.1:1"),
            (url, "s3://not-there-at-all", "", ConfigError, "not-there-at-all"),
            (str(shared_place.folder / "plain"), content, "", InvalidInputError, "folder"),
            (str(shared_place.folder / "plain"), None, "scope", InvalidInputError, "folder"),
        ]
        for root, bucket, scope, error, text in cases:
            with pytest.raises(error, match=text) as refused:
                imagestore.open(root, content=bucket, scope=scope)
            assert "\n" not in str(refused.value)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
        with pytest.raises((ConfigError, PreconditionError)) as refused:
            imagestore.open(url, content=content)
        assert "wrong-secret" not in str(refused.value)
        assert database in url

    def test_a_password_is_never_shown(self, shared_place: SharedPlace) -> None:
        at = shared_place.url.index("@")
        with_password = f"{shared_place.url[:at]}:hunter2{shared_place.url[at:]}"
        with shared_place.open(url=with_password) as store:
            assert "hunter2" not in store.name
            assert "hunter2" not in repr(vars(store.metadata.database)["_pool"])  # type: ignore[attr-defined]
        with pytest.raises(ImageStoreError) as refused:
            imagestore.open(with_password.replace("/test", "/none-test"), content=shared_place.content)
        assert "hunter2" not in f"{refused.value} {refused.value.hint}"

    def test_another_database_needs_another_prefix(self, shared_place: SharedPlace, postgres_server: Postgres) -> None:
        shared_place.open().close()
        other = postgres_server.create_database()
        with pytest.raises(PreconditionError, match="another store"):
            imagestore.open(postgres_server.url(other), content=shared_place.content)

    def test_other_programs_tables_and_newer_ones(self, shared_place: SharedPlace, postgres_server: Postgres) -> None:
        url = postgres_server.url(postgres_server.create_database())
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("CREATE TABLE customers (id integer)")
        with pytest.raises(PreconditionError, match="customers"):
            imagestore.open(url, content=shared_place.content)
        shared_place.open().close()
        with psycopg.connect(shared_place.url, autocommit=True) as db:
            db.execute("UPDATE imagestore_version SET version = version + 1")
        with pytest.raises(StoreCorruptError, match="newer"):
            shared_place.open()

    def test_what_a_newer_version_took_over_is_not_written(self, shared_place: SharedPlace) -> None:
        with shared_place.open() as store:
            store.metadata.leases.create("before", lifetime_seconds=60)
            with psycopg.connect(shared_place.url, autocommit=True) as db:
                db.execute("UPDATE imagestore_version SET version = version + 1")
            with pytest.raises(StoreCorruptError, match="newer"):
                store.metadata.leases.create("after", lifetime_seconds=60)

    def test_many_that_make_it_at_once_make_one(self, shared_place: SharedPlace) -> None:
        with ThreadPoolExecutor(8) as threads:
            stores = list(threads.map(lambda _: shared_place.open(), range(8)))
        ids = {store.metadata.database.id for store in stores}  # type: ignore[attr-defined]  # of PostgreSQL's adapter
        for store in stores:
            store.close()
        assert len(ids) == 1

    def test_who_only_reads_makes_none(self, shared_place: SharedPlace) -> None:
        with pytest.raises(StoreMissingError):
            imagestore.ImageStore(shared_place.url, content=shared_place.content, create=False)

    def test_a_closed_store_says_so(self, shared_place: SharedPlace, name: str) -> None:
        store = shared_place.open()
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.pull(name)
        with pytest.raises(StoreError, match="closed"):
            list(store.list())

    def test_a_forked_child_is_refused(self, shared_place: SharedPlace) -> None:
        with shared_place.open() as store:
            context = multiprocessing.get_context("fork")
            queue = context.SimpleQueue()
            child = context.Process(target=_try, args=(store, queue))
            child.start()
            child.join()
            assert "forked" in queue.get()
            assert list(store.list()) == []

    def test_sources_are_for_one_machine(self, shared_place: SharedPlace, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="sources"):
            imagestore.ImageStore(shared_place.url, content=shared_place.content, sources=[tmp_path])

    def test_settings_of_a_bucket_can_be_given(self, shared_place: SharedPlace) -> None:
        settings = BucketSettings(shared_place.content, endpoint=shared_place.gateway.endpoint)
        os.environ.pop("AWS_ENDPOINT_URL")
        with imagestore.open(shared_place.url, content=settings) as store:
            assert store.content.name == shared_place.content


def _try(store: ImageStore, queue: object) -> None:
    try:
        list(store.list())
    except StoreError as error:
        queue.put(str(error))  # type: ignore[attr-defined]


class TestDamage:
    def test_a_missing_object_is_found_and_fetched_again(
        self, shared_place: SharedPlace, upstream: RegistryServer, name: str
    ) -> None:
        with shared_place.open() as store:
            image = store.pull(name)
            settings = BucketSettings(shared_place.content, endpoint=shared_place.gateway.endpoint)
            bucket = shared_place.gateway.store(settings)
            lost = image.layers[0].digest
            (key,) = (key for key in shared_place.objects() if lost.encoded in key)
            obstore.delete(bucket, key)
            report = store.check()
            assert [fault.subject for fault in report.faults] == [str(lost)]
            repaired = store.repair(report)
            assert repaired.failures == ()
            assert store.check().faults == ()
            assert Digest.of(store.content.read(lost, limit_bytes=1 << 24)) == lost


class TestCommands:
    @pytest.fixture
    def cli(self, capsys: pytest.CaptureFixture[str], shared_place: SharedPlace) -> Commands:
        return Commands(capsys, "--root", shared_place.url, "--content", shared_place.content)

    def test_a_day_of_a_ci_fleet(
        self, cli: Commands, capsys: pytest.CaptureFixture[str], shared_place: SharedPlace, name: str, tmp_path: Path
    ) -> None:
        assert cli.json("images") == {"images": []}
        cli("pull", name)
        assert "app" in cli("images")
        (layer, *_) = cli.json("inspecti", name)["layers"]
        assert "path" not in layer
        assert cli.json("df")["images"]
        assert "no faults" in cli("check")
        cli("pin", name)
        cli("tag", name, "ci.example/app:2")
        cli("export", str(tmp_path / "app.tar"), "ci.example/app:2")
        other = Commands(capsys, "--root", shared_place.url, "--content", shared_place.content, "--scope", "nightly")
        assert "app" not in other("images")
        other("import", str(tmp_path / "app.tar"))
        assert "ci.example/app" in other("images")
        assert "nightly" in cli("why", name)
        cli("rmi", "--force", name)
        cli("rmi", "ci.example/app:2")
        assert "0 blobs freed" in cli("gc")
        other("rmi", "ci.example/app:2")
        assert f"{CONTENT} blobs freed" in other("gc")

    def test_no_runtime_is_served_from_it(self, cli: Commands, tmp_path: Path) -> None:
        cli("serve", "--listen", f"unix://{tmp_path}/socket", status=1)
        assert "--mirror" in cli.error

    def test_strays_of_a_restored_database(
        self, cli: Commands, shared_place: SharedPlace, name: str, tmp_path: Path
    ) -> None:
        cli("pull", name)
        with psycopg.connect(shared_place.url, autocommit=True) as db:
            db.execute("DELETE FROM content WHERE size > 100000")
        # They may be on their way.
        assert cli.json("gc", "--strays")["strays"] == 0
        assert len(shared_place.objects()) == CONTENT
        with shared_place.open() as store:
            assert store.sweep_strays(older_seconds=-3600) == 2
        assert len(shared_place.objects()) == CONTENT - 2
        cli("gc", "--strays", "--dry-run", status=2)
        plain = Commands(cli.capture, "--root", str(tmp_path / "plain"))
        plain("gc", "--strays", status=1)
        assert "no shared store" in plain.error

    def test_what_is_for_one_node_is_refused(self, cli: Commands, shared_place: SharedPlace) -> None:
        shared_place.open().close()
        cli("node", "gc", status=1)
        assert "store of its own" in cli.error
        cli("gc", "--high", "80", status=1)
        assert "no space is counted" in cli.error

    @pytest.mark.parametrize("words", [("backup", "x.db"), ("restore", "x.db"), ("check", "--rebuild")])
    def test_what_a_database_does_itself_is_refused(
        self, cli: Commands, shared_place: SharedPlace, words: list[str]
    ) -> None:
        shared_place.open().close()
        cli(*words, status=1)
        assert "PostgreSQL" in cli.error
        assert "hint" in cli.error
