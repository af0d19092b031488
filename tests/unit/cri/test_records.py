"""Lists are put together from entries that were serialised before; they are right after every change of records."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagestore import Digest, ImageStore
from imagestore import config as configuration
from imagestore.cri import records
from imagestore.cri.image_service import ImageServicer
from imagestore.cri.model import ImageSpec, ServedImage
from imagestore.cri.pull_queue import PullQueue
from imagestore.cri.response_cache import image_message
from imagestore.errors import StoreCorruptError
from imagestore.metadata import ListedImage
from imagestore.protos.cri import api_pb2 as cri
from imagestore.store import StoreWorkers
from imagestore.testing import build_image
from tests.support.node import CONFIG, HOST, PYTHON, node, python_image
from tests.support.store_process import StoreProcess

APP, FURTHER, OTHER = "registry.example/app:1", "registry.example/app:2", "registry.example/other:1"
IMAGES = {
    APP: build_image("windows(10.0.20348.1)/amd64", seed="app", config={"config": {"User": "app"}}),
    OTHER: build_image("windows(10.0.20348.1)/amd64", seed="other"),
    PYTHON: python_image(),
}
# The context of a call that asks it for nothing.
NO_CONTEXT: Any = None

Change = Callable[..., object]


class Server:
    """The service, which remembers, over a store."""

    def __init__(self, store: ImageStore) -> None:
        self.workers = StoreWorkers(store)
        self._servicer = ImageServicer(self.workers, PullQueue())

    def images(self) -> list[cri.Image]:
        """What it lists; a stream and the statuses of the images show the same."""

        async def ask() -> list[cri.Image]:
            listed = list((await self._servicer.ListImages(cri.ListImagesRequest(), NO_CONTEXT)).images)
            parts = self._servicer.StreamImages(cri.StreamImagesRequest(), NO_CONTEXT)
            assert [image async for part in parts for image in part.images] == listed
            for image in listed:
                status = await self._servicer.ImageStatus(cri.ImageStatusRequest(image=image.spec), NO_CONTEXT)
                assert status.image == image
            return listed

        return asyncio.run(ask())

    def status(self, name: str) -> str:
        """The reference of an image; empty when it is absent."""
        request = cri.ImageStatusRequest(image=cri.ImageSpec(image=name))
        return asyncio.run(self._servicer.ImageStatus(request, NO_CONTEXT)).image.spec.image

    def shown(self) -> dict[tuple[str, ...], bool]:
        """By its tags whether each image is pinned."""
        return {tuple(image.repo_tags): image.pinned for image in self.images()}


@pytest.fixture(params=["this process", "another process"])
def change(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Change]:
    """Calls a method of a store on the same root that isn't the server's."""
    if request.param == "another process":
        other = StoreProcess(tmp_path)
        yield other.ask
        other.kill()
        return
    settings = configuration.loads(CONFIG, filename="config.toml", host=HOST)
    with ImageStore(tmp_path, config=settings, host=HOST) as store:
        yield lambda method, *arguments: getattr(store, method)(*arguments)


def test_a_list_follows_every_change_of_records(tmp_path: Path, change: Change) -> None:
    with node(tmp_path, IMAGES) as here:
        server = Server(here.store)
        assert server.shown() == {}
        here.store.pull(APP)
        assert server.shown() == {(APP,): False}
        here.store.pull(OTHER)
        assert server.shown() == {(APP,): False, (OTHER,): False}
        change("pin", APP)
        assert server.shown() == {(APP,): True, (OTHER,): False}
        change("tag", APP, FURTHER)
        assert server.shown() == {(APP, FURTHER): True, (OTHER,): False}
        change("tag", OTHER, FURTHER)
        assert server.shown() == {(APP,): True, (FURTHER, OTHER): False}
        change("unpin", APP)
        assert server.shown() == {(APP,): False, (FURTHER, OTHER): False}
        change("untag", FURTHER)
        assert server.shown() == {(APP,): False, (OTHER,): False}
        change("remove", APP)
        assert server.shown() == {(OTHER,): False}
        here.store.pull(APP)
        assert server.shown() == {(APP,): False, (OTHER,): False}
        server.workers.close()


def test_a_status_is_gone_with_its_image_and_back_with_it(tmp_path: Path, change: Change) -> None:
    with node(tmp_path, IMAGES) as here:
        server = Server(here.store)
        here.store.pull(APP)
        assert [server.status(APP), server.status(APP)] == [APP, APP]
        change("remove", APP)
        assert [server.status(APP), server.status(APP)] == ["", ""]
        here.store.pull(APP)
        assert server.status(APP) == APP
        server.workers.close()


def test_a_moved_name_shows_its_new_image(tmp_path: Path) -> None:
    with node(tmp_path, IMAGES) as here:
        server = Server(here.store)
        app, other = here.store.pull(APP), here.store.pull(OTHER)
        assert {image.id for image in server.images()} == {str(app.id), str(other.id)}
        here.store.tag(OTHER, APP)
        (image,) = server.images()
        assert (image.id, list(image.repo_tags)) == (str(other.id), [APP, OTHER])
        assert image.repo_digests[0] == f"registry.example/app@{other.target.digest}"
        server.workers.close()


def test_a_name_under_two_handlers_is_two_entries_with_their_own_sizes(tmp_path: Path) -> None:
    with node(tmp_path, IMAGES) as here:
        server = Server(here.store)
        first = here.store.pull(PYTHON)
        assert [image.size for image in server.images()] == [first.record.content_size]
        second = here.store.pull(PYTHON, runtime_handler="kata")
        found = {image.spec.runtime_handler: (image.id, image.size) for image in server.images()}
        assert found == {each.runtime_handler: (str(each.id), each.record.content_size) for each in (first, second)}
        server.workers.close()


def test_a_list_follows_what_a_reload_pins(tmp_path: Path) -> None:
    pins = '[plugins."io.containerd.cri.v1.images".pinned_images]\n'
    with node(tmp_path, IMAGES) as here:
        server = Server(here.store)
        here.store.pull(APP)
        assert server.shown() == {(APP,): False}
        for text, is_pinned in ((CONFIG + pins + f'app = "{APP}"', True), (CONFIG, False)):
            settings = configuration.loads(text, filename="config.toml", host=HOST)
            server.workers.replace(ImageStore(tmp_path, config=settings, host=HOST))
            assert server.shown() == {(APP,): is_pinned}
        server.workers.close()


def test_a_repair_shows_though_it_changes_no_record(tmp_path: Path) -> None:
    with node(tmp_path, IMAGES) as here:
        server = Server(here.store)
        config = here.store.content.path(Digest.parse(str(here.store.pull(APP).id)))
        aside = config.with_name("aside")
        config.rename(aside)
        assert [image.username for image in server.images()] == [""]
        aside.rename(config)
        assert [image.username for image in server.images()] == ["app"]
        server.workers.close()


def test_entries_of_a_list_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(entry: ServedImage) -> cri.Image:
        made.append(entry.id)
        return image_message(entry)

    monkeypatch.setattr("imagestore.cri.response_cache.image_message", counted)
    with node(tmp_path, IMAGES) as here:
        server = Server(here.store)
        app = here.store.pull(APP)
        server.images()
        other = here.store.pull(OTHER)
        server.images()
        assert made == [str(app.id), str(other.id)]
        server.workers.close()


def test_a_record_whose_digest_is_none_is_damage(tmp_path: Path) -> None:
    with node(tmp_path, IMAGES) as here:
        here.store.pull(APP)
        with contextlib.closing(sqlite3.connect(tmp_path / "metadata.db")) as database, database:
            database.execute("""UPDATE image SET target = '["application/json", "sha256:none", 1]'""")
        groups = records.find_groups(here.store, ImageSpec(""))
        with pytest.raises(StoreCorruptError, match="sha256:none"):
            records.served_images(groups, here.store, records.ImageUsers())


def test_what_lists_show_is_what_records_say(tmp_path: Path) -> None:
    with node(tmp_path, IMAGES) as here:
        app, kata = here.store.pull(APP), here.store.pull(PYTHON, runtime_handler="kata")
        metadata = here.store.metadata
        every = [ListedImage.of(each) for each in metadata.images.find()]
        assert metadata.images.find_listed() == every
        assert metadata.images.find_listed(handler="kata") == [ListedImage.of(kata.record)]
        assert metadata.images.find_listed(image_id=str(app.id)) == [ListedImage.of(app.record)]
        assert metadata.images.find_listed(image_id=str(app.id), handler="kata") == []
