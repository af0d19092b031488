"""Records by image id: all names and handlers of one image, and whether anything pins it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from imagestore import Digest, ImageStore
from imagestore import config as configuration
from imagestore.testing import build_image, build_index
from tests.support.node import CONFIG, HOST, HYPERV, PROCESS, node

APP, FURTHER, BOTH = "registry.example/app:1", "registry.example/app:2", "registry.example/both:1"
WINDOWS = build_image("windows(10.0.20348.1)/amd64", seed="app")
#: One manifest that two handlers choose.
IMAGES = {APP: WINDOWS, BOTH: build_index([build_image("windows(10.0.17763.1)/amd64", seed="old"), WINDOWS])}


def test_a_group_has_all_references_and_handlers_of_an_id(tmp_path: Path) -> None:
    with node(tmp_path, IMAGES) as here:
        app = here.store.pull(APP, runtime_handler=PROCESS)
        here.store.tag(APP, FURTHER)
        here.store.pull(BOTH, runtime_handler=PROCESS)
        old = here.store.pull(BOTH, runtime_handler=HYPERV)
        groups = here.store.images_by_id()
        assert list(groups) == [str(app.id), str(old.id)]
        group = groups[str(app.id)]
        assert (group.image_id, group.references, group.handlers) == (str(app.id), (APP, FURTHER, BOTH), (PROCESS,))
        assert {record.manifest for record in group.records} == {str(app.manifest.digest)}
        assert {record.target for record in group.records} == {str(app.target.digest), str(old.target.digest)}
        other = groups[str(old.id)]
        assert (other.references, other.handlers) == ((BOTH,), (HYPERV,))


def test_one_id_is_found_without_the_others(tmp_path: Path) -> None:
    with node(tmp_path, IMAGES) as here:
        app = here.store.pull(APP)
        assert here.store.image_group(app.id) == here.store.images_by_id()[str(app.id)]
        assert here.store.image_group(Digest.of(b"absent")) is None
        here.store.remove(APP)
        assert here.store.image_group(app.id) is None


def test_one_pinned_record_pins_its_group(tmp_path: Path) -> None:
    with node(tmp_path, IMAGES) as here:
        app = here.store.pull(APP)
        here.store.tag(APP, FURTHER)
        here.store.pull(BOTH, runtime_handler=HYPERV)
        assert [group.is_pinned for group in here.store.images_by_id().values()] == [False, False]
        here.store.metadata.images.pin([(FURTHER, PROCESS)], is_pinned=True)
        assert [group.is_pinned for group in here.store.images_by_id().values()] == [True, False]
        assert here.store.image_group(app.id) == here.store.images_by_id()[str(app.id)]


def test_the_configured_sandbox_image_is_pinned(tmp_path: Path) -> None:
    with node(tmp_path, IMAGES) as here:
        app = here.store.pull(APP)
    text = f'{CONFIG}\n[plugins."io.containerd.cri.v1.images".pinned_images]\nsandbox = "{APP}"\n'
    assert tomllib.loads(text)
    settings = configuration.loads(text, filename="config.toml", host=HOST)
    with ImageStore(tmp_path, config=settings, host=HOST) as store:
        group = store.image_group(app.id)
        assert group is not None
        assert group.is_pinned
