"""Copies of a registry's image into the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore import CopyOptions
from imagestore.errors import NoMatchingManifestError
from imagestore.events import Event
from imagestore.testing import build_index
from tests.support.node import HYPERV, PROCESS, PYTHON, node

HERE = "registry.example/here:1"
LINUX_ONLY = build_index(["linux/amd64", "linux/arm64"], seed="linux only")


def test_handlers_that_the_image_has_nothing_for_are_left_out(tmp_path: Path) -> None:
    events: list[Event] = []
    with node(tmp_path, {PYTHON: LINUX_ONLY}) as opened:
        report = opened.store.copy(
            PYTHON, f"store:{HERE}", options=CopyOptions(all_handlers=True), observer=events.append
        )
        kept = {(image.reference, image.runtime_handler) for image in opened.store.list()}
    assert report.target.digest == LINUX_ONLY.target.digest
    assert kept == {(HERE, "kata")}
    said = " ".join(map(str, events))
    assert f"left out for {PROCESS}" in said
    assert f"left out for {HYPERV}" in said


@pytest.mark.parametrize(
    ("options", "platforms"),
    [(CopyOptions(all_handlers=True), ["linux/s390x"]), (CopyOptions((PROCESS, "kata")), ["linux/amd64"])],
)
def test_an_image_with_nothing_for_a_named_handler_is_an_error(
    tmp_path: Path, options: CopyOptions, platforms: list[str]
) -> None:
    with node(tmp_path, {PYTHON: build_index(platforms, seed="nothing")}) as opened:
        with pytest.raises(NoMatchingManifestError):
            opened.store.copy(PYTHON, f"store:{HERE}", options=options)
        assert list(opened.store.list()) == []
