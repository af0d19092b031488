"""Opening a store's adapters: a folder's files and SQLite, a shared database and bucket, or given ones."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from imagestore.config.model import BucketSettings
from imagestore.content.local import LocalContentStore
from imagestore.errors import ConfigError, InvalidInputError
from imagestore.metadata.sqlite.location import refuse_missing
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.store import leases
from imagestore.util.disk_errors import translated
from imagestore.util.distribution import install_hint
from imagestore.util.files import make_directory
from imagestore.util.logins import without_login
from imagestore.util.root_folder import is_database, is_foreign_address, refuse_untrusted
from imagestore.util.sqlite_version import check_sqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from imagestore.content.api import ContentStore
    from imagestore.metadata.api import MetadataStore

log = logging.getLogger(__name__)

_BUCKET: Final = "s3://"
_SYSTEM_CACHE: Final = Path("/var/cache")
#: Options of an address that say which database it is.
_PLACES: Final = {"host", "hostaddr", "port", "dbname"}


@dataclass(slots=True)
class Adapters:
    """A store's open adapters.

    Attributes:
        name: the store's folder or address, for messages.
        folder: of this machine, for ingests and notes about hosts; of an embedded store the whole store.
        metadata: records.
        content: blobs.
        is_shared: whether other machines use the same records and content.
        closing: closes what was opened here; the caller closes what it gave.
    """

    name: str
    folder: Path
    metadata: MetadataStore
    content: ContentStore
    is_shared: bool = False
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


def open_adapters(
    root: str | os.PathLike[str],
    content: ContentStore | BucketSettings | str | None,
    metadata: MetadataStore | None,
    scope: str,
    sources: tuple[Path, ...],
    *,
    clock: Callable[[], float],
    create: bool,
    use_reserve: bool,
) -> Adapters:
    """Open a store's adapters, or take the given ones; the arguments are those of ImageStore.

    Raises:
        InvalidInputError: a shared store without a bucket, or a scope or a bucket for another store.
        ConfigError, PreconditionError, StoreError: an adapter can't be opened.
    """
    given = os.fspath(root)
    is_shared = is_database(given)
    if is_shared and metadata is None:
        if sources:
            raise InvalidInputError("sources: are folders of one machine, which a shared store can't adopt from")
        return _open_shared(given, content, scope=scope, create=create)
    # The message doesn't repeat the address: it may have a password.
    if not is_shared and is_foreign_address(given):
        raise InvalidInputError(
            "the store's root: expected a folder or postgresql://USER@HOST/DATABASE, it is another kind of address"
        )
    if is_shared or scope or isinstance(content, str | BucketSettings):
        raise InvalidInputError(
            "a scope and a bucket belong to a store at postgresql://, not to a folder's or to given records",
            hint="leave them out, or give the database's address alone instead of the folder",
        )
    # Absolute, since the process may change its folder later.
    folder = Path(given).absolute()
    with contextlib.ExitStack() as stack:
        ballast = None
        if metadata is None:
            own = _open_metadata(folder, clock=clock, create=create, use_reserve=use_reserve)
            stack.callback(own.close)
            metadata, ballast = own, own.database.ballast
        blobs = content or LocalContentStore(folder / "content", folder / "locks", sources=sources, ballast=ballast)
        return Adapters(str(folder), folder, metadata, blobs, closing=stack.pop_all())


def _open_metadata(root: Path, *, clock: Callable[[], float], create: bool, use_reserve: bool) -> SqliteMetadataStore:
    """Open a folder's records; before its content, since content without a database looks like a store that lost it.

    Raises:
        StoreError: the folder can't be used.
    """
    check_sqlite()
    database = root / "metadata.db"
    refuse_untrusted(root)
    if create:
        with translated("make the store's folder", root):
            make_directory(root, 0o700)
    else:
        refuse_missing(database)
    kept: list[tuple[int, str]] = []

    def _keep_on_making(metadata: SqliteMetadataStore) -> None:
        kept.extend(_keep_found(root, metadata))

    metadata = SqliteMetadataStore(database, clock=clock, is_freeing=use_reserve, on_making=_keep_on_making)
    for count, lease in kept:
        said = "%s: made a database next to %d blobs of unknown use, which lease %s keeps for a day"
        log.warning(said, root, count, lease)
    return metadata


def _keep_found(root: Path, metadata: SqliteMetadataStore) -> list[tuple[int, str]]:
    """Lease what was here before the database, in the transaction that makes it; so no collection comes between."""
    content = root / "content"
    if not content.is_dir():
        return []
    found = [info.digest for info in LocalContentStore(content, root / "locks").walk()]
    if not found:
        return []
    return [(len(found), leases.keep_found(metadata, found))]


def _open_shared(
    url: str, content: ContentStore | BucketSettings | str | None, *, scope: str, create: bool
) -> Adapters:
    if content is None:
        raise InvalidInputError(
            "a store at postgresql:// needs a bucket for its content",
            hint="add content='s3://BUCKET/PREFIX' (--content s3://BUCKET/PREFIX on the command line)",
        )
    # Before any connection is opened.
    settings = bucket_settings(content, os.environ) if isinstance(content, str) else content
    from imagestore.content.shared_store import SharedContentStore

    try:
        from imagestore.metadata.postgres import DEFAULT_SCOPE, PostgresMetadataStore
    except ImportError as error:
        raise ConfigError(
            "a store at postgresql://: expected the packages psycopg and psycopg_pool, they can't be imported",
            hint=install_hint("postgres"),
        ) from error

    with contextlib.ExitStack() as stack:
        records = PostgresMetadataStore(url, scope=scope or DEFAULT_SCOPE, create=create)
        stack.callback(records.close)
        folder = machine_folder(url)
        blobs = (
            SharedContentStore(settings, folder, records.objects, owner=records.database.id)
            if isinstance(settings, BucketSettings)
            else settings
        )
        name = f"{records.database.name} (scope {records.database.scope})"
        return Adapters(name, folder, records, blobs, is_shared=True, closing=stack.pop_all())


def machine_folder(url: str) -> Path:
    """A shared store's folder on this machine, below CACHE_DIRECTORY (systemd's), XDG_CACHE_HOME or the usual cache.

    It can be deleted: what is lost is fetched again.

    Raises:
        ConfigError: there is none of these, and this user has no home.
    """
    named = os.environ.get("CACHE_DIRECTORY") or os.environ.get("XDG_CACHE_HOME")
    if named:
        cache = Path(named.split(":")[0]).absolute()
    else:
        cache = _SYSTEM_CACHE if os.geteuid() == 0 else _home() / ".cache"
    return cache / "imagestore" / hashlib.sha256(_place_of(url).encode()).hexdigest()[:16]


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise ConfigError(
            f"user {os.geteuid()} has no home, so there is no place for what is being fetched",
            hint="say where with CACHE_DIRECTORY or XDG_CACHE_HOME",
        ) from None


def _place_of(url: str) -> str:
    """Server and database of an address: a new password or another option doesn't make another store."""
    parts = urlsplit(url)
    named = sorted((name, value) for name, value in parse_qsl(parts.query) if name in _PLACES)
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}?{urlencode(named)}"


def bucket_settings(url: str, environ: Mapping[str, str]) -> BucketSettings:
    """Endpoint and region of ``s3://BUCKET/PREFIX`` from AWS's variables.

    Raises:
        InvalidInputError: the URL is none of a bucket.
    """
    if not url.startswith(_BUCKET):
        raise InvalidInputError(f"content {without_login(url)!r}: expected s3://BUCKET or s3://BUCKET/PREFIX")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
    return BucketSettings(url, endpoint=endpoint, region=region or "us-east-1")
