"""What must be true of a store after any process that used it died anywhere."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from imagestore.digest import Digest
from imagestore.documents.decode import MAX_DOCUMENT_BYTES
from imagestore.documents.image_config import ImageConfig
from imagestore.documents.manifest import Manifest
from imagestore.metadata.api import ImageRecord
from imagestore.store import ImageStore
from imagestore.upkeep.rebuild import rebuild

LATER_SECONDS = 25 * 3600.0


def violations(root: Path) -> list[str]:
    """Every broken promise, each in one line; the store itself is only read."""
    found = list(_database(root))
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


def _record(store: ImageStore, record: ImageRecord) -> Iterator[str]:
    name = f"record ({record.reference}, {record.handler})"
    missing = [str(digest) for digest in record.roots if not store.content.exists(digest)]
    if missing:
        yield f"{name}: roots without content: {missing}"
        return
    raw = store.content.read(record.manifest.digest, limit_bytes=MAX_DOCUMENT_BYTES)
    manifest = Manifest.parse(raw, media_type=record.manifest.media_type, what=name)
    children = [child.digest for child in manifest.children]
    if set(store.metadata.children(record.manifest.digest)) != set(children):
        yield f"{name}: edges differ from the manifest"
    for child in manifest.children:
        if not store.content.exists(child.digest):
            yield f"{name}: {child.digest} is missing"
        elif store.content.info(child.digest).size != child.size:
            yield f"{name}: {child.digest} has another size"
    if manifest.config.digest != record.image_id:
        yield f"{name}: image id is not the config"
    elif store.content.exists(record.image_id):
        ImageConfig.parse(store.content.read(record.image_id, limit_bytes=MAX_DOCUMENT_BYTES), what=name)


def _blobs(store: ImageStore) -> Iterator[str]:
    """A name below blobs/ is a promise about the bytes, whoever needs them."""
    for info in store.content.walk():
        path = store.content.path(info.digest)
        if Digest.of(path.read_bytes(), info.digest.algorithm) != info.digest:
            yield f"blob {info.digest} has other bytes"
        if stat.S_IMODE(path.stat().st_mode) != 0o444:
            yield f"blob {info.digest} can be written"


def _leaks(root: Path) -> Iterator[str]:
    """Nothing but what records need outlives one collection, once leases and ingests are old enough."""
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        copy = Path(folder) / "store"
        shutil.copytree(root, copy, copy_function=_link_blobs)
        with ImageStore(copy, clock=lambda: time.time() + LATER_SECONDS) as store:
            store.collect_garbage()
            needed = {
                digest
                for image in store.list()
                for root_digest in image.record.roots
                for digest in (root_digest, *store.metadata.children(root_digest))
            }
            left = {info.digest for info in store.content.walk()}
            if left != needed:
                yield f"blobs after a collection: {len(left - needed)} leaked, {len(needed - left)} lost"
            if list(store.metadata.leases()):
                yield "a lease outlived its end"
            if not store.metadata.edges().keys() <= needed:
                yield "edges of content that is gone"
            before = {(image.reference, image.runtime_handler) for image in store.list()}
        for path in copy.glob("metadata.db*"):
            path.unlink()
        restored = {(record.reference, record.handler) for record in rebuild(copy).restored}
        if not before <= restored:
            yield f"records that a rebuild does not find: {sorted(before - restored)}"
        for name in ("content/ingest", "locks"):
            if entries := sorted(os.listdir(copy / name)):
                yield f"{name} still holds {entries}"


def _link_blobs(source: str, target: str) -> None:
    if "/blobs/" in source:
        os.link(source, target)
    else:
        shutil.copy2(source, target)
