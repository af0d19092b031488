"""Uploads that a later process goes on with, by the notes of an earlier one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imagestore import CancelToken, Digest, TransferPolicy
from imagestore.errors import (
    RegistryUnavailableError,
)
from imagestore.registry import connect
from imagestore.registry.transport.addresses import Origin
from imagestore.registry.upload_sessions import upload_note
from tests.support.upload_registry import (
    LARGE,
    TARGET,
    Registry,
    Source,
    described,
    key,
)


def killed_after(registry: Registry, folder: str, size: int) -> None:
    """A process that ended within an upload: what it noted stays."""
    registry.breaks = [size]
    once = TransferPolicy(attempts=1)
    with connect(transport=registry, policy=once, state_folder=folder) as client:
        writer = client.writer(TARGET, cancel=CancelToken())
        with pytest.raises(RegistryUnavailableError):
            writer.blob(described(LARGE), lambda offset: Source(LARGE, offset))


@pytest.mark.parametrize("resumes", [True, False])
def test_a_later_process_goes_on_where_the_registry_kept_a_part(tmp_path: Path, resumes: bool) -> None:
    registry = Registry(resumes=resumes)
    killed_after(registry, str(tmp_path), 1 << 20)
    (note,) = (tmp_path / "uploads").iterdir()
    assert note.stat().st_mode & 0o777 == 0o600
    with connect(transport=registry, state_folder=str(tmp_path)) as client:
        writer = client.writer(TARGET, cancel=CancelToken())
        done = writer.blob(described(LARGE), lambda offset: Source(LARGE, offset))
    assert done.sent == len(LARGE) - (1 << 20 if resumes else 0)
    assert registry.blobs == {key(LARGE): LARGE}
    assert list((tmp_path / "uploads").iterdir()) == []


@pytest.mark.parametrize("text", ["", "https://elsewhere.example/u0", "http://", "\0\xff", "x" * 10_000])
def test_a_note_that_is_none_is_not_followed(tmp_path: Path, text: str) -> None:
    registry = Registry()
    killed_after(registry, str(tmp_path), 1 << 20)
    (note,) = (tmp_path / "uploads").iterdir()
    note.write_text(text)
    with connect(transport=registry, state_folder=str(tmp_path)) as client:
        done = client.writer(TARGET, cancel=CancelToken()).blob(described(LARGE), lambda offset: Source(LARGE, offset))
    assert done.sent == len(LARGE)
    assert not any("elsewhere" in line for line in registry.log)


def test_two_processes_share_no_upload(tmp_path: Path) -> None:
    folder = str(tmp_path)
    origin, digest = Origin("https", "registry.example", 443), Digest.of(LARGE)
    with upload_note(folder, origin, "app", digest) as first, upload_note(folder, origin, "app", digest) as second:
        first.keep("https://registry.example/u0")
        assert second.location == ""
        second.keep("https://registry.example/u1")
    with upload_note(folder, origin, "app", digest) as later:
        assert later.location == "https://registry.example/u0"
    with upload_note(folder, origin, "other", digest) as other:
        assert other.location == ""


def test_an_old_note_counts_no_more(tmp_path: Path) -> None:
    folder = str(tmp_path)
    origin, digest = Origin("https", "registry.example", 443), Digest.of(LARGE)
    with upload_note(folder, origin, "app", digest) as note:
        note.keep("https://registry.example/u0")
    (path,) = tmp_path.iterdir()
    os.utime(path, (0, 0))
    with upload_note(folder, origin, "app", digest) as later:
        assert later.location == ""
