"""A shared store's tables and their migrations.

Texts sort by their bytes, as in SQLite. A scope is one store among those that share content, with its own images,
leases and namespaces; content is kept by all scopes. A step is never edited after a release: a new one is appended.

Machines are upgraded one after the other, so a step only adds what the version before can pass over: that one goes on
reading and writing. ``applied`` counts the steps that were taken, ``version`` those that every program must know. An
upgrade is finished by ``finish()``, a command of the operator's; from then on older programs are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import PreconditionError, StoreCorruptError, StoreMissingError, StoreReadOnlyError

if TYPE_CHECKING:
    import psycopg

_TEXT: Final = 'text COLLATE "C" NOT NULL'
_TIME: Final = "double precision NOT NULL"

#: Step n brings a database from version n to n + 1.
STEPS: Final[tuple[tuple[str, ...], ...]] = (
    (
        f"""CREATE TABLE image (
            scope {_TEXT}, reference {_TEXT}, handler {_TEXT} CHECK (handler <> ''),
            target {_TEXT}, manifest {_TEXT}, image_id {_TEXT}, platform {_TEXT}, wanted {_TEXT},
            content_size bigint NOT NULL, labels {_TEXT}, warnings {_TEXT},
            created_at {_TIME}, updated_at {_TIME}, pinned integer NOT NULL, used_at {_TIME},
            PRIMARY KEY (scope, reference, handler)
        )""",
        "CREATE INDEX image_by_id ON image (scope, image_id)",
        f"""CREATE TABLE image_root (
            scope {_TEXT}, reference {_TEXT}, handler {_TEXT}, position integer NOT NULL,
            digest {_TEXT}, by_label boolean NOT NULL,
            PRIMARY KEY (scope, reference, handler, position),
            FOREIGN KEY (scope, reference, handler) REFERENCES image ON DELETE CASCADE
        )""",
        "CREATE INDEX image_root_by_digest ON image_root (digest)",
        f"CREATE TABLE edge (parent {_TEXT}, child {_TEXT}, PRIMARY KEY (parent, child))",
        "CREATE INDEX edge_by_child ON edge (child)",
        f"""CREATE TABLE lease (
            scope {_TEXT}, id {_TEXT}, namespace {_TEXT}, created_at {_TIME}, expires_at {_TIME},
            flat boolean NOT NULL, labels {_TEXT},
            PRIMARY KEY (scope, id)
        )""",
        "CREATE INDEX lease_by_end ON lease (expires_at)",
        f"""CREATE TABLE lease_content (
            scope {_TEXT}, lease {_TEXT}, digest {_TEXT},
            PRIMARY KEY (scope, lease, digest),
            FOREIGN KEY (scope, lease) REFERENCES lease ON DELETE CASCADE
        )""",
        "CREATE INDEX lease_content_by_digest ON lease_content (digest)",
        f"""CREATE TABLE lease_image (
            scope {_TEXT}, lease {_TEXT}, name {_TEXT}, handler {_TEXT},
            PRIMARY KEY (scope, lease, name),
            FOREIGN KEY (scope, lease) REFERENCES lease ON DELETE CASCADE
        )""",
        "CREATE INDEX lease_image_by_name ON lease_image (scope, name)",
        f"CREATE TABLE content_label (digest {_TEXT}, key {_TEXT}, value {_TEXT}, PRIMARY KEY (digest, key))",
        # What the labels mean, so that marking reads no text forms.
        f"CREATE TABLE content_root (digest {_TEXT} PRIMARY KEY)",
        f"CREATE TABLE label_edge (parent {_TEXT}, child {_TEXT}, PRIMARY KEY (parent, child))",
        "CREATE INDEX label_edge_by_child ON label_edge (child)",
        f"""CREATE TABLE namespace (
            scope {_TEXT}, name {_TEXT}, labels {_TEXT} DEFAULT '{{}}', PRIMARY KEY (scope, name)
        )""",
        f"""CREATE TABLE named_image (
            scope {_TEXT}, namespace {_TEXT}, name {_TEXT}, media_type {_TEXT}, digest {_TEXT}, size bigint NOT NULL,
            annotations {_TEXT}, labels {_TEXT}, created_at {_TIME}, updated_at {_TIME}, expires_at {_TIME},
            PRIMARY KEY (scope, namespace, name)
        )""",
        f"""CREATE TABLE named_image_root (
            scope {_TEXT}, namespace {_TEXT}, name {_TEXT}, digest {_TEXT}, by_label boolean NOT NULL,
            PRIMARY KEY (scope, namespace, name, digest),
            FOREIGN KEY (scope, namespace, name) REFERENCES named_image ON DELETE CASCADE
        )""",
        "CREATE INDEX named_image_root_by_digest ON named_image_root (digest)",
        f"""CREATE TABLE namespace_content (
            scope {_TEXT}, owner {_TEXT}, digest {_TEXT}, size bigint NOT NULL, labels {_TEXT},
            is_root boolean NOT NULL, created_at {_TIME}, updated_at {_TIME},
            PRIMARY KEY (scope, owner, digest)
        )""",
        "CREATE INDEX namespace_content_by_digest ON namespace_content (digest)",
        f"""CREATE TABLE namespace_edge (
            scope {_TEXT}, owner {_TEXT}, parent {_TEXT}, child {_TEXT}, PRIMARY KEY (scope, owner, parent, child)
        )""",
        f"""CREATE TABLE namespace_ingest (
            scope {_TEXT}, owner {_TEXT}, ref {_TEXT}, expected {_TEXT},
            lease text COLLATE "C", expires_at double precision,
            PRIMARY KEY (scope, owner, ref)
        )""",
        # What is in the bucket, what is on its way there, and what is to be deleted from it.
        f"""CREATE TABLE content (
            digest {_TEXT} PRIMARY KEY, size bigint NOT NULL, object {_TEXT} UNIQUE, stored_at {_TIME}
        )""",
        f"CREATE TABLE upload (object {_TEXT} PRIMARY KEY, expires_at {_TIME})",
        f"CREATE TABLE doomed (object {_TEXT} PRIMARY KEY)",
    ),
    # 2: collections look for images with an end; there are few.
    (
        """CREATE INDEX image_with_expiry ON image (scope, reference, handler)
            WHERE labels LIKE '%"containerd.io/gc.expire"%'""",
    ),
)

CURRENT: Final = len(STEPS)
#: The store's advisory lock: shared by all writers, exclusive for creating and migrating tables. A number that other
#: programs are unlikely to use.
STORE_LOCK: Final = 0x696D6773_00000002
_VERSION: Final = "imagestore_version"
#: For refuse_newer().
ASK_VERSION: Final = f"SELECT version FROM {_VERSION}"


def prepare(db: psycopg.Connection[Any], name: str, *, is_making: bool = True) -> str:
    """Create or migrate the tables; any number of processes may try at once.

    Args:
        db: a connection that commits each statement.
        name: of the database, for messages.
        is_making: create the tables if there are none.

    Returns:
        The store's id, created with the tables.

    Raises:
        PreconditionError: it has another program's tables.
        StoreCorruptError: a newer version wrote it.
        StoreReadOnlyError: it would have to be migrated, but is a standby.
        StoreMissingError: there is no store.
    """
    version, applied = _versions(db)
    if version == 0 and not is_making:
        raise StoreMissingError(f"{name}: there is no store in this database", hint="a pull, or an import, makes one")
    refuse_newer((version,), name)
    if applied < CURRENT:
        (is_standby,) = db.execute("SELECT pg_is_in_recovery()").fetchone() or (False,)
        # What steps add isn't needed to read.
        if is_standby and version == 0:
            raise StoreReadOnlyError(f"{name}: is a standby, and has no store's tables")
        if not is_standby:
            _take_steps(db, name)
    row = db.execute(f"SELECT id FROM {_VERSION}").fetchone()
    if row is None:
        raise _no_version(name)
    return str(row[0])


def _take_steps(db: psycopg.Connection[Any], name: str) -> None:
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (STORE_LOCK,))
        version, applied = _versions(db)
        refuse_newer((version,), name)
        if version == 0:
            _refuse_foreign(db, name)
            db.execute(f"CREATE TABLE {_VERSION} (version integer NOT NULL, id {_TEXT}, applied integer)")
            db.execute(f"INSERT INTO {_VERSION} VALUES ({CURRENT}, gen_random_uuid()::text)")
        # Stores of the first version lack it.
        db.execute(f"ALTER TABLE {_VERSION} ADD COLUMN IF NOT EXISTS applied integer")
        for step in STEPS[applied:]:
            for statement in step:
                db.execute(statement)
        db.execute(f"UPDATE {_VERSION} SET applied = %s WHERE coalesce(applied, 0) < %s", (CURRENT, CURRENT))


def finish(db: psycopg.Connection[Any], name: str) -> bool:
    """Finish an upgrade: from now on, programs that don't know all steps are refused, also running ones.

    Args:
        db: a connection that commits each statement, of a prepared store.
        name: of the database, for messages.

    Returns:
        Whether there was one to finish.

    Raises:
        StoreCorruptError: a newer version has taken further steps; only that one can finish them.
    """
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (STORE_LOCK,))
        version, applied = _versions(db)
        refuse_newer((max(version, applied),), name)
        db.execute(f"UPDATE {_VERSION} SET version = %s", (CURRENT,))
        return version < CURRENT


def _versions(db: psycopg.Connection[Any]) -> tuple[int, int]:
    """How many steps every program must know, and how many were taken; 0 where there are no tables."""
    # Not to_regclass(), which doesn't see at once what another session has just made.
    query = "SELECT 1 FROM pg_class WHERE relname = %s AND relnamespace = current_schema()::regnamespace"
    if db.execute(query, (_VERSION,)).fetchone() is None:
        return 0, 0
    # The first version had no such column.
    applied = f"SELECT version, coalesce((to_jsonb(v) ->> 'applied')::integer, version) FROM {_VERSION} v"
    row = db.execute(applied).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def refuse_newer(row: tuple[Any, ...] | None, name: str) -> None:
    """Refuse to write what a newer version has migrated: its tables rely on every writer.

    Args:
        row: the result of ASK_VERSION.
        name: of the database, for messages.

    Raises:
        StoreCorruptError: it is newer, or has no version.
    """
    if row is None:
        raise _no_version(name)
    version = row[0]
    if version > CURRENT:
        raise StoreCorruptError(
            f"{name}: schema version {version} is newer than {CURRENT}, the newest this one reads",
            hint="use the newer imagestore that wrote it",
        )


def _no_version(name: str) -> StoreCorruptError:
    return StoreCorruptError(f"{name}: the row of table {_VERSION} is gone", hint="restore it from a backup")


def _refuse_foreign(db: psycopg.Connection[Any], name: str) -> None:
    """Refuse to change another program's tables."""
    query = "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' LIMIT 1"
    row = db.execute(query).fetchone()
    if row is not None:
        raise PreconditionError(
            f"{name}: has tables of another program ({row[0]!r})", hint="give the store a database of its own"
        )
