"""The metadata port's contract over PostgreSQL, and what is only true of a shared store's records."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import psycopg
import pytest

from imagestore import Digest
from imagestore.errors import PreconditionError, StoreCorruptError, StoreError
from imagestore.metadata import PostgresMetadataStore
from imagestore.testing.contracts.metadata import NAME, Later, record
from tests.contracts.pages import PagedContract

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from imagestore import MetadataStore

pytestmark = pytest.mark.integration


class TestPostgres(PagedContract):
    @pytest.fixture
    def metadata(self, database_url: str) -> Iterator[MetadataStore]:
        with contextlib.closing(PostgresMetadataStore(database_url)) as store:
            yield store

    @pytest.fixture
    def later(self, database_url: str) -> Later:
        return lambda: contextlib.closing(PostgresMetadataStore(database_url))

    def test_a_collection_marks_all_content_and_what_points_on(
        self, metadata: MetadataStore, database_url: str
    ) -> None:
        """Rows of content, absent content, chains of labels, edges of garbage: more than a question has at a time."""
        digests = [Digest.of(str(number).encode()) for number in range(1300)]
        chain, flat, image, lost = digests[:4], digests[4:6], digests[6:8], digests[8:]
        with psycopg.connect(database_url) as db, db.cursor() as cursor:
            rows = [(str(each), each.encoded) for each in digests[:-10]]
            cursor.executemany("INSERT INTO content VALUES (%s, 1, %s, 0)", rows)
        metadata.graph.label_content(chain[0], {"containerd.io/gc.root": "yes"})
        for parent, child in itertools.pairwise((*chain, *lost[:3])):
            if child is not lost[0]:
                metadata.graph.label_content(
                    parent, {**metadata.graph.content_labels(parent), "containerd.io/gc.ref.content.0": str(child)}
                )
        metadata.leases.create("flat", lifetime_seconds=60, content=flat[:1], labels={"containerd.io/gc.flat": "yes"})
        metadata.graph.put_edges({flat[0]: [flat[1]], lost[20]: [lost[21], image[1]]})
        metadata.images.put(record(manifest=image[0], config=image[1]), {image[0]: [image[1]]})
        garbage = metadata.graph.garbage(str(each) for each in reversed(digests))
        assert set(garbage) == {str(each) for each in (flat[1], *lost)}
        # What points at something comes first.
        assert set(garbage[:3]) == {str(each) for each in (lost[0], lost[1], lost[20])}
        metadata.images.remove([(NAME, "runc")])
        assert set(metadata.graph.garbage([])) == {str(each) for each in (flat[1], *image, *lost[:-10])}

    def test_all_scopes_have_the_stores_id(self, metadata: MetadataStore, database_url: str) -> None:
        with contextlib.closing(PostgresMetadataStore(database_url, scope="other")) as other:
            assert other.store_id == metadata.store_id

    def test_uses_are_noted_of_what_was_not_used_a_moment_ago(self, metadata: MetadataStore, database_url: str) -> None:
        names = [f"registry.example/{name}:1" for name in "abc"]
        metadata.images.put_many((record(name), {}) for name in names)
        with psycopg.connect(database_url, autocommit=True) as db:
            db.execute("UPDATE image SET updated_at = 0 WHERE reference <> %s", (names[2],))
        metadata.images.touch_many([(name, "runc") for name in (*names[1:], "none", names[1])])
        assert [each.used_at > 0 for each in metadata.images.find()] == [False, True, False]
        metadata.images.touch(names[0], "runc")
        assert [each.used_at > 0 for each in metadata.images.find()] == [True, True, False]

    def test_a_transaction_that_excludes_no_others_cannot_begin_to(self, metadata: MetadataStore) -> None:
        """Two of them would wait for each other until the server ends one."""
        with metadata.exclusive(), metadata.exclusive(), metadata.recording([("a", "b")]):
            metadata.leases.create("kept", lifetime_seconds=60)

        def upgrade(outer: AbstractContextManager[object]) -> None:
            with outer:
                metadata.leases.create("undone", lifetime_seconds=60)
                with metadata.exclusive():
                    pytest.fail("it was granted")

        for outer in (metadata.recording([("a", "b")]), metadata.batch(), metadata.transient()):
            with pytest.raises(PreconditionError, match="excludes no others"):
                upgrade(outer)
        assert [lease.id for lease in metadata.leases.find()] == ["kept"]

    def test_what_an_expired_lease_lists_goes_in_batches_of_contents(
        self, metadata: MetadataStore, database_url: str
    ) -> None:
        """One lease of a prefetch may list as much as thousands of pulls do."""
        digests = [Digest.of(str(number).encode()) for number in range(1100)]
        metadata.leases.create("old", lifetime_seconds=-1, content=digests)
        metadata.leases.create("young", lifetime_seconds=60, content=digests)
        with psycopg.connect(database_url, autocommit=True) as db:
            db.execute("CREATE TABLE deleted (transaction xid8)")
            db.execute(
                "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN INSERT INTO deleted VALUES (pg_current_xact_id()); RETURN OLD; END $$"
            )
            db.execute("CREATE TRIGGER note BEFORE DELETE ON lease_content FOR EACH ROW EXECUTE FUNCTION note()")
            assert metadata.expire() == 1
            counts = db.execute("SELECT count(*) FROM deleted GROUP BY transaction ORDER BY 1").fetchall()
        assert [count for (count,) in counts] == [76, 512, 512]
        assert [lease.id for lease in metadata.leases.find()] == ["young"]
        assert len(metadata.leases.content("young")) == len(digests)

    def test_a_pulls_records_are_two_transactions(self, metadata: MetadataStore, database_url: str) -> None:
        """The lease with the look, and the record with the end of the lease: others see both or neither."""
        assert isinstance(metadata, PostgresMetadataStore)
        content, put = [Digest.of(b"one"), Digest.of(b"two")], record("registry.example/app:1")
        metadata.objects.begin_upload("key")
        metadata.objects.publish(content[0], 3, "key")
        with contextlib.closing(PostgresMetadataStore(database_url)) as other:
            with metadata.leasing():
                metadata.leases.begin("pull", lifetime_seconds=60, content=content)
                assert set(metadata.objects.find_all(content)) == {content[0]}
                assert other.leases.find() == []
            assert set(other.leases.content("pull")) == set(content)
            with metadata.recording([(put.reference, put.handler)]):
                assert metadata.images.put(put, {content[0]: [content[1]]}).updated_at > 0
                metadata.leases.end("pull")
                assert [lease.id for lease in other.leases.find()] == ["pull"]
                assert other.images.find() == []
            assert other.leases.find() == []
            assert len(other.images.find()) == 1

    def test_nothing_of_a_pipelined_transaction_stays_after_an_error(self, metadata: MetadataStore) -> None:
        assert isinstance(metadata, PostgresMetadataStore)
        metadata.leases.create("taken", lifetime_seconds=60)

        def lease(*names: str, then: Exception | None = None) -> None:
            with metadata.leasing():
                for name in names:
                    metadata.leases.begin(name, lifetime_seconds=60, content=[])
                if then is not None:
                    raise then

        with pytest.raises(KeyError):
            lease("one", then=KeyError("one"))
        # What fails is heard of at the commit.
        with pytest.raises(StoreError, match="duplicate key"):
            lease("one", "taken")
        with pytest.raises(StoreError, match="pipeline aborted"):
            self._pass_over(metadata)
        assert [each.id for each in metadata.leases.find()] == ["taken"]
        lease("one")
        assert metadata.leases.get("one") is not None

    def _pass_over(self, metadata: PostgresMetadataStore) -> None:
        with metadata.leasing():
            metadata.leases.begin("one", lifetime_seconds=60, content=[])
            with metadata.database.reading() as db, contextlib.suppress(psycopg.Error):
                db.execute("SELECT 1 / 0").fetchall()

    def test_a_pipelined_transaction_is_refused_where_a_newer_version_writes(
        self, metadata: MetadataStore, database_url: str
    ) -> None:
        with psycopg.connect(database_url, autocommit=True) as db:
            db.execute("UPDATE imagestore_version SET version = version + 1")
        with pytest.raises(StoreCorruptError, match="newer"), metadata.leasing():
            metadata.leases.begin("one", lifetime_seconds=60, content=[])
        assert metadata.leases.find() == []
