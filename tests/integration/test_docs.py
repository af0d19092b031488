"""Runs the examples of pages that need a database server and a bucket, and checks the pages' figures."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from imagestore import Descriptor, Digest, Platform
from imagestore.metadata import ImageRecord, PostgresMetadataStore
from imagestore.metadata.postgres import connection
from imagestore.metadata.postgres.database import PostgresDatabase
from imagestore.oci.media_types import OCI_MANIFEST
from imagestore.testing import Registry, build_image, synthetic_layer
from tests.support.ceph import ACCESS_KEY, SECRET_KEY, Ceph
from tests.support.postgres import USER, Postgres, postgres, standby
from tests.support.tcp_proxy import tcp_proxy
from tests.unit.docs.pages import Block, blocks, in_order_of_site, needs_servers, pages
from tests.unit.docs.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.shared_place import SharedPlace

pytestmark = pytest.mark.integration

#: Pages of one folder continue each other's examples, in the order of the site.
PAGES: Final = in_order_of_site([page for page in pages() if needs_servers(page)])
FOLDERS: Final = {page.parent: [each for each in PAGES if each.parent == page.parent] for page in PAGES}
SERVER_SETTINGS: Final = "postgresql.conf"
BUCKET: Final = "ci-images"
#: Bodies are objects, whose bytes have no such line.
REQUEST: Final = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) /[!-~]* HTTP/1\.1\r\n")


def blocks_of(folder: Path) -> list[Block]:
    """The blocks of a folder's pages, in the order of the site."""
    return [block for page in FOLDERS[folder] for block in blocks(page.read_text("utf-8"))]


def settings_of(folder: Path) -> Mapping[str, str]:
    """What a folder's pages write into postgresql.conf."""
    texts = [block.text for block in blocks_of(folder) if block.title == SERVER_SETTINGS]
    lines = [line.partition(" = ") for text in texts for line in text.splitlines()]
    return {name: value.strip("'") for name, _, value in lines}


class Database:
    """Runs a page's statements: those that create something as the server's superuser, others as the page's user."""

    def __init__(self, server: Postgres, user: str, database: str) -> None:
        self._server = server
        self._url = server.url(database).replace(f"{USER}@", f"{user}@")

    def run(self, text: str) -> None:
        """Run the statements of a block; each that creates nothing has to give a row."""
        for statement in filter(None, map(str.strip, text.split(";"))):
            is_of_server = statement.startswith("CREATE")
            with psycopg.connect(self._server.url() if is_of_server else self._url, autocommit=True) as db:
                found = db.execute(statement.encode())
                assert is_of_server or found.fetchall(), statement


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "PG", "IMAGESTORE_"))]:
        monkeypatch.delenv(name)
    # The page's commands set them, and what they set goes away with the test.
    for name in ("IMAGESTORE_CONTENT", "IMAGESTORE_SCOPE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / "cache"))


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Postgres, Postgres]]:
    """A primary with the settings of a folder's pages, and its standby."""
    with postgres(settings_of(request.param)) as primary, standby(primary) as follower:
        yield primary, follower


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("folder", "servers"),
    [(folder, folder) for folder in FOLDERS],
    ids=[folder.name for folder in FOLDERS],
    indirect=["servers"],
)
def test_the_examples_of_a_folder_run(
    folder: Path,
    servers: tuple[Postgres, Postgres],
    shared_gateway: Ceph,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    primary, follower = servers
    assert shared_gateway.make_bucket(BUCKET)
    both = f"127.0.0.1:{primary.port},127.0.0.1:{follower.port}"
    names = {
        "db-1.example,db-2.example": both,
        "db.example": f"127.0.0.1:{primary.port}",
        "https://s3.example": shared_gateway.endpoint,
        "images-key": ACCESS_KEY,
        "images-secret": SECRET_KEY,
    }
    database = Database(primary, "images", "images")
    with Session(tmp_path, monkeypatch, servers=names, sql=database.run) as session:
        for block in blocks_of(folder):
            session.run(block)


class Requests:
    """Counts HTTP requests by their method."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def hear(self, piece: bytes) -> None:
        """Look at what a client sends."""
        self._seen.update(each.decode() for each in REQUEST.findall(piece))

    def take(self) -> dict[str, int]:
        """How many there were since the last time."""
        taken, self._seen = self._seen, Counter()
        return dict(taken)


class TestFigures:
    """The figures of docs/shared-store/sizing.md."""

    NAME: Final = "registry.example/app:1"
    SMALL: Final = 3
    #: Of 20 MiB, in three parts of at most 8.
    LARGE_PARTS: Final = 3

    def test_requests_to_the_bucket_and_transactions(
        self, shared_place: SharedPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        layers = [synthetic_layer("small", 1 << 20), synthetic_layer("large", 20 << 20)]
        transport = Registry({self.NAME: build_image("linux/amd64", layers=layers)}).transport
        begun: list[str] = []
        for place, name in ((PostgresDatabase, "begun"), (connection, "pipelined")):
            transaction = getattr(place, name)

            def counting(*given: Any, transaction: Any = transaction) -> Any:
                begun.append("transaction")
                return transaction(*given)

            monkeypatch.setattr(place, name, counting)
        requests = Requests()
        with tcp_proxy(int(shared_place.gateway.endpoint.rpartition(":")[2]), requests.hear) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
            shared_place.open().close()
            requests.take()
            with (
                shared_place.open("one", transport=transport) as one,
                shared_place.open("two", transport=transport, scope="two") as two,
            ):
                assert requests.take() == {"HEAD": 2, "GET": 4}
                begun.clear()
                one.pull(self.NAME)
                new = requests.take()
                assert (new["PUT"], new["POST"]) == (self.SMALL + self.LARGE_PARTS, 2)
                assert new.get("GET", 0) <= 3
                assert len(begun) == 2 + 2 * (self.SMALL + 1)
                begun.clear()
                two.pull(self.NAME)
                assert set(there := requests.take()) <= {"GET"}
                assert there.get("GET", 0) <= 3
                assert len(begun) == 2
                two.get(self.NAME)
                assert requests.take() == {}

    def test_connections_of_a_process(self, database_url: str) -> None:
        with contextlib.closing(PostgresMetadataStore(database_url)) as store, ThreadPoolExecutor(40) as threads:
            flight = store.objects.try_flight(Digest.of(b"anything"))
            assert flight is not None
            everybody = threading.Barrier(17)

            def work(number: int) -> None:
                with store.database.writing():
                    if number < 16:
                        everybody.wait(60)

            done = [threads.submit(work, number) for number in range(40)]
            with psycopg.connect(database_url, autocommit=True) as db:
                query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'imagestore/%'"
                for _ in range(600):
                    (count,) = db.execute(query).fetchone() or (0,)
                    if everybody.n_waiting == 16:
                        break
                    threading.Event().wait(0.1)
                assert count == 17
            everybody.wait(60)
            for each in done:
                each.result(60)

    def test_rows_of_an_image(self, database_url: str) -> None:
        """Nine blobs of its own."""
        images, blobs = 1000, 9
        with (
            contextlib.closing(PostgresMetadataStore(database_url)) as store,
            psycopg.connect(database_url, autocommit=True) as db,
        ):
            before = _size(db)
            for image in range(images):
                content = [Digest.of(f"{image} {number}".encode()) for number in range(blobs)]
                for digest in content:
                    db.execute(
                        "INSERT INTO content VALUES (%s, 1000, %s, 0)",
                        (str(digest), f"blobs/sha256/{digest.encoded}/0123456789ab"),
                    )
                target, manifest = (Descriptor(OCI_MANIFEST, digest, 1000) for digest in content[:2])
                platform = Platform("linux", "amd64")
                name = f"registry.example/team-{image % 50}/application-{image}:1.{image}"
                record = ImageRecord(
                    name, "runc", target, manifest, content[2], platform, "linux/amd64", tuple(content[:2]), 6000
                )
                store.images.put(record, {content[1]: content[2:]})
            assert (_size(db) - before) / images < 12_000


def _size(db: psycopg.Connection[Any]) -> int:
    db.execute("VACUUM ANALYZE")
    row = db.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0])
