"""A publisher that is killed at each of its failpoints: the next one converges, and nothing of the dead one stays."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from pathlib import Path

import pytest

import imagestore.publish
from tests.support.fake_containerd import FakeContainerd
from tests.support.publishing import APP, ARM, BASE, CONFIG, HOST, RUNC, PublishingNode

PLACES = sorted(
    {
        name
        for path in Path(imagestore.publish.__file__).parent.glob("*.py")
        for name in re.findall(r'reach\("(publish-[a-z-]+)"\)', path.read_text())
    }
)
#: And later: with a layer unpacked, a record made, an image published.
LATER = ("publish-commit:2", "publish-snapshot:3", "publish-record:3", "publish-end:2")
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["httpx", "jsonschema", "imagestore.store.image_store", "imagestore.publish.publisher"])


def publish(root: Path, address: str, content: str, failpoint: str) -> None:
    """What the other process does."""
    os.environ["IMAGESTORE_FAILPOINT"] = failpoint
    from imagestore import ImageStore, config
    from imagestore.publish import Publisher

    settings = config.loads(CONFIG, filename="config.toml", host=HOST)
    with ImageStore(root, config=settings, host=HOST) as store, Publisher(store, address, content=content) as publisher:
        publisher.reconcile()


def killed_at(here: PublishingNode, failpoint: str, content: str) -> None:
    """Run it; it must die there."""
    process = CONTEXT.Process(
        target=publish, args=(here.store.root, here.fake.address, content, failpoint), daemon=True
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def converges(here: PublishingNode, fake: FakeContainerd, content: str) -> None:
    here.reconcile(content=content)
    assert here.unmet() == []
    fake.collect()
    assert here.unmet() == []
    assert not fake.here.ingests
    assert fake.files() == fake.blobs()
    assert sorted(each.name for each in fake.root.iterdir()) == ["blobs"]


@pytest.mark.parametrize("failpoint", [*(f"{each}:1" for each in PLACES), *LATER])
def test_killed_at_a_failpoint(here: PublishingNode, fake: FakeContainerd, failpoint: str) -> None:
    # Files of its own have every step that links have, and one more.
    content = "copy" if failpoint.startswith(("publish-place", "publish-replace", "publish-commit")) else "auto"
    here.pull(APP, RUNC)
    here.pull(APP, ARM)
    path = fake.state.path(str(BASE.digest))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"of another size, so that it is replaced")
    killed_at(here, failpoint, content)
    converges(here, fake, content)


def test_killed_again_and_again(here: PublishingNode, fake: FakeContainerd) -> None:
    """At each step a little further, with the collector at work between."""
    fake.rules.is_hostile = True
    here.pull(APP, RUNC)
    for place in ("publish-lease", "publish-apply", "publish-snapshot", "publish-manifest", "publish-record"):
        killed_at(here, f"{place}:1", "auto")
        fake.collect()
    converges(here, fake, "auto")


def test_killed_while_an_image_of_before_goes_on(here: PublishingNode, fake: FakeContainerd) -> None:
    running = here.pull(APP, RUNC)
    here.reconcile()
    fake.start_container("c", running)
    guest = here.pull(APP, ARM)
    killed_at(here, "publish-record:2", "auto")
    assert fake.runs(running)
    assert fake.leases() != set()
    converges(here, fake, "auto")
    assert fake.runs(guest)
    fake.remove_container("c")
