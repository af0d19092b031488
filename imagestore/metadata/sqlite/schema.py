"""The tables and their migrations.

Strict tables; ``user_version`` counts the steps taken. A step is never edited after a release: a new one is appended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreCorruptError, StoreReadOnlyError

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

# An image's labels, one by one, and which of them name content that may be here.
_LABELS: Final = "json_each(iif(json_valid(labels), labels, '{}')) l"
_IS_REFERENCE: Final = (
    "(l.key = 'containerd.io/gc.ref.content' OR l.key GLOB 'containerd.io/gc.ref.content[./]*')"
    " AND (substr(l.value, 1, 7), length(l.value)) IN (VALUES ('sha256:', 71), ('sha384:', 103), ('sha512:', 135))"
    " AND substr(l.value, 8) NOT GLOB '*[^0-9a-f]*'"
)

#: Step n brings a database from user_version n to n + 1.
STEPS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """CREATE TABLE image (
            reference TEXT NOT NULL,
            handler TEXT NOT NULL CHECK (handler <> ''),
            target TEXT NOT NULL,
            manifest TEXT NOT NULL,
            image_id TEXT NOT NULL,
            platform TEXT NOT NULL,
            wanted TEXT NOT NULL,
            content_size INTEGER NOT NULL,
            labels TEXT NOT NULL,
            warnings TEXT NOT NULL,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            generation INTEGER NOT NULL,
            PRIMARY KEY (reference, handler)
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX image_by_id ON image (image_id)",
        "CREATE INDEX image_by_generation ON image (generation)",
        """CREATE TABLE image_root (
            reference TEXT NOT NULL,
            handler TEXT NOT NULL,
            position INTEGER NOT NULL,
            digest TEXT NOT NULL,
            PRIMARY KEY (reference, handler, position),
            FOREIGN KEY (reference, handler) REFERENCES image (reference, handler) ON DELETE CASCADE
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX image_root_by_digest ON image_root (digest)",
        """CREATE TABLE edge (
            parent TEXT NOT NULL,
            child TEXT NOT NULL,
            PRIMARY KEY (parent, child)
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX edge_by_child ON edge (child)",
        """CREATE TABLE lease (
            id TEXT NOT NULL PRIMARY KEY,
            created_at REAL NOT NULL,
            expires_at REAL NOT NULL
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE lease_content (
            lease TEXT NOT NULL REFERENCES lease (id) ON DELETE CASCADE,
            digest TEXT NOT NULL,
            PRIMARY KEY (lease, digest)
        ) STRICT, WITHOUT ROWID""",
        "CREATE TABLE counter (name TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID",
        "INSERT INTO counter VALUES ('generation', 0)",
    ),
    # 2: pins, times of use, labels; the sweep asks upwards for what holds a blob, so records need no generation. The
    # counter goes on to number the changes of records.
    (
        "ALTER TABLE image ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE image ADD COLUMN used_at REAL NOT NULL DEFAULT 0.0",
        "DROP INDEX image_by_generation",
        "ALTER TABLE image DROP COLUMN generation",
        "ALTER TABLE lease ADD COLUMN flat INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE lease ADD COLUMN labels TEXT NOT NULL DEFAULT '{}'",
        "CREATE INDEX lease_content_by_digest ON lease_content (digest)",
        """CREATE TABLE content_label (
            digest TEXT NOT NULL,
            key TEXT NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (digest, key)
        ) STRICT, WITHOUT ROWID""",
        # What the labels mean, so that marking reads no text forms.
        "CREATE TABLE content_root (digest TEXT NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID",
        """CREATE TABLE label_edge (
            parent TEXT NOT NULL,
            child TEXT NOT NULL,
            PRIMARY KEY (parent, child)
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX label_edge_by_child ON label_edge (child)",
    ),
    # What containerd's clients keep: namespaces, named images, content records by owner, unfinished writes. The store's
    # own leases were those of its own namespace all the time.
    (
        """CREATE TABLE namespace (
            name TEXT NOT NULL PRIMARY KEY,
            labels TEXT NOT NULL DEFAULT '{}'
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE named_image (
            namespace TEXT NOT NULL,
            name TEXT NOT NULL,
            media_type TEXT NOT NULL,
            digest TEXT NOT NULL,
            size INTEGER NOT NULL,
            annotations TEXT NOT NULL,
            labels TEXT NOT NULL,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            expires_at REAL NOT NULL,
            PRIMARY KEY (namespace, name)
        ) STRICT, WITHOUT ROWID""",
        # Its target, and what the records held that it was made from.
        """CREATE TABLE named_image_root (
            namespace TEXT NOT NULL,
            name TEXT NOT NULL,
            digest TEXT NOT NULL,
            PRIMARY KEY (namespace, name, digest),
            FOREIGN KEY (namespace, name) REFERENCES named_image (namespace, name) ON DELETE CASCADE
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX named_image_root_by_digest ON named_image_root (digest)",
        """CREATE TABLE namespace_content (
            owner TEXT NOT NULL,
            digest TEXT NOT NULL,
            size INTEGER NOT NULL,
            labels TEXT NOT NULL,
            is_root INTEGER NOT NULL,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            PRIMARY KEY (owner, digest)
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX namespace_content_by_digest ON namespace_content (digest)",
        """CREATE TABLE namespace_edge (
            owner TEXT NOT NULL,
            parent TEXT NOT NULL,
            child TEXT NOT NULL,
            PRIMARY KEY (owner, parent, child)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE namespace_ingest (
            owner TEXT NOT NULL,
            ref TEXT NOT NULL,
            expected TEXT NOT NULL,
            lease TEXT,
            expires_at REAL,
            PRIMARY KEY (owner, ref)
        ) STRICT, WITHOUT ROWID""",
        "ALTER TABLE lease ADD COLUMN namespace TEXT NOT NULL DEFAULT 'k8s.io'",
    ),
    # What labels of images name is kept with them, those that were labelled before too.
    (
        "ALTER TABLE image_root ADD COLUMN by_label INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE named_image_root ADD COLUMN by_label INTEGER NOT NULL DEFAULT 0",
        f"""INSERT INTO image_root
            SELECT reference, handler, -row_number() OVER (PARTITION BY reference, handler ORDER BY l.key), l.value, 1
            FROM image, {_LABELS} WHERE {_IS_REFERENCE}""",
        f"""INSERT OR IGNORE INTO named_image_root
            SELECT namespace, name, l.value, 1 FROM named_image, {_LABELS} WHERE {_IS_REFERENCE}""",
    ),
    # Leases name images; a name without a handler means the record of the handler that was the default one then.
    (
        """CREATE TABLE lease_image (
            lease TEXT NOT NULL REFERENCES lease (id) ON DELETE CASCADE,
            name TEXT NOT NULL,
            handler TEXT NOT NULL,
            PRIMARY KEY (lease, name)
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX lease_image_by_name ON lease_image (name)",
    ),
    # 6: what tells this store from any other, wherever its records are copied to.
    (
        "CREATE TABLE store (id TEXT NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID",
        "INSERT INTO store VALUES (lower(hex(randomblob(16))))",
    ),
    # 7: copies of the database in place of a journal of its records, which an older version would go on writing.
    (
        """CREATE INDEX image_with_expiry ON image (reference, handler)
            WHERE labels LIKE '%"containerd.io/gc.expire"%'""",
    ),
)

CURRENT: Final = len(STEPS)
#: From this version on a database can be read without migration: only the store's id and an index came after it.
_READABLE: Final = 5
#: Marks our files (PRAGMA application_id); the letters "imgs".
APPLICATION_ID: Final = 0x696D6773
#: The counter that marks a backup until it is opened as a store.
COPIED: Final = "copied"


class SchemaTooNewError(StoreCorruptError):
    """A newer version wrote the database, which isn't damaged."""


class ForeignDatabaseError(StoreCorruptError):
    """Another program's database, or ours with a damaged first page."""


def address(path: Path, terms: str) -> str:
    """A database's file as a URI with query parameters; see https://www.sqlite.org/uri.html, section 3.1.

    >>> from pathlib import Path
    >>> address(Path("/what?/100% #1"), "mode=ro")
    'file:///what%3f/100%25 %231?mode=ro'
    """
    plain = str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file://{plain}?{terms}"


def refuse_foreign(db: sqlite3.Connection, path: Path) -> None:
    """Refuse to migrate another program's database.

    Raises:
        ForeignDatabaseError: its application_id isn't ours.
    """
    # The mark last: another process may be creating the database, tables and mark in one transaction.
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (mark,) = db.execute("PRAGMA application_id").fetchone()
    if mark != APPLICATION_ID and (mark or version or tables):
        raise ForeignDatabaseError(f"{path}: is another program's database", hint="choose another --root")


def version(db: sqlite3.Connection, path: Path) -> int:
    """How many steps were taken.

    Raises:
        SchemaTooNewError: more than this version knows.
    """
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found > CURRENT:
        raise SchemaTooNewError(
            f"{path}: schema version {found} is newer than {CURRENT}, the newest this one reads",
            hint="use the newer imagestore that wrote it",
        )
    return int(found)


def refuse_moved_on(db: sqlite3.Connection, path: Path) -> None:
    """Refuse to write a database that a newer version migrated since it was opened: its tables rely on every writer.

    Raises:
        SchemaTooNewError: it was migrated.
    """
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found > CURRENT:
        raise SchemaTooNewError(
            f"{path}: while this process had it open, a newer imagestore brought it from schema version {CURRENT} to"
            f" {found}",
            hint="start this process again, with the newer imagestore",
        )


def refuse_older(db: sqlite3.Connection, path: Path) -> None:
    """Refuse a read-only database that would have to be migrated to be read.

    Raises:
        SchemaTooNewError: as version().
        StoreReadOnlyError: steps are missing.
    """
    found = version(db, path)
    if found < _READABLE:
        raise StoreReadOnlyError(
            f"{path}: expected schema version {CURRENT}, found {found}, and the file system is read-only",
            hint="mount it writable once",
        )


def has_id(db: sqlite3.Connection, path: Path) -> bool:
    """Whether the schema has an id of the store; one that is only read may be older."""
    return version(db, path) > _READABLE


def take_id(db: sqlite3.Connection, store_id: str) -> None:
    """Give the store an id that it had before."""
    db.execute("UPDATE store SET id = ?", (store_id,))


def store_id(db: sqlite3.Connection, path: Path) -> str:
    """The store's id.

    Raises:
        StoreReadOnlyError: the database has an older schema and can't be migrated, so it has none.
        StoreCorruptError: it is gone.
    """
    if not has_id(db, path):
        raise StoreReadOnlyError(
            f"{path}: an older imagestore wrote it, which gave stores no id, and the file system is read-only",
            hint="mount it writable once",
        )
    row = db.execute("SELECT id FROM store").fetchone()
    if row is None:
        raise StoreCorruptError(f"{path}: the store's id is gone", hint="run 'imagestore check --rebuild --force'")
    return str(row[0])
