"""Images of clients that are looked at: verifiers, callers who leave, and what others do meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from imagestore import Descriptor, ImageStore
from imagestore.content.local import LocalContentStore
from imagestore.errors import ConfigError, ImageDeniedError, ImageStoreError, StoreBusyError
from imagestore.protos.containerd import images_pb2 as wire
from imagestore.store.pull.present import PresentImage, make_names_durable
from imagestore.testing import Image, build_image
from tests.support.containerd_client import Client, refused
from tests.support.whole_images import (
    NAME,
    Judge,
    bring,
    client_target,
    guarded,
    make,
    move,
)

PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def test_updates_at_the_same_time_come_one_after_the_other(home: Client, store: ImageStore) -> None:
    versions = [build_image(seed=seed) for seed in "12"]
    for image in versions:
        bring(home, image)
        make(home, image, f"docker.io/library/kept@{image.target.digest}")
    make(home, versions[0])

    def work(number: int) -> None:
        for turn in range(10):
            move(home, versions[(turn + number) % 2])
            home.update_image(wire.Image(name=NAME, labels={f"from-{number}": str(turn)}), f"labels.from-{number}")

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, number) for number in range(4)]:
            done.result()
    assert store.get(NAME).record.labels == {f"from-{number}": "9" for number in range(4)}


def test_what_is_collected_meanwhile_makes_no_record(
    home: Client, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = build_image(seed="1"), build_image(seed="2")
    bring(home, first)
    bring(home, second)
    put = PresentImage.put

    def collected(*_arguments: object, **_named: object) -> None:
        raise StoreBusyError("collected")

    monkeypatch.setattr(PresentImage, "put", collected)
    make(home, first)
    assert (home.image_names(), store.metadata.images.find()) == ([NAME], [])
    monkeypatch.setattr(PresentImage, "put", put)
    move(home, first)
    monkeypatch.setattr(PresentImage, "put", collected)
    with refused(PRECONDITION, "can't be moved: collected"):
        move(home, second)
    assert store.get(NAME).record.target.digest == first.target.digest


def test_what_is_gone_when_its_record_would_be_written_makes_none(
    home: Client, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the store would list an image that it can't hand out."""

    def durable_and_lost(content: LocalContentStore, descriptors: Collection[Descriptor]) -> None:
        make_names_durable(content, descriptors)
        assert content.delete([*descriptors][-1].digest)

    image = build_image()
    bring(home, image)
    monkeypatch.setattr("imagestore.store.pull.present.make_names_durable", durable_and_lost)
    make(home, image)
    assert (home.image_names(), store.metadata.images.find()) == ([NAME], [])


@pytest.mark.parametrize("error", [ImageDeniedError(NAME, "never", "not this"), ConfigError("too many programs")])
def test_what_the_verifier_refuses_is_no_record(tmp_path: Path, error: ImageStoreError) -> None:
    with guarded(tmp_path, Judge(error)) as (client, store):
        image = build_image()
        bring(client, image)
        make(client, image)
        assert store.metadata.images.find() == []
        assert client.image_names() == [NAME]
        client.update_image(wire.Image(name=NAME, labels={"a": "1"}), "labels.a")
        assert store.metadata.images.find() == [], "only who gives a target asks again"
        move(client, image)
        assert store.get(NAME).record.labels == {"a": "1"}


def test_a_record_is_not_moved_to_what_the_verifier_refuses(tmp_path: Path) -> None:
    judge = Judge()
    with guarded(tmp_path, judge) as (client, store):
        first, second = build_image(seed="1"), build_image(seed="2")
        bring(client, first)
        bring(client, second)
        make(client, first)
        judge.refusals.append(ImageDeniedError(NAME, "never", "not this"))
        with refused(grpc.StatusCode.PERMISSION_DENIED, "not this"):
            move(client, second)
        assert store.get(NAME).record.target.digest == first.target.digest


def test_an_update_that_is_stored_is_done_whatever_comes_after(tmp_path: Path) -> None:
    judge = Judge()
    with guarded(tmp_path, judge) as (client, _), ThreadPoolExecutor(8) as pool:
        whole, others = build_image(seed="whole"), [build_image(seed=seed) for seed in "12"]
        bring(client, whole)
        make(client, others[0])
        busy = [pool.submit(make, client, whole, f"docker.io/library/busy:{number}") for number in range(8)]
        updates = [pool.submit(move, client, image) for image in (others[1], others[0], whole, others[1])]
        for done in [*busy, *updates]:
            done.result()
        assert client.image_names(f"name=={NAME}") == [NAME]


@contextlib.contextmanager
def interrupted(
    folder: Path, meanwhile: Callable[[Client, ImageStore], None]
) -> Iterator[tuple[Client, ImageStore, Image]]:
    """A record under NAME, and another whole image; something happens while the verifier looks at the next move."""
    judge = Judge()
    with guarded(folder, judge) as (client, store):
        first, second = build_image(seed="1"), build_image(seed="2")
        for image in (first, second):
            bring(client, image)
            make(client, image, f"docker.io/library/kept@{image.target.digest}")
        make(client, first)
        judge.meanwhile.append(lambda: meanwhile(client, store))
        yield client, store, second


@pytest.mark.parametrize("case", ["deleted", "another default handler"])
def test_a_record_that_went_meanwhile_was_not_moved(tmp_path: Path, case: str) -> None:
    def meanwhile(client: Client, store: ImageStore) -> None:
        if case == "deleted":
            client.delete_image(NAME)
        else:
            store.metadata.images.put(replace(store.get(NAME).record, handler="other"), {})
            store.metadata.images.remove([(NAME, "runc")])

    with interrupted(tmp_path, meanwhile) as (client, _, second):
        with refused(grpc.StatusCode.NOT_FOUND):
            move(client, second)
        assert NAME not in client.image_names()


def test_an_update_that_was_not_stored_is_not_answered_as_done(tmp_path: Path) -> None:
    third = build_image(seed="3")

    def meanwhile(client: Client, _: ImageStore) -> None:
        client.delete_image(NAME)
        make(client, third)
        raise ImageDeniedError(NAME, "judge", "not now")

    with interrupted(tmp_path, meanwhile) as (client, store, second):
        with refused(grpc.StatusCode.PERMISSION_DENIED):
            move(client, second)
        assert client.image(NAME).target.digest == str(third.target.digest)
        assert {each.reference for each in store.metadata.images.find()}.isdisjoint({NAME})


def test_an_image_that_a_record_hides_goes_when_its_client_names_the_target_again(
    home: Client, store: ImageStore
) -> None:
    image = build_image()
    make(home, image)
    bring(home, image)
    make(home, image, "docker.io/library/other:1")
    store.metadata.images.put(replace(store.get("docker.io/library/other:1").record, reference=NAME), {})
    assert len(store.metadata.named_images.find("k8s.io")) == 1
    move(home, image)
    assert store.metadata.named_images.find("k8s.io") == []


def test_callers_who_leave_count_until_their_look_has_ended(tmp_path: Path) -> None:
    judge = Judge()
    judge.seconds = 0.3
    with guarded(tmp_path, judge) as (client, store):
        image = build_image()
        bring(client, image)
        calls = []
        for number in range(12):
            given = wire.Image(name=f"docker.io/library/left:{number}", target=client_target(image))
            request = wire.CreateImageRequest(image=given)
            calls.append(client.images.Create.future(request, metadata=client.headers, timeout=0.1))
        for call in calls:
            with contextlib.suppress(grpc.RpcError):
                call.result()
        make(client, image)
        assert [each.reference for each in store.metadata.images.find()] == [NAME]
    assert max(judge.at_once) <= 4


def test_few_images_are_looked_at_together(tmp_path: Path) -> None:
    judge = Judge()
    with guarded(tmp_path, judge) as (client, store):
        image = build_image()
        bring(client, image)
        with ThreadPoolExecutor(12) as pool:
            for done in [pool.submit(make, client, image, f"docker.io/library/app:{number}") for number in range(24)]:
                done.result()
        assert len(store.metadata.images.find()) == 24
    assert 1 < max(judge.at_once) <= 4
