"""The clock of image_pull_progress_timeout runs while something is being received, and only then."""

from __future__ import annotations

import asyncio

import pytest

from imagestore import CancelToken, Descriptor, Digest
from imagestore import config as configuration
from imagestore.cri.pull_timeout import ProgressWatch
from imagestore.errors import ConfigError, OperationCancelledError
from imagestore.events import BlobAdvanced, BlobAwaited, BlobDone, BlobStarted, BlobVerifying, Event, Waiting

ONE, TWO = (Descriptor("application/octet-stream", Digest.of(raw), 9) for raw in (b"one", b"two"))


class Watched:
    """A watch of 10 s, and the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.heard: list[Event] = []
        self.watch = ProgressWatch(self.heard.append, 10.0, lambda: self.now)

    def after(self, seconds: float, *events: Event) -> bool:
        """Whether it is stalled some seconds after events."""
        for event in events:
            self.watch(event)
        self.now += seconds
        return self.watch.is_stalled


def test_what_is_received_must_go_on() -> None:
    watched = Watched()
    assert not watched.after(10, BlobStarted(ONE, 0))
    assert not watched.after(10, BlobAdvanced(ONE.digest, 1))
    assert watched.after(1)


@pytest.mark.parametrize("event", [BlobVerifying(ONE), BlobDone(ONE, 9), BlobAwaited(ONE)])
def test_nothing_is_received_before_and_after_a_blob(event: Event) -> None:
    watched = Watched()
    assert not watched.after(1000)
    assert not watched.after(1000, BlobStarted(ONE, 0), event)
    assert watched.after(11, BlobStarted(TWO, 0))


def test_another_blob_that_ends_does_not_stop_the_clock() -> None:
    watched = Watched()
    assert not watched.after(5, BlobStarted(ONE, 0), BlobStarted(TWO, 0))
    assert watched.after(11, BlobVerifying(ONE))


def test_a_pause_that_a_registry_asked_for_does_not_count() -> None:
    watched = Watched()
    assert not watched.after(40, BlobStarted(ONE, 0), Waiting("registry.example", 30, "429"))
    assert watched.after(1)


def test_every_event_goes_on_to_the_observer() -> None:
    watched = Watched()
    events: tuple[Event, ...] = (BlobStarted(ONE, 0), Waiting("h", 1, ""), BlobDone(ONE, 9))
    watched.after(0, *events)
    assert tuple(watched.heard) == events


def test_a_stalled_pull_is_cancelled_with_the_reason() -> None:
    watched, token = Watched(), CancelToken()
    watched.after(11, BlobStarted(ONE, 0))
    asyncio.run(watched.watch.guard(token))
    with pytest.raises(OperationCancelledError, match=r"nothing was received for 10 s"):
        token.check()


@pytest.mark.parametrize(
    ("member", "seconds"),
    [("", None), ('="0"', None), ('="1m30s"', 90.0), ('=""', None), ('="500ms"', 0.5)],
)
@pytest.mark.parametrize(
    "table", ['version=3\n[plugins."io.containerd.cri.v1.images"]', 'version=2\n[plugins."io.containerd.grpc.v1.cri"]']
)
def test_it_is_read_from_files_of_every_version(table: str, member: str, seconds: float | None) -> None:
    line = f"image_pull_progress_timeout{member}" if member else ""
    assert configuration.loads(f"{table}\n{line}\n").settings.image_pull_progress_timeout == seconds


@pytest.mark.parametrize("text", ["soon", "-1s", "5"])
def test_a_value_that_is_no_duration_is_refused(text: str) -> None:
    """containerd doesn't start with it."""
    with pytest.raises(ConfigError, match="image_pull_progress_timeout"):
        configuration.loads(
            f'version=3\n[plugins."io.containerd.cri.v1.images"]\nimage_pull_progress_timeout="{text}"\n'
        )
