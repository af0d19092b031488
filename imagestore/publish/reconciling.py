"""Waiting for what a reconciliation began."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING, Final

from imagestore.errors import OperationCancelledError
from imagestore.events import PartAdvanced, ignore
from imagestore.publish.model import ImageState, ReconcileReport

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from imagestore.events import Observer
    from imagestore.publish.image_states import ImageStates
    from imagestore.util.cancel import CancelToken

#: Between two looks at the token of who waits.
_LOOK_SECONDS: Final = 0.1


class RunningReconcile:
    """A reconciliation whose publishes run.

    Args:
        states: of the publisher.
        running: its publishes by image id.
        wanted: how many images are wanted.
        removed: containerd's names that were taken away.
    """

    def __init__(
        self, states: ImageStates, running: Mapping[str, Future[None]], wanted: int, removed: tuple[str, ...]
    ) -> None:
        self._states = states
        self._running = running
        self._wanted = wanted
        self._removed = removed

    def finish(self, cancel: CancelToken, observer: Observer = ignore) -> ReconcileReport:
        """Wait for the publishes; the observer gets an event for each that ended.

        Raises:
            OperationCancelledError: cancelled; they go on.
        """
        ids = {future: key for key, future in self._running.items()}
        for number, future in enumerate(as_ended(ids, cancel), 1):
            ended = f"{self._states.entry(ids[future]).state.value} ({number} of {len(ids)})"
            observer(PartAdvanced(f"image {ids[future]}", ended))
        failed = {key: str(error) for key, each in self._running.items() if (error := each.exception()) is not None}
        others = {key: self._states.entry(key) for key in self._running.keys() - failed.keys()}
        return ReconcileReport(
            published=tuple(sorted(key for key, entry in others.items() if entry.state is ImageState.PUBLISHED)),
            unchanged=self._wanted - len(self._running),
            removed=self._removed,
            failed=failed,
            not_runnable={key: each.reason for key, each in others.items() if each.state is ImageState.NOT_RUNNABLE},
        )


def results(running: Sequence[Future[None]], cancel: CancelToken) -> Sequence[Future[None]]:
    """Wait until all have ended, well or not.

    Raises:
        OperationCancelledError: cancelled, and they go on; or the publisher was closed before they began.
    """
    for _ in as_ended(running, cancel):
        pass
    return running


def as_ended(running: Collection[Future[None]], cancel: CancelToken) -> Iterator[Future[None]]:
    """Each as it ends, well or not.

    Raises:
        OperationCancelledError: as results().
    """
    left = set(running)
    while left:
        cancel.check()
        ended, left = concurrent.futures.wait(left, _LOOK_SECONDS, concurrent.futures.FIRST_COMPLETED)
        if any(each.cancelled() for each in ended):
            raise OperationCancelledError("the publisher was closed")
        yield from ended
