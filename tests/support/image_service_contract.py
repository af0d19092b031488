"""What every image service must do: one suite, run over the embedded store, a CRI endpoint and a Docker Engine."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from imagestore import CancelToken
from imagestore.cri import ImageSpec
from imagestore.errors import (
    ImageStoreError,
    InvalidInputError,
    OperationCancelledError,
    UnknownRuntimeHandlerError,
)
from imagestore.node import ImageService


@dataclass
class Bench:
    """A service to try, and what its registry has.

    Attributes:
        service: without images.
        image: tag reference of an index.
        again: another tag of the same index.
        missing: a reference that its registry doesn't have.
        handler: a configured runtime handler for another platform of the index; empty where the service ignores
            handlers, as released runtimes do.
    """

    service: ImageService
    image: str
    again: str
    missing: str
    handler: str


class ImageServiceContract:
    """Subclasses give a fixture ``bench``."""

    def test_it_says_who_it_is(self, bench: Bench) -> None:
        told = bench.service.version()
        assert told.name
        assert told.version
        assert told.api_version

    def test_an_absent_image_is_no_error(self, bench: Bench) -> None:
        assert bench.service.status(ImageSpec(bench.image)) is None
        assert bench.service.inspect(ImageSpec(bench.image)) is None
        bench.service.remove(ImageSpec(bench.image))
        assert [*bench.service.list()] == []

    def test_the_pulled_id_is_the_listed_one(self, bench: Bench) -> None:
        image_id = bench.service.pull(ImageSpec(bench.image))
        status = bench.service.status(ImageSpec(bench.image))
        assert status is not None
        assert status.id == image_id
        assert [each.id for each in bench.service.list()] == [image_id]
        assert status.size > 0
        assert bench.image in status.repo_tags
        details = bench.service.inspect(ImageSpec(bench.image))
        assert details is not None
        assert details.image.id == image_id

    def test_pulling_again_changes_nothing(self, bench: Bench) -> None:
        first = bench.service.pull(ImageSpec(bench.image))
        assert bench.service.pull(ImageSpec(bench.image)) == first
        assert len(bench.service.list()) == 1

    def test_every_spelling_means_the_image(self, bench: Bench) -> None:
        image_id = bench.service.pull(ImageSpec(bench.image))
        status = bench.service.status(ImageSpec(bench.image))
        assert status is not None
        bare = image_id.removeprefix("sha256:")
        for spelling in (image_id, bare, bare[:12], *status.repo_tags, *status.repo_digests):
            found = bench.service.status(ImageSpec(spelling))
            assert found is not None, spelling
            assert found.id == image_id

    def test_removal_takes_every_tag(self, bench: Bench) -> None:
        image_id = bench.service.pull(ImageSpec(bench.image))
        assert bench.service.pull(ImageSpec(bench.again)) == image_id
        found = bench.service.status(ImageSpec(image_id))
        assert found is not None
        assert {bench.image, bench.again} <= set(found.repo_tags)
        bench.service.remove(ImageSpec(image_id))
        bench.service.remove(ImageSpec(image_id))
        assert [*bench.service.list()] == []
        assert bench.service.status(ImageSpec(bench.again)) is None

    def test_what_the_registry_lacks_is_an_error(self, bench: Bench) -> None:
        with pytest.raises(ImageStoreError):
            bench.service.pull(ImageSpec(bench.missing))
        assert bench.service.status(ImageSpec(bench.missing)) is None

    def test_a_cancelled_pull_ends(self, bench: Bench) -> None:
        token = CancelToken()
        token.cancel("enough")
        with pytest.raises(OperationCancelledError):
            bench.service.pull(ImageSpec(bench.image), cancel=token)

    def test_file_systems_are_told(self, bench: Bench) -> None:
        bench.service.pull(ImageSpec(bench.image))
        told = bench.service.filesystems().image_filesystems
        assert len(told) == 1
        assert os.path.isabs(told[0].mountpoint)
        assert told[0].timestamp_ns > 0
        assert told[0].used_bytes >= 0

    def test_no_container_uses_anything(self, bench: Bench) -> None:
        assert [*bench.service.containers()] == []


class HandlerContract(ImageServiceContract):
    """For services that tell (image, runtime handler) apart, and answer what released runtimes leave out."""

    def test_lists_are_filtered_by_name(self, bench: Bench) -> None:
        image_id = bench.service.pull(ImageSpec(bench.image))
        assert [each.id for each in bench.service.list(ImageSpec(bench.image))] == [image_id]
        assert [*bench.service.list(ImageSpec(bench.missing))] == []
        assert [each.id for each in bench.service.list(ImageSpec(""))] == [image_id]

    def test_a_filter_without_a_handler_finds_every_handlers_image(self, bench: Bench) -> None:
        pulled = [bench.service.pull(ImageSpec(bench.image, handler)) for handler in ("", bench.handler)]
        assert {each.id for each in bench.service.list(ImageSpec(bench.image))} == {*pulled}
        assert [each.id for each in bench.service.list(ImageSpec(pulled[1]))] == [pulled[1]]
        assert [each.id for each in bench.service.list(ImageSpec(bench.image, bench.handler))] == [pulled[1]]

    def test_what_images_use_is_told_at_once(self, bench: Bench) -> None:
        bench.service.pull(ImageSpec(bench.image))
        assert bench.service.filesystems().image_filesystems[0].used_bytes > 0

    def test_a_handler_gets_its_own_image(self, bench: Bench) -> None:
        default = bench.service.pull(ImageSpec(bench.image))
        other = bench.service.pull(ImageSpec(bench.image, bench.handler))
        assert other != default
        listed = {each.id: each.spec.runtime_handler for each in bench.service.list()}
        assert set(listed) == {default, other}
        assert listed[other] == bench.handler
        assert listed[default] != bench.handler
        for handler, image_id in (("", default), (bench.handler, other)):
            found = bench.service.status(ImageSpec(bench.image, handler))
            assert found is not None
            assert found.id == image_id

    def test_a_handlers_image_is_not_the_defaults(self, bench: Bench) -> None:
        bench.service.pull(ImageSpec(bench.image, bench.handler))
        assert bench.service.status(ImageSpec(bench.image)) is None
        assert [each.spec.runtime_handler for each in bench.service.list(ImageSpec("", bench.handler))] == [
            bench.handler
        ]

    def test_removal_for_a_handler_spares_the_others(self, bench: Bench) -> None:
        default = bench.service.pull(ImageSpec(bench.image))
        bench.service.pull(ImageSpec(bench.image, bench.handler))
        bench.service.remove(ImageSpec(bench.image, bench.handler))
        assert [each.id for each in bench.service.list()] == [default]
        assert bench.service.status(ImageSpec(bench.image, bench.handler)) is None

    def test_an_unknown_handler_is_refused(self, bench: Bench) -> None:
        with pytest.raises(UnknownRuntimeHandlerError):
            bench.service.pull(ImageSpec(bench.image, "nobody"))
        assert [*bench.service.list()] == []

    def test_bad_names_are_refused(self, bench: Bench) -> None:
        for text in ("Upper/Case", "http://x/y", "a b"):
            with pytest.raises(InvalidInputError):
                bench.service.pull(ImageSpec(text))
        assert bench.service.status(ImageSpec("")) is None
        with pytest.raises(InvalidInputError):
            bench.service.remove(ImageSpec(""))
