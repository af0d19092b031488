"""One process at work on the store until it is killed."""

from __future__ import annotations

import contextlib
import math
import os
import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from imagestore import ImageStore

_MIXED = [
    *["pull"] * 6,
    *["import"] * 2,
    *("remove", "delete", "delete", "clear", "collect", "collect"),
    *("pin", "touch", "evict", "lease", "keep", "backup", "copy", "check"),
]
#: What a process is out for; those that only bring and those that only clear away meet most often.
_ROLES = [
    _MIXED,
    _MIXED,
    ["pull"],
    ["import"],
    ["collect"],
    ["delete", "collect"],
    ["keep", "delete"],
    ["pull", "clear"],
    ["pull", "copy"],
]


@dataclass(frozen=True)
class Place:
    """Where a worker works.

    Attributes:
        root: the store.
        references: images of a registry that answers.
        archives: the same images in files and folders.
        source: a folder whose blobs may be adopted.
        backups: folder for copies of the database.
        failures: folder for the traceback of an error that should not happen.
    """

    root: Path
    references: Sequence[str]
    archives: Sequence[Path]
    source: Path
    backups: Path
    failures: Path


def run(place: Place, seed: int, failpoint: str) -> None:
    """Bring, remove, pin, lease, copy, check and collect in a random order, for ever.

    Args:
        place: where.
        seed: decides the order of work.
        failpoint: where to end; empty to be killed from outside.
    """
    _guarded(place, failpoint, lambda: _work(place, random.Random(seed)))


def repair(place: Place, failpoint: str) -> None:
    """Rebuild a damaged database, then repair what is damaged; alone on the store.

    Args:
        place: where.
        failpoint: where to end; empty to come to the end.
    """
    _guarded(place, failpoint, lambda: _mend(place))


def _guarded(place: Place, failpoint: str, work: Callable[[], None]) -> None:
    os.environ["IMAGESTORE_FAILPOINT"] = failpoint
    try:
        work()
    except BaseException:  # noqa: BLE001 - every error here is a finding
        report = f"failpoint {failpoint!r}\n{traceback.format_exc()}"
        (place.failures / f"{os.getpid()}.txt").write_text(report)
        os._exit(1)


def _open(place: Place, *, adopts: bool) -> ImageStore:
    from imagestore import ImageStore, config, platforms
    from tests.support.node import CONFIG

    host = platforms.parse("windows(10.0.20348)/amd64")
    settings = config.loads(CONFIG, filename="config.toml", host=host)
    return ImageStore(place.root, config=settings, host=host, sources=[place.source] if adopts else ())


def _mend(place: Place) -> None:
    from imagestore.store.maintenance.rebuild import rebuild

    # Without content a rebuild has to be forced; here nothing is away, it was all collected.
    has_content = any((place.root / "content" / "blobs").glob("*/*"))
    rebuild(place.root, is_forced=not has_content)
    with _open(place, adopts=False) as store:
        repaired = store.repair(store.check())
        assert repaired.failures == (), repaired.failures


def _work(place: Place, chance: random.Random) -> None:
    from imagestore import EvictionPolicy
    from imagestore.content import delete
    from imagestore.errors import ImageNotFoundError
    from imagestore.store.maintenance.hashing import CheckOptions

    # These images have few blobs; so some are deleted by several threads, others by one.
    mock.patch.object(delete, "_FEWEST_FOR_THREADS", chance.choice([1, 10, 100])).start()
    role = chance.choice(_ROLES)
    while True:
        with _open(place, adopts=chance.random() < 0.3) as store:
            handlers = sorted(store.config.handlers)
            for _ in range(chance.randrange(1, 12)):
                reference, handler = chance.choice(place.references), chance.choice(handlers)
                match chance.choice(role):
                    case "pull":
                        store.pull(reference, runtime_handler=handler)
                    case "import":
                        _import(store, handler, place, chance)
                    case "remove":
                        store.remove(reference, runtime_handler=handler)
                    case "collect":
                        store.collect_garbage()
                    case "delete":
                        store.remove(reference, runtime_handler=handler, collect=True)
                    case "clear":
                        _clear(store, place)
                    case "pin":
                        with contextlib.suppress(ImageNotFoundError):
                            chance.choice([store.pin, store.unpin])(reference, runtime_handler=handler)
                    case "touch":
                        store.touch(reference, runtime_handler=handler)
                    case "evict":
                        store.evict(EvictionPolicy(keep_last=1))
                    case "lease":
                        _lease(store, chance)
                    case "keep":
                        _keep(store, chance)
                    case "backup":
                        store.backup(place.backups / f"{os.getpid()}-{chance.randrange(10**9)}.db")
                    case "copy":
                        store.metadata.keep_copy(at_once=True)
                    case "check":
                        faults = store.check(options=CheckOptions(state=place.root / "check.json", resume=True)).faults
                        assert faults == (), faults


def _import(store: ImageStore, handler: str, place: Place, chance: random.Random) -> None:
    """An archive, under the names that are pulled too."""
    from imagestore import ImportOptions

    options = ImportOptions(
        runtime_handlers=(handler,),
        all_platforms=chance.random() < 0.4,
        images=(chance.choice(place.references),),
        replace=True,
    )
    store.import_images(chance.choice(place.archives), options=options)


def _lease(store: ImageStore, chance: random.Random) -> None:
    """Hold some of the content for a while, as an embedder would."""
    digests = [info.digest for info in store.content.walk()]
    with store.hold(chance.sample(digests, min(3, len(digests)))) as held:
        held.renew()


def _clear(store: ImageStore, place: Place) -> None:
    """Everything, what was kept to last among it."""
    for held in store.metadata.leases.find():
        if math.isinf(held.expires_at):
            store.metadata.leases.delete(held.id)
    for info in store.content.walk():
        if store.metadata.graph.content_labels(info.digest):
            store.metadata.graph.label_content(info.digest, {})
    store.remove(*place.references, all_handlers=True, collect=True)


def _keep(store: ImageStore, chance: random.Random) -> None:
    """Keep content, by a lease that lasts or by a label, or let it go."""
    from imagestore.errors import AlreadyExistsError, LeaseNotFoundError

    digests = [info.digest for info in store.content.walk()]
    chosen = chance.sample(digests, min(2, len(digests)))
    name = f"lasting-{chance.randrange(3)}"
    match chance.choice(["lease", "lease", "unlease", "release", "label", "unlabel", "unlabel"]):
        case "lease":
            with contextlib.suppress(AlreadyExistsError):
                store.metadata.leases.create(name, lifetime_seconds=math.inf)
            with contextlib.suppress(LeaseNotFoundError):
                store.metadata.leases.add_content(name, chosen)
        case "unlease":
            with contextlib.suppress(LeaseNotFoundError):
                store.metadata.leases.remove_content(name, store.metadata.leases.content(name)[:1])
        case "release":
            store.metadata.leases.delete(name)
        case "label":
            for digest in chosen:
                store.metadata.graph.label_content(digest, {"containerd.io/gc.root": "kept"})
        case "unlabel":
            for digest in digests:
                if store.metadata.graph.content_labels(digest):
                    store.metadata.graph.label_content(digest, {})
