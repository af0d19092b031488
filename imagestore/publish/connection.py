"""One connection to containerd: what it is, whose records it has, and the way by which content comes into it.

All of this is found out again whenever the connection was lost, since another containerd, or the same one with another
configuration, may answer afterwards.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import imagestore.publish.content_writes as content_writes
import imagestore.publish.leases as leases
from imagestore.errors import ContentNotFoundError, PreconditionError, UnsupportedError
from imagestore.oci import Digest
from imagestore.publish.content_folder import ContentFolder
from imagestore.publish.model import ContentWay
from imagestore.publish.unpacked import UnpackedImages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from imagestore.content import ContentStore
    from imagestore.publish.containerd import Containerd
    from imagestore.publish.containerd_values import Plugins
    from imagestore.publish.wanted import Owner
    from imagestore.store import ImageStore

log = logging.getLogger(__name__)

CONTENT_MODES: Final = ("auto", "link", "copy")
_PROBE_SECONDS: Final = 600.0
_ORDER: Final = (ContentWay.LINKED, ContentWay.OWN_FILE)


@dataclass(frozen=True, slots=True)
class Connection:
    """A containerd that answered.

    Attributes:
        version: containerd's.
        plugins: what it has loaded.
        folder: its content folder; None where files placed there don't count.
        way: how layers come into it.
        way_reason: why not by a cheaper way; empty for the cheapest.
        unpacked: which images are unpacked.
    """

    version: str
    plugins: Plugins
    folder: ContentFolder | None
    way: ContentWay
    way_reason: str
    unpacked: UnpackedImages


def connect(
    client: Containerd,
    store: ImageStore,
    owner: Owner,
    *,
    mode: str,
    take_over: bool,
    is_first: bool,
    images_at_work: Callable[[], Collection[str]],
) -> Connection:
    """Ask containerd what it is, try how content comes into it, and clear what a killed publisher left.

    Only the store's one publisher may call this.

    Args:
        client: of containerd.
        store: whose images are published.
        owner: whose records they are.
        mode: one of CONTENT_MODES.
        take_over: records that a store of this id made on another machine count as this store's.
        is_first: no thread of this process has files in containerd's folder.
        images_at_work: ids of images whose leases are work's of this process.

    Raises:
        ServiceUnavailableError: containerd can't be reached.
        UnsupportedError: it lacks a service that is needed.
        PreconditionError: it has records of a store with this id from another machine.
    """
    version, plugins = client.version(), client.plugins()
    _refuse_other_machines(client, owner, take_over=take_over)
    folder, way, reason = find_way(client, store.content, plugins, owner.store_id, mode)
    if folder is not None and is_first:
        _clear(folder)
    left = leases.end_left(client, owner.store_id, images_at_work)
    if left:
        log.info("leases of an earlier publisher ended", extra={"leases": len(left)})
    log.info("containerd connected", extra={"version": version, "way": way.value, "reason": reason})
    return Connection(version, plugins, folder, way, reason, UnpackedImages(client, plugins.snapshotters))


def find_way(
    client: Containerd, content: ContentStore, plugins: Plugins, store_id: str, mode: str
) -> tuple[ContentFolder | None, ContentWay, str]:
    """Try the ways by which layers may come, the cheapest first: the one that works, and why not a cheaper one."""
    if plugins.content_root is None:
        return None, ContentWay.SENT, "containerd doesn't say where its content is"
    if not _has_files(content):
        return None, ContentWay.SENT, f"{content.name}: the store's content isn't in files of this machine"
    reasons: list[str] = []
    lease = f"{leases.begin_of_ids(store_id)}probe-{secrets.token_hex(8)}"
    client.create_lease(lease, time.time() + _PROBE_SECONDS)
    try:
        for way in _ORDER if mode != "copy" else _ORDER[1:]:
            folder = ContentFolder(plugins.content_root, way, store_id)
            reason = folder.probe(
                content.scratch,
                lambda digest, size: content_writes.offset_of(client, lease, digest, size, lease) == size,
            )
            if not reason:
                return folder, way, "; ".join(reasons)
            reasons.append(f"{way.value}: {reason}")
    finally:
        client.delete_lease(lease, is_synced=False)
    return None, ContentWay.SENT, "; ".join(reasons)


def _has_files(content: ContentStore) -> bool:
    try:
        content.path(Digest.of(b""))
    except UnsupportedError:
        return False
    except ContentNotFoundError:
        return True
    return True


def _clear(folder: ContentFolder) -> None:
    try:
        folder.clear()
    except OSError as error:
        log.warning("what an earlier publisher left stays", extra={"folder": str(folder.root), "error": str(error)})


def _refuse_other_machines(client: Containerd, owner: Owner, *, take_over: bool) -> None:
    found = [image.name for image in client.images() if image.is_from_elsewhere(owner)]
    if found and not take_over:
        raise PreconditionError(
            f"containerd {client.address} has {len(found)} image records, such as {found[0]}, that a store with this"
            " store's id published on another machine",
            hint="a copied or restored store brings its id along; if this is the only one left, use --take-over",
        )
