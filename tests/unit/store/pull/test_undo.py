"""What is told when a pull fails and its bytes can't be taken back either."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore import CancelToken
from imagestore.errors import DocumentError, StoreBusyError, StoreFullError
from imagestore.store import leases
from imagestore.store.pull.undo import undone_on_failure
from tests.support.node import node, python_image


def test_the_failure_that_came_first_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(_: str, **_how: bool) -> None:
        raise StoreBusyError("metadata.db: is held by another process")

    with (
        node(tmp_path) as here,
        leases.held(here.store.metadata, purpose="pull") as held,
        monkeypatch.context() as patch,
    ):
        patch.setattr(here.store.metadata.leases, "delete", busy)
        with (
            pytest.raises(DocumentError, match="breaks its rules"),
            undone_on_failure(here.store.metadata, here.store.content, held, [python_image().target], ()),
        ):
            raise DocumentError("manifest", ["breaks its rules"])


def test_partial_downloads_go_although_the_database_has_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what takes it."""

    def full(_: str, **_how: bool) -> None:
        raise StoreFullError("metadata.db: database or disk is full")

    with (
        node(tmp_path) as here,
        leases.held(here.store.metadata, purpose="pull") as held,
        monkeypatch.context() as patch,
    ):
        content, wanted = here.store.content, python_image().target

        def fetch() -> None:
            with (
                undone_on_failure(here.store.metadata, content, held, [wanted], ()),
                content.writer(wanted.ingest_ref, expected=wanted.digest, total=9, cancel=CancelToken()) as writer,
            ):
                writer.write(b"part")
                raise DocumentError("manifest", ["breaks its rules"])

        patch.setattr(here.store.metadata.leases, "delete", full)
        with pytest.raises(DocumentError, match="breaks its rules"):
            fetch()
        assert list(content.statuses()) == []


@pytest.mark.parametrize("has_come", [False, True])
def test_the_lease_goes_with_what_is_kept_back_only_where_content_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_come: bool
) -> None:
    """Content that stays under a lease on a full disk can't be freed for a day."""
    deleted: list[bool] = []

    def delete(_: str, *, is_of_work: bool = False) -> bool:
        deleted.append(is_of_work)
        return True

    with (
        node(tmp_path) as here,
        leases.held(here.store.metadata, purpose="pull") as held,
        monkeypatch.context() as patch,
    ):
        patch.setattr(here.store.metadata.leases, "delete", delete)
        image = python_image()
        target, raw = image.target, image.documents[image.target.digest].data
        wanted = [target, image.manifests[0].descriptor]

        def fetch() -> None:
            with undone_on_failure(here.store.metadata, here.store.content, held, wanted, ()):
                if has_come:
                    with here.store.content.writer(
                        target.ingest_ref, expected=target.digest, total=target.size, cancel=CancelToken()
                    ) as writer:
                        writer.write(raw)
                        writer.commit(target.digest, target.size)
                raise DocumentError("manifest", ["breaks its rules"])

        with pytest.raises(DocumentError):
            fetch()
        assert deleted == [not has_come]
        assert not here.store.content.exists(target.digest)
