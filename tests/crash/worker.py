"""One process at work on the store until it is killed."""

from __future__ import annotations

import contextlib
import os
import random
import traceback
from collections.abc import Sequence
from pathlib import Path

_MIXED = [
    *["pull"] * 6,
    "remove",
    "delete",
    "delete",
    "collect",
    "collect",
    "pin",
    "touch",
    "evict",
    "lease",
    "import",
    "import",
]
#: What a process is out for; those that only pull and those that only clear away meet most often.
_ROLES = [_MIXED, _MIXED, ["pull"], ["collect"], ["delete", "collect"], ["import", "delete"]]


def run(root: Path, references: Sequence[str], seed: int, failpoint: str, failures: Path) -> None:
    """Pull, remove, pin, lease and collect in a random order, for ever.

    Args:
        root: the store.
        references: images of a registry that answers.
        seed: decides the order of work.
        failpoint: where to end; empty to be killed from outside.
        failures: folder for the traceback of an error that should not happen.
    """
    os.environ["IMAGESTORE_FAILPOINT"] = failpoint
    try:
        _work(root, references, random.Random(seed))
    except BaseException:  # noqa: BLE001 - every error here is a finding
        (failures / f"{os.getpid()}.txt").write_text(f"failpoint {failpoint!r}\n{traceback.format_exc()}")
        os._exit(1)


def _work(root: Path, references: Sequence[str], chance: random.Random) -> None:
    from imagestore import config, platforms
    from imagestore.archive.importing import ImportOptions
    from imagestore.errors import ContentNotFoundError, ImageNotFoundError
    from imagestore.store import ImageStore
    from imagestore.upkeep.policy import Policy
    from tests.support.node import CONFIG

    host = platforms.parse("windows(10.0.20348)/amd64")
    settings = config.loads(CONFIG, filename="config.toml", host=host)
    handlers = sorted(settings.handlers)
    role = chance.choice(_ROLES)
    while True:
        with ImageStore(root, config=settings, host=host) as store:
            for _ in range(chance.randrange(1, 12)):
                reference, handler = chance.choice(references), chance.choice(handlers)
                match chance.choice(role):
                    case "pull":
                        store.pull(reference, runtime_handler=handler)
                    case "remove":
                        store.remove(reference, runtime_handler=handler)
                    case "collect":
                        store.collect_garbage()
                    case "delete":
                        store.delete(reference, runtime_handler=handler)
                    case "pin":
                        with contextlib.suppress(ImageNotFoundError):
                            chance.choice([store.pin, store.unpin])(reference, runtime_handler=handler)
                    case "touch":
                        store.touch(reference, runtime_handler=handler)
                    case "import":
                        options = ImportOptions((handler,), may_replace=True)
                        with contextlib.suppress(ContentNotFoundError):  # the archive has one handler's content
                            store.import_images(root.parent / "images.tar", options=options)
                    case "evict":
                        store.evict(Policy(keep_last=1))
                    case "lease":
                        _lease(store, chance)


def _lease(store: object, chance: random.Random) -> None:
    """Hold some of the content for a while, as an embedder would."""
    from imagestore import lease
    from imagestore.store import ImageStore

    assert isinstance(store, ImageStore)
    with lease.held(store.metadata, purpose="embedder") as held:
        digests = [info.digest for info in store.content.walk()]
        held.hold(chance.sample(digests, min(3, len(digests))))
        held.renew()
