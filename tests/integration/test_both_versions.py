"""This version and the one before on the same store: one after the other in a folder, at once in a shared store."""

from __future__ import annotations

import contextlib
import json
import subprocess
from typing import TYPE_CHECKING

import psycopg
import pytest

from imagestore import ImageStore
from imagestore.cli.main import main
from imagestore.metadata.postgres import PostgresMetadataStore
from imagestore.testing.contracts.metadata import record
from tests.support.earlier import earlier, run_earlier, unpack_earlier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

FETCH = """
import sys
from imagestore import ImageStore
from imagestore.testing import RegistryServer, build_index
name = sys.argv[2]
with RegistryServer({name: build_index(["linux/amd64"], seed=name)}) as server, ImageStore(sys.argv[1]) as store:
    image = store.pull(server.server.reference(name))
    store.tag(image.reference, name)
    store.metadata.leases.create(name, lifetime_seconds=1e9)
"""
NAMES = """
import json, sys
from imagestore import ImageStore
with ImageStore(sys.argv[1]) as store:
    print(json.dumps([image.reference for image in store.list() if image.reference.startswith("registry.example/")]))
"""
WORK = """
import json, sys
from imagestore import Descriptor, Digest, Platform
from imagestore.errors import ImageStoreError
from imagestore.metadata.postgres import PostgresMetadataStore
from imagestore.metadata.records import ImageRecord
digest = Digest.of(b"manifest")
target = Descriptor("application/vnd.oci.image.manifest.v1+json", digest, 10)
amd64 = Platform("linux", "amd64")
def record(name):
    return ImageRecord(name, "runc", target, target, digest, amd64, "linux/amd64", (digest,), 3, {})
try:
    store = PostgresMetadataStore(sys.argv[1])
except ImageStoreError as error:
    print(json.dumps(["refused", str(error), error.hint]), flush=True)
    sys.exit()
print(json.dumps(["open"]), flush=True)
for line in sys.stdin:
    try:
        if line.strip():
            store.images.put(record(line.strip()), {})
            store.leases.create(line.strip(), lifetime_seconds=60)
        said = [each.reference for each in store.images.find()]
    except ImageStoreError as error:
        said = ["refused", str(error), error.hint]
    print(json.dumps(said), flush=True)
store.close()
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_earlier(tmp_path_factory.mktemp("earlier") / "code")


def names(root: Path) -> list[str]:
    with ImageStore(root) as store:
        assert store.check().faults == ()
        return [image.reference for image in store.list() if image.reference.startswith("registry.example/")]


def test_a_folders_store_goes_forth_and_back(tmp_path: Path, code: Path) -> None:
    root = tmp_path / "store"
    one, two, three = (f"registry.example/{name}:1" for name in ("one", "two", "three"))
    fetched = run_earlier(code, "-c", FETCH, str(root), one)
    assert fetched.returncode == 0, fetched.stderr
    assert (root / "records.jsonl").exists()
    assert names(root) == [one]
    with ImageStore(root) as store:
        store.tag(one, two)
    refused = run_earlier(code, "-m", "imagestore", "--root", str(root), "images")
    assert refused.returncode == 8
    assert "schema version 7 is newer than 6" in refused.stderr
    assert "use the newer imagestore that wrote it" in refused.stderr
    (copy,) = (root / "copies").glob("*.schema-6.db")
    restored = run_earlier(code, "-m", "imagestore", "--root", str(root), "restore", str(copy))
    assert restored.returncode == 0, restored.stderr
    fetched = run_earlier(code, "-c", FETCH, str(root), three)
    assert fetched.returncode == 0, fetched.stderr
    listed = run_earlier(code, "-c", NAMES, str(root))
    assert json.loads(listed.stdout) == [one, three]
    assert names(root) == [one, three]
    with ImageStore(root) as store:
        store.collect_garbage()
        assert {lease.id for lease in store.metadata.leases.find()} >= {one, three}
    assert names(root) == [one, three]


class Worker:
    """A process of the version before, which has a shared store open."""

    def __init__(self, code: Path, url: str) -> None:
        command = earlier(code, "-c", WORK, url)
        self._process = subprocess.Popen(command, cwd=code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = self._said()

    def _said(self) -> list[str]:
        assert self._process.stdout is not None
        said: list[str] = json.loads(self._process.stdout.readline())
        return said

    def put(self, name: str = "") -> list[str]:
        """Put a record, if one is named; all that there are, or why it was refused."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return self._said()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def before(code: Path, database_url: str) -> Iterator[Worker]:
    with contextlib.closing(Worker(code, database_url)) as worker:
        assert worker.first == ["open"]
        yield worker


def versions(url: str) -> tuple[int, int]:
    with psycopg.connect(url) as db:
        (version, applied) = db.execute("SELECT version, applied FROM imagestore_version").fetchone() or (0, 0)
        return version, applied


def test_both_versions_use_a_shared_store_until_the_upgrade_is_finished(
    before: Worker, code: Path, database_url: str
) -> None:
    assert before.put("a") == ["a"]
    with contextlib.closing(PostgresMetadataStore(database_url)) as store:
        assert versions(database_url) == (1, 2)
        assert [each.reference for each in store.images.find()] == ["a"]
        store.images.put(record("b"), {})
        assert before.put("c") == ["a", "b", "c"]
        with contextlib.closing(Worker(code, database_url)) as later:
            assert later.first == ["open"]
            assert later.put("d") == ["a", "b", "c", "d"]
        assert [each.id for each in store.leases.find()] == ["a", "c", "d"]
        assert store.expire() == 0
        assert store.images.remove([("a", "runc")])
        assert before.put() == ["b", "c", "d"]
        assert store.finish_upgrade()
        assert not store.finish_upgrade()
        assert versions(database_url) == (2, 2)
        kind, said, hint = before.put("e")
        assert (kind, "schema version 2 is newer than 1" in said, hint) == (
            "refused",
            True,
            "use the newer imagestore that wrote it",
        )
        with contextlib.closing(Worker(code, database_url)) as late:
            assert late.first[0] == "refused"
        assert [each.reference for each in store.images.find()] == ["b", "c", "d"]


def test_a_new_shared_store_has_no_upgrade_to_finish(database_url: str) -> None:
    with contextlib.closing(PostgresMetadataStore(database_url)) as store:
        assert versions(database_url) == (2, 2)
        assert not store.finish_upgrade()


def test_a_later_upgrade_is_not_finished_by_this_version(database_url: str) -> None:
    with contextlib.closing(PostgresMetadataStore(database_url)) as store:
        with psycopg.connect(database_url) as db:
            db.execute("UPDATE imagestore_version SET applied = 3")
        with contextlib.closing(PostgresMetadataStore(database_url)) as again:
            again.images.put(record("a"), {})
        with pytest.raises(Exception, match="version 3 is newer than 2"):
            store.finish_upgrade()


def test_a_folders_store_has_nothing_to_finish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ImageStore(tmp_path / "store").close()
    assert main(["--root", str(tmp_path / "store"), "finish-upgrade"]) != 0
    assert "nothing to finish" in capsys.readouterr().err
