"""What must be true of a shared store when all that used it are dead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import obstore
import psycopg

from imagestore import BucketSettings
from imagestore.errors import ContentNotFoundError, IntegrityError
from imagestore.oci import Verifier
from tests.crash import shared_images
from tests.crash.shared_worker import Place, opened

if TYPE_CHECKING:
    from imagestore import Digest, ImageStore
    from tests.support.ceph import Ceph

#: Makes the dead's leases and uploads older than any lifetime.
_AGE: Final = (
    "UPDATE lease SET expires_at = expires_at - 1000000",
    "UPDATE upload SET expires_at = expires_at - 1000000",
)


def violations(place: Place, gateway: Ceph) -> list[str]:
    """Every broken promise, each in one line. What the dead had leased is let go, and garbage is collected."""
    found = list(_records(place, "after the kills"))
    with psycopg.connect(place.database, autocommit=True) as connection:
        for statement in _AGE:
            connection.execute(statement)
    for scope in place.scopes[:2]:
        with opened(place, scope) as store:
            store.collect_garbage()
    found += _records(place, "after two collections")
    return found + list(_too_much(place, gateway))


def swept(place: Place) -> int:
    """How much content was collected since the server was started; it counts a moment behind."""
    with psycopg.connect(place.database, autocommit=True) as connection:
        query = "SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'content'"
        row = connection.execute(query).fetchone()
        return int(row[0]) if row else 0


def _records(place: Place, when: str) -> Iterator[str]:
    """Everything that a record needs is there, and right."""
    judged: set[Digest] = set()
    for scope in sorted(set(place.scopes)):
        with opened(place, scope) as store:
            for image in store.list():
                for digest in sorted(shared_images.content_of(image.reference) - judged):
                    judged.add(digest)
                    if wrong := _wrong(store, digest):
                        yield f"{when}: record ({scope}, {image.reference}): {wrong}"


def _wrong(store: ImageStore, digest: Digest) -> str:
    verifier = Verifier(digest)
    try:
        with store.content.open(digest) as file:
            while piece := file.read(1 << 20):
                verifier.update(piece)
        verifier.finish()
    except (ContentNotFoundError, IntegrityError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _too_much(place: Place, gateway: Ceph) -> Iterator[str]:
    """Nothing is there that no record needs, and no object without a row."""
    needed: set[str] = set()
    for scope in sorted(set(place.scopes)):
        with opened(place, scope) as store:
            for image in store.list():
                needed |= {str(digest) for digest in shared_images.content_of(image.reference)}
            there = set(store.content.names())
    for text in sorted(there - needed):
        yield f"nothing needs {text}"
    bucket = gateway.store(BucketSettings(place.bucket, endpoint=place.endpoint))
    keys = [str(each["path"]) for page in obstore.list(bucket) for each in page]
    stored = [key for key in keys if key.startswith("blobs/")]
    with psycopg.connect(place.database, autocommit=True) as connection:
        rows = {str(row[0]) for row in connection.execute("SELECT object FROM content")}
        for table in ("upload", "doomed"):
            for row in connection.execute(f"SELECT object FROM {table}"):
                yield f"{table} still has {row[0]}"
    yield from (f"object without a row: {key}" for key in sorted(set(stored) - rows))
    yield from (f"row without an object: {key}" for key in sorted(rows - set(stored)))
    twice = Counter(tuple(key.split("/")[1:3]) for key in stored)
    yield from (f"stored {count} times: {key}" for key, count in twice.items() if count > 1)
