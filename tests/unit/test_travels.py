"""Values and errors go to other processes, and wherever else a dict or a dataclass goes, and come back equal."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import imagestore
from imagestore.errors import NoMatchingManifestError
from imagestore.events import BlobStarted, Event
from imagestore.testing import RegistryServer, build_index

WAYS: list[Callable[[object], object]] = [lambda each: pickle.loads(pickle.dumps(each)), copy.deepcopy, copy.copy]
way = pytest.mark.parametrize("way", WAYS, ids=["pickle", "deepcopy", "copy"])


@pytest.fixture(scope="module")
def reference() -> Iterator[str]:
    with RegistryServer({"registry.example/app:1": build_index(["linux/amd64", "linux/arm64/v8"])}) as server:
        yield f"{server.address}/app:1"


@way
def test_what_a_pull_gives_is_the_same_elsewhere(
    reference: str, tmp_path: Path, way: Callable[[object], object]
) -> None:
    events: list[Event] = []
    with imagestore.open(tmp_path / "store") as store:
        image = store.pull(reference, platform="linux/amd64", observer=events.append)
        values = (
            *(image.record, image.target, image.manifest, image.manifest_document, image.config, store.config),
            *(store.match(reference), store.plan([(reference, "")]), store.usage(), *events),
        )
        for value in values:
            assert way(value) == value
    assert json.loads(json.dumps(image.config.settings)) == image.config.settings
    hash((image.record, image.target, image.config, store.config))


@way
def test_an_error_with_its_explanation_is_the_same_elsewhere(
    reference: str, tmp_path: Path, way: Callable[[object], object]
) -> None:
    with imagestore.open(tmp_path / "store") as store, pytest.raises(NoMatchingManifestError) as caught:
        store.pull(reference, platform="linux/s390x")
    other = way(caught.value)
    assert isinstance(other, NoMatchingManifestError)
    assert (str(other), vars(other)) == (str(caught.value), vars(caught.value))


def test_events_become_plain_dicts(reference: str, tmp_path: Path) -> None:
    events: list[Event] = []
    with imagestore.open(tmp_path / "store") as store:
        image = store.pull(reference, platform="linux/amd64", observer=events.append)
    started = [dataclasses.asdict(each)["descriptor"] for each in events if isinstance(each, BlobStarted)]
    assert {each.size for each in image.manifest_document.layers} <= {each["size"] for each in started}
    assert {type(each["annotations"]) for each in started} == {dict}
