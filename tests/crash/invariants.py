"""What must be true of a store after any process that used it died anywhere."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from imagestore import Digest, ImageStore
from imagestore.errors import DocumentError, StoreError
from imagestore.metadata import ImageRecord
from imagestore.metadata.sqlite.copies import DatabaseCopies
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.oci import MAX_DOCUMENT_BYTES, ImageConfig, Manifest
from imagestore.store.maintenance.rebuild import rebuild
from tests.support.embedded import edges_of

LATER_SECONDS = 25 * 3600.0
#: All that a store's folder holds.
EXPECTED = {
    *("content", "locks", "hosts", "metadata.db", "metadata.db-wal", "metadata.db-shm"),
    *("copies", "last-change.json", "check.json", "ballast", "ballast.inode", "waiting", "verified"),
}


def violations(root: Path) -> list[str]:
    """Every broken promise, each in one line; the store itself is only read."""
    found = [*_database(root), *_copies(root)]
    with ImageStore(root) as store:
        for image in store.list():
            found += _record(store, image.record)
        found += _blobs(store)
    return found + list(_leaks(root))


def _database(root: Path) -> Iterator[str]:
    connection = sqlite3.connect(root / "metadata.db")
    try:
        (answer,) = connection.execute("PRAGMA integrity_check").fetchone()
        broken = connection.execute("PRAGMA foreign_key_check").fetchall()
    finally:
        connection.close()
    if answer != "ok":
        yield f"database: {answer}"
    if broken:
        yield f"database: {len(broken)} rows refer to nothing"


def _copies(root: Path) -> Iterator[str]:
    """A copy that has its name is whole, and there are at most two of those that nothing else keeps."""
    paths = [each.path for each in DatabaseCopies(root / "metadata.db", time.time).found() if not each.kind]
    # Who died between naming one and removing the oldest leaves one more, which the next copy removes.
    if len(paths) > 3:
        yield f"{len(paths)} copies are kept"
    for path in paths:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            (answer,) = connection.execute("PRAGMA integrity_check").fetchone()
        if answer != "ok":
            yield f"copy {path.name}: {answer}"


def copied(root: Path) -> tuple[dict[tuple[str, str], tuple[Digest, ...]], set[str]]:
    """What a rebuild may count on: records of the newest copy with what they hold, and lasting leases."""
    for copy in DatabaseCopies(root / "metadata.db", time.time).found():
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(copy.path, Path(folder) / "metadata.db")
            with contextlib.closing(SqliteMetadataStore(Path(folder) / "metadata.db")) as metadata:
                leases = {each.id for each in metadata.leases.find() if math.isinf(each.expires_at)}
                return {(each.reference, each.handler): each.held for each in metadata.images.find()}, leases
    return {}, set()


def _record(store: ImageStore, record: ImageRecord) -> Iterator[str]:
    name = f"record ({record.reference}, {record.handler})"
    missing = [str(digest) for digest in record.roots if not store.content.exists(digest)]
    if missing:
        yield f"{name}: roots without content: {missing}"
        return
    for manifest in _manifests(store, record):
        for child in manifest.children:
            if not store.content.exists(child.digest):
                yield f"{name}: {child.digest} is missing"
            elif store.content.info(child.digest).size != child.size:
                yield f"{name}: {child.digest} has another size"
        if set(store.metadata.graph.own_children(Digest.of(manifest.raw))) != {
            child.digest for child in manifest.children
        }:
            yield f"{name}: edges differ from the manifest"
    raw = store.content.read(record.manifest.digest, limit_bytes=MAX_DOCUMENT_BYTES)
    if Manifest.parse(raw, media_type=record.manifest.media_type, what=name).config.digest != record.image_id:
        yield f"{name}: image id is not the config"
    elif store.content.exists(record.image_id):
        ImageConfig.parse(store.content.read(record.image_id, limit_bytes=MAX_DOCUMENT_BYTES), what=name)


def _manifests(store: ImageStore, record: ImageRecord) -> Iterator[Manifest]:
    """Every manifest among the roots; what is none is an index."""
    for digest in record.roots:
        raw = store.content.read(digest, limit_bytes=MAX_DOCUMENT_BYTES)
        with contextlib.suppress(DocumentError):
            yield Manifest.parse(raw, media_type=record.manifest.media_type, what=str(digest))


def _blobs(store: ImageStore) -> Iterator[str]:
    """A name below blobs/ is a promise about the bytes, whoever needs them."""
    for info in store.content.walk():
        path = store.content.path(info.digest)
        if Digest.of(path.read_bytes(), info.digest.algorithm) != info.digest:
            yield f"blob {info.digest} has other bytes"
        if stat.S_IMODE(path.stat().st_mode) != 0o444:
            yield f"blob {info.digest} can be written"


def _kept(store: ImageStore) -> set[Digest]:
    """What lasting leases and labels keep, whether it is there or not."""
    metadata, edges = store.metadata, edges_of(store.metadata)
    lasting = [each.id for each in metadata.leases.find() if math.isinf(each.expires_at)]
    known = {info.digest for info in store.content.walk()} | edges.keys()
    kept = {digest for digest in known if metadata.graph.content_labels(digest)}
    kept |= {digest for name in lasting for digest in metadata.leases.content(name)}
    waiting = list(kept)
    while waiting:
        more = set(edges.get(waiting.pop(), ())) - kept
        kept |= more
        waiting += more
    return kept


def _leaks(root: Path) -> Iterator[str]:
    """Nothing but what is needed outlives one collection, once leases, ingests and notes are old enough."""
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        copy = Path(folder) / "store"
        shutil.copytree(root, copy, copy_function=_link_blobs)
        with ImageStore(copy, clock=lambda: time.time() + LATER_SECONDS) as store:
            kept = _kept(store)
            here = {info.digest for info in store.content.walk()}
            store.collect_garbage()
            needed = {
                digest
                for image in store.list()
                for root_digest in image.record.roots
                for digest in (root_digest, *store.metadata.graph.own_children(root_digest))
            }
            left = {info.digest for info in store.content.walk()}
            wanted = needed | kept & here
            if left != wanted:
                yield f"blobs after a collection: {len(left - wanted)} leaked, {len(wanted - left)} lost"
            leases = {each.id for each in store.metadata.leases.find()}
            if len(here) % 2:
                store.metadata.keep_copy(at_once=True)
            if any(not math.isinf(each.expires_at) for each in store.metadata.leases.find()):
                yield "a lease outlived its end"
            if not edges_of(store.metadata).keys() <= needed | kept:
                yield "edges of content that is gone"
            before = {(image.reference, image.runtime_handler): image.record.held for image in store.list()}
        records, leased = copied(copy)
        if len(here) % 2 and (records != before or leased != leases):
            yield "a copy that was made at once differs from the database"
        if strange := sorted(set(os.listdir(copy)) - EXPECTED):
            yield f"files that nobody cleans away: {strange}"
        for path in copy.glob("metadata.db*"):
            path.unlink()
        report = rebuild(copy, is_forced=not left)  # it can't tell content that is away from none
        restored = {(record.reference, record.handler) for record in report.restored}
        # Names that were given since the copy may be lost, and what was moved since.
        promised = {key for key, held in records.items() if before.get(key) == held}
        if not promised <= restored:
            yield f"records that a rebuild does not find: {sorted(promised - restored)}"
        with ImageStore(copy) as store:
            if missing := (leased & leases) - {each.id for each in store.metadata.leases.find()}:
                yield f"leases that a rebuild does not find: {sorted(missing)}"
            store.collect_garbage()
            if lost := wanted - {info.digest for info in store.content.walk()}:
                yield f"blobs lost by a collection after a rebuild: {len(lost)}"
        for name in ("content/ingest", "locks"):
            if entries := sorted(os.listdir(copy / name)):
                yield f"{name} still holds {entries}"


def broken_backups(folder: Path) -> Iterator[str]:
    """A copy that has its name is whole; each is removed."""
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            try:
                with contextlib.closing(SqliteMetadataStore(path)) as metadata:
                    metadata.images.find()
                    for line in metadata.damage():
                        yield f"backup: {line}"
            except StoreError as error:
                yield f"backup: {error}"
    for path in folder.iterdir():
        path.unlink()


def _link_blobs(source: str, target: str) -> None:
    if "/blobs/" in source:
        os.link(source, target)
    else:
        shutil.copy2(source, target)
